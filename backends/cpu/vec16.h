/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen floats as one value: a zmm register, or two ymm. Kernels written with it compile for
 * both instruction sets and do the same operations, lane by lane, as the scalar reference; the
 * lanes of docs/NUMERICS.md are these. Included only by *_avx2.c and *_avx512.c.
 *
 * Thread: any.  Owner: none.
 */
#ifndef HY_CPU_VEC16_H
#define HY_CPU_VEC16_H

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INL static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL(n) _Pragma("unroll")
#else
#define UNROLL_(x) _Pragma(#x)
#define UNROLL(n)  UNROLL_(GCC unroll n)
#endif

#ifdef __AVX512F__

typedef __m512 v16;
typedef __mmask16 m16;

INL v16 v_zero(void)
{
    return _mm512_setzero_ps();
}
INL v16 v_set1(float x)
{
    return _mm512_set1_ps(x);
}
INL v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INL void v_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
INL v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
INL v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
INL v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
INL v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
INL v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* a > b ? a : b, and so b when either is NaN */
INL v16 v_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
INL v16 v_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}
INL v16 v_round(v16 a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INL v16 v_abs(v16 a)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)));
}
INL v16 v_neg(v16 a)
{
    return _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)0x80000000u)));
}
/* magnitude of a, sign of b */
INL v16 v_copysign(v16 a, v16 b)
{
    const __m512i s = _mm512_set1_epi32((int)0x80000000u);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(s, _mm512_castps_si512(b), _mm512_castps_si512(a), 0xca));
}
INL m16 v_lt(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
INL m16 v_le(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
INL m16 v_isnan(v16 a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
INL m16 v_eq(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
INL unsigned v_bits(m16 m)
{
    return m;
}
/* lanes below n */
INL m16 v_first(int n)
{
    return (m16)(n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1);
}
INL m16 v_notfirst(int n)
{
    return (m16)~v_first(n);
}
INL m16 v_and(m16 a, m16 b)
{
    return a & b;
}
/* m ? a : b */
INL v16 v_sel(m16 m, v16 a, v16 b)
{
    return _mm512_mask_blend_ps(m, b, a);
}
INL v16 v_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(v_first(n), p);
}
INL void v_store_n(float *p, v16 a, int n)
{
    _mm512_mask_storeu_ps(p, v_first(n), a);
}
INL v16 v_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INL v16 v_load_bf16(const void *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
INL v16 v_load_u8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INL v16 v_load_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INL void v_store_f16(void *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* byte i of every word, unsigned */
INL v16 v_byte(const void *words, int i)
{
    __m512i w = _mm512_loadu_si512(words);
    return _mm512_cvtepi32_ps(
        _mm512_and_si512(_mm512_srli_epi32(w, (unsigned)(8 * i)), _mm512_set1_epi32(255)));
}
/* the same, signed */
INL v16 v_sbyte(const void *words, int i)
{
    __m512i w = _mm512_slli_epi32(_mm512_loadu_si512(words), (unsigned)(24 - 8 * i));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(w, 24));
}
/* y * 2^n rounded once, as the two exact steps of hy_m_exp; 0 where x < -103.97 */
INL v16 v_scale_exp(v16 y, v16 n, v16 x)
{
    __mmask16 some = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-103.97f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(some, y, n);
}
INL float v_tree_sum(v16 a)
{
    __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
INL float v_tree_max(v16 a)
{
    __m256 x = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
/* Rounded to int8 words: 16 codes in 16 bytes; and the sum of the codes. */
INL __m128i v_to_i8(v16 a)
{
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a));
}

#else

typedef struct v16 {
    __m256 a, b;
} v16;
typedef v16 m16;

#define V2(op, x, y) ((v16){op((x).a, (y).a), op((x).b, (y).b)})
INL v16 v_set1(float x)
{
    __m256 v = _mm256_set1_ps(x);
    return (v16){v, v};
}
INL v16 v_zero(void)
{
    return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
INL v16 v_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
INL void v_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
INL v16 v_add(v16 x, v16 y)
{
    return V2(_mm256_add_ps, x, y);
}
INL v16 v_sub(v16 x, v16 y)
{
    return V2(_mm256_sub_ps, x, y);
}
INL v16 v_mul(v16 x, v16 y)
{
    return V2(_mm256_mul_ps, x, y);
}
INL v16 v_div(v16 x, v16 y)
{
    return V2(_mm256_div_ps, x, y);
}
INL v16 v_max(v16 x, v16 y)
{
    return V2(_mm256_max_ps, x, y);
}
INL v16 v_min(v16 x, v16 y)
{
    return V2(_mm256_min_ps, x, y);
}
INL v16 v_fma(v16 x, v16 y, v16 z)
{
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INL v16 v_round(v16 x)
{
    enum { RN = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return (v16){_mm256_round_ps(x.a, RN), _mm256_round_ps(x.b, RN)};
}
INL v16 v_abs(v16 x)
{
    v16 m = v_set1(-0.0f);
    return V2(_mm256_andnot_ps, m, x);
}
INL v16 v_neg(v16 x)
{
    v16 m = v_set1(-0.0f);
    return V2(_mm256_xor_ps, m, x);
}
INL v16 v_copysign(v16 x, v16 s)
{
    v16 m = v_set1(-0.0f);
    v16 hi = V2(_mm256_and_ps, m, s), lo = V2(_mm256_andnot_ps, m, x);
    return V2(_mm256_or_ps, hi, lo);
}
INL m16 v_lt(v16 x, v16 y)
{
    return (v16){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
INL m16 v_le(v16 x, v16 y)
{
    return (v16){_mm256_cmp_ps(x.a, y.a, _CMP_LE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LE_OQ)};
}
INL m16 v_eq(v16 x, v16 y)
{
    return (v16){_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)};
}
INL m16 v_isnan(v16 x)
{
    return (v16){_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)};
}
INL unsigned v_bits(m16 m)
{
    return (unsigned)_mm256_movemask_ps(m.a) | (unsigned)_mm256_movemask_ps(m.b) << 8;
}
INL m16 v_first(int n)
{
    const __m256i lo = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i hi = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
    __m256i c = _mm256_set1_epi32(n);
    return (v16){_mm256_castsi256_ps(_mm256_cmpgt_epi32(c, lo)),
                 _mm256_castsi256_ps(_mm256_cmpgt_epi32(c, hi))};
}
INL m16 v_and(m16 x, m16 y)
{
    return V2(_mm256_and_ps, x, y);
}
INL m16 v_notfirst(int n)
{
    m16 f = v_first(n), o = v_first(16);
    return V2(_mm256_andnot_ps, f, o);
}
INL v16 v_sel(m16 m, v16 x, v16 y)
{
    return (v16){_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
INL v16 v_load_n(const float *p, int n)
{
    m16 m = v_first(n);
    return (v16){_mm256_maskload_ps(p, _mm256_castps_si256(m.a)),
                 n > 8 ? _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b)) : _mm256_setzero_ps()};
}
INL void v_store_n(float *p, v16 x, int n)
{
    m16 m = v_first(n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), x.a);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), x.b);
}
INL v16 v_load_f16(const void *p)
{
    const __m128i *q = (const __m128i *)p;
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
INL __m256 bf16_8(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
INL v16 v_load_bf16(const void *p)
{
    const __m128i *q = (const __m128i *)p;
    return (v16){bf16_8(_mm_loadu_si128(q)), bf16_8(_mm_loadu_si128(q + 1))};
}
INL v16 v_load_u8(const void *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)))};
}
INL v16 v_load_i8(const void *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)))};
}
INL void v_store_f16(void *p, v16 x)
{
    enum { RN = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, RN));
    _mm_storeu_si128((__m128i *)p + 1, _mm256_cvtps_ph(x.b, RN));
}
INL __m256 byte_8(__m256i w, int i)
{
    return _mm256_cvtepi32_ps(
        _mm256_and_si256(_mm256_srli_epi32(w, 8 * i), _mm256_set1_epi32(255)));
}
INL v16 v_byte(const void *words, int i)
{
    const __m256i *q = (const __m256i *)words;
    return (v16){byte_8(_mm256_loadu_si256(q), i), byte_8(_mm256_loadu_si256(q + 1), i)};
}
INL __m256 sbyte_8(__m256i w, int i)
{
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(w, 24 - 8 * i), 24));
}
INL v16 v_sbyte(const void *words, int i)
{
    const __m256i *q = (const __m256i *)words;
    return (v16){sbyte_8(_mm256_loadu_si256(q), i), sbyte_8(_mm256_loadu_si256(q + 1), i)};
}
INL __m256 scale2_8(__m256 y, __m256 n)
{
    __m256i i = _mm256_cvttps_epi32(n), h = _mm256_srai_epi32(i, 1), o = _mm256_set1_epi32(127);
    y = _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(h, o), 23)));
    i = _mm256_add_epi32(_mm256_sub_epi32(i, h), o);
    return _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(i, 23)));
}
INL v16 v_scale_exp(v16 y, v16 n, v16 x)
{
    v16 low = v_lt(x, v_set1(-103.97f)), s = V2(scale2_8, y, n);
    return V2(_mm256_andnot_ps, low, s);
}
INL float v_tree_sum(v16 x)
{
    __m256 s = _mm256_add_ps(x.a, x.b);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
INL float v_tree_max(v16 x)
{
    __m256 s = _mm256_max_ps(x.a, x.b);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
INL __m128i v_to_i8(v16 x)
{
    __m256i a = _mm256_cvtps_epi32(x.a), b = _mm256_cvtps_epi32(x.b);
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}

#endif

/* hy_m_exp, lane by lane. A NaN stays one through every step. */
INL v16 v_exp(v16 x)
{
    v16 c = v_min(v_set1(88.72f), x);
    v16 n = v_round(v_mul(c, v_set1(1.44269504f)));
    v16 r = v_fma(n, v_set1(-0.693359375f), c);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    v16 p = v_set1(1.9875691500e-4f);
    p = v_fma(p, r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    return v_scale_exp(v_add(v_fma(p, v_mul(r, r), r), v_set1(1.0f)), n, x);
}

INL v16 v_tanh(v16 u)
{
    v16 e = v_exp(v_mul(v_set1(2.0f), u));
    return v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(e, v_set1(1.0f))));
}

#endif
