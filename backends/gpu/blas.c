/* SPDX-License-Identifier: Apache-2.0
 *
 * See blas.h. Row-major matrices are the library's column-major ones transposed: D = A^T B with
 * A = w (k x n), B = x (k x m), D = y (n x m).
 *
 * Thread: as in blas.h.  Owner: as in blas.h.
 */
#include "backends/gpu/blas.h"
#include "core/base/alloc.h"
#include "core/base/log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct gpu_blas {
    const gpu_blas_names *names;
    char path[512]; /* "": the usual files */
    pthread_mutex_t lock;
    bool tried;
    void *handle; /* NULL: there is none */
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale);
    int (*desc_set)(void *desc, int attr, const void *value, size_t bytes);
    int (*desc_destroy)(void *desc);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_destroy)(void *layout);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *la,
                  const void *b, void *lb, const void *beta, const void *c, void *lc, void *d,
                  void *ld, const void *algo, void *space, size_t space_bytes, void *stream);
};

gpu_blas *gpu_blas_create(const gpu_blas_names *names, const char *what)
{
    if (what != NULL && strcmp(what, "off") == 0)
        return NULL;
    gpu_blas *b = hy_calloc(1, sizeof(*b));
    if (b == NULL)
        return NULL;
    b->names = names;
    pthread_mutex_init(&b->lock, NULL);
    if (what != NULL && strcmp(what, "auto") != 0)
        snprintf(b->path, sizeof(b->path), "%s", what);
    return b;
}

void gpu_blas_destroy(gpu_blas *b)
{
    if (b == NULL)
        return;
    if (b->handle != NULL)
        b->destroy(b->handle);
    pthread_mutex_destroy(&b->lock);
    hy_free(b);
}

static void *open_file(gpu_blas *b)
{
    void *lib = b->path[0] != '\0' ? dlopen(b->path, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (size_t i = 0; b->path[0] == '\0' && lib == NULL && b->names->files[i] != NULL; i++)
        lib = dlopen(b->names->files[i], RTLD_NOW | RTLD_LOCAL);
    return lib;
}

static bool find_all(gpu_blas *b, void *lib)
{
    const gpu_blas_names *n = b->names;
    const struct {
        const char *name;
        void *slot;
    } all[] = {{n->create, &b->create},
               {n->destroy, &b->destroy},
               {n->desc_create, &b->desc_create},
               {n->desc_set, &b->desc_set},
               {n->desc_destroy, &b->desc_destroy},
               {n->layout_create, &b->layout_create},
               {n->layout_destroy, &b->layout_destroy},
               {n->matmul, &b->matmul}};
    for (size_t i = 0; i < HY_COUNTOF(all); i++) {
        void *f = dlsym(lib, all[i].name);
        if (f == NULL)
            return false;
        memcpy(all[i].slot, &f, sizeof(f));
    }
    return true;
}

static void open_locked(gpu_blas *b)
{
    void *lib = open_file(b), *handle = NULL;
    const char *why = lib == NULL ? dlerror() : NULL;
    if (lib == NULL)
        hy_info("gpu", "matmuls by our own kernels: no %s (%.200s)", b->names->files[0],
                why != NULL ? why : b->path);
    else if (!find_all(b, lib) || b->create(&handle) != 0)
        hy_info("gpu", "matmuls by our own kernels: %s does not start", b->names->files[0]);
    else
        b->handle = handle;
}

bool gpu_blas_ready(gpu_blas *b)
{
    if (b == NULL)
        return false;
    pthread_mutex_lock(&b->lock);
    if (!b->tried)
        open_locked(b);
    b->tried = true;
    bool ok = b->handle != NULL;
    pthread_mutex_unlock(&b->lock);
    return ok;
}

hy_status gpu_blas_run(gpu_blas *b, const gpu_gemm *g)
{
    const gpu_blas_names *n = b->names;
    const int type = g->type == HY_F16 ? n->type_f16 : n->type_bf16;
    const float one = 1.0f, zero = 0.0f;
    void *desc = NULL, *la = NULL, *lb = NULL, *ld = NULL;
    int code = b->desc_create(&desc, n->compute_f32, n->type_f32);
    if (code == 0)
        code = b->desc_set(desc, n->attr_trans_a, &n->transpose, sizeof(n->transpose));
    if (code == 0)
        code = b->layout_create(&la, type, (uint64_t)g->k, (uint64_t)g->n, g->k);
    if (code == 0)
        code = b->layout_create(&lb, type, (uint64_t)g->k, (uint64_t)g->m, g->k);
    if (code == 0)
        code = b->layout_create(&ld, n->type_f32, (uint64_t)g->n, (uint64_t)g->m, g->ldy);
    if (code == 0)
        code = b->matmul(b->handle, desc, &one, g->w, la, g->x, lb, &zero, g->y, ld, g->y, ld, NULL,
                         g->space, g->space_bytes, g->stream);
    if (ld != NULL)
        b->layout_destroy(ld);
    if (lb != NULL)
        b->layout_destroy(lb);
    if (la != NULL)
        b->layout_destroy(la);
    if (desc != NULL)
        b->desc_destroy(desc);
    return code == 0 ? HY_OK
                     : hy_fail(HY_E_UNSUPPORTED, "%s: code %d for %lld x %lld x %lld", n->matmul,
                               code, (long long)g->m, (long long)g->n, (long long)g->k);
}
