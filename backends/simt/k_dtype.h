/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types in kernels: 16-bit and 8-bit floats, and halves of weight groups (16 elements) out
 * of the file's own blocks. `type` is a constant wherever these are inlined.
 *
 * Thread: device code.  Owner: none.
 * Source of the block layouts: the GGUF format as documented by ggml.
 */
#ifndef HY_SIMT_K_DTYPE_H
#define HY_SIMT_K_DTYPE_H

#include "backends/simt/args.h"
#include "backends/simt/dialect.h"
#include "hal/fmath.h"

HY_DEV float k_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

HY_DEV uint32_t k_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

HY_DEV uint16_t k_f2b(float f)
{
    uint32_t u = k_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* An element of a float type. */
HY_DEV float k_load(const int type, const uint8_t *p)
{
    if (type == KT_F32)
        return k_float(hy_ld32(p));
    if (type == KT_F16)
        return hy_h2f((uint16_t)hy_ld16(p));
    return k_float(hy_ld16(p) << 16);
}

HY_DEV void k_put16(uint8_t *p, uint16_t h)
{
    memcpy(p, &h, sizeof(h));
}

/* Rounds to `value`, stores as `type`, which is the same or f32. */
HY_DEV void k_store(int value, int type, uint8_t *p, float f)
{
    uint16_t h = 0;
    if (value == KT_F16) {
        h = hy_f2h(f);
        f = hy_h2f(h);
    } else if (value == KT_BF16) {
        h = k_f2b(f);
        f = k_float((uint32_t)h << 16);
    }
    if (type == KT_F32)
        memcpy(p, &f, sizeof(f));
    else
        k_put16(p, h);
}

/* ---- weights ---- */

/* Elements [16 half, 16 half + 16) of group g of 32: value = dw * (byte - zero) (+ mw). */
typedef struct k_half {
    uint32_t q[4]; /* signed bytes; byte i of word j is element 4 j + i */
    float dw, mw;
} k_half;

HY_DEV int k_is_float(const int t)
{
    return t == KT_F32 || t == KT_F16 || t == KT_BF16;
}

HY_DEV int k_has_min(const int t)
{
    return t == KT_Q4_1 || t == KT_Q5_1 || t == KT_Q2_K || t == KT_Q4_K || t == KT_Q5_K;
}

/* A scale every 16 elements, not 32. */
HY_DEV int k_sub16(const int t)
{
    return t == KT_Q2_K || t == KT_Q3_K || t == KT_Q6_K;
}

HY_DEV int k_zero(const int t)
{
    return t == KT_Q4_0 ? 8 : t == KT_Q5_0 ? 16 : t == KT_Q3_K ? 4 : t == KT_Q6_K ? 32 : 0;
}

HY_CONST int8_t k_iq4_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};

/* Four bits to the lowest bits of four bytes. */
HY_DEV uint32_t k_spread(uint32_t x)
{
    return (x & 15u) * 0x00204081u & 0x01010101u;
}

HY_DEV float k_half_at(const uint8_t *p)
{
    return hy_h2f((uint16_t)hy_ld16(p));
}

/* Types of 32 codes a block. */
HY_DEV k_half k_load_legacy(const int t, const uint8_t *row, int g, int half)
{
    k_half o;
    const int bytes = t == KT_Q4_0 || t == KT_IQ4_NL ? 18
                      : t == KT_Q4_1                 ? 20
                      : t == KT_Q5_0                 ? 22
                      : t == KT_Q5_1                 ? 24
                                                     : 34;
    const uint8_t *b = row + (int64_t)g * bytes;
    o.dw = k_half_at(b);
    o.mw = k_has_min(t) ? k_half_at(b + 2) : 0.0f;
    const uint8_t *qs = b + (k_has_min(t) ? 4 : 2) + (t == KT_Q5_0 || t == KT_Q5_1 ? 4 : 0);
    uint32_t high = t == KT_Q5_0 || t == KT_Q5_1 ? hy_ld32(qs - 4) >> 16 * half : 0;
    HY_UNROLL
    for (int j = 0; j < 4; j++) {
        if (t == KT_Q8_0) {
            o.q[j] = hy_ld32(qs + 16 * half + 4 * j);
            continue;
        }
        uint32_t v = hy_ld32(qs + 4 * j) >> 4 * half & 0x0f0f0f0fu;
        if (t == KT_Q5_0 || t == KT_Q5_1)
            v |= k_spread(high >> 4 * j) << 4;
        if (t == KT_IQ4_NL) {
            uint32_t w = 0;
            HY_UNROLL
            for (int i = 0; i < 32; i += 8)
                w |= (uint32_t)(uint8_t)k_iq4_nl[v >> i & 15u] << i;
            v = w;
        }
        o.q[j] = v;
    }
    return o;
}

/* d, dmin, then 6-bit scales and mins of 8 groups in 12 bytes. */
HY_DEV void k_scales6(const uint8_t *b, int g, k_half *o)
{
    const uint8_t *s = b + 4;
    int sc, mn;
    if (g < 4) {
        sc = s[g] & 63;
        mn = s[g + 4] & 63;
    } else {
        sc = (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
        mn = s[g + 4] >> 4 | s[g] >> 6 << 4;
    }
    o->dw = k_half_at(b) * (float)sc;
    o->mw = -(k_half_at(b + 2) * (float)mn);
}

/* Q3_K: 16 scales of 6 bits less 32, the low four bits of all first. */
HY_DEV float k_scale_q3(const uint8_t *sc, float d, int s)
{
    int low = s < 8 ? sc[s] & 15 : sc[s - 8] >> 4;
    int high = sc[8 + s % 4] >> s / 4 * 2 & 3;
    return d * (float)((low | high << 4) - 32);
}

/* Types of 256 codes a block. */
HY_DEV k_half k_load_k(const int t, const uint8_t *row, int group, int half)
{
    k_half o;
    const int bytes = t == KT_Q2_K   ? 84
                      : t == KT_Q3_K ? 110
                      : t == KT_Q4_K ? 144
                      : t == KT_Q5_K ? 176
                                     : 210;
    const uint8_t *b = row + (int64_t)(group / 8) * bytes;
    const int g = group % 8, s = 2 * g + half, e = 16 * half;
    o.dw = o.mw = 0.0f;
    if (t == KT_Q4_K || t == KT_Q5_K)
        k_scales6(b, g, &o);
    if (t == KT_Q2_K) {
        o.dw = k_half_at(b + 80) * (float)(b[s] & 15);
        o.mw = -(k_half_at(b + 82) * (float)(b[s] >> 4));
    }
    if (t == KT_Q3_K)
        o.dw = k_scale_q3(b + 96, k_half_at(b + 108), s);
    if (t == KT_Q6_K)
        o.dw = k_half_at(b + 208) * (float)(int8_t)b[192 + s];
    HY_UNROLL
    for (int j = 0; j < 4; j++) {
        const int at = e + 4 * j;
        uint32_t v = 0;
        if (t == KT_Q4_K)
            v = hy_ld32(b + 16 + g / 2 * 32 + at) >> g % 2 * 4 & 0x0f0f0f0fu;
        if (t == KT_Q5_K)
            v = (hy_ld32(b + 48 + g / 2 * 32 + at) >> g % 2 * 4 & 0x0f0f0f0fu) |
                (hy_ld32(b + 16 + at) >> g & 0x01010101u) << 4;
        if (t == KT_Q2_K)
            v = hy_ld32(b + 16 + g / 4 * 32 + at) >> g % 4 * 2 & 0x03030303u;
        if (t == KT_Q3_K)
            v = (hy_ld32(b + 32 + g / 4 * 32 + at) >> g % 4 * 2 & 0x03030303u) |
                (hy_ld32(b + at) >> g & 0x01010101u) << 2;
        if (t == KT_Q6_K)
            v = (hy_ld32(b + g / 4 * 64 + g % 2 * 32 + at) >> g % 4 / 2 * 4 & 0x0f0f0f0fu) |
                (hy_ld32(b + 128 + g / 4 * 32 + at) >> g % 4 * 2 & 0x03030303u) << 4;
        o.q[j] = v;
    }
    return o;
}

HY_DEV k_half k_load_half(const int t, const uint8_t *row, int g, int half)
{
    if (t == KT_Q2_K || t == KT_Q3_K || t == KT_Q4_K || t == KT_Q5_K || t == KT_Q6_K)
        return k_load_k(t, row, g, half);
    return k_load_legacy(t, row, g, half);
}

HY_DEV int k_byte(uint32_t w, int i)
{
    return (int)(int8_t)(w >> 8 * i);
}

/* The same 16 elements as f32, by the definition of a decode; also of float types. `len`: how many
 * of them the row has. */
HY_DEV void k_decode_half(const int t, const uint8_t *row, int g, int half, int len, float *out)
{
    if (k_is_float(t)) {
        const int size = t == KT_F32 ? 4 : 2;
        const uint8_t *p = row + ((int64_t)g * 32 + 16 * half) * size;
        HY_UNROLL
        for (int i = 0; i < 16; i++)
            out[i] = i < len ? k_load(t, p + i * size) : 0.0f;
        return;
    }
    k_half h = k_load_half(t, row, g, half);
    HY_UNROLL
    for (int i = 0; i < 16; i++) {
        float q = (float)(k_byte(h.q[i / 4], i % 4) - k_zero(t));
        out[i] = k_has_min(t) ? fmaf(h.dw, q, h.mw) : h.dw * q;
    }
}

/* One macro line for each type. */
#define K_EACH_QUANT(X)                                                                            \
    X(q4_0, KT_Q4_0)                                                                               \
    X(q4_1, KT_Q4_1)                                                                               \
    X(q5_0, KT_Q5_0)                                                                               \
    X(q5_1, KT_Q5_1)                                                                               \
    X(q8_0, KT_Q8_0)                                                                               \
    X(q2_k, KT_Q2_K)                                                                               \
    X(q3_k, KT_Q3_K)                                                                               \
    X(q4_k, KT_Q4_K)                                                                               \
    X(q5_k, KT_Q5_K)                                                                               \
    X(q6_k, KT_Q6_K)                                                                               \
    X(iq4_nl, KT_IQ4_NL)
#define K_EACH_FLOAT(X) X(f32, KT_F32) X(f16, KT_F16) X(bf16, KT_BF16)

#endif
