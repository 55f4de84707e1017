/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces: what is posted to a data path at once. Operations of a peer take turns; each piece goes
 * to a link of the nearest rail, up to a window of bytes per link. When a link dies its
 * reads are posted again over another; its writes are of unknown outcome and end their operation.
 *
 * Thread: under the fabric's lock.  Owner: a free list of hy_fab; posted ones belong to their link.
 */
#include "fabric/fab_int.h"

#include <string.h>

enum { MOST_PIECES = 64 /* in flight per link */, MOST_RETRIES = 64 };
enum { ODD_BELOW = 60 << 10, ODD_ABOVE = 72 << 10 };

fab_piece *hy_fab__piece_new(hy_fab *f, fab_op *op)
{
    fab_piece *p = f->free_pieces;
    if (p != NULL)
        f->free_pieces = p->next;
    else
        p = hy_aligned_alloc(64, (sizeof(*p) + 63) / 64 * 64);
    if (p == NULL)
        return NULL;
    memset(p, 0, offsetof(fab_piece, seg));
    p->op = op;
    p->id = ++f->next_piece;
    return p;
}

void hy_fab__piece_free(hy_fab *f, fab_piece *p)
{
    p->next = f->free_pieces;
    f->free_pieces = p;
}

static void enlist(fab_link *l, fab_piece *p)
{
    p->link = l;
    p->prev = NULL;
    p->next = l->pieces;
    if (l->pieces != NULL)
        l->pieces->prev = p;
    l->pieces = p;
    l->n_out++;
    l->n_dp += !p->same;
    l->bytes_out += p->len;
    p->op->n_out++;
}

static void delist(fab_piece *p)
{
    fab_link *l = p->link;
    if (p->prev != NULL)
        p->prev->next = p->next;
    else
        l->pieces = p->next;
    if (p->next != NULL)
        p->next->prev = p->prev;
    l->n_out--;
    l->n_dp -= !p->same;
    l->bytes_out -= p->len;
    p->op->n_out--;
    p->link = NULL;
}

/* Nothing waits for own TCP that stands beside a link to get its connection. */
static bool carries(const fab_link *l, const fab_peer *p)
{
    return l->peer == p && l->state == LINK_UP && !l->broken && !(l->beside && l->awaits);
}

/* Own TCP stands beside this link of native TCP: it is the faster one and carries everything. */
static bool relieved(const hy_fab *f, const fab_link *l)
{
    for (const fab_link *o = f->links; o != NULL && l->native_tcp; o = o->next)
        if (o->beside && carries(o, l->peer) && o->rail == l->rail && o->rrail == l->rrail)
            return true;
    return false;
}

/* The nearest with room, of equally near ones the one with the least to do: a far rail takes what
 * the near ones have no room for, or all of it when they are gone. */
static fab_link *pick(hy_fab *f, const fab_op *op, const hy_fab_mr *mr)
{
    fab_link *best = NULL;
    for (fab_link *l = f->links; l != NULL; l = l->next) {
        if (!carries(l, op->peer) || l->full || l->n_out >= MOST_PIECES ||
            (l->n_out > 0 && l->bytes_out >= f->o.window_bytes))
            continue;
        if (op->device ? l->beside : relieved(f, l)) /* own TCP reaches no device */
            continue;
        int far = best != NULL ? mr->rail[l->rail].distance - mr->rail[best->rail].distance : 0;
        if (best == NULL || far < 0 || (far == 0 && l->bytes_out < best->bytes_out))
            best = l;
    }
    return best;
}

/* A piece that is cut for one path may be too finely cut for another: cut it down again. */
static hy_status fit(hy_fab *f, fab_op *op, fab_piece *p, int max_segs)
{
    if (p->n_segs <= max_segs)
        return HY_OK;
    fab_piece *rest = hy_fab__piece_new(f, op);
    if (rest == NULL)
        return HY_AGAIN;
    rest->read = p->read;
    for (int i = max_segs; i < p->n_segs; i++) {
        rest->seg[rest->n_segs++] = p->seg[i];
        rest->len += p->seg[i].len;
        p->len -= p->seg[i].len;
    }
    p->n_segs = max_segs;
    rest->next = op->redo;
    op->redo = rest;
    return HY_OK;
}

/* A new piece of what is left. 64 KiB with a provider's header are a full segment of loopback's TCP
 * and a tiny one, which costs more than the full one: four pages of 16 KiB go as three and more. */
static void cut(hy_fab *f, fab_op *op, fab_piece *p, const fab_link *l)
{
    const uint32_t cur = op->cur;
    const uint64_t off = op->cur_off;
    hy_fab__op_cut(op, p, f->o.piece_bytes, l->same.tx ? FAB_SEGS : l->max_segs);
    if (l->same.tx || !l->native_tcp || p->n_segs < 2 || p->len <= ODD_BELOW || p->len > ODD_ABOVE)
        return;
    op->cur = cur;
    op->cur_off = off;
    hy_fab__op_cut(op, p, f->o.piece_bytes, p->n_segs - 1);
}

/* HY_AGAIN: nothing can be posted for this operation now. */
static hy_status post_one(hy_fab *f, fab_op *op, uint64_t now)
{
    if (op->pull)
        return hy_fab__pull_ask(f, op);
    fab_piece *p = op->redo;
    fab_link *l = pick(f, op, p != NULL ? p->seg[0].mr : op->ranges[op->cur].mr);
    if (l == NULL)
        return HY_AGAIN;
    if (p != NULL) {
        op->redo = p->next;
    } else {
        p = hy_fab__piece_new(f, op);
        if (p == NULL)
            return HY_AGAIN;
        p->read = op->kind == FAB_READ;
        cut(f, op, p, l);
    }
    p->same = hy_fab__same_fits(l, p);
    if (fit(f, op, p, p->same ? FAB_SEGS : l->max_segs) != HY_OK) {
        p->next = op->redo;
        op->redo = p;
        return HY_AGAIN;
    }
    enlist(l, p);
    if (op->cur == op->n_ranges && op->redo == NULL)
        hy_fab__op_queue(op, false);
    if (!p->same) /* first: to post may be to send it all, and the peer's thread sleeps */
        hy_fab__announce(l);
    hy_status st = p->same ? hy_fab__same_post(l, p) : l->dp->post(l->dpl, p);
    if (st == HY_OK) {
        l->again_since = 0;
        if (l->n_out == 1)
            l->last_done = now; /* the stall clock begins */
        return HY_OK;
    }
    delist(p);
    p->next = op->redo; /* nothing of it has left */
    op->redo = p;
    hy_fab__op_queue(op, true);
    if (st == HY_AGAIN) {
        l->full = true;
        if (l->again_since == 0)
            l->again_since = now;
    } else {
        hy_fab__break(l, HY_E_PEER, hy_fail_text());
    }
    return HY_AGAIN;
}

bool hy_fab__post(hy_fab *f, fab_peer *p, uint64_t now)
{
    bool moved = false, any = p->n_queued > 0;
    for (fab_link *l = f->links; l != NULL && any; l = l->next)
        if (l->peer == p)
            l->full = false;
    while (any) {
        any = false;
        for (fab_op *op = p->ops, *next; op != NULL; op = next) {
            next = op->next;
            if (op->queued && post_one(f, op, now) == HY_OK)
                any = true;
        }
        moved |= any;
    }
    return moved;
}

void hy_fab__piece_done(fab_piece *p, hy_status st)
{
    fab_link *l = p->link;
    fab_op *op = p->op;
    hy_fab *f = l->f;
    if (st < 0) { /* its outcome is decided when the link is closed */
        hy_fab__break(l, HY_E_PEER, hy_fail_text());
        return;
    }
    l->last_done = hy_fab__now(f);
    f->stats.rail_bytes[l->rail] += p->len;
    l->carried += p->len;
    f->stats.beside += l->beside ? p->len : 0;
    delist(p);
    op->done += p->len;
    if (op->kind == FAB_READ)
        f->stats.bytes_read += p->len;
    else if (op->kind == FAB_WRITE)
        f->stats.bytes_written += p->len;
    else
        f->stats.bytes_served += p->len;
    hy_fab__piece_free(f, p);
    hy_fab__op_check(f, op);
}

void hy_fab__link_lost_pieces(fab_link *l)
{
    hy_fab *f = l->f;
    while (l->pieces != NULL) {
        fab_piece *p = l->pieces;
        fab_op *op = p->op;
        delist(p);
        if (op->kind == FAB_READ && op->status >= 0 && op->retries++ < MOST_RETRIES) {
            f->stats.retried_pieces++;
            p->next = op->redo;
            op->redo = p;
            hy_fab__op_queue(op, true);
            continue;
        }
        hy_fab__piece_free(f, p);
        hy_fab__op_queue(op, false);
        if (op->kind == FAB_WRITE)
            op->flags |= HY_FAB_UNKNOWN;
        if (op->kind == FAB_SERVE && op->lost_link != 0 && op->lost_link != l->id)
            hy_fab__serve_lost(f, op); /* the answer has room for one */
        op->lost_link = l->id;
        if (op->status >= 0)
            op->status = HY_E_PEER;
        if (op->grace == 0) {
            op->grace = hy_clock_after(hy_fab__now(f), f->o.grace_ns);
            hy_fab__timer(f, op->grace);
        }
        hy_fab__op_check(f, op);
    }
}
