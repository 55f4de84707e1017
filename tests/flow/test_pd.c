/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefill on one node, decode on another: what moves and what is computed, exactly; then seeds of
 * everything that can go wrong. HY_SEEDS=n runs n seeds, HY_SEED=s that one alone.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "tests/flow/pdworld.h"
#include "tests/thin.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static hy_pd_stats stats(pdw *w, int i)
{
    hy_pd_stats s;
    hy_pd_stats_get(w->node[i].pd, &s);
    return s;
}

static hy_engine_stats engine(pdw *w, int i)
{
    hy_engine_stats s;
    hy_engine_stats_get(w->node[i].e, &s);
    return s;
}

/* Prompt tokens that a node computed so far. */
static uint64_t computed(pdw *w, int i)
{
    return engine(w, i).prompt_tokens - engine(w, i).cached_tokens;
}

static double pd_computed(pdw *w)
{
    const hy_label l[] = {{"model_name", "fake"}, {"engine", "0"}};
    hy_metric *m =
        hy_metric_counter(w->node[1].metrics, "halyard:pd_prompt_tokens_computed", "", l, 2);
    return hy_metric_value(m);
}

/* What the page says is what happened. */
static void check_metrics(pdw *w)
{
    for (int i = 0; i < PDW_NODES; i++) {
        const hy_pd_stats s = stats(w, i);
        const struct {
            const char *name;
            uint64_t want;
        } x[] = {{"halyard:kv_transfer_full_hits_total", s.full_hits},
                 {"halyard:kv_transfer_missed_total", s.missed},
                 {"halyard:kv_transfer_failed_total", s.failed},
                 {"halyard:kv_transfer_corrupt_total", s.corrupt},
                 {"halyard:kv_leases_expired_total", s.leases_expired},
                 {"halyard:kv_links_refused_total", s.refused_links},
                 {"halyard:kv_early_pieces_used_total", s.early_used},
                 {"halyard:kv_early_pieces_dropped_total", s.early_dropped},
                 {"halyard:kv_transfer_received_bytes_total", s.bytes_in},
                 {"halyard:kv_transfer_sent_bytes_total", s.bytes_out}};
        for (size_t k = 0; k < HY_COUNTOF(x); k++) {
            hy_metric *m = hy_metric_counter(w->node[i].metrics, x[k].name, "", NULL, 0);
            if (hy_metric_value(m) != (double)x[k].want)
                fail_msg("seed %llu: node %d: %s is %.0f, not %llu", (unsigned long long)w->o.seed,
                         i, x[k].name, hy_metric_value(m), (unsigned long long)x[k].want);
        }
    }
}

static void one_request(void **state)
{
    (void)state;
    int32_t text[100];
    pdw_opts o;
    pdw_opts_init(&o, 1);
    pdw *w = pdw_make(&o);
    pdw_text(text, 100, 1);
    pdw_req *r = pdw_add(w, text, 100, 20, 0);
    pdw_run(w, 60 * HY_SEC);
    pdw_verify(w, false);
    assert_int_equal(r->n_tok, 20);
    assert_int_equal(r->tok[0], r->p_tok);
    assert_int_equal(stats(w, 1).received, 1);
    assert_int_equal(stats(w, 1).tokens_in, 100);
    assert_int_equal(stats(w, 0).leases_released, 1);
    assert_int_equal(stats(w, 0).leases_expired, 0);
    assert_true(pd_computed(w) == 0.0);
    pdw_end(w);
}

/* ---- exactly what moves ---- */

enum { LONG = 10000, HEAD = 8000 };

static pdw *long_world(uint64_t seed)
{
    pdw_opts o;
    pdw_opts_init(&o, seed);
    o.context = LONG + 200;
    o.max_batch = 512;
    for (int i = 0; i < PDW_NODES; i++)
        o.blocks[i][0] = 2000;
    return pdw_make(&o);
}

/* Computes the first n tokens of text 1 at one node, so that it has them cached. */
static void warm(pdw *w, const int32_t *text, int32_t n, bool at_d)
{
    pdw_req *r = pdw_add(w, text, n, 1, 0);
    r->local = at_d;
    r->no_d = !at_d;
    pdw_run(w, 100 * HY_SEC);
}

static void move_10000(bool p_has, bool d_has, int32_t head, uint64_t want_p, uint64_t want_moved)
{
    static int32_t text[LONG];
    pdw *w = long_world(7);
    pdw_text(text, LONG, 1);
    if (p_has)
        warm(w, text, head, false);
    if (d_has)
        warm(w, text, head, true);
    const uint64_t p0 = computed(w, 0), d0 = computed(w, 1);
    const hy_pd_stats s0 = stats(w, 1), l0 = stats(w, 0);
    pdw_req *r = pdw_add(w, text, LONG, 8, 0);
    pdw_run(w, 100 * HY_SEC);
    pdw_verify(w, false);
    assert_int_equal(r->n_tok, 8);
    assert_int_equal(computed(w, 0) - p0, want_p);
    assert_int_equal(computed(w, 1) - d0, 0);
    assert_int_equal(stats(w, 1).tokens_in - s0.tokens_in, want_moved);
    assert_int_equal(stats(w, 1).bytes_in - s0.bytes_in, want_moved * 8);
    assert_int_equal(stats(w, 0).leases_released - l0.leases_released, 1);
    assert_int_equal(stats(w, 0).jobs_out - l0.jobs_out, want_moved > 0 ? 1 : 0);
    assert_int_equal(stats(w, 1).full_hits - s0.full_hits, want_moved == 0 ? 1 : 0);
    assert_int_equal(r->n_cached, LONG);
    assert_true(pd_computed(w) == 0.0);
    check_metrics(w);
    pdw_end(w);
}

static void cached_on_p_only(void **state)
{
    (void)state;
    move_10000(true, false, HEAD, LONG - HEAD, LONG);
}

static void cached_on_both(void **state)
{
    (void)state;
    move_10000(true, true, HEAD, LONG - HEAD, LONG - HEAD);
}

static void all_on_d(void **state)
{
    (void)state;
    move_10000(false, true, LONG, LONG, 0);
}

/* The next turn: prefill gets from decode the KV of what was generated, and nothing else. */
static void next_turn(void **state)
{
    (void)state;
    int32_t text[400];
    pdw_opts o;
    pdw_opts_init(&o, 3);
    pdw *w = pdw_make(&o);
    pdw_text(text, 100, 1);
    pdw_req *one = pdw_add(w, text, 100, 40, 0);
    one->keep = true;
    while (one->stage != PDW_OVER)
        PDW_CHECK(w, hy_runtime_run_for(w->rt, HY_MS) == HY_OK);
    assert_int_equal(one->n_tok, 40);
    assert_non_null(one->d_handover);
    memcpy(text + 100, one->tok, 40 * sizeof(int32_t));
    pdw_text(text + 140, 30, 9);
    const uint64_t p0 = computed(w, 0);
    pdw_req *two = pdw_add(w, text, 170, 10, 0);
    two->p_params = one->d_handover;
    pdw_run(w, 60 * HY_SEC);
    pdw_verify(w, false);
    assert_int_equal(two->n_tok, 10);
    assert_int_equal(stats(w, 0).received, 1);
    assert_int_equal(stats(w, 0).tokens_in, 139 - 96); /* it had six blocks of the first prompt */
    assert_int_equal(computed(w, 0) - p0, 170 - 139);
    assert_int_equal(stats(w, 1).leases_released, 1);
    assert_true(pd_computed(w) == 0.0);
    pdw_end(w);
}

/* ---- push overlaps with prefill ---- */

/* Time from prefill's last moment until decode can go on, and of one layer's computation; three
 * groups stand for layers: each takes half as long to move as to compute. */
static uint64_t lag(bool push, uint64_t *layer_out)
{
    enum { N = 320 };
    const uint64_t layer = (200 * HY_US + N * 20 * HY_US) / 3;
    int32_t text[N];
    pdw_opts o;
    pdw_opts_init(&o, 4);
    o.n_groups = 3;
    o.max_batch = N;
    o.spread = true;
    o.net.latency_ns = o.net.jitter_ns = 20 * HY_US;
    o.net.bytes_per_s = N * 8 * HY_SEC / (layer / 2);
    pdw *w = pdw_make(&o);
    pdw_text(text, 20, 2); /* links */
    pdw_add(w, text, 20, 2, 0);
    pdw_run(w, 60 * HY_SEC);
    pdw_text(text, N, 1);
    const uint64_t before = engine(w, 0).output_tokens;
    pdw_req *r = pdw_add(w, text, N, 4, hy_clock_now_ns(hy_runtime_clock(w->rt)) - w->t0);
    r->push = push;
    uint64_t t[2] = {0, 0};
    for (uint64_t at = 0; t[1] == 0; at += 5 * HY_US) {
        PDW_CHECK(w, at < HY_SEC && hy_runtime_run_for(w->rt, 5 * HY_US) == HY_OK);
        t[0] = t[0] == 0 && engine(w, 0).output_tokens > before ? at : t[0];
        t[1] = r->n_tok > 0 ? at : 0;
    }
    assert_true(t[0] > 0);
    pdw_run(w, 60 * HY_SEC);
    pdw_verify(w, false);
    assert_true(pd_computed(w) == 0.0);
    pdw_end(w);
    *layer_out = layer;
    return t[1] - t[0];
}

static void push_overlaps(void **state)
{
    (void)state;
    uint64_t layer;
    const uint64_t pull = lag(false, &layer), push = lag(true, &layer);
    print_message("prefill's end to decode, in layers: pull %.2f, push %.2f\n",
                  (double)pull / (double)layer, (double)push / (double)layer);
    assert_true(push <= layer);
    assert_true(pull > layer); /* nothing overlaps there: the bound can be missed */
}

/* ---- one fault each ---- */

static pdw *small_world(uint64_t seed, bool fail)
{
    pdw_opts o;
    pdw_opts_init(&o, seed);
    o.fail = fail;
    return pdw_make(&o);
}

static pdw_req *wait_for_p(pdw *w, int32_t n, int32_t which)
{
    int32_t text[300];
    pdw_text(text, n, which);
    pdw_req *r = pdw_add(w, text, n, 10, 0);
    while (r->handover == NULL)
        PDW_CHECK(w, hy_runtime_run_for(w->rt, 100 * HY_US) == HY_OK);
    return r;
}

static void nobody_comes(void **state)
{
    (void)state;
    pdw *w = small_world(1, false);
    int32_t text[50];
    pdw_text(text, 50, 1);
    pdw_add(w, text, 50, 4, 0)->no_d = true;
    pdw_text(text, 50, 2);
    pdw_add(w, text, 50, 4, HY_SEC)->no_d = true; /* two leases, each with its own time */
    PDW_CHECK(w, hy_runtime_run_for(w->rt, 1500 * HY_MS) == HY_OK);
    assert_int_equal(stats(w, 0).leases_open, 2);
    assert_int_equal(engine(w, 0).blocks_total - engine(w, 0).blocks_free, 8);
    PDW_CHECK(w, hy_runtime_run_for(w->rt, 700 * HY_MS) == HY_OK);
    assert_int_equal(stats(w, 0).leases_open, 1);
    PDW_CHECK(w, hy_runtime_run_for(w->rt, HY_SEC) == HY_OK);
    assert_int_equal(stats(w, 0).leases_open, 0);
    assert_int_equal(stats(w, 0).leases_expired, 2);
    assert_int_equal(engine(w, 0).blocks_free, engine(w, 0).blocks_total);
    pdw_run(w, HY_SEC);
    pdw_end(w);
}

/* The client leaves between the two nodes: the router gives the KV back at once. */
static void released_by_the_router(void **state)
{
    (void)state;
    pdw *w = small_world(2, false);
    pdw_req *r = wait_for_p(w, 60, 1);
    const hy_status st = hy_pd_release(w->node[0].pd, r->handover);
    assert_int_equal(st, HY_OK);
    pdw_run(w, 60 * HY_SEC); /* decode comes too late: it computes the prompt itself */
    pdw_verify(w, false);
    assert_int_equal(stats(w, 0).leases_released, 1);
    assert_int_equal(hy_pd_release(w->node[0].pd, r->handover), HY_OK); /* a no-op */
    assert_true(hy_pd_release(w->node[1].pd, r->handover) == HY_E_NOTFOUND);
    assert_true(hy_pd_release(w->node[0].pd, "{}") == HY_E_INVAL);
    pdw_run(w, HY_SEC);
    pdw_end(w);
}

/* The client leaves while prefill's answer is on the way to the router, which has named the lease
 * and gives it back by that name: whether prefill has begun, ends just then, or has ended, nothing
 * is kept and no lease runs out. */
static void released_by_name(void **state)
{
    (void)state;
    bool before = false, after = false;
    for (uint64_t at = 0; at < 40 * HY_MS; at += HY_MS / 4) {
        const uint64_t name = UINT64_C(0x1234567890abcdef) + at;
        char text[80], other[80];
        int32_t prompt[60];
        pdw *w = small_world(60 + at, false);
        pdw_text(prompt, 60, 1);
        pdw_req *r = pdw_add(w, prompt, 60, 10, 0);
        r->no_d = true;
        r->named = name;
        PDW_CHECK(w, hy_runtime_run_for(w->rt, at + 1) == HY_OK);
        const bool there = stats(w, 0).leases_open > 0;
        before |= !there;
        after |= there;
        snprintf(text, sizeof(text), "{\"halyard\":{\"lease\":\"%016" PRIx64 "\"}}", name);
        snprintf(other, sizeof(other), "{\"lease\":\"%016" PRIx64 "\"}", name + 1);
        assert_int_equal(hy_pd_release(w->node[0].pd, other), HY_OK); /* nobody's */
        assert_int_equal(hy_pd_release(w->node[0].pd, text), HY_OK);
        PDW_CHECK(w, hy_runtime_run_for(w->rt, 100 * HY_MS) == HY_OK); /* a tenth of a lease */
        assert_true(r->stage == PDW_OVER);
        assert_int_equal(stats(w, 0).leases_open, 0);
        assert_int_equal(stats(w, 0).leases_released, 1);
        assert_int_equal(stats(w, 0).leases_expired, 0);
        assert_int_equal(engine(w, 0).blocks_free, engine(w, 0).blocks_total);
        pdw_run(w, HY_SEC);
        pdw_end(w);
    }
    assert_true(before && after);
}

/* And with a lease of that name all goes as with any other. */
static void named_lease(void **state)
{
    (void)state;
    int32_t text[100];
    pdw *w = small_world(61, false);
    pdw_text(text, 100, 1);
    pdw_req *r = pdw_add(w, text, 100, 20, 0);
    r->named = UINT64_C(0xfedcba9876543210);
    pdw_run(w, 60 * HY_SEC);
    pdw_verify(w, false);
    assert_non_null(strstr(r->handover, "\"lease\":\"fedcba9876543210\""));
    assert_int_equal(stats(w, 1).received, 1);
    assert_int_equal(stats(w, 0).leases_released, 1);
    assert_true(pd_computed(w) == 0.0);
    pdw_end(w);
}

static void swap_text(pdw_req *r, const char *with)
{
    free(r->handover);
    r->handover = strdup(with);
}

/* References that must not be used: of another prompt, another engine, another start, nonsense. */
static void bad_references(void **state)
{
    (void)state;
    for (int fail = 0; fail < 2; fail++)
        for (int kind = 0; kind < 4; kind++) {
            pdw *w = small_world(10 + (uint64_t)kind, fail != 0);
            pdw_req *other = wait_for_p(w, 64, 5);
            char *stolen = strdup(other->handover);
            int32_t text[64];
            pdw_text(text, 64, 6);
            pdw_req *r = pdw_add(w, text, 64, 10, 50 * HY_MS);
            r->local = true; /* straight to decode */
            swap_text(r, kind == 0   ? stolen
                         : kind == 1 ? "{\"do_remote_prefill\":true,\"remote_block_ids\":[[1,2]]}"
                         : kind == 2 ? "{\"do_remote_prefill\":true,\"halyard\":{\"v\":9}}"
                                     : "{\"do_remote_prefill\":true,\"halyard\":7}");
            pdw_run(w, 60 * HY_SEC);
            pdw_verify(w, fail != 0);
            assert_int_equal(stats(w, 1).missed, 1);
            assert_int_equal(r->done, !fail);
            assert_int_equal(r->n_tok, fail ? 0 : 10);
            free(stolen);
            pdw_end(w);
        }
}

static void owner_was_started_anew(void **state)
{
    (void)state;
    pdw *w = small_world(20, false);
    pdw_req *r = wait_for_p(w, 64, 1);
    pdw_kill(w, 0, false);
    pdw_start_node(w, 0);
    pdw_run(w, 60 * HY_SEC);
    pdw_verify(w, false);
    assert_int_equal(r->n_tok, 10);
    assert_int_equal(stats(w, 1).received, 0);
    assert_int_equal(stats(w, 1).missed + stats(w, 1).failed, 1);
    /* and the next request finds the new one */
    pdw_req *next = wait_for_p(w, 64, 2);
    pdw_run(w, 60 * HY_SEC);
    assert_int_equal(next->n_tok, 10);
    assert_int_equal(stats(w, 1).received, 1);
    pdw_end(w);
}

static void unlike_models(void **state)
{
    (void)state;
    for (int fail = 0; fail < 2; fail++) {
        pdw_opts o;
        pdw_opts_init(&o, 21);
        o.model[1] = 1;
        o.fail = fail != 0;
        pdw *w = pdw_make(&o);
        int32_t text[64];
        pdw_text(text, 64, 1);
        pdw_req *r = pdw_add(w, text, 64, 10, 0);
        pdw_run(w, 60 * HY_SEC);
        pdw_verify(w, true);
        assert_int_equal(r->done, !fail);
        assert_int_equal(r->error, fail ? HY_E_UNSUPPORTED : HY_OK);
        assert_int_equal(stats(w, 1).tokens_in, 0);
        assert_true(stats(w, 1).refused_links + stats(w, 0).refused_links >= 1);
        pdw_end(w);
    }
}

/* ---- push: which is asked first, and how much earlier ---- */

/* D alone is asked, for the transfer of another request. */
static pdw_req *ask_d(pdw *w, const int32_t *text, int32_t n, const char *transfer, uint64_t in_ns)
{
    char params[256];
    pdw_req *r = pdw_add(w, text, n, 10, hy_clock_now_ns(hy_runtime_clock(w->rt)) - w->t0 + in_ns);
    r->local = true;
    r->seed = w->o.seed;
    snprintf(params, sizeof(params),
             "{\"do_remote_prefill\":true,\"transfer_id\":\"%s\",\"halyard\":{\"v\":1,"
             "\"node\":\"p0\",\"addrs\":\"p0:1\"}}",
             transfer);
    swap_text(r, params);
    return r;
}

static pdw_req *ask_p(pdw *w, const int32_t *text, int32_t n, uint64_t at_ns)
{
    pdw_req *r = pdw_add(w, text, n, 10, at_ns);
    r->push = r->no_d = true;
    r->seed = w->o.seed;
    return r;
}

/* A decode node asks for a transfer that has had its time, as the second one does after the first
 * has hung: it is told at once, and computes the prompt without a wait. */
static void push_after_its_end(void **state)
{
    (void)state;
    enum { EXPIRED, TAKEN, RELEASED, RELEASED_EARLY, ABORTED, ABORTED_EARLY, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        int32_t text[200];
        char name[64];
        pdw *w = small_world(70 + (uint64_t)kind, false);
        pdw_text(text, 20, 2); /* links */
        pdw_add(w, text, 20, 2, 0);
        pdw_run(w, HY_SEC);
        pdw_text(text, 200, 1);
        const uint64_t now = hy_clock_now_ns(hy_runtime_clock(w->rt)) - w->t0;
        pdw_req *one = ask_p(w, text, 200, now + HY_MS);
        snprintf(name, sizeof(name), "{\"transfer_id\":\"%s\"}", one->transfer);
        if (kind == TAKEN)
            ask_d(w, text, 200, one->transfer, HY_MS);
        if (kind == RELEASED_EARLY)
            assert_int_equal(hy_pd_release(w->node[0].pd, name), HY_OK);
        const uint64_t run = kind == EXPIRED         ? 3 * HY_SEC
                             : kind == ABORTED_EARLY ? HY_MS + HY_US
                             : kind == ABORTED       ? 4 * HY_MS
                                                     : 200 * HY_MS;
        PDW_CHECK(w, hy_runtime_run_for(w->rt, run) == HY_OK);
        if (kind == ABORTED || kind == ABORTED_EARLY) {
            assert_int_equal(engine(w, 0).running + engine(w, 0).waiting, 1);
            hy_engine_abort(w->node[0].e, one->p_id);
        }
        if (kind == RELEASED)
            assert_int_equal(hy_pd_release(w->node[0].pd, name), HY_OK);
        PDW_CHECK(w, hy_runtime_run_for(w->rt, 50 * HY_MS) == HY_OK);
        assert_int_equal(stats(w, 0).leases_open, 0);
        assert_int_equal(stats(w, 0).leases_expired, kind == EXPIRED);
        text[199] ^= 1; /* no prefix of its own but for what it has */
        for (int32_t i = 0; kind == TAKEN && i < 20; i++)
            text[i] ^= 1;
        const hy_pd_stats s = stats(w, 1);
        pdw_req *late = ask_d(w, text, 200, one->transfer, HY_MS);
        PDW_CHECK(w, hy_runtime_run_for(w->rt, 200 * HY_MS) == HY_OK); /* a load may take 4 s */
        if (late->stage != PDW_OVER || late->n_tok != 10)
            fail_msg("kind %d: decode waits for what has ended", kind);
        assert_int_equal(stats(w, 1).missed - s.missed, 1);
        assert_int_equal(stats(w, 1).failed, 0);
        pdw_run(w, HY_SEC);
        pdw_verify(w, false);
        pdw_end(w);
    }
}

/* But what is not known yet is waited for. */
static void push_before_its_owner(void **state)
{
    (void)state;
    int32_t text[200];
    pdw *w = small_world(80, false);
    pdw_text(text, 200, 1);
    pdw_req *one = ask_p(w, text, 200, 2 * HY_SEC);
    pdw_req *early = ask_d(w, text, 200, one->transfer, 0);
    pdw_run(w, 60 * HY_SEC);
    pdw_verify(w, false);
    assert_int_equal(early->n_tok, 10);
    assert_int_equal(stats(w, 1).received, 1);
    assert_int_equal(stats(w, 1).tokens_in, 200);
    assert_true(pd_computed(w) == 0.0);
    pdw_end(w);
}

/* An owner that was started anew will not hear of the request. */
static void push_owner_was_started_anew(void **state)
{
    (void)state;
    int32_t text[200];
    pdw *w = small_world(81, false);
    pdw_text(text, 200, 1);
    pdw_req *r = ask_d(w, text, 200, "00000000000000aa", 0);
    PDW_CHECK(w, hy_runtime_run_for(w->rt, 500 * HY_MS) == HY_OK);
    assert_int_equal(stats(w, 0).jobs_open, 1);
    pdw_kill(w, 0, false);
    pdw_start_node(w, 0);
    PDW_CHECK(w, hy_runtime_run_for(w->rt, 1500 * HY_MS) == HY_OK);
    assert_int_equal(r->n_tok, 10);
    assert_int_equal(stats(w, 1).missed + stats(w, 1).failed, 1);
    pdw_run(w, HY_SEC);
    pdw_verify(w, false);
    pdw_end(w);
}

/* Too few blocks to park: it waits in the queue, no transfer begins, the lease is renewed. */
static void decode_is_full(void **state)
{
    (void)state;
    pdw_opts o;
    pdw_opts_init(&o, 22);
    o.blocks[1][0] = 12;
    o.lease_ns = 100 * HY_MS;
    pdw *w = pdw_make(&o);
    int32_t text[300];
    pdw_text(text, 100, 1);
    pdw_req *big = pdw_add(w, text, 100, 80, 0);
    big->local = true;
    pdw_text(text, 120, 2);
    pdw_req *r = pdw_add(w, text, 120, 10, 1 * HY_MS);
    while (r->stage != PDW_D)
        PDW_CHECK(w, hy_runtime_run_for(w->rt, HY_MS) == HY_OK);
    PDW_CHECK(w, hy_runtime_run_for(w->rt, 5 * HY_MS) == HY_OK);
    assert_int_equal(stats(w, 1).loads, 0);
    assert_int_equal(engine(w, 1).waiting, 1);
    pdw_run(w, 60 * HY_SEC);
    pdw_verify(w, false);
    assert_int_equal(stats(w, 1).received, 1);
    assert_int_equal(stats(w, 0).leases_expired, 0);
    pdw_end(w);
}

/* ---- everything that can go wrong ---- */

typedef struct totals {
    uint64_t requests, done, failed, aborted, received, missed, broken, expired, corrupt, cancelled;
    uint64_t kills, moved, near, early_used, early_dropped;
} totals;

static bool pushing; /* both nodes are asked at once */

typedef enum faults {
    F_NONE,
    F_NET,     /* delays, drops, doubles, reordering */
    F_KILL,    /* nodes die and come back in a new epoch */
    F_PART,    /* nothing passes for a while, connections do not notice */
    F_CORRUPT, /* bytes flip below every checksum */
    F_LEASE,   /* leases much too short */
    F_ALL,
} faults;

static bool one_in(pdw *w, int32_t n)
{
    return pdw_pick(w, 1, n) == 1;
}

static void random_opts(pdw_opts *o, uint64_t seed, faults f)
{
    static const int32_t sizes[] = {16, 32, 48, 64, 16, 16};
    static const int32_t groups[][3] = {
        {0, -1, -1}, {0, 20, -1}, {24, 0, -1}, {0, -1, -1}, {40, -1, -1}};
    hy_rng r;
    hy_rng_init(&r, seed * 77 + 5);
    pdw_opts_init(o, seed);
    const int32_t *g = groups[hy_rng_below(&r, HY_COUNTOF(groups))];
    o->n_groups = 0;
    while (o->n_groups < 3 && g[o->n_groups] >= 0) {
        o->windows[o->n_groups] = g[o->n_groups];
        o->n_groups++;
    }
    for (int i = 0; i < PDW_NODES; i++) {
        o->block_tokens[i] = sizes[hy_rng_below(&r, HY_COUNTOF(sizes))];
        for (int32_t k = 0; k < o->n_groups; k++)
            o->blocks[i][k] = (int32_t)(500 / o->block_tokens[i] + hy_rng_below(&r, 20));
    }
    o->context = 300;
    o->max_seqs = 1 + (int32_t)hy_rng_below(&r, 6);
    o->max_batch = o->max_seqs + (int32_t)hy_rng_below(&r, 90);
    o->min_run = hy_rng_below(&r, 3) == 0 ? 4096 : 64; /* packed, or as direct as it goes */
    o->staging = hy_rng_below(&r, 3) == 0 ? 2u << 20 : 8u << 20;
    o->verify = f == F_CORRUPT || f == F_ALL || hy_rng_below(&r, 3) == 0;
    o->fail = hy_rng_below(&r, 6) == 0;
    o->net.latency_ns = hy_rng_below(&r, 300) * HY_US;
    o->net.jitter_ns = hy_rng_below(&r, 500) * HY_US;
    o->net.bytes_per_s = hy_rng_below(&r, 2) == 0 ? 0 : 200000 + hy_rng_below(&r, 10000000);
    o->net.rto_ns = 5 * HY_MS;
    if (hy_rng_below(&r, 3) == 0) { /* transfers take long: much happens meanwhile */
        o->net.latency_ns = hy_rng_below(&r, 30) * HY_MS;
        o->net.bytes_per_s = 5000 + hy_rng_below(&r, 50000);
    }
    if (f == F_NET || f == F_ALL) {
        o->net.duplicate = 0.05;
        o->net.reorder = 0.1;
        o->net.drop = hy_rng_below(&r, 2) == 0 ? 0.0 : 0.02;
    }
    if (f == F_CORRUPT || f == F_ALL)
        o->net.corrupt_data = 0.2;
    if (f == F_LEASE || f == F_ALL) {
        o->lease_ns = (1 + hy_rng_below(&r, 40)) * 10 * HY_MS;
        o->timeout_ns = (2 + hy_rng_below(&r, 100)) * 20 * HY_MS;
    }
    o->near = hy_rng_below(&r, 2) == 0;
}

static void random_requests(pdw *w, faults f)
{
    const int32_t span = f == F_KILL || f == F_PART || f == F_ALL ? 3000000 : 300000;
    int32_t text[300];
    const int32_t n_req = pdw_pick(w, 1, 24);
    for (int32_t k = 0; k < n_req; k++) {
        const int32_t shared = pdw_pick(w, 0, 180), n = shared + pdw_pick(w, 1, 60);
        pdw_text(text, n, pdw_pick(w, 0, 2));
        for (int32_t i = shared; i < n; i++)
            text[i] = pdw_pick(w, 8, 47);
        pdw_req *r =
            pdw_add(w, text, n, pdw_pick(w, 1, 40), (uint64_t)pdw_pick(w, 0, span) * HY_US);
        r->ignore_eos = one_in(w, 2);
        r->logprobs = one_in(w, 3) ? 1 : -1;
        r->has_seed = !one_in(w, 8);
        if (one_in(w, 5))
            r->abort_ns =
                r->at_ns + (uint64_t)pdw_pick(w, 0, one_in(w, 2) ? 60000 : 400000) * HY_US;
        r->no_d = !pushing && one_in(w, 20);
        r->push = pushing;
        r->p_first = one_in(w, 2);
    }
}

/* Deaths and partitions at random times; all is alive and whole at the end. */
static void run_with_faults(pdw *w, faults f, totals *t)
{
    const bool kills = f == F_KILL || f == F_ALL, parts = f == F_PART || f == F_ALL;
    for (int32_t n = kills || parts ? pdw_pick(w, 1, 5) : 0; n > 0; n--) {
        PDW_CHECK(w, hy_runtime_run_for(w->rt, (uint64_t)pdw_pick(w, 0, 800000) * HY_US) == HY_OK);
        if (parts && one_in(w, 2)) {
            hy_loop_partition(w->net, "p0", "d0");
            PDW_CHECK(w,
                      hy_runtime_run_for(w->rt, (uint64_t)pdw_pick(w, 1, 2500) * HY_MS) == HY_OK);
            hy_loop_heal(w->net);
        }
        if (kills && w->n_grave < 200) {
            const int i = pdw_pick(w, 0, 1);
            pdw_kill(w, i, one_in(w, 3));
            PDW_CHECK(w, hy_runtime_run_for(w->rt, (uint64_t)pdw_pick(w, 0, 900) * HY_MS) == HY_OK);
            pdw_start_node(w, i);
            t->kills++;
        }
    }
    pdw_run(w, 120 * HY_SEC);
}

static void run_seed(uint64_t seed, faults f, totals *t)
{
    pdw_opts o;
    random_opts(&o, seed, f);
    pdw *w = pdw_make(&o);
    random_requests(w, f);
    for (int32_t k = 0; k < w->n_req; k++)
        if (w->req[k].abort_ns > 0)
            pdw_abort_at(&w->req[k], w->req[k].abort_ns);
    run_with_faults(w, f, t);
    pdw_verify(w, f != F_NONE || o.fail);
    for (int32_t k = 0; k < w->n_req; k++) {
        const pdw_req *r = &w->req[k];
        t->requests++;
        t->done += r->done;
        t->failed += r->failed;
        t->aborted += r->aborted;
    }
    check_metrics(w);
    const hy_pd_stats s = stats(w, 1);
    t->received += s.received;
    t->missed += s.missed;
    t->broken += s.failed;
    t->expired += s.expired + stats(w, 0).leases_expired;
    t->corrupt += s.corrupt;
    if (f != F_CORRUPT && f != F_ALL)
        PDW_CHECK(w, s.corrupt == 0);
    if (f == F_NONE)
        PDW_CHECK(w, s.failed == 0 && s.missed == 0 && pd_computed(w) == 0.0);
    t->cancelled += s.aborted;
    t->moved += s.tokens_in;
    t->near += stats(w, 0).bytes_near;
    t->early_used += stats(w, 0).early_used;
    t->early_dropped += stats(w, 0).early_dropped;
    if (!o.near)
        PDW_CHECK(w, stats(w, 0).bytes_near == 0);
    pdw_end(w);
    if (fake_samplers_alive != 0)
        fail_msg("seed %llu: %d samplers are left", (unsigned long long)seed, fake_samplers_alive);
}

static void run_seeds(uint64_t first, uint64_t n, faults f)
{
    const char *many = getenv("HY_SEEDS"), *one = getenv("HY_SEED");
    if (test_thin()) /* a hundred are enough for each event to happen, see below */
        n = n > 100 ? 100 : n / 2;
    if (many != NULL)
        n = strtoull(many, NULL, 10);
    if (one != NULL) {
        first = strtoull(one, NULL, 10);
        n = 1;
    }
    totals t = {0};
    for (uint64_t s = first; s < first + n; s++)
        run_seed(s, f, &t);
    print_message(
        "%llu seeds: %llu requests, %llu done, %llu failed, %llu aborted; loads: %llu "
        "received, %llu missed, %llu failed, %llu expired, %llu corrupt, %llu cancelled; "
        "%llu kills, %llu tokens moved, %llu bytes read in place; pieces packed early: %llu used, "
        "%llu dropped\n",
        (unsigned long long)n, (unsigned long long)t.requests, (unsigned long long)t.done,
        (unsigned long long)t.failed, (unsigned long long)t.aborted, (unsigned long long)t.received,
        (unsigned long long)t.missed, (unsigned long long)t.broken, (unsigned long long)t.expired,
        (unsigned long long)t.corrupt, (unsigned long long)t.cancelled, (unsigned long long)t.kills,
        (unsigned long long)t.moved, (unsigned long long)t.near, (unsigned long long)t.early_used,
        (unsigned long long)t.early_dropped);
    assert_true(n < 100 || t.near > 0);
    assert_true(n < 100 || pushing || (t.early_used > 0 && t.early_dropped > 0));
}

static void no_faults(void **state)
{
    (void)state;
    run_seeds(1, 300, F_NONE);
}

static void bad_net(void **state)
{
    (void)state;
    run_seeds(10001, 300, F_NET);
}

static void deaths(void **state)
{
    (void)state;
    run_seeds(20001, 400, F_KILL);
}

static void partitions(void **state)
{
    (void)state;
    run_seeds(30001, 200, F_PART);
}

static void corruption(void **state)
{
    (void)state;
    run_seeds(40001, 200, F_CORRUPT);
}

static void short_leases(void **state)
{
    (void)state;
    run_seeds(50001, 300, F_LEASE);
}

static void all_at_once(void **state)
{
    (void)state;
    run_seeds(60001, 500, F_ALL);
}

static void push_no_faults(void **state)
{
    (void)state;
    pushing = true;
    run_seeds(100001, 300, F_NONE);
    pushing = false;
}

static void push_all_at_once(void **state)
{
    (void)state;
    pushing = true;
    for (int f = F_NET; f <= F_ALL; f++)
        run_seeds(110001 + (uint64_t)f * 10000, 100, f);
    pushing = false;
}

int main(void)
{
    pdw_log();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request),
        cmocka_unit_test(cached_on_p_only),
        cmocka_unit_test(cached_on_both),
        cmocka_unit_test(all_on_d),
        cmocka_unit_test(next_turn),
        cmocka_unit_test(push_overlaps),
        cmocka_unit_test(nobody_comes),
        cmocka_unit_test(released_by_the_router),
        cmocka_unit_test(released_by_name),
        cmocka_unit_test(named_lease),
        cmocka_unit_test(bad_references),
        cmocka_unit_test(owner_was_started_anew),
        cmocka_unit_test(unlike_models),
        cmocka_unit_test(decode_is_full),
        cmocka_unit_test(no_faults),
        cmocka_unit_test(bad_net),
        cmocka_unit_test(deaths),
        cmocka_unit_test(partitions),
        cmocka_unit_test(corruption),
        cmocka_unit_test(short_leases),
        cmocka_unit_test(all_at_once),
        cmocka_unit_test(push_no_faults),
        cmocka_unit_test(push_all_at_once),
        cmocka_unit_test(push_after_its_end),
        cmocka_unit_test(push_before_its_owner),
        cmocka_unit_test(push_owner_was_started_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
