/* SPDX-License-Identifier: Apache-2.0
 *
 * The recording connector.
 *
 * Thread: see fake_conn.h.  Owner: the test.
 */
#include "tests/flow/fake_conn.h"

#include "core/base/clock.h"

#include <stdlib.h>
#include <string.h>

static uint64_t dice(const fake_conn *k, uint64_t uid, uint64_t what)
{
    return fake_mix(fake_mix(k->seed, uid), what);
}

static conn_seq *seq_of(fake_conn *k, uint64_t uid)
{
    HY_ASSERT(uid > 0 && uid < CONN_MOST);
    return &k->seq[uid];
}

/* ---- scheduler half ---- */

static void arrived(void *self, const hy_conn_req *r)
{
    conn_seq *s = seq_of(self, r->uid);
    HY_ASSERT(s->life == CONN_NONE);
    s->life = CONN_ARRIVED;
}

static hy_status matched(void *self, const hy_conn_req *r, int32_t local, int32_t *n_out,
                         bool *async_out)
{
    fake_conn *k = self;
    conn_seq *s = seq_of(k, r->uid);
    HY_ASSERT(s->life == CONN_ARRIVED && !s->load_open && local % 16 == 0);
    HY_ASSERT(r->n_links >= r->n_tokens / 16);
    if (dice(k, r->uid, 1) % 3 == 0 && s->asked_later < 3) {
        s->asked_later++;
        k->n_later++;
        return HY_PENDING;
    }
    const int32_t has = (int32_t)(dice(k, r->uid, 2) % (uint64_t)(r->n_tokens + 40));
    *async_out = dice(k, r->uid, 3) % 2 == 0;
    *n_out = has > local ? has - local : 0;
    if (*n_out > r->n_tokens - local)
        *n_out = r->n_tokens - local;
    if (*n_out == 0)
        *async_out = false;
    return HY_OK;
}

static conn_job *new_job(fake_conn *k, const hy_conn_req *r, const hy_conn_blocks *b)
{
    conn_job *j = calloc(1, sizeof(*j));
    HY_ASSERT(j != NULL);
    j->uid = r->uid;
    j->tok = malloc((size_t)r->n_tokens * sizeof(int32_t));
    HY_ASSERT(j->tok != NULL);
    memcpy(j->tok, r->tokens, (size_t)r->n_tokens * sizeof(int32_t));
    for (int32_t g = 0; g < b->n_groups; g++) {
        j->tab[g] = b->table[g];
        j->tab[g].ids = malloc((size_t)b->table[g].n * sizeof(int32_t) + 1);
        HY_ASSERT(j->tab[g].ids != NULL);
        memcpy(j->tab[g].ids, b->table[g].ids, (size_t)b->table[g].n * sizeof(int32_t));
    }
    j->next = k->ordered;
    k->ordered = j;
    return j;
}

static void allocated(void *self, const hy_conn_req *r, const hy_conn_blocks *b, int32_t local,
                      int32_t n_ext, uint64_t *deadline_out)
{
    fake_conn *k = self;
    conn_seq *s = seq_of(k, r->uid);
    HY_ASSERT(s->life == CONN_ARRIVED && *deadline_out == HY_NEVER);
    if (n_ext == 0)
        return;
    HY_ASSERT(!s->load_open);
    for (int32_t g = 0; g < b->n_groups; g++)
        HY_ASSERT(b->table[g].n * b->block_tokens >= local + n_ext);
    conn_job *j = new_job(k, r, b);
    j->async = dice(k, r->uid, 3) % 2 == 0;
    j->local = local;
    j->n = j->valid = n_ext;
    if (dice(k, r->uid, 4) % 4 == 0)
        j->valid = (int32_t)(dice(k, r->uid, 5) % (uint64_t)n_ext);
    k->n_partial += j->valid < j->n;
    j->polls = (int32_t)(dice(k, r->uid, 6) % 12);
    if (j->async && dice(k, r->uid, 7) % 8 == 0) { /* never ends by itself */
        j->polls = INT32_MAX;
        *deadline_out = k->now(k->now_arg) + 5 * HY_MS;
    }
    s->load_open = true;
    *(j->async ? &k->n_async : &k->n_sync) += 1;
}

static void *build_meta(void *self, const hy_conn_step *s)
{
    fake_conn *k = self;
    HY_ASSERT(k->meta == NULL && s->step == k->step + 1);
    k->step = s->step;
    k->meta = k->ordered;
    k->ordered = NULL;
    k->n_preempted += (uint64_t)s->n_preempted;
    return k;
}

static void progressed(void *self, const hy_conn_event *ev, int32_t n)
{
    fake_conn *k = self;
    for (int32_t i = 0; i < n; i++) {
        conn_seq *s = seq_of(k, ev[i].uid);
        bool *open = ev[i].kind == HY_CONN_SENT ? &s->send_open : &s->load_open;
        HY_ASSERT(*open);
        *open = false;
    }
}

static void finished(void *self, const hy_conn_req *r, const hy_conn_blocks *b, bool completed,
                     hy_conn_verdict *out)
{
    fake_conn *k = self;
    conn_seq *s = seq_of(k, r->uid);
    HY_ASSERT(s->life == CONN_ARRIVED); /* exactly once */
    s->life = CONN_FINISHED;
    if (!completed || dice(k, r->uid, 8) % 4 != 0)
        return;
    conn_job *j = new_job(k, r, b);
    j->send = true;
    j->n = r->n_tokens - 1; /* the last one has no KV */
    j->polls = (int32_t)(dice(k, r->uid, 9) % 12);
    out->keep = true;
    out->deadline_ns = HY_NEVER;
    out->handover = "{\"kept\":true}";
    if (dice(k, r->uid, 10) % 4 == 0) {
        j->polls = INT32_MAX;
        out->deadline_ns = k->now(k->now_arg) + 7 * HY_MS;
    }
    s->send_open = true;
    k->n_kept++;
}

static void expired(void *self, uint64_t uid, hy_hold_kind kind)
{
    fake_conn *k = self;
    conn_job *lists[2] = {k->ordered, k->jobs};
    for (int i = 0; i < 2; i++)
        for (conn_job *j = lists[i]; j != NULL; j = j->next)
            if (j->uid == uid && j->send == (kind == HY_HOLD_SEND)) {
                j->expired = true; /* cancelled and fenced: reported by the next poll */
                k->n_expired++;
            }
}

static bool busy(void *self)
{
    const fake_conn *k = self;
    return k->ordered != NULL || k->jobs != NULL;
}

/* ---- worker half ---- */

static void phase(fake_conn *k, int32_t from, int32_t to)
{
    HY_ASSERT(k->phase == from);
    k->phase = to;
}

static void w_preempted(void *self, hy_queue *q, const void *meta)
{
    (void)q;
    HY_ASSERT(meta == self);
    phase(self, 0, 1);
}

static void w_bind(void *self, const void *meta)
{
    HY_ASSERT(meta == self);
    phase(self, 1, 2);
}

static void fill(fake_conn *k, const conn_job *j)
{
    /* In window groups the passed part has no blocks: only what is there. */
    uint64_t c = 0;
    for (int32_t p = 0; p < j->local + j->valid; p++) {
        c = fake_chain(c, j->tok[p], p);
        for (int32_t g = 0; g < k->exec->n_groups && p >= j->local; g++) {
            const int32_t id = j->tab[g].ids[p / k->exec->block_tokens];
            if (id >= 0)
                *fake_slot(k->exec, g, id, p) = c ^ (uint64_t)g;
        }
    }
}

static hy_status w_start(void *self, hy_queue *q)
{
    fake_conn *k = self;
    (void)q;
    phase(k, 2, 3);
    k->n_steps++;
    while (k->meta != NULL) {
        conn_job *j = k->meta;
        k->meta = j->next;
        j->next = k->jobs;
        k->jobs = j;
        if (!j->send && !j->async)
            fill(k, j);
    }
    return HY_OK;
}

static hy_status w_wait_save(void *self, hy_queue *q)
{
    (void)q;
    phase(self, 3, 4);
    return HY_OK;
}

static void check_kept(fake_conn *k, const conn_job *j)
{
    uint64_t c = 0;
    for (int32_t p = 0; p < j->n; p++) {
        c = fake_chain(c, j->tok[p], p);
        for (int32_t g = 0; g < k->exec->n_groups; g++) {
            const int32_t at = p / k->exec->block_tokens;
            const int32_t id = at < j->tab[g].n ? j->tab[g].ids[at] : -1;
            if (id >= 0)
                HY_ASSERT(*fake_slot(k->exec, g, id, p) == (c ^ (uint64_t)g));
        }
    }
}

static void free_job(conn_job *j)
{
    for (int32_t g = 0; g < HY_KV_MAX_GROUPS; g++)
        free(j->tab[g].ids);
    free(j->tok);
    free(j);
}

static void w_poll(void *self, hy_conn_events *out)
{
    fake_conn *k = self;
    phase(k, 4, 5);
    conn_job **at = &k->jobs;
    while (*at != NULL) {
        conn_job *j = *at;
        const bool now = j->expired || (!j->send && !j->async) || j->polls-- <= 0;
        hy_conn_event ev = {.kind = j->send ? HY_CONN_SENT : HY_CONN_RECEIVED, .uid = j->uid};
        if (now) {
            if (j->expired)
                j->valid = 0;
            ev.valid = j->valid;
            ev.status = j->valid < j->n && !j->send ? HY_E_PEER : HY_OK;
        }
        if (!now || hy_conn_events_add(out, &ev) == HY_AGAIN) {
            at = &j->next;
            continue;
        }
        if (j->send)
            check_kept(k, j); /* nobody has written into it all the while */
        else if (j->async)
            fill(k, j);
        *at = j->next;
        free_job(j);
    }
}

static void w_clear(void *self)
{
    phase(self, 5, 0);
}

fake_conn *fake_conn_create(uint64_t seed)
{
    static const hy_conn_sched_ops so = {.size = sizeof(so),
                                         .arrived = arrived,
                                         .matched = matched,
                                         .allocated = allocated,
                                         .build_meta = build_meta,
                                         .progressed = progressed,
                                         .finished = finished,
                                         .expired = expired,
                                         .busy = busy};
    static const hy_conn_worker_ops wo = {.size = sizeof(wo),
                                          .preempted = w_preempted,
                                          .bind = w_bind,
                                          .start_load = w_start,
                                          .wait_save = w_wait_save,
                                          .poll = w_poll,
                                          .clear = w_clear};
    fake_conn *k = calloc(1, sizeof(*k));
    HY_ASSERT(k != NULL);
    k->seed = seed;
    hy_connector_init(&k->c, "fake", &so, k, &wo, k);
    return k;
}

void fake_conn_destroy(fake_conn *k)
{
    if (k == NULL)
        return;
    conn_job *lists[3] = {k->ordered, k->meta, k->jobs};
    for (int i = 0; i < 3; i++)
        for (conn_job *j = lists[i], *next; j != NULL; j = next) {
            next = j->next;
            free_job(j);
        }
    free(k);
}

const char *fake_conn_check(const fake_conn *k)
{
    for (int i = 0; i < CONN_MOST; i++) {
        if (k->seq[i].life == CONN_ARRIVED)
            return "a sequence arrived and never finished";
        if (k->seq[i].load_open || k->seq[i].send_open)
            return "a transfer was never reported";
    }
    if (k->phase != 0)
        return "the worker half stopped in the middle of a step";
    return k->jobs == NULL && k->ordered == NULL ? NULL : "transfers are left over";
}
