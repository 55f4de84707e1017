/* SPDX-License-Identifier: Apache-2.0
 *
 * Python's two ways to format: "%s" % x and "{}".format(x).
 *
 * Thread: one rendering.  Owner: the arena.
 */
#include "core/text/jinja_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct fspec {
    uint32_t fill;
    char align, sign, type;
    bool alt, comma;
    int width, prec; /* prec -1: none */
} fspec;

enum { MAX_WIDTH = 100000 };

static void pad(jrt *r, jsb *b, uint32_t fill, int64_t n)
{
    for (; n > 0; n--)
        hy_jinja__sb_cp(r, b, fill);
    if (n > 0)
        hy_jinja__charge(r, (size_t)n / 8);
}

/* text in a field; sign_len bytes of it stand before zeros with align '='. */
static void put_field(jrt *r, jsb *b, const fspec *f, jv text, size_t sign_len, char def_align)
{
    char align = f->align ? f->align : def_align;
    int64_t gap = f->width - hy_jinja__chars(text.s);
    int64_t left = gap <= 0 ? 0 : align == '>' ? gap : align == '^' ? gap / 2 : 0;
    if (align == '=') {
        hy_jinja__sb_add(r, b, text.s->p, sign_len);
        pad(r, b, f->fill, gap);
        hy_jinja__sb_add(r, b, text.s->p + sign_len, text.s->len - sign_len);
        return;
    }
    pad(r, b, f->fill, left);
    hy_jinja__sb_add(r, b, text.s->p, text.s->len);
    pad(r, b, f->fill, gap > 0 ? gap - left : 0);
}

static void group(jrt *r, jsb *b, const char *digits)
{
    size_t whole = strspn(digits, "0123456789");
    for (size_t i = 0; i < whole; i++) {
        if (i > 0 && (whole - i) % 3 == 0)
            hy_jinja__sb_putc(r, b, ',');
        hy_jinja__sb_putc(r, b, digits[i]);
    }
    hy_jinja__sb_puts(r, b, digits + whole);
}

static void put_number(jrt *r, jsb *b, const fspec *f, bool neg, const char *prefix,
                       const char *digits)
{
    jsb t;
    hy_jinja__sb_init(&t);
    if (neg)
        hy_jinja__sb_putc(r, &t, '-');
    else if (f->sign == '+' || f->sign == ' ')
        hy_jinja__sb_putc(r, &t, f->sign);
    hy_jinja__sb_puts(r, &t, prefix);
    size_t sign_len = t.len;
    if (f->comma)
        group(r, &t, digits);
    else
        hy_jinja__sb_puts(r, &t, digits);
    put_field(r, b, f, hy_jinja__sb_val(r, &t), sign_len, '>');
}

static void put_integer(jrt *r, jsb *b, const fspec *f, int64_t i)
{
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    char t[80];
    int k = (int)sizeof t;
    unsigned base = f->type == 'x' || f->type == 'X' ? 16
                    : f->type == 'o'                 ? 8
                    : f->type == 'b'                 ? 2
                                                     : 10;
    t[--k] = '\0';
    do {
        t[--k] = (f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
        u /= base;
    } while (u > 0);
    while (f->prec > (int)sizeof t - 1 - k && k > 1)
        t[--k] = '0';
    const char *prefix = !f->alt          ? ""
                         : f->type == 'x' ? "0x"
                         : f->type == 'X' ? "0X"
                         : f->type == 'o' ? "0o"
                         : f->type == 'b' ? "0b"
                                          : "";
    put_number(r, b, f, i < 0, prefix, t + k);
}

static void put_float(jrt *r, jsb *b, const fspec *f, double v)
{
    char t[512], how[8] = "%.*f", e[64];
    int prec = f->prec < 0 ? 6 : f->prec;
    if (prec > 100)
        hy_jinja__fail(r, "a precision over 100 is not supported");
    double m = fabs(v);
    const char *digits = t;
    if (f->type == '%')
        m *= 100;
    if (isnan(v) || isinf(v)) {
        digits = isnan(v) ? "nan" : "inf";
    } else if (f->type == 0 && f->prec < 0) {
        digits = hy_jinja__float_repr(m, e, sizeof e);
    } else {
        how[3] = f->type == '%' || f->type == 'F' ? 'f'
                 : f->type == 0 || f->type == 'n' ? 'g'
                                                  : f->type;
        snprintf(t, sizeof t, how, f->type == 0 && prec == 0 ? 1 : prec, m);
        if (f->type == '%' && strlen(t) + 2 < sizeof t)
            strcat(t, "%");
    }
    put_number(r, b, f, !isnan(v) && signbit(v), "", digits);
}

static void put_string(jrt *r, jsb *b, const fspec *f, jv s)
{
    if (f->prec >= 0 && hy_jinja__chars(s.s) > f->prec)
        s = hy_jinja__slice_str(r, s, 0, f->prec, 1);
    put_field(r, b, f, s, 0, '<');
}

/* ---- % ---- */

typedef struct percent {
    jv args;
    bool tuple, dict;
    size_t used;
} percent;

static jv next_arg(jrt *r, percent *p)
{
    if (p->tuple ? p->used >= p->args.l->n : p->used > 0)
        hy_jinja__fail(r, "not enough arguments for format string");
    p->used++;
    return p->tuple ? p->args.l->v[p->used - 1] : p->args;
}

static int read_int(jrt *r, const char **s, const char *end)
{
    int v = 0;
    for (; *s < end && **s >= '0' && **s <= '9'; (*s)++) {
        v = v * 10 + (**s - '0');
        if (v > MAX_WIDTH)
            hy_jinja__fail(r, "a width or precision over %d is not supported", MAX_WIDTH);
    }
    return v;
}

static void percent_one(jrt *r, jsb *b, fspec *f, jv v)
{
    jsb t;
    switch (f->type) {
    case 's':
        put_field(r, b, f,
                  f->prec < 0 ? hy_jinja__to_str(r, v)
                              : hy_jinja__slice_str(r, hy_jinja__to_str(r, v), 0, f->prec, 1),
                  0, '>');
        break;
    case 'r':
    case 'a':
        hy_jinja__sb_init(&t);
        hy_jinja__repr_of(r, &t, v);
        put_field(r, b, f, hy_jinja__sb_val(r, &t), 0, '>');
        break;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        if (v.t == J_UNDEF)
            hy_jinja__undef_fail(r, v);
        if (!hy_jinja__is_number(v) ||
            (v.t == J_FLOAT && (f->type == 'x' || f->type == 'X' || f->type == 'o')))
            hy_jinja__fail(r, "%%%c format: a number is required, not %s", f->type,
                           hy_jinja__type_name(v));
        if (v.t == J_FLOAT && !(fabs(v.f) < 9e18))
            hy_jinja__fail(r, "an integer does not fit in 64 bits");
        put_integer(r, b, f, v.t == J_FLOAT ? (int64_t)v.f : v.i);
        break;
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
        if (v.t == J_UNDEF)
            hy_jinja__undef_fail(r, v);
        if (!hy_jinja__is_number(v))
            hy_jinja__fail(r, "must be real number, not %s", hy_jinja__type_name(v));
        put_float(r, b, f, hy_jinja__to_double(v));
        break;
    case 'c':
        if (v.t == J_INT && v.i > 0 && v.i < 0x110000 && (v.i < 0xd800 || v.i > 0xdfff)) {
            hy_jinja__sb_init(&t);
            hy_jinja__sb_cp(r, &t, (uint32_t)v.i);
            v = hy_jinja__sb_val(r, &t);
        }
        if (v.t != J_STR || hy_jinja__chars(v.s) != 1)
            hy_jinja__fail(r, "%%c requires int or char");
        put_field(r, b, f, v, 0, '>');
        break;
    default:
        hy_jinja__fail(r, "unsupported format character '%c'", f->type);
    }
}

jv hy_jinja__percent(jrt *r, jv fmt, jv args)
{
    percent p = {.args = args, .tuple = args.t == J_TUPLE, .dict = args.t == J_DICT};
    jsb b;
    hy_jinja__sb_init(&b);
    for (const char *s = fmt.s->p, *end = s + fmt.s->len; s < end;) {
        const char *hit = memchr(s, '%', (size_t)(end - s));
        hy_jinja__sb_add(r, &b, s, (size_t)((hit ? hit : end) - s));
        if (hit == NULL)
            break;
        s = hit + 1;
        fspec f = {.fill = ' ', .prec = -1};
        jv v = {0};
        bool have = false, left = false, zero = false;
        if (s < end && *s == '(') {
            const char *close = memchr(s, ')', (size_t)(end - s));
            if (close == NULL || !p.dict)
                hy_jinja__fail(r, close ? "format requires a mapping" : "incomplete format key");
            jv *e = hy_jinja__dict_gets(r, args.d, s + 1, (size_t)(close - s - 1));
            if (e == NULL)
                hy_jinja__fail(r, "KeyError: '%.*s'", (int)(close - s - 1), s + 1);
            v = *e;
            have = true;
            s = close + 1;
        }
        for (; s < end && memchr("-+ #0", *s, 5) != NULL; s++) {
            left |= *s == '-';
            zero |= *s == '0';
            f.alt |= *s == '#';
            if (*s == '+' || (*s == ' ' && f.sign == 0))
                f.sign = *s;
        }
        if (s < end && *s == '*') {
            f.width = (int)hy_jinja__need_int(r, next_arg(r, &p), "a width");
            if (f.width > MAX_WIDTH || f.width < 0)
                hy_jinja__fail(r, "a width over %d is not supported", MAX_WIDTH);
            s++;
        } else {
            f.width = read_int(r, &s, end);
        }
        if (s < end && *s == '.') {
            s++;
            f.prec = read_int(r, &s, end);
        }
        while (s < end && (*s == 'l' || *s == 'h' || *s == 'L'))
            s++;
        if (s >= end)
            hy_jinja__fail(r, "incomplete format");
        f.type = *s++;
        if (f.type == '%') {
            hy_jinja__sb_putc(r, &b, '%');
            continue;
        }
        bool number = strchr("diuxXofFeEgG", f.type) != NULL;
        f.align = left ? '<' : zero && number ? '=' : '>';
        f.fill = zero && number && !left ? '0' : ' ';
        if (!have)
            v = next_arg(r, &p);
        if (fmt.markup && f.type == 's')
            v = hy_jinja__escape(r, v);
        percent_one(r, &b, &f, v);
    }
    if (!p.dict && (p.tuple ? p.used < args.l->n : p.used == 0) &&
        !(args.t == J_LIST && p.used > 0))
        hy_jinja__fail(r, "not all arguments converted during string formatting");
    jv out = hy_jinja__sb_val(r, &b);
    out.markup = fmt.markup;
    return out;
}

/* ---- str.format ---- */

static void parse_spec(jrt *r, jv spec, fspec *f)
{
    const char *s = spec.s->p, *end = s + spec.s->len;
    *f = (fspec){.fill = ' ', .prec = -1};
    int k;
    uint32_t first = hy_jinja__next_cp(s, end, &k);
    if (s < end && s + k < end && memchr("<>=^", s[k], 4) != NULL) {
        f->fill = first;
        f->align = s[k];
        s += k + 1;
    } else if (s < end && memchr("<>=^", *s, 4) != NULL) {
        f->align = *s++;
    }
    if (s < end && memchr("+- ", *s, 3) != NULL)
        f->sign = *s++;
    if (s < end && *s == '#') {
        f->alt = true;
        s++;
    }
    if (s < end && *s == '0') {
        if (f->align == 0) {
            f->align = '=';
            f->fill = '0';
        }
        s++;
    }
    f->width = read_int(r, &s, end);
    if (s < end && *s == ',') {
        f->comma = true;
        s++;
    }
    if (s < end && *s == '.') {
        s++;
        f->prec = read_int(r, &s, end);
    }
    if (s < end)
        f->type = *s++;
    if (s != end)
        hy_jinja__fail(r, "invalid format specifier '%.*s'", (int)spec.s->len, spec.s->p);
}

static void format_one(jrt *r, jsb *b, jv v, jv spec)
{
    fspec f;
    if (spec.s->len == 0) {
        hy_jinja__str_of(r, b, v);
        return;
    }
    parse_spec(r, spec, &f);
    if (v.t == J_STR && (f.type == 0 || f.type == 's')) {
        if (f.align == '=' && f.fill == '0')
            f.align = '<';
        put_string(r, b, &f, v);
    } else if ((v.t == J_INT || v.t == J_BOOL) &&
               (f.type == 0 || strchr("dnxXob", f.type) != NULL)) {
        f.prec = -1;
        put_integer(r, b, &f, v.i);
    } else if (hy_jinja__is_number(v) && (f.type == 0 || strchr("eEfFgGn%", f.type) != NULL)) {
        put_float(r, b, &f, hy_jinja__to_double(v));
    } else if (v.t == J_UNDEF) {
        put_string(r, b, &f, hy_jinja__to_str(r, v));
    } else {
        hy_jinja__fail(r, "unsupported format string passed to %s.__format__",
                       hy_jinja__type_name(v));
    }
}

typedef struct fmt_state {
    const jcall *c;
    int64_t next; /* next automatic field, -1: fields are numbered */
} fmt_state;

static bool all_digits(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9')
            return false;
    return n > 0 && n < 9;
}

/* name[.attr | [item]]* */
static jv format_field(jrt *r, fmt_state *st, const char *s, size_t n)
{
    size_t k = 0;
    jv v = {0};
    while (k < n && s[k] != '.' && s[k] != '[')
        k++;
    if (k == 0 || all_digits(s, k)) {
        int64_t i = k == 0 ? st->next : atoi(hy_jinja__copy(r, s, k).s->p);
        if (k == 0 ? st->next++ < 0 : st->next > 0)
            hy_jinja__fail(r, "cannot mix automatic and manual field numbers");
        if (k > 0)
            st->next = -1;
        if (i >= st->c->n_pos)
            hy_jinja__fail(r, "replacement index %" PRId64 " out of range", i);
        v = st->c->pos[i];
    } else {
        bool found = false;
        for (uint32_t i = 0; i < st->c->n_kw && !found; i++) {
            found = st->c->kw_name[i]->len == k && memcmp(st->c->kw_name[i]->p, s, k) == 0;
            v = st->c->kw[i];
        }
        if (!found)
            hy_jinja__fail(r, "KeyError: '%.*s'", (int)k, s);
    }
    while (k < n) {
        size_t from = k + 1, to = from;
        bool item = s[k] == '[';
        while (to < n && (item ? s[to] != ']' : s[to] != '.' && s[to] != '['))
            to++;
        if (item && to >= n)
            hy_jinja__fail(r, "expected ']' in a format string");
        jv key = hy_jinja__copy(r, s + from, to - from);
        if (!item)
            v = hy_jinja__getattr(r, v, key.s);
        else if (all_digits(key.s->p, key.s->len))
            v = hy_jinja__getitem(
                r, v, hy_jinja__int(atoi(hy_jinja__copy(r, key.s->p, key.s->len).s->p)));
        else
            v = hy_jinja__getitem(r, v, key);
        k = to + item;
    }
    return v;
}

static void format_into(jrt *r, jsb *b, jv fmt, fmt_state *st, int depth)
{
    const char *s = fmt.s->p, *end = s + fmt.s->len;
    while (s < end) {
        char c = *s++;
        if (c != '{' && c != '}') {
            hy_jinja__sb_putc(r, b, c);
            continue;
        }
        if (s < end && *s == c && depth == 0) {
            hy_jinja__sb_putc(r, b, c);
            s++;
            continue;
        }
        if (c == '}')
            hy_jinja__fail(r, "single '}' encountered in format string");
        const char *from = s, *conv = NULL, *colon = NULL;
        int nest = 1;
        for (; s < end; s++) {
            nest += (*s == '{') - (*s == '}');
            if (nest == 0)
                break;
            if (*s == ':' && colon == NULL)
                colon = s;
            if (*s == '!' && colon == NULL)
                conv = s;
        }
        if (s >= end)
            hy_jinja__fail(r, "expected '}' before end of string");
        const char *name_end = conv ? conv : colon ? colon : s;
        jv v = format_field(r, st, from, (size_t)(name_end - from)), spec;
        if (conv != NULL && conv + 1 < s && conv[1] != 's') {
            jsb t;
            hy_jinja__sb_init(&t);
            hy_jinja__repr_of(r, &t, v);
            v = hy_jinja__sb_val(r, &t);
        } else if (conv != NULL) {
            v = hy_jinja__to_str(r, v);
        }
        if (colon == NULL) {
            spec = hy_jinja__strv(r, "", 0);
        } else {
            spec = hy_jinja__copy(r, colon + 1, (size_t)(s - colon - 1));
            if (depth == 0 && memchr(spec.s->p, '{', spec.s->len) != NULL) {
                jsb t;
                hy_jinja__sb_init(&t);
                format_into(r, &t, spec, st, 1);
                spec = hy_jinja__sb_val(r, &t);
            }
        }
        if (fmt.markup)
            v = hy_jinja__escape(r, v);
        format_one(r, b, v, spec);
        s++;
    }
}

jv hy_jinja__format(jrt *r, jv fmt, const jcall *c)
{
    fmt_state st = {.c = c};
    jsb b;
    hy_jinja__sb_init(&b);
    hy_jinja__charge(r, fmt.s->len >> 4);
    format_into(r, &b, fmt, &st, 0);
    jv v = hy_jinja__sb_val(r, &b);
    v.markup = fmt.markup;
    return v;
}
