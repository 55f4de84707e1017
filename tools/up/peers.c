/* SPDX-License-Identifier: Apache-2.0
 *
 * Whom the routers of a cluster file send requests to, beside which nodes it has. A router's worker
 * may well be elsewhere, and a node may be for others: nothing of this is refused, but told.
 *
 * Thread: main.  Owner: see plan.h.
 */
#include "tools/up/plan.h"

#include <string.h>
#include <strings.h>

static bool is_router(const hy_up_node *n)
{
    return strcmp(n->role, "router") == 0;
}

static bool is_any(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

/* "localhost" is whichever of the two families: both are this machine. */
static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
           strcasecmp(host, "localhost") == 0;
}

/* A node that listens everywhere has names that its file does not tell. */
static bool is_at(const hy_up_node *n, const hy_peer *p)
{
    return n->port != 0 && n->port == p->port &&
           (is_any(n->host) || strcasecmp(n->host, p->host) == 0 ||
            (is_loopback(n->host) && is_loopback(p->host)));
}

static const hy_up_node *node_at(const hy_up_plan *plan, const hy_peer *p)
{
    for (size_t i = 0; i < plan->n && p->host != NULL; i++)
        if (!is_router(&plan->nodes[i]) && is_at(&plan->nodes[i], p))
            return &plan->nodes[i];
    return NULL;
}

static bool has_router(const hy_up_plan *plan, const hy_up_node *n)
{
    bool any = false;
    for (size_t i = 0; i < plan->n; i++) {
        const hy_up_node *r = &plan->nodes[i];
        any = any || is_router(r);
        for (size_t k = 0; is_router(r) && k < r->peers.n; k++)
            if (node_at(plan, &r->peers.peers[k]) == n)
                return true;
    }
    return !any; /* clients come by themselves */
}

void hy_up_plan_peers(const hy_up_plan *plan, hy_buf *out)
{
    for (size_t i = 0; i < plan->n; i++) {
        const hy_up_node *r = &plan->nodes[i];
        for (size_t k = 0; is_router(r) && k < r->peers.n; k++) {
            const hy_peer *p = &r->peers.peers[k];
            const hy_up_node *n = node_at(plan, p);
            if (n == NULL && p->host != NULL)
                hy_buf_printf(out,
                              "[node.%s] has [peer.%s] url = %s, where no node of this file is\n",
                              r->name, p->name, p->url);
            else if (n != NULL &&
                     ((strcmp(p->role, "prefill") == 0 && !strcmp(n->role, "decode")) ||
                      (strcmp(p->role, "decode") == 0 && !strcmp(n->role, "prefill"))))
                hy_buf_printf(
                    out,
                    "[node.%s] has [peer.%s] role = %s, but its url is [node.%s]'s, a %s node\n",
                    r->name, p->name, p->role, n->name, n->role);
        }
    }
    for (size_t i = 0; i < plan->n; i++)
        if (!is_router(&plan->nodes[i]) && !has_router(plan, &plan->nodes[i]))
            hy_buf_printf(
                out,
                "[node.%s] gets no requests: no router of this file has a [peer] at its address\n",
                plan->nodes[i].name);
}
