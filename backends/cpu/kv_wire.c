/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks the wire in order and hands tiles to the kernels.
 *
 * Thread: a queue's owner.  Owner: none.
 */
#include "backends/cpu/fast.h"
#include "backends/cpu/kv.h"
#include "backends/cpu/ref_int.h"

#include <string.h>

typedef struct walk {
    const hy_kv_copy *a;
    const hy_kv_layout *l;
    const cpu_kv_kern *k;
    bool pack;
    size_t elem;
    uint8_t *wire;
    float *scales;
    cpu_kv_tile tile; /* what all tiles share */
    uint8_t *base;    /* of the layer */
} walk;

/* Tokens of a wire group that lie in one block. */
typedef struct seg {
    uint8_t *block;
    int32_t in, m;
} seg;

static void one_tile(const walk *w, const hy_kv_plane *p, const seg *g, int32_t head)
{
    cpu_kv_tile t = w->tile;
    t.cache = g->block + p->off + head * p->head + g->in * p->token;
    t.token = p->token;
    t.dim = p->dim;
    t.wire = w->wire;
    t.scales = w->scales;
    t.m = g->m;
    t.width = p->width;
    if (w->pack)
        w->k->pack(&t);
    else
        w->k->unpack(&t);
}

/* A plane of a group whose heads lie in the cache as they do on the wire. */
static bool as_on_wire(const walk *w, const hy_kv_plane *p, int32_t m)
{
    int64_t row = (int64_t)p->width * (int64_t)w->elem;
    bool same = w->a->wire == w->l->type && (w->pack || w->a->wire == w->l->value_type);
    return same && p->dim == (int64_t)w->elem && p->token == row &&
           (p->head == m * row || w->a->n_heads == 1);
}

static void plane(walk *w, const hy_kv_plane *p, const seg *segs, int32_t n_segs)
{
    const hy_kv_copy *a = w->a;
    size_t row = (size_t)p->width * w->elem;
    if (n_segs == 1 && as_on_wire(w, p, segs->m)) {
        uint8_t *at = segs->block + p->off + a->head0 * p->head + segs->in * p->token;
        size_t n = (size_t)a->n_heads * (size_t)segs->m * row;
        memcpy(w->pack ? w->wire : at, w->pack ? at : w->wire, n);
        w->wire += n;
        return;
    }
    for (int32_t h = a->head0; h < a->head0 + a->n_heads; h++) {
        for (int32_t i = 0; i < n_segs; i++) {
            one_tile(w, p, &segs[i], h);
            w->wire += (size_t)segs[i].m * row;
            w->scales += w->scales != NULL ? segs[i].m : 0;
        }
    }
}

static void layer(walk *w)
{
    const hy_kv_copy *a = w->a;
    int32_t bt = w->l->block_tokens, end = a->t0 + a->n, next;
    for (int32_t t = a->t0; t < end; t = next) {
        seg segs[16];
        int32_t n = 0;
        next = t - t % 16 + 16 < end ? t - t % 16 + 16 : end;
        for (int32_t p = t; p < next; p += segs[n++].m) {
            int32_t in = p % bt, left = next - p;
            segs[n].block = w->base + a->blocks[p / bt] * w->l->block_stride;
            segs[n].in = in;
            segs[n].m = bt - in < left ? bt - in : left;
        }
        plane(w, &w->l->k, segs, n);
        plane(w, &w->l->v, segs, n);
    }
}

static hy_status run(hy_queue *q, const hy_kv_copy *a, bool pack)
{
    HY_TRY(ref_kv_wire_check(a));
    const hy_kv_layout *l = &a->pool->layout;
    int64_t ld = cpu_kv_ld(l->k.width > l->v.width ? l->k.width : l->v.width);
    size_t rows = (size_t)ld * 16 * sizeof(float);
    uint8_t *scratch = cpu_scratch(q, 2 * rows);
    if (scratch == NULL)
        return hy_fail(HY_E_NOMEM_DEVICE, "cpu: no memory to pack rows of %lld", (long long)ld);
    walk w = {.a = a,
              .l = l,
              .k = cpu_fast_of(q)->kv,
              .pack = pack,
              .elem = hy_dtype_get((int)a->wire)->bytes,
              .wire = a->buf};
    w.scales = w.elem == 1 ? a->scales : NULL;
    w.tile = (cpu_kv_tile){.value = l->value_type,
                           .type = l->type,
                           .w = a->wire,
                           .rows = (float *)(void *)scratch,
                           .alt = scratch + rows};
    for (int32_t i = a->layer0; i < a->layer0 + a->n_layers; i++) {
        w.base = (uint8_t *)a->pool->base + i * l->layer_stride;
        layer(&w);
    }
    return HY_OK;
}

hy_status cpu_fast_kv_pack(hy_queue *q, const hy_kv_copy *a)
{
    return run(q, a, true);
}

hy_status cpu_fast_kv_unpack(hy_queue *q, const hy_kv_copy *a)
{
    return run(q, a, false);
}
