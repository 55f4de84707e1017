/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of a cpu device. A job is a list of phases, a phase a list of items; items of a phase
 * run in any order on any thread, and a phase begins when the one before it is complete. Nothing
 * waits for a thread, only for items: a worker that sleeps, or that other programs have displaced,
 * holds nobody up unless it holds an item.
 *
 * Thread: run from any thread, one job at a time (others wait); the caller works too, as thread 0.
 * Owner: the device.
 */
#ifndef HY_CPU_POOL_H
#define HY_CPU_POOL_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

#define CPU_MAX_PHASES  8
#define CPU_MAX_THREADS 256

typedef struct cpu_pool cpu_pool;

/* item counts from 0; thread < cpu_pool_threads. */
typedef void (*cpu_item_fn)(void *ctx, int item, int thread);

typedef struct cpu_job {
    int n_phases;
    int n_items[CPU_MAX_PHASES]; /* 0: the phase is skipped; below 2^24 */
    cpu_item_fn fn[CPU_MAX_PHASES];
    void *ctx;
} cpu_job;

/* n_threads counts the caller: n - 1 are started. */
hy_status cpu_pool_create(int n_threads, size_t scratch_bytes, cpu_pool **out);
void cpu_pool_destroy(cpu_pool *p);
int cpu_pool_threads(const cpu_pool *p);
/* A thread's own scratch of the size given at creation, 2 MiB aligned; for use inside items. */
void *cpu_pool_scratch(const cpu_pool *p, int thread);
/* Returns when every item is done. */
void cpu_pool_run(cpu_pool *p, const cpu_job *job);
/* One phase. */
void cpu_pool_for(cpu_pool *p, int n, cpu_item_fn fn, void *ctx);

#endif
