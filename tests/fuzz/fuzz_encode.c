/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: a text. The first byte chooses flags and a vocabulary; checked is that the stream of
 * the ids is UTF-8 and says what the whole decoding says.
 *
 * Thread: one.  Owner: vocabularies are made once and kept.
 */
#include "core/text/tok_int.h"
#include "core/text/utf8.h"

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
    static hy_tok *toks[HY_COUNTOF(pipelines)];
    if (size == 0)
        return 0;
    size_t k = data[0] % HY_COUNTOF(pipelines);
    if (toks[k] == NULL)
        toks[k] = make(pipelines[k]);
    hy_tok_ids ids = {0};
    if (hy_tok_encode(toks[k], (const char *)data + 1, size - 1, data[0] >> 4 & 3, 0, &ids) ==
        HY_OK)
        check(toks[k], &ids);
    hy_tok_ids_fini(&ids);
    return 0;
}
