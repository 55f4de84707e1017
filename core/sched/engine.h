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
struct hy_connector; /* core/connector/connector.h */
struct hy_metrics;
struct hy_sampler;

/* Samplers live in core/exec, which sched does not see: the node hands their functions over. */
typedef struct hy_sampler_ops {
    /* end_ids: tokens barred before min_tokens. params and arrays are read at create only. */
    hy_status (*create)(void *ctx, const hy_sampling *params, int32_t choice, const int32_t *prompt,
                        int32_t n_prompt, const int32_t *end_ids, size_t n_end, int32_t min_tokens,
                        struct hy_sampler **out);
    void (*destroy)(void *ctx, struct hy_sampler *s); /* NULL is fine */
    void (*accept)(void *ctx, struct hy_sampler *s, int32_t id);
    void *ctx;
} hy_sampler_ops;

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
    uint64_t
        step_ns; /* max_prefill_tokens 0: aim at steps this long while streams decode; 0: off */
    int32_t max_seqs;
    int32_t max_queue; /* waiting requests; above: HY_E_BUSY */
    bool prefix_cache;
    int32_t rope_long_from; /* longrope threshold, 0: none */
    const int32_t *end_ids; /* the model's end-of-generation tokens; copied */
    size_t n_end;
    uint64_t seed;  /* for requests without one */
    uint64_t epoch; /* of this process: KV events carry it */
    hy_sampler_ops sampler;
    const char *model_name; /* label of the metrics; copied */
    struct hy_trace *trace; /* timelines; NULL: none */
    bool check;             /* verify all KV invariants after every message (tests) */
} hy_engine_opts;

/* Checks the options; metrics and connector may be NULL (none; the null connector) and outlive the
 * engine. The stage is not added to a runtime: the node does. */
hy_status hy_engine_create(const hy_engine_opts *o, struct hy_metrics *m, struct hy_connector *c,
                           hy_engine **out);
/* After the runtime has stopped; NULL is fine. Requests left over get their last event here. */
void hy_engine_destroy(hy_engine *e);
/* Posts HY_MSG_STEP to exec; takes HY_MSG_STEP_DONE on this stage's mailbox. */
hy_stage *hy_engine_stage(hy_engine *e);
void hy_engine_set_exec(hy_engine *e, hy_mbox *exec); /* before start */

/* Submit moves the request on HY_OK. HY_E_BUSY: queue full; HY_E_INVAL: can never run (text says
 * why: prompt longer than context, blocks, ...). Every accepted request ends in exactly one event
 * with `last` set. While draining: HY_E_BUSY. */
hy_status hy_engine_submit(hy_engine *e, hy_req *r);
/* The client has gone: frees its blocks within one step. Unknown ids are no-ops. */
void hy_engine_abort(hy_engine *e, uint64_t id);
/* End one choice early as stopped (a stop string matched in the text). Tokens already under way may
 * still be reported before its HY_REQ_FINISHED. */
void hy_engine_finish_choice(hy_engine *e, uint64_t id, int32_t choice);

typedef struct hy_engine_stats {
    int32_t running, waiting, parked;
    int32_t blocks_total, blocks_free, blocks_cached; /* group 0 */
    uint64_t preemptions, prompt_tokens, cached_tokens, output_tokens, steps, finished;
} hy_engine_stats;
void hy_engine_stats_get(hy_engine *e, hy_engine_stats *out);

#endif
