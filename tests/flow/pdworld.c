/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefill and decode in one process.
 *
 * Thread: see pdworld.h.  Owner: see pdworld.h.
 */
#include "tests/flow/pdworld.h"

#include "core/base/buf.h"
#include "core/base/log.h"
#include "core/connector/pd_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MSG_SUBMIT = 1, MSG_ABORT, MSG_LEG };

static const int32_t end_ids[] = {3, 4};

int32_t pdw_pick(pdw *w, int32_t lo, int32_t hi)
{
    return lo + (int32_t)hy_rng_below(&w->rng, (uint64_t)(hi - lo + 1));
}

void pdw_text(int32_t *out, int32_t n, int32_t which)
{
    for (int32_t i = 0; i < n; i++)
        out[i] = (int32_t)(fake_mix((uint64_t)which, (uint64_t)i) % 40) + 8;
}

void pdw_opts_init(pdw_opts *o, uint64_t seed)
{
    *o =
        (pdw_opts){.seed = seed,
                   .n_groups = 1,
                   .block_tokens = {16, 16},
                   .blocks = {{64, 64, 64}, {64, 64, 64}},
                   .context = 400,
                   .max_batch = 64,
                   .max_seqs = 6,
                   .timed = true,
                   .lease_ns = 2 * HY_SEC,
                   .timeout_ns = 4 * HY_SEC,
                   .staging = 4 << 20,
                   .min_run = 64,
                   .net = {.latency_ns = 50 * HY_US, .jitter_ns = 50 * HY_US, .rto_ns = 2 * HY_MS}};
}

/* ---- nodes ---- */

static void fill_engine_opts(pdw *w, pdw_node *n)
{
    hy_engine_opts *o = &n->o;
    const int i = n->index;
    memset(o, 0, sizeof(*o));
    for (int32_t g = 0; g < w->o.n_groups; g++) {
        n->windows[g] = w->o.windows[g];
        n->blocks[g] = w->o.blocks[i][g];
    }
    o->n_groups = w->o.n_groups;
    o->windows = n->windows;
    o->n_blocks = n->blocks;
    o->block_tokens = w->o.block_tokens[i];
    o->context = w->o.context;
    o->vocab = 48;
    o->max_batch_tokens = w->o.max_batch;
    o->max_seqs = w->o.max_seqs;
    o->max_queue = PDW_REQS;
    o->prefix_cache = true;
    o->end_ids = end_ids;
    o->n_end = HY_COUNTOF(end_ids);
    o->seed = w->o.seed * 7 + (uint64_t)i + n->starts * 1000;
    o->epoch = n->starts + 1;
    o->sampler = fake_sampler_ops();
    o->model_name = "fake";
    o->check = true;
}

/* One word a token: K is its low half, V its high half, as one head of one f32. */
static hy_kv_pool pool_of(const pdw_node *n, int32_t g)
{
    const int64_t bt = n->o.block_tokens;
    void *mem = n->exec->dev != NULL ? n->exec->base[g] : n->exec->mem[g];
    hy_kv_pool p = {.base = mem, .n_blocks = n->blocks[g]};
    p.layout = (hy_kv_layout){.value_type = HY_F32,
                              .type = HY_F32,
                              .n_layers = 1,
                              .n_heads = 1,
                              .block_tokens = (int32_t)bt,
                              .layer_stride = bt * 8,
                              .block_stride = bt * 8,
                              .k = {.off = 0, .head = bt * 8, .token = 8, .dim = 4, .width = 1},
                              .v = {.off = 4, .head = bt * 8, .token = 8, .dim = 4, .width = 1},
                              .bytes_per_block = bt * 8};
    return p;
}

void pdw_start_node(pdw *w, int i)
{
    pdw_node *n = &w->node[i];
    char addr[32];
    n->w = w;
    n->index = i;
    snprintf(n->name, sizeof(n->name), "%s", i == 0 ? "p0" : "d0");
    fill_engine_opts(w, n);
    hy_pd_opts po;
    hy_pd_opts_init(&po);
    snprintf(addr, sizeof(addr), "%s:1", n->name);
    po.fab.node = n->name;
    po.fab.addrs[0] = addr;
    po.fab.n_addrs = 1;
    po.fab.secret = "0123456789abcdef0123456789abcdef";
    po.fab.secret_len = 32;
    po.fab.loop = w->net;
    po.fab.runtime = w->rt;
    po.fab.same_node = w->o.near;
    po.fab.epoch = w->o.seed * 1000 + (uint64_t)i * 100 + ++n->starts;
    po.fab.heartbeat_ns = 100 * HY_MS;
    po.fab.peer_timeout_ns = 600 * HY_MS;
    po.fab.connect_timeout_ns = HY_SEC;
    po.fab.op_timeout_ns = 2 * HY_SEC;
    po.fab.stall_ns = HY_SEC;
    po.fab.grace_ns = 100 * HY_MS;
    po.fab.max_peers = 8;
    po.dev = w->o.dev[i] != NULL ? w->o.dev[i] : w->dev;
    po.n_groups = w->o.n_groups;
    po.windows = n->windows;
    po.model[0] = w->o.model[i];
    po.lease_ns = w->o.lease_ns;
    po.timeout_ns = w->o.timeout_ns;
    po.grace_ns = 300 * HY_MS;
    po.verify = w->o.verify;
    po.fail = w->o.fail;
    po.staging_bytes = w->o.staging;
    po.min_run = w->o.min_run;
    po.max_waiting = PDW_REQS + w->o.max_seqs;
    n->metrics = hy_metrics_create();
    po.metrics = n->metrics;
    if (hy_pd_create(&po, &n->pd) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)w->o.seed, hy_fail_text());
    hy_connector *c = hy_pd_connector(n->pd);
    n->exec = fake_exec_create(&n->o, w->o.timed, 0);
    n->exec->spread = w->o.spread;
    if (w->o.dev[i] != NULL)
        fake_exec_use(n->exec, w->o.dev[i]);
    for (int32_t g = 0; g < w->o.n_groups; g++) {
        const hy_kv_pool p = pool_of(n, g);
        if (c->worker.register_kv(c->worker_self, g, &p) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)w->o.seed, hy_fail_text());
    }
    HY_ASSERT(hy_engine_create(&n->o, n->metrics, c, &n->e) == HY_OK);
    hy_pd_set_sched(n->pd, hy_engine_stage(n->e));
    n->exec->sched = hy_stage_mbox(hy_engine_stage(n->e));
    n->exec->conn = c;
    hy_engine_set_exec(n->e, hy_stage_mbox(n->exec->stage));
    HY_ASSERT(hy_runtime_add(w->rt, hy_engine_stage(n->e)) == HY_OK);
    HY_ASSERT(hy_runtime_add(w->rt, n->exec->stage) == HY_OK);
    HY_ASSERT(hy_runtime_add(w->rt, hy_pd_stage(n->pd)) == HY_OK);
    n->alive = true;
}

typedef struct corpse {
    hy_engine *e;
    fake_exec *exec;
    hy_pd *pd;
    hy_metrics *m;
} corpse;

void pdw_kill(pdw *w, int i, bool silent)
{
    pdw_node *n = &w->node[i];
    if (!n->alive)
        return;
    n->alive = false;
    hy_runtime_kill(w->rt, hy_engine_stage(n->e));
    hy_runtime_kill(w->rt, n->exec->stage);
    hy_runtime_kill(w->rt, hy_pd_stage(n->pd));
    hy_loop_kill(w->net, hy_pd_fabric(n->pd), silent);
    corpse *c = malloc(sizeof(*c));
    HY_ASSERT(c != NULL && w->n_grave < (int32_t)HY_COUNTOF(w->grave));
    *c = (corpse){n->e, n->exec, n->pd, n->metrics};
    w->grave[w->n_grave++] = c;
    /* whoever talked to it sees its connection end */
    for (int32_t k = 0; k < w->n_req; k++) {
        pdw_req *r = &w->req[k];
        const bool p = r->stage == PDW_P && i == 0, d = r->stage == PDW_D && i == 1;
        if (!p && !d)
            continue;
        const hy_msg m = {.kind = MSG_LEG, .arg = (uint64_t)k, .data = NULL};
        r->gen++;
        r->lost = true;
        (void)hy_stage_post(w->router, &m);
    }
}

static void bury(corpse *c)
{
    hy_engine_destroy(c->e);
    hy_pd_destroy(c->pd);
    fake_exec_destroy(c->exec);
    hy_metrics_destroy(c->m);
    free(c);
}

/* ---- the router ---- */

typedef struct leg {
    pdw_req *r;
    uint64_t gen;
    bool is_p;
} leg;

static void over(pdw_req *r)
{
    if (r->stage == PDW_OVER)
        return;
    r->stage = PDW_OVER;
    r->w->n_over++;
}

static void leg_event(void *arg, const hy_req_event *ev)
{
    leg *l = arg;
    pdw_req *r = l->r;
    const bool ours = l->gen == r->gen;
    if (ours && ev->kind == HY_REQ_TOKEN) {
        if (l->is_p) {
            r->p_tok = ev->tok->id;
        } else {
            HY_ASSERT(r->n_tok < PDW_TOKENS);
            r->tok[r->n_tok++] = ev->tok->id;
            if (r->logprobs >= 0)
                HY_ASSERT(ev->tok->rank > 0 && ev->tok->n_top >= r->logprobs &&
                          ev->tok->top_ids[0] == (ev->tok->id ^ 1));
        }
    }
    if (ev->kind != HY_REQ_FINISHED)
        return;
    if (ours) {
        if (ev->stop_id >= 0 && !l->is_p) {
            HY_ASSERT(ev->n_tok == 1);
            r->tok[r->n_tok++] = ev->stop_id;
        }
        r->finish = ev->finish;
        r->error = ev->error;
        if (!l->is_p)
            r->n_cached = ev->n_cached;
        r->lost = false;
        if (l->is_p && ev->handover != NULL) {
            free(r->handover);
            r->handover = strdup(ev->handover);
        }
        if (!l->is_p && ev->handover != NULL) {
            free(r->d_handover);
            r->d_handover = strdup(ev->handover);
        }
        const hy_msg m = {.kind = MSG_LEG, .arg = (uint64_t)(r - r->w->req)};
        r->gen++;
        (void)hy_stage_post(r->w->router, &m);
    }
    if (ev->last)
        free(l);
}

/* What D answered, and: keep this one's KV, too. */
static char *both_flags(const char *params)
{
    static const char off[] = "\"do_remote_decode\":false";
    const char *at = strstr(params, off);
    hy_buf b;
    HY_ASSERT(at != NULL);
    hy_buf_init(&b);
    hy_buf_add(&b, params, (size_t)(at - params));
    hy_buf_puts(&b, "\"do_remote_decode\":true");
    hy_buf_puts(&b, at + strlen(off));
    return hy_buf_take(&b);
}

static char *with_keep(const char *params)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_buf_puts(&b, "{\"keep\":true,");
    hy_buf_puts(&b, params + 1);
    return hy_buf_take(&b);
}

static void submit(pdw_req *r, bool is_p)
{
    pdw *w = r->w;
    pdw_node *n = &w->node[is_p ? 0 : 1];
    char text[256];
    r->stage = is_p && !r->push ? PDW_P : PDW_D;
    if (!n->alive && is_p && r->push)
        return;
    if (!n->alive) {
        r->lost = true;
        const hy_msg m = {.kind = MSG_LEG, .arg = (uint64_t)(r - w->req)};
        r->gen++;
        (void)hy_stage_post(w->router, &m);
        return;
    }
    hy_req *q = hy_req_create();
    leg *l = malloc(sizeof(*l));
    HY_ASSERT(q != NULL && l != NULL);
    *l = (leg){r, is_p && r->push ? UINT64_MAX : r->gen, is_p};
    q->prompt = malloc((size_t)r->n_prompt * sizeof(int32_t));
    memcpy(q->prompt, r->prompt, (size_t)r->n_prompt * sizeof(int32_t));
    q->n_prompt = r->n_prompt;
    q->max_tokens = is_p ? 1 : r->max_tokens;
    q->ignore_eos = r->ignore_eos;
    q->sampling.seed = r->seed;
    q->sampling.has_seed = r->has_seed;
    q->sampling.logprobs = r->logprobs;
    q->on_event = leg_event;
    q->arg = l;
    if (is_p) {
        snprintf(text, sizeof(text), "{\"do_remote_decode\":true%s%s%s}",
                 r->push ? ",\"transfer_id\":\"" : "", r->push ? r->transfer : "",
                 r->push ? "\"" : "");
        if (r->named != 0)
            snprintf(text, sizeof(text),
                     "{\"do_remote_decode\":true,\"halyard\":{\"lease\":\"%016" PRIx64 "\"}}",
                     r->named);
        q->handover = r->p_params != NULL ? both_flags(r->p_params) : strdup(text);
    } else if (r->handover != NULL) {
        q->handover = r->keep ? with_keep(r->handover) : strdup(r->handover);
    }
    *(is_p ? &r->p_id : &r->d_id) = q->id;
    *(is_p ? &r->p_start : &r->d_start) = n->starts;
    const hy_status st = hy_engine_submit(n->e, q);
    if (st == HY_OK)
        return;
    hy_req_destroy(q);
    free(l);
    if (is_p && r->push)
        return; /* decode waits in vain and computes it itself */
    r->finish = HY_FINISH_ERROR;
    r->error = st;
    const hy_msg m = {.kind = MSG_LEG, .arg = (uint64_t)(r - w->req)};
    r->gen++;
    (void)hy_stage_post(w->router, &m);
}

static void leg_over(pdw_req *r)
{
    pdw *w = r->w;
    if (r->stage == PDW_OVER)
        return;
    if (r->aborted) { /* the client has left: the prompt's KV is given back */
        if (r->handover != NULL && w->node[0].alive)
            (void)hy_pd_release(w->node[0].pd, r->handover);
        over(r);
        return;
    }
    if (r->stage == PDW_P) {
        if (r->no_d)
            over(r);
        else if (w->node[1].alive || r->lost)
            submit(r, false); /* P failed or died: D computes it itself */
        else
            submit(r, false);
        return;
    }
    r->failed = r->lost || r->finish == HY_FINISH_ERROR;
    r->done = !r->failed;
    over(r);
}

static hy_status router_msg(void *self, hy_msg *m)
{
    pdw *w = self;
    pdw_req *r = &w->req[m->arg];
    switch (m->kind) {
    case MSG_SUBMIT:
        if (r->aborted) {
            over(r);
        } else if (r->push) {
            char text[256];
            snprintf(text, sizeof(text),
                     "{\"do_remote_prefill\":true,\"transfer_id\":\"%s\",\"halyard\":{\"v\":1,"
                     "\"node\":\"p0\",\"addrs\":\"p0:1\"}}",
                     r->transfer);
            r->handover = strdup(text);
            if (!r->no_d) {
                submit(r, r->p_first);
                submit(r, !r->p_first);
            } else {
                submit(r, true);
                over(r);
            }
        } else {
            submit(r, !r->local);
        }
        break;
    case MSG_ABORT:
        if (r->stage == PDW_OVER)
            break;
        r->aborted = true;
        if ((r->stage == PDW_P || r->push) && w->node[0].alive && r->p_id != 0 &&
            r->p_start == w->node[0].starts)
            hy_engine_abort(w->node[0].e, r->p_id);
        if (r->stage == PDW_D && w->node[1].alive && r->d_start == w->node[1].starts)
            hy_engine_abort(w->node[1].e, r->d_id);
        break;
    case MSG_LEG:
        leg_over(r);
        break;
    default:
        break;
    }
    return HY_OK;
}

/* ---- the world ---- */

pdw *pdw_make(const pdw_opts *o)
{
    pdw *w = calloc(1, sizeof(*w));
    HY_ASSERT(w != NULL);
    w->o = *o;
    hy_rng_init(&w->rng, o->seed);
    w->rt = hy_runtime_create(HY_RUNTIME_VIRTUAL, o->seed);
    w->t0 = hy_clock_now_ns(hy_runtime_clock(w->rt));
    w->net = hy_loop_net_create(hy_runtime_clock(w->rt), o->seed);
    hy_loop_set(w->net, &o->net);
    const hy_dev_opts dopts = {.backend = "cpu", .n_threads = 1};
    HY_ASSERT(hy_dev_open(&dopts, &w->dev) == HY_OK);
    static const hy_stage_ops ops = {.on_msg = router_msg};
    w->router = hy_stage_create("router", &ops, w, 1024, 0);
    HY_ASSERT(hy_runtime_add(w->rt, w->router) == HY_OK);
    HY_ASSERT(hy_runtime_start(w->rt) == HY_OK);
    for (int i = 0; i < PDW_NODES; i++)
        pdw_start_node(w, i);
    return w;
}

pdw_req *pdw_add(pdw *w, const int32_t *prompt, int32_t n, int32_t max_tokens, uint64_t at_ns)
{
    HY_ASSERT(w->n_req < PDW_REQS);
    pdw_req *r = &w->req[w->n_req++];
    r->w = w;
    r->prompt = malloc((size_t)n * sizeof(int32_t));
    memcpy(r->prompt, prompt, (size_t)n * sizeof(int32_t));
    r->n_prompt = n;
    r->max_tokens = max_tokens;
    r->ignore_eos = true;
    r->logprobs = -1;
    r->has_seed = true;
    r->seed = w->o.seed + (uint64_t)w->n_req;
    r->at_ns = at_ns;
    snprintf(r->transfer, sizeof(r->transfer), "%016llx",
             (unsigned long long)fake_mix(w->o.seed, (uint64_t)w->n_req) | 1);
    const hy_msg m = {.kind = MSG_SUBMIT, .arg = (uint64_t)(r - w->req)};
    HY_ASSERT(hy_stage_timer(w->router, w->t0 + at_ns, &m, NULL) == HY_OK);
    return r;
}

void pdw_abort_at(pdw_req *r, uint64_t at_ns)
{
    const hy_msg m = {.kind = MSG_ABORT, .arg = (uint64_t)(r - r->w->req)};
    HY_ASSERT(hy_stage_timer(r->w->router, r->w->t0 + at_ns, &m, NULL) == HY_OK);
}

bool pdw_settled(pdw *w)
{
    if (w->n_over < w->n_req)
        return false;
    for (int i = 0; i < PDW_NODES; i++) {
        pdw_node *n = &w->node[i];
        if (!n->alive)
            continue;
        hy_engine_stats s;
        hy_pd_stats p;
        hy_engine_stats_get(n->e, &s);
        hy_pd_stats_get(n->pd, &p);
        if (s.running + s.waiting + s.parked > 0 || s.blocks_free != s.blocks_total ||
            p.loads_open + p.leases_open + p.jobs_open > 0)
            return false;
    }
    return true;
}

void pdw_run(pdw *w, uint64_t limit_ns)
{
    for (uint64_t t = 0; !pdw_settled(w); t += 10 * HY_MS) {
        if (t > limit_ns) {
            for (int i = 0; i < PDW_NODES; i++) {
                hy_engine_stats s = {0};
                hy_pd_stats p = {0};
                if (!w->node[i].alive)
                    continue;
                hy_engine_stats_get(w->node[i].e, &s);
                hy_pd_stats_get(w->node[i].pd, &p);
                print_message("%s: running %d waiting %d parked %d, blocks %d of %d, loads %d, "
                              "leases %d, jobs %d\n",
                              w->node[i].name, s.running, s.waiting, s.parked, s.blocks_free,
                              s.blocks_total, p.loads_open, p.leases_open, p.jobs_open);
            }
            fail_msg("seed %llu: %d of %d requests are over, and something hangs",
                     (unsigned long long)w->o.seed, w->n_over, w->n_req);
        }
        PDW_CHECK(w, hy_runtime_run_for(w->rt, 10 * HY_MS) == HY_OK);
    }
}

static bool stops(const pdw_req *r, int32_t id)
{
    return !r->ignore_eos && (id == end_ids[0] || id == end_ids[1]);
}

void pdw_verify(pdw *w, bool faults)
{
    for (int32_t k = 0; k < w->n_req; k++) {
        pdw_req *r = &w->req[k];
        PDW_CHECK(w, r->stage == PDW_OVER);
        if (!faults && !r->aborted && !r->no_d)
            PDW_CHECK(w, r->done);
        if (r->no_d)
            continue;
        /* the seed that was used: of P when it answered */
        int32_t *all = malloc((size_t)(r->n_prompt + PDW_TOKENS) * sizeof(int32_t));
        memcpy(all, r->prompt, (size_t)r->n_prompt * sizeof(int32_t));
        fake_draw d = {.seed = r->seed};
        if (!r->ignore_eos)
            for (size_t i = 0; i < HY_COUNTOF(end_ids); i++)
                d.end[d.n_end++] = end_ids[i];
        for (int32_t i = 0; i < r->n_tok && r->has_seed; i++) {
            const uint64_t x = fake_oracle_out(w->node[1].exec, all, r->n_prompt + i, false);
            const int32_t want = fake_oracle_token(w->node[1].exec, x, &d, i);
            if (want != r->tok[i])
                fail_msg("seed %llu: request %d, token %d of %d: %d, not %d",
                         (unsigned long long)w->o.seed, k, i, r->n_tok, r->tok[i], want);
            all[r->n_prompt + i] = want;
        }
        if (r->done && r->finish == HY_FINISH_LENGTH)
            PDW_CHECK(w, r->n_tok == r->max_tokens);
        if (r->done && r->finish == HY_FINISH_STOP)
            PDW_CHECK(w, r->n_tok > 0 && stops(r, r->tok[r->n_tok - 1]));
        free(all);
    }
    for (int i = 0; i < PDW_NODES; i++)
        if (w->node[i].alive) {
            hy_engine_stats s;
            hy_engine_stats_get(w->node[i].e, &s);
            PDW_CHECK(w, s.blocks_free == s.blocks_total);
            const hy_pd *p = w->node[i].pd; /* nor is staging lost */
            PDW_CHECK(w, hy_pd__stage_free(p, true) == p->n_landing * PD_UNIT);
            PDW_CHECK(w, hy_pd__stage_free(p, false) == (p->n_units - p->n_landing) * PD_UNIT);
        }
}

void pdw_end(pdw *w)
{
    hy_runtime_stop(w->rt);
    for (int32_t i = 0; i < w->n_grave; i++)
        hy_pd_close(((corpse *)w->grave[i])->pd);
    for (int i = 0; i < PDW_NODES; i++)
        if (w->node[i].alive)
            hy_pd_close(w->node[i].pd);
    hy_runtime_destroy(w->rt);
    for (int32_t i = 0; i < w->n_grave; i++)
        bury(w->grave[i]);
    for (int i = 0; i < PDW_NODES; i++) {
        pdw_node *n = &w->node[i];
        if (!n->alive)
            continue;
        hy_engine_destroy(n->e);
        hy_pd_destroy(n->pd);
        fake_exec_destroy(n->exec);
        hy_metrics_destroy(n->metrics);
    }
    hy_loop_net_destroy(w->net);
    hy_stage_destroy(w->router);
    hy_dev_close(w->dev);
    for (int32_t i = 0; i < w->n_req; i++) {
        free(w->req[i].prompt);
        free(w->req[i].handover);
        free(w->req[i].d_handover);
    }
    free(w);
}

static void quiet(void *arg, hy_log_level level, const char *module, const char *text)
{
    (void)arg;
    if (level <= HY_LOG_ERROR || getenv("HY_LOG") != NULL)
        print_message("%s: %s\n", module, text);
}

void pdw_log(void)
{
    hy_log_set_sink(quiet, NULL);
    if (getenv("HY_LOG") != NULL)
        hy_log_set_level(HY_LOG_DEBUG);
}
