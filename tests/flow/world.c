/* SPDX-License-Identifier: Apache-2.0
 *
 * Random worlds for the scheduler.
 *
 * Thread: see world.h.  Owner: see world.h.
 */
#include "tests/flow/world.h"

#include <string.h>

enum { MSG_SUBMIT = 1, MSG_ABORT };

static const int32_t end_ids[N_END] = {3, 4};

int32_t world_pick(world *w, int32_t lo, int32_t hi)
{
    return lo + (int32_t)hy_rng_below(&w->rng, (uint64_t)(hi - lo + 1));
}

static bool one_in(world *w, int32_t n)
{
    return hy_rng_below(&w->rng, (uint64_t)n) == 0;
}

static int32_t new_tokens(const world *w, const plan_req *p)
{
    int64_t room = w->o.context;
    for (int32_t g = 0; g < w->o.n_groups; g++) {
        const int64_t all = (int64_t)w->blocks[g] * w->o.block_tokens + 1;
        const int32_t bt = w->o.block_tokens;
        const bool endless =
            w->windows[g] > 0 && (w->windows[g] - 1 + bt - 1) / bt + 1 <= w->blocks[g];
        room = !endless && all < room ? all : room;
    }
    const int32_t left = (int32_t)room - p->n_prompt > 0 ? (int32_t)room - p->n_prompt : 0;
    return p->max_tokens >= 0 && p->max_tokens < left ? p->max_tokens : left;
}

static bool rope_long(const world *w, const plan_req *p)
{
    return w->o.rope_long_from > 0 && p->n_prompt + new_tokens(w, p) > w->o.rope_long_from;
}

/* ---- what arrives ---- */

static void on_event(void *arg, const hy_req_event *ev)
{
    plan_req *p = arg;
    record *r = &p->rec[ev->choice];
    HY_ASSERT(p->n_last == 0 && r->n_finished == 0); /* nothing after the end */
    HY_ASSERT(ev->id == p->id);
    switch (ev->kind) {
    case HY_REQ_PROMPT:
        HY_ASSERT(ev->choice == 0 && ev->first == p->n_scored + 1);
        for (int32_t i = 0; i < ev->n_tok; i++) {
            const int32_t at = ev->first + i;
            HY_ASSERT(ev->tok[i].id == p->prompt[at]);
            const uint64_t out = fake_oracle_out(p->w->exec, p->prompt, at, rope_long(p->w, p));
            HY_ASSERT(ev->tok[i].rank == 1 + (int32_t)(out % 100000));
        }
        p->n_scored += ev->n_tok;
        break;
    case HY_REQ_TOKEN:
        HY_ASSERT(ev->n_tok == 1 && r->n_tok < MAX_TOKENS);
        r->tok[r->n_tok++] = ev->tok->id;
        if (p->logprobs >= 0)
            HY_ASSERT(ev->tok->n_top == 1 && ev->tok->top_ids[0] == (ev->tok->id ^ 1));
        if (p->finish_after > 0 && r->n_tok >= p->finish_after && !r->finish_asked) {
            r->finish_asked = true;
            hy_engine_finish_choice(p->w->e, p->id, ev->choice);
        }
        break;
    case HY_REQ_FINISHED:
        r->n_finished++;
        r->last = *ev;
        snprintf(r->handover, sizeof(r->handover), "%s", ev->handover != NULL ? ev->handover : "");
        if (ev->stop_id >= 0) {
            HY_ASSERT(ev->n_tok == 1 && ev->tok->id == ev->stop_id);
            r->tok[r->n_tok++] = ev->stop_id;
        }
        if (ev->last) {
            p->n_last++;
            atomic_fetch_add(&p->w->n_ended, 1);
        }
        break;
    }
}

/* ---- the client stage ---- */

hy_req *world_req(plan_req *p)
{
    hy_req *r = hy_req_create();
    HY_ASSERT(r != NULL);
    p->id = r->id;
    r->prompt = malloc((size_t)p->n_prompt * sizeof(int32_t));
    HY_ASSERT(r->prompt != NULL);
    memcpy(r->prompt, p->prompt, (size_t)p->n_prompt * sizeof(int32_t));
    r->n_prompt = p->n_prompt;
    r->n = p->n;
    r->max_tokens = p->max_tokens;
    r->min_tokens = p->min_tokens;
    r->ignore_eos = p->ignore_eos;
    if (p->stop_id >= 0) {
        r->stop_ids = malloc(sizeof(int32_t));
        HY_ASSERT(r->stop_ids != NULL);
        r->stop_ids[0] = p->stop_id;
        r->n_stop = 1;
    }
    r->prompt_logprobs = p->prompt_lp;
    r->priority = p->priority;
    r->cache_salt = p->salt != NULL ? strdup(p->salt) : NULL;
    r->no_prefix_cache = p->no_cache;
    r->deadline_ns = (int64_t)p->deadline_ns;
    r->sampling.seed = p->seed;
    r->sampling.has_seed = true;
    r->sampling.logprobs = p->logprobs;
    r->on_event = on_event;
    r->arg = p;
    return r;
}

static hy_status client_msg(void *self, hy_msg *m)
{
    world *w = self;
    plan_req *p = &w->req[m->arg];
    if (m->kind == MSG_ABORT) {
        p->aborted = true;
        if (p->id != 0)
            hy_engine_abort(w->e, p->id);
        return HY_OK;
    }
    hy_req *r = world_req(p);
    p->submitted = hy_engine_submit(w->e, r);
    if (p->submitted == HY_OK)
        return HY_OK;
    hy_req_destroy(r);
    if (p->submitted == HY_E_BUSY && p->busy++ < 10000) {
        const hy_msg again = {.kind = MSG_SUBMIT, .arg = m->arg};
        return hy_stage_timer(w->client, hy_stage_now(w->client) + 3 * HY_MS, &again, NULL);
    }
    atomic_fetch_add(&w->n_ended, 1);
    return HY_OK;
}

static hy_status client_start(void *self)
{
    world *w = self;
    for (int32_t i = 0; i < w->n_req; i++) {
        const uint64_t now = hy_stage_now(w->client);
        hy_msg m = {.kind = MSG_SUBMIT, .arg = (uint64_t)i};
        HY_TRY(hy_stage_timer(w->client, now + w->req[i].submit_ns, &m, NULL));
        if (w->req[i].abort_ns == 0)
            continue;
        m.kind = MSG_ABORT;
        HY_TRY(hy_stage_timer(w->client, now + w->req[i].abort_ns, &m, NULL));
    }
    return HY_OK;
}

/* ---- random worlds ---- */

static void random_opts(world *w)
{
    static const int32_t choices[][3] = {{0, -1, -1},  {0, 20, -1}, {24, 0, -1},
                                         {17, -1, -1}, {0, 33, 5},  {0, -1, -1}};
    const int32_t *c = choices[world_pick(w, 0, (int32_t)HY_COUNTOF(choices) - 1)];
    hy_engine_opts *o = &w->o;
    o->block_tokens = one_in(w, 4) ? 32 : 16;
    while (o->n_groups < 3 && c[o->n_groups] >= 0) {
        const int32_t g = o->n_groups++;
        w->windows[g] = c[g];
        /* a full group must hold one sequence; a window group, its tail */
        w->blocks[g] = c[g] == 0 ? world_pick(w, 5, 18) : world_pick(w, 4, 14);
    }
    o->windows = w->windows;
    o->n_blocks = w->blocks;
    o->context = world_pick(w, 60, 240);
    o->vocab = 48;
    o->max_seqs = world_pick(w, 1, 7);
    o->max_batch_tokens = o->max_seqs + world_pick(w, 0, 70);
    o->max_prefill_tokens = one_in(w, 3) ? 0 : world_pick(w, 1, 40);
    o->max_queue = one_in(w, 4) ? 3 : 64;
    o->prefix_cache = !one_in(w, 5);
    o->rope_long_from = one_in(w, 4) ? 100 : 0;
    o->end_ids = end_ids;
    o->n_end = N_END;
    o->seed = w->seed;
    o->epoch = 1;
    o->sampler = fake_sampler_ops();
    o->model_name = "fake";
    o->check = true;
}

static void random_prompt(world *w, plan_req *p)
{
    const int32_t family = world_pick(w, 0, 2); /* three texts to share beginnings of */
    const int32_t most = w->o.context - 1;
    const int32_t shared = world_pick(w, 0, most > 120 ? 120 : most);
    p->n_prompt = shared + world_pick(w, 1, 20);
    if (p->n_prompt > most && !one_in(w, 10))
        p->n_prompt = most;
    for (int32_t i = 0; i < p->n_prompt; i++)
        p->prompt[i] = i < shared ? (int32_t)(fake_mix((uint64_t)family, (uint64_t)i) % 40) + 8
                                  : world_pick(w, 8, 47);
}

static void random_req(world *w, plan_req *p)
{
    memset(p, 0, sizeof(*p));
    p->w = w;
    random_prompt(w, p);
    p->n = one_in(w, 4) ? world_pick(w, 2, MAX_CHOICES) : 1;
    p->max_tokens = one_in(w, 10) ? -1 : one_in(w, 20) ? 0 : world_pick(w, 1, 90);
    p->min_tokens = p->max_tokens > 4 && one_in(w, 4) ? world_pick(w, 1, 4) : 0;
    p->ignore_eos = one_in(w, 2);
    p->stop_id = one_in(w, 4) ? world_pick(w, 8, 47) : -1;
    p->prompt_lp = one_in(w, 8) ? 1 : -1;
    p->logprobs = one_in(w, 5) ? 1 : -1;
    p->priority = one_in(w, 3) ? world_pick(w, -1, 1) : 0;
    p->no_cache = one_in(w, 10);
    p->salt = one_in(w, 8) ? "tenant" : NULL;
    p->seed = one_in(w, 2) ? 0 : hy_rng_u64(&w->rng);
    p->submit_ns = (uint64_t)world_pick(w, 0, 60000) * HY_US;
    if (one_in(w, 6))
        p->abort_ns = p->submit_ns + (uint64_t)world_pick(w, 0, 30000) * HY_US;
    if (one_in(w, 12))
        p->deadline_ns = p->submit_ns + (uint64_t)world_pick(w, 1, 40000) * HY_US;
    if (one_in(w, 8))
        p->finish_after = world_pick(w, 1, 10);
    if (one_in(w, 25))
        p->prompt[0] = FAKE_POISON;
}

void world_start(world *w, hy_runtime_mode mode, bool failing)
{
    w->metrics = hy_metrics_create();
    HY_ASSERT(w->metrics != NULL);
    const hy_status st = hy_engine_create(&w->o, w->metrics, w->conn, &w->e);
    if (st < 0)
        fail_msg("seed %llu: %s", (unsigned long long)w->seed, hy_fail_text());
    w->exec = fake_exec_create(&w->o, mode == HY_RUNTIME_VIRTUAL, failing ? 60 : 0);
    w->exec->sched = hy_stage_mbox(hy_engine_stage(w->e));
    w->exec->conn = w->conn != NULL ? w->conn : hy_connector_null();
    hy_engine_set_exec(w->e, hy_stage_mbox(w->exec->stage));
    static const hy_stage_ops ops = {.on_start = client_start, .on_msg = client_msg};
    w->client = hy_stage_create("client", &ops, w, 16, 0);
    w->rt = hy_runtime_create(mode, w->seed);
    HY_ASSERT(w->client != NULL && w->rt != NULL);
    HY_ASSERT(hy_runtime_add(w->rt, w->client) == HY_OK);
    HY_ASSERT(hy_runtime_add(w->rt, hy_engine_stage(w->e)) == HY_OK);
    HY_ASSERT(hy_runtime_add(w->rt, w->exec->stage) == HY_OK);
    HY_ASSERT(hy_runtime_start(w->rt) == HY_OK);
}

void world_end(world *w)
{
    hy_runtime_destroy(w->rt);
    hy_engine_destroy(w->e);
    fake_exec_destroy(w->exec);
    hy_stage_destroy(w->client);
    hy_metrics_destroy(w->metrics);
    free(w->req);
    free(w);
}

world *world_make(uint64_t seed)
{
    world *w = calloc(1, sizeof(*w));
    HY_ASSERT(w != NULL);
    w->seed = seed;
    hy_rng_init(&w->rng, seed);
    random_opts(w);
    w->n_req = world_pick(w, 1, MAX_REQS);
    w->req = calloc((size_t)w->n_req, sizeof(*w->req));
    HY_ASSERT(w->req != NULL);
    for (int32_t i = 0; i < w->n_req; i++)
        random_req(w, &w->req[i]);
    return w;
}

/* ---- the oracle's verdict ---- */

static bool stops(const plan_req *p, int32_t id, int32_t n_out)
{
    if (n_out < p->min_tokens)
        return false;
    return id == p->stop_id || (!p->ignore_eos && (id == end_ids[0] || id == end_ids[1]));
}

/* Tokens that the request alone gets; *stop: ended by its last token. */
static int32_t oracle(const world *w, const plan_req *p, int32_t choice, int32_t *out, bool *stop)
{
    int32_t all[2 * MAX_TOKENS];
    memcpy(all, p->prompt, (size_t)p->n_prompt * sizeof(int32_t));
    fake_draw d = {.seed = p->seed, .choice = choice, .min_tokens = p->min_tokens};
    if (!p->ignore_eos)
        for (int32_t i = 0; i < N_END; i++)
            d.end[d.n_end++] = end_ids[i];
    if (p->stop_id >= 0)
        d.end[d.n_end++] = p->stop_id;
    const int32_t most = new_tokens(w, p);
    int32_t n = 0;
    *stop = false;
    while (n < most && !*stop) {
        const uint64_t x = fake_oracle_out(w->exec, all, p->n_prompt + n, rope_long(w, p));
        out[n] = all[p->n_prompt + n] = fake_oracle_token(w->exec, x, &d, n);
        n++;
        *stop = stops(p, out[n - 1], n);
    }
    return n;
}

static void check_choice(world *w, plan_req *p, int32_t c, bool failing)
{
    record *r = &p->rec[c];
    const hy_req_event *f = &r->last;
    int32_t want[2 * MAX_TOKENS];
    bool stop = false;
    CHECK(w, r->n_finished == 1);
    const int32_t n = oracle(w, p, c, want, &stop);
    CHECK(w, r->n_tok <= n && f->n_output == r->n_tok && f->n_prompt == p->n_prompt);
    for (int32_t i = 0; i < r->n_tok; i++)
        CHECK(w, r->tok[i] == want[i]);
    switch (f->finish) {
    case HY_FINISH_STOP:
        CHECK(w, (r->n_tok == n && stop && f->stop_id == want[n - 1]) || r->finish_asked);
        break;
    case HY_FINISH_LENGTH:
        CHECK(w, r->n_tok == n && !stop);
        break;
    case HY_FINISH_ABORT:
        CHECK(w, p->aborted);
        break;
    case HY_FINISH_ERROR:
        CHECK(w, f->error_text != NULL && (failing || p->prompt[0] == FAKE_POISON ||
                                           (f->error == HY_E_TIMEOUT && p->deadline_ns > 0)));
        break;
    default:
        CHECK(w, !"finish reason");
    }
    if (p->prompt[0] == FAKE_POISON)
        CHECK(w, r->n_tok == 0);
    if (p->prompt_lp >= 0 && c == 0 &&
        (f->finish == HY_FINISH_STOP || f->finish == HY_FINISH_LENGTH))
        CHECK(w, p->n_scored == p->n_prompt - 1);
    if (p->no_cache && c == 0)
        CHECK(w, f->n_cached == 0);
}

void world_check(world *w, bool failing)
{
    for (int32_t i = 0; i < w->n_req; i++) {
        plan_req *p = &w->req[i];
        if (p->submitted != HY_OK) { /* refused: too long for the context or the pool */
            CHECK(w, p->submitted == HY_E_INVAL && p->n_last == 0);
            continue;
        }
        CHECK(w, p->n_last == 1);
        for (int32_t c = 0; c < p->n; c++)
            check_choice(w, p, c, failing);
    }
    hy_engine_stats s;
    hy_engine_stats_get(w->e, &s);
    CHECK(w, s.running == 0 && s.waiting == 0 && s.parked == 0);
    CHECK(w, s.blocks_free == s.blocks_total);
    CHECK(w, fake_samplers_alive == 0);
    CHECK(w, w->exec->most_rows <= w->o.max_batch_tokens);
    if (w->o.max_prefill_tokens > 0)
        CHECK(w, w->exec->most_prefill_with_decode <= w->o.max_prefill_tokens);
}
