/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat templates: the model's own Jinja template, run by a small interpreter of the subset that
 * published templates use, with Hugging Face's environment (trim_blocks, lstrip_blocks, loop
 * controls, tojson, raise_exception, strftime_now).
 *
 * Thread: a compiled template is immutable; render from any thread.  Owner: the caller destroys.
 */
#ifndef HY_TEXT_CHAT_H
#define HY_TEXT_CHAT_H

#include "core/base/buf.h"
#include "core/base/status.h"

#include <jansson.h>
#include <time.h>

typedef struct hy_jinja hy_jinja;

/* Compile. HY_E_UNSUPPORTED or HY_E_FORMAT with "line N: ..." for what is outside the subset. */
hy_status hy_jinja_compile(const char *src, size_t len, hy_jinja **out);
void hy_jinja_destroy(hy_jinja *j);

/* Render with a JSON object of variables (messages, tools, documents, add_generation_prompt,
 * bos_token, eos_token, ...; an absent name is undefined, JSON null is none). `now` feeds
 * strftime_now (local broken-down time of the caller's choice).
 * Errors: HY_E_INVAL with the template's own message when it calls raise_exception;
 * HY_E_UNSUPPORTED or HY_E_FORMAT for a type error while it runs; HY_E_LIMIT for output above
 * 64 MiB or too many steps. */
hy_status hy_jinja_render(const hy_jinja *j, const json_t *vars, const struct tm *now, hy_buf *out);

#endif
