/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of strings, dicts, lists and loops, and the global functions. What would change a list
 * or dict is known by name and refused, as the immutable sandbox refuses it.
 *
 * Thread: one rendering.  Owner: the arena.
 */
#include "core/text/jinja_int.h"

#include <time.h>

typedef jv (*method_fn)(jrt *r, jv self, const jcall *c);
typedef struct method_def {
    const char *name;
    method_fn fn; /* NULL: the sandbox refuses it */
    uint8_t min, max;
} method_def;

static jv str_arg(jrt *r, const jcall *c, uint32_t i)
{
    if (c->pos[i].t == J_UNDEF)
        hy_jinja__fail(r, "argument %u must be str, not Undefined", (unsigned)i + 1);
    if (c->pos[i].t != J_STR)
        hy_jinja__fail(r, "argument %u must be str, not %s", (unsigned)i + 1,
                       hy_jinja__type_name(c->pos[i]));
    return c->pos[i];
}

static int64_t int_arg(jrt *r, const jcall *c, uint32_t i, const char *name, int64_t def)
{
    bool found;
    jv v = hy_jinja__arg(r, c, i, name, &found);
    return found && v.t != J_NONE ? hy_jinja__need_int(r, v, name ? name : "an argument") : def;
}

static jv piece(jrt *r, jv s, const char *from, const char *to)
{
    jv v = hy_jinja__strv(r, from, (size_t)(to - from));
    v.markup = s.markup;
    return v;
}

/* ---- str ---- */

static jv s_strip(jrt *r, jv s, const jcall *c)
{
    return hy_jinja__strip(r, s, c->n_pos > 0 ? c->pos[0] : hy_jinja__none(),
                           JSTRIP_LEFT | JSTRIP_RIGHT);
}

static jv s_lstrip(jrt *r, jv s, const jcall *c)
{
    return hy_jinja__strip(r, s, c->n_pos > 0 ? c->pos[0] : hy_jinja__none(), JSTRIP_LEFT);
}

static jv s_rstrip(jrt *r, jv s, const jcall *c)
{
    return hy_jinja__strip(r, s, c->n_pos > 0 ? c->pos[0] : hy_jinja__none(), JSTRIP_RIGHT);
}

static jv s_upper(jrt *r, jv s, const jcall *c)
{
    (void)c;
    return hy_jinja__case(r, s, 'u');
}

static jv s_lower(jrt *r, jv s, const jcall *c)
{
    (void)c;
    return hy_jinja__case(r, s, 'l');
}

static jv s_title(jrt *r, jv s, const jcall *c)
{
    (void)c;
    return hy_jinja__case(r, s, 't');
}

static jv s_capitalize(jrt *r, jv s, const jcall *c)
{
    (void)c;
    return hy_jinja__case(r, s, 'c');
}

static jv s_swapcase(jrt *r, jv s, const jcall *c)
{
    (void)c;
    return hy_jinja__case(r, s, 's');
}

/* Split at white space, from the left or the right. */
static jv split_space(jrt *r, jv s, int64_t max, bool right)
{
    jv out = hy_jinja__list(r, J_LIST, 0);
    const char *p = s.s->p, *end = p + s.s->len;
    int k;
    for (int64_t n = 0;; n++) {
        jv rest = hy_jinja__strip(r, piece(r, s, p, end), hy_jinja__none(),
                                  right ? JSTRIP_RIGHT : JSTRIP_LEFT);
        p = rest.s->p;
        end = p + rest.s->len;
        if (p == end)
            break;
        if (n == max) {
            hy_jinja__push(r, out.l, rest);
            break;
        }
        hy_jinja__charge(r, 1);
        const char *at = right ? end : p;
        while (right ? at > p : at < end) {
            uint32_t ch = right ? hy_jinja__prev_cp(p, at, &k) : hy_jinja__next_cp(at, end, &k);
            if (hy_jinja__space(ch))
                break;
            at += right ? -k : k;
        }
        hy_jinja__push(r, out.l, right ? piece(r, s, at, end) : piece(r, s, p, at));
        if (right)
            end = at;
        else
            p = at;
    }
    return out;
}

static const char *find_last(const char *h, size_t hn, const char *n, size_t nn)
{
    if (nn > hn)
        return NULL;
    for (const char *p = h + (hn - nn);; p--) {
        if (memcmp(p, n, nn) == 0)
            return p;
        if (p == h)
            return NULL;
    }
}

static void turn_around(jlist *l)
{
    for (size_t i = 0, j = l->n; i + 1 < j; i++) {
        jv t = l->v[i];
        l->v[i] = l->v[--j];
        l->v[j] = t;
    }
}

static jv split(jrt *r, jv s, const jcall *c, bool right)
{
    jv sep = hy_jinja__arg(r, c, 0, "sep", NULL);
    int64_t max = int_arg(r, c, 1, "maxsplit", -1);
    jv out;
    hy_jinja__charge(r, s.s->len >> 4);
    if (sep.t == J_NONE) {
        out = split_space(r, s, max < 0 ? -1 : max, right);
    } else {
        if (sep.t != J_STR)
            hy_jinja__fail(r, "must be str or None, not %s", hy_jinja__type_name(sep));
        if (sep.s->len == 0)
            hy_jinja__fail(r, "empty separator");
        out = hy_jinja__list(r, J_LIST, 0);
        const char *p = s.s->p, *end = p + s.s->len;
        for (int64_t n = 0; n != max; n++) {
            const char *hit = right ? find_last(p, (size_t)(end - p), sep.s->p, sep.s->len)
                                    : hy_jinja__find(p, (size_t)(end - p), sep.s->p, sep.s->len);
            if (hit == NULL)
                break;
            hy_jinja__charge(r, 1);
            hy_jinja__push(r, out.l,
                           right ? piece(r, s, hit + sep.s->len, end) : piece(r, s, p, hit));
            if (right)
                end = hit;
            else
                p = hit + sep.s->len;
        }
        hy_jinja__push(r, out.l, piece(r, s, p, end));
    }
    if (right)
        turn_around(out.l);
    return out;
}

static jv s_split(jrt *r, jv s, const jcall *c)
{
    return split(r, s, c, false);
}

static jv s_rsplit(jrt *r, jv s, const jcall *c)
{
    return split(r, s, c, true);
}

static jv s_splitlines(jrt *r, jv s, const jcall *c)
{
    bool keep = hy_jinja__truth(r, hy_jinja__arg(r, c, 0, "keepends", NULL));
    return (jv){.t = J_LIST, .l = hy_jinja__splitlines(r, s, keep)};
}

static jv partition(jrt *r, jv s, const jcall *c, bool right)
{
    jv sep = str_arg(r, c, 0), t = hy_jinja__list(r, J_TUPLE, 3);
    const char *p = s.s->p, *end = p + s.s->len;
    if (sep.s->len == 0)
        hy_jinja__fail(r, "empty separator");
    hy_jinja__charge(r, s.s->len >> 6);
    const char *hit = right ? find_last(p, s.s->len, sep.s->p, sep.s->len)
                            : hy_jinja__find(p, s.s->len, sep.s->p, sep.s->len);
    t.l->n = 3;
    if (hit == NULL) {
        t.l->v[0] = t.l->v[1] = t.l->v[2] = hy_jinja__strv(r, "", 0);
        t.l->v[right ? 2 : 0] = s;
    } else {
        t.l->v[0] = piece(r, s, p, hit);
        t.l->v[1] = sep;
        t.l->v[2] = piece(r, s, hit + sep.s->len, end);
    }
    return t;
}

static jv s_partition(jrt *r, jv s, const jcall *c)
{
    return partition(r, s, c, false);
}

static jv s_rpartition(jrt *r, jv s, const jcall *c)
{
    return partition(r, s, c, true);
}

/* s[start:end] of the optional arguments 1 and 2; first_char receives the offset in characters. */
static jv window(jrt *r, jv s, const jcall *c, int64_t *first)
{
    int64_t n = hy_jinja__chars(s.s);
    int64_t a = int_arg(r, c, 1, NULL, 0), b = int_arg(r, c, 2, NULL, n);
    a = a < 0 ? (a + n < 0 ? 0 : a + n) : a;
    b = b < 0 ? (b + n < 0 ? 0 : b + n) : b > n ? n : b;
    *first = a;
    if (a > b)
        return (jv){.t = J_NONE};
    return hy_jinja__slice_str(r, s, a, b - a, 1);
}

static bool affix(jv s, jv x, bool tail)
{
    return x.s->len <= s.s->len &&
           memcmp(tail ? s.s->p + s.s->len - x.s->len : s.s->p, x.s->p, x.s->len) == 0;
}

static jv starts_ends(jrt *r, jv s, const jcall *c, bool tail)
{
    int64_t first;
    jv w = window(r, s, c, &first), x = c->pos[0];
    if (w.t == J_NONE)
        return hy_jinja__bool(false);
    if (x.t == J_TUPLE) {
        for (size_t i = 0; i < x.l->n; i++)
            if (x.l->v[i].t == J_STR && affix(w, x.l->v[i], tail))
                return hy_jinja__bool(true);
        return hy_jinja__bool(false);
    }
    if (x.t != J_STR)
        hy_jinja__fail(r, "%s first arg must be str or a tuple of str, not %s",
                       tail ? "endswith" : "startswith", hy_jinja__type_name(x));
    return hy_jinja__bool(affix(w, x, tail));
}

static jv s_startswith(jrt *r, jv s, const jcall *c)
{
    return starts_ends(r, s, c, false);
}

static jv s_endswith(jrt *r, jv s, const jcall *c)
{
    return starts_ends(r, s, c, true);
}

static int64_t find_in(jrt *r, jv s, const jcall *c, bool right)
{
    int64_t first;
    jv w = window(r, s, c, &first), x = str_arg(r, c, 0);
    if (w.t == J_NONE)
        return -1;
    hy_jinja__charge(r, w.s->len >> 4);
    const char *hit = right ? find_last(w.s->p, w.s->len, x.s->p, x.s->len)
                            : hy_jinja__find(w.s->p, w.s->len, x.s->p, x.s->len);
    if (hit == NULL)
        return -1;
    jstr head = {w.s->p, (size_t)(hit - w.s->p), -1, 0};
    return first + hy_jinja__chars(&head);
}

static jv s_find(jrt *r, jv s, const jcall *c)
{
    return hy_jinja__int(find_in(r, s, c, false));
}

static jv s_rfind(jrt *r, jv s, const jcall *c)
{
    return hy_jinja__int(find_in(r, s, c, true));
}

static jv s_index(jrt *r, jv s, const jcall *c)
{
    int64_t i = find_in(r, s, c, false);
    if (i < 0)
        hy_jinja__fail(r, "substring not found");
    return hy_jinja__int(i);
}

static jv s_rindex(jrt *r, jv s, const jcall *c)
{
    int64_t i = find_in(r, s, c, true);
    if (i < 0)
        hy_jinja__fail(r, "substring not found");
    return hy_jinja__int(i);
}

static jv s_count(jrt *r, jv s, const jcall *c)
{
    int64_t first, n = 0;
    jv w = window(r, s, c, &first), x = str_arg(r, c, 0);
    if (w.t == J_NONE)
        return hy_jinja__int(0);
    if (x.s->len == 0)
        return hy_jinja__int(hy_jinja__chars(w.s) + 1);
    hy_jinja__charge(r, w.s->len >> 4);
    const char *p = w.s->p, *end = p + w.s->len;
    while ((p = hy_jinja__find(p, (size_t)(end - p), x.s->p, x.s->len)) != NULL) {
        n++;
        p += x.s->len;
    }
    return hy_jinja__int(n);
}

static jv s_replace(jrt *r, jv s, const jcall *c)
{
    jv with = str_arg(r, c, 1);
    return hy_jinja__replace(r, s, str_arg(r, c, 0), s.markup ? hy_jinja__escape(r, with) : with,
                             int_arg(r, c, 2, "count", -1));
}

static jv s_join(jrt *r, jv s, const jcall *c)
{
    jlist *l = hy_jinja__items(r, c->pos[0]);
    jsb b;
    hy_jinja__sb_init(&b);
    for (size_t i = 0; i < l->n; i++) {
        hy_jinja__charge(r, 1);
        if (i > 0)
            hy_jinja__sb_add(r, &b, s.s->p, s.s->len);
        if (l->v[i].t != J_STR && !s.markup)
            hy_jinja__fail(r, "sequence item %zu: expected str instance, %s found", i,
                           hy_jinja__type_name(l->v[i]));
        jv x = s.markup ? hy_jinja__escape(r, l->v[i]) : l->v[i];
        hy_jinja__sb_add(r, &b, x.s->p, x.s->len);
    }
    jv v = hy_jinja__sb_val(r, &b);
    v.markup = s.markup;
    return v;
}

static jv s_removeprefix(jrt *r, jv s, const jcall *c)
{
    jv x = str_arg(r, c, 0);
    return affix(s, x, false) ? piece(r, s, s.s->p + x.s->len, s.s->p + s.s->len) : s;
}

static jv s_removesuffix(jrt *r, jv s, const jcall *c)
{
    jv x = str_arg(r, c, 0);
    return affix(s, x, true) ? piece(r, s, s.s->p, s.s->p + s.s->len - x.s->len) : s;
}

static jv s_format(jrt *r, jv s, const jcall *c)
{
    return hy_jinja__format(r, s, c);
}

static jv justify(jrt *r, jv s, const jcall *c, char side)
{
    int64_t width = int_arg(r, c, 0, NULL, 0), gap = width - hy_jinja__chars(s.s);
    jv fill = c->n_pos > 1 ? str_arg(r, c, 1) : hy_jinja__cstr(r, " ");
    if (hy_jinja__chars(fill.s) != 1)
        hy_jinja__fail(r, "The fill character must be exactly one character long");
    if (gap <= 0)
        return s;
    int64_t left = side == 'r' ? gap : side == 'l' ? 0 : gap / 2 + (gap & width & 1);
    jv a = hy_jinja__binary(r, OP_MUL, fill, hy_jinja__int(left));
    jv b = hy_jinja__binary(r, OP_MUL, fill, hy_jinja__int(gap - left));
    return hy_jinja__binary(r, OP_ADD, hy_jinja__binary(r, OP_ADD, a, s), b);
}

static jv s_ljust(jrt *r, jv s, const jcall *c)
{
    return justify(r, s, c, 'l');
}

static jv s_rjust(jrt *r, jv s, const jcall *c)
{
    return justify(r, s, c, 'r');
}

static jv s_center(jrt *r, jv s, const jcall *c)
{
    return justify(r, s, c, 'c');
}

static jv s_zfill(jrt *r, jv s, const jcall *c)
{
    int64_t gap = int_arg(r, c, 0, NULL, 0) - hy_jinja__chars(s.s);
    if (gap <= 0)
        return s;
    size_t sign = s.s->len > 0 && (s.s->p[0] == '-' || s.s->p[0] == '+');
    jv zeros = hy_jinja__binary(r, OP_MUL, hy_jinja__cstr(r, "0"), hy_jinja__int(gap));
    jv v = hy_jinja__binary(r, OP_ADD, piece(r, s, s.s->p, s.s->p + sign), zeros);
    return hy_jinja__binary(r, OP_ADD, v, piece(r, s, s.s->p + sign, s.s->p + s.s->len));
}

static jv s_expandtabs(jrt *r, jv s, const jcall *c)
{
    int64_t width = int_arg(r, c, 0, "tabsize", 8), col = 0;
    jsb b;
    hy_jinja__sb_init(&b);
    if (width > 1000)
        hy_jinja__fail(r, "a tab size over 1000 is not supported");
    hy_jinja__charge(r, s.s->len >> 4);
    for (size_t i = 0; i < s.s->len; i++) {
        char ch = s.s->p[i];
        if (ch == '\t') {
            int64_t n = width > 0 ? width - col % width : 0;
            for (int64_t k = 0; k < n; k++)
                hy_jinja__sb_putc(r, &b, ' ');
            col += n;
            continue;
        }
        hy_jinja__sb_putc(r, &b, ch);
        col = ch == '\n' || ch == '\r' ? 0 : col + ((ch & 0xc0) != 0x80);
    }
    return hy_jinja__sb_val(r, &b);
}

static bool is_alnum(uint32_t c)
{
    return hy_jinja__letter(c) || hy_jinja__digit(c);
}

static bool is_ascii(uint32_t c)
{
    return c < 0x80;
}

static jv is_all(jrt *r, jv s, bool (*f)(uint32_t), bool empty)
{
    hy_jinja__charge(r, s.s->len >> 4);
    for (const char *p = s.s->p, *end = p + s.s->len; p < end;) {
        int k;
        if (!f(hy_jinja__next_cp(p, end, &k)))
            return hy_jinja__bool(false);
        p += k;
    }
    return hy_jinja__bool(empty || s.s->len > 0);
}

static jv s_isdigit(jrt *r, jv s, const jcall *c)
{
    (void)c;
    return is_all(r, s, hy_jinja__digit, false);
}

static jv s_isalpha(jrt *r, jv s, const jcall *c)
{
    (void)c;
    return is_all(r, s, hy_jinja__letter, false);
}

static jv s_isalnum(jrt *r, jv s, const jcall *c)
{
    (void)c;
    return is_all(r, s, is_alnum, false);
}

static jv s_isspace(jrt *r, jv s, const jcall *c)
{
    (void)c;
    return is_all(r, s, hy_jinja__space, false);
}

static jv s_isascii(jrt *r, jv s, const jcall *c)
{
    (void)c;
    return is_all(r, s, is_ascii, true);
}

static jv s_isupper(jrt *r, jv s, const jcall *c)
{
    return hy_jinja__bool(hy_jinja__test(r, hy_jinja__test_id("upper", 5), NULL, s, c));
}

static jv s_islower(jrt *r, jv s, const jcall *c)
{
    return hy_jinja__bool(hy_jinja__test(r, hy_jinja__test_id("lower", 5), NULL, s, c));
}

static const method_def str_methods[] = {
    {"strip", s_strip, 0, 1},
    {"lstrip", s_lstrip, 0, 1},
    {"rstrip", s_rstrip, 0, 1},
    {"split", s_split, 0, 2},
    {"rsplit", s_rsplit, 0, 2},
    {"splitlines", s_splitlines, 0, 1},
    {"partition", s_partition, 1, 1},
    {"rpartition", s_rpartition, 1, 1},
    {"startswith", s_startswith, 1, 3},
    {"endswith", s_endswith, 1, 3},
    {"find", s_find, 1, 3},
    {"rfind", s_rfind, 1, 3},
    {"index", s_index, 1, 3},
    {"rindex", s_rindex, 1, 3},
    {"count", s_count, 1, 3},
    {"replace", s_replace, 2, 3},
    {"join", s_join, 1, 1},
    {"upper", s_upper, 0, 0},
    {"lower", s_lower, 0, 0},
    {"casefold", s_lower, 0, 0},
    {"title", s_title, 0, 0},
    {"capitalize", s_capitalize, 0, 0},
    {"swapcase", s_swapcase, 0, 0},
    {"removeprefix", s_removeprefix, 1, 1},
    {"removesuffix", s_removesuffix, 1, 1},
    {"format", s_format, 0, 255},
    {"ljust", s_ljust, 1, 2},
    {"rjust", s_rjust, 1, 2},
    {"center", s_center, 1, 2},
    {"expandtabs", s_expandtabs, 0, 1},
    {"zfill", s_zfill, 1, 1},
    {"isdigit", s_isdigit, 0, 0},
    {"isdecimal", s_isdigit, 0, 0},
    {"isnumeric", s_isdigit, 0, 0},
    {"isalpha", s_isalpha, 0, 0},
    {"isalnum", s_isalnum, 0, 0},
    {"isspace", s_isspace, 0, 0},
    {"isascii", s_isascii, 0, 0},
    {"isupper", s_isupper, 0, 0},
    {"islower", s_islower, 0, 0},
    {NULL, NULL, 0, 0},
};

/* ---- dict, list, loop ---- */

static jv d_get(jrt *r, jv d, const jcall *c)
{
    jv *v = hy_jinja__dict_get(r, d.d, c->pos[0]);
    return v != NULL ? *v : c->n_pos > 1 ? c->pos[1] : hy_jinja__none();
}

static jv view(jrt *r, jv d, int elem)
{
    jv v = hy_jinja__list(r, J_VIEW, d.d->n);
    v.l->elem = (uint8_t)elem;
    hy_jinja__charge(r, d.d->n / 8);
    for (size_t i = 0; i < d.d->n; i++) {
        jv x = elem == 0 ? d.d->p[i].k : d.d->p[i].v;
        if (elem == 2) {
            x = hy_jinja__list(r, J_TUPLE, 2);
            hy_jinja__push(r, x.l, d.d->p[i].k);
            hy_jinja__push(r, x.l, d.d->p[i].v);
        }
        v.l->v[v.l->n++] = x;
    }
    return v;
}

static jv d_keys(jrt *r, jv d, const jcall *c)
{
    (void)c;
    return view(r, d, 0);
}

static jv d_values(jrt *r, jv d, const jcall *c)
{
    (void)c;
    return view(r, d, 1);
}

static jv d_items(jrt *r, jv d, const jcall *c)
{
    (void)c;
    return view(r, d, 2);
}

static jv d_copy(jrt *r, jv d, const jcall *c)
{
    (void)c;
    jv v = hy_jinja__dict(r, d.d->n);
    for (size_t i = 0; i < d.d->n; i++)
        v.d->p[v.d->n++] = d.d->p[i];
    return v;
}

static const method_def dict_methods[] = {
    {"get", d_get, 1, 2},       {"items", d_items, 0, 0}, {"keys", d_keys, 0, 0},
    {"values", d_values, 0, 0}, {"copy", d_copy, 0, 0},   {"pop", NULL, 0, 0},
    {"popitem", NULL, 0, 0},    {"update", NULL, 0, 0},   {"clear", NULL, 0, 0},
    {"setdefault", NULL, 0, 0}, {NULL, NULL, 0, 0},
};

static jv l_index(jrt *r, jv l, const jcall *c)
{
    for (size_t i = 0; i < l.l->n; i++)
        if (hy_jinja__eq(r, l.l->v[i], c->pos[0]))
            return hy_jinja__int((int64_t)i);
    hy_jinja__fail(r, "the value is not in list");
}

static jv l_count(jrt *r, jv l, const jcall *c)
{
    int64_t n = 0;
    for (size_t i = 0; i < l.l->n; i++)
        n += hy_jinja__eq(r, l.l->v[i], c->pos[0]);
    return hy_jinja__int(n);
}

static jv l_copy(jrt *r, jv l, const jcall *c)
{
    (void)c;
    jv v = hy_jinja__list(r, J_LIST, l.l->n);
    for (size_t i = 0; i < l.l->n; i++)
        v.l->v[v.l->n++] = l.l->v[i];
    return v;
}

static const method_def list_methods[] = {
    {"index", l_index, 1, 1}, {"count", l_count, 1, 1}, {"copy", l_copy, 0, 0},
    {"append", NULL, 0, 0},   {"extend", NULL, 0, 0},   {"insert", NULL, 0, 0},
    {"pop", NULL, 0, 0},      {"remove", NULL, 0, 0},   {"reverse", NULL, 0, 0},
    {"sort", NULL, 0, 0},     {"clear", NULL, 0, 0},    {NULL, NULL, 0, 0},
};

static const method_def tuple_methods[] = {
    {"index", l_index, 1, 1}, {"count", l_count, 1, 1}, {NULL, NULL, 0, 0}};

static jv lo_cycle(jrt *r, jv l, const jcall *c)
{
    if (c->n_pos == 0)
        hy_jinja__fail(r, "no items for cycling given");
    return c->pos[l.lo->i % c->n_pos];
}

static jv lo_changed(jrt *r, jv l, const jcall *c)
{
    jv now = hy_jinja__list(r, J_TUPLE, c->n_pos);
    for (uint32_t i = 0; i < c->n_pos; i++)
        hy_jinja__push(r, now.l, c->pos[i]);
    bool same =
        l.lo->changed != NULL && hy_jinja__eq(r, now, (jv){.t = J_TUPLE, .l = l.lo->changed});
    l.lo->changed = now.l;
    return hy_jinja__bool(!same);
}

static const method_def loop_methods[] = {
    {"cycle", lo_cycle, 0, 255}, {"changed", lo_changed, 0, 255}, {NULL, NULL, 0, 0}};

static const method_def *find_method(jv self, const jstr *name)
{
    const method_def *m = self.t == J_STR     ? str_methods
                          : self.t == J_DICT  ? dict_methods
                          : self.t == J_LIST  ? list_methods
                          : self.t == J_TUPLE ? tuple_methods
                          : self.t == J_LOOP  ? loop_methods
                                              : NULL;
    for (; m != NULL && m->name != NULL; m++)
        if (strlen(m->name) == name->len && memcmp(m->name, name->p, name->len) == 0)
            return m;
    return NULL;
}

int hy_jinja__has_method(jv self, const jstr *name)
{
    if (self.t == J_LOOP)
        return 0; /* hy_jinja__loop_attr knows them */
    const method_def *m = find_method(self, name);
    return m == NULL ? 0 : m->fn != NULL ? 1 : 2;
}

jv hy_jinja__method(jrt *r, jmethod *me, const jcall *c)
{
    const method_def *m = find_method(me->self, me->name);
    if (m == NULL || m->fn == NULL)
        hy_jinja__fail(r, "no method '%.*s'", (int)me->name->len, me->name->p);
    if (c->n_pos < m->min || (m->max != 255 && c->n_pos > m->max))
        hy_jinja__fail(r, "%s() takes from %d to %d arguments, got %u", m->name, m->min, m->max,
                       (unsigned)c->n_pos);
    bool takes_kw =
        m->fn == s_split || m->fn == s_rsplit || m->fn == s_splitlines || m->fn == s_format;
    if (c->n_kw > 0 && !takes_kw)
        hy_jinja__fail(r, "%s() takes no keyword arguments", m->name);
    hy_jinja__down(r);
    jv v = m->fn(r, me->self, c);
    JUP(r);
    return v;
}

/* ---- functions ---- */

enum { FN_RANGE, FN_DICT, FN_NAMESPACE, FN_RAISE, FN_STRFTIME };

int hy_jinja__func_id(const char *name, size_t len)
{
    static const char *const names[] = {"range", "dict", "namespace", "raise_exception",
                                        "strftime_now"};
    for (int i = 0; i < (int)HY_COUNTOF(names); i++)
        if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
            return i;
    return -1;
}

static jv fn_range(jrt *r, const jcall *c)
{
    if (c->n_pos < 1 || c->n_pos > 3 || c->n_kw > 0)
        hy_jinja__fail(r, "range expected 1 to 3 arguments, got %u", (unsigned)c->n_pos);
    jrange *g = hy_jinja__alloc(r, sizeof *g);
    int64_t a = hy_jinja__need_int(r, c->pos[0], "an argument of range");
    *g = (jrange){.start = c->n_pos == 1 ? 0 : a, .stop = a, .step = 1};
    if (c->n_pos > 1)
        g->stop = hy_jinja__need_int(r, c->pos[1], "an argument of range");
    if (c->n_pos > 2)
        g->step = hy_jinja__need_int(r, c->pos[2], "an argument of range");
    if (g->step == 0)
        hy_jinja__fail(r, "range() arg 3 must not be zero");
    bool empty = g->step > 0 ? g->start >= g->stop : g->start <= g->stop;
    uint64_t span = g->step > 0 ? (uint64_t)g->stop - (uint64_t)g->start
                                : (uint64_t)g->start - (uint64_t)g->stop;
    uint64_t step = g->step > 0 ? (uint64_t)g->step : 0 - (uint64_t)g->step;
    uint64_t n = empty ? 0 : (span - 1) / step + 1;
    if (n > JLIM_RANGE)
        hy_jinja__fail(r, "range of more than %d items", JLIM_RANGE);
    g->n = (int64_t)n;
    return (jv){.t = J_RANGE, .r = g};
}

static jv fn_dict(jrt *r, const jcall *c, bool ns)
{
    jv v = hy_jinja__dict(r, c->n_kw);
    if (c->n_pos > 1)
        hy_jinja__fail(r, "dict expected at most 1 argument, got %u", (unsigned)c->n_pos);
    if (c->n_pos == 1 && c->pos[0].t == J_DICT) {
        for (size_t i = 0; i < c->pos[0].d->n; i++)
            hy_jinja__dict_set(r, v.d, c->pos[0].d->p[i].k, c->pos[0].d->p[i].v);
    } else if (c->n_pos == 1) {
        jlist *l = hy_jinja__items(r, c->pos[0]);
        for (size_t i = 0; i < l->n; i++) {
            jlist *p = hy_jinja__items(r, l->v[i]);
            if (p->n != 2)
                hy_jinja__fail(r,
                               "dictionary update sequence element #%zu has length %zu; 2 is "
                               "required",
                               i, p->n);
            hy_jinja__dict_set(r, v.d, p->v[0], p->v[1]);
        }
    }
    for (uint32_t i = 0; i < c->n_kw; i++)
        hy_jinja__dict_set(r, v.d, (jv){.t = J_STR, .s = c->kw_name[i]}, c->kw[i]);
    for (size_t i = 0; ns && i < v.d->n; i++)
        if (v.d->p[i].k.t == J_STR && v.d->p[i].k.s->len > 0 && v.d->p[i].k.s->p[0] == '_')
            hy_jinja__fail(r, "an attribute of a namespace must not begin with '_'");
    if (ns)
        v.t = J_NS;
    return v;
}

static jv fn_strftime(jrt *r, const jcall *c)
{
    bool found;
    jv f = hy_jinja__arg(r, c, 0, "format", &found);
    if (!found || f.t != J_STR)
        hy_jinja__fail(r, "strftime_now needs a format string");
    if (f.s->len > 4096)
        hy_jinja__fail(r, "strftime_now: the format is too long");
    char *out = hy_jinja__alloc(r, 65536), *fmt = hy_jinja__alloc(r, 2 * f.s->len + 2);
    static const struct tm epoch = {.tm_year = 70, .tm_mday = 1};
    size_t k = 0;
    for (size_t i = 0; i < f.s->len; i++) {
        if (f.s->p[i] == '%' && i + 1 < f.s->len && f.s->p[i + 1] == 'f') { /* microseconds */
            memcpy(fmt + k, "000000", 6 < f.s->len * 2 - k ? 6 : 0);
            k += 6 < f.s->len * 2 - k ? 6 : 0;
            i++;
        } else {
            fmt[k++] = f.s->p[i] == '\0' ? ' ' : f.s->p[i];
        }
    }
    fmt[k] = '\0';
    size_t n = strftime(out, 65536, fmt, r->now != NULL ? r->now : &epoch);
    return hy_jinja__strv(r, out, n);
}

jv hy_jinja__func(jrt *r, int fn, const jcall *c)
{
    switch (fn) {
    case FN_RANGE:
        return fn_range(r, c);
    case FN_DICT:
        return fn_dict(r, c, false);
    case FN_NAMESPACE:
        return fn_dict(r, c, true);
    case FN_RAISE: {
        jv v = hy_jinja__to_str(r, hy_jinja__arg(r, c, 0, "message", NULL));
        hy_jinja__raise(r, v.s->p, v.s->len);
    }
    default:
        return fn_strftime(r, c);
    }
}
