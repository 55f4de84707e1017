/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8: step over characters, find what is not UTF-8, and replace it.
 *
 * Thread: any.  Owner: none.
 * Source: the Unicode Standard, table 3-7 (well-formed sequences), section 3.9 (maximal subparts).
 */
#ifndef HY_TEXT_UTF8_H
#define HY_TEXT_UTF8_H

#include "core/base/buf.h"

#include <stddef.h>
#include <stdint.h>

/* Length of the well-formed character at p (1..4), or 0 when there is none. With 0, *bad_out (may
 * be NULL) is the length of the maximal bad sequence (1..3); *cut_out (may be NULL) says whether it
 * reaches the end of the bytes, so that more bytes could complete it. */
size_t hy_utf8_next(const char *p, size_t len, size_t *bad_out, bool *cut_out);
/* As above, and the code point. */
size_t hy_utf8_decode(const char *p, size_t len, uint32_t *cp_out);
void hy_utf8_put(hy_buf *out, uint32_t cp);
bool hy_utf8_valid(const char *p, size_t len);
/* Append p with one U+FFFD for each byte that is not part of a character (vocabularies), or for
 * each maximal bad sequence (text shown to people, as Python's errors="replace"). */
void hy_utf8_replace_bytes(const char *p, size_t len, hy_buf *out);
void hy_utf8_replace_runs(const char *p, size_t len, hy_buf *out);
/* Unicode White_Space. */
bool hy_utf8_is_space(uint32_t cp);

#endif
