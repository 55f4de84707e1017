/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types: the table, and the 16-bit floats at the places where rounding goes wrong. Right
 * values follow from IEEE 754: an f32 rounds to the nearest value, a tie to the even mantissa.
 *
 * Thread: one.  Owner: nothing kept.
 */
#include "tests/unit/cm.h"

#include "hal/dtype.h"

#include <math.h>
#include <string.h>

static void test_table(void **state)
{
    (void)state;
    hy_dtype t = HY_F32;
    assert_int_equal(hy_dtype_row_bytes(HY_F32, 3), 12);
    assert_int_equal(hy_dtype_row_bytes(HY_Q8_0, 64), 68);
    assert_int_equal(hy_dtype_row_bytes(HY_Q4_K, 512), 288);
    assert_int_equal(hy_dtype_row_bytes(HY_Q6_K, 256), 210);
    assert_int_equal(hy_dtype_row_bytes(HY_Q4_0, 33), 0);
    assert_int_equal(hy_dtype_row_bytes(HY_F32, -4), 0);
    assert_int_equal(hy_dtype_row_bytes(5, 32), 0);
    assert_null(hy_dtype_get(-1));
    assert_null(hy_dtype_get(HY_DTYPE_MAX));
    assert_string_equal(hy_dtype_name(9999), "?");
    assert_int_equal(hy_dtype_parse("Q4_K", &t), HY_OK);
    assert_int_equal(t, HY_Q4_K);
    assert_int_equal(hy_dtype_parse("q9", &t), HY_E_INVAL);
    assert_non_null(strstr(hy_fail_text(), "q4_k"));
}

static void test_f16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) { /* every value comes back */
        float f = hy_f16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true((h & 0x7c00) == 0x7c00 && (h & 0x3ff) != 0);
        else
            assert_int_equal(hy_f32_to_f16(f), h);
    }
    assert_true(hy_f16_to_f32(0x3c00) == 1.0f && hy_f16_to_f32(0xc000) == -2.0f);
    assert_true(hy_f16_to_f32(0x0001) == 0x1p-24f && hy_f16_to_f32(0x7bff) == 65504.0f);
    assert_int_equal(hy_f32_to_f16(1.0f + 0x1p-11f), 0x3c00);            /* tie, to even */
    assert_int_equal(hy_f32_to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);        /* tie, to even */
    assert_int_equal(hy_f32_to_f16(1.0f + 0x1p-11f + 0x1p-23f), 0x3c01); /* above the tie */
    assert_int_equal(hy_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(hy_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(hy_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(hy_f32_to_f16(0x1p-25f), 0x0000); /* tie with zero */
    assert_int_equal(hy_f32_to_f16(0x1.8p-25f), 0x0001);
    assert_int_equal(hy_f32_to_f16(-0.0f), 0x8000);
    assert_true(isnan(hy_f16_to_f32(hy_f32_to_f16(NAN))));
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = hy_bf16_to_f32((uint16_t)h);
        if (!isnan(f))
            assert_int_equal(hy_f32_to_bf16(f), h);
    }
    assert_int_equal(hy_f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);     /* tie, to even */
    assert_int_equal(hy_f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82); /* tie, to even */
    assert_int_equal(hy_f32_to_bf16(3.4e38f), 0x7f80);            /* nearest is infinity */
    assert_true(isnan(hy_bf16_to_f32(hy_f32_to_bf16(NAN))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
