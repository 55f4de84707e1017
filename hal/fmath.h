/* SPDX-License-Identifier: Apache-2.0
 *
 * Our own elementary functions, defined to the bit (docs/NUMERICS.md): libm differs between
 * machines and has no vector form that agrees with it. These are the scalar forms; a backend that
 * promises exactness repeats the same operations in the same order.
 *
 * A NaN goes in and comes out; which NaN is not defined.
 *
 * Thread: any.  Owner: none.
 */
#ifndef HY_HAL_FMATH_H
#define HY_HAL_FMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef HY_M_FN /* device compilers say otherwise (backends/simt/dialect.h) */
#define HY_M_FN static inline
#endif

/* 2^n for -126 <= n <= 127. */
HY_M_FN float hy_m_pow2(int n)
{
    uint32_t u = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

HY_M_FN float hy_m_exp(float x)
{
    if (x != x)
        return x;
    if (x < -103.97f)
        return 0.0f;
    if (x > 88.72f)
        x = 88.72f;
    float n = rintf(x * 1.44269504f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    float y = fmaf(p, r * r, r) + 1.0f;
    int i = (int)n, half = i >> 1;
    return y * hy_m_pow2(half) * hy_m_pow2(i - half);
}

/* Absolute error 2e-7; relative precision is lost near 0, as the ops that use it allow. */
HY_M_FN float hy_m_tanh(float u)
{
    return 1.0f - 2.0f / (hy_m_exp(2.0f * u) + 1.0f);
}

/* Abramowitz and Stegun 7.1.26; absolute error 5e-7 in f32. */
HY_M_FN float hy_m_erf(float x)
{
    float a = fabsf(x);
    float t = 1.0f / fmaf(0.3275911f, a, 1.0f);
    float p = 1.061405429f;
    p = fmaf(p, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f);
    float y = 1.0f - (p * t) * hy_m_exp(-(a * a));
    return copysignf(y, x);
}

HY_M_FN float hy_m_silu(float x)
{
    return x / (1.0f + hy_m_exp(-x));
}

HY_M_FN float hy_m_gelu_tanh(float x)
{
    float u = 0.79788456f * fmaf(0.044715f * x * x, x, x);
    return 0.5f * x * (1.0f + hy_m_tanh(u));
}

HY_M_FN float hy_m_gelu_erf(float x)
{
    return 0.5f * x * (1.0f + hy_m_erf(x * 0.70710678f));
}

HY_M_FN float hy_m_relu(float x)
{
    return x < 0.0f ? 0.0f : x;
}

HY_M_FN float hy_m_softcap(float s, float cap)
{
    return cap * hy_m_tanh(s / cap);
}

/* Natural logarithm of a normal x > 0: x = m 2^e with m in [sqrt(1/2), sqrt(2)), then the series of
 * 2 atanh((m - 1) / (m + 1)) to the 21st power; error below 2 ulp. */
HY_M_FN double hy_m_log(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof(u));
    int e = (int)(u >> 52) - 1022;
    u = (u & 0x000fffffffffffffull) | 0x3fe0000000000000ull; /* m in [1/2, 1) */
    double m;
    memcpy(&m, &u, sizeof(m));
    if (m < 0.70710678118654752440) {
        m *= 2.0;
        e--;
    }
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 1.0 / 21.0;
    for (int k = 19; k >= 3; k -= 2)
        p = fma(p, z, 1.0 / k);
    double y = fma(s * z, 2.0 * p, 2.0 * s);
    return fma((double)e, 6.93147180369123816490e-1, fma((double)e, 1.90821492927058770002e-10, y));
}

#endif
