/* SPDX-License-Identifier: Apache-2.0
 *
 * The BLAS opened at run time: right numbers, and no kernel for a CPU of 2004. Skips by name where
 * there is none.
 *
 * Thread: main.  Owner: none.
 */
#include "tests/unit/cm.h"

#include "hal/blas.h"

#include <math.h>
#include <string.h>

static void test_matmul(void **state)
{
    (void)state;
    enum { M = 5, N = 7, K = 33, LDX = 35, LDW = 34, LDY = 9 };
    static float x[M * LDX], w[N * LDW], y[M * LDY];
    const hy_blas *b = NULL;
    if (hy_blas_get(&b) != HY_OK) {
        print_message("no BLAS: %s\n", hy_fail_text());
        skip();
    }
    for (int i = 0; i < M * LDX; i++)
        x[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    for (int i = 0; i < N * LDW; i++)
        w[i] = (float)(i * 53 % 97) / 48.0f - 1.0f;
    assert_int_equal(hy_blas_matmul(b, M, N, K, x, LDX, w, LDW, y, LDY), HY_OK);
    for (int r = 0; r < M; r++) {
        for (int n = 0; n < N; n++) {
            double want = 0.0;
            for (int k = 0; k < K; k++)
                want += (double)x[r * LDX + k] * (double)w[n * LDW + k];
            assert_true(fabs((double)y[r * LDY + n] - want) < 1e-5);
        }
    }
    assert_int_equal(hy_blas_matmul(b, 1ll << 32, N, K, x, LDX, w, LDW, y, LDY), HY_E_LIMIT);
}

static void test_core(void **state)
{
    (void)state;
    const hy_blas *b = NULL;
    if (hy_blas_get(&b) != HY_OK)
        skip();
    print_message("%s\n", b->name);
    if (hy_blas_core_type() != NULL)
        assert_null(strstr(b->name, "Prescott"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
