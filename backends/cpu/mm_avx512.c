/* SPDX-License-Identifier: Apache-2.0
 *
 * Integer matmul tiles for AVX-512 VNNI: 32 rows (two registers) by up to 6 columns. A block's sum
 * starts from the codes' zero point times the activations' sum, so it is the exact sum of signed
 * codes; then one fma scales it into the chain (docs/NUMERICS.md).
 *
 * Thread: any (pure).  Owner: none.
 */
#include "backends/cpu/mm.h"

#define R 32

/* gcc 12 wraps the intrinsic's accumulator in moves */
#define DPBUSD(acc, w, x) __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x))

/* Where a block's planes are, from its first byte. */
#define OFF_B2(F)    ((F).nib ? 16 * R : 0)
#define OFF_B1(F)    (OFF_B2(F) + ((F).b2 ? 8 * R : 0))
#define OFF_SCALE(F) (OFF_B1(F) + ((F).b1 ? 4 * R : 0) + ((F).b8 ? 32 * R : 0))

/* Raised codes of group g, rows 16v.. of a block. */
INL __m512i codes(const uint8_t *p, const cpu_fmt F, int g, int v)
{
    __m512i c = _mm512_setzero_si512();
    if (F.b8)
        return _mm512_load_si512(p + g * 128 + v * 64);
    if (F.nib) {
        c = _mm512_load_si512(p + g % 4 * 128 + v * 64);
        if (g >= 4)
            c = _mm512_srli_epi16(c, 4);
        c = _mm512_and_si512(c, _mm512_set1_epi8(15));
    }
    if (F.b2) { /* into bits 4..5, or 0..1 without nibbles */
        __m512i h = _mm512_load_si512(p + OFF_B2(F) + g % 2 * 128 + v * 64);
        int s = g / 2 * 2 - (F.nib ? 4 : 0);
        h = s > 0 ? _mm512_srli_epi16(h, s) : s < 0 ? _mm512_slli_epi16(h, -s) : h;
        const __m512i m = _mm512_set1_epi8(F.nib ? 0x30 : 3);
        c = F.nib ? _mm512_ternarylogic_epi32(c, h, m, 0xf8) : _mm512_and_si512(h, m);
    }
    if (F.b1) {
        __m512i h = _mm512_load_si512(p + OFF_B1(F) + v * 64);
        int s = g - (F.nib ? 4 : 2);
        h = s > 0 ? _mm512_srli_epi16(h, s) : s < 0 ? _mm512_slli_epi16(h, -s) : h;
        c = _mm512_ternarylogic_epi32(c, h, _mm512_set1_epi8(F.nib ? 0x10 : 4), 0xf8);
    }
    return c;
}

INL __m512 scale_of(const uint8_t *hdr, const uint8_t *p, const cpu_fmt F, int s, int v)
{
    const uint8_t *sc = p + OFF_SCALE(F) + (F.scale == SCALE_D || F.scale == SCALE_DM ? 0 : s * R);
    if (F.scale == SCALE_NONE) /* decoded: f32 */
        return _mm512_load_ps((const float *)(const void *)(p + OFF_SCALE(F)) + s * R + v * 16);
    if (F.scale == SCALE_D || F.scale == SCALE_DM)
        return v_load_f16(sc + v * 32);
    __m512 d = v_load_f16(hdr + v * 32);
    return _mm512_mul_ps(d, F.scale == SCALE_K6 ? v_load_i8(sc + v * 16) : v_load_u8(sc + v * 16));
}

INL __m512 min_of(const uint8_t *hdr, const uint8_t *p, const cpu_fmt F, int s, int v)
{
    const int subs = 32 / F.sub;
    const uint8_t *at = p + OFF_SCALE(F);
    if (F.scale == SCALE_NONE)
        return _mm512_load_ps((const float *)(const void *)at + (subs + s) * R + v * 16);
    if (F.scale == SCALE_DM)
        return v_load_f16(at + 2 * R + v * 32);
    __m512 m = v_load_u8(at + (subs + s) * R + v * 16);
    return v_neg(_mm512_mul_ps(v_load_f16(hdr + 2 * R + v * 32), m));
}

/* Sub-block s of a block into the chains f; x: the block's panel. */
INL void sub_block(const uint8_t *hdr, const uint8_t *p, const cpu_fmt F, const int32_t *x, int s,
                   const int W, __m512 (*f)[2])
{
    const int subs = 32 / F.sub, per = 8 / subs;
    const float *d = (const float *)(const void *)(x + 8 * W);
    const int32_t *ns = x + 9 * W + s * W;
    const float *ds = (const float *)(const void *)(x + 9 * W + subs * W + s * W);
    __m512i a[CPU_TILE_I8][2];
    UNROLL(6)
    for (int c = 0; c < W; c++)
        a[c][0] = a[c][1] =
            F.zero ? _mm512_slli_epi32(_mm512_set1_epi32(ns[c]), F.zero) : _mm512_setzero_si512();
    UNROLL(8)
    for (int i = 0; i < per; i++) {
        /* nibbles of two groups share a load: take them in turn when both belong here */
        const int g = s * per + (subs == 1 && !F.b8 ? i / 2 + i % 2 * 4 : i);
        __m512i w0 = codes(p, F, g, 0), w1 = codes(p, F, g, 1);
        UNROLL(6)
        for (int c = 0; c < W; c++) {
            __m512i b = _mm512_set1_epi32(x[g * W + c]);
            DPBUSD(a[c][0], w0, b);
            DPBUSD(a[c][1], w1, b);
        }
    }
    __m512 d0 = scale_of(hdr, p, F, s, 0), d1 = scale_of(hdr, p, F, s, 1);
    UNROLL(6)
    for (int c = 0; c < W; c++) {
        __m512 da = _mm512_set1_ps(d[c]);
        f[c][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[c][0]), _mm512_mul_ps(d0, da), f[c][0]);
        f[c][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[c][1]), _mm512_mul_ps(d1, da), f[c][1]);
    }
    if (F.min) {
        __m512 m0 = min_of(hdr, p, F, s, 0), m1 = min_of(hdr, p, F, s, 1);
        UNROLL(6)
        for (int c = 0; c < W; c++) {
            __m512 b = _mm512_set1_ps(ds[c]);
            f[c][0] = _mm512_fmadd_ps(m0, b, f[c][0]);
            f[c][1] = _mm512_fmadd_ps(m1, b, f[c][1]);
        }
    }
}

/* blocks of `stride` bytes, a header of hdr bytes a row before every 8 */
INL void tile(const uint8_t *w, const void *panel, int64_t nb, float *acc, const cpu_fmt F,
              const int stride, const int W)
{
    const int subs = 32 / F.sub, words = (subs == 2 ? 13 : 11) * W;
    const int32_t *x = panel;
    __m512 f[CPU_TILE_I8][2];
    UNROLL(6)
    for (int c = 0; c < W; c++) {
        f[c][0] = _mm512_loadu_ps(acc + c * R);
        f[c][1] = _mm512_loadu_ps(acc + c * R + 16);
    }
    for (int64_t b0 = 0; b0 < nb; b0 += 8) {
        const uint8_t *hdr = w;
        w += F.hdr * R;
        int64_t n = nb - b0 < 8 ? nb - b0 : 8;
        for (int64_t b = 0; b < n; b++, w += stride, x += words) {
            if (F.scale != SCALE_NONE) /* packed: perhaps from memory */
                prefetch_block(w, stride);
            UNROLL(2)
            for (int s = 0; s < subs; s++)
                sub_block(hdr, w, F, x, s, W, f);
        }
    }
    UNROLL(6)
    for (int c = 0; c < W; c++) {
        _mm512_storeu_ps(acc + c * R, f[c][0]);
        _mm512_storeu_ps(acc + c * R + 16, f[c][1]);
    }
}

INL void decode(const uint8_t *w, int64_t nb, uint8_t *out, const cpu_fmt F)
{
    const int subs = 32 / F.sub;
    for (int64_t b0 = 0; b0 < nb; b0 += 8) {
        const uint8_t *hdr = w;
        w += F.hdr * R;
        int64_t n = nb - b0 < 8 ? nb - b0 : 8;
        for (int64_t b = 0; b < n; b++, w += F.blk * R) {
            UNROLL(8)
            for (int g = 0; g < 8; g++) {
                _mm512_store_si512(out + g * 128, codes(w, F, g, 0));
                _mm512_store_si512(out + g * 128 + 64, codes(w, F, g, 1));
            }
            float *s = (float *)(void *)(out + 32 * R);
            for (int i = 0; i < subs * 2; i++) {
                _mm512_store_ps(s + i * 16, scale_of(hdr, w, F, i / 2, i % 2));
                if (F.min)
                    _mm512_store_ps(s + subs * R + i * 16, min_of(hdr, w, F, i / 2, i % 2));
            }
            out += 32 * R + 4 * R * subs * (F.min ? 2 : 1);
        }
    }
}

#include "backends/cpu/mm_impl.h"

const cpu_mm cpu_mm_avx512 = {.rows = R, .tile_f32 = 12, .signed8 = false, MM_TABLE};
