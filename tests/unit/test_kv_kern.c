/* SPDX-License-Identifier: Apache-2.0
 *
 * 8-bit floats: the scalar conversions against the format's definition (every code decoded by hand,
 * every f16 rounded by search), and the vector kernels against the scalar ones, bit for bit.
 *
 * Thread: one.  Owner: nothing kept.
 */
#include "tests/unit/cm.h"

#include "backends/cpu/kv.h"

#include <math.h>
#include <string.h>

static const hy_dtype kinds[] = {HY_F8_E4M3, HY_F8_E4M3FNUZ};

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

/* value = (1 + m/8) * 2^(e - bias), or m/8 * 2^(1 - bias) with e = 0 */
static double by_definition(hy_dtype t, int code)
{
    int bias = t == HY_F8_E4M3 ? 7 : 8, e = code >> 3 & 15, m = code & 7;
    double v = e == 0 ? m / 8.0 * pow(2.0, 1 - bias) : (1.0 + m / 8.0) * pow(2.0, e - bias);
    return code & 0x80 ? -v : v;
}

static bool is_nan_code(hy_dtype t, int code)
{
    return t == HY_F8_E4M3 ? (code & 0x7f) == 0x7f : code == 0x80;
}

static void test_decode(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        for (int c = 0; c < 256; c++) {
            float f = hy_f8_to_f32(kinds[k], (uint8_t)c);
            if (is_nan_code(kinds[k], c))
                assert_true(isnan(f));
            else
                assert_true((double)f == by_definition(kinds[k], c) &&
                            (c != 0x80 || signbit(f) != 0));
        }
    }
    assert_true(hy_f8_to_f32(HY_F8_E4M3, 0x38) == 1.0f);
    assert_true(hy_f8_to_f32(HY_F8_E4M3, 0x7e) == 448.0f);
    assert_true(hy_f8_to_f32(HY_F8_E4M3, 0x01) == 0x1p-9f);
    assert_true(hy_f8_to_f32(HY_F8_E4M3FNUZ, 0x40) == 1.0f);
    assert_true(hy_f8_to_f32(HY_F8_E4M3FNUZ, 0x7f) == 240.0f);
    assert_true(hy_f8_to_f32(HY_F8_E4M3FNUZ, 0x01) == 0x1p-10f);
}

/* Nearest value by search; a tie to the even code; beyond the largest, the largest. */
static int by_search(hy_dtype t, double x)
{
    int best = -1;
    double err = INFINITY, a = fabs(x);
    for (int c = 0; c < 128; c++) {
        if (is_nan_code(t, c))
            continue;
        double e = fabs(by_definition(t, c) - a);
        if (e < err || (e == err && c % 2 == 0))
            err = e, best = c;
    }
    if (isinf(x))
        best = t == HY_F8_E4M3 ? 0x7e : 0x7f;
    bool negative = signbit(x) != 0 && (t == HY_F8_E4M3 || best != 0);
    return best | (negative ? 0x80 : 0);
}

static void test_encode_all_f16(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        for (int h = 0; h < 65536; h++) {
            float f = hy_f16_to_f32((uint16_t)h);
            int got = hy_f32_to_f8(kinds[k], f);
            if (isnan(f))
                assert_true(is_nan_code(kinds[k], got));
            else
                assert_int_equal(got, by_search(kinds[k], (double)f));
        }
    }
    assert_int_equal(hy_f32_to_f8(HY_F8_E4M3, -0.0f), 0x80);
    assert_int_equal(hy_f32_to_f8(HY_F8_E4M3FNUZ, -0.0f), 0x00);
    assert_int_equal(hy_f32_to_f8(HY_F8_E4M3, 1e30f), 0x7e);
    assert_int_equal(hy_f32_to_f8(HY_F8_E4M3, -INFINITY), 0xfe);
    assert_int_equal(hy_f32_to_f8(HY_F8_E4M3FNUZ, -INFINITY), 0xff);
    assert_int_equal(hy_f32_to_f8(HY_F8_E4M3FNUZ, NAN), 0x80);
    assert_int_equal(hy_f32_to_f8(HY_F8_E4M3, 432.0f), 0x7e);  /* tie, to even */
    assert_int_equal(hy_f32_to_f8(HY_F8_E4M3, 0x1p-10f), 0x0); /* tie with zero */
}

static const cpu_kv_kern *kern(cpu_isa isa)
{
    cpu_features f;
    cpu_isa_detect(&f);
    if (f.best < isa)
        return NULL;
    return isa == CPU_ISA_AVX512 ? &cpu_kv_avx512 : &cpu_kv_avx2;
}

static void vector_equals_scalar(const cpu_kv_kern *k)
{
    static float x[65536], back[256], wide[65536];
    static uint8_t codes[65536], all[256];
    static const float scales[] = {1.0f, 0.37f, 12345.0f, 0x1p-20f};
    if (k == NULL)
        skip();
    for (int i = 0; i < 65536; i++) {
        x[i] = hy_f16_to_f32((uint16_t)i);
        uint32_t u = (uint32_t)i * 65537u; /* and f32 of every exponent */
        memcpy(&wide[i], &u, 4);
    }
    for (int i = 0; i < 256; i++)
        all[i] = (uint8_t)i;
    for (size_t t = 0; t < 2; t++) {
        for (size_t s = 0; s < HY_COUNTOF(scales); s++) {
            k->quantise(x, 65536, scales[s], kinds[t], codes);
            for (int i = 0; i < 65536; i++)
                assert_int_equal(codes[i], hy_f32_to_f8(kinds[t], x[i] * scales[s]));
            k->quantise(wide, 65521, scales[s], kinds[t], codes); /* a ragged end too */
            for (int i = 0; i < 65521; i++)
                assert_int_equal(codes[i], hy_f32_to_f8(kinds[t], wide[i] * scales[s]));
            k->dequantise(all, 256, scales[s], kinds[t], back);
            for (int i = 0; i < 256; i++)
                assert_int_equal(bits(back[i]), bits(hy_f8_to_f32(kinds[t], all[i]) * scales[s]));
        }
    }
}

static void test_avx2(void **state)
{
    (void)state;
    vector_equals_scalar(kern(CPU_ISA_AVX2));
}

static void test_avx512(void **state)
{
    (void)state;
    vector_equals_scalar(kern(CPU_ISA_AVX512));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_encode_all_f16),
        cmocka_unit_test(test_avx2),
        cmocka_unit_test(test_avx512),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
