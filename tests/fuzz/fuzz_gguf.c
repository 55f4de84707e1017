/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: a GGUF file, and everything that its getters and the tokeniser can reach in it.
 *
 * Thread: one.  Owner: nothing kept.
 */
#include "core/base/log.h"
#include "core/model/gguf.h"
#include "core/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sink;

static void touch_key(const hy_gguf *g, size_t i)
{
    hy_gguf_type type, elem;
    hy_str k = hy_gguf_key_at(g, i, &type), s;
    char *key = strndup(k.p, k.len);
    size_t n = 0;
    uint64_t u = 0;
    int64_t v = 0;
    double d = 0;
    bool t = false;
    hy_gguf_get_u64(g, key, &u);
    hy_gguf_get_f64(g, key, &d);
    hy_gguf_get_bool(g, key, &t);
    if (hy_gguf_get_str(g, key, &s) == HY_OK && s.len != 0)
        sink += (unsigned char)s.p[0] + (unsigned char)s.p[s.len - 1];
    if (hy_gguf_arr(g, key, &elem, &n) == HY_OK && n != 0) {
        for (size_t j = 0; j < n && j < 64; j++) {
            hy_gguf_arr_i64(g, key, n - 1 - j, &v);
            hy_gguf_arr_f64(g, key, j, &d);
            if (hy_gguf_arr_str(g, key, j, &s) == HY_OK && s.len != 0)
                sink += (unsigned char)s.p[s.len - 1];
        }
    }
    free(key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello <|im_end|> \xe6\x97\xa5 \xff 123\n\n  x";
    hy_gguf *g = NULL;
    hy_tok *t = NULL;
    hy_log_set_level(HY_LOG_ERROR);
    if (hy_gguf_open_mem(data, size, &g) < 0)
        return 0;
    for (size_t i = 0; i < hy_gguf_n_keys(g); i++)
        touch_key(g, i);
    for (size_t i = 0; i < hy_gguf_n_tensors(g); i++) {
        const hy_gguf_tensor *x = hy_gguf_tensor_at(g, i);
        sink += ((const uint8_t *)x->data)[0] + ((const uint8_t *)x->data)[x->bytes - 1];
    }
    if (hy_tok_from_gguf(g, &t) == HY_OK) {
        hy_tok_ids ids = {0};
        hy_buf b;
        hy_buf_init(&b);
        if (hy_tok_encode(t, text, sizeof(text) - 1, 3, 0, &ids) == HY_OK)
            hy_tok_decode(t, ids.ids, ids.n, false, &b);
        hy_buf_fini(&b);
        hy_tok_ids_fini(&ids);
        hy_tok_destroy(t);
    }
    hy_gguf_close(g);
    return 0;
}
