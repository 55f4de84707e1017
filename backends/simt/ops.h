/* SPDX-License-Identifier: Apache-2.0
 *
 * The math table over kernels: which kernel, which grid, which arguments. A device (the host
 * executor, CUDA, HIP) gives four functions and gets every op.
 *
 * Thread: a queue's owner.  Owner: the device.
 */
#ifndef HY_SIMT_OPS_H
#define HY_SIMT_OPS_H

#include "backends/simt/args.h"
#include "backends/simt/kernels.h"
#include "hal/backend.h"

/* How a device runs kernels, all on the queue and in its order. */
typedef struct simt_driver {
    hy_status (*launch)(hy_queue *q, simt_kernel k, uint32_t x, uint32_t y, uint32_t z,
                        const void *args, size_t bytes);
    /* A device copy of a host array, good until the queue's next op. NULL in gives NULL. */
    hy_status (*stage)(hy_queue *q, const void *src, size_t bytes, const void **out);
    /* Host memory for one op, to build what is staged. */
    hy_status (*host)(hy_queue *q, size_t bytes, void **out);
    /* Device memory for one op. */
    hy_status (*scratch)(hy_queue *q, size_t bytes, void **out);
    /* Device to host; on the host when queue_wait returns. */
    hy_status (*fetch)(hy_queue *q, void *dst, const void *src, size_t bytes);
} simt_driver;

typedef enum simt_split { SIMT_SPLIT_AUTO, SIMT_SPLIT_OFF, SIMT_SPLIT_ON } simt_split;

/* First member of a device of this kind. */
typedef struct simt_base {
    hy_dev base;
    const char *name; /* "simt", for messages */
    const simt_driver *drv;
    int units;        /* blocks that run at once, about */
    int threads;      /* of the host, to lay out weights */
    simt_split split; /* of attention over segments: changes speed alone */
    bool fast;        /* numerics = fast: matmuls of many rows on matrix units */
    bool borrow;      /* weights stay where they are: host memory is device memory */
} simt_base;

extern const hy_math_ops simt_math;

#endif
