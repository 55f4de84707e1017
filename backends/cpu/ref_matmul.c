/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar reference of matmul. Every output is one chain over k. Floating weights, and quantised
 * ones with f32 activations: a chain of fma over decoded weights. Quantised weights with int8
 * activations: exact integer sums of sub-blocks, each scaled once into the chain.
 *
 * Thread: a queue's owner.  Owner: none.
 */
#include "backends/cpu/ref_int.h"
#include "hal/quant.h"

#include <math.h>
#include <string.h>

static hy_status no_memory(size_t bytes)
{
    return hy_fail(HY_E_NOMEM_DEVICE, "cpu: no memory for %zu bytes of matmul scratch", bytes);
}

static void put(const hy_matmul *a, int64_t row, int64_t n, float acc)
{
    a->y[row * a->ldy + n] = a->bias != NULL ? acc + a->bias[n] : acc;
}

static hy_status matmul_f32(hy_queue *q, const hy_matmul *a)
{
    const cpu_weight *w = cpu_weight_of(a->w);
    int64_t k = w->base.k;
    float *row = cpu_scratch(q, (size_t)k * sizeof(float));
    if (row == NULL)
        return no_memory((size_t)k * sizeof(float));
    for (int64_t n = 0; n < w->base.n; n++) {
        hy_dtype_decode(w->base.type, w->raw + (size_t)n * w->row_bytes, row, k);
        for (int64_t r = 0; r < a->m; r++) {
            const float *x = a->x + r * a->ldx;
            float acc = 0.0f;
            for (int64_t i = 0; i < k; i++)
                acc = fmaf(row[i], x[i], acc);
            put(a, r, n, acc);
        }
    }
    return HY_OK;
}

/* A block of 32 activations. */
typedef struct act_block {
    float d;
    int8_t q[32];
} act_block;

static void quantise(const float *x, act_block *o)
{
    float amax = 0.0f;
    bool finite = true;
    for (int i = 0; i < 32; i++) {
        float v = fabsf(x[i]);
        finite = finite && v <= 3.4028234664e38f;
        amax = v > amax ? v : amax;
    }
    memset(o, 0, sizeof(*o));
    if (!finite) {
        o->d = NAN;
        return;
    }
    if (amax < 0x1p-120f) /* 127 / amax would overflow: the block counts as zeros */
        return;
    float id = 127.0f / amax;
    o->d = amax / 127.0f;
    for (int i = 0; i < 32; i++) {
        float v = rintf(x[i] * id);
        o->q[i] = (int8_t)(v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v);
    }
}

/* One file block of weights against the same columns of one row; returns the chain's new end. */
static float dot_block(const hy_quant_info *t, const hy_quant_block *w, const act_block *x,
                       float acc)
{
    for (int s = 0; s < t->block / t->sub; s++) {
        const act_block *xb = &x[s * t->sub / 32];
        const int8_t *xq = xb->q + s * t->sub % 32, *wq = w->q + s * t->sub;
        int32_t isum = 0, sum = 0;
        for (int i = 0; i < t->sub; i++) {
            isum += wq[i] * xq[i];
            sum += xq[i];
        }
        acc = fmaf((float)isum, w->dw[s] * xb->d, acc);
        if (t->has_min)
            acc = fmaf(w->mw[s], xb->d * (float)sum, acc);
    }
    return acc;
}

static hy_status matmul_int8(hy_queue *q, const hy_matmul *a)
{
    const cpu_weight *w = cpu_weight_of(a->w);
    const hy_quant_info *t = hy_quant_get(w->base.type);
    size_t block_bytes = hy_dtype_get(w->base.type)->bytes;
    int64_t blocks = w->base.k / t->block, x_blocks = w->base.k / 32;
    size_t x_bytes = (size_t)(a->m * x_blocks) * sizeof(act_block);
    size_t bytes = x_bytes + (size_t)a->m * sizeof(float);
    act_block *x = cpu_scratch(q, bytes);
    if (x == NULL)
        return no_memory(bytes);
    float *acc = (float *)(void *)((char *)x + x_bytes);
    for (int64_t r = 0; r < a->m; r++) {
        for (int64_t b = 0; b < x_blocks; b++)
            quantise(a->x + r * a->ldx + b * 32, &x[r * x_blocks + b]);
    }
    for (int64_t n = 0; n < w->base.n; n++) {
        memset(acc, 0, (size_t)a->m * sizeof(float));
        for (int64_t b = 0; b < blocks; b++) {
            hy_quant_block wb;
            hy_quant_unpack(w->base.type,
                            w->raw + (size_t)n * w->row_bytes + (size_t)b * block_bytes, &wb);
            for (int64_t r = 0; r < a->m; r++)
                acc[r] = dot_block(t, &wb, &x[r * x_blocks + b * t->block / 32], acc[r]);
        }
        for (int64_t r = 0; r < a->m; r++)
            put(a, r, n, acc[r]);
    }
    return HY_OK;
}

hy_status ref_matmul(hy_queue *q, const hy_matmul *a)
{
    if (a->m <= 0)
        return HY_OK;
    if (a->act == HY_ACT_INT8 && hy_quant_get(a->w->type) != NULL)
        return matmul_int8(q, a);
    return matmul_f32(q, a);
}
