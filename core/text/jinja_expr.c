/* SPDX-License-Identifier: Apache-2.0
 *
 * Parser of Jinja expressions. Binding, weakest first: x if c else y, or, and, not, comparisons,
 * + -, ~, * / // %, **, unary + -, then .name [i] (call), then | filter and is test.
 *
 * Thread: any.  Owner: nodes live in the template's arena.
 */
#include "core/text/jinja_int.h"

static jnode *parse_unary(jparse *p, bool with_filter);
static jnode *parse_primary(jparse *p, bool with_ns);

static jop cur_op(jparse *p)
{
    jtok *t = hy_jinja__cur(p);
    return t->type == T_OP ? t->op : OP_NONE;
}

static jnode *binary(jparse *p, jop op, jnode *a, jnode *b, uint32_t line)
{
    jnode *n = hy_jinja__node(p, E_BIN, line);
    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    return hy_jinja__enter(p, n);
}

/* A growing list of nodes while parsing. */
typedef struct nodes {
    jnode **v;
    uint32_t n, cap;
} nodes;

static void push(jparse *p, nodes *l, jnode *n)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap == 0 ? 4 : l->cap * 2;
        jnode **v = hy_jinja__get(p, cap * sizeof *v);
        if (l->n > 0)
            memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

static jnode *with_kids(jparse *p, jnode *n, nodes *l)
{
    n->kids = l->v;
    n->n_kids = l->n;
    return hy_jinja__enter(p, n);
}

static void parse_args(jparse *p, jargs *a)
{
    nodes pos = {0}, kw = {0}, names = {0};
    hy_jinja__expect_op(p, OP_LPAREN);
    for (bool first = true; cur_op(p) != OP_RPAREN; first = false) {
        if (!first) {
            hy_jinja__expect_op(p, OP_COMMA);
            if (cur_op(p) == OP_RPAREN)
                break;
        }
        jtok *t = hy_jinja__cur(p);
        if (hy_jinja__skip_op(p, OP_MUL)) {
            if (a->dyn != NULL || a->dyn_kw != NULL)
                hy_jinja__syntax(p, t->line, "misplaced *arguments in a call");
            a->dyn = hy_jinja__expr(p, true);
        } else if (hy_jinja__skip_op(p, OP_POW)) {
            if (a->dyn_kw != NULL)
                hy_jinja__syntax(p, t->line, "misplaced **arguments in a call");
            a->dyn_kw = hy_jinja__expr(p, true);
        } else if (t->type == T_NAME && t[1].type == T_OP && t[1].op == OP_ASSIGN) {
            if (a->dyn_kw != NULL)
                hy_jinja__syntax(p, t->line, "an argument follows **arguments");
            p->at += 2;
            jnode *name = hy_jinja__node(p, E_NAME, t->line);
            name->str = hy_jinja__str(p, t->p, t->len);
            push(p, &names, name);
            push(p, &kw, hy_jinja__expr(p, true));
        } else {
            if (a->dyn != NULL || a->dyn_kw != NULL || kw.n > 0)
                hy_jinja__syntax(p, t->line, "a positional argument follows a named one");
            push(p, &pos, hy_jinja__expr(p, true));
        }
    }
    hy_jinja__expect_op(p, OP_RPAREN);
    a->pos = pos.v;
    a->n_pos = pos.n;
    a->kw = kw.v;
    a->n_kw = kw.n;
    a->kw_name = hy_jinja__get(p, (kw.n + 1) * sizeof(jstr *));
    for (uint32_t i = 0; i < kw.n; i++)
        a->kw_name[i] = names.v[i]->str;
}

static jnode *parse_call(jparse *p, jnode *callee)
{
    jnode *n = hy_jinja__node(p, E_CALL, hy_jinja__cur(p)->line);
    n->a = callee;
    parse_args(p, &n->args);
    return hy_jinja__enter(p, n);
}

/* One index of [..]: an expression or a slice. */
static jnode *parse_subscribed(jparse *p)
{
    uint32_t line = hy_jinja__cur(p)->line;
    jnode *start = NULL;
    if (cur_op(p) != OP_COLON) {
        start = hy_jinja__expr(p, true);
        if (cur_op(p) != OP_COLON)
            return start;
    }
    hy_jinja__expect_op(p, OP_COLON);
    jnode *n = hy_jinja__node(p, E_SLICE, line);
    n->a = start;
    jop op = cur_op(p);
    if (op != OP_COLON && op != OP_RBRACKET && op != OP_COMMA)
        n->b = hy_jinja__expr(p, true);
    if (hy_jinja__skip_op(p, OP_COLON)) {
        op = cur_op(p);
        if (op != OP_RBRACKET && op != OP_COMMA)
            n->c = hy_jinja__expr(p, true);
    }
    return hy_jinja__enter(p, n);
}

static jnode *parse_subscript(jparse *p, jnode *node)
{
    jtok *t = hy_jinja__cur(p);
    if (hy_jinja__skip_op(p, OP_DOT)) {
        jtok *a = hy_jinja__cur(p);
        p->at++;
        if (a->type == T_NAME) {
            jnode *n = hy_jinja__node(p, E_ATTR, t->line);
            n->a = node;
            n->str = hy_jinja__str(p, a->p, a->len);
            return hy_jinja__enter(p, n);
        }
        if (a->type != T_INT)
            hy_jinja__syntax(p, a->line, "expected a name or number after '.', got %s",
                             hy_jinja__describe(a));
        jnode *n = hy_jinja__node(p, E_ITEM, t->line);
        n->a = node;
        n->b = hy_jinja__node(p, E_CONST, t->line);
        n->b->val = hy_jinja__int(a->i);
        return hy_jinja__enter(p, n);
    }
    hy_jinja__expect_op(p, OP_LBRACKET);
    nodes args = {0};
    while (cur_op(p) != OP_RBRACKET) {
        if (args.n > 0)
            hy_jinja__expect_op(p, OP_COMMA);
        push(p, &args, parse_subscribed(p));
    }
    hy_jinja__expect_op(p, OP_RBRACKET);
    jnode *n = hy_jinja__node(p, E_ITEM, t->line);
    n->a = node;
    n->b = args.n == 1 ? args.v[0] : with_kids(p, hy_jinja__node(p, E_TUPLE, t->line), &args);
    return hy_jinja__enter(p, n);
}

static jnode *parse_postfix(jparse *p, jnode *node)
{
    for (;;) {
        jop op = cur_op(p);
        if (op == OP_DOT || op == OP_LBRACKET)
            node = parse_subscript(p, node);
        else if (op == OP_LPAREN)
            node = parse_call(p, node);
        else
            return node;
    }
}

static jstr *dotted_name(jparse *p)
{
    jtok *t = hy_jinja__expect_name(p);
    jstr *s = hy_jinja__str(p, t->p, t->len);
    while (hy_jinja__skip_op(p, OP_DOT)) {
        jtok *u = hy_jinja__expect_name(p);
        char *d = hy_jinja__get(p, s->len + 1 + u->len);
        memcpy(d, s->p, s->len);
        d[s->len] = '.';
        memcpy(d + s->len + 1, u->p, u->len);
        s = hy_jinja__str(p, d, s->len + 1 + u->len);
    }
    return s;
}

jnode *hy_jinja__filter_chain(jparse *p, jnode *node, bool start_inline)
{
    while (start_inline || cur_op(p) == OP_PIPE) {
        if (!start_inline)
            p->at++;
        jnode *n = hy_jinja__node(p, E_FILTER, hy_jinja__cur(p)->line);
        n->a = node;
        n->str = dotted_name(p);
        n->id = hy_jinja__filter_id(n->str->p, n->str->len);
        if (cur_op(p) == OP_LPAREN)
            parse_args(p, &n->args);
        node = hy_jinja__enter(p, n);
        start_inline = false;
    }
    return node;
}

static jnode *parse_test(jparse *p, jnode *node)
{
    jnode *n = hy_jinja__node(p, E_TEST, hy_jinja__cur(p)->line);
    p->at++; /* is */
    bool negated = hy_jinja__skip_name(p, "not");
    n->a = node;
    n->str = dotted_name(p);
    n->id = hy_jinja__test_id(n->str->p, n->str->len);
    jtok *t = hy_jinja__cur(p);
    jop op = cur_op(p);
    if (op == OP_LPAREN) {
        parse_args(p, &n->args);
    } else if ((t->type == T_STRING || t->type == T_INT || t->type == T_FLOAT ||
                op == OP_LBRACKET || op == OP_LBRACE || t->type == T_NAME) &&
               !hy_jinja__is_name(t, "else") && !hy_jinja__is_name(t, "or") &&
               !hy_jinja__is_name(t, "and")) {
        if (hy_jinja__is_name(t, "is"))
            hy_jinja__syntax(p, t->line, "tests cannot be chained with 'is'");
        nodes one = {0};
        push(p, &one, parse_postfix(p, parse_primary(p, false)));
        n->args.pos = one.v;
        n->args.n_pos = 1;
    }
    n = hy_jinja__enter(p, n);
    if (!negated)
        return n;
    jnode *no = hy_jinja__node(p, E_NOT, n->line);
    no->a = n;
    return hy_jinja__enter(p, no);
}

static jnode *parse_filter_expr(jparse *p, jnode *node)
{
    for (;;) {
        jop op = cur_op(p);
        if (op == OP_PIPE)
            node = hy_jinja__filter_chain(p, node, false);
        else if (hy_jinja__is_name(hy_jinja__cur(p), "is"))
            node = parse_test(p, node);
        else if (op == OP_LPAREN)
            node = parse_call(p, node);
        else
            return node;
    }
}

static jnode *parse_list(jparse *p, uint32_t line)
{
    nodes l = {0};
    while (cur_op(p) != OP_RBRACKET) {
        if (l.n > 0)
            hy_jinja__expect_op(p, OP_COMMA);
        if (cur_op(p) == OP_RBRACKET)
            break;
        push(p, &l, hy_jinja__expr(p, true));
    }
    hy_jinja__expect_op(p, OP_RBRACKET);
    return with_kids(p, hy_jinja__node(p, E_LIST, line), &l);
}

static jnode *parse_dict(jparse *p, uint32_t line)
{
    nodes l = {0};
    while (cur_op(p) != OP_RBRACE) {
        if (l.n > 0)
            hy_jinja__expect_op(p, OP_COMMA);
        if (cur_op(p) == OP_RBRACE)
            break;
        push(p, &l, hy_jinja__expr(p, true));
        hy_jinja__expect_op(p, OP_COLON);
        push(p, &l, hy_jinja__expr(p, true));
    }
    hy_jinja__expect_op(p, OP_RBRACE);
    return with_kids(p, hy_jinja__node(p, E_DICT, line), &l);
}

static jnode *parse_name(jparse *p, jtok *t, bool with_ns)
{
    jnode *n = hy_jinja__node(p, E_CONST, t->line);
    if (hy_jinja__is_name(t, "true") || hy_jinja__is_name(t, "True")) {
        n->val = hy_jinja__bool(true);
    } else if (hy_jinja__is_name(t, "false") || hy_jinja__is_name(t, "False")) {
        n->val = hy_jinja__bool(false);
    } else if (hy_jinja__is_name(t, "none") || hy_jinja__is_name(t, "None")) {
        n->val = hy_jinja__none();
    } else {
        n->kind = E_NAME;
        n->id = hy_jinja__name_id(p, t->p, t->len);
        if (with_ns && hy_jinja__skip_op(p, OP_DOT)) {
            jtok *a = hy_jinja__expect_name(p);
            n->kind = E_NSREF;
            n->str = hy_jinja__str(p, a->p, a->len);
        }
        if (hy_jinja__is_name(t, "caller"))
            p->macro_reads |= JF_CALLER;
        else if (hy_jinja__is_name(t, "kwargs"))
            p->macro_reads |= JF_KWARGS;
        else if (hy_jinja__is_name(t, "varargs"))
            p->macro_reads |= JF_VARARGS;
    }
    return hy_jinja__enter(p, n);
}

static jnode *parse_string(jparse *p, jtok *t)
{
    jnode *n = hy_jinja__node(p, E_CONST, t->line);
    size_t len = t->len, k = 1;
    while (t[k].type == T_STRING)
        len += t[k++].len;
    char *d = hy_jinja__get(p, len + 1), *at = d;
    for (size_t i = 0; i < k; i++) {
        memcpy(at, t[i].p, t[i].len);
        at += t[i].len;
    }
    p->at += k - 1;
    n->val.t = J_STR;
    n->val.s = hy_jinja__str(p, d, len);
    return hy_jinja__enter(p, n);
}

static jnode *parse_primary(jparse *p, bool with_ns)
{
    jtok *t = hy_jinja__cur(p);
    if (t->type != T_EOF)
        p->at++;
    switch (t->type) {
    case T_NAME:
        return parse_name(p, t, with_ns);
    case T_STRING:
        return parse_string(p, t);
    case T_INT:
    case T_FLOAT: {
        jnode *n = hy_jinja__node(p, E_CONST, t->line);
        n->val = t->type == T_INT ? hy_jinja__int(t->i) : hy_jinja__float(t->f);
        return hy_jinja__enter(p, n);
    }
    case T_OP:
        if (t->op == OP_LPAREN) {
            jnode *n = hy_jinja__tuple(p, true, NULL, true);
            hy_jinja__expect_op(p, OP_RPAREN);
            return n;
        }
        if (t->op == OP_LBRACKET)
            return parse_list(p, t->line);
        if (t->op == OP_LBRACE)
            return parse_dict(p, t->line);
        break;
    default:
        break;
    }
    hy_jinja__syntax(p, t->line, "expected an expression, got %s", hy_jinja__describe(t));
}

static jnode *unary_body(jparse *p)
{
    jtok *t = hy_jinja__cur(p);
    if (hy_jinja__skip_op(p, OP_SUB) || hy_jinja__skip_op(p, OP_ADD)) {
        jnode *n = hy_jinja__node(p, t->op == OP_SUB ? E_NEG : E_POS, t->line);
        n->a = parse_unary(p, false);
        return hy_jinja__enter(p, n);
    }
    return parse_primary(p, false);
}

static jnode *parse_unary(jparse *p, bool with_filter)
{
    if (++p->depth > JLIM_TREE)
        hy_jinja__outside(p, hy_jinja__cur(p)->line, "expressions are nested too deeply");
    jnode *n = parse_postfix(p, unary_body(p));
    if (with_filter)
        n = parse_filter_expr(p, n);
    p->depth--;
    return n;
}

static jnode *parse_pow(jparse *p)
{
    jnode *left = parse_unary(p, true);
    while (cur_op(p) == OP_POW) {
        uint32_t line = hy_jinja__cur(p)->line;
        p->at++;
        left = binary(p, OP_POW, left, parse_unary(p, true), line);
    }
    return left;
}

static jnode *parse_math2(jparse *p)
{
    jnode *left = parse_pow(p);
    for (;;) {
        jop op = cur_op(p);
        if (op != OP_MUL && op != OP_DIV && op != OP_FLOORDIV && op != OP_MOD)
            return left;
        uint32_t line = hy_jinja__cur(p)->line;
        p->at++;
        left = binary(p, op, left, parse_pow(p), line);
    }
}

static jnode *parse_concat(jparse *p)
{
    jnode *first = parse_math2(p);
    if (cur_op(p) != OP_TILDE)
        return first;
    nodes l = {0};
    push(p, &l, first);
    while (hy_jinja__skip_op(p, OP_TILDE))
        push(p, &l, parse_math2(p));
    return with_kids(p, hy_jinja__node(p, E_CONCAT, first->line), &l);
}

/* A chain of + and - is kept flat (kids and ops), so that long ones do not nest. */
static jnode *parse_math1(jparse *p)
{
    jnode *first = parse_concat(p);
    nodes l = {0}, marks = {0};
    for (;;) {
        jop op = cur_op(p);
        if (op != OP_ADD && op != OP_SUB)
            break;
        jnode *mark = hy_jinja__node(p, E_CONST, hy_jinja__cur(p)->line);
        mark->op = (uint8_t)op;
        p->at++;
        push(p, &marks, mark);
        push(p, &l, parse_concat(p));
    }
    if (l.n == 0)
        return first;
    jnode *n = hy_jinja__node(p, E_BIN, first->line);
    n->a = first;
    n->ops = hy_jinja__get(p, l.n);
    for (uint32_t i = 0; i < l.n; i++)
        n->ops[i] = marks.v[i]->op;
    return with_kids(p, n, &l);
}

static jop compare_op(jparse *p)
{
    jtok *t = hy_jinja__cur(p);
    if (t->type == T_OP && t->op >= OP_EQ && t->op <= OP_LE) {
        p->at++;
        return t->op;
    }
    if (hy_jinja__skip_name(p, "in"))
        return OP_IN;
    if (hy_jinja__is_name(t, "not") && hy_jinja__is_name(t + 1, "in")) {
        p->at += 2;
        return OP_NOTIN;
    }
    return OP_NONE;
}

static jnode *parse_compare(jparse *p)
{
    jnode *first = parse_math1(p);
    nodes l = {0}, marks = {0};
    for (;;) {
        uint32_t line = hy_jinja__cur(p)->line;
        jop op = compare_op(p);
        if (op == OP_NONE)
            break;
        jnode *mark = hy_jinja__node(p, E_CONST, line);
        mark->op = (uint8_t)op;
        push(p, &marks, mark);
        push(p, &l, parse_math1(p));
    }
    if (l.n == 0)
        return first;
    jnode *n = hy_jinja__node(p, E_CMP, first->line);
    n->a = first;
    n->ops = hy_jinja__get(p, l.n);
    for (uint32_t i = 0; i < l.n; i++)
        n->ops[i] = marks.v[i]->op;
    return with_kids(p, n, &l);
}

static jnode *parse_not(jparse *p)
{
    jtok *t = hy_jinja__cur(p);
    if (!hy_jinja__is_name(t, "not"))
        return parse_compare(p);
    p->at++;
    if (++p->depth > JLIM_TREE)
        hy_jinja__outside(p, t->line, "expressions are nested too deeply");
    jnode *n = hy_jinja__node(p, E_NOT, t->line);
    n->a = parse_not(p);
    p->depth--;
    return hy_jinja__enter(p, n);
}

/* and, or: flat lists of operands. */
static jnode *parse_logic(jparse *p, bool is_or)
{
    jnode *first = is_or ? parse_logic(p, false) : parse_not(p);
    const char *word = is_or ? "or" : "and";
    if (!hy_jinja__is_name(hy_jinja__cur(p), word))
        return first;
    nodes l = {0};
    push(p, &l, first);
    while (hy_jinja__skip_name(p, word))
        push(p, &l, is_or ? parse_logic(p, false) : parse_not(p));
    return with_kids(p, hy_jinja__node(p, is_or ? E_OR : E_AND, first->line), &l);
}

jnode *hy_jinja__expr(jparse *p, bool with_cond)
{
    if (++p->depth > JLIM_TREE)
        hy_jinja__outside(p, hy_jinja__cur(p)->line, "expressions are nested too deeply");
    jnode *n = parse_logic(p, true);
    while (with_cond && hy_jinja__skip_name(p, "if")) {
        jnode *cond = hy_jinja__node(p, E_COND, n->line);
        cond->b = n;
        cond->a = parse_logic(p, true);
        if (hy_jinja__skip_name(p, "else"))
            cond->c = hy_jinja__expr(p, true);
        n = hy_jinja__enter(p, cond);
    }
    p->depth--;
    return n;
}

static bool tuple_end(jparse *p, const char *stop)
{
    jtok *t = hy_jinja__cur(p);
    return t->type == T_VAR_END || t->type == T_BLOCK_END || cur_op(p) == OP_RPAREN ||
           (stop != NULL && hy_jinja__is_name(t, stop));
}

static jnode *tuple_of(jparse *p, bool target, bool with_cond, const char *stop, bool parens,
                       bool with_ns)
{
    nodes l = {0};
    bool is_tuple = false;
    uint32_t line = hy_jinja__cur(p)->line;
    for (;;) {
        if (l.n > 0)
            hy_jinja__expect_op(p, OP_COMMA);
        if (tuple_end(p, stop))
            break;
        push(p, &l, target ? parse_primary(p, with_ns) : hy_jinja__expr(p, with_cond));
        if (cur_op(p) != OP_COMMA)
            break;
        is_tuple = true;
    }
    if (!is_tuple) {
        if (l.n == 1)
            return l.v[0];
        if (!parens)
            hy_jinja__syntax(p, line, "expected an expression, got %s",
                             hy_jinja__describe(hy_jinja__cur(p)));
    }
    return with_kids(p, hy_jinja__node(p, E_TUPLE, line), &l);
}

jnode *hy_jinja__tuple(jparse *p, bool with_cond, const char *stop, bool parens)
{
    return tuple_of(p, false, with_cond, stop, parens, false);
}

static void check_target(jparse *p, const jnode *n)
{
    if (n->kind == E_TUPLE || n->kind == E_LIST) {
        for (uint32_t i = 0; i < n->n_kids; i++)
            check_target(p, n->kids[i]);
    } else if (n->kind != E_NAME && n->kind != E_NSREF) {
        hy_jinja__syntax(p, n->line, "cannot assign to this expression");
    }
}

jnode *hy_jinja__target(jparse *p, const char *stop, bool with_ns)
{
    jnode *n = tuple_of(p, true, true, stop, false, with_ns);
    check_target(p, n);
    return n;
}
