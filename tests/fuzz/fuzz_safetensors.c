/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: a safetensors file. Every tensor's first and last byte must lie inside it.
 *
 * Thread: one.  Owner: nothing kept.
 */
#include "core/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    hy_safetensors *s = NULL;
    if (hy_safetensors_open_mem(data, size, &s) < 0)
        return 0;
    for (size_t i = 0; i < hy_safetensors_n(s); i++) {
        const hy_st_tensor *t = hy_safetensors_at(s, i);
        const uint8_t *p = t->data;
        if (t->bytes != 0)
            sink += p[0] + p[t->bytes - 1];
    }
    hy_safetensors_close(s);
    return 0;
}
