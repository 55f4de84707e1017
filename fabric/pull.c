/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads served as the owner's writes: what software providers do faster, because only the writer
 * has to move bytes. The reader asks for up to a few MiB at once, names where they go, and gets
 * one answer when they are applied. An ask whose link died is answered with that link's id; the
 * reader closes its end of it (the fence) before it asks again over another rail. When more than
 * one died, answers to piece 0, which nobody asked for, tell of the others first.
 *
 *   ASK:    piece u64, timeout_ns u64, n_keys u32, n_ranges u32, keys, ranges of 44 bytes:
 *           source memory u64, its token u64, offset u64, key u32, offset u64, length u64
 *   ANSWER: piece u64, status u32, lost link u64
 *
 * Thread: under the fabric's lock.  Owner: pieces of a pull belong to their operation.
 */
#include "fabric/fab_int.h"

#include <string.h>

enum { ASK_FIXED = 24, ASK_RANGE = 44, ASK_KEYS = 32, ASK_RANGES = 512, ANSWER_LEN = 20 };
enum { MOST_SERVES = 1024 };
_Static_assert(ASK_FIXED + ASK_KEYS * HY_FAB_KEY_MAX + ASK_RANGES * ASK_RANGE <= HY_FAB_MSG_MAX,
               "an ask fits a message");

typedef struct ask {
    hy_buf keys, ranges;
    uint32_t n_keys, n_ranges;
    hy_fab_mr *mr[ASK_KEYS];
} ask;

static int ask_key(ask *a, hy_fab_mr *mr)
{
    for (uint32_t i = 0; i < a->n_keys; i++)
        if (a->mr[i] == mr)
            return (int)i;
    if (a->n_keys == ASK_KEYS)
        return -1;
    a->mr[a->n_keys] = mr;
    hy_fab_key_pack(mr, &a->keys);
    return (int)a->n_keys++;
}

/* As much as fits, from (*cur, *off) on. */
static uint64_t ask_fill(ask *a, const fab_op *op, uint32_t *cur, uint64_t *off, uint64_t most)
{
    uint64_t len = 0;
    while (*cur < op->n_ranges && len < most && a->n_ranges < ASK_RANGES) {
        const fab_range *r = &op->ranges[*cur];
        const hy_fab_key *src = &op->keys[r->key];
        int key = ask_key(a, r->mr);
        uint64_t n = r->len - *off < most - len ? r->len - *off : most - len;
        uint8_t b[ASK_RANGE];
        if (key < 0)
            break;
        fab_put64(b, src->id);
        fab_put64(b + 8, src->token);
        fab_put64(b + 16, r->roff + *off);
        fab_put32(b + 24, (uint32_t)key);
        fab_put64(b + 28, r->off + *off);
        fab_put64(b + 36, n);
        hy_buf_add(&a->ranges, b, sizeof(b));
        a->n_ranges++;
        len += n;
        *off += n;
        if (*off == r->len) {
            *off = 0;
            ++*cur;
        }
    }
    return len;
}

static uint64_t most_of(const hy_fab *f)
{
    return 4 * f->o.piece_bytes < f->o.window_bytes ? 4 * f->o.piece_bytes : f->o.window_bytes;
}

static hy_status ask_send(hy_fab *f, fab_op *op, fab_piece *p, const ask *a)
{
    uint8_t h[ASK_FIXED];
    uint64_t now = hy_fab__now(f);
    hy_buf b;
    hy_buf_init(&b);
    fab_put64(h, p->id);
    fab_put64(h + 8, op->deadline > now ? op->deadline - now : 1);
    fab_put32(h + 16, a->n_keys);
    fab_put32(h + 20, a->n_ranges);
    hy_buf_add(&b, h, sizeof(h));
    hy_buf_add(&b, a->keys.data, a->keys.len);
    hy_buf_add(&b, a->ranges.data, a->ranges.len);
    hy_status st = b.failed || a->keys.failed || a->ranges.failed
                       ? HY_E_NOMEM
                       : hy_fab__msg(f, op->peer, FAB_SUB_ASK, 0, p->id, b.data, b.len, NULL, 0, 0);
    hy_buf_fini(&b);
    return st;
}

hy_status hy_fab__pull_ask(hy_fab *f, fab_op *op)
{
    if (op->peer->pulling >= 2 * f->o.window_bytes || op->peer->primary == NULL)
        return HY_AGAIN;
    ask a = {.n_keys = 0};
    hy_buf_init(&a.keys);
    hy_buf_init(&a.ranges);
    fab_piece *p = op->redo;
    uint32_t cur = p != NULL ? p->first : op->cur;
    uint64_t off = p != NULL ? p->skip : op->cur_off, most = p != NULL ? p->len : most_of(f);
    if (p == NULL)
        p = hy_fab__piece_new(f, op);
    else
        op->redo = p->next;
    hy_status st = HY_AGAIN;
    if (p != NULL) {
        bool again = p->pull;
        p->pull = true;
        p->first = cur;
        p->skip = off;
        p->len = ask_fill(&a, op, &cur, &off, most);
        p->id = ++f->next_piece; /* an answer to an earlier ask of it is late */
        if (!again) {
            op->cur = cur;
            op->cur_off = off;
        }
        p->next = op->pulls;
        op->pulls = p;
        op->n_out++;
        op->peer->pulling += p->len;
        if (op->cur == op->n_ranges && op->redo == NULL)
            hy_fab__op_queue(op, false);
        st = ask_send(f, op, p, &a);
    }
    hy_buf_fini(&a.keys);
    hy_buf_fini(&a.ranges);
    if (st < 0)
        op->status = st; /* no memory; the deadline's fence ends it */
    return st;
}

void hy_fab__pull_cancel(hy_fab *f, fab_op *op)
{
    for (fab_piece *p = op->pulls; p != NULL; p = p->next)
        hy_fab__msg(f, op->peer, FAB_SUB_STOP, 0, p->id, NULL, 0, NULL, 0, 0);
}

static fab_op *find_pull(fab_peer *p, uint64_t id, fab_piece ***at)
{
    for (fab_op *op = p->ops; op != NULL; op = op->next)
        for (*at = &op->pulls; **at != NULL; *at = &(**at)->next)
            if ((**at)->id == id)
                return op;
    return NULL;
}

static void close_lost(hy_fab *f, fab_peer *p, uint64_t id)
{
    for (fab_link *l = f->links; l != NULL; l = l->next)
        if (l->peer == p && l->id == id && l->state == LINK_UP) {
            hy_fab__link_close(l, HY_E_PEER, "the other end has lost it");
            return;
        }
}

void hy_fab__pull_answer(hy_fab *f, fab_peer *p, const uint8_t *d, size_t n)
{
    fab_piece **at;
    fab_op *op = n == ANSWER_LEN ? find_pull(p, fab_get64(d), &at) : NULL;
    if (op == NULL) {
        f->stats.late += n == ANSWER_LEN;
        f->stats.bad_frames += n != ANSWER_LEN;
        if (n == ANSWER_LEN && fab_get64(d + 12) != 0)
            close_lost(f, p, fab_get64(d + 12));
        return;
    }
    fab_piece *x = *at;
    hy_status st = (hy_status)(int32_t)fab_get32(d + 8);
    uint64_t lost = fab_get64(d + 12);
    *at = x->next;
    op->n_out--;
    p->pulling -= x->len;
    if (st == HY_OK) {
        op->done += x->len;
        f->stats.bytes_read += x->len;
        hy_fab__piece_free(f, x);
    } else if (lost != 0 && op->status >= 0 && op->retries++ < 64) {
        f->stats.retried_pieces++;
        x->next = op->redo;
        op->redo = x;
        hy_fab__op_queue(op, true);
    } else {
        hy_fab__piece_free(f, x);
        if (op->status >= 0 && op->n_out > 0)
            hy_fab__op_stop(f, op, st < 0 ? st : HY_E_PROTOCOL);
        else if (op->status >= 0)
            op->status = st < 0 ? st : HY_E_PROTOCOL;
        if (hy_fab__op_find(f, op->id) == NULL)
            return;
    }
    hy_fab_peer h = p->handle;
    uint64_t id = op->id;
    if (st < 0 && lost != 0)
        close_lost(f, p, lost); /* may end the peer, and with it the operation */
    if (hy_fab__peer(f, h) != NULL && hy_fab__op_find(f, id) != NULL)
        hy_fab__op_check(f, op);
}

static void answer(hy_fab *f, fab_peer *p, uint64_t id, hy_status st, uint64_t lost)
{
    uint8_t b[ANSWER_LEN];
    fab_put64(b, id);
    fab_put32(b + 8, (uint32_t)st);
    fab_put64(b + 12, lost);
    if (p->used)
        hy_fab__msg(f, p, FAB_SUB_ANSWER, 0, id, b, sizeof(b), NULL, 0, 0);
}

void hy_fab__serve_lost(hy_fab *f, fab_op *op)
{
    answer(f, op->peer, 0, HY_E_PEER, op->lost_link);
}

void hy_fab__serve_end(hy_fab *f, fab_op *op)
{
    answer(f, op->peer, op->serve_id, op->status, op->status < 0 ? op->lost_link : 0);
}

static hy_status serve_range(hy_fab *f, fab_op *op, const uint8_t *r)
{
    hy_fab_mr *mr = hy_fab__mr_find(f, fab_get64(r));
    uint32_t key = fab_get32(r + 24);
    fab_range x = {mr, fab_get64(r + 16), fab_get64(r + 28), fab_get64(r + 36), key};
    if (mr == NULL || mr->token != fab_get64(r + 8) || (mr->access & HY_FAB_REMOTE_READ) == 0)
        return hy_fail(HY_E_DENIED, "a pull of memory that is not (or no longer) shared");
    if (key >= op->n_keys || !hy_span_has(&mr->span, x.off, x.len) || x.len > op->keys[key].len ||
        x.roff > op->keys[key].len - x.len)
        return hy_fail(HY_E_INVAL, "a pull leaves its memory");
    hy_fab__op_add(op, &x);
    return HY_OK;
}

static hy_status serve_parse(hy_fab *f, fab_op *op, const uint8_t *d, size_t n)
{
    uint32_t n_keys = fab_get32(d + 16), n_ranges = fab_get32(d + 20);
    size_t at = ASK_FIXED, used;
    if (n_keys > ASK_KEYS || n_ranges > ASK_RANGES)
        return hy_fail(HY_E_FORMAT, "a pull of %u ranges with %u keys", n_ranges, n_keys);
    op->keys = hy_malloc((n_keys + 1) * sizeof(*op->keys));
    op->ranges = hy_malloc((n_ranges + 1) * sizeof(*op->ranges));
    if (op->keys == NULL || op->ranges == NULL)
        return hy_fail(HY_E_NOMEM, "no memory to serve a pull");
    for (uint32_t i = 0; i < n_keys; i++) {
        HY_TRY(hy_fab__key_get(d + at, n - at, &op->keys[i], &used));
        if (op->keys[i].epoch != op->peer->epoch)
            return hy_fail(HY_E_PEER, "a pull with a key of another epoch");
        op->n_keys++;
        at += used;
    }
    if (n - at != (size_t)n_ranges * ASK_RANGE)
        return hy_fail(HY_E_FORMAT, "a pull of %u ranges in %zu bytes", n_ranges, n - at);
    for (uint32_t i = 0; i < n_ranges; i++)
        HY_TRY(serve_range(f, op, d + at + (size_t)i * ASK_RANGE));
    return HY_OK;
}

void hy_fab__pull_serve(hy_fab *f, fab_peer *p, const uint8_t *d, size_t n)
{
    if (n < ASK_FIXED) {
        f->stats.bad_frames++;
        return;
    }
    fab_op *op = p->n_serves < MOST_SERVES ? hy_fab__op_new(f, FAB_SERVE, p) : NULL;
    if (op == NULL) {
        answer(f, p, fab_get64(d), HY_E_LIMIT, 0);
        return;
    }
    p->n_serves++;
    op->serve_id = fab_get64(d);
    op->deadline = hy_clock_after(hy_fab__now(f), fab_get64(d + 8));
    hy_fab__timer(f, op->deadline);
    hy_status st = serve_parse(f, op, d, n);
    if (st < 0) {
        f->stats.bad_frames += st == HY_E_FORMAT;
        hy_debug("fabric", "%s: pull by %s refused: %s", f->node, p->node, hy_fail_text());
        op->status = st;
    }
    hy_fab__op_check(f, op);
}

void hy_fab__pull_stop(hy_fab *f, fab_peer *p, uint64_t id)
{
    for (fab_op *op = p->ops; op != NULL; op = op->next)
        if (op->kind == FAB_SERVE && op->serve_id == id) {
            hy_fab__op_stop(f, op, HY_E_ABORTED);
            return;
        }
}
