/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing before the order. From a prompt's end until the order for its KV comes, two HTTP hops
 * pass and the owner has nothing to do: where orders need packed pieces, the next one's are packed
 * meanwhile, into staging that nobody needs. A guess: that the peer whose order came last will
 * order this prompt, too, from its first token on. What the order then asks for is looked up piece
 * by piece; bytes of a piece follow from the piece and the lease's blocks alone, whoever asks. What
 * was not asked for goes with the lease's end, with any link's, or when an order needs the staging.
 *
 * Thread: connector stage only.  Owner: hy_pd.
 */
#include "core/base/alloc.h"
#include "core/connector/pd_int.h"

#include <sched.h>

/* The lease is held now: begin. */
void hy_pd__early_begin(hy_pd *p, pd_lease *l)
{
    const pd_peer *x = p->early.like;
    if (x == NULL || x->serve == NULL || l->n_jobs > 0 || l->tokens < 1)
        return;
    const hy_kv_want w = {.n = l->tokens, .tail_free = true};
    p->early.lease = l;
    p->early.iter = hy_kv_plan_begin(x->serve, &w);
    p->early.left = PD_NEAR_SLOTS;
}

static void forget(hy_pd *p, pd_early **at, bool used)
{
    pd_early *e = *at;
    *at = e->next;
    if (used) {
        PD_COUNT(p, early_used);
        hy_metric_inc(p->m.early_used);
    } else {
        hy_pd__stage_give(p, e->buf, e->piece.bytes);
        PD_COUNT(p, early_dropped);
        hy_metric_inc(p->m.early_dropped);
    }
    hy_free(e);
}

/* Packs one piece; false: nothing to do. */
bool hy_pd__early_step(hy_pd *p)
{
    pd_lease *l = p->early.lease;
    hy_kv_piece c = {.direct = true};
    while (l != NULL && p->early.left > 0 && c.direct)
        if (!hy_kv_plan_next(&p->early.iter, &c))
            l = NULL;
    p->early.lease = NULL;
    if (l == NULL || c.direct)
        return false;
    /* The answer that the order waits for may be on its way on this core; a piece holds it up for
     * long, since a thread that has just begun is not preempted. */
    (void)sched_yield();
    pd_early *e = hy_calloc(1, sizeof(*e));
    if (e == NULL)
        return false;
    *e = (pd_early){.lease = l, .piece = c, .next = p->early.list};
    if (hy_pd__pack(p, p->early.iter.plan, l, &c, &e->buf) != HY_OK) {
        hy_free(e); /* most likely no staging is free */
        return false;
    }
    p->early.list = e;
    p->early.lease = l;
    p->early.left--;
    return true;
}

/* An order has come: packing is its own from here on. */
void hy_pd__early_stop(hy_pd *p, const pd_lease *l)
{
    if (p->early.lease == l)
        p->early.lease = NULL;
}

static bool same(const hy_kv_piece *a, const hy_kv_piece *b)
{
    return a->direct == b->direct && a->group == b->group && a->layer0 == b->layer0 &&
           a->n_layers == b->n_layers && a->t0 == b->t0 && a->n == b->n && a->head0 == b->head0 &&
           a->n_heads == b->n_heads && a->wire == b->wire && a->bytes == b->bytes;
}

void *hy_pd__early_take(hy_pd *p, const pd_lease *l, const hy_kv_piece *c)
{
    for (pd_early **at = &p->early.list; *at != NULL; at = &(*at)->next)
        if ((*at)->lease == l && same(&(*at)->piece, c)) {
            void *buf = (*at)->buf;
            forget(p, at, true);
            return buf;
        }
    return NULL;
}

bool hy_pd__early_yield(hy_pd *p)
{
    if (p->early.list == NULL)
        return false;
    forget(p, &p->early.list, false);
    return true;
}

void hy_pd__early_drop(hy_pd *p, const pd_lease *l)
{
    if (l == NULL || p->early.lease == l)
        p->early.lease = NULL;
    for (pd_early **at = &p->early.list; *at != NULL;)
        if (l == NULL || (*at)->lease == l)
            forget(p, at, false);
        else
            at = &(*at)->next;
}
