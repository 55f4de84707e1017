/* SPDX-License-Identifier: Apache-2.0
 *
 * One planned step: which tokens of which sequences run, with which blocks, and which rows are
 * sampled. Written by sched, read by exec; results travel back in the same object.
 *
 * Thread: sched until posted, exec until it comes back.  Owner: sched (reused, double-buffered).
 */
#ifndef HY_REQ_BATCH_H
#define HY_REQ_BATCH_H

#include "core/req/req.h"
#include "hal/backend.h"

struct hy_sampler;

enum { HY_MAX_TOP = 128 }; /* most alternatives a token can report */

/* Mailbox messages between sched and exec; data is the hy_batch, which travels without changing
 * hands for good: sched owns it again when it is back. */
enum {
    HY_MSG_STEP = 1000, /* sched to exec: run this batch */
    HY_MSG_STEP_DONE    /* exec to sched: results are in it; posted on reserved credit */
};

/* One sequence's part of a step. Sequence i owns rows [rows.seq_row[i], rows.seq_row[i+1]). */
typedef struct hy_batch_seq {
    uint64_t req_id;
    int32_t choice;
    bool sample;     /* sample the last row */
    int32_t out_pos; /* output position of the sampled token, 0 = first new one */
    bool rope_long;  /* longrope: this request uses the long factors */
    int32_t
        prompt_lp_first;    /* first row (in the step) whose next prompt token is scored, -1 none */
    int32_t prompt_lp_n;    /* that many rows; row r scores targets[r] */
    int32_t prompt_lp_top;  /* alternatives */
    const int32_t *targets; /* [prompt_lp_n] next prompt tokens; borrowed from the request */
    struct hy_sampler *sampler; /* used by exec only while the step runs */
    /* results */
    int32_t token;    /* sampled id */
    hy_token_out out; /* with logprobs when asked; arrays inside the batch's result store */
    const hy_token_out *prompt_out; /* [prompt_lp_n] */
    hy_status status;               /* this sequence alone failed (e.g. NaN logits) */
} hy_batch_seq;

typedef struct hy_batch {
    uint64_t step;
    hy_rows rows;
    int32_t n_groups;
    hy_block_table *bt;                   /* [n_groups] */
    hy_batch_seq *seqs;                   /* [rows.n_seqs] */
    void *connector_meta;                 /* opaque per-step plan of the KV connector; NULL: none */
    struct hy_conn_events *connector_out; /* exec adds what the worker half reports (connector.h) */
    hy_status status;                     /* the whole step failed (device) */
    int64_t exec_ns;                      /* time the step took */
} hy_batch;

#endif
