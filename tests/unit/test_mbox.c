/* SPDX-License-Identifier: Apache-2.0
 *
 * Mailbox: order, back-pressure, reserved credit, ownership, sleep and wake, many producers.
 *
 * Thread: test and its producers; asserts on the test thread only.  Owner: the test.
 */
#include "core/base/clock.h"
#include "core/base/mbox.h"
#include "tests/unit/cm.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

static int dropped;
static void drop(void *p)
{
    free(p);
    dropped++;
}

static hy_msg msg(int kind)
{
    return (hy_msg){.kind = kind, .data = malloc(1), .drop = drop};
}

static void fifo_and_full(void **state)
{
    (void)state;
    hy_mbox *m = hy_mbox_create(3, 2);
    hy_msg x, out;
    dropped = 0;
    assert_int_equal(hy_mbox_take(m, &out), HY_AGAIN);
    for (int i = 0; i < 3; i++) {
        x = msg(i);
        assert_int_equal(hy_mbox_post(m, &x), HY_OK);
    }
    x = msg(3);
    assert_int_equal(hy_mbox_post(m, &x), HY_AGAIN); /* still ours */
    assert_int_equal(hy_mbox_refused(m), 1);
    assert_int_equal(hy_mbox_post_reserved(m, &x), HY_OK);
    x = msg(4);
    assert_int_equal(hy_mbox_post_reserved(m, &x), HY_OK);
    x = msg(5);
    assert_int_equal(hy_mbox_post_reserved(m, &x), HY_AGAIN);
    /* one leaves: 4 inside, so the ordinary slots are still taken, a reserved one is free */
    assert_int_equal(hy_mbox_take(m, &out), HY_OK);
    assert_int_equal(out.kind, 0);
    hy_msg_drop(&out);
    assert_int_equal(hy_mbox_post(m, &x), HY_AGAIN);
    assert_int_equal(hy_mbox_post_reserved(m, &x), HY_OK);
    for (int want = 1; want <= 5; want++) {
        assert_int_equal(hy_mbox_take(m, &out), HY_OK);
        assert_int_equal(out.kind, want);
        hy_msg_drop(&out);
    }
    assert_int_equal(dropped, 6);
    assert_int_equal(hy_mbox_posted(m), 6);
    hy_mbox_destroy(m);
}

static void destroy_drops(void **state)
{
    (void)state;
    hy_mbox *m = hy_mbox_create(8, 0);
    dropped = 0;
    for (int i = 0; i < 5; i++) {
        hy_msg x = msg(i);
        hy_mbox_post(m, &x);
    }
    hy_msg plain = {.kind = 9}; /* nothing to free */
    hy_mbox_post(m, &plain);
    hy_mbox_destroy(m);
    assert_int_equal(dropped, 5);
    hy_mbox_destroy(NULL);
}

static void close_lets_out_not_in(void **state)
{
    (void)state;
    hy_mbox *m = hy_mbox_create(4, 0);
    hy_msg x = msg(1), out;
    hy_mbox_post(m, &x);
    hy_mbox_close(m);
    x = msg(2);
    assert_int_equal(hy_mbox_post(m, &x), HY_E_ABORTED);
    assert_int_equal(hy_mbox_post_reserved(m, &x), HY_E_ABORTED);
    hy_msg_drop(&x);
    hy_mbox_wait(m, HY_NEVER); /* does not sleep */
    assert_int_equal(hy_mbox_take(m, &out), HY_OK);
    hy_msg_drop(&out);
    hy_mbox_wait(m, HY_NEVER);
    assert_int_equal(hy_mbox_take(m, &out), HY_END);
    hy_mbox_destroy(m);
}

static void wait_has_a_deadline(void **state)
{
    (void)state;
    hy_mbox *m = hy_mbox_create(1, 0);
    uint64_t t0 = hy_clock_now_ns(hy_clock_real());
    hy_mbox_wait(m, t0 + 20 * HY_MS);
    assert_true(hy_clock_now_ns(hy_clock_real()) - t0 >= 20 * HY_MS);
    hy_mbox_wake(m); /* before the wait: not lost */
    hy_mbox_wait(m, HY_NEVER);
    hy_mbox_destroy(m);
}

static void descriptor_tells(void **state)
{
    (void)state;
    hy_mbox *m = hy_mbox_create(4, 0);
    hy_msg x = {.kind = 1}, out;
    hy_mbox_post(m, &x); /* before the descriptor exists */
    struct pollfd p = {hy_mbox_fd(m), POLLIN, 0};
    assert_true(p.fd >= 0);
    assert_int_equal(poll(&p, 1, 0), 1);
    hy_mbox_fd_clear(m);
    assert_int_equal(hy_mbox_take(m, &out), HY_OK);
    assert_int_equal(poll(&p, 1, 0), 0);
    hy_mbox_post(m, &x);
    assert_int_equal(poll(&p, 1, 0), 1);
    hy_mbox_fd_clear(m);
    assert_int_equal(poll(&p, 1, 0), 0);
    hy_mbox_wake(m);
    assert_int_equal(poll(&p, 1, 0), 1);
    assert_int_equal(hy_mbox_fd(m), p.fd);
    hy_mbox_destroy(m);
}

enum { PRODUCERS = 4, EACH = 5000 };

static void *produce(void *arg)
{
    hy_mbox *m = arg;
    static _Atomic int ids;
    int id = ids++;
    for (int i = 0; i < EACH; i++) {
        hy_msg x = {.kind = id, .arg = (uint64_t)i};
        while (hy_mbox_post(m, &x) == HY_AGAIN)
            sched_yield();
    }
    return NULL;
}

static void *post_last(void *arg)
{
    const hy_msg x = {.kind = 1};
    assert_int_equal(hy_mbox_post(arg, &x), HY_OK);
    return NULL;
}

/* Who has got the last message may let the mailbox go, while its sender is still on the way out
 * (sanitizers see what is touched then). */
static void gone_with_the_last(void **state)
{
    (void)state;
    for (int i = 0; i < 500; i++) {
        hy_mbox *m = hy_mbox_create(1, 0);
        pthread_t t;
        hy_msg out;
        assert_int_equal(pthread_create(&t, NULL, post_last, m), 0);
        while (hy_mbox_take(m, &out) != HY_OK)
            hy_mbox_wait(m, HY_NEVER);
        hy_mbox_destroy(m);
        pthread_join(t, NULL);
    }
}

static void many_producers(void **state)
{
    (void)state;
    hy_mbox *m = hy_mbox_create(16, 0);
    pthread_t t[PRODUCERS];
    uint64_t next[PRODUCERS] = {0};
    for (int i = 0; i < PRODUCERS; i++)
        pthread_create(&t[i], NULL, produce, m);
    bool ordered = true;
    for (int got = 0; got < PRODUCERS * EACH;) {
        hy_msg x;
        if (hy_mbox_take(m, &x) != HY_OK) {
            hy_mbox_wait(m, HY_NEVER);
            continue;
        }
        ordered = ordered && x.arg == next[x.kind]++;
        got++;
    }
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(t[i], NULL);
    assert_true(ordered);
    for (int i = 0; i < PRODUCERS; i++)
        assert_int_equal(next[i], EACH);
    assert_int_equal(hy_mbox_len(m), 0);
    hy_mbox_destroy(m);
}

static size_t resident(void)
{
    unsigned long all = 0, here = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &all, &here), 2);
    fclose(f);
    return (size_t)here * (size_t)sysconf(_SC_PAGESIZE);
}

/* A large mailbox in which little waits stays small, however many messages go through. */
static void memory_is_as_deep_as_the_queue(void **state)
{
    (void)state;
    enum { SLOTS = 2000000 };
    hy_mbox *m = hy_mbox_create(SLOTS, 0);
    const hy_msg a = {.kind = 1}, b = {.kind = 2};
    hy_msg got;
    const size_t before = resident();
    for (int i = 0; i < SLOTS; i++) {
        assert_int_equal(hy_mbox_post(m, &a), HY_OK);
        assert_int_equal(hy_mbox_post(m, &b), HY_OK);
        assert_int_equal(hy_mbox_take(m, &got), HY_OK);
        assert_int_equal(got.kind, 1);
        assert_int_equal(hy_mbox_take(m, &got), HY_OK);
        assert_int_equal(got.kind, 2);
    }
    assert_true(resident() < before + SLOTS * sizeof(hy_msg) / 4);
    hy_mbox_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_as_deep_as_the_queue),
        cmocka_unit_test(fifo_and_full),
        cmocka_unit_test(destroy_drops),
        cmocka_unit_test(close_lets_out_not_in),
        cmocka_unit_test(wait_has_a_deadline),
        cmocka_unit_test(descriptor_tells),
        cmocka_unit_test(gone_with_the_last),
        cmocka_unit_test(many_producers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
