/* SPDX-License-Identifier: Apache-2.0
 *
 * Our elementary functions against libm in double: how far they may be off is what NUMERICS and
 * the conformance bounds build on.
 *
 * Thread: main.  Owner: none.
 */
#include "tests/unit/cm.h"

#include "hal/fmath.h"

static double rel(double got, double want)
{
    return want == 0.0 ? fabs(got) : fabs(got / want - 1.0);
}

static void test_exp(void **state)
{
    (void)state;
    double worst = 0.0;
    for (float x = -87.0f; x < 88.7f; x += 0.00137f)
        worst = fmax(worst, rel((double)hy_m_exp(x), exp((double)x)));
    assert_true(worst < 1.3e-7);                    /* 2 u */
    for (float x = -103.9f; x < -87.0f; x += 0.01f) /* denormal results: half their last place */
        assert_true(fabs((double)hy_m_exp(x) - exp((double)x)) < 1.1e-45);
    assert_true(hy_m_exp(0.0f) == 1.0f);
    assert_true(hy_m_exp(-104.0f) == 0.0f);
    assert_true(hy_m_exp(-INFINITY) == 0.0f);
    assert_true(isfinite(hy_m_exp(INFINITY)));
    assert_true(hy_m_exp(INFINITY) == hy_m_exp(88.72f));
    assert_true(isnan(hy_m_exp(NAN)));
}

static void test_tanh_erf(void **state)
{
    (void)state;
    for (float x = -12.0f; x < 12.0f; x += 0.00071f) {
        assert_true(fabs((double)hy_m_tanh(x) - tanh((double)x)) < 2.5e-7);
        assert_true(fabs((double)hy_m_erf(x) - erf((double)x)) < 5e-7);
    }
    assert_true(hy_m_tanh(1e9f) == 1.0f);
    assert_true(hy_m_tanh(-1e9f) == -1.0f);
    assert_true(hy_m_erf(-30.0f) == -1.0f);
}

static void test_activations(void **state)
{
    (void)state;
    assert_true(hy_m_relu(-1.0f) == 0.0f);
    assert_true(hy_m_relu(2.5f) == 2.5f);
    assert_true(hy_m_silu(0.0f) == 0.0f);
    assert_true(fabsf(hy_m_silu(1.0f) - 0.7310585786f) < 1e-7f);
    assert_true(fabsf(hy_m_gelu_tanh(1.0f) - 0.8411919906f) < 2e-7f);
    assert_true(fabsf(hy_m_gelu_erf(1.0f) - 0.8413447461f) < 3e-7f);
    assert_true(fabsf(hy_m_softcap(10.0f, 30.0f) - 9.6453816f) < 1e-5f); /* 30 tanh(1/3) */
}

static void test_log(void **state)
{
    (void)state;
    for (double x = 1e-300; x < 1e300; x *= 1.7)
        assert_true(fabs(hy_m_log(x) - log(x)) <= 4e-16 * fabs(log(x)));
    for (double x = 0.4; x < 3.0; x += 0.00037)
        assert_true(fabs(hy_m_log(x) - log(x)) < 3e-16);
    assert_true(hy_m_log(1.0) == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_tanh_erf),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
