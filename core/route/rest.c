/* SPDX-License-Identifier: Apache-2.0
 *
 * First legs that outlive their request. Pushing, decode may have answered it whole before the
 * prefill node's own answer is read: that node is done as well, in a moment, and hung up on it
 * would count a request that its client left.
 *
 * Thread: route stage.  Owner: the router.
 */
#include "core/route/flow_int.h"

#include <stdlib.h>

#define REST_NS (3 * HY_SEC) /* longer is no moment, busy as it may be: it computes for nobody */

struct hy_rest {
    hy_rest *next, **link;
    hy_route *r;
    hy_worker *w;
    hy_client_call *call;
    uint64_t trace, since_ns;
};

static void rest_free(hy_rest *x)
{
    *x->link = x->next;
    if (x->next != NULL)
        x->next->link = x->link;
    hy_route__worker_use(x->w, -1);
    atomic_fetch_sub(&x->r->n_active, 1);
    free(x);
}

static void on_end(void *arg, hy_client_fate fate, const char *why)
{
    hy_rest *x = arg;
    (void)why;
    if (fate == HY_CLIENT_DONE)
        hy_trace_again(x->r->o.trace, x->trace, HY_TRACE_P_DONE, hy_route__now(x->r));
    else
        hy_route__worker_suspect(x->w);
    rest_free(x);
}

void hy_flow__rest(hy_flow *f)
{
    static const hy_client_ops ops = {.on_end = on_end};
    hy_route *r = f->r;
    hy_rest *x = f->p.call != NULL ? calloc(1, sizeof(*x)) : NULL;
    if (x == NULL) {
        hy_leg__drop(&f->p);
        return;
    }
    *x = (hy_rest){.next = r->rests,
                   .link = &r->rests,
                   .r = r,
                   .w = f->p.w,
                   .call = f->p.call,
                   .trace = f->trace,
                   .since_ns = hy_route__now(r)};
    if (x->next != NULL)
        x->next->link = &x->next;
    r->rests = x;
    atomic_fetch_add(&r->n_active, 1);
    hy_client_follow(x->call, &ops, x);
    f->p.call = NULL;
}

void hy_route__rests_sweep(hy_route *r, bool all)
{
    for (hy_rest *x = r->rests, *next; x != NULL; x = next) {
        next = x->next;
        if (!all && hy_route__now(r) - x->since_ns < REST_NS)
            continue;
        hy_client_cancel(x->call);
        rest_free(x);
    }
}
