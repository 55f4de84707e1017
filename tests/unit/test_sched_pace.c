/* SPDX-License-Identifier: Apache-2.0
 *
 * Pace of prompts beside decodes: the limit keeps a step within its target at the measured speed.
 *
 * Thread: main.  Owner: none.
 */
#include "core/sched/pace.h"
#include "tests/unit/cm.h"

static void follows_the_measured_speed(void **state)
{
    (void)state;
    hy_pace p = {0};
    assert_int_equal(hy_pace_limit(&p, 4, 400000000u, 512), HY_PACE_FIRST_ROWS);
    hy_pace_note(&p, 512, 512 * 1000000ll); /* 1 ms a row */
    assert_int_equal(hy_pace_limit(&p, 16, 400000000u, 512), 384);
    for (int i = 0; i < 60; i++)
        hy_pace_note(&p, 100, 100 * 10000000ll); /* now 10 ms a row */
    assert_int_equal(hy_pace_limit(&p, 0, 400000000u, 512), 32);
    assert_int_equal(hy_pace_limit(&p, 39, 400000000u, 512), 16); /* never none: prompts go on */
}

static void small_steps_and_bad_clocks_say_nothing(void **state)
{
    (void)state;
    hy_pace p = {0};
    hy_pace_note(&p, 1, 50000000);
    hy_pace_note(&p, 512, 0);
    hy_pace_note(&p, 512, -5);
    assert_true(p.ns_per_row == 0.0);
    hy_pace_note(&p, 16, 16);
    assert_int_equal(hy_pace_limit(&p, 0, 400000000u, 512), 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_measured_speed),
        cmocka_unit_test(small_steps_and_bad_clocks_say_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
