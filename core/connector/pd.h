/* SPDX-License-Identifier: Apache-2.0
 *
 * The point-to-point connector: prefill on one node, decode on another (docs/PD.md). Every node
 * that has it can be either side, also both at once. Kinds pull and push share it: the request's
 * hand-over fields say which.
 *
 * It has a stage of its own (`connector`) that owns leases, loads, links, a queue of the device for
 * packing, and the staging memory; it alone talks to the fabric. The scheduler half posts to it and
 * gets HY_MSG_CONN_EVENT back, so that nothing waits for a step.
 *
 * Thread: create, connect and destroy before and after the runtime runs; release from any.
 * Owner: the creator destroys, after engine and exec, before the device.
 */
#ifndef HY_CONNECTOR_PD_H
#define HY_CONNECTOR_PD_H

#include "core/base/metric.h"
#include "core/base/trace.h"
#include "core/base/stage.h"
#include "core/connector/connector.h"
#include "fabric/fabric.h"

typedef struct hy_pd hy_pd;

typedef struct hy_pd_opts {
    hy_fab_opts fab;       /* node, addrs, secret, ...; notify is set here */
    const char *links;     /* "NAME@host:port[+host:port],...": connected from the start; or NULL */
    const char *advertise; /* "host:port" that peers connect to; NULL or "": as bound */
    hy_dev *dev;           /* of the pools */
    int32_t n_groups;
    const int32_t *windows; /* [n_groups] */
    uint8_t model[32];      /* fingerprint of the weights */
    uint8_t act, numerics;  /* what else changes values */
    uint64_t lease_ns;      /* first term of a lease, and of each renewal */
    uint64_t timeout_ns;    /* longest time of a load */
    uint64_t grace_ns;      /* from a cancel to cutting the link */
    bool fail;              /* on_failure: fail the request, else compute it here */
    bool verify;            /* digests of all that moves */
    bool accept_lossy;
    bool has_wire; /* what comes in travels as `wire`, and is rounded to it */
    hy_dtype wire;
    size_t staging_bytes; /* half of it for what comes in, half for what goes out */
    size_t min_run;       /* shortest run that goes from cache to cache; 0: the plan's default */
    int32_t max_waiting;  /* sequences the engine may have: sizes the mailbox */
    hy_metrics *metrics;  /* NULL: none */
    hy_trace *trace;      /* NULL: none */
} hy_pd_opts;

void hy_pd_opts_init(hy_pd_opts *o);
/* Opens the fabric. Strings are copied. */
hy_status hy_pd_create(const hy_pd_opts *o, hy_pd **out);
/* After the runtime has stopped: ends all links; nothing lands in the pools any more. Destroy does
 * it, too (NULL is fine); under virtual time it is to be done before the runtime is destroyed. */
void hy_pd_close(hy_pd *p);
void hy_pd_destroy(hy_pd *p); /* NULL is fine */

hy_connector *hy_pd_connector(hy_pd *p);
hy_stage *hy_pd_stage(hy_pd *p);
hy_fab *hy_pd_fabric(hy_pd *p);
/* Where events go; before start. */
void hy_pd_set_sched(hy_pd *p, hy_stage *sched);
/* What peers are told, e.g. for the log. */
const char *hy_pd_addrs(const hy_pd *p);
uint64_t hy_pd_epoch(const hy_pd *p);

/* The lease is not needed any more (router: the client left between the nodes). text: the
 * kv_transfer_params that were answered, or its halyard object; HY_E_INVAL: no lease in it;
 * HY_E_NOTFOUND: of another node or epoch. Unknown and ended leases are no-ops. */
hy_status hy_pd_release(hy_pd *p, const char *text);

/* {node, addrs, links: [{peer, addrs, state, path, copy, why}]}: who this node is, where its fabric
 * is, and every node it had to do with. Any thread. */
void hy_pd_links(hy_pd *p, hy_buf *out);

/* Ages grow without anything happening: before the page of metrics is written. Any thread. */
void hy_pd_metrics_refresh(hy_pd *p);

typedef struct hy_pd_stats {
    uint64_t loads, received, missed, failed, expired, corrupt, aborted;
    uint64_t bytes_in, bytes_out, tokens_in, jobs_out, full_hits;
    uint64_t bytes_near;                /* of bytes_out: read by the peer where they stood */
    uint64_t early_used, early_dropped; /* pieces packed before their order */
    uint64_t leases, leases_released, leases_expired, late, malformed, refused_links;
    int32_t loads_open, leases_open, jobs_open;
} hy_pd_stats;
void hy_pd_stats_get(hy_pd *p, hy_pd_stats *out);

#endif
