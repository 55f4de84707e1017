/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8 stepping and repair.
 *
 * Thread: any.  Owner: none.
 */
#include "core/text/utf8.h"

size_t hy_utf8_next(const char *s, size_t len, size_t *bad_out, bool *cut_out)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t need, have = 1;
    unsigned char lo = 0x80, hi = 0xbf;
    if (cut_out != NULL)
        *cut_out = false;
    if (bad_out != NULL)
        *bad_out = 1;
    if (len == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    need = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (p[0] == 0xe0)
        lo = 0xa0; /* no overlong forms */
    else if (p[0] == 0xed)
        hi = 0x9f; /* no surrogates */
    else if (p[0] == 0xf0)
        lo = 0x90;
    else if (p[0] == 0xf4)
        hi = 0x8f; /* nothing above U+10FFFF */
    while (have < need && have < len && p[have] >= lo && p[have] <= hi) {
        have++;
        lo = 0x80;
        hi = 0xbf;
    }
    if (have == need)
        return need;
    if (bad_out != NULL)
        *bad_out = have;
    if (cut_out != NULL)
        *cut_out = have == len;
    return 0;
}

size_t hy_utf8_decode(const char *s, size_t len, uint32_t *cp_out)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t n = hy_utf8_next(s, len, NULL, NULL);
    if (n == 0)
        return 0;
    uint32_t cp = n == 1 ? p[0] : p[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++)
        cp = cp << 6 | (p[i] & 0x3fu);
    *cp_out = cp;
    return n;
}

void hy_utf8_put(hy_buf *out, uint32_t cp)
{
    char b[4];
    if (cp < 0x80) {
        hy_buf_putc(out, (char)cp);
    } else if (cp < 0x800) {
        b[0] = (char)(0xc0 | cp >> 6);
        b[1] = (char)(0x80 | (cp & 0x3f));
        hy_buf_add(out, b, 2);
    } else if (cp < 0x10000) {
        b[0] = (char)(0xe0 | cp >> 12);
        b[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        b[2] = (char)(0x80 | (cp & 0x3f));
        hy_buf_add(out, b, 3);
    } else {
        b[0] = (char)(0xf0 | cp >> 18);
        b[1] = (char)(0x80 | (cp >> 12 & 0x3f));
        b[2] = (char)(0x80 | (cp >> 6 & 0x3f));
        b[3] = (char)(0x80 | (cp & 0x3f));
        hy_buf_add(out, b, 4);
    }
}

bool hy_utf8_valid(const char *p, size_t len)
{
    while (len > 0) {
        size_t n = hy_utf8_next(p, len, NULL, NULL);
        if (n == 0)
            return false;
        p += n;
        len -= n;
    }
    return true;
}

static void replace(const char *p, size_t len, bool runs, hy_buf *out)
{
    size_t good = 0; /* bytes not yet copied */
    for (size_t i = 0; i < len;) {
        size_t bad = 1;
        size_t n = hy_utf8_next(p + i, len - i, &bad, NULL);
        if (n != 0) {
            i += n;
            continue;
        }
        hy_buf_add(out, p + good, i - good);
        hy_buf_add(out, "\xef\xbf\xbd", 3);
        i += runs ? bad : 1;
        good = i;
    }
    hy_buf_add(out, p + good, len - good);
}

void hy_utf8_replace_bytes(const char *p, size_t len, hy_buf *out)
{
    replace(p, len, false, out);
}

void hy_utf8_replace_runs(const char *p, size_t len, hy_buf *out)
{
    replace(p, len, true, out);
}

bool hy_utf8_is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0d) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}
