/* SPDX-License-Identifier: Apache-2.0
 *
 * The strict profile: libfabric with EFA's rules imposed on a provider that is kinder. Writes leave
 * in random order and complete in random order, one remote range each; so what works here does not
 * rest on an order that EFA does not keep.
 *
 * Thread: under the fabric's lock.  Owner: the link.
 */
#include "fabric/ofi/ofi_int.h"

static fab_piece *draw(ofi_link *l, fab_piece **from, int *n)
{
    int i = (int)hy_rng_below(&l->r->f->rng, (uint64_t)*n);
    fab_piece *p = from[i];
    from[i] = from[--*n];
    return p;
}

static void send_some(ofi_link *l, int keep)
{
    while (l->n_held > keep) {
        fab_piece *p = draw(l, l->held, &l->n_held);
        hy_status st = ofi_post(l, p);
        if (st == HY_OK)
            continue;
        l->held[l->n_held++] = p;
        if (st < 0)
            hy_fab__break(l->link, HY_E_PEER, hy_fail_text());
        return;
    }
}

static hy_status strict_post(void *dpl, fab_piece *p)
{
    ofi_link *l = dpl;
    if (!l->connected || l->n_held == OFI_STASH)
        return HY_AGAIN;
    l->held[l->n_held++] = p;
    send_some(l, 8); /* so many to choose from */
    return HY_OK;
}

static bool strict_progress(void *dpl, uint64_t now)
{
    ofi_link *l = dpl;
    (void)now;
    bool moved = l->n_held > 0;
    send_some(l, 0);
    if (l->link->broken)
        return true;
    int n = ofi_completions(l, l->done + l->n_done, OFI_STASH - l->n_done);
    if (n < 0)
        return true;
    if (n > 0 && !l->tuned)
        ofi_tune(l);
    l->n_done += n;
    /* hold some back: later ones overtake them */
    while (l->n_done > 0 && hy_rng_below(&l->r->f->rng, 4) != 0) {
        hy_fab__piece_done(draw(l, l->done, &l->n_done), HY_OK);
        moved = true;
    }
    return moved || n > 0;
}

const fab_dp_ops hy_fab__ofi_strict_dp = {
    .name = "ofi-strict",
    .max_segs = 1,
    .rail_open = ofi_rail_open,
    .rail_close = ofi_rail_close,
    .reg = ofi_reg,
    .dereg = ofi_dereg,
    .link_open = ofi_link_open,
    .link_connect = ofi_link_connect,
    .link_close = ofi_link_close,
    .post = strict_post,
    .progress = strict_progress,
    .uses = ofi_uses,
};
