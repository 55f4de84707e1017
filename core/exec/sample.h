/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling of one sequence: penalties, bias, temperature, top-k, top-p, min-p, draw. State is the
 * token counts; randomness is counter-based (seed, choice, position, draw), so a sequence can be
 * preempted or moved and draws the same tokens.
 *
 * Thread: created by sched, used by exec while a step runs.  Owner: the sequence.
 */
#ifndef HY_EXEC_SAMPLE_H
#define HY_EXEC_SAMPLE_H

#include "core/req/req.h"

typedef struct hy_sampler hy_sampler;

typedef struct hy_sampler_opts {
    const hy_sampling *params; /* copied */
    int32_t choice;
    int32_t vocab;
    const int32_t *prompt; /* for repetition_penalty; read at create only */
    int32_t n_prompt;
    const int32_t *end_ids; /* barred while position < min_tokens */
    size_t n_end;
    int32_t min_tokens;
} hy_sampler_opts;

hy_status hy_sampler_create(const hy_sampler_opts *o, hy_sampler **out);
void hy_sampler_destroy(hy_sampler *s);
/* Scratch for n rows of vocab; shared by all samplers of one exec. */
typedef struct hy_sample_ws hy_sample_ws;
hy_sample_ws *hy_sample_ws_create(int32_t vocab);
void hy_sample_ws_destroy(hy_sample_ws *w);
/* True when the choice is the plain argmax and nothing is reported: exec may use the device's
 * top-1 instead of hy_sampler_draw. Depends on the position only through min_tokens. */
bool hy_sampler_is_argmax(const hy_sampler *s, int32_t pos);
/* True when draw needs lse (log-probabilities are reported). */
bool hy_sampler_wants_lse(const hy_sampler *s);
/* Choose the token at output position pos (0 = first new one) from raw logits [vocab]. lse is the
 * device's log-sum-exp of them (hy_topk), read only when hy_sampler_wants_lse. top_ids and top_lps
 * take params.logprobs entries; out->top_* point at them. HY_E_INVAL: logits hold a NaN, or no
 * finite value. */
hy_status hy_sampler_draw(hy_sampler *s, hy_sample_ws *w, const float *logits, float lse,
                          int32_t pos, hy_token_out *out, int32_t *top_ids, float *top_lps);
/* Log-probability, rank and the n_top best alternatives of a given token (prompt_logprobs). */
void hy_sample_score(const float *logits, float lse, int32_t vocab, int32_t target, int32_t n_top,
                     hy_token_out *out, int32_t *top_ids, float *top_lps);
/* The sequence accepted this output token: once a token, in order, by sched. Counts survive
 * preemption, since the tokens do. */
void hy_sampler_accept(hy_sampler *s, int32_t id);

#endif
