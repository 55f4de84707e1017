/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler case by case: what is shared and what is not, what a step costs, finish rules,
 * refusals, queue limit, abort, metrics.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "tests/flow/fake_exec.h"
#include "tests/unit/cm.h"

#include "core/base/log.h"
#include "core/base/metric.h"
#include "core/base/runtime.h"

#include <string.h>

enum { MOST = 16 };

typedef struct got {
    int32_t n_tok, tok[512];
    int32_t n_prompt_lp;
    int32_t n_end, n_last;
    hy_req_event end[MOST];
    char error[200];
} got;

typedef struct env {
    int32_t window[1], blocks[1], end[1];
    hy_engine_opts o;
    hy_metrics *m;
    hy_engine *e;
    fake_exec *x;
    hy_runtime *rt;
} env;

static env v;

static void begin(void)
{
    v.m = hy_metrics_create();
    assert_non_null(v.m);
    assert_int_equal(hy_engine_create(&v.o, v.m, NULL, &v.e), HY_OK);
    v.x = fake_exec_create(&v.o, true, 0);
    v.x->sched = hy_stage_mbox(hy_engine_stage(v.e));
    v.x->conn = hy_connector_null();
    hy_engine_set_exec(v.e, hy_stage_mbox(v.x->stage));
    v.rt = hy_runtime_create(HY_RUNTIME_VIRTUAL, 1);
    assert_non_null(v.rt);
    assert_int_equal(hy_runtime_add(v.rt, hy_engine_stage(v.e)), HY_OK);
    assert_int_equal(hy_runtime_add(v.rt, v.x->stage), HY_OK);
    assert_int_equal(hy_runtime_start(v.rt), HY_OK);
}

static int setup(void **state)
{
    (void)state;
    memset(&v, 0, sizeof(v));
    v.blocks[0] = 64;
    v.end[0] = 3;
    v.o = (hy_engine_opts){.n_groups = 1,
                           .windows = v.window,
                           .n_blocks = v.blocks,
                           .block_tokens = 16,
                           .context = 400,
                           .vocab = 1000,
                           .max_batch_tokens = 256,
                           .max_seqs = 8,
                           .max_queue = 4,
                           .prefix_cache = true,
                           .end_ids = v.end,
                           .n_end = 1,
                           .seed = 1,
                           .epoch = 1,
                           .sampler = fake_sampler_ops(),
                           .model_name = "m\"1",
                           .check = true};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hy_runtime_destroy(v.rt);
    hy_engine_destroy(v.e);
    fake_exec_destroy(v.x);
    hy_metrics_destroy(v.m);
    assert_int_equal(fake_samplers_alive, 0);
    return 0;
}

static void on_event(void *arg, const hy_req_event *ev)
{
    got *g = arg;
    if (ev->kind == HY_REQ_TOKEN && ev->choice == 0)
        g->tok[g->n_tok++] = ev->tok->id;
    if (ev->kind == HY_REQ_PROMPT)
        g->n_prompt_lp += ev->n_tok;
    if (ev->kind != HY_REQ_FINISHED)
        return;
    g->end[g->n_end++] = *ev;
    g->n_last += ev->last;
    if (ev->error_text != NULL)
        snprintf(g->error, sizeof(g->error), "%s", ev->error_text);
}

static hy_req *req(got *g, int32_t n_prompt, int32_t first, int32_t max_tokens)
{
    hy_req *r = hy_req_create();
    assert_non_null(r);
    r->prompt = malloc((size_t)(n_prompt + 1) * sizeof(int32_t));
    assert_non_null(r->prompt);
    for (int32_t i = 0; i < n_prompt; i++)
        r->prompt[i] = first + i;
    r->n_prompt = n_prompt;
    r->max_tokens = max_tokens;
    r->ignore_eos = true;
    r->sampling.seed = 5;
    r->sampling.has_seed = true;
    r->on_event = on_event;
    r->arg = g;
    memset(g, 0, sizeof(*g));
    return r;
}

static void submit(hy_req *r)
{
    const hy_status st = hy_engine_submit(v.e, r);
    if (st < 0)
        fail_msg("%s", hy_fail_text());
}

static void run_all(void)
{
    assert_int_equal(hy_runtime_run_until_idle(v.rt, 3600 * HY_SEC), HY_OK);
}

static uint64_t rows_of(hy_req *r)
{
    const uint64_t before = v.x->n_rows;
    submit(r);
    run_all();
    return v.x->n_rows - before;
}

static got a, b;

static void a_prefix_is_computed_once(void **state)
{
    (void)state;
    begin();
    assert_int_equal(rows_of(req(&a, 100, 10, 1)), 100);
    assert_int_equal(rows_of(req(&b, 100, 10, 1)), 4); /* 96 = 6 blocks hit */
    assert_int_equal(b.end[0].n_cached, 96);
    assert_int_equal(b.tok[0], a.tok[0]);
    hy_req *r = req(&b, 100, 10, 1);
    r->no_prefix_cache = true;
    assert_int_equal(rows_of(r), 100);
    assert_int_equal(b.end[0].n_cached, 0);
    r = req(&b, 100, 10, 1);
    r->prompt_logprobs = 0;
    assert_int_equal(rows_of(r), 100);
    assert_int_equal(b.n_prompt_lp, 99);
}

static void tenants_do_not_share(void **state)
{
    (void)state;
    begin();
    static const struct {
        const char *salt;
        uint64_t rows;
    } c[] = {{NULL, 100}, {"a", 100}, {"b", 100}, {"a", 4}, {NULL, 4}, {"", 100}, {"b", 4}};
    for (size_t i = 0; i < HY_COUNTOF(c); i++) {
        hy_req *r = req(&a, 100, 10, 1);
        r->cache_salt = c[i].salt != NULL ? strdup(c[i].salt) : NULL;
        assert_int_equal(rows_of(r), c[i].rows);
    }
}

static void without_a_prefix_cache_nothing_is_shared(void **state)
{
    (void)state;
    v.o.prefix_cache = false;
    begin();
    assert_int_equal(rows_of(req(&a, 100, 10, 1)), 100);
    assert_int_equal(rows_of(req(&a, 100, 10, 1)), 100);
    hy_req *r = req(&a, 100, 10, 1);
    r->n = 3; /* but one request's choices are */
    assert_int_equal(rows_of(r), 108);
}

static void choices_share_their_prompt(void **state)
{
    (void)state;
    begin();
    hy_req *r = req(&a, 100, 10, 5);
    r->n = 4;
    assert_int_equal(rows_of(r), 100 + 3 * 4 + 4 * 4);
    assert_int_equal(a.n_end, 4);
    assert_int_equal(a.n_last, 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(a.end[i].n_output, 5);
        assert_true(a.end[i].last == (i == 3));
    }
}

static void long_rope_is_another_prefix(void **state)
{
    (void)state;
    v.o.rope_long_from = 200;
    begin();
    assert_int_equal(rows_of(req(&a, 100, 10, 1)), 100);
    assert_int_equal(rows_of(req(&b, 100, 10, 101)), 100 + 100);
    assert_int_not_equal(a.tok[0], b.tok[0]);
    assert_int_equal(rows_of(req(&b, 100, 10, 100)), 4 + 99);
    assert_int_equal(a.tok[0], b.tok[0]);
}

static void finish_rules(void **state)
{
    (void)state;
    begin();
    rows_of(req(&a, 20, 10, 40));
    assert_int_equal(a.n_tok, 40);
    assert_int_equal(a.end[0].finish, HY_FINISH_LENGTH);
    assert_int_equal(a.end[0].stop_id, -1);
    /* a stop token: not among the tokens, but counted and named */
    hy_req *r = req(&b, 20, 10, 40);
    r->stop_ids = malloc(sizeof(int32_t));
    assert_non_null(r->stop_ids);
    r->stop_ids[0] = a.tok[7];
    r->n_stop = 1;
    rows_of(r);
    assert_int_equal(b.end[0].finish, HY_FINISH_STOP);
    assert_int_equal(b.end[0].stop_id, a.tok[7]);
    assert_int_equal(b.n_tok, 7);
    assert_int_equal(b.end[0].n_output, 8);
    /* the context is the limit */
    rows_of(req(&b, 390, 10, -1));
    assert_int_equal(b.n_tok, 10);
    assert_int_equal(b.end[0].finish, HY_FINISH_LENGTH);
    rows_of(req(&b, 390, 10, 100));
    assert_int_equal(b.n_tok, 10);
    /* no new token wanted: the prompt alone, for its log-probabilities */
    r = req(&b, 400, 10, 0);
    r->prompt_logprobs = 1;
    assert_int_equal(rows_of(r), 400);
    assert_int_equal(b.n_tok, 0);
    assert_int_equal(b.n_prompt_lp, 399);
    assert_int_equal(b.end[0].finish, HY_FINISH_LENGTH);
}

static void refused(hy_req *r, hy_status st, const char *text)
{
    assert_int_equal(hy_engine_submit(v.e, r), st);
    if (strstr(hy_fail_text(), text) == NULL)
        fail_msg("'%s' does not say '%s'", hy_fail_text(), text);
    hy_req_destroy(r);
}

static void what_can_never_run_is_refused(void **state)
{
    (void)state;
    v.blocks[0] = 20; /* 320 tokens */
    begin();
    refused(req(&a, 400, 10, 1), HY_E_INVAL, "maximum context length is 400");
    refused(req(&a, 401, 10, 0), HY_E_INVAL, "maximum context length is 400");
    refused(req(&a, 0, 10, 1), HY_E_INVAL, "empty");
    refused(req(&a, 10, 995, 1), HY_E_INVAL, "not in the vocabulary");
    refused(req(&a, 10, -1, 1), HY_E_INVAL, "not in the vocabulary");
    refused(req(&a, 321, 10, 1), HY_E_INVAL, "KV cache");
    refused(req(&a, 300, 10, 22), HY_E_INVAL, "KV cache");
    hy_req *r = req(&a, 10, 10, 5);
    r->min_tokens = 6;
    refused(r, HY_E_INVAL, "min_tokens");
    r = req(&a, 10, 10, 5);
    r->n = 0;
    refused(r, HY_E_INVAL, "n = 0");
    /* what fits to the last token runs */
    rows_of(req(&a, 300, 10, 21));
    assert_int_equal(a.n_tok, 21);
    rows_of(req(&a, 300, 10, -1)); /* no limit given: as far as the pool goes */
    assert_int_equal(a.n_tok, 21);
    assert_int_equal(a.end[0].finish, HY_FINISH_LENGTH);
}

static void a_full_queue_is_busy(void **state)
{
    (void)state;
    v.o.max_seqs = 1;
    begin();
    static got g[8];
    int32_t ok = 0;
    for (int i = 0; i < 8; i++) {
        hy_req *r = req(&g[i], 20, 10, 20);
        const hy_status st = hy_engine_submit(v.e, r);
        if (st == HY_OK) {
            ok++;
            continue;
        }
        assert_int_equal(st, HY_E_BUSY);
        hy_req_destroy(r);
    }
    assert_int_equal(ok, 4);
    run_all();
    submit(req(&a, 20, 10, 1)); /* there is room again */
    run_all();
    assert_int_equal(a.n_last, 1);
}

static void an_abort_stops_the_cost_within_a_step(void **state)
{
    (void)state;
    begin();
    hy_req *r = req(&a, 20, 10, 300);
    const uint64_t id = r->id;
    submit(r);
    assert_int_equal(hy_runtime_run_for(v.rt, 5 * HY_MS), HY_OK);
    assert_true(a.n_tok > 3);
    const uint64_t steps = v.x->n_steps;
    hy_engine_abort(v.e, id);
    hy_engine_abort(v.e, id); /* again, and unknown ones: no-ops */
    hy_engine_abort(v.e, 999999);
    hy_engine_finish_choice(v.e, 999999, 0);
    hy_engine_finish_choice(v.e, id, 77);
    run_all();
    assert_true(v.x->n_steps <= steps + 1);
    assert_int_equal(a.end[0].finish, HY_FINISH_ABORT);
    assert_int_equal(a.n_last, 1);
    hy_engine_stats s;
    hy_engine_stats_get(v.e, &s);
    assert_int_equal(s.blocks_free, s.blocks_total);
}

static void time_limits(void **state)
{
    (void)state;
    begin();
    hy_req *r = req(&a, 20, 10, 300);
    r->deadline_ns = (int64_t)(hy_clock_now_ns(hy_runtime_clock(v.rt)) + 10 * HY_MS);
    submit(r);
    run_all();
    assert_int_equal(a.end[0].finish, HY_FINISH_ERROR);
    assert_int_equal(a.end[0].error, HY_E_TIMEOUT);
    assert_non_null(strstr(a.error, "time limit"));
    assert_true(a.n_tok > 5 && a.n_tok < 300);
}

/* A worse stream gives way to a better one and still gets the same tokens. */
static void preemption_keeps_the_tokens(void **state)
{
    (void)state;
    v.blocks[0] = 12;
    begin();
    rows_of(req(&a, 60, 200, 80));
    const got alone = a;
    hy_req *worse = req(&a, 60, 200, 80), *better = req(&b, 60, 500, 100);
    worse->priority = 5;
    submit(worse);
    submit(better);
    run_all();
    hy_engine_stats s;
    hy_engine_stats_get(v.e, &s);
    assert_true(s.preemptions > 0);
    assert_int_equal(a.n_tok, 80);
    assert_int_equal(b.n_tok, 100);
    assert_memory_equal(a.tok, alone.tok, 80 * sizeof(int32_t));
}

static void has(const char *page, const char *line)
{
    if (strstr(page, line) == NULL)
        fail_msg("no '%s' in:\n%s", line, page);
}

static void metrics_have_vllms_names(void **state)
{
    (void)state;
    begin();
    rows_of(req(&a, 100, 10, 5));
    rows_of(req(&b, 100, 10, 5));
    hy_buf page;
    hy_buf_init(&page);
    hy_metrics_text(v.m, &page);
    const char *t = hy_buf_str(&page);
#define L "{engine=\"0\",model_name=\"m\\\"1\"}"
    has(t, "vllm:num_requests_running" L " 0\n");
    has(t, "vllm:num_requests_waiting" L " 0\n");
    has(t, "vllm:kv_cache_usage_perc" L " 0\n");
    has(t, "vllm:prefix_cache_queries_total" L " 200\n");
    has(t, "vllm:prefix_cache_hits_total" L " 96\n");
    has(t, "vllm:num_preemptions_total" L " 0\n");
    has(t, "vllm:prompt_tokens_total" L " 200\n");
    has(t, "vllm:prompt_tokens_cached_total" L " 96\n");
    has(t, "vllm:generation_tokens_total" L " 10\n");
    has(t, "vllm:time_to_first_token_seconds_count" L " 2\n");
    has(t, "vllm:inter_token_latency_seconds_count" L " 8\n");
    has(t, "vllm:e2e_request_latency_seconds_count" L " 2\n");
    has(t, "vllm:request_queue_time_seconds_count" L " 2\n");
    has(t, "vllm:request_prefill_time_seconds_count" L " 2\n");
    has(t, "vllm:iteration_tokens_total_count" L " 10\n");
    has(t, "finished_reason=\"length\"} 2\n");
    has(t, "finished_reason=\"stop\"} 0\n");
    hy_buf_fini(&page);
}

static void wrong_options_are_named(void **state)
{
    (void)state;
    hy_engine *e = NULL;
    hy_engine_opts o = v.o;
    o.max_batch_tokens = 4;
    assert_int_equal(hy_engine_create(&o, NULL, NULL, &e), HY_E_INVAL);
    assert_non_null(strstr(hy_fail_text(), "max_batch_tokens"));
    o = v.o;
    o.block_tokens = 24;
    assert_int_equal(hy_engine_create(&o, NULL, NULL, &e), HY_E_INVAL);
    o = v.o;
    o.sampler.create = NULL;
    assert_int_equal(hy_engine_create(&o, NULL, NULL, &e), HY_E_INVAL);
    assert_null(e);
}

/* The device stage is gone: requests end with an error, the engine stays. */
static void a_dead_device_fails_requests(void **state)
{
    (void)state;
    begin();
    hy_runtime_kill(v.rt, v.x->stage);
    submit(req(&a, 20, 10, 5));
    run_all();
    assert_int_equal(a.n_last, 1);
    assert_int_equal(a.end[0].finish, HY_FINISH_ERROR);
    assert_int_equal(a.end[0].error, HY_E_DEVICE);
    hy_engine_stats s;
    hy_engine_stats_get(v.e, &s);
    assert_int_equal(s.blocks_free, s.blocks_total);
}

static void quiet(void *arg, hy_log_level level, const char *module, const char *text)
{
    (void)arg, (void)level, (void)module, (void)text;
}

int main(void)
{
    hy_log_set_sink(quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_prefix_is_computed_once, setup, teardown),
        cmocka_unit_test_setup_teardown(tenants_do_not_share, setup, teardown),
        cmocka_unit_test_setup_teardown(without_a_prefix_cache_nothing_is_shared, setup, teardown),
        cmocka_unit_test_setup_teardown(choices_share_their_prompt, setup, teardown),
        cmocka_unit_test_setup_teardown(long_rope_is_another_prefix, setup, teardown),
        cmocka_unit_test_setup_teardown(finish_rules, setup, teardown),
        cmocka_unit_test_setup_teardown(what_can_never_run_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_queue_is_busy, setup, teardown),
        cmocka_unit_test_setup_teardown(an_abort_stops_the_cost_within_a_step, setup, teardown),
        cmocka_unit_test_setup_teardown(time_limits, setup, teardown),
        cmocka_unit_test_setup_teardown(preemption_keeps_the_tokens, setup, teardown),
        cmocka_unit_test_setup_teardown(metrics_have_vllms_names, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_options_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(a_dead_device_fails_requests, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
