/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokeniser on vocabularies small enough to reason about: merges, scores, marks, limits, refusals,
 * folder settings and the streaming detokeniser. Real vocabularies are tests/golden's.
 *
 * Thread: one.  Owner: each test frees what it makes.
 */
#include "tests/unit/cm.h"
#include "tests/unit/gguf_make.h"

#include "core/text/load.h"
#include "core/text/tokenizer.h"
#include "core/text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };

typedef struct vocab {
    hy_buf file;
    hy_gguf *g;
    hy_tok *t;
} vocab;

static hy_status finish(vocab *v)
{
    hy_status st = hy_gguf_open_mem(v->file.data, v->file.len, &v->g);
    assert_int_equal(st, HY_OK);
    return hy_tok_from_gguf(v->g, &v->t);
}

static void vocab_fini(vocab *v)
{
    hy_tok_destroy(v->t);
    hy_gguf_close(v->g);
    hy_buf_fini(&v->file);
    memset(v, 0, sizeof(*v));
}

static int32_t im_end_type = CONTROL;

/* Byte-level: a few bytes, two merges, one mark of each type. Ids are positions. */
static hy_status make_bpe(vocab *v, const char *model, const char *pre)
{
    static const char *const words[] = {
        "a",        "b",        "c",          "\xc4\xa0" /* the space */,
        "ab",       "abc",      "<|im_end|>", "<mark>",
        "\xc3\xa2", "\xc4\xa3", "x"};
    const int32_t types[] = {NORMAL,      NORMAL, NORMAL, NORMAL, NORMAL, NORMAL,
                             im_end_type, USER,   NORMAL, NORMAL, NORMAL};
    static const char *const merges[] = {"a b", "ab c"};
    memset(v, 0, sizeof(*v));
    gm_head(&v->file, 3, 0, 7);
    gm_key_str(&v->file, "tokenizer.ggml.model", model);
    gm_key_str(&v->file, "tokenizer.ggml.pre", pre);
    gm_key_strs(&v->file, "tokenizer.ggml.tokens", words, HY_COUNTOF(words));
    gm_key_i32s(&v->file, "tokenizer.ggml.token_type", types, HY_COUNTOF(types));
    gm_key_strs(&v->file, "tokenizer.ggml.merges", merges, HY_COUNTOF(merges));
    gm_key_u32(&v->file, "tokenizer.ggml.eos_token_id", 6);
    gm_key_str(&v->file, "tokenizer.chat_template", "{{ messages }}");
    return finish(v);
}

/* SentencePiece: 0 unk, 1 bos, 2 eos, then bytes of interest, then pieces. */
static hy_status make_spm(vocab *v, bool prefix)
{
    static const char *const words[] = {"<unk>",         "<s>",          "</s>", "<0xE6>", "<0x97>",
                                        "<0xA5>",        "\xe2\x96\x81", "a",    "b",      "ab",
                                        "\342\226\201a", "bb",           "  "};
    static const int32_t types[] = {UNKNOWN, CONTROL, CONTROL, BYTE,   BYTE,   BYTE, NORMAL,
                                    NORMAL,  NORMAL,  NORMAL,  NORMAL, NORMAL, USER};
    static const float scores[] = {0, 0, 0, 0, 0, 0, -10, -11, -12, -3, -2, -1, 0};
    memset(v, 0, sizeof(*v));
    gm_head(&v->file, 3, 0, 5);
    gm_key_str(&v->file, "tokenizer.ggml.model", "llama");
    gm_key_strs(&v->file, "tokenizer.ggml.tokens", words, HY_COUNTOF(words));
    gm_key_i32s(&v->file, "tokenizer.ggml.token_type", types, HY_COUNTOF(types));
    gm_key_f32s(&v->file, "tokenizer.ggml.scores", scores, HY_COUNTOF(scores));
    gm_key_bool(&v->file, "tokenizer.ggml.add_space_prefix", prefix);
    return finish(v);
}

static void check(const hy_tok *t, const char *text, int flags, const int32_t *want, size_t n)
{
    for (int k = 0; k < 2; k++) { /* the second time words are known */
        hy_tok_ids got = {0};
        assert_int_equal(hy_tok_encode(t, text, strlen(text), flags, 0, &got), HY_OK);
        assert_int_equal(got.n, n);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(got.ids[i], want[i]);
        hy_tok_ids_fini(&got);
    }
}
#define CHECK(t, text, flags, ...)                                                                 \
    do {                                                                                           \
        static const int32_t want_[] = {__VA_ARGS__};                                              \
        check(t, text, flags, want_, HY_COUNTOF(want_));                                           \
    } while (0)

static void check_text(const hy_tok *t, const int32_t *ids, size_t n, bool skip, const char *want)
{
    hy_buf b;
    hy_buf_init(&b);
    assert_int_equal(hy_tok_decode(t, ids, n, skip, &b), HY_OK);
    assert_string_equal(hy_buf_str(&b), want);
    hy_buf_fini(&b);
}

static void test_bpe(void **state)
{
    (void)state;
    vocab v;
    assert_int_equal(make_bpe(&v, "gpt2", "gpt-2"), HY_OK);
    CHECK(v.t, "abc", 0, 5);
    CHECK(v.t, "abab", 0, 4, 4);
    CHECK(v.t, "cab", 0, 2, 4);
    CHECK(v.t, "ab abc", 0, 4, 3, 5);
    CHECK(v.t, "a<|im_end|>b", HY_TOK_PARSE_SPECIAL, 0, 6, 1);
    CHECK(v.t, "a<mark>b", 0, 0, 7, 1); /* user-defined marks are always seen */
    assert_int_equal(hy_tok_n_vocab(v.t), 11);
    assert_int_equal(hy_tok_bos(v.t), -1);
    assert_int_equal(hy_tok_eos(v.t), 6);
    assert_false(hy_tok_adds_bos(v.t));
    assert_true(hy_tok_is_eog(v.t, 6));
    assert_false(hy_tok_is_eog(v.t, 5));
    assert_false(hy_tok_is_eog(v.t, -1));
    assert_true(hy_tok_is_special(v.t, 6));
    assert_false(hy_tok_is_special(v.t, 7));
    assert_int_equal(hy_tok_lookup(v.t, "abc"), 5);
    assert_int_equal(hy_tok_lookup(v.t, "zzz"), -1);
    assert_string_equal(hy_tok_token_text(v.t, 3), "\xc4\xa0");
    assert_null(hy_tok_token_text(v.t, 11));
    assert_string_equal(hy_tok_chat_template(v.t), "{{ messages }}");
    assert_string_equal(hy_tok_describe(v.t), "bpe/gpt-2, 11 tokens");
    static const int32_t ids[] = {5, 3, 6, 7};
    check_text(v.t, ids, 4, false, "abc <|im_end|><mark>");
    check_text(v.t, ids, 4, true, "abc <mark>");
    vocab_fini(&v);
}

/* Without parse_special a mark in a text never becomes its token. */
static void test_text_makes_no_mark(void **state)
{
    (void)state;
    vocab v;
    hy_tok_ids got = {0};
    static const int32_t types[] = {NORMAL, USER, CONTROL}; /* converters differ */
    for (size_t k = 0; k < HY_COUNTOF(types); k++) {
        im_end_type = types[k];
        got.n = 0;
        assert_int_equal(make_bpe(&v, "gpt2", "llama-bpe"), HY_OK); /* whole words win there */
        assert_int_equal(hy_tok_encode(v.t, "a<|im_end|>", 11, 0, 0, &got), HY_OK);
        for (size_t i = 0; i < got.n; i++)
            assert_int_not_equal(got.ids[i], 6);
        assert_true(hy_tok_is_special(v.t, 6) && hy_tok_is_eog(v.t, 6));
        vocab_fini(&v);
    }
    hy_tok_ids_fini(&got);
    assert_int_equal(make_spm(&v, true), HY_OK);
    assert_int_equal(hy_tok_encode(v.t, "<s></s><0xE6>", 13, 0, 0, &got), HY_OK);
    for (size_t i = 0; i < got.n; i++)
        assert_true(got.ids[i] == 0 || got.ids[i] > 5);
    hy_tok_ids_fini(&got);
    vocab_fini(&v);
}

static void test_spm(void **state)
{
    (void)state;
    vocab v;
    assert_int_equal(make_spm(&v, true), HY_OK);
    CHECK(v.t, "ab", 0, 10, 8); /* "_a" (-2) before "ab" (-3) */
    CHECK(v.t, "abb", 0, 10, 11);
    CHECK(v.t, "ab", HY_TOK_ADD_SPECIAL, 1, 10, 8);
    CHECK(v.t, "bab", 0, 6, 8, 9);
    CHECK(v.t, "\xe6\x97\xa5", 0, 6, 3, 4, 5); /* no piece for it: bytes */
    CHECK(v.t, "zz", 0, 6, 0);                 /* no bytes either: one unknown */
    CHECK(v.t, "a<s>a", HY_TOK_PARSE_SPECIAL, 10, 1, 10);
    check(v.t, "", 0, NULL, 0);
    CHECK(v.t, "", HY_TOK_ADD_SPECIAL, 1);
    assert_int_equal(hy_tok_bos(v.t), 1);
    assert_true(hy_tok_adds_bos(v.t));
    static const int32_t ids[] = {10, 8, 6, 7};
    check_text(v.t, ids, 4, false, "ab a"); /* the prefix goes again */
    vocab_fini(&v);
    assert_int_equal(make_spm(&v, false), HY_OK);
    CHECK(v.t, "ab", 0, 9);
    CHECK(v.t, "b  a", 0, 8, 12, 7);
    static const int32_t spaced[] = {10, 8};
    check_text(v.t, spaced, 2, false, " ab");
    vocab_fini(&v);
}

static void test_refusals(void **state)
{
    (void)state;
    vocab v;
    assert_int_equal(make_bpe(&v, "gpt2", "no-such-pre"), HY_E_UNSUPPORTED);
    assert_non_null(strstr(hy_fail_text(), "no-such-pre"));
    vocab_fini(&v);
    assert_int_equal(make_bpe(&v, "bert", "gpt-2"), HY_E_UNSUPPORTED);
    assert_non_null(strstr(hy_fail_text(), "bert"));
    vocab_fini(&v);
    gm_head(&v.file, 3, 0, 0);
    assert_int_equal(finish(&v), HY_E_NOTFOUND);
    assert_non_null(strstr(hy_fail_text(), "no tokeniser"));
    vocab_fini(&v);
}

static void test_limits(void **state)
{
    (void)state;
    vocab v;
    hy_tok_ids got = {0};
    assert_int_equal(make_bpe(&v, "gpt2", "gpt-2"), HY_OK);
    assert_int_equal(hy_tok_encode(v.t, "aaa", 3, 0, 3, &got), HY_OK);
    assert_int_equal(hy_tok_encode(v.t, "aaaa", 4, 0, 3, &got), HY_E_LIMIT);
    assert_int_equal(got.n, 3); /* what was there stays */
    hy_buf b;
    hy_buf_init(&b);
    assert_int_equal(hy_tok_piece(v.t, 11, false, &b), HY_E_INVAL);
    assert_int_equal(hy_tok_piece(v.t, -1, false, &b), HY_E_INVAL);
    static const int32_t bad[] = {0, 99};
    assert_int_equal(hy_tok_decode(v.t, bad, 2, false, &b), HY_E_INVAL);
    assert_int_equal(b.len, 0);
    hy_buf_fini(&b);
    hy_tok_ids_fini(&got);
    vocab_fini(&v);
}

/* A quadratic merge or pattern would take hours here. */
static void test_long_words(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    static const char *const fill[] = {"a",   "ab", "abc",          " ", " a",
                                       "\n ", "x",  "\xe6\x97\xa5", "'"};
    char *text = malloc(N);
    for (int kind = 0; kind < 2; kind++) {
        vocab v;
        assert_int_equal(kind ? make_spm(&v, true) : make_bpe(&v, "gpt2", "llama-bpe"), HY_OK);
        for (size_t k = 0; k < HY_COUNTOF(fill); k++) {
            hy_tok_ids got = {0};
            size_t len = strlen(fill[k]);
            for (size_t i = 0; i < N; i++)
                text[i] = fill[k][i % len];
            assert_int_equal(hy_tok_encode(v.t, text, N, 3, 0, &got), HY_OK);
            hy_tok_ids_fini(&got);
        }
        vocab_fini(&v);
    }
    free(text);
}

static void test_invalid_text(void **state)
{
    (void)state;
    vocab v;
    hy_tok_ids got = {0};
    assert_int_equal(make_bpe(&v, "gpt2", "gpt-2"), HY_OK);
    for (int a = 0x80; a < 256; a++) {
        char s[4] = {'a', (char)a, 'b', (char)a};
        got.n = 0;
        assert_int_equal(hy_tok_encode(v.t, s, 4, 3, 0, &got), HY_OK);
        assert_int_equal(got.ids[0], 0);
    }
    hy_tok_ids_fini(&got);
    vocab_fini(&v);
}

static void stream(const hy_tok *t, const int32_t *ids, size_t n, const char *const *want)
{
    hy_detok d;
    hy_buf out;
    hy_buf_init(&out);
    hy_detok_init(&d, t, true);
    for (size_t i = 0; i <= n; i++) {
        hy_buf_clear(&out);
        hy_status st = i < n ? hy_detok_push(&d, ids[i], &out) : hy_detok_flush(&d, &out);
        assert_int_equal(st, HY_OK);
        assert_string_equal(hy_buf_str(&out), want[i]);
    }
    hy_detok_fini(&d);
    hy_buf_fini(&out);
}

static void test_stream(void **state)
{
    (void)state;
    vocab v;
    assert_int_equal(make_spm(&v, true), HY_OK);
    static const int32_t whole[] = {10, 3, 4, 5, 8, 2};
    static const char *const whole_text[] = {" a", "", "", "\xe6\x97\xa5", "b", "", ""};
    stream(v.t, whole, 6, whole_text);
    static const int32_t cut[] = {3, 4, 7, 4, 3, 4};
    static const char *const cut_text[] = {"", "", "\357\277\275a", "\xef\xbf\xbd",
                                           "", "", "\xef\xbf\xbd"};
    stream(v.t, cut, 6, cut_text); /* one U+FFFD a bad sequence */
    hy_detok d;
    hy_buf out;
    hy_buf_init(&out);
    hy_detok_init(&d, v.t, false);
    assert_int_equal(hy_detok_push(&d, 13, &out), HY_E_INVAL);
    d.started = false; /* the beginning of a text: its prefix goes */
    assert_int_equal(hy_detok_push(&d, 10, &out), HY_OK);
    assert_int_equal(hy_detok_push(&d, 10, &out), HY_OK);
    assert_string_equal(hy_buf_str(&out), "a a");
    hy_detok_fini(&d);
    hy_buf_fini(&out);
    vocab_fini(&v);
}

static void test_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *in, *bytes, *runs;
    } cases[] = {
        {"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
         "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\xe2\x82", "??", "?"},
        {"\xe2\x82+", "??+", "?+"},
        {"\xf0\x9f\x98", "???", "?"},
        {"\xc0\xaf", "??", "??"},
        {"\xed\xa0\x80", "???", "???"},
        {"\xf4\x90\x80\x80", "????", "????"},
        {"\xf0\x80\x80\x41", "???A", "???A"},
        {"\xff\xfe", "??", "??"},
    };
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        for (int runs = 0; runs < 2; runs++) {
            hy_buf got, want;
            hy_buf_init(&got);
            hy_buf_init(&want);
            for (const char *p = runs ? cases[i].runs : cases[i].bytes; *p != '\0'; p++) {
                if (*p == '?')
                    hy_buf_puts(&want, "\xef\xbf\xbd");
                else
                    hy_buf_putc(&want, *p);
            }
            (runs ? hy_utf8_replace_runs : hy_utf8_replace_bytes)(cases[i].in, strlen(cases[i].in),
                                                                  &got);
            assert_string_equal(hy_buf_str(&got), hy_buf_str(&want));
            hy_buf_fini(&got);
            hy_buf_fini(&want);
        }
    }
}

/* A folder with tokenizer.json and whatever else a test wants. */
static const char tiny_json[] =
    "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true},"
    "{\"id\":5,\"content\":\"</s>\",\"special\":true}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
    "\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"c\":3},"
    "\"merges\":[[\"a\",\"b\"]]}}";

static void put(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void clean(const char *dir)
{
    static const char *const names[] = {"tokenizer.json",         "tokenizer_config.json",
                                        "generation_config.json", "config.json",
                                        "chat_template.jinja",    "chat_template.json"};
    char path[512];
    for (size_t i = 0; i < HY_COUNTOF(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        unlink(path);
    }
}

static void test_folder(void **state)
{
    (void)state;
    char dir[] = "/tmp/hy-tok-XXXXXX";
    hy_tok *t = NULL;
    size_t n = 0;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(hy_tok_from_folder(dir, &t), HY_E_NOTFOUND);
    assert_non_null(strstr(hy_fail_text(), "not a model folder"));
    put(dir, "config.json", "{}");
    assert_int_equal(hy_tok_from_folder(dir, &t), HY_E_NOTFOUND);
    assert_non_null(strstr(hy_fail_text(), "no tokenizer.json"));
    put(dir, "tokenizer.json", tiny_json);
    assert_int_equal(hy_tok_load(dir, &t), HY_OK); /* alone is enough */
    CHECK(t, "abc</s>", HY_TOK_PARSE_SPECIAL, 2, 3, 5);
    assert_null(hy_tok_chat_template(t));
    assert_true(hy_tok_is_eog(t, 5)); /* by its name, for want of a file that says so */
    hy_tok_destroy(t);
    put(dir, "config.json", "{\"bos_token_id\":4,\"eos_token_id\":[3,5]}");
    assert_int_equal(hy_tok_from_folder(dir, &t), HY_OK);
    assert_int_equal(hy_tok_bos(t), 4);
    assert_int_equal(hy_tok_eos(t), 3);
    assert_true(hy_tok_is_eog(t, 5));
    hy_tok_destroy(t);
    put(dir, "generation_config.json", "{\"eos_token_id\":[5,0,99,-1]}");
    put(dir, "tokenizer_config.json",
        "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"add_bos_token\":true,"
        "\"chat_template\":[{\"name\":\"rag\",\"template\":\"no\"},"
        "{\"name\":\"default\",\"template\":\"yes\"}]}");
    assert_int_equal(hy_tok_from_folder(dir, &t), HY_OK);
    CHECK(t, "a", HY_TOK_ADD_SPECIAL, 4, 0);
    assert_true(hy_tok_adds_bos(t));
    assert_int_equal(hy_tok_eos(t), 5);
    assert_string_equal(hy_tok_chat_template(t), "yes");
    const int32_t *eogs = hy_tok_eogs(t, &n);
    assert_int_equal(n, 2); /* 5 and 0: ids outside of the vocabulary are none */
    assert_int_equal(eogs[0], 5);
    hy_tok_destroy(t);
    put(dir, "tokenizer_config.json", "{\"chat_template\":5}");
    assert_int_equal(hy_tok_from_folder(dir, &t), HY_E_FORMAT);
    assert_non_null(strstr(hy_fail_text(), "chat_template"));
    put(dir, "tokenizer_config.json", "{\"chat_template\":\"yes\"}");
    put(dir, "chat_template.jinja", "from the file");
    assert_int_equal(hy_tok_from_folder(dir, &t), HY_OK);
    assert_string_equal(hy_tok_chat_template(t), "from the file");
    hy_tok_destroy(t);
    static const char *const wrong[] = {"\"5\"", "{}", "1.5", "true", "[5,\"</s>\"]", "[[5]]"};
    for (size_t i = 0; i < HY_COUNTOF(wrong) * 2; i++) {
        char text[64];
        const char *key = i % 2 == 0 ? "eos_token_id" : "bos_token_id";
        snprintf(text, sizeof(text), "{\"%s\":%s}", key, wrong[i / 2]);
        put(dir, "generation_config.json", text);
        assert_int_equal(hy_tok_from_folder(dir, &t), HY_E_FORMAT);
        assert_non_null(strstr(hy_fail_text(), key));
    }
    put(dir, "generation_config.json", "{\"eos_token_id\":");
    assert_int_equal(hy_tok_from_folder(dir, &t), HY_E_FORMAT);
    assert_non_null(strstr(hy_fail_text(), "generation_config.json"));
    clean(dir);
    rmdir(dir);
}

static void test_bad_json(void **state)
{
    (void)state;
#define MODEL(m) "{\"model\":{" m "}}"
#define AB       "\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
    static const struct {
        const char *json;
        hy_status st;
        const char *words;
    } cases[] = {
        {"", HY_E_FORMAT, "line"},
        {"[]", HY_E_FORMAT, "no model"},
        {"{}", HY_E_FORMAT, "no model"},
        {MODEL("\"type\":\"Unigram\""), HY_E_UNSUPPORTED, "Unigram"},
        {MODEL("\"type\":\"BPE\",\"vocab\":{}"), HY_E_FORMAT, "vocab"},
        {MODEL("\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]"), HY_E_FORMAT, "impossible"},
        {MODEL("\"type\":\"BPE\",\"vocab\":{\"a\":2000000000},\"merges\":[]"), HY_E_FORMAT,
         "impossible"},
        {MODEL("\"type\":\"BPE\",\"vocab\":{\"a\":1.5},\"merges\":[]"), HY_E_FORMAT, "impossible"},
        {MODEL("\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]"), HY_E_FORMAT,
         "same id"},
        {MODEL(AB), HY_E_FORMAT, "merges"},
        {MODEL(AB ",\"merges\":[\"ab\"]"), HY_E_FORMAT, "merge 0"},
        {MODEL(AB ",\"merges\":[\"b a\"]"), HY_E_FORMAT, "merge 0"},
        {MODEL(AB ",\"merges\":[[\"a\"]]"), HY_E_FORMAT, "merge 0"},
        {MODEL(AB ",\"merges\":[],\"end_of_word_suffix\":\"</w>\""), HY_E_UNSUPPORTED, "suffix"},
        {"{\"normalizer\":{\"type\":\"Nmt\"},\"model\":{" AB ",\"merges\":[]}}", HY_E_UNSUPPORTED,
         "Nmt"},
        {"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"model\":{" AB ",\"merges\":[]}}",
         HY_E_UNSUPPORTED, "BertPreTokenizer"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
         "\"[a-z&&[^b]]\"}},\"model\":{" AB ",\"merges\":[]}}",
         HY_E_UNSUPPORTED, "intersection"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
         "\"(\"}},\"model\":{" AB ",\"merges\":[]}}",
         HY_E_UNSUPPORTED, "pattern"},
        {"{\"decoder\":{\"type\":\"WordPiece\"},\"model\":{" AB ",\"merges\":[]}}",
         HY_E_UNSUPPORTED, "WordPiece"},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
         "{\"id\":\"x\"}}]},\"model\":{" AB ",\"merges\":[]}}",
         HY_E_FORMAT, "post-processor"},
    };
    char dir[] = "/tmp/hy-tok-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        hy_tok *t = NULL;
        put(dir, "tokenizer.json", cases[i].json);
        assert_int_equal(hy_tok_from_folder(dir, &t), cases[i].st);
        if (strstr(hy_fail_text(), cases[i].words) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", hy_fail_text(), cases[i].words);
        assert_null(t);
    }
    clean(dir);
    rmdir(dir);
}

/* Ids as tokenizers 0.23.3 gives them for the same files. */
static void test_json_corners(void **state)
{
    (void)state;
#define VOCAB                                                                                      \
    "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1," \
    "\"ab\":2,\"c\":3,\" \":4},\"merges\":[[\"a\",\"b\"]]}}"
#define BYTES    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define MARKS(m) "{\"added_tokens\":[" m "],\"pre_tokenizer\":" BYTES "," VOCAB
#define PRE(p)   "{\"pre_tokenizer\":" p "," VOCAB
    static const struct {
        const char *json, *text;
        size_t n;
        int32_t ids[4];
    } cases[] = {
        /* marks of normalised text come second, even if longer and if nothing is normalised */
        {MARKS(
             "{\"id\":5,\"content\":\"<x>\"},{\"id\":6,\"content\":\"<x>c\",\"normalized\":true}"),
         "<x>cab",
         3,
         {5, 3, 2}},
        {MARKS(
             "{\"id\":5,\"content\":\"<x>c\"},{\"id\":6,\"content\":\"<x>\",\"normalized\":true}"),
         "<x>cab",
         2,
         {5, 2}},
        /* a mark may begin in space that the mark before it takes */
        {MARKS("{\"id\":5,\"content\":\"<x>\",\"rstrip\":true},{\"id\":6,\"content\":\" c\"}"),
         "a<x>  cab",
         4,
         {0, 5, 6, 2}},
        {MARKS("{\"id\":5,\"content\":\"<x>\",\"rstrip\":true},"
               "{\"id\":6,\"content\":\" <y>\",\"lstrip\":true}"),
         "a<x>  <y>ab",
         4,
         {0, 5, 6, 2}},
        /* numbers in circles and fractions are no word characters, letters in circles are; what
         * no token spells is lost */
        {PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":"
             "\"Removed\","
             "\"invert\":true,\"pattern\":{\"Regex\":\"\\\\w+\"}}," BYTES "]}"),
         "a\xe2\x91\xa0"
         "b\xc2\xbd\xe2\x93\x90"
         "ab",
         3,
         {0, 1, 2}},
        {PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"}," BYTES "]}"),
         "a\xe2\x80\x8d"
         "b a\xe2\x91\xa0"
         "b",
         3,
         {2, 0, 1}},
        {PRE("null"),
         "a?b\xc3\xa9"
         "ab",
         2,
         {2, 2}},
    };
    char dir[] = "/tmp/hy-tok-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        hy_tok *t = NULL;
        hy_tok_ids got = {0};
        put(dir, "tokenizer.json", cases[i].json);
        if (hy_tok_from_folder(dir, &t) < 0)
            fail_msg("case %zu: %s", i, hy_fail_text());
        assert_int_equal(
            hy_tok_encode(t, cases[i].text, strlen(cases[i].text), HY_TOK_PARSE_SPECIAL, 0, &got),
            HY_OK);
        if (got.n != cases[i].n || memcmp(got.ids, cases[i].ids, got.n * sizeof(*got.ids)) != 0)
            fail_msg("case %zu: %zu ids, the first is %d", i, got.n, got.n > 0 ? got.ids[0] : -1);
        hy_tok_ids_fini(&got);
        hy_tok_destroy(t);
    }
    clean(dir);
    rmdir(dir);
}

/* A pattern that backtracks without end gives up with an error. */
static void test_hostile_pattern(void **state)
{
    (void)state;
    char dir[] = "/tmp/hy-tok-XXXXXX", text[4096];
    hy_tok *t = NULL;
    hy_tok_ids got = {0};
    assert_non_null(mkdtemp(dir));
    put(dir, "tokenizer.json",
        "{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
        "\"(a+)+$\"}},\"model\":{" AB ",\"merges\":[]}}");
    assert_int_equal(hy_tok_from_folder(dir, &t), HY_OK);
    memset(text, 'a', sizeof(text));
    text[sizeof(text) - 1] = 'b';
    assert_int_equal(hy_tok_encode(t, text, sizeof(text), 0, 0, &got), HY_E_LIMIT);
    hy_tok_ids_fini(&got);
    hy_tok_destroy(t);
    clean(dir);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe),          cmocka_unit_test(test_text_makes_no_mark),
        cmocka_unit_test(test_spm),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_limits),       cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_invalid_text), cmocka_unit_test(test_stream),
        cmocka_unit_test(test_utf8),         cmocka_unit_test(test_folder),
        cmocka_unit_test(test_bad_json),     cmocka_unit_test(test_hostile_pattern),
        cmocka_unit_test(test_json_corners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
