/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks.
 *
 * Thread: test.  Owner: the test.
 */
#include "core/base/clock.h"
#include "tests/unit/cm.h"

#include <time.h>

static void real_goes_forward(void **state)
{
    (void)state;
    hy_clock *c = hy_clock_real();
    assert_false(hy_clock_is_virtual(c));
    uint64_t a = hy_clock_now_ns(c);
    nanosleep(&(struct timespec){0, 2000000}, NULL);
    uint64_t b = hy_clock_now_ns(c);
    assert_true(b - a >= 2 * HY_MS);
    assert_in_range(hy_clock_unix_ns(c) / HY_SEC, (uint64_t)time(NULL) - 2,
                    (uint64_t)time(NULL) + 2);
}

static void virtual_stands_still(void **state)
{
    (void)state;
    hy_clock *c = hy_clock_create_virtual(5);
    assert_true(hy_clock_is_virtual(c));
    assert_int_equal(hy_clock_now_ns(c), 5);
    hy_clock_advance_to(c, 9);
    assert_int_equal(hy_clock_now_ns(c), 9);
    hy_clock_advance_to(c, 7); /* never back */
    assert_int_equal(hy_clock_now_ns(c), 9);
    assert_int_equal(hy_clock_unix_ns(c), UINT64_C(1767225600) * HY_SEC + 9);
    hy_clock_destroy(c);
    hy_clock_destroy(NULL);
}

static void after_saturates(void **state)
{
    (void)state;
    assert_true(hy_clock_after(10, 5) == 15);
    assert_true(hy_clock_after(10, HY_NEVER) == HY_NEVER);
    assert_true(hy_clock_after(HY_NEVER - 1, 5) == HY_NEVER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_goes_forward),
        cmocka_unit_test(virtual_stands_still),
        cmocka_unit_test(after_saturates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
