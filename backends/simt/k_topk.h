/* SPDX-License-Identifier: Apache-2.0
 *
 * Statistics of logits: the k best, ties to the lower id, and the logarithm of the sum of
 * exponentials.
 *
 * Thread: device code.  Owner: none.
 */
#ifndef HY_SIMT_K_TOPK_H
#define HY_SIMT_K_TOPK_H

#include "backends/simt/k_dtype.h"

/* A total order: by value (NaN as -inf), then by lower id. 0: nothing. */
HY_DEV uint64_t k_key(float x, int id)
{
    uint32_t u = k_bits(x == x ? x + 0.0f : -INFINITY); /* -0 is 0 */
    u = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~id;
}

/* The best key of this thread's elements below `than`. */
HY_DEV uint64_t k_best_below(const ka_topk *a, const float *x, uint64_t than)
{
    uint64_t best = 0;
    for (int i = HY_TID; i < a->n; i += SIMT_BLOCK) {
        const uint64_t key = k_key(x[i], i);
        best = key < than && key > best ? key : best;
    }
    return best;
}

/* Grid: x row. A thread keeps its own best; the owner of the block's best looks for its next. */
HY_KERNEL(k_topk, SIMT_BLOCK, ka_topk, a)
{
    HY_SHARED(uint64_t, top, 2 * SIMT_TEAMS);
    const float *x = a.x + HY_BX * a.ld;
    uint64_t mine = k_best_below(&a, x, ~(uint64_t)0);
    for (int k = 0; k < a.k; k++) {
        const int side = k % 2 * SIMT_TEAMS; /* two sides: one barrier a turn */
        const uint64_t team = hy_team_max_u64(mine);
        if (HY_LANE == 0)
            SH_PUT(top, side + HY_TEAM, team);
        HY_BARRIER();
        uint64_t best = 0;
        for (int i = 0; i < SIMT_TEAMS; i++) {
            const uint64_t v = SH_GET(top, side + i);
            best = v > best ? v : best;
        }
        const int id = best != 0 ? (int)~(uint32_t)best : -1;
        if (HY_TID == 0) {
            const float v = id >= 0 ? x[id] : -INFINITY;
            a.ids[(int64_t)HY_BX * a.k + k] = id;
            a.values[(int64_t)HY_BX * a.k + k] = v == v ? v : -INFINITY;
        }
        if (best != 0 && best == mine)
            mine = k_best_below(&a, x, best);
    }
}

/* Grid: x row. */
HY_KERNEL(k_lse, SIMT_BLOCK, ka_topk, a)
{
    HY_SHARED(float, top, SIMT_TEAMS);
    HY_SHARED(double, sum, SIMT_TEAMS);
    const float *x = a.x + HY_BX * a.ld;
    float m = -INFINITY;
    for (int i = HY_TID; i < a.n; i += SIMT_BLOCK)
        m = x[i] > m ? x[i] : m;
    m = hy_team_max(m);
    if (HY_LANE == 0)
        SH_PUT(top, HY_TEAM, m);
    HY_BARRIER();
    for (int i = 0; i < SIMT_TEAMS; i++) {
        const float v = SH_GET(top, i);
        m = v > m ? v : m;
    }
    double s = 0.0;
    for (int i = HY_TID; i < a.n; i += SIMT_BLOCK) {
        if (x[i] == x[i])
            s += (double)hy_m_exp(x[i] - m);
    }
    s = hy_team_sum_f64(s);
    if (HY_LANE == 0)
        SH_PUT(sum, HY_TEAM, s);
    HY_BARRIER();
    if (HY_TID != 0)
        return;
    s = (SH_GET(sum, 0) + SH_GET(sum, 1)) + (SH_GET(sum, 2) + SH_GET(sum, 3));
    a.lse[HY_BX] = isinf(m) ? m : (float)((double)m + hy_m_log(s));
}

#endif
