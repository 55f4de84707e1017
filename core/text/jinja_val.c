/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of the Jinja interpreter with Python's notions of truth, equality and order, and the
 * arena in which they live until the rendering ends.
 *
 * Thread: one rendering.  Owner: the arena.
 */
#include "core/text/jinja_int.h"

#include <math.h>
#include <stdlib.h>

/* ---- arena ---- */

enum { CHUNK = 64 * 1024 };

void *hy_jinja__arena_get(jarena *a, size_t n)
{
    size_t need = (n + 15) & ~(size_t)15;
    if (need < n)
        return NULL;
    if (need > (size_t)(a->end - a->top) || a->top == NULL) {
        size_t cap = need > CHUNK / 4 ? need + need / 2 : CHUNK;
        if (cap < need || a->total + cap > a->limit)
            cap = need;
        if (a->total + cap > a->limit)
            return NULL;
        jchunk *c = malloc(sizeof *c + cap);
        if (c == NULL)
            return NULL;
        c->next = a->head;
        c->cap = cap;
        a->head = c;
        a->total += cap;
        a->top = (char *)c->data;
        a->end = a->top + cap;
    }
    void *p = a->top;
    a->top += need;
    return p;
}

bool hy_jinja__arena_grow(jarena *a, const char *p, size_t n, size_t more)
{
    size_t have = (n + 15) & ~(size_t)15, need = (n + more + 15) & ~(size_t)15;
    if (a->top == NULL || p + have != a->top || need < n || need - have > (size_t)(a->end - a->top))
        return false;
    a->top += need - have;
    return true;
}

void hy_jinja__arena_free(jarena *a)
{
    while (a->head != NULL) {
        jchunk *c = a->head;
        a->head = c->next;
        free(c);
    }
}

void *hy_jinja__alloc(jrt *r, size_t n)
{
    void *p = hy_jinja__arena_get(&r->mem, n);
    if (p == NULL)
        hy_jinja__limit(r, "memory");
    return p;
}

void hy_jinja__charge(jrt *r, size_t n)
{
    r->steps += n > JLIM_STEPS ? JLIM_STEPS : (int64_t)n;
    if (r->steps > JLIM_STEPS)
        hy_jinja__limit(r, "steps");
}

void hy_jinja__down(jrt *r)
{
    hy_jinja__charge(r, 1);
    if (++r->depth > JLIM_DEPTH)
        hy_jinja__limit(r, "depth of calls");
}

/* ---- constructors ---- */

jv hy_jinja__none(void)
{
    return (jv){.t = J_NONE};
}

jv hy_jinja__bool(bool b)
{
    return (jv){.t = J_BOOL, .i = b};
}

jv hy_jinja__int(int64_t i)
{
    return (jv){.t = J_INT, .i = i};
}

jv hy_jinja__float(double f)
{
    return (jv){.t = J_FLOAT, .f = f};
}

jv hy_jinja__strv(jrt *r, const char *p, size_t len)
{
    jstr *s = hy_jinja__alloc(r, sizeof *s);
    *s = (jstr){p, len, -1, 0};
    return (jv){.t = J_STR, .s = s};
}

jv hy_jinja__cstr(jrt *r, const char *p)
{
    return hy_jinja__strv(r, p, strlen(p));
}

jv hy_jinja__copy(jrt *r, const char *p, size_t len)
{
    char *d = hy_jinja__alloc(r, len + 1);
    memcpy(d, p, len);
    return hy_jinja__strv(r, d, len);
}

jv hy_jinja__list(jrt *r, jtype t, size_t cap)
{
    jlist *l = hy_jinja__alloc(r, sizeof *l);
    *l = (jlist){.cap = cap};
    if (cap > JLIM_RENDER_MEM / sizeof(jv))
        hy_jinja__limit(r, "memory");
    l->v = cap == 0 ? NULL : hy_jinja__alloc(r, cap * sizeof(jv));
    return (jv){.t = (uint8_t)t, .l = l};
}

void hy_jinja__push(jrt *r, jlist *l, jv v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap == 0 ? 4 : l->cap * 2;
        jv *n = hy_jinja__alloc(r, cap * sizeof *n);
        if (l->n > 0)
            memcpy(n, l->v, l->n * sizeof *n);
        l->v = n;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

jv hy_jinja__dict(jrt *r, size_t cap)
{
    jdict *d = hy_jinja__alloc(r, sizeof *d);
    *d = (jdict){.cap = cap};
    d->p = cap == 0 ? NULL : hy_jinja__alloc(r, cap * sizeof *d->p);
    return (jv){.t = J_DICT, .d = d};
}

jv *hy_jinja__dict_gets(jrt *r, jdict *d, const char *k, size_t len)
{
    hy_jinja__charge(r, d->n / 8);
    for (size_t i = 0; i < d->n; i++) {
        jv key = d->p[i].k;
        if (key.t == J_STR && key.s->len == len && memcmp(key.s->p, k, len) == 0)
            return &d->p[i].v;
    }
    return NULL;
}

static bool hashable(jv k)
{
    if (k.t == J_TUPLE) {
        for (size_t i = 0; i < k.l->n; i++)
            if (!hashable(k.l->v[i]))
                return false;
        return true;
    }
    return k.t != J_LIST && k.t != J_DICT && k.t != J_VIEW;
}

jv *hy_jinja__dict_get(jrt *r, jdict *d, jv k)
{
    if (k.t == J_STR)
        return hy_jinja__dict_gets(r, d, k.s->p, k.s->len);
    if (!hashable(k))
        hy_jinja__fail(r, "unhashable type: '%s'", hy_jinja__type_name(k));
    for (size_t i = 0; i < d->n; i++)
        if (hy_jinja__eq(r, d->p[i].k, k))
            return &d->p[i].v;
    return NULL;
}

void hy_jinja__dict_set(jrt *r, jdict *d, jv k, jv v)
{
    jv *old = hy_jinja__dict_get(r, d, k);
    if (old != NULL) {
        *old = v;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap == 0 ? 4 : d->cap * 2;
        jpair *n = hy_jinja__alloc(r, cap * sizeof *n);
        if (d->n > 0)
            memcpy(n, d->p, d->n * sizeof *n);
        d->p = n;
        d->cap = cap;
    }
    d->p[d->n++] = (jpair){k, v};
}

/* ---- undefined ---- */

static jv new_undef(jrt *r, jundef u)
{
    jundef *p = hy_jinja__alloc(r, sizeof *p);
    *p = u;
    return (jv){.t = J_UNDEF, .u = p};
}

jv hy_jinja__undef_name(jrt *r, jstr *name)
{
    return new_undef(r, (jundef){.name = {.t = J_STR, .s = name}});
}

jv hy_jinja__undef_attr(jrt *r, jv obj, jv name, bool unsafe)
{
    return new_undef(r, (jundef){.obj = hy_jinja__type_name(obj), .name = name, .unsafe = unsafe});
}

jv hy_jinja__undef_hint(jrt *r, const char *hint)
{
    return new_undef(r, (jundef){.hint = hint});
}

void hy_jinja__undef_fail(jrt *r, jv v)
{
    const jundef *u = v.u;
    if (u->hint != NULL)
        hy_jinja__fail(r, "%s", u->hint);
    if (u->name.t != J_STR) {
        jsb b;
        hy_jinja__sb_init(&b);
        hy_jinja__repr_of(r, &b, u->name);
        hy_jinja__fail(r, "%s object has no element %.*s", u->obj, (int)(b.len > 200 ? 200 : b.len),
                       b.p);
    }
    int n = u->name.s->len > 200 ? 200 : (int)u->name.s->len;
    if (u->obj == NULL)
        hy_jinja__fail(r, "'%.*s' is undefined", n, u->name.s->p);
    if (u->unsafe)
        hy_jinja__fail(r, "access to attribute '%.*s' of '%s' object is unsafe", n, u->name.s->p,
                       u->obj);
    bool none = strcmp(u->obj, "NoneType") == 0;
    hy_jinja__fail(r, "'%s%s' has no attribute '%.*s'", none ? "None" : u->obj,
                   none ? "" : " object", n, u->name.s->p);
}

/* ---- Python's view ---- */

const char *hy_jinja__type_name(jv v)
{
    static const char *const names[] = {
        [J_UNDEF] = "Undefined", [J_NONE] = "NoneType",   [J_BOOL] = "bool",
        [J_INT] = "int",         [J_FLOAT] = "float",     [J_STR] = "str",
        [J_LIST] = "list",       [J_TUPLE] = "tuple",     [J_DICT] = "dict",
        [J_NS] = "Namespace",    [J_RANGE] = "range",     [J_GEN] = "generator",
        [J_VIEW] = "dict_items", [J_MACRO] = "Macro",     [J_FUNC] = "function",
        [J_METHOD] = "method",   [J_LOOP] = "LoopContext"};
    if (v.t == J_VIEW)
        return v.l->elem == 0 ? "dict_keys" : v.l->elem == 1 ? "dict_values" : "dict_items";
    if (v.t == J_STR && v.markup)
        return "Markup";
    return names[v.t];
}

bool hy_jinja__is_number(jv v)
{
    return v.t == J_INT || v.t == J_BOOL || v.t == J_FLOAT;
}

double hy_jinja__to_double(jv v)
{
    return v.t == J_FLOAT ? v.f : (double)v.i;
}

int64_t hy_jinja__need_int(jrt *r, jv v, const char *what)
{
    if (v.t == J_UNDEF)
        hy_jinja__undef_fail(r, v);
    if (v.t != J_INT && v.t != J_BOOL)
        hy_jinja__fail(r, "%s must be an integer, not %s", what, hy_jinja__type_name(v));
    return v.i;
}

int64_t hy_jinja__len(jrt *r, jv v)
{
    (void)r;
    switch (v.t) {
    case J_UNDEF:
        return 0;
    case J_STR:
        return hy_jinja__chars(v.s);
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        return (int64_t)v.l->n;
    case J_DICT:
        return (int64_t)v.d->n;
    case J_RANGE:
        return v.r->n;
    case J_LOOP:
        return (int64_t)v.lo->n;
    default:
        return -1;
    }
}

bool hy_jinja__truth(jrt *r, jv v)
{
    switch (v.t) {
    case J_UNDEF:
    case J_NONE:
        return false;
    case J_BOOL:
    case J_INT:
        return v.i != 0;
    case J_FLOAT:
        return v.f != 0;
    case J_STR:
        return v.s->len > 0;
    default: {
        int64_t n = hy_jinja__len(r, v);
        return n != 0;
    }
    }
}

/* Exact: an int64 is not rounded to compare it with a double. */
static int cmp_num(jv a, jv b)
{
    if (a.t != J_FLOAT && b.t != J_FLOAT)
        return (a.i > b.i) - (a.i < b.i);
    if (a.t == J_FLOAT && b.t == J_FLOAT)
        return isnan(a.f) || isnan(b.f) ? 2 : (a.f > b.f) - (a.f < b.f);
    bool swap = a.t == J_FLOAT;
    double f = swap ? a.f : b.f;
    int64_t i = swap ? b.i : a.i;
    int c;
    if (isnan(f))
        return 2;
    if (f >= 9223372036854775808.0)
        c = -1;
    else if (f < -9223372036854775808.0)
        c = 1;
    else {
        int64_t t = (int64_t)f;
        double frac = f - (double)t;
        c = i != t ? (i > t) - (i < t) : (frac < 0) - (frac > 0);
    }
    return swap ? -c : c;
}

static bool eq_list(jrt *r, const jlist *a, const jlist *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!hy_jinja__eq(r, a->v[i], b->v[i]))
            return false;
    return true;
}

static bool eq_dict(jrt *r, jdict *a, jdict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        jv *o = hy_jinja__dict_get(r, b, a->p[i].k);
        if (o == NULL || !hy_jinja__eq(r, a->p[i].v, *o))
            return false;
    }
    return true;
}

bool hy_jinja__eq(jrt *r, jv a, jv b)
{
    if (hy_jinja__is_number(a) && hy_jinja__is_number(b))
        return cmp_num(a, b) == 0;
    if (a.t != b.t)
        return false;
    bool same = false;
    hy_jinja__down(r);
    switch (a.t) {
    case J_UNDEF:
    case J_NONE:
        same = true;
        break;
    case J_STR:
        hy_jinja__charge(r, a.s->len >> 6);
        same = a.s->len == b.s->len && memcmp(a.s->p, b.s->p, a.s->len) == 0;
        break;
    case J_LIST:
    case J_TUPLE:
        same = a.l == b.l || eq_list(r, a.l, b.l);
        break;
    case J_VIEW:
        same = a.l == b.l || (a.l->elem == b.l->elem && a.l->elem != 1 && eq_list(r, a.l, b.l));
        break;
    case J_DICT:
        same = a.d == b.d || eq_dict(r, a.d, b.d);
        break;
    case J_RANGE:
        same =
            a.r->n == b.r->n &&
            (a.r->n == 0 || (a.r->start == b.r->start && (a.r->n == 1 || a.r->step == b.r->step)));
        break;
    case J_FUNC:
        same = a.fn == b.fn;
        break;
    default:
        same = a.l == b.l;
    }
    JUP(r);
    return same;
}

bool hy_jinja__is(jv a, jv b)
{
    if (a.t != b.t)
        return false;
    switch (a.t) {
    case J_NONE:
        return true;
    case J_BOOL:
    case J_INT:
        return a.i == b.i;
    case J_STR:
        return a.s == b.s || (a.s->len == b.s->len && memcmp(a.s->p, b.s->p, a.s->len) == 0);
    case J_FLOAT:
        return false;
    default:
        return a.l == b.l;
    }
}

int hy_jinja__cmp(jrt *r, jv a, jv b, const char *op)
{
    int c = 0;
    if (hy_jinja__is_number(a) && hy_jinja__is_number(b))
        return cmp_num(a, b);
    if (a.t == J_UNDEF)
        hy_jinja__undef_fail(r, a);
    if (b.t == J_UNDEF)
        hy_jinja__undef_fail(r, b);
    if (a.t != b.t || (a.t != J_STR && a.t != J_LIST && a.t != J_TUPLE))
        hy_jinja__fail(r, "'%s' not supported between instances of '%s' and '%s'", op,
                       hy_jinja__type_name(a), hy_jinja__type_name(b));
    if (a.t == J_STR) { /* UTF-8 bytes sort as code points do */
        size_t n = a.s->len < b.s->len ? a.s->len : b.s->len;
        hy_jinja__charge(r, n >> 6);
        c = memcmp(a.s->p, b.s->p, n);
        return c != 0 ? (c > 0) - (c < 0) : (a.s->len > b.s->len) - (a.s->len < b.s->len);
    }
    hy_jinja__down(r);
    size_t n = a.l->n < b.l->n ? a.l->n : b.l->n, i = 0;
    while (i < n && hy_jinja__eq(r, a.l->v[i], b.l->v[i]))
        i++;
    c = i < n ? hy_jinja__cmp(r, a.l->v[i], b.l->v[i], op) : (a.l->n > b.l->n) - (a.l->n < b.l->n);
    JUP(r);
    return c;
}

jv hy_jinja__from_json(jrt *r, const json_t *j, int depth)
{
    if (depth > JLIM_TREE)
        hy_jinja__limit(r, "depth of the input");
    hy_jinja__charge(r, 1);
    switch (json_typeof(j)) {
    case JSON_OBJECT: {
        jv v = hy_jinja__dict(r, json_object_size(j));
        for (void *it = json_object_iter((json_t *)(uintptr_t)j); it != NULL;
             it = json_object_iter_next((json_t *)(uintptr_t)j, it))
            v.d->p[v.d->n++] =
                (jpair){hy_jinja__strv(r, json_object_iter_key(it), json_object_iter_key_len(it)),
                        hy_jinja__from_json(r, json_object_iter_value(it), depth + 1)};
        return v;
    }
    case JSON_ARRAY: {
        size_t n = json_array_size(j);
        jv v = hy_jinja__list(r, J_LIST, n);
        for (size_t i = 0; i < n; i++)
            v.l->v[v.l->n++] = hy_jinja__from_json(r, json_array_get(j, i), depth + 1);
        return v;
    }
    case JSON_STRING:
        return hy_jinja__strv(r, json_string_value(j), json_string_length(j));
    case JSON_INTEGER:
        return hy_jinja__int(json_integer_value(j));
    case JSON_REAL:
        return hy_jinja__float(json_real_value(j));
    case JSON_TRUE:
    case JSON_FALSE:
        return hy_jinja__bool(json_is_true(j));
    default:
        return hy_jinja__none();
    }
}

static jlist *string_items(jrt *r, jv v)
{
    jlist *l = hy_jinja__list(r, J_LIST, (size_t)hy_jinja__chars(v.s)).l;
    const char *p = v.s->p, *end = p + v.s->len;
    while (p < end) {
        int k;
        hy_jinja__next_cp(p, end, &k);
        jv c = hy_jinja__strv(r, p, (size_t)k);
        c.s->chars = 1;
        l->v[l->n++] = c;
        p += k;
    }
    return l;
}

jlist *hy_jinja__items(jrt *r, jv v)
{
    jlist *l;
    switch (v.t) {
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        return v.l;
    case J_GEN:
        l = hy_jinja__list(r, J_LIST, 0).l;
        l->v = v.l->v + v.l->pos;
        l->n = l->cap = v.l->n - v.l->pos;
        v.l->pos = v.l->n;
        return l;
    case J_UNDEF:
        return hy_jinja__list(r, J_LIST, 0).l;
    case J_DICT:
        l = hy_jinja__list(r, J_LIST, v.d->n).l;
        for (size_t i = 0; i < v.d->n; i++)
            l->v[l->n++] = v.d->p[i].k;
        hy_jinja__charge(r, v.d->n / 8);
        return l;
    case J_STR:
        hy_jinja__charge(r, v.s->len / 4);
        return string_items(r, v);
    case J_RANGE:
        hy_jinja__charge(r, (size_t)v.r->n / 8);
        l = hy_jinja__list(r, J_LIST, (size_t)v.r->n).l;
        for (int64_t i = 0; i < v.r->n; i++)
            l->v[l->n++] = hy_jinja__int(v.r->start + i * v.r->step);
        return l;
    default:
        hy_jinja__fail(r, "'%s' object is not iterable", hy_jinja__type_name(v));
    }
}
