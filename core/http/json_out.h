/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing JSON straight into a buffer: strings, numbers, and the escapes they need. Answers have
 * few shapes and many tokens, so building trees first would cost more than it tells.
 *
 * Thread: any.  Owner: the caller's buffer.
 */
#ifndef HY_HTTP_JSON_OUT_H
#define HY_HTTP_JSON_OUT_H

#include "core/base/buf.h"

/* A quoted string; every byte that is not UTF-8 becomes U+FFFD. */
void hy_json_str(hy_buf *b, const char *s, size_t len);
void hy_json_cstr(hy_buf *b, const char *s);
/* The inside of a string, without quotes. */
void hy_json_chars(hy_buf *b, const char *s, size_t len);
/* A float with 9 significant digits, so that equal bits can be seen; what is not finite becomes
 * -9999.0, as vLLM does. */
void hy_json_lp(hy_buf *b, float x);
void hy_json_ids(hy_buf *b, const int32_t *ids, size_t n);
/* Array of byte values: "bytes" of a token. */
void hy_json_bytes(hy_buf *b, const char *s, size_t len);
/* Unicode code points in UTF-8 text. */
size_t hy_json_n_chars(const char *s, size_t len);

#endif
