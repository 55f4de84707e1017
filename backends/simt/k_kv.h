/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of the cache: writing a step's rows, and packing to and from the canonical wire
 * [layer][16 tokens][K|V][head][token][dim].
 *
 * Thread: device code.  Owner: none.
 */
#ifndef HY_SIMT_K_KV_H
#define HY_SIMT_K_KV_H

#include "backends/simt/k_dtype.h"

/* Chosen by value: an address would keep the kernel's argument in local memory. */
HY_DEV ka_plane k_plane_of(const ka_pool *p, int key)
{
    ka_plane o;
    o.off = key ? p->k.off : p->v.off;
    o.head = key ? p->k.head : p->v.head;
    o.token = key ? p->k.token : p->v.token;
    o.dim = key ? p->k.dim : p->v.dim;
    o.width = key ? p->k.width : p->v.width;
    return o;
}

/* Columns of rows that follow each other go through shared memory, so that lanes read neighbouring
 * elements, and write them as the plane has them: by token where tokens are neighbours. Grid: x
 * columns of K in KA_KV_COLS, then of V; y rows in KA_KV_ROWS. */
HY_KERNEL(k_kv_write, SIMT_BLOCK, ka_kv_write, a)
{
    HY_SHARED(float, tile, KA_KV_ROWS *(KA_KV_COLS + 1));
    const ka_pool *p = &a.pool;
    const int tiles = (p->heads * p->k.width + KA_KV_COLS - 1) / KA_KV_COLS, key = HY_BX < tiles;
    const ka_plane v = k_plane_of(p, key);
    const int width = p->heads * v.width, by_token = v.token < v.dim;
    const int c0 = (key ? HY_BX : HY_BX - tiles) * KA_KV_COLS, r0 = HY_BY * KA_KV_ROWS;
    const float *src = (key ? a.k + r0 * a.ldk : a.v + r0 * a.ldv) + c0;
    for (int i = HY_TID; i < KA_KV_ROWS * KA_KV_COLS; i += SIMT_BLOCK) {
        const int r = i / KA_KV_COLS, c = i % KA_KV_COLS;
        if (r0 + r < a.n && c0 + c < width)
            SH_PUT(tile, r * (KA_KV_COLS + 1) + c, HY_LD(src + r * (key ? a.ldk : a.ldv) + c));
    }
    HY_BARRIER();
    for (int i = HY_TID; i < KA_KV_ROWS * KA_KV_COLS; i += SIMT_BLOCK) {
        const int r = by_token ? i % KA_KV_ROWS : i / KA_KV_COLS;
        const int c = by_token ? i / KA_KV_ROWS : i % KA_KV_COLS, e = c0 + c;
        if (r0 + r >= a.n || e >= width)
            continue;
        uint8_t *at = p->base + a.block[r0 + r] * p->block_stride + v.off + e / v.width * v.head +
                      a.pos[r0 + r] % p->block_tokens * v.token + e % v.width * v.dim;
        k_store(p->value, p->type, at, SH_GET(tile, r * (KA_KV_COLS + 1) + c));
    }
}

/* ---- 8-bit floats: e4m3fn (bias 7) and e4m3fnuz (bias 8) ---- */

/* 2^e for -126 <= e <= 127. */
HY_DEV float k_pow2(int e)
{
    return k_float((uint32_t)(e + 127) << 23);
}

HY_DEV float k_f8_to_f32(int fn, int b)
{
    const int e = b >> 3 & 15, m = b & 7, bias = fn ? 7 : 8;
    const float v = e == 0 ? (float)m * k_pow2(-2 - bias) : (float)(8 + m) * k_pow2(e - 3 - bias);
    if (fn ? (b & 0x7f) == 0x7f : b == 0x80)
        return k_float(0x7fc00000u | (fn ? (uint32_t)(b & 0x80) << 24 : 0u));
    return b & 0x80 ? -v : v;
}

HY_DEV int k_f32_to_f8(int fn, float f)
{
    const int bias = fn ? 7 : 8, sign = (int)(k_bits(f) >> 31) << 7;
    const float a = fabsf(f);
    int code;
    if (f != f)
        return fn ? sign | 0x7f : 0x80;
    if (a >= (fn ? 448.0f : 240.0f)) {
        code = fn ? 0x7e : 0x7f;
    } else if (a < k_pow2(1 - bias)) {
        code = (int)rintf(a * k_pow2(2 + bias)); /* a carry gives the first normal */
    } else {
        const int e = (int)(k_bits(a) >> 23) - 127;
        const int q = (int)rintf(a * k_pow2(3 - e)); /* 8 to 16; a carry moves into e */
        code = ((e + bias) << 3) + (q - 8);
    }
    return code == 0 && !fn ? 0 : sign | code;
}

/* ---- wire ---- */

/* A row of the wire: where it is, and in the cache. */
typedef struct k_row {
    int width;
    int64_t dim;
    uint8_t *cache, *wire;
    float *scale;
} k_row;

/* Grid: x rows in fours: [layer][token][K|V][head]. A team a row. */
HY_DEV int k_row_of(const ka_wire *a, k_row *o)
{
    const ka_pool *p = &a->pool;
    int i = HY_BX * SIMT_TEAMS + HY_TEAM;
    if (i >= a->n_layers * a->n * 2 * a->n_heads)
        return 0;
    const int h = i % a->n_heads, key = i / a->n_heads % 2 == 0, t = i / a->n_heads / 2 % a->n;
    const int layer = i / a->n_heads / 2 / a->n, pos = a->t0 + t, end = a->t0 + a->n;
    /* the group of 16 that holds it, cut to the range */
    const int g0 = pos / 16 * 16 > a->t0 ? pos / 16 * 16 : a->t0;
    const int g1 = pos / 16 * 16 + 16 < end ? pos / 16 * 16 + 16 : end;
    const int size = a->wire == KT_F32 ? 4 : a->wire == KT_F16 || a->wire == KT_BF16 ? 2 : 1;
    const int64_t before = (int64_t)layer * a->n + g0 - a->t0; /* tokens */
    const int64_t within = (int64_t)h * (g1 - g0) + pos - g0;  /* rows of the plane */
    const int64_t planes = (int64_t)(g1 - g0) * a->n_heads;
    const ka_plane plane = k_plane_of(p, key);
    o->width = plane.width;
    o->dim = plane.dim;
    o->wire = a->buf + size * (before * a->n_heads * (p->k.width + p->v.width) +
                               (key ? 0 : planes * p->k.width) + within * plane.width);
    o->scale = a->scales + (before * 2 * a->n_heads + (key ? 0 : planes) + within);
    o->cache = p->base + layer * p->layer_stride +
               a->blocks[pos / p->block_tokens - a->block0] * p->block_stride + plane.off +
               (a->head0 + h) * plane.head + pos % p->block_tokens * plane.token;
    return 1;
}

/* Greatest code of a scaled wire; 0: not scaled. */
HY_DEV float k_limit(int wire)
{
    return wire == KT_I8            ? 127.0f
           : wire == KT_F8_E4M3     ? 448.0f
           : wire == KT_F8_E4M3FNUZ ? 240.0f
                                    : 0.0f;
}

HY_DEV float k_load_any(int type, const uint8_t *p)
{
    return type == KT_F32   ? k_load(KT_F32, p)
           : type == KT_F16 ? k_load(KT_F16, p)
                            : k_load(KT_BF16, p);
}

HY_KERNEL(k_kv_pack, SIMT_BLOCK, ka_wire, a)
{
    k_row r = {0, 0, NULL, NULL, NULL};
    const int on = k_row_of(&a, &r), type = a.pool.type;
    const float limit = k_limit(a.wire);
    float inv = 0.0f;
    if (limit != 0.0f) { /* all lanes */
        float amax = 0.0f, bad = 0.0f;
        for (int d = HY_LANE; on && d < r.width; d += SIMT_LANES) {
            const float v = fabsf(k_load_any(type, r.cache + d * r.dim));
            bad = v < INFINITY ? bad : 1.0f;
            amax = v > amax ? v : amax;
        }
        amax = hy_team_max(amax);
        bad = hy_team_max(bad);
        float s = 0.0f;
        if (bad != 0.0f) {
            s = k_float(0x7fc00000u);
        } else if (amax >= k_float(17u << 23)) { /* 2^-110 */
            inv = limit / amax;
            s = amax / limit;
        }
        if (on && HY_LANE == 0)
            *r.scale = s;
    }
    for (int d = HY_LANE; on && d < r.width; d += SIMT_LANES) {
        const uint8_t *at = r.cache + d * r.dim;
        const float v = k_load_any(type, at);
        if (limit == 0.0f && a.wire == type && type != KT_F32)
            k_put16(r.wire + 2 * d, k_get16(at));
        else if (limit == 0.0f)
            k_store(a.wire, a.wire, r.wire + d * (a.wire == KT_F32 ? 4 : 2), v);
        else if (inv == 0.0f)
            r.wire[d] = 0;
        else if (a.wire == KT_I8)
            r.wire[d] = (uint8_t)(int8_t)rintf(v * inv);
        else
            r.wire[d] = (uint8_t)k_f32_to_f8(a.wire == KT_F8_E4M3, v * inv);
    }
}

HY_KERNEL(k_kv_unpack, SIMT_BLOCK, ka_wire, a)
{
    k_row r = {0, 0, NULL, NULL, NULL};
    const ka_pool *p = &a.pool;
    if (!k_row_of(&a, &r))
        return;
    const float scale = k_limit(a.wire) != 0.0f ? *r.scale : 1.0f;
    for (int d = HY_LANE; d < r.width; d += SIMT_LANES) {
        uint8_t *at = r.cache + d * r.dim;
        float v;
        if (a.wire == p->value && a.wire == p->type && a.wire != KT_F32) {
            k_put16(at, k_get16(r.wire + 2 * d));
            continue;
        }
        if (a.wire == KT_I8)
            v = (float)(int8_t)r.wire[d] * scale;
        else if (k_limit(a.wire) != 0.0f)
            v = k_f8_to_f32(a.wire == KT_F8_E4M3, r.wire[d]) * scale;
        else
            v = k_load_any(a.wire, r.wire + d * (a.wire == KT_F32 ? 4 : 2));
        k_store(p->value, p->type, at, v);
    }
}

#endif
