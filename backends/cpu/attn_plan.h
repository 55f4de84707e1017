/* SPDX-License-Identifier: Apache-2.0
 *
 * A step's attention as items for the pool: tiles of rows by KV head, long single rows cut into
 * runs of segments whose results are joined afterwards.
 *
 * Thread: made by the op's caller, run by the pool.  Owner: the op's scratch.
 */
#ifndef HY_CPU_ATTN_PLAN_H
#define HY_CPU_ATTN_PLAN_H

#include "backends/cpu/attn.h"
#include "backends/cpu/fast.h"

typedef struct cpu_attn_item {
    int32_t seq, row, rows, kv_head;
    int32_t seg0, seg1; /* segments to do */
    float *part;        /* of seg0 and the first query; NULL: the thread's own, joined at once */
    int32_t n_segs;     /* part: segments of the whole tile */
} cpu_attn_item;

typedef struct cpu_attn_plan {
    const cpu_fast *f;
    const hy_attn *a;
    cpu_attn_item *items, *joins;
    int n_items, n_joins;
    int group;
    int64_t part_step; /* floats a query and segment */
    float *local;      /* results of unjoined segments, local_len floats a thread */
    size_t local_len;
} cpu_attn_plan;

/* The kernels can read this cache. */
bool cpu_attn_able(const hy_attn *a);
/* Every block that will be read is in the pool. */
hy_status cpu_attn_check(const hy_attn *a);
/* Call twice: with c->p NULL to learn the size, then with memory. */
void cpu_attn_plan_make(cpu_attn_plan *p, const cpu_fast *f, const hy_attn *a, cpu_carve *c);
void cpu_attn_run(const cpu_attn_plan *p, int item, int thread);
void cpu_attn_join(const cpu_attn_plan *p, int join);

#endif
