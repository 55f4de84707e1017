/* SPDX-License-Identifier: Apache-2.0
 *
 * A tokeniser from the tokenizer.ggml.* keys of a GGUF file.
 *
 * Thread: one builds.  Owner: the caller.
 * Source: the GGUF specification, section "Tokenizer"; the meaning of `pre` names follows the
 * published tokenizer.json of the model that each is named after.
 */
#include "core/base/log.h"
#include "core/text/tok_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY "tokenizer.ggml."

static bool str_is(hy_str s, const char *want)
{
    return s.len == strlen(want) && memcmp(s.p, want, s.len) == 0;
}

/* An optional value: absent leaves *out; a wrong type is a failure. */
static hy_status get_bool(const hy_gguf *g, const char *key, bool *out)
{
    hy_status st = hy_gguf_get_bool(g, key, out);
    return st == HY_E_NOTFOUND ? HY_OK : st;
}

static hy_status get_id(const hy_gguf *g, const hy_tok *t, const char *key, int32_t *out)
{
    uint64_t v = 0;
    hy_status st = hy_gguf_get_u64(g, key, &v);
    if (st == HY_E_NOTFOUND)
        return HY_OK;
    HY_TRY(st);
    if (v == UINT32_MAX) { /* -1 in the file's unsigned type: none */
        *out = -1;
        return HY_OK;
    }
    if (v >= (uint64_t)t->n_vocab)
        return hy_fail(HY_E_FORMAT, "GGUF: %s is %" PRIu64 ", outside of the vocabulary of %d", key,
                       v, t->n_vocab);
    *out = (int32_t)v;
    return HY_OK;
}

static hy_status read_tokens(const hy_gguf *g, hy_tok *t)
{
    size_t n = 0, n_types = 0;
    hy_gguf_type elem = HY_GGUF_U8;
    HY_TRY(hy_gguf_arr(g, KEY "tokens", &elem, &n));
    if (elem != HY_GGUF_STR || n == 0 || n > 1u << 24)
        return hy_fail(HY_E_FORMAT, "GGUF: " KEY "tokens is not a list of 1 to 2^24 strings");
    hy_status st = hy_gguf_arr(g, KEY "token_type", NULL, &n_types);
    if (st < 0 && st != HY_E_NOTFOUND)
        return st;
    if (n_types != 0 && n_types != n)
        return hy_fail(HY_E_FORMAT, "GGUF: %zu tokens, but %zu token types", n, n_types);
    HY_TRY(hy_tok__resize(t, (int32_t)n));
    for (size_t i = 0; i < n; i++) {
        hy_str s;
        int64_t type = TOK_NORMAL;
        HY_TRY(hy_gguf_arr_str(g, KEY "tokens", i, &s));
        if (n_types != 0)
            HY_TRY(hy_gguf_arr_i64(g, KEY "token_type", i, &type));
        if (type < TOK_NORMAL || type > TOK_BYTE)
            type = TOK_NORMAL;
        HY_TRY(hy_tok__set(t, (int32_t)i, s.p, s.len, (int)type));
    }
    return HY_OK;
}

static hy_status read_merges(const hy_gguf *g, hy_tok *t)
{
    size_t n = 0;
    hy_gguf_type elem = HY_GGUF_U8;
    hy_status st = hy_gguf_arr(g, KEY "merges", &elem, &n);
    if (st < 0)
        return hy_fail_in(st, "a BPE vocabulary needs merges: ");
    if (elem != HY_GGUF_STR)
        return hy_fail(HY_E_FORMAT, "GGUF: " KEY "merges is not a list of strings");
    HY_TRY(hy_tok__merges_reserve(t, n));
    hy_buf joined;
    hy_buf_init(&joined);
    for (size_t i = 0; i < n && st >= 0; i++) {
        hy_str s = {NULL, 0};
        int32_t a = 0, b = 0, into = 0;
        st = hy_gguf_arr_str(g, KEY "merges", i, &s);
        if (st < 0)
            break;
        /* The first byte may be a space that is part of the left side. */
        const char *sp = s.len > 2 ? memchr(s.p + 1, ' ', s.len - 2) : NULL;
        if (sp == NULL) {
            st = hy_fail(HY_E_FORMAT, "GGUF: merge %zu is not two texts with a space between", i);
            break;
        }
        size_t left = (size_t)(sp - s.p);
        hy_buf_clear(&joined);
        hy_buf_add(&joined, s.p, left);
        hy_buf_add(&joined, sp + 1, s.len - left - 1);
        st = joined.failed ? hy_fail(HY_E_NOMEM, "tokeniser: no memory") : HY_OK;
        if (st == HY_OK)
            st = hy_tok__intern(t, s.p, left, &a);
        if (st == HY_OK)
            st = hy_tok__intern(t, sp + 1, s.len - left - 1, &b);
        if (st == HY_OK)
            st = hy_tok__intern(t, hy_buf_str(&joined), joined.len, &into);
        if (st == HY_OK)
            st = hy_tok__merge_add(t, a, b, into, (uint32_t)i);
    }
    hy_buf_fini(&joined);
    return st;
}

static hy_status read_scores(const hy_gguf *g, hy_tok *t)
{
    size_t n = 0;
    HY_TRY(hy_gguf_arr(g, KEY "scores", NULL, &n));
    if (n != (size_t)t->n_vocab)
        return hy_fail(HY_E_FORMAT, "GGUF: %d tokens, but %zu scores", t->n_vocab, n);
    float *v = malloc(n * sizeof(*v));
    if (v == NULL)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory for scores");
    hy_status st = HY_OK;
    for (size_t i = 0; i < n && st == HY_OK; i++) {
        double d = 0;
        st = hy_gguf_arr_f64(g, KEY "scores", i, &d);
        v[i] = (float)d;
    }
    if (st == HY_OK)
        st = hy_tok__set_scores(t, v);
    free(v);
    return st;
}

static hy_status setup_bpe(const hy_gguf *g, hy_tok *t, bool *add_bos)
{
    hy_str pre = {"default", 7};
    hy_status st = hy_gguf_get_str(g, KEY "pre", &pre);
    if (st == HY_E_NOTFOUND)
        hy_warn("text", "the file names no pre-tokeniser (" KEY "pre): the default is used");
    else
        HY_TRY(st);
    const tok_pre *p = hy_tok__pre(pre.p, pre.len);
    if (p == NULL)
        return hy_fail(HY_E_UNSUPPORTED, "unknown pre-tokeniser \"%.*s\" (" KEY "pre)",
                       (int)(pre.len < 64 ? pre.len : 64), pre.p);
    t->byte_level = t->keep_surrogates = true;
    t->ignore_merges = p->ignore_merges;
    *add_bos = p->add_bos;
    for (size_t i = 0; i < HY_COUNTOF(p->patterns) && p->patterns[i] != NULL; i++)
        HY_TRY(hy_tok__step_split(&t->pre, p->patterns[i], strlen(p->patterns[i]), false,
                                  SPLIT_ISOLATED, false));
    HY_TRY(read_merges(g, t));
    snprintf(t->describe, sizeof(t->describe), "bpe/%s, %d tokens", p->name, t->n_vocab);
    return HY_OK;
}

static hy_status setup_spm(const hy_gguf *g, hy_tok *t)
{
    t->by_score = t->byte_fallback = t->keep_invalid = t->escape_space = t->fuse_unk = true;
    t->prefix_space = true;
    HY_TRY(get_bool(g, KEY "add_space_prefix", &t->prefix_space));
    t->strip_prefix = t->prefix_space;
    HY_TRY(read_scores(g, t));
    snprintf(t->describe, sizeof(t->describe), "spm/llama, %d tokens", t->n_vocab);
    return HY_OK;
}

/* Gemma 4: merges over text whose spaces are U+2581, lines apart from runs of newlines. */
static hy_status setup_gemma4(const hy_gguf *g, hy_tok *t)
{
    static const char lines[] = "[^\\n]+|[\\n]+";
    t->byte_fallback = t->escape_space = t->newline_words = true;
    HY_TRY(hy_tok__step_split(&t->pre, lines, strlen(lines), false, SPLIT_ISOLATED, false));
    HY_TRY(read_merges(g, t));
    snprintf(t->describe, sizeof(t->describe), "bpe/gemma4, %d tokens", t->n_vocab);
    return HY_OK;
}

static bool contains_ci(hy_str s, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= s.len; i++)
        if (strncasecmp(s.p + i, word, n) == 0)
            return true;
    return false;
}

static hy_status add_marks(const hy_gguf *g, hy_tok *t)
{
    hy_str name = {"", 0};
    hy_status st = hy_gguf_get_str(g, "general.name", &name);
    if (st < 0 && st != HY_E_NOTFOUND)
        return st;
    /* Phi-3's special tokens swallow the space after them; GGUF has no place to say so. */
    bool phi3 = t->by_score && (contains_ci(name, "phi-3") || contains_ci(name, "phi3"));
    for (int32_t i = 0; i < t->n_vocab; i++) {
        int type = t->tok[i].type;
        if (type != TOK_CONTROL && type != TOK_USER && type != TOK_UNKNOWN)
            continue;
        const char *text = hy_tok_token_text(t, i);
        tok_mark m = {.id = i, .special = type != TOK_USER};
        m.rstrip = phi3 && strcmp(text, "<unk>") != 0 && strcmp(text, "<s>") != 0 &&
                   strcmp(text, "<|endoftext|>") != 0;
        HY_TRY(hy_tok__mark_add(&t->marks[0], text, t->tok[i].text_len, &m));
    }
    return hy_tok__marks_sort(&t->marks[0]);
}

static hy_status make_pieces(hy_tok *t)
{
    char space[] = " ", mark[] = "\xe2\x96\x81";
    tok_step to_space = {.kind = STEP_REPLACE, .a = mark, .a_len = 3, .b = space, .b_len = 1};
    tok_steps dec = {&to_space, 1, 1};
    return hy_tok__make_pieces(t, &dec, t->byte_level);
}

static hy_status read_specials(const hy_gguf *g, hy_tok *t, bool add_bos)
{
    bool add_eos = false;
    int32_t eot = -1, eom = -1;
    if (t->by_score) {
        t->bos = t->n_vocab > 1 ? 1 : -1;
        t->eos = t->n_vocab > 2 ? 2 : -1;
        t->unk = 0;
    }
    HY_TRY(get_id(g, t, KEY "bos_token_id", &t->bos));
    HY_TRY(get_id(g, t, KEY "eos_token_id", &t->eos));
    HY_TRY(get_id(g, t, KEY "unknown_token_id", &t->unk));
    HY_TRY(get_id(g, t, KEY "eot_token_id", &eot));
    HY_TRY(get_id(g, t, KEY "eom_token_id", &eom));
    HY_TRY(get_bool(g, KEY "add_bos_token", &add_bos));
    HY_TRY(get_bool(g, KEY "add_eos_token", &add_eos));
    t->adds_bos = add_bos && t->bos >= 0;
    if (t->adds_bos)
        HY_TRY(hy_tok__set_ids(t->bos, &t->prefix, &t->n_prefix));
    if (add_eos && t->eos >= 0)
        HY_TRY(hy_tok__set_ids(t->eos, &t->suffix, &t->n_suffix));
    HY_TRY(hy_tok__add_eog(t, t->eos));
    HY_TRY(hy_tok__add_eog(t, eot));
    HY_TRY(hy_tok__add_eog(t, eom));
    return hy_tok__eogs_by_name(t);
}

static hy_status read_template(const hy_gguf *g, hy_tok *t)
{
    hy_str s;
    hy_status st = hy_gguf_get_str(g, "tokenizer.chat_template", &s);
    if (st == HY_E_NOTFOUND)
        return HY_OK;
    HY_TRY(st);
    t->chat_template = strndup(s.p, s.len);
    if (t->chat_template == NULL)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory for the chat template");
    return HY_OK;
}

static hy_status build(const hy_gguf *g, hy_tok *t)
{
    hy_str model;
    bool add_bos = false;
    hy_status st = hy_gguf_get_str(g, KEY "model", &model);
    if (st < 0)
        return hy_fail_in(st, "the file has no tokeniser: ");
    bool bpe = str_is(model, "gpt2"), spm = str_is(model, "llama"), g4 = str_is(model, "gemma4");
    if (!bpe && !spm && !g4)
        return hy_fail(HY_E_UNSUPPORTED,
                       "unknown tokeniser model \"%.*s\" (" KEY "model); gpt2, llama and gemma4 "
                       "are supported",
                       (int)(model.len < 64 ? model.len : 64), model.p);
    HY_TRY(read_tokens(g, t));
    if (bpe) {
        HY_TRY(setup_bpe(g, t, &add_bos));
    } else if (spm) {
        HY_TRY(setup_spm(g, t));
        add_bos = true;
    } else {
        HY_TRY(setup_gemma4(g, t));
        add_bos = true;
    }
    HY_TRY(read_specials(g, t, add_bos));
    HY_TRY(hy_tok__index_bytes(t));
    HY_TRY(add_marks(g, t));
    HY_TRY(make_pieces(t));
    return read_template(g, t);
}

hy_status hy_tok_from_gguf(const hy_gguf *g, hy_tok **out)
{
    hy_tok *t = hy_tok__new();
    if (t == NULL)
        return hy_fail(HY_E_NOMEM, "tokeniser: no memory");
    hy_status st = build(g, t);
    if (st < 0) {
        hy_tok_destroy(t);
        return st;
    }
    *out = t;
    return HY_OK;
}
