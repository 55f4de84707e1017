/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda module's order and errors against the driver's double: copies after compute across
 * queues, events, every allocation failing in turn. And that the double would notice: without the
 * event the copy comes too early.
 *
 * Thread: main.  Owner: each test.
 */
#include "hal/backend.h"
#include "hal/registry.h"
#include "tests/unit/cm.h"

#include <string.h>

enum { N = 1000, BYTES = N * 4 };

static hy_dev *open_dev(void)
{
    hy_dev_opts o = {.backend = "cuda"};
    hy_dev *d = NULL;
    assert_int_equal(hy_dev_open(&o, &d), HY_OK);
    return d;
}

/* y = a + b on q. */
static hy_status add(hy_queue *q, float *a, float *b, float *y)
{
    hy_add op = {
        .a = a, .b = b, .y = y, .lda = N, .ldb = N, .ldy = N, .m = 1, .dim = N, .b_scale = 1.0f};
    return q->dev->math->add(q, &op);
}

static void two_queues(bool ordered, float *out)
{
    hy_dev *d = open_dev();
    hy_queue *p, *q;
    hy_event *e;
    void *a, *y, *z;
    float host[N];
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    assert_int_equal(d->ops->queue_create(d, &p), HY_OK);
    assert_int_equal(d->ops->queue_create(d, &q), HY_OK);
    assert_int_equal(d->ops->event_create(d, &e), HY_OK);
    assert_int_equal(d->ops->alloc(d, BYTES, &a), HY_OK);
    assert_int_equal(d->ops->alloc(d, BYTES, &y), HY_OK);
    assert_int_equal(d->ops->alloc(d, BYTES, &z), HY_OK);
    assert_int_equal(d->ops->copy(p, a, host, BYTES), HY_OK);
    memset(host, 0, sizeof(host)); /* pageable memory was taken by then */
    assert_int_equal(add(p, a, a, y), HY_OK);
    assert_int_equal(d->ops->event_record(p, e), HY_OK);
    assert_int_equal(d->ops->event_query(e), HY_AGAIN);
    if (ordered)
        assert_int_equal(d->ops->event_wait(q, e), HY_OK);
    assert_int_equal(d->ops->copy(q, z, y, BYTES), HY_OK);
    assert_int_equal(d->ops->copy(q, out, z, BYTES), HY_OK);
    assert_int_equal(d->ops->queue_wait(q), HY_OK);
    assert_int_equal(d->ops->event_sync(e), HY_OK);
    assert_int_equal(d->ops->event_query(e), HY_OK);
    d->ops->free(d, a, BYTES);
    d->ops->free(d, y, BYTES);
    d->ops->free(d, z, BYTES);
    d->ops->event_destroy(e);
    d->ops->queue_destroy(p);
    d->ops->queue_destroy(q);
    hy_dev_close(d); /* the double aborts when something is left */
}

static void test_order(void **state)
{
    (void)state;
    float out[N];
    two_queues(true, out);
    for (int i = 0; i < N; i++)
        assert_true(out[i] == 2.0f * (float)i);
    two_queues(false, out);
    assert_true(out[N - 1] == 0.0f); /* as alloc cleared it: the copy came first */
}

/* A step's worth of calls; the status of the first that fails. */
static hy_status some_work(hy_dev *d)
{
    static float w[64 * 32], x[64 * 32], y[64 * 64];
    hy_weight_src src = {.type = HY_F32, .n = 64, .k = 32, .data = w};
    hy_weight *wt = NULL;
    hy_queue *q = NULL;
    void *dx = NULL, *dy = NULL;
    float lse[64];
    hy_status st = d->ops->queue_create(d, &q);
    if (st == HY_OK)
        st = d->math->prepare_weight(d, &src, &wt);
    if (st == HY_OK)
        st = d->ops->alloc(d, sizeof(x), &dx);
    if (st == HY_OK)
        st = d->ops->alloc(d, sizeof(y), &dy);
    if (st == HY_OK)
        st = d->ops->copy(q, dx, x, sizeof(x));
    hy_matmul m = {.w = wt, .x = dx, .ldx = 32, .y = dy, .ldy = 64, .m = 64};
    if (st == HY_OK)
        st = d->math->matmul(q, &m);
    hy_topk t = {.logits = dy, .ld = 64, .m = 64, .n = 64, .lse = lse};
    if (st == HY_OK)
        st = d->math->topk(q, &t);
    if (st == HY_OK)
        st = d->ops->queue_wait(q);
    if (dy != NULL)
        d->ops->free(d, dy, sizeof(y));
    if (dx != NULL)
        d->ops->free(d, dx, sizeof(x));
    d->math->weight_free(d, wt);
    d->ops->queue_destroy(q);
    return st;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    char n[16];
    int failed = 0;
    for (int i = 1; i < 100; i++) {
        hy_dev *d = open_dev();
        snprintf(n, sizeof(n), "%d", i);
        setenv("HY_DOUBLE_FAIL", n, 1);
        hy_status st = some_work(d);
        unsetenv("HY_DOUBLE_FAIL");
        if (st != HY_OK) {
            assert_int_equal(st, HY_E_NOMEM_DEVICE);
            assert_non_null(strstr(hy_fail_text(), "CUDA_ERROR_OUT_OF_MEMORY"));
        }
        failed += st != HY_OK;
        assert_int_equal(some_work(d), HY_OK); /* and goes on */
        hy_dev_close(d);                       /* nothing leaked */
        if (st == HY_OK)
            break;
    }
    assert_true(failed >= 5); /* ring, upload's ring, weight, two arrays, scratch */
}

static void test_props(void **state)
{
    (void)state;
    hy_dev *d = open_dev();
    hy_dev_props p;
    assert_int_equal(d->ops->props(d, &p), HY_OK);
    assert_string_equal(p.backend, "cuda");
    assert_false(p.host_visible);
    assert_true(p.mem_total > 0);
    hy_dev_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_props), cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
