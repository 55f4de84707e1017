/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools of any layout for tests of KV descriptors and plans, filled with values that say where they
 * belong.
 *
 * Thread: one.  Owner: kit_free.
 */
#ifndef HY_TESTS_KV_KIT_H
#define HY_TESTS_KV_KIT_H

#include "hal/kv_plan.h"

#include <stdlib.h>
#include <string.h>

enum { KIT_CPU, KIT_NHD, KIT_HND, KIT_LAYERS_FIRST, KIT_PLANES_FIRST, KIT_ORDERS };

typedef struct kit_shape {
    int order;
    hy_dtype value, type;
    int32_t bt, n_layers, k_width, v_width;
    int32_t head0, n_heads, heads_total;
    int32_t window, n_blocks;
} kit_shape;

typedef struct kit {
    kit_shape s;
    hy_kv_pool pool;
    size_t bytes;
    int32_t *blocks; /* [n_blocks], a permutation of the pool's */
} kit;

static uint32_t kit_seed = 1;

static inline uint32_t kit_rnd(uint32_t n)
{
    kit_seed = kit_seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)kit_seed * n) >> 32);
}

static inline hy_kv_layout kit_layout(const kit_shape *s)
{
    hy_kv_layout l = {.value_type = s->value,
                      .type = s->type,
                      .n_layers = s->n_layers,
                      .n_heads = s->n_heads,
                      .block_tokens = s->bt};
    int64_t e = hy_dtype_get((int)s->type)->bytes, t = s->bt, h = s->n_heads;
    l.k.width = s->k_width;
    l.v.width = s->v_width;
    hy_kv_plane *planes[2] = {&l.k, &l.v};
    for (int i = 0; i < 2; i++) {
        hy_kv_plane *p = planes[i];
        int64_t w = p->width;
        if (s->order == KIT_CPU && i == 0) /* [head][dim][token] */
            p->token = e, p->dim = t * e, p->head = w * t * e;
        else if (s->order == KIT_NHD) /* [token][head][dim] */
            p->dim = e, p->head = w * e, p->token = h * w * e;
        else /* [head][token][dim] */
            p->dim = e, p->token = w * e, p->head = t * w * e;
    }
    int64_t k = h * t * l.k.width * e, v = h * t * l.v.width * e;
    l.v.off = s->order == KIT_CPU ? (k + 63) / 64 * 64 : k;
    int64_t slab = s->order == KIT_CPU ? (l.v.off + v + 63) / 64 * 64 : k + v;
    l.layer_stride = slab;
    l.block_stride = slab * s->n_layers;
    if (s->order == KIT_LAYERS_FIRST) {
        l.block_stride = slab;
        l.layer_stride = slab * s->n_blocks;
    } else if (s->order == KIT_PLANES_FIRST) { /* [K|V][layer][block] */
        int64_t most = k > v ? k : v;
        l.block_stride = most;
        l.layer_stride = most * s->n_blocks;
        l.v.off = most * s->n_blocks * s->n_layers;
        slab = 2 * most;
    }
    l.bytes_per_block = slab * s->n_layers;
    return l;
}

static inline kit kit_make(kit_shape s)
{
    kit k = {.s = s, .pool = {.layout = kit_layout(&s), .n_blocks = s.n_blocks}};
    k.bytes = (size_t)k.pool.layout.bytes_per_block * (size_t)s.n_blocks;
    k.pool.base = malloc(k.bytes);
    k.blocks = malloc((size_t)s.n_blocks * sizeof(int32_t));
    if (k.pool.base == NULL || k.blocks == NULL)
        abort();
    memset(k.pool.base, 0xa5, k.bytes);
    for (int32_t i = 0; i < s.n_blocks; i++) {
        int32_t j = (int32_t)kit_rnd((uint32_t)i + 1);
        k.blocks[i] = k.blocks[j];
        k.blocks[j] = i;
    }
    return k;
}

static inline void kit_free(kit *k)
{
    free(k->pool.base);
    free(k->blocks);
}

static inline hy_kv_desc kit_desc(const kit *k)
{
    hy_kv_desc d = {.n_groups = 1};
    d.g[0] = (hy_kv_desc_group){.layout = k->pool.layout,
                                .head0 = k->s.head0,
                                .heads_total = k->s.heads_total,
                                .window = k->s.window,
                                .n_blocks = k->s.n_blocks,
                                .wires = 63};
    return d;
}

/* What a place holds: finite, of both signs, exact in f16 and bf16 alike. */
static inline float kit_value(int layer, bool key, int head, int token, int dim)
{
    uint32_t x = (uint32_t)layer * 0x9e3779b1u ^ (uint32_t)head * 0x85ebca6bu ^
                 (uint32_t)token * 0xc2b2ae35u ^ (uint32_t)dim * 0x27d4eb2fu ^
                 (key ? 0x165667b1u : 0);
    x ^= x >> 15;
    x *= 0x2c1b3c6du;
    x ^= x >> 12;
    x *= 0x297a2d39u;
    x ^= x >> 15;
    uint16_t h = (uint16_t)(x & 0x807f) | (uint16_t)(0x3b80 + (x >> 16 & 0x780)); /* bf16 */
    return hy_bf16_to_f32(h);
}

static inline uint8_t *kit_at(const kit *k, uint8_t *base, int layer, bool key, int head, int token,
                              int dim)
{
    const hy_kv_layout *l = &k->pool.layout;
    const hy_kv_plane *p = key ? &l->k : &l->v;
    return base + layer * l->layer_stride + k->blocks[token / l->block_tokens] * l->block_stride +
           p->off + (head - k->s.head0) * p->head + token % l->block_tokens * p->token +
           dim * p->dim;
}

static inline void kit_put(hy_dtype type, uint8_t *p, float f)
{
    uint16_t h = type == HY_F16 ? hy_f32_to_f16(f) : hy_f32_to_bf16(f);
    if (type == HY_F32)
        memcpy(p, &f, 4);
    else
        memcpy(p, &h, 2);
}

static inline float kit_get(hy_dtype type, const uint8_t *p)
{
    uint16_t h;
    float f;
    memcpy(&h, p, 2);
    if (type == HY_F32)
        memcpy(&f, p, 4);
    else
        f = type == HY_F16 ? hy_f16_to_f32(h) : hy_bf16_to_f32(h);
    return f;
}

/* Tokens [t0, t1) of heads [h0, h1) as they should be, written to a copy of the pool. */
static inline void kit_fill(const kit *k, uint8_t *base, int t0, int t1, int h0, int h1)
{
    for (int l = 0; l < k->s.n_layers; l++) {
        for (int h = h0; h < h1; h++) {
            for (int t = t0; t < t1; t++) {
                for (int d = 0; d < k->s.k_width; d++)
                    kit_put(k->s.type, kit_at(k, base, l, true, h, t, d),
                            kit_value(l, true, h, t, d));
                for (int d = 0; d < k->s.v_width; d++)
                    kit_put(k->s.type, kit_at(k, base, l, false, h, t, d),
                            kit_value(l, false, h, t, d));
            }
        }
    }
}

#endif
