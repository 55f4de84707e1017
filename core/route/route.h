/* SPDX-License-Identifier: Apache-2.0
 *
 * The router: one HTTP front for many nodes. A request for generation goes to a prefill node
 * first, with one token to make, and then with what that node answered in kv_transfer_params to a
 * decode node, whose answer streams through unchanged (docs/PD.md, docs/CLUSTER.md).
 *
 * One stage with libevent's loop holds all of it: connections, workers, requests in work.
 *
 * Thread: create, start and destroy from one controlling thread; the rest from any.
 * Owner: the creator destroys. Options are copied, the metrics registry is borrowed.
 */
#ifndef HY_ROUTE_ROUTE_H
#define HY_ROUTE_ROUTE_H

#include "core/base/metric.h"
#include "core/base/runtime.h"
#include "core/base/trace.h"

typedef struct hy_route hy_route;

enum {
    HY_ROUTE_PREFILL = 1, /* may take the first leg */
    HY_ROUTE_DECODE = 2,  /* may take the second, or a whole request */
};

typedef struct hy_route_peer {
    const char *name;
    const char *host;
    int port;
    unsigned can;
    const char *addrs; /* of its fabric, for push; NULL or "": not known */
} hy_route_peer;

typedef struct hy_route_opts {
    const hy_route_peer *peers;
    size_t n_peers;
    bool push;               /* both legs at once, joined by a transfer_id */
    bool round_robin;        /* else the least outstanding requests */
    bool need_prefill;       /* where none can be used: 503, else decode computes the prompt */
    size_t min_prefill_len;  /* bytes of prompt as JSON; shorter ones go to decode alone */
    int retries;             /* further workers to try for a leg */
    size_t max_answer_bytes; /* of an answer that is no stream */

    uint64_t health_interval_ns, health_timeout_ns;
    int down_after;              /* checks in a row without an answer until a worker is down */
    uint64_t connect_timeout_ns; /* to workers */
    uint64_t prefill_timeout_ns; /* the whole first leg */
    uint64_t answer_timeout_ns;  /* until decode's answer begins; 0: none */
    uint64_t stall_timeout_ns;   /* most time between two pieces of it; 0: none */

    const char *host;
    int port;            /* 0 picks a free one */
    const char *api_key; /* NULL or "": none is asked for; then only loopback is served */
    size_t max_body_bytes, max_header_bytes;
    size_t max_unsent_bytes; /* to a slow reader, before its worker is made to wait */
    int max_connections;
    int max_requests; /* in work; above: 503 */
    uint64_t idle_timeout_ns, header_timeout_ns, write_timeout_ns;

    hy_metrics *metrics;
    hy_trace *trace; /* GET /trace; NULL: none is kept */
} hy_route_opts;

void hy_route_opts_init(hy_route_opts *o);

/* Binds the port. Failures are those of hy_http_create. */
hy_status hy_route_create(const hy_route_opts *o, hy_route **out);
hy_status hy_route_start(hy_route *r);
int hy_route_port(const hy_route *r);
/* Drain: no new connections, new requests answer 503, running ones end as they would. */
void hy_route_stop_accepting(hy_route *r);
/* Answers owed and releases under way: a drain is over at 0. */
int hy_route_active(const hy_route *r);
/* HY_OK while the stage works. */
hy_status hy_route_health(hy_route *r, const char **text_out);
void hy_route_destroy(hy_route *r); /* NULL is fine; hangs up on everybody */

#endif
