/* SPDX-License-Identifier: Apache-2.0
 *
 * A vendor's library, opened at run time: the entry points that gpu/ calls, in one signature for
 * CUDA's driver and HIP's runtime. A vendor module gives the names of its symbols, its attribute
 * numbers, its map from codes to statuses and its compiled kernels; nothing else of it is known.
 *
 * Device addresses are void * here: CUDA's headers say an integer of that width.
 *
 * Thread: loading is under a lock; calls as the vendor allows, which is from any thread.
 * Owner: the library stays open for the life of the process.
 */
#ifndef HY_GPU_DRIVER_H
#define HY_GPU_DRIVER_H

#include "hal/backend.h"

typedef struct gpu_ipc { /* CUipcMemHandle, hipIpcMemHandle_t: passed by value */
    unsigned char bytes[64];
} gpu_ipc;

/* One line a call: member, arguments. All return the vendor's code; 0 is success for both. */
#define GPU_CALLS(X)                                                                               \
    X(init, (unsigned flags))                                                                      \
    X(count, (int *n))                                                                             \
    X(device, (int *dev, int index))                                                               \
    X(device_name, (char *s, int len, int dev))                                                    \
    X(attribute, (int *v, int attr, int dev))                                                      \
    X(ctx_retain, (void **ctx, int dev))                                                           \
    X(ctx_release, (int dev))                                                                      \
    X(ctx_set, (void *ctx))                                                                        \
    X(mem_info, (size_t * free, size_t * total))                                                   \
    X(alloc, (void **p, size_t bytes))                                                             \
    X(free, (void *p))                                                                             \
    X(zero, (void *p, unsigned char v, size_t n, void *stream))                                    \
    X(host_alloc, (void **p, size_t bytes, unsigned flags))                                        \
    X(host_free, (void *p))                                                                        \
    X(host_register, (void *p, size_t bytes, unsigned flags))                                      \
    X(host_unregister, (void *p))                                                                  \
    X(stream_create, (void **s, unsigned flags))                                                   \
    X(stream_destroy, (void *s))                                                                   \
    X(stream_sync, (void *s))                                                                      \
    X(stream_wait, (void *s, void *e, unsigned flags))                                             \
    X(copy, (void *dst, const void *src, size_t bytes, void *stream))                              \
    X(event_create, (void **e, unsigned flags))                                                    \
    X(event_destroy, (void *e))                                                                    \
    X(event_record, (void *e, void *s))                                                            \
    X(event_query, (void *e))                                                                      \
    X(event_sync, (void *e))                                                                       \
    X(load, (void **module, const void *image))                                                    \
    X(unload, (void *module))                                                                      \
    X(function, (void **fn, void *module, const char *name))                                       \
    X(launch, (void *fn, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,             \
               unsigned bz, unsigned shared, void *stream, void **params, void **extra))           \
    X(range, (void **base, size_t *bytes, void *p)) /* of the allocation that holds p */           \
    X(ipc_get, (gpu_ipc * out, void *p))                                                           \
    X(ipc_open, (void **p, gpu_ipc handle, unsigned flags))                                        \
    X(ipc_close, (void *p))                                                                        \
    /* These may be absent. */                                                                     \
    X(export_fd, (void *fd, void *p, size_t bytes, int kind, unsigned long long flags))            \
    X(capture_begin, (void *stream, int mode))                                                     \
    X(capture_end, (void *stream, void **graph))                                                   \
    X(graph_build, (void **exec, void *graph, unsigned long long flags))                           \
    X(graph_free, (void *graph))                                                                   \
    X(graph_launch, (void *exec, void *stream))                                                    \
    X(graph_exec_free, (void *exec))

typedef struct gpu_calls {
#define GPU_MEMBER(name, args) int(*name) args;
    GPU_CALLS(GPU_MEMBER)
#undef GPU_MEMBER
    const char *(*error_name)(int code); /* never NULL in, may be NULL out */
} gpu_calls;

/* A symbol of the library and where its address goes: a function pointer. */
typedef struct gpu_symbol {
    const char *name;
    void *slot;
    bool optional;
} gpu_symbol;

/* Compiled kernels; the last has no image. The first that the device takes is used. */
typedef struct gpu_image {
    const char *arch;
    const void *image;
} gpu_image;

typedef struct gpu_vendor {
    const char *name;         /* "cuda" */
    const char *library;      /* "the CUDA driver", for messages */
    const char *const *files; /* tried in this order when the INI names none; ends with NULL */
    const gpu_symbol *symbols;
    size_t n_symbols;
    gpu_calls *calls;
    hy_status (*status)(int code, const char **text); /* never HY_OK but for 0 */
    int attr_wave, attr_units;
    unsigned ipc_flags; /* of ipc_open */
    hy_maker memory;    /* whose memory it exports */
    const gpu_image *images;
    const struct gpu_blas_names *blas;
} gpu_vendor;

/* What the library says of this machine; one a vendor, kept by its module. */
typedef struct gpu_library {
    const gpu_vendor *v;
    void *handle;
    int n_devices;
    char path[512]; /* what is or shall be opened; "": the vendor's files */
    char why[512];  /* there is no device; "" when there is one */
} gpu_library;

/* Opens the library once; false and a text in why when there is no device. */
bool gpu_library_load(gpu_library *l);
/* [backend.NAME] driver, before anything is loaded; another one later is refused. */
hy_status gpu_library_path(gpu_library *l, const hy_dev_opts *o);

/* HY_OK, HY_AGAIN (not ready) or a failure with its text. */
hy_status gpu_check(const gpu_vendor *v, int code, const char *what);

/* The value of "key=value" in the option list, or NULL. */
const char *gpu_option(const hy_dev_opts *o, const char *key);

#endif
