/* SPDX-License-Identifier: Apache-2.0
 *
 * Parser of Jinja statements, and the entry of compilation. What this interpreter does not do
 * (include, import, extends, unknown tags, filters and tests) is refused here with its line.
 *
 * Thread: any.  Owner: the compiled template owns its arena.
 */
#include "core/text/jinja_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static jnode *parse_body(jparse *p, const char *const *ends);

_Noreturn static void fail_at(jparse *p, hy_status st, uint32_t line, const char *fmt, va_list ap)
{
    char text[512];
    vsnprintf(text, sizeof text, fmt, ap);
    p->st = hy_fail(st, "line %u: %s", (unsigned)line, text);
    longjmp(p->err, 1);
}

void hy_jinja__syntax(jparse *p, uint32_t line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_at(p, HY_E_FORMAT, line, fmt, ap);
}

void hy_jinja__outside(jparse *p, uint32_t line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_at(p, HY_E_UNSUPPORTED, line, fmt, ap);
}

void *hy_jinja__get(jparse *p, size_t n)
{
    void *m = hy_jinja__arena_get(&p->j->mem, n);
    if (m == NULL)
        hy_jinja__outside(p, p->n_tok > p->at ? p->tok[p->at].line : 1,
                          "the template needs more than %d MiB", JLIM_COMPILE_MEM >> 20);
    return m;
}

jnode *hy_jinja__node(jparse *p, jkind kind, uint32_t line)
{
    jnode *n = hy_jinja__get(p, sizeof *n);
    memset(n, 0, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    return n;
}

static int deeper(int depth, const jnode *n)
{
    return n != NULL && n->depth > depth ? n->depth : depth;
}

/* A node is complete: bound the height of the tree, as evaluation recurses over it. */
jnode *hy_jinja__enter(jparse *p, jnode *n)
{
    int d = deeper(deeper(deeper(deeper(deeper(0, n->a), n->b), n->c), n->d), n->e);
    d = deeper(deeper(d, n->args.dyn), n->args.dyn_kw);
    for (uint32_t i = 0; i < n->n_kids; i++)
        d = deeper(d, n->kids[i]);
    for (uint32_t i = 0; i < n->args.n_pos; i++)
        d = deeper(d, n->args.pos[i]);
    for (uint32_t i = 0; i < n->args.n_kw; i++)
        d = deeper(d, n->args.kw[i]);
    if (d + 1 > JLIM_TREE)
        hy_jinja__outside(p, n->line, "the template is nested too deeply");
    n->depth = (uint16_t)(d + 1);
    return n;
}

jstr *hy_jinja__str(jparse *p, const char *s, size_t len)
{
    jstr *r = hy_jinja__get(p, sizeof *r);
    *r = (jstr){s, len, -1, 0};
    hy_jinja__chars(r); /* counted now: the tree is shared by threads */
    return r;
}

int32_t hy_jinja__name_id(jparse *p, const char *s, size_t len)
{
    hy_jinja *j = p->j;
    for (uint32_t i = 0; i < j->n_names; i++)
        if (j->names[i]->len == len && memcmp(j->names[i]->p, s, len) == 0)
            return (int32_t)i;
    if (j->n_names == 4096)
        hy_jinja__outside(p, hy_jinja__cur(p)->line, "more than 4096 names");
    if (j->n_names == j->cap_names) {
        uint32_t cap = j->cap_names == 0 ? 32 : j->cap_names * 2;
        jstr **v = hy_jinja__get(p, cap * sizeof(jstr *));
        if (j->n_names > 0)
            memcpy(v, j->names, j->n_names * sizeof(jstr *));
        j->names = v;
        j->cap_names = cap;
    }
    j->names[j->n_names] = hy_jinja__str(p, s, len);
    return (int32_t)j->n_names++;
}

jtok *hy_jinja__cur(jparse *p)
{
    return &p->tok[p->at];
}

bool hy_jinja__is_name(const jtok *t, const char *name)
{
    return t->type == T_NAME && t->len == strlen(name) && memcmp(t->p, name, t->len) == 0;
}

bool hy_jinja__skip_name(jparse *p, const char *name)
{
    bool hit = hy_jinja__is_name(hy_jinja__cur(p), name);
    p->at += hit;
    return hit;
}

bool hy_jinja__skip_op(jparse *p, jop op)
{
    jtok *t = hy_jinja__cur(p);
    bool hit = t->type == T_OP && t->op == op;
    p->at += hit;
    return hit;
}

const char *hy_jinja__describe(const jtok *t)
{
    static _Thread_local char buf[80];
    switch (t->type) {
    case T_EOF:
        return "the end of the template";
    case T_VAR_END:
        return "}}";
    case T_BLOCK_END:
        return "%}";
    case T_STRING:
        return "a string";
    case T_NAME:
    case T_OP:
    case T_INT:
    case T_FLOAT:
        snprintf(buf, sizeof buf, "'%.*s'", t->len > 64 ? 64 : (int)t->len, t->p);
        return buf;
    default:
        return "text";
    }
}

void hy_jinja__expect_op(jparse *p, jop op)
{
    static const char *const names[] = {
        [OP_LPAREN] = "(", [OP_RPAREN] = ")", [OP_LBRACKET] = "[", [OP_RBRACKET] = "]",
        [OP_LBRACE] = "{", [OP_RBRACE] = "}", [OP_COMMA] = ",",    [OP_COLON] = ":",
        [OP_ASSIGN] = "=", [OP_NOTIN] = ""};
    jtok *t = hy_jinja__cur(p);
    if (!hy_jinja__skip_op(p, op))
        hy_jinja__syntax(p, t->line, "expected '%s', got %s", names[op] ? names[op] : "?",
                         hy_jinja__describe(t));
}

jtok *hy_jinja__expect_name(jparse *p)
{
    jtok *t = hy_jinja__cur(p);
    if (t->type != T_NAME)
        hy_jinja__syntax(p, t->line, "expected a name, got %s", hy_jinja__describe(t));
    p->at++;
    return t;
}

static void expect_block_end(jparse *p)
{
    jtok *t = hy_jinja__cur(p);
    if (t->type != T_BLOCK_END)
        hy_jinja__syntax(p, t->line, "expected %%}, got %s", hy_jinja__describe(t));
    p->at++;
}

typedef struct stmts {
    jnode **v;
    uint32_t n, cap;
} stmts;

static void push(jparse *p, stmts *l, jnode *n)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap == 0 ? 8 : l->cap * 2;
        jnode **v = hy_jinja__get(p, cap * sizeof *v);
        if (l->n > 0)
            memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

/* Behind a tag's own words: "%}", then statements until one of `ends`, which is left current. */
static jnode *parse_block(jparse *p, const char *const *ends)
{
    hy_jinja__skip_op(p, OP_COLON);
    expect_block_end(p);
    return parse_body(p, ends);
}

static jnode *parse_for(jparse *p, uint32_t line)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    static const char *const last[] = {"endfor", NULL};
    jnode *n = hy_jinja__node(p, S_FOR, line);
    n->a = hy_jinja__target(p, "in", false);
    if (!hy_jinja__skip_name(p, "in"))
        hy_jinja__syntax(p, line, "expected 'in' after the names of a for");
    n->b = hy_jinja__tuple(p, false, "recursive", false);
    if (hy_jinja__skip_name(p, "if"))
        n->d = hy_jinja__expr(p, true);
    if (hy_jinja__skip_name(p, "recursive"))
        n->flags |= JF_RECURSIVE;
    bool outer = p->saw_macro;
    p->saw_macro = false;
    p->loops++;
    n->c = parse_block(p, ends);
    p->loops--;
    if (p->saw_macro)
        n->flags |= JF_CLOSURE;
    p->saw_macro |= outer;
    if (hy_jinja__skip_name(p, "else"))
        n->e = parse_block(p, last);
    p->at++; /* endfor */
    return hy_jinja__enter(p, n);
}

static jnode *parse_if(jparse *p, uint32_t line)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    jnode *n = hy_jinja__node(p, S_IF, line);
    stmts l = {0};
    do {
        push(p, &l, hy_jinja__tuple(p, false, NULL, false));
        push(p, &l, parse_block(p, ends));
    } while (hy_jinja__skip_name(p, "elif"));
    if (hy_jinja__skip_name(p, "else"))
        n->c = parse_block(p, last);
    p->at++; /* endif */
    n->kids = l.v;
    n->n_kids = l.n;
    return hy_jinja__enter(p, n);
}

static jnode *parse_set(jparse *p, uint32_t line)
{
    static const char *const ends[] = {"endset", NULL};
    jnode *n = hy_jinja__node(p, S_SET, line);
    n->a = hy_jinja__target(p, NULL, true);
    if (hy_jinja__skip_op(p, OP_ASSIGN)) {
        n->b = hy_jinja__tuple(p, true, NULL, false);
        return hy_jinja__enter(p, n);
    }
    n->kind = S_SETBLOCK;
    n->d = hy_jinja__filter_chain(p, NULL, false);
    n->c = parse_block(p, ends);
    p->at++;
    return hy_jinja__enter(p, n);
}

static void parse_signature(jparse *p, jnode *n)
{
    stmts names = {0}, defaults = {0};
    hy_jinja__expect_op(p, OP_LPAREN);
    bool had_default = false;
    while (!hy_jinja__skip_op(p, OP_RPAREN)) {
        if (names.n > 0)
            hy_jinja__expect_op(p, OP_COMMA);
        jtok *t = hy_jinja__expect_name(p);
        jnode *name = hy_jinja__node(p, E_NAME, t->line);
        name->id = hy_jinja__name_id(p, t->p, t->len);
        name->str = hy_jinja__str(p, t->p, t->len);
        push(p, &names, name);
        if (hy_jinja__skip_op(p, OP_ASSIGN)) {
            push(p, &defaults, hy_jinja__expr(p, true));
            had_default = true;
        } else if (had_default) {
            hy_jinja__syntax(p, t->line, "a parameter without default follows one with default");
        } else {
            push(p, &defaults, NULL);
        }
    }
    n->kids = names.v;
    n->n_kids = names.n;
    n->args.kw = defaults.v; /* one for each parameter; n_kw stays 0 */
}

static void parse_macro_body(jparse *p, jnode *n, const char *end)
{
    const char *const ends[] = {end, NULL};
    uint8_t outer = p->macro_reads;
    int loops = p->loops;
    p->macro_reads = 0;
    p->loops = 0;
    n->c = parse_block(p, ends);
    p->at++;
    n->flags |= p->macro_reads;
    p->macro_reads |= outer;
    p->loops = loops;
    p->saw_macro = true;
}

static jnode *parse_macro(jparse *p, uint32_t line)
{
    jnode *n = hy_jinja__node(p, S_MACRO, line);
    jtok *t = hy_jinja__expect_name(p);
    n->id = hy_jinja__name_id(p, t->p, t->len);
    n->str = hy_jinja__str(p, t->p, t->len);
    parse_signature(p, n);
    parse_macro_body(p, n, "endmacro");
    return hy_jinja__enter(p, n);
}

static jnode *parse_call_block(jparse *p, uint32_t line)
{
    jnode *n = hy_jinja__node(p, S_CALL, line);
    n->id = hy_jinja__name_id(p, "caller", 6);
    n->str = hy_jinja__str(p, "caller", 6);
    if (hy_jinja__cur(p)->type == T_OP && hy_jinja__cur(p)->op == OP_LPAREN)
        parse_signature(p, n);
    n->a = hy_jinja__expr(p, true);
    if (n->a->kind != E_CALL)
        hy_jinja__syntax(p, line, "{%% call %%} needs a call of a macro");
    parse_macro_body(p, n, "endcall");
    return hy_jinja__enter(p, n);
}

static jnode *parse_with(jparse *p, uint32_t line)
{
    static const char *const ends[] = {"endwith", NULL};
    jnode *n = hy_jinja__node(p, S_WITH, line);
    stmts l = {0};
    while (hy_jinja__cur(p)->type != T_BLOCK_END) {
        if (l.n > 0)
            hy_jinja__expect_op(p, OP_COMMA);
        push(p, &l, hy_jinja__target(p, NULL, false));
        hy_jinja__expect_op(p, OP_ASSIGN);
        push(p, &l, hy_jinja__expr(p, true));
    }
    n->c = parse_block(p, ends);
    p->at++;
    n->kids = l.v;
    n->n_kids = l.n;
    return hy_jinja__enter(p, n);
}

static jnode *parse_scope(jparse *p, uint32_t line, const char *end)
{
    const char *const ends[] = {end, NULL};
    jnode *n = hy_jinja__node(p, S_SCOPE, line);
    int loops = p->loops;
    p->loops = 0; /* a jump does not leave a captured body */
    n->c = parse_block(p, ends);
    p->loops = loops;
    p->at++;
    return hy_jinja__enter(p, n);
}

/* Without inheritance a block is its body. */
static jnode *parse_named_block(jparse *p, uint32_t line)
{
    static const char *const ends[] = {"endblock", NULL};
    jnode *n = hy_jinja__node(p, S_SCOPE, line);
    jtok *name = hy_jinja__expect_name(p);
    hy_jinja__skip_name(p, "scoped");
    int loops = p->loops;
    p->loops = 0;
    n->c = parse_block(p, ends);
    p->loops = loops;
    p->at++;
    jtok *t = hy_jinja__cur(p);
    if (t->type == T_NAME && t->len == name->len && memcmp(t->p, name->p, t->len) == 0)
        p->at++;
    return hy_jinja__enter(p, n);
}

static jnode *parse_filter_block(jparse *p, uint32_t line)
{
    static const char *const ends[] = {"endfilter", NULL};
    jnode *n = hy_jinja__node(p, S_FILTER, line);
    n->d = hy_jinja__filter_chain(p, NULL, true);
    n->c = parse_block(p, ends);
    p->at++;
    return hy_jinja__enter(p, n);
}

static jnode *parse_jump(jparse *p, jtok *t)
{
    bool brk = hy_jinja__is_name(t, "break");
    if (p->loops == 0)
        hy_jinja__syntax(p, t->line, "'%s' outside of a loop", brk ? "break" : "continue");
    return hy_jinja__enter(p, hy_jinja__node(p, brk ? S_BREAK : S_CONTINUE, t->line));
}

static jnode *parse_print(jparse *p, uint32_t line)
{
    jnode *n = hy_jinja__node(p, S_BLOCK, line);
    stmts l = {0};
    while (hy_jinja__cur(p)->type != T_BLOCK_END) {
        if (l.n > 0)
            hy_jinja__expect_op(p, OP_COMMA);
        jnode *one = hy_jinja__node(p, S_PRINT, line);
        one->a = hy_jinja__expr(p, true);
        push(p, &l, hy_jinja__enter(p, one));
    }
    n->kids = l.v;
    n->n_kids = l.n;
    return hy_jinja__enter(p, n);
}

static jnode *parse_statement(jparse *p)
{
    jtok *t = hy_jinja__expect_name(p);
    if (hy_jinja__is_name(t, "for"))
        return parse_for(p, t->line);
    if (hy_jinja__is_name(t, "if"))
        return parse_if(p, t->line);
    if (hy_jinja__is_name(t, "set"))
        return parse_set(p, t->line);
    if (hy_jinja__is_name(t, "macro"))
        return parse_macro(p, t->line);
    if (hy_jinja__is_name(t, "call"))
        return parse_call_block(p, t->line);
    if (hy_jinja__is_name(t, "filter"))
        return parse_filter_block(p, t->line);
    if (hy_jinja__is_name(t, "with"))
        return parse_with(p, t->line);
    if (hy_jinja__is_name(t, "generation"))
        return parse_scope(p, t->line, "endgeneration");
    if (hy_jinja__is_name(t, "block"))
        return parse_named_block(p, t->line);
    if (hy_jinja__is_name(t, "print"))
        return parse_print(p, t->line);
    if (hy_jinja__is_name(t, "break") || hy_jinja__is_name(t, "continue"))
        return parse_jump(p, t);
    hy_jinja__outside(p, t->line, "the tag {%% %.*s %%} is unknown or out of place",
                      t->len > 64 ? 64 : (int)t->len, t->p);
}

static bool at_end(jparse *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++)
        if (hy_jinja__is_name(hy_jinja__cur(p), *ends))
            return true;
    return false;
}

static jnode *parse_body(jparse *p, const char *const *ends)
{
    stmts l = {0};
    jnode *n = hy_jinja__node(p, S_BLOCK, hy_jinja__cur(p)->line);
    if (++p->depth > JLIM_TREE)
        hy_jinja__outside(p, n->line, "blocks are nested too deeply");
    for (;;) {
        jtok *t = hy_jinja__cur(p);
        if (t->type == T_EOF)
            break;
        p->at++;
        if (t->type == T_DATA) {
            jnode *s = hy_jinja__node(p, S_TEXT, t->line);
            s->str = hy_jinja__str(p, t->p, t->len);
            push(p, &l, hy_jinja__enter(p, s));
        } else if (t->type == T_VAR_BEGIN) {
            jnode *s = hy_jinja__node(p, S_PRINT, t->line);
            s->a = hy_jinja__tuple(p, true, NULL, false);
            if (hy_jinja__cur(p)->type != T_VAR_END)
                hy_jinja__syntax(p, hy_jinja__cur(p)->line, "expected }}, got %s",
                                 hy_jinja__describe(hy_jinja__cur(p)));
            p->at++;
            push(p, &l, hy_jinja__enter(p, s));
        } else {
            if (at_end(p, ends))
                break;
            push(p, &l, parse_statement(p));
            expect_block_end(p);
        }
    }
    if (ends != NULL && hy_jinja__cur(p)->type == T_EOF) {
        while (ends[1] != NULL && strncmp(ends[0], "end", 3) != 0)
            ends++;
        hy_jinja__syntax(p, n->line, "the block that begins here has no {%% %s %%}", ends[0]);
    }
    p->depth--;
    n->kids = l.v;
    n->n_kids = l.n;
    return hy_jinja__enter(p, n);
}

/* Unknown filters and tests: an error now, except under an if, where the template may be
 * guarding against engines that lack them; there the evaluator reports it. */
static void check_names(jparse *p, const jnode *n, bool soft)
{
    if (n == NULL)
        return;
    if ((n->kind == E_FILTER || n->kind == E_TEST) && n->id < 0 && !soft)
        hy_jinja__outside(p, n->line, "no %s named '%.*s'", n->kind == E_FILTER ? "filter" : "test",
                          n->str->len > 64 ? 64 : (int)n->str->len, n->str->p);
    if (n->kind == S_IF || n->kind == E_COND)
        soft = true;
    else if (n->kind == S_FOR || n->kind == S_MACRO || n->kind == S_CALL || n->kind == S_FILTER ||
             n->kind == S_WITH || n->kind == S_SCOPE || n->kind == S_SETBLOCK)
        soft = false;
    check_names(p, n->a, soft);
    check_names(p, n->b, soft);
    check_names(p, n->c, soft);
    check_names(p, n->d, soft);
    check_names(p, n->e, soft);
    for (uint32_t i = 0; i < n->n_kids; i++)
        check_names(p, n->kids[i], soft);
    for (uint32_t i = 0; i < n->args.n_pos; i++)
        check_names(p, n->args.pos[i], soft);
    uint32_t n_kw = n->kind == S_MACRO || n->kind == S_CALL ? n->n_kids : n->args.n_kw;
    for (uint32_t i = 0; i < n_kw; i++)
        check_names(p, n->args.kw[i], soft);
    check_names(p, n->args.dyn, soft);
    check_names(p, n->args.dyn_kw, soft);
}

static void check_utf8(jparse *p, const char *src, size_t len)
{
    uint32_t line = 1;
    for (const char *s = src, *end = src + len; s < end;) {
        int k;
        if (hy_jinja__next_cp(s, end, &k) == 0xfffd && k == 1)
            hy_jinja__syntax(p, line, "the template is not valid UTF-8");
        line += *s == '\n';
        s += k;
    }
}

hy_status hy_jinja_compile(const char *src, size_t len, hy_jinja **out)
{
    if (len > JLIM_SOURCE)
        return hy_fail(HY_E_LIMIT, "line 1: a chat template of %zu bytes is over the limit of %d",
                       len, JLIM_SOURCE);
    hy_jinja *j = calloc(1, sizeof *j);
    if (j == NULL)
        return hy_fail(HY_E_NOMEM, "line 1: no memory for a chat template");
    j->mem.limit = JLIM_COMPILE_MEM;
    jparse *p = calloc(1, sizeof *p);
    if (p == NULL) {
        free(j);
        return hy_fail(HY_E_NOMEM, "line 1: no memory for a chat template");
    }
    p->j = j;
    if (setjmp(p->err) == 0) {
        check_utf8(p, src, len);
        hy_jinja__lex(p, src, len);
        j->root = parse_body(p, NULL);
        check_names(p, j->root, false);
        free(p);
        *out = j;
        return HY_OK;
    }
    hy_status st = p->st;
    free(p);
    hy_jinja_destroy(j);
    return st;
}

void hy_jinja_destroy(hy_jinja *j)
{
    if (j == NULL)
        return;
    hy_jinja__arena_free(&j->mem);
    free(j);
}
