/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU as a device of the HAL, over a vendor's library: the device table (dev.c), queues (queue.c)
 * and graphs of kernels (graph.c). CUDA and HIP are this code with two tables of symbols.
 *
 * A queue keeps its kernels in a list and starts them when something needs them: a copy, an event,
 * a wait. So what they read of the host goes over in one copy, and a list that came before, with
 * the same arguments, is one graph: the decode step at one batch size.
 *
 * Thread: device calls from any thread; a queue has one owner.
 * Owner: alloc'd memory is freed by free, after the queues that use it were waited for; a queue
 * holds its stream, scratch, ring and graphs.
 */
#ifndef HY_GPU_DEV_H
#define HY_GPU_DEV_H

#include "backends/gpu/blas.h"
#include "backends/gpu/driver.h"
#include "backends/simt/ops.h"

#define GPU_BLOCK    128 /* SIMT_BLOCK of dialect.h */
#define GPU_PENDING  1024
#define GPU_ARGS     ((size_t)256 << 10)
#define GPU_RING     ((size_t)1 << 20)
#define GPU_RING_MAX ((size_t)64 << 20)
#define GPU_RINGS    4  /* full ones that wait for the device */
#define GPU_STAGED   16 /* arrays that are looked for among those staged */
#define GPU_GRAPHS   8  /* of a queue: batch sizes in use */
#define GPU_GRAPH_OF 8  /* kernels at least */

typedef struct gpu_dev {
    simt_base base;
    const gpu_vendor *v;
    void *ctx, *module;
    void *fn[SIMT_KERNELS];
    const char *arch; /* of the image in use */
    char name[64];
    int index, handle; /* the vendor's number of it */
    int wave, units;
    bool graphs;
    gpu_blas *blas; /* NULL: never */
    hy_math_ops math;
} gpu_dev;

typedef struct gpu_launch {
    uint32_t kernel, x, y, z;
    uint32_t at, bytes; /* arguments in the list's buffer */
} gpu_launch;

/* Kernels in order. Its parts are one mapping. */
typedef struct gpu_list {
    gpu_launch *items;
    char *args;
    int n;
    size_t used; /* of args */
} gpu_list;

typedef struct gpu_graph {
    uint64_t hash; /* 0: free */
    uint64_t last; /* use */
    void *exec;    /* NULL: seen once */
    gpu_list list; /* what it was made of */
} gpu_graph;

/* Pinned memory and its image on the device, filled from the front. */
typedef struct gpu_ring {
    char *host, *image;
    size_t bytes;
} gpu_ring;

typedef struct gpu_staged {
    const void *src;
    size_t at, bytes;
} gpu_staged;

typedef struct gpu_queue {
    hy_queue base;
    void *stream;
    gpu_list list;
    /* Device memory for one op. */
    void *scratch;
    size_t scratch_bytes;
    void *space; /* of the vendor's GEMM */
    /* Host memory for one op: built, then staged. */
    void *host;
    size_t host_bytes;
    /* Staging. A place is written again only after the stream was waited for. [sent, at) of the
     * ring still has to go over. */
    gpu_ring ring, full[GPU_RINGS];
    int n_full;
    size_t sent, at;
    gpu_staged staged[GPU_STAGED];
    int n_staged;
    gpu_graph graphs[GPU_GRAPHS];
    uint64_t turn;
    bool no_graphs; /* start every kernel at once */
} gpu_queue;

static inline gpu_dev *gpu_dev_of(const hy_dev *d)
{
    return (gpu_dev *)(uintptr_t)d;
}

static inline gpu_queue *gpu_queue_of(hy_queue *q)
{
    return (gpu_queue *)(void *)q;
}

hy_status gpu_open(gpu_library *l, const hy_dev_opts *o, hy_dev **out);

/* Makes the device this thread's. */
hy_status gpu_enter(const gpu_dev *g);
/* A call's code as a status. */
hy_status gpu_did(const gpu_dev *g, int code, const char *what);

/* queue.c */
extern const simt_driver gpu_driver;
hy_status gpu_queue_create(hy_dev *d, hy_queue **out);
void gpu_queue_destroy(hy_queue *q);
hy_status gpu_queue_wait(hy_queue *q);
hy_status gpu_queue_copy(hy_queue *q, void *dst, const void *src, size_t bytes);
/* Starts what the list holds. */
hy_status gpu_queue_flush(gpu_queue *q);
hy_status gpu_list_init(gpu_list *l, size_t items, size_t args);
void gpu_list_fini(gpu_list *l, size_t items, size_t args);
hy_status gpu_list_launch(gpu_queue *q, const gpu_list *l);

/* matmul.c */
void gpu_math_fill(hy_math_ops *out);

/* graph.c: the list as a graph when it came before; HY_AGAIN: start it kernel by kernel. */
hy_status gpu_graph_run(gpu_queue *q);
void gpu_graph_free_all(gpu_queue *q);

#endif
