/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: a text. The first byte chooses flags and a vocabulary; checked is that the stream of
 * the ids is UTF-8 and says what the whole decoding says.
 *
 * Thread: one.  Owner: vocabularies are made once and kept.
 */
#include "core/text/tok_int.h"
#include "core/text/utf8.h"
#include "tests/unit/gguf_make.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MARKS                                                                                      \
    "\"added_tokens\":[{\"id\":300,\"content\":\"<s>\",\"special\":true,\"rstrip\":true},"         \
    "{\"id\":301,\"content\":\"  \",\"lstrip\":true},"                                             \
    "{\"id\":302,\"content\":\"ab\",\"single_word\":true}],"

static const char *const pipelines[] = {
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},",
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
    "\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":"
    "\"\xe2\x96\x81\"}]},",
    "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":"
    "\"\xe2\x96\x81\",\"prepend_scheme\":\"first\",\"split\":true},",
    "\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":"
    "\"MergedWithNext\",\"pattern\":{\"Regex\":\"\\\\s+(?!\\\\S)|\\\\p{L}+|\\\\p{N}\"}},",
};

/* Every byte as a token (both spellings), and a few merges. */
static hy_tok *make(const char *pipeline)
{
    hy_buf b;
    hy_tok *t = NULL;
    hy_buf_init(&b);
    hy_buf_printf(&b, "{%s%s\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{", MARKS,
                  pipeline);
    for (int i = 0; i < 256; i++)
        hy_buf_printf(&b, "\"<0x%02X>\":%d,", i, i);
    hy_buf_puts(&b, "\"a\":256,\"b\":257,\"aa\":258,\"ab\":259,\"aab\":260,\" \":261},"
                    "\"merges\":[[\"a\",\"a\"],[\"a\",\"b\"],[\"aa\",\"b\"]]}}");
    if (hy_tok__from_json(hy_buf_str(&b), b.len, &t) < 0)
        abort();
    hy_buf_fini(&b);
    return t;
}

/* GGUF vocabularies: a pre-tokeniser's name, or NULL for SentencePiece. */
static const char *const pres[] = {"llama-bpe", "deepseek-llm", "gpt-4o", NULL};

static void put_tokens(hy_buf *b, const char *pre)
{
    gm_key(b, "tokenizer.ggml.tokens", HY_GGUF_ARR);
    gm_u(b, HY_GGUF_STR, 4);
    gm_u(b, 259, 8);
    for (int i = 0; i < 256; i++) {
        hy_buf one;
        hy_buf_init(&one);
        if (pre != NULL)
            hy_utf8_put(&one, hy_tok__byte_to_cp((uint8_t)i));
        else
            hy_buf_printf(&one, "<0x%02X>", i);
        gm_str(b, hy_buf_str(&one));
        hy_buf_fini(&one);
    }
    gm_str(b, "aa");
    gm_str(b, pre != NULL ? "aab" : "\342\226\201");
    gm_str(b, "<s>");
    gm_key(b, "tokenizer.ggml.token_type", HY_GGUF_ARR);
    gm_u(b, HY_GGUF_I32, 4);
    gm_u(b, 259, 8);
    for (int i = 0; i < 259; i++)
        gm_u(b, i == 258 ? TOK_CONTROL : i < 256 && pre == NULL ? TOK_BYTE : TOK_NORMAL, 4);
}

static hy_tok *make_gguf(const char *pre)
{
    static const char *const merges[] = {"a a", "aa b"};
    static const float scores[259];
    hy_buf b;
    hy_gguf *g = NULL;
    hy_tok *t = NULL;
    hy_buf_init(&b);
    gm_head(&b, 3, 0, 5);
    gm_key_str(&b, "tokenizer.ggml.model", pre != NULL ? "gpt2" : "llama");
    put_tokens(&b, pre);
    gm_key_str(&b, "tokenizer.ggml.pre", pre != NULL ? pre : "default");
    if (pre != NULL)
        gm_key_strs(&b, "tokenizer.ggml.merges", merges, 2);
    else
        gm_key_f32s(&b, "tokenizer.ggml.scores", scores, 259);
    if (hy_gguf_open_mem(b.data, b.len, &g) < 0 || hy_tok_from_gguf(g, &t) < 0)
        abort();
    hy_gguf_close(g);
    hy_buf_fini(&b);
    return t;
}

/* Byte-level vocabularies that spell every byte give back what they read. */
static void check_back(const hy_tok *t, const hy_tok_ids *ids, const uint8_t *text, size_t n)
{
    hy_buf back;
    hy_buf_init(&back);
    if (!t->byte_level || t->n_prefix != 0 || t->pre.v[0].kind == STEP_PREFIX_SPACE ||
        !hy_utf8_valid((const char *)text, n))
        return;
    if (hy_tok_decode(t, ids->ids, ids->n, false, &back) < 0 || back.len != n ||
        (n != 0 && memcmp(back.data, text, n) != 0))
        abort();
    hy_buf_fini(&back);
}

static void check(const hy_tok *t, const hy_tok_ids *ids)
{
    hy_buf whole, want, got;
    hy_detok d;
    hy_buf_init(&whole);
    hy_buf_init(&want);
    hy_buf_init(&got);
    hy_detok_init(&d, t, false);
    d.started = false;
    if (hy_tok_decode(t, ids->ids, ids->n, false, &whole) < 0)
        abort();
    hy_utf8_replace_runs(hy_buf_str(&whole), whole.len, &want);
    for (size_t i = 0; i < ids->n; i++)
        if (hy_detok_push(&d, ids->ids[i], &got) < 0)
            abort();
    hy_detok_flush(&d, &got);
    if (got.len != want.len || memcmp(hy_buf_str(&got), hy_buf_str(&want), got.len) != 0 ||
        !hy_utf8_valid(hy_buf_str(&got), got.len))
        abort();
    hy_detok_fini(&d);
    hy_buf_fini(&whole);
    hy_buf_fini(&want);
    hy_buf_fini(&got);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { N_JSON = HY_COUNTOF(pipelines), N_ALL = N_JSON + HY_COUNTOF(pres) };
    static hy_tok *toks[N_ALL];
    if (size == 0)
        return 0;
    size_t k = data[0] % N_ALL;
    if (toks[k] == NULL)
        toks[k] = k < N_JSON ? make(pipelines[k]) : make_gguf(pres[k - N_JSON]);
    hy_tok_ids ids = {0};
    if (hy_tok_encode(toks[k], (const char *)data + 1, size - 1, data[0] >> 4 & 3, 0, &ids) ==
        HY_OK) {
        check(toks[k], &ids);
        if (k >= N_JSON)
            check_back(toks[k], &ids, data + 1, size - 1);
    }
    hy_tok_ids_fini(&ids);
    return 0;
}
