/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding of every quantised type against an independent decoder's values; canonical blocks
 * against decoding.
 *
 * Thread: main.  Owner: none.
 */
#include "tests/unit/cm.h"

#include "hal/quant.h"
#include "tests/unit/hal_decode_golden.h"

#include <math.h>
#include <string.h>

static void test_golden(void **state)
{
    (void)state;
    float got[HY_QUANT_CODES];
    assert_int_equal(HY_COUNTOF(goldens), 11);
    for (size_t i = 0; i < HY_COUNTOF(goldens); i++) {
        const struct golden *g = &goldens[i];
        assert_int_equal(g->bytes, hy_dtype_row_bytes(g->type, g->n));
        hy_dtype_decode(g->type, g->block, got, g->n);
        assert_memory_equal(got, g->values, (size_t)g->n * sizeof(float));
    }
}

/* Codes stay in their stated range, and scale and offset give back the decoded value. */
static void test_canonical(void **state)
{
    (void)state;
    float want[HY_QUANT_CODES];
    hy_quant_block b;
    for (size_t i = 0; i < HY_COUNTOF(goldens); i++) {
        const struct golden *g = &goldens[i];
        const hy_quant_info *info = hy_quant_get(g->type);
        assert_non_null(info);
        assert_int_equal(info->block, g->n);
        hy_quant_unpack(g->type, g->block, &b);
        hy_dtype_decode(g->type, g->block, want, g->n);
        for (int k = 0; k < g->n; k++) {
            int s = k / info->sub;
            assert_in_range(b.q[k] + 128, info->code_min + 128, info->code_max + 128);
            if (!info->has_min)
                assert_true(b.mw[s] == 0.0f);
            float v = info->has_min ? fmaf(b.dw[s], b.q[k], b.mw[s]) : b.dw[s] * (float)b.q[k];
            assert_memory_equal(&v, &want[k], sizeof(v));
        }
    }
    assert_null(hy_quant_get(HY_F16));
    assert_null(hy_quant_get(HY_I8));
    assert_null(hy_quant_get(-1));
    assert_null(hy_quant_get(9999));
}

/* Float rows need not be aligned. */
static void test_floats(void **state)
{
    (void)state;
    const uint8_t f16[] = {0xff, 0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00, 0xff, 0x7b};
    float got[4];
    hy_dtype_decode(HY_F16, f16 + 1, got, 4);
    assert_true(got[0] == 1.0f && got[1] == -2.0f && got[2] == 0x1p-24f && got[3] == 65504.0f);
    const uint8_t bf16[] = {0xff, 0x80, 0x3f, 0x49, 0xc0};
    hy_dtype_decode(HY_BF16, bf16 + 1, got, 2);
    assert_true(got[0] == 1.0f && got[1] == -3.140625f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_canonical),
        cmocka_unit_test(test_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
