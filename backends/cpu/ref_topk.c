/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of the logits' statistics: the k best, ties to the lower id, and the logarithm
 * of the sum of exponentials.
 *
 * Thread: a queue's owner.  Owner: none.
 */
#include "backends/cpu/ref_int.h"
#include "hal/fmath.h"

#define TOPK_MAX 256

typedef struct best {
    float v;
    int32_t id;
} best;

static float value_of(float x)
{
    return x == x ? x : -INFINITY;
}

/* Insertion into a list kept best first: ids ascend, so an equal value goes behind. */
static void top_row(const hy_topk *a, const float *x, int32_t *ids, float *values)
{
    best list[TOPK_MAX];
    int32_t n = 0;
    for (int64_t i = 0; i < a->n; i++) {
        float v = value_of(x[i]);
        if (n == a->k && !(v > list[n - 1].v))
            continue;
        int32_t at = n < a->k ? n++ : n - 1;
        for (; at > 0 && v > list[at - 1].v; at--)
            list[at] = list[at - 1];
        list[at] = (best){v, (int32_t)i};
    }
    for (int32_t i = 0; i < a->k; i++) { /* a row shorter than k ends in -1 */
        if (ids != NULL)
            ids[i] = i < n ? list[i].id : -1;
        if (values != NULL)
            values[i] = i < n ? list[i].v : -INFINITY;
    }
}

static float lse_row(const float *x, int64_t n)
{
    float m = -INFINITY;
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        m = value_of(x[i]) > m ? x[i] : m;
    if (isinf(m))
        return m;
    for (int64_t i = 0; i < n; i++)
        sum += (double)hy_m_exp(value_of(x[i]) - m);
    return (float)((double)m + hy_m_log(sum));
}

hy_status ref_topk(hy_queue *q, const hy_topk *a)
{
    (void)q;
    bool list = a->ids != NULL || a->values != NULL;
    if (list && (a->k < 1 || a->k > TOPK_MAX))
        return hy_fail(HY_E_INVAL, "topk: k = %d is outside 1..%d", a->k, TOPK_MAX);
    for (int64_t r = 0; r < a->m; r++) {
        const float *x = a->logits + r * a->ld;
        if (list)
            top_row(a, x, a->ids != NULL ? a->ids + r * a->k : NULL,
                    a->values != NULL ? a->values + r * a->k : NULL);
        if (a->lse != NULL)
            a->lse[r] = lse_row(x, a->n);
    }
    return HY_OK;
}
