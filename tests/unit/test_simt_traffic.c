/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels move of device memory, counted by the host executor as a GPU would: neighbouring
 * lanes load neighbouring words, so that a wave's access uses the sectors of 32 bytes it touches. A
 * decode step is bound by that. The counter itself is tried on kernels whose count is known.
 *
 * Thread: main.  Owner: each test.
 */
#include "backends/simt/host/simt.h"
#include "backends/simt/ops.h"
#include "core/base/alloc.h"
#include "hal/quant.h"
#include "tests/unit/cm.h"

#include <string.h>

static const char *const waves[][3] = {{"wave=32", "traffic=true", NULL},
                                       {"wave=64", "traffic=true", NULL}};

typedef struct rig {
    hy_dev *d;
    hy_queue *q;
} rig;

static rig open_rig(int wave)
{
    hy_dev_opts o = {.backend = "simt", .n_threads = 1, .kv = waves[wave]};
    rig r = {NULL, NULL};
    assert_int_equal(hy_dev_open(&o, &r.d), HY_OK);
    assert_int_equal(r.d->ops->queue_create(r.d, &r.q), HY_OK);
    return r;
}

static void close_rig(rig *r)
{
    r->d->ops->queue_destroy(r->q);
    hy_dev_close(r->d);
}

static void *dev_mem(rig *r, size_t bytes)
{
    void *p = NULL;
    assert_int_equal(r->d->ops->alloc(r->d, bytes, &p), HY_OK);
    return p;
}

/* Sums of all kernels whose names begin so. */
static simt_traffic traffic(const rig *r, const char *prefix)
{
    const simt_traffic *t = NULL;
    simt_traffic sum = {0};
    const size_t n = simt_dev_traffic(r->d, &t);
    for (size_t i = 0; i < n; i++) {
        if (strncmp(t[i].kernel, prefix, strlen(prefix)) != 0)
            continue;
        sum.loads += t[i].loads;
        sum.load_bytes += t[i].load_bytes;
        sum.load_sectors += t[i].load_sectors;
        sum.store_bytes += t[i].store_bytes;
        sum.store_sectors += t[i].store_sectors;
        sum.lost += t[i].lost;
    }
    assert_int_equal(sum.lost, 0);
    assert_true(sum.loads > 0);
    return sum;
}

static double load_use(simt_traffic t)
{
    return (double)t.load_bytes / (32.0 * (double)t.load_sectors);
}

static double store_use(simt_traffic t)
{
    return (double)t.store_bytes / (32.0 * (double)t.store_sectors);
}

/* ---- the counter ---- */

/* add: three arrays of neighbouring floats; dim and rows so that each access is known. */
static void test_counter(void **state)
{
    (void)state;
    rig r = open_rig(0);
    float *x = dev_mem(&r, 4096 * sizeof(float));
    hy_add a = {.a = x, .lda = 128, .b = x, .ldb = 128, .y = x, .ldy = 128, .m = 2, .dim = 128};
    assert_int_equal(r.d->math->add(r.q, &a), HY_OK);
    simt_traffic t = traffic(&r, "k_add");
    assert_int_equal(t.loads, 2 * 2 * 4); /* two arrays, two rows of four waves */
    assert_int_equal(t.load_bytes, 2 * 2 * 512);
    assert_int_equal(t.load_sectors, 2 * 2 * 16);
    assert_int_equal(t.store_bytes, 2 * 512);
    assert_int_equal(t.store_sectors, 2 * 16);
    a.a = a.b = a.y = x + 1; /* one float on: each wave touches a fifth sector */
    assert_int_equal(r.d->math->add(r.q, &a), HY_OK);
    simt_traffic u = traffic(&r, "k_add");
    assert_int_equal(u.load_bytes - t.load_bytes, 2 * 2 * 512);
    assert_int_equal(u.load_sectors - t.load_sectors, 2 * 2 * 20);
    r.d->ops->free(r.d, x, 4096 * sizeof(float));
    close_rig(&r);
}

/* ---- decode ---- */

enum { OUT = 64, K = 2048, ROWS = 8 };

static void multiply(hy_dtype t, hy_act_mode act, int64_t m, int wave, double *loads)
{
    rig r = open_rig(wave);
    const size_t bytes = hy_dtype_row_bytes(t, K) * OUT;
    uint8_t *w = hy_aligned_alloc(64, bytes);
    float *x = dev_mem(&r, ROWS * K * sizeof(float)), *y = dev_mem(&r, ROWS * OUT * sizeof(float));
    assert_non_null(w);
    memset(w, 0x11, bytes);
    for (int i = 0; i < ROWS * K; i++)
        x[i] = (float)(i % 7) - 3.0f;
    hy_weight_src src = {.type = t, .n = OUT, .k = K, .data = w};
    hy_weight *dev = NULL;
    assert_int_equal(r.d->math->prepare_weight(r.d, &src, &dev), HY_OK);
    hy_matmul a = {.w = dev, .x = x, .ldx = K, .y = y, .ldy = OUT, .m = m, .act = act};
    assert_int_equal(r.d->math->matmul(r.q, &a), HY_OK);
    const simt_traffic all = traffic(&r, "k_mv");
    *loads = load_use(all);
    /* no weight is loaded twice, but with quantised ones both halves of a group ask for its words
     */
    assert_true(all.load_bytes >= bytes);
    r.d->math->weight_free(r.d, dev);
    r.d->ops->free(r.d, x, ROWS * K * sizeof(float));
    r.d->ops->free(r.d, y, ROWS * OUT * sizeof(float));
    hy_free(w);
    close_rig(&r);
}

static void test_matmul(void **state)
{
    (void)state;
    static const hy_dtype types[] = {HY_F32,  HY_F16,  HY_BF16, HY_Q8_0,  HY_Q4_0,
                                     HY_Q4_1, HY_Q5_0, HY_Q5_1, HY_Q2_K,  HY_Q3_K,
                                     HY_Q4_K, HY_Q5_K, HY_Q6_K, HY_IQ4_NL};
    for (size_t i = 0; i < HY_COUNTOF(types); i++) {
        for (int64_t m = 1; m <= ROWS; m += m == 1 ? 2 : 5) { /* 1, 3, 8 */
            for (int wave = 0; wave < 2; wave++) {
                double use = 0.0;
                multiply(types[i], HY_ACT_INT8, m, wave, &use);
                if (use < 0.8)
                    print_error("%s, %d rows, wave %d: %.2f\n", hy_dtype_name(types[i]), (int)m,
                                wave == 0 ? 32 : 64, use);
                assert_true(use >= 0.8);
            }
        }
    }
}

static void test_norm(void **state)
{
    (void)state;
    for (int wave = 0; wave < 2; wave++) {
        rig r = open_rig(wave);
        float *x = dev_mem(&r, 3 * 2048 * sizeof(float));
        hy_norm a = {.x = x,
                     .ldx = 2048,
                     .y = x,
                     .ldy = 2048,
                     .m = 2,
                     .dim = 2048,
                     .w = x + 2 * 2048,
                     .eps = 1e-5f};
        assert_int_equal(r.d->math->rms_norm(r.q, &a), HY_OK);
        const simt_traffic t = traffic(&r, "k_rms_norm");
        assert_true(load_use(t) == 1.0 && store_use(t) == 1.0);
        r.d->ops->free(r.d, x, 3 * 2048 * sizeof(float));
        close_rig(&r);
    }
}

/* Rows written, and one row that attends to all: heads 8 on 2 of 64, blocks of 16. */
static void cache(int wave, int32_t n, simt_traffic *write, simt_traffic *read)
{
    enum { HEADS = 8, KV = 2, DIM = 64, BT = 16, LEN = 512 };
    rig r = open_rig(wave);
    hy_kv_pool pool = {.layout = {.value_type = HY_F16,
                                  .type = HY_F16,
                                  .n_layers = 1,
                                  .n_heads = KV,
                                  .block_tokens = BT,
                                  .k = {.width = DIM},
                                  .v = {.width = DIM}},
                       .n_blocks = LEN / BT};
    assert_int_equal(r.d->math->kv_layout(r.d, &pool.layout), HY_OK);
    const size_t pool_bytes = (size_t)pool.layout.bytes_per_block * LEN / BT;
    const size_t bytes = LEN * HEADS * DIM * sizeof(float);
    pool.base = dev_mem(&r, pool_bytes);
    float *x = dev_mem(&r, bytes), *y = dev_mem(&r, bytes);
    int32_t table[LEN / BT], pos[LEN], seq_row[2] = {0, n};
    for (int32_t i = 0; i < LEN / BT; i++)
        table[i] = i * 7 % (LEN / BT);
    for (int32_t i = 0; i < n; i++)
        pos[i] = LEN - n + i;
    hy_rows rows = {.n = n, .n_seqs = 1, .pos = pos, .seq_row = seq_row};
    const hy_block_table bt = {table, LEN / BT};
    hy_kv_write w = {
        .pool = &pool, .rows = &rows, .bt = bt, .k = x, .v = x, .ldk = KV * DIM, .ldv = KV * DIM};
    assert_int_equal(r.d->math->kv_write(r.q, &w), HY_OK);
    hy_attn a = {.pool = &pool,
                 .rows = &rows,
                 .bt = bt,
                 .q = x,
                 .ldq = HEADS * DIM,
                 .heads = HEADS,
                 .out = y,
                 .ldo = HEADS * DIM,
                 .scale = 0.125f};
    assert_int_equal(r.d->math->attention(r.q, &a), HY_OK);
    *write = traffic(&r, "k_kv_write");
    *read = traffic(&r, "k_attn_f16");
    r.d->ops->free(r.d, pool.base, pool_bytes);
    r.d->ops->free(r.d, x, bytes);
    r.d->ops->free(r.d, y, bytes);
    close_rig(&r);
}

static void test_cache(void **state)
{
    (void)state;
    for (int wave = 0; wave < 2; wave++) {
        simt_traffic write, read;
        cache(wave, 1, &write, &read);
        assert_true(load_use(read) >= 0.8 && store_use(read) >= 0.8);
        assert_true(load_use(write) >= 0.8);
        /* K lies [dim][token], which attention reads in whole sectors: a single token's row of it
         * is two bytes of each sector, V's whole ones (docs/PERFORMANCE.md says what that costs).
         */
        assert_true(store_use(write) >= 0.1);
        cache(wave, 64, &write, &read); /* a prompt's rows */
        assert_true(load_use(read) >= 0.8);
        assert_true(load_use(write) >= 0.8 && store_use(write) >= 0.8);
    }
}

/* Activations to int8: by whole sectors in and out. */
static void test_quant(void **state)
{
    (void)state;
    rig r = open_rig(0);
    float *x = dev_mem(&r, K * sizeof(float)), *y = dev_mem(&r, OUT * sizeof(float));
    static uint8_t w[OUT * K * 34 / 32];
    hy_weight_src src = {.type = HY_Q8_0, .n = OUT, .k = K, .data = w};
    hy_weight *dev = NULL;
    assert_int_equal(r.d->math->prepare_weight(r.d, &src, &dev), HY_OK);
    hy_matmul a = {.w = dev, .x = x, .ldx = K, .y = y, .ldy = OUT, .m = 1};
    assert_int_equal(r.d->math->matmul(r.q, &a), HY_OK);
    const simt_traffic t = traffic(&r, "k_quant");
    assert_true(load_use(t) == 1.0);
    r.d->math->weight_free(r.d, dev);
    r.d->ops->free(r.d, x, K * sizeof(float));
    r.d->ops->free(r.d, y, OUT * sizeof(float));
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counter),
                                       cmocka_unit_test(test_matmul), cmocka_unit_test(test_norm),
                                       cmocka_unit_test(test_cache), cmocka_unit_test(test_quant)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
