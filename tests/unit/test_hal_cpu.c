/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu device and its scalar reference on cases worked out by hand; topology. What the ops are
 * worth against double precision is the conformance suite's matter.
 *
 * Thread: main.  Owner: the group's set-up opens the device.
 */
#include "tests/unit/cm.h"

#include "hal/registry.h"
#include "hal/topology.h"

#include <math.h>
#include <string.h>

static hy_dev *dev;
static hy_queue *queue;

static int setup(void **state)
{
    (void)state;
    hy_dev_opts o = {.backend = "cpu", .isa = "scalar"};
    return hy_dev_open(&o, &dev) != HY_OK || dev->ops->queue_create(dev, &queue) != HY_OK;
}

static int teardown(void **state)
{
    (void)state;
    dev->ops->queue_destroy(queue);
    hy_dev_close(dev);
    return 0;
}

static bool all_zero(const uint8_t *p, size_t n)
{
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

static void test_alloc(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 63, 4096, ((size_t)2 << 20) - 1, (size_t)2 << 20, 5000001};
    for (size_t i = 0; i < HY_COUNTOF(sizes); i++) {
        void *p = NULL;
        assert_int_equal(dev->ops->alloc(dev, sizes[i], &p), HY_OK);
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_true(all_zero(p, sizes[i]));
        memset(p, 0xa5, sizes[i]);
        dev->ops->free(dev, p, sizes[i]);
    }
    void *p = NULL;
    assert_int_equal(dev->ops->alloc(dev, SIZE_MAX - 100, &p), HY_E_NOMEM_DEVICE);
    assert_null(p);
    dev->ops->free(dev, NULL, 0);
}

static void test_events(void **state)
{
    (void)state;
    hy_event *e = NULL;
    assert_int_equal(dev->ops->event_create(dev, &e), HY_OK);
    assert_int_equal(dev->ops->event_record(queue, e), HY_OK);
    assert_int_equal(dev->ops->event_wait(queue, e), HY_OK);
    assert_int_equal(dev->ops->event_query(e), HY_OK);
    assert_int_equal(dev->ops->event_sync(e), HY_OK);
    dev->ops->event_destroy(e);
}

static void test_isa(void **state)
{
    (void)state;
    hy_dev *d = NULL;
    hy_dev_opts o = {.backend = "cpu", .isa = "avx3"};
    assert_int_equal(hy_dev_open(&o, &d), HY_E_INVAL);
    assert_non_null(strstr(hy_fail_text(), "avx2"));
    const char *const kv[] = {"threads=1", "isa=scalar", NULL};
    o = (hy_dev_opts){.backend = "cpu", .kv = kv};
    assert_int_equal(hy_dev_open(&o, &d), HY_OK);
    hy_dev_props p;
    assert_int_equal(d->ops->props(d, &p), HY_OK);
    assert_string_equal(p.isa, "scalar");
    assert_true(p.host_visible && p.exact && p.mem_total > 0);
    hy_dev_close(d);
}

/* amax 127 gives d = 1, so codes are the rounded values: 0.5 goes to 0, 1.5 to 2 (even). */
static void test_matmul_int8(void **state)
{
    (void)state;
    uint8_t w[34] = {0x00, 0x3c}; /* q8_0 with d = 1 */
    float x[32] = {127.0f, 0.5f, 1.5f, -2.5f}, y = 0.0f, bias = 0.25f;
    for (int i = 0; i < 4; i++)
        w[2 + i] = (uint8_t)(i + 1);
    hy_weight_src src = {.type = HY_Q8_0, .n = 1, .k = 32, .data = w};
    hy_weight *h = NULL;
    assert_int_equal(dev->math->prepare_weight(dev, &src, &h), HY_OK);
    hy_matmul a = {.w = h, .x = x, .ldx = 32, .y = &y, .ldy = 1, .m = 1, .bias = &bias};
    a.act = HY_ACT_INT8;
    assert_int_equal(dev->math->matmul(queue, &a), HY_OK);
    assert_true(y == 127.0f + 0.0f + 3.0f * 2.0f - 4.0f * 2.0f + 0.25f);
    a.act = HY_ACT_F32;
    assert_int_equal(dev->math->matmul(queue, &a), HY_OK);
    assert_true(y == 127.0f + 2.0f * 0.5f + 3.0f * 1.5f - 4.0f * 2.5f + 0.25f);

    a.act = HY_ACT_INT8;
    a.bias = NULL;
    memset(x, 0, sizeof(x));
    x[3] = 1e-38f; /* 127 / amax overflows: counts as zero, and is no NaN */
    assert_int_equal(dev->math->matmul(queue, &a), HY_OK);
    assert_true(y == 0.0f);
    x[7] = INFINITY; /* poisons the output, even where the weight is 0 */
    assert_int_equal(dev->math->matmul(queue, &a), HY_OK);
    assert_true(isnan(y));
    dev->math->weight_free(dev, h);
}

static void test_weight_errors(void **state)
{
    (void)state;
    float data[64] = {0};
    hy_weight *w = NULL;
    hy_weight_src src = {.type = HY_Q4_K, .n = 1, .k = 100, .data = data};
    assert_int_equal(dev->math->prepare_weight(dev, &src, &w), HY_E_INVAL);
    src.type = HY_I32;
    assert_int_equal(dev->math->prepare_weight(dev, &src, &w), HY_E_UNSUPPORTED);
    src = (hy_weight_src){.type = HY_F32, .n = 0, .k = 4, .data = data};
    assert_int_equal(dev->math->prepare_weight(dev, &src, &w), HY_E_INVAL);
    assert_null(w);
}

static void test_embed_range(void **state)
{
    (void)state;
    float table[] = {1, 2, 3, 4, 5, 6}, y[4];
    hy_weight_src src = {.type = HY_F32, .n = 3, .k = 2, .data = table, .gather = true};
    hy_weight *w = NULL;
    assert_int_equal(dev->math->prepare_weight(dev, &src, &w), HY_OK);
    int32_t ids[] = {2, 0};
    hy_embed e = {.w = w, .ids = ids, .m = 2, .y = y, .ldy = 2, .scale = 10.0f};
    assert_int_equal(dev->math->embed(queue, &e), HY_OK);
    assert_true(y[0] == 50.0f && y[1] == 60.0f && y[2] == 10.0f && y[3] == 20.0f);
    ids[1] = 3;
    assert_int_equal(dev->math->embed(queue, &e), HY_E_INVAL);
    ids[1] = -1;
    assert_int_equal(dev->math->embed(queue, &e), HY_E_INVAL);
    dev->math->weight_free(dev, w);
}

static void test_topk(void **state)
{
    (void)state;
    float x[] = {1.0f, NAN, 3.0f, 3.0f, -INFINITY}, v[4], lse;
    int32_t ids[4];
    hy_topk t = {.logits = x, .ld = 5, .m = 1, .n = 5, .k = 4, .ids = ids, .values = v};
    t.lse = &lse;
    assert_int_equal(dev->math->topk(queue, &t), HY_OK);
    assert_int_equal(ids[0], 2); /* ties to the lower id */
    assert_int_equal(ids[1], 3);
    assert_int_equal(ids[2], 0);
    assert_int_equal(ids[3], 1); /* NaN counts as -inf, as id 4 is */
    assert_true(v[3] == -INFINITY);
    assert_true(fabs((double)lse - (3.0 + log(2.0 + exp(-2.0)))) < 1e-6);
    for (int i = 0; i < 5; i++)
        x[i] = NAN;
    assert_int_equal(dev->math->topk(queue, &t), HY_OK);
    assert_true(lse == -INFINITY);
    t.k = 257;
    assert_int_equal(dev->math->topk(queue, &t), HY_E_INVAL);
}

/* One position: softmax of one score is 1 and the output is V itself. A block outside the pool,
 * and one that a window has passed, are refused rather than read. */
static void test_attention(void **state)
{
    (void)state;
    hy_kv_pool pool = {.n_blocks = 1};
    hy_kv_layout *l = &pool.layout;
    *l = (hy_kv_layout){HY_F16, HY_F16, 1, 1, 4, 0, 0, {.width = 2}, {.width = 2}, 0};
    assert_int_equal(dev->math->kv_layout(dev, l), HY_OK);
    assert_int_equal(dev->ops->alloc(dev, (size_t)l->bytes_per_block, &pool.base), HY_OK);
    int32_t pos[] = {0}, seq_row[] = {0, 1}, table[] = {0};
    hy_rows rows = {.n = 1, .n_seqs = 1, .pos = pos, .seq_row = seq_row};
    float k[] = {1.0f, 2.0f}, v[] = {3.0f, 1.0f / 3.0f}, q[] = {5.0f, 7.0f}, out[2];
    hy_kv_write w = {.pool = &pool, .rows = &rows, .bt = {table, 1}, .k = k, .v = v};
    w.ldk = w.ldv = 2;
    hy_attn a = {.pool = &pool, .rows = &rows, .bt = {table, 1}, .q = q, .ldq = 2, .heads = 1};
    a.out = out;
    a.ldo = 2;
    a.scale = 1.0f;
    assert_int_equal(dev->math->kv_write(queue, &w), HY_OK);
    assert_int_equal(dev->math->attention(queue, &a), HY_OK);
    assert_true(out[0] == 3.0f);
    assert_true(out[1] == hy_f16_to_f32(hy_f32_to_f16(1.0f / 3.0f)));
    table[0] = 1;
    assert_int_equal(dev->math->kv_write(queue, &w), HY_E_INVAL);
    assert_int_equal(dev->math->attention(queue, &a), HY_E_INVAL);
    table[0] = -1;
    assert_int_equal(dev->math->attention(queue, &a), HY_E_INVAL);
    dev->ops->free(dev, pool.base, (size_t)l->bytes_per_block);
}

static void test_kv_layout_errors(void **state)
{
    (void)state;
    hy_kv_layout l = {HY_F32, HY_F16, 1, 1, 4, 0, 0, {.width = 2}, {.width = 2}, 0};
    assert_int_equal(dev->math->kv_layout(dev, &l), HY_E_UNSUPPORTED); /* narrower than values */
    l.type = HY_F32;
    l.block_tokens = 257;
    assert_int_equal(dev->math->kv_layout(dev, &l), HY_E_INVAL);
}

static void test_scratch_too_small(void **state)
{
    (void)state;
    float x[4] = {0}, ws[8];
    float table[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    hy_weight_src src = {.type = HY_F32, .n = 4, .k = 4, .data = table};
    hy_weight *w = NULL;
    assert_int_equal(dev->math->prepare_weight(dev, &src, &w), HY_OK);
    hy_ffn f = {.x = x, .ldx = 4, .dim = 4, .m = 1, .up = w, .down = w};
    f.ws = (hy_ws){ws, sizeof(ws)};
    assert_int_equal(dev->math->ffn(queue, &f), HY_E_INVAL);
    assert_non_null(strstr(hy_fail_text(), "hy_ws_bytes"));
    dev->math->weight_free(dev, w);
}

static void test_topology(void **state)
{
    (void)state;
    hy_topo t;
    int cpus[64];
    assert_int_equal(hy_topo_get(&t), HY_OK);
    assert_true(t.cores >= 1 && t.cores <= t.cores_total);
    assert_true(t.pus >= t.cores && t.pus <= t.pus_total);
    assert_true(t.mem_total > 0);
    int n = hy_topo_threads();
    assert_true(n >= 1 && n <= t.pus);
    assert_true(hy_topo_cpus(cpus, 64) >= 1);
    assert_int_equal(hy_topo_cpus(cpus, 1), 1);
    hy_buf b;
    hy_buf_init(&b);
    hy_topo_print(&b);
    assert_non_null(strstr(hy_buf_str(&b), "cpus: "));
    assert_non_null(strstr(hy_buf_str(&b), "numa 0: "));
    hy_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_isa),
        cmocka_unit_test(test_matmul_int8),
        cmocka_unit_test(test_weight_errors),
        cmocka_unit_test(test_embed_range),
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_kv_layout_errors),
        cmocka_unit_test(test_scratch_too_small),
        cmocka_unit_test(test_topology),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
