/* SPDX-License-Identifier: Apache-2.0
 *
 * The fast kernels of the cpu backend give the bits of the scalar reference: every type, odd
 * shapes, both instruction sets where the machine has them, one and two threads.
 */
#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_int.h"
#include "core/base/rng.h"
#include "hal/quant.h"
#include "tests/unit/cm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t rng_state = 1;

static uint32_t rnd(void)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng_state >> 33);
}

static float rnd_f(void)
{
    return (float)((int)(rnd() % 20001) - 10000) / 5000.0f;
}

static float *floats(int64_t n)
{
    float *p = malloc((size_t)n * sizeof(float));
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++)
        p[i] = rnd_f();
    return p;
}

static void put_f16(uint8_t *p, float f)
{
    uint16_t h = hy_f32_to_f16(f);
    memcpy(p, &h, 2);
}

/* Random bytes with sane scales. */
static uint8_t *weights(hy_dtype t, int64_t n, int64_t k)
{
    const hy_dtype_info *info = hy_dtype_get(t);
    size_t bytes = hy_dtype_row_bytes(t, k) * (size_t)n;
    uint8_t *p = malloc(bytes);
    assert_non_null(p);
    static const int d_at[HY_DTYPE_MAX] = {[HY_Q6_K] = 208, [HY_Q2_K] = 80, [HY_Q3_K] = 108};
    bool two = t == HY_Q4_1 || t == HY_Q5_1 || t == HY_Q4_K || t == HY_Q5_K || t == HY_Q2_K;
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)rnd();
    for (size_t i = 0; i < bytes; i += info->bytes) {
        float f = rnd_f();
        if (t == HY_F32) {
            memcpy(p + i, &f, 4);
        } else if (t == HY_F16) {
            put_f16(p + i, f);
        } else if (t == HY_BF16) {
            uint16_t h = hy_f32_to_bf16(f);
            memcpy(p + i, &h, 2);
        } else {
            put_f16(p + i + d_at[t], f * 0.01f);
            if (two)
                put_f16(p + i + d_at[t] + 2, rnd_f() * 0.01f);
        }
    }
    return p;
}

static void same(const float *a, const float *b, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t x, y;
        memcpy(&x, &a[i], 4);
        memcpy(&y, &b[i], 4);
        if (x != y && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: element %lld is %.9g (%08x), the reference says %.9g (%08x)", what,
                     (long long)i, (double)a[i], x, (double)b[i], y);
    }
}

typedef struct pair {
    hy_dev *ref, *fast;
    hy_queue *qr, *qf;
    const char *isa;
    int threads;
} pair;

/* false: this machine lacks the instruction set */
static bool open_pair(pair *p, const char *isa, int threads)
{
    cpu_features feat;
    cpu_isa got;
    cpu_isa_detect(&feat);
    if (cpu_isa_pick(isa, &feat, &got) != HY_OK)
        return false;
    hy_dev_opts r = {.backend = "cpu", .isa = "scalar", .n_threads = 1};
    hy_dev_opts f = {.backend = "cpu", .isa = isa, .n_threads = threads};
    assert_int_equal(cpu_backend.open(&r, &p->ref), HY_OK);
    assert_int_equal(cpu_backend.open(&f, &p->fast), HY_OK);
    assert_int_equal(p->ref->ops->queue_create(p->ref, &p->qr), HY_OK);
    assert_int_equal(p->fast->ops->queue_create(p->fast, &p->qf), HY_OK);
    p->isa = isa;
    p->threads = threads;
    return true;
}

static void close_pair(pair *p)
{
    p->ref->ops->queue_destroy(p->qr);
    p->fast->ops->queue_destroy(p->qf);
    p->ref->ops->close(p->ref);
    p->fast->ops->close(p->fast);
}

static void for_isas(void (*fn)(const pair *))
{
    static const char *const isas[] = {"avx2", "avx512"};
    for (size_t i = 0; i < HY_COUNTOF(isas); i++) {
        for (int threads = 1; threads <= 2; threads++) {
            pair p;
            if (!open_pair(&p, isas[i], threads)) {
                printf("skipped: no %s here\n", isas[i]);
                break;
            }
            fn(&p);
            close_pair(&p);
        }
    }
}

static void check_matmul(const pair *p, hy_dtype t, int64_t n, int64_t k, int64_t m,
                         hy_act_mode act, bool bias)
{
    char what[128];
    snprintf(what, sizeof(what), "%s %s n=%d k=%d m=%d act=%d threads=%d", p->isa, hy_dtype_name(t),
             (int)n, (int)k, (int)m, (int)act, p->threads);
    uint8_t *raw = weights(t, n, k);
    float *x = floats(m * (k + 3)), *b = floats(n);
    float *y0 = floats(m * (n + 5)), *y1 = malloc((size_t)(m * (n + 5)) * sizeof(float));
    memcpy(y1, y0, (size_t)(m * (n + 5)) * sizeof(float));
    if (k >= 32 && m > 1) { /* a block of zeros, one with an infinity */
        memset(x + k + 3, 0, 32 * sizeof(float));
        if (m > 2)
            x[2 * (k + 3) + 5] = INFINITY;
    }
    hy_weight_src src = {.type = t, .n = n, .k = k, .data = raw, .gather = true};
    hy_weight *wr, *wf;
    assert_int_equal(p->ref->math->prepare_weight(p->ref, &src, &wr), HY_OK);
    assert_int_equal(p->fast->math->prepare_weight(p->fast, &src, &wf), HY_OK);
    hy_matmul a = {.x = x, .ldx = k + 3, .ldy = n + 5, .m = m, .act = act};
    a.bias = bias ? b : NULL;
    a.w = wr;
    a.y = y0;
    assert_int_equal(p->ref->math->matmul(p->qr, &a), HY_OK);
    a.w = wf;
    a.y = y1;
    assert_int_equal(p->fast->math->matmul(p->qf, &a), HY_OK);
    same(y1, y0, m * (n + 5), what);
    int32_t ids[3] = {0, (int32_t)(n - 1), (int32_t)(n / 2)};
    float *e0 = floats(3 * k), *e1 = floats(3 * k);
    hy_embed e = {.w = wr, .ids = ids, .m = 3, .y = e0, .ldy = k, .scale = 1.25f};
    assert_int_equal(p->ref->math->embed(p->qr, &e), HY_OK);
    e.w = wf;
    e.y = e1;
    assert_int_equal(p->fast->math->embed(p->qf, &e), HY_OK);
    same(e1, e0, 3 * k, what);
    p->ref->math->weight_free(p->ref, wr);
    p->fast->math->weight_free(p->fast, wf);
    free(raw), free(x), free(b), free(y0), free(y1), free(e0), free(e1);
}

static const hy_dtype types[] = {HY_F32,  HY_F16,  HY_BF16, HY_Q4_0, HY_Q4_1, HY_Q5_0, HY_Q5_1,
                                 HY_Q8_0, HY_Q2_K, HY_Q3_K, HY_Q4_K, HY_Q5_K, HY_Q6_K, HY_IQ4_NL};

static void matmuls(const pair *p)
{
    for (size_t i = 0; i < HY_COUNTOF(types); i++) {
        int64_t block = hy_dtype_get(types[i])->block, k = block == 1    ? 67
                                                           : block == 32 ? 608
                                                                         : 768;
        for (int act = HY_ACT_INT8; act <= HY_ACT_F32; act++) {
            if (act == HY_ACT_F32 && p->threads == 2)
                continue;
            for (int64_t m = 1; m <= 14; m++)
                check_matmul(p, types[i], m % 2 == 0 ? 40 : 97, k, m, (hy_act_mode)act, m % 3 == 0);
        }
        check_matmul(p, types[i], 33, block == 1 ? 1 : block, 1, HY_ACT_INT8, false);
        check_matmul(p, types[i], 1, 5 * (block == 1 ? 61 : block), 150, HY_ACT_INT8, true);
    }
}

static void test_matmul(void **state)
{
    (void)state;
    for_isas(matmuls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_matmul)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
