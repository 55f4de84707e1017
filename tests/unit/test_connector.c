/* SPDX-License-Identifier: Apache-2.0
 *
 * Connector tables: stubs for what is missing, shorter tables of older connectors, the order of the
 * worker half's calls.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/connector/connector.h"
#include "tests/unit/cm.h"

#include <string.h>

static void null_finds_nothing(void **state)
{
    (void)state;
    hy_connector *c = hy_connector_null();
    int32_t n = 9;
    bool async = true;
    const hy_conn_req r = {0};
    assert_int_equal(c->sched.matched(c->sched_self, &r, 0, &n, &async), HY_OK);
    assert_int_equal(n, 0);
    assert_false(async);
    hy_conn_verdict v = {.keep = true};
    const hy_conn_blocks b = {0};
    c->sched.finished(c->sched_self, &r, &b, true, &v);
    assert_false(v.keep);
    assert_null(c->sched.build_meta(c->sched_self, NULL));
    assert_false(c->sched.busy(c->sched_self));
    assert_false(c->layers);
    assert_int_equal(hy_conn_step_begin(c, NULL, NULL), HY_OK);
    hy_conn_events none = {0};
    assert_int_equal(hy_conn_step_end(c, NULL, &none), HY_OK);
    assert_int_equal(hy_conn_step_begin(NULL, NULL, NULL), HY_OK);
    assert_int_equal(hy_conn_step_end(NULL, NULL, NULL), HY_OK);
}

static char calls[256];

static void note(const char *what)
{
    strcat(calls, what);
    strcat(calls, " ");
}

static void w_preempted(void *self, hy_queue *q, const void *meta)
{
    (void)q;
    assert_ptr_equal(self, calls);
    assert_int_equal(*(const int *)meta, 5);
    note("preempted");
}

static void w_bind(void *self, const void *meta)
{
    (void)self, (void)meta;
    note("bind");
}

static hy_status w_start(void *self, hy_queue *q)
{
    (void)self, (void)q;
    note("start_load");
    return HY_OK;
}

static hy_status w_wait(void *self, hy_queue *q)
{
    (void)self, (void)q;
    note("wait_save");
    return HY_E_PEER;
}

static void w_poll(void *self, hy_conn_events *out)
{
    (void)self;
    note("poll");
    const hy_conn_event ev = {.kind = HY_CONN_SENT, .uid = 3};
    assert_int_equal(hy_conn_events_add(out, &ev), HY_OK);
    assert_int_equal(hy_conn_events_add(out, &ev), HY_AGAIN); /* full */
}

static void w_clear(void *self)
{
    (void)self;
    note("clear");
}

/* Clear and poll come even when saving failed. */
static void worker_calls_come_in_order(void **state)
{
    (void)state;
    const hy_conn_worker_ops ops = {.size = sizeof(ops),
                                    .preempted = w_preempted,
                                    .bind = w_bind,
                                    .start_load = w_start,
                                    .wait_save = w_wait,
                                    .poll = w_poll,
                                    .clear = w_clear};
    hy_connector c;
    hy_connector_init(&c, "test", NULL, NULL, &ops, calls);
    calls[0] = '\0';
    const int meta = 5;
    hy_conn_event ev[1];
    hy_conn_events out = {.ev = ev, .cap = 1};
    assert_int_equal(hy_conn_step_begin(&c, NULL, &meta), HY_OK);
    assert_int_equal(hy_conn_step_end(&c, NULL, &out), HY_E_PEER);
    assert_string_equal(calls, "preempted bind start_load wait_save poll clear ");
    assert_int_equal(out.n, 1);
    assert_false(c.layers);
}

static hy_status save(void *self, hy_queue *q, int32_t group, int32_t layer)
{
    (void)self, (void)q, (void)group, (void)layer;
    return HY_OK;
}

static void a_short_table_is_filled(void **state)
{
    (void)state;
    hy_conn_worker_ops ops = {.save_layer = save, .poll = w_poll};
    ops.size = offsetof(hy_conn_worker_ops, poll); /* made before poll existed: what follows is not
                                                    * looked at */
    hy_connector c;
    hy_connector_init(&c, "old", NULL, NULL, &ops, NULL);
    assert_ptr_equal(c.worker.save_layer, save);
    assert_true(c.layers);
    assert_ptr_equal(c.worker.poll, hy_connector_null()->worker.poll);
    assert_int_equal(c.worker.size, sizeof(ops));
    assert_int_equal(c.worker.start_load(NULL, NULL), HY_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_finds_nothing),
        cmocka_unit_test(worker_calls_come_in_order),
        cmocka_unit_test(a_short_table_is_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
