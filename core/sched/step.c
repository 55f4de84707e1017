/* SPDX-License-Identifier: Apache-2.0
 *
 * From queues to a posted step: snapshot, plan, admissions, blocks, batch.
 *
 * Thread: sched stage only.  Owner: the engine.
 */
#include "core/base/alloc.h"
#include "core/base/log.h"
#include "core/sched/engine_int.h"

#include <limits.h>
#include <string.h>

/* ---- memory ---- */

static hy_status step_init(hy_engine *e, hy_step *st)
{
    const hy_engine_opts *o = &e->o;
    const size_t rows = (size_t)o->max_batch_tokens, seqs = (size_t)o->max_seqs;
    const int64_t stride = o->context / o->block_tokens + 1;
    st->ids = hy_calloc(rows, sizeof(int32_t));
    st->pos = hy_calloc(rows, sizeof(int32_t));
    st->seq_row = hy_calloc(seqs + 1, sizeof(int32_t));
    st->bs = hy_calloc(seqs, sizeof(*st->bs));
    st->seq = hy_calloc(seqs, sizeof(hy_seq *));
    st->out = hy_calloc(seqs, sizeof(*st->out));
    st->events.cap = 4 * o->max_seqs;
    st->events.ev = hy_calloc((size_t)st->events.cap, sizeof(*st->events.ev));
    bool ok = st->ids != NULL && st->pos != NULL && st->seq_row != NULL && st->bs != NULL &&
              st->seq != NULL && st->out != NULL && st->events.ev != NULL;
    for (int32_t g = 0; g < o->n_groups; g++) {
        st->table[g] = hy_calloc(seqs * (size_t)stride, sizeof(int32_t));
        ok = ok && st->table[g] != NULL;
        st->bt[g] = (hy_block_table){.table = st->table[g], .stride = stride};
    }
    st->b = (hy_batch){.rows = {.ids = st->ids, .pos = st->pos, .seq_row = st->seq_row},
                       .n_groups = o->n_groups,
                       .bt = st->bt,
                       .seqs = st->bs,
                       .connector_out = &st->events};
    return ok ? HY_OK : hy_fail(HY_E_NOMEM, "no memory for steps of %d tokens", (int)rows);
}

hy_status hy_sched__steps_init(hy_engine *e)
{
    const size_t seqs = (size_t)e->o.max_seqs;
    e->plan.run = hy_calloc(seqs, sizeof(*e->plan.run));
    e->plan.wait = hy_calloc(seqs, sizeof(*e->plan.wait));
    e->cand = hy_calloc(seqs, sizeof(*e->cand));
    e->hit = hy_calloc(seqs, sizeof(*e->hit));
    e->ext = hy_calloc(seqs, sizeof(*e->ext));
    e->cap_preempted = 2 * (int32_t)seqs;
    e->preempted = hy_calloc(2 * seqs, sizeof(*e->preempted));
    if (e->plan.run == NULL || e->plan.wait == NULL || e->cand == NULL || e->hit == NULL ||
        e->ext == NULL || e->preempted == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the plan of %d sequences", e->o.max_seqs);
    hy_plan *p = &e->plan;
    p->n_groups = e->o.n_groups;
    p->block_tokens = e->o.block_tokens;
    p->budget = e->o.max_batch_tokens;
    p->max_prefill = e->o.max_prefill_tokens;
    p->max_seqs = e->o.max_seqs;
    for (int32_t g = 0; g < p->n_groups; g++)
        p->least[g] = e->windows[g] > 0 ? hy_kv_least(e->kv, g, INT32_MAX / 2) : 0;
    HY_TRY(step_init(e, &e->step[0]));
    return step_init(e, &e->step[1]);
}

void hy_sched__steps_fini(hy_engine *e)
{
    for (int k = 0; k < 2; k++) {
        hy_step *st = &e->step[k];
        hy_free(st->ids);
        hy_free(st->pos);
        hy_free(st->seq_row);
        hy_free(st->bs);
        hy_free(st->seq);
        hy_free(st->out);
        hy_free(st->events.ev);
        for (int32_t g = 0; g < HY_KV_MAX_GROUPS; g++)
            hy_free(st->table[g]);
    }
    hy_free(e->plan.run);
    hy_free(e->plan.wait);
    hy_free(e->cand);
    hy_free(e->hit);
    hy_free(e->ext);
    hy_free(e->preempted);
}

/* ---- snapshot ---- */

static int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static void snap_running(hy_engine *e)
{
    hy_plan *p = &e->plan;
    p->n_run = e->running.n;
    for (int32_t i = 0; i < p->n_run; i++) {
        const hy_seq *s = e->running.at[i];
        hy_plan_seq *x = &p->run[i];
        x->priority = s->job->r->priority;
        x->arrival = s->uid;
        x->computed = s->computed;
        x->todo = s->n_tok - s->computed;
        for (int32_t g = 0; g < p->n_groups; g++) {
            x->have[g] = s->kv.tab[g].n;
            x->live[g] = x->have[g] - s->kv.tab[g].live;
        }
    }
    p->n_parked = e->parked.n;
    for (int32_t g = 0; g < p->n_groups; g++)
        p->free[g] = hy_kv_n_free(e->kv, g);
}

/* One waiting sequence as it would be admitted now. HY_PENDING: the connector wants to be asked
 * later; negative: the request is to fail. */
static hy_status snap_waiting(hy_engine *e, hy_seq *s, int32_t at)
{
    hy_plan_seq *x = &e->plan.wait[at];
    hy_kv_hit *hit = &e->hit[at];
    int32_t ext = 0;
    bool async = false;
    hy_kv_chain(&s->kv, s->tok, s->n_tok);            /* a preempted one has more tokens now */
    const bool first = hy_sched__first(e, s) != NULL; /* then the last token has its row, too */
    hy_kv_match_prefix(&s->kv, min32(s->match_cap, first ? s->n_tok : s->n_tok - 1), hit);
    if (e->conn != hy_connector_null() && s->match_cap == INT32_MAX && !s->no_ext) {
        const hy_conn_req cr = hy_sched__conn_req(s);
        const hy_status st =
            e->conn->sched.matched(e->conn->sched_self, &cr, hit->tokens, &ext, &async);
        if (st == HY_PENDING) {
            e->ask_later = true;
            return st;
        }
        HY_TRY(st);
        ext = ext < 0 ? 0 : min32(ext, s->n_tok - hit->tokens);
    }
    e->cand[at] = s;
    e->ext[at] = ext;
    x->priority = s->job->r->priority;
    x->arrival = s->uid;
    x->park = ext > 0 && async;
    x->computed = min32(hit->tokens + ext, first ? s->n_tok : s->n_tok - 1);
    if (ext > 0)
        hy_kv_match_beyond(&s->kv, x->computed, hit);
    x->todo = x->computed < s->n_tok ? s->n_tok - x->computed : 1; /* the first token's row */
    for (int32_t g = 0; g < e->plan.n_groups; g++) {
        x->have[g] = hit->entries[g];
        x->live[g] = hit->n[g];
        x->touch[g] = hit->n_free[g];
    }
    return HY_OK;
}

/* The head of the queue: no more than could start in this step. */
static void snap_queue(hy_engine *e)
{
    hy_plan *p = &e->plan;
    p->n_wait = 0;
    e->ask_later = false;
    if (p->preempted)
        return;
    const int32_t places = p->max_seqs - p->n_run - p->n_parked;
    int32_t todo = 0;
    for (hy_seq *s = e->waiting.head, *next; s != NULL && p->n_wait < places && todo < p->budget;
         s = next) {
        next = s->next;
        const hy_status st = snap_waiting(e, s, p->n_wait);
        if (st < 0) {
            hy_sched__end_job(e, s->job, HY_FINISH_ERROR, st, hy_fail_text());
        } else if (st == HY_OK) {
            todo += p->wait[p->n_wait].park ? 0 : min32(p->wait[p->n_wait].todo, p->budget);
            p->n_wait++;
        }
    }
}

/* ---- preemption and admission ---- */

static void preempt(hy_engine *e, hy_seq *s)
{
    hy_debug("sched", "request %llu is preempted at %d of %d tokens",
             (unsigned long long)s->job->r->id, s->computed, s->n_tok);
    hy_seq_array_remove(&e->running, s);
    hy_kv_drop(&s->kv);
    s->computed = 0;
    s->state = HY_SEQ_WAITING;
    s->n_preempted++;
    hy_seq_list_insert(&e->waiting, s);
    if (e->n_preempted < e->cap_preempted)
        e->preempted[e->n_preempted++] = s->uid;
    atomic_fetch_add(&e->st.preemptions, 1);
    hy_metric_inc(e->m.preemptions);
}

hy_status hy_sched__make_sampler(hy_engine *e, hy_seq *s)
{
    const hy_req *r = s->job->r;
    if (s->sampler != NULL || s->job->max_new == 0)
        return HY_OK;
    /* min_tokens bars what would stop it: the model's end tokens and its own. */
    const size_t n_end = r->ignore_eos ? 0 : e->o.n_end;
    int32_t *ids = hy_malloc((n_end + r->n_stop + 1) * sizeof(*ids));
    if (ids == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a sampler");
    if (n_end > 0)
        memcpy(ids, e->o.end_ids, n_end * sizeof(*ids));
    if (r->n_stop > 0)
        memcpy(ids + n_end, r->stop_ids, r->n_stop * sizeof(*ids));
    const hy_status st =
        e->o.sampler.create(e->o.sampler.ctx, &r->sampling, s->choice, r->prompt, r->n_prompt, ids,
                            n_end + r->n_stop, r->min_tokens, &s->sampler);
    hy_free(ids);
    return st;
}

static void count_admission(hy_engine *e, hy_seq *s, const hy_kv_hit *hit)
{
    s->start_ns = s->start_ns != 0 ? s->start_ns : hy_stage_now(e->stage);
    if (s->job->queued) {
        s->job->queued = false;
        atomic_fetch_sub(&e->queued, 1);
    }
    if (s->counted)
        return;
    s->counted = true;
    s->n_cached = min32(hit->tokens, s->job->r->n_prompt);
    if (e->o.prefix_cache && s->match_cap >= s->n_tok - 1) {
        hy_metric_add(e->m.prefix_queries, s->n_tok);
        hy_metric_add(e->m.prefix_hits, hit->tokens);
    }
    hy_metric_add(e->m.cached_tokens, s->n_cached);
    atomic_fetch_add(&e->st.cached_tokens, (uint64_t)s->n_cached);
    if (s->choice == 0) {
        hy_trace_mark(e->o.trace, s->job->r->id, HY_TRACE_ADMITTED, s->start_ns);
        hy_trace_set(e->o.trace, s->job->r->id, HY_TRACE_HIT, s->n_cached);
    }
    if (e->conn != hy_connector_null())
        hy_metric_add(e->m.ext_queries, s->n_tok - hit->tokens);
}

static void give_blocks(hy_seq *s, int32_t upto, int32_t upto_window)
{
    const bool ok = hy_kv_grow(&s->kv, upto, upto_window);
    HY_ASSERT(ok); /* the plan counted them */
}

/* The connector learns of its blocks; a parked sequence's are held until the load has ended. */
static void tell_allocated(hy_engine *e, hy_seq *s, bool park)
{
    uint64_t deadline = HY_NEVER;
    const hy_conn_req cr = hy_sched__conn_req(s);
    const hy_conn_blocks cb = hy_sched__conn_blocks(e, s);
    e->conn->sched.allocated(e->conn->sched_self, &cr, &cb, s->n_local, s->n_ext, &deadline);
    uint64_t hold;
    if (park && hy_kv_hold_seq(&s->kv, HY_HOLD_RECEIVE, s->n_local, s->n_local + s->n_ext, deadline,
                               &hold) < 0)
        hy_warn("sched", "%s", hy_fail_text()); /* its own blocks still hold until it ends */
}

/* All hits are taken before any new block is: a new block could be one of them. False: one failed
 * and was ended, so that the plan is void. */
static bool admit(hy_engine *e)
{
    const hy_plan *p = &e->plan;
    bool ok = true;
    for (int32_t i = 0; i < p->n_wait; i++) {
        hy_seq *s = e->cand[i];
        if (!p->wait[i].admit)
            continue;
        hy_seq_list_remove(&e->waiting, s);
        hy_kv_attach(&s->kv, &e->hit[i]);
        s->computed = p->wait[i].computed;
        s->n_local = e->hit[i].tokens;
        s->n_ext = e->ext[i];
        s->grant = p->wait[i].grant;
        s->state = p->wait[i].park ? HY_SEQ_PARKED : HY_SEQ_RUNNING;
        count_admission(e, s, &e->hit[i]);
    }
    for (int32_t i = 0; i < p->n_wait; i++) {
        hy_seq *s = e->cand[i];
        if (!p->wait[i].admit)
            continue;
        const bool park = s->state == HY_SEQ_PARKED;
        const int32_t upto = s->computed + s->grant;
        give_blocks(s, park ? s->n_tok : upto, park ? s->computed + 1 : upto);
        hy_seq_array_insert(park ? &e->parked : &e->running, s);
        const hy_conn_first *f = hy_sched__first(e, s);
        if (f != NULL && s->job->drew_seed)
            s->job->r->sampling.seed = f->seed; /* go on as its owner would */
        tell_allocated(e, s, park);
        /* a load may bring the seed, too: the sampler is made when it has ended */
        const hy_status st = park ? HY_OK : hy_sched__make_sampler(e, s);
        if (st < 0) {
            (void)hy_sched__end(e, s, HY_FINISH_ERROR, st, hy_fail_text());
            ok = false;
        } else if (s->state == HY_SEQ_RUNNING && s->computed == s->n_tok) {
            ok = !hy_sched__take_first(e, s, hy_sched__first(e, s)) && ok;
        }
    }
    return ok;
}

/* ---- batch ---- */

static void add_prompt_scores(const hy_seq *s, hy_batch_seq *bs, int32_t row)
{
    const hy_req *r = s->job->r;
    bs->prompt_lp_first = -1;
    bs->prompt_lp_n = 0;
    bs->targets = NULL;
    bs->prompt_out = NULL;
    if (r->prompt_logprobs < 0 || s->choice != 0)
        return;
    /* Row at position p scores prompt token p + 1; those before n_scored are done. */
    const int32_t from = s->computed > s->n_scored ? s->computed : s->n_scored;
    const int32_t upto = min32(s->computed + s->grant, r->n_prompt - 1);
    if (from >= upto)
        return;
    bs->prompt_lp_first = row + from - s->computed;
    bs->prompt_lp_n = upto - from;
    bs->prompt_lp_top = r->prompt_logprobs;
    bs->targets = r->prompt + from + 1;
}

static void add_seq(hy_engine *e, hy_step *st, hy_seq *s)
{
    hy_batch *b = &st->b;
    const int32_t i = b->rows.n_seqs++, row = b->rows.n;
    hy_batch_seq *bs = &st->bs[i];
    memset(bs, 0, sizeof(*bs));
    st->seq[i] = s;
    s->in_step = true;
    for (int32_t k = 0; k < s->grant; k++) {
        st->ids[row + k] = s->tok[s->computed + k];
        st->pos[row + k] = s->computed + k;
    }
    b->rows.n += s->grant;
    st->seq_row[i + 1] = b->rows.n;
    for (int32_t g = 0; g < e->o.n_groups; g++)
        memcpy(st->table[g] + (size_t)i * (size_t)st->bt[g].stride, s->kv.tab[g].ids,
               (size_t)s->kv.tab[g].n * sizeof(int32_t));
    bs->req_id = s->job->r->id;
    bs->choice = s->choice;
    bs->rope_long = s->job->rope_long;
    bs->sampler = s->sampler;
    bs->token = -1;
    bs->sample = s->computed + s->grant == s->n_tok && s->job->max_new > 0;
    bs->out_pos = hy_seq_n_out(s);
    add_prompt_scores(s, bs, row);
    if (bs->prompt_lp_n > 0 || (bs->sample && s->job->r->sampling.logprobs >= 0))
        st->extras = true;
}

static void build(hy_engine *e, hy_step *st)
{
    hy_batch *b = &st->b;
    b->step = ++e->n_step;
    b->rows.n = b->rows.n_seqs = 0;
    b->status = HY_OK;
    b->exec_ns = 0;
    st->seq_row[0] = 0;
    st->extras = false;
    st->events.n = 0;
    hy_noalloc_begin();
    for (int32_t i = 0; i < e->running.n; i++) {
        hy_seq *s = e->running.at[i];
        if (s->grant > 0) {
            give_blocks(s, s->computed + s->grant, s->computed + s->grant);
            add_seq(e, st, s);
        }
    }
    hy_noalloc_end();
    for (int32_t i = 0; i < b->rows.n_seqs; i++) {
        const hy_seq *s = st->seq[i];
        if (s->job->r->handover == NULL || s->choice != 0 || s->computed >= s->job->r->n_prompt)
            continue;
        const hy_conn_req cr = hy_sched__conn_req(s);
        const hy_conn_blocks cb = hy_sched__conn_blocks(e, s);
        e->conn->sched.computing(e->conn->sched_self, &cr, &cb, s->grant);
    }
    const hy_conn_step cs = {.step = b->step,
                             .n_tokens = b->rows.n,
                             .preempted = e->preempted,
                             .n_preempted = e->n_preempted};
    b->connector_meta = e->conn->sched.build_meta(e->conn->sched_self, &cs);
    e->n_preempted = 0;
}

static void post(hy_engine *e, hy_step *st)
{
    e->in_flight = st;
    e->which ^= 1;
    const hy_msg m = {.kind = HY_MSG_STEP, .data = &st->b};
    const hy_status r = hy_mbox_post(e->exec, &m);
    if (r == HY_OK)
        return;
    /* exec has stopped: nobody else will come back with this step, so it fails as a device's would
     */
    hy_error("sched", "the device stage takes no step (%s)", hy_status_name(r));
    st->b.status = HY_E_DEVICE;
    const hy_msg back = {.kind = HY_MSG_STEP_DONE, .data = &st->b};
    (void)hy_stage_post_reserved(e->stage, &back); /* refused only when this stage is stopped too */
}

/* ---- wake-ups without a message ---- */

static void wake_at(hy_engine *e, uint64_t at)
{
    if (at == HY_NEVER || (e->poll_timer != 0 && e->poll_at <= at))
        return;
    if (e->poll_timer != 0)
        hy_stage_timer_cancel(e->stage, e->poll_timer);
    e->poll_timer = 0;
    const hy_msg m = {.kind = HY_SCHED__POLL};
    if (hy_stage_timer(e->stage, at, &m, &e->poll_timer) == HY_OK)
        e->poll_at = at;
}

static void look_at_deadlines(hy_engine *e)
{
    hy_ledger *l = hy_kv_ledger(e->kv);
    const uint64_t now = hy_stage_now(e->stage);
    const hy_hold *h;
    while ((h = hy_ledger_expired(l, now)) != NULL) {
        hy_warn("sched", "a %s of %d KV blocks is overdue: cancelling it",
                h->kind == HY_HOLD_RECEIVE ? "load" : "transfer", h->n);
        e->conn->sched.expired(e->conn->sched_self, h->owner, h->kind);
    }
    wake_at(e, hy_ledger_next_deadline(l));
}

/* Transfers are under way that only steps move on. */
static bool transfers(hy_engine *e)
{
    if (e->conn->posts)
        return false;
    return e->conn != hy_connector_null() &&
           (e->parked.n > 0 || e->n_preempted > 0 || hy_kv_ledger(e->kv)->n_holds > 0 ||
            e->conn->sched.busy(e->conn->sched_self));
}

/* Nothing to compute: a step for the transfers alone, at most one a millisecond. */
static bool empty_step(hy_engine *e)
{
    const uint64_t now = hy_stage_now(e->stage);
    if (!transfers(e)) {
        if (e->ask_later)
            wake_at(e, now + HY_MS);
        return false;
    }
    if (now < e->next_empty) {
        wake_at(e, e->next_empty);
        return false;
    }
    e->next_empty = now + HY_MS;
    return true;
}

static void make_plan(hy_engine *e)
{
    hy_plan *p = &e->plan;
    p->preempted = false;
    for (;;) {
        snap_running(e);
        snap_queue(e);
        if (e->o.max_prefill_tokens == 0 && e->o.step_ns > 0)
            p->max_prefill =
                hy_pace_limit(&e->pace, e->running.n, e->o.step_ns, e->o.max_batch_tokens);
        hy_plan_make(p);
        if (p->victim >= 0) {
            preempt(e, e->running.at[p->victim]);
            p->preempted = true;
        } else if (p->n_grants == 0 && p->preempted) {
            p->preempted = false; /* nothing runs now: a step of its own, which may admit */
        } else {
            return;
        }
    }
}

void hy_sched__try_step(hy_engine *e)
{
    if (e->in_flight != NULL || e->exec == NULL || e->stopped)
        return;
    if (e->conn != hy_connector_null())
        look_at_deadlines(e);
    if (e->running.n == 0 && e->waiting.n == 0 && !transfers(e))
        return;
    const hy_plan *p = &e->plan;
    do {
        make_plan(e);
        for (int32_t i = 0; i < e->running.n; i++)
            e->running.at[i]->grant = p->run[i].grant;
    } while (!admit(e));
    if (p->n_grants == 0 && !empty_step(e)) {
        /* Some request can always make progress, unless all wait for a peer. */
        HY_ASSERT(e->waiting.n == 0 || e->parked.n > 0 || e->ask_later ||
                  hy_kv_ledger(e->kv)->n_holds > 0);
        return;
    }
    hy_step *st = &e->step[e->which];
    build(e, st);
    post(e, st);
}
