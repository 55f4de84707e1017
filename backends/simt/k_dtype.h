/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types in kernels: 16-bit and 8-bit floats, and halves of weight groups (16 elements) out
 * of planes (args.h). `type` is a constant wherever these are inlined.
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
        return HY_LD((const float *)(const void *)p);
    if (type == KT_F16)
        return hy_h2f(HY_LD((const uint16_t *)(const void *)p));
    return k_float((uint32_t)HY_LD((const uint16_t *)(const void *)p) << 16);
}

/* Four elements as they lie, and their values. */
HY_DEV hy_u4 k_load4(const int type, const uint8_t *p)
{
    hy_u4 o = {0u, 0u, 0u, 0u};
    if (type == KT_F32)
        return HY_LD((const hy_u4 *)(const void *)p);
    const hy_u2 two = HY_LD((const hy_u2 *)(const void *)p);
    o.x = two.x;
    o.y = two.y;
    return o;
}

HY_DEV void k_value4(const int type, hy_u4 v, float *out)
{
    if (type == KT_F32) {
        out[0] = k_float(v.x);
        out[1] = k_float(v.y);
        out[2] = k_float(v.z);
        out[3] = k_float(v.w);
    } else if (type == KT_F16) {
        out[0] = hy_h2f((uint16_t)v.x);
        out[1] = hy_h2f((uint16_t)(v.x >> 16));
        out[2] = hy_h2f((uint16_t)v.y);
        out[3] = hy_h2f((uint16_t)(v.y >> 16));
    } else {
        out[0] = k_float(v.x << 16);
        out[1] = k_float(v.x & 0xffff0000u);
        out[2] = k_float(v.y << 16);
        out[3] = k_float(v.y & 0xffff0000u);
    }
}

HY_DEV uint16_t k_get16(const uint8_t *p)
{
    return HY_LD((const uint16_t *)(const void *)p);
}

HY_DEV void k_put16(uint8_t *p, uint16_t h)
{
    HY_ST((uint16_t *)(void *)p, h);
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
        HY_ST((float *)(void *)p, f);
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
    return hy_h2f(k_get16(p));
}

/* Where a group's pieces lie (args.h). */
typedef struct k_place {
    const uint8_t *code, *second, *scales;
    int slots; /* groups of its chunk */
} k_place;

HY_DEV k_place k_place_of(const int t, const uint8_t *row, int groups, int g)
{
    int code = 0, second = 0, scales = 0, per = 1, chunk = 0;
#define CASE(type, c, s, d, p)                                                                     \
    if (t == type) {                                                                               \
        code = c;                                                                                  \
        second = s;                                                                                \
        scales = d;                                                                                \
        per = p;                                                                                   \
        chunk = KA_CHUNK(c, s, d, p);                                                              \
    }
    KA_EACH_PLANES(CASE)
#undef CASE
    const int i = g % 32, left = (groups + 7) / 8 * 8 - (g - i);
    k_place o;
    o.slots = left < 32 ? left : 32;
    o.code = row + (int64_t)(g / 32) * chunk;
    o.second = o.code + o.slots * code + second * i;
    o.scales = o.code + o.slots * (code + second) + i / per * scales;
    o.code += (code < 16 ? code : 16) * i;
    return o;
}

/* d, dmin, then 6-bit scales and mins of 8 groups in 12 bytes. */
HY_DEV void k_scales6(const uint8_t *b, int g, k_half *o)
{
    const hy_u4 h = HY_LD((const hy_u4 *)(const void *)b);
    const int at = g % 4 * 8;
    uint32_t sc = h.y >> at & 63u, mn = h.z >> at & 63u;
    if (g >= 4) {
        sc = (h.w >> at & 15u) | (h.y >> at & 192u) >> 2;
        mn = (h.w >> at & 240u) >> 4 | (h.z >> at & 192u) >> 2;
    }
    o->dw = hy_h2f((uint16_t)h.x) * (float)(int)sc;
    o->mw = -(hy_h2f((uint16_t)(h.x >> 16)) * (float)(int)mn);
}

/* Q3_K: 16 scales of 6 bits less 32, the low four bits of all first; then d. */
HY_DEV float k_scale_q3(const uint8_t *b, int s)
{
    const hy_u4 h = HY_LD((const hy_u4 *)(const void *)b);
    const uint32_t four = s % 8 < 4 ? h.x : h.y;
    const int low = (int)(four >> s % 4 * 8 >> s / 8 * 4 & 15u);
    const int high = (int)(h.z >> s % 4 * 8 >> s / 4 * 2 & 3u);
    return hy_h2f((uint16_t)h.w) * (float)((low | high << 4) - 32);
}

/* Scale and offset of half a group. */
HY_DEV void k_load_scales(const int t, const k_place *at, int g, int half, k_half *o)
{
    const int in8 = g % 8;
    o->mw = 0.0f;
    if (t == KT_Q4_K || t == KT_Q5_K) {
        k_scales6(at->scales, in8, o);
    } else if (t == KT_Q2_K) {
        const uint32_t both = k_get16(at->second);
        const uint32_t dm = HY_LD((const uint32_t *)(const void *)at->scales);
        o->dw = hy_h2f((uint16_t)dm) * (float)(int)(both >> 8 * half & 15u);
        o->mw = -(hy_h2f((uint16_t)(dm >> 16)) * (float)(int)(both >> 8 * half >> 4 & 15u));
    } else if (t == KT_Q3_K) {
        o->dw = k_scale_q3(at->scales, 2 * in8 + half);
    } else if (t == KT_Q6_K) {
        const uint32_t both = k_get16(at->scales + 2 * in8);
        o->dw = k_half_at(at->scales + 16) * (float)(int8_t)(both >> 8 * half);
    } else if (k_has_min(t)) {
        const uint32_t dm = HY_LD((const uint32_t *)(const void *)at->scales);
        o->dw = hy_h2f((uint16_t)dm);
        o->mw = hy_h2f((uint16_t)(dm >> 16));
    } else {
        o->dw = k_half_at(at->scales);
    }
}

HY_DEV uint32_t k_iq4_word(uint32_t v)
{
    uint32_t w = 0;
    HY_UNROLL
    for (int i = 0; i < 32; i += 8)
        w |= (uint32_t)(uint8_t)k_iq4_nl[v >> i & 15u] << i;
    return w;
}

/* Half of group g of a row of `groups`. */
HY_DEV k_half k_load_half(const int t, const uint8_t *row, int groups, int g, int half)
{
    const k_place at = k_place_of(t, row, groups, g);
    const int two = t == KT_Q2_K || t == KT_Q3_K; /* bits */
    const int five = t == KT_Q5_0 || t == KT_Q5_1 || t == KT_Q5_K;
    k_half o;
    hy_u4 c = {0u, 0u, 0u, 0u};
    hy_u2 c2 = {0u, 0u}, h2 = {0u, 0u};
    uint32_t high = 0;
    k_load_scales(t, &at, g, half, &o);
    if (two)
        c2 = HY_LD((const hy_u2 *)(const void *)at.code);
    else
        c = HY_LD(
            (const hy_u4 *)(const void *)(at.code + (t == KT_Q8_0 ? 16 * at.slots * half : 0)));
    if (five || t == KT_Q3_K)
        high = HY_LD((const uint32_t *)(const void *)at.second) >> 16 * half;
    if (t == KT_Q6_K)
        h2 = HY_LD((const hy_u2 *)(const void *)at.second);
    o.q[0] = c.x;
    o.q[1] = c.y;
    o.q[2] = c.z;
    o.q[3] = c.w;
    HY_UNROLL
    for (int j = 0; j < 4; j++) {
        if (t == KT_Q8_0)
            continue;
        uint32_t v =
            two ? (half ? c2.y : c2.x) >> 2 * j & 0x03030303u : o.q[j] >> 4 * half & 0x0f0f0f0fu;
        if (five)
            v |= k_spread(high >> 4 * j) << 4;
        if (t == KT_Q3_K)
            v |= k_spread(high >> 4 * j) << 2;
        if (t == KT_Q6_K)
            v |= ((half ? h2.y : h2.x) >> 2 * j & 0x03030303u) << 4;
        o.q[j] = t == KT_IQ4_NL ? k_iq4_word(v) : v;
    }
    return o;
}

HY_DEV int k_byte(uint32_t w, int i)
{
    return (int)(int8_t)(w >> 8 * i);
}

/* The same 16 elements as f32, by the definition of a decode; also of float types, which need no
 * more than their own alignment. `len`: how many of them the row has, which is k wide. */
HY_DEV void k_decode_half(const int t, const uint8_t *row, int k, int g, int half, int len,
                          float *out)
{
    if (k_is_float(t)) {
        const int size = t == KT_F32 ? 4 : 2;
        const uint8_t *p = row + ((int64_t)g * 32 + 16 * half) * size;
        HY_UNROLL
        for (int i = 0; i < 16; i++)
            out[i] = i < len ? k_load(t, p + i * size) : 0.0f;
        return;
    }
    k_half h = k_load_half(t, row, k / 32, g, half);
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
