/* SPDX-License-Identifier: Apache-2.0
 *
 * A double of the vendors' GEMM libraries, of what backends/gpu/blas.c uses: BLAS_PREFIX begins
 * the vendor's names. Products run on the sim's streams in their turn. Layouts are column-major.
 *
 * Thread: any.  Owner: the caller destroys descriptors.
 */
#include "tests/double/sim.h"

#include <stdlib.h>
#include <string.h>

#define API             __attribute__((visibility("default")))
#define PASTE_(a, b)    a##b
#define PASTE(a, b)     PASTE_(a, b)
#define BLAS_NAME(what) PASTE(BLAS_PREFIX, what)

typedef struct desc {
    int transposed;
} desc;

typedef struct layout {
    int type;
    int64_t rows, cols, ld;
} layout;

enum { INVALID = 7, UNSUPPORTED = 15 };

static int alive;

API int BLAS_NAME(Create)(void **handle);
API int BLAS_NAME(Create)(void **handle)
{
    *handle = &alive;
    return 0;
}

API int BLAS_NAME(Destroy)(void *handle);
API int BLAS_NAME(Destroy)(void *handle)
{
    if (alive != 0)
        abort(); /* descriptors were left */
    return handle == &alive ? 0 : INVALID;
}

API int BLAS_NAME(MatmulDescCreate)(void **out, int compute, int scale);
API int BLAS_NAME(MatmulDescCreate)(void **out, int compute, int scale)
{
    *out = NULL;
    if (compute != BLAS_COMPUTE_F32 || scale != 0)
        return UNSUPPORTED;
    *out = calloc(1, sizeof(desc));
    alive++;
    return 0;
}

API int BLAS_NAME(MatmulDescSetAttribute)(void *d, int attr, const void *v, size_t bytes);
API int BLAS_NAME(MatmulDescSetAttribute)(void *d, int attr, const void *v, size_t bytes)
{
    int value = 0;
    if (attr != BLAS_TRANS_A || bytes != sizeof(value))
        return INVALID;
    memcpy(&value, v, sizeof(value));
    ((desc *)d)->transposed = value == BLAS_TRANSPOSE;
    return 0;
}

API int BLAS_NAME(MatmulDescDestroy)(void *d);
API int BLAS_NAME(MatmulDescDestroy)(void *d)
{
    free(d);
    alive--;
    return 0;
}

API int BLAS_NAME(MatrixLayoutCreate)(void **out, int type, uint64_t rows, uint64_t cols,
                                      int64_t ld);
API int BLAS_NAME(MatrixLayoutCreate)(void **out, int type, uint64_t rows, uint64_t cols,
                                      int64_t ld)
{
    layout *l = calloc(1, sizeof(*l));
    if (l == NULL)
        abort();
    *l = (layout){type, (int64_t)rows, (int64_t)cols, ld};
    *out = l;
    alive++;
    return ld >= l->rows ? 0 : INVALID;
}

API int BLAS_NAME(MatrixLayoutDestroy)(void *l);
API int BLAS_NAME(MatrixLayoutDestroy)(void *l)
{
    free(l);
    alive--;
    return 0;
}

API int BLAS_NAME(Matmul)(void *handle, void *d, const void *alpha, const void *a, void *la,
                          const void *b, void *lb, const void *beta, const void *c, void *lc,
                          void *out, void *ld, const void *algo, void *space, size_t bytes,
                          void *stream);
API int BLAS_NAME(Matmul)(void *handle, void *d, const void *alpha, const void *a, void *la,
                          const void *b, void *lb, const void *beta, const void *c, void *lc,
                          void *out, void *ld, const void *algo, void *space, size_t bytes,
                          void *stream)
{
    const layout *A = la, *B = lb, *D = ld;
    float one, zero;
    memcpy(&one, alpha, sizeof(one));
    memcpy(&zero, beta, sizeof(zero));
    if (handle != &alive || !((desc *)d)->transposed || one != 1.0f || zero != 0.0f || c != out ||
        lc != ld || algo != NULL || A->type != B->type || (A->type != 2 && A->type != 14) ||
        D->type != 0 || A->rows != B->rows || A->cols != D->rows || B->cols != D->cols)
        return INVALID;
    if (A->cols % 3 == 0) /* the real ones refuse shapes, too */
        return UNSUPPORTED;
    sim_gemm g = {.a = a,
                  .b = b,
                  .d = out,
                  .m = D->cols,
                  .n = D->rows,
                  .k = A->rows,
                  .lda = A->ld,
                  .ldb = B->ld,
                  .ldd = D->ld,
                  .bf16 = A->type == 14,
                  .space = space,
                  .space_bytes = bytes};
    return sim_ask_gemm(&g, stream) == SIM_OK ? 0 : 14;
}
