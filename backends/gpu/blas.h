/* SPDX-License-Identifier: Apache-2.0
 *
 * The vendor's GEMM library (cuBLASLt, hipBLASLt), opened when the first matmul wants it: dense
 * products of many rows in numerics = fast. Without it, or when it refuses, our kernels do.
 *
 * Thread: opening is under a lock; products by a queue's owner.
 * Owner: the device closes its handle; the library stays open.
 */
#ifndef HY_GPU_BLAS_H
#define HY_GPU_BLAS_H

#include "hal/backend.h"

#define GPU_BLAS_ROWS  64 /* fewer are ours: GEMM libraries shine with many */
#define GPU_BLAS_SPACE ((size_t)32 << 20)

/* Names and numbers of a library; the calls have the same arguments in both. */
typedef struct gpu_blas_names {
    const char *files[4]; /* tried in order; NULL at the end */
    const char *create, *destroy, *desc_create, *desc_set, *desc_destroy, *layout_create;
    const char *layout_destroy, *matmul;
    int compute_f32, transpose, attr_trans_a;
    int type_f32, type_f16, type_bf16;
} gpu_blas_names;

typedef struct gpu_blas gpu_blas;

/* Remembers what to open: "auto", a path, or "off", which gives NULL. */
gpu_blas *gpu_blas_create(const gpu_blas_names *names, const char *what);
void gpu_blas_destroy(gpu_blas *b);

/* y[m][n] = x[m][k] w[n][k]^T: x and w of `type` (f16 or bf16), y f32. */
typedef struct gpu_gemm {
    const void *w, *x;
    float *y;
    int64_t m, n, k, ldy;
    hy_dtype type;
    void *space;
    size_t space_bytes;
    void *stream;
} gpu_gemm;

/* Whether there is such a library: opens it. The device is this thread's. */
bool gpu_blas_ready(gpu_blas *b);
/* HY_E_UNSUPPORTED: it would not; nothing was started. */
hy_status gpu_blas_run(gpu_blas *b, const gpu_gemm *g);

#endif
