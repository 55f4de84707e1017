/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters on single values and the tests of `is`, and the table by which both are found. Filters
 * on sequences: jinja_list.c.
 *
 * Thread: one rendering.  Owner: the arena.
 */
#include "core/text/jinja_int.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Argument i or the keyword name; none when absent. */
jv hy_jinja__arg(jrt *r, const jcall *c, uint32_t i, const char *name, bool *found)
{
    (void)r;
    if (found != NULL)
        *found = true;
    if (i < c->n_pos)
        return c->pos[i];
    for (uint32_t k = 0; name != NULL && k < c->n_kw; k++)
        if (c->kw_name[k]->len == strlen(name) &&
            memcmp(c->kw_name[k]->p, name, c->kw_name[k]->len) == 0)
            return c->kw[k];
    if (found != NULL)
        *found = false;
    return hy_jinja__none();
}

void hy_jinja__arg_check(jrt *r, const jcall *c, const char *what, uint32_t max,
                         const char *const *names)
{
    if (c->n_pos > max)
        hy_jinja__fail(r, "%s takes at most %u argument(s), got %u", what, (unsigned)max,
                       (unsigned)c->n_pos);
    for (uint32_t k = 0; k < c->n_kw; k++) {
        bool known = false;
        for (uint32_t i = 0; names != NULL && i < max && names[i] != NULL; i++)
            known |= c->kw_name[k]->len == strlen(names[i]) &&
                     memcmp(c->kw_name[k]->p, names[i], c->kw_name[k]->len) == 0;
        if (!known)
            hy_jinja__fail(r, "%s got an unexpected keyword argument '%.*s'", what,
                           (int)c->kw_name[k]->len, c->kw_name[k]->p);
    }
}

static bool flag(jrt *r, const jcall *c, uint32_t i, const char *name)
{
    return hy_jinja__truth(r, hy_jinja__arg(r, c, i, name, NULL));
}

/* ---- filters ---- */

static jv f_trim(jrt *r, jv v, const jcall *c)
{
    jv chars = hy_jinja__arg(r, c, 0, "chars", NULL);
    return hy_jinja__strip(r, hy_jinja__to_str(r, v), chars, JSTRIP_LEFT | JSTRIP_RIGHT);
}

static jv f_upper(jrt *r, jv v, const jcall *c)
{
    (void)c;
    return hy_jinja__case(r, hy_jinja__to_str(r, v), 'u');
}

static jv f_lower(jrt *r, jv v, const jcall *c)
{
    (void)c;
    return hy_jinja__case(r, hy_jinja__to_str(r, v), 'l');
}

static jv f_capitalize(jrt *r, jv v, const jcall *c)
{
    (void)c;
    return hy_jinja__case(r, hy_jinja__to_str(r, v), 'c');
}

static jv f_title(jrt *r, jv v, const jcall *c)
{
    (void)c;
    return hy_jinja__case(r, hy_jinja__to_str(r, v), 'j');
}

static jv f_string(jrt *r, jv v, const jcall *c)
{
    (void)c;
    return hy_jinja__to_str(r, v);
}

static jv f_safe(jrt *r, jv v, const jcall *c)
{
    (void)c;
    v = hy_jinja__to_str(r, v);
    v.markup = 1;
    return v;
}

static jv f_escape(jrt *r, jv v, const jcall *c)
{
    (void)c;
    return hy_jinja__escape(r, v);
}

static jv f_length(jrt *r, jv v, const jcall *c)
{
    (void)c;
    int64_t n = hy_jinja__len(r, v);
    if (n < 0)
        hy_jinja__fail(r, "object of type '%s' has no len()", hy_jinja__type_name(v));
    return hy_jinja__int(n);
}

static jv f_default(jrt *r, jv v, const jcall *c)
{
    bool given;
    jv def = hy_jinja__arg(r, c, 0, "default_value", &given);
    if (v.t == J_UNDEF || (flag(r, c, 1, "boolean") && !hy_jinja__truth(r, v)))
        return given ? def : hy_jinja__strv(r, "", 0);
    return v;
}

static jv f_tojson(jrt *r, jv v, const jcall *c)
{
    jv indent = hy_jinja__arg(r, c, 1, "indent", NULL);
    jv sep = hy_jinja__arg(r, c, 2, "separators", NULL);
    bool given;
    int flags =
        hy_jinja__truth(r, hy_jinja__arg(r, c, 0, "ensure_ascii", &given)) ? JJSON_ASCII : 0;
    flags |= flag(r, c, 3, "sort_keys") ? JJSON_SORT : 0;
    const char *in = NULL;
    size_t in_len = 0;
    jv item = hy_jinja__cstr(r, ", "), key = hy_jinja__cstr(r, ": ");
    if (indent.t == J_STR) {
        in = indent.s->p;
        in_len = indent.s->len;
    } else if (indent.t != J_NONE) {
        int64_t n = hy_jinja__need_int(r, indent, "indent");
        if (n > 1000)
            hy_jinja__fail(r, "an indent over 1000 is not supported");
        in_len = n > 0 ? (size_t)n : 0;
        char *p = hy_jinja__alloc(r, in_len + 1);
        memset(p, ' ', in_len);
        in = p;
    }
    if (in != NULL)
        item = hy_jinja__cstr(r, ",");
    if (sep.t != J_NONE) {
        jlist *l = hy_jinja__items(r, sep);
        if (l->n != 2 || l->v[0].t != J_STR || l->v[1].t != J_STR)
            hy_jinja__fail(r, "tojson: separators must be two strings");
        item = l->v[0];
        key = l->v[1];
    }
    jsb b;
    hy_jinja__sb_init(&b);
    hy_jinja__json(r, &b, v, in, in_len, 0, item, key, flags);
    return hy_jinja__sb_val(r, &b);
}

static jv f_replace(jrt *r, jv v, const jcall *c)
{
    bool f1, f2;
    jv old = hy_jinja__arg(r, c, 0, "old", &f1), with = hy_jinja__arg(r, c, 1, "new", &f2);
    jv count = hy_jinja__arg(r, c, 2, "count", NULL);
    if (!f1 || !f2)
        hy_jinja__fail(r, "replace needs what to replace and by what");
    v = hy_jinja__to_str(r, v);
    v.markup = 0;
    return hy_jinja__replace(r, v, hy_jinja__to_str(r, old), hy_jinja__to_str(r, with),
                             count.t == J_NONE ? -1 : hy_jinja__need_int(r, count, "count"));
}

static jv f_indent(jrt *r, jv v, const jcall *c)
{
    bool given;
    jv width = hy_jinja__arg(r, c, 0, "width", &given);
    bool first = flag(r, c, 1, "first"), blank = flag(r, c, 2, "blank");
    if (v.t == J_UNDEF)
        hy_jinja__undef_fail(r, v);
    if (v.t != J_STR)
        hy_jinja__fail(r, "unsupported operand type(s) for +=: '%s' and 'str'",
                       hy_jinja__type_name(v));
    if (width.t != J_STR)
        width =
            hy_jinja__binary(r, OP_MUL, hy_jinja__cstr(r, " "), given ? width : hy_jinja__int(4));
    jv whole = hy_jinja__binary(
        r, OP_ADD, v, (jv){.t = J_STR, .markup = v.markup, .s = hy_jinja__cstr(r, "\n").s});
    jlist *l = hy_jinja__splitlines(r, whole, false);
    jsb b;
    hy_jinja__sb_init(&b);
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0)
            hy_jinja__sb_putc(r, &b, '\n');
        if (i == 0 ? first : blank || l->v[i].s->len > 0)
            hy_jinja__sb_add(r, &b, width.s->p, width.s->len);
        hy_jinja__sb_add(r, &b, l->v[i].s->p, l->v[i].s->len);
    }
    jv out = hy_jinja__sb_val(r, &b);
    out.markup = v.markup;
    return out;
}

/* int("..."): white space around, a sign, digits with single underscores. */
static bool parse_int(jrt *r, jv s, int base, int64_t *out)
{
    s = hy_jinja__strip(r, s, hy_jinja__none(), JSTRIP_LEFT | JSTRIP_RIGHT);
    char t[72];
    size_t n = 0;
    for (size_t i = 0; i < s.s->len; i++) {
        char ch = s.s->p[i];
        bool inner = i > 0 && i + 1 < s.s->len && s.s->p[i - 1] != '_';
        if (ch == '_' && inner)
            continue;
        if (ch == '_' || (unsigned char)ch >= 0x80 || ch == '\0' || n + 1 >= sizeof t ||
            (hy_jinja__space((unsigned char)ch)))
            return false;
        t[n++] = ch;
    }
    t[n] = '\0';
    char *end;
    errno = 0;
    if (n == 0 || base < 0 || base == 1 || base > 36)
        return false;
    *out = strtoll(t, &end, base);
    if (*end == '\0' && errno == ERANGE)
        hy_jinja__fail(r, "an integer does not fit in 64 bits");
    return *end == '\0' && end != t;
}

static bool parse_float(jrt *r, jv s, double *out)
{
    s = hy_jinja__strip(r, s, hy_jinja__none(), JSTRIP_LEFT | JSTRIP_RIGHT);
    char t[400];
    size_t n = s.s->len;
    if (n == 0 || n >= sizeof t)
        return false;
    memcpy(t, s.s->p, n);
    t[n] = '\0';
    if (strlen(t) != n || strpbrk(t, "xXpP( \t\n") != NULL)
        return false;
    char *end;
    *out = strtod(t, &end);
    return *end == '\0';
}

static jv f_int(jrt *r, jv v, const jcall *c)
{
    bool given;
    jv def = hy_jinja__arg(r, c, 0, "default", &given);
    jv base = hy_jinja__arg(r, c, 1, "base", NULL);
    int64_t i;
    double f;
    if (v.t == J_UNDEF)
        hy_jinja__undef_fail(r, v);
    if (v.t == J_INT || v.t == J_BOOL)
        return hy_jinja__int(v.i);
    if (v.t == J_FLOAT && (isnan(v.f) || isinf(v.f)))
        hy_jinja__fail(r, "cannot convert float to integer");
    if (v.t == J_STR && parse_int(r, v, base.t == J_INT ? (int)base.i : 10, &i))
        return hy_jinja__int(i);
    if (v.t == J_FLOAT || (v.t == J_STR && parse_float(r, v, &f))) {
        f = v.t == J_FLOAT ? v.f : f;
        if (fabs(f) < 9.2e18)
            return hy_jinja__int((int64_t)f);
        if (!isnan(f) && !isinf(f))
            hy_jinja__fail(r, "an integer does not fit in 64 bits");
    }
    return given ? def : hy_jinja__int(0);
}

static jv f_float(jrt *r, jv v, const jcall *c)
{
    bool given;
    jv def = hy_jinja__arg(r, c, 0, "default", &given);
    double f;
    if (v.t == J_UNDEF)
        hy_jinja__undef_fail(r, v);
    if (hy_jinja__is_number(v))
        return hy_jinja__float(hy_jinja__to_double(v));
    if (v.t == J_STR && parse_float(r, v, &f))
        return hy_jinja__float(f);
    return given ? def : hy_jinja__float(0);
}

static jv f_abs(jrt *r, jv v, const jcall *c)
{
    (void)c;
    if (v.t == J_UNDEF)
        hy_jinja__undef_fail(r, v);
    if (v.t == J_FLOAT)
        return hy_jinja__float(fabs(v.f));
    if (!hy_jinja__is_number(v) || v.i == INT64_MIN)
        hy_jinja__fail(r, "bad operand type for abs(): '%s'", hy_jinja__type_name(v));
    return hy_jinja__int(v.i < 0 ? -v.i : v.i);
}

static jv f_round(jrt *r, jv v, const jcall *c)
{
    bool given;
    jv prec = hy_jinja__arg(r, c, 0, "precision", &given);
    jv how = hy_jinja__arg(r, c, 1, "method", NULL);
    int64_t p = given ? hy_jinja__need_int(r, prec, "precision") : 0;
    char t[400];
    if (v.t == J_UNDEF)
        hy_jinja__undef_fail(r, v);
    if (!hy_jinja__is_number(v))
        hy_jinja__fail(r, "type %s doesn't define __round__ method", hy_jinja__type_name(v));
    bool up = how.t == J_STR && JSTR_IS(how.s, "ceil");
    bool down = how.t == J_STR && JSTR_IS(how.s, "floor");
    if (how.t != J_NONE && !up && !down && !(how.t == J_STR && JSTR_IS(how.s, "common")))
        hy_jinja__fail(r, "method must be common, ceil or floor");
    if (p > 300 || p < -300)
        hy_jinja__fail(r, "a precision over 300 is not supported");
    if (up || down) {
        double s = pow(10, (double)p), x = hy_jinja__to_double(v) * s;
        return hy_jinja__float((up ? ceil(x) : floor(x)) / s);
    }
    if (v.t != J_FLOAT && p >= 0)
        return hy_jinja__int(v.i);
    double f = hy_jinja__to_double(v);
    if (isnan(f) || isinf(f))
        return v;
    if (p < 0) {
        double s = pow(10, (double)-p), q = f / s, n = nearbyint(q);
        return v.t == J_FLOAT ? hy_jinja__float(n * s) : hy_jinja__int((int64_t)(n * s));
    }
    snprintf(t, sizeof t, "%.*f", (int)(p > 30 ? 30 : p), f); /* half to even on the exact value */
    return hy_jinja__float(strtod(t, NULL));
}

static jv f_format(jrt *r, jv v, const jcall *c)
{
    jv args = hy_jinja__list(r, J_TUPLE, c->n_pos);
    for (uint32_t i = 0; i < c->n_pos; i++)
        hy_jinja__push(r, args.l, c->pos[i]);
    if (c->n_kw > 0) {
        args = hy_jinja__dict(r, c->n_kw);
        for (uint32_t i = 0; i < c->n_kw; i++)
            hy_jinja__dict_set(r, args.d, (jv){.t = J_STR, .s = c->kw_name[i]}, c->kw[i]);
    }
    return hy_jinja__percent(r, hy_jinja__to_str(r, v), args);
}

static jv f_wordcount(jrt *r, jv v, const jcall *c)
{
    (void)c;
    v = hy_jinja__to_str(r, v);
    int64_t n = 0;
    bool in = false;
    hy_jinja__charge(r, v.s->len >> 4);
    for (const char *p = v.s->p, *end = p + v.s->len; p < end;) {
        int k;
        uint32_t ch = hy_jinja__next_cp(p, end, &k);
        bool w = ch >= 0x80 ? hy_jinja__printable(ch)
                            : (ch >= '0' && ch <= '9') || ch == '_' ||
                                  ((ch | 32) >= 'a' && (ch | 32) <= 'z');
        n += w && !in;
        in = w;
        p += k;
    }
    return hy_jinja__int(n);
}

static jv f_center(jrt *r, jv v, const jcall *c)
{
    bool given;
    jv w = hy_jinja__arg(r, c, 0, "width", &given);
    int64_t n = given ? hy_jinja__need_int(r, w, "width") : 80;
    v = hy_jinja__to_str(r, v);
    int64_t gap = n - hy_jinja__chars(v.s);
    if (gap <= 0)
        return v;
    int64_t left = gap / 2 + (gap & n & 1);
    jv sp = hy_jinja__cstr(r, " ");
    jv out = hy_jinja__binary(r, OP_MUL, sp, hy_jinja__int(left));
    out = hy_jinja__binary(r, OP_ADD, out, v);
    return hy_jinja__binary(r, OP_ADD, out,
                            hy_jinja__binary(r, OP_MUL, sp, hy_jinja__int(gap - left)));
}

static jv f_truncate(jrt *r, jv v, const jcall *c)
{
    bool g1, g2;
    jv length = hy_jinja__arg(r, c, 0, "length", &g1), end = hy_jinja__arg(r, c, 2, "end", &g2);
    jv leeway = hy_jinja__arg(r, c, 3, "leeway", NULL);
    if (v.t != J_STR)
        hy_jinja__fail(r, "truncate needs a string, not %s", hy_jinja__type_name(v));
    if (!g2)
        end = hy_jinja__cstr(r, "...");
    if (end.t != J_STR)
        hy_jinja__fail(r, "truncate: end must be a string");
    int64_t n = g1 ? hy_jinja__need_int(r, length, "length") : 255;
    int64_t slack = leeway.t == J_NONE ? 5 : hy_jinja__need_int(r, leeway, "leeway");
    int64_t keep = n - hy_jinja__chars(end.s);
    if (keep < 0 || slack < 0)
        hy_jinja__fail(r, "truncate: length is shorter than its end mark");
    if (hy_jinja__chars(v.s) <= n + slack)
        return v;
    v = hy_jinja__slice_str(r, v, 0, keep, 1);
    if (!flag(r, c, 1, "killwords")) {
        const char *sp = memrchr(v.s->p, ' ', v.s->len);
        if (sp != NULL)
            v = hy_jinja__strv(r, v.s->p, (size_t)(sp - v.s->p));
    }
    return hy_jinja__binary(r, OP_ADD, v, end);
}

static const jfilter_def scalar_filters[] = {
    {"trim", f_trim, 1, {"chars"}},
    {"upper", f_upper, 0, {0}},
    {"lower", f_lower, 0, {0}},
    {"capitalize", f_capitalize, 0, {0}},
    {"title", f_title, 0, {0}},
    {"string", f_string, 0, {0}},
    {"safe", f_safe, 0, {0}},
    {"escape", f_escape, 0, {0}},
    {"e", f_escape, 0, {0}},
    {"length", f_length, 0, {0}},
    {"count", f_length, 0, {0}},
    {"default", f_default, 2, {"default_value", "boolean"}},
    {"d", f_default, 2, {"default_value", "boolean"}},
    {"tojson", f_tojson, 4, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"replace", f_replace, 3, {"old", "new", "count"}},
    {"indent", f_indent, 3, {"width", "first", "blank"}},
    {"int", f_int, 2, {"default", "base"}},
    {"float", f_float, 1, {"default"}},
    {"abs", f_abs, 0, {0}},
    {"round", f_round, 2, {"precision", "method"}},
    {"format", f_format, 255, {0}},
    {"wordcount", f_wordcount, 0, {0}},
    {"center", f_center, 1, {"width"}},
    {"truncate", f_truncate, 4, {"length", "killwords", "end", "leeway"}},
    {NULL, NULL, 0, {0}},
};

enum { LIST_BASE = 1000 };

static int32_t find_filter(const jfilter_def *d, const char *s, size_t len)
{
    for (int32_t i = 0; d[i].name != NULL; i++)
        if (strlen(d[i].name) == len && memcmp(d[i].name, s, len) == 0)
            return i;
    return -1;
}

int32_t hy_jinja__filter_id(const char *s, size_t len)
{
    int32_t i = find_filter(scalar_filters, s, len);
    if (i >= 0)
        return i;
    i = find_filter(hy_jinja__list_filters, s, len);
    return i < 0 ? -1 : LIST_BASE + i;
}

jv hy_jinja__filter(jrt *r, int32_t id, jstr *name, jv v, const jcall *c)
{
    const jfilter_def *d =
        id >= LIST_BASE ? &hy_jinja__list_filters[id - LIST_BASE] : &scalar_filters[id];
    (void)name;
    if (d->max != 255)
        hy_jinja__arg_check(r, c, d->name, d->max, d->names);
    hy_jinja__down(r);
    jv out = d->fn(r, v, c);
    JUP(r);
    return out;
}

/* ---- tests ---- */

typedef enum jtest {
    TEST_DEFINED,
    TEST_UNDEFINED,
    TEST_NONE,
    TEST_STRING,
    TEST_MAPPING,
    TEST_ITERABLE,
    TEST_SEQUENCE,
    TEST_NUMBER,
    TEST_INTEGER,
    TEST_FLOAT,
    TEST_BOOLEAN,
    TEST_TRUE,
    TEST_FALSE,
    TEST_CALLABLE,
    TEST_LOWER,
    TEST_UPPER,
    TEST_ODD,
    TEST_EVEN,
    TEST_ESCAPED,
    TEST_FILTER,
    TEST_TEST,
    TEST_WITH_ARG, /* those below take one argument */
    TEST_DIVISIBLE = TEST_WITH_ARG,
    TEST_SAMEAS,
    TEST_IN,
    TEST_EQ,
    TEST_NE,
    TEST_GT,
    TEST_GE,
    TEST_LT,
    TEST_LE,
} jtest;

static const struct {
    const char *name;
    jtest id;
} tests[] = {
    {"defined", TEST_DEFINED},
    {"undefined", TEST_UNDEFINED},
    {"none", TEST_NONE},
    {"string", TEST_STRING},
    {"mapping", TEST_MAPPING},
    {"iterable", TEST_ITERABLE},
    {"sequence", TEST_SEQUENCE},
    {"number", TEST_NUMBER},
    {"integer", TEST_INTEGER},
    {"float", TEST_FLOAT},
    {"boolean", TEST_BOOLEAN},
    {"true", TEST_TRUE},
    {"false", TEST_FALSE},
    {"callable", TEST_CALLABLE},
    {"lower", TEST_LOWER},
    {"upper", TEST_UPPER},
    {"odd", TEST_ODD},
    {"even", TEST_EVEN},
    {"escaped", TEST_ESCAPED},
    {"filter", TEST_FILTER},
    {"test", TEST_TEST},
    {"divisibleby", TEST_DIVISIBLE},
    {"sameas", TEST_SAMEAS},
    {"in", TEST_IN},
    {"==", TEST_EQ},
    {"eq", TEST_EQ},
    {"equalto", TEST_EQ},
    {"!=", TEST_NE},
    {"ne", TEST_NE},
    {">", TEST_GT},
    {"gt", TEST_GT},
    {"greaterthan", TEST_GT},
    {">=", TEST_GE},
    {"ge", TEST_GE},
    {"<", TEST_LT},
    {"lt", TEST_LT},
    {"lessthan", TEST_LT},
    {"<=", TEST_LE},
    {"le", TEST_LE},
};

int32_t hy_jinja__test_id(const char *s, size_t len)
{
    for (size_t i = 0; i < HY_COUNTOF(tests); i++)
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, s, len) == 0)
            return (int32_t)i;
    return -1;
}

static bool test_case(jrt *r, jv v, bool upper)
{
    v = hy_jinja__to_str(r, v);
    jv u = hy_jinja__case(r, v, 'u'), l = hy_jinja__case(r, v, 'l');
    return hy_jinja__eq(r, v, upper ? u : l) && !hy_jinja__eq(r, u, l);
}

static bool test_modulo(jrt *r, jv v, jv by, int64_t want)
{
    return hy_jinja__eq(r, hy_jinja__binary(r, OP_MOD, v, by), hy_jinja__int(want));
}

static bool test_plain(jrt *r, jtest id, jv v)
{
    switch (id) {
    case TEST_DEFINED:
        return v.t != J_UNDEF;
    case TEST_UNDEFINED:
        return v.t == J_UNDEF;
    case TEST_NONE:
        return v.t == J_NONE;
    case TEST_STRING:
        return v.t == J_STR;
    case TEST_MAPPING:
        return v.t == J_DICT;
    case TEST_ITERABLE:
        return v.t == J_UNDEF || v.t == J_GEN || hy_jinja__len(r, v) >= 0;
    case TEST_SEQUENCE:
        return v.t != J_VIEW && v.t != J_LOOP && hy_jinja__len(r, v) >= 0;
    case TEST_NUMBER:
        return hy_jinja__is_number(v);
    case TEST_INTEGER:
        return v.t == J_INT;
    case TEST_FLOAT:
        return v.t == J_FLOAT;
    case TEST_BOOLEAN:
        return v.t == J_BOOL;
    case TEST_TRUE:
        return v.t == J_BOOL && v.i;
    case TEST_FALSE:
        return v.t == J_BOOL && !v.i;
    case TEST_CALLABLE:
        return v.t == J_MACRO || v.t == J_FUNC || v.t == J_METHOD || v.t == J_LOOP ||
               v.t == J_UNDEF;
    case TEST_LOWER:
    case TEST_UPPER:
        return test_case(r, v, id == TEST_UPPER);
    case TEST_ODD:
    case TEST_EVEN:
        return test_modulo(r, v, hy_jinja__int(2), id == TEST_ODD);
    case TEST_ESCAPED:
        return v.t == J_STR && v.markup;
    case TEST_FILTER:
        return v.t == J_STR && hy_jinja__filter_id(v.s->p, v.s->len) >= 0;
    default:
        return v.t == J_STR && hy_jinja__test_id(v.s->p, v.s->len) >= 0;
    }
}

bool hy_jinja__test(jrt *r, int32_t at, jstr *name, jv v, const jcall *c)
{
    jtest id = tests[at].id;
    (void)name;
    bool with = id >= TEST_WITH_ARG;
    if (c->n_pos != (with ? 1u : 0u) || c->n_kw != 0)
        hy_jinja__fail(r, "the test '%s' takes %s argument", tests[at].name, with ? "one" : "no");
    jv a = with ? c->pos[0] : hy_jinja__none();
    switch (id) {
    case TEST_DIVISIBLE:
        return test_modulo(r, v, a, 0);
    case TEST_SAMEAS:
        return hy_jinja__is(v, a);
    case TEST_IN:
        return hy_jinja__contains(r, a, v);
    case TEST_EQ:
        return hy_jinja__eq(r, v, a);
    case TEST_NE:
        return !hy_jinja__eq(r, v, a);
    case TEST_GT:
        return hy_jinja__cmp(r, v, a, ">") == 1;
    case TEST_LT:
        return hy_jinja__cmp(r, v, a, "<") == -1;
    case TEST_GE: {
        int k = hy_jinja__cmp(r, v, a, ">=");
        return k == 0 || k == 1;
    }
    case TEST_LE:
        return hy_jinja__cmp(r, v, a, "<=") <= 0;
    default:
        return test_plain(r, id, v);
    }
}
