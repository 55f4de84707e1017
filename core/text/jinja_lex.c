/* SPDX-License-Identifier: Apache-2.0
 *
 * Template text to tokens, with trim_blocks and lstrip_blocks on: the newline behind a block tag
 * goes, and so does the white space before one that begins a line. "-" strips all white space on
 * its side, "+" switches the automatic stripping off.
 *
 * Thread: any.  Owner: tokens live in the template's arena.
 */
#include "core/text/jinja_int.h"

#include <errno.h>
#include <stdlib.h>

typedef struct lexer {
    jparse *p;
    const char *s; /* normalised source */
    size_t n, at;
    size_t line_at;
    uint32_t line;
    bool line_starting;
    size_t cap;
    char stack[JLIM_TREE]; /* open brackets */
    int n_stack;
} lexer;

static uint32_t line_of(lexer *x, size_t at)
{
    for (; x->line_at < at; x->line_at++)
        x->line += x->s[x->line_at] == '\n';
    return x->line;
}

static jtok *add(lexer *x, jtok_type type, size_t at)
{
    jparse *p = x->p;
    if (p->n_tok == x->cap) {
        size_t cap = x->cap == 0 ? 256 : x->cap * 2;
        jtok *t = hy_jinja__get(p, cap * sizeof *t);
        if (p->n_tok > 0)
            memcpy(t, p->tok, p->n_tok * sizeof *t);
        p->tok = t;
        x->cap = cap;
    }
    jtok *t = &p->tok[p->n_tok++];
    memset(t, 0, sizeof *t);
    t->type = type;
    t->line = line_of(x, at);
    return t;
}

static size_t skip_space(const lexer *x, size_t at)
{
    while (at < x->n) {
        int k;
        if (!hy_jinja__space(hy_jinja__next_cp(x->s + at, x->s + x->n, &k)))
            break;
        at += (size_t)k;
    }
    return at;
}

/* Text before a tag, with the tag's wish on the white space at its end. */
static void add_data(lexer *x, size_t from, size_t to, char sign, bool is_block)
{
    size_t end = to;
    if (sign == '-') {
        while (end > from) {
            int k;
            if (!hy_jinja__space(hy_jinja__prev_cp(x->s + from, x->s + end, &k)))
                break;
            end -= (size_t)k;
        }
    } else if (sign != '+' && is_block) {
        size_t l = end;
        while (l > from && x->s[l - 1] != '\n')
            l--;
        if ((l > from || x->line_starting) && skip_space(x, l) >= end)
            end = l;
    }
    if (end > from) {
        jtok *t = add(x, T_DATA, from);
        t->p = x->s + from;
        t->len = end - from;
    }
}

static bool starts(const lexer *x, size_t at, const char *lit)
{
    size_t k = strlen(lit);
    return x->n - at >= k && memcmp(x->s + at, lit, k) == 0;
}

/* At the end of a tag? Gives the position behind it with the white space it eats, else 0. */
static size_t tag_end(const lexer *x, size_t at, const char *close, bool trim)
{
    if (x->s[at] == '-' && starts(x, at + 1, close))
        return skip_space(x, at + 1 + strlen(close));
    if (trim && x->s[at] == '+' && starts(x, at + 1, close))
        return at + 1 + strlen(close);
    if (!starts(x, at, close))
        return 0;
    at += strlen(close);
    if (trim && at < x->n && x->s[at] == '\n')
        at++;
    return at;
}

static void moved(lexer *x, size_t to)
{
    x->line_starting = to > 0 && x->s[to - 1] == '\n';
    x->at = to;
}

static void lex_comment(lexer *x, size_t open)
{
    for (size_t at = x->at; at + 1 < x->n; at++) {
        if (x->s[at] != '#' || x->s[at + 1] != '}')
            continue;
        size_t from = at;
        if (at > x->at && (x->s[at - 1] == '-' || x->s[at - 1] == '+'))
            from--;
        moved(x, tag_end(x, from, "#}", true));
        return;
    }
    hy_jinja__syntax(x->p, line_of(x, open), "a comment is not closed with #}");
}

static size_t word_at(const lexer *x, size_t at, const char *word)
{
    at = skip_space(x, at);
    if (!starts(x, at, word))
        return 0;
    return skip_space(x, at + strlen(word));
}

/* {% raw %} ... {% endraw %}. x->at stands behind "{%" and its sign. False: some other tag. */
static bool lex_raw(lexer *x, size_t open)
{
    size_t at = word_at(x, x->at, "raw");
    if (at == 0 || at >= x->n)
        return false;
    if (starts(x, at, "-%}"))
        at = skip_space(x, at + 3);
    else if (starts(x, at, "%}"))
        at += 2;
    else
        return false;
    moved(x, at);
    for (size_t i = at; i + 1 < x->n; i++) {
        if (x->s[i] != '{' || x->s[i + 1] != '%')
            continue;
        size_t w = i + 2;
        char sign = 0;
        if (w < x->n && (x->s[w] == '-' || x->s[w] == '+'))
            sign = x->s[w++];
        size_t e = word_at(x, w, "endraw");
        size_t end = e == 0 || e >= x->n ? 0 : tag_end(x, e, "%}", true);
        if (end == 0)
            continue;
        add_data(x, at, i, sign, true);
        moved(x, end);
        return true;
    }
    hy_jinja__syntax(x->p, line_of(x, open), "{%% raw %%} is not closed with {%% endraw %%}");
}

static bool name_char(uint32_t c, bool first)
{
    if (c >= 0x80)
        return !hy_jinja__space(c) && hy_jinja__printable(c);
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
}

static bool digit(const lexer *x, size_t at)
{
    return at < x->n && x->s[at] >= '0' && x->s[at] <= '9';
}

static size_t digits(const lexer *x, size_t at)
{
    while (digit(x, at) || (at < x->n && x->s[at] == '_' && digit(x, at + 1)))
        at++;
    return at;
}

static void lex_number(lexer *x)
{
    size_t from = x->at, end = digits(x, from);
    bool real = false, after_dot = from > 0 && x->s[from - 1] == '.';
    int base = 10;
    if (!after_dot && end < x->n && x->s[end] == '.' && digit(x, end + 1)) {
        real = true;
        end = digits(x, end + 1);
    }
    if (!after_dot && end < x->n && (x->s[end] == 'e' || x->s[end] == 'E')) {
        size_t e = end + 1;
        if (e < x->n && (x->s[e] == '+' || x->s[e] == '-'))
            e++;
        if (digit(x, e)) {
            real = true;
            end = digits(x, e);
        }
    }
    if (!real && x->s[from] == '0' && end == from + 1 && end < x->n) {
        char c = (char)(x->s[end] | 0x20);
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        if (base != 10) {
            end++;
            while (end < x->n && (name_char((unsigned char)x->s[end], false)))
                end++;
        }
    }
    char buf[128];
    size_t k = 0;
    for (size_t i = base == 10 ? from : from + 2; i < end; i++) {
        if (k + 1 >= sizeof buf)
            hy_jinja__syntax(x->p, line_of(x, from), "a number is too long");
        if (x->s[i] != '_')
            buf[k++] = x->s[i];
    }
    buf[k] = '\0';
    jtok *t = add(x, real ? T_FLOAT : T_INT, from);
    t->p = x->s + from;
    t->len = end - from;
    char *stop = buf;
    errno = 0;
    if (real)
        t->f = strtod(buf, &stop);
    else
        t->i = strtoll(buf, &stop, base);
    if (*stop != '\0' || k == 0 || (!real && errno != 0))
        hy_jinja__syntax(x->p, t->line, "bad or too large number %.*s", (int)(end - from),
                         x->s + from);
    if (!real && base == 10 && k > 1 && buf[0] == '0' && t->i != 0)
        hy_jinja__syntax(x->p, t->line, "a number begins with 0: %s", buf);
    x->at = end;
}

static size_t put_utf8(char *d, uint32_t c)
{
    if (c < 0x80) {
        d[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        d[0] = (char)(0xc0 | c >> 6);
        d[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        d[0] = (char)(0xe0 | c >> 12);
        d[1] = (char)(0x80 | (c >> 6 & 63));
        d[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    d[0] = (char)(0xf0 | c >> 18);
    d[1] = (char)(0x80 | (c >> 12 & 63));
    d[2] = (char)(0x80 | (c >> 6 & 63));
    d[3] = (char)(0x80 | (c & 63));
    return 4;
}

static uint32_t number_escape(lexer *x, const char *s, size_t n, size_t *i, int base, int max,
                              bool exact, uint32_t line)
{
    uint32_t v = 0;
    int k = 0;
    for (; k < max && *i < n; k++, (*i)++) {
        char c = s[*i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : 99;
        if (d >= base)
            break;
        v = v * (uint32_t)base + (uint32_t)d;
    }
    if ((exact && k != max) || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
        hy_jinja__syntax(x->p, line, "bad character escape in a string");
    return v;
}

/* Python's escapes. A result is never longer than its source. */
static size_t unescape(lexer *x, char *d, const char *s, size_t n, uint32_t line)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        if (s[i] != '\\' || i + 1 >= n) {
            d[k++] = s[i++];
            continue;
        }
        char c = s[i + 1];
        i += 2;
        const char *hit = c == '\0' ? NULL : strchr(from, c);
        if (hit != NULL) {
            d[k++] = to[hit - from];
        } else if (c == '\n') {
            continue;
        } else if (c >= '0' && c <= '7') {
            i--;
            k += put_utf8(d + k, number_escape(x, s, n, &i, 8, 3, false, line));
        } else if (c == 'x' || c == 'u' || c == 'U') {
            int digits_n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
            k += put_utf8(d + k, number_escape(x, s, n, &i, 16, digits_n, true, line));
        } else if (c == 'N') {
            hy_jinja__outside(x->p, line, "named characters (\\N{...}) are not supported");
        } else {
            d[k++] = '\\';
            d[k++] = c;
        }
    }
    return k;
}

static void lex_string(lexer *x)
{
    size_t from = x->at, at = from + 1;
    char quote = x->s[from];
    while (at < x->n && x->s[at] != quote)
        at += x->s[at] == '\\' ? 2 : 1;
    if (at >= x->n)
        hy_jinja__syntax(x->p, line_of(x, from), "a string is not closed");
    jtok *t = add(x, T_STRING, from);
    char *d = hy_jinja__get(x->p, at - from);
    t->len = unescape(x, d, x->s + from + 1, at - from - 1, t->line);
    t->p = d;
    x->at = at + 1;
}

static const struct {
    char s[3];
    uint8_t op;
} ops[] = {{"//", OP_FLOORDIV}, {"**", OP_POW},      {"==", OP_EQ},         {"!=", OP_NE},
           {">=", OP_GE},       {"<=", OP_LE},       {"+", OP_ADD},         {"-", OP_SUB},
           {"/", OP_DIV},       {"*", OP_MUL},       {"%", OP_MOD},         {"~", OP_TILDE},
           {"[", OP_LBRACKET},  {"]", OP_RBRACKET},  {"(", OP_LPAREN},      {")", OP_RPAREN},
           {"{", OP_LBRACE},    {"}", OP_RBRACE},    {">", OP_GT},          {"<", OP_LT},
           {"=", OP_ASSIGN},    {".", OP_DOT},       {":", OP_COLON},       {"|", OP_PIPE},
           {",", OP_COMMA},     {";", OP_SEMICOLON}, {"", (uint8_t)OP_NONE}};

static void balance(lexer *x, char c, uint32_t line)
{
    if (c == '(' || c == '[' || c == '{') {
        if (x->n_stack == JLIM_TREE)
            hy_jinja__outside(x->p, line, "brackets are nested too deeply");
        x->stack[x->n_stack++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (x->n_stack == 0)
            hy_jinja__syntax(x->p, line, "unexpected '%c'", c);
        char want = x->stack[--x->n_stack];
        if (want != c)
            hy_jinja__syntax(x->p, line, "unexpected '%c', expected '%c'", c, want);
    }
}

static void lex_op(lexer *x)
{
    for (size_t i = 0; ops[i].op != OP_NONE; i++) {
        if (!starts(x, x->at, ops[i].s))
            continue;
        jtok *t = add(x, T_OP, x->at);
        t->op = ops[i].op;
        t->p = x->s + x->at;
        t->len = strlen(ops[i].s);
        if (t->len == 1)
            balance(x, x->s[x->at], t->line);
        x->at += t->len;
        return;
    }
    int k;
    uint32_t c = hy_jinja__next_cp(x->s + x->at, x->s + x->n, &k);
    hy_jinja__syntax(x->p, line_of(x, x->at), "unexpected character U+%04X", (unsigned)c);
}

/* Inside {% %} or {{ }}. */
static void lex_tag(lexer *x, bool block, size_t open)
{
    const char *close = block ? "%}" : "}}";
    x->n_stack = 0;
    for (;;) {
        if (x->at >= x->n)
            hy_jinja__syntax(x->p, line_of(x, open), "a tag is not closed with %s", close);
        size_t end = x->n_stack == 0 ? tag_end(x, x->at, close, block) : 0;
        if (end != 0) {
            add(x, block ? T_BLOCK_END : T_VAR_END, x->at);
            moved(x, end);
            return;
        }
        size_t next = skip_space(x, x->at);
        if (next > x->at) {
            x->at = next;
            continue;
        }
        int k;
        uint32_t c = hy_jinja__next_cp(x->s + x->at, x->s + x->n, &k);
        if (c >= '0' && c <= '9') {
            lex_number(x);
        } else if (name_char(c, true)) {
            size_t from = x->at;
            while (x->at < x->n &&
                   name_char(hy_jinja__next_cp(x->s + x->at, x->s + x->n, &k), false))
                x->at += (size_t)k;
            jtok *t = add(x, T_NAME, from);
            t->p = x->s + from;
            t->len = x->at - from;
        } else if (c == '\'' || c == '"') {
            lex_string(x);
        } else {
            lex_op(x);
        }
    }
}

/* \r\n and \r become \n; one newline at the very end is dropped. */
static void normalise(lexer *x, const char *src, size_t len)
{
    char *d = hy_jinja__get(x->p, len + 1);
    size_t k = 0;
    for (size_t i = 0; i < len; i++) {
        if (src[i] == '\r') {
            d[k++] = '\n';
            if (i + 1 < len && src[i + 1] == '\n')
                i++;
        } else {
            d[k++] = src[i];
        }
    }
    if (k > 0 && d[k - 1] == '\n')
        k--;
    d[k] = '\0';
    x->s = d;
    x->n = k;
}

void hy_jinja__lex(jparse *p, const char *src, size_t len)
{
    lexer x = {.p = p, .line = 1, .line_starting = true};
    normalise(&x, src, len);
    while (x.at < x.n) {
        size_t open = x.at;
        while (open < x.n &&
               !(x.s[open] == '{' && open + 1 < x.n &&
                 (x.s[open + 1] == '%' || x.s[open + 1] == '{' || x.s[open + 1] == '#')))
            open++;
        if (open >= x.n) {
            jtok *t = add(&x, T_DATA, x.at);
            t->p = x.s + x.at;
            t->len = x.n - x.at;
            break;
        }
        char kind = x.s[open + 1], sign = 0;
        size_t from = x.at;
        x.at = open + 2;
        if (x.at < x.n && (x.s[x.at] == '-' || x.s[x.at] == '+'))
            sign = x.s[x.at++];
        add_data(&x, from, open, sign, kind != '{');
        if (kind == '#') {
            lex_comment(&x, open);
        } else if (kind == '{') {
            add(&x, T_VAR_BEGIN, open);
            lex_tag(&x, false, open);
        } else if (!lex_raw(&x, open)) {
            add(&x, T_BLOCK_BEGIN, open);
            lex_tag(&x, true, open);
        }
    }
    add(&x, T_EOF, x.n);
}
