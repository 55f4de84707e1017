/* SPDX-License-Identifier: Apache-2.0
 *
 * Watchdog on a virtual clock, and its thread inside a runtime.
 *
 * Thread: test, one stage, the watchdog.  Owner: the test.
 */
#include "core/base/log.h"
#include "core/base/runtime.h"
#include "core/base/watch.h"
#include "tests/unit/cm.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

static _Atomic int warnings;
static char last[256];

static void sink(void *arg, hy_log_level level, const char *module, const char *text)
{
    (void)arg;
    (void)level;
    if (strcmp(module, "watch") == 0) {
        snprintf(last, sizeof(last), "%s", text);
        warnings++;
    }
}

static void names_the_stuck(void **state)
{
    (void)state;
    hy_log_set_sink(sink, NULL);
    warnings = 0;
    hy_clock *c = hy_clock_create_virtual(HY_SEC);
    hy_watch *w = hy_watch_create(c, 10 * HY_SEC);
    hy_watch_note a = {0}, b = {0};
    hy_watch_add(w, &a, "exec");
    hy_watch_add(w, &b, "http");
    hy_watch_begin(&a, "a step", 3, hy_clock_now_ns(c));
    hy_clock_advance_to(c, 10 * HY_SEC);
    assert_int_equal(hy_watch_check(w), 0);
    hy_clock_advance_to(c, 11 * HY_SEC);
    assert_int_equal(hy_watch_check(w), 1);
    assert_string_equal(last, "stage exec has been at 'a step' (3) for 10.0 s");
    hy_clock_advance_to(c, 15 * HY_SEC);
    assert_int_equal(hy_watch_check(w), 1);
    assert_int_equal(warnings, 1); /* no flood */
    hy_clock_advance_to(c, 22 * HY_SEC);
    hy_watch_check(w);
    assert_int_equal(warnings, 2); /* the stall doubled */
    hy_watch_end(&a);
    assert_int_equal(hy_watch_check(w), 0);
    hy_watch_begin(&a, "a step", 4, hy_clock_now_ns(c));
    hy_clock_advance_to(c, 33 * HY_SEC);
    assert_int_equal(hy_watch_check(w), 1);
    assert_int_equal(warnings, 3); /* a new stall */
    hy_watch_remove(w, &a);
    assert_int_equal(hy_watch_check(w), 0);
    hy_watch_destroy(w);
    hy_clock_destroy(c);
    hy_log_set_sink(NULL, NULL);
}

static hy_status sleep_long(void *self, hy_msg *msg)
{
    (void)msg;
    hy_stage_note(*(hy_stage **)self, "reading weights");
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    return HY_OK;
}

static void watches_running_stages(void **state)
{
    (void)state;
    hy_log_set_sink(sink, NULL);
    warnings = 0;
    const hy_stage_ops ops = {.on_msg = sleep_long};
    hy_stage *s = NULL;
    s = hy_stage_create("loader", &ops, &s, 4, 0);
    hy_runtime *rt = hy_runtime_create(HY_RUNTIME_THREADS, 1);
    hy_runtime_set_watch(rt, 40 * HY_MS);
    hy_runtime_add(rt, s);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    hy_stage_post(s, &(hy_msg){.kind = 5});
    assert_int_equal(hy_runtime_run_until_idle(rt, 10 * HY_SEC), HY_OK);
    hy_runtime_destroy(rt);
    hy_stage_destroy(s);
    hy_log_set_sink(NULL, NULL);
    assert_true(warnings >= 1);
    assert_non_null(strstr(last, "stage loader has been at 'reading weights' (5) for"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_the_stuck),
        cmocka_unit_test(watches_running_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
