/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters on sequences and mappings. Those that jinja2 evaluates lazily give a J_GEN, which has no
 * length, cannot be indexed and is walked once, so that a template fails here where it fails there.
 *
 * Thread: one rendering.  Owner: the arena.
 */
#include "core/text/jinja_int.h"

/* ---- sorting ---- */

static void merge(jrt *r, jpair *p, jpair *tmp, size_t n, bool reverse)
{
    if (n < 2)
        return;
    size_t h = n / 2;
    merge(r, p, tmp, h, reverse);
    merge(r, p + h, tmp, n - h, reverse);
    memcpy(tmp, p, h * sizeof *p);
    size_t a = 0, b = h, k = 0;
    while (a < h && b < n) {
        int c = reverse ? hy_jinja__cmp(r, tmp[a].k, p[b].k, "<")
                        : hy_jinja__cmp(r, p[b].k, tmp[a].k, "<");
        p[k++] = c == -1 ? p[b++] : tmp[a++];
    }
    while (a < h)
        p[k++] = tmp[a++];
}

void hy_jinja__sort(jrt *r, jpair *p, size_t n, bool reverse)
{
    hy_jinja__charge(r, n);
    merge(r, p, hy_jinja__alloc(r, (n / 2 + 1) * sizeof *p), n, reverse);
}

static jv ignore_case(jrt *r, jv v)
{
    return v.t == J_STR ? hy_jinja__case(r, v, 'l') : v;
}

/* ---- attributes by path: "a.b.0" ---- */

static jv by_path(jrt *r, jv v, jv path, const jv *def)
{
    if (path.t != J_STR) {
        v = path.t == J_NONE ? v : hy_jinja__getitem(r, v, path);
        return v.t == J_UNDEF && def != NULL ? *def : v;
    }
    const char *p = path.s->p, *end = p + path.s->len;
    for (;;) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        size_t n = (size_t)((dot ? dot : end) - p);
        bool digits = n > 0 && n < 10;
        int64_t i = 0;
        for (size_t k = 0; k < n && digits; k++) {
            digits = p[k] >= '0' && p[k] <= '9';
            i = i * 10 + (p[k] - '0');
        }
        v = hy_jinja__getitem(r, v, digits ? hy_jinja__int(i) : hy_jinja__strv(r, p, n));
        if (v.t == J_UNDEF && def != NULL)
            v = *def;
        if (dot == NULL)
            return v;
        p = dot + 1;
    }
}

static jv attr_arg(jrt *r, const jcall *c, uint32_t i)
{
    return hy_jinja__arg(r, c, i, "attribute", NULL);
}

static jv sort_key(jrt *r, jv v, jv attr, bool case_sensitive)
{
    v = by_path(r, v, attr, NULL);
    return case_sensitive ? v : ignore_case(r, v);
}

/* Several attributes, comma separated, as one key. */
static jv multi_key(jrt *r, jv v, jv attr, bool case_sensitive)
{
    if (attr.t != J_STR || memchr(attr.s->p, ',', attr.s->len) == NULL)
        return sort_key(r, v, attr, case_sensitive);
    jv key = hy_jinja__list(r, J_LIST, 0);
    const char *p = attr.s->p, *end = p + attr.s->len;
    for (;;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        jv one = hy_jinja__strv(r, p, (size_t)((comma ? comma : end) - p));
        hy_jinja__push(r, key.l, sort_key(r, v, one, case_sensitive));
        if (comma == NULL)
            return key;
        p = comma + 1;
    }
}

static bool flag(jrt *r, const jcall *c, uint32_t i, const char *name)
{
    return hy_jinja__truth(r, hy_jinja__arg(r, c, i, name, NULL));
}

/* ---- filters ---- */

static jv f_list(jrt *r, jv v, const jcall *c)
{
    (void)c;
    jlist *l = hy_jinja__items(r, v);
    jv out = hy_jinja__list(r, J_LIST, l->n);
    hy_jinja__charge(r, l->n / 8);
    if (l->n > 0)
        memcpy(out.l->v, l->v, l->n * sizeof(jv));
    out.l->n = l->n;
    return out;
}

static jv f_first(jrt *r, jv v, const jcall *c)
{
    (void)c;
    if (v.t == J_STR && v.s->len > 0)
        return hy_jinja__slice_str(r, v, 0, 1, 1);
    if (v.t == J_GEN)
        return v.l->pos < v.l->n ? v.l->v[v.l->pos++]
                                 : hy_jinja__undef_hint(r, "No first item, sequence was empty.");
    jlist *l = hy_jinja__items(r, v);
    return l->n > 0 ? l->v[0] : hy_jinja__undef_hint(r, "No first item, sequence was empty.");
}

static jv f_last(jrt *r, jv v, const jcall *c)
{
    (void)c;
    if (v.t == J_GEN)
        hy_jinja__fail(r, "'generator' object is not reversible");
    if (v.t == J_STR && v.s->len > 0)
        return hy_jinja__slice_str(r, v, hy_jinja__chars(v.s) - 1, 1, 1);
    jlist *l = hy_jinja__items(r, v);
    return l->n > 0 ? l->v[l->n - 1] : hy_jinja__undef_hint(r, "No last item, sequence was empty.");
}

static jv f_join(jrt *r, jv v, const jcall *c)
{
    bool given;
    jv d = hy_jinja__arg(r, c, 0, "d", &given), attr = attr_arg(r, c, 1);
    d = given ? hy_jinja__to_str(r, d) : hy_jinja__strv(r, "", 0);
    jlist *l = hy_jinja__items(r, v);
    jsb b;
    hy_jinja__sb_init(&b);
    for (size_t i = 0; i < l->n; i++) {
        hy_jinja__charge(r, 1);
        if (i > 0)
            hy_jinja__sb_add(r, &b, d.s->p, d.s->len);
        hy_jinja__str_of(r, &b, attr.t == J_NONE ? l->v[i] : by_path(r, l->v[i], attr, NULL));
    }
    return hy_jinja__sb_val(r, &b);
}

static jv pair(jrt *r, jv a, jv b)
{
    jv t = hy_jinja__list(r, J_TUPLE, 2);
    t.l->v[t.l->n++] = a;
    t.l->v[t.l->n++] = b;
    return t;
}

static jv f_items(jrt *r, jv v, const jcall *c)
{
    (void)c;
    jv out = hy_jinja__list(r, J_GEN, v.t == J_DICT ? v.d->n : 0);
    if (v.t == J_UNDEF)
        return out;
    if (v.t != J_DICT)
        hy_jinja__fail(r, "Can only get item pairs from a mapping.");
    for (size_t i = 0; i < v.d->n; i++)
        hy_jinja__push(r, out.l, pair(r, v.d->p[i].k, v.d->p[i].v));
    return out;
}

static jv f_dictsort(jrt *r, jv v, const jcall *c)
{
    bool cs = flag(r, c, 0, "case_sensitive"), reverse = flag(r, c, 2, "reverse");
    jv by = hy_jinja__arg(r, c, 1, "by", NULL);
    bool by_value = by.t == J_STR && JSTR_IS(by.s, "value");
    if (by.t != J_NONE && !by_value && !(by.t == J_STR && JSTR_IS(by.s, "key")))
        hy_jinja__fail(r, "You can only sort by either \"key\" or \"value\"");
    if (v.t == J_UNDEF)
        hy_jinja__undef_fail(r, v);
    if (v.t != J_DICT)
        hy_jinja__fail(r, "'%s' object has no attribute 'items'", hy_jinja__type_name(v));
    size_t n = v.d->n;
    jpair *p = hy_jinja__alloc(r, (n + 1) * sizeof *p);
    for (size_t i = 0; i < n; i++) {
        jv key = by_value ? v.d->p[i].v : v.d->p[i].k;
        p[i] = (jpair){cs ? key : ignore_case(r, key), pair(r, v.d->p[i].k, v.d->p[i].v)};
    }
    hy_jinja__sort(r, p, n, reverse);
    jv out = hy_jinja__list(r, J_LIST, n);
    for (size_t i = 0; i < n; i++)
        out.l->v[out.l->n++] = p[i].v;
    return out;
}

static jpair *keyed(jrt *r, jlist *l, jv attr, bool cs, bool multi, const jv *def)
{
    jpair *p = hy_jinja__alloc(r, (l->n + 1) * sizeof *p);
    for (size_t i = 0; i < l->n; i++) {
        jv k = multi ? multi_key(r, l->v[i], attr, cs) : by_path(r, l->v[i], attr, def);
        p[i] = (jpair){multi || cs ? k : ignore_case(r, k), l->v[i]};
    }
    return p;
}

static jv f_sort(jrt *r, jv v, const jcall *c)
{
    bool reverse = flag(r, c, 0, "reverse"), cs = flag(r, c, 1, "case_sensitive");
    jlist *l = hy_jinja__items(r, v);
    jpair *p = keyed(r, l, attr_arg(r, c, 2), cs, true, NULL);
    hy_jinja__sort(r, p, l->n, reverse);
    jv out = hy_jinja__list(r, J_LIST, l->n);
    for (size_t i = 0; i < l->n; i++)
        out.l->v[out.l->n++] = p[i].v;
    return out;
}

static jv f_unique(jrt *r, jv v, const jcall *c)
{
    bool cs = flag(r, c, 0, "case_sensitive");
    jlist *l = hy_jinja__items(r, v);
    jpair *p = keyed(r, l, attr_arg(r, c, 1), cs, false, NULL);
    jdict *seen = hy_jinja__dict(r, 0).d;
    jv out = hy_jinja__list(r, J_GEN, 0);
    for (size_t i = 0; i < l->n; i++) {
        if (hy_jinja__dict_get(r, seen, p[i].k) != NULL)
            continue;
        hy_jinja__dict_set(r, seen, p[i].k, hy_jinja__none());
        hy_jinja__push(r, out.l, p[i].v);
    }
    return out;
}

static jv min_max(jrt *r, jv v, const jcall *c, int want)
{
    jlist *l = hy_jinja__items(r, v);
    if (l->n == 0)
        return hy_jinja__undef_hint(r, "No aggregated item, sequence was empty.");
    jpair *p = keyed(r, l, attr_arg(r, c, 1), flag(r, c, 0, "case_sensitive"), false, NULL);
    size_t best = 0;
    for (size_t i = 1; i < l->n; i++)
        if (hy_jinja__cmp(r, p[i].k, p[best].k, want < 0 ? "<" : ">") == want)
            best = i;
    return p[best].v;
}

static jv f_min(jrt *r, jv v, const jcall *c)
{
    return min_max(r, v, c, -1);
}

static jv f_max(jrt *r, jv v, const jcall *c)
{
    return min_max(r, v, c, 1);
}

static jv f_sum(jrt *r, jv v, const jcall *c)
{
    bool given;
    jv attr = attr_arg(r, c, 0), sum = hy_jinja__arg(r, c, 1, "start", &given);
    if (!given)
        sum = hy_jinja__int(0);
    if (sum.t == J_STR)
        hy_jinja__fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
    jlist *l = hy_jinja__items(r, v);
    for (size_t i = 0; i < l->n; i++) {
        hy_jinja__charge(r, 1);
        sum = hy_jinja__binary(r, OP_ADD, sum, by_path(r, l->v[i], attr, NULL));
    }
    return sum;
}

static jv f_reverse(jrt *r, jv v, const jcall *c)
{
    (void)c;
    if (v.t == J_STR)
        return hy_jinja__slice_str(r, v, hy_jinja__chars(v.s) - 1, hy_jinja__chars(v.s), -1);
    bool lazy = v.t != J_GEN && v.t != J_UNDEF;
    jlist *l = hy_jinja__items(r, v);
    jv out = hy_jinja__list(r, lazy ? J_GEN : J_LIST, l->n);
    for (size_t i = l->n; i > 0; i--)
        out.l->v[out.l->n++] = l->v[i - 1];
    hy_jinja__charge(r, l->n / 8);
    return out;
}

static jv f_batch(jrt *r, jv v, const jcall *c)
{
    bool given;
    int64_t n = hy_jinja__need_int(r, hy_jinja__arg(r, c, 0, "linecount", NULL), "linecount");
    jv fill = hy_jinja__arg(r, c, 1, "fill_with", &given);
    jlist *l = hy_jinja__items(r, v);
    jv out = hy_jinja__list(r, J_GEN, 0), row = {0};
    if (n < 1 || n > JLIM_RANGE)
        hy_jinja__fail(r, "batch needs a count from 1 to %d", JLIM_RANGE);
    for (size_t i = 0; i < l->n; i++) {
        if (i % (size_t)n == 0) {
            row = hy_jinja__list(r, J_LIST, 0);
            hy_jinja__push(r, out.l, row);
        }
        hy_jinja__push(r, row.l, l->v[i]);
    }
    while (l->n > 0 && fill.t != J_NONE && (int64_t)row.l->n < n)
        hy_jinja__push(r, row.l, fill);
    return out;
}

static jv f_slice(jrt *r, jv v, const jcall *c)
{
    int64_t n = hy_jinja__need_int(r, hy_jinja__arg(r, c, 0, "slices", NULL), "slices");
    jv fill = hy_jinja__arg(r, c, 1, "fill_with", NULL);
    jlist *l = hy_jinja__items(r, v);
    jv out = hy_jinja__list(r, J_GEN, 0);
    if (n < 1 || n > JLIM_RANGE)
        hy_jinja__fail(r, "slice needs a count from 1 to %d", JLIM_RANGE);
    size_t per = l->n / (size_t)n, extra = l->n % (size_t)n, at = 0;
    for (size_t i = 0; i < (size_t)n; i++) {
        jv row = hy_jinja__list(r, J_LIST, 0);
        for (size_t k = 0; k < per + (i < extra); k++)
            hy_jinja__push(r, row.l, l->v[at++]);
        if (fill.t != J_NONE && i >= extra)
            hy_jinja__push(r, row.l, fill);
        hy_jinja__push(r, out.l, row);
    }
    return out;
}

static jv f_groupby(jrt *r, jv v, const jcall *c)
{
    bool given;
    jv attr = attr_arg(r, c, 0), def = hy_jinja__arg(r, c, 1, "default", &given);
    bool cs = flag(r, c, 2, "case_sensitive");
    const jv *d = given && def.t != J_NONE ? &def : NULL;
    jlist *l = hy_jinja__items(r, v);
    jpair *p = keyed(r, l, attr, cs, false, d);
    hy_jinja__sort(r, p, l->n, false);
    jv out = hy_jinja__list(r, J_LIST, 0), group = {0};
    for (size_t i = 0; i < l->n; i++) {
        if (i == 0 || !hy_jinja__eq(r, p[i].k, p[i - 1].k)) {
            group = hy_jinja__list(r, J_LIST, 0);
            jv entry = pair(r, by_path(r, p[i].v, attr, d), group);
            entry.l->group = true;
            hy_jinja__push(r, out.l, entry);
        }
        hy_jinja__push(r, group.l, p[i].v);
    }
    return out;
}

static int32_t named(jrt *r, jv name, bool filter)
{
    if (name.t == J_UNDEF)
        hy_jinja__undef_fail(r, name);
    int32_t id = name.t != J_STR ? -1
                 : filter        ? hy_jinja__filter_id(name.s->p, name.s->len)
                                 : hy_jinja__test_id(name.s->p, name.s->len);
    if (id < 0)
        hy_jinja__fail(r, "no %s named '%.*s'", filter ? "filter" : "test",
                       name.t == J_STR ? (int)name.s->len : 1, name.t == J_STR ? name.s->p : "?");
    return id;
}

static jv f_map(jrt *r, jv v, const jcall *c)
{
    jv out = hy_jinja__list(r, J_GEN, 0);
    if (!hy_jinja__truth(r, v))
        return out;
    bool given, has_def;
    jv attr = hy_jinja__arg(r, c, UINT32_MAX, "attribute", &given);
    jv def = hy_jinja__arg(r, c, UINT32_MAX, "default", &has_def);
    jlist *l = hy_jinja__items(r, v);
    if (c->n_pos == 0 && given) {
        for (size_t i = 0; i < l->n; i++)
            hy_jinja__push(r, out.l,
                           by_path(r, l->v[i], attr, has_def && def.t != J_NONE ? &def : NULL));
        return out;
    }
    if (c->n_pos == 0)
        hy_jinja__fail(r, "map requires a filter argument");
    int32_t id = named(r, c->pos[0], true);
    jcall rest = *c;
    rest.pos++;
    rest.n_pos--;
    for (size_t i = 0; i < l->n; i++)
        hy_jinja__push(r, out.l, hy_jinja__filter(r, id, c->pos[0].s, l->v[i], &rest));
    return out;
}

static jv select_of(jrt *r, jv v, const jcall *c, bool want, bool by_attr)
{
    jv out = hy_jinja__list(r, J_GEN, 0);
    if (!hy_jinja__truth(r, v))
        return out;
    uint32_t off = by_attr ? 1 : 0;
    if (c->n_pos < off)
        hy_jinja__fail(r, "Missing parameter for attribute name");
    jcall rest = *c;
    int32_t id = -1;
    if (c->n_pos > off) {
        id = named(r, c->pos[off], false);
        rest.pos += off + 1;
        rest.n_pos -= off + 1;
    }
    jlist *l = hy_jinja__items(r, v);
    for (size_t i = 0; i < l->n; i++) {
        hy_jinja__charge(r, 1);
        jv x = by_attr ? by_path(r, l->v[i], c->pos[0], NULL) : l->v[i];
        bool hit = id < 0 ? hy_jinja__truth(r, x) : hy_jinja__test(r, id, c->pos[off].s, x, &rest);
        if (hit == want)
            hy_jinja__push(r, out.l, l->v[i]);
    }
    return out;
}

static jv f_select(jrt *r, jv v, const jcall *c)
{
    return select_of(r, v, c, true, false);
}

static jv f_reject(jrt *r, jv v, const jcall *c)
{
    return select_of(r, v, c, false, false);
}

static jv f_selectattr(jrt *r, jv v, const jcall *c)
{
    return select_of(r, v, c, true, true);
}

static jv f_rejectattr(jrt *r, jv v, const jcall *c)
{
    return select_of(r, v, c, false, true);
}

static jv f_attr(jrt *r, jv v, const jcall *c)
{
    jv name = hy_jinja__arg(r, c, 0, "name", NULL);
    if (name.t != J_STR)
        hy_jinja__fail(r, "attr needs a name");
    if (v.t == J_DICT && hy_jinja__has_method(v, name.s) == 0)
        return hy_jinja__undef_attr(r, v, name, false);
    return hy_jinja__getattr(r, v, name.s);
}

const jfilter_def hy_jinja__list_filters[] = {
    {"list", f_list, 0, {0}},
    {"first", f_first, 0, {0}},
    {"last", f_last, 0, {0}},
    {"join", f_join, 2, {"d", "attribute"}},
    {"items", f_items, 0, {0}},
    {"dictsort", f_dictsort, 3, {"case_sensitive", "by", "reverse"}},
    {"sort", f_sort, 3, {"reverse", "case_sensitive", "attribute"}},
    {"unique", f_unique, 2, {"case_sensitive", "attribute"}},
    {"min", f_min, 2, {"case_sensitive", "attribute"}},
    {"max", f_max, 2, {"case_sensitive", "attribute"}},
    {"sum", f_sum, 2, {"attribute", "start"}},
    {"reverse", f_reverse, 0, {0}},
    {"batch", f_batch, 2, {"linecount", "fill_with"}},
    {"slice", f_slice, 2, {"slices", "fill_with"}},
    {"groupby", f_groupby, 3, {"attribute", "default", "case_sensitive"}},
    {"map", f_map, 255, {0}},
    {"select", f_select, 255, {0}},
    {"reject", f_reject, 255, {0}},
    {"selectattr", f_selectattr, 255, {0}},
    {"rejectattr", f_rejectattr, 255, {0}},
    {"attr", f_attr, 1, {"name"}},
    {NULL, NULL, 0, {0}},
};
