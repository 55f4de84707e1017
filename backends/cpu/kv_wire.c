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

enum { MAX_GROUPS = 8 };

/* Tokens of a wire group that lie in one block. */
typedef struct seg {
    uint8_t *block;
    int32_t in, m;
} seg;

/* Up to 16 tokens whose planes follow each other on the wire. */
typedef struct group {
    uint8_t *wire;
    float *scales; /* NULL when not quantised */
    int32_t m, n_segs;
    seg segs[16];
} group;

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
    group groups[MAX_GROUPS];
} walk;

static void one_tile(const walk *w, const hy_kv_plane *p, const seg *s, int32_t head, uint8_t *wire,
                     float *scales)
{
    cpu_kv_tile t = w->tile;
    t.cache = s->block + p->off + head * p->head + s->in * p->token;
    t.token = p->token;
    t.dim = p->dim;
    t.wire = wire;
    t.wire_ld = (int64_t)p->width * (int64_t)w->elem;
    t.scales = scales;
    t.m = s->m;
    t.n = 1;
    t.width = p->width;
    if (w->pack)
        w->k->pack(&t);
    else
        w->k->unpack(&t);
}

/* A plane of a group whose heads lie in the cache as they do on the wire. */
static bool as_on_wire(const walk *w, const hy_kv_plane *p, const group *g)
{
    int64_t row = (int64_t)p->width * (int64_t)w->elem;
    bool same = w->a->wire == w->l->type && (w->pack || w->a->wire == w->l->value_type);
    return same && g->n_segs == 1 && p->dim == (int64_t)w->elem && p->token == row &&
           (p->head == g->m * row || w->a->n_heads == 1);
}

static void one_head(const walk *w, const hy_kv_plane *p, const group *g, int32_t i)
{
    size_t row = (size_t)p->width * w->elem;
    int32_t at = i * g->m; /* tokens of the plane before this head's */
    for (int32_t s = 0; s < g->n_segs; s++) {
        one_tile(w, p, &g->segs[s], w->a->head0 + i, g->wire + (size_t)at * row,
                 g->scales != NULL ? g->scales + at : NULL);
        at += g->segs[s].m;
    }
}

/* A cache with a token's heads side by side is met token by token: its lines then follow each
 * other. */
static bool token_major(const walk *w, const hy_kv_plane *p)
{
    return w->scales == NULL && w->a->n_heads > 1 && p->head < p->token &&
           p->dim == (int64_t)hy_dtype_get((int)w->l->type)->bytes;
}

static void by_token(const walk *w, const hy_kv_plane *p, const group *g)
{
    const int64_t row = (int64_t)p->width * (int64_t)w->elem;
    cpu_kv_tile t = w->tile;
    t.token = p->head;
    t.dim = p->dim;
    t.width = p->width;
    t.wire_ld = g->m * row;
    t.cache_next = p->token;
    t.wire_next = row;
    int64_t at = 0; /* tokens before */
    for (int32_t s = 0; s < g->n_segs; s++) {
        for (int32_t h = 0; h < w->a->n_heads; h += 16) {
            t.cache =
                g->segs[s].block + p->off + (w->a->head0 + h) * p->head + g->segs[s].in * p->token;
            t.wire = g->wire + (h * g->m + at) * row;
            t.m = w->a->n_heads - h < 16 ? w->a->n_heads - h : 16;
            t.n = g->segs[s].m;
            if (w->pack)
                w->k->pack(&t);
            else
                w->k->unpack(&t);
        }
        at += g->segs[s].m;
    }
}

/* One plane of n groups. Head by head over all of them: where a block holds several groups, lines
 * of the cache are then met again while they are near. */
static void plane(walk *w, const hy_kv_plane *p, int32_t n)
{
    const hy_kv_copy *a = w->a;
    size_t row = (size_t)p->width * w->elem;
    if (n == 1 && as_on_wire(w, p, w->groups)) {
        const group *g = w->groups;
        uint8_t *at = g->segs->block + p->off + a->head0 * p->head + g->segs->in * p->token;
        memcpy(w->pack ? g->wire : at, w->pack ? at : g->wire,
               (size_t)a->n_heads * (size_t)g->m * row);
    } else if (token_major(w, p)) {
        for (int32_t i = 0; i < n; i++)
            by_token(w, p, &w->groups[i]);
    } else {
        for (int32_t h = 0; h < a->n_heads; h++) {
            for (int32_t i = 0; i < n; i++)
                one_head(w, p, &w->groups[i], h);
        }
    }
    for (int32_t i = 0; i < n; i++) {
        group *g = &w->groups[i];
        g->wire += (size_t)a->n_heads * (size_t)g->m * row;
        g->scales = g->scales != NULL ? g->scales + a->n_heads * g->m : NULL;
    }
}

/* The group of tokens from t; returns its end. */
static int32_t group_init(walk *w, group *g, int32_t t)
{
    const hy_kv_copy *a = w->a;
    int32_t bt = w->l->block_tokens, end = a->t0 + a->n;
    int32_t next = t - t % 16 + 16 < end ? t - t % 16 + 16 : end;
    g->wire = w->wire;
    g->scales = w->scales;
    g->m = next - t;
    g->n_segs = 0;
    for (int32_t p = t; p < next;) {
        seg *s = &g->segs[g->n_segs++];
        int32_t in = p % bt, left = next - p;
        s->block = w->base + a->blocks[p / bt] * w->l->block_stride;
        s->in = in;
        s->m = bt - in < left ? bt - in : left;
        p += s->m;
    }
    w->wire +=
        (size_t)a->n_heads * (size_t)g->m * (size_t)(w->l->k.width + w->l->v.width) * w->elem;
    w->scales = w->scales != NULL ? w->scales + 2 * a->n_heads * g->m : NULL;
    return next;
}

static void layer(walk *w)
{
    int32_t bt = w->l->block_tokens, end = w->a->t0 + w->a->n;
    for (int32_t t = w->a->t0; t < end;) {
        int32_t n = 0, block = t / bt;
        do {
            t = group_init(w, &w->groups[n++], t);
        } while (n < MAX_GROUPS && t < end && t / bt == block);
        plane(w, &w->l->k, n);
        plane(w, &w->l->v, n);
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
    if (!pack)
        w.k->settle();
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
