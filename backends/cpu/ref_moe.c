/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of moe_route: scores of a row's experts, the groups and experts it goes to, and
 * their weights. (moe_ffn is composed of primitives: hal/compose_moe.c.)
 *
 * Thread: a queue's owner.  Owner: none.
 */
#include "backends/cpu/ref_int.h"
#include "hal/compose.h"
#include "hal/fmath.h"

typedef struct row {
    float key[HY_MOE_EXPERTS], score[HY_MOE_EXPERTS];
    bool out[HY_MOE_EXPERTS]; /* taken, or of a group that was not chosen */
} row;

static float value_of(float x)
{
    return x == x ? x : -INFINITY;
}

/* 32 lanes, then the tree by pairs: the order of the GPU kernels, so that all backends agree. */
static void softmax(const float *x, int32_t n, float *out)
{
    float m = -INFINITY, l[32] = {0.0f};
    for (int32_t i = 0; i < n; i++)
        m = value_of(x[i]) > m ? x[i] : m;
    for (int32_t i = 0; i < n; i++) {
        out[i] = hy_m_exp(value_of(x[i]) - m);
        l[i % 32] += out[i];
    }
    for (int w = 1; w < 32; w *= 2) {
        for (int i = 0; i < 32; i += 2 * w)
            l[i] += l[i + w];
    }
    for (int32_t i = 0; i < n; i++)
        out[i] /= l[0];
}

static void scores(const hy_moe_route *a, const float *x, row *r)
{
    /* softmax keeps the order of logits, and these are exact */
    const bool plain = a->score == HY_MOE_SOFTMAX && a->bias == NULL && !a->group_top2;
    if (a->score == HY_MOE_SOFTMAX)
        softmax(x, a->n_experts, r->score);
    for (int32_t i = 0; i < a->n_experts; i++) {
        if (a->score == HY_MOE_SIGMOID)
            r->score[i] = 1.0f / (1.0f + hy_m_exp(-value_of(x[i])));
        r->key[i] = value_of(plain             ? x[i]
                             : a->bias != NULL ? r->score[i] + a->bias[i]
                                               : r->score[i]);
        r->out[i] = false;
    }
}

/* The best that is left of n; the first of equals. */
static int32_t best_of(const float *key, const bool *out, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        if (!out[i] && (best < 0 || key[i] > key[best]))
            best = i;
    }
    return best;
}

static void choose_groups(const hy_moe_route *a, row *r)
{
    const int32_t per = a->n_experts / a->n_groups;
    float key[HY_MOE_GROUPS];
    bool in[HY_MOE_GROUPS] = {false};
    for (int32_t g = 0; g < a->n_groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int32_t i = g * per; i < (g + 1) * per; i++) {
            const float v = r->key[i];
            second = v > first ? first : v > second ? v : second;
            first = v > first ? v : first;
        }
        key[g] = value_of(a->group_top2 ? first + second : first);
    }
    for (int32_t t = 0; t < a->top_groups; t++)
        in[best_of(key, in, a->n_groups)] = true;
    for (int32_t i = 0; i < a->n_experts; i++)
        r->out[i] = !in[i / per];
}

static void route_row(const hy_moe_route *a, const float *x, int32_t *ids, float *weights)
{
    row r;
    float sum = 0.0f;
    scores(a, x, &r);
    if (a->n_groups > 1)
        choose_groups(a, &r);
    for (int32_t j = 0; j < a->k; j++) {
        ids[j] = best_of(r.key, r.out, a->n_experts);
        r.out[ids[j]] = true;
        weights[j] = r.score[ids[j]];
        sum += weights[j];
    }
    for (int32_t j = 0; j < a->k; j++)
        weights[j] = (a->norm ? weights[j] / (sum + 1e-20f) : weights[j]) * a->scale;
}

hy_status ref_moe_route(hy_queue *q, const hy_moe_route *a)
{
    (void)q;
    HY_TRY(hy_moe_route_check(a));
    for (int64_t r = 0; r < a->m; r++)
        route_row(a, a->logits + r * a->ld, a->ids + r * a->k, a->weights + r * a->k);
    return HY_OK;
}
