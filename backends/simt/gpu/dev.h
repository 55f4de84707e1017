/* SPDX-License-Identifier: Apache-2.0
 *
 * A device whose vendor runtime was opened at run time: the HAL's device table and the driver of
 * ops.c over a table of vendor calls. CUDA and HIP each fill one table; vendor codes become
 * statuses there and nowhere else.
 *
 * Thread: device calls from any thread; a queue has one owner.
 * Owner: alloc'd memory is freed by free; a queue holds its stream, scratch and staging ring.
 */
#ifndef HY_SIMT_GPU_DEV_H
#define HY_SIMT_GPU_DEV_H

#include "hal/backend.h"

typedef struct gpu_info {
    char name[64];
    int units; /* multiprocessors */
    int wave;
    size_t mem;
} gpu_info;

/* All return HY_OK or a failure with its text; handles are the vendor's. */
typedef struct gpu_api {
    const char *name; /* "cuda" */
    hy_status (*open)(int index, void **ctx, gpu_info *info);
    void (*close)(int index, void *ctx);
    hy_status (*enter)(void *ctx); /* makes it this thread's */
    hy_status (*load)(void **module);
    void (*unload)(void *module);
    hy_status (*function)(void *module, const char *name, void **fn);
    hy_status (*mem_info)(size_t *free, size_t *total);
    hy_status (*alloc)(size_t bytes, void **out);
    void (*free)(void *p);
    hy_status (*zero)(void *p, size_t bytes, void *stream);
    hy_status (*host_alloc)(size_t bytes, void **out); /* pinned */
    void (*host_free)(void *p);
    hy_status (*host_register)(void *p, size_t bytes);
    void (*host_unregister)(void *p);
    hy_status (*stream_create)(void **out);
    void (*stream_destroy)(void *s);
    hy_status (*stream_sync)(void *s);
    hy_status (*copy)(void *dst, const void *src, size_t bytes, void *s); /* any direction */
    hy_status (*event_create)(void **out);
    void (*event_destroy)(void *e);
    hy_status (*event_record)(void *e, void *s);
    hy_status (*event_wait)(void *s, void *e); /* the stream waits */
    hy_status (*event_query)(void *e);         /* HY_AGAIN: not yet */
    hy_status (*event_sync)(void *e);
    hy_status (*launch)(void *fn, uint32_t x, uint32_t y, uint32_t z, uint32_t threads,
                        const void *args, size_t bytes, void *s);
    hy_status (*export_fd)(void *p, size_t bytes, int *fd); /* dmabuf */
} gpu_api;

hy_status gpu_open(const gpu_api *api, const hy_dev_opts *o, hy_dev **out);

#endif
