/* SPDX-License-Identifier: Apache-2.0
 *
 * Tool calls in generated text, whole or as it streams. Two forms, both between <tool_call> and
 * </tool_call>:
 *   - Qwen and Hermes: {"name": ..., "arguments": {...}}
 *   - Qwen3-Coder:     <function=NAME><parameter=KEY>\nVALUE\n</parameter>...</function>
 * What does not parse stays content, marks included. White space around calls is dropped.
 *
 * Feeding byte by byte gives the same calls and the same content as feeding at once.
 *
 * Thread: one at a time.  Owner: the caller destroys; event pointers live until the callback ends.
 */
#ifndef HY_TEXT_TOOLCALL_H
#define HY_TEXT_TOOLCALL_H

#include "core/base/buf.h"
#include "core/base/status.h"

#include <jansson.h>

typedef enum hy_toolcall_kind {
    HY_TOOLCALL_CONTENT, /* text, len */
    HY_TOOLCALL_BEGIN,   /* index, id, name */
    HY_TOOLCALL_ARGS,    /* index, text, len: a piece of the arguments' JSON */
    HY_TOOLCALL_END,     /* index */
} hy_toolcall_kind;

typedef struct hy_toolcall_event {
    hy_toolcall_kind kind;
    int index; /* of the call in this answer, from 0 */
    const char *id, *name;
    const char *text;
    size_t len;
} hy_toolcall_event;

typedef void (*hy_toolcall_fn)(void *arg, const hy_toolcall_event *ev);

typedef struct hy_toolcall hy_toolcall;

/* tools: the request's tools, for the types of Qwen3-Coder's parameters; NULL: all are strings.
 * seed: from which ids ("call_" and 24 hex digits) are made; give each answer another. */
hy_status hy_toolcall_create(const json_t *tools, uint64_t seed, hy_toolcall_fn fn, void *arg,
                             hy_toolcall **out);
void hy_toolcall_destroy(hy_toolcall *t);
/* The next bytes of the answer. HY_E_NOMEM. */
hy_status hy_toolcall_feed(hy_toolcall *t, const char *text, size_t len);
/* The answer is complete: what was held back comes out. */
hy_status hy_toolcall_finish(hy_toolcall *t);
/* Calls seen so far; finish_reason is "tool_calls" when there are any. */
int hy_toolcall_count(const hy_toolcall *t);

/* A whole answer: {"role":"assistant","content":string or null,"tool_calls":[...]} (no tool_calls
 * when there are none). Text that is not UTF-8 is HY_E_FORMAT. */
hy_status hy_toolcall_parse(const char *text, size_t len, const json_t *tools, uint64_t seed,
                            json_t **message_out);

#endif
