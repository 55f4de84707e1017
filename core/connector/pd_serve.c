/* SPDX-License-Identifier: Apache-2.0
 *
 * The owner's side: leases on finished prompts' blocks (or, pushing, on unfinished ones), and jobs
 * that write them into a peer's landing. Blocks stay held while a write of theirs is in flight,
 * whatever becomes of the lease; DONE is sent after the last write was applied and only while the
 * lease is held, so what DONE covers is what the lease stood for.
 *
 * Thread: connector stage only.  Owner: hy_pd.
 */
#include "core/base/alloc.h"
#include "core/base/log.h"
#include "core/connector/pd_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define LATE   (50 * HY_MS)  /* no timer is that late unless the process stood still */
#define SPARED (100 * HY_MS) /* to read what has come */

static void pump(hy_pd *p, pd_job *j);

/* ---- jobs: end ---- */

static void lease_free(hy_pd *p, pd_lease *l);

static void job_free(hy_pd *p, pd_job *j)
{
    if (j->prev != NULL)
        j->prev->next = j->next;
    else
        p->jobs = j->next;
    if (j->next != NULL)
        j->next->prev = j->prev;
    hy_pd__untimer(p, &j->timer);
    while (j->ops != NULL) { /* at the end of the node only */
        pd_op *op = j->ops;
        j->ops = op->next;
        hy_free(op);
    }
    for (int32_t g = 0; g < HY_KV_MAX_GROUPS; g++)
        hy_free(j->dst[g]);
    hy_pdp_fini(&j->get);
    atomic_fetch_sub(&p->st.jobs_open, 1);
    hy_free(j);
}

/* For tools/bench/handover: points in time on the machine's clock. */
static void log_times(hy_pd *p, const pd_job *j)
{
    hy_debug("connector",
             "pd times lease=%016" PRIx64 " prefill=%" PRIu64 " asked=%" PRIu64 " first=%" PRIu64
             " last=%" PRIu64 " told=%" PRIu64 " bytes=%" PRIu64 " pieces=%" PRIu64,
             j->lease_id, j->lease->t_prefill, j->t_asked, j->t_first, j->t_last, hy_pd__now(p),
             j->bytes, j->n_pieces);
}

static void conclude(hy_pd *p, pd_job *j)
{
    pd_lease *l = j->lease;
    hy_pdp_msg m = {.kind = j->by_peer ? HY_PDP_GONE : HY_PDP_DONE,
                    .job = j->id,
                    .flags = j->unknown ? HY_PDP_UNKNOWN : 0,
                    .status = j->status,
                    .index = j->n_packed,
                    .digest = j->digest,
                    .bytes = j->bytes};
    snprintf(m.text, sizeof(m.text), "%s", j->text);
    if (j->status == HY_OK && !j->by_peer) {
        m.valid = j->get.n;
        if (l->has_first && j->get.t0 + j->get.n >= l->n_prompt) {
            m.flags |= HY_PDP_FIRST;
            m.first = l->first;
        }
        PD_COUNT(p, jobs_out);
        hy_trace_again(p->o.trace, l->req_id, HY_TRACE_SENT, hy_pd__now(p));
        hy_trace_add(p->o.trace, l->req_id, HY_TRACE_BYTES_OUT, (int64_t)j->bytes);
        log_times(p, j);
    }
    hy_pd__send(p, j->peer, &m);
    job_free(p, j);
    if (l != NULL && --l->n_jobs == 0 && l->ended)
        lease_free(p, l);
}

static void op_free(hy_pd *p, pd_op *op)
{
    pd_job *j = op->job;
    if (op->prev != NULL)
        op->prev->next = op->next;
    else
        j->ops = op->next;
    if (op->next != NULL)
        op->next->prev = op->prev;
    j->n_ops--;
    hy_pd__stage_give(p, op->buf, op->buf_bytes);
    hy_free(op);
}

/* No new writes; those in flight are cancelled, and the end is told when the last has ended. */
static void stop_job(hy_pd *p, pd_job *j, hy_status why, const char *text)
{
    if (!j->stopping) {
        j->stopping = true;
        j->status = why;
        snprintf(j->text, sizeof(j->text), "%s", text);
        for (pd_op *op = j->ops, *next; op != NULL; op = next) {
            next = op->next;
            if (op->near)
                op_free(p, op); /* what is read now is never used: no DONE will say so */
            else
                (void)hy_fab_cancel(p->fab, op->id);
        }
    }
    if (j->n_ops == 0)
        conclude(p, j);
}

/* ---- leases ---- */

pd_lease *hy_pd__lease_find(hy_pd *p, uint64_t id)
{
    pd_lease *l = p->lease[id % PD_BUCKETS];
    while (l != NULL && l->id != id)
        l = l->chain;
    return l;
}

static bool is_unwanted(const hy_pd *p, uint64_t id)
{
    for (size_t i = 0; i < HY_COUNTOF(p->unwanted); i++)
        if (p->unwanted[i] == id)
            return true;
    return false;
}

/* Decode nodes may ask before the request is known here, and then wait. They need not when it has
 * been here: a router may try another decode node long after. A row that is full forgets its
 * oldest, whose reader then waits for its deadline. */
static void note_ended(hy_pd *p, uint64_t id)
{
    const size_t row = id % PD_ENDED_ROWS;
    p->ended[row][p->n_ended[row]++ % PD_ENDED] = id;
}

static bool has_ended(const hy_pd *p, uint64_t id)
{
    for (int i = 0; i < PD_ENDED; i++)
        if (p->ended[id % PD_ENDED_ROWS][i] == id)
            return true;
    return is_unwanted(p, id);
}

static void lease_free(hy_pd *p, pd_lease *l)
{
    if (l->push)
        note_ended(p, l->id);
    pd_lease **at = &p->lease[l->id % PD_BUCKETS];
    while (*at != l)
        at = &(*at)->chain;
    *at = l->chain;
    hy_pd__untimer(p, &l->timer);
    hy_trace_mark(p->o.trace, l->req_id, HY_TRACE_FREED, hy_pd__now(p));
    if (l->held) {
        const hy_conn_event ev = {.kind = HY_CONN_SENT, .uid = l->uid};
        hy_pd__report(p, &ev, NULL);
    }
    hy_pd__tab_fini(&l->tab);
    atomic_fetch_sub(&p->st.leases_open, 1);
    hy_free(l);
}

static void lease_end(hy_pd *p, pd_lease *l, hy_status why, const char *text)
{
    if (l->ended)
        return;
    l->ended = true;
    hy_pd__early_drop(p, l);
    l->n_jobs++; /* it must outlive the walk */
    for (pd_job *j = p->jobs, *next; j != NULL; j = next) {
        next = j->next;
        if (j->lease == l)
            stop_job(p, j, why, text);
    }
    if (--l->n_jobs == 0)
        lease_free(p, l);
}

static void bind_jobs(hy_pd *p, pd_lease *l);

void hy_pd__lease_put(hy_pd *p, pd_cmd *c, bool last)
{
    const uint64_t now = hy_pd__now(p);
    pd_lease *l = hy_pd__lease_find(p, c->h.lease);
    if (l != NULL && (l->uid != c->uid || l->complete || l->ended)) {
        /* a transfer id used twice, or one that ended: the blocks go at once */
        if (last) {
            const hy_conn_event ev = {.kind = HY_CONN_SENT, .uid = c->uid, .status = HY_E_INVAL};
            hy_pd__report(p, &ev, NULL);
        }
        PD_COUNT(p, late);
        return;
    }
    if (l == NULL) {
        l = hy_calloc(1, sizeof(*l));
        if (l == NULL) {
            const hy_conn_event ev = {.kind = HY_CONN_SENT, .uid = c->uid, .status = HY_E_NOMEM};
            if (last)
                hy_pd__report(p, &ev, NULL);
            return;
        }
        l->id = c->h.lease;
        l->uid = c->uid;
        l->req_id = c->req_id;
        l->born = now;
        l->n_prompt = c->n_prompt;
        l->unwanted = is_unwanted(p, l->id);
        l->push = c->h.push;
        l->chain = p->lease[l->id % PD_BUCKETS];
        p->lease[l->id % PD_BUCKETS] = l;
        PD_COUNT(p, leases);
        atomic_fetch_add(&p->st.leases_open, 1);
    }
    hy_pd__tab_fini(&l->tab);
    l->tab = c->tab;
    memset(&c->tab, 0, sizeof(c->tab));
    l->tokens = c->tokens;
    l->step_to = 0;
    memcpy(l->prompt, c->prompt, sizeof(l->prompt));
    if (last) {
        l->complete = l->held = true;
        l->has_first = c->h.has_first;
        l->first = c->h.first;
        l->t_prefill = c->at_ns;
        l->deadline = hy_clock_after(now, p->o.lease_ns);
        hy_pd__timer(p, l->deadline, PD_T_LEASE, l->id, &l->timer);
    }
    if (last && l->unwanted) {
        PD_COUNT(p, leases_released);
        lease_end(p, l, HY_E_ABORTED, "the lease was released");
        return;
    }
    bind_jobs(p, l);
    if (last && !l->push)
        hy_pd__early_begin(p, l);
}

void hy_pd__lease_step(hy_pd *p, pd_cmd *c)
{
    const uint64_t id = c->h.lease;
    const int32_t to = c->tokens + c->n_step;
    hy_pd__lease_put(p, c, false);
    pd_lease *l = hy_pd__lease_find(p, id);
    if (l == NULL || l->complete || l->ended || l->uid != c->uid)
        return;
    l->step_to = to;
    memset(l->layers, 0, sizeof(l->layers));
}

void hy_pd__lease_layer(hy_pd *p, int32_t group, int32_t layer)
{
    if (group < 0 || group >= p->o.n_groups)
        return;
    for (pd_job *j = p->jobs, *next; j != NULL; j = next) {
        next = j->next;
        pd_lease *l = j->lease;
        if (l == NULL || l->step_to == 0 || l->layers[group] > layer)
            continue;
        l->n_jobs++; /* it must outlive the pump */
        l->layers[group] = layer + 1;
        pump(p, j);
        if (--l->n_jobs == 0 && l->ended)
            lease_free(p, l);
    }
}

void hy_pd__lease_none(hy_pd *p, uint64_t id, bool final)
{
    pd_lease *l = hy_pd__lease_find(p, id);
    if (final)
        note_ended(p, id);
    if (l != NULL && !l->held) {
        l->push = false; /* told above, or comes again */
        lease_end(p, l, HY_E_ABORTED, "the prompt was not finished");
    }
    for (pd_job *j = p->jobs, *next; j != NULL; j = next) {
        next = j->next;
        if (j->lease == NULL && j->lease_id == id)
            stop_job(p, j, HY_E_ABORTED, "the prompt was not finished");
    }
}

void hy_pd__lease_release(hy_pd *p, uint64_t id, bool may_come)
{
    pd_lease *l = hy_pd__lease_find(p, id);
    if (l == NULL || !l->held) {
        if (l != NULL)
            l->unwanted = true;
        else if (may_come)
            p->unwanted[p->n_unwanted++ % HY_COUNTOF(p->unwanted)] = id;
        else
            PD_COUNT(p, late);
        return;
    }
    if (!l->ended)
        PD_COUNT(p, leases_released);
    lease_end(p, l, HY_E_ABORTED, "the lease was released");
}

static void expire(hy_pd *p, pd_lease *l)
{
    if (l->ended)
        return;
    PD_COUNT(p, leases_expired);
    hy_metric_inc(p->m.expired_leases);
    hy_warn("connector", "lease %016llx of %d tokens expired after %.1f s",
            (unsigned long long)l->id, l->tokens, (double)(hy_pd__now(p) - l->born) / 1e9);
    lease_end(p, l, HY_E_TIMEOUT, "the lease expired");
}

void hy_pd__lease_timer(hy_pd *p, uint64_t id)
{
    pd_lease *l = hy_pd__lease_find(p, id);
    if (l == NULL)
        return;
    l->timer = 0;
    if (l->ended)
        return;
    const uint64_t now = hy_pd__now(p);
    /* This process stood still: what its peers have sent meanwhile is not read yet, renewals among
     * it. Once, so that a stage that is always late ends its leases, too. */
    if (now >= l->deadline && now - l->deadline > LATE && !l->spared) {
        l->spared = true;
        l->deadline = now + SPARED;
    }
    if (now >= l->deadline)
        expire(p, l);
    else
        hy_pd__timer(p, l->deadline, PD_T_LEASE, l->id, &l->timer);
}

/* The ledger's own limit, far behind the lease's: something went wrong. */
void hy_pd__lease_expired(hy_pd *p, uint64_t uid)
{
    for (int i = 0; i < PD_BUCKETS; i++)
        for (pd_lease *l = p->lease[i]; l != NULL; l = l->chain)
            if (l->uid == uid && l->held) {
                expire(p, l);
                return;
            }
    const hy_conn_event ev = {.kind = HY_CONN_SENT, .uid = uid, .status = HY_E_NOTFOUND};
    hy_pd__report(p, &ev, NULL);
}

static void renew(hy_pd *p, pd_lease *l)
{
    const uint64_t until = hy_clock_after(hy_pd__now(p), p->o.lease_ns);
    l->deadline = until > l->deadline ? until : l->deadline; /* never shortened */
    l->spared = false;
}

void hy_pd__on_hold(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    pd_lease *l = hy_pd__lease_find(p, m->lease);
    hy_pdp_msg a = {.kind = HY_PDP_HELD, .lease = m->lease};
    if (l == NULL || l->ended) {
        a.status = HY_E_NOTFOUND;
        PD_COUNT(p, late);
    } else if (l->held) {
        renew(p, l);
        a.left_ns = l->deadline - hy_pd__now(p);
        const hy_conn_event ev = {.kind = HY_CONN_HELD,
                                  .uid = l->uid,
                                  .deadline_ns =
                                      hy_clock_after(l->deadline, p->o.timeout_ns + p->o.grace_ns)};
        hy_pd__report(p, &ev, NULL);
    }
    hy_pd__send(p, x, &a);
}

/* ---- jobs: writing ---- */

static pd_job *find_job(hy_pd *p, const pd_peer *x, uint64_t id)
{
    pd_job *j = p->jobs;
    while (j != NULL && (j->peer != x || j->id != id || j->by_peer))
        j = j->next;
    return j;
}

static int32_t gcd(int32_t a, int32_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

/* Tokens from t0 on that may be written when the first `tokens` have their KV. Before the prompt is
 * finished only up to where whole blocks of both sides end: what stands behind in a block would be
 * written over by the next. */
static int32_t available(const pd_job *j, int32_t tokens)
{
    const pd_lease *l = j->lease;
    const int32_t most = j->get.t0 + j->get.n, upto = tokens < most ? tokens : most;
    if (l->complete || tokens == l->n_prompt)
        return upto - j->get.t0;
    const int32_t a = l->tab.block_tokens, b = j->peer->desc.g[0].layout.block_tokens;
    const int64_t unit = (int64_t)a / gcd(a, b) * b;
    const int64_t end = upto / unit * unit;
    return end > j->get.t0 ? (int32_t)(end - j->get.t0) : 0;
}

static void begin_chunk(hy_pd *p, pd_job *j, const hy_kv_want *w)
{
    j->iter = hy_kv_plan_begin(j->peer->serve, w);
    j->iterating = true;
    if ((j->get.flags & HY_PDP_PUSH) == 0)
        return;
    const hy_pdp_msg m = {.kind = HY_PDP_CHUNK,
                          .job = j->id,
                          .t0 = w->t0,
                          .n = w->n,
                          .group = w->group,
                          .groups = w->n_groups,
                          .layer0 = w->layer0,
                          .layers = w->n_layers};
    hy_pd__send(p, j->peer, &m);
}

/* Push, while a step runs (or for what it left over): the layers it has written of the tokens
 * ahead.
 */
static bool next_layers(hy_pd *p, pd_job *j)
{
    const pd_lease *l = j->lease;
    const bool done = l->tokens >= j->get.t0 + j->upto + j->ahead;
    bool all = true;
    for (int32_t g = 0; g < p->o.n_groups; g++) {
        const int32_t have = p->desc.g[g].layout.n_layers, from = j->ahead_layers[g];
        const int32_t ready = done ? have : l->step_to == 0 ? 0 : l->layers[g];
        all = all && ready == have;
        if (from >= ready)
            continue;
        const hy_kv_want w = {.t0 = j->get.t0 + j->upto,
                              .n = j->ahead,
                              .group = g,
                              .n_groups = 1,
                              .layer0 = from,
                              .n_layers = ready - from,
                              .next = j->get.next,
                              .tail_free = true};
        j->ahead_layers[g] = ready;
        begin_chunk(p, j, &w);
        return true;
    }
    if (all) {
        j->upto += j->ahead;
        j->ahead = 0;
    }
    return false;
}

/* The next stretch; false: none now. */
static bool next_chunk(hy_pd *p, pd_job *j)
{
    const pd_lease *l = j->lease;
    if (j->ahead > 0 && (next_layers(p, j) || j->ahead > 0))
        return j->iterating;
    const int32_t upto = available(j, l->tokens);
    if (upto > j->upto) {
        const hy_kv_want w = {
            .t0 = j->get.t0 + j->upto, .n = upto - j->upto, .next = j->get.next, .tail_free = true};
        j->upto = upto;
        begin_chunk(p, j, &w);
        return true;
    }
    if (l->step_to == 0 || l->complete || (j->get.flags & HY_PDP_PUSH) == 0)
        return false;
    const int32_t then = available(j, l->step_to);
    if (then <= j->upto)
        return false;
    j->ahead = then - j->upto;
    memset(j->ahead_layers, 0, sizeof(j->ahead_layers));
    return next_layers(p, j);
}

static bool next_piece(hy_pd *p, pd_job *j)
{
    while (!j->has_piece) {
        if (!j->iterating && !next_chunk(p, j))
            return false;
        j->has_piece = hy_kv_plan_next(&j->iter, &j->piece);
        j->iterating = j->has_piece;
    }
    return true;
}

static hy_kv_blocks src_blocks(const pd_job *j, int32_t g)
{
    return (hy_kv_blocks){j->lease->tab.ids[g], j->lease->tab.n[g]};
}

static void op_link(hy_pd *p, pd_job *j, pd_op *op)
{
    if (j->t_first == 0)
        j->t_first = hy_pd__now(p);
    op->next = j->ops;
    if (j->ops != NULL)
        j->ops->prev = op;
    j->ops = op;
    j->n_ops++;
}

/* HY_AGAIN: no room in the fabric now. */
static hy_status write_op(hy_pd *p, pd_job *j, const hy_fab_range *r, size_t n, void *buf,
                          size_t buf_bytes)
{
    pd_op *op = hy_calloc(1, sizeof(*op));
    if (op == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a write");
    *op = (pd_op){.job = j, .buf = buf, .buf_bytes = buf_bytes};
    const hy_fab_op_opts oo = {.user = (uint64_t)(uintptr_t)op,
                               .has_imm = buf != NULL, /* the reader unpacks it at once */
                               .imm = hy_pdp_imm(j->id, j->n_packed)};
    const hy_status st = hy_fab_write(p->fab, j->peer->fab, r, n, &oo, &op->id);
    if (st != HY_OK) {
        hy_free(op);
        return st;
    }
    op_link(p, j, op);
    return HY_OK;
}

/* The reader maps this staging: it takes the piece where it stands, and its ACK frees it. */
static hy_status tell_piece(hy_pd *p, pd_job *j, void *buf, size_t bytes)
{
    pd_op *op = hy_calloc(1, sizeof(*op));
    if (op == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a piece");
    *op = (pd_op){.job = j, .buf = buf, .buf_bytes = bytes, .near = true, .index = j->n_packed};
    const hy_pdp_msg m = {.kind = HY_PDP_PIECE,
                          .job = j->id,
                          .index = j->n_packed,
                          .stage_off = (uint64_t)((char *)buf - (char *)p->staging)};
    hy_pd__send(p, j->peer, &m);
    op_link(p, j, op);
    return HY_OK;
}

static hy_status write_direct(hy_pd *p, pd_job *j)
{
    const int32_t g = j->piece.group;
    const hy_kv_plan *plan = j->peer->serve;
    const size_t cap = hy_kv_plan_max_ranges(plan, &j->piece);
    hy_kv_bytes *b = hy_malloc((cap + 1) * (sizeof(*b) + sizeof(hy_fab_range)));
    if (b == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for %zu ranges", cap);
    hy_fab_range *r = (hy_fab_range *)(b + cap + 1);
    size_t n = 0;
    uint64_t bytes = 0, hash = 0;
    const hy_kv_blocks dst = {j->dst[g], j->n_dst};
    hy_status st = hy_kv_plan_ranges(plan, &j->piece, src_blocks(j, g), dst, b, cap, &n);
    if (st == HY_OK && (j->get.flags & HY_PDP_VERIFY) != 0)
        st = hy_pd__hash_direct(p, plan, &j->piece, src_blocks(j, g), true, j->n_pieces, &hash);
    for (size_t i = 0; i < n && st == HY_OK; i++) {
        r[i] = (hy_fab_range){p->mr[g], b[i].src, &j->peer->key[g], b[i].dst, b[i].len};
        bytes += b[i].len;
    }
    if (st == HY_OK && n > 0)
        st = write_op(p, j, r, n, NULL, 0);
    hy_free(b);
    if (st == HY_OK) {
        j->digest += hash;
        j->bytes += bytes;
    }
    return st;
}

hy_status hy_pd__pack(hy_pd *p, const hy_kv_plan *plan, const pd_lease *l, const hy_kv_piece *c,
                      void **buf_out)
{
    hy_dev *d = p->o.dev;
    const hy_kv_blocks src = {l->tab.ids[c->group], l->tab.n[c->group]};
    void *buf = hy_pd__stage_take(p, c->bytes, false);
    if (buf == NULL)
        return HY_AGAIN;
    hy_kv_copy k;
    void *to = p->bounce != NULL ? p->bounce : buf;
    hy_status st = hy_kv_piece_pack(plan, c, &p->pool[c->group], src, to, &k);
    if (st == HY_OK)
        st = d->math->kv_pack(p->queue, &k);
    if (st == HY_OK && to != buf)
        st = d->ops->copy(p->queue, buf, to, c->bytes);
    if (st == HY_OK)
        st = d->ops->queue_wait(p->queue);
    if (st == HY_OK)
        *buf_out = buf;
    else
        hy_pd__stage_give(p, buf, c->bytes);
    return st;
}

static hy_status write_packed(hy_pd *p, pd_job *j)
{
    const hy_kv_piece *c = &j->piece;
    if (c->bytes > j->get.slot_bytes || j->get.n_slots == 0)
        return hy_fail(HY_E_INVAL, "a piece of %zu bytes does not fit into a slot of %u", c->bytes,
                       j->get.slot_bytes);
    if (j->n_packed - j->acked >= j->get.n_slots)
        return HY_PENDING; /* an ACK goes on */
    void *buf = hy_pd__early_take(p, j->lease, c);
    hy_status st = HY_OK;
    if (buf == NULL)
        do
            st = hy_pd__pack(p, j->peer->serve, j->lease, c, &buf);
        while (st == HY_AGAIN && hy_pd__early_yield(p));
    if (st != HY_OK)
        return st;
    const uint64_t slot = j->n_packed % j->get.n_slots;
    const hy_fab_range r = {p->staging_mr, (uint64_t)((char *)buf - (char *)p->staging),
                            &j->peer->staging, j->get.stage_off + slot * j->get.slot_bytes,
                            c->bytes};
    st = (j->get.flags & HY_PDP_NEAR) != 0 ? tell_piece(p, j, buf, c->bytes)
                                           : write_op(p, j, &r, 1, buf, c->bytes);
    if (st != HY_OK) {
        hy_pd__stage_give(p, buf, c->bytes);
        return st;
    }
    if ((j->get.flags & HY_PDP_VERIFY) != 0)
        j->digest += XXH64(buf, c->bytes, j->n_pieces);
    j->bytes += c->bytes;
    j->n_packed++;
    return HY_OK;
}

static bool all_written(const pd_job *j)
{
    return !j->has_piece && !j->iterating && j->ahead == 0 && j->upto >= j->get.n;
}

static void pump(hy_pd *p, pd_job *j)
{
    j->starved = false;
    while (!j->stopping && j->lease != NULL && j->n_ops < PD_JOB_OPS && next_piece(p, j)) {
        const hy_status st = j->piece.direct ? write_direct(p, j) : write_packed(p, j);
        if (st == HY_PENDING)
            return;
        if (st == HY_AGAIN) {
            j->starved = true;
            if (j->n_ops == 0) { /* nothing of its own will wake it */
                uint64_t id = 0;
                hy_pd__timer(p, hy_pd__now(p) + HY_MS, PD_T_RETRY, 0, &id);
            }
            return;
        }
        if (st < 0) {
            char why[HY_PDP_TEXT_MAX];
            snprintf(why, sizeof(why), "%.*s", HY_PDP_TEXT_MAX - 1, hy_fail_text());
            stop_job(p, j, st, why);
            return;
        }
        j->n_pieces++;
        j->has_piece = false;
    }
    if (j->stopping || j->n_ops > 0 || j->lease == NULL)
        return;
    if (all_written(j) && j->lease->complete) /* push: the first token comes with the end */
        conclude(p, j);
    else if (j->lease->complete && available(j, j->lease->tokens) < j->get.n)
        stop_job(p, j, HY_E_INVAL, "the owner has the KV of fewer tokens");
}

void hy_pd__pump_starved(hy_pd *p)
{
    for (pd_job *j = p->jobs, *next; j != NULL; j = next) {
        next = j->next;
        if (j->starved)
            pump(p, j);
    }
}

static void note_sent(hy_pd *p, pd_job *j, uint64_t bytes)
{
    j->t_last = hy_pd__now(p);
    atomic_fetch_add(&p->st.bytes_out, bytes);
    hy_metric_add(p->m.bytes_out, (double)bytes);
}

void hy_pd__op_done(hy_pd *p, pd_op *op, const hy_fab_event *ev)
{
    pd_job *j = op->job;
    const bool packed = op->buf != NULL;
    /* then only its immediate is on the way, which is no more than a message */
    const bool applied = packed && ev->len == op->buf_bytes;
    op_free(p, op);
    note_sent(p, j, ev->len);
    if (ev->status < 0) {
        j->unknown = j->unknown || ((ev->flags & HY_FAB_UNKNOWN) != 0 && !applied);
        stop_job(p, j, ev->status, ev->text[0] != '\0' ? ev->text : hy_status_name(ev->status));
    } else if (j->stopping) {
        if (j->n_ops == 0)
            conclude(p, j);
    } else {
        pump(p, j);
    }
    if (packed)
        hy_pd__pump_starved(p);
}

/* ---- orders ---- */

static hy_status check_get(const hy_pd *p, const pd_peer *x, const hy_pdp_msg *m)
{
    if (!x->hello || x->serve == NULL)
        return hy_fail(HY_E_PROTOCOL, "%s",
                       x->refused[0] != '\0' ? x->refused : "no copy plan for this direction");
    if (m->n_groups != p->o.n_groups)
        return hy_fail(HY_E_INVAL, "GET with %d block lists", m->n_groups);
    if (m->plan != hy_kv_plan_digest(x->serve))
        return hy_fail(HY_E_INVAL, "the two sides made different copy plans");
    const bool near = (m->flags & HY_PDP_NEAR) != 0;
    if (near && p->near_fd < 0)
        return hy_fail(HY_E_INVAL, "GET from a staging that is not shared");
    if (m->n_slots > 32 || (m->n_slots > 0 && !near && !x->has_staging) ||
        (m->n_slots > 0 && !near &&
         (m->stage_off > x->staging.len ||
          (uint64_t)m->n_slots * m->slot_bytes > x->staging.len - m->stage_off)))
        return hy_fail(HY_E_INVAL, "GET with a landing outside of its memory");
    const int64_t bt = x->desc.g[0].layout.block_tokens, end = (int64_t)m->t0 + m->n;
    if (m->first_block > m->t0 / bt || (int64_t)(m->first_block + m->n_ids) * bt < end)
        return hy_fail(HY_E_INVAL, "GET whose block lists do not cover its tokens");
    const hy_kv_want w = {.t0 = m->t0, .n = m->n, .next = m->next, .tail_free = true};
    return hy_kv_want_check(x->serve, &w);
}

static void answer_get(hy_pd *p, pd_peer *x, const hy_pdp_msg *m, hy_status st, const char *text)
{
    hy_pdp_msg a = {.kind = HY_PDP_DONE, .job = m->job, .status = st};
    snprintf(a.text, sizeof(a.text), "%.*s", HY_PDP_TEXT_MAX - 1, text);
    hy_pd__send(p, x, &a);
}

/* The lease that a job waited for is there. */
static void bind(hy_pd *p, pd_job *j, pd_lease *l)
{
    static const uint8_t none[32];
    j->lease = l;
    l->n_jobs++;
    hy_pd__early_stop(p, l);
    hy_trace_mark(p->o.trace, l->req_id, HY_TRACE_SEND, hy_pd__now(p));
    hy_pd__untimer(p, &j->timer);
    if (memcmp(j->get.prompt, none, 32) != 0 && memcmp(j->get.prompt, l->prompt, 32) != 0)
        stop_job(p, j, HY_E_INVAL, "the lease is of another prompt");
    else if (j->get.t0 + j->get.n > (l->complete ? l->tokens : l->n_prompt))
        stop_job(p, j, HY_E_INVAL, "the owner has the KV of fewer tokens");
    else
        pump(p, j);
}

static void bind_jobs(hy_pd *p, pd_lease *l)
{
    l->n_jobs++; /* it must outlive the walk */
    for (pd_job *j = p->jobs, *next; j != NULL; j = next) {
        next = j->next;
        if (j->lease == NULL && j->lease_id == l->id && !j->stopping)
            bind(p, j, l);
        else if (j->lease == l)
            pump(p, j);
    }
    if (--l->n_jobs == 0 && l->ended)
        lease_free(p, l);
}

static bool take_lists(pd_job *j, const hy_pdp_msg *m)
{
    j->n_dst = m->first_block + m->n_ids;
    for (int32_t g = 0; g < m->n_groups; g++) {
        j->dst[g] = hy_malloc((size_t)j->n_dst * sizeof(int32_t) + 4);
        if (j->dst[g] == NULL)
            return false;
        for (int32_t i = 0; i < m->first_block; i++)
            j->dst[g][i] = -1;
        memcpy(j->dst[g] + m->first_block, m->ids[g], (size_t)m->n_ids * sizeof(int32_t));
    }
    return true;
}

void hy_pd__on_get(hy_pd *p, pd_peer *x, hy_pdp_msg *m)
{
    if (find_job(p, x, m->job) != NULL) {
        PD_COUNT(p, late); /* doubled: the first counts */
        return;
    }
    if (check_get(p, x, m) < 0) {
        answer_get(p, x, m, HY_E_INVAL, hy_fail_text());
        return;
    }
    const bool push = (m->flags & HY_PDP_PUSH) != 0;
    pd_lease *l = hy_pd__lease_find(p, m->lease);
    if (l == NULL ? !push || has_ended(p, m->lease) : l->ended) {
        answer_get(p, x, m, HY_E_NOTFOUND, "no such lease: it ended, or is of an earlier start");
        return;
    }
    pd_job *j = atomic_load(&p->st.jobs_open) < PD_JOBS_MAX ? hy_calloc(1, sizeof(*j)) : NULL;
    if (j == NULL || !take_lists(j, m)) {
        if (j != NULL)
            for (int32_t g = 0; g < HY_KV_MAX_GROUPS; g++)
                hy_free(j->dst[g]);
        hy_free(j);
        answer_get(p, x, m, HY_E_BUSY, "no memory at the owner");
        return;
    }
    if (!push)
        p->early.like = m->t0 == 0 ? x : NULL;
    j->id = m->job;
    j->lease_id = m->lease;
    j->number = ++p->next_number;
    j->t_asked = hy_pd__now(p);
    j->peer = x;
    j->get = *m;
    memset(j->get.ids, 0, sizeof(j->get.ids)); /* copied into dst */
    j->next = p->jobs;
    if (p->jobs != NULL)
        p->jobs->prev = j;
    p->jobs = j;
    atomic_fetch_add(&p->st.jobs_open, 1);
    if (l != NULL) {
        renew(p, l);
        bind(p, j, l);
        return;
    }
    const uint64_t wait = m->wait_ns < p->o.timeout_ns ? m->wait_ns : p->o.timeout_ns;
    hy_pd__timer(p, hy_clock_after(hy_pd__now(p), wait), PD_T_WAIT, j->number, &j->timer);
}

void hy_pd__job_wait_timer(hy_pd *p, uint64_t number)
{
    pd_job *j = p->jobs;
    while (j != NULL && j->number != number)
        j = j->next;
    if (j == NULL)
        return;
    j->timer = 0;
    if (j->lease == NULL)
        stop_job(p, j, HY_E_TIMEOUT, "the owner has not heard of the request");
}

void hy_pd__on_ack(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    pd_job *j = find_job(p, x, m->job);
    if (j == NULL || m->index > j->n_packed || m->index < j->acked) {
        PD_COUNT(p, late);
        return;
    }
    j->acked = m->index;
    for (pd_op *op = j->ops, *next; op != NULL; op = next) {
        next = op->next;
        if (!op->near || op->index >= m->index)
            continue;
        note_sent(p, j, op->buf_bytes);
        atomic_fetch_add(&p->st.bytes_near, op->buf_bytes);
        op_free(p, op);
    }
    const bool near = (j->get.flags & HY_PDP_NEAR) != 0;
    pump(p, j);
    if (near)
        hy_pd__pump_starved(p);
}

void hy_pd__on_cancel(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    pd_job *j = find_job(p, x, m->job);
    if (j == NULL) {
        const hy_pdp_msg a = {.kind = HY_PDP_GONE, .job = m->job};
        PD_COUNT(p, late);
        hy_pd__send(p, x, &a);
        return;
    }
    j->by_peer = true;
    stop_job(p, j, HY_E_ABORTED, "cancelled");
}

/* The link is no more: nothing of its jobs is in flight. */
void hy_pd__serve_down(hy_pd *p, pd_peer *x)
{
    hy_pd__early_drop(p, NULL); /* the copy plan goes, too */
    if (p->early.like == x)
        p->early.like = NULL;
    for (pd_job *j = p->jobs, *next; j != NULL; j = next) {
        next = j->next;
        if (j->peer == x) {
            j->by_peer = true;
            stop_job(p, j, HY_E_PEER, "the link ended");
        }
    }
}

void hy_pd__serve_free(hy_pd *p)
{
    hy_pd__early_drop(p, NULL);
    while (p->jobs != NULL)
        job_free(p, p->jobs);
    for (int i = 0; i < PD_BUCKETS; i++)
        while (p->lease[i] != NULL) {
            pd_lease *l = p->lease[i];
            p->lease[i] = l->chain;
            hy_pd__tab_fini(&l->tab);
            hy_free(l);
        }
}
