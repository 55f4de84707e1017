/* SPDX-License-Identifier: Apache-2.0
 *
 * Growing byte buffer.
 *
 * Thread: one at a time.  Owner: the holder.
 */
#include "core/base/buf.h"
#include "core/base/alloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hy_buf_init(hy_buf *b)
{
    memset(b, 0, sizeof(*b));
}

void hy_buf_fini(hy_buf *b)
{
    free(b->data);
    hy_buf_init(b);
}

void hy_buf_clear(hy_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data != NULL)
        b->data[0] = '\0';
}

bool hy_buf_reserve(hy_buf *b, size_t n)
{
    if (b->failed || n > SIZE_MAX / 4 || b->len > SIZE_MAX / 4) {
        b->failed = true;
        return false;
    }
    size_t need = b->len + n + 1;
    if (need <= b->cap)
        return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap *= 2;
    char *p = hy_realloc(b->data, cap);
    if (p == NULL) {
        b->failed = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

void hy_buf_add(hy_buf *b, const void *p, size_t n)
{
    if (!hy_buf_reserve(b, n))
        return;
    if (n != 0)
        memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void hy_buf_puts(hy_buf *b, const char *s)
{
    hy_buf_add(b, s, strlen(s));
}

void hy_buf_putc(hy_buf *b, char c)
{
    hy_buf_add(b, &c, 1);
}

void hy_buf_printf(hy_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !hy_buf_reserve(b, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

void hy_buf_drop(hy_buf *b, size_t n)
{
    HY_ASSERT(n <= b->len);
    if (n == 0)
        return;
    b->len -= n;
    memmove(b->data, b->data + n, b->len);
    b->data[b->len] = '\0';
}

const char *hy_buf_str(const hy_buf *b)
{
    return b->data != NULL ? b->data : "";
}

char *hy_buf_take(hy_buf *b)
{
    char *p = b->failed ? NULL : b->data;
    if (b->failed)
        free(b->data);
    else if (p == NULL)
        p = hy_calloc(1, 1);
    hy_buf_init(b);
    return p;
}

void hy_buf_put_url(hy_buf *b, const char *host, int port)
{
    hy_buf_printf(b, strchr(host, ':') != NULL ? "http://[%s]:%d" : "http://%s:%d", host, port);
}
