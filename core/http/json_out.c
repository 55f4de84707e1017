/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON writer: see json_out.h.
 *
 * Thread: any.  Owner: the caller's buffer.
 */
#include "core/http/json_out.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Length of the UTF-8 character at s (shortest form, no surrogates, up to U+10FFFF), 0 if none. */
static size_t utf8_len(const unsigned char *s, size_t n)
{
    unsigned char c = s[0];
    size_t len = c < 0x80                ? 1
                 : c >= 0xc2 && c < 0xe0 ? 2
                 : c >= 0xe0 && c < 0xf0 ? 3
                 : c >= 0xf0 && c < 0xf5 ? 4
                                         : 0;
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((c == 0xe0 && s[1] < 0xa0) || (c == 0xed && s[1] > 0x9f) || (c == 0xf0 && s[1] < 0x90) ||
        (c == 0xf4 && s[1] > 0x8f))
        return 0;
    return len;
}

static void add_control(hy_buf *b, unsigned char c)
{
    switch (c) {
    case '"':
        hy_buf_add(b, "\\\"", 2);
        return;
    case '\\':
        hy_buf_add(b, "\\\\", 2);
        return;
    case '\n':
        hy_buf_add(b, "\\n", 2);
        return;
    case '\r':
        hy_buf_add(b, "\\r", 2);
        return;
    case '\t':
        hy_buf_add(b, "\\t", 2);
        return;
    default:
        hy_buf_printf(b, "\\u%04x", c);
    }
}

void hy_json_chars(hy_buf *b, const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t from = 0, i = 0;
    while (i < len) {
        unsigned char c = p[i];
        bool plain = c >= 0x20 && c != '"' && c != '\\' && c < 0x7f;
        size_t n = plain ? 1 : c < 0x80 ? 0 : utf8_len(p + i, len - i);
        if (n != 0) {
            i += n;
            continue;
        }
        hy_buf_add(b, s + from, i - from);
        if (c < 0x80)
            add_control(b, c);
        else
            hy_buf_puts(b, "\xef\xbf\xbd");
        from = ++i;
    }
    hy_buf_add(b, s + from, len - from);
}

void hy_json_str(hy_buf *b, const char *s, size_t len)
{
    hy_buf_putc(b, '"');
    if (len != 0)
        hy_json_chars(b, s, len);
    hy_buf_putc(b, '"');
}

void hy_json_cstr(hy_buf *b, const char *s)
{
    if (s == NULL)
        hy_buf_puts(b, "null");
    else
        hy_json_str(b, s, strlen(s));
}

void hy_json_lp(hy_buf *b, float x)
{
    char t[40];
    if (!isfinite(x)) {
        hy_buf_puts(b, "-9999.0");
        return;
    }
    snprintf(t, sizeof(t), "%.9g", (double)x);
    hy_buf_puts(b, t);
    if (strpbrk(t, ".e") == NULL)
        hy_buf_add(b, ".0", 2);
}

void hy_json_ids(hy_buf *b, const int32_t *ids, size_t n)
{
    char t[16];
    hy_buf_putc(b, '[');
    for (size_t i = 0; i < n; i++) {
        int len = snprintf(t, sizeof(t), i == 0 ? "%d" : ",%d", (int)ids[i]);
        hy_buf_add(b, t, (size_t)len);
    }
    hy_buf_putc(b, ']');
}

void hy_json_bytes(hy_buf *b, const char *s, size_t len)
{
    char t[8];
    hy_buf_putc(b, '[');
    for (size_t i = 0; i < len; i++) {
        int n = snprintf(t, sizeof(t), i == 0 ? "%u" : ",%u", (unsigned)(unsigned char)s[i]);
        hy_buf_add(b, t, (size_t)n);
    }
    hy_buf_putc(b, ']');
}

size_t hy_json_n_chars(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}
