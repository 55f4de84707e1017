/* SPDX-License-Identifier: Apache-2.0
 *
 * Family qwen2: as llama, with biases on q, k and v; rotation pairs halves in both formats.
 *
 * Thread: one (load).  Owner: the model.
 */
#include "core/model/build.h"

static hy_status layer(hy_build *b, int32_t i)
{
    hy_attn_in *in = NULL;
    HY_TRY(hy_build_attn_in(b, i, &in));
    HY_TRY(hy_build_norm(b, HY_R_ATTN_NORM, i, b->hp->dim, &in->norm));
    HY_TRY(hy_build_qkv(b, i, true, in));

    hy_attn_out *out = NULL;
    HY_TRY(hy_build_attn_out(b, i, &out));

    hy_ffn *ffn = NULL;
    HY_TRY(hy_build_ffn(b, i, &ffn));
    HY_TRY(hy_build_norm(b, HY_R_FFN_NORM, i, b->hp->dim, &ffn->norm));
    return hy_build_gated_ffn(b, i, ffn);
}

static hy_status build(hy_build *b)
{
    int32_t rope = 0;
    b->rope_kind = HY_ROPE_HALVES;
    HY_TRY(hy_build_groups(b));
    HY_TRY(hy_build_rope(b, &b->hp->rope, &rope));
    HY_TRY(hy_build_embed(b, 1.0f));
    for (int32_t i = 0; i < b->hp->n_layers; i++)
        HY_TRY(layer(b, i));
    return hy_build_head(b);
}

static const char *const types[] = {"qwen2", NULL};
const hy_family hy_fam_qwen2 = {"qwen2", "qwen2", types, build};
