/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of the cache: writing rows, and packing token ranges to and from the canonical
 * wire [layer][16 tokens][K|V][head][token][dim]. Quantised wires carry one f32 scale per token,
 * head and plane in the same order: amax over the greatest code (int8 127, e4m3 448, fnuz 240).
 *
 * Thread: a queue's owner.  Owner: none.
 */
#include "backends/cpu/ref_int.h"

#include <math.h>
#include <string.h>

uint8_t *ref_kv_block(const hy_kv_pool *pool, int32_t layer, int32_t block)
{
    const hy_kv_layout *l = &pool->layout;
    if (layer < 0 || layer >= l->n_layers || block < 0 || block >= pool->n_blocks)
        return NULL;
    return (uint8_t *)pool->base + layer * l->layer_stride + block * l->block_stride;
}

float ref_kv_load(hy_dtype type, const uint8_t *p)
{
    uint16_t h;
    float f;
    if (type == HY_F32) {
        memcpy(&f, p, sizeof(f));
        return f;
    }
    memcpy(&h, p, sizeof(h));
    return type == HY_F16 ? hy_f16_to_f32(h) : hy_bf16_to_f32(h);
}

void ref_kv_store(hy_dtype value, hy_dtype type, uint8_t *p, float f)
{
    uint16_t h = 0;
    if (value == HY_F16) {
        h = hy_f32_to_f16(f);
        f = hy_f16_to_f32(h);
    } else if (value == HY_BF16) {
        h = hy_f32_to_bf16(f);
        f = hy_bf16_to_f32(h);
    }
    if (type == HY_F32)
        memcpy(p, &f, sizeof(f));
    else /* storage equals the value type */
        memcpy(p, &h, sizeof(h));
}

static void write_plane(const hy_kv_layout *l, const hy_kv_plane *p, uint8_t *block, int32_t token,
                        const float *x)
{
    for (int32_t h = 0; h < l->n_heads; h++) {
        uint8_t *at = block + p->off + h * p->head + token * p->token;
        for (int32_t d = 0; d < p->width; d++)
            ref_kv_store(l->value_type, l->type, at + d * p->dim, x[(int64_t)h * p->width + d]);
    }
}

hy_status ref_kv_write(hy_queue *q, const hy_kv_write *a)
{
    (void)q;
    const hy_kv_layout *l = &a->pool->layout;
    for (int32_t s = 0; s < a->rows->n_seqs; s++) {
        for (int32_t r = a->rows->seq_row[s]; r < a->rows->seq_row[s + 1]; r++) {
            int32_t pos = a->rows->pos[r];
            int32_t id = a->bt.table[s * a->bt.stride + pos / l->block_tokens];
            uint8_t *block = ref_kv_block(a->pool, a->layer, id);
            if (block == NULL)
                return hy_fail(HY_E_INVAL, "kv_write: layer %d, block %d is outside the pool",
                               a->layer, id);
            write_plane(l, &l->k, block, pos % l->block_tokens, a->k + r * a->ldk);
            write_plane(l, &l->v, block, pos % l->block_tokens, a->v + r * a->ldv);
        }
    }
    return HY_OK;
}

/* ---- wire ---- */

typedef struct wire {
    const hy_kv_copy *a;
    size_t elem;
    bool scaled;
    float limit; /* of the codes, when scaled */
} wire;

static wire wire_of(const hy_kv_copy *a)
{
    wire w = {.a = a, .elem = hy_dtype_get((int)a->wire)->bytes};
    w.limit = a->wire == HY_I8 ? 127.0f : a->wire == HY_F8_E4M3 ? 448.0f : 240.0f;
    w.scaled = w.elem == 1;
    return w;
}

hy_status ref_kv_wire_check(const hy_kv_copy *a)
{
    const hy_kv_layout *l = &a->pool->layout;
    bool scaled = a->wire == HY_I8 || a->wire == HY_F8_E4M3 || a->wire == HY_F8_E4M3FNUZ;
    if (!scaled && a->wire != HY_F32 && a->wire != HY_F16 && a->wire != HY_BF16)
        return hy_fail(HY_E_UNSUPPORTED, "cpu: KV cannot travel as %s",
                       hy_dtype_name((int)a->wire));
    if (a->layer0 < 0 || a->n_layers < 0 || a->layer0 > l->n_layers - a->n_layers || a->head0 < 0 ||
        a->n_heads < 0 || a->head0 > l->n_heads - a->n_heads || a->t0 < 0 || a->n < 0)
        return hy_fail(HY_E_INVAL, "kv wire: layers, heads or tokens outside the cache");
    if (scaled && a->scales == NULL)
        return hy_fail(HY_E_INVAL, "kv wire: type %s needs room for scales",
                       hy_dtype_name((int)a->wire));
    size_t need = (size_t)a->n_layers * (size_t)a->n * (size_t)a->n_heads *
                  (size_t)(l->k.width + l->v.width) * hy_dtype_get((int)a->wire)->bytes;
    if (need > a->bytes)
        return hy_fail(HY_E_INVAL, "kv wire: %zu bytes do not fit a buffer of %zu", need, a->bytes);
    int32_t bt = l->block_tokens;
    for (int32_t b = a->t0 / bt; a->n > 0 && b <= (a->t0 + a->n - 1) / bt; b++) {
        if (ref_kv_block(a->pool, a->layer0, a->blocks[b]) == NULL)
            return hy_fail(HY_E_INVAL, "kv wire: block %d is outside the pool", a->blocks[b]);
    }
    return HY_OK;
}

/* Scale of a row and its inverse. A NaN or an infinity makes the scale a NaN: the row comes back as
 * NaNs, never as something finite. */
static float row_scale(const wire *w, const hy_kv_plane *p, const uint8_t *src, float *inv)
{
    hy_dtype type = w->a->pool->layout.type;
    float amax = 0.0f;
    *inv = 0.0f;
    for (int32_t d = 0; d < p->width; d++) {
        float v = fabsf(ref_kv_load(type, src + d * p->dim));
        if (!(v < INFINITY))
            return NAN;
        amax = v > amax ? v : amax;
    }
    if (amax < 0x1p-110f)
        return 0.0f;
    *inv = w->limit / amax;
    return amax / w->limit;
}

static void pack_row(const wire *w, const hy_kv_plane *p, const uint8_t *src, uint8_t *dst,
                     float *scale)
{
    hy_dtype type = w->a->pool->layout.type;
    float inv = 0.0f;
    if (w->scaled)
        *scale = row_scale(w, p, src, &inv);
    for (int32_t d = 0; d < p->width; d++) {
        const uint8_t *at = src + d * p->dim;
        if (w->a->wire == type)
            memcpy(dst + (size_t)d * w->elem, at, w->elem);
        else if (w->scaled && inv == 0.0f)
            dst[d] = 0;
        else if (w->a->wire == HY_I8)
            dst[d] = (uint8_t)(int8_t)rintf(ref_kv_load(type, at) * inv);
        else if (w->scaled)
            dst[d] = hy_f32_to_f8(w->a->wire, ref_kv_load(type, at) * inv);
        else
            ref_kv_store(w->a->wire, w->a->wire, dst + (size_t)d * w->elem, ref_kv_load(type, at));
    }
}

static void unpack_row(const wire *w, const hy_kv_plane *p, uint8_t *dst, const uint8_t *src,
                       const float *scale)
{
    const hy_kv_layout *l = &w->a->pool->layout;
    for (int32_t d = 0; d < p->width; d++) {
        const uint8_t *at = src + (size_t)d * w->elem;
        float v;
        if (w->a->wire == l->value_type && w->a->wire == l->type) {
            memcpy(dst + d * p->dim, at, w->elem);
            continue;
        }
        if (w->a->wire == HY_I8)
            v = (float)(int8_t)*at * *scale;
        else if (w->scaled)
            v = hy_f8_to_f32(w->a->wire, *at) * *scale;
        else
            v = ref_kv_load(w->a->wire, at);
        ref_kv_store(l->value_type, l->type, dst + d * p->dim, v);
    }
}

/* Both ways: the wire is walked in order. */
static hy_status walk(const hy_kv_copy *a, bool pack)
{
    const hy_kv_layout *l = &a->pool->layout;
    HY_TRY(ref_kv_wire_check(a));
    wire w = wire_of(a);
    uint8_t *buf = a->buf;
    float *scale = a->scales;
    int32_t end = a->t0 + a->n, next;
    for (int32_t layer = a->layer0; layer < a->layer0 + a->n_layers; layer++) {
        for (int32_t t = a->t0; t < end; t = next) {
            next = t - t % 16 + 16 < end ? t - t % 16 + 16 : end;
            for (int32_t i = 0; i < 2 * a->n_heads; i++) {
                const hy_kv_plane *p = i < a->n_heads ? &l->k : &l->v;
                int32_t head = a->head0 + i % a->n_heads;
                for (int32_t pos = t; pos < next; pos++) {
                    uint8_t *at = ref_kv_block(a->pool, layer, a->blocks[pos / l->block_tokens]);
                    at += p->off + head * p->head + pos % l->block_tokens * p->token;
                    if (pack)
                        pack_row(&w, p, at, buf, scale);
                    else
                        unpack_row(&w, p, at, buf, scale);
                    buf += (size_t)p->width * w.elem;
                    scale += w.scaled ? 1 : 0;
                }
            }
        }
    }
    return HY_OK;
}

hy_status ref_kv_pack(hy_queue *q, const hy_kv_copy *a)
{
    (void)q;
    return walk(a, true);
}

hy_status ref_kv_unpack(hy_queue *q, const hy_kv_copy *a)
{
    (void)q;
    return walk(a, false);
}
