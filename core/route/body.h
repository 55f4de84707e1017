/* SPDX-License-Identifier: Apache-2.0
 *
 * A request's JSON as text: where the members of the outer object stand, and the same object with
 * some members taken out and others put in. Everything else keeps its bytes: numbers are not
 * rounded, prompts are not decoded.
 *
 * Thread: any.  Owner: offsets into the caller's text.
 */
#ifndef HY_ROUTE_BODY_H
#define HY_ROUTE_BODY_H

#include "core/base/buf.h"

enum { HY_BODY_MAX_MEMBERS = 128, HY_BODY_MAX_DEPTH = 256 };

typedef struct hy_member {
    size_t key, key_len; /* between the quotes, as written */
    size_t from, to;     /* the value */
} hy_member;

typedef struct hy_body {
    const char *s;
    hy_member m[HY_BODY_MAX_MEMBERS];
    size_t n;
    bool odd; /* a key stands twice */
} hy_body;

/* HY_E_FORMAT: no JSON object; HY_E_LIMIT: too deep or too many members. Numbers and literals are
 * not checked. */
hy_status hy_body_parse(const char *s, size_t len, hy_body *out);
/* NULL: no such member. */
const hy_member *hy_body_find(const hy_body *b, const char *key);
/* Is the value this literal ("true", "null", "1")? */
bool hy_body_is(const hy_body *b, const hy_member *m, const char *literal);
/* The object without the members named in `drop` (ends with NULL), then `add`: more members as
 * text, or NULL. */
void hy_body_write(hy_buf *out, const hy_body *b, const char *const *drop, const char *add);

/* What the router wants to know of a request for generation. */
typedef struct hy_body_facts {
    bool stream;
    bool alone; /* one node must do all: several choices or prompts, echo, prompt_logprobs */
    bool completion_key; /* max_completion_tokens is given */
    int32_t max_tokens;  /* that decode may give; -1: up to the context, 0: not known */
    bool min_tokens;     /* is given and not 0 */
    size_t prompt_len;   /* bytes of prompt or messages, as JSON */
} hy_body_facts;
void hy_body_facts_get(const hy_body *b, hy_body_facts *out);

/* Prefill's body: one token, no stream, and params (a JSON object) with remote_max_tokens added. */
void hy_body_prefill(hy_buf *out, const hy_body *b, const hy_body_facts *f, const char *params);
/* Decode's body: the client's own with params instead of whatever it sent; NULL: none. */
void hy_body_decode(hy_buf *out, const hy_body *b, const char *params);

#endif
