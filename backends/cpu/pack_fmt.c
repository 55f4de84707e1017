/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed formats: their table, strips from file rows, and single rows back to f32 for embed.
 * What a strip looks like: backends/cpu/fast_int.h.
 *
 * A row's block becomes its planes and scales as in a strip of one row, four bytes at a time; the
 * words are then dealt out R apart. The legacy 4-bit files order their nibbles as the plane does.
 *
 * Thread: any.  Owner: none.
 * Source of the block layouts: the GGUF format as documented by ggml.
 */
#include "backends/cpu/fast_int.h"

#include <math.h>
#include <string.h>

const cpu_fmt cpu_fmts[PACK_COUNT] = {
    [PACK_F32] = {.blk = 4 * 32},
    [PACK_F16] = {.blk = 2 * 32},
    [PACK_BF16] = {.blk = 2 * 32},
    /*            nib b2 b1 b8 sub zero bits min scale hdr blk */
    [PACK_Q4_0] = {1, 0, 0, 0, 32, 3, 4, false, SCALE_D, 0, 18},
    [PACK_Q4_1] = {1, 0, 0, 0, 32, 0, 4, true, SCALE_DM, 0, 20},
    [PACK_Q5_0] = {1, 0, 1, 0, 32, 4, 5, false, SCALE_D, 0, 22},
    [PACK_Q5_1] = {1, 0, 1, 0, 32, 0, 5, true, SCALE_DM, 0, 24},
    [PACK_Q8_0] = {0, 0, 0, 1, 32, 7, 8, false, SCALE_D, 0, 34},
    [PACK_Q4_K] = {1, 0, 0, 0, 32, 0, 4, true, SCALE_K, 4, 18},
    [PACK_Q5_K] = {1, 0, 1, 0, 32, 0, 5, true, SCALE_K, 4, 22},
    [PACK_Q6_K] = {1, 1, 0, 0, 16, 5, 6, false, SCALE_K6, 2, 26},
    [PACK_Q2_K] = {0, 1, 0, 0, 16, 0, 2, true, SCALE_K, 4, 12},
    [PACK_Q3_K] = {0, 1, 1, 0, 16, 2, 3, false, SCALE_K6, 2, 14},
};

cpu_pack cpu_pack_of(hy_dtype t)
{
    switch (t) {
    case HY_F32:
        return PACK_F32;
    case HY_F16:
        return PACK_F16;
    case HY_BF16:
        return PACK_BF16;
    case HY_Q4_0:
        return PACK_Q4_0;
    case HY_Q4_1:
        return PACK_Q4_1;
    case HY_Q5_0:
        return PACK_Q5_0;
    case HY_Q5_1:
        return PACK_Q5_1;
    case HY_Q8_0:
    case HY_IQ4_NL: /* its table's values are whole codes */
        return PACK_Q8_0;
    case HY_Q4_K:
        return PACK_Q4_K;
    case HY_Q5_K:
        return PACK_Q5_K;
    case HY_Q6_K:
        return PACK_Q6_K;
    case HY_Q2_K:
        return PACK_Q2_K;
    case HY_Q3_K:
        return PACK_Q3_K;
    default:
        return PACK_NONE;
    }
}

size_t cpu_strip_bytes(cpu_pack f, int R, int64_t k)
{
    const cpu_fmt *t = &cpu_fmts[f];
    if (t->sub == 0)
        return (size_t)R * (size_t)k * (t->blk / 32u);
    return (size_t)R * (size_t)((k + 255) / 256 * t->hdr + k / 32 * t->blk);
}

/* ---- file block to one row's planes ---- */

/* One block of 32 of one row. */
typedef struct row_block {
    uint32_t nib[4], b2[2], b1, b8[8];
    uint16_t d, m; /* f16 of the block, or of its 256 */
    uint8_t sc[2], mn[2];
} row_block;

static uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static uint16_t load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* 32 one-bit values, element e at bit e, to the b1 plane: bit g of byte i = element 4g + i. */
static uint32_t spread_bits(uint32_t h)
{
    uint32_t out = 0;
    for (int g = 0; g < 8; g++) {
        uint32_t four = h >> 4 * g & 15;
        out |= ((four * 0x00204081u) & 0x01010101u) << g;
    }
    return out;
}

#define LOW4 0x0f0f0f0f0f0f0f0full
#define LOW2 0x0303030303030303ull
#define LOW1 0x0101010101010101ull

/* 32 bytes of which `shift` says the nibble: elements l and l + 16 share a byte of the plane. */
static void plane_nib(const uint8_t *run, int shift, uint32_t *nib)
{
    for (int h = 0; h < 2; h++) {
        uint64_t lo = load64(run + 8 * h) >> shift & LOW4;
        uint64_t hi = load64(run + 16 + 8 * h) >> shift & LOW4;
        uint64_t v = lo | hi << 4;
        memcpy(nib + 2 * h, &v, sizeof(v));
    }
}

/* 32 bytes whose two bits from `shift` on count. */
static void plane_b2(const uint8_t *run, int shift, uint32_t *b2)
{
    uint64_t v = 0;
    for (int j = 0; j < 4; j++)
        v |= (load64(run + 8 * j) >> shift & LOW2) << 2 * j;
    memcpy(b2, &v, sizeof(v));
}

/* 32 bytes of which one bit counts; `flip` inverts it. */
static uint32_t plane_b1(const uint8_t *run, int shift, bool flip)
{
    uint32_t out = 0;
    for (int j = 0; j < 4; j++) {
        uint64_t v = (load64(run + 8 * j) >> shift ^ (flip ? LOW1 : 0)) & LOW1;
        out |= (uint32_t)v << 2 * j | (uint32_t)(v >> 32) << (2 * j + 1);
    }
    return out;
}

/* Scale and minimum, 6 bits each, of sub-block j of 8. */
static void k_scale(const uint8_t *s, int j, uint8_t *sc, uint8_t *mn)
{
    *sc = (uint8_t)(j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4);
    *mn = (uint8_t)(j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4);
}

static void block_q2_k(const uint8_t *p, int j, row_block *o)
{
    o->d = load16(p + 80);
    o->m = load16(p + 82);
    for (int s = 0; s < 2; s++) {
        o->sc[s] = p[2 * j + s] & 15;
        o->mn[s] = p[2 * j + s] >> 4;
    }
    plane_b2(p + 16 + j / 4 * 32, j % 4 * 2, o->b2);
}

static void block_q3_k(const uint8_t *p, int j, row_block *o)
{
    o->d = load16(p + 108);
    for (int s = 0; s < 2; s++) {
        int i = 2 * j + s;
        int low = i < 8 ? p[96 + i] & 15 : p[96 + i - 8] >> 4;
        int high = p[104 + i % 4] >> i / 4 * 2 & 3;
        o->sc[s] = (uint8_t)((low | high << 4) - 32);
    }
    plane_b2(p + 32 + j / 4 * 32, j % 4 * 2, o->b2);
    o->b1 = plane_b1(p, j, false); /* clear means 4 less: the raised code is low | bit << 2 */
}

static void block_q6_k(const uint8_t *p, int j, row_block *o)
{
    o->d = load16(p + 208);
    o->sc[0] = p[192 + 2 * j];
    o->sc[1] = p[192 + 2 * j + 1];
    int half = j / 4, run = j % 4;
    plane_nib(p + half * 64 + run % 2 * 32, run / 2 * 4, o->nib);
    plane_b2(p + 128 + half * 32, run * 2, o->b2);
}

static void block_iq4_nl(const uint8_t *p, row_block *o)
{
    hy_quant_block b;
    hy_quant_unpack(HY_IQ4_NL, p, &b);
    o->d = load16(p);
    memcpy(o->b8, b.q, 32);
}

/* Block j of a row (32 columns). */
static void block_of(hy_dtype t, const uint8_t *row, int64_t j, row_block *o)
{
    const uint8_t *p = row + (size_t)j * hy_dtype_get(t)->bytes; /* legacy types */
    const uint8_t *s = row + (size_t)(j / 8) * hy_dtype_get(t)->bytes;
    int js = (int)(j % 8);
    switch (t) {
    case HY_Q4_0:
        o->d = load16(p);
        memcpy(o->nib, p + 2, 16);
        break;
    case HY_Q4_1:
        o->d = load16(p);
        o->m = load16(p + 2);
        memcpy(o->nib, p + 4, 16);
        break;
    case HY_Q5_0:
        o->d = load16(p);
        o->b1 = spread_bits(load32(p + 2));
        memcpy(o->nib, p + 6, 16);
        break;
    case HY_Q5_1:
        o->d = load16(p);
        o->m = load16(p + 2);
        o->b1 = spread_bits(load32(p + 4));
        memcpy(o->nib, p + 8, 16);
        break;
    case HY_Q8_0:
        o->d = load16(p);
        memcpy(o->b8, p + 2, 32);
        break;
    case HY_IQ4_NL:
        block_iq4_nl(p, o);
        break;
    case HY_Q5_K:
        o->b1 = plane_b1(s + 16, js, false);
        /* fall through */
    case HY_Q4_K:
        o->d = load16(s);
        o->m = load16(s + 2);
        k_scale(s + 4, js, &o->sc[0], &o->mn[0]);
        plane_nib(s + (t == HY_Q4_K ? 16 : 48) + js / 2 * 32, js % 2 * 4, o->nib);
        break;
    case HY_Q6_K:
        block_q6_k(s, js, o);
        break;
    case HY_Q2_K:
        block_q2_k(s, js, o);
        break;
    case HY_Q3_K:
        block_q3_k(s, js, o);
        break;
    default:
        HY_ASSERT(!"no packed form");
    }
}

/* ---- one row's block into a strip ---- */

static uint8_t *put_words(uint8_t *at, int R, int r, const uint32_t *v, int n)
{
    for (int g = 0; g < n; g++)
        memcpy(at + ((size_t)g * (size_t)R + (size_t)r) * 4, &v[g], 4);
    return at + (size_t)n * (size_t)R * 4;
}

static void put16(uint8_t *at, int r, uint16_t v)
{
    memcpy(at + 2 * r, &v, 2);
}

static void put_block(const cpu_fmt *f, int R, bool signed8, uint8_t *strip, int64_t b, int r,
                      const row_block *o)
{
    uint8_t *at = strip + cpu_block_off(f, R, b);
    if (f->hdr != 0) {
        if (b % 8 == 0) {
            put16(at, r, o->d);
            if (f->min)
                put16(at + 2 * R, r, o->m);
        }
        at += f->hdr * R; /* cpu_block_off counts the headers before this one */
    }
    if (f->nib)
        at = put_words(at, R, r, o->nib, 4);
    if (f->b2)
        at = put_words(at, R, r, o->b2, 2);
    if (f->b1)
        at = put_words(at, R, r, &o->b1, 1);
    if (f->b8) {
        uint32_t v[8];
        for (int g = 0; g < 8; g++)
            v[g] = signed8 ? o->b8[g] : o->b8[g] ^ 0x80808080u;
        at = put_words(at, R, r, v, 8);
    }
    int subs = 32 / f->sub;
    if (f->scale == SCALE_D || f->scale == SCALE_DM) {
        put16(at, r, o->d);
        if (f->min)
            put16(at + 2 * R, r, o->m);
        return;
    }
    for (int s = 0; s < subs; s++) {
        at[s * R + r] = o->sc[s];
        if (f->min)
            at[(subs + s) * R + r] = o->mn[s];
    }
}

static void pack_plain(cpu_pack f, int R, const uint8_t *rows, size_t row_bytes, int n, int64_t k,
                       uint8_t *out)
{
    size_t e = f == PACK_F32 ? 4 : 2, line = (size_t)R * e;
    if (n < R)
        memset(out, 0, line * (size_t)k);
    for (int64_t k0 = 0; k0 < k; k0 += 64) { /* a piece of all rows stays in cache */
        int64_t k1 = k0 + 64 < k ? k0 + 64 : k;
        for (int r = 0; r < n; r++) {
            const uint8_t *src = rows + (size_t)r * row_bytes;
            uint8_t *dst = out + (size_t)r * e;
            for (int64_t i = k0; i < k1; i++) {
                if (e == 4)
                    memcpy(dst + (size_t)i * line, src + (size_t)i * 4, 4);
                else
                    memcpy(dst + (size_t)i * line, src + (size_t)i * 2, 2);
            }
        }
    }
}

void cpu_pack_strip(cpu_pack f, hy_dtype t, int R, bool signed8, const uint8_t *rows,
                    size_t row_bytes, int n, int64_t k, uint8_t *out)
{
    const cpu_fmt *fmt = &cpu_fmts[f];
    if (fmt->sub == 0) {
        pack_plain(f, R, rows, row_bytes, n, k, out);
        return;
    }
    if (n < R)
        memset(out, 0, cpu_strip_bytes(f, R, k));
    for (int64_t b = 0; b < k / 32; b++) {
        for (int r = 0; r < n; r++) {
            row_block o;
            block_of(t, rows + (size_t)r * row_bytes, b, &o);
            put_block(fmt, R, signed8, out, b, r, &o);
        }
    }
}

/* ---- a row back ---- */

static uint8_t byte_at(const uint8_t *plane, int R, int g, int r, int i)
{
    return plane[((size_t)g * (size_t)R + (size_t)r) * 4 + (size_t)i];
}

static float f16_of(const uint8_t *at, int r)
{
    return hy_f16_to_f32(load16(at + 2 * r));
}

/* Signed code of k = 4g + i. */
static int code_at(const cpu_fmt *f, int R, bool signed8, const uint8_t *at, int r, int g, int i)
{
    int c = 0, high = f->nib ? 4 : 0;
    if (f->b8)
        return signed8 ? (int8_t)byte_at(at, R, g, r, i) : byte_at(at, R, g, r, i) - 128;
    if (f->nib) {
        c = byte_at(at, R, g % 4, r, i) >> g / 4 * 4 & 15;
        at += 16 * R;
    }
    if (f->b2) {
        c |= (byte_at(at, R, g % 2, r, i) >> g / 2 * 2 & 3) << high;
        high += 2;
        at += 8 * R;
    }
    if (f->b1)
        c |= (byte_at(at, R, 0, r, i) >> g & 1) << high;
    return c - (f->zero ? 1 << f->zero : 0);
}

static void unpack_block(const cpu_fmt *f, int R, bool signed8, const uint8_t *strip, int64_t b,
                         int r, float *out)
{
    const uint8_t *hdr = strip + cpu_block_off(f, R, b / 8 * 8);
    const uint8_t *at = strip + cpu_block_off(f, R, b) + f->hdr * R;
    const uint8_t *sc = at + (16 * f->nib + 8 * f->b2 + 4 * f->b1 + 32 * f->b8) * R;
    int subs = 32 / f->sub;
    float dw[2] = {0}, mw[2] = {0};
    for (int s = 0; s < subs; s++) {
        if (f->scale == SCALE_K6) {
            dw[s] = f16_of(hdr, r) * (float)(int8_t)sc[s * R + r];
        } else if (f->scale == SCALE_K) {
            dw[s] = f16_of(hdr, r) * (float)sc[s * R + r];
            mw[s] = -(f16_of(hdr + 2 * R, r) * (float)sc[(subs + s) * R + r]);
        } else {
            dw[s] = f16_of(sc, r);
            mw[s] = f->min ? f16_of(sc + 2 * R, r) : 0.0f;
        }
    }
    for (int j = 0; j < 32; j++) {
        float q = (float)code_at(f, R, signed8, at, r, j / 4, j % 4);
        int s = j / f->sub;
        out[j] = f->min ? fmaf(dw[s], q, mw[s]) : dw[s] * q;
    }
}

void cpu_unpack_row(cpu_pack f, int R, bool signed8, const uint8_t *strip, int row, int64_t k,
                    float *out)
{
    const cpu_fmt *fmt = &cpu_fmts[f];
    if (fmt->sub != 0) {
        for (int64_t b = 0; b < k / 32; b++)
            unpack_block(fmt, R, signed8, strip, b, row, out + b * 32);
        return;
    }
    for (int64_t i = 0; i < k; i++) {
        size_t e = (size_t)i * (size_t)R + (size_t)row;
        if (f == PACK_F32)
            memcpy(&out[i], strip + 4 * e, 4);
        else
            out[i] = f == PACK_F16 ? f16_of(strip, (int)e) : hy_bf16_to_f32(load16(strip + 2 * e));
    }
}
