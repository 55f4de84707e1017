/* SPDX-License-Identifier: Apache-2.0
 *
 * The math table of GPUs: ops.c's, but that in numerics = fast dense products of many rows go to
 * the vendor's library when the site has it.
 *
 * Thread: a queue's owner.  Owner: none.
 */
#include "backends/gpu/dev.h"
#include "backends/simt/ops_int.h"
#include "core/base/log.h"

/* Rows as the weight's type, so that both sides are. */
static hy_status narrow(hy_queue *q, const hy_matmul *a, void *out)
{
    ka_decode k = {.w = (const uint8_t *)a->x,
                   .w_row = a->ldx * (int64_t)sizeof(float),
                   .y = out,
                   .ldy = a->w->k,
                   .m = (int32_t)a->m,
                   .k = (int32_t)a->w->k,
                   .type = KT_F32,
                   .to = (int32_t)a->w->type};
    const uint32_t x = simt_ceil_div((a->w->k + 31) / 32, SIMT_BLOCK);
    for (int64_t r = 0; r < a->m; r += SIMT_GRID_MAX) {
        const int64_t n = a->m - r < SIMT_GRID_MAX ? a->m - r : SIMT_GRID_MAX;
        k.w = (const uint8_t *)(a->x + r * a->ldx);
        k.y = (uint8_t *)out + 2 * r * a->w->k;
        HY_TRY(gpu_driver.launch(q, SIMT_k_decode, x, (uint32_t)n, 1, &k, sizeof(k)));
    }
    return HY_OK;
}

/* HY_E_UNSUPPORTED: nothing was done. */
static hy_status by_library(hy_queue *hq, const hy_matmul *a)
{
    gpu_queue *q = gpu_queue_of(hq);
    const gpu_dev *g = gpu_dev_of(hq->dev);
    void *x = NULL;
    if (simt_weight_of(a->w)->row_bytes != 2 * (size_t)a->w->k)
        return hy_fail(HY_E_UNSUPPORTED, "%s: rows of %lld elements are padded", g->v->name,
                       (long long)a->w->k);
    HY_TRY(gpu_driver.scratch(hq, (size_t)a->m * (size_t)a->w->k * 2, &x));
    if (q->space == NULL &&
        gpu_did(g, g->v->calls->alloc(&q->space, GPU_BLAS_SPACE), "GEMM's work space") != HY_OK)
        q->space = NULL; /* it goes without */
    HY_TRY(narrow(hq, a, x));
    HY_TRY(gpu_queue_flush(q));
    const gpu_gemm m = {.w = simt_weight_of(a->w)->p,
                        .x = x,
                        .y = a->y,
                        .m = a->m,
                        .n = a->w->n,
                        .k = a->w->k,
                        .ldy = a->ldy,
                        .type = a->w->type,
                        .space = q->space,
                        .space_bytes = q->space != NULL ? GPU_BLAS_SPACE : 0,
                        .stream = q->stream};
    return gpu_blas_run(g->blas, &m);
}

static hy_status matmul(hy_queue *q, const hy_matmul *a)
{
    const gpu_dev *g = gpu_dev_of(q->dev);
    const bool dense = a->w->type == HY_F16 || a->w->type == HY_BF16;
    if (g->base.fast && dense && a->bias == NULL && a->m >= GPU_BLAS_ROWS && a->m <= INT32_MAX) {
        HY_TRY(gpu_enter(g));
        if (gpu_blas_ready(g->blas)) {
            hy_status st = by_library(q, a);
            if (st != HY_E_UNSUPPORTED)
                return st;
            hy_debug("gpu", "%s", hy_fail_text());
        }
    }
    return simt_math.matmul(q, a);
}

void gpu_math_fill(hy_math_ops *out)
{
    *out = simt_math;
    out->matmul = matmul;
}
