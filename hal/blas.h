/* SPDX-License-Identifier: Apache-2.0
 *
 * A BLAS found at run time, for numerics = fast only: its sums have no promised order. Nothing
 * links it, and a machine without one runs on our own kernels.
 *
 * Debian's OpenBLAS takes some CPUs that it does not know (Sapphire Rapids) for a Prescott, which
 * has no AVX, and is then five times too slow. So its core type is set from CPUID before it is
 * opened, unless the user has set OPENBLAS_CORETYPE.
 *
 * Thread: open at start, before other threads read the environment; then any.
 * Owner: loaded for ever.
 */
#ifndef HY_HAL_BLAS_H
#define HY_HAL_BLAS_H

#include "core/base/status.h"

#include <stdint.h>

typedef struct hy_blas {
    char name[96]; /* "libopenblas.so.0 (SkylakeX)" */
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*set_threads)(int n); /* may be NULL */
} hy_blas;

/* Opens it once; later calls give the same. HY_E_UNSUPPORTED: none on this machine. */
hy_status hy_blas_get(const hy_blas **out);
/* y[m][n] = x[m][k] . w[n][k]^T, row-major. HY_E_LIMIT: a size beyond the library's int. */
hy_status hy_blas_matmul(const hy_blas *b, int64_t m, int64_t n, int64_t k, const float *x,
                         int64_t ldx, const float *w, int64_t ldw, float *y, int64_t ldy);
/* What OPENBLAS_CORETYPE should say on this CPU; NULL: leave it alone. */
const char *hy_blas_core_type(void);

#endif
