/* SPDX-License-Identifier: Apache-2.0
 *
 * Integer matmul tiles for AVX2: 16 rows (two registers) by up to 6 columns. Exact int8 products
 * without VNNI: unsigned codes below 2^bits times int8 fit int16 for a while, so sums of groups
 * stay in int16 (8 groups of 4-bit codes, 4 of 5 bits, 2 of 6) before a madd widens them. Whole
 * 8-bit codes multiply by magnitude, the activations taking the sign.
 *
 * Thread: any (pure).  Owner: none.
 */
#include "backends/cpu/mm.h"

#define R 16

/* Steps in asm: gcc 12 spills the accumulators otherwise. */
#define MACW(s0, s1, w0, w1, mem)                                                                  \
    do {                                                                                           \
        __m256i x_, t_;                                                                            \
        __asm__("vpbroadcastd %4, %2\n\tvpmaddubsw %2, %5, %3\n\tvpmaddubsw %2, %6, %2\n\t"        \
                "vpaddw %3, %0, %0\n\tvpaddw %2, %1, %1"                                           \
                : "+x"(s0), "+x"(s1), "=&x"(x_), "=&x"(t_)                                         \
                : "m"(mem), "x"(w0), "x"(w1));                                                     \
    } while (0)
/* two groups into int32 */
#define MAC2(s, wa, wb, ma, mb, one)                                                               \
    do {                                                                                           \
        __m256i x_, t_;                                                                            \
        __asm__("vpbroadcastd %3, %1\n\tvpbroadcastd %4, %2\n\tvpmaddubsw %1, %5, %1\n\t"          \
                "vpmaddubsw %2, %6, %2\n\tvpaddw %2, %1, %1\n\tvpmaddwd %7, %1, %1\n\t"            \
                "vpaddd %1, %0, %0"                                                                \
                : "+x"(s), "=&x"(x_), "=&x"(t_)                                                    \
                : "m"(ma), "m"(mb), "x"(wa), "x"(wb), "x"(one));                                   \
    } while (0)
/* signed codes w, their magnitude u */
#define MACS(s, w, u, mem, one)                                                                    \
    do {                                                                                           \
        __m256i x_;                                                                                \
        __asm__("vpbroadcastd %2, %1\n\tvpsignb %3, %1, %1\n\tvpmaddubsw %1, %4, %1\n\t"           \
                "vpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"                                         \
                : "+x"(s), "=&x"(x_)                                                               \
                : "m"(mem), "x"(w), "x"(u), "x"(one));                                             \
    } while (0)

#define OFF_B2(F)    ((F).nib ? 16 * R : 0)
#define OFF_B1(F)    (OFF_B2(F) + ((F).b2 ? 8 * R : 0))
#define OFF_SCALE(F) (OFF_B1(F) + ((F).b1 ? 4 * R : 0) + ((F).b8 ? 32 * R : 0))

INL __m256i load(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

INL __m256i shift(__m256i h, int s)
{
    return s > 0 ? _mm256_srli_epi16(h, s) : s < 0 ? _mm256_slli_epi16(h, -s) : h;
}

/* Raised codes of group g, rows 8v.. of a block. */
INL __m256i codes(const uint8_t *p, const cpu_fmt F, int g, int v)
{
    __m256i c = _mm256_setzero_si256();
    if (F.b8)
        return load(p + g * 64 + v * 32);
    if (F.nib)
        c = _mm256_and_si256(shift(load(p + g % 4 * 64 + v * 32), g / 4 * 4), _mm256_set1_epi8(15));
    if (F.b2) {
        __m256i h = shift(load(p + OFF_B2(F) + g % 2 * 64 + v * 32), g / 2 * 2 - (F.nib ? 4 : 0));
        c = _mm256_or_si256(c, _mm256_and_si256(h, _mm256_set1_epi8(F.nib ? 0x30 : 3)));
    }
    if (F.b1) {
        __m256i h = shift(load(p + OFF_B1(F) + v * 32), g - (F.nib ? 4 : 2));
        c = _mm256_or_si256(c, _mm256_and_si256(h, _mm256_set1_epi8(F.nib ? 0x10 : 4)));
    }
    return c;
}

INL __m256 f16_8(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

INL __m256 u8_8(const uint8_t *p, bool sign)
{
    __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(sign ? _mm256_cvtepi8_epi32(v) : _mm256_cvtepu8_epi32(v));
}

INL __m256 scale_of(const uint8_t *hdr, const uint8_t *p, const cpu_fmt F, int s, int v)
{
    const uint8_t *sc = p + OFF_SCALE(F);
    if (F.scale == SCALE_NONE)
        return _mm256_load_ps((const float *)(const void *)sc + s * R + v * 8);
    if (F.scale == SCALE_D || F.scale == SCALE_DM)
        return f16_8(sc + v * 16);
    return _mm256_mul_ps(f16_8(hdr + v * 16), u8_8(sc + s * R + v * 8, F.scale == SCALE_K6));
}

INL __m256 min_of(const uint8_t *hdr, const uint8_t *p, const cpu_fmt F, int s, int v)
{
    const int subs = 32 / F.sub;
    const uint8_t *at = p + OFF_SCALE(F);
    if (F.scale == SCALE_NONE)
        return _mm256_load_ps((const float *)(const void *)at + (subs + s) * R + v * 8);
    if (F.scale == SCALE_DM)
        return f16_8(at + 2 * R + v * 16);
    __m256 m = _mm256_mul_ps(f16_8(hdr + 2 * R + v * 16), u8_8(at + (subs + s) * R + v * 8, false));
    return _mm256_xor_ps(m, _mm256_set1_ps(-0.0f));
}

/* Adds groups g0..g0+chain, summed in int16, to a. */
INL void chain_sum(const uint8_t *p, const cpu_fmt F, const int32_t *x, const int g0,
                   const int chain, const int W, __m256i (*a)[2])
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i t[CPU_TILE_I8][2];
    UNROLL(6)
    for (int c = 0; c < W; c++)
        t[c][0] = t[c][1] = _mm256_setzero_si256();
    UNROLL(8)
    for (int i = 0; i < chain; i++) {
        const int g = g0 + (chain == 8 ? i / 2 + i % 2 * 4 : i);
        __m256i w0 = codes(p, F, g, 0), w1 = codes(p, F, g, 1);
        UNROLL(6)
        for (int c = 0; c < W; c++)
            MACW(t[c][0], t[c][1], w0, w1, x[g * W + c]);
    }
    UNROLL(6)
    for (int c = 0; c < W; c++) {
        a[c][0] = _mm256_add_epi32(a[c][0], _mm256_madd_epi16(t[c][0], one));
        a[c][1] = _mm256_add_epi32(a[c][1], _mm256_madd_epi16(t[c][1], one));
    }
}

/* Exact sums of one sub-block, rows of both registers. */
INL void sums(const uint8_t *p, const cpu_fmt F, const int32_t *x, const int32_t *ns, int s,
              const int W, __m256i (*a)[2])
{
    const int subs = 32 / F.sub, per = 8 / subs;
    const int chain = F.bits <= 4 ? per : F.bits == 5 ? 4 : 2;
    const __m256i one = _mm256_set1_epi16(1);
    UNROLL(6)
    for (int c = 0; c < W; c++)
        a[c][0] = a[c][1] = F.zero && F.bits < 8
                                ? _mm256_slli_epi32(_mm256_set1_epi32(ns[c]), F.zero)
                                : _mm256_setzero_si256();
    if (chain >= 4) {
        chain_sum(p, F, x, s * per, chain, W, a);
        if (per > chain)
            chain_sum(p, F, x, s * per + chain, chain, W, a);
        return;
    }
    UNROLL(2)
    for (int v = 0; v < 2; v++) {
        UNROLL(8)
        for (int i = 0; i < per; i += F.bits == 8 ? 1 : 2) {
            const int g = s * per + i;
            __m256i w = codes(p, F, g, v);
            __m256i u = F.bits == 8 ? _mm256_abs_epi8(w) : codes(p, F, g + 1, v);
            UNROLL(6)
            for (int c = 0; c < W; c++) {
                if (F.bits == 8)
                    MACS(a[c][v], w, u, x[g * W + c], one);
                else
                    MAC2(a[c][v], w, u, x[g * W + c], x[(g + 1) * W + c], one);
            }
        }
    }
}

INL void sub_block(const uint8_t *hdr, const uint8_t *p, const cpu_fmt F, const int32_t *x, int s,
                   const int W, __m256 (*f)[2])
{
    const int subs = 32 / F.sub;
    const float *d = (const float *)(const void *)(x + 8 * W);
    const float *ds = (const float *)(const void *)(x + 9 * W + subs * W + s * W);
    __m256i a[CPU_TILE_I8][2];
    sums(p, F, x, x + 9 * W + s * W, s, W, a);
    UNROLL(2)
    for (int v = 0; v < 2; v++) {
        __m256 dw = scale_of(hdr, p, F, s, v);
        __m256 mw = F.min ? min_of(hdr, p, F, s, v) : _mm256_setzero_ps();
        UNROLL(6)
        for (int c = 0; c < W; c++) {
            __m256 t = _mm256_mul_ps(dw, _mm256_broadcast_ss(d + c));
            f[c][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(a[c][v]), t, f[c][v]);
            if (F.min)
                f[c][v] = _mm256_fmadd_ps(mw, _mm256_broadcast_ss(ds + c), f[c][v]);
        }
    }
}

/* blocks of `stride` bytes, a header of hdr bytes a row before every 8 */
INL void tile(const uint8_t *w, const void *panel, int64_t nb, float *acc, const cpu_fmt F,
              const int stride, const int W)
{
    const int subs = 32 / F.sub, words = (subs == 2 ? 13 : 11) * W;
    const int32_t *x = panel;
    __m256 f[CPU_TILE_I8][2];
    UNROLL(6)
    for (int c = 0; c < W; c++) {
        f[c][0] = _mm256_loadu_ps(acc + c * R);
        f[c][1] = _mm256_loadu_ps(acc + c * R + 8);
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
        _mm256_storeu_ps(acc + c * R, f[c][0]);
        _mm256_storeu_ps(acc + c * R + 8, f[c][1]);
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
                _mm256_store_si256((__m256i *)(void *)(out + g * 64), codes(w, F, g, 0));
                _mm256_store_si256((__m256i *)(void *)(out + g * 64 + 32), codes(w, F, g, 1));
            }
            float *s = (float *)(void *)(out + 32 * R);
            for (int i = 0; i < subs * 2; i++) {
                _mm256_store_ps(s + i * 8, scale_of(hdr, w, F, i / 2, i % 2));
                if (F.min)
                    _mm256_store_ps(s + subs * R + i * 8, min_of(hdr, w, F, i / 2, i % 2));
            }
            out += 32 * R + 4 * R * subs * (F.min ? 2 : 1);
        }
    }
}

#include "backends/cpu/mm_impl.h"

const cpu_mm cpu_mm_avx2 = {.rows = R, .tile_f32 = 6, .signed8 = true, MM_TABLE};
