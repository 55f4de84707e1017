/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of the norms: sums run over 16 lanes, then a fixed tree.
 *
 * Thread: a queue's owner.  Owner: none.
 */
#include "backends/cpu/ref_int.h"

#include <math.h>

static float sum_squares(const float *x, int64_t n, float mean)
{
    float l[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] - mean;
        l[i % 16] = fmaf(v, v, l[i % 16]);
    }
    return ref_tree16(l);
}

static float sum(const float *x, int64_t n)
{
    float l[16] = {0};
    for (int64_t i = 0; i < n; i++)
        l[i % 16] += x[i];
    return ref_tree16(l);
}

hy_status ref_rms_norm(hy_queue *q, const hy_norm *a)
{
    (void)q;
    for (int64_t r = 0; r < a->m; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;
        float inv = 1.0f / sqrtf(sum_squares(x, a->dim, 0.0f) / (float)a->dim + a->eps);
        for (int64_t i = 0; i < a->dim; i++)
            y[i] = a->w != NULL ? (x[i] * inv) * a->w[i] : x[i] * inv;
    }
    return HY_OK;
}

hy_status ref_layer_norm(hy_queue *q, const hy_norm *a)
{
    (void)q;
    for (int64_t r = 0; r < a->m; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;
        float mean = sum(x, a->dim) / (float)a->dim;
        float var = sum_squares(x, a->dim, mean) / (float)a->dim;
        float inv = 1.0f / sqrtf(var + a->eps);
        for (int64_t i = 0; i < a->dim; i++) {
            float w = a->w != NULL ? a->w[i] : 1.0f, b = a->b != NULL ? a->b[i] : 0.0f;
            y[i] = fmaf((x[i] - mean) * inv, w, b);
        }
    }
    return HY_OK;
}
