/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: a tokenizer.json; if it loads, a text goes through it and back.
 *
 * Thread: one.  Owner: nothing kept.
 */
#include "core/text/tok_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello <s> \xe6\x97\xa5 e\xcc\x81 \xff 123\n\n  x\xe2\x96\x81 </s>";
    hy_tok *t = NULL;
    if (hy_tok__from_json((const char *)data, size, &t) < 0)
        return 0;
    hy_tok_ids ids = {0};
    hy_buf b;
    hy_buf_init(&b);
    if (hy_tok_encode(t, text, sizeof(text) - 1, 3, 0, &ids) == HY_OK)
        hy_tok_decode(t, ids.ids, ids.n, false, &b);
    hy_buf_fini(&b);
    hy_tok_ids_fini(&ids);
    hy_tok_destroy(t);
    return 0;
}
