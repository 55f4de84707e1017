/* SPDX-License-Identifier: Apache-2.0
 *
 * A request from birth to end: what a front end hands to the engine, and the events it gets back.
 *
 * Thread: built by the front end; after submit it belongs to the sched stage. Events are delivered
 * on the sched stage's thread: the callback copies or posts and returns at once.
 * Owner: the engine frees a submitted request after its last event.
 */
#ifndef HY_REQ_REQ_H
#define HY_REQ_REQ_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct hy_logit_bias {
    int32_t id;
    float bias;
} hy_logit_bias;

typedef struct hy_sampling {
    float temperature;                         /* 0: greedy */
    float top_p;                               /* 1: off */
    float min_p;                               /* 0: off */
    int32_t top_k;                             /* 0 or -1: off */
    float repetition_penalty;                  /* 1: off; prompt and output */
    float presence_penalty, frequency_penalty; /* 0: off; output only, as OpenAI and vLLM do */
    uint64_t seed;
    bool has_seed; /* else the engine draws one */
    hy_logit_bias *bias;
    size_t n_bias;
    int32_t logprobs; /* -1: none; else that many alternatives (0: the chosen one only) */
} hy_sampling;

typedef enum hy_finish {
    HY_FINISH_NONE,
    HY_FINISH_STOP,   /* end of text, stop token, stop string */
    HY_FINISH_LENGTH, /* max_tokens or context */
    HY_FINISH_ABORT,
    HY_FINISH_ERROR,
} hy_finish;

/* One token as sampled. Log-probabilities are of the model's own distribution (before penalties
 * and temperature), natural log. */
typedef struct hy_token_out {
    int32_t id;
    int32_t rank; /* 1 = most likely; 0 when logprobs are off */
    float logprob;
    int32_t n_top;
    const int32_t *top_ids; /* best first; borrowed for the call */
    const float *top_lps;
} hy_token_out;

typedef enum hy_req_event_kind {
    HY_REQ_PROMPT,   /* prompt_logprobs: tok[i] belongs to prompt token first + i */
    HY_REQ_TOKEN,    /* one sampled token of a choice */
    HY_REQ_FINISHED, /* this choice has ended */
} hy_req_event_kind;

typedef struct hy_req_event {
    hy_req_event_kind kind;
    uint64_t id;
    int32_t choice;
    int32_t first; /* HY_REQ_PROMPT */
    const hy_token_out *tok;
    int32_t n_tok;
    /* HY_REQ_FINISHED */
    hy_finish finish;
    int32_t stop_id; /* the token that stopped it, -1 otherwise (reported, not part of the text) */
    hy_status error; /* HY_FINISH_ERROR */
    const char *error_text;
    int32_t n_prompt, n_cached, n_output;
    const char *handover; /* connector fields for the client (JSON text), NULL: none; borrowed */
    bool last;            /* no further event for this request: arg may be released */
} hy_req_event;

typedef struct hy_req {
    uint64_t id; /* unique in this process; from hy_req_next_id */
    int32_t *prompt;
    int32_t n_prompt;
    int32_t n;          /* choices, >= 1 */
    int32_t max_tokens; /* new tokens a choice; < 0: up to the context */
    /* Prefill for a peer: new tokens that all nodes together may give, < 0: up to the context, 0:
     * as max_tokens. Longrope's factors are chosen by it, so that both nodes choose alike. */
    int32_t plan_tokens;
    int32_t min_tokens;
    bool ignore_eos;
    int32_t *stop_ids; /* stop tokens beside the model's end tokens */
    size_t n_stop;
    int32_t prompt_logprobs; /* -1: none */
    int32_t priority;        /* lower is sooner, as in vLLM */
    char *cache_salt;        /* NULL: none */
    bool no_prefix_cache;    /* neither read nor (for reading) matched; prompt_logprobs sets it */
    int64_t deadline_ns;     /* hy_clock time; 0: none */
    hy_sampling sampling;
    int64_t arrival_ns;
    char *handover; /* connector fields (JSON text), NULL: none */
    void (*on_event)(void *arg, const hy_req_event *ev);
    void *arg;
} hy_req;

uint64_t hy_req_next_id(void);
/* An empty request with defaults (temperature 1, top_p 1, n 1, logprobs -1, ...). NULL: no memory.
 */
hy_req *hy_req_create(void);
/* Frees prompt, stop_ids, bias, cache_salt, handover and the request itself. NULL is fine. */
void hy_req_destroy(hy_req *r);

#endif
