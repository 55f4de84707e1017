/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine as front ends see it: submit, abort, finish; and the sched stage behind it.
 *
 * Thread: submit/abort/finish/stats from any thread (they post to the sched stage's mailbox).
 * Owner: the node creates and destroys it; exec runs on another stage.
 */
#ifndef HY_SCHED_ENGINE_H
#define HY_SCHED_ENGINE_H

#include "core/base/stage.h"
#include "core/req/batch.h"
#include "core/req/req.h"

typedef struct hy_engine hy_engine;

typedef struct hy_engine_opts {
    /* KV groups: window of each (0: full) and blocks in each pool */
    int32_t n_groups;
    const int32_t *windows;
    const int32_t *n_blocks;
    int32_t block_tokens;
    uint8_t fingerprint[32]; /* root of the prefix hash chain */
    int32_t context;         /* longest prompt + output */
    int32_t vocab;
    int32_t max_batch_tokens;   /* budget of a step */
    int32_t max_prefill_tokens; /* prompt tokens a step while others decode; 0: the budget's rest */
    int32_t max_seqs;
    int32_t max_queue; /* waiting requests; above: HY_E_BUSY */
    bool prefix_cache;
    int32_t rope_long_from; /* longrope threshold, 0: none */
    const int32_t *end_ids; /* the model's end-of-generation tokens; copied */
    size_t n_end;
    uint64_t seed;  /* for requests without one */
    uint64_t epoch; /* of this process: KV events carry it */
} hy_engine_opts;

/* Submit moves the request on HY_OK. HY_E_BUSY: queue full; HY_E_INVAL: can never run (text says
 * why: prompt longer than context, blocks, ...). Every accepted request ends in exactly one event
 * with `last` set. */
hy_status hy_engine_submit(hy_engine *e, hy_req *r);
/* The client has gone: frees its blocks within one step. Unknown ids are no-ops. */
void hy_engine_abort(hy_engine *e, uint64_t id);
/* End one choice early as stopped (a stop string matched in the text). */
void hy_engine_finish_choice(hy_engine *e, uint64_t id, int32_t choice);

typedef struct hy_engine_stats {
    int32_t running, waiting, parked;
    int32_t blocks_total, blocks_free, blocks_cached; /* group 0 */
    uint64_t preemptions, prompt_tokens, cached_tokens, output_tokens, steps, finished;
} hy_engine_stats;
void hy_engine_stats_get(hy_engine *e, hy_engine_stats *out);

#endif
