/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte pair encoding of one word: a linked list of symbols and a heap of possible merges, best
 * first (lowest rank, then leftmost), so n symbols take O(n log n) however long the word is.
 *
 * Pairs come from the merge table, or, for SentencePiece vocabularies, from looking up the joined
 * text and ranking by score.
 *
 * Thread: any; memory is the caller's tok_work.  Owner: the caller.
 */
#include "core/text/tok_int.h"
#include "core/text/utf8.h"

#include <stdlib.h>
#include <string.h>

typedef struct sym {
    uint32_t off, len; /* bytes of the word; len 0: merged away */
    int32_t id;        /* -1: no symbol has this text */
    int32_t prev, next;
} sym;

typedef struct pair {
    uint32_t rank;
    int32_t pos, left, right, into;
} pair;

hy_status hy_tok__push(hy_tok_ids *v, int32_t id, size_t max_ids)
{
    if (max_ids != 0 && v->n >= max_ids)
        return hy_fail(HY_E_LIMIT, "the text has more than %zu tokens", max_ids);
    if (v->n == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 64;
        int32_t *p = realloc(v->ids, cap * sizeof(*p));
        if (p == NULL)
            return hy_fail(HY_E_NOMEM, "no memory for %zu tokens", cap);
        v->ids = p;
        v->cap = cap;
    }
    v->ids[v->n++] = id;
    return HY_OK;
}

static bool before(const pair *a, const pair *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static hy_status heap_push(tok_work *w, const pair *e)
{
    if (w->n_heap == w->cap_heap) {
        size_t cap = w->cap_heap ? w->cap_heap * 2 : 256;
        pair *p = realloc(w->heap, cap * sizeof(*p));
        if (p == NULL)
            return hy_fail(HY_E_NOMEM, "tokeniser: no memory for a word");
        w->heap = p;
        w->cap_heap = cap;
    }
    pair *h = w->heap;
    size_t i = w->n_heap++;
    while (i > 0 && before(e, &h[(i - 1) / 2])) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = *e;
    return HY_OK;
}

static pair heap_pop(tok_work *w)
{
    pair *h = w->heap;
    pair top = h[0], last = h[--w->n_heap];
    size_t i = 0, n = w->n_heap;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n)
            break;
        if (c + 1 < n && before(&h[c + 1], &h[c]))
            c++;
        if (!before(&h[c], &last))
            break;
        h[i] = h[c];
        i = c;
    }
    if (n > 0)
        h[i] = last;
    return top;
}

static hy_status offer(const hy_tok *t, tok_work *w, const char *word, int32_t pos)
{
    const sym *s = w->syms;
    if (pos < 0 || s[pos].next < 0)
        return HY_OK;
    const sym *a = &s[pos], *b = &s[a->next];
    pair e = {0, pos, a->id, b->id, -1};
    if (t->by_score) {
        e.into = hy_tok__find_plain(t, word + a->off, (size_t)a->len + b->len);
        if (e.into < 0 || e.into >= t->n_vocab)
            return HY_OK;
        e.rank = t->score_rank[e.into];
    } else {
        const tok_merge *m = hy_tok__merge_find(t, a->id, b->id);
        if (m == NULL)
            return HY_OK;
        e.into = m->into;
        e.rank = m->rank;
    }
    return heap_push(w, &e);
}

static hy_status add_sym(tok_work *w, size_t *n, size_t off, size_t len, int32_t id)
{
    if (*n == w->cap_syms) {
        size_t cap = w->cap_syms ? w->cap_syms * 2 : 256;
        sym *p = realloc(w->syms, cap * sizeof(*p));
        if (p == NULL)
            return hy_fail(HY_E_NOMEM, "tokeniser: no memory for a word");
        w->syms = p;
        w->cap_syms = cap;
    }
    sym *s = w->syms;
    s[*n] = (sym){(uint32_t)off, (uint32_t)len, id, (int32_t)*n - 1, (int32_t)*n + 1};
    ++*n;
    return HY_OK;
}

static bool bytes_known(const hy_tok *t, const char *p, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (t->byte_sym[(unsigned char)p[i]] < 0)
            return false;
    return true;
}

/* What is not UTF-8 is one symbol as long as its first byte says, as SentencePiece vocabularies
 * are used elsewhere too: so what follows a broken lead byte is spelt in bytes. It ends before an
 * escaped space, which would not come back as a space. */
static size_t bad_len(const char *p, size_t len)
{
    unsigned char b = (unsigned char)p[0];
    size_t n = b < 0xc0 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
    size_t i = 1;
    while (i < n && i < len && !(len - i >= 3 && memcmp(p + i, "\xe2\x96\x81", 3) == 0))
        i++;
    return i;
}

static hy_status seed(const hy_tok *t, tok_work *w, const char *p, size_t len, size_t *n_out)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (t->byte_level) {
            int32_t b = t->byte_sym[(unsigned char)p[i]];
            if (b >= 0 || t->unk >= 0)
                HY_TRY(add_sym(w, &n, i, 1, b));
            i++;
            continue;
        }
        size_t c = hy_utf8_next(p + i, len - i, NULL, NULL);
        if (c == 0)
            c = t->by_score ? bad_len(p + i, len - i) : 1;
        int32_t id = hy_tok__find_plain(t, p + i, c);
        if (id < 0 && !t->by_score && t->byte_fallback && bytes_known(t, p + i, c)) {
            for (size_t k = 0; k < c; k++)
                HY_TRY(add_sym(w, &n, i + k, 1, t->byte_sym[(unsigned char)p[i + k]]));
        } else if (id >= 0 || t->by_score || t->unk >= 0) {
            HY_TRY(add_sym(w, &n, i, c, id));
        } /* else it is lost, and its neighbours meet */
        i += c;
    }
    if (n > 0)
        ((sym *)w->syms)[n - 1].next = -1;
    *n_out = n;
    return HY_OK;
}

static hy_status merge_all(const hy_tok *t, tok_work *w, const char *p, size_t n)
{
    sym *s = w->syms;
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++)
        HY_TRY(offer(t, w, p, (int32_t)i));
    while (w->n_heap > 0) {
        pair e = heap_pop(w);
        sym *a = &s[e.pos];
        /* Stale entries: one side was merged into something else since. */
        if (a->len == 0 || a->next < 0 || a->id != e.left || s[a->next].id != e.right)
            continue;
        sym *b = &s[a->next];
        a->len += b->len;
        a->id = e.into;
        a->next = b->next;
        b->len = 0;
        if (a->next >= 0)
            s[a->next].prev = e.pos;
        HY_TRY(offer(t, w, p, a->prev));
        HY_TRY(offer(t, w, p, e.pos));
    }
    return HY_OK;
}

/* A symbol that is no token: by its bytes, else the unknown token. */
static hy_status spell(const hy_tok *t, const char *p, size_t len, size_t max_ids, bool *was_unk,
                       hy_tok_ids *out)
{
    if (t->byte_level || (t->byte_fallback && bytes_known(t, p, len))) {
        for (size_t i = 0; i < len; i++) {
            int32_t id = t->byte_sym[(unsigned char)p[i]];
            if (id >= 0 && id < t->n_vocab)
                HY_TRY(hy_tok__push(out, id, max_ids));
        }
        *was_unk = false;
        return HY_OK;
    }
    if (t->unk >= 0 && !(t->fuse_unk && *was_unk))
        HY_TRY(hy_tok__push(out, t->unk, max_ids));
    *was_unk = true;
    return HY_OK;
}

/* The token whose text is the whole word, -1 if none. */
static int32_t token_of(const hy_tok *t, const char *p, size_t len)
{
    char spelt[512];
    size_t n = 0;
    if (len > t->max_len)
        return -1;
    if (!t->byte_level)
        return hy_tok__find_plain(t, p, len);
    if (len * 2 > sizeof(spelt))
        return -1;
    for (size_t i = 0; i < len; i++) {
        uint32_t cp = hy_tok__byte_to_cp((uint8_t)p[i]);
        if (cp >= 0x80)
            spelt[n++] = (char)(0xc0 | cp >> 6);
        spelt[n++] = (char)(cp >= 0x80 ? 0x80 | (cp & 0x3f) : cp);
    }
    return hy_tok__find_plain(t, spelt, n);
}

static bool only_newlines(const char *p, size_t len)
{
    size_t i = 0;
    while (i < len && p[i] == '\n')
        i++;
    return i == len && len > 0;
}

/* hy_tok.whole: the first time that a word is a token its merges say whether they lead to it, as
 * they nearly always do; after that it costs one look. */
enum { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO };

hy_status hy_tok__bpe(const hy_tok *t, tok_work *w, const char *p, size_t len, size_t max_ids,
                      hy_tok_ids *out)
{
    size_t n;
    bool was_unk = false;
    const size_t from = out->n;
    int32_t whole = token_of(t, p, len);
    whole = whole < t->n_vocab ? whole : -1;
    if (whole >= 0 && (t->ignore_merges || (t->newline_words && only_newlines(p, len)) ||
                       atomic_load_explicit(&t->whole[whole], memory_order_relaxed) == WHOLE_YES))
        return hy_tok__push(out, whole, max_ids);
    HY_TRY(seed(t, w, p, len, &n));
    if (n == 0)
        return HY_OK;
    HY_TRY(merge_all(t, w, p, n));
    const sym *s = w->syms;
    for (int32_t i = 0; i >= 0; i = s[i].next) {
        if (s[i].id < 0 || s[i].id >= t->n_vocab) {
            HY_TRY(spell(t, p + s[i].off, s[i].len, max_ids, &was_unk, out));
            continue;
        }
        was_unk = false;
        HY_TRY(hy_tok__push(out, s[i].id, max_ids));
    }
    if (whole >= 0) {
        const bool yes = out->n - from == 1 && out->ids[from] == whole;
        atomic_store_explicit(&t->whole[whole], yes ? WHOLE_YES : WHOLE_NO, memory_order_relaxed);
    }
    return HY_OK;
}
