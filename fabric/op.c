/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations from start to their one event: deadlines, cancellation with its fence, the immediate
 * after the last byte.
 *
 * Thread: under the fabric's lock.  Owner: the peer, or hy_fab.connects.
 */
#include "fabric/fab_int.h"

#include <stdio.h>
#include <string.h>

fab_op *hy_fab__op_find(hy_fab *f, uint64_t id)
{
    fab_op *op = f->ops[id % FAB_OPS_HASH];
    while (op != NULL && op->id != id)
        op = op->hash_next;
    return op;
}

fab_op *hy_fab__op_new(hy_fab *f, fab_op_kind kind, fab_peer *p)
{
    if (kind != FAB_SERVE && f->n_ops + atomic_load(&f->ev_ops) >= f->o.max_ops)
        return NULL;
    fab_op *op = hy_calloc(1, sizeof(*op));
    if (op == NULL)
        return NULL;
    op->id = ++f->next_op;
    op->kind = kind;
    op->peer = p;
    op->deadline = hy_clock_after(hy_fab__now(f), f->o.op_timeout_ns);
    op->hash_next = f->ops[op->id % FAB_OPS_HASH];
    f->ops[op->id % FAB_OPS_HASH] = op;
    f->n_ops += kind != FAB_SERVE;
    if (kind == FAB_CONNECT) {
        op->next = f->connects;
        f->connects = op;
    } else {
        op->prev = p->ops_tail;
        if (p->ops_tail != NULL)
            p->ops_tail->next = op;
        else
            p->ops = op;
        p->ops_tail = op;
    }
    return op;
}

static void unlist(hy_fab *f, fab_op *op)
{
    fab_peer *p = op->peer;
    if (op->kind == FAB_CONNECT) {
        fab_op **at = &f->connects;
        while (*at != op)
            at = &(*at)->next;
        *at = op->next;
        return;
    }
    if (op->prev != NULL)
        op->prev->next = op->next;
    else
        p->ops = op->next;
    if (op->next != NULL)
        op->next->prev = op->prev;
    else
        p->ops_tail = op->prev;
}

void hy_fab__op_free(hy_fab *f, fab_op *op)
{
    hy_fab__op_queue(op, false);
    unlist(f, op);
    fab_op **at = &f->ops[op->id % FAB_OPS_HASH];
    while (*at != op)
        at = &(*at)->hash_next;
    *at = op->hash_next;
    f->n_ops -= op->kind != FAB_SERVE;
    while (op->redo != NULL) {
        fab_piece *p = op->redo;
        op->redo = p->next;
        hy_fab__piece_free(f, p);
    }
    while (op->pulls != NULL) {
        fab_piece *p = op->pulls;
        op->pulls = p->next;
        op->peer->pulling -= p->len;
        hy_fab__piece_free(f, p);
    }
    for (uint32_t i = 0; i < op->n_ranges; i++)
        op->ranges[i].mr->users--;
    if (op->kind == FAB_SERVE)
        op->peer->n_serves--;
    hy_free(op->ranges);
    hy_free(op->keys);
    hy_free(op->addrs);
    hy_free(op);
}

void hy_fab__op_queue(fab_op *op, bool on)
{
    if (op->queued == on)
        return;
    op->queued = on;
    op->peer->n_queued += on ? 1 : (uint32_t)-1;
}

void hy_fab__op_add(fab_op *op, const fab_range *r)
{
    fab_range *last = op->n_ranges > 0 ? &op->ranges[op->n_ranges - 1] : NULL;
    if (r->len == 0)
        return;
    op->len += r->len;
    op->device |= ((r->mr->access | op->keys[r->key].access) & FAB_DEVICE) != 0;
    if (last != NULL && last->mr == r->mr && last->key == r->key &&
        last->off + last->len == r->off && last->roff + last->len == r->roff) {
        last->len += r->len;
        return;
    }
    op->ranges[op->n_ranges++] = *r;
    r->mr->users++;
}

void hy_fab__op_cut(fab_op *op, fab_piece *p, uint64_t most, int max_segs)
{
    p->n_segs = 0;
    p->len = 0;
    while (op->cur < op->n_ranges && p->n_segs < max_segs && p->len < most) {
        const fab_range *r = &op->ranges[op->cur];
        uint64_t n = r->len - op->cur_off;
        if (n > most - p->len)
            n = most - p->len;
        p->seg[p->n_segs++] =
            (fab_seg){r->mr, r->off + op->cur_off, &op->keys[r->key], r->roff + op->cur_off, n};
        p->len += n;
        op->cur_off += n;
        if (op->cur_off == r->len) {
            op->cur++;
            op->cur_off = 0;
        }
    }
}

void hy_fab__op_end(hy_fab *f, fab_op *op)
{
    if (op->kind == FAB_SERVE) {
        hy_fab__serve_end(f, op);
        hy_fab__op_free(f, op);
        return;
    }
    hy_fab_event ev = {.kind = HY_FAB_EV_DONE,
                       .status = op->status,
                       .flags = op->status < 0 ? op->flags : 0,
                       .peer = op->peer->handle,
                       .epoch = op->peer->epoch,
                       .op = op->id,
                       .user = op->user,
                       .len = op->done};
    f->stats.ops++;
    if (op->status < 0) {
        f->stats.ops_failed++;
        f->stats.timeouts += op->status == HY_E_TIMEOUT;
        f->stats.unknown_writes += op->kind == FAB_WRITE && (op->flags & HY_FAB_UNKNOWN) != 0;
        snprintf(ev.text, sizeof(ev.text), "%s",
                 op->status == HY_E_TIMEOUT   ? "deadline passed"
                 : op->status == HY_E_ABORTED ? "cancelled"
                                              : "link or peer lost");
    }
    hy_fab__op_free(f, op);
    hy_fab__event(f, &ev);
}

void hy_fab__op_check(hy_fab *f, fab_op *op)
{
    if (op->kind == FAB_SEND || op->kind == FAB_CONNECT || op->n_out > 0 || op->imm_sent)
        return;
    if (op->status < 0) {
        hy_fab__op_end(f, op);
    } else if (op->cur < op->n_ranges || op->redo != NULL) {
        hy_fab__op_queue(op, true);
    } else if (op->has_imm) {
        op->imm_sent = true; /* ends when it is acknowledged */
        hy_status st = hy_fab__msg(f, op->peer, FAB_SUB_IMM, 0, op->imm, NULL, 0, NULL, 0, op->id);
        if (st < 0) {
            op->status = st;
            hy_fab__op_end(f, op);
        }
    } else {
        hy_fab__op_end(f, op);
    }
}

void hy_fab__op_stop(hy_fab *f, fab_op *op, hy_status st)
{
    if (op->status < 0)
        return;
    op->status = st;
    hy_fab__op_queue(op, false);
    if (op->kind == FAB_SEND || op->imm_sent) { /* what is sent may arrive */
        op->flags |= HY_FAB_UNKNOWN;
        hy_fab__op_end(f, op);
        return;
    }
    while (op->redo != NULL) {
        fab_piece *p = op->redo;
        op->redo = p->next;
        hy_fab__piece_free(f, p);
    }
    op->grace = hy_clock_after(hy_fab__now(f), f->o.grace_ns);
    hy_fab__timer(f, op->grace);
    hy_fab__pull_cancel(f, op);
    hy_fab__op_check(f, op);
}

/* It does not drain: the links that carry its pieces are closed, which is a fence in any case. */
void hy_fab__op_fence(hy_fab *f, fab_op *op)
{
    for (fab_link *l = f->links; l != NULL; l = l->next) {
        if (l->peer != op->peer || l->state != LINK_UP)
            continue;
        bool carries = op->pulls != NULL;
        for (const fab_piece *p = l->pieces; p != NULL && !carries; p = p->next)
            carries = p->op == op;
        if (carries)
            hy_fab__break(l, HY_E_ABORTED, "closed to fence an operation that does not drain");
    }
}

void hy_fab__ops_timers(hy_fab *f, fab_peer *p, uint64_t now)
{
    for (fab_op *op = p->ops, *next; op != NULL; op = next) {
        next = op->next;
        if (op->status < 0) {
            if (op->grace != 0 && now >= op->grace)
                hy_fab__op_fence(f, op);
            else if (op->grace != 0)
                hy_fab__timer(f, op->grace);
        } else if (now >= op->deadline) {
            hy_fab__op_stop(f, op, HY_E_TIMEOUT);
        } else {
            hy_fab__timer(f, op->deadline);
        }
    }
}

/* Index of the key among the operation's own copies. */
static uint32_t key_of(fab_op *op, const hy_fab_key *k, const hy_fab_key **last, uint32_t *last_i)
{
    if (k == *last)
        return *last_i;
    uint32_t i = 0;
    while (i < op->n_keys && (op->keys[i].id != k->id || op->keys[i].token != k->token))
        i++;
    if (i == op->n_keys)
        op->keys[op->n_keys++] = *k;
    *last = k;
    *last_i = i;
    return i;
}

static hy_status check_range(const hy_fab *f, const fab_peer *p, const hy_fab_range *r, bool read)
{
    unsigned need = read ? HY_FAB_REMOTE_READ : HY_FAB_REMOTE_WRITE;
    if (r->mr == NULL || r->key == NULL || r->mr->f != f)
        return hy_fail(HY_E_INVAL, "a range without a memory or a key of this fabric");
    if (r->key->epoch != p->epoch)
        return hy_fail(HY_E_PEER, "the key is of another epoch of %s", p->node);
    if (!hy_span_has(&r->mr->span, r->off, r->len) || r->len > r->key->len ||
        r->roff > r->key->len - r->len)
        return hy_fail(HY_E_INVAL, "a range leaves its memory (%llu) or key (%llu bytes)",
                       (unsigned long long)r->mr->span.len, (unsigned long long)r->key->len);
    if ((r->key->access & need) == 0)
        return hy_fail(HY_E_DENIED, "the key does not allow remote %s", read ? "reads" : "writes");
    if (read && (r->mr->access & FAB_LAND) == 0)
        return hy_fail(HY_E_DENIED, "the memory was registered read-only");
    return HY_OK;
}

static uint32_t count_keys(const hy_fab_range *r, size_t n)
{
    uint32_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += i == 0 || r[i].key != r[i - 1].key;
    return k;
}

static hy_status fill(hy_fab *f, fab_op *op, const hy_fab_range *r, size_t n)
{
    const hy_fab_key *last = NULL;
    uint32_t last_i = 0, n_keys = count_keys(r, n);
    op->ranges = hy_malloc((n > 0 ? n : 1) * sizeof(*op->ranges));
    op->keys = hy_malloc((n_keys > 0 ? n_keys : 1) * sizeof(*op->keys));
    if (op->ranges == NULL || op->keys == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for %zu ranges", n);
    for (size_t i = 0; i < n; i++) {
        HY_TRY(check_range(f, op->peer, &r[i], op->kind == FAB_READ));
        fab_range x = {r[i].mr, r[i].off, r[i].roff, r[i].len, 0};
        x.key = key_of(op, r[i].key, &last, &last_i);
        hy_fab__op_add(op, &x);
    }
    return HY_OK;
}

static bool pull_wanted(const hy_fab *f, const fab_peer *p)
{
    if (f->o.pull != HY_FAB_PULL_AUTO)
        return f->o.pull == HY_FAB_PULL_WRITE;
    return p->primary == NULL || p->primary->pull_by_write || p->primary->same.rx;
}

static hy_status start(hy_fab *f, hy_fab_peer peer, fab_op_kind kind, const hy_fab_range *r,
                       size_t n, const hy_fab_op_opts *o, uint64_t *op_out)
{
    fab_peer *p = hy_fab__peer(f, peer);
    if (p == NULL || !p->up)
        return hy_fail(HY_E_PEER, "%s a peer that is gone",
                       kind == FAB_READ ? "read of" : "write to");
    if (o != NULL && o->has_imm && fab_window_full(p))
        return HY_AGAIN;
    fab_op *op = hy_fab__op_new(f, kind, p);
    if (op == NULL)
        return HY_AGAIN;
    hy_status st = fill(f, op, r, n);
    if (st < 0) {
        hy_fab__op_free(f, op);
        return st;
    }
    if (o != NULL) {
        op->user = o->user;
        op->has_imm = o->has_imm && kind == FAB_WRITE;
        op->imm = o->imm;
        if (o->timeout_ns != 0)
            op->deadline = hy_clock_after(hy_fab__now(f), o->timeout_ns);
    }
    op->pull = kind == FAB_READ && pull_wanted(f, p);
    hy_fab__timer(f, op->deadline);
    if (op_out != NULL)
        *op_out = op->id;
    hy_fab__op_check(f, op);
    hy_fab__post(f, p, hy_fab__now(f));
    return HY_OK;
}

static hy_status start_locked(hy_fab *f, hy_fab_peer peer, fab_op_kind kind, const hy_fab_range *r,
                              size_t n, const hy_fab_op_opts *o, uint64_t *op_out)
{
    if (n > HY_FAB_RANGES_MAX)
        return hy_fail(HY_E_LIMIT, "%zu ranges, at most %d", n, HY_FAB_RANGES_MAX);
    hy_fab__lock(f);
    hy_status st = start(f, peer, kind, r, n, o, op_out);
    hy_fab__unlock(f);
    hy_fab__kick(f);
    return st;
}

hy_status hy_fab_write(hy_fab *f, hy_fab_peer peer, const hy_fab_range *r, size_t n,
                       const hy_fab_op_opts *opts, uint64_t *op_out)
{
    return start_locked(f, peer, FAB_WRITE, r, n, opts, op_out);
}

hy_status hy_fab_read(hy_fab *f, hy_fab_peer peer, const hy_fab_range *r, size_t n,
                      const hy_fab_op_opts *opts, uint64_t *op_out)
{
    return start_locked(f, peer, FAB_READ, r, n, opts, op_out);
}

hy_status hy_fab_cancel(hy_fab *f, uint64_t id)
{
    hy_fab__lock(f);
    fab_op *op = hy_fab__op_find(f, id);
    hy_status st = HY_OK;
    if (op == NULL || op->kind == FAB_SERVE)
        st = HY_E_NOTFOUND;
    else if (op->kind == FAB_CONNECT)
        op->deadline = 0;
    else
        hy_fab__op_stop(f, op, HY_E_ABORTED);
    hy_fab__timer(f, 0);
    hy_fab__unlock(f);
    hy_fab__kick(f);
    return st;
}
