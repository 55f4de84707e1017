/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps before the model: normalisers and pre-tokenisers, with patterns run by PCRE2.
 *
 * Patterns are written in Oniguruma's dialect. What differs from PCRE2 is translated: \s means
 * Unicode White_Space exactly (PCRE2 adds U+180E), \w includes marks and letters in circles but no
 * fractions, \h a hexadecimal digit, \uHHHH a code point; what cannot be translated (class
 * intersection) is refused.
 *
 * Thread: any; memory is the caller's tok_work.  Owner: steps belong to hy_tok.
 */
#include "core/text/tok_int.h"
#include "core/text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    PATTERN_MAX = 1 << 16,
    MATCH_LIMIT = 20 * 1000 * 1000, /* backtracking steps of one match */
    HEAP_LIMIT_KIB = 256 * 1024,
};

#define SPACES                                                                                     \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                 \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{"     \
    "1fff}"                                                                                        \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{"   \
    "10ffff}"

/* One escape sequence at p[i] == '\\'; returns how many bytes it took. */
static size_t put_escape(const char *p, size_t len, bool in_class, hy_buf *out)
{
    char c = len > 1 ? p[1] : '\0';
    if (c == 'w' || c == 'W') {
        hy_buf_printf(out, in_class ? "%s" : c == 'w' ? "[%s]" : "[^%s]", TOK_WORD);
        return 2;
    }
    const char *set = c == 's' ? SPACES : c == 'S' ? NOT_SPACES : c == 'h' ? "0-9A-Fa-f" : NULL;
    if (set != NULL) {
        hy_buf_printf(out, in_class ? "%s" : "[%s]", set);
        return 2;
    }
    if (c == 'u' && len >= 6 && strspn(p + 2, "0123456789abcdefABCDEF") >= 4) {
        hy_buf_printf(out, "\\x{%.4s}", p + 2);
        return 6;
    }
    hy_buf_add(out, p, len > 1 ? 2 : 1);
    return len > 1 ? 2 : 1;
}

static hy_status translate(const char *p, size_t len, hy_buf *out)
{
    bool in_class = false;
    size_t class_at = 0;
    for (size_t i = 0; i < len;) {
        if (in_class && p[i] == '\\' && i + 1 < len && p[i + 1] == 'W')
            return hy_fail(HY_E_UNSUPPORTED, "pattern with \\W inside a class: %.200s", p);
        if (p[i] == '\\') {
            i += put_escape(p + i, len - i, in_class, out);
            continue;
        }
        if (in_class && p[i] == '&' && i + 1 < len && p[i + 1] == '&')
            return hy_fail(HY_E_UNSUPPORTED, "pattern with a class intersection (&&): %.200s", p);
        if (in_class && p[i] == '[' && !(i + 1 < len && p[i + 1] == ':'))
            return hy_fail(HY_E_UNSUPPORTED, "pattern with a class inside a class: %.200s", p);
        if (in_class && p[i] == '[') { /* [:alpha:] */
            const char *end = strstr(p + i, ":]");
            if (end == NULL)
                return hy_fail(HY_E_FORMAT, "pattern with an open class: %.200s", p);
            size_t n = (size_t)(end - (p + i)) + 2;
            hy_buf_add(out, p + i, n);
            i += n;
            continue;
        }
        if (!in_class && p[i] == '[') {
            in_class = true;
            class_at = i + (i + 1 < len && p[i + 1] == '^');
        } else if (in_class && p[i] == ']' && i > class_at + 1) {
            in_class = false;
        }
        hy_buf_putc(out, p[i++]);
    }
    return HY_OK;
}

hy_status hy_tok__regex(const char *pattern, size_t len, tok_regex *out)
{
    hy_buf b;
    int err = 0;
    PCRE2_SIZE at = 0;
    if (len > PATTERN_MAX || memchr(pattern, '\0', len) != NULL)
        return hy_fail(HY_E_LIMIT, "tokeniser: a pattern of %zu bytes is too long or has a NUL",
                       len);
    hy_buf_init(&b);
    hy_status st = translate(pattern, len, &b);
    if (st == HY_OK && b.failed)
        st = hy_fail(HY_E_NOMEM, "tokeniser: no memory for a pattern");
    if (st == HY_OK) {
        out->code = pcre2_compile((PCRE2_SPTR)hy_buf_str(&b), b.len,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                  &err, &at, NULL);
        if (out->code == NULL) {
            PCRE2_UCHAR msg[128] = "";
            pcre2_get_error_message(err, msg, sizeof(msg));
            st = hy_fail(HY_E_UNSUPPORTED, "tokeniser pattern \"%.200s\": %s", pattern,
                         (const char *)msg);
        } else {
            pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE); /* without it: the same, slower */
        }
    }
    hy_buf_fini(&b);
    return st;
}

void hy_tok__regex_fini(tok_regex *r)
{
    pcre2_code_free(r->code);
    r->code = NULL;
}

hy_status hy_tok__step_add(tok_steps *s, tok_step_kind kind, tok_step **out)
{
    if (s->n == 64)
        return hy_fail(HY_E_LIMIT, "tokeniser: more than 64 steps before the model");
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        tok_step *p = realloc(s->v, cap * sizeof(*p));
        if (p == NULL)
            return hy_fail(HY_E_NOMEM, "tokeniser: no memory");
        s->v = p;
        s->cap = cap;
    }
    memset(&s->v[s->n], 0, sizeof(s->v[0]));
    s->v[s->n].kind = kind;
    *out = &s->v[s->n++];
    return HY_OK;
}

hy_status hy_tok__step_text(const char *text, size_t len, char **out, size_t *len_out)
{
    *out = malloc(len + 1);
    if (*out == NULL)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory");
    memcpy(*out, text, len);
    (*out)[len] = '\0';
    *len_out = len;
    return HY_OK;
}

hy_status hy_tok__step_split(tok_steps *s, const char *pattern, size_t len, bool literal,
                             tok_behavior behavior, bool invert)
{
    tok_step *k = NULL;
    HY_TRY(hy_tok__step_add(s, STEP_SPLIT, &k));
    k->behavior = behavior;
    k->invert = invert;
    if (literal)
        return hy_tok__step_text(pattern, len, &k->a, &k->a_len);
    return hy_tok__regex(pattern, len, &k->re);
}

void hy_tok__steps_fini(tok_steps *s)
{
    for (size_t i = 0; i < s->n; i++) {
        hy_tok__regex_fini(&s->v[i].re);
        free(s->v[i].a);
        free(s->v[i].b);
    }
    free(s->v);
    memset(s, 0, sizeof(*s));
}

void hy_tok__work_fini(tok_work *w)
{
    hy_buf_fini(&w->text);
    hy_buf_fini(&w->text2);
    free(w->pieces.v);
    free(w->pieces2.v);
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->limits);
    free(w->syms);
    free(w->heap);
}

int hy_tok__match(tok_work *w, const tok_regex *r, const char *p, size_t len, size_t from,
                  size_t *start, size_t *end)
{
    if (w->match == NULL) {
        w->match = pcre2_match_data_create(1, NULL); /* only where the match is, no groups */
        w->limits = pcre2_match_context_create(NULL);
        if (w->match == NULL || w->limits == NULL)
            return hy_fail(HY_E_NOMEM, "tokeniser: no memory");
        pcre2_set_match_limit(w->limits, MATCH_LIMIT);
        pcre2_set_heap_limit(w->limits, HEAP_LIMIT_KIB);
    }
    PCRE2_SPTR s = (PCRE2_SPTR)p;
    int rc = pcre2_match(r->code, s, len, from, PCRE2_NO_UTF_CHECK, w->match, w->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(r->code, s, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->match,
                         w->limits);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return hy_fail(rc == PCRE2_ERROR_NOMEMORY ? HY_E_NOMEM : HY_E_LIMIT,
                       "tokeniser: a pattern gave up on this text (PCRE2 error %d)", rc);
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(w->match);
    *start = o[0];
    *end = o[1] < o[0] ? o[0] : o[1]; /* \K may put the start behind the end */
    return 1;
}

static hy_status add_piece(tok_pieces *v, size_t off, size_t len)
{
    if (len == 0)
        return HY_OK;
    if (v->n == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 64;
        tok_piece *p = realloc(v->v, cap * sizeof(*p));
        if (p == NULL)
            return hy_fail(HY_E_NOMEM, "tokeniser: no memory for %zu pieces", cap);
        v->v = p;
        v->cap = cap;
    }
    v->v[v->n++] = (tok_piece){(uint32_t)off, (uint32_t)len};
    return HY_OK;
}

/* Where the parts of a piece go, by behaviour. Ranges arrive in order and cover the piece. */
typedef struct splitter {
    const tok_step *step;
    tok_pieces *out;
    tok_piece held; /* a part waiting for what follows */
    bool held_match, has_held;
} splitter;

static hy_status flush_held(splitter *s)
{
    if (!s->has_held)
        return HY_OK;
    s->has_held = false;
    return add_piece(s->out, s->held.off, s->held.len);
}

static hy_status put_part(splitter *s, size_t off, size_t len, bool match)
{
    if (len == 0 && !match)
        return HY_OK;
    match = match != s->step->invert;
    bool join = false;
    switch (s->step->behavior) {
    case SPLIT_REMOVED:
        return match ? HY_OK : add_piece(s->out, off, len);
    case SPLIT_ISOLATED:
        return add_piece(s->out, off, len);
    case SPLIT_WITH_PREVIOUS: /* a match joins the part before it, unless that ends in one too */
        join = s->has_held && match && !s->held_match;
        break;
    case SPLIT_WITH_NEXT: /* a match waits for the part after it */
        join = s->has_held && s->held_match && !match;
        break;
    case SPLIT_CONTIGUOUS:
        join = s->has_held && match == s->held_match;
        break;
    }
    if (join) {
        s->held.len += (uint32_t)len;
    } else {
        HY_TRY(flush_held(s));
        s->held = (tok_piece){(uint32_t)off, (uint32_t)len};
        s->has_held = true;
    }
    s->held_match = match;
    return HY_OK;
}

/* The next place a step's pattern or text matches: as hy_tok__match. */
static int find_next(tok_work *w, const tok_step *k, const char *p, size_t len, size_t from,
                     size_t *start, size_t *end)
{
    if (k->re.code != NULL)
        return hy_tok__match(w, &k->re, p, len, from, start, end);
    const char *hit = k->a_len != 0 ? memmem(p + from, len - from, k->a, k->a_len) : NULL;
    if (hit == NULL)
        return 0;
    *start = (size_t)(hit - p);
    *end = *start + k->a_len;
    return 1;
}

static size_t next_char(const char *p, size_t len, size_t at)
{
    at++;
    while (at < len && ((unsigned char)p[at] & 0xc0) == 0x80)
        at++;
    return at;
}

static hy_status split_piece(tok_work *w, const tok_step *k, const char *text, tok_piece piece,
                             tok_pieces *out)
{
    const char *p = text + piece.off;
    splitter s = {k, out, {0, 0}, false, false};
    size_t done = 0, from = 0;
    while (from <= piece.len) {
        size_t a = 0, b = 0;
        int rc = find_next(w, k, p, piece.len, from, &a, &b);
        if (rc < 0)
            return (hy_status)rc;
        if (rc == 0)
            break;
        if (b == a) { /* an empty match cuts, and the search goes on one character later */
            HY_TRY(put_part(&s, piece.off + done, a - done, false));
            done = a;
            if (a == piece.len)
                break;
            from = next_char(p, piece.len, a);
            continue;
        }
        HY_TRY(put_part(&s, piece.off + done, a - done, false));
        HY_TRY(put_part(&s, piece.off + a, b - a, true));
        done = from = b;
    }
    HY_TRY(put_part(&s, piece.off + done, piece.len - done, false));
    return flush_held(&s);
}

static hy_status replace_all(tok_work *w, const tok_step *k, const char *p, size_t len, hy_buf *out)
{
    size_t done = 0, from = 0;
    while (from <= len) {
        size_t a = 0, b = 0;
        int rc = find_next(w, k, p, len, from, &a, &b);
        if (rc < 0)
            return (hy_status)rc;
        if (rc == 0)
            break;
        hy_buf_add(out, p + done, a - done);
        hy_buf_add(out, k->b, k->b_len);
        done = b;
        from = b > a ? b : next_char(p, len, a);
    }
    hy_buf_add(out, p + done, len - done);
    return HY_OK;
}

static hy_status map_unicode(const tok_step *k, const char *p, size_t len, hy_buf *out)
{
    int opt = UTF8PROC_STABLE;
    if (k->kind == STEP_NFC || k->kind == STEP_NFKC)
        opt |= UTF8PROC_COMPOSE;
    else
        opt |= UTF8PROC_DECOMPOSE;
    if (k->kind == STEP_NFKC || k->kind == STEP_NFKD)
        opt |= UTF8PROC_COMPAT;
    utf8proc_uint8_t *q = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)len, &q,
                                      (utf8proc_option_t)opt);
    if (n < 0)
        return hy_fail(HY_E_INVAL, "tokeniser: the text cannot be normalised: %s",
                       utf8proc_errmsg(n));
    hy_buf_add(out, q, (size_t)n);
    free(q);
    return HY_OK;
}

static bool ascii_only(const char *p, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)p[i] >= 0x80)
            return false;
    return true;
}

static size_t space_at(const char *p, size_t len)
{
    uint32_t cp = 0;
    size_t n = hy_utf8_decode(p, len, &cp);
    return n != 0 && hy_utf8_is_space(cp) ? n : 0;
}

static void strip(const tok_step *k, const char *p, size_t len, hy_buf *out)
{
    size_t from = 0, to = len;
    while (k->left && from < to && space_at(p + from, to - from) != 0)
        from += space_at(p + from, to - from);
    while (k->right && to > from) {
        size_t c = to - 1;
        while (c > from && ((unsigned char)p[c] & 0xc0) == 0x80)
            c--;
        if (space_at(p + c, to - c) != to - c)
            break;
        to = c;
    }
    hy_buf_add(out, p + from, to - from);
}

static void lower(const char *p, size_t len, hy_buf *out)
{
    for (size_t i = 0; i < len;) {
        uint32_t cp = 0;
        size_t n = hy_utf8_decode(p + i, len - i, &cp);
        if (n == 0)
            hy_buf_putc(out, p[i++]);
        else if (cp == 0x130) /* the one letter whose lower case is two code points */
            hy_buf_puts(out, "i\xcc\x87");
        else
            hy_utf8_put(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
        i += n;
    }
}

hy_status hy_tok__normalise(const tok_steps *s, tok_work *w, const char *p, size_t len, hy_buf *out)
{
    hy_buf *other = out == &w->text ? &w->text2 : &w->text;
    hy_buf_clear(out);
    hy_buf_add(out, p, len);
    for (size_t i = 0; i < s->n; i++) {
        const tok_step *k = &s->v[i];
        hy_buf from = *out;
        *out = *other;
        *other = from;
        hy_buf_clear(out);
        const char *src = hy_buf_str(other);
        switch (k->kind) {
        case STEP_NFC:
        case STEP_NFD:
        case STEP_NFKC:
        case STEP_NFKD:
            if (ascii_only(src, from.len))
                hy_buf_add(out, src, from.len);
            else
                HY_TRY(map_unicode(k, src, from.len, out));
            break;
        case STEP_LOWER:
            lower(src, from.len, out);
            break;
        case STEP_PREPEND:
            if (from.len != 0)
                hy_buf_add(out, k->a, k->a_len);
            hy_buf_add(out, src, from.len);
            break;
        case STEP_STRIP:
            strip(k, src, from.len, out);
            break;
        default:
            HY_TRY(replace_all(w, k, src, from.len, out));
            break;
        }
    }
    if (out->failed || other->failed)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory for the text");
    return HY_OK;
}

/* A piece copied behind w->text2, with what the step adds. */
static hy_status rewrite_piece(const tok_step *k, tok_work *w, tok_piece piece, bool first)
{
    const char *p = w->text.data + piece.off;
    size_t start = w->text2.len;
    if (k->kind == STEP_PREFIX_SPACE) {
        if (p[0] != ' ')
            hy_buf_add(&w->text2, k->a, k->a_len);
        hy_buf_add(&w->text2, p, piece.len);
        return add_piece(&w->pieces2, start, w->text2.len - start);
    }
    bool begins = p[0] == ' ' || (piece.len >= k->a_len && memcmp(p, k->a, k->a_len) == 0);
    if (!begins && (k->prepend == PREPEND_ALWAYS || (k->prepend == PREPEND_FIRST && first)))
        hy_buf_add(&w->text2, k->a, k->a_len);
    size_t cut = start;
    for (size_t i = 0; i < piece.len;) {
        bool sp = p[i] == ' ';
        bool rep = !sp && piece.len - i >= k->a_len && memcmp(p + i, k->a, k->a_len) == 0;
        if ((sp || rep) && k->left) { /* split: the mark begins the next piece */
            HY_TRY(add_piece(&w->pieces2, cut, w->text2.len - cut));
            cut = w->text2.len;
        }
        if (sp || rep) {
            hy_buf_add(&w->text2, k->a, k->a_len);
            i += sp ? 1 : k->a_len;
        } else {
            hy_buf_putc(&w->text2, p[i++]);
        }
    }
    return add_piece(&w->pieces2, cut, w->text2.len - cut);
}

hy_status hy_tok__pretokenise(const hy_tok *t, tok_work *w, bool first)
{
    w->pieces.n = 0;
    HY_TRY(add_piece(&w->pieces, 0, w->text.len));
    for (size_t i = 0; i < t->pre.n; i++) {
        const tok_step *k = &t->pre.v[i];
        w->pieces2.n = 0;
        hy_buf_clear(&w->text2);
        for (size_t j = 0; j < w->pieces.n; j++) {
            if (k->kind == STEP_SPLIT)
                HY_TRY(split_piece(w, k, w->text.data, w->pieces.v[j], &w->pieces2));
            else
                HY_TRY(rewrite_piece(k, w, w->pieces.v[j], first && w->pieces.v[j].off == 0));
        }
        if (k->kind != STEP_SPLIT) {
            hy_buf b = w->text;
            w->text = w->text2;
            w->text2 = b;
        }
        if (w->text.failed)
            return hy_fail(HY_E_NOMEM, "tokeniser: no memory for the text");
        tok_pieces v = w->pieces;
        w->pieces = w->pieces2;
        w->pieces2 = v;
    }
    return HY_OK;
}
