/* SPDX-License-Identifier: Apache-2.0
 *
 * From an OpenAI chat request to the prompt: checks `messages`, `tools`, `documents` and
 * `chat_template_kwargs`, turns them into the template's variables as vLLM does, and renders.
 *   - content parts stay a list for a template that walks over them, else their texts are joined by
 *     newlines; a plain string becomes a list of one part only where the template knows no strings;
 *   - null content is "", arguments of tool calls become objects, empty `tools` become none;
 *   - `reasoning`, `thinking` and `reasoning_content` stand for each other, as in transformers.
 *
 * Thread: any; nothing is kept.  Owner: the caller owns inputs and results.
 */
#ifndef HY_TEXT_CHATREQ_H
#define HY_TEXT_CHATREQ_H

#include "core/text/chat.h"

/* How a template wants message contents. */
typedef enum hy_chat_content {
    HY_CHAT_STRING, /* never walks over a content */
    HY_CHAT_EITHER, /* walks over lists, takes strings too */
    HY_CHAT_PARTS,  /* walks over contents and never asks whether one is a string */
} hy_chat_content;

hy_chat_content hy_chatreq_content(const hy_jinja *j);
/* Does the template read this variable ("tools")? */
bool hy_chatreq_reads(const hy_jinja *j, const char *name);

typedef struct hy_chatreq {
    const json_t *messages;     /* as in the request; must be a non-empty array */
    const json_t *tools;        /* NULL, null or an array */
    const json_t *documents;    /* NULL, null or an array */
    const json_t *kwargs;       /* chat_template_kwargs: NULL, null or an object */
    const json_t *token_vars;   /* bos_token, eos_token, ... of the vocabulary; NULL: none */
    bool add_generation_prompt; /* not together with continue_final_message */
    bool continue_final_message;
    const struct tm *now; /* for strftime_now */
    /* [engine] user_marks = text: spellings of the special tokens; where one stands in a message,
     * tool or document, it is reported in hy_chat_text.plain. n_marks 0: user_marks = parse. */
    const char *const *marks;
    size_t n_marks;
} hy_chatreq;

typedef struct hy_chat_range {
    size_t from, to; /* bytes of the text, from <= to */
} hy_chat_range;

typedef struct hy_chat_text {
    hy_buf text;
    hy_chat_range *plain; /* ascending, disjoint: encode these without HY_TOK_PARSE_SPECIAL, and
                           * each stretch between them by itself */
    size_t n_plain;
} hy_chat_text;

void hy_chat_text_fini(hy_chat_text *t);

/* The template's variables; *vars_out is new. HY_E_INVAL names the field ("messages[2].role ...");
 * HY_E_UNSUPPORTED for images, audio and video. */
hy_status hy_chatreq_vars(const hy_jinja *j, const hy_chatreq *q, json_t **vars_out);
/* Variables and rendering in one. Errors as hy_chatreq_vars and hy_jinja_render. */
hy_status hy_chatreq_render(const hy_jinja *j, const hy_chatreq *q, hy_chat_text *out);

#endif
