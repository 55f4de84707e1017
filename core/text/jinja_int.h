/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the Jinja interpreter: tokens, syntax tree, values and the state of one rendering.
 *
 * Errors leave by longjmp to hy_jinja_compile or hy_jinja_render: every byte allocated on the way
 * belongs to an arena that these free, so nothing leaks and the evaluator stays readable.
 *
 * Thread: the tree is immutable once compiled; a jrt belongs to one rendering.
 * Owner: the arenas own everything.
 */
#ifndef HY_TEXT_JINJA_INT_H
#define HY_TEXT_JINJA_INT_H

#include "core/text/chat.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    JLIM_SOURCE = 1 << 20,      /* bytes of a template */
    JLIM_TREE = 400,            /* nesting of expressions and blocks */
    JLIM_DEPTH = 2400,          /* nested evaluator calls (C stack) */
    JLIM_RANGE = 100000,        /* items of range(), as the sandbox of jinja2 has it */
    JLIM_STEPS = 20 * 1000000,  /* evaluation steps of one rendering */
    JLIM_OUTPUT = 64 << 20,     /* bytes of the result */
    JLIM_COMPILE_MEM = 64 << 20 /* bytes of a compiled template */
};
#define JLIM_RENDER_MEM ((size_t)512 << 20)

/* ---- memory ---- */

typedef struct jchunk {
    struct jchunk *next;
    size_t cap;
    max_align_t data[];
} jchunk;

typedef struct jarena {
    jchunk *head;
    char *top, *end;
    size_t total, limit;
} jarena;

/* Zeroed? No. Returns NULL when over the limit or out of memory. */
void *hy_jinja__arena_get(jarena *a, size_t n);
/* Room for more bytes directly behind p[0..n) when p is the newest allocation. */
bool hy_jinja__arena_grow(jarena *a, const char *p, size_t n, size_t more);
void hy_jinja__arena_free(jarena *a);

/* ---- values ---- */

typedef enum jtype {
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_NS,
    J_RANGE,
    J_GEN,  /* what a lazy filter gives: items that can be walked once */
    J_VIEW, /* dict.keys(), .values(), .items() */
    J_MACRO,
    J_FUNC,   /* range, namespace, ... */
    J_METHOD, /* "x".strip */
    J_LOOP,
} jtype;

typedef struct jv jv;

typedef struct jstr {
    const char *p;
    size_t len;
    int64_t chars; /* code points, -1: not counted yet */
    size_t room;   /* free bytes directly behind, for whoever appends first */
} jstr;

typedef struct jlist {
    jv *v;
    size_t n, cap;
    size_t pos;   /* J_GEN: items already taken */
    uint8_t elem; /* J_VIEW: 0 keys, 1 values, 2 items */
    bool group;   /* J_TUPLE of groupby: .grouper and .list */
} jlist;

typedef struct jpair jpair;
typedef struct jdict {
    jpair *p;
    size_t n, cap;
} jdict;

typedef struct jrange {
    int64_t start, stop, step, n;
} jrange;

typedef struct jundef jundef;
typedef struct jmacro jmacro;
typedef struct jloop jloop;
typedef struct jmethod jmethod;

struct jv {
    uint8_t t;
    uint8_t markup; /* J_STR made by |safe or |escape: + and % escape the other operand */
    uint16_t fn;    /* J_FUNC */
    union {
        bool b;
        int64_t i;
        double f;
        jstr *s;
        jlist *l;
        jdict *d;
        jrange *r;
        jundef *u;
        jmacro *m;
        jmethod *me;
        jloop *lo;
    };
};

struct jpair {
    jv k, v;
};

struct jundef {
    const char *hint; /* whole message, or NULL */
    const char *obj;  /* "dict object", NULL: a name */
    jv name;
    bool unsafe; /* the sandbox refuses this attribute */
};

struct jmethod {
    jv self;
    jstr *name;
};

/* ---- tokens ---- */

typedef enum jtok_type {
    T_EOF,
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP,
} jtok_type;

typedef enum jop {
    OP_NONE,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_TILDE,
    OP_LBRACKET,
    OP_RBRACKET,
    OP_LPAREN,
    OP_RPAREN,
    OP_LBRACE,
    OP_RBRACE,
    OP_EQ,
    OP_NE,
    OP_GT,
    OP_GE,
    OP_LT,
    OP_LE,
    OP_ASSIGN,
    OP_DOT,
    OP_COLON,
    OP_PIPE,
    OP_COMMA,
    OP_SEMICOLON,
    OP_IN, /* not tokens: comparison kinds */
    OP_NOTIN,
} jop;

typedef struct jtok {
    jtok_type type;
    jop op;
    uint32_t line;
    const char *p; /* name, string (decoded) or data */
    size_t len;
    int64_t i;
    double f;
} jtok;

/* ---- tree ---- */

typedef enum jkind {
    E_CONST,
    E_NAME,
    E_LIST,
    E_TUPLE,
    E_DICT,
    E_ATTR,
    E_ITEM,
    E_SLICE,
    E_CALL,
    E_FILTER,
    E_TEST,
    E_NOT,
    E_NEG,
    E_POS,
    E_AND,
    E_OR,
    E_BIN,
    E_CONCAT,
    E_CMP,
    E_COND,
    E_NSREF,
    S_TEXT,
    S_PRINT,
    S_BLOCK, /* a list of statements */
    S_IF,
    S_FOR,
    S_SET,
    S_SETBLOCK,
    S_MACRO,
    S_CALL,
    S_FILTER,
    S_WITH,
    S_SCOPE, /* generation, block: a body with its own scope */
    S_BREAK,
    S_CONTINUE,
} jkind;

typedef struct jnode jnode;

typedef struct jargs {
    jnode **pos;
    jstr **kw_name;
    jnode **kw;
    jnode *dyn, *dyn_kw; /* *args, **kwargs */
    uint32_t n_pos, n_kw;
} jargs;

/* One node. Which fields are used:
 *   E_NAME id, str; E_ATTR a.str; E_ITEM a[b]; E_SLICE a:b:c; E_CALL a(args); E_FILTER a|id(args);
 *   E_TEST a is id(args); E_BIN a op b; E_CMP a ops[i] kids[i]; E_COND b if a else c;
 *   E_DICT kids = key, value, ...; S_IF kids = test, body, ..., c = else; S_SET a = b;
 *   S_FOR a in b if d, body c, else e; S_SETBLOCK a, filters d, body c; S_MACRO id, args.kw =
 *   defaults (NULL: none), kids = parameters, body c; S_CALL call a, like a macro else;
 *   S_FILTER d, body c; S_WITH kids = target, value, ..., body c. */
struct jnode {
    uint8_t kind;
    uint8_t op;
    uint8_t flags;
    uint16_t depth;
    uint32_t line;
    int32_t id;
    uint32_t n_kids;
    jstr *str;
    jv val;
    jnode *a, *b, *c, *d, *e;
    jnode **kids;
    uint8_t *ops;
    jargs args;
};

enum {
    JF_RECURSIVE = 1, /* for ... recursive */
    JF_CLOSURE = 2,   /* the loop body defines macros: each turn needs a scope of its own */
    JF_CALLER = 4,    /* a macro that reads caller, kwargs, varargs */
    JF_KWARGS = 8,
    JF_VARARGS = 16,
};

struct hy_jinja {
    jarena mem;
    jnode *root;
    jstr **names; /* by id */
    uint32_t n_names, cap_names;
};

/* ---- compile ---- */

typedef struct jparse {
    hy_jinja *j;
    jtok *tok;
    size_t n_tok, at;
    int depth, loops;
    uint8_t macro_reads; /* JF_* collected for the innermost macro */
    bool saw_macro;
    hy_status st;
    jmp_buf err;
} jparse;

_Noreturn void hy_jinja__syntax(jparse *p, uint32_t line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void hy_jinja__outside(jparse *p, uint32_t line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void *hy_jinja__get(jparse *p, size_t n);
void hy_jinja__lex(jparse *p, const char *src, size_t len);
void hy_jinja__parse(jparse *p);
/* Expressions; `stop` is a name that ends a tuple (for X in), or NULL. */
jnode *hy_jinja__expr(jparse *p, bool with_cond);
jnode *hy_jinja__tuple(jparse *p, bool with_cond, const char *stop, bool parens);
jnode *hy_jinja__target(jparse *p, const char *stop, bool with_ns);
jnode *hy_jinja__filter_chain(jparse *p, jnode *node, bool start_inline);
jnode *hy_jinja__node(jparse *p, jkind kind, uint32_t line);
jnode *hy_jinja__enter(jparse *p, jnode *n);
jstr *hy_jinja__str(jparse *p, const char *s, size_t len);
int32_t hy_jinja__name_id(jparse *p, const char *s, size_t len);
jtok *hy_jinja__cur(jparse *p);
bool hy_jinja__is_name(const jtok *t, const char *name);
bool hy_jinja__skip_name(jparse *p, const char *name);
bool hy_jinja__skip_op(jparse *p, jop op);
void hy_jinja__expect_op(jparse *p, jop op);
jtok *hy_jinja__expect_name(jparse *p);
const char *hy_jinja__describe(const jtok *t);

/* ---- one rendering ---- */

typedef struct jvar {
    int32_t id;
    jv v;
} jvar;

typedef struct jscope {
    struct jscope *up;
    jvar *v;
    uint32_t n, cap;
} jscope;

struct jmacro {
    const jnode *def;
    jscope *scope;
    jstr *name;
};

struct jloop {
    jv *item;
    size_t n, i;
    int depth0;
    const jnode *def; /* recursive loops */
    jscope *scope;
    jlist *changed;
};

/* A string that grows in the arena, or the result itself. */
typedef struct jsb {
    char *p;
    size_t len, cap;
    hy_buf *out;
} jsb;

typedef struct jrt {
    const hy_jinja *j;
    jarena mem;
    jscope *scope;
    jv *globals; /* by name id */
    jsb *out;
    const struct tm *now;
    int64_t steps;
    int depth;
    uint32_t line;
    hy_status st;
    jmp_buf err;
} jrt;

/* A failure in the template's run: message gets "line N: " before it. */
_Noreturn void hy_jinja__fail(jrt *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The template's own raise_exception: message as it is. */
_Noreturn void hy_jinja__raise(jrt *r, const char *text, size_t len);
_Noreturn void hy_jinja__limit(jrt *r, const char *what);
void *hy_jinja__alloc(jrt *r, size_t n);
void hy_jinja__charge(jrt *r, size_t n);

/* values (jinja_val.c) */
jv hy_jinja__none(void);
jv hy_jinja__bool(bool b);
jv hy_jinja__int(int64_t i);
jv hy_jinja__float(double f);
jv hy_jinja__strv(jrt *r, const char *p, size_t len); /* borrows p */
jv hy_jinja__cstr(jrt *r, const char *p);             /* borrows p */
jv hy_jinja__copy(jrt *r, const char *p, size_t len);
jv hy_jinja__list(jrt *r, jtype t, size_t cap);
void hy_jinja__push(jrt *r, jlist *l, jv v);
jv hy_jinja__dict(jrt *r, size_t cap);
void hy_jinja__dict_set(jrt *r, jdict *d, jv k, jv v);
jv *hy_jinja__dict_get(jrt *r, jdict *d, jv k);
jv *hy_jinja__dict_gets(jrt *r, jdict *d, const char *k, size_t len);
jv hy_jinja__undef_name(jrt *r, jstr *name);
jv hy_jinja__undef_attr(jrt *r, jv obj, jv name, bool unsafe);
jv hy_jinja__undef_hint(jrt *r, const char *hint);
_Noreturn void hy_jinja__undef_fail(jrt *r, jv u);
const char *hy_jinja__type_name(jv v);
bool hy_jinja__truth(jrt *r, jv v);
bool hy_jinja__eq(jrt *r, jv a, jv b);
/* -1, 0, 1; fails where Python has no order. op names the operator in the message. */
int hy_jinja__cmp(jrt *r, jv a, jv b, const char *op);
bool hy_jinja__is(jv a, jv b); /* identity, where it can be seen */
bool hy_jinja__is_number(jv v);
double hy_jinja__to_double(jv v);
int64_t hy_jinja__need_int(jrt *r, jv v, const char *what);
jv hy_jinja__from_json(jrt *r, const json_t *j, int depth);
/* The items of anything that can be walked, as a list; takes all of a J_GEN. */
jlist *hy_jinja__items(jrt *r, jv v);
int64_t hy_jinja__len(jrt *r, jv v); /* -1: has no length */

/* text (jinja_text.c) */
void hy_jinja__sb_init(jsb *b);
void hy_jinja__sb_add(jrt *r, jsb *b, const char *p, size_t n);
void hy_jinja__sb_puts(jrt *r, jsb *b, const char *s);
void hy_jinja__sb_putc(jrt *r, jsb *b, char c);
void hy_jinja__sb_cp(jrt *r, jsb *b, uint32_t cp);
jv hy_jinja__sb_val(jrt *r, jsb *b);
void hy_jinja__str_of(jrt *r, jsb *b, jv v);  /* Python's str(v) */
void hy_jinja__repr_of(jrt *r, jsb *b, jv v); /* Python's repr(v) */
jv hy_jinja__to_str(jrt *r, jv v);            /* str(v); a markup string stays one */
const char *hy_jinja__float_repr(double f, char *buf, size_t cap);
/* Stable sort by key, as Python's sorted(). */
void hy_jinja__sort(jrt *r, jpair *p, size_t n, bool reverse);
void hy_jinja__json(jrt *r, jsb *b, jv v, const char *indent, size_t indent_len, int level,
                    jv item_sep, jv key_sep, int flags);
enum { JJSON_ASCII = 1, JJSON_SORT = 2 };

/* strings (jinja_str.c) */
uint32_t hy_jinja__next_cp(const char *p, const char *end, int *n);
uint32_t hy_jinja__prev_cp(const char *start, const char *p, int *n);
int64_t hy_jinja__chars(jstr *s);
size_t hy_jinja__byte_at(jstr *s, int64_t ch); /* byte offset of code point ch, clamped */
bool hy_jinja__space(uint32_t cp);
bool hy_jinja__printable(uint32_t cp);
bool hy_jinja__letter(uint32_t cp);
bool hy_jinja__digit(uint32_t cp);
enum { JSTRIP_LEFT = 1, JSTRIP_RIGHT = 2 };
jv hy_jinja__strip(jrt *r, jv s, jv chars, int sides);
jv hy_jinja__case(jrt *r, jv s, char how); /* u l c(apitalise) t(itle) s(wap) j(inja's title) */
jv hy_jinja__slice_str(jrt *r, jv s, int64_t start, int64_t n, int64_t step);
jv hy_jinja__replace(jrt *r, jv s, jv from, jv to, int64_t count);
jlist *hy_jinja__splitlines(jrt *r, jv s, bool keep);
jv hy_jinja__escape(jrt *r, jv v);
const char *hy_jinja__find(const char *h, size_t hn, const char *n, size_t nn);

/* formatting (jinja_fmt.c) */
jv hy_jinja__percent(jrt *r, jv fmt, jv args);
typedef struct jcall {
    jv *pos;
    uint32_t n_pos, n_kw;
    jstr **kw_name;
    jv *kw;
} jcall;
jv hy_jinja__format(jrt *r, jv fmt, const jcall *c);

/* calls: filters, tests, methods, functions */
jv hy_jinja__arg(jrt *r, const jcall *c, uint32_t i, const char *name, bool *found);
void hy_jinja__arg_check(jrt *r, const jcall *c, const char *what, uint32_t max,
                         const char *const *names);
int32_t hy_jinja__filter_id(const char *s, size_t len); /* -1: no such filter */
int32_t hy_jinja__test_id(const char *s, size_t len);
jv hy_jinja__filter(jrt *r, int32_t id, jstr *name, jv v, const jcall *c);
bool hy_jinja__test(jrt *r, int32_t id, jstr *name, jv v, const jcall *c);
/* 0: the type has no such method; 1: it has; 2: it has, and the sandbox refuses it */
int hy_jinja__has_method(jv self, const jstr *name);
jv hy_jinja__method(jrt *r, jmethod *m, const jcall *c);
typedef jv (*jfilter_fn)(jrt *r, jv v, const jcall *c);
typedef struct jfilter_def {
    const char *name;
    jfilter_fn fn;
    uint8_t max;                /* arguments */
    const char *const names[5]; /* of the arguments, for keywords */
} jfilter_def;
extern const jfilter_def hy_jinja__list_filters[]; /* ends with a NULL name */
jv hy_jinja__func(jrt *r, int fn, const jcall *c);
int hy_jinja__func_id(const char *name, size_t len); /* -1: none */

/* evaluation */
jv hy_jinja__eval(jrt *r, const jnode *n);
typedef enum jflow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } jflow;
jflow hy_jinja__exec(jrt *r, const jnode *n);
void hy_jinja__down(jrt *r);
#define JUP(r) ((r)->depth--)
jv hy_jinja__getattr(jrt *r, jv obj, jstr *name);
jv hy_jinja__getitem(jrt *r, jv obj, jv key);
jv hy_jinja__call(jrt *r, jv f, const jcall *c);
void hy_jinja__args(jrt *r, const jargs *a, jcall *out);
jv hy_jinja__chain(jrt *r, const jnode *filters, jv input);
jv hy_jinja__binary(jrt *r, jop op, jv a, jv b);
bool hy_jinja__contains(jrt *r, jv box, jv v);
jscope *hy_jinja__scope(jrt *r, jscope *up);
void hy_jinja__assign(jrt *r, const jnode *target, jv v);
void hy_jinja__bind(jrt *r, jscope *s, int32_t id, jv v);
jv hy_jinja__macro_call(jrt *r, jmacro *m, const jcall *c);
jv hy_jinja__loop_again(jrt *r, jloop *l, jv items);
jv hy_jinja__loop_attr(jrt *r, jloop *l, jstr *name, bool *found);

#define JSTR_IS(s, lit) ((s)->len == sizeof(lit) - 1 && memcmp((s)->p, lit, sizeof(lit) - 1) == 0)

#endif
