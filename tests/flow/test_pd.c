/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefill on one node, decode on another: what moves and what is computed, exactly; then seeds of
 * everything that can go wrong. HY_SEEDS=n runs n seeds, HY_SEED=s that one alone.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "tests/flow/pdworld.h"

#include "core/base/log.h"

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

static void quiet(void *arg, hy_log_level level, const char *module, const char *text)
{
    (void)arg;
    if (level <= HY_LOG_ERROR || getenv("HY_LOG") != NULL)
        print_message("%s: %s\n", module, text);
}

int main(void)
{
    hy_log_set_sink(quiet, NULL);
    if (getenv("HY_LOG") != NULL)
        hy_log_set_level(HY_LOG_DEBUG);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request),
        cmocka_unit_test(cached_on_p_only),
        cmocka_unit_test(cached_on_both),
        cmocka_unit_test(all_on_d),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
