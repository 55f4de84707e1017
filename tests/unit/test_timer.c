/* SPDX-License-Identifier: Apache-2.0
 *
 * Timer queue against a plain list.
 *
 * Thread: test.  Owner: the test.
 */
#include "core/base/clock.h"
#include "core/base/rng.h"
#include "core/base/timer.h"
#include "tests/unit/cm.h"

static int dropped;
static void drop(void *p)
{
    (void)p;
    dropped++;
}

static void equal_times_in_order(void **state)
{
    (void)state;
    hy_timers t;
    hy_timers_init(&t);
    for (int i = 0; i < 100; i++) {
        hy_msg m = {.kind = i};
        assert_int_equal(hy_timers_add(&t, 10, &m, NULL), HY_OK);
    }
    hy_msg m;
    assert_false(hy_timers_pop(&t, 9, &m));
    for (int i = 0; i < 100; i++) {
        assert_true(hy_timers_pop(&t, 10, &m));
        assert_int_equal(m.kind, i);
    }
    assert_true(hy_timers_next(&t) == HY_NEVER);
    hy_timers_fini(&t);
}

static void random_against_list(void **state)
{
    (void)state;
    enum { N = 3000 };
    static uint64_t at[N], id[N];
    static bool live[N];
    hy_timers t;
    hy_timers_init(&t);
    hy_rng r;
    hy_rng_init(&r, 11);
    int n = 0;
    while (n < N) {
        if (n > 0 && hy_rng_below(&r, 3) == 0) {
            int k = (int)hy_rng_below(&r, (uint64_t)n);
            assert_int_equal(hy_timers_cancel(&t, id[k]), live[k]);
            live[k] = false;
            continue;
        }
        if (hy_rng_below(&r, 5) == 0) { /* pop one: it must be the earliest of the list */
            uint64_t best = HY_NEVER;
            int who = -1;
            for (int k = 0; k < n; k++)
                if (live[k] && at[k] < best) {
                    best = at[k];
                    who = k;
                }
            hy_msg m;
            assert_true(hy_timers_next(&t) == best);
            assert_int_equal(hy_timers_pop(&t, HY_NEVER, &m), who >= 0);
            if (who >= 0) {
                assert_int_equal(m.kind, who);
                live[who] = false;
            }
            continue;
        }
        at[n] = hy_rng_below(&r, 500);
        hy_msg m = {.kind = n};
        assert_int_equal(hy_timers_add(&t, at[n], &m, &id[n]), HY_OK);
        assert_true(id[n] != 0);
        live[n++] = true;
    }
    hy_timers_fini(&t);
}

static void cancel_and_fini_drop(void **state)
{
    (void)state;
    hy_timers t;
    hy_timers_init(&t);
    uint64_t id;
    hy_msg m = {.data = &t, .drop = drop};
    hy_timers_add(&t, 1, &m, &id);
    hy_timers_add(&t, 2, &m, NULL);
    assert_true(hy_timers_cancel(&t, id));
    assert_int_equal(dropped, 1);
    assert_false(hy_timers_cancel(&t, id));
    uint64_t id2; /* the slot is used again; the old id must not reach it */
    hy_timers_add(&t, 3, &m, &id2);
    assert_false(hy_timers_cancel(&t, id));
    assert_false(hy_timers_cancel(&t, UINT64_C(99) << 32 | 5000));
    hy_timers_fini(&t);
    assert_int_equal(dropped, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_times_in_order),
        cmocka_unit_test(random_against_list),
        cmocka_unit_test(cancel_and_fini_drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
