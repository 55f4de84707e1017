/* SPDX-License-Identifier: Apache-2.0
 *
 * Scenes of the cache's tests, and conformance of kv_write, kv_pack and kv_unpack.
 *
 * Thread: the caller of hy_conform_run.  Owner: the case.
 */
#include "hal/conform_kv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

float cf_round(hy_dtype t, float f)
{
    if (t == HY_F16)
        return hy_f16_to_f32(hy_f32_to_f16(f));
    return t == HY_BF16 ? hy_bf16_to_f32(hy_f32_to_bf16(f)) : f;
}

static float *rounded(cf *c, hy_dtype t, const float *x, int64_t n)
{
    float *y = cf_host(c, (size_t)n * sizeof(float));
    for (int64_t i = 0; x != NULL && y != NULL && i < n; i++)
        y[i] = cf_round(t, x[i]);
    return y;
}

static void make_tables(cf *c, cf_scene *s, int32_t *order)
{
    int32_t at = 0, bt = s->s.block_tokens;
    for (int32_t i = 0; i < s->n_blocks; i++) {
        int32_t j = cf_below(c, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (int32_t q = 0; q < s->n_seqs; q++) {
        int32_t first = s->total[q] - s->fresh[q] - s->s.window + 1; /* that a row still sees */
        for (int32_t b = 0; b < s->stride; b++) {
            bool used = b * bt < s->total[q];
            bool passed = s->s.window > 0 && (b + 1) * bt <= first;
            int32_t id = used ? order[at++] : -1;
            s->table[q * s->stride + b] = id;
            s->visible[q * s->stride + b] = passed ? -1 : id;
        }
    }
}

static bool make_rows(cf *c, const cf_scene *s, bool past, hy_rows *out)
{
    int32_t *seq_row = cf_host(c, (CF_SEQS + 1) * sizeof(int32_t));
    int32_t *pos = cf_host(c, (size_t)s->n_tokens * sizeof(int32_t));
    int32_t n = 0;
    if (seq_row == NULL || pos == NULL)
        return false;
    for (int32_t q = 0; q < s->n_seqs; q++) {
        int32_t cut = s->total[q] - s->fresh[q];
        seq_row[q] = n;
        for (int32_t p = past ? 0 : cut; p < (past ? cut : s->total[q]); p++)
            pos[n++] = p;
    }
    seq_row[s->n_seqs] = n;
    *out = (hy_rows){.n = n, .n_seqs = s->n_seqs, .pos = pos, .seq_row = seq_row};
    return true;
}

bool cf_scene_make(cf *c, cf_scene *s)
{
    int32_t longest = 0, bt = s->s.block_tokens;
    s->n_tokens = s->n_rows = s->n_blocks = 0;
    for (int32_t q = 0; q < s->n_seqs; q++) {
        s->start[q] = s->n_tokens;
        s->n_tokens += s->total[q];
        s->n_rows += s->fresh[q];
        s->n_blocks += (s->total[q] + bt - 1) / bt;
        longest = s->total[q] > longest ? s->total[q] : longest;
    }
    s->stride = (longest + bt - 1) / bt + 1;
    s->ldk = (int64_t)s->s.kv_heads * s->s.k_dim;
    s->ldv = (int64_t)s->s.kv_heads * s->s.v_dim;
    size_t entries = (size_t)(s->n_seqs * s->stride) * sizeof(int32_t);
    s->table = cf_host(c, entries);
    s->visible = cf_host(c, entries);
    s->k = cf_rand(c, s->n_tokens * s->ldk, 1.0f);
    s->v = cf_rand(c, s->n_tokens * s->ldv, 1.0f);
    s->seen_k = rounded(c, s->value, s->k, s->n_tokens * s->ldk);
    s->seen_v = rounded(c, s->value, s->v, s->n_tokens * s->ldv);
    int32_t *order = cf_host(c, (size_t)s->n_blocks * sizeof(int32_t));
    if (c->no_mem || !make_rows(c, s, true, &s->past) || !make_rows(c, s, false, &s->rows))
        return false;
    make_tables(c, s, order);
    return true;
}

/* Every element of a block lies inside it and shares its bytes with no other. */
static bool layout_sound(cf *c, const hy_kv_layout *l)
{
    int64_t elem = hy_dtype_get(l->type)->bytes;
    uint8_t *used = cf_host(c, (size_t)l->bytes_per_block);
    if (used == NULL)
        return false;
    for (int32_t layer = 0; layer < l->n_layers; layer++) {
        for (int p = 0; p < 2; p++) {
            const hy_kv_plane *v = p == 0 ? &l->k : &l->v;
            for (int64_t i = 0; i < (int64_t)l->n_heads * l->block_tokens * v->width; i++) {
                int64_t d = i % v->width, t = i / v->width % l->block_tokens;
                int64_t h = i / v->width / l->block_tokens;
                int64_t at =
                    layer * l->layer_stride + v->off + h * v->head + t * v->token + d * v->dim;
                if (at < 0 || at > l->bytes_per_block - elem || used[at] != 0)
                    return cf_bad(c, "layout: elements overlap or leave the block"), false;
                memset(used + at, 1, (size_t)elem);
            }
        }
    }
    return true;
}

bool cf_pool_make(cf *c, cf_side *d, const cf_scene *s, hy_kv_pool *out)
{
    hy_kv_layout *l = &out->layout;
    memset(out, 0, sizeof(*out));
    l->value_type = s->value;
    l->type = s->type;
    l->n_layers = CF_LAYERS;
    l->n_heads = s->s.kv_heads;
    l->block_tokens = s->s.block_tokens;
    l->k.width = s->s.k_dim;
    l->v.width = s->s.v_dim;
    if (!cf_ok(c, "kv_layout", d->dev->math->kv_layout(d->dev, l)) || !layout_sound(c, l))
        return false;
    size_t bytes = (size_t)l->bytes_per_block * (size_t)s->n_blocks;
    void *zero = cf_host(c, bytes);
    out->n_blocks = s->n_blocks;
    out->base = cf_dev(c, d, zero, bytes);
    return out->base != NULL;
}

/* Rows of a step out of the scene's keys or values, times f. */
static float *gather(cf *c, cf_side *d, const cf_scene *s, const hy_rows *r, const float *src,
                     int64_t ld, float f)
{
    float *x = cf_host(c, (size_t)(r->n * ld) * sizeof(float));
    for (int32_t q = 0; x != NULL && q < r->n_seqs; q++) {
        for (int32_t i = r->seq_row[q]; i < r->seq_row[q + 1]; i++) {
            const float *from = src + (s->start[q] + r->pos[i]) * ld;
            for (int64_t e = 0; e < ld; e++)
                x[i * ld + e] = from[e] * f;
        }
    }
    return cf_dev(c, d, x, (size_t)(r->n * ld) * sizeof(float));
}

static bool write_rows(cf *c, cf_side *d, const cf_scene *s, const hy_kv_pool *pool,
                       const hy_rows *r, int32_t layer, float f)
{
    hy_kv_write w = {.pool = pool, .layer = layer, .rows = r, .ldk = s->ldk, .ldv = s->ldv};
    w.bt = (hy_block_table){s->table, s->stride};
    w.k = gather(c, d, s, r, s->k, s->ldk, f);
    w.v = gather(c, d, s, r, s->v, s->ldv, f);
    return w.k != NULL && w.v != NULL && cf_ok(c, "kv_write", d->dev->math->kv_write(d->q, &w)) &&
           cf_ok(c, "kv_write", d->dev->ops->queue_wait(d->q));
}

bool cf_scene_write(cf *c, cf_side *d, const cf_scene *s, const hy_kv_pool *pool)
{
    return write_rows(c, d, s, pool, &s->past, CF_LAYER, 1.0f) &&
           write_rows(c, d, s, pool, &s->past, 1 - CF_LAYER, -3.0f) &&
           write_rows(c, d, s, pool, &s->rows, CF_LAYER, 1.0f) &&
           write_rows(c, d, s, pool, &s->rows, 1 - CF_LAYER, -3.0f);
}

/* ---- kv_write ---- */

static float load(hy_dtype t, const uint8_t *p)
{
    float f;
    hy_dtype_decode(t, p, &f, 1);
    return f;
}

static void check_plane(cf *c, const cf_scene *s, const hy_kv_pool *pool, const uint8_t *bytes,
                        bool key)
{
    const hy_kv_layout *l = &pool->layout;
    const hy_kv_plane *p = key ? &l->k : &l->v;
    const float *src = key ? s->k : s->v;
    for (int32_t q = 0; q < s->n_seqs; q++) {
        for (int64_t i = 0; i < (int64_t)s->total[q] * l->n_heads * p->width; i++) {
            int64_t d = i % p->width, h = i / p->width % l->n_heads;
            int32_t pos = (int32_t)(i / p->width / l->n_heads);
            int64_t block = s->table[q * s->stride + pos / l->block_tokens];
            const uint8_t *at = bytes + CF_LAYER * l->layer_stride + block * l->block_stride +
                                p->off + h * p->head + pos % l->block_tokens * p->token +
                                d * p->dim;
            float x = src[(s->start[q] + pos) * l->n_heads * p->width + h * p->width + d];
            if (load(l->type, at) != cf_round(l->value_type, x))
                cf_bad(c, "%s of position %d, head %lld, dim %lld is %g, written was %g",
                       key ? "K" : "V", pos, (long long)h, (long long)d, (double)load(l->type, at),
                       (double)x);
        }
    }
}

static void one_write(cf *c, cf_scene *s)
{
    hy_kv_pool pool;
    cf_case(c, "heads %d, widths %d/%d, blocks of %d", s->s.kv_heads, s->s.k_dim, s->s.v_dim,
            s->s.block_tokens);
    if (!cf_scene_make(c, s) || !cf_pool_make(c, &c->dut, s, &pool))
        return;
    size_t bytes = (size_t)pool.layout.bytes_per_block * (size_t)pool.n_blocks;
    uint8_t *host = cf_host(c, bytes);
    if (host == NULL || !cf_scene_write(c, &c->dut, s, &pool) ||
        !cf_get(c, &c->dut, host, pool.base, bytes))
        return;
    check_plane(c, s, &pool, host, true);
    check_plane(c, s, &pool, host, false);
}

/* ---- wire ---- */

typedef struct wire_case {
    cf_scene *s;
    hy_dtype wire;
    int32_t t0, n, head0, n_heads;
} wire_case;

static size_t wire_elems(const wire_case *w)
{
    return (size_t)w->n * (size_t)w->n_heads * (size_t)(w->s->s.k_dim + w->s->s.v_dim);
}

static bool scaled(hy_dtype wire)
{
    return wire == HY_I8 || wire == HY_F8_E4M3 || wire == HY_F8_E4M3FNUZ;
}

/* Packs, or unpacks, the layer under test; buf and scales are host arrays. */
static bool transfer(cf *c, cf_side *d, const wire_case *w, hy_dtype wire, const hy_kv_pool *pool,
                     const int32_t *blocks, bool pack, void *buf, float *scales)
{
    size_t bytes = wire_elems(w) * hy_dtype_get(wire)->bytes;
    size_t s_bytes = (size_t)w->n * (size_t)w->n_heads * 2 * sizeof(float);
    hy_kv_copy a = {.pool = pool,
                    .blocks = blocks,
                    .t0 = w->t0,
                    .n = w->n,
                    .layer0 = CF_LAYER,
                    .n_layers = 1,
                    .head0 = w->head0,
                    .n_heads = w->n_heads,
                    .wire = wire,
                    .bytes = bytes};
    const hy_math_ops *m = d->dev->math;
    a.buf = cf_dev(c, d, buf, bytes);
    a.scales = scaled(wire) ? cf_dev(c, d, scales, s_bytes) : NULL;
    if (a.buf == NULL)
        return false;
    if (!cf_ok(c, pack ? "kv_pack" : "kv_unpack",
               pack ? m->kv_pack(d->q, &a) : m->kv_unpack(d->q, &a)))
        return false;
    if (!pack)
        return cf_ok(c, "kv_unpack", d->dev->ops->queue_wait(d->q));
    return cf_get(c, d, buf, a.buf, bytes) &&
           (!scaled(wire) || cf_get(c, d, scales, a.scales, s_bytes));
}

/* One row of the wire in f32 against what was written. */
static void check_row(cf *c, const wire_case *w, bool key, int32_t pos, int32_t h, const float *got)
{
    const cf_scene *s = w->s;
    int32_t width = key ? s->s.k_dim : s->s.v_dim;
    const float *row = (key ? s->k + pos * s->ldk : s->v + pos * s->ldv) + h * width;
    double amax = 0.0;
    for (int32_t d = 0; d < width; d++)
        amax = fmax(amax, fabs((double)cf_round(s->value, row[d])));
    for (int32_t d = 0; d < width; d++) {
        double x = (double)cf_round(s->value, row[d]);
        double lossless = (double)cf_round(w->wire, (float)x);
        double bound = w->wire == HY_I8  ? amax / 254.0 * 1.001
                       : scaled(w->wire) ? fabs(x) / 16.0 * 1.001 + amax * 3e-6
                                         : 0.0;
        double want = scaled(w->wire) ? x : lossless;
        bound += scaled(w->wire) ? fabs(x) / 128.0 : 0.0; /* rounded to the value type */
        if (!(fabs((double)got[d] - want) <= bound))
            cf_bad(c, "%s of token %d, head %d, dim %d came as %g, written was %g", key ? "K" : "V",
                   pos, h, d, (double)got[d], x);
    }
}

/* [16 tokens][K|V][head][token][dim], groups cut at multiples of 16. */
static void check_wire(cf *c, const wire_case *w, const float *got)
{
    int32_t end = w->t0 + w->n, next;
    for (int32_t t = w->t0; t < end; t = next) {
        next = t - t % 16 + 16 < end ? t - t % 16 + 16 : end;
        for (int32_t i = 0; i < 2 * w->n_heads; i++) {
            bool key = i < w->n_heads;
            for (int32_t pos = t; pos < next; pos++) {
                check_row(c, w, key, pos, w->head0 + i % w->n_heads, got);
                got += key ? w->s->s.k_dim : w->s->s.v_dim;
            }
        }
    }
}

/* Pack; equal bytes on both sides; unpack into another pool in other blocks; look again. */
static void one_wire(cf *c, wire_case *w, bool unpack)
{
    cf_scene *s = w->s;
    hy_kv_pool pool, ref_pool, other;
    cf_case(c, "tokens %d+%d, heads %d+%d, widths %d/%d, blocks of %d", w->t0, w->n, w->head0,
            w->n_heads, s->s.k_dim, s->s.v_dim, s->s.block_tokens);
    if (!cf_scene_make(c, s) || !cf_pool_make(c, &c->dut, s, &pool) ||
        !cf_pool_make(c, &c->dut, s, &other) || !cf_pool_make(c, &c->ref, s, &ref_pool))
        return;
    size_t elems = wire_elems(w), n_scales = (size_t)w->n * (size_t)w->n_heads * 2;
    uint8_t *got = cf_host(c, elems * 4), *ref = cf_host(c, elems * 4);
    float *scale = cf_host(c, n_scales * 4), *ref_scale = cf_host(c, n_scales * 4);
    float *back = cf_host(c, elems * 4);
    int32_t *blocks = cf_host(c, (size_t)s->stride * sizeof(int32_t));
    if (c->no_mem || !cf_scene_write(c, &c->dut, s, &pool) ||
        !cf_scene_write(c, &c->ref, s, &ref_pool))
        return;
    cf_side *packer = unpack ? &c->ref : &c->dut;
    if (!transfer(c, &c->ref, w, w->wire, &ref_pool, s->table, true, ref, ref_scale) ||
        !transfer(c, packer, w, w->wire, unpack ? &ref_pool : &pool, s->table, true, got, scale))
        return;
    size_t bytes = elems * hy_dtype_get(w->wire)->bytes;
    if ((c->bits || !scaled(w->wire)) && memcmp(got, ref, bytes) != 0)
        cf_bad(c, "the wire differs from the reference's");
    if (c->bits && scaled(w->wire) && memcmp(scale, ref_scale, n_scales * 4) != 0)
        cf_bad(c, "the scales differ from the reference's");
    for (int32_t b = 0; b < s->stride; b++)
        blocks[b] = s->table[b] < 0 ? -1 : s->n_blocks - 1 - s->table[b];
    /* Into another pool, and out again losslessly: needs both ops on one side. */
    cf_side *d = unpack ? &c->dut : &c->ref;
    hy_kv_pool *into = unpack ? &other : &ref_pool;
    if (!transfer(c, d, w, w->wire, into, blocks, false, got, scale) ||
        !transfer(c, d, w, HY_F32, into, blocks, true, back, NULL))
        return;
    check_wire(c, w, back);
    if (!unpack || !c->bits)
        return;
    memcpy(got, back, elems * sizeof(float)); /* and the same on the reference */
    if (transfer(c, &c->ref, w, w->wire, &ref_pool, blocks, false, ref, ref_scale) &&
        transfer(c, &c->ref, w, HY_F32, &ref_pool, blocks, true, back, NULL) &&
        memcmp(got, back, elems * sizeof(float)) != 0)
        cf_bad(c, "what was unpacked differs from the reference's");
}

static const cf_shape shapes[] = {
    {4, 2, 64, 64, 16, 0, 0.0f}, {3, 3, 33, 17, 3, 0, 0.0f},    {1, 1, 256, 256, 32, 0, 0.0f},
    {5, 5, 8, 80, 1, 0, 0.0f},   {2, 1, 128, 64, 100, 0, 0.0f}, {8, 8, 96, 96, 256, 0, 0.0f},
};

static void wires(cf *c, hy_op op, hy_dtype value, hy_dtype type, hy_dtype wire)
{
    hy_op_query q = {.op = op,
                     .w_type = wire,
                     .kv_value = value,
                     .kv_type = type,
                     .k_dim = 64,
                     .v_dim = 64,
                     .block_tokens = 16};
    if (!cf_group(c, &q, "%s as %s", hy_dtype_name(value), hy_dtype_name(wire)))
        return;
    for (size_t i = 0; i < HY_COUNTOF(shapes); i++) {
        cf_scene s = {.s = shapes[i], .value = value, .type = type, .n_seqs = 1};
        s.total[0] = 70 + (int32_t)i;
        s.fresh[0] = 1;
        wire_case w = {.s = &s, .wire = wire, .t0 = (int32_t)i * 7, .n = 13 + (int32_t)i};
        w.head0 = s.s.kv_heads / 2;
        w.n_heads = s.s.kv_heads - w.head0;
        one_wire(c, &w, op == HY_OP_KV_UNPACK);
    }
    cf_group_end(c);
}

void cf_kv_write(cf *c, hy_dtype value, hy_dtype type)
{
    hy_op_query q = {.op = HY_OP_KV_WRITE,
                     .kv_value = value,
                     .kv_type = type,
                     .k_dim = 64,
                     .v_dim = 64,
                     .block_tokens = 16};
    if (!cf_group(c, &q, "%s in %s", hy_dtype_name(value), hy_dtype_name(type)))
        return;
    for (size_t i = 0; i < HY_COUNTOF(shapes); i++) {
        cf_scene s = {.s = shapes[i], .value = value, .type = type, .n_seqs = 3};
        s.total[0] = 1, s.fresh[0] = 1;
        s.total[1] = 37, s.fresh[1] = 30;
        s.total[2] = 65, s.fresh[2] = 2;
        one_write(c, &s);
    }
    cf_group_end(c);
}

void cf_kv_wire(cf *c, hy_dtype value, hy_dtype type)
{
    static const hy_dtype kinds[] = {HY_F32, HY_F16, HY_BF16, HY_I8, HY_F8_E4M3, HY_F8_E4M3FNUZ};
    for (size_t i = 0; i < HY_COUNTOF(kinds); i++) {
        wires(c, HY_OP_KV_PACK, value, type, kinds[i]);
        wires(c, HY_OP_KV_UNPACK, value, type, kinds[i]);
    }
}
