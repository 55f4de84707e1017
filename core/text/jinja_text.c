/* SPDX-License-Identifier: Apache-2.0
 *
 * Values as text: Python's str() and repr(), and json.dumps() with its separators, indents and
 * escapes.
 *
 * Thread: one rendering.  Owner: the arena.
 */
#include "core/text/jinja_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void hy_jinja__sb_init(jsb *b)
{
    memset(b, 0, sizeof *b);
}

void hy_jinja__sb_add(jrt *r, jsb *b, const char *p, size_t n)
{
    if (n == 0)
        return;
    if (b->out != NULL) {
        if (b->out->len + n > JLIM_OUTPUT)
            hy_jinja__limit(r, "output");
        hy_buf_add(b->out, p, n);
        if (b->out->failed)
            hy_jinja__limit(r, "memory");
        return;
    }
    if (n > b->cap - b->len) {
        size_t more = b->cap > n ? b->cap : n + 48;
        if (b->p != NULL && hy_jinja__arena_grow(&r->mem, b->p, b->cap, more)) {
            b->cap += more;
        } else {
            char *d = hy_jinja__alloc(r, b->len + more + n);
            if (b->len > 0)
                memcpy(d, b->p, b->len);
            b->p = d;
            b->cap = b->len + more + n;
        }
    }
    hy_jinja__charge(r, n >> 8);
    memcpy(b->p + b->len, p, n);
    b->len += n;
}

void hy_jinja__sb_puts(jrt *r, jsb *b, const char *s)
{
    hy_jinja__sb_add(r, b, s, strlen(s));
}

void hy_jinja__sb_putc(jrt *r, jsb *b, char c)
{
    if (b->out == NULL && b->len < b->cap)
        b->p[b->len++] = c;
    else
        hy_jinja__sb_add(r, b, &c, 1);
}

void hy_jinja__sb_cp(jrt *r, jsb *b, uint32_t c)
{
    char d[4];
    size_t n = 0;
    if (c < 0x80) {
        d[n++] = (char)c;
    } else if (c < 0x800) {
        d[n++] = (char)(0xc0 | c >> 6);
    } else if (c < 0x10000) {
        d[n++] = (char)(0xe0 | c >> 12);
        d[n++] = (char)(0x80 | (c >> 6 & 63));
    } else {
        d[n++] = (char)(0xf0 | c >> 18);
        d[n++] = (char)(0x80 | (c >> 12 & 63));
        d[n++] = (char)(0x80 | (c >> 6 & 63));
    }
    if (c >= 0x80)
        d[n++] = (char)(0x80 | (c & 63));
    hy_jinja__sb_add(r, b, d, n);
}

jv hy_jinja__sb_val(jrt *r, jsb *b)
{
    jv v = hy_jinja__strv(r, b->len > 0 ? b->p : "", b->len);
    v.s->room = b->cap - b->len;
    return v;
}

/* Shortest digits that read back as f, laid out as Python does it. */
const char *hy_jinja__float_repr(double f, char *buf, size_t cap)
{
    if (isnan(f))
        return "nan";
    if (isinf(f))
        return f > 0 ? "inf" : "-inf";
    char e[40];
    for (int prec = 0; prec < 17; prec++) {
        snprintf(e, sizeof e, "%.*e", prec, f);
        if (strtod(e, NULL) == f)
            break;
    }
    char digits[24];
    size_t n = 0;
    const char *p = e;
    bool neg = *p == '-';
    for (p += neg; *p != 'e'; p++)
        if (*p != '.' && n < sizeof digits - 1)
            digits[n++] = *p;
    int x = atoi(p + 1);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = '\0';
    const char *sign = neg ? "-" : "";
    if (x < -4 || x >= 16)
        snprintf(buf, cap, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
                 x < 0 ? '-' : '+', abs(x));
    else if (x < 0)
        snprintf(buf, cap, "%s0.%.*s%s", sign, -x - 1, "0000", digits);
    else if ((int)n <= x + 1)
        snprintf(buf, cap, "%s%s%.*s.0", sign, digits, x + 1 - (int)n, "0000000000000000");
    else
        snprintf(buf, cap, "%s%.*s.%s", sign, x + 1, digits, digits + x + 1);
    return buf;
}

static void put_int(jrt *r, jsb *b, int64_t i)
{
    char t[24];
    snprintf(t, sizeof t, "%" PRId64, i);
    hy_jinja__sb_puts(r, b, t);
}

static void repr_str(jrt *r, jsb *b, const jstr *s)
{
    bool single = memchr(s->p, '\'', s->len) != NULL, dbl = memchr(s->p, '"', s->len) != NULL;
    char q = single && !dbl ? '"' : '\'';
    hy_jinja__sb_putc(r, b, q);
    for (const char *p = s->p, *end = p + s->len; p < end;) {
        int k;
        uint32_t c = hy_jinja__next_cp(p, end, &k);
        char t[16];
        if (c == (uint32_t)q || c == '\\') {
            hy_jinja__sb_putc(r, b, '\\');
            hy_jinja__sb_putc(r, b, (char)c);
        } else if (c == '\n' || c == '\r' || c == '\t') {
            hy_jinja__sb_puts(r, b, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        } else if (hy_jinja__printable(c)) {
            hy_jinja__sb_add(r, b, p, (size_t)k);
        } else {
            snprintf(t, sizeof t,
                     c < 0x100     ? "\\x%02x"
                     : c < 0x10000 ? "\\u%04x"
                                   : "\\U%08x",
                     (unsigned)c);
            hy_jinja__sb_puts(r, b, t);
        }
        p += k;
    }
    hy_jinja__sb_putc(r, b, q);
}

static void repr_items(jrt *r, jsb *b, const jlist *l, const char *open, const char *close)
{
    hy_jinja__sb_puts(r, b, open);
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0)
            hy_jinja__sb_puts(r, b, ", ");
        hy_jinja__repr_of(r, b, l->v[i]);
    }
    hy_jinja__sb_puts(r, b, close);
}

static void repr_dict(jrt *r, jsb *b, const jdict *d)
{
    hy_jinja__sb_putc(r, b, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0)
            hy_jinja__sb_puts(r, b, ", ");
        hy_jinja__repr_of(r, b, d->p[i].k);
        hy_jinja__sb_puts(r, b, ": ");
        hy_jinja__repr_of(r, b, d->p[i].v);
    }
    hy_jinja__sb_putc(r, b, '}');
}

static void repr_other(jrt *r, jsb *b, jv v)
{
    switch (v.t) {
    case J_RANGE:
        hy_jinja__sb_puts(r, b, "range(");
        put_int(r, b, v.r->start);
        hy_jinja__sb_puts(r, b, ", ");
        put_int(r, b, v.r->stop);
        if (v.r->step != 1) {
            hy_jinja__sb_puts(r, b, ", ");
            put_int(r, b, v.r->step);
        }
        hy_jinja__sb_putc(r, b, ')');
        break;
    case J_MACRO:
        hy_jinja__sb_puts(r, b, "<Macro ");
        repr_str(r, b, v.m->name);
        hy_jinja__sb_putc(r, b, '>');
        break;
    case J_LOOP:
        hy_jinja__sb_puts(r, b, "<LoopContext ");
        put_int(r, b, (int64_t)v.lo->i + 1);
        hy_jinja__sb_putc(r, b, '/');
        put_int(r, b, (int64_t)v.lo->n);
        hy_jinja__sb_putc(r, b, '>');
        break;
    default:
        hy_jinja__sb_putc(r, b, '<');
        hy_jinja__sb_puts(r, b, hy_jinja__type_name(v));
        hy_jinja__sb_puts(r, b, " object>");
    }
}

void hy_jinja__repr_of(jrt *r, jsb *b, jv v)
{
    hy_jinja__down(r);
    switch (v.t) {
    case J_UNDEF:
        hy_jinja__sb_puts(r, b, "Undefined");
        break;
    case J_STR:
        if (v.markup)
            hy_jinja__sb_puts(r, b, "Markup(");
        repr_str(r, b, v.s);
        if (v.markup)
            hy_jinja__sb_putc(r, b, ')');
        break;
    case J_LIST:
        repr_items(r, b, v.l, "[", "]");
        break;
    case J_TUPLE:
        repr_items(r, b, v.l, "(", v.l->n == 1 ? ",)" : ")");
        break;
    case J_VIEW:
        hy_jinja__sb_puts(r, b, hy_jinja__type_name(v));
        repr_items(r, b, v.l, "([", "])");
        break;
    case J_DICT:
        repr_dict(r, b, v.d);
        break;
    case J_NS:
        hy_jinja__sb_puts(r, b, "<Namespace ");
        repr_dict(r, b, v.d);
        hy_jinja__sb_putc(r, b, '>');
        break;
    case J_NONE:
    case J_BOOL:
    case J_INT:
    case J_FLOAT:
        hy_jinja__str_of(r, b, v);
        break;
    default:
        repr_other(r, b, v);
    }
    JUP(r);
}

void hy_jinja__str_of(jrt *r, jsb *b, jv v)
{
    char t[64];
    switch (v.t) {
    case J_UNDEF:
        break;
    case J_NONE:
        hy_jinja__sb_puts(r, b, "None");
        break;
    case J_BOOL:
        hy_jinja__sb_puts(r, b, v.i ? "True" : "False");
        break;
    case J_INT:
        put_int(r, b, v.i);
        break;
    case J_FLOAT:
        hy_jinja__sb_puts(r, b, hy_jinja__float_repr(v.f, t, sizeof t));
        break;
    case J_STR:
        hy_jinja__sb_add(r, b, v.s->p, v.s->len);
        break;
    default:
        hy_jinja__repr_of(r, b, v);
    }
}

jv hy_jinja__to_str(jrt *r, jv v)
{
    if (v.t == J_STR)
        return v;
    jsb b;
    hy_jinja__sb_init(&b);
    hy_jinja__str_of(r, &b, v);
    return hy_jinja__sb_val(r, &b);
}

/* ---- JSON ---- */

static void json_str(jrt *r, jsb *b, const jstr *s, bool ascii)
{
    hy_jinja__sb_putc(r, b, '"');
    const char *run = s->p, *end = s->p + s->len;
    for (const char *p = s->p; p < end;) {
        int k;
        uint32_t c = hy_jinja__next_cp(p, end, &k);
        const char *e = c == '"'    ? "\\\""
                        : c == '\\' ? "\\\\"
                        : c == '\n' ? "\\n"
                        : c == '\r' ? "\\r"
                        : c == '\t' ? "\\t"
                        : c == '\f' ? "\\f"
                        : c == '\b' ? "\\b"
                                    : NULL;
        if (e == NULL && c >= 0x20 && (!ascii || c < 0x7f)) {
            p += k;
            continue;
        }
        hy_jinja__sb_add(r, b, run, (size_t)(p - run));
        char t[16];
        if (e != NULL)
            hy_jinja__sb_puts(r, b, e);
        else if (c < 0x10000)
            snprintf(t, sizeof t, "\\u%04x", (unsigned)c);
        else
            snprintf(t, sizeof t, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((c - 0x10000) >> 10)),
                     (unsigned)(0xdc00 + ((c - 0x10000) & 0x3ff)));
        if (e == NULL)
            hy_jinja__sb_puts(r, b, t);
        p += k;
        run = p;
    }
    hy_jinja__sb_add(r, b, run, (size_t)(end - run));
    hy_jinja__sb_putc(r, b, '"');
}

static void json_float(jrt *r, jsb *b, double f)
{
    char t[64];
    hy_jinja__sb_puts(r, b,
                      isnan(f)   ? "NaN"
                      : isinf(f) ? f > 0 ? "Infinity" : "-Infinity"
                                 : hy_jinja__float_repr(f, t, sizeof t));
}

static void json_line(jrt *r, jsb *b, const char *indent, size_t n, int level)
{
    if (indent == NULL)
        return;
    hy_jinja__sb_putc(r, b, '\n');
    for (int i = 0; i < level; i++)
        hy_jinja__sb_add(r, b, indent, n);
}

static void json_key(jrt *r, jsb *b, jv k, bool ascii)
{
    if (k.t == J_STR) {
        json_str(r, b, k.s, ascii);
        return;
    }
    hy_jinja__sb_putc(r, b, '"');
    if (k.t == J_INT)
        put_int(r, b, k.i);
    else if (k.t == J_FLOAT)
        json_float(r, b, k.f);
    else if (k.t == J_BOOL)
        hy_jinja__sb_puts(r, b, k.i ? "true" : "false");
    else if (k.t == J_NONE)
        hy_jinja__sb_puts(r, b, "null");
    else
        hy_jinja__fail(r, "tojson: keys must be str, int, float, bool or None, not %s",
                       hy_jinja__type_name(k));
    hy_jinja__sb_putc(r, b, '"');
}

void hy_jinja__json(jrt *r, jsb *b, jv v, const char *indent, size_t indent_len, int level,
                    jv item_sep, jv key_sep, int flags)
{
    hy_jinja__down(r);
    bool ascii = (flags & JJSON_ASCII) != 0;
    switch (v.t) {
    case J_NONE:
        hy_jinja__sb_puts(r, b, "null");
        break;
    case J_BOOL:
        hy_jinja__sb_puts(r, b, v.i ? "true" : "false");
        break;
    case J_INT:
        put_int(r, b, v.i);
        break;
    case J_FLOAT:
        json_float(r, b, v.f);
        break;
    case J_STR:
        json_str(r, b, v.s, ascii);
        break;
    case J_LIST:
    case J_TUPLE:
        hy_jinja__sb_putc(r, b, '[');
        for (size_t i = 0; i < v.l->n; i++) {
            if (i > 0)
                hy_jinja__sb_add(r, b, item_sep.s->p, item_sep.s->len);
            json_line(r, b, indent, indent_len, level + 1);
            hy_jinja__json(r, b, v.l->v[i], indent, indent_len, level + 1, item_sep, key_sep,
                           flags);
        }
        if (v.l->n > 0)
            json_line(r, b, indent, indent_len, level);
        hy_jinja__sb_putc(r, b, ']');
        break;
    case J_DICT: {
        jpair *p = v.d->p;
        if ((flags & JJSON_SORT) != 0 && v.d->n > 1) {
            p = hy_jinja__alloc(r, v.d->n * sizeof *p);
            memcpy(p, v.d->p, v.d->n * sizeof *p);
            hy_jinja__sort(r, p, v.d->n, false);
        }
        hy_jinja__sb_putc(r, b, '{');
        for (size_t i = 0; i < v.d->n; i++) {
            if (i > 0)
                hy_jinja__sb_add(r, b, item_sep.s->p, item_sep.s->len);
            json_line(r, b, indent, indent_len, level + 1);
            json_key(r, b, p[i].k, ascii);
            hy_jinja__sb_add(r, b, key_sep.s->p, key_sep.s->len);
            hy_jinja__json(r, b, p[i].v, indent, indent_len, level + 1, item_sep, key_sep, flags);
        }
        if (v.d->n > 0)
            json_line(r, b, indent, indent_len, level);
        hy_jinja__sb_putc(r, b, '}');
        break;
    }
    default:
        hy_jinja__fail(r, "Object of type %s is not JSON serializable", hy_jinja__type_name(v));
    }
    JUP(r);
}
