/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: a config.json, up to the rotary frequencies that it asks for.
 *
 * Thread: one.  Owner: nothing kept.
 */
#include "core/model/hparams.h"
#include "core/model/rope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile float sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static hy_hparams hp;
    if (hy_hparams_from_hf((const char *)data, size, &hp) < 0)
        return 0;
    hy_rope_desc d = {.kind = HY_ROPE_HALVES, .rot = hp.rot};
    if (hy_rope_make(&hp.rope, hp.context, &d) == HY_OK) {
        float c[HY_MAX_ROT / 2], s[HY_MAX_ROT / 2];
        hy_rope_angles(&d, hp.context - 1, true, c, s);
        sink += c[0] + s[hp.rot / 2 - 1];
    }
    hy_rope_free(&d);
    return 0;
}
