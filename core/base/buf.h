/* SPDX-License-Identifier: Apache-2.0
 *
 * A growing byte buffer, always followed by a NUL so that it is also a C string.
 *
 * Thread: one at a time.  Owner: the holder calls hy_buf_fini.
 * Allocation failure sets `failed` and later appends do nothing: check once at the end.
 */
#ifndef HY_BASE_BUF_H
#define HY_BASE_BUF_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct hy_buf {
    char *data; /* NULL until the first append; use hy_buf_str for a string */
    size_t len;
    size_t cap;
    bool failed;
} hy_buf;

void hy_buf_init(hy_buf *b);
void hy_buf_fini(hy_buf *b);
void hy_buf_clear(hy_buf *b);
/* Room for n more bytes; false (and b->failed) when out of memory. */
bool hy_buf_reserve(hy_buf *b, size_t n);
void hy_buf_add(hy_buf *b, const void *p, size_t n);
void hy_buf_puts(hy_buf *b, const char *s);
void hy_buf_putc(hy_buf *b, char c);
void hy_buf_printf(hy_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Drop the first n bytes. */
void hy_buf_drop(hy_buf *b, size_t n);
/* NUL-terminated content, "" when empty. Borrowed. */
const char *hy_buf_str(const hy_buf *b);
/* Hand the malloc'd string over (never NULL unless out of memory) and reset b. */
char *hy_buf_take(hy_buf *b);

/* "http://host:port", an IPv6 address in brackets. */
void hy_buf_put_url(hy_buf *b, const char *host, int port);

#endif
