/* SPDX-License-Identifier: Apache-2.0
 *
 * Matmul kernels: vectors (few rows, a team an output) and tiles (many rows, through shared
 * memory), for float and quantised weights, with f32 or int8 activations.
 *
 * One order for all of them (docs/NUMERICS.md, simt): k falls into groups of 32; lane l sums the
 * groups g with g % 32 = l in ascending order as one chain; then the 32 lanes are added by pairs. A
 * tile visits the groups lane by lane and adds the lanes as a binary counter does, so it needs six
 * accumulators an output, not 32, and has the vector's bits.
 *
 * Thread: device code.  Owner: none.
 */
#ifndef HY_SIMT_K_MATMUL_H
#define HY_SIMT_K_MATMUL_H

#include "backends/simt/k_dtype.h"

/* What a block multiplies: rows that follow each other, or a tile of one expert's. */
typedef struct k_rows {
    const uint8_t *w;
    int first, n; /* rows of y; n = 0: nothing */
    const int32_t *from;
} k_rows;

HY_DEV k_rows k_rows_of(const ka_matmul *a, const int height)
{
    k_rows r = {a->w, HY_BY * height, 0, NULL};
    if (a->tiles == NULL) {
        r.n = a->m - r.first < height ? a->m - r.first : height;
    } else if (HY_BY < *a->n_tiles) {
        const ka_tile tile = a->tiles[HY_BY];
        r.w = a->ws[tile.expert];
        r.first = tile.first;
        r.n = tile.n;
        r.from = a->from;
    }
    return r;
}

/* Row of x behind row i of the block; some row for i >= n. */
HY_DEV int k_row_x(const k_rows *r, int i)
{
    i = r->first + (i < r->n ? i : 0);
    return r->from != NULL ? r->from[i] : i;
}

/* ---- vectors ---- */

/* Grid: x outputs in fours, y rows in eights. */
HY_DEV void k_mv_f(const int t, const ka_matmul *a)
{
    const int n = HY_BX * SIMT_TEAMS + HY_TEAM;
    const k_rows rs = k_rows_of(a, KA_MV_ROWS);
    if (rs.n == 0) /* the whole block */
        return;
    int xr[KA_MV_ROWS];
    HY_UNROLL
    for (int r = 0; r < KA_MV_ROWS; r++)
        xr[r] = k_row_x(&rs, r);
    float acc[KA_MV_ROWS] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int g = HY_LANE; n < a->n && g * 32 < a->k; g += SIMT_LANES) {
        HY_UNROLL
        for (int half = 0; half < 2; half++) {
            float w[16];
            const int len = a->k - 32 * g - 16 * half;
            k_decode_half(t, rs.w + n * a->w_row, g, half, len, w);
            HY_UNROLL
            for (int r = 0; r < KA_MV_ROWS; r++) {
                const float *x = a->x + xr[r] * a->ldx + 32 * g + 16 * half;
                HY_UNROLL
                for (int i = 0; i < 16; i++) {
                    if (r < rs.n && (!k_is_float(t) || i < len))
                        acc[r] = fmaf(w[i], x[i], acc[r]);
                }
            }
        }
    }
    HY_UNROLL
    for (int r = 0; r < KA_MV_ROWS; r++) {
        if (r >= rs.n)
            continue;
        float s = hy_team_sum(acc[r]);
        if (HY_LANE == 0 && n < a->n)
            a->y[(rs.first + r) * a->ldy + n] = a->bias != NULL ? s + a->bias[n] : s;
    }
}

/* One group of one row: s are the dot products of the halves with codes as stored, zero included.
 */
HY_DEV float k_add_group(const int t, float acc, int32_t s0, int32_t s1, float dw0, float dw1,
                         float mw0, float mw1, float d, int32_t sum0, int32_t sum1)
{
    if (k_sub16(t)) {
        acc = fmaf((float)(s0 - k_zero(t) * sum0), dw0 * d, acc);
        if (k_has_min(t))
            acc = fmaf(mw0, d * (float)sum0, acc);
        acc = fmaf((float)(s1 - k_zero(t) * sum1), dw1 * d, acc);
        if (k_has_min(t))
            acc = fmaf(mw1, d * (float)sum1, acc);
        return acc;
    }
    acc = fmaf((float)(s0 + s1 - k_zero(t) * (sum0 + sum1)), dw0 * d, acc);
    if (k_has_min(t))
        acc = fmaf(mw0, d * (float)(sum0 + sum1), acc);
    return acc;
}

HY_DEV void k_mv_i(const int t, const ka_matmul *a)
{
    const int n = HY_BX * SIMT_TEAMS + HY_TEAM, groups = a->k / 32;
    const k_rows rs = k_rows_of(a, KA_MV_ROWS);
    if (rs.n == 0) /* the whole block */
        return;
    int xr[KA_MV_ROWS];
    HY_UNROLL
    for (int r = 0; r < KA_MV_ROWS; r++)
        xr[r] = k_row_x(&rs, r);
    float acc[KA_MV_ROWS] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int g = HY_LANE; n < a->n && g < groups; g += SIMT_LANES) {
        const uint8_t *row = rs.w + n * a->w_row;
        k_half h0 = k_load_half(t, row, g, 0), h1 = k_load_half(t, row, g, 1);
        HY_UNROLL
        for (int r = 0; r < KA_MV_ROWS; r++) {
            if (r >= rs.n)
                continue;
            const ka_qx *x = a->qx + (int64_t)xr[r] * groups + g;
            int32_t s0 = 0, s1 = 0;
            HY_UNROLL
            for (int j = 0; j < 4; j++) {
                s0 = hy_dp4a(h0.q[j], x->q[j], s0);
                s1 = hy_dp4a(h1.q[j], x->q[4 + j], s1);
            }
            acc[r] = k_add_group(t, acc[r], s0, s1, h0.dw, h1.dw, h0.mw, h1.mw, x->d, x->sum[0],
                                 x->sum[1]);
        }
    }
    HY_UNROLL
    for (int r = 0; r < KA_MV_ROWS; r++) {
        if (r >= rs.n)
            continue;
        float s = hy_team_sum(acc[r]);
        if (HY_LANE == 0 && n < a->n)
            a->y[(rs.first + r) * a->ldy + n] = a->bias != NULL ? s + a->bias[n] : s;
    }
}

/* ---- tiles: 32 rows by 64 outputs, 4 by 4 a thread ---- */

#define K_LEVELS 5 /* 32 lanes */

/* Sums of whole subtrees of lanes: level j holds 2^j of them while bit j of the count is set. */
typedef struct k_tree {
    float acc[16], level[K_LEVELS][16];
} k_tree;

HY_DEV void k_tree_init(k_tree *t)
{
    HY_UNROLL
    for (int i = 0; i < 16; i++) {
        t->acc[i] = 0.0f;
        HY_UNROLL
        for (int j = 0; j < K_LEVELS; j++)
            t->level[j][i] = 0.0f;
    }
}

/* Lane p is done; after lane 31 acc has the sum of all. */
HY_DEV void k_tree_push(k_tree *t, int p)
{
    int carry = 1;
    HY_UNROLL
    for (int j = 0; j < K_LEVELS; j++) { /* no early end: indices stay constants, in registers */
        const int full = p >> j & 1;
        if (!carry)
            continue;
        HY_UNROLL
        for (int i = 0; i < 16; i++) {
            const float v = t->acc[i];
            t->acc[i] = full ? t->level[j][i] + v : 0.0f;
            t->level[j][i] = full ? t->level[j][i] : v;
        }
        carry = full;
    }
}

HY_DEV void k_tile_write(const ka_matmul *a, const k_rows *rs, const k_tree *t, int row, int col)
{
    HY_UNROLL
    for (int i = 0; i < 16; i++) {
        const int r = row + i / 4, n = col + i % 4;
        if (r < rs->n && n < a->n)
            a->y[(rs->first + r) * a->ldy + n] =
                a->bias != NULL ? t->acc[i] + a->bias[n] : t->acc[i];
    }
}

HY_DEV void k_mm_f(const int t, const ka_matmul *a)
{
    HY_SHARED(float, xs, 32 * (KA_TILE_M + 1));
    HY_SHARED(float, ws, 32 * (KA_TILE_N + 1));
    const int col0 = HY_BX * KA_TILE_N;
    const int tr = HY_TID / 16 * 4, tc = HY_TID % 16 * 4;
    const int lc = HY_TID % KA_TILE_N, half = HY_TID / KA_TILE_N; /* weights to fetch */
    const int lk = HY_TID % 32;                                   /* and of x, every fourth row */
    const k_rows rs = k_rows_of(a, KA_TILE_M);
    if (rs.n == 0) /* the whole block */
        return;
    int xr[KA_TILE_M / 4];
    HY_UNROLL
    for (int i = 0; i < KA_TILE_M / 4; i++)
        xr[i] = k_row_x(&rs, HY_TID / 32 + 4 * i);
    k_tree acc;
    k_tree_init(&acc);
    for (int p = 0; p < SIMT_LANES; p++) {
        for (int g = p; g * 32 < a->k; g += SIMT_LANES) {
            const int len = a->k - 32 * g < 32 ? a->k - 32 * g : 32;
            HY_UNROLL
            for (int i = 0; i < KA_TILE_M / 4; i++) {
                const int r = HY_TID / 32 + 4 * i;
                SH_PUT(xs, lk * (KA_TILE_M + 1) + r,
                       r < rs.n && lk < len ? a->x[xr[i] * a->ldx + 32 * g + lk] : 0.0f);
            }
            float w[16];
            if (col0 + lc < a->n)
                k_decode_half(t, rs.w + (col0 + lc) * a->w_row, g, half, len - 16 * half, w);
            HY_UNROLL
            for (int i = 0; i < 16; i++)
                SH_PUT(ws, (16 * half + i) * (KA_TILE_N + 1) + lc, col0 + lc < a->n ? w[i] : 0.0f);
            HY_BARRIER();
            for (int k = 0; k < len && tr < rs.n; k++) {
                float xv[4], wv[4];
                HY_UNROLL
                for (int i = 0; i < 4; i++) {
                    xv[i] = SH_GET(xs, k * (KA_TILE_M + 1) + tr + i);
                    wv[i] = SH_GET(ws, k * (KA_TILE_N + 1) + tc + i);
                }
                HY_UNROLL
                for (int i = 0; i < 16; i++)
                    acc.acc[i] = fmaf(wv[i % 4], xv[i / 4], acc.acc[i]);
            }
            HY_BARRIER();
        }
        k_tree_push(&acc, p);
    }
    k_tile_write(a, &rs, &acc, tr, col0 + tc);
}

HY_DEV void k_mm_i(const int t, const ka_matmul *a)
{
    HY_SHARED(uint32_t, xq, 8 * (KA_TILE_M + 1));
    HY_SHARED(float, xd, KA_TILE_M);
    HY_SHARED(int32_t, xsum, 2 * KA_TILE_M);
    HY_SHARED(uint32_t, wq, 8 * (KA_TILE_N + 1));
    HY_SHARED(float, wd, 2 * KA_TILE_N);
    HY_SHARED(float, wm, 2 * KA_TILE_N);
    const int col0 = HY_BX * KA_TILE_N, groups = a->k / 32;
    const int tr = HY_TID / 16 * 4, tc = HY_TID % 16 * 4;
    const int lc = HY_TID % KA_TILE_N, half = HY_TID / KA_TILE_N; /* weights to fetch */
    const k_rows rs = k_rows_of(a, KA_TILE_M);
    if (rs.n == 0) /* the whole block */
        return;
    const int lr = HY_TID / 8, lw = HY_TID % 8; /* codes of x to fetch: rows lr and lr + 16 */
    const int x0 = k_row_x(&rs, lr), x1 = k_row_x(&rs, lr + 16), xs = k_row_x(&rs, HY_TID);
    k_tree acc;
    k_tree_init(&acc);
    for (int p = 0; p < SIMT_LANES; p++) {
        for (int g = p; g < groups; g += SIMT_LANES) {
            SH_PUT(xq, lw * (KA_TILE_M + 1) + lr,
                   lr < rs.n ? a->qx[(int64_t)x0 * groups + g].q[lw] : 0u);
            SH_PUT(xq, lw * (KA_TILE_M + 1) + lr + 16,
                   lr + 16 < rs.n ? a->qx[(int64_t)x1 * groups + g].q[lw] : 0u);
            if (HY_TID < KA_TILE_M) {
                const ka_qx *x = a->qx + (int64_t)xs * groups + g;
                SH_PUT(xd, HY_TID, HY_TID < rs.n ? x->d : 0.0f);
                SH_PUT(xsum, HY_TID, HY_TID < rs.n ? x->sum[0] : 0);
                SH_PUT(xsum, KA_TILE_M + HY_TID, HY_TID < rs.n ? x->sum[1] : 0);
            }
            k_half h = {{0u, 0u, 0u, 0u}, 0.0f, 0.0f};
            if (col0 + lc < a->n)
                h = k_load_half(t, rs.w + (col0 + lc) * a->w_row, g, half);
            HY_UNROLL
            for (int j = 0; j < 4; j++)
                SH_PUT(wq, (4 * half + j) * (KA_TILE_N + 1) + lc, h.q[j]);
            SH_PUT(wd, half * KA_TILE_N + lc, h.dw);
            SH_PUT(wm, half * KA_TILE_N + lc, h.mw);
            HY_BARRIER();
            HY_UNROLL
            for (int i = 0; i < 16; i++) {
                const int r = tr + i / 4, c = tc + i % 4;
                int32_t s0 = 0, s1 = 0;
                if (r >= rs.n)
                    continue;
                HY_UNROLL
                for (int j = 0; j < 4; j++) {
                    s0 = hy_dp4a(SH_GET(wq, j * (KA_TILE_N + 1) + c),
                                 SH_GET(xq, j * (KA_TILE_M + 1) + r), s0);
                    s1 = hy_dp4a(SH_GET(wq, (4 + j) * (KA_TILE_N + 1) + c),
                                 SH_GET(xq, (4 + j) * (KA_TILE_M + 1) + r), s1);
                }
                acc.acc[i] =
                    k_add_group(t, acc.acc[i], s0, s1, SH_GET(wd, c), SH_GET(wd, KA_TILE_N + c),
                                SH_GET(wm, c), SH_GET(wm, KA_TILE_N + c), SH_GET(xd, r),
                                SH_GET(xsum, r), SH_GET(xsum, KA_TILE_M + r));
            }
            HY_BARRIER();
        }
        k_tree_push(&acc, p);
    }
    k_tile_write(a, &rs, &acc, tr, col0 + tc);
}

#define K_MATMUL_F(name, T)                                                                        \
    HY_KERNEL(k_mv_f_##name, SIMT_BLOCK, ka_matmul, a)                                             \
    {                                                                                              \
        k_mv_f(T, &a);                                                                             \
    }                                                                                              \
    HY_KERNEL(k_mm_f_##name, SIMT_BLOCK, ka_matmul, a)                                             \
    {                                                                                              \
        k_mm_f(T, &a);                                                                             \
    }
#define K_MATMUL_I(name, T)                                                                        \
    HY_KERNEL(k_mv_i_##name, SIMT_BLOCK, ka_matmul, a)                                             \
    {                                                                                              \
        k_mv_i(T, &a);                                                                             \
    }                                                                                              \
    HY_KERNEL(k_mm_i_##name, SIMT_BLOCK, ka_matmul, a)                                             \
    {                                                                                              \
        k_mm_i(T, &a);                                                                             \
    }
K_EACH_FLOAT(K_MATMUL_F)
K_EACH_QUANT(K_MATMUL_F)
K_EACH_QUANT(K_MATMUL_I)

#endif
