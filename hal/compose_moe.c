/* SPDX-License-Identifier: Apache-2.0
 *
 * moe_ffn from primitives: the order here is the op's definition. Rows go to their experts in parts
 * of a bounded number of (row, expert) pairs, sorted by expert; every pair's result waits in the
 * scratch until the row's are all there, so that they add in routing order.
 *
 * Thread: a queue's owner.  Owner: scratch is the caller's.
 */
#include "hal/compose.h"

#include <string.h>

hy_status hy_moe_route_check(const hy_moe_route *a)
{
    const int32_t groups = a->n_groups > 1 ? a->n_groups : 1;
    if (a->n_experts < 1 || a->n_experts > HY_MOE_EXPERTS || a->k < 1 || a->k > HY_MOE_TOP)
        return hy_fail(HY_E_INVAL, "moe_route: %d of %d experts; at most %d of %d", a->k,
                       a->n_experts, HY_MOE_TOP, HY_MOE_EXPERTS);
    if (groups > HY_MOE_GROUPS || a->n_experts % groups != 0 ||
        (groups > 1 && (a->top_groups < 1 || a->top_groups > groups ||
                        (a->group_top2 && a->n_experts / groups < 2))))
        return hy_fail(HY_E_INVAL, "moe_route: the best %d of %d groups of %d experts",
                       a->top_groups, groups, a->n_experts);
    if (a->k > (groups > 1 ? a->n_experts / groups * a->top_groups : a->n_experts))
        return hy_fail(HY_E_INVAL, "moe_route: %d experts cannot be chosen from those of %d groups",
                       a->k, a->top_groups);
    return HY_OK;
}

static bool same(const hy_weight *const *w, int32_t n, int64_t rows, int64_t cols)
{
    for (int32_t e = 0; e < n; e++) {
        if (w[e] == NULL || w[e]->type != w[0]->type || w[e]->n != rows || w[e]->k != cols)
            return false;
    }
    return true;
}

hy_status hy_moe_ffn_check(const hy_moe_ffn *a)
{
    if (a->n_experts < 1 || a->n_experts > HY_MOE_EXPERTS || a->k < 1 || a->k > HY_MOE_TOP)
        return hy_fail(HY_E_INVAL, "moe_ffn: %d of %d experts; at most %d of %d", a->k,
                       a->n_experts, HY_MOE_TOP, HY_MOE_EXPERTS);
    const int64_t ffn = a->up[0] != NULL ? a->up[0]->n : 0;
    if (!same(a->up, a->n_experts, ffn, a->dim) || !same(a->down, a->n_experts, a->dim, ffn) ||
        (a->gate != NULL && !same(a->gate, a->n_experts, ffn, a->dim)))
        return hy_fail(HY_E_INVAL, "moe_ffn: experts are not of one type and shape, %lld to %lld",
                       (long long)a->dim, (long long)ffn);
    return HY_OK;
}

/* A part's pairs by expert: pair p = row * k + j has place slot[p]. */
typedef struct part {
    int32_t ids[HY_MOE_PAIRS], slot[HY_MOE_PAIRS];
    float weights[HY_MOE_PAIRS];
    int32_t first[HY_MOE_EXPERTS + 1];
} part;

static hy_status sort_part(hy_queue *q, const hy_moe_ffn *a, int64_t row0, int64_t m, part *p)
{
    const int32_t n = (int32_t)(m * a->k);
    const hy_dev_ops *ops = q->dev->ops;
    HY_TRY(ops->copy(q, p->ids, a->ids + row0 * a->k, (size_t)n * sizeof(int32_t)));
    HY_TRY(ops->copy(q, p->weights, a->weights + row0 * a->k, (size_t)n * sizeof(float)));
    HY_TRY(ops->queue_wait(q));
    memset(p->first, 0, sizeof(p->first));
    for (int32_t i = 0; i < n; i++) {
        if (p->ids[i] < 0 || p->ids[i] >= a->n_experts)
            return hy_fail(HY_E_INVAL, "moe_ffn: row %lld wants expert %d of %d",
                           (long long)(row0 + i / a->k), p->ids[i], a->n_experts);
        p->first[p->ids[i] + 1]++;
    }
    for (int32_t e = 0; e < a->n_experts; e++)
        p->first[e + 1] += p->first[e];
    for (int32_t i = 0; i < n; i++)
        p->slot[i] = p->first[p->ids[i]]++;
    memmove(p->first + 1, p->first, (size_t)a->n_experts * sizeof(int32_t)); /* as before */
    p->first[0] = 0;
    return HY_OK;
}

/* Scratch of a part: inputs and results, [pairs] by expert. */
typedef struct moe_ws {
    float *x, *up, *gate, *down, *zero;
} moe_ws;

static hy_status run_expert(hy_queue *q, const hy_moe_ffn *a, const moe_ws *w, int32_t e,
                            int32_t first, int32_t n)
{
    const hy_math_ops *ops = q->dev->math;
    const int64_t ffn = a->up[e]->n;
    float *up = w->up + first * ffn, *gate = w->gate + first * ffn;
    hy_matmul mm = {.w = a->up[e],
                    .x = w->x + first * a->dim,
                    .ldx = a->dim,
                    .y = up,
                    .ldy = ffn,
                    .m = n,
                    .act = a->act};
    hy_act_mul f = {.gate = up, .ldg = ffn, .y = up, .ldy = ffn, .m = n, .dim = ffn, .fn = a->fn};
    HY_TRY(ops->matmul(q, &mm));
    if (a->gate != NULL) {
        mm.w = a->gate[e];
        mm.y = gate;
        HY_TRY(ops->matmul(q, &mm));
        f.gate = gate;
        f.up = up;
        f.ldu = ffn;
    }
    HY_TRY(ops->act_mul(q, &f));
    mm = (hy_matmul){.w = a->down[e],
                     .x = up,
                     .ldx = ffn,
                     .y = w->down + first * a->dim,
                     .ldy = a->dim,
                     .m = n,
                     .act = a->act};
    return ops->matmul(q, &mm);
}

/* y = chain of fma(down, weight, .) over a row's pairs. */
static hy_status add_pairs(hy_queue *q, const hy_moe_ffn *a, const moe_ws *w, const part *p,
                           int64_t row0, int64_t m)
{
    for (int64_t r = 0; r < m; r++) {
        float *y = a->y + (row0 + r) * a->ldy;
        for (int32_t j = 0; j < a->k; j++) {
            hy_add add = {.a = j == 0 ? w->zero : y,
                          .b = w->down + p->slot[r * a->k + j] * a->dim,
                          .y = y,
                          .m = 1,
                          .dim = a->dim,
                          .b_scale = p->weights[r * a->k + j]};
            HY_TRY(q->dev->math->add(q, &add));
        }
    }
    return HY_OK;
}

static hy_status run_part(hy_queue *q, const hy_moe_ffn *a, const moe_ws *w, int64_t row0,
                          int64_t m)
{
    part p;
    HY_TRY(sort_part(q, a, row0, m, &p));
    for (int64_t i = 0; i < m * a->k; i++)
        HY_TRY(q->dev->ops->copy(q, w->x + p.slot[i] * a->dim, a->x + (row0 + i / a->k) * a->ldx,
                                 (size_t)a->dim * sizeof(float)));
    for (int32_t e = 0; e < a->n_experts; e++) {
        const int32_t n = p.first[e + 1] - p.first[e];
        if (n > 0)
            HY_TRY(run_expert(q, a, w, e, p.first[e], n));
    }
    return add_pairs(q, a, w, &p, row0, m);
}

hy_status hy_compose_moe_ffn(hy_queue *q, const hy_moe_ffn *a)
{
    static const float zeros[1024];
    HY_TRY(hy_moe_ffn_check(a));
    const int64_t rows = hy_moe_part(a->k), pairs = (a->m < rows ? a->m : rows) * a->k;
    hy_carve c = hy_carve_of(a->ws);
    moe_ws w = {.x = hy_carve_take(&c, pairs * a->dim),
                .up = hy_carve_take(&c, pairs * a->up[0]->n),
                .gate = hy_carve_take(&c, pairs * a->up[0]->n),
                .down = hy_carve_take(&c, pairs * a->dim),
                .zero = hy_carve_take(&c, a->dim)};
    HY_TRY(hy_carve_check(&c, HY_OP_MOE_FFN));
    for (int64_t i = 0; i < a->dim; i += (int64_t)HY_COUNTOF(zeros)) {
        const int64_t n =
            a->dim - i < (int64_t)HY_COUNTOF(zeros) ? a->dim - i : (int64_t)HY_COUNTOF(zeros);
        HY_TRY(q->dev->ops->copy(q, w.zero + i, zeros, (size_t)n * sizeof(float)));
    }
    for (int64_t r = 0; r < a->m; r += rows)
        HY_TRY(run_part(q, a, &w, r, a->m - r < rows ? a->m - r : rows));
    return HY_OK;
}
