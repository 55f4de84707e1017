/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor's state, private to core/exec.
 *
 * Thread: exec stage only.  Owner: hy_exec_destroy.
 */
#ifndef HY_EXEC_EXEC_INT_H
#define HY_EXEC_EXEC_INT_H

#include "core/exec/ahead.h"
#include "core/exec/exec.h"
#include "core/exec/sample.h"

enum {
    HY_EXEC_GROUPS = 8,
    HY_EXEC_ROPES = 4,
    /* Result stores in turn: two batches are in flight at most, and one is being read. */
    HY_EXEC_STORES = 3,
    HY_EXEC_MEM = 4 + HY_EXEC_GROUPS + 2 * HY_EXEC_ROPES,
};

/* A row that needs logits. */
typedef struct hy_exec_job {
    int32_t row, seq;
    int32_t target; /* index of the prompt token that it scores; -1: it is sampled */
} hy_exec_job;

/* Arrays that results point into. */
typedef struct hy_exec_store {
    int32_t *ids; /* [jobs][HY_MAX_TOP] */
    float *lps;
    hy_token_out *prompt; /* [max_rows] */
} hy_exec_store;

struct hy_exec {
    hy_model *m;
    hy_dev *dev;
    hy_exec_opts o;
    bool host_visible;
    hy_queue *queue;
    struct {
        void *p;
        size_t bytes;
    } mem[HY_EXEC_MEM];
    size_t n_mem;
    hy_kv_pool pools[HY_EXEC_GROUPS];
    hy_ahead *ahead; /* NULL: pages come as blocks are used */
    /* device */
    float *x, *q, *logits;
    hy_ws ws;
    struct {
        float *cos, *sin;
    } rope[HY_EXEC_ROPES];
    /* host */
    float *stage_cos, *stage_sin, *host_logits; /* when the device's memory is not ours to see */
    hy_exec_job *jobs;
    int32_t n_jobs;
    int32_t held_from, held_n; /* jobs whose logits are in the buffer */
    int32_t *head_rows;
    int32_t *best;
    float *best_value, *lse;
    hy_sample_ws *sample_ws;
    hy_exec_store stores[HY_EXEC_STORES];
    int store;
    hy_exec_probe probe;
    float *host_x; /* what the probe sees, where the device's memory is not ours to see */
    void *probe_arg;
};

#endif
