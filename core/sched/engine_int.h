/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the engine, for core/sched only.
 *
 * Thread: sched stage, but for the atomics and the options.  Owner: hy_engine.
 */
#ifndef HY_SCHED_ENGINE_INT_H
#define HY_SCHED_ENGINE_INT_H

#include "core/base/metric.h"
#include "core/base/trace.h"
#include "core/connector/connector.h"
#include "core/sched/engine.h"
#include "core/sched/pace.h"
#include "core/sched/plan.h"
#include "core/sched/seq.h"

#include <stdatomic.h>

enum { /* messages to the sched stage, beside HY_MSG_STEP_DONE */
       HY_SCHED__SUBMIT = 1,
       HY_SCHED__ABORT,    /* arg: id */
       HY_SCHED__FINISH,   /* arg: id, data: choice */
       HY_SCHED__DEADLINE, /* timer; arg: id */
       HY_SCHED__POLL,     /* timer: ask the connector again, look at the ledger's deadlines */
};

enum { HY_SCHED__JOBS = 4096 }; /* buckets of the table by id */

/* What became of a sequence in a step: events are delivered from this after the next is posted. */
typedef struct hy_outcome {
    hy_seq *s;
    int32_t i;  /* in the batch */
    bool token; /* sampled and kept */
    bool finished;
    int32_t stop_id;
    int32_t plp_first, plp_n; /* scored prompt tokens */
} hy_outcome;

/* One of two step buffers. b is first: exec gives back its address. */
typedef struct hy_step {
    hy_batch b;
    int32_t *ids, *pos, *seq_row;
    int32_t *table[HY_KV_MAX_GROUPS];
    hy_block_table bt[HY_KV_MAX_GROUPS];
    hy_batch_seq *bs;
    hy_seq **seq;
    hy_outcome *out;
    int32_t n_out;
    hy_conn_events events;
    bool extras; /* results hold arrays of exec's: deliver them before the next step */
} hy_step;

typedef struct hy_sched_metrics {
    hy_metric *running, *waiting, *kv_usage;
    hy_metric *prefix_queries, *prefix_hits, *ext_queries, *ext_hits;
    hy_metric *preemptions, *prompt_tokens, *cached_tokens, *generation_tokens;
    hy_metric *ttft, *itl, *tpot, *e2e, *queue_time, *inference_time, *prefill_time, *decode_time;
    hy_metric *req_prompt, *req_generation, *req_preemptions, *iteration_tokens;
    hy_metric *params_n, *params_max_tokens;
    hy_metric *success[5]; /* by hy_finish */
    hy_metric *pd_computed;
} hy_sched_metrics;

struct hy_engine {
    hy_engine_opts o; /* arrays are our copies */
    int32_t windows[HY_KV_MAX_GROUPS], n_blocks[HY_KV_MAX_GROUPS];
    int32_t *end_ids;
    int32_t max_total; /* tokens one sequence can have in the pools */
    int32_t n_reserved;
    hy_connector *conn;
    hy_stage *stage;
    hy_mbox *exec;
    hy_kv *kv;
    hy_sched_metrics m;

    hy_job **by_id;
    hy_job *jobs; /* all */
    int32_t n_jobs;
    hy_seq_list waiting;
    hy_seq_array running;
    hy_seq_array parked;
    int32_t n_held;
    uint64_t next_uid;

    hy_step step[2];
    int which; /* buffer to build next */
    hy_step *in_flight;
    uint64_t n_step;
    hy_plan plan;
    hy_pace pace;
    hy_seq **cand;  /* [max_seqs] sequences of plan.wait */
    hy_kv_hit *hit; /* [max_seqs] */
    int32_t *ext;   /* [max_seqs] tokens that the connector has beyond the hit */
    bool ask_later; /* the connector wants to be asked again */
    uint64_t poll_timer, poll_at;
    uint64_t *preempted; /* uids since the last step, for the connector */
    int32_t n_preempted, cap_preempted;
    uint64_t next_empty; /* earliest time of the next step without tokens */
    bool draining, stopped;

    /* read and written by any thread */
    _Atomic int32_t queued;  /* submitted and not yet admitted */
    _Atomic int32_t cancels; /* abort and finish messages under way */
    _Atomic bool refuse;
    struct {
        _Atomic int32_t running, waiting, parked, blocks_free, blocks_cached;
        _Atomic uint64_t preemptions, prompt_tokens, cached_tokens, output_tokens, steps, finished;
    } st;
};

/* step.c: plan and post the next step, when none is under way. */
void hy_sched__try_step(hy_engine *e);
hy_status hy_sched__steps_init(hy_engine *e);
void hy_sched__steps_fini(hy_engine *e);

/* result.c */
void hy_sched__step_done(hy_engine *e, hy_batch *b);
/* A running sequence whose prompt's KV is all here takes the first token that came along. True: it
 * has ended, and may be freed. */
bool hy_sched__take_first(hy_engine *e, hy_seq *s, const hy_conn_first *f);

/* finish.c */
/* Give back its blocks and take it out of its queue; the event comes with deliver. Not in_step. */
void hy_sched__retire(hy_engine *e, hy_seq *s);
/* The HY_REQ_FINISHED of a retired sequence; true: it was the last, the job is freed. */
bool hy_sched__deliver_end(hy_engine *e, hy_seq *s, int32_t stop_id, const hy_token_out *tok);
/* End it as soon as no step has it: now, or when the step is back. True: the job is freed. */
bool hy_sched__end(hy_engine *e, hy_seq *s, hy_finish how, hy_status error, const char *text);
void hy_sched__end_job(hy_engine *e, hy_job *j, hy_finish how, hy_status error, const char *text);
/* The first choice's prompt is computed (or never will be): the others may start. */
void hy_sched__release_held(hy_engine *e, hy_job *j);
/* The connector's blocks and sequence as it sees them. */
hy_conn_req hy_sched__conn_req(const hy_seq *s);
hy_conn_blocks hy_sched__conn_blocks(const hy_engine *e, const hy_seq *s);
/* The first token that came with the sequence's KV, if it can be used; NULL: none. */
const hy_conn_first *hy_sched__first(hy_engine *e, hy_seq *s);
hy_status hy_sched__make_sampler(hy_engine *e, hy_seq *s);
/* Make a waiting sequence of a new or released one. */
hy_status hy_sched__enqueue(hy_engine *e, hy_seq *s);
/* n tokens came through the connector and are used: those of the prompt count as cached. */
void hy_sched__count_loaded(hy_engine *e, hy_seq *s, int32_t n);
void hy_sched__conn_events(hy_engine *e, const hy_conn_events *ev);

/* sched_metrics.c */
void hy_sched__metrics_init(hy_engine *e, hy_metrics *m);
void hy_sched__metrics_finish(hy_engine *e, const hy_seq *s, uint64_t now);
/* Gauges and stats, after anything changed. */
void hy_sched__publish_stats(hy_engine *e);

#endif
