/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of the cache: writing rows, and packing token ranges to and from the canonical
 * wire [layer][token][K|V][head][dim]. Quantised wires carry one f32 scale per [layer][token][K|V]
 * [head]: int8 has amax / 127, f8 has amax / 448.
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

/* 4 exponent bits (bias 7), 3 of mantissa, no infinity; S.1111.111 is NaN. */
static float f8_to_f32(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    float v = e == 0 ? (float)m * 0x1p-9f : ldexpf((float)(8 + m), e - 10);
    if ((b & 0x7f) == 0x7f)
        v = NAN;
    return b & 0x80 ? -v : v;
}

/* Nearest, ties to even; beyond 448 stays at 448. */
static uint8_t f32_to_f8(float f)
{
    uint8_t sign = signbit(f) ? 0x80 : 0;
    float a = fabsf(f);
    if (f != f)
        return sign | 0x7f;
    if (a >= 448.0f)
        return sign | 0x7e;
    if (a < 0x1p-6f) /* subnormal: a carry gives the first normal */
        return (uint8_t)(sign | (int)rintf(a * 0x1p9f));
    int e;
    float m = frexpf(a, &e); /* a = m 2^e, m in [1/2, 1) */
    int q = (int)rintf(m * 16.0f);
    return (uint8_t)(sign | (((e + 6) << 3) + (q - 8))); /* a carry of q to 16 moves into e */
}

typedef struct wire {
    const hy_kv_copy *a;
    size_t elem;
    bool scaled;
    float limit; /* of the codes, when scaled */
} wire;

static hy_status wire_init(const hy_kv_copy *a, wire *w)
{
    const hy_kv_layout *l = &a->pool->layout;
    w->a = a;
    w->scaled = a->wire == HY_I8 || a->wire == HY_F8_E4M3;
    w->limit = a->wire == HY_I8 ? 127.0f : 448.0f;
    if (!w->scaled && a->wire != HY_F32 && a->wire != HY_F16 && a->wire != HY_BF16)
        return hy_fail(HY_E_UNSUPPORTED, "cpu: KV cannot travel as %s", hy_dtype_name(a->wire));
    w->elem = hy_dtype_get(a->wire)->bytes;
    if (a->layer0 < 0 || a->n_layers < 0 || a->layer0 > l->n_layers - a->n_layers || a->head0 < 0 ||
        a->n_heads < 0 || a->head0 > l->n_heads - a->n_heads || a->t0 < 0 || a->n < 0)
        return hy_fail(HY_E_INVAL, "kv wire: layers, heads or tokens outside the cache");
    if (w->scaled && a->scales == NULL)
        return hy_fail(HY_E_INVAL, "kv wire: type %s needs room for scales",
                       hy_dtype_name(a->wire));
    size_t need = (size_t)a->n_layers * (size_t)a->n * (size_t)a->n_heads *
                  (size_t)(l->k.width + l->v.width) * w->elem;
    if (need > a->bytes)
        return hy_fail(HY_E_INVAL, "kv wire: %zu bytes do not fit a buffer of %zu", need, a->bytes);
    return HY_OK;
}

static void pack_row(const wire *w, const hy_kv_plane *p, const uint8_t *src, uint8_t *dst,
                     float *scale)
{
    hy_dtype type = w->a->pool->layout.type;
    float inv = 0.0f, amax = 0.0f;
    if (w->scaled) {
        for (int32_t d = 0; d < p->width; d++) {
            float v = fabsf(ref_kv_load(type, src + d * p->dim));
            amax = v > amax ? v : amax;
        }
        inv = amax >= 0x1p-110f ? w->limit / amax : 0.0f;
        *scale = inv != 0.0f ? amax / w->limit : 0.0f;
    }
    for (int32_t d = 0; d < p->width; d++) {
        float v = ref_kv_load(type, src + d * p->dim);
        if (w->a->wire == HY_I8) {
            float c = rintf(v * inv);
            c = c > 127.0f ? 127.0f : c >= -127.0f ? c : -127.0f; /* a NaN too */
            dst[d] = (uint8_t)(int8_t)c;
        } else if (w->a->wire == HY_F8_E4M3) {
            dst[d] = f32_to_f8(v * inv);
        } else {
            ref_kv_store(w->a->wire, w->a->wire, dst + (size_t)d * w->elem, v);
        }
    }
}

static void unpack_row(const wire *w, const hy_kv_plane *p, uint8_t *dst, const uint8_t *src,
                       const float *scale)
{
    const hy_kv_layout *l = &w->a->pool->layout;
    for (int32_t d = 0; d < p->width; d++) {
        float v;
        if (w->a->wire == HY_I8)
            v = (float)(int8_t)src[d] * *scale;
        else if (w->a->wire == HY_F8_E4M3)
            v = f8_to_f32(src[d]) * *scale;
        else
            v = ref_kv_load(w->a->wire, src + (size_t)d * w->elem);
        ref_kv_store(l->value_type, l->type, dst + d * p->dim, v);
    }
}

/* Both ways: the wire is walked in order. */
static hy_status walk(const hy_kv_copy *a, bool pack)
{
    const hy_kv_layout *l = &a->pool->layout;
    wire w = {0};
    HY_TRY(wire_init(a, &w));
    uint8_t *buf = a->buf;
    float *scale = a->scales;
    for (int32_t layer = a->layer0; layer < a->layer0 + a->n_layers; layer++) {
        for (int32_t i = 0; i < 2 * a->n; i++) {
            int32_t pos = a->t0 + i / 2, id = a->blocks[pos / l->block_tokens];
            const hy_kv_plane *p = i % 2 == 0 ? &l->k : &l->v;
            uint8_t *block = ref_kv_block(a->pool, layer, id);
            if (block == NULL)
                return hy_fail(HY_E_INVAL, "kv wire: block %d is outside the pool", id);
            block += p->off + pos % l->block_tokens * p->token;
            for (int32_t h = a->head0; h < a->head0 + a->n_heads; h++) {
                if (pack)
                    pack_row(&w, p, block + h * p->head, buf, scale);
                else
                    unpack_row(&w, p, block + h * p->head, buf, scale);
                buf += (size_t)p->width * w.elem;
                if (w.scaled)
                    scale++;
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
