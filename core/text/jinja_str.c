/* SPDX-License-Identifier: Apache-2.0
 *
 * Strings of the Jinja interpreter: UTF-8 bytes that count, slice, strip and change case by code
 * points, as Python's do.
 *
 * Thread: one rendering (the code point functions: any).  Owner: the arena.
 */
#include "core/text/jinja_int.h"

#include <utf8proc.h>

uint32_t hy_jinja__next_cp(const char *p, const char *end, int *n)
{
    const unsigned char *u = (const unsigned char *)p;
    ptrdiff_t left = end - p;
    *n = 1;
    if (left <= 0)
        return 0;
    if (u[0] < 0x80)
        return u[0];
    int k = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : u[0] >= 0xc0 ? 2 : 1;
    if (k == 1 || left < k)
        return 0xfffd;
    uint32_t c = u[0] & (0xffu >> (k + 1));
    for (int i = 1; i < k; i++) {
        if ((u[i] & 0xc0) != 0x80)
            return 0xfffd;
        c = c << 6 | (u[i] & 63);
    }
    *n = k;
    return c;
}

uint32_t hy_jinja__prev_cp(const char *start, const char *p, int *n)
{
    const char *q = p - 1;
    while (q > start && p - q < 4 && ((unsigned char)*q & 0xc0) == 0x80)
        q--;
    int k;
    uint32_t c = hy_jinja__next_cp(q, p, &k);
    if (q + k != p) {
        *n = 1;
        return 0xfffd;
    }
    *n = k;
    return c;
}

int64_t hy_jinja__chars(jstr *s)
{
    if (s->chars >= 0)
        return s->chars;
    int64_t n = 0;
    for (const char *p = s->p, *end = p + s->len; p < end; n++) {
        int k;
        hy_jinja__next_cp(p, end, &k);
        p += k;
    }
    return s->chars = n;
}

size_t hy_jinja__byte_at(jstr *s, int64_t ch)
{
    if (ch <= 0)
        return 0;
    if (ch >= hy_jinja__chars(s))
        return s->len;
    if (s->chars == (int64_t)s->len)
        return (size_t)ch;
    const char *p = s->p, *end = p + s->len;
    for (; ch > 0 && p < end; ch--) {
        int k;
        hy_jinja__next_cp(p, end, &k);
        p += k;
    }
    return (size_t)(p - s->p);
}

bool hy_jinja__space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool hy_jinja__printable(uint32_t c)
{
    if (c < 0x7f)
        return c >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

bool hy_jinja__letter(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool hy_jinja__digit(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

static bool in_set(uint32_t c, const jstr *set)
{
    for (const char *p = set->p, *end = p + set->len; p < end;) {
        int k;
        if (hy_jinja__next_cp(p, end, &k) == c)
            return true;
        p += k;
    }
    return false;
}

static jv part(jrt *r, jv s, size_t from, size_t to)
{
    jv v = hy_jinja__strv(r, s.s->p + from, to - from);
    v.markup = s.markup;
    return v;
}

/* chars: none or undefined means white space. */
jv hy_jinja__strip(jrt *r, jv s, jv chars, int sides)
{
    const char *p = s.s->p, *end = p + s.s->len;
    if (chars.t != J_NONE && chars.t != J_STR)
        hy_jinja__fail(r, "strip arg must be None or str, not %s", hy_jinja__type_name(chars));
    hy_jinja__charge(r, s.s->len >> 6);
    int k;
    while ((sides & JSTRIP_LEFT) != 0 && p < end) {
        uint32_t c = hy_jinja__next_cp(p, end, &k);
        if (chars.t == J_STR ? !in_set(c, chars.s) : !hy_jinja__space(c))
            break;
        p += k;
    }
    while ((sides & JSTRIP_RIGHT) != 0 && p < end) {
        uint32_t c = hy_jinja__prev_cp(p, end, &k);
        if (chars.t == J_STR ? !in_set(c, chars.s) : !hy_jinja__space(c))
            break;
        end -= k;
    }
    return part(r, s, (size_t)(p - s.s->p), (size_t)(end - s.s->p));
}

/* Upper case that is longer than one code point, for the letters met in text. */
static const char *special_upper(uint32_t c)
{
    switch (c) {
    case 0xdf:
        return "SS";
    case 0x149:
        return "\xca\xbcN";
    case 0x1f0:
        return "J\xcc\x8c";
    case 0xfb00:
        return "FF";
    case 0xfb01:
        return "FI";
    case 0xfb02:
        return "FL";
    case 0xfb03:
        return "FFI";
    case 0xfb04:
        return "FFL";
    case 0xfb05:
    case 0xfb06:
        return "ST";
    default:
        return NULL;
    }
}

static void put_upper(jrt *r, jsb *b, uint32_t c)
{
    const char *s = special_upper(c);
    if (s != NULL)
        hy_jinja__sb_puts(r, b, s);
    else
        hy_jinja__sb_cp(r, b, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
}

static void put_title(jrt *r, jsb *b, uint32_t c)
{
    if (special_upper(c) != NULL) { /* "ß" becomes "Ss" */
        jsb u;
        hy_jinja__sb_init(&u);
        put_upper(r, &u, c);
        hy_jinja__sb_add(r, b, u.p, 1);
        for (size_t i = 1; i < u.len; i++)
            hy_jinja__sb_putc(r, b, u.p[i] >= 'A' && u.p[i] <= 'Z' ? (char)(u.p[i] | 32) : u.p[i]);
    } else {
        hy_jinja__sb_cp(r, b, (uint32_t)utf8proc_totitle((utf8proc_int32_t)c));
    }
}

static bool cased(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

static void put_lower(jrt *r, jsb *b, const jstr *s, const char *at, uint32_t c, int k)
{
    if (c == 0x130) {
        hy_jinja__sb_puts(r, b, "i\xcc\x87");
        return;
    }
    if (c == 0x3a3) { /* a sigma that ends a word */
        int n;
        const char *end = s->p + s->len;
        bool before = at > s->p && cased(hy_jinja__prev_cp(s->p, at, &n));
        bool after = at + k < end && cased(hy_jinja__next_cp(at + k, end, &n));
        hy_jinja__sb_cp(r, b, before && !after ? 0x3c2 : 0x3c3);
        return;
    }
    hy_jinja__sb_cp(r, b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

/* Separators of jinja2's title filter. */
static bool title_break(uint32_t c)
{
    return hy_jinja__space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

jv hy_jinja__case(jrt *r, jv s, char how)
{
    jsb b;
    hy_jinja__sb_init(&b);
    hy_jinja__charge(r, s.s->len >> 2);
    bool start = true;
    for (const char *p = s.s->p, *end = p + s.s->len; p < end;) {
        int k;
        uint32_t c = hy_jinja__next_cp(p, end, &k);
        bool low = how == 'l' || ((how == 'c' || how == 't' || how == 'j') && !start) ||
                   (how == 's' && utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LU);
        if (low)
            put_lower(r, &b, s.s, p, c, k);
        else if (how == 'c' || how == 't')
            put_title(r, &b, c);
        else
            put_upper(r, &b, c);
        start = how == 't' ? !cased(c) : how == 'j' ? title_break(c) : false;
        p += k;
    }
    jv v = hy_jinja__sb_val(r, &b);
    v.markup = s.markup && how != 'j';
    return v;
}

/* n code points from start, each `step` after the one before. */
jv hy_jinja__slice_str(jrt *r, jv s, int64_t start, int64_t n, int64_t step)
{
    if (n <= 0) {
        jv v = hy_jinja__strv(r, "", 0);
        v.markup = s.markup;
        return v;
    }
    hy_jinja__charge(r, s.s->len >> 6);
    if (step == 1) {
        size_t from = hy_jinja__byte_at(s.s, start);
        jstr rest = {s.s->p + from, s.s->len - from, hy_jinja__chars(s.s) - start, 0};
        jv v = part(r, s, from, from + hy_jinja__byte_at(&rest, n));
        v.s->chars = n;
        return v;
    }
    hy_jinja__charge(r, (size_t)n);
    jsb b;
    hy_jinja__sb_init(&b);
    const char *end = s.s->p + s.s->len, *p = s.s->p + hy_jinja__byte_at(s.s, start);
    for (int64_t i = 0; i < n; i++) {
        int k;
        hy_jinja__next_cp(p, end, &k);
        hy_jinja__sb_add(r, &b, p, (size_t)k);
        for (int64_t j = 0; i + 1 < n && j < (step > 0 ? step : -step); j++) {
            if (step > 0)
                hy_jinja__next_cp(p, end, &k);
            else
                hy_jinja__prev_cp(s.s->p, p, &k);
            p += step > 0 ? k : -k;
        }
    }
    jv v = hy_jinja__sb_val(r, &b);
    v.markup = s.markup;
    return v;
}

const char *hy_jinja__find(const char *h, size_t hn, const char *n, size_t nn)
{
    return nn > hn ? NULL : memmem(h, hn, n, nn);
}

jv hy_jinja__replace(jrt *r, jv s, jv from, jv to, int64_t count)
{
    const char *p = s.s->p, *end = p + s.s->len;
    jsb b;
    hy_jinja__sb_init(&b);
    hy_jinja__charge(r, s.s->len >> 6);
    if (from.s->len == 0) {
        for (int64_t i = 0; i != count; i++) {
            hy_jinja__charge(r, 1);
            hy_jinja__sb_add(r, &b, to.s->p, to.s->len);
            if (p >= end)
                break;
            int k;
            hy_jinja__next_cp(p, end, &k);
            hy_jinja__sb_add(r, &b, p, (size_t)k);
            p += k;
        }
    } else {
        const char *hit;
        for (int64_t i = 0; i != count; i++) {
            hit = hy_jinja__find(p, (size_t)(end - p), from.s->p, from.s->len);
            if (hit == NULL)
                break;
            hy_jinja__charge(r, 1);
            hy_jinja__sb_add(r, &b, p, (size_t)(hit - p));
            hy_jinja__sb_add(r, &b, to.s->p, to.s->len);
            p = hit + from.s->len;
        }
        if (p == s.s->p)
            return s;
    }
    hy_jinja__sb_add(r, &b, p, (size_t)(end - p));
    jv v = hy_jinja__sb_val(r, &b);
    v.markup = s.markup;
    return v;
}

static bool line_break(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

jlist *hy_jinja__splitlines(jrt *r, jv s, bool keep)
{
    jlist *l = hy_jinja__list(r, J_LIST, 0).l;
    hy_jinja__charge(r, s.s->len >> 4);
    const char *p = s.s->p, *end = p + s.s->len, *from = p;
    while (p < end) {
        int k;
        uint32_t c = hy_jinja__next_cp(p, end, &k);
        const char *stop = p;
        p += k;
        if (!line_break(c))
            continue;
        if (c == '\r' && p < end && *p == '\n')
            p++;
        hy_jinja__push(r, l,
                       part(r, s, (size_t)(from - s.s->p), (size_t)((keep ? p : stop) - s.s->p)));
        from = p;
    }
    if (from < end)
        hy_jinja__push(r, l, part(r, s, (size_t)(from - s.s->p), s.s->len));
    return l;
}

/* |escape: a markup string stays as it is. */
jv hy_jinja__escape(jrt *r, jv v)
{
    if (v.t == J_STR && v.markup)
        return v;
    jv s = hy_jinja__to_str(r, v);
    jsb b;
    hy_jinja__sb_init(&b);
    hy_jinja__charge(r, s.s->len >> 4);
    for (size_t i = 0; i < s.s->len; i++) {
        char c = s.s->p[i];
        const char *e = c == '&'    ? "&amp;"
                        : c == '<'  ? "&lt;"
                        : c == '>'  ? "&gt;"
                        : c == '\'' ? "&#39;"
                        : c == '"'  ? "&#34;"
                                    : NULL;
        if (e != NULL)
            hy_jinja__sb_puts(r, &b, e);
        else
            hy_jinja__sb_putc(r, &b, c);
    }
    jv out = hy_jinja__sb_val(r, &b);
    out.markup = 1;
    return out;
}
