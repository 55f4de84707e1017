/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens OpenBLAS (or another CBLAS) at run time with the right core type.
 *
 * Thread: see blas.h.  Owner: loaded for ever.
 */
#include "hal/blas.h"
#include "core/base/log.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* CBLAS's numbers. */
#define ROW_MAJOR 101
#define NO_TRANS  111
#define TRANS     112

const char *hy_blas_core_type(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "SKYLAKEX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "HASWELL";
#endif
    return NULL;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static hy_blas blas;

/* ISO C has no cast from an object pointer to a function; POSIX promises that the bits serve. */
static bool find(void *dl, const char *name, void *fn, size_t size)
{
    void *p = dlsym(dl, name);
    memcpy(fn, &p, size);
    return p != NULL;
}

static void open_blas(void)
{
    static const char *const names[] = {"libopenblas.so.0", "libblis.so.4", "libcblas.so.3"};
    const char *core = hy_blas_core_type();
    char *(*corename)(void) = NULL;
    if (core != NULL)
        setenv("OPENBLAS_CORETYPE", core, 0);
    for (size_t i = 0; i < HY_COUNTOF(names); i++) {
        void *dl = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (dl == NULL)
            continue;
        if (!find(dl, "cblas_sgemm", &blas.sgemm, sizeof(blas.sgemm))) {
            dlclose(dl);
            continue;
        }
        find(dl, "openblas_set_num_threads", &blas.set_threads, sizeof(blas.set_threads));
        bool named = find(dl, "openblas_get_corename", &corename, sizeof(corename));
        snprintf(blas.name, sizeof(blas.name), "%s (%.40s)", names[i],
                 named ? corename() : "unknown core");
        if (named && core != NULL && strcasecmp(corename(), "Prescott") == 0)
            hy_warn("hal", "%s runs without AVX on a CPU that has it: set OPENBLAS_CORETYPE=%s",
                    names[i], core);
        return;
    }
}

hy_status hy_blas_get(const hy_blas **out)
{
    pthread_once(&once, open_blas);
    if (blas.sgemm == NULL)
        return hy_fail(HY_E_UNSUPPORTED,
                       "no BLAS on this machine (libopenblas.so.0, libblis.so.4, libcblas.so.3)");
    *out = &blas;
    return HY_OK;
}

static bool fits(int64_t v)
{
    return v >= 0 && v <= INT_MAX;
}

hy_status hy_blas_matmul(const hy_blas *b, int64_t m, int64_t n, int64_t k, const float *x,
                         int64_t ldx, const float *w, int64_t ldw, float *y, int64_t ldy)
{
    if (!fits(m) || !fits(n) || !fits(k) || !fits(ldx) || !fits(ldw) || !fits(ldy))
        return hy_fail(HY_E_LIMIT, "matmul of %lld x %lld x %lld is too large for %s", (long long)m,
                       (long long)n, (long long)k, b->name);
    b->sgemm(ROW_MAJOR, NO_TRANS, TRANS, (int)m, (int)n, (int)k, 1.0f, x, (int)ldx, w, (int)ldw,
             0.0f, y, (int)ldy);
    return HY_OK;
}
