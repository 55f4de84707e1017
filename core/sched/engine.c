/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's front (submit, abort, finish from any thread) and its sched stage.
 *
 * Thread: see engine.h.  Owner: see engine.h.
 */
#include "core/sched/engine_int.h"

#include "core/base/alloc.h"
#include "core/base/log.h"

#include <limits.h>
#include <string.h>

/* ---- options ---- */

static hy_status check_opts(const hy_engine_opts *o)
{
    if (o->n_groups < 1 || o->n_groups > HY_KV_MAX_GROUPS)
        return hy_fail(HY_E_INVAL, "engine: %d cache groups, 1 to %d are possible", o->n_groups,
                       HY_KV_MAX_GROUPS);
    if (o->max_seqs < 1 || o->max_batch_tokens < o->max_seqs)
        return hy_fail(
            HY_E_INVAL,
            "[engine] max_batch_tokens = %d must be at least max_seqs = %d (and that 1): "
            "each stream gets one token a step",
            o->max_batch_tokens, o->max_seqs);
    if (o->context < 1 || o->vocab < 1 || o->max_queue < 1 || o->max_prefill_tokens < 0)
        return hy_fail(HY_E_INVAL,
                       "engine: context %d, vocabulary %d, max_queue %d and max_prefill_tokens %d "
                       "must be positive",
                       o->context, o->vocab, o->max_queue, o->max_prefill_tokens);
    if (o->sampler.create == NULL || o->sampler.destroy == NULL || o->sampler.accept == NULL)
        return hy_fail(HY_E_INVAL, "engine: no sampler functions");
    return HY_OK;
}

/* Most tokens that one sequence alone can have in the pools. */
static int32_t most_tokens(const hy_engine *e)
{
    int64_t most = INT32_MAX - HY_KV_LINK_TOKENS;
    for (int32_t g = 0; g < e->o.n_groups; g++) {
        const int64_t n = hy_kv_n_blocks(e->kv, g), all = n * e->o.block_tokens;
        const bool endless = e->windows[g] > 0 && hy_kv_least(e->kv, g, INT32_MAX / 2) <= n;
        if (!endless && all < most)
            most = all;
    }
    return (int32_t)most;
}

static hy_status copy_opts(hy_engine *e, const hy_engine_opts *o)
{
    e->o = *o;
    for (int32_t g = 0; g < o->n_groups; g++) {
        e->windows[g] = o->windows != NULL ? o->windows[g] : 0;
        e->n_blocks[g] = o->n_blocks[g];
    }
    e->o.windows = e->windows;
    e->o.n_blocks = e->n_blocks;
    e->end_ids = hy_malloc((o->n_end + 1) * sizeof(int32_t));
    if (e->end_ids == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the engine");
    if (o->n_end > 0)
        memcpy(e->end_ids, o->end_ids, o->n_end * sizeof(int32_t));
    e->o.end_ids = e->end_ids;
    e->o.model_name = NULL; /* copied into the metrics' labels */
    return HY_OK;
}

static hy_status on_msg(void *self, hy_msg *m);
static void on_drain(void *self);
static bool is_busy(void *self);
static void on_stop(void *self);

static hy_status make_parts(hy_engine *e)
{
    const hy_engine_opts *o = &e->o;
    const hy_kv_opts ko = {.n_groups = o->n_groups,
                           .windows = o->windows,
                           .n_blocks = o->n_blocks,
                           .block_tokens = o->block_tokens,
                           .n_events = 10000,
                           .epoch = o->epoch};
    HY_TRY(hy_kv_create(&ko, &e->kv));
    e->max_total = most_tokens(e);
    e->by_id = hy_calloc(HY_SCHED__JOBS, sizeof(hy_job *));
    e->running.cap = e->parked.cap = o->max_seqs;
    e->running.at = hy_calloc((size_t)o->max_seqs, sizeof(hy_seq *));
    e->parked.at = hy_calloc((size_t)o->max_seqs, sizeof(hy_seq *));
    if (e->by_id == NULL || e->running.at == NULL || e->parked.at == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the engine's queues");
    HY_TRY(hy_sched__steps_init(e));
    static const hy_stage_ops ops = {
        .on_msg = on_msg, .on_drain = on_drain, .busy = is_busy, .on_stop = on_stop};
    e->n_reserved = 4 * (o->max_queue + o->max_seqs) + 64;
    e->stage = hy_stage_create("sched", &ops, e, (size_t)o->max_queue + 64, (size_t)e->n_reserved);
    if (e->stage == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the sched stage's mailbox");
    return HY_OK;
}

hy_status hy_engine_create(const hy_engine_opts *o, hy_metrics *m, hy_connector *c, hy_engine **out)
{
    HY_TRY(check_opts(o));
    hy_engine *e = hy_calloc(1, sizeof(*e));
    if (e == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the engine");
    e->conn = c != NULL ? c : hy_connector_null();
    e->next_uid = 1;
    hy_status st = copy_opts(e, o);
    if (st == HY_OK)
        st = make_parts(e);
    if (st < 0) {
        hy_engine_destroy(e);
        return st;
    }
    e->o.model_name = o->model_name;
    hy_sched__metrics_init(e, m);
    e->o.model_name = NULL;
    hy_sched__publish_stats(e);
    *out = e;
    return HY_OK;
}

void hy_engine_destroy(hy_engine *e)
{
    if (e == NULL)
        return;
    e->in_flight = NULL; /* the runtime has stopped: exec is done with it */
    while (e->jobs != NULL) {
        hy_job *j = e->jobs;
        for (int32_t i = 0; i < j->r->n; i++)
            j->seqs[i].in_step = false;
        hy_sched__end_job(e, j, HY_FINISH_ABORT, HY_E_ABORTED, "the engine was stopped");
    }
    hy_stage_destroy(e->stage); /* drops submits that nobody took: their last events */
    hy_sched__steps_fini(e);
    hy_kv_destroy(e->kv);
    hy_free(e->by_id);
    hy_free(e->running.at);
    hy_free(e->parked.at);
    hy_free(e->end_ids);
    hy_free(e);
}

hy_stage *hy_engine_stage(hy_engine *e)
{
    return e->stage;
}

void hy_engine_set_exec(hy_engine *e, hy_mbox *exec)
{
    e->exec = exec;
}

/* ---- any thread ---- */

static void drop_submit(void *data)
{
    hy_req *r = data;
    const hy_req_event ev = {.kind = HY_REQ_FINISHED,
                             .id = r->id,
                             .finish = HY_FINISH_ABORT,
                             .stop_id = -1,
                             .error = HY_E_ABORTED,
                             .error_text = "the engine was stopped",
                             .n_prompt = r->n_prompt,
                             .last = true};
    if (r->on_event != NULL)
        r->on_event(r->arg, &ev);
    hy_req_destroy(r);
}

static hy_status check_req(const hy_engine *e, const hy_req *r)
{
    const hy_engine_opts *o = &e->o;
    if (r->n_prompt < 1 || r->prompt == NULL)
        return hy_fail(HY_E_INVAL, "the prompt is empty");
    if (r->n < 1 || r->n > 1024)
        return hy_fail(HY_E_INVAL, "n = %d: must be 1 to 1024", r->n);
    if (r->n_prompt > o->context || (r->n_prompt == o->context && r->max_tokens != 0))
        return hy_fail(HY_E_INVAL,
                       "This model's maximum context length is %d tokens, but the prompt has %d: "
                       "shorten the prompt",
                       o->context, r->n_prompt);
    for (int32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= o->vocab)
            return hy_fail(HY_E_INVAL, "token id %d at position %d is not in the vocabulary of %d",
                           r->prompt[i], i, o->vocab);
    if (r->max_tokens >= 0 && r->min_tokens > r->max_tokens)
        return hy_fail(HY_E_INVAL, "min_tokens = %d is more than max_tokens = %d", r->min_tokens,
                       r->max_tokens);
    if (r->sampling.logprobs > HY_MAX_TOP || r->prompt_logprobs > HY_MAX_TOP)
        return hy_fail(HY_E_INVAL, "logprobs and prompt_logprobs are possible up to %d",
                       HY_MAX_TOP);
    /* The last sampled token is never computed, so it needs no block. */
    int64_t total = r->n_prompt;
    if (r->max_tokens > 1)
        total += r->max_tokens - 1;
    if (total > o->context)
        total = o->context;
    if (total > e->max_total)
        return hy_fail(HY_E_INVAL,
                       "prompt and max_tokens come to %lld tokens, but the KV cache has room for "
                       "%d: lower max_tokens, or enlarge the pool ([kv] blocks)",
                       (long long)total, e->max_total);
    return HY_OK;
}

hy_status hy_engine_submit(hy_engine *e, hy_req *r)
{
    HY_TRY(check_req(e, r));
    if (atomic_load(&e->refuse))
        return hy_fail(HY_E_BUSY, "the server is shutting down and takes no new requests");
    if (atomic_fetch_add(&e->queued, 1) >= e->o.max_queue) {
        atomic_fetch_sub(&e->queued, 1);
        return hy_fail(HY_E_BUSY, "%d requests are waiting already: try again later",
                       e->o.max_queue);
    }
    const hy_msg m = {.kind = HY_SCHED__SUBMIT, .data = r, .drop = drop_submit};
    const hy_status st = hy_stage_post(e->stage, &m);
    if (st == HY_OK)
        return HY_OK;
    atomic_fetch_sub(&e->queued, 1);
    if (st == HY_AGAIN)
        return hy_fail(HY_E_BUSY, "the engine's mailbox is full: try again later");
    return hy_fail(HY_E_ABORTED, "the engine was stopped");
}

/* Aborts and finishes share the reserved credit with step results, which must always have room:
 * so they may not fill it. */
static void post_cancel(hy_engine *e, const hy_msg *m)
{
    if (atomic_fetch_add(&e->cancels, 1) < e->n_reserved - 8) {
        const hy_status st = hy_stage_post_reserved(e->stage, m);
        if (st == HY_OK || st == HY_E_ABORTED) /* stopped: every request ends anyway */
            return;
    }
    atomic_fetch_sub(&e->cancels, 1);
    hy_warn("sched", "request %llu: cancelling was lost, too many at once; it runs to its end",
            (unsigned long long)m->arg);
}

void hy_engine_abort(hy_engine *e, uint64_t id)
{
    const hy_msg m = {.kind = HY_SCHED__ABORT, .arg = id};
    post_cancel(e, &m);
}

void hy_engine_finish_choice(hy_engine *e, uint64_t id, int32_t choice)
{
    const hy_msg m = {.kind = HY_SCHED__FINISH, .arg = id, .data = (void *)(intptr_t)choice};
    post_cancel(e, &m);
}

void hy_engine_stats_get(hy_engine *e, hy_engine_stats *out)
{
    *out = (hy_engine_stats){
        .running = atomic_load(&e->st.running),
        .waiting = atomic_load(&e->st.waiting),
        .parked = atomic_load(&e->st.parked),
        .blocks_total = e->n_blocks[0],
        .blocks_free = atomic_load(&e->st.blocks_free),
        .blocks_cached = atomic_load(&e->st.blocks_cached),
        .preemptions = atomic_load(&e->st.preemptions),
        .prompt_tokens = atomic_load(&e->st.prompt_tokens),
        .cached_tokens = atomic_load(&e->st.cached_tokens),
        .output_tokens = atomic_load(&e->st.output_tokens),
        .steps = atomic_load(&e->st.steps),
        .finished = atomic_load(&e->st.finished),
    };
}

/* ---- sched stage ---- */

static hy_job *find_job(const hy_engine *e, uint64_t id)
{
    hy_job *j = e->by_id[id % HY_SCHED__JOBS];
    while (j != NULL && j->r->id != id)
        j = j->chain;
    return j;
}

static void make_root(const hy_engine *e, hy_job *j)
{
    const hy_req *r = j->r;
    /* Without a prefix cache, a request's own choices still share its prompt. */
    j->silent = !e->o.prefix_cache;
    const hy_kv_root_opts ro = {.fingerprint = e->o.fingerprint,
                                .rope_long = j->rope_long,
                                .salt = r->cache_salt,
                                .private_id = j->silent ? j->seqs[0].uid : 0};
    hy_kv_hash_root(&ro, &j->root);
}

static hy_job *make_job(hy_engine *e, hy_req *r)
{
    hy_job *j = hy_calloc(1, sizeof(*j) + (size_t)r->n * sizeof(j->seqs[0]));
    if (j == NULL)
        return NULL;
    j->r = r;
    j->n_live = r->n;
    j->queued = true;
    const int32_t room = e->max_total < e->o.context ? e->max_total + 1 : e->o.context;
    j->max_new = room - r->n_prompt > 0 ? room - r->n_prompt : 0;
    if (r->max_tokens >= 0 && r->max_tokens < j->max_new)
        j->max_new = r->max_tokens;
    int32_t plan = r->plan_tokens != 0 ? r->plan_tokens : j->max_new;
    if (plan < 0 || plan > room - r->n_prompt)
        plan = room - r->n_prompt;
    j->rope_long = e->o.rope_long_from > 0 && r->n_prompt + plan > e->o.rope_long_from;
    for (int32_t i = 0; i < r->n; i++) {
        hy_seq *s = &j->seqs[i];
        s->job = j;
        s->choice = i;
        s->uid = e->next_uid++;
        s->state = HY_SEQ_HELD;
        s->match_cap = r->no_prefix_cache || r->prompt_logprobs >= 0 ? 0 : INT32_MAX;
    }
    if (!r->sampling.has_seed) {
        r->sampling.seed = hy_rng_u64_at(e->o.seed, 0, j->seqs[0].uid, 0);
        r->sampling.has_seed = true;
        j->drew_seed = true;
    }
    make_root(e, j);
    j->chain = e->by_id[r->id % HY_SCHED__JOBS];
    e->by_id[r->id % HY_SCHED__JOBS] = j;
    j->next = e->jobs;
    if (e->jobs != NULL)
        e->jobs->prev = j;
    e->jobs = j;
    e->n_jobs++;
    return j;
}

static void on_submit(hy_engine *e, hy_req *r)
{
    const uint64_t now = hy_stage_now(e->stage);
    if (r->arrival_ns == 0)
        r->arrival_ns = (int64_t)now;
    hy_trace_mark(e->o.trace, r->id, HY_TRACE_QUEUED, now);
    hy_trace_set(e->o.trace, r->id, HY_TRACE_PROMPT, r->n_prompt);
    hy_job *j = make_job(e, r);
    if (j == NULL) {
        atomic_fetch_sub(&e->queued, 1);
        drop_submit(r);
        return;
    }
    e->n_held += r->n;
    if (hy_sched__enqueue(e, &j->seqs[0]) < 0) {
        hy_sched__end_job(e, j, HY_FINISH_ERROR, HY_E_NOMEM, hy_fail_text());
        return;
    }
    if (r->deadline_ns > 0) {
        const hy_msg m = {.kind = HY_SCHED__DEADLINE, .arg = r->id};
        (void)hy_stage_timer(e->stage, (uint64_t)r->deadline_ns, &m, &j->timer);
    }
}

static hy_status on_msg(void *self, hy_msg *m)
{
    hy_engine *e = self;
    hy_job *j;
    switch (m->kind) {
    case HY_SCHED__SUBMIT:
        on_submit(e, m->data);
        break;
    case HY_SCHED__ABORT:
        atomic_fetch_sub(&e->cancels, 1);
        if ((j = find_job(e, m->arg)) != NULL)
            hy_sched__end_job(e, j, HY_FINISH_ABORT, HY_E_ABORTED, "the client has gone");
        break;
    case HY_SCHED__FINISH: {
        atomic_fetch_sub(&e->cancels, 1);
        const int32_t choice = (int32_t)(intptr_t)m->data;
        if ((j = find_job(e, m->arg)) != NULL && choice >= 0 && choice < j->r->n)
            hy_sched__end(e, &j->seqs[choice], HY_FINISH_STOP, HY_OK, NULL);
        break;
    }
    case HY_SCHED__DEADLINE:
        if ((j = find_job(e, m->arg)) != NULL) {
            j->timer = 0;
            hy_sched__end_job(e, j, HY_FINISH_ERROR, HY_E_TIMEOUT,
                              "the request's time limit has passed");
        }
        break;
    case HY_SCHED__POLL:
        e->poll_timer = 0;
        break;
    case HY_MSG_STEP_DONE:
        hy_sched__step_done(e, m->data);
        break;
    case HY_MSG_CONN_EVENT: {
        const hy_conn_events one = {.ev = m->data, .n = 1, .cap = 1};
        hy_sched__conn_events(e, &one);
        hy_msg_drop(m);
        break;
    }
    default:
        hy_msg_drop(m);
        return hy_fail(HY_E_INVAL, "sched: message of unknown kind %d", m->kind);
    }
    hy_sched__try_step(e);
    hy_sched__publish_stats(e);
    if (e->o.check && hy_kv_check(e->kv) < 0) {
        hy_error("sched", "%s", hy_fail_text());
        HY_ASSERT(!"KV invariants");
    }
    return HY_OK;
}

static void on_drain(void *self)
{
    hy_engine *e = self;
    e->draining = true;
    atomic_store(&e->refuse, true);
}

static bool is_busy(void *self)
{
    const hy_engine *e = self;
    return e->n_jobs > 0;
}

static void on_stop(void *self)
{
    hy_engine *e = self;
    e->stopped = true;
    atomic_store(&e->refuse, true);
    for (hy_job *j = e->jobs, *next; j != NULL; j = next) {
        next = j->next;
        /* What exec still has is ended in hy_engine_destroy. */
        hy_sched__end_job(e, j, HY_FINISH_ABORT, HY_E_ABORTED, "the engine was stopped");
    }
}
