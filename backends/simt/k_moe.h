/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixture of experts: which experts a row goes to, rows sorted by expert, and the sum of what the
 * experts gave. Their matmuls are those of k_matmul.h over tiles of the sorted list.
 *
 * Thread: device code.  Owner: none.
 */
#ifndef HY_SIMT_K_MOE_H
#define HY_SIMT_K_MOE_H

#include "backends/simt/k_topk.h"

HY_DEV float k_finite_key(float x)
{
    return x == x ? x : -INFINITY;
}

/* Scores and keys of a team's row into shared memory. */
HY_DEV void k_route_scores(const ka_route *a, const float *x, int n, HY_SH(float) score,
                           HY_SH(float) key)
{
    const int base = HY_TEAM * KA_EXPERTS;
    const int plain = !a->sigmoid && a->bias == NULL && !a->top2; /* softmax keeps their order */
    float m = -INFINITY, l = 0.0f;
    for (int i = HY_LANE; i < n; i += SIMT_LANES)
        m = x[i] > m ? x[i] : m;
    m = hy_team_max(m);
    for (int i = HY_LANE; i < n; i += SIMT_LANES)
        l += hy_m_exp(k_finite_key(x[i]) - m);
    l = hy_team_sum(l);
    for (int i = HY_LANE; i < n; i += SIMT_LANES) {
        const float v = k_finite_key(x[i]);
        const float s = a->sigmoid ? 1.0f / (1.0f + hy_m_exp(-v)) : hy_m_exp(v - m) / l;
        SH_PUT(score, base + i, s);
        SH_PUT(key, base + i, plain ? v : a->bias != NULL ? s + a->bias[i] : s);
    }
}

/* Bits of the groups that a team's row may choose from. Lane g has group g. */
HY_DEV uint32_t k_route_groups(const ka_route *a, int n, HY_SH(float) key)
{
    const int per = a->n / a->groups;
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < per && HY_LANE < a->groups && n > 0; i++) {
        const float v = SH_GET(key, HY_TEAM * KA_EXPERTS + HY_LANE * per + i);
        second = v > first ? first : v > second ? v : second;
        first = v > first ? v : first;
    }
    uint64_t mine = HY_LANE < a->groups ? k_key(a->top2 ? first + second : first, HY_LANE) : 0;
    uint32_t in = 0;
    for (int t = 0; t < a->top_groups; t++) {
        const uint64_t best = hy_team_max_u64(mine);
        in |= 1u << (~(uint32_t)best & 31u);
        mine = mine == best ? 0 : mine;
    }
    return in;
}

/* Grid: x rows in fours. A team a row. */
HY_KERNEL(k_moe_route, SIMT_BLOCK, ka_route, a)
{
    HY_SHARED(float, score, SIMT_TEAMS *KA_EXPERTS);
    HY_SHARED(float, key, SIMT_TEAMS *KA_EXPERTS);
    const int row = HY_BX * SIMT_TEAMS + HY_TEAM, n = row < a.m ? a.n : 0; /* all come along */
    const int base = HY_TEAM * KA_EXPERTS, per = a.groups > 1 ? a.n / a.groups : a.n;
    k_route_scores(&a, a.logits + (n != 0 ? row : 0) * a.ld, n, score, key);
    HY_BARRIER();
    uint32_t in = ~0u, used = 0; /* groups; this lane's experts */
    if (a.groups > 1)
        in = k_route_groups(&a, n, key);
    float sum = 0.0f, w = 0.0f;
    int id = 0;
    for (int j = 0; j < a.k; j++) {
        uint64_t mine = 0;
        for (int c = 0, i = HY_LANE; i < n; c++, i += SIMT_LANES) {
            const uint64_t v = k_key(SH_GET(key, base + i), i);
            if (!(used >> c & 1u) && (in >> i / per & 1u) && v > mine)
                mine = v;
        }
        const uint64_t best = hy_team_max_u64(mine);
        if (n == 0)
            continue;
        const int e = (int)~(uint32_t)best;
        const float s = SH_GET(score, base + e);
        if (e % SIMT_LANES == HY_LANE)
            used |= 1u << e / SIMT_LANES;
        if (HY_LANE == j) {
            id = e;
            w = s;
        }
        sum += s;
    }
    if (n != 0 && HY_LANE < a.k) {
        a.ids[(int64_t)row * a.k + HY_LANE] = id;
        a.weights[(int64_t)row * a.k + HY_LANE] = (a.norm ? w / (sum + 1e-20f) : w) * a.scale;
    }
}

/* (row, expert) pairs by expert, in their order, cut into tiles. Grid: one block. */
HY_KERNEL(k_moe_sort, SIMT_BLOCK, ka_sort, a)
{
    HY_SHARED(int32_t, count, KA_EXPERTS);
    for (int e = HY_TID; e < a.n_experts; e += SIMT_BLOCK) {
        int n = 0;
        for (int i = 0; i < a.pairs; i++)
            n += a.ids[i] == e;
        SH_PUT(count, e, n);
    }
    HY_BARRIER();
    for (int e = HY_TID; e < a.n_experts; e += SIMT_BLOCK) {
        int at = 0, tile = 0;
        for (int b = 0; b < e; b++) {
            at += SH_GET(count, b);
            tile += (SH_GET(count, b) + a.tile - 1) / a.tile;
        }
        const int n = SH_GET(count, e);
        for (int i = 0; i < n; i += a.tile) {
            const ka_tile t = {at + i, n - i < a.tile ? n - i : a.tile, e, 0};
            a.tiles[tile++] = t;
        }
        if (e == a.n_experts - 1)
            *a.n_tiles = tile;
        for (int i = 0; n > 0 && i < a.pairs; i++) {
            if (a.ids[i] == e) {
                a.from[at] = i / a.k;
                a.slot[i] = at++;
            }
        }
    }
}

/* Grid: x columns, y row. */
HY_KERNEL(k_moe_sum, SIMT_BLOCK, ka_moe_sum, a)
{
    const int d = HY_BX * SIMT_BLOCK + HY_TID;
    if (d >= a.dim)
        return;
    float y = 0.0f;
    for (int j = 0; j < a.k; j++) {
        const int p = HY_BY * a.k + j;
        y = fmaf(a.x[(int64_t)a.slot[p] * a.dim + d], a.weights[p], y);
    }
    a.y[HY_BY * a.ldy + d] = y;
}

#endif
