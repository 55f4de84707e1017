/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler with a KV connector that loads, delays, fails and keeps at random. The tokens must
 * still be the oracle's: a block that is reused while a transfer writes or reads it changes them.
 *
 * HY_SEEDS=n runs n seeds, HY_SEED=s that one alone.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "tests/flow/fake_conn.h"
#include "tests/flow/world.h"
#include "tests/thin.h"

#include "core/base/log.h"

#include <string.h>

static uint64_t now_of(void *arg)
{
    return hy_stage_now(arg);
}

typedef struct totals {
    uint64_t later, sync, async, partial, kept, expired, empty, preempted;
} totals;

static void run_seed(uint64_t seed, bool failing, totals *t)
{
    world *w = world_make(seed);
    fake_conn *k = fake_conn_create(seed);
    w->conn = &k->c;
    w->o.rope_long_from = 0; /* the fake connector knows one kind of KV */
    k->now = now_of;
    world_start(w, HY_RUNTIME_VIRTUAL, failing);
    k->exec = w->exec;
    k->now_arg = hy_engine_stage(w->e);
    const hy_status st = hy_runtime_run_until_idle(w->rt, 3600 * HY_SEC);
    CHECK(w, st == HY_OK);
    world_check(w, failing);
    const char *left = fake_conn_check(k);
    if (left != NULL)
        fail_msg("seed %llu: %s", (unsigned long long)seed, left);
    for (int32_t i = 0; i < w->n_req; i++)
        for (int32_t c = 0; c < w->req[i].n; c++)
            CHECK(w, w->req[i].rec[c].handover[0] == '\0' ||
                         strcmp(w->req[i].rec[c].handover, "{\"kept\":true}") == 0);
    CHECK(w, k->n_steps == w->exec->n_steps);
    t->later += k->n_later;
    t->sync += k->n_sync;
    t->async += k->n_async;
    t->partial += k->n_partial;
    t->kept += k->n_kept;
    t->expired += k->n_expired;
    t->empty += w->exec->n_empty;
    t->preempted += k->n_preempted;
    world_end(w);
    fake_conn_destroy(k);
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
    print_message("%llu seeds: asked later %llu, loads in the step %llu, async %llu, partial %llu, "
                  "kept %llu, expired %llu, steps without tokens %llu, preempted %llu\n",
                  (unsigned long long)n, (unsigned long long)t.later, (unsigned long long)t.sync,
                  (unsigned long long)t.async, (unsigned long long)t.partial,
                  (unsigned long long)t.kept, (unsigned long long)t.expired,
                  (unsigned long long)t.empty, (unsigned long long)t.preempted);
    if (n >= 100)
        assert_true(t.later > n && t.sync > n && t.async > n && t.partial > n && t.kept > n &&
                    t.expired > n / 10 && t.empty > n && t.preempted > n / 10);
}

static void random_transfers(void **state)
{
    (void)state;
    run_seeds(1, 1500, false);
}

static void random_transfers_with_failing_steps(void **state)
{
    (void)state;
    run_seeds(1000000, 500, true);
}

/* Stopped in the middle of transfers: everything is given back. */
static void stopped_early(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        world *w = world_make(seed);
        fake_conn *k = fake_conn_create(seed);
        w->conn = &k->c;
        w->o.rope_long_from = 0; /* the fake connector knows one kind of KV */
        k->now = now_of;
        world_start(w, HY_RUNTIME_VIRTUAL, false);
        k->exec = w->exec;
        k->now_arg = hy_engine_stage(w->e);
        (void)hy_runtime_run_for(w->rt, (uint64_t)world_pick(w, 0, 60000) * HY_US);
        world_end(w);
        fake_conn_destroy(k);
        assert_int_equal(fake_samplers_alive, 0);
    }
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
        cmocka_unit_test(random_transfers),
        cmocka_unit_test(random_transfers_with_failing_steps),
        cmocka_unit_test(stopped_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
