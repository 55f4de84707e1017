/* SPDX-License-Identifier: Apache-2.0
 *
 * One stage under both runtimes: every test runs twice, on a thread and under virtual time.
 *
 * Thread: test and the stage; the test looks at the stage's state only when it is quiet.
 * Owner: the test.
 */
#include "core/base/log.h"
#include "core/base/runtime.h"
#include "tests/unit/cm.h"

#include <poll.h>
#include <string.h>

enum { MSG_LOG, MSG_ARM, MSG_TIMER, MSG_CANCEL, MSG_FAIL, MSG_FATAL, MSG_STORM, MSG_HOLD };

typedef struct probe {
    hy_stage *s;
    int started, stopped, drained, idles, n;
    uint64_t args[256];
    uint64_t when[256];
    uint64_t timer_id;
    uint64_t idle_every, idle_next;
    bool holding;
    int waits;
} probe;

#define STEP (40 * HY_MS) /* between timers: a busy machine may let a thread wait */

static int n_dropped;
static void count_drop(void *p)
{
    free(p);
    n_dropped++;
}

static hy_status on_start(void *self)
{
    ((probe *)self)->started++;
    return HY_OK;
}

static void record(probe *p, uint64_t arg)
{
    if (p->n < 256) {
        p->when[p->n] = hy_stage_now(p->s);
        p->args[p->n++] = arg;
    }
}

static hy_status on_msg(void *self, hy_msg *m)
{
    probe *p = self;
    uint64_t now = hy_stage_now(p->s);
    switch (m->kind) {
    case MSG_ARM: /* three timers, out of order */
        for (int i = 3; i >= 1; i--) {
            hy_msg t = {.kind = MSG_TIMER, .arg = (uint64_t)i};
            HY_TRY(
                hy_stage_timer(p->s, now + (uint64_t)i * STEP, &t, i == 2 ? &p->timer_id : NULL));
        }
        break;
    case MSG_CANCEL:
        record(p, hy_stage_timer_cancel(p->s, p->timer_id) ? 100 : 200);
        break;
    case MSG_FAIL:
        return hy_fail(HY_E_INVAL, "no good");
    case MSG_FATAL:
        return hy_fail(HY_E_IO, "disk gone");
    case MSG_STORM: { /* a timer that is always due must not starve messages */
        hy_msg t = {.kind = MSG_STORM, .arg = m->arg - 1};
        if (m->arg > 0)
            HY_TRY(hy_stage_timer(p->s, now, &t, NULL));
        break;
    }
    case MSG_HOLD: { /* busy until a timer comes */
        p->holding = m->arg != 0;
        hy_msg t = {.kind = MSG_HOLD, .arg = 0};
        if (m->arg != 0)
            HY_TRY(hy_stage_timer(p->s, now + m->arg, &t, NULL));
        break;
    }
    default:
        record(p, m->arg);
    }
    hy_msg_drop(m);
    return HY_OK;
}

static uint64_t on_idle(void *self, uint64_t now_ns)
{
    probe *p = self;
    p->idles++;
    if (p->idle_every == 0)
        return HY_NEVER;
    if (now_ns >= p->idle_next) {
        record(p, 1000);
        p->idle_next = now_ns + p->idle_every;
    }
    return p->idle_next;
}

static void on_drain(void *self)
{
    ((probe *)self)->drained++;
}

static bool busy(void *self)
{
    return ((probe *)self)->holding;
}

static void on_stop(void *self)
{
    ((probe *)self)->stopped++;
}

static const hy_stage_ops ops = {.on_start = on_start,
                                 .on_msg = on_msg,
                                 .on_idle = on_idle,
                                 .on_drain = on_drain,
                                 .busy = busy,
                                 .on_stop = on_stop};

static hy_runtime *rt;
static probe p;

static void begin(hy_runtime_mode mode, size_t slots)
{
    memset(&p, 0, sizeof(p));
    n_dropped = 0;
    rt = hy_runtime_create(mode, 1);
    p.s = hy_stage_create("probe", &ops, &p, slots, 2);
    assert_int_equal(hy_runtime_add(rt, p.s), HY_OK);
}

static void end(void)
{
    hy_runtime_destroy(rt);
    hy_stage_destroy(p.s);
    assert_int_equal(p.started, p.stopped);
}

static hy_status post(int kind, uint64_t arg)
{
    hy_msg m = {.kind = kind, .arg = arg, .data = malloc(1), .drop = count_drop};
    hy_status st = hy_stage_post(p.s, &m);
    if (st != HY_OK)
        hy_msg_drop(&m);
    return st;
}

static void idle(void)
{
    assert_int_equal(hy_runtime_run_until_idle(rt, 20 * HY_SEC), HY_OK);
}

#define BOTH(name)                                                                                 \
    static void name##_threads(void **state)                                                       \
    {                                                                                              \
        (void)state;                                                                               \
        name(HY_RUNTIME_THREADS);                                                                  \
    }                                                                                              \
    static void name##_virtual(void **state)                                                       \
    {                                                                                              \
        (void)state;                                                                               \
        name(HY_RUNTIME_VIRTUAL);                                                                  \
    }

static void lifecycle(hy_runtime_mode mode)
{
    begin(mode, 8);
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal(post(MSG_LOG, i), HY_OK); /* before start: kept */
    assert_int_equal(post(MSG_LOG, 8), HY_AGAIN);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    idle();
    assert_int_equal(p.n, 8);
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal(p.args[i], i);
    assert_true(p.idles >= 1);
    assert_int_equal(hy_stage_handled(p.s), 8);
    post(MSG_LOG, 77);
    hy_runtime_stop(rt); /* what was accepted is still delivered */
    assert_int_equal(p.n, 9);
    assert_int_equal(p.stopped, 1);
    assert_int_equal(post(MSG_LOG, 1), HY_E_ABORTED);
    end();
}
BOTH(lifecycle)

static void timers(hy_runtime_mode mode)
{
    begin(mode, 8);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    uint64_t t0 = hy_stage_now(p.s);
    post(MSG_ARM, 0);
    post(MSG_CANCEL, 0);
    assert_int_equal(hy_runtime_run_for(rt, 12 * STEP), HY_OK);
    idle();
    assert_int_equal(p.n, 3);
    assert_int_equal(p.args[0], 100);
    assert_int_equal(p.args[1], 1);
    assert_int_equal(p.args[2], 3);
    assert_true(p.when[1] >= t0 + STEP && p.when[2] >= t0 + 3 * STEP);
    if (mode == HY_RUNTIME_VIRTUAL) { /* exactly, and the clock went where it was told */
        assert_true(p.when[1] == t0 + STEP && p.when[2] == t0 + 3 * STEP);
        assert_true(hy_stage_now(p.s) == t0 + 12 * STEP);
    }
    post(MSG_CANCEL, 0);
    idle();
    assert_int_equal(p.args[3], 200); /* nothing left to cancel */
    end();
}
BOTH(timers)

static void delayed_message(hy_runtime_mode mode)
{
    begin(mode, 2);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    uint64_t t0 = hy_stage_now(p.s);
    hy_msg later = {.kind = MSG_LOG, .arg = 2, .at_ns = t0 + 10 * HY_MS};
    hy_msg soon = {.kind = MSG_LOG, .arg = 1};
    assert_int_equal(hy_stage_post(p.s, &later), HY_OK);
    assert_int_equal(hy_stage_post(p.s, &soon), HY_OK);
    assert_int_equal(hy_runtime_run_for(rt, 40 * HY_MS), HY_OK);
    idle();
    assert_int_equal(p.n, 2);
    assert_int_equal(p.args[0], 1);
    assert_int_equal(p.args[1], 2);
    assert_true(p.when[1] >= t0 + 10 * HY_MS);
    end();
}
BOTH(delayed_message)

static void undelivered_are_dropped(hy_runtime_mode mode)
{
    begin(mode, 4);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    hy_msg never = {.kind = MSG_LOG,
                    .data = malloc(1),
                    .drop = count_drop,
                    .at_ns = hy_stage_now(p.s) + 3600 * HY_SEC};
    assert_int_equal(hy_stage_post(p.s, &never), HY_OK);
    assert_int_equal(hy_runtime_run_for(rt, 5 * HY_MS), HY_OK);
    end();
    assert_int_equal(p.n, 0);
    assert_int_equal(n_dropped, 1);
}
BOTH(undelivered_are_dropped)

static void idle_deadlines(hy_runtime_mode mode)
{
    begin(mode, 4);
    p.idle_every = 10 * HY_MS;
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    assert_int_equal(hy_runtime_run_for(rt, 105 * HY_MS), HY_OK);
    hy_runtime_stop(rt);
    if (mode == HY_RUNTIME_VIRTUAL) {
        assert_int_equal(p.n, 11); /* at 0, 10, ... 100 ms */
        for (int i = 1; i < p.n; i++)
            assert_true(p.when[i] - p.when[i - 1] == 10 * HY_MS);
    } else { /* a loaded machine may be late with each, and so may the stop be */
        assert_true(p.n >= 2);
    }
    end();
}
BOTH(idle_deadlines)

static void due_timers_do_not_starve_messages(hy_runtime_mode mode)
{
    begin(mode, 8);
    post(MSG_STORM, 100000);
    post(MSG_LOG, 5);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    if (mode == HY_RUNTIME_VIRTUAL)
        for (int i = 0; i < 20 && p.n == 0; i++)
            assert_int_equal(hy_runtime_step(rt, HY_NEVER), HY_OK);
    else
        idle();
    assert_int_equal(p.n, 1);
    if (mode == HY_RUNTIME_VIRTUAL)
        assert_true(hy_stage_handled(p.s) < 20);
    idle();
    assert_int_equal(hy_stage_handled(p.s), 100002);
    assert_true(p.idles > 1000); /* idle work is not starved either */
    end();
}
BOTH(due_timers_do_not_starve_messages)

static void drain_waits_for_busy_threads(void **state)
{
    (void)state;
    begin(HY_RUNTIME_THREADS, 4);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    post(MSG_HOLD, 3600 * HY_SEC); /* until told, so that a slow machine changes nothing */
    assert_int_equal(hy_runtime_drain(rt, 1 * HY_MS), HY_E_TIMEOUT);
    post(MSG_HOLD, 0);
    assert_int_equal(hy_runtime_drain(rt, 20 * HY_SEC), HY_OK);
    assert_false(p.holding);
    assert_in_range(p.drained, 1, 2); /* once for both where the first was not seen in its 1 ms */
    end();
}

static void drain_waits_for_busy_virtual(void **state)
{
    (void)state;
    begin(HY_RUNTIME_VIRTUAL, 4);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    post(MSG_HOLD, 50 * HY_MS);
    uint64_t t0 = hy_stage_now(p.s);
    assert_int_equal(hy_runtime_drain(rt, 49 * HY_MS), HY_E_TIMEOUT);
    assert_non_null(strstr(hy_fail_text(), "stage probe is not done"));
    assert_int_equal(hy_runtime_drain(rt, 20 * HY_SEC), HY_OK);
    assert_true(hy_stage_now(p.s) == t0 + 50 * HY_MS);
    assert_int_equal(p.drained, 2);
    end();
}

static char last_log[256];
static void sink(void *arg, hy_log_level level, const char *module, const char *text)
{
    (void)arg;
    snprintf(last_log, sizeof(last_log), "%d %s %s", (int)level, module, text);
}

static _Atomic int n_fails;
static void on_fail(void *arg)
{
    (void)arg;
    n_fails++;
}

static void failures(hy_runtime_mode mode)
{
    const char *text;
    hy_log_set_sink(sink, NULL);
    begin(mode, 4);
    n_fails = 0;
    hy_runtime_on_fail(rt, on_fail, NULL);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    hy_stage_post(p.s, &(hy_msg){.kind = MSG_FAIL});
    idle();
    assert_string_equal(last_log, "0 probe message 4: no good (HY_E_INVAL)");
    assert_int_equal(hy_stage_failed(p.s), 1);
    assert_int_equal(hy_runtime_failed(rt, NULL), HY_OK); /* one request's failure only */
    hy_stage_post(p.s, &(hy_msg){.kind = MSG_FATAL});
    hy_stage_post(p.s, &(hy_msg){.kind = MSG_FATAL});
    idle();
    assert_int_equal(hy_runtime_failed(rt, &text), HY_E_IO);
    assert_string_equal(text, "disk gone");
    assert_int_equal(n_fails, 1);
    end();
    hy_log_set_sink(NULL, NULL);
}
BOTH(failures)

static hy_status bad_start(void *self)
{
    (void)self;
    return hy_fail(HY_E_DEVICE, "no such device");
}

static void failing_start_stops_the_rest(hy_runtime_mode mode)
{
    begin(mode, 4);
    const hy_stage_ops bad_ops = {.on_start = bad_start, .on_msg = on_msg};
    hy_stage *bad = hy_stage_create("bad", &bad_ops, &p, 4, 0);
    hy_runtime_add(rt, bad);
    assert_int_equal(hy_runtime_start(rt), HY_E_DEVICE);
    assert_string_equal(hy_fail_text(), "stage bad: no such device");
    assert_int_equal(p.started, 1);
    assert_int_equal(p.stopped, 1);
    end();
    hy_stage_destroy(bad);
}
BOTH(failing_start_stops_the_rest)

static void own_wait(void *self, uint64_t deadline_ns)
{
    probe *q = self;
    hy_mbox *m = hy_stage_mbox(q->s);
    uint64_t now = hy_clock_now_ns(hy_clock_real());
    int ms = deadline_ns == HY_NEVER ? -1
             : deadline_ns > now     ? (int)((deadline_ns - now) / HY_MS + 1)
                                     : 0;
    struct pollfd f = {hy_mbox_fd(m), POLLIN, 0};
    poll(&f, 1, ms);
    hy_mbox_fd_clear(m);
    q->waits++;
}

/* A stage that sleeps in an event loop of its own works like any other, in both modes. */
static void event_loop_stage(hy_runtime_mode mode)
{
    begin(mode, 64);
    hy_runtime_destroy(rt);
    hy_stage_destroy(p.s);
    hy_stage_ops loop_ops = ops;
    loop_ops.wait = own_wait;
    rt = hy_runtime_create(mode, 1);
    p.s = hy_stage_create("loop", &loop_ops, &p, 64, 0);
    hy_runtime_add(rt, p.s);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    post(MSG_ARM, 0);
    assert_int_equal(hy_runtime_run_for(rt, 12 * STEP), HY_OK);
    for (uint64_t i = 0; i < 30; i++)
        post(MSG_LOG, i);
    idle();
    assert_int_equal(p.n, 33);
    hy_runtime_stop(rt);
    if (mode == HY_RUNTIME_THREADS)
        assert_true(p.waits >= 3);
    else
        assert_int_equal(p.waits, 0);
    end();
}
BOTH(event_loop_stage)

#define TWO(name) cmocka_unit_test(name##_threads), cmocka_unit_test(name##_virtual)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TWO(lifecycle),
        TWO(timers),
        TWO(delayed_message),
        TWO(undelivered_are_dropped),
        TWO(idle_deadlines),
        TWO(due_timers_do_not_starve_messages),
        TWO(drain_waits_for_busy),
        TWO(failures),
        TWO(failing_start_stops_the_rest),
        TWO(event_loop_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
