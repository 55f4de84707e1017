/* SPDX-License-Identifier: Apache-2.0
 *
 * The host executor: runs a grid of blocks of a kernel on CPU threads, each block's lanes as
 * fibres. It finds what a GPU would punish with a hang or wrong numbers: a barrier or a team
 * operation that not all reach, and (kernels built with SIMT_CHECK) shared memory read before it
 * is written, out of bounds, or without a barrier between.
 *
 * Thread: one launch at a time on an executor; others wait.  Owner: simt_exec_destroy.
 */
#ifndef HY_SIMT_HOST_EXEC_H
#define HY_SIMT_HOST_EXEC_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIMT_MAX_LANES  256
#define SIMT_MAX_SHARED (48 << 10) /* bytes of a block: what every GPU has */

typedef struct simt_exec simt_exec;

typedef struct simt_exec_opts {
    int wave;      /* 32 or 64 */
    int threads;   /* at least 1 */
    size_t stack;  /* bytes; 0: the default */
    uint64_t seed; /* of the order of lanes; 0: ascending */
    bool traffic;  /* count accesses to device memory, of kernels built with SIMT_CHECK */
} simt_exec_opts;

/* What a kernel's waves loaded and stored: accesses, different bytes in each, and the sectors of 32
 * bytes that they touch. bytes / (32 * sectors) is what a GPU's memory path does of use. */
typedef struct simt_traffic {
    const char *kernel;
    uint64_t loads, load_bytes, load_sectors;
    uint64_t stores, store_bytes, store_sectors;
    uint64_t lost; /* accesses beyond what a block's list holds */
} simt_traffic;

typedef void (*simt_fn)(const void *args);

typedef struct simt_launch {
    const char *name;
    simt_fn fn;
    int lanes; /* of a block */
    uint32_t x, y, z;
    const void *args;
} simt_launch;

hy_status simt_exec_create(const simt_exec_opts *o, simt_exec **out);
void simt_exec_destroy(simt_exec *e);
/* Done when it returns. HY_E_DEVICE with what was found, where and in which block. */
hy_status simt_exec_run(simt_exec *e, const simt_launch *l);

/* Since creation, a kernel an item; no launch may be under way. */
size_t simt_exec_traffic(const simt_exec *e, const simt_traffic **out);

/* For kernels of tests: the lowest byte of this lane's stack. */
char *simt_stack_end(void);

#endif
