/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms, activations, rope, quantising of activations and the like, by 16 lanes: the body of
 * math_avx2.c and math_avx512.c. Each does its scalar reference's operations in the same order.
 *
 * Thread: any (pure).  Owner: none.
 */
#include "backends/cpu/fast_int.h"
#include "backends/cpu/vec16.h"

/* ---- activations into panels ---- */

/* Sum of 16 int8 codes. */
INL int32_t sum_i8(__m128i q)
{
    __m128i s = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8((char)0x80)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_unpackhi_epi64(s, s))) - 16 * 128;
}

/* A block of 32: codes, scale and sums of both halves. */
INL void quantise(v16 x0, v16 x1, __m128i *q0, __m128i *q1, float *d, int32_t *s0, int32_t *s1)
{
    v16 a0 = v_abs(x0), a1 = v_abs(x1), top = v_set1(3.4028234664e38f);
    bool finite = v_bits(v_and(v_le(a0, top), v_le(a1, top))) == 0xffffu;
    float amax = v_tree_max(v_max(a0, a1));
    if (!finite || amax < 0x1p-120f) {
        *q0 = *q1 = _mm_setzero_si128();
        *s0 = *s1 = 0;
        *d = finite ? 0.0f : NAN;
        return;
    }
    v16 id = v_set1(127.0f / amax);
    *d = amax / 127.0f;
    *q0 = v_to_i8(v_mul(x0, id));
    *q1 = v_to_i8(v_mul(x1, id));
    *s0 = sum_i8(*q0);
    *s1 = sum_i8(*q1);
}

INL void put_codes(int32_t *at, int w, __m128i q0, __m128i q1)
{
    if (w == 1) {
        _mm_storeu_si128((__m128i *)(void *)at, q0);
        _mm_storeu_si128((__m128i *)(void *)at + 1, q1);
        return;
    }
    at[0] = _mm_cvtsi128_si32(q0);
    at[w] = _mm_extract_epi32(q0, 1);
    at[2 * w] = _mm_extract_epi32(q0, 2);
    at[3 * w] = _mm_extract_epi32(q0, 3);
    at[4 * w] = _mm_cvtsi128_si32(q1);
    at[5 * w] = _mm_extract_epi32(q1, 1);
    at[6 * w] = _mm_extract_epi32(q1, 2);
    at[7 * w] = _mm_extract_epi32(q1, 3);
}

static void pack_f32(const cpu_act_args *a)
{
    float *p = (float *)a->panel + a->col;
    if (a->w == 1) {
        memcpy(p, a->x, (size_t)a->k * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < a->k; i++)
        p[i * a->w] = a->x[i];
}

static void pack_act(const cpu_act_args *a)
{
    if (a->kind == PANEL_F32) {
        pack_f32(a);
        return;
    }
    const int w = a->w;
    int32_t *p = (int32_t *)a->panel + a->col;
    for (int64_t b = 0; b < a->k / 32; b++) {
        __m128i q0, q1;
        float d;
        int32_t s0, s1;
        quantise(v_load(a->x + b * 32), v_load(a->x + b * 32 + 16), &q0, &q1, &d, &s0, &s1);
        put_codes(p, w, q0, q1);
        float *f = (float *)(void *)p;
        f[8 * w] = d;
        if (a->kind == PANEL_I32) {
            p[9 * w] = -(s0 + s1);
            f[10 * w] = d * (float)(s0 + s1);
            p += 11 * w;
        } else {
            p[9 * w] = -s0;
            p[10 * w] = -s1;
            f[11 * w] = d * (float)s0;
            f[12 * w] = d * (float)s1;
            p += 13 * w;
        }
    }
}

/* ---- norms ---- */

static void rms_norm(const float *x, float *y, int64_t dim, const float *w, float eps)
{
    v16 l = v_zero();
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16) {
        v16 v = v_load(x + i);
        l = v_fma(v, v, l);
    }
    if (i < dim) {
        v16 v = v_load_n(x + i, (int)(dim - i));
        l = v_fma(v, v, l);
    }
    float inv = 1.0f / sqrtf(v_tree_sum(l) / (float)dim + eps);
    v16 r = v_set1(inv);
    for (i = 0; i + 16 <= dim; i += 16) {
        v16 v = v_mul(v_load(x + i), r);
        v_store(y + i, w != NULL ? v_mul(v, v_load(w + i)) : v);
    }
    for (; i < dim; i++)
        y[i] = w != NULL ? (x[i] * inv) * w[i] : x[i] * inv;
}

static void layer_norm(const float *x, float *y, int64_t dim, const float *w, const float *b,
                       float eps)
{
    v16 l = v_zero(), s = v_zero();
    int64_t i = 0;
    int tail = (int)(dim % 16);
    for (; i + 16 <= dim; i += 16)
        l = v_add(l, v_load(x + i));
    if (tail != 0)
        l = v_add(l, v_load_n(x + i, tail));
    float mean = v_tree_sum(l) / (float)dim;
    v16 m = v_set1(mean);
    for (i = 0; i + 16 <= dim; i += 16) {
        v16 v = v_sub(v_load(x + i), m);
        s = v_fma(v, v, s);
    }
    if (tail != 0) {
        v16 v = v_sub(v_load_n(x + i, tail), m);
        s = v_sel(v_first(tail), v_fma(v, v, s), s);
    }
    float inv = 1.0f / sqrtf(v_tree_sum(s) / (float)dim + eps);
    v16 r = v_set1(inv);
    for (i = 0; i + 16 <= dim; i += 16) {
        v16 v = v_mul(v_sub(v_load(x + i), m), r);
        v_store(y + i, v_fma(v, w != NULL ? v_load(w + i) : v_set1(1.0f),
                             b != NULL ? v_load(b + i) : v_zero()));
    }
    for (; i < dim; i++)
        y[i] = fmaf((x[i] - mean) * inv, w != NULL ? w[i] : 1.0f, b != NULL ? b[i] : 0.0f);
}

/* ---- elementwise ---- */

INL v16 gelu_tanh(v16 x)
{
    v16 c = v_mul(v_mul(v_set1(0.044715f), x), x);
    v16 t = v_tanh(v_mul(v_set1(0.79788456f), v_fma(c, x, x)));
    return v_mul(v_mul(v_set1(0.5f), x), v_add(v_set1(1.0f), t));
}

INL v16 gelu_erf(v16 v)
{
    v16 x = v_mul(v, v_set1(0.70710678f)), a = v_abs(x), one = v_set1(1.0f);
    v16 t = v_div(one, v_fma(v_set1(0.3275911f), a, one));
    v16 p = v_set1(1.061405429f);
    p = v_fma(p, t, v_set1(-1.453152027f));
    p = v_fma(p, t, v_set1(1.421413741f));
    p = v_fma(p, t, v_set1(-0.284496736f));
    p = v_fma(p, t, v_set1(0.254829592f));
    v16 e = v_exp(v_neg(v_mul(a, a)));
    v16 y = v_copysign(v_sub(one, v_mul(v_mul(p, t), e)), x);
    return v_mul(v_mul(v_set1(0.5f), v), v_add(one, y));
}

INL v16 act(v16 x, const hy_act_fn fn)
{
    if (fn == HY_ACT_SILU)
        return v_div(x, v_add(v_set1(1.0f), v_exp(v_neg(x))));
    if (fn == HY_ACT_GELU_TANH)
        return gelu_tanh(x);
    if (fn == HY_ACT_GELU_ERF)
        return gelu_erf(x);
    return v_sel(v_lt(x, v_zero()), v_zero(), x);
}

INL void act_all(const float *g, const float *u, float *y, int64_t n, const hy_act_fn fn)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = act(v_load(g + i), fn);
        v_store(y + i, u != NULL ? v_mul(v, v_load(u + i)) : v);
    }
    int tail = (int)(n - i);
    if (tail > 0) {
        v16 v = act(v_load_n(g + i, tail), fn);
        v_store_n(y + i, u != NULL ? v_mul(v, v_load_n(u + i, tail)) : v, tail);
    }
}

static void act_mul(const float *g, const float *u, float *y, int64_t n, hy_act_fn fn)
{
    switch (fn) {
    case HY_ACT_SILU:
        act_all(g, u, y, n, HY_ACT_SILU);
        break;
    case HY_ACT_GELU_TANH:
        act_all(g, u, y, n, HY_ACT_GELU_TANH);
        break;
    case HY_ACT_GELU_ERF:
        act_all(g, u, y, n, HY_ACT_GELU_ERF);
        break;
    default:
        act_all(g, u, y, n, HY_ACT_RELU);
    }
}

static void add(const float *a, const float *b, float s, float *y, int64_t n)
{
    v16 k = v_set1(s);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, v_fma(v_load(b + i), k, v_load(a + i)));
    for (; i < n; i++)
        y[i] = fmaf(b[i], s, a[i]);
}

static void scale_cap(float *x, int64_t n, float scale, float cap)
{
    v16 s = v_set1(scale), c = v_set1(cap);
    for (int64_t i = 0; i < n; i += 16) {
        int m = n - i < 16 ? (int)(n - i) : 16;
        v16 v = v_mul(v_load_n(x + i, m), s);
        v_store_n(x + i, cap != 0.0f ? v_mul(c, v_tanh(v_div(v, c))) : v, m);
    }
}

/* ---- rope ---- */

static void rotate(float *a, float *b, float c, float s)
{
    float x = *a, y = *b;
    *a = fmaf(x, c, -(y * s));
    *b = fmaf(x, s, y * c);
}

INL void rotate8(__m256 *a, __m256 *b, __m256 c, __m256 s)
{
    __m256 x = *a, y = *b;
    *a = _mm256_fmsub_ps(x, c, _mm256_mul_ps(y, s));
    *b = _mm256_fmadd_ps(x, s, _mm256_mul_ps(y, c));
}

static void rope_halves(float *x, int32_t half, const float *cs, const float *sn)
{
    int32_t i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
        rotate8(&a, &b, _mm256_loadu_ps(cs + i), _mm256_loadu_ps(sn + i));
        _mm256_storeu_ps(x + i, a);
        _mm256_storeu_ps(x + half + i, b);
    }
    for (; i < half; i++)
        rotate(&x[i], &x[i + half], cs[i], sn[i]);
}

static void rope_pairs(float *x, int32_t half, const float *cs, const float *sn)
{
    const __m256i order =
        _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7); /* as the shuffles leave them */
    int32_t i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 lo = _mm256_loadu_ps(x + 2 * i), hi = _mm256_loadu_ps(x + 2 * i + 8);
        __m256 a = _mm256_shuffle_ps(lo, hi, 0x88), b = _mm256_shuffle_ps(lo, hi, 0xdd);
        rotate8(&a, &b, _mm256_permutevar8x32_ps(_mm256_loadu_ps(cs + i), order),
                _mm256_permutevar8x32_ps(_mm256_loadu_ps(sn + i), order));
        _mm256_storeu_ps(x + 2 * i, _mm256_unpacklo_ps(a, b));
        _mm256_storeu_ps(x + 2 * i + 8, _mm256_unpackhi_ps(a, b));
    }
    for (; i < half; i++)
        rotate(&x[2 * i], &x[2 * i + 1], cs[i], sn[i]);
}

static void rope(float *x, int32_t rot, hy_rope_kind kind, const float *cs, const float *sn)
{
    if (kind == HY_ROPE_HALVES)
        rope_halves(x, rot / 2, cs, sn);
    else if (kind == HY_ROPE_PAIRS)
        rope_pairs(x, rot / 2, cs, sn);
}

/* ---- logits ---- */

static float max(const float *x, int64_t n)
{
    v16 m[4];
    for (int j = 0; j < 4; j++)
        m[j] = v_set1(-INFINITY);
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        UNROLL(4)
        for (int j = 0; j < 4; j++)
            m[j] = v_max(v_load(x + i + 16 * j), m[j]);
    }
    float best = v_tree_max(v_max(v_max(m[0], m[1]), v_max(m[2], m[3])));
    for (; i < n; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

static int64_t find(const float *x, int64_t n, float v)
{
    v16 t = v_set1(v);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        unsigned hit = v_bits(v_eq(v_load(x + i), t));
        if (hit != 0)
            return i + __builtin_ctz(hit);
    }
    while (i < n && x[i] != v)
        i++;
    return i;
}

static void exp_sub(const float *x, int64_t n, float m, float *out)
{
    v16 s = v_set1(m), low = v_set1(-INFINITY);
    for (int64_t i = 0; i < n; i += 16) {
        int c = n - i < 16 ? (int)(n - i) : 16;
        v16 v = v_load_n(x + i, c);
        v = v_sel(v_isnan(v), low, v);
        v_store_n(out + i, v_exp(v_sub(v, s)), c);
    }
}

/* ---- cache ---- */

static void store_one(float f, hy_dtype value, hy_dtype t, uint8_t *p)
{
    uint16_t h = 0;
    if (value == HY_F16) {
        h = hy_f32_to_f16(f);
        f = hy_f16_to_f32(h);
    } else if (value == HY_BF16) {
        h = hy_f32_to_bf16(f);
        f = hy_bf16_to_f32(h);
    }
    if (t == HY_F32)
        memcpy(p, &f, sizeof(f));
    else
        memcpy(p, &h, sizeof(h));
}

static void kv_store(const float *x, int32_t n, hy_dtype value, hy_dtype t, uint8_t *out,
                     int64_t step)
{
    int32_t i = 0;
    if (value == HY_F16 && t == HY_F16) {
        for (; i + 16 <= n; i += 16, out += 16 * step) {
            uint16_t h[16];
            v_store_f16(h, v_load(x + i));
            if (step == 2) {
                memcpy(out, h, sizeof(h));
                continue;
            }
            UNROLL(16)
            for (int j = 0; j < 16; j++)
                memcpy(out + j * step, &h[j], 2);
        }
    }
    for (; i < n; i++, out += step)
        store_one(x[i], value, t, out);
}

#define VEC_TABLE                                                                                  \
    .pack_act = pack_act, .rms_norm = rms_norm, .layer_norm = layer_norm, .act_mul = act_mul,      \
    .add = add, .rope = rope, .scale_cap = scale_cap, .max = max, .find = find,                    \
    .exp_sub = exp_sub, .kv_store = kv_store
