/* SPDX-License-Identifier: Apache-2.0
 *
 * The planning function: which sequences get how many tokens in the next step. Pure: data in, data
 * out, so that every policy below is tested without an engine.
 *
 * Order is (priority, arrival), lower first. Every running decode gets its token first; what is
 * left of the token budget goes to prompts, running and waiting alike, in order; while decodes run,
 * prompts get at most max_prefill tokens a step, so that no stream waits longer than one such step.
 * When a running sequence finds no block, the worst running one is preempted (its tokens are
 * computed again later). A waiting sequence is admitted only when all of its known tokens fit
 * beside one spare block for each running sequence, and never after a preemption in the same step;
 * the first that does not fit bars those behind it. So the best sequence always advances: it may
 * preempt all others, and a request that would not fit into an empty pool was refused at submit.
 *
 * Thread: any; pure.  Owner: the caller's arrays.
 */
#ifndef HY_SCHED_PLAN_H
#define HY_SCHED_PLAN_H

#include "core/base/status.h"

#include <stdint.h>

enum { HY_PLAN_MAX_GROUPS = 8 };

typedef struct hy_plan_seq {
    int32_t priority; /* lower is sooner */
    uint64_t arrival; /* then this; unique */
    int32_t
        computed; /* tokens whose KV is there, or comes from a hit or load; waiting: if admitted */
    int32_t todo; /* tokens known and not computed, >= 1; 1 and running: a decode */
    bool park;    /* waiting: if admitted, it takes its blocks and waits for a load */
    int32_t have[HY_PLAN_MAX_GROUPS];  /* table entries (waiting: from the hit) */
    int32_t live[HY_PLAN_MAX_GROUPS];  /* of them real blocks */
    int32_t touch[HY_PLAN_MAX_GROUPS]; /* waiting: of them in the free list now */
    /* out */
    bool admit;
    int32_t grant; /* tokens in this step */
} hy_plan_seq;

typedef struct hy_plan {
    hy_plan_seq *run; /* [n_run] in order */
    int32_t n_run;
    hy_plan_seq *wait; /* [n_wait] in order: the head of the queue */
    int32_t n_wait;
    int32_t n_parked; /* sequences that hold a place but cannot run */
    int32_t n_groups, block_tokens;
    int32_t free[HY_PLAN_MAX_GROUPS];  /* free blocks */
    int32_t least[HY_PLAN_MAX_GROUPS]; /* window groups: blocks that suffice to go on token by
                                        * token; 0: a full group */
    int32_t budget;                    /* tokens a step */
    int32_t max_prefill;               /* prompt tokens a step while decodes run; 0: no limit */
    int32_t max_seqs;                  /* running and parked */
    bool preempted;                    /* something was, for this step */
    /* out */
    int32_t victim;   /* index in run: preempt it, then plan again with preempted set; else -1 */
    int32_t n_tokens; /* of all grants */
    int32_t n_grants;
    int32_t n_admit;
    bool short_of_blocks; /* the head of the queue did not fit */
} hy_plan;

void hy_plan_make(hy_plan *p);

#endif
