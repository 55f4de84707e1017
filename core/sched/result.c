/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step's results do to its sequences, and the events that follow. The next step is posted
 * in between, so that the device waits for bookkeeping only, not for front ends.
 *
 * Thread: sched stage only.  Owner: the engine.
 */
#include "core/base/alloc.h"
#include "core/sched/engine_int.h"

#include <stdio.h>

static bool contains(const int32_t *ids, size_t n, int32_t id)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static void ended(hy_engine *e, hy_outcome *o, hy_finish how)
{
    if (o->s->end == HY_FINISH_NONE)
        o->s->end = how;
    hy_sched__retire(e, o->s);
    o->finished = true;
}

static void take_token(hy_engine *e, hy_outcome *o, int32_t id, uint64_t now)
{
    hy_seq *s = o->s;
    const hy_req *r = s->job->r;
    s->tok[s->n_tok++] = id;
    e->o.sampler.accept(e->o.sampler.ctx, s->sampler, id);
    const int32_t n_out = hy_seq_n_out(s);
    atomic_fetch_add(&e->st.output_tokens, 1);
    hy_metric_inc(e->m.generation_tokens);
    if (s->first_ns == 0) {
        s->first_ns = now;
        const uint64_t arrival = (uint64_t)r->arrival_ns;
        hy_metric_observe(e->m.ttft, now > arrival ? (double)(now - arrival) / 1e9 : 0.0);
        hy_trace_mark(e->o.trace, r->id, HY_TRACE_FIRST, now);
    } else {
        if (n_out == 2)
            hy_trace_mark(e->o.trace, r->id, HY_TRACE_DECODE, now);
        hy_metric_observe(e->m.itl, (double)(now - s->last_ns) / 1e9);
    }
    s->last_ns = now;
    const bool end_id = !r->ignore_eos && contains(e->o.end_ids, e->o.n_end, id);
    if (n_out >= r->min_tokens && (end_id || contains(r->stop_ids, r->n_stop, id))) {
        o->stop_id = id;
        ended(e, o, HY_FINISH_STOP);
        return;
    }
    o->token = true;
    if (n_out >= s->job->max_new)
        ended(e, o, HY_FINISH_LENGTH);
}

/* The prompt's end was reached for the first time. */
static void count_prompt(hy_engine *e, hy_seq *s)
{
    const int32_t n = s->job->r->n_prompt;
    if (s->prompt_counted || s->computed < n)
        return;
    s->prompt_counted = true;
    hy_metric_add(e->m.prompt_tokens, n);
    atomic_fetch_add(&e->st.prompt_tokens, (uint64_t)n);
}

/* What the peer that gets the prompt's KV is told of its first token. */
static void keep_first(const hy_engine *e, hy_seq *s, int32_t id, const hy_token_out *t)
{
    if (e->conn == hy_connector_null() || s->job->r->handover == NULL || s->choice != 0 ||
        hy_seq_n_out(s) != 0)
        return;
    hy_conn_first *f = hy_calloc(1, sizeof(*f));
    if (f == NULL)
        return; /* the peer computes the last prompt token itself */
    f->id = id;
    f->rank = t->rank;
    f->logprob = t->logprob;
    f->n_top = s->job->r->sampling.logprobs < 0 ? 0 : t->n_top;
    f->n_top = f->n_top < HY_CONN_TOP_MAX ? f->n_top : HY_CONN_TOP_MAX;
    for (int32_t i = 0; i < f->n_top; i++) {
        f->top_ids[i] = t->top_ids[i];
        f->top_lps[i] = t->top_lps[i];
    }
    f->position = s->job->r->n_prompt;
    f->seed = s->job->r->sampling.seed;
    f->barred = s->job->r->min_tokens > 0;
    hy_free(s->first);
    s->first = f;
}

static void fail_seq(hy_engine *e, hy_outcome *o, hy_status st)
{
    hy_seq *s = o->s;
    s->end = HY_FINISH_ERROR;
    s->end_error = st;
    snprintf(s->end_text, sizeof(s->end_text), "the model could not compute a token (%s)",
             hy_status_name(st));
    ended(e, o, HY_FINISH_ERROR);
}

static void one(hy_engine *e, hy_step *st, int32_t i, uint64_t now)
{
    const hy_batch *b = &st->b;
    const hy_batch_seq *bs = &b->seqs[i];
    hy_seq *s = st->seq[i];
    hy_outcome *o = &st->out[st->n_out++];
    *o = (hy_outcome){.s = s, .i = i, .stop_id = -1};
    s->in_step = false;
    const bool discard = s->discard;
    const int32_t loaded = s->n_ext > 0 ? s->computed - s->n_local : 0;
    s->discard = false;
    s->n_ext = 0;
    if (s->end != HY_FINISH_NONE) { /* aborted or finished meanwhile: this result is not wanted */
        ended(e, o, s->end);
        return;
    }
    const hy_status failed = b->status < 0 ? b->status : bs->status;
    if (failed < 0) {
        fail_seq(e, o, failed);
        return;
    }
    if (discard)
        return;
    hy_sched__count_loaded(e, s, loaded);
    const int32_t before = s->computed, n_prompt = s->job->r->n_prompt;
    s->computed += b->rows.seq_row[i + 1] - b->rows.seq_row[i];
    if (s->remote && before < n_prompt)
        hy_metric_add(e->m.pd_computed, (s->computed < n_prompt ? s->computed : n_prompt) - before);
    count_prompt(e, s);
    if (s->match_cap < s->computed)
        s->match_cap = s->computed;
    hy_kv_publish(&s->kv, s->tok, s->computed);
    hy_kv_trim(&s->kv, s->computed);
    if (s->job->r->handover != NULL && s->choice == 0 && before < n_prompt) {
        const hy_conn_req cr = hy_sched__conn_req(s);
        const hy_conn_blocks cb = hy_sched__conn_blocks(e, s);
        e->conn->sched.computed(e->conn->sched_self, &cr, &cb);
    }
    if (bs->prompt_lp_n > 0 && bs->prompt_out != NULL) {
        o->plp_first = s->n_scored + 1;
        o->plp_n = bs->prompt_lp_n;
        s->n_scored += bs->prompt_lp_n;
    }
    if (s->choice == 0 && s->job->r->n > 1 && s->computed >= s->job->r->n_prompt)
        hy_sched__release_held(e, s->job);
    if (bs->sample) {
        keep_first(e, s, bs->token, &bs->out);
        take_token(e, o, bs->token, now);
    } else if (s->job->max_new == 0 && s->computed >= s->job->r->n_prompt)
        ended(e, o, HY_FINISH_LENGTH);
}

static void send(const hy_seq *s, const hy_req_event *ev)
{
    const hy_req *r = s->job->r;
    if (r->on_event != NULL)
        r->on_event(r->arg, ev);
}

static void deliver(hy_engine *e, hy_step *st)
{
    for (int32_t k = 0; k < st->n_out; k++) {
        const hy_outcome *o = &st->out[k];
        hy_seq *s = o->s;
        hy_batch_seq *bs = &st->bs[o->i];
        bs->out.id = bs->token; /* also where no log-probabilities were asked for */
        hy_req_event ev = {.id = s->job->r->id, .choice = s->choice, .stop_id = -1};
        if (o->plp_n > 0) {
            ev.kind = HY_REQ_PROMPT;
            ev.first = o->plp_first;
            ev.tok = bs->prompt_out;
            ev.n_tok = o->plp_n;
            send(s, &ev);
        }
        if (o->token) {
            ev.kind = HY_REQ_TOKEN;
            ev.tok = &bs->out;
            ev.n_tok = 1;
            send(s, &ev);
        }
        if (o->finished)
            (void)hy_sched__deliver_end(e, s, o->stop_id, o->stop_id >= 0 ? &bs->out : NULL);
    }
    st->n_out = 0;
}

bool hy_sched__take_first(hy_engine *e, hy_seq *s, const hy_conn_first *f)
{
    HY_ASSERT(f != NULL && s->state == HY_SEQ_RUNNING && !s->in_step);
    const bool logprobs = s->job->r->sampling.logprobs >= 0;
    const hy_conn_first copy = *f; /* the connector forgets it when the sequence ends */
    f = &copy;
    const hy_token_out t = {.id = f->id,
                            .rank = logprobs ? f->rank : 0,
                            .logprob = logprobs ? f->logprob : 0.0f,
                            .n_top = logprobs ? s->job->r->sampling.logprobs : 0,
                            .top_ids = f->top_ids,
                            .top_lps = f->top_lps};
    hy_outcome o = {.s = s, .stop_id = -1};
    count_prompt(e, s);
    take_token(e, &o, f->id, hy_stage_now(e->stage));
    hy_req_event ev = {.id = s->job->r->id, .choice = s->choice, .stop_id = -1};
    if (o.token) {
        ev.kind = HY_REQ_TOKEN;
        ev.tok = &t;
        ev.n_tok = 1;
        send(s, &ev);
    }
    if (o.finished)
        (void)hy_sched__deliver_end(e, s, o.stop_id, o.stop_id >= 0 ? &t : NULL);
    return o.finished;
}

void hy_sched__step_done(hy_engine *e, hy_batch *b)
{
    hy_step *st = (hy_step *)b; /* b is its first member */
    HY_ASSERT(e->in_flight == st);
    e->in_flight = NULL;
    const uint64_t now = hy_stage_now(e->stage);
    if (st->events.n > 0)
        hy_sched__conn_events(e, &st->events);
    st->n_out = 0;
    for (int32_t i = 0; i < b->rows.n_seqs; i++)
        one(e, st, i, now);
    atomic_fetch_add(&e->st.steps, 1);
    if (b->rows.n > 0)
        hy_metric_observe(e->m.iteration_tokens, b->rows.n);
    hy_pace_note(&e->pace, b->rows.n, b->exec_ns);
    if (st->extras)
        deliver(e, st); /* exec's arrays live until the next step */
    else
        hy_sched__try_step(e);
    deliver(e, st);
}
