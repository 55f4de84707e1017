/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised file blocks to canonical sub-blocks (hal/quant.h), and rows of any type to f32. Clear
 * rather than fast: packers run it once a load, the scalar reference always.
 *
 * Thread: any.  Owner: none.
 * Source of the block layouts: the GGUF format as documented by ggml.
 */
#include "hal/quant.h"

#include <math.h>
#include <string.h>

static const hy_quant_info infos[HY_DTYPE_MAX] = {
    [HY_Q4_0] = {32, 32, false, -8, 7},       [HY_Q4_1] = {32, 32, true, 0, 15},
    [HY_Q5_0] = {32, 32, false, -16, 15},     [HY_Q5_1] = {32, 32, true, 0, 31},
    [HY_Q8_0] = {32, 32, false, -128, 127},   [HY_Q2_K] = {256, 16, true, 0, 3},
    [HY_Q3_K] = {256, 16, false, -4, 3},      [HY_Q4_K] = {256, 32, true, 0, 15},
    [HY_Q5_K] = {256, 32, true, 0, 31},       [HY_Q6_K] = {256, 16, false, -32, 31},
    [HY_IQ4_NL] = {32, 32, false, -127, 113},
};

static const int8_t iq4_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

const hy_quant_info *hy_quant_get(int t)
{
    if (t < 0 || t >= HY_DTYPE_MAX || infos[t].block == 0)
        return NULL;
    return &infos[t];
}

static float f16_at(const uint8_t *p)
{
    return hy_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* 16 bytes hold 32 nibbles: low ones first, then high ones. */
static int nibble(const uint8_t *qs, int i)
{
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

static void unpack_q4_0(const uint8_t *b, hy_quant_block *o)
{
    o->dw[0] = f16_at(b);
    for (int i = 0; i < 32; i++)
        o->q[i] = (int8_t)(nibble(b + 2, i) - 8);
}

static void unpack_q4_1(const uint8_t *b, hy_quant_block *o)
{
    o->dw[0] = f16_at(b);
    o->mw[0] = f16_at(b + 2);
    for (int i = 0; i < 32; i++)
        o->q[i] = (int8_t)nibble(b + 4, i);
}

/* Bit i of four little-endian bytes. */
static int bit_at(const uint8_t *qh, int i)
{
    return qh[i / 8] >> i % 8 & 1;
}

static void unpack_q5_0(const uint8_t *b, hy_quant_block *o)
{
    o->dw[0] = f16_at(b);
    for (int i = 0; i < 32; i++)
        o->q[i] = (int8_t)((nibble(b + 6, i) | bit_at(b + 2, i) << 4) - 16);
}

static void unpack_q5_1(const uint8_t *b, hy_quant_block *o)
{
    o->dw[0] = f16_at(b);
    o->mw[0] = f16_at(b + 2);
    for (int i = 0; i < 32; i++)
        o->q[i] = (int8_t)(nibble(b + 8, i) | bit_at(b + 4, i) << 4);
}

static void unpack_q8_0(const uint8_t *b, hy_quant_block *o)
{
    o->dw[0] = f16_at(b);
    memcpy(o->q, b + 2, 32);
}

static void unpack_iq4_nl(const uint8_t *b, hy_quant_block *o)
{
    o->dw[0] = f16_at(b);
    for (int i = 0; i < 32; i++)
        o->q[i] = iq4_nl[nibble(b + 2, i)];
}

/* Codes of two bits: runs of 32 share 32 bytes in fours, low bits first. Inner loops over one run
 * here and below, which compilers turn into vectors. */
static void two_bits(const uint8_t *qs, int8_t *q)
{
    for (int r = 0; r < 8; r++)
        for (int l = 0; l < 32; l++)
            q[32 * r + l] = (int8_t)(qs[r / 4 * 32 + l] >> r % 4 * 2 & 3);
}

/* scales[16] (low nibble scale, high nibble min), qs[64], d, dmin */
static void unpack_q2_k(const uint8_t *b, hy_quant_block *o)
{
    float d = f16_at(b + 80), dmin = f16_at(b + 82);
    for (int j = 0; j < 16; j++) {
        o->dw[j] = d * (float)(b[j] & 15);
        o->mw[j] = -(dmin * (float)(b[j] >> 4));
    }
    two_bits(b + 16, o->q);
}

/* hmask[32], qs[64], scales[12] (6 bits each), d */
static void unpack_q3_k(const uint8_t *b, hy_quant_block *o)
{
    const uint8_t *sc = b + 96;
    float d = f16_at(b + 108);
    for (int j = 0; j < 16; j++) {
        int low = j < 8 ? sc[j] & 15 : sc[j - 8] >> 4;
        int high = sc[8 + j % 4] >> j / 4 * 2 & 3;
        o->dw[j] = d * (float)((low | high << 4) - 32);
    }
    two_bits(b + 32, o->q);
    for (int r = 0; r < 8; r++)
        for (int l = 0; l < 32; l++) /* bit clear: subtract 4 */
            o->q[32 * r + l] = (int8_t)(o->q[32 * r + l] - 4 + (b[l] >> r & 1) * 4);
}

/* Scale and min, 6 bits each, of 8 sub-blocks in 12 bytes. */
static void k_scales(const uint8_t *b, hy_quant_block *o)
{
    float d = f16_at(b), dmin = f16_at(b + 2);
    const uint8_t *s = b + 4;
    for (int j = 0; j < 8; j++) {
        int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        int mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        o->dw[j] = d * (float)sc;
        o->mw[j] = -(dmin * (float)mn);
    }
}

/* Nibbles of 256: runs of 32 share 32 bytes in pairs, low nibbles first. */
static void k_nibbles(const uint8_t *qs, int8_t *q)
{
    for (int r = 0; r < 8; r++)
        for (int l = 0; l < 32; l++)
            q[32 * r + l] = (int8_t)(qs[r / 2 * 32 + l] >> r % 2 * 4 & 15);
}

/* d, dmin, scales[12], qs[128] */
static void unpack_q4_k(const uint8_t *b, hy_quant_block *o)
{
    k_scales(b, o);
    k_nibbles(b + 16, o->q);
}

/* d, dmin, scales[12], qh[32], qs[128] */
static void unpack_q5_k(const uint8_t *b, hy_quant_block *o)
{
    k_scales(b, o);
    k_nibbles(b + 48, o->q);
    for (int r = 0; r < 8; r++)
        for (int l = 0; l < 32; l++)
            o->q[32 * r + l] = (int8_t)(o->q[32 * r + l] | (b[16 + l] >> r & 1) << 4);
}

/* ql[128], qh[64], scales[16] (signed), d */
static void unpack_q6_k(const uint8_t *b, hy_quant_block *o)
{
    float d = f16_at(b + 208);
    for (int j = 0; j < 16; j++)
        o->dw[j] = d * (float)(int8_t)b[192 + j];
    for (int r = 0; r < 8; r++) {
        const uint8_t *low = b + r / 4 * 64 + r % 2 * 32, *high = b + 128 + r / 4 * 32;
        for (int l = 0; l < 32; l++)
            o->q[32 * r + l] =
                (int8_t)(((low[l] >> r % 4 / 2 * 4 & 15) | (high[l] >> r % 4 * 2 & 3) << 4) - 32);
    }
}

void hy_quant_unpack(int t, const void *block, hy_quant_block *out)
{
    const hy_quant_info *info = hy_quant_get(t);
    HY_ASSERT(info != NULL);
    if (!info->has_min)
        memset(out->mw, 0, sizeof(out->mw));
    switch ((hy_dtype)t) {
    case HY_Q4_0:
        unpack_q4_0(block, out);
        break;
    case HY_Q4_1:
        unpack_q4_1(block, out);
        break;
    case HY_Q5_0:
        unpack_q5_0(block, out);
        break;
    case HY_Q5_1:
        unpack_q5_1(block, out);
        break;
    case HY_Q8_0:
        unpack_q8_0(block, out);
        break;
    case HY_IQ4_NL:
        unpack_iq4_nl(block, out);
        break;
    case HY_Q2_K:
        unpack_q2_k(block, out);
        break;
    case HY_Q3_K:
        unpack_q3_k(block, out);
        break;
    case HY_Q4_K:
        unpack_q4_k(block, out);
        break;
    case HY_Q5_K:
        unpack_q5_k(block, out);
        break;
    case HY_Q6_K:
        unpack_q6_k(block, out);
        break;
    default:
        HY_ASSERT(!"a type of the table without a decoder");
    }
}

static void decode_quant(int t, const uint8_t *src, float *dst, int64_t n)
{
    const hy_quant_info *info = hy_quant_get(t);
    size_t bytes = hy_dtype_get(t)->bytes;
    hy_quant_block b;
    for (int64_t at = 0; at < n; at += info->block, src += bytes) {
        hy_quant_unpack(t, src, &b);
        for (int i = 0; i < info->block; i++) {
            int s = i / info->sub;
            float q = (float)b.q[i];
            dst[at + i] = info->has_min ? fmaf(b.dw[s], q, b.mw[s]) : b.dw[s] * q;
        }
    }
}

void hy_dtype_decode(int t, const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    switch (t) {
    case HY_F32:
        memcpy(dst, src, (size_t)n * 4);
        break;
    case HY_F16:
        for (int64_t i = 0; i < n; i++)
            dst[i] = f16_at(p + 2 * i);
        break;
    case HY_BF16:
        for (int64_t i = 0; i < n; i++)
            dst[i] = hy_bf16_to_f32((uint16_t)(p[2 * i] | p[2 * i + 1] << 8));
        break;
    default:
        decode_quant(t, p, dst, n);
    }
}
