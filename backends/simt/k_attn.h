/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over the paged cache, prefill and decode rows alike. A block takes up to eight queries
 * that read one KV head of one sequence: its query heads, and rows that follow each other. It walks
 * segments of 256 positions at absolute places; each has its own maximum and sums, and folds into
 * the running ones (online softmax). Either one block folds them all, or every segment is a block
 * of its own whose partial results k_attn_fold folds in the same order: the same bits.
 *
 * Thread: device code.  Owner: none.
 */
#ifndef HY_SIMT_K_ATTN_H
#define HY_SIMT_K_ATTN_H

#include "backends/simt/k_dtype.h"

#define K_WIDE (KA_HEAD / SIMT_BLOCK) /* dimensions a thread sums */
#define K_DEEP 8                      /* loads of the cache under way, a lane */

HY_DEV const uint8_t *k_block_of(const ka_pool *p, const ka_plane *v, int32_t block, int head)
{
    return p->base + block * p->block_stride + v->off + head * v->head;
}

/* What a block works on. */
typedef struct k_query {
    ka_attn_item it;
    int kv_head, head0, n_heads, n; /* queries: row major, then head */
    int first, last;                /* positions that any of them sees */
    const int32_t *tab;
} k_query;

HY_DEV int k_q_pos(const k_query *q, int i)
{
    return q->it.pos + i / q->n_heads;
}

HY_DEV int k_q_first(const ka_attn *a, int pos)
{
    return a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
}

/* Running maximum and sum take those of a segment; the factors of the old and the new output. */
HY_DEV void k_fold(float *M, float *L, float m, float l, float *fo, float *fn)
{
    float top = m > *M ? m : *M;
    float e = hy_m_exp(*M - top);
    *fn = hy_m_exp(m - top);
    *fo = e;
    *L = fmaf(l, *fn, *L * e);
    *M = top;
}

/* A query sees a position. */
HY_DEV int k_sees(const ka_attn *a, const k_query *q, int i, int pos)
{
    const int p = k_q_pos(q, i);
    return pos <= p && pos >= k_q_first(a, p);
}

/* Scores of the segment at lo into sc, a thread a position. */
HY_DEV void k_scores(const int t, const ka_attn *a, const k_query *q, int lo, HY_SH(float) qs,
                     HY_SH(float) sc)
{
    const ka_plane *kp = &a->pool.k;
    const int bt = a->pool.block_tokens;
    for (int j = HY_TID; j < KA_SEG; j += SIMT_BLOCK) {
        const int pos = lo + j;
        float s[KA_NQ] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        if (pos > q->last || pos < q->first)
            continue;
        const uint8_t *k = k_block_of(&a->pool, kp, q->tab[pos / bt], q->kv_head);
        k += pos % bt * kp->token;
        for (int d0 = 0; d0 < kp->width; d0 += K_DEEP) {
            float kv[K_DEEP];
            HY_UNROLL
            for (int u = 0; u < K_DEEP; u++) /* all of them under way */
                kv[u] = d0 + u < kp->width ? k_load(t, k + (d0 + u) * kp->dim) : 0.0f;
            HY_UNROLL
            for (int n = 0; n < K_DEEP * KA_NQ; n++) {
                const int u = n / KA_NQ, i = n % KA_NQ;
                if (i < q->n && d0 + u < kp->width)
                    s[i] = fmaf(SH_GET(qs, i * kp->width + d0 + u), kv[u], s[i]);
            }
        }
        HY_UNROLL
        for (int i = 0; i < KA_NQ; i++) {
            const float v = s[i] * a->scale;
            if (i < q->n)
                SH_PUT(sc, i * KA_SEG + j, a->softcap != 0.0f ? hy_m_softcap(v, a->softcap) : v);
        }
    }
}

/* Scores become weights, a team a query; st: running maxima, sums, factors of old and new. */
HY_DEV void k_weights(const ka_attn *a, const k_query *q, int lo, HY_SH(float) sc, HY_SH(float) st)
{
    for (int i = HY_TEAM; i < KA_NQ; i += SIMT_TEAMS) { /* all of a wave come along */
        float m = -INFINITY, l = 0.0f;
        for (int j = HY_LANE; j < KA_SEG && i < q->n; j += SIMT_LANES) {
            if (k_sees(a, q, i, lo + j)) {
                const float s = SH_GET(sc, i * KA_SEG + j);
                m = s > m ? s : m;
            }
        }
        m = hy_team_max(m);
        for (int j = HY_LANE; j < KA_SEG && i < q->n; j += SIMT_LANES) {
            if (k_sees(a, q, i, lo + j)) {
                const float p = hy_m_exp(SH_GET(sc, i * KA_SEG + j) - m);
                SH_PUT(sc, i * KA_SEG + j, p);
                l += p;
            }
        }
        l = hy_team_sum(l);
        if (HY_LANE == 0 && i < q->n) {
            float M = SH_GET(st, i), L = SH_GET(st, KA_NQ + i), fo = 1.0f, fn = 0.0f;
            if (m > -INFINITY)
                k_fold(&M, &L, m, l, &fo, &fn);
            SH_PUT(st, i, M);
            SH_PUT(st, KA_NQ + i, L);
            SH_PUT(st, 2 * KA_NQ + i, fo);
            SH_PUT(st, 3 * KA_NQ + i, fn);
        }
    }
}

/* The segment's weighted values of dimension d for every query. */
HY_DEV void k_values(const int t, const ka_attn *a, const k_query *q, int lo, int d,
                     HY_SH(float) sc, float *o)
{
    const ka_plane *vp = &a->pool.v;
    const int bt = a->pool.block_tokens, hi = lo + KA_SEG - 1;
    const int to = q->last < hi ? q->last : hi;
    for (int pos = q->first > lo ? q->first : lo; pos <= to;) {
        const int b = pos / bt, end = (b + 1) * bt - 1 < to ? (b + 1) * bt - 1 : to;
        const uint8_t *v =
            k_block_of(&a->pool, vp, q->tab[b], q->kv_head) + d * vp->dim + pos % bt * vp->token;
        for (; pos <= end; pos += K_DEEP, v += K_DEEP * vp->token) {
            float x[K_DEEP];
            HY_UNROLL
            for (int u = 0; u < K_DEEP; u++) /* all of them under way */
                x[u] = pos + u <= end ? k_load(t, v + u * vp->token) : 0.0f;
            HY_UNROLL
            for (int n = 0; n < K_DEEP * KA_NQ; n++) {
                const int u = n / KA_NQ, i = n % KA_NQ;
                if (i < q->n && pos + u <= end && k_sees(a, q, i, pos + u))
                    o[i] = fmaf(SH_GET(sc, i * KA_SEG + pos + u - lo), x[u], o[i]);
            }
        }
        pos = end + 1;
    }
}

/* Results of a block: rows of the output, or partial ones of a segment. */
HY_DEV void k_attn_write(const ka_attn *a, const k_query *q, float out[K_WIDE][KA_NQ],
                         HY_SH(float) st)
{
    const int width = a->pool.v.width;
    HY_UNROLL
    for (int i = 0; i < KA_NQ; i++) {
        if (i >= q->n) /* no early end: indices stay constants, in registers */
            continue;
        const int row = q->it.row + i / q->n_heads, head = q->head0 + i % q->n_heads;
        const float L = SH_GET(st, KA_NQ + i);
        float *y = a->out + row * a->ldo + (int64_t)head * width, f = 1.0f / L;
        if (a->part != NULL) {
            y = a->part + (((int64_t)row * a->heads + head) * a->n_segs + HY_BZ) * (width + 2);
            f = 1.0f;
            if (HY_TID == 0) {
                y[width] = SH_GET(st, i);
                y[width + 1] = L;
            }
        }
        HY_UNROLL
        for (int c = 0; c < K_WIDE; c++) {
            const int d = c * SIMT_BLOCK + HY_TID;
            if (d < width)
                HY_ST(y + d, out[c][i] * f);
        }
    }
}

HY_DEV k_query k_query_of(const ka_attn *a)
{
    k_query q;
    q.it = a->items[HY_BX];
    q.kv_head = HY_BY / a->chunks;
    /* head h reads KV head h * kv_heads / heads */
    const int end = ((q.kv_head + 1) * a->heads + a->pool.heads - 1) / a->pool.heads;
    q.head0 =
        (q.kv_head * a->heads + a->pool.heads - 1) / a->pool.heads + HY_BY % a->chunks * a->per;
    q.n_heads = end - q.head0 < a->per ? end - q.head0 : a->per;
    q.n = q.n_heads > 0 ? q.it.n_rows * q.n_heads : 0;
    q.tab = a->table + q.it.seq * a->stride;
    q.last = q.it.pos + q.it.n_rows - 1;
    q.first = k_q_first(a, q.it.pos);
    return q;
}

/* Grid: x items, y KV heads times chunks of their heads, z segments (1 when one block folds). */
HY_DEV void k_attn(const int t, const ka_attn *a)
{
    HY_SHARED(float, qs, KA_NQ *KA_HEAD);
    HY_SHARED(float, sc, KA_NQ *KA_SEG);
    HY_SHARED(float, st, 4 * KA_NQ);
    const k_query q = k_query_of(a);
    const int kw = a->pool.k.width;
    int seg = q.first / KA_SEG, seg_end = q.last / KA_SEG + 1;
    if (a->part != NULL) {
        const int own = a->seg0 + HY_BZ;
        seg = own < seg ? seg_end : own;
        seg_end = own + 1 < seg_end ? own + 1 : seg_end;
    }
    if (q.n == 0 || seg >= seg_end) /* the whole block */
        return;
    for (int i = HY_TID; i < q.n * kw; i += SIMT_BLOCK) {
        const int row = q.it.row + i / kw / q.n_heads, head = q.head0 + i / kw % q.n_heads;
        SH_PUT(qs, i, HY_LD(a->q + row * a->ldq + (int64_t)head * kw + i % kw));
    }
    if (HY_TID < q.n) {
        SH_PUT(st, HY_TID, -INFINITY);
        SH_PUT(st, KA_NQ + HY_TID, 0.0f);
    }
    float out[K_WIDE][KA_NQ];
    HY_UNROLL
    for (int i = 0; i < K_WIDE * KA_NQ; i++)
        out[i / KA_NQ][i % KA_NQ] = 0.0f;
    HY_BARRIER();
    for (; seg < seg_end; seg++) {
        k_scores(t, a, &q, seg * KA_SEG, qs, sc);
        HY_BARRIER();
        k_weights(a, &q, seg * KA_SEG, sc, st);
        HY_BARRIER();
        HY_UNROLL
        for (int c = 0; c < K_WIDE; c++) {
            const int d = c * SIMT_BLOCK + HY_TID;
            float o[KA_NQ] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
            if (d >= a->pool.v.width)
                continue;
            k_values(t, a, &q, seg * KA_SEG, d, sc, o);
            HY_UNROLL
            for (int i = 0; i < KA_NQ; i++) {
                if (i >= q.n)
                    continue;
                const float fo = SH_GET(st, 2 * KA_NQ + i), fn = SH_GET(st, 3 * KA_NQ + i);
                if (a->part != NULL)
                    out[c][i] = o[i];
                else if (fn != 0.0f)
                    out[c][i] = fmaf(o[i], fn, out[c][i] * fo);
            }
        }
        HY_BARRIER(); /* before the next segment's scores */
    }
    k_attn_write(a, &q, out, st);
}

#define K_ATTN(name, T)                                                                            \
    HY_KERNEL(k_attn_##name, SIMT_BLOCK, ka_attn, a)                                               \
    {                                                                                              \
        k_attn(T, &a);                                                                             \
    }
K_EACH_FLOAT(K_ATTN)

/* Grid: x items, y heads, z row of the item. */
HY_KERNEL(k_attn_fold, SIMT_BLOCK, ka_attn, a)
{
    const ka_attn_item it = a.items[HY_BX];
    const int width = a.pool.v.width, pos = it.pos + HY_BZ, row = it.row + HY_BZ;
    if (HY_BZ >= it.n_rows)
        return;
    float M = -INFINITY, L = 0.0f, out[K_WIDE];
    HY_UNROLL
    for (int c = 0; c < K_WIDE; c++)
        out[c] = 0.0f;
    for (int seg = k_q_first(&a, pos) / KA_SEG; seg <= pos / KA_SEG; seg++) {
        const float *part =
            a.part + (((int64_t)row * a.heads + HY_BY) * a.n_segs + seg - a.seg0) * (width + 2);
        const float m = part[width];
        float fo, fn;
        if (!(m > -INFINITY))
            continue;
        k_fold(&M, &L, m, part[width + 1], &fo, &fn);
        HY_UNROLL
        for (int c = 0; c < K_WIDE; c++) {
            const int d = c * SIMT_BLOCK + HY_TID;
            if (d < width && fn != 0.0f)
                out[c] = fmaf(HY_LD(part + d), fn, out[c] * fo);
        }
    }
    const float inv = 1.0f / L;
    HY_UNROLL
    for (int c = 0; c < K_WIDE; c++) {
        const int d = c * SIMT_BLOCK + HY_TID;
        if (d < width)
            HY_ST(a.out + row * a.ldo + (int64_t)HY_BY * width + d, out[c] * inv);
    }
}

#endif
