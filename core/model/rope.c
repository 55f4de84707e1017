/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary frequencies. Steps are rounded to f32 where the published implementations round.
 *
 * Thread: any.  Owner: hy_rope_free.
 */
#include "core/model/rope.h"

#include "core/base/fmath.h"

#include <math.h>
#include <stdlib.h>

static const double two_pi = 6.283185307179586476925;

/* base^(2i/rot), in f32 as published. */
static float power(double base, int32_t i, int32_t rot)
{
    float e = (float)(2 * i) / (float)rot;
    return (float)hy_exp64((double)e * hy_log64(base));
}

static void make_llama3(const hy_rope_params *r, float *f, int32_t n)
{
    double low_wave = r->original / r->low_freq, high_wave = r->original / r->high_freq;
    for (int32_t i = 0; i < n; i++) {
        float wave = (float)(two_pi / (double)f[i]);
        if ((double)wave > low_wave) {
            f[i] = f[i] / (float)r->factor;
        } else if ((double)wave >= high_wave) {
            float s = ((float)r->original / wave - (float)r->low_freq) /
                      (float)(r->high_freq - r->low_freq);
            f[i] = (1.0f - s) * f[i] / (float)r->factor + s * f[i];
        }
    }
}

/* The dimension whose wave turns `turns` times in the original context. */
static double yarn_dim(const hy_rope_params *r, double turns, int32_t rot)
{
    return (rot * hy_log64(r->original / (turns * two_pi))) / (2.0 * hy_log64(r->base));
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * hy_log64(factor) + 1.0;
}

static void make_yarn(const hy_rope_params *r, hy_rope_desc *d)
{
    double low = yarn_dim(r, r->beta_fast, d->rot), high = yarn_dim(r, r->beta_slow, d->rot);
    if (!r->no_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low < 0.0 ? 0.0 : low;
    high = high > d->rot - 1 ? d->rot - 1 : high;
    if (low == high)
        high += 0.001;
    for (int32_t i = 0; i < d->rot / 2; i++) {
        float p = power(r->base, i, d->rot);
        float ramp = ((float)i - (float)low) / (float)(high - low);
        ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
        float keep = 1.0f - ramp, extra = 1.0f / p, inter = 1.0f / ((float)r->factor * p);
        d->inv_freq[i] = inter * (1.0f - keep) + extra * keep;
    }
    if (r->attention_factor > 0.0)
        d->mscale = (float)r->attention_factor;
    else if (r->mscale > 0.0 && r->mscale_all > 0.0)
        d->mscale =
            (float)(yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all));
    else
        d->mscale = (float)yarn_mscale(r->factor, 1.0);
}

static hy_status make_longrope(const hy_rope_params *r, int32_t context, hy_rope_desc *d)
{
    int32_t half = d->rot / 2;
    d->inv_freq_long = malloc(sizeof(float) * (size_t)half);
    if (d->inv_freq_long == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for rotary frequencies");
    for (int32_t i = 0; i < half; i++) {
        float p = power(r->base, i, d->rot);
        d->inv_freq[i] = 1.0f / (r->short_factor[i] * p);
        d->inv_freq_long[i] = 1.0f / (r->long_factor[i] * p);
    }
    double original = r->original > 0.0 ? r->original : context;
    double m = r->attention_factor;
    if (m <= 0.0)
        m = r->factor <= 1.0 ? 1.0 : sqrt(1.0 + hy_log64(r->factor) / hy_log64(original));
    d->mscale = d->mscale_long = (float)m;
    d->long_from = original < context ? (int32_t)original : 0;
    return HY_OK;
}

hy_status hy_rope_make(const hy_rope_params *r, int32_t context, hy_rope_desc *d)
{
    int32_t half = d->rot / 2;
    d->inv_freq = malloc(sizeof(float) * (size_t)half);
    if (d->inv_freq == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for rotary frequencies");
    d->mscale = d->mscale_long = 1.0f;
    if (r->scaling == HY_ROPE_LONGROPE)
        return make_longrope(r, context, d);
    if (r->scaling == HY_ROPE_YARN) {
        make_yarn(r, d);
        return HY_OK;
    }
    for (int32_t i = 0; i < half; i++)
        d->inv_freq[i] = 1.0f / power(r->base, i, d->rot);
    if (r->scaling == HY_ROPE_LLAMA3)
        make_llama3(r, d->inv_freq, half);
    for (int32_t i = 0; r->scaling == HY_ROPE_LINEAR && i < half; i++)
        d->inv_freq[i] = d->inv_freq[i] / (float)r->factor;
    /* dynamic: as plain up to the trained context, which is as far as we go */
    return HY_OK;
}

void hy_rope_free(hy_rope_desc *d)
{
    free(d->inv_freq);
    free(d->inv_freq_long);
    d->inv_freq = d->inv_freq_long = NULL;
}

void hy_rope_angles(const hy_rope_desc *d, int32_t pos, bool long_form, float *cos, float *sin)
{
    bool lf = long_form && d->inv_freq_long != NULL;
    const float *f = lf ? d->inv_freq_long : d->inv_freq;
    double m = lf ? d->mscale_long : d->mscale;
    for (int32_t i = 0; i < d->rot / 2; i++) {
        float angle = (float)pos * f[i];
        double s = 0.0, c = 0.0;
        hy_sincos64((double)angle, &s, &c);
        /* rounded before and after the scale, as published */
        cos[i] = (float)((double)(float)c * m);
        sin[i] = (float)((double)(float)s * m);
    }
}
