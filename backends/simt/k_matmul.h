/* SPDX-License-Identifier: Apache-2.0
 *
 * Matmul kernels: vectors (few rows, a team one output or some) and tiles (many rows, through
 * shared memory), for float and quantised weights, with f32 or int8 activations.
 *
 * One order for all of them (docs/NUMERICS.md, simt): k falls into pieces, of 4 with float weights
 * and of 32 with quantised ones; lane l sums the pieces g with g % 32 = l in ascending order as one
 * chain; then the 32 lanes are added by pairs. So neighbouring lanes of a vector load neighbouring
 * words of the weight and of x. A tile visits the pieces lane by lane and adds the lanes as a
 * binary counter does, so it needs six accumulators an output, not 32, and has the vector's bits.
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

/* Of one kernel: rows of x and outputs of a team at once, pieces in flight. Constants. */
typedef struct k_mv {
    int rows, outs, deep;
} k_mv;

#define K_MV_DEEP 8

/* Rows of the weight behind a team's outputs; some row beyond the last. */
HY_DEV void k_mv_rows_w(const ka_matmul *a, const k_rows *rs, const k_mv v, int n0,
                        const uint8_t *w[KA_MV_OUTS])
{
    HY_UNROLL
    for (int o = 0; o < KA_MV_OUTS; o++) {
        const int n = n0 + o < a->n ? n0 + o : a->n - 1;
        w[o] = o < v.outs ? rs->w + (int64_t)n * a->w_row : NULL;
    }
}

/* The lanes' sums go out. */
HY_DEV void k_mv_write(const ka_matmul *a, const k_rows *rs, const k_mv v, int n0,
                       float acc[KA_MV_OUTS][KA_MV_ROWS])
{
    HY_UNROLL
    for (int r = 0; r < KA_MV_ROWS; r++) {
        if (r >= v.rows || r >= rs->n) /* the whole block */
            continue;
        HY_UNROLL
        for (int o = 0; o < KA_MV_OUTS; o++) {
            const int n = n0 + o;
            if (o >= v.outs)
                continue;
            float s = hy_team_sum(acc[o][r]);
            if (HY_LANE == 0 && n < a->n) {
                s = a->bias != NULL ? s + HY_LD(a->bias + n) : s;
                HY_ST(a->y + (rs->first + r) * a->ldy + n, s);
            }
        }
    }
}

/* Four elements of a row of x, of which it has len. */
HY_DEV hy_f4 k_mv_x(const ka_matmul *a, int row, int e, int len)
{
    const float *x = a->x + row * a->ldx + e;
    hy_f4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (a->vec && len >= 4)
        return HY_LD((const hy_f4 *)(const void *)x);
    v.x = len > 0 ? HY_LD(x) : 0.0f;
    v.y = len > 1 ? HY_LD(x + 1) : 0.0f;
    v.z = len > 2 ? HY_LD(x + 2) : 0.0f;
    v.w = len > 3 ? HY_LD(x + 3) : 0.0f;
    return v;
}

/* Four products, or the first len: a product with 0 would make a NaN of an infinity. */
HY_DEV float k_mv_add(float acc, const float *w, hy_f4 x, int len)
{
    if (len >= 4)
        return fmaf(w[3], x.w, fmaf(w[2], x.z, fmaf(w[1], x.y, fmaf(w[0], x.x, acc))));
    acc = len > 0 ? fmaf(w[0], x.x, acc) : acc;
    acc = len > 1 ? fmaf(w[1], x.y, acc) : acc;
    return len > 2 ? fmaf(w[2], x.z, acc) : acc;
}

/* Grid: x outputs, y rows in eights or one; so also the next two. Float weights. */
HY_DEV void k_mv_float(const int t, const k_mv v, const ka_matmul *a)
{
    const int n0 = (HY_BX * SIMT_TEAMS + HY_TEAM) * v.outs, size = t == KT_F32 ? 4 : 2;
    const k_rows rs = k_rows_of(a, v.rows);
    if (rs.n == 0) /* the whole block */
        return;
    const uint8_t *w[KA_MV_OUTS];
    k_mv_rows_w(a, &rs, v, n0, w);
    int xr[KA_MV_ROWS];
    float acc[KA_MV_OUTS][KA_MV_ROWS];
    HY_UNROLL
    for (int i = 0; i < KA_MV_OUTS * KA_MV_ROWS; i++)
        acc[i / KA_MV_ROWS][i % KA_MV_ROWS] = 0.0f;
    HY_UNROLL
    for (int r = 0; r < KA_MV_ROWS; r++)
        xr[r] = k_row_x(&rs, r);
    for (int e0 = 4 * HY_LANE; n0 < a->n && e0 < a->k; e0 += 128 * v.deep) {
        hy_u4 raw[K_MV_DEEP][KA_MV_OUTS];
        HY_UNROLL
        for (int i = 0; i < K_MV_DEEP * KA_MV_OUTS; i++) { /* all of them under way */
            const int u = i / KA_MV_OUTS, o = i % KA_MV_OUTS, e = e0 + 128 * u;
            if (u < v.deep && o < v.outs && e < a->k)
                raw[u][o] = k_load4(t, w[o] + e * size);
        }
        HY_UNROLL
        for (int u = 0; u < K_MV_DEEP; u++) {
            const int e = e0 + 128 * u, len = a->k - e;
            float f[KA_MV_OUTS][4];
            if (u >= v.deep || len <= 0)
                continue;
            HY_UNROLL
            for (int o = 0; o < KA_MV_OUTS; o++) {
                if (o < v.outs)
                    k_value4(t, raw[u][o], f[o]);
            }
            HY_UNROLL
            for (int r = 0; r < KA_MV_ROWS; r++) {
                if (r >= v.rows || r >= rs.n)
                    continue;
                const hy_f4 x = k_mv_x(a, xr[r], e, len);
                HY_UNROLL
                for (int o = 0; o < KA_MV_OUTS; o++) {
                    if (o < v.outs)
                        acc[o][r] = k_mv_add(acc[o][r], f[o], x, len);
                }
            }
        }
    }
    k_mv_write(a, &rs, v, n0, acc);
}

/* Quantised weights, f32 activations. */
HY_DEV void k_mv_quant(const int t, const k_mv v, const ka_matmul *a)
{
    const int n0 = (HY_BX * SIMT_TEAMS + HY_TEAM) * v.outs;
    const k_rows rs = k_rows_of(a, v.rows);
    if (rs.n == 0) /* the whole block */
        return;
    const uint8_t *w[KA_MV_OUTS];
    k_mv_rows_w(a, &rs, v, n0, w);
    int xr[KA_MV_ROWS];
    float acc[KA_MV_OUTS][KA_MV_ROWS];
    HY_UNROLL
    for (int i = 0; i < KA_MV_OUTS * KA_MV_ROWS; i++)
        acc[i / KA_MV_ROWS][i % KA_MV_ROWS] = 0.0f;
    HY_UNROLL
    for (int r = 0; r < KA_MV_ROWS; r++)
        xr[r] = k_row_x(&rs, r);
    for (int g = HY_LANE; n0 < a->n && g * 32 < a->k; g += SIMT_LANES) {
        HY_UNROLL
        for (int half = 0; half < 2; half++) {
            float f[KA_MV_OUTS][16];
            HY_UNROLL
            for (int o = 0; o < KA_MV_OUTS; o++) {
                if (o < v.outs)
                    k_decode_half(t, w[o], a->k, g, half, 16, f[o]);
            }
            HY_UNROLL
            for (int i = 0; i < KA_MV_ROWS * 4; i++) {
                const int r = i / 4, at = i % 4 * 4;
                if (r >= v.rows || r >= rs.n)
                    continue;
                const hy_f4 x = k_mv_x(a, xr[r], 32 * g + 16 * half + at, 4);
                HY_UNROLL
                for (int o = 0; o < KA_MV_OUTS; o++) {
                    if (o < v.outs)
                        acc[o][r] = k_mv_add(acc[o][r], f[o] + at, x, 4);
                }
            }
        }
    }
    k_mv_write(a, &rs, v, n0, acc);
}

/* A group of activations as codes. */
typedef struct k_codes {
    uint32_t q[8];
    float d;
    int32_t sum[2];
} k_codes;

/* A plane of group g's chunk, row x of `groups`. */
HY_DEV hy_u4 k_qx_at(const uint8_t *x, int groups, int g, int plane)
{
    const int i = g % 32, left = groups - (g - i), slots = left < 32 ? left : 32;
    x += (int64_t)(g - i) * KA_QX_BYTES + 16 * (plane * slots + i);
    return HY_LD((const hy_u4 *)(const void *)x);
}

/* Word w of its eight of codes. */
HY_DEV uint32_t k_qx_word(const uint8_t *x, int groups, int g, int w)
{
    const int i = g % 32, left = groups - (g - i), slots = left < 32 ? left : 32;
    x += (int64_t)(g - i) * KA_QX_BYTES + 16 * (w / 4 * slots + i) + w % 4 * 4;
    return HY_LD((const uint32_t *)(const void *)x);
}

HY_DEV k_codes k_load_codes(const uint8_t *x, int groups, int g)
{
    const hy_u4 lo = k_qx_at(x, groups, g, 0), hi = k_qx_at(x, groups, g, 1);
    const hy_u4 rest = k_qx_at(x, groups, g, 2);
    k_codes o;
    o.q[0] = lo.x;
    o.q[1] = lo.y;
    o.q[2] = lo.z;
    o.q[3] = lo.w;
    o.q[4] = hi.x;
    o.q[5] = hi.y;
    o.q[6] = hi.z;
    o.q[7] = hi.w;
    o.d = k_float(rest.x);
    o.sum[0] = (int32_t)rest.y;
    o.sum[1] = (int32_t)rest.z;
    return o;
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

/* Quantised weights, int8 activations. */
HY_DEV void k_mv_int8(const int t, const k_mv v, const ka_matmul *a)
{
    const int n0 = (HY_BX * SIMT_TEAMS + HY_TEAM) * v.outs, groups = a->k / 32;
    const k_rows rs = k_rows_of(a, v.rows);
    if (rs.n == 0) /* the whole block */
        return;
    const uint8_t *w[KA_MV_OUTS];
    k_mv_rows_w(a, &rs, v, n0, w);
    int xr[KA_MV_ROWS];
    float acc[KA_MV_OUTS][KA_MV_ROWS];
    HY_UNROLL
    for (int i = 0; i < KA_MV_OUTS * KA_MV_ROWS; i++)
        acc[i / KA_MV_ROWS][i % KA_MV_ROWS] = 0.0f;
    HY_UNROLL
    for (int r = 0; r < KA_MV_ROWS; r++)
        xr[r] = k_row_x(&rs, r);
    for (int g = HY_LANE; n0 < a->n && g < groups; g += SIMT_LANES) {
        const k_half none = {{0u, 0u, 0u, 0u}, 0.0f, 0.0f};
        k_half h0[KA_MV_OUTS], h1[KA_MV_OUTS];
        HY_UNROLL
        for (int o = 0; o < KA_MV_OUTS; o++) { /* all of them under way */
            h0[o] = h1[o] = none;
            if (o < v.outs) {
                h0[o] = k_load_half(t, w[o], groups, g, 0);
                h1[o] = k_load_half(t, w[o], groups, g, 1);
            }
        }
        HY_UNROLL
        for (int r = 0; r < KA_MV_ROWS; r++) {
            if (r >= v.rows || r >= rs.n)
                continue;
            const k_codes x =
                k_load_codes(a->qx + (int64_t)xr[r] * groups * KA_QX_BYTES, groups, g);
            HY_UNROLL
            for (int o = 0; o < KA_MV_OUTS; o++) {
                if (o >= v.outs)
                    continue;
                acc[o][r] = k_add_group(t, acc[o][r], hy_dot16(h0[o].q, x.q, 0),
                                        hy_dot16(h1[o].q, x.q + 4, 0), h0[o].dw, h1[o].dw, h0[o].mw,
                                        h1[o].mw, x.d, x.sum[0], x.sum[1]);
            }
        }
    }
    k_mv_write(a, &rs, v, n0, acc);
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

/* Places of a turn: the 32 elements of lane p's next pieces. */
HY_DEV int k_turn_at(const int t, int p, int turn, int i)
{
    return k_is_float(t) ? 1024 * turn + 4 * p + 128 * (i / 4) + i % 4
                         : 32 * (SIMT_LANES * turn + p) + i;
}

/* How many of them a row of k has. */
HY_DEV int k_turn_len(const int t, int p, int turn, int k)
{
    const int left = k - k_turn_at(t, p, turn, 0);
    if (!k_is_float(t))
        return left > 32 ? 32 : left;
    if (left <= 0 || left > 896)
        return left <= 0 ? 0 : left < 900 ? 28 + left - 896 : 32;
    return left / 128 * 4 + (left % 128 < 4 ? left % 128 : 4);
}

/* Places [16 half, 16 half + 16) of a turn out of a row of the weight. */
HY_DEV void k_turn_w(const int t, const uint8_t *row, int k, int p, int turn, int half, int len,
                     float *out)
{
    if (!k_is_float(t)) {
        k_decode_half(t, row, k, SIMT_LANES * turn + p, half, 16, out);
        return;
    }
    HY_UNROLL
    for (int j = 0; j < 4; j++) {
        const int i = 16 * half + 4 * j;
        hy_u4 raw = {0u, 0u, 0u, 0u};
        if (i < len)
            raw = k_load4(t, row + k_turn_at(t, p, turn, i) * (t == KT_F32 ? 4 : 2));
        k_value4(t, raw, out + 4 * j);
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
        for (int turn = 0; k_turn_len(t, p, turn, a->k) > 0; turn++) {
            const int len = k_turn_len(t, p, turn, a->k);
            HY_UNROLL
            for (int i = 0; i < KA_TILE_M / 4; i++) {
                const int r = HY_TID / 32 + 4 * i;
                SH_PUT(xs, lk * (KA_TILE_M + 1) + r,
                       r < rs.n && lk < len
                           ? HY_LD(a->x + xr[i] * a->ldx + k_turn_at(t, p, turn, lk))
                           : 0.0f);
            }
            float w[16];
            if (col0 + lc < a->n)
                k_turn_w(t, rs.w + (col0 + lc) * a->w_row, a->k, p, turn, half, len, w);
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
                for (int i = 0; i < 4; i++) {
                    HY_UNROLL
                    for (int c = 0; c < 4; c++)
                        acc.acc[4 * i + c] = fmaf(wv[c], xv[i], acc.acc[4 * i + c]);
                }
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
    const int64_t row = (int64_t)groups * KA_QX_BYTES;
    const int x0 = k_row_x(&rs, lr), x1 = k_row_x(&rs, lr + 16), xs = k_row_x(&rs, HY_TID);
    k_tree acc;
    k_tree_init(&acc);
    for (int p = 0; p < SIMT_LANES; p++) {
        for (int g = p; g < groups; g += SIMT_LANES) {
            SH_PUT(xq, lw * (KA_TILE_M + 1) + lr,
                   lr < rs.n ? k_qx_word(a->qx + x0 * row, groups, g, lw) : 0u);
            SH_PUT(xq, lw * (KA_TILE_M + 1) + lr + 16,
                   lr + 16 < rs.n ? k_qx_word(a->qx + x1 * row, groups, g, lw) : 0u);
            if (HY_TID < KA_TILE_M) {
                const hy_u4 x = k_qx_at(a->qx + xs * row, groups, g, 2);
                SH_PUT(xd, HY_TID, HY_TID < rs.n ? k_float(x.x) : 0.0f);
                SH_PUT(xsum, HY_TID, HY_TID < rs.n ? (int32_t)x.y : 0);
                SH_PUT(xsum, KA_TILE_M + HY_TID, HY_TID < rs.n ? (int32_t)x.z : 0);
            }
            k_half h = {{0u, 0u, 0u, 0u}, 0.0f, 0.0f};
            if (col0 + lc < a->n)
                h = k_load_half(t, rs.w + (col0 + lc) * a->w_row, groups, g, half);
            HY_UNROLL
            for (int j = 0; j < 4; j++)
                SH_PUT(wq, (4 * half + j) * (KA_TILE_N + 1) + lc, h.q[j]);
            SH_PUT(wd, half * KA_TILE_N + lc, h.dw);
            SH_PUT(wm, half * KA_TILE_N + lc, h.mw);
            HY_BARRIER();
            HY_UNROLL
            for (int i = 0; i < 16; i++) {
                const int r = tr + i / 4, c = tc + i % 4;
                uint32_t wv[8], xv[8];
                if (r >= rs.n)
                    continue;
                HY_UNROLL
                for (int j = 0; j < 8; j++) { /* one by one: all at once would take 80 registers */
                    wv[j] = SH_GET(wq, j * (KA_TILE_N + 1) + c);
                    xv[j] = SH_GET(xq, j * (KA_TILE_M + 1) + r);
                }
                acc.acc[i] = k_add_group(
                    t, acc.acc[i], hy_dot16(wv, xv, 0), hy_dot16(wv + 4, xv + 4, 0), SH_GET(wd, c),
                    SH_GET(wd, KA_TILE_N + c), SH_GET(wm, c), SH_GET(wm, KA_TILE_N + c),
                    SH_GET(xd, r), SH_GET(xsum, r), SH_GET(xsum, KA_TILE_M + r));
            }
            HY_BARRIER();
        }
        k_tree_push(&acc, p);
    }
    k_tile_write(a, &rs, &acc, tr, col0 + tc);
}

/* One row (mv1), or up to eight for four outputs (mv32; int8: two, mv16), which share what is
 * loaded of x; as many as registers allow everywhere. Each with enough loads under way to fill the
 * memory's pipe (docs/PERFORMANCE.md). */
#define K_MV_KERNEL(kernel, fn, T, rows, outs, deep)                                               \
    HY_KERNEL(kernel, SIMT_BLOCK, ka_matmul, a)                                                    \
    {                                                                                              \
        const k_mv v = {rows, outs, deep};                                                         \
        fn(T, v, &a);                                                                              \
    }
#define K_TILE_KERNEL(kernel, fn, T)                                                               \
    HY_KERNEL(kernel, SIMT_BLOCK, ka_matmul, a)                                                    \
    {                                                                                              \
        fn(T, &a);                                                                                 \
    }
#define K_MATMUL_FLOAT(name, T)                                                                    \
    K_MV_KERNEL(k_mv1_f_##name, k_mv_float, T, 1, 1, 8)                                            \
    K_MV_KERNEL(k_mv32_f_##name, k_mv_float, T, KA_MV_ROWS, KA_MV_OUTS, 4)                         \
    K_TILE_KERNEL(k_mm_f_##name, k_mm_f, T)
#define K_MATMUL_QUANT(name, T)                                                                    \
    K_MV_KERNEL(k_mv8_f_##name, k_mv_quant, T, KA_MV_ROWS, 1, 1)                                   \
    K_TILE_KERNEL(k_mm_f_##name, k_mm_f, T)                                                        \
    K_MV_KERNEL(k_mv1_i_##name, k_mv_int8, T, 1, 1, 1)                                             \
    K_MV_KERNEL(k_mv16_i_##name, k_mv_int8, T, KA_MV_ROWS, KA_MV_OUTS_I, 1)                        \
    K_TILE_KERNEL(k_mm_i_##name, k_mm_i, T)
K_EACH_FLOAT(K_MATMUL_FLOAT)
K_EACH_QUANT(K_MATMUL_QUANT)

#endif
