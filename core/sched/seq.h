/* SPDX-License-Identifier: Apache-2.0
 *
 * A job is a submitted request; a sequence is one of its choices: tokens, block tables, how far it
 * is computed, its sampler, and where in life it stands.
 *
 *     HELD ──► WAITING ──► RUNNING ──► DONE        HELD: the first choice's prompt is not computed
 *                │ ▲          │                    PARKED: blocks given, a load is under way
 *                │ └─preempt──┤
 *                └──► PARKED ─┘
 *
 * Thread: sched stage only; the sampler is exec's while in_step.  Owner: the engine.
 */
#ifndef HY_SCHED_SEQ_H
#define HY_SCHED_SEQ_H

#include "core/kv/kv.h"
#include "core/req/req.h"

typedef enum hy_seq_state {
    HY_SEQ_HELD,
    HY_SEQ_WAITING,
    HY_SEQ_PARKED,
    HY_SEQ_RUNNING,
    HY_SEQ_DONE, /* blocks given back; its HY_REQ_FINISHED is sent or due */
} hy_seq_state;

struct hy_job;
struct hy_sampler;
struct hy_conn_first;

typedef struct hy_seq {
    struct hy_job *job;
    int32_t choice;
    uint64_t uid; /* also the order of arrival */
    hy_seq_state state;
    bool in_step; /* part of the batch that exec has */
    bool known;   /* the connector was told of it */
    bool counted; /* its admission is in the metrics */
    bool prompt_counted;
    hy_finish end; /* not NONE: to be ended as soon as the step is back */
    hy_status end_error;
    char end_text[160];
    int32_t *tok; /* prompt, then output; NULL before start */
    int32_t n_tok, cap_tok;
    int32_t computed;  /* tokens whose KV is there */
    int32_t match_cap; /* a prefix hit may not be longer (no_prefix_cache, prompt_logprobs) */
    int32_t n_scored;  /* prompt_logprobs: prompt tokens with known successors' scores so far */
    int32_t n_local;   /* tokens hit before the load */
    int32_t n_ext;     /* tokens being loaded: PARKED, or in the step under way */
    bool no_ext;       /* a load has failed: the rest of its life it is computed here */
    bool remote;       /* it came with a reference to KV elsewhere */
    struct hy_conn_first *first; /* its first token, for a hand-over; NULL: not yet, or no need */
    bool discard;                /* that load failed: what the step computed is void */
    int32_t grant;               /* tokens in the step now planned */
    char *handover;              /* fields for the client, NULL: none */
    int32_t n_cached;            /* prompt tokens that were not computed at the first admission */
    int32_t n_preempted;
    hy_kv_seq kv;
    struct hy_sampler *sampler;
    uint64_t start_ns, first_ns, last_ns; /* admitted, first and last token; 0: not yet */
    struct hy_seq *prev, *next;           /* waiting list */
} hy_seq;

typedef struct hy_job {
    hy_req *r;
    int32_t n_live; /* choices without their last event */
    int32_t max_new;
    bool rope_long;
    bool queued; /* counted in the queue's length: none was admitted yet */
    hy_kv_hash root;
    bool silent;
    bool drew_seed;             /* the client gave none */
    uint64_t timer;             /* deadline; 0: none */
    struct hy_job *chain;       /* bucket of the table by id */
    struct hy_job *prev, *next; /* all jobs */
    hy_seq seqs[];              /* [r->n] */
} hy_job;

/* Tokens the sequence may have at most. */
static inline int32_t hy_seq_total(const hy_seq *s)
{
    return s->job->r->n_prompt + s->job->max_new;
}

static inline int32_t hy_seq_n_out(const hy_seq *s)
{
    return s->tok != NULL ? s->n_tok - s->job->r->n_prompt : 0;
}

static inline bool hy_seq_before(const hy_seq *a, const hy_seq *b)
{
    const int32_t pa = a->job->r->priority, pb = b->job->r->priority;
    return pa != pb ? pa < pb : a->uid < b->uid;
}

/* Room for all its tokens and tables; the chain of its prompt. HY_E_NOMEM. */
hy_status hy_seq_start(hy_seq *s, hy_kv *kv);
void hy_seq_fini(hy_seq *s);

/* ---- queues: waiting list and running array, both in order ---- */
typedef struct hy_seq_list {
    hy_seq *head, *tail;
    int32_t n;
} hy_seq_list;

void hy_seq_list_insert(hy_seq_list *l, hy_seq *s); /* from the tail: arrivals are mostly last */
void hy_seq_list_remove(hy_seq_list *l, hy_seq *s);

typedef struct hy_seq_array {
    hy_seq **at; /* [cap] */
    int32_t n, cap;
} hy_seq_array;

void hy_seq_array_insert(hy_seq_array *a, hy_seq *s);
void hy_seq_array_remove(hy_seq_array *a, const hy_seq *s);

#endif
