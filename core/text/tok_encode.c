/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding: cuts a text at marks and sends what is between them through the pipeline.
 *
 * Thread: any.  Owner: the caller owns the ids.
 */
#include "core/text/tok_int.h"
#include "core/text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { TEXT_MAX = 1 << 30 };

typedef struct encoder {
    const hy_tok *t;
    tok_work w;
    hy_buf section; /* a normalised section that is cut at marks of set 1 */
    bool special;
    size_t max_ids;
    hy_tok_ids *out;
} encoder;

void hy_tok_ids_fini(hy_tok_ids *v)
{
    free(v->ids);
    memset(v, 0, sizeof(*v));
}

/* A letter, combining mark, digit or connector, as \w of Hugging Face's single_word. */
static bool is_word(const char *p, size_t len)
{
    uint32_t cp = 0;
    if (len == 0 || hy_utf8_decode(p, len, &cp) == 0)
        return false;
    if (cp == 0x200c || cp == 0x200d) /* joiners are part of words */
        return true;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

static size_t char_before(const char *p, size_t from, size_t at)
{
    size_t c = at - 1;
    while (c > from && at - c < 4 && ((unsigned char)p[c] & 0xc0) == 0x80)
        c--;
    return c;
}

static size_t space_before(const char *p, size_t from, size_t at)
{
    while (at > from) {
        size_t c = char_before(p, from, at);
        uint32_t cp = 0;
        if (hy_utf8_decode(p + c, at - c, &cp) != at - c || !hy_utf8_is_space(cp))
            break;
        at = c;
    }
    return at;
}

static size_t space_after(const char *p, size_t len, size_t at)
{
    uint32_t cp = 0;
    for (size_t n; at < len; at += n) {
        n = hy_utf8_decode(p + at, len - at, &cp);
        if (n == 0 || !hy_utf8_is_space(cp))
            break;
    }
    return at;
}

/* The next mark at or after *scan in the text from `from` on: its range with the space it swallows.
 * A mark may begin in space that the one before has swallowed, so *scan is where its own text ends.
 */
static const tok_mark *next_mark(const encoder *e, int set, const char *p, size_t len, size_t from,
                                 size_t *scan, size_t *start, size_t *end)
{
    const tok_marks *m = &e->t->marks[set];
    if (m->n == 0)
        return NULL;
    for (size_t i = *scan; i < len; i++) {
        const unsigned char b = (unsigned char)p[i];
        if (m->first[b] == m->first[b + 1])
            continue;
        const tok_mark *k = hy_tok__mark_at(m, p + i, len - i, e->special);
        if (k == NULL)
            continue;
        size_t stop = i + k->len;
        size_t prev = i > 0 ? char_before(p, 0, i) : 0;
        if (k->single_word && (is_word(p + prev, i - prev) || is_word(p + stop, len - stop)))
            continue;
        *start = i < from ? from : k->lstrip ? space_before(p, from, i) : i;
        *end = k->rstrip ? space_after(p, len, stop) : stop;
        *end = *end < from ? from : *end;
        *scan = stop;
        return k;
    }
    return NULL;
}

/* w.text -> ids */
static hy_status run_model(encoder *e, bool first)
{
    const hy_tok *t = e->t;
    tok_work *w = &e->w;
    if (w->text.len == 0)
        return HY_OK;
    HY_TRY(hy_tok__pretokenise(t, w, first));
    for (size_t i = 0; i < w->pieces.n; i++)
        HY_TRY(hy_tok__bpe(t, w, w->text.data + w->pieces.v[i].off, w->pieces.v[i].len, e->max_ids,
                           e->out));
    return HY_OK;
}

/* SentencePiece from GGUF: spaces become U+2581, with one before the text where the model has it.
 */
static void put_escaped(const hy_tok *t, const char *p, size_t len, hy_buf *out)
{
    hy_buf_clear(out);
    if (t->prefix_space)
        hy_buf_puts(out, t->escape_space ? "\xe2\x96\x81" : " ");
    if (!t->escape_space) {
        hy_buf_add(out, p, len);
        return;
    }
    for (size_t i = 0; i < len; i++) {
        if (p[i] == ' ')
            hy_buf_add(out, "\xe2\x96\x81", 3);
        else
            hy_buf_putc(out, p[i]);
    }
}

static hy_status do_section(encoder *e, const char *p, size_t len, bool first)
{
    const hy_tok *t = e->t;
    if (len == 0)
        return HY_OK;
    if (t->marks[1].n == 0) {
        if (t->escape_space || t->prefix_space)
            put_escaped(t, p, len, &e->w.text);
        else
            HY_TRY(hy_tok__normalise(&t->norm, &e->w, p, len, &e->w.text));
        if (e->w.text.failed)
            return hy_fail(HY_E_NOMEM, "tokeniser: no memory for the text");
        return run_model(e, first);
    }
    HY_TRY(hy_tok__normalise(&t->norm, &e->w, p, len, &e->w.text));
    hy_buf_clear(&e->section);
    hy_buf_add(&e->section, hy_buf_str(&e->w.text), e->w.text.len);
    if (e->section.failed)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory for the text");
    const char *s = hy_buf_str(&e->section);
    for (size_t at = 0, scan = 0; scan < e->section.len;) {
        size_t a = e->section.len, b = a;
        const tok_mark *k = next_mark(e, 1, s, e->section.len, at, &scan, &a, &b);
        hy_buf_clear(&e->w.text);
        hy_buf_add(&e->w.text, s + at, a - at);
        HY_TRY(run_model(e, first && at == 0));
        if (k == NULL)
            break;
        HY_TRY(hy_tok__push(e->out, k->id, e->max_ids));
        at = b;
    }
    return HY_OK;
}

static hy_status encode_all(encoder *e, const char *p, size_t len, bool add_special)
{
    const hy_tok *t = e->t;
    for (size_t i = 0; add_special && i < t->n_prefix; i++)
        HY_TRY(hy_tok__push(e->out, t->prefix[i], e->max_ids));
    for (size_t at = 0, scan = 0; scan < len;) {
        size_t a = len, b = len;
        const tok_mark *k = next_mark(e, 0, p, len, at, &scan, &a, &b);
        HY_TRY(do_section(e, p + at, a - at, at == 0));
        if (k == NULL)
            break;
        HY_TRY(hy_tok__push(e->out, k->id, e->max_ids));
        at = b;
    }
    for (size_t i = 0; add_special && i < t->n_suffix; i++)
        HY_TRY(hy_tok__push(e->out, t->suffix[i], e->max_ids));
    return HY_OK;
}

/* Text for patterns: UTF-8, except that surrogates may stay (three bytes each, so PCRE2 steps over
 * them; they have a general category like other code points). */
static void put_clean(const hy_tok *t, const char *p, size_t len, hy_buf *out)
{
    size_t done = 0;
    for (size_t i = 0; t->keep_surrogates && i + 2 < len; i++) {
        const unsigned char *b = (const unsigned char *)p + i;
        if (b[0] != 0xed || b[1] < 0xa0 || b[1] > 0xbf || (b[2] & 0xc0) != 0x80)
            continue;
        hy_utf8_replace_bytes(p + done, i - done, out);
        hy_buf_add(out, b, 3);
        done = i + 3;
        i += 2;
    }
    hy_utf8_replace_bytes(p + done, len - done, out);
}

hy_status hy_tok_encode(const hy_tok *t, const char *text, size_t len, int flags, size_t max_ids,
                        hy_tok_ids *out)
{
    if (len > TEXT_MAX)
        return hy_fail(HY_E_LIMIT, "a text of %zu bytes is too long to tokenise", len);
    encoder e = {.t = t, .special = flags & HY_TOK_PARSE_SPECIAL, .out = out};
    hy_buf clean;
    size_t before = out->n;
    hy_status st = HY_OK;
    hy_buf_init(&clean);
    e.max_ids = max_ids == 0 ? 0 : before + max_ids;
    if (!t->keep_invalid && !hy_utf8_valid(text, len)) {
        put_clean(t, text, len, &clean);
        if (clean.failed)
            st = hy_fail(HY_E_NOMEM, "tokeniser: no memory for the text");
        text = hy_buf_str(&clean);
        len = clean.len;
    }
    if (st == HY_OK)
        st = encode_all(&e, text, len, flags & HY_TOK_ADD_SPECIAL);
    if (st < 0)
        out->n = before;
    hy_tok__work_fini(&e.w);
    hy_buf_fini(&e.section);
    hy_buf_fini(&clean);
    return st;
}
