/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of a wire tile, compiled for both instruction sets: copies, 2- and 4-byte transposes
 * (planes with tokens side by side), and conversions through rows of f32. Bits of ref_kv.c.
 *
 * Thread: any.  Owner: none.
 */
#include "backends/cpu/kv.h"
#include "backends/cpu/vec16.h"

#define LANES8(i) _mm256_set1_epi32(i)

INL __m256 half_of(v16 x, int i)
{
#ifdef __AVX512F__
    return i == 0 ? _mm512_castps512_ps256(x) : _mm512_extractf32x8_ps(x, 1);
#else
    return i == 0 ? x.a : x.b;
#endif
}

INL v16 join(__m256 a, __m256 b)
{
#ifdef __AVX512F__
    return _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1);
#else
    return (v16){a, b};
#endif
}

/* ---- conversions of 16 values ---- */

INL __m256i words_of_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, LANES8(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, LANES8(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(r, 16), _mm256_or_si256(top, LANES8(0x40)), nan);
}

INL void store_bf16(void *p, v16 x)
{
    __m256i w = _mm256_packus_epi32(words_of_bf16(half_of(x, 0)), words_of_bf16(half_of(x, 1)));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(w, 0xd8));
}

typedef struct f8 {
    int base;  /* exponent field of f32 below that of code 1.000, shifted: (bias difference) << 3 */
    int first; /* bits of the smallest normal */
    int top;   /* greatest code */
    float sub; /* 1 / step of the subnormals */
    bool fn;
} f8;

INL f8 f8_of(hy_dtype t)
{
    if (t == HY_F8_E4M3)
        return (f8){120 << 3, 121 << 23, 0x7e, 0x1p9f, true};
    return (f8){119 << 3, 120 << 23, 0x7f, 0x1p10f, false};
}

INL __m256i f8_codes(__m256 x, const f8 *k)
{
    __m256i u = _mm256_castps_si256(x), a = _mm256_and_si256(u, LANES8(0x7fffffff));
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(u, 24), LANES8(0x80));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(a, 20), LANES8(1));
    __m256i n = _mm256_add_epi32(_mm256_add_epi32(a, LANES8(0x7ffff)), odd);
    n = _mm256_sub_epi32(_mm256_srli_epi32(n, 20), LANES8(k->base));
    __m256i s = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(a), _mm256_set1_ps(k->sub)));
    n = _mm256_blendv_epi8(n, s, _mm256_cmpgt_epi32(LANES8(k->first), a));
    n = _mm256_min_epi32(n, LANES8(k->top));
    __m256i nan = _mm256_cmpgt_epi32(a, LANES8(0x7f800000));
    if (k->fn) {
        n = _mm256_blendv_epi8(n, LANES8(0x7f), nan);
        return _mm256_or_si256(n, sign);
    }
    sign = _mm256_andnot_si256(_mm256_cmpeq_epi32(n, _mm256_setzero_si256()), sign);
    return _mm256_blendv_epi8(_mm256_or_si256(n, sign), LANES8(0x80), nan);
}

INL __m128i to_f8(v16 x, const f8 *k)
{
    __m256i w = _mm256_packus_epi32(f8_codes(half_of(x, 0), k), f8_codes(half_of(x, 1), k));
    w = _mm256_permute4x64_epi64(w, 0xd8);
    return _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}

INL __m256 f8_values(__m128i codes, const f8 *k)
{
    __m256i b = _mm256_cvtepu8_epi32(codes), m = _mm256_and_si256(b, LANES8(0x7f));
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(b, LANES8(0x80)), 24);
    __m256i n = _mm256_add_epi32(_mm256_slli_epi32(m, 20), LANES8(k->base << 20));
    __m256i s =
        _mm256_castps_si256(_mm256_mul_ps(_mm256_cvtepi32_ps(m), _mm256_set1_ps(1.0f / k->sub)));
    n = _mm256_blendv_epi8(n, s, _mm256_cmpgt_epi32(LANES8(8), m));
    __m256i nan = k->fn ? _mm256_cmpeq_epi32(m, LANES8(0x7f)) : _mm256_cmpeq_epi32(b, LANES8(0x80));
    n = _mm256_blendv_epi8(n, LANES8(0x7fc00000), nan);
    if (!k->fn)
        sign = _mm256_andnot_si256(nan, sign);
    return _mm256_castsi256_ps(_mm256_or_si256(n, sign));
}

INL v16 from_f8(__m128i c, const f8 *k)
{
    return join(f8_values(c, k), f8_values(_mm_srli_si128(c, 8), k));
}

/* ---- rows of f32 to the wire and back ---- */

/* Stores 16 values of type t at element i of p, or the first n of them. */
INL void put16(hy_dtype t, uint8_t *p, v16 x, int64_t n)
{
    uint8_t b[64];
    size_t elem = t == HY_F32 ? 4 : 2;
    uint8_t *to = n >= 16 ? p : b;
    if (t == HY_F32)
        v_store((float *)(void *)to, x);
    else if (t == HY_F16)
        v_store_f16(to, x);
    else
        store_bf16(to, x);
    if (n < 16)
        memcpy(p, b, (size_t)n * elem);
}

INL v16 get16(hy_dtype t, const uint8_t *p, int64_t n)
{
    uint8_t b[64] = {0};
    if (n < 16) {
        memcpy(b, p, (size_t)n * (t == HY_F32 ? 4 : 2));
        p = b;
    }
    if (t == HY_F32)
        return v_load((const float *)(const void *)p);
    return t == HY_F16 ? v_load_f16(p) : v_load_bf16(p);
}

INL void put_row_(hy_dtype t, const float *x, int64_t n, uint8_t *out)
{
    int64_t elem = t == HY_F32 ? 4 : 2;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        put16(t, out + i * elem, v_load(x + i), 16);
    if (i < n)
        put16(t, out + i * elem, v_load_n(x + i, (int)(n - i)), n - i);
}

static void put_row(hy_dtype t, const float *x, int64_t n, uint8_t *out)
{
    if (t == HY_F32)
        memcpy(out, x, (size_t)n * 4);
    else if (t == HY_F16)
        put_row_(HY_F16, x, n, out);
    else
        put_row_(HY_BF16, x, n, out);
}

/* out has room for whole sixteens */
INL void get_row_(hy_dtype t, const uint8_t *x, int64_t n, float *out)
{
    int64_t elem = t == HY_F32 ? 4 : 2;
    for (int64_t i = 0; i < n; i += 16)
        v_store(out + i, get16(t, x + i * elem, n - i));
}

static void get_row(hy_dtype t, const uint8_t *x, int64_t n, float *out)
{
    if (t == HY_F32)
        memcpy(out, x, (size_t)n * 4);
    else if (t == HY_F16)
        get_row_(HY_F16, x, n, out);
    else
        get_row_(HY_BF16, x, n, out);
}

INL void quantise_(const float *x, int64_t n, float inv, hy_dtype t, uint8_t *out)
{
    const f8 k = f8_of(t);
    v16 s = v_set1(inv);
    for (int64_t i = 0; i < n; i += 16) {
        int64_t left = n - i;
        v16 v = v_mul(left >= 16 ? v_load(x + i) : v_load_n(x + i, (int)left), s);
        __m128i c = t == HY_I8 ? v_to_i8(v) : to_f8(v, &k);
        if (left >= 16) {
            _mm_storeu_si128((__m128i *)(out + i), c);
        } else {
            uint8_t b[16];
            _mm_storeu_si128((__m128i *)b, c);
            memcpy(out + i, b, (size_t)left);
        }
    }
}

static void quantise(const float *x, int64_t n, float inv, hy_dtype t, uint8_t *out)
{
    if (t == HY_I8)
        quantise_(x, n, inv, HY_I8, out);
    else if (t == HY_F8_E4M3)
        quantise_(x, n, inv, HY_F8_E4M3, out);
    else
        quantise_(x, n, inv, HY_F8_E4M3FNUZ, out);
}

INL void dequantise_(const uint8_t *x, int64_t n, float scale, hy_dtype t, float *out)
{
    const f8 k = f8_of(t);
    v16 s = v_set1(scale);
    for (int64_t i = 0; i < n; i += 16) {
        uint8_t b[16] = {0};
        int64_t left = n - i;
        if (left < 16)
            memcpy(b, x + i, (size_t)left);
        __m128i c = _mm_loadu_si128((const __m128i *)(left >= 16 ? x + i : b));
        v16 v = v_mul(t == HY_I8 ? v_load_i8(&c) : from_f8(c, &k), s);
        if (left >= 16)
            v_store(out + i, v);
        else
            v_store_n(out + i, v, (int)left);
    }
}

static void dequantise(const uint8_t *x, int64_t n, float scale, hy_dtype t, float *out)
{
    if (t == HY_I8)
        dequantise_(x, n, scale, HY_I8, out);
    else if (t == HY_F8_E4M3)
        dequantise_(x, n, scale, HY_F8_E4M3, out);
    else
        dequantise_(x, n, scale, HY_F8_E4M3FNUZ, out);
}

/* As row_scale of the reference. */
static float row_scale(const float *x, int64_t n, float limit, float *inv)
{
    v16 amax = v_zero(), inf = v_set1(INFINITY);
    unsigned fine = 0xffff;
    for (int64_t i = 0; i < n; i += 16) {
        v16 v = v_abs(n - i >= 16 ? v_load(x + i) : v_load_n(x + i, (int)(n - i)));
        fine &= v_bits(v_lt(v, inf));
        amax = v_max(v, amax);
    }
    *inv = 0.0f;
    if (fine != 0xffff)
        return NAN;
    float a = v_tree_max(amax);
    if (a < 0x1p-110f)
        return 0.0f;
    *inv = limit / a;
    return a / limit;
}

/* ---- transposes: dst[c][r] = src[r][c] ---- */

/* Eight dwords of two rows that interleave: a 4x4 transpose in each half. */
INL void turn4(const __m256i v[4], __m256i out[4])
{
    __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
}

INL __m256i two(const uint8_t *lo, const uint8_t *hi)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)lo)),
                                   _mm_loadu_si128((const __m128i *)hi), 1);
}

/* 8 rows, 4 columns of 4 bytes */
INL void turn32_8x4(const uint8_t *src, int64_t ss, uint8_t *dst, int64_t ds)
{
    __m256i v[4], o[4];
    UNROLL(4)
    for (int i = 0; i < 4; i++)
        v[i] = two(src + i * ss, src + (i + 4) * ss);
    turn4(v, o);
    UNROLL(4)
    for (int i = 0; i < 4; i++)
        _mm256_storeu_si256((__m256i *)(dst + i * ds), o[i]);
}

static void turn32(const uint8_t *src, int64_t ss, uint8_t *dst, int64_t ds, int64_t rows,
                   int64_t cols)
{
    int64_t r8 = rows & ~(int64_t)7, c4 = cols & ~(int64_t)3;
    for (int64_t r = 0; r < r8; r += 8) {
        for (int64_t c = 0; c < c4; c += 4)
            turn32_8x4(src + r * ss + c * 4, ss, dst + c * ds + r * 4, ds);
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = r < r8 ? c4 : 0; c < cols; c++)
            memcpy(dst + c * ds + r * 4, src + r * ss + c * 4, 4);
    }
}

/* 16 rows, 8 columns of 2 bytes */
INL void turn16_16x8(const uint8_t *src, int64_t ss, uint8_t *dst, int64_t ds)
{
    __m256i a[8], b[8];
    UNROLL(8)
    for (int i = 0; i < 8; i++)
        a[i] = two(src + i * ss, src + (i + 8) * ss);
    UNROLL(4)
    for (int i = 0; i < 4; i++) {
        b[i] = _mm256_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[4 + i] = _mm256_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    turn4(b, a);
    turn4(b + 4, a + 4);
    UNROLL(8)
    for (int i = 0; i < 8; i++)
        _mm256_storeu_si256((__m256i *)(dst + i * ds), a[i]);
}

INL void turn16_8x8(const uint8_t *src, int64_t ss, uint8_t *dst, int64_t ds)
{
    __m128i a[8], b[8];
    UNROLL(8)
    for (int i = 0; i < 8; i++)
        a[i] = _mm_loadu_si128((const __m128i *)(src + i * ss));
    UNROLL(4)
    for (int i = 0; i < 4; i++) {
        b[i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[4 + i] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    UNROLL(2)
    for (int i = 0; i < 8; i += 4) {
        __m128i p = _mm_unpacklo_epi32(b[i], b[i + 1]), q = _mm_unpackhi_epi32(b[i], b[i + 1]);
        __m128i r = _mm_unpacklo_epi32(b[i + 2], b[i + 3]);
        __m128i s = _mm_unpackhi_epi32(b[i + 2], b[i + 3]);
        a[i] = _mm_unpacklo_epi64(p, r);
        a[i + 1] = _mm_unpackhi_epi64(p, r);
        a[i + 2] = _mm_unpacklo_epi64(q, s);
        a[i + 3] = _mm_unpackhi_epi64(q, s);
    }
    UNROLL(8)
    for (int i = 0; i < 8; i++)
        _mm_storeu_si128((__m128i *)(dst + i * ds), a[i]);
}

static void turn16(const uint8_t *src, int64_t ss, uint8_t *dst, int64_t ds, int64_t rows,
                   int64_t cols)
{
    int64_t c8 = cols & ~(int64_t)7, r = 0;
    for (; r + 16 <= rows; r += 16) {
        for (int64_t c = 0; c < c8; c += 8)
            turn16_16x8(src + r * ss + c * 2, ss, dst + c * ds + r * 2, ds);
    }
    for (; r + 8 <= rows; r += 8) {
        for (int64_t c = 0; c < c8; c += 8)
            turn16_8x8(src + r * ss + c * 2, ss, dst + c * ds + r * 2, ds);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t c = i < r ? c8 : 0; c < cols; c++)
            memcpy(dst + c * ds + i * 2, src + i * ss + c * 2, 2);
    }
}

/* ---- elements between a cache tile and dense rows of the same type ---- */

static void copy_row(uint8_t *dst, const uint8_t *src, int64_t bytes)
{
    int64_t i = 0;
    for (; i + 32 <= bytes; i += 32)
        _mm256_storeu_si256((__m256i *)(dst + i), _mm256_loadu_si256((const __m256i *)(src + i)));
    if (i < bytes)
        memcpy(dst + i, src + i, (size_t)(bytes - i));
}

/* rows: ld bytes apart */
static void take(const cpu_kv_tile *t, int64_t elem, uint8_t *rows, int64_t ld)
{
    if (t->dim == elem) {
        for (int32_t i = 0; i < t->m; i++)
            copy_row(rows + i * ld, t->cache + i * t->token, t->width * elem);
    } else if (t->token == elem && elem == 2) {
        turn16(t->cache, t->dim, rows, ld, t->width, t->m);
    } else if (t->token == elem && elem == 4) {
        turn32(t->cache, t->dim, rows, ld, t->width, t->m);
    } else {
        for (int32_t i = 0; i < t->m; i++) {
            for (int32_t d = 0; d < t->width; d++)
                memcpy(rows + i * ld + d * elem, t->cache + i * t->token + d * t->dim,
                       (size_t)elem);
        }
    }
}

static void give(const cpu_kv_tile *t, int64_t elem, const uint8_t *rows, int64_t ld)
{
    if (t->dim == elem) {
        for (int32_t i = 0; i < t->m; i++)
            copy_row(t->cache + i * t->token, rows + i * ld, t->width * elem);
    } else if (t->token == elem && elem == 2) {
        turn16(rows, ld, t->cache, t->dim, t->m, t->width);
    } else if (t->token == elem && elem == 4) {
        turn32(rows, ld, t->cache, t->dim, t->m, t->width);
    } else {
        for (int32_t i = 0; i < t->m; i++) {
            for (int32_t d = 0; d < t->width; d++)
                memcpy(t->cache + i * t->token + d * t->dim, rows + i * ld + d * elem,
                       (size_t)elem);
        }
    }
}

static int64_t bytes_of(hy_dtype t)
{
    return t == HY_F32 ? 4 : t == HY_F16 || t == HY_BF16 ? 2 : 1;
}

/* ---- tiles ---- */

static void pack_tile(const cpu_kv_tile *t)
{
    int64_t w = t->width, elem = bytes_of(t->type), out = bytes_of(t->w), ld = cpu_kv_ld(t->width);
    if (t->w == t->type) {
        take(t, elem, t->wire, t->wire_ld);
        return;
    }
    const uint8_t *raw = t->cache; /* rows of the storage type */
    int64_t step = t->token;
    if (t->dim != elem) {
        raw = t->alt;
        step = ld * elem;
        take(t, elem, t->alt, step);
    }
    float limit = t->w == HY_I8 ? 127.0f : t->w == HY_F8_E4M3 ? 448.0f : 240.0f;
    for (int32_t i = 0; i < t->m; i++) {
        uint8_t *to = t->wire + i * t->wire_ld;
        get_row(t->type, raw + i * step, w, t->rows);
        if (out != 1) {
            put_row(t->w, t->rows, w, to);
            continue;
        }
        float inv;
        t->scales[i] = row_scale(t->rows, w, limit, &inv);
        if (inv == 0.0f)
            memset(to, 0, (size_t)w);
        else
            quantise(t->rows, w, inv, t->w, to);
    }
}

/* Stored as f32 and nothing to round: rows are converted where they stand. False: another case. */
static bool unpack_f32(const cpu_kv_tile *t, uint8_t *rows, int64_t step, bool plain)
{
    int64_t w = t->width, in = bytes_of(t->w);
    bool exact = t->value == HY_F32 || (t->w == t->value && t->value != HY_BF16);
    if (t->type != HY_F32 || !exact || (plain && in != 1 && w % 16 != 0))
        return false; /* whole sixteens are written */
    for (int32_t i = 0; i < t->m; i++) {
        float *to = (float *)(void *)(rows + i * step);
        if (in == 1)
            dequantise(t->wire + i * t->wire_ld, w, t->scales[i], t->w, to);
        else
            get_row(t->w, t->wire + i * t->wire_ld, w, to);
    }
    return true;
}

static void unpack_tile(const cpu_kv_tile *t)
{
    int64_t w = t->width, elem = bytes_of(t->type), in = bytes_of(t->w), ld = cpu_kv_ld(t->width);
    if (t->w == t->type && t->w == t->value) {
        give(t, elem, t->wire, t->wire_ld);
        return;
    }
    bool plain = t->dim == elem;
    uint8_t *rows = plain ? t->cache : t->alt;
    int64_t step = plain ? t->token : ld * elem;
    bool done = unpack_f32(t, rows, step, plain);
    for (int32_t i = 0; i < t->m && !done; i++) {
        const uint8_t *from = t->wire + i * t->wire_ld;
        uint8_t *to = rows + i * step;
        if (in == 1)
            dequantise(from, w, t->scales[i], t->w, t->rows);
        else
            get_row(t->w, from, w, t->rows);
        if (t->value != t->type) {                         /* round, and store wider */
            uint8_t *half = t->alt + 15 * ld * 4 + ld * 2; /* behind what the rows need */
            if (t->w != t->value || t->value == HY_BF16) { /* bf16: its NaNs become quiet */
                put_row(t->value, t->rows, w, half);
                get_row(t->value, half, w, t->rows);
            }
        }
        put_row(t->type, t->rows, w, to);
    }
    if (!plain)
        give(t, elem, t->alt, step);
}

/* Stores that go past the caches: what comes in fills many times of what they hold, and is read
 * when all of it is there. Without them every line would be read before it is written. */
INL bool goes_past(const cpu_kv_tile *t)
{
    return (((uintptr_t)t->cache | (uintptr_t)t->token | (uintptr_t)t->cache_next) & 31) == 0;
}

INL void stream(float *to, v16 x)
{
    _mm256_stream_ps(to, half_of(x, 0));
    _mm256_stream_ps(to + 8, half_of(x, 1));
}

/* The wire may lie in another core's cache and on small pages: a row is asked for a tile before. */
INL void ahead(const cpu_kv_tile *t, const uint8_t *from, int64_t bytes)
{
    const char *at = (const char *)from + t->m * t->wire_ld;
    for (int64_t k = 0; k < bytes; k += 64)
        _mm_prefetch(at + k, _MM_HINT_T0);
}

INL void widen_rows(const cpu_kv_tile *t, hy_dtype w, bool past)
{
    for (int32_t i = 0; i < t->n; i++) {
        for (int32_t r = 0; r < t->m; r++) {
            const uint8_t *from = t->wire + i * t->wire_next + r * t->wire_ld;
            float *to = (float *)(void *)(t->cache + i * t->cache_next + r * t->token);
            ahead(t, from, t->width * 2);
            for (int32_t d = 0; d < t->width; d += 16) {
                v16 x = get16(w, from + d * 2, 16);
                if (past)
                    stream(to + d, x);
                else
                    v_store(to + d, x);
            }
        }
    }
}

/* The commonest of unpack_f32's cases, all tiles in one go. */
static bool widen(const cpu_kv_tile *t)
{
    if (t->type != HY_F32 || t->dim != 4 || t->width % 16 != 0)
        return false;
    const bool past = goes_past(t), f16 = t->w == HY_F16;
    if (t->value != HY_F32 && !(f16 && t->value == HY_F16))
        return false;
    if (f16 && past)
        widen_rows(t, HY_F16, true);
    else if (f16)
        widen_rows(t, HY_F16, false);
    else if (t->w == HY_BF16 && past)
        widen_rows(t, HY_BF16, true);
    else if (t->w == HY_BF16)
        widen_rows(t, HY_BF16, false);
    else
        return false;
    return true;
}

static void each(const cpu_kv_tile *all, void (*one)(const cpu_kv_tile *t))
{
    cpu_kv_tile t = *all;
    for (int32_t i = 0; i < all->n; i++) {
        one(&t);
        t.cache += all->cache_next;
        t.wire += all->wire_next;
    }
}

static void pack_tiles(const cpu_kv_tile *t)
{
    each(t, pack_tile);
}

/* Rows of the cache's own type, side by side. */
static bool copy(const cpu_kv_tile *t)
{
    int64_t elem = bytes_of(t->type), bytes = t->width * elem;
    if (t->w != t->type || t->w != t->value || t->dim != elem || bytes % 32 != 0 || !goes_past(t))
        return false;
    for (int32_t i = 0; i < t->n; i++) {
        for (int32_t r = 0; r < t->m; r++) {
            const uint8_t *from = t->wire + i * t->wire_next + r * t->wire_ld;
            uint8_t *to = t->cache + i * t->cache_next + r * t->token;
            ahead(t, from, bytes);
            for (int64_t k = 0; k < bytes; k += 32)
                _mm256_stream_si256((__m256i *)(to + k),
                                    _mm256_loadu_si256((const __m256i *)(from + k)));
        }
    }
    return true;
}

static void unpack_tiles(const cpu_kv_tile *t)
{
    if (!widen(t) && !copy(t))
        each(t, unpack_tile);
}

static void settle(void)
{
    _mm_sfence();
}

#define KV_TABLE                                                                                   \
    .pack = pack_tiles, .unpack = unpack_tiles, .settle = settle, .quantise = quantise,            \
    .dequantise = dequantise
