/* SPDX-License-Identifier: Apache-2.0
 *
 * exp, log, sin and cos in double by plain IEEE operations, so that every machine and compiler
 * gives the same bits (libm picks other code on other CPUs). Accuracy: about 1e-15 relative; meant
 * for results that are then rounded to f32 or drawn against a random number.
 *
 * Thread: any.  Owner: none.
 * Source: Cody and Waite range reduction; Taylor and atanh series.
 */
#ifndef HY_BASE_FMATH_H
#define HY_BASE_FMATH_H

#include <stdint.h>
#include <string.h>

static inline double hy_f64_from_bits(uint64_t u)
{
    double d;
    memcpy(&d, &u, sizeof(d));
    return d;
}

static inline uint64_t hy_f64_bits(double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof(u));
    return u;
}

/* exp(x). 0 below -708 and +inf above 709: no denormal results. */
static inline double hy_exp64(double x)
{
    static const double inv[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0,
                                 1.0 / 3628800.0,    1.0 / 362880.0,    1.0 / 40320.0,
                                 1.0 / 5040.0,       1.0 / 720.0,       1.0 / 120.0,
                                 1.0 / 24.0,         1.0 / 6.0,         0.5};
    if (!(x > -708.0)) /* NaN goes to 0 too: callers have checked */
        return 0.0;
    if (x > 709.0)
        return hy_f64_from_bits(0x7ff0000000000000u);
    const double big = 6755399441055744.0;
    double y = x * 1.4426950408889634 + big;
    int64_t n = (int64_t)(hy_f64_bits(y) & 0xffffffffu);
    n = (int64_t)(int32_t)n;
    double fn = (double)n;
    double r = x - fn * 6.93147180369123816490e-01;
    r = r - fn * 1.90821492927058770002e-10;
    double p = inv[0];
    for (int i = 1; i < 12; i++)
        p = p * r + inv[i];
    p = (p * r) * r + r + 1.0;
    return p * hy_f64_from_bits((uint64_t)(n + 1023) << 52);
}

/* log(x) for positive normal x; -inf for 0. */
static inline double hy_log64(double x)
{
    if (x <= 0.0)
        return -hy_f64_from_bits(0x7ff0000000000000u);
    uint64_t u = hy_f64_bits(x);
    int64_t e = (int64_t)(u >> 52) - 1023;
    double m = hy_f64_from_bits((u & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 1.4142135623730951) {
        m = m * 0.5;
        e++;
    }
    double z = (m - 1.0) / (m + 1.0); /* log m = 2 atanh z, |z| < 0.1716 */
    double z2 = z * z;
    double p = 0.0;
    for (int k = 27; k >= 1; k -= 2)
        p = p * z2 + 1.0 / (double)k;
    double fe = (double)e;
    return fe * 6.93147180369123816490e-01 + (fe * 1.90821492927058770002e-10 + 2.0 * z * p);
}

/* sin and cos of x for |x| < 2^30. */
static inline void hy_sincos64(double x, double *s_out, double *c_out)
{
    const double big = 6755399441055744.0;
    double y = x * 0.63661977236758134308 + big;
    uint32_t q = (uint32_t)(hy_f64_bits(y) & 3u);
    double n = (double)(int32_t)(hy_f64_bits(y) & 0xffffffffu);
    /* pi/2 in three parts of 33 bits each: n times a part is exact for |n| < 2^20, and near it
     * above */
    double r = x - n * 1.57079632673412561417e+00;
    r = r - n * 6.07710050630396597660e-11;
    r = r - n * 2.02226624879595063154e-21;
    double r2 = r * r;
    double s = 0.0, c = 0.0;
    static const double fs[] = {
        -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
        -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
    static const double fc[] = {-1.0 / 87178291200.0,
                                1.0 / 479001600.0,
                                -1.0 / 3628800.0,
                                1.0 / 40320.0,
                                -1.0 / 720.0,
                                1.0 / 24.0,
                                -0.5};
    for (int i = 0; i < 7; i++) {
        s = s * r2 + fs[i];
        c = c * r2 + fc[i];
    }
    s = r + r * (r2 * s);
    c = 1.0 + r2 * c;
    double ss = (q & 1u) ? c : s, cc = (q & 1u) ? s : c;
    *s_out = (q & 2u) ? -ss : ss;
    *c_out = (q == 1u || q == 2u) ? -cc : cc;
}

#endif
