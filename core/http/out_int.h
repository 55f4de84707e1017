/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the out stage: one choice's text, tokens and logprobs on their way to the client, and
 * the JSON that carries them.
 *
 * Thread: out stage.  Owner: the call owns its choices.
 */
#ifndef HY_HTTP_OUT_INT_H
#define HY_HTTP_OUT_INT_H

#include "core/http/http_int.h"

/* One token with its logprob and alternatives (in hy_lps.top_*). */
typedef struct hy_lp {
    int32_t id, rank;
    float lp;
    uint32_t top_at, n_top;
} hy_lp;

typedef struct hy_lps {
    hy_lp *v;
    size_t n, cap;
    int32_t *top_id;
    float *top_lp;
    size_t n_top, cap_top;
} hy_lps;

bool hy_lps__add(hy_lps *l, const hy_ev *ev, const hy_evs *from);
void hy_lps__clear(hy_lps *l);
void hy_lps__fini(hy_lps *l);

struct hy_tool_stream; /* tools.c */

/* What has not been sent yet: all of a whole answer, the next piece of a stream. */
typedef struct hy_choice {
    hy_detok detok;
    hy_stop_state stop;
    hy_buf text;
    struct hy_tool_stream *tools; /* NULL: the text is the content */
    int32_t *ids;
    size_t n_ids, cap_ids;
    hy_lps lps;
    hy_lps prompt_lps;  /* the prompt's, on the first choice of a prompt */
    size_t text_offset; /* characters of token texts before lps.v[0] (completions) */
    int32_t n_tok;      /* tokens of the answer so far */
    hy_finish finish;
    int32_t stop_token; /* -1: none */
    bool begun;         /* stream: role or echo sent */
    bool done;          /* no more text: stop matched, or finished */
    bool closed;        /* stream: the piece with finish_reason was sent */
} hy_choice;

/* ---- out_json.c ---- */

/* The whole answer. */
void hy_out__answer_json(const hy_http *h, hy_call *c, hy_buf *b);
/* One SSE event for what choice i has; `last` closes it with its finish_reason. */
void hy_out__chunk(const hy_http *h, hy_call *c, size_t i, bool last, hy_buf *b);
/* First event of a chat choice: the role. */
void hy_out__role_chunk(const hy_http *h, hy_call *c, size_t i, hy_buf *b);
void hy_out__usage_chunk(const hy_http *h, hy_call *c, hy_buf *b);
void hy_out__error_chunk(const hy_api_error *e, hy_buf *b);

/* ---- out_lp.c: logprobs in both forms ---- */

void hy_out__chat_lps(const hy_http *h, const hy_call *c, const hy_lps *l, hy_buf *b);
/* `prompt` (may be NULL) goes before the others; the prompt's first token has no logprob. */
void hy_out__text_lps(const hy_http *h, const hy_call *c, hy_choice *x, const hy_prompt *prompt,
                      const hy_lps *prompt_lps, hy_buf *b);
void hy_out__prompt_lps(const hy_http *h, const hy_lps *l, hy_buf *b);

#endif
