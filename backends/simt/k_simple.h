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

/* Grid: x row. */
HY_KERNEL(k_rms_norm, SIMT_BLOCK, ka_norm, a)
{
    const float *x = a.x + (int64_t)HY_BX * a.ldx;
    float *y = a.y + (int64_t)HY_BX * a.ldy;
    float ss = 0.0f;
    for (int i = HY_TID; i < a.dim; i += SIMT_BLOCK)
        ss = fmaf(x[i], x[i], ss);
    ss = k_block_sum(ss);
    float r = 1.0f / sqrtf(ss / (float)a.dim + a.eps);
    for (int i = HY_TID; i < a.dim; i += SIMT_BLOCK) {
        float v = x[i] * r;
        y[i] = a.w != NULL ? v * a.w[i] : v;
    }
}

/* Grid: x row. */
HY_KERNEL(k_layer_norm, SIMT_BLOCK, ka_norm, a)
{
    const float *x = a.x + (int64_t)HY_BX * a.ldx;
    float *y = a.y + (int64_t)HY_BX * a.ldy;
    float s = 0.0f, ss = 0.0f;
    for (int i = HY_TID; i < a.dim; i += SIMT_BLOCK)
        s += x[i];
    float mean = k_block_sum(s) / (float)a.dim;
    for (int i = HY_TID; i < a.dim; i += SIMT_BLOCK)
        ss = fmaf(x[i] - mean, x[i] - mean, ss);
    float r = 1.0f / sqrtf(k_block_sum(ss) / (float)a.dim + a.eps);
    for (int i = HY_TID; i < a.dim; i += SIMT_BLOCK)
        y[i] = fmaf((x[i] - mean) * r, a.w != NULL ? a.w[i] : 1.0f, a.b != NULL ? a.b[i] : 0.0f);
}

HY_DEV void k_embed_group(const int t, const ka_embed *a, int r, int g)
{
    const uint8_t *row = a->w + (int64_t)a->ids[r] * a->w_row;
    float *y = a->y + r * a->ldy + 32 * g;
    float v[16];
    HY_UNROLL
    for (int half = 0; half < 2; half++) {
        int len = a->k - 32 * g - 16 * half;
        k_decode_half(t, row, g, half, len, v);
        HY_UNROLL
        for (int i = 0; i < 16; i++) {
            if (i < len)
                y[16 * half + i] = v[i] * a->scale;
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
        k_decode_half(t, a->w + HY_BY * a->w_row, g, half, len, v);
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
    float c = a.cos[(int64_t)HY_BY * a.half + i], s = a.sin[(int64_t)HY_BY * a.half + i];
    float p0 = *u, p1 = *v;
    *u = fmaf(p0, c, -(p1 * s));
    *v = fmaf(p0, s, p1 * c);
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
    float v = k_act(a.fn, a.gate[(int64_t)HY_BY * a.ldg + i]);
    if (a.up != NULL)
        v *= a.up[(int64_t)HY_BY * a.ldu + i];
    a.y[(int64_t)HY_BY * a.ldy + i] = v;
}

HY_KERNEL(k_add, SIMT_BLOCK, ka_add, a)
{
    const int i = HY_BX * SIMT_BLOCK + HY_TID;
    if (i >= a.dim)
        return;
    a.y[(int64_t)HY_BY * a.ldy + i] =
        fmaf(a.b[(int64_t)HY_BY * a.ldb + i], a.b_scale, a.a[(int64_t)HY_BY * a.lda + i]);
}

HY_KERNEL(k_scale, SIMT_BLOCK, ka_scale, a)
{
    const int i = HY_BX * SIMT_BLOCK + HY_TID;
    if (i >= a.n)
        return;
    float *y = a.y + (int64_t)HY_BY * a.ld + i;
    float v = *y * a.scale;
    *y = a.softcap != 0.0f ? hy_m_softcap(v, a.softcap) : v;
}

/* Activations to int8, a thread a group of 32. Grid: x groups, y row. */
HY_KERNEL(k_quant, SIMT_BLOCK, ka_quant, a)
{
    const int g = HY_BX * SIMT_BLOCK + HY_TID;
    if (g >= a.groups)
        return;
    const float *x = a.x + (int64_t)HY_BY * a.ldx + 32 * g;
    ka_qx *o = a.out + (int64_t)HY_BY * a.groups + g;
    float amax = 0.0f, id = 0.0f, d = 0.0f;
    int finite = 1;
    for (int i = 0; i < 32; i++) {
        float v = fabsf(x[i]);
        finite &= v < INFINITY;
        amax = v > amax ? v : amax;
    }
    if (!finite) {
        d = k_float(0x7fc00000u);
    } else if (amax >= k_float(7u << 23)) { /* 2^-120 */
        d = amax / 127.0f;
        id = 127.0f / amax;
    }
    o->d = d;
    o->sum[0] = o->sum[1] = o->pad = 0;
    for (int j = 0; j < 8; j++) {
        uint32_t w = 0;
        for (int i = 0; i < 4 && id != 0.0f; i++) {
            int q = (int)rintf(x[4 * j + i] * id);
            q = q > 127 ? 127 : q < -127 ? -127 : q;
            w |= (uint32_t)(uint8_t)q << 8 * i;
            o->sum[j / 4] += q;
        }
        o->q[j] = w;
    }
}

#endif
