/* SPDX-License-Identifier: Apache-2.0
 *
 * Tool calls of one choice: the text is split into content and calls (core/text/toolcall.h), the
 * calls are written as OpenAI's tool_calls, whole or as stream deltas.
 *
 * Thread: out stage.  Owner: the choice.
 */
#ifndef HY_HTTP_TOOLS_H
#define HY_HTTP_TOOLS_H

#include "core/base/buf.h"

#include <jansson.h>

struct hy_tool_stream;

/* rid and choice seed the call ids; tools: the request's, borrowed. parallel false: only the first
 * call is given. NULL: no memory. */
struct hy_tool_stream *hy_tools__create(const json_t *tools, const char *rid, size_t choice,
                                        bool parallel);
void hy_tools__destroy(struct hy_tool_stream *t);
/* Text in; what is content for certain is appended to out. */
void hy_tools__push(struct hy_tool_stream *t, const char *s, size_t len, hy_buf *out);
void hy_tools__finish(struct hy_tool_stream *t, hy_buf *out);
/* Something for a delta is there. */
bool hy_tools__pending(const struct hy_tool_stream *t);
/* At least one call: finish_reason is "tool_calls". */
bool hy_tools__called(const struct hy_tool_stream *t);
/* Array of what is new since the last delta. */
void hy_tools__delta_json(struct hy_tool_stream *t, hy_buf *b);
/* Array of all calls. */
void hy_tools__calls_json(const struct hy_tool_stream *t, hy_buf *b);

#endif
