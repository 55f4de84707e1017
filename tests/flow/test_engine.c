/* SPDX-License-Identifier: Apache-2.0
 *
 * The real scheduler against a fake device whose KV memory is real: thousands of seeds of random
 * requests, aborts, priorities, small pools, shared prefixes, several choices, sliding windows.
 * After each event all KV invariants hold; at the end every request has had exactly one last event,
 * all blocks are free, and every token equals the oracle's, which computes each request alone.
 *
 * HY_SEEDS=n runs n seeds, HY_SEED=s that one alone.
 *
 * Thread: the test's; requests are recorded on the sched stage's.  Owner: the test.
 */
#include "tests/flow/world.h"
#include "tests/thin.h"

#include "core/base/log.h"

typedef struct totals {
    uint64_t preemptions, cached, steps, refused, busy, tokens;
} totals;

static void run_seed(uint64_t seed, bool failing, totals *t)
{
    world *w = world_make(seed);
    world_start(w, HY_RUNTIME_VIRTUAL, failing);
    const hy_status st = hy_runtime_run_until_idle(w->rt, 3600 * HY_SEC);
    CHECK(w, st == HY_OK);
    world_check(w, failing);
    hy_engine_stats s;
    hy_engine_stats_get(w->e, &s);
    t->preemptions += s.preemptions;
    t->cached += s.cached_tokens;
    t->steps += s.steps;
    t->tokens += s.output_tokens;
    for (int32_t i = 0; i < w->n_req; i++) {
        t->refused += w->req[i].submitted < 0;
        t->busy += (uint64_t)w->req[i].busy;
    }
    world_end(w);
}

static void run_seeds(uint64_t first, uint64_t n, bool failing)
{
    const char *many = getenv("HY_SEEDS"), *one = getenv("HY_SEED");
    if (test_thin())
        n /= 5;
    if (many != NULL)
        n = strtoull(many, NULL, 10);
    if (one != NULL) {
        first = strtoull(one, NULL, 10);
        n = 1;
    }
    totals t = {0};
    for (uint64_t s = first; s < first + n; s++)
        run_seed(s, failing, &t);
    print_message("%llu seeds: %llu steps, %llu tokens, %llu preemptions, %llu cached tokens, "
                  "%llu refused, %llu times busy\n",
                  (unsigned long long)n, (unsigned long long)t.steps, (unsigned long long)t.tokens,
                  (unsigned long long)t.preemptions, (unsigned long long)t.cached,
                  (unsigned long long)t.refused, (unsigned long long)t.busy);
    if (n >= 100) { /* the mix must really meet what it is for */
        assert_true(t.preemptions > n / 3);
        assert_true(t.cached > 100 * n);
        assert_true(t.refused > 0 && t.busy > 0);
    }
}

static void random_mixes(void **state)
{
    (void)state;
    run_seeds(1, 3000, false);
}

static void random_mixes_with_failing_steps(void **state)
{
    (void)state;
    run_seeds(1000000, 1000, true);
}

static void same_seed_same_run(void **state)
{
    (void)state;
    totals a = {0}, b = {0};
    for (uint64_t s = 1; s <= 20; s++) {
        run_seed(s, false, &a);
        run_seed(s, false, &b);
    }
    assert_memory_equal(&a, &b, sizeof(a));
}

static void real_threads(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 25; seed++) {
        world *w = world_make(seed);
        world_start(w, HY_RUNTIME_THREADS, false);
        while (atomic_load(&w->n_ended) < w->n_req)
            HY_ASSERT(hy_runtime_run_for(w->rt, HY_MS) >= 0);
        CHECK(w, hy_runtime_drain(w->rt, 60 * HY_SEC) == HY_OK);
        hy_runtime_stop(w->rt);
        world_check(w, false);
        world_end(w);
    }
}

/* Stopped in the middle: still exactly one last event each. */
static void stopped_early(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        world *w = world_make(seed);
        world_start(w, HY_RUNTIME_VIRTUAL, false);
        (void)hy_runtime_run_for(w->rt, (uint64_t)world_pick(w, 0, 50000) * HY_US);
        hy_runtime_destroy(w->rt); /* stops */
        w->rt = NULL;
        hy_engine_destroy(w->e);
        w->e = NULL;
        for (int32_t i = 0; i < w->n_req; i++)
            CHECK(w, w->req[i].n_last <= 1 &&
                         (w->req[i].n_last == 1 || w->req[i].id == 0 || w->req[i].submitted < 0));
        CHECK(w, fake_samplers_alive == 0);
        world_end(w);
    }
}

/* Drain: what runs is finished, new requests are refused. */
static void drain(void **state)
{
    (void)state;
    world *w = world_make(5);
    world_start(w, HY_RUNTIME_VIRTUAL, false);
    (void)hy_runtime_run_for(w->rt, 30 * HY_MS);
    assert_int_equal(hy_runtime_drain(w->rt, 600 * HY_SEC), HY_OK);
    hy_engine_stats s;
    hy_engine_stats_get(w->e, &s);
    assert_int_equal(s.running + s.waiting, 0);
    hy_req *r = world_req(&w->req[0]);
    assert_int_equal(hy_engine_submit(w->e, r), HY_E_BUSY);
    hy_req_destroy(r);
    world_end(w);
}

static void quiet(void *arg, hy_log_level level, const char *module, const char *text)
{
    (void)arg, (void)module;
    if (level <= HY_LOG_ERROR)
        print_message("%s\n", text);
}

int main(void)
{
    hy_log_set_sink(quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_mixes),
        cmocka_unit_test(random_mixes_with_failing_steps),
        cmocka_unit_test(same_seed_same_run),
        cmocka_unit_test(stopped_early),
        cmocka_unit_test(drain),
        cmocka_unit_test(real_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
