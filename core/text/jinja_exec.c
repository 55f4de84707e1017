/* SPDX-License-Identifier: Apache-2.0
 *
 * Jinja statements: output, if, for, set, macro, call and filter blocks; scopes; the entry of
 * rendering. An if has no scope of its own; each turn of a for has one; a macro sees the scope in
 * which it stands as it is when the macro is called.
 *
 * Thread: one rendering each; the template is only read.  Owner: the rendering's arena.
 */
#include "core/text/jinja_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void hy_jinja__fail(jrt *r, const char *fmt, ...)
{
    char text[700];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->st = hy_fail(HY_E_FORMAT, "line %u: %s", (unsigned)r->line, text);
    longjmp(r->err, 1);
}

void hy_jinja__raise(jrt *r, const char *text, size_t len)
{
    r->st = hy_fail(HY_E_INVAL, "%.*s", len > 1000 ? 1000 : (int)len, text);
    longjmp(r->err, 1);
}

void hy_jinja__limit(jrt *r, const char *what)
{
    r->st = hy_fail(HY_E_LIMIT, "line %u: the chat template is over its limit of %s",
                    (unsigned)r->line, what);
    longjmp(r->err, 1);
}

/* ---- scopes ---- */

jscope *hy_jinja__scope(jrt *r, jscope *up)
{
    jscope *s = hy_jinja__alloc(r, sizeof *s);
    *s = (jscope){.up = up};
    return s;
}

void hy_jinja__bind(jrt *r, jscope *s, int32_t id, jv v)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->v[i].id == id) {
            s->v[i].v = v;
            return;
        }
    }
    if (s->n == s->cap) {
        uint32_t cap = s->cap == 0 ? 4 : s->cap * 2;
        jvar *n = hy_jinja__alloc(r, cap * sizeof *n);
        if (s->n > 0)
            memcpy(n, s->v, s->n * sizeof *n);
        s->v = n;
        s->cap = cap;
    }
    s->v[s->n++] = (jvar){id, v};
}

static jv lookup(jrt *r, int32_t id)
{
    for (jscope *s = r->scope; s != NULL; s = s->up)
        for (uint32_t i = 0; i < s->n; i++)
            if (s->v[i].id == id)
                return s->v[i].v;
    return r->globals[id];
}

static void assign_ns(jrt *r, const jnode *t, jv v)
{
    jv ns = lookup(r, t->id);
    if (ns.t == J_UNDEF)
        hy_jinja__undef_fail(r, ns);
    if (ns.t != J_NS)
        hy_jinja__fail(r, "cannot assign attribute on non-namespace object");
    if (t->str->len > 0 && t->str->p[0] == '_')
        hy_jinja__fail(r, "an attribute of a namespace must not begin with '_': %.*s",
                       (int)t->str->len, t->str->p);
    hy_jinja__dict_set(r, ns.d, (jv){.t = J_STR, .s = t->str}, v);
}

void hy_jinja__assign(jrt *r, const jnode *t, jv v)
{
    if (t->kind == E_NAME) {
        hy_jinja__bind(r, r->scope, t->id, v);
    } else if (t->kind == E_NSREF) {
        assign_ns(r, t, v);
    } else {
        jlist *l = hy_jinja__items(r, v);
        if (l->n != t->n_kids)
            hy_jinja__fail(r,
                           l->n < t->n_kids ? "not enough values to unpack (expected %u, got %zu)"
                                            : "too many values to unpack (expected %u, got %zu)",
                           (unsigned)t->n_kids, l->n);
        for (uint32_t i = 0; i < t->n_kids; i++)
            hy_jinja__assign(r, t->kids[i], l->v[i]);
    }
}

/* ---- capture ---- */

/* Runs body with its output going to a string. scope: where it runs; flow: how it ended. */
static jv capture(jrt *r, const jnode *body, jscope *scope, jflow *flow)
{
    jsb b, *out = r->out;
    jscope *old = r->scope;
    hy_jinja__sb_init(&b);
    r->out = &b;
    r->scope = scope;
    jflow f = hy_jinja__exec(r, body);
    if (flow != NULL)
        *flow = f;
    r->out = out;
    r->scope = old;
    return hy_jinja__sb_val(r, &b);
}

static jv new_macro(jrt *r, const jnode *def)
{
    jmacro *m = hy_jinja__alloc(r, sizeof *m);
    *m = (jmacro){def, r->scope, def->str};
    return (jv){.t = J_MACRO, .m = m};
}

static int32_t name_id(jrt *r, const char *s)
{
    for (uint32_t i = 0; i < r->j->n_names; i++)
        if (r->j->names[i]->len == strlen(s) && memcmp(r->j->names[i]->p, s, strlen(s)) == 0)
            return (int32_t)i;
    return -1;
}

static int find_kw(const jcall *c, const jstr *name)
{
    for (uint32_t i = 0; i < c->n_kw; i++)
        if (c->kw_name[i]->len == name->len && memcmp(c->kw_name[i]->p, name->p, name->len) == 0)
            return (int)i;
    return -1;
}

static bool is_param(const jnode *d, const jstr *name, uint32_t from)
{
    for (uint32_t i = from; i < d->n_kids; i++)
        if (d->kids[i]->str->len == name->len &&
            memcmp(d->kids[i]->str->p, name->p, name->len) == 0)
            return true;
    return false;
}

/* Arguments that no parameter takes: caller, kwargs, varargs, or an error. */
static void macro_rest(jrt *r, jmacro *m, const jcall *c, jscope *s)
{
    const jnode *d = m->def;
    static const jstr caller = {"caller", 6, 6, 0};
    bool explicit_caller = is_param(d, &caller, 0);
    bool wants_caller = (d->flags & JF_CALLER) != 0 && !explicit_caller;
    jv kwargs = hy_jinja__dict(r, 0);
    if (wants_caller) {
        int k = find_kw(c, &caller);
        hy_jinja__bind(r, s, name_id(r, "caller"),
                       k >= 0 ? c->kw[k] : hy_jinja__undef_hint(r, "No caller defined"));
    }
    for (uint32_t i = 0; i < c->n_kw; i++) {
        jstr *name = c->kw_name[i];
        if (is_param(d, name, c->n_pos) || (wants_caller && JSTR_IS(name, "caller")))
            continue;
        if ((d->flags & JF_KWARGS) == 0)
            hy_jinja__fail(r, "macro '%.*s' takes no keyword argument '%.*s'", (int)m->name->len,
                           m->name->p, (int)name->len, name->p);
        hy_jinja__dict_set(r, kwargs.d, (jv){.t = J_STR, .s = name}, c->kw[i]);
    }
    if ((d->flags & JF_KWARGS) != 0)
        hy_jinja__bind(r, s, name_id(r, "kwargs"), kwargs);
    if ((d->flags & JF_VARARGS) != 0) {
        jv v = hy_jinja__list(r, J_TUPLE, 0);
        for (uint32_t i = d->n_kids; i < c->n_pos; i++)
            hy_jinja__push(r, v.l, c->pos[i]);
        hy_jinja__bind(r, s, name_id(r, "varargs"), v);
    } else if (c->n_pos > d->n_kids) {
        hy_jinja__fail(r, "macro '%.*s' takes not more than %u argument(s)", (int)m->name->len,
                       m->name->p, (unsigned)d->n_kids);
    }
}

jv hy_jinja__macro_call(jrt *r, jmacro *m, const jcall *c)
{
    const jnode *d = m->def;
    hy_jinja__down(r);
    jscope *s = hy_jinja__scope(r, m->scope), *old = r->scope;
    macro_rest(r, m, c, s);
    r->scope = s;
    for (uint32_t i = 0; i < d->n_kids; i++) {
        const jnode *p = d->kids[i];
        int k = i < c->n_pos ? -1 : find_kw(c, p->str);
        jv v;
        if (i < c->n_pos) {
            v = c->pos[i];
        } else if (k >= 0) {
            v = c->kw[k];
        } else if (d->args.kw[i] != NULL) {
            v = hy_jinja__eval(r, d->args.kw[i]);
        } else {
            jsb b;
            hy_jinja__sb_init(&b);
            hy_jinja__sb_puts(r, &b, "parameter '");
            hy_jinja__sb_add(r, &b, p->str->p, p->str->len);
            hy_jinja__sb_puts(r, &b, "' was not provided");
            hy_jinja__sb_add(r, &b, "", 1);
            v = hy_jinja__undef_hint(r, b.p);
        }
        hy_jinja__bind(r, s, p->id, v);
    }
    r->scope = old;
    jv v = capture(r, d->c, s, NULL);
    JUP(r);
    return v;
}

/* ---- for ---- */

static jlist *filtered(jrt *r, const jnode *n, jlist *in)
{
    jlist *l = hy_jinja__list(r, J_LIST, 0).l;
    jscope *old = r->scope;
    r->scope = hy_jinja__scope(r, old);
    for (size_t i = 0; i < in->n; i++) {
        hy_jinja__assign(r, n->a, in->v[i]);
        if (hy_jinja__truth(r, hy_jinja__eval(r, n->d)))
            hy_jinja__push(r, l, in->v[i]);
    }
    r->scope = old;
    return l;
}

static void run_loop(jrt *r, const jnode *n, jv items, int depth0, jscope *outer)
{
    jscope *old = r->scope;
    r->scope = outer;
    jlist *l = hy_jinja__items(r, items);
    if (n->d != NULL)
        l = filtered(r, n, l);
    int32_t loop_id = name_id(r, "loop");
    jloop *lo = hy_jinja__alloc(r, sizeof *lo);
    *lo = (jloop){.item = l->v, .n = l->n, .depth0 = depth0, .scope = outer};
    lo->def = (n->flags & JF_RECURSIVE) != 0 ? n : NULL;
    jscope *s = NULL;
    for (size_t i = 0; i < l->n; i++) {
        lo->i = i;
        if (s == NULL || (n->flags & JF_CLOSURE) != 0)
            s = hy_jinja__scope(r, outer);
        s->n = 0;
        r->scope = s;
        if (loop_id >= 0)
            hy_jinja__bind(r, s, loop_id, (jv){.t = J_LOOP, .lo = lo});
        hy_jinja__assign(r, n->a, l->v[i]);
        hy_jinja__charge(r, 1);
        if (hy_jinja__exec(r, n->c) == FLOW_BREAK)
            break;
    }
    if (l->n == 0 && n->e != NULL) {
        r->scope = hy_jinja__scope(r, outer);
        hy_jinja__exec(r, n->e);
    }
    r->scope = old;
}

jv hy_jinja__loop_again(jrt *r, jloop *l, jv items)
{
    if (l->def == NULL)
        hy_jinja__fail(r, "the loop must have the 'recursive' marker to be called recursively");
    jsb b, *out = r->out;
    hy_jinja__down(r);
    hy_jinja__sb_init(&b);
    r->out = &b;
    run_loop(r, l->def, items, l->depth0 + 1, l->scope);
    r->out = out;
    JUP(r);
    return hy_jinja__sb_val(r, &b);
}

jv hy_jinja__loop_attr(jrt *r, jloop *l, jstr *name, bool *found)
{
    *found = true;
    if (JSTR_IS(name, "index"))
        return hy_jinja__int((int64_t)l->i + 1);
    if (JSTR_IS(name, "index0"))
        return hy_jinja__int((int64_t)l->i);
    if (JSTR_IS(name, "first"))
        return hy_jinja__bool(l->i == 0);
    if (JSTR_IS(name, "last"))
        return hy_jinja__bool(l->i + 1 == l->n);
    if (JSTR_IS(name, "length"))
        return hy_jinja__int((int64_t)l->n);
    if (JSTR_IS(name, "revindex"))
        return hy_jinja__int((int64_t)(l->n - l->i));
    if (JSTR_IS(name, "revindex0"))
        return hy_jinja__int((int64_t)(l->n - l->i) - 1);
    if (JSTR_IS(name, "depth"))
        return hy_jinja__int(l->depth0 + 1);
    if (JSTR_IS(name, "depth0"))
        return hy_jinja__int(l->depth0);
    if (JSTR_IS(name, "previtem"))
        return l->i > 0 ? l->item[l->i - 1] : hy_jinja__undef_hint(r, "there is no previous item");
    if (JSTR_IS(name, "nextitem"))
        return l->i + 1 < l->n ? l->item[l->i + 1]
                               : hy_jinja__undef_hint(r, "there is no next item");
    if (JSTR_IS(name, "cycle") || JSTR_IS(name, "changed")) {
        jmethod *m = hy_jinja__alloc(r, sizeof *m);
        *m = (jmethod){{.t = J_LOOP, .lo = l}, name};
        return (jv){.t = J_METHOD, .me = m};
    }
    *found = false;
    return hy_jinja__none();
}

/* ---- statements ---- */

static void put(jrt *r, jv v)
{
    hy_jinja__str_of(r, r->out, v);
}

static jflow exec_list(jrt *r, const jnode *n)
{
    for (uint32_t i = 0; i < n->n_kids; i++) {
        const jnode *s = n->kids[i];
        if (s->kind == S_TEXT) {
            hy_jinja__sb_add(r, r->out, s->str->p, s->str->len);
            continue;
        }
        jflow f = hy_jinja__exec(r, s);
        if (f != FLOW_NEXT)
            return f;
    }
    return FLOW_NEXT;
}

static jflow exec_if(jrt *r, const jnode *n)
{
    for (uint32_t i = 0; i < n->n_kids; i += 2)
        if (hy_jinja__truth(r, hy_jinja__eval(r, n->kids[i])))
            return hy_jinja__exec(r, n->kids[i + 1]);
    return n->c == NULL ? FLOW_NEXT : hy_jinja__exec(r, n->c);
}

static void exec_call_block(jrt *r, const jnode *n)
{
    jv f = hy_jinja__eval(r, n->a->a);
    jcall c;
    hy_jinja__args(r, &n->a->args, &c);
    jv *kw = hy_jinja__alloc(r, (c.n_kw + 1) * sizeof *kw);
    jstr **name = hy_jinja__alloc(r, (c.n_kw + 1) * sizeof(jstr *));
    for (uint32_t i = 0; i < c.n_kw; i++) {
        kw[i] = c.kw[i];
        name[i] = c.kw_name[i];
    }
    kw[c.n_kw] = new_macro(r, n);
    name[c.n_kw] = n->str;
    c.kw = kw;
    c.kw_name = name;
    c.n_kw++;
    put(r, hy_jinja__call(r, f, &c));
}

static jflow exec_with(jrt *r, const jnode *n)
{
    jscope *old = r->scope, *s = hy_jinja__scope(r, old);
    for (uint32_t i = 0; i < n->n_kids; i += 2) {
        jv v = hy_jinja__eval(r, n->kids[i + 1]);
        r->scope = s;
        hy_jinja__assign(r, n->kids[i], v);
        r->scope = old;
    }
    r->scope = s;
    jflow f = hy_jinja__exec(r, n->c);
    r->scope = old;
    return f;
}

static jflow exec_kind(jrt *r, const jnode *n)
{
    jflow flow = FLOW_NEXT;
    jv v;
    switch ((jkind)n->kind) {
    case S_BLOCK:
        return exec_list(r, n);
    case S_TEXT:
        hy_jinja__sb_add(r, r->out, n->str->p, n->str->len);
        break;
    case S_PRINT:
        put(r, hy_jinja__eval(r, n->a));
        break;
    case S_IF:
        return exec_if(r, n);
    case S_FOR:
        run_loop(r, n, hy_jinja__eval(r, n->b), 0, r->scope);
        break;
    case S_SET:
        hy_jinja__assign(r, n->a, hy_jinja__eval(r, n->b));
        break;
    case S_SETBLOCK:
    case S_FILTER:
        v = capture(r, n->c, hy_jinja__scope(r, r->scope), &flow);
        if (flow != FLOW_NEXT) /* a jump out of the block drops its text */
            return flow;
        v = hy_jinja__chain(r, n->d, v);
        if (n->kind == S_FILTER)
            put(r, v);
        else
            hy_jinja__assign(r, n->a, v);
        break;
    case S_MACRO:
        hy_jinja__bind(r, r->scope, n->id, new_macro(r, n));
        break;
    case S_CALL:
        exec_call_block(r, n);
        break;
    case S_WITH:
        return exec_with(r, n);
    case S_SCOPE:
        put(r, capture(r, n->c, hy_jinja__scope(r, r->scope), NULL));
        break;
    case S_BREAK:
        return FLOW_BREAK;
    case S_CONTINUE:
        return FLOW_CONTINUE;
    default:
        HY_ASSERT(!"statement kind");
    }
    return FLOW_NEXT;
}

jflow hy_jinja__exec(jrt *r, const jnode *n)
{
    hy_jinja__down(r);
    r->line = n->line;
    jflow f = exec_kind(r, n);
    JUP(r);
    return f;
}

/* ---- entry ---- */

static void fill_globals(jrt *r, const json_t *vars)
{
    const hy_jinja *j = r->j;
    r->globals = hy_jinja__alloc(r, (j->n_names + 1) * sizeof(jv));
    for (uint32_t i = 0; i < j->n_names; i++) {
        jstr *name = j->names[i];
        json_t *v = json_object_getn(vars, name->p, name->len);
        int fn = hy_jinja__func_id(name->p, name->len);
        if (v != NULL)
            r->globals[i] = hy_jinja__from_json(r, v, 0);
        else if (fn >= 0)
            r->globals[i] = (jv){.t = J_FUNC, .fn = (uint16_t)fn};
        else
            r->globals[i] = hy_jinja__undef_name(r, name);
    }
}

hy_status hy_jinja_render(const hy_jinja *j, const json_t *vars, const struct tm *now, hy_buf *out)
{
    jrt *r = calloc(1, sizeof *r);
    if (r == NULL)
        return hy_fail(HY_E_NOMEM, "no memory to render a chat template");
    jsb top = {.out = out};
    r->j = j;
    r->mem.limit = JLIM_RENDER_MEM;
    r->out = &top;
    r->now = now;
    r->line = 1;
    if (setjmp(r->err) == 0) {
        fill_globals(r, vars);
        r->scope = hy_jinja__scope(r, NULL);
        hy_jinja__exec(r, j->root);
    }
    hy_status st = r->st;
    hy_jinja__arena_free(&r->mem);
    free(r);
    return st;
}
