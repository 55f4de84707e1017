/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of the norms and of everything elementwise.
 *
 * Thread: device code.  Owner: none.
 */
#ifndef HY_SIMT_K_SIMPLE_H
#define HY_SIMT_K_SIMPLE_H

#include "backends/simt/k_dtype.h"

/* Sum over the block: a tree of 32 in each team, then the four teams by pairs. */
HY_DEV float k_block_sum(float v)
{
    HY_SHARED(float, part, SIMT_TEAMS);
    v = hy_team_sum(v);
    if (HY_LANE == 0)
        SH_PUT(part, HY_TEAM, v);
    HY_BARRIER();
    float s = (SH_GET(part, 0) + SH_GET(part, 1)) + (SH_GET(part, 2) + SH_GET(part, 3));
    HY_BARRIER(); /* before another sum writes */
    return s;
}

HY_DEV float k_square(float v, float sum)
{
    return fmaf(v, v, sum);
}

/* Grid: x row. */
HY_KERNEL(k_rms_norm, SIMT_BLOCK, ka_norm, a)
{
    const float *x = a.x + (int64_t)HY_BX * a.ldx;
    float *y = a.y + (int64_t)HY_BX * a.ldy;
    float ss = 0.0f;
    for (int i = HY_TID; i < a.dim; i += SIMT_BLOCK)
        ss = k_square(HY_LD(x + i), ss);
    ss = k_block_sum(ss);
    float r = 1.0f / sqrtf(ss / (float)a.dim + a.eps);
    for (int i = HY_TID; i < a.dim; i += SIMT_BLOCK) {
        float v = HY_LD(x + i) * r;
        v = a.w != NULL ? v * HY_LD(a.w + i) : v;
        HY_ST(y + i, v);
    }
}

/* Grid: x row. */
HY_KERNEL(k_layer_norm, SIMT_BLOCK, ka_norm, a)
{
    const float *x = a.x + (int64_t)HY_BX * a.ldx;
    float *y = a.y + (int64_t)HY_BX * a.ldy;
    float s = 0.0f, ss = 0.0f;
    for (int i = HY_TID; i < a.dim; i += SIMT_BLOCK)
        s += HY_LD(x + i);
    float mean = k_block_sum(s) / (float)a.dim;
    for (int i = HY_TID; i < a.dim; i += SIMT_BLOCK)
        ss = k_square(HY_LD(x + i) - mean, ss);
    float r = 1.0f / sqrtf(k_block_sum(ss) / (float)a.dim + a.eps);
    for (int i = HY_TID; i < a.dim; i += SIMT_BLOCK) {
        const float w = a.w != NULL ? HY_LD(a.w + i) : 1.0f,
                    b = a.b != NULL ? HY_LD(a.b + i) : 0.0f;
        HY_ST(y + i, fmaf((HY_LD(x + i) - mean) * r, w, b));
    }
}

HY_DEV void k_embed_group(const int t, const ka_embed *a, int r, int g)
{
    const uint8_t *row = a->w + (int64_t)a->ids[r] * a->w_row;
    float *y = a->y + r * a->ldy + 32 * g;
    float v[16];
    HY_UNROLL
    for (int half = 0; half < 2; half++) {
        int len = a->k - 32 * g - 16 * half;
        k_decode_half(t, row, a->k, g, half, len, v);
        HY_UNROLL
        for (int i = 0; i < 16; i++) {
            if (i < len)
                HY_ST(y + 16 * half + i, v[i] * a->scale);
        }
    }
}

/* Grid: x groups of 32, y row. A thread takes a group. */
HY_KERNEL(k_embed, SIMT_BLOCK, ka_embed, a)
{
    const int g = HY_BX * SIMT_BLOCK + HY_TID;
    if (g * 32 >= a.k)
        return;
#define CASE(name, T)                                                                              \
    case T:                                                                                        \
        k_embed_group(T, &a, HY_BY, g);                                                            \
        break;
    switch (a.type) {
        K_EACH_FLOAT(CASE)
        K_EACH_QUANT(CASE)
    }
#undef CASE
}

HY_DEV void k_decode_group(const int t, const ka_decode *a, int g)
{
    const int size = a->to == KT_F32 ? 4 : 2;
    uint8_t *y = a->y + (HY_BY * a->ldy + 32 * g) * size;
    float v[16];
    HY_UNROLL
    for (int half = 0; half < 2; half++) {
        int len = a->k - 32 * g - 16 * half;
        k_decode_half(t, a->w + HY_BY * a->w_row, a->k, g, half, len, v);
        HY_UNROLL
        for (int i = 0; i < 16; i++) {
            if (i < len)
                k_store(a->to, a->to, y + (16 * half + i) * size, v[i]);
        }
    }
}

/* Grid: x groups of 32, y row. For a vendor's GEMM, which takes no quantised weights. */
HY_KERNEL(k_decode, SIMT_BLOCK, ka_decode, a)
{
    const int g = HY_BX * SIMT_BLOCK + HY_TID;
    if (g * 32 >= a.k)
        return;
#define CASE(name, T)                                                                              \
    case T:                                                                                        \
        k_decode_group(T, &a, g);                                                                  \
        break;
    switch (a.type) {
        K_EACH_FLOAT(CASE)
        K_EACH_QUANT(CASE)
    }
#undef CASE
}

/* Grid: x pairs of all heads, y row. */
HY_KERNEL(k_rope, SIMT_BLOCK, ka_rope, a)
{
    const int p = HY_BX * SIMT_BLOCK + HY_TID;
    if (p >= a.heads * a.half)
        return;
    const int i = p % a.half;
    float *x = a.x + (int64_t)HY_BY * a.ld + (int64_t)(p / a.half) * a.dim;
    float *u = a.pairs ? x + 2 * i : x + i, *v = a.pairs ? u + 1 : u + a.half;
    const int64_t at = (int64_t)HY_BY * a.half + i;
    float c = HY_LD(a.cos + at), s = HY_LD(a.sin + at), p0 = HY_LD(u), p1 = HY_LD(v);
    HY_ST(u, fmaf(p0, c, -(p1 * s)));
    HY_ST(v, fmaf(p0, s, p1 * c));
}

HY_DEV float k_act(int fn, float x)
{
    switch (fn) {
    case 0:
        return hy_m_silu(x);
    case 1:
        return hy_m_gelu_tanh(x);
    case 2:
        return hy_m_gelu_erf(x);
    }
    return hy_m_relu(x);
}

/* Grid: x columns, y row; so also the next ones. */
HY_KERNEL(k_act_mul, SIMT_BLOCK, ka_act, a)
{
    const int i = HY_BX * SIMT_BLOCK + HY_TID;
    if (i >= a.dim)
        return;
    float v = k_act(a.fn, HY_LD(a.gate + HY_BY * a.ldg + i));
    if (a.up != NULL)
        v *= HY_LD(a.up + HY_BY * a.ldu + i);
    HY_ST(a.y + HY_BY * a.ldy + i, v);
}

HY_KERNEL(k_add, SIMT_BLOCK, ka_add, a)
{
    const int i = HY_BX * SIMT_BLOCK + HY_TID;
    if (i >= a.dim)
        return;
    HY_ST(a.y + HY_BY * a.ldy + i,
          fmaf(HY_LD(a.b + HY_BY * a.ldb + i), a.b_scale, HY_LD(a.a + HY_BY * a.lda + i)));
}

HY_KERNEL(k_scale, SIMT_BLOCK, ka_scale, a)
{
    const int i = HY_BX * SIMT_BLOCK + HY_TID;
    if (i >= a.n)
        return;
    float *y = a.y + (int64_t)HY_BY * a.ld + i;
    float v = HY_LD(y) * a.scale;
    v = a.softcap != 0.0f ? hy_m_softcap(v, a.softcap) : v;
    HY_ST(y, v);
}

/* Activations to int8, eight lanes a group of 32. Grid: x groups in sixteens, y row. */
HY_KERNEL(k_quant, SIMT_BLOCK, ka_quant, a)
{
    const int g = HY_BX * (SIMT_BLOCK / 8) + HY_TID / 8, j = HY_TID % 8, on = g < a.groups;
    const float *x = a.x + (int64_t)HY_BY * a.ldx + 32 * (on ? g : 0) + 4 * j;
    float v[4], amax = 0.0f, id = 0.0f, d = 0.0f, bad = 0.0f, sum = 0.0f;
    if (a.vec) {
        const hy_f4 x4 = HY_LD((const hy_f4 *)(const void *)x);
        v[0] = x4.x;
        v[1] = x4.y;
        v[2] = x4.z;
        v[3] = x4.w;
    }
    HY_UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = a.vec ? v[i] : HY_LD(x + i);
        const float m = fabsf(v[i]);
        bad = m < INFINITY ? bad : 1.0f;
        amax = m > amax ? m : amax;
    }
    HY_UNROLL
    for (int m = 1; m < 8; m *= 2) {
        const float other = hy_shfl_xor_f32(amax, m);
        amax = other > amax ? other : amax;
        bad += hy_shfl_xor_f32(bad, m);
    }
    if (bad != 0.0f) {
        d = k_float(0x7fc00000u);
    } else if (amax >= k_float(7u << 23)) { /* 2^-120 */
        d = amax / 127.0f;
        id = 127.0f / amax;
    }
    uint32_t w = 0;
    HY_UNROLL
    for (int i = 0; i < 4; i++) {
        int q = id != 0.0f ? (int)rintf(v[i] * id) : 0;
        q = q > 127 ? 127 : q < -127 ? -127 : q;
        w |= (uint32_t)(uint8_t)q << 8 * i;
        sum += (float)q; /* small integers: exact */
    }
    sum += hy_shfl_xor_f32(sum, 1);
    sum += hy_shfl_xor_f32(sum, 2); /* of this lane's half */
    const float other = hy_shfl_xor_f32(sum, 4);
    if (!on)
        return;
    const int at = g % 32, left = a.groups - (g - at), slots = left < 32 ? left : 32;
    uint8_t *o =
        a.out + (int64_t)HY_BY * a.groups * KA_QX_BYTES + (int64_t)(g - at) * KA_QX_BYTES + 16 * at;
    HY_ST((uint32_t *)(void *)(o + j / 4 * 16 * slots + j % 4 * 4), w);
    if (j == 0) {
        const hy_u4 rest = {k_bits(d), (uint32_t)(int32_t)sum, (uint32_t)(int32_t)other, 0u};
        HY_ST((hy_u4 *)(void *)(o + 32 * slots), rest);
    }
}

#endif
