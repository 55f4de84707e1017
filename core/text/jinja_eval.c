/* SPDX-License-Identifier: Apache-2.0
 *
 * Evaluation of Jinja expressions with Python's arithmetic, and attribute access with the rules of
 * jinja2's immutable sandbox: a method comes before a key of the same name, an index falls back to
 * an attribute, what is missing is undefined.
 *
 * Thread: one rendering.  Owner: the arena.
 */
#include "core/text/jinja_int.h"

#include <math.h>

/* ---- arithmetic ---- */

static jv str_concat(jrt *r, jv a, jv b)
{
    jv v = {.t = J_STR, .markup = a.markup};
    size_t n = a.s->len + b.s->len;
    if (b.s->len == 0)
        return a;
    v.s = hy_jinja__alloc(r, sizeof *v.s);
    hy_jinja__charge(r, b.s->len >> 6);
    int64_t chars = a.s->chars >= 0 && b.s->chars >= 0 ? a.s->chars + b.s->chars : -1;
    if (a.s->room >= b.s->len) { /* appending in a loop costs what is appended */
        memcpy((char *)(uintptr_t)a.s->p + a.s->len, b.s->p, b.s->len);
        *v.s = (jstr){a.s->p, n, chars, a.s->room - b.s->len};
        a.s->room = 0;
        return v;
    }
    size_t cap = n < 128 ? n : n + n / 2;
    char *d = hy_jinja__alloc(r, cap);
    hy_jinja__charge(r, a.s->len >> 6);
    memcpy(d, a.s->p, a.s->len);
    memcpy(d + a.s->len, b.s->p, b.s->len);
    *v.s = (jstr){d, n, chars, cap - n};
    return v;
}

static jv list_concat(jrt *r, jv a, jv b)
{
    jv v = hy_jinja__list(r, a.t, a.l->n + b.l->n);
    hy_jinja__charge(r, (a.l->n + b.l->n) / 16);
    if (a.l->n > 0)
        memcpy(v.l->v, a.l->v, a.l->n * sizeof(jv));
    if (b.l->n > 0)
        memcpy(v.l->v + a.l->n, b.l->v, b.l->n * sizeof(jv));
    v.l->n = a.l->n + b.l->n;
    return v;
}

static jv repeat(jrt *r, jv seq, int64_t n)
{
    if (n < 0)
        n = 0;
    if (seq.t == J_STR) {
        if (seq.s->len > 0 && (uint64_t)n > JLIM_RENDER_MEM / seq.s->len)
            hy_jinja__limit(r, "memory");
        size_t len = seq.s->len * (size_t)n;
        char *d = hy_jinja__alloc(r, len + 1);
        hy_jinja__charge(r, len >> 4);
        size_t done = seq.s->len < len ? seq.s->len : len;
        memcpy(d, seq.s->p, done);
        for (; done > 0 && done < len; done *= 2) /* what is written is the source of the rest */
            memcpy(d + done, d, len - done < done ? len - done : done);
        jv v = hy_jinja__strv(r, d, len);
        v.markup = seq.markup;
        return v;
    }
    if (seq.l->n > 0 && (uint64_t)n > JLIM_RENDER_MEM / sizeof(jv) / seq.l->n)
        hy_jinja__limit(r, "memory");
    jv v = hy_jinja__list(r, seq.t, seq.l->n * (size_t)n);
    hy_jinja__charge(r, seq.l->n * (size_t)n / 4);
    for (int64_t i = 0; i < n; i++)
        for (size_t k = 0; k < seq.l->n; k++)
            v.l->v[v.l->n++] = seq.l->v[k];
    return v;
}

static const char *op_text(jop op)
{
    static const char *const t[] = {[OP_ADD] = "+",       [OP_SUB] = "-", [OP_MUL] = "*",
                                    [OP_DIV] = "/",       [OP_MOD] = "%", [OP_POW] = "** or pow()",
                                    [OP_FLOORDIV] = "//", [OP_GT] = ">",  [OP_GE] = ">=",
                                    [OP_LT] = "<",        [OP_LE] = "<="};
    return t[op];
}

_Noreturn static void too_large(jrt *r)
{
    hy_jinja__fail(r, "an integer does not fit in 64 bits");
}

static jv int_pow(jrt *r, int64_t a, int64_t b)
{
    int64_t v = 1;
    if (b < 0) {
        if (a == 0)
            hy_jinja__fail(r, "0.0 cannot be raised to a negative power");
        return hy_jinja__float(pow((double)a, (double)b));
    }
    if (a == 0 || a == 1 || a == -1)
        return hy_jinja__int(b == 0 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : a);
    for (; b > 0; b--)
        if (__builtin_mul_overflow(v, a, &v))
            too_large(r);
    return hy_jinja__int(v);
}

static jv int_arith(jrt *r, jop op, int64_t a, int64_t b)
{
    int64_t v = 0;
    bool over = false;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        hy_jinja__fail(r, "division by zero");
    switch (op) {
    case OP_ADD:
        over = __builtin_add_overflow(a, b, &v);
        break;
    case OP_SUB:
        over = __builtin_sub_overflow(a, b, &v);
        break;
    case OP_MUL:
        over = __builtin_mul_overflow(a, b, &v);
        break;
    case OP_DIV:
        return hy_jinja__float((double)a / (double)b);
    case OP_FLOORDIV:
        over = b == -1 && a == INT64_MIN;
        if (!over)
            v = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case OP_MOD:
        v = b == -1 ? 0 : a % b;
        if (v != 0 && (v < 0) != (b < 0))
            v += b;
        break;
    default:
        return int_pow(r, a, b);
    }
    if (over)
        too_large(r);
    return hy_jinja__int(v);
}

static jv float_arith(jrt *r, jop op, double a, double b)
{
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        hy_jinja__fail(r, "float division by zero");
    switch (op) {
    case OP_ADD:
        return hy_jinja__float(a + b);
    case OP_SUB:
        return hy_jinja__float(a - b);
    case OP_MUL:
        return hy_jinja__float(a * b);
    case OP_DIV:
        return hy_jinja__float(a / b);
    case OP_POW:
        return hy_jinja__float(pow(a, b));
    default: {
        double m = fmod(a, b);
        if (m != 0 && (m < 0) != (b < 0))
            m += b;
        else if (m == 0)
            m = copysign(0.0, b);
        if (op == OP_MOD)
            return hy_jinja__float(m);
        double q = (a - m) / b, fl = floor(q);
        return hy_jinja__float(q - fl > 0.5 ? fl + 1 : fl);
    }
    }
}

static bool is_seq(jv v)
{
    return v.t == J_STR || v.t == J_LIST || v.t == J_TUPLE;
}

jv hy_jinja__binary(jrt *r, jop op, jv a, jv b)
{
    if (a.t == J_UNDEF)
        hy_jinja__undef_fail(r, a);
    if (op == OP_MOD && a.t == J_STR)
        return hy_jinja__percent(r, a, b);
    if (b.t == J_UNDEF)
        hy_jinja__undef_fail(r, b);
    if (hy_jinja__is_number(a) && hy_jinja__is_number(b)) {
        if (a.t == J_FLOAT || b.t == J_FLOAT)
            return float_arith(r, op, hy_jinja__to_double(a), hy_jinja__to_double(b));
        return int_arith(r, op, a.i, b.i);
    }
    if (op == OP_ADD && a.t == J_STR && b.t == J_STR) {
        if (a.markup != b.markup) {
            a = hy_jinja__escape(r, a);
            b = hy_jinja__escape(r, b);
        }
        return str_concat(r, a, b);
    }
    if (op == OP_ADD && a.t == b.t && (a.t == J_LIST || a.t == J_TUPLE))
        return list_concat(r, a, b);
    if (op == OP_MUL && is_seq(a) && (b.t == J_INT || b.t == J_BOOL))
        return repeat(r, a, b.i);
    if (op == OP_MUL && is_seq(b) && (a.t == J_INT || a.t == J_BOOL))
        return repeat(r, b, a.i);
    if (op == OP_ADD && is_seq(a))
        hy_jinja__fail(r, "can only concatenate %s (not \"%s\") to %s", hy_jinja__type_name(a),
                       hy_jinja__type_name(b), hy_jinja__type_name(a));
    hy_jinja__fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", op_text(op),
                   hy_jinja__type_name(a), hy_jinja__type_name(b));
}

bool hy_jinja__contains(jrt *r, jv box, jv v)
{
    if (box.t == J_STR) {
        if (v.t != J_STR)
            hy_jinja__fail(r, "'in <string>' requires string as left operand, not %s",
                           hy_jinja__type_name(v));
        hy_jinja__charge(r, box.s->len >> 6);
        return hy_jinja__find(box.s->p, box.s->len, v.s->p, v.s->len) != NULL;
    }
    if (box.t == J_DICT)
        return hy_jinja__dict_get(r, box.d, v) != NULL;
    if (box.t != J_UNDEF && box.t != J_GEN && box.t != J_RANGE && hy_jinja__len(r, box) < 0)
        hy_jinja__fail(r, "argument of type '%s' is not iterable", hy_jinja__type_name(box));
    jlist *l = hy_jinja__items(r, box);
    for (size_t i = 0; i < l->n; i++)
        if (hy_jinja__eq(r, l->v[i], v))
            return true;
    return false;
}

static bool compare(jrt *r, jop op, jv a, jv b)
{
    switch (op) {
    case OP_EQ:
        return hy_jinja__eq(r, a, b);
    case OP_NE:
        return !hy_jinja__eq(r, a, b);
    case OP_IN:
        return hy_jinja__contains(r, b, a);
    case OP_NOTIN:
        return !hy_jinja__contains(r, b, a);
    default: {
        int c = hy_jinja__cmp(r, a, b, op_text(op));
        if (c == 2) /* not a number */
            return false;
        return op == OP_LT ? c < 0 : op == OP_LE ? c <= 0 : op == OP_GT ? c > 0 : c >= 0;
    }
    }
}

/* ---- attributes and items ---- */

static jv bound(jrt *r, jv self, jstr *name)
{
    jmethod *m = hy_jinja__alloc(r, sizeof *m);
    *m = (jmethod){self, name};
    return (jv){.t = J_METHOD, .me = m};
}

/* What Python's getattr finds, the sandbox permitting. */
static bool native_attr(jrt *r, jv obj, jstr *name, jv *out)
{
    if (obj.t == J_NS) {
        jv *v = hy_jinja__dict_gets(r, obj.d, name->p, name->len);
        if (v == NULL)
            return false;
        *out = name->len > 0 && name->p[0] == '_'
                   ? hy_jinja__undef_attr(r, obj, (jv){.t = J_STR, .s = name}, true)
                   : *v;
        return true;
    }
    if (obj.t == J_LOOP) {
        bool found = false;
        *out = hy_jinja__loop_attr(r, obj.lo, name, &found);
        return found;
    }
    if (obj.t == J_MACRO && JSTR_IS(name, "name")) {
        *out = (jv){.t = J_STR, .s = obj.m->name};
        return true;
    }
    if (obj.t == J_TUPLE && obj.l->group && (JSTR_IS(name, "grouper") || JSTR_IS(name, "list"))) {
        *out = obj.l->v[JSTR_IS(name, "list")];
        return true;
    }
    int has = hy_jinja__has_method(obj, name);
    if (has == 0)
        return false;
    *out = has == 1 ? bound(r, obj, name)
                    : hy_jinja__undef_attr(r, obj, (jv){.t = J_STR, .s = name}, true);
    return true;
}

jv hy_jinja__getattr(jrt *r, jv obj, jstr *name)
{
    jv v;
    if (obj.t == J_UNDEF)
        hy_jinja__undef_fail(r, obj);
    if (native_attr(r, obj, name, &v))
        return v;
    if (obj.t == J_DICT) {
        jv *p = hy_jinja__dict_gets(r, obj.d, name->p, name->len);
        if (p != NULL)
            return *p;
    }
    return hy_jinja__undef_attr(r, obj, (jv){.t = J_STR, .s = name}, false);
}

static bool index_of(int64_t i, int64_t n, int64_t *at)
{
    if (i < 0)
        i += n;
    *at = i;
    return i >= 0 && i < n;
}

jv hy_jinja__getitem(jrt *r, jv obj, jv key)
{
    int64_t at;
    jv v;
    if (obj.t == J_UNDEF)
        hy_jinja__undef_fail(r, obj);
    if (obj.t == J_DICT && key.t != J_LIST && key.t != J_DICT) {
        jv *p = hy_jinja__dict_get(r, obj.d, key);
        if (p != NULL)
            return *p;
    } else if (key.t == J_INT || key.t == J_BOOL) {
        if ((obj.t == J_LIST || obj.t == J_TUPLE) && index_of(key.i, (int64_t)obj.l->n, &at))
            return obj.l->v[at];
        if (obj.t == J_RANGE && index_of(key.i, obj.r->n, &at))
            return hy_jinja__int(obj.r->start + at * obj.r->step);
        if (obj.t == J_STR && index_of(key.i, hy_jinja__chars(obj.s), &at))
            return hy_jinja__slice_str(r, obj, at, 1, 1);
    }
    if (key.t == J_STR && native_attr(r, obj, key.s, &v))
        return v;
    return hy_jinja__undef_attr(r, obj, key, false);
}

/* Python's slice.indices. */
static int64_t slice_range(jrt *r, const jnode *n, int64_t len, int64_t *start_out,
                           int64_t *step_out)
{
    jv a = n->a == NULL ? hy_jinja__none() : hy_jinja__eval(r, n->a);
    jv b = n->b == NULL ? hy_jinja__none() : hy_jinja__eval(r, n->b);
    jv c = n->c == NULL ? hy_jinja__none() : hy_jinja__eval(r, n->c);
    int64_t step = c.t == J_NONE ? 1 : hy_jinja__need_int(r, c, "a slice index");
    if (step == 0)
        hy_jinja__fail(r, "slice step cannot be zero");
    if (step < -INT32_MAX || step > INT32_MAX)
        step = step < 0 ? -INT32_MAX : INT32_MAX;
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? len - 1 : len;
    int64_t lim[2] = {step < 0 ? high : low, step < 0 ? low : high};
    jv in[2] = {a, b};
    for (int k = 0; k < 2; k++) {
        if (in[k].t == J_NONE)
            continue;
        int64_t i = hy_jinja__need_int(r, in[k], "a slice index");
        if (i < 0)
            i = i < -len ? low : i + len;
        lim[k] = i < low ? low : i > high ? high : i;
    }
    *start_out = lim[0];
    *step_out = step;
    int64_t span = step > 0 ? lim[1] - lim[0] : lim[0] - lim[1];
    int64_t width = step > 0 ? step : -step;
    return span <= 0 ? 0 : (span - 1) / width + 1;
}

static jv eval_slice(jrt *r, jv obj, const jnode *n)
{
    int64_t start, step, count;
    if (obj.t == J_UNDEF)
        hy_jinja__undef_fail(r, obj);
    if (obj.t != J_STR && obj.t != J_LIST && obj.t != J_TUPLE && obj.t != J_RANGE)
        hy_jinja__fail(r, "'%s' object cannot be sliced", hy_jinja__type_name(obj));
    count = slice_range(r, n, hy_jinja__len(r, obj), &start, &step);
    if (obj.t == J_STR)
        return hy_jinja__slice_str(r, obj, start, count, step);
    jv from = obj.t == J_RANGE ? (jv){.t = J_LIST, .l = hy_jinja__items(r, obj)} : obj;
    jv v = hy_jinja__list(r, from.t, (size_t)count);
    hy_jinja__charge(r, (size_t)count / 8);
    for (int64_t i = 0; i < count; i++)
        v.l->v[v.l->n++] = from.l->v[start + i * step];
    return v;
}

/* ---- calls ---- */

static void args_dynamic(jrt *r, const jargs *a, jcall *c)
{
    if (a->dyn != NULL) {
        jlist *l = hy_jinja__items(r, hy_jinja__eval(r, a->dyn));
        jv *v = hy_jinja__alloc(r, (c->n_pos + l->n) * sizeof *v);
        if (c->n_pos > 0)
            memcpy(v, c->pos, c->n_pos * sizeof *v);
        if (l->n > 0)
            memcpy(v + c->n_pos, l->v, l->n * sizeof *v);
        c->pos = v;
        c->n_pos += (uint32_t)l->n;
    }
    if (a->dyn_kw != NULL) {
        jv d = hy_jinja__eval(r, a->dyn_kw);
        if (d.t != J_DICT)
            hy_jinja__fail(r, "argument after ** must be a mapping, not %s",
                           hy_jinja__type_name(d));
        size_t n = c->n_kw + d.d->n;
        jv *v = hy_jinja__alloc(r, (n + 1) * sizeof *v);
        jstr **k = hy_jinja__alloc(r, (n + 1) * sizeof(jstr *));
        for (uint32_t i = 0; i < c->n_kw; i++) {
            v[i] = c->kw[i];
            k[i] = c->kw_name[i];
        }
        for (size_t i = 0; i < d.d->n; i++) {
            if (d.d->p[i].k.t != J_STR)
                hy_jinja__fail(r, "keywords must be strings");
            v[c->n_kw + i] = d.d->p[i].v;
            k[c->n_kw + i] = d.d->p[i].k.s;
        }
        c->kw = v;
        c->kw_name = k;
        c->n_kw = (uint32_t)n;
    }
}

void hy_jinja__args(jrt *r, const jargs *a, jcall *c)
{
    *c = (jcall){.n_pos = a->n_pos, .n_kw = a->n_kw, .kw_name = a->kw_name};
    if (a->n_pos > 0)
        c->pos = hy_jinja__alloc(r, a->n_pos * sizeof(jv));
    if (a->n_kw > 0)
        c->kw = hy_jinja__alloc(r, a->n_kw * sizeof(jv));
    for (uint32_t i = 0; i < a->n_pos; i++)
        c->pos[i] = hy_jinja__eval(r, a->pos[i]);
    for (uint32_t i = 0; i < a->n_kw; i++)
        c->kw[i] = hy_jinja__eval(r, a->kw[i]);
    if (a->dyn != NULL || a->dyn_kw != NULL)
        args_dynamic(r, a, c);
}

jv hy_jinja__call(jrt *r, jv f, const jcall *c)
{
    switch (f.t) {
    case J_UNDEF:
        hy_jinja__undef_fail(r, f);
    case J_MACRO:
        return hy_jinja__macro_call(r, f.m, c);
    case J_FUNC:
        return hy_jinja__func(r, f.fn, c);
    case J_METHOD:
        return hy_jinja__method(r, f.me, c);
    case J_LOOP:
        if (c->n_pos != 1)
            hy_jinja__fail(r, "loop() takes exactly one argument");
        return hy_jinja__loop_again(r, f.lo, c->pos[0]);
    default:
        hy_jinja__fail(r, "'%s' object is not callable", hy_jinja__type_name(f));
    }
}

static jv eval_call(jrt *r, const jnode *n)
{
    jv f = hy_jinja__eval(r, n->a);
    jcall c;
    hy_jinja__args(r, &n->args, &c);
    r->line = n->line;
    return hy_jinja__call(r, f, &c);
}

static jv eval_filter(jrt *r, const jnode *n, jv input)
{
    jcall c;
    if (n->id < 0)
        hy_jinja__fail(r, "no filter named '%.*s'", (int)n->str->len, n->str->p);
    hy_jinja__args(r, &n->args, &c);
    r->line = n->line;
    return hy_jinja__filter(r, n->id, n->str, input, &c);
}

/* A chain of filters without head (a filter block) over input. */
jv hy_jinja__chain(jrt *r, const jnode *n, jv input)
{
    if (n == NULL)
        return input;
    hy_jinja__down(r);
    jv v = eval_filter(r, n, hy_jinja__chain(r, n->a, input));
    JUP(r);
    return v;
}

static jv eval_test(jrt *r, const jnode *n)
{
    jv v = hy_jinja__eval(r, n->a);
    jcall c;
    if (n->id < 0)
        hy_jinja__fail(r, "no test named '%.*s'", (int)n->str->len, n->str->p);
    hy_jinja__args(r, &n->args, &c);
    return hy_jinja__bool(hy_jinja__test(r, n->id, n->str, v, &c));
}

static jv eval_name(jrt *r, const jnode *n)
{
    for (jscope *s = r->scope; s != NULL; s = s->up) {
        for (uint32_t i = 0; i < s->n; i++)
            if (s->v[i].id == n->id)
                return s->v[i].v;
    }
    return r->globals[n->id];
}

static jv eval_list(jrt *r, const jnode *n)
{
    jv v = hy_jinja__list(r, n->kind == E_LIST ? J_LIST : J_TUPLE, n->n_kids);
    for (uint32_t i = 0; i < n->n_kids; i++)
        v.l->v[i] = hy_jinja__eval(r, n->kids[i]);
    v.l->n = n->n_kids;
    return v;
}

static jv eval_dict(jrt *r, const jnode *n)
{
    jv v = hy_jinja__dict(r, n->n_kids / 2);
    for (uint32_t i = 0; i < n->n_kids; i += 2) {
        jv k = hy_jinja__eval(r, n->kids[i]);
        hy_jinja__dict_set(r, v.d, k, hy_jinja__eval(r, n->kids[i + 1]));
    }
    return v;
}

static jv eval_logic(jrt *r, const jnode *n)
{
    jv v = hy_jinja__none();
    for (uint32_t i = 0; i < n->n_kids; i++) {
        v = hy_jinja__eval(r, n->kids[i]);
        if (i + 1 < n->n_kids && hy_jinja__truth(r, v) == (n->kind == E_OR))
            break;
    }
    return v;
}

static jv eval_compare(jrt *r, const jnode *n)
{
    jv a = hy_jinja__eval(r, n->a);
    for (uint32_t i = 0; i < n->n_kids; i++) {
        jv b = hy_jinja__eval(r, n->kids[i]);
        r->line = n->line;
        if (!compare(r, n->ops[i], a, b))
            return hy_jinja__bool(false);
        a = b;
    }
    return hy_jinja__bool(true);
}

static jv eval_arith(jrt *r, const jnode *n)
{
    jv a = hy_jinja__eval(r, n->a);
    if (n->ops == NULL) {
        jv b = hy_jinja__eval(r, n->b);
        r->line = n->line;
        return hy_jinja__binary(r, n->op, a, b);
    }
    for (uint32_t i = 0; i < n->n_kids; i++) {
        jv b = hy_jinja__eval(r, n->kids[i]);
        r->line = n->line;
        a = hy_jinja__binary(r, n->ops[i], a, b);
    }
    return a;
}

static jv eval_concat(jrt *r, const jnode *n)
{
    jv a = hy_jinja__to_str(r, hy_jinja__eval(r, n->kids[0]));
    a.markup = 0;
    for (uint32_t i = 1; i < n->n_kids; i++)
        a = str_concat(r, a, hy_jinja__to_str(r, hy_jinja__eval(r, n->kids[i])));
    a.markup = 0;
    return a;
}

static jv eval_sign(jrt *r, const jnode *n)
{
    jv v = hy_jinja__eval(r, n->a);
    if (v.t == J_UNDEF)
        hy_jinja__undef_fail(r, v);
    if (!hy_jinja__is_number(v))
        hy_jinja__fail(r, "bad operand type for unary %c: '%s'", n->kind == E_NEG ? '-' : '+',
                       hy_jinja__type_name(v));
    if (v.t == J_FLOAT)
        return hy_jinja__float(n->kind == E_NEG ? -v.f : v.f);
    if (n->kind == E_NEG && v.i == INT64_MIN)
        too_large(r);
    return hy_jinja__int(n->kind == E_NEG ? -v.i : v.i);
}

static jv eval_item(jrt *r, const jnode *n)
{
    jv obj = hy_jinja__eval(r, n->a);
    if (n->b->kind == E_SLICE)
        return eval_slice(r, obj, n->b);
    jv key = hy_jinja__eval(r, n->b);
    r->line = n->line;
    return hy_jinja__getitem(r, obj, key);
}

static jv eval_kind(jrt *r, const jnode *n)
{
    jv v;
    switch ((jkind)n->kind) {
    case E_CONST:
        return n->val;
    case E_NAME:
        return eval_name(r, n);
    case E_LIST:
    case E_TUPLE:
        return eval_list(r, n);
    case E_DICT:
        return eval_dict(r, n);
    case E_ATTR:
        v = hy_jinja__eval(r, n->a);
        r->line = n->line;
        return hy_jinja__getattr(r, v, n->str);
    case E_ITEM:
        return eval_item(r, n);
    case E_CALL:
        return eval_call(r, n);
    case E_FILTER:
        return eval_filter(r, n, hy_jinja__eval(r, n->a));
    case E_TEST:
        return eval_test(r, n);
    case E_NOT:
        return hy_jinja__bool(!hy_jinja__truth(r, hy_jinja__eval(r, n->a)));
    case E_NEG:
    case E_POS:
        return eval_sign(r, n);
    case E_AND:
    case E_OR:
        return eval_logic(r, n);
    case E_BIN:
        return eval_arith(r, n);
    case E_CONCAT:
        return eval_concat(r, n);
    case E_CMP:
        return eval_compare(r, n);
    case E_COND:
        if (hy_jinja__truth(r, hy_jinja__eval(r, n->a)))
            return hy_jinja__eval(r, n->b);
        if (n->c != NULL)
            return hy_jinja__eval(r, n->c);
        return hy_jinja__undef_hint(r, "the inline if-expression evaluated to false and no else "
                                       "section was defined");
    case E_SLICE:
        hy_jinja__fail(r, "a slice cannot stand here");
    default:
        HY_ASSERT(!"expression kind");
    }
}

jv hy_jinja__eval(jrt *r, const jnode *n)
{
    hy_jinja__down(r);
    r->line = n->line;
    jv v = eval_kind(r, n);
    JUP(r);
    return v;
}
