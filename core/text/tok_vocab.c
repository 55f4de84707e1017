/* SPDX-License-Identifier: Apache-2.0
 *
 * Vocabulary of a tokeniser: texts, the hash table over them, the merge table, the byte alphabet.
 *
 * Thread: built by one thread, then immutable but for what `whole` remembers.  Owner: hy_tok.
 * Source: GPT-2's byte alphabet (openai/gpt-2, encoder.py, bytes_to_unicode).
 */
#include "core/text/tok_int.h"
#include "core/text/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

hy_tok *hy_tok__new(void)
{
    hy_tok *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return NULL;
    t->bos = t->eos = t->unk = -1;
    for (int b = 0; b < 256; b++)
        t->byte_sym[b] = -1;
    return t;
}

static void marks_fini(tok_marks *m)
{
    hy_buf_fini(&m->text);
    free(m->v);
}

void hy_tok_destroy(hy_tok *t)
{
    if (t == NULL)
        return;
    free(t->tok);
    hy_buf_fini(&t->text);
    hy_buf_fini(&t->pieces);
    free(t->slots);
    free(t->merges);
    free((void *)t->whole);
    free(t->score_rank);
    marks_fini(&t->marks[0]);
    marks_fini(&t->marks[1]);
    hy_tok__steps_fini(&t->norm);
    hy_tok__steps_fini(&t->pre);
    free(t->prefix);
    free(t->suffix);
    free(t->eogs);
    free(t->chat_template);
    free(t);
}

static uint32_t pow2_above(size_t n)
{
    uint32_t p = 16;
    while (p < n && p < 1u << 30)
        p *= 2;
    return p;
}

static const char *text_of(const hy_tok *t, int32_t id)
{
    return t->text.data + t->tok[id].text_off;
}

/* The slot that holds this text, or the empty one where it belongs. */
static uint32_t slot_of(const hy_tok *t, const char *text, size_t len)
{
    uint32_t i = (uint32_t)XXH3_64bits(text, len) & (t->n_slots - 1);
    for (;; i = (i + 1) & (t->n_slots - 1)) {
        int32_t id = t->slots[i];
        if (id < 0 ||
            (t->tok[id].text_len == len && (len == 0 || memcmp(text_of(t, id), text, len) == 0)))
            return i;
    }
}

static hy_status grow_slots(hy_tok *t, size_t n_texts)
{
    uint32_t n = pow2_above(n_texts * 2);
    if (n <= t->n_slots)
        return HY_OK;
    int32_t *old = t->slots;
    uint32_t n_old = t->n_slots;
    t->slots = malloc(n * sizeof(*t->slots));
    if (t->slots == NULL) {
        t->slots = old;
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory for %u slots", n);
    }
    t->n_slots = n;
    memset(t->slots, 0xff, n * sizeof(*t->slots));
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i] >= 0)
            t->slots[slot_of(t, text_of(t, old[i]), t->tok[old[i]].text_len)] = old[i];
    free(old);
    return HY_OK;
}

hy_status hy_tok__resize(hy_tok *t, int32_t n_vocab)
{
    if (n_vocab <= t->n_vocab)
        return HY_OK;
    HY_ASSERT(t->n_sym == t->n_vocab); /* no symbols above the vocabulary yet */
    tok_entry *p = realloc(t->tok, (size_t)n_vocab * sizeof(*p));
    if (p == NULL)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory for %d tokens", n_vocab);
    t->tok = p;
    memset(p + t->n_vocab, 0, (size_t)(n_vocab - t->n_vocab) * sizeof(*p));
    _Atomic uint8_t *whole = realloc((void *)t->whole, (size_t)n_vocab * sizeof(*whole));
    if (whole == NULL)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory for %d tokens", n_vocab);
    t->whole = whole;
    for (int32_t i = t->n_vocab; i < n_vocab; i++)
        atomic_init(&whole[i], 0);
    if (t->text.len == 0)
        hy_buf_putc(&t->text, '\0'); /* offset 0: the text of a hole */
    for (int32_t i = t->n_vocab; i < n_vocab; i++)
        p[i].type = TOK_UNUSED;
    t->n_vocab = t->n_sym = t->cap_sym = n_vocab;
    return grow_slots(t, (size_t)n_vocab);
}

static hy_status set_text(hy_tok *t, int32_t id, const char *text, size_t len)
{
    if (t->text.len + len + 1 > UINT32_MAX / 2)
        return hy_fail(HY_E_LIMIT, "tokeniser: the vocabulary is larger than 2 GiB");
    t->tok[id].text_off = (uint32_t)t->text.len;
    t->tok[id].text_len = (uint32_t)len;
    hy_buf_add(&t->text, text, len);
    hy_buf_putc(&t->text, '\0');
    if (t->text.failed)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory for the vocabulary");
    if (len > t->max_len)
        t->max_len = (uint32_t)len;
    t->slots[slot_of(t, text, len)] = id; /* of equal texts the last one counts */
    return HY_OK;
}

hy_status hy_tok__set(hy_tok *t, int32_t id, const char *text, size_t len, int type)
{
    HY_ASSERT(id >= 0 && id < t->n_vocab);
    t->tok[id].type = (uint8_t)type;
    return set_text(t, id, text, len);
}

int32_t hy_tok__find(const hy_tok *t, const char *text, size_t len)
{
    if (len > t->max_len || t->n_slots == 0)
        return -1;
    return t->slots[slot_of(t, text, len)];
}

int32_t hy_tok__find_plain(const hy_tok *t, const char *text, size_t len)
{
    int32_t id = hy_tok__find(t, text, len);
    if (id < 0 || id >= t->n_vocab)
        return id;
    int type = t->tok[id].type;
    return type == TOK_CONTROL || type == TOK_UNKNOWN || type == TOK_BYTE ? -1 : id;
}

hy_status hy_tok__intern(hy_tok *t, const char *text, size_t len, int32_t *out)
{
    int32_t id = hy_tok__find(t, text, len);
    if (id < 0) {
        if (t->n_sym == t->cap_sym) {
            if (t->cap_sym > INT32_MAX / 4)
                return hy_fail(HY_E_LIMIT, "tokeniser: too many symbols");
            int32_t cap = t->cap_sym + t->cap_sym / 4 + 64;
            tok_entry *p = realloc(t->tok, (size_t)cap * sizeof(*p));
            if (p == NULL)
                return hy_fail(HY_E_NOMEM, "tokeniser: no memory for %d symbols", cap);
            t->tok = p;
            t->cap_sym = cap;
        }
        HY_TRY(grow_slots(t, (size_t)t->n_sym + 1));
        id = t->n_sym++;
        memset(&t->tok[id], 0, sizeof(t->tok[id]));
        t->tok[id].type = TOK_NORMAL;
        HY_TRY(set_text(t, id, text, len));
    }
    *out = id;
    return HY_OK;
}

static uint32_t merge_slot(const hy_tok *t, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    uint32_t i = (uint32_t)(h >> 32) & (t->n_merge_slots - 1);
    while (t->merges[i].left >= 0 && (t->merges[i].left != left || t->merges[i].right != right))
        i = (i + 1) & (t->n_merge_slots - 1);
    return i;
}

hy_status hy_tok__merges_reserve(hy_tok *t, size_t n)
{
    HY_ASSERT(t->merges == NULL);
    if (n > 1u << 26)
        return hy_fail(HY_E_LIMIT, "tokeniser: %zu merges are too many", n);
    t->n_merge_slots = pow2_above(n + n / 2 + 1);
    t->merges = malloc(t->n_merge_slots * sizeof(*t->merges));
    if (t->merges == NULL)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory for %zu merges", n);
    memset(t->merges, 0xff, t->n_merge_slots * sizeof(*t->merges));
    return HY_OK;
}

hy_status hy_tok__merge_add(hy_tok *t, int32_t left, int32_t right, int32_t into, uint32_t rank)
{
    tok_merge *m = &t->merges[merge_slot(t, left, right)];
    if (m->left >= 0)
        return HY_OK; /* the first of equal merges counts */
    *m = (tok_merge){left, right, into, rank};
    t->n_merges++;
    HY_ASSERT(t->n_merges < t->n_merge_slots);
    return HY_OK;
}

const tok_merge *hy_tok__merge_find(const hy_tok *t, int32_t left, int32_t right)
{
    if (left < 0 || right < 0 || t->merges == NULL)
        return NULL;
    const tok_merge *m = &t->merges[merge_slot(t, left, right)];
    return m->left >= 0 ? m : NULL;
}

hy_status hy_tok__set_scores(hy_tok *t, const float *scores)
{
    t->score_rank = malloc((size_t)t->n_vocab * sizeof(*t->score_rank));
    if (t->score_rank == NULL)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory for scores");
    for (int32_t i = 0; i < t->n_vocab; i++) {
        float f = -scores[i] + 0.0f; /* no negative zero: equal scores are equal ranks */
        uint32_t u;
        if (isnan(f))
            return hy_fail(HY_E_FORMAT, "tokeniser: the score of token %d is not a number", i);
        memcpy(&u, &f, sizeof(u));
        t->score_rank[i] = u >> 31 ? ~u : u | 0x80000000u; /* order of floats as integers */
    }
    return HY_OK;
}

/* Printable bytes stand for themselves, the 68 others for U+0100 and on, in order. */
static bool printable(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

uint32_t hy_tok__byte_to_cp(uint8_t b)
{
    if (printable(b))
        return b;
    return 256 + (b < 0x21 ? b : b <= 0xa0 ? b - 0x7fu + 33 : 67);
}

int hy_tok__cp_to_byte(uint32_t cp)
{
    if (cp < 256)
        return printable(cp) ? (int)cp : -1;
    if (cp <= 256 + 32) /* 0x00..0x20 */
        return (int)cp - 256;
    if (cp <= 256 + 66) /* 0x7f..0xa0 */
        return (int)cp - 256 - 33 + 0x7f;
    return cp == 256 + 67 ? 0xad : -1;
}

hy_status hy_tok__index_bytes(hy_tok *t)
{
    hy_buf b;
    hy_status st = HY_OK;
    hy_buf_init(&b);
    for (int i = 0; i < 256 && st == HY_OK; i++) {
        hy_buf_clear(&b);
        if (t->byte_level) {
            hy_utf8_put(&b, hy_tok__byte_to_cp((uint8_t)i));
            st = hy_tok__intern(t, hy_buf_str(&b), b.len, &t->byte_sym[i]);
            continue;
        }
        hy_buf_printf(&b, "<0x%02X>", i);
        t->byte_sym[i] = hy_tok__find(t, hy_buf_str(&b), b.len);
        if (t->byte_sym[i] >= t->n_vocab)
            t->byte_sym[i] = -1;
    }
    hy_buf_fini(&b);
    return st;
}

int hy_tok__byte_token(const char *s, size_t len)
{
    static const char hex[] = "0123456789ABCDEF";
    if (len != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || s[3] == '\0' || s[4] == '\0')
        return -1;
    const char *hi = strchr(hex, s[3]), *lo = strchr(hex, s[4]);
    return hi != NULL && lo != NULL ? (int)((hi - hex) * 16 + (lo - hex)) : -1;
}

/* A token whose characters are not all in the alphabet stands for itself. */
static void put_byte_level(const char *s, size_t len, hy_buf *out)
{
    size_t start = out->len;
    for (size_t i = 0; i < len;) {
        uint32_t cp = 0;
        size_t n = hy_utf8_decode(s + i, len - i, &cp);
        int b = n != 0 ? hy_tok__cp_to_byte(cp) : -1;
        if (b < 0) {
            out->len = start;
            hy_buf_add(out, s, len);
            return;
        }
        hy_buf_putc(out, (char)b);
        i += n;
    }
}

static void put_replaced(const tok_step *k, const char *s, size_t len, hy_buf *out)
{
    for (size_t i = 0; i < len;) {
        if (k->a_len != 0 && len - i >= k->a_len && memcmp(s + i, k->a, k->a_len) == 0) {
            hy_buf_add(out, k->b, k->b_len);
            i += k->a_len;
        } else {
            hy_buf_putc(out, s[i++]);
        }
    }
}

/* A token's text after all replacements, in scratch[0]. */
static void replace_text(const tok_steps *dec, const char *s, size_t len, hy_buf scratch[2])
{
    hy_buf_clear(&scratch[0]);
    hy_buf_add(&scratch[0], s, len);
    for (size_t i = 0; i < dec->n; i++) {
        hy_buf b = scratch[0];
        scratch[0] = scratch[1];
        scratch[1] = b;
        hy_buf_clear(&scratch[0]);
        put_replaced(&dec->v[i], hy_buf_str(&b), b.len, &scratch[0]);
    }
}

hy_status hy_tok__make_pieces(hy_tok *t, const tok_steps *dec, bool byte_level)
{
    hy_buf scratch[2] = {{0}, {0}};
    hy_status st = HY_OK;
    for (int32_t i = 0; i < t->n_vocab && st == HY_OK; i++) {
        tok_entry *e = &t->tok[i];
        const char *s = text_of(t, i);
        int byte = e->type == TOK_BYTE ? hy_tok__byte_token(s, e->text_len) : -1;
        bool mark = e->type == TOK_CONTROL || e->type == TOK_UNKNOWN;
        e->piece_off = (uint32_t)t->pieces.len;
        if (byte >= 0) {
            hy_buf_putc(&t->pieces, (char)byte);
        } else if (mark || (byte_level && e->type == TOK_USER)) {
            hy_buf_add(&t->pieces, s, e->text_len);
        } else if (byte_level) {
            put_byte_level(s, e->text_len, &t->pieces);
        } else {
            replace_text(dec, s, e->text_len, scratch);
            hy_buf_add(&t->pieces, hy_buf_str(&scratch[0]), scratch[0].len);
        }
        if (t->pieces.failed || scratch[0].failed || scratch[1].failed)
            st = hy_fail(HY_E_NOMEM, "tokeniser: no memory for the vocabulary");
        else if (t->pieces.len > UINT32_MAX / 2)
            st = hy_fail(HY_E_LIMIT, "tokeniser: decoded tokens are larger than 2 GiB");
        e->piece_len = (uint32_t)(t->pieces.len - e->piece_off);
    }
    hy_buf_fini(&scratch[0]);
    hy_buf_fini(&scratch[1]);
    return st;
}

hy_status hy_tok__add_eog(hy_tok *t, int32_t id)
{
    if (id < 0 || id >= t->n_vocab || t->tok[id].eog)
        return HY_OK;
    int32_t *p = realloc(t->eogs, (t->n_eogs + 1) * sizeof(*p));
    if (p == NULL)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory");
    t->eogs = p;
    t->eogs[t->n_eogs++] = id;
    t->tok[id].eog = true;
    return HY_OK;
}

hy_status hy_tok__eogs_by_name(hy_tok *t)
{
    /* Names that mean an end wherever they are, whatever type a converter gave them; and names
     * that some vocabularies use for plain text, which count as marks only. */
    static const char *const sure[] = {
        "<|eot_id|>",      "<|im_end|>", "<end_of_turn>",         "<|endoftext|>", "<|eom_id|>",
        "<|end_of_text|>", "<|return|>", "<end_of_utterance>",    "<|turn_end|>",  "<turn|>",
        "<EOT>",           "[EOT]",      "<｜end▁of▁sentence｜>",
    };
    static const char *const marks[] = {"</s>", "<|end|>", "<eos>", "[EOS]", "<|call|>"};
    for (size_t i = 0; i < HY_COUNTOF(sure); i++) {
        int32_t id = hy_tok__find(t, sure[i], strlen(sure[i]));
        if (id < 0 || id >= t->n_vocab)
            continue;
        if (t->tok[id].type == TOK_NORMAL || t->tok[id].type == TOK_USER)
            t->tok[id].type = TOK_CONTROL; /* or a user's text could end a turn */
        HY_TRY(hy_tok__add_eog(t, id));
    }
    /* In harmony's format <|end|> ends a message, <|return|> and <|call|> end the turn. */
    bool harmony = hy_tok__find(t, "<|return|>", 10) >= 0 && hy_tok__find(t, "<|call|>", 8) >= 0;
    for (size_t i = 0; i < HY_COUNTOF(marks); i++) {
        int32_t id = hy_tok__find(t, marks[i], strlen(marks[i]));
        if (id < 0 || id >= t->n_vocab || t->tok[id].type != TOK_CONTROL)
            continue;
        if (strcmp(marks[i], "<|end|>") == 0 && harmony)
            continue;
        HY_TRY(hy_tok__add_eog(t, id));
    }
    return HY_OK;
}
