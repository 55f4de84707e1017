/* SPDX-License-Identifier: Apache-2.0
 *
 * Statistics of logits rows: the k best by a filter of whole chunks, then the reference's
 * insertion; log of the sum of exponentials with vector exponentials and an ordered f64 sum.
 *
 * Thread: a queue's owner and the pool.  Owner: none.
 */
#include "backends/cpu/fast.h"
#include "hal/fmath.h"

#define TOPK_MAX 256
#define CHUNK    256

typedef struct best {
    float v;
    int32_t id;
} best;

static float value_of(float x)
{
    return x == x ? x : -INFINITY;
}

static void top_one(const cpu_fast *f, const float *x, int64_t n, int32_t *id, float *value)
{
    float m = f->vec->max(x, n);
    int64_t at = isinf(m) && m < 0 ? 0 : f->vec->find(x, n, m); /* all -inf or NaN: the first */
    *id = n > 0 ? (int32_t)at : -1;
    *value = n > 0 ? value_of(x[at]) : -INFINITY;
}

/* Insertion into a list kept best first: ids ascend, so an equal value goes behind. */
static int32_t insert(best *list, int32_t n, int32_t k, float v, int32_t id)
{
    if (n == k && !(v > list[n - 1].v))
        return n;
    int32_t at = n < k ? n++ : n - 1;
    for (; at > 0 && v > list[at - 1].v; at--)
        list[at] = list[at - 1];
    list[at] = (best){v, id};
    return n;
}

static void top_row(const cpu_fast *f, const hy_topk *a, const float *x, int32_t *ids,
                    float *values)
{
    best list[TOPK_MAX];
    int32_t n = 0;
    if (a->k == 1) {
        top_one(f, x, a->n, &list[0].id, &list[0].v);
        n = a->n > 0;
    }
    for (int64_t i = 0; a->k > 1 && i < a->n; i += CHUNK) {
        int64_t end = i + CHUNK < a->n ? i + CHUNK : a->n;
        if (n == a->k && !(f->vec->max(x + i, end - i) > list[n - 1].v))
            continue;
        for (int64_t j = i; j < end; j++)
            n = insert(list, n, a->k, value_of(x[j]), (int32_t)j);
    }
    for (int32_t i = 0; i < a->k; i++) {
        if (ids != NULL)
            ids[i] = i < n ? list[i].id : -1;
        if (values != NULL)
            values[i] = i < n ? list[i].v : -INFINITY;
    }
}

static float lse_row(const cpu_fast *f, const float *x, int64_t n)
{
    float m = f->vec->max(x, n), e[CHUNK];
    double sum = 0.0;
    if (isinf(m))
        return m;
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t c = n - i < CHUNK ? n - i : CHUNK;
        f->vec->exp_sub(x + i, c, m, e);
        for (int64_t j = 0; j < c; j++)
            sum += (double)e[j];
    }
    return (float)((double)m + hy_m_log(sum));
}

typedef struct top_job {
    const cpu_fast *f;
    const hy_topk *a;
} top_job;

static void top_item(void *ctx, int item, int thread)
{
    (void)thread;
    const top_job *j = ctx;
    const hy_topk *a = j->a;
    const float *x = a->logits + item * a->ld;
    if (a->ids != NULL || a->values != NULL)
        top_row(j->f, a, x, a->ids != NULL ? a->ids + (int64_t)item * a->k : NULL,
                a->values != NULL ? a->values + (int64_t)item * a->k : NULL);
    if (a->lse != NULL)
        a->lse[item] = lse_row(j->f, x, a->n);
}

hy_status cpu_fast_topk(hy_queue *q, const hy_topk *a)
{
    top_job j = {.f = cpu_fast_of(q), .a = a};
    if ((a->ids != NULL || a->values != NULL) && (a->k < 1 || a->k > TOPK_MAX))
        return hy_fail(HY_E_INVAL, "topk: k = %d is outside 1..%d", a->k, TOPK_MAX);
    if (a->m == 1)
        top_item(&j, 0, 0);
    else
        cpu_pool_for(j.f->pool, (int)a->m, top_item, &j);
    return HY_OK;
}
