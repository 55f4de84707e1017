/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte ranges of direct pieces. A stretch of tokens that lies in one block on both sides is a box
 * of heads, tokens and dims for each layer and plane; its dims whose strides grow without a gap
 * on both sides make one run, the rest is looped over. Runs that touch on both sides are joined.
 *
 * Thread: any (pure functions of an immutable plan).  Owner: none.
 */
#include "hal/kv_plan_int.h"

#include <string.h>

typedef struct axis {
    int64_t count, src, dst;
} axis;

typedef struct box {
    uint64_t run; /* bytes */
    int n;        /* axes left to loop over */
    axis a[3];
} box;

static box box_of(const hy_kv_plan *p, const hy_kv_lane *l, bool key, int32_t tokens)
{
    const hy_kv_layout *sl = &p->src.g[l->group].layout, *dl = &p->dst.g[l->group].layout;
    const hy_kv_plane *s = key ? &sl->k : &sl->v, *d = key ? &dl->k : &dl->v;
    const axis all[3] = {
        {s->width, s->dim, d->dim}, {tokens, s->token, d->token}, {l->n_heads, s->head, d->head}};
    box b = {.run = hy_dtype_get((int)sl->type)->bytes};
    for (int i = 0; i < 3; i++) {
        if (all[i].count == 1)
            continue;
        int j = b.n++;
        for (; j > 0 && b.a[j - 1].src > all[i].src; j--)
            b.a[j] = b.a[j - 1];
        b.a[j] = all[i];
    }
    while (b.n > 0 && (uint64_t)b.a[0].src == b.run && (uint64_t)b.a[0].dst == b.run) {
        b.run *= (uint64_t)b.a[0].count;
        b.n--;
        memmove(b.a, b.a + 1, (size_t)b.n * sizeof(axis));
    }
    return b;
}

uint64_t hy_kv__run(const hy_kv_plan *p, const hy_kv_lane *l, int32_t tokens)
{
    uint64_t k = box_of(p, l, true, tokens).run, v = box_of(p, l, false, tokens).run;
    return k < v ? k : v;
}

static bool same_plane(const hy_kv_plane *a, const hy_kv_plane *b)
{
    return a->off == b->off && a->head == b->head && a->token == b->token && a->dim == b->dim;
}

static uint64_t plane_end(const hy_kv_layout *l, const hy_kv_plane *p)
{
    return (uint64_t)(p->off + (l->n_heads - 1) * p->head + (l->block_tokens - 1) * p->token +
                      (p->width - 1) * p->dim) +
           hy_dtype_get((int)l->type)->bytes;
}

/* Bytes that belong to one (layer, block) alone; 0 when its planes are apart. */
static uint64_t slab_of(const hy_kv_desc_group *g)
{
    const hy_kv_layout *l = &g->layout;
    uint64_t k = plane_end(l, &l->k), v = plane_end(l, &l->v), end = k > v ? k : v;
    uint64_t ls = (uint64_t)l->layer_stride, bs = (uint64_t)l->block_stride;
    uint64_t nl = (uint64_t)l->n_layers, nb = (uint64_t)g->n_blocks, slab;
    if (nl == 1 && nb == 1)
        slab = end;
    else if (nl == 1 || (nb > 1 && ls >= bs * nb))
        slab = bs; /* [layer][block] */
    else if (nb == 1 || bs >= ls * nl)
        slab = ls; /* [block][layer] */
    else
        return 0;
    uint64_t last = (nl - 1) * ls + (nb - 1) * bs;
    return end <= slab && last + slab <= hy_kv_desc_pool_bytes(g) ? slab : 0;
}

void hy_kv__slab(const hy_kv_plan *p, hy_kv_lane *l)
{
    const hy_kv_desc_group *s = &p->src.g[l->group], *d = &p->dst.g[l->group];
    const hy_kv_layout *a = &s->layout, *b = &d->layout;
    l->slab = false;
    if (a->type != b->type || a->block_tokens != b->block_tokens || a->n_heads != b->n_heads ||
        l->n_heads != a->n_heads || !same_plane(&a->k, &b->k) || !same_plane(&a->v, &b->v))
        return;
    l->slab_len = slab_of(s);
    l->slab = l->slab_len != 0 && l->slab_len == slab_of(d);
}

/* ---- listing ---- */

typedef struct list {
    const hy_kv_plan *p;
    const hy_kv_piece *piece;
    const hy_kv_lane *l;
    const hy_kv_layout *sl, *dl;
    hy_kv_blocks src, dst;
    hy_kv_bytes *out; /* NULL: count, without joining */
    size_t cap, n;
    bool apart; /* join nothing */
    bool full;
} list;

static void add(list *x, uint64_t src, uint64_t dst, uint64_t len)
{
    if (x->out == NULL) {
        x->n++;
        return;
    }
    hy_kv_bytes *last = x->n > 0 && !x->apart ? &x->out[x->n - 1] : NULL;
    if (last != NULL && last->src + last->len == src && last->dst + last->len == dst) {
        last->len += len;
    } else if (last != NULL && src + len == last->src && dst + len == last->dst) {
        last->src = src; /* descending block ids */
        last->dst = dst;
        last->len += len;
    } else if (x->n == x->cap) {
        x->full = true;
    } else {
        x->out[x->n++] = (hy_kv_bytes){src, dst, len};
    }
}

/* Tokens of one block on both sides. */
typedef struct seg {
    uint64_t src, dst; /* of the blocks, layer 0 */
    int32_t s_in, d_in, m;
} seg;

static void add_boxes(list *x, const seg *g, int32_t layer, bool key)
{
    const hy_kv_plane *s = key ? &x->sl->k : &x->sl->v, *d = key ? &x->dl->k : &x->dl->v;
    int64_t h = x->l->head0;
    box b = box_of(x->p, x->l, key, g->m);
    int64_t src = (int64_t)g->src + layer * x->sl->layer_stride + s->off + g->s_in * s->token +
                  (h - x->p->src.g[x->l->group].head0) * s->head;
    int64_t dst = (int64_t)g->dst + layer * x->dl->layer_stride + d->off + g->d_in * d->token +
                  (h - x->p->dst.g[x->l->group].head0) * d->head;
    for (int i = b.n; i < 3; i++)
        b.a[i] = (axis){1, 0, 0};
    for (int64_t i = 0; i < b.a[2].count; i++) {
        for (int64_t j = 0; j < b.a[1].count; j++) {
            for (int64_t k = 0; k < b.a[0].count; k++)
                add(x, (uint64_t)(src + i * b.a[2].src + j * b.a[1].src + k * b.a[0].src),
                    (uint64_t)(dst + i * b.a[2].dst + j * b.a[1].dst + k * b.a[0].dst), b.run);
        }
    }
}

static void add_seg(list *x, const seg *g, int32_t layer0, int32_t n_layers)
{
    uint64_t sl = (uint64_t)x->sl->layer_stride, dl = (uint64_t)x->dl->layer_stride;
    bool slab = x->l->slab && g->m == x->sl->block_tokens;
    if (slab && sl == x->l->slab_len && dl == sl) {
        uint64_t off = (uint64_t)layer0 * sl;
        add(x, g->src + off, g->dst + off, (uint64_t)n_layers * sl);
        return;
    }
    for (int32_t i = layer0; i < layer0 + n_layers; i++) {
        if (slab) {
            add(x, g->src + (uint64_t)i * sl, g->dst + (uint64_t)i * dl, x->l->slab_len);
        } else {
            add_boxes(x, g, i, true);
            add_boxes(x, g, i, false);
        }
    }
}

static int32_t end_of(const list *x)
{
    int32_t end = x->piece->t0 + x->piece->n, bt = x->sl->block_tokens;
    return x->piece->whole_tail ? (end + bt - 1) / bt * bt : end;
}

static void walk(list *x, int32_t layer0, int32_t n_layers)
{
    int32_t st = x->sl->block_tokens, dt = x->dl->block_tokens;
    for (int32_t t = x->piece->t0, end = end_of(x); t < end;) {
        seg g = {.s_in = t % st, .d_in = t % dt};
        g.m = st - g.s_in < dt - g.d_in ? st - g.s_in : dt - g.d_in;
        g.m = g.m < end - t ? g.m : end - t;
        if (x->out != NULL) {
            g.src = (uint64_t)x->src.ids[t / st] * (uint64_t)x->sl->block_stride;
            g.dst = (uint64_t)x->dst.ids[t / dt] * (uint64_t)x->dl->block_stride;
        }
        add_seg(x, &g, layer0, n_layers);
        t += g.m;
    }
}

static hy_status list_init(const hy_kv_plan *p, const hy_kv_piece *piece, list *x)
{
    *x = (list){.p = p, .piece = piece};
    for (size_t i = 0; i < p->n_lanes; i++) {
        if (p->lanes[i].group == piece->group && p->lanes[i].head0 == piece->head0)
            x->l = &p->lanes[i];
    }
    if (x->l == NULL || !piece->direct || !x->l->direct)
        return hy_fail(HY_E_INVAL, "KV plan: no direct piece of this plan");
    x->sl = &p->src.g[piece->group].layout;
    x->dl = &p->dst.g[piece->group].layout;
    return HY_OK;
}

static hy_status check_blocks(const char *who, hy_kv_blocks b, int32_t bt, int32_t n_blocks,
                              int32_t t0, int32_t end)
{
    int32_t last = (end - 1) / bt;
    if (b.ids == NULL || last >= b.n)
        return hy_fail(HY_E_INVAL, "KV plan: %d blocks of %d at the %s do not reach token %d", b.n,
                       bt, who, end);
    for (int32_t i = t0 / bt; i <= last; i++) {
        if (b.ids[i] < 0 || b.ids[i] >= n_blocks)
            return hy_fail(HY_E_INVAL, "KV plan: block %d (number %d) is outside the %s's pool",
                           b.ids[i], i, who);
    }
    return HY_OK;
}

static hy_status ranges(const hy_kv_plan *p, const hy_kv_piece *piece, hy_kv_blocks src,
                        hy_kv_blocks dst, bool apart, hy_kv_bytes *out, size_t cap, size_t *n_out)
{
    list x;
    HY_TRY(list_init(p, piece, &x));
    int32_t end = piece->t0 + piece->n, g = piece->group;
    HY_TRY(check_blocks("source", src, x.sl->block_tokens, p->src.g[g].n_blocks, piece->t0, end));
    HY_TRY(
        check_blocks("destination", dst, x.dl->block_tokens, p->dst.g[g].n_blocks, piece->t0, end));
    x.src = src;
    x.dst = dst;
    x.out = out;
    x.cap = cap;
    x.apart = apart;
    if (x.sl->n_layers > 1 && x.sl->layer_stride > x.sl->block_stride) { /* [layer][block] */
        for (int32_t i = 0; i < piece->n_layers; i++)
            walk(&x, piece->layer0 + i, 1);
    } else {
        walk(&x, piece->layer0, piece->n_layers);
    }
    if (x.full)
        return hy_fail(HY_E_LIMIT, "KV plan: more than %zu ranges in a piece", cap);
    *n_out = x.n;
    return HY_OK;
}

hy_status hy_kv_plan_ranges(const hy_kv_plan *p, const hy_kv_piece *piece, hy_kv_blocks src,
                            hy_kv_blocks dst, hy_kv_bytes *out, size_t cap, size_t *n_out)
{
    return ranges(p, piece, src, dst, false, out, cap, n_out);
}

hy_status hy_kv_plan_runs(const hy_kv_plan *p, const hy_kv_piece *piece, hy_kv_blocks src,
                          hy_kv_blocks dst, hy_kv_bytes *out, size_t cap, size_t *n_out)
{
    return ranges(p, piece, src, dst, true, out, cap, n_out);
}

size_t hy_kv_plan_max_ranges(const hy_kv_plan *p, const hy_kv_piece *piece)
{
    list x;
    if (list_init(p, piece, &x) < 0)
        return 0;
    walk(&x, piece->layer0, piece->n_layers);
    return x.n;
}

/* ---- packed ---- */

static hy_status copy_of(const hy_kv_desc_group *g, const char *who, const hy_kv_piece *piece,
                         const hy_kv_pool *pool, hy_kv_blocks blocks, void *buf, hy_kv_copy *out)
{
    const hy_kv_layout *a = &g->layout, *b = &pool->layout;
    if (piece->direct || a->n_layers != b->n_layers || a->n_heads != b->n_heads ||
        a->block_tokens != b->block_tokens)
        return hy_fail(HY_E_INVAL, "KV plan: not a packed piece, or not the %s's pool", who);
    HY_TRY(check_blocks(who, blocks, a->block_tokens, pool->n_blocks, piece->t0,
                        piece->t0 + piece->n));
    *out = (hy_kv_copy){.pool = pool,
                        .blocks = blocks.ids,
                        .t0 = piece->t0,
                        .n = piece->n,
                        .layer0 = piece->layer0,
                        .n_layers = piece->n_layers,
                        .head0 = piece->head0 - g->head0,
                        .n_heads = piece->n_heads,
                        .wire = piece->wire,
                        .buf = buf,
                        .bytes = piece->wire_bytes,
                        .scales = piece->scale_bytes != 0 ? (char *)buf + piece->scale_off : NULL};
    return HY_OK;
}

hy_status hy_kv_piece_pack(const hy_kv_plan *p, const hy_kv_piece *piece, const hy_kv_pool *pool,
                           hy_kv_blocks blocks, void *buf, hy_kv_copy *out)
{
    return copy_of(&p->src.g[piece->group], "source", piece, pool, blocks, buf, out);
}

hy_status hy_kv_piece_unpack(const hy_kv_plan *p, const hy_kv_piece *piece, const hy_kv_pool *pool,
                             hy_kv_blocks blocks, void *buf, hy_kv_copy *out)
{
    return copy_of(&p->dst.g[piece->group], "destination", piece, pool, blocks, buf, out);
}
