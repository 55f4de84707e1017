/* SPDX-License-Identifier: Apache-2.0
 *
 * How sequences begin and end: queueing, release of held choices, retirement, the last event.
 *
 * Thread: sched stage only.  Owner: see seq.h.
 */
#include "core/base/alloc.h"
#include "core/base/log.h"
#include "core/sched/engine_int.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

hy_conn_req hy_sched__conn_req(const hy_seq *s)
{
    return (hy_conn_req){.uid = s->uid,
                         .req_id = s->job->r->id,
                         .choice = s->choice,
                         .tokens = s->tok,
                         .n_tokens = s->n_tok,
                         .links = s->kv.links,
                         .n_links = s->kv.n_links,
                         .n_prompt = s->job->r->n_prompt,
                         .computed = s->computed,
                         .rope_long = s->job->rope_long,
                         .first = s->first,
                         .handover = s->job->r->handover};
}

hy_conn_blocks hy_sched__conn_blocks(const hy_engine *e, const hy_seq *s)
{
    return (hy_conn_blocks){
        .n_groups = e->o.n_groups, .block_tokens = e->o.block_tokens, .table = s->kv.tab};
}

hy_status hy_sched__enqueue(hy_engine *e, hy_seq *s)
{
    HY_TRY(hy_seq_start(s, e->kv));
    e->n_held--;
    s->state = HY_SEQ_WAITING;
    hy_seq_list_insert(&e->waiting, s);
    const hy_conn_req cr = hy_sched__conn_req(s);
    e->conn->sched.arrived(e->conn->sched_self, &cr);
    s->known = true;
    hy_conn_info ci;
    e->conn->sched.info(e->conn->sched_self, s->uid, &ci);
    s->remote = ci.remote;
    return HY_OK;
}

void hy_sched__release_held(hy_engine *e, hy_job *j)
{
    const int32_t done = j->seqs[0].computed;
    for (int32_t i = 1; i < j->r->n; i++) {
        hy_seq *s = &j->seqs[i];
        if (s->state != HY_SEQ_HELD || s->end != HY_FINISH_NONE)
            continue;
        if (s->match_cap < done)
            s->match_cap = done;
        if (hy_sched__enqueue(e, s) < 0) /* not the last: the first is not delivered yet */
            hy_sched__end(e, s, HY_FINISH_ERROR, HY_E_NOMEM, hy_fail_text());
    }
}

/* The connector may keep the blocks for a peer: then the ledger holds them on. */
static void ask_connector(hy_engine *e, hy_seq *s)
{
    const hy_conn_req cr = hy_sched__conn_req(s);
    const hy_conn_blocks cb = hy_sched__conn_blocks(e, s);
    const bool completed = s->end == HY_FINISH_STOP || s->end == HY_FINISH_LENGTH;
    hy_conn_verdict v = {0};
    e->conn->sched.finished(e->conn->sched_self, &cr, &cb, completed, &v);
    s->known = false;
    if (v.handover != NULL)
        s->handover = hy_strdup(v.handover);
    if (!v.keep)
        return;
    uint64_t hold;
    if (hy_kv_hold_seq(&s->kv, HY_HOLD_SEND, 0, s->computed, v.deadline_ns, &hold) < 0)
        hy_warn("sched", "request %llu: its KV cannot be kept for the peer: %s",
                (unsigned long long)cr.req_id, hy_fail_text());
}

void hy_sched__retire(hy_engine *e, hy_seq *s)
{
    HY_ASSERT(!s->in_step && s->state != HY_SEQ_DONE);
    switch (s->state) {
    case HY_SEQ_HELD:
        e->n_held--;
        break;
    case HY_SEQ_WAITING:
        hy_seq_list_remove(&e->waiting, s);
        break;
    case HY_SEQ_RUNNING:
        hy_seq_array_remove(&e->running, s);
        break;
    case HY_SEQ_PARKED: /* the receive hold outlives it, until the transfer has ended */
        hy_seq_array_remove(&e->parked, s);
        break;
    case HY_SEQ_DONE:
        break;
    }
    if (s->known)
        ask_connector(e, s);
    if (s->kv.kv != NULL)
        hy_kv_drop(&s->kv);
    s->state = HY_SEQ_DONE;
    if (s->choice == 0)
        hy_sched__release_held(e, s->job);
}

static void free_job(hy_engine *e, hy_job *j)
{
    hy_job **at = &e->by_id[j->r->id % HY_SCHED__JOBS];
    while (*at != j)
        at = &(*at)->chain;
    *at = j->chain;
    if (j->prev != NULL)
        j->prev->next = j->next;
    else
        e->jobs = j->next;
    if (j->next != NULL)
        j->next->prev = j->prev;
    e->n_jobs--;
    if (j->timer != 0)
        hy_stage_timer_cancel(e->stage, j->timer);
    if (j->queued)
        atomic_fetch_sub(&e->queued, 1);
    hy_req_destroy(j->r);
    hy_free(j);
}

bool hy_sched__deliver_end(hy_engine *e, hy_seq *s, int32_t stop_id, const hy_token_out *tok)
{
    hy_job *j = s->job;
    const hy_req *r = j->r;
    const bool failed = s->end == HY_FINISH_ERROR || s->end == HY_FINISH_ABORT;
    hy_sched__metrics_finish(e, s, hy_stage_now(e->stage));
    hy_trace_again(e->o.trace, r->id, HY_TRACE_FINISHED, hy_stage_now(e->stage));
    hy_trace_add(e->o.trace, r->id, HY_TRACE_OUTPUT, hy_seq_n_out(s));
    atomic_fetch_add(&e->st.finished, 1);
    j->n_live--;
    const hy_req_event ev = {.kind = HY_REQ_FINISHED,
                             .id = r->id,
                             .choice = s->choice,
                             .tok = tok,
                             .n_tok = tok != NULL ? 1 : 0,
                             .finish = s->end,
                             .stop_id = stop_id,
                             .error = failed ? s->end_error : HY_OK,
                             .error_text = failed ? s->end_text : NULL,
                             .n_prompt = r->n_prompt,
                             .n_cached = s->n_cached,
                             .n_output = hy_seq_n_out(s),
                             .handover = s->handover,
                             .last = j->n_live == 0};
    if (r->on_event != NULL)
        r->on_event(r->arg, &ev);
    e->o.sampler.destroy(e->o.sampler.ctx, s->sampler);
    s->sampler = NULL;
    hy_seq_fini(s);
    hy_free(s->handover);
    s->handover = NULL;
    if (j->n_live > 0)
        return false;
    free_job(e, j);
    return true;
}

bool hy_sched__end(hy_engine *e, hy_seq *s, hy_finish how, hy_status error, const char *text)
{
    if (s->state == HY_SEQ_DONE)
        return false;
    if (s->end == HY_FINISH_NONE) {
        s->end = how;
        s->end_error = error;
        snprintf(s->end_text, sizeof(s->end_text), "%s", text != NULL ? text : "");
    }
    if (s->in_step)
        return false;
    hy_sched__retire(e, s);
    return hy_sched__deliver_end(e, s, -1, NULL);
}

void hy_sched__end_job(hy_engine *e, hy_job *j, hy_finish how, hy_status error, const char *text)
{
    char copy[160]; /* text may be the thread's, which later failures overwrite */
    snprintf(copy, sizeof(copy), "%s", text);
    /* From the last: the first choice's end would set held ones free. */
    for (int32_t i = j->r->n - 1; i >= 0; i--)
        if (hy_sched__end(e, &j->seqs[i], how, error, copy))
            return;
}

/* ---- connector events ---- */

static hy_seq *find_uid(const hy_seq_array *a, uint64_t uid)
{
    for (int32_t i = 0; i < a->n; i++)
        if (a->at[i]->uid == uid)
            return a->at[i];
    return NULL;
}

void hy_sched__count_loaded(hy_engine *e, hy_seq *s, int32_t n)
{
    const int32_t left = s->job->r->n_prompt - s->n_cached;
    if (s->n_preempted > 0 || n <= 0)
        return;
    const int32_t used = n < left ? n : left;
    s->n_cached += used;
    hy_metric_add(e->m.ext_hits, used);
    hy_metric_add(e->m.cached_tokens, used);
    atomic_fetch_add(&e->st.cached_tokens, (uint64_t)used);
}

const hy_conn_first *hy_sched__first(hy_engine *e, hy_seq *s)
{
    const hy_req *r = s->job->r;
    if (!s->remote || s->n_tok != r->n_prompt || s->no_ext || s->match_cap != INT32_MAX ||
        s->job->max_new < 1)
        return NULL;
    hy_conn_info ci;
    e->conn->sched.info(e->conn->sched_self, s->uid, &ci);
    const hy_conn_first *f = ci.first;
    if (f == NULL || f->position != r->n_prompt || f->id < 0 || f->id >= e->o.vocab)
        return NULL;
    const bool logprobs =
        r->sampling.logprobs < 0 || (f->rank > 0 && f->n_top >= r->sampling.logprobs);
    return logprobs && f->barred == (r->min_tokens > 0) ? f : NULL;
}

static bool has_windows(const hy_engine *e)
{
    for (int32_t g = 0; g < e->o.n_groups; g++)
        if (e->windows[g] > 0)
            return true;
    return false;
}

/* What arrived counts as computed, the rest is computed here. False: not even that can be used,
 * because a window group has no blocks so far back: from the start again. */
static bool load_ended(hy_engine *e, hy_seq *s, int32_t valid)
{
    s->no_ext = s->no_ext || valid < s->n_ext;
    int32_t got = s->n_local + (valid < s->n_ext ? valid : s->n_ext);
    const bool first = got >= s->n_tok && hy_sched__first(e, s) != NULL;
    if (got >= s->n_tok && !first && s->remote && has_windows(e)) {
        s->no_ext = true; /* the last prompt token's window may begin before what was moved */
        got = 0;
    }
    got = got < s->n_tok - 1 || first ? got : s->n_tok - 1;
    s->n_ext = 0;
    s->computed = got;
    if (hy_kv_can_start(&s->kv, got)) {
        hy_sched__count_loaded(e, s, got - s->n_local);
        return true;
    }
    s->computed = 0;
    hy_kv_drop(&s->kv);
    return false;
}

static void trace_load(const hy_engine *e, const hy_seq *s, const hy_conn_event *x)
{
    const uint64_t id = s->job->r->id;
    if (x->start_ns == 0)
        return; /* it never began */
    hy_trace_mark(e->o.trace, id, HY_TRACE_LOAD, x->start_ns);
    hy_trace_mark(e->o.trace, id, HY_TRACE_LOADED, x->end_ns);
    hy_trace_add(e->o.trace, id, HY_TRACE_BYTES_IN, (int64_t)x->bytes);
    hy_trace_set(e->o.trace, id, HY_TRACE_MOVED, x->valid);
}

static void unpark(hy_engine *e, hy_seq *s, int32_t valid)
{
    const hy_conn_first *f = valid >= s->n_ext ? hy_sched__first(e, s) : NULL;
    if (f != NULL && s->job->drew_seed)
        s->job->r->sampling.seed = f->seed;
    const hy_status st = hy_sched__make_sampler(e, s);
    if (st < 0) {
        (void)hy_sched__end(e, s, HY_FINISH_ERROR, st, hy_fail_text());
        return;
    }
    hy_seq_array_remove(&e->parked, s);
    if (!load_ended(e, s, valid)) {
        s->state = HY_SEQ_WAITING;
        hy_seq_list_insert(&e->waiting, s);
        return;
    }
    if (s->computed > s->n_local)
        hy_kv_received(&s->kv, s->n_local, s->computed);
    hy_kv_publish(&s->kv, s->tok, s->computed);
    hy_kv_trim(&s->kv, s->computed);
    s->state = HY_SEQ_RUNNING;
    hy_seq_array_insert(&e->running, s);
    if (s->computed == s->n_tok)
        (void)hy_sched__take_first(e, s, hy_sched__first(e, s));
}

/* A load inside the step has failed: what the step computed on it is void. */
static void reload(hy_engine *e, hy_seq *s, int32_t valid)
{
    s->discard = true;
    if (load_ended(e, s, valid))
        return;
    hy_seq_array_remove(&e->running, s);
    s->state = HY_SEQ_WAITING;
    hy_seq_list_insert(&e->waiting, s);
}

void hy_sched__conn_events(hy_engine *e, const hy_conn_events *ev)
{
    e->conn->sched.progressed(e->conn->sched_self, ev->ev, ev->n);
    for (int32_t i = 0; i < ev->n; i++) {
        const hy_conn_event *x = &ev->ev[i];
        if (x->kind == HY_CONN_SENT) {
            (void)hy_ledger_release_owner(hy_kv_ledger(e->kv), HY_HOLD_SEND, x->uid);
            continue;
        }
        if (x->kind == HY_CONN_HELD) {
            (void)hy_ledger_extend_owner(hy_kv_ledger(e->kv), HY_HOLD_SEND, x->uid, x->deadline_ns);
            continue;
        }
        hy_seq *s = find_uid(&e->running, x->uid);
        if (s != NULL) { /* a load inside the step */
            if (s->n_ext > 0 && x->valid < s->n_ext)
                reload(e, s, x->valid);
            continue;
        }
        (void)hy_ledger_release_owner(hy_kv_ledger(e->kv), HY_HOLD_RECEIVE, x->uid);
        s = find_uid(&e->parked, x->uid);
        if (s != NULL)
            trace_load(e, s, x);
        if (s != NULL && x->fatal)
            hy_sched__end_job(e, s->job, HY_FINISH_ERROR, x->status, x->text);
        else if (s != NULL)
            unpark(e, s, x->valid);
    }
}
