/* SPDX-License-Identifier: Apache-2.0
 *
 * Role `router`: from the configuration to a running router.
 *
 * Thread: main.  Owner: the node destroys the router.
 */
#include "core/cluster/cluster.h"
#include "core/node/node_int.h"

#include <stdlib.h>
#include <string.h>

static void read_opts(const hy_conf *c, hy_route_opts *o)
{
    o->push = strcmp(hy_conf_str(c, "router", "mode"), "push") == 0;
    o->round_robin = strcmp(hy_conf_str(c, "router", "policy"), "round_robin") == 0;
    o->need_prefill = strcmp(hy_conf_str(c, "router", "without_prefill"), "fail") == 0;
    o->min_prefill_len = hy_conf_size(c, "router", "min_prefill_chars");
    o->retries = (int)hy_conf_int(c, "router", "retries");
    o->max_answer_bytes = hy_conf_size(c, "router", "max_answer");
    o->max_unsent_bytes = hy_conf_size(c, "router", "max_unsent");
    o->health_interval_ns = hy_conf_ns(c, "router", "health_interval");
    o->health_timeout_ns = hy_conf_ns(c, "router", "health_timeout");
    o->down_after = (int)hy_conf_int(c, "router", "down_after");
    o->connect_timeout_ns = hy_conf_ns(c, "router", "connect_timeout");
    o->prefill_timeout_ns = hy_conf_ns(c, "router", "prefill_timeout");
    o->answer_timeout_ns = hy_conf_ns(c, "router", "answer_timeout");
    o->stall_timeout_ns = hy_conf_ns(c, "router", "stall_timeout");
    o->host = hy_conf_str(c, "http", "host");
    o->port = (int)hy_conf_int(c, "http", "port");
    o->max_body_bytes = hy_conf_size(c, "http", "max_body");
    o->max_header_bytes = hy_conf_size(c, "http", "max_header");
    o->max_connections = (int)hy_conf_int(c, "http", "max_connections");
    o->max_requests = (int)hy_conf_int(c, "http", "max_queue");
    o->idle_timeout_ns = hy_conf_ns(c, "http", "idle_timeout");
    o->header_timeout_ns = hy_conf_ns(c, "http", "header_timeout");
    o->write_timeout_ns = hy_conf_ns(c, "http", "write_timeout");
}

static hy_status take_peers(const hy_cluster *cl, hy_route_peer *peers, size_t *n_out)
{
    size_t n = 0;
    for (size_t i = 0; i < cl->n; i++) {
        const hy_peer *p = &cl->peers[i];
        if (p->host == NULL)
            return hy_fail(HY_E_INVAL,
                           "[peer.%s] url is missing: the router needs to know where "
                           "its HTTP is, as in url = http://127.0.0.1:8100",
                           p->name);
        unsigned can = (p->can & HY_PEER_PREFILL ? HY_ROUTE_PREFILL : 0u) |
                       (p->can & HY_PEER_DECODE ? HY_ROUTE_DECODE : 0u);
        peers[n++] = (hy_route_peer){p->name, p->host, p->port, can, p->addrs};
    }
    *n_out = n;
    return HY_OK;
}

hy_status hy_node__router_create(const hy_conf *c, const char *api_key, hy_metrics *m, hy_trace *t,
                                 hy_route **out)
{
    hy_cluster cl = {0};
    hy_route_opts o;
    hy_route *r = NULL;
    hy_route_opts_init(&o);
    read_opts(c, &o);
    o.api_key = api_key;
    o.metrics = m;
    o.trace = t;
    HY_TRY(hy_cluster_load(c, &cl));
    hy_route_peer *peers = calloc(cl.n + 1, sizeof(*peers));
    hy_status st =
        peers != NULL ? take_peers(&cl, peers, &o.n_peers) : hy_fail(HY_E_NOMEM, "out of memory");
    o.peers = peers;
    if (st == HY_OK)
        st = hy_route_create(&o, &r);
    if (st == HY_OK)
        st = hy_route_start(r);
    free(peers);
    hy_cluster_fini(&cl);
    if (st < 0) {
        hy_route_destroy(r);
        return st;
    }
    *out = r;
    return HY_OK;
}

void hy_node__router_describe(const hy_conf *c, const hy_route *r, hy_buf *out)
{
    hy_cluster cl = {0};
    if (hy_cluster_load(c, &cl) == HY_OK) {
        for (size_t i = 0; i < cl.n; i++)
            hy_buf_printf(out, "worker %s: %s, %s\n", cl.peers[i].name, cl.peers[i].role,
                          cl.peers[i].url);
        hy_cluster_fini(&cl);
    }
    hy_buf_puts(out, "serving ");
    hy_buf_put_url(out, hy_conf_str(c, "http", "host"), hy_route_port(r));
    hy_buf_printf(out, "/v1 (router, %s mode)\n", hy_conf_str(c, "router", "mode"));
}
