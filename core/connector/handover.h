/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_transfer_params: what a router carries from the node that holds KV to the one that wants it.
 * The outer fields are vLLM's; what makes a reference safe stands in "halyard" (docs/PD.md).
 * Numbers of 64 bits travel as hex strings, since JSON's may be doubles.
 *
 * Thread: pure.  Owner: see each call.
 */
#ifndef HY_CONNECTOR_HANDOVER_H
#define HY_CONNECTOR_HANDOVER_H

#include "core/base/buf.h"
#include "core/connector/connector.h"

enum { HY_HANDOVER_VERSION = 1, HY_HANDOVER_NODE_MAX = 64, HY_HANDOVER_ADDRS_MAX = 384 };

typedef struct hy_handover {
    bool prefill;   /* do_remote_prefill: KV is to be had elsewhere */
    bool decode;    /* do_remote_decode: KV is to be kept for a peer */
    bool push;      /* the router chose the transfer id: whoever comes first waits */
    bool foreign;   /* prefill without an object of ours: nothing we could read */
    uint64_t lease; /* or transfer id */
    uint64_t asked; /* decode: the lease is to have this number; 0: any */
    /* of the owner */
    char node[HY_HANDOVER_NODE_MAX];
    char addrs[HY_HANDOVER_ADDRS_MAX]; /* "host:port[,host:port...]" */
    uint64_t epoch;                    /* 0: whichever it is in (push) */
    int32_t tokens;                    /* whose KV it has; push: 0 */
    uint64_t lease_ns;
    uint8_t prompt[32]; /* digest of those tokens; push: 0 */
    bool has_first;
    hy_conn_first first;
} hy_handover;

/* text NULL: no fields at all. HY_E_INVAL names the field that is wrong. */
hy_status hy_handover_parse(const char *text, hy_handover *out);
/* The lease (and epoch) or transfer id that a release names: kv_transfer_params, an object that
 * holds them, or {"lease", "epoch"}. Without an epoch: a lease that the router asked for. */
hy_status hy_handover_parse_release(const char *text, hy_handover *out);
/* What the owner of the KV answers. ids: of the first group, for readers of vLLM's fields. */
void hy_handover_write(const hy_handover *h, const char *request_id, const int32_t *ids,
                       int32_t n_ids, hy_buf *out);

/* Digest of the tokens that the KV stands for, whatever the pools, salts and caches. */
void hy_handover_digest(const int32_t *tokens, int32_t n, bool rope_long, uint8_t out[32]);
/* A transfer id of any form as a lease number: 16 hex digits as they are, else a hash. */
uint64_t hy_handover_lease(const char *text);

#endif
