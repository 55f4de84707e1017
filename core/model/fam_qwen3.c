/* SPDX-License-Identifier: Apache-2.0
 *
 * Family qwen3: as llama, with an RMS norm on each head of q and k before rotation, and no biases
 * unless the configuration asks for them.
 *
 * Thread: one (load).  Owner: the model.
 */
#include "core/model/build.h"

static hy_status layer(hy_build *b, int32_t i)
{
    const hy_hparams *hp = b->hp;
    hy_attn_in *in = NULL;
    HY_TRY(hy_build_attn_in(b, i, &in));
    HY_TRY(hy_build_norm(b, HY_R_ATTN_NORM, i, hp->dim, &in->norm));
    HY_TRY(hy_build_qkv(b, i, hp->attn_bias, in));
    HY_TRY(hy_build_norm(b, HY_R_Q_NORM, i, hp->k_dim, &in->q_norm));
    HY_TRY(hy_build_norm(b, HY_R_K_NORM, i, hp->k_dim, &in->k_norm));

    hy_attn_out *out = NULL;
    HY_TRY(hy_build_attn_out(b, i, &out));
    HY_TRY(hy_build_bias(b, HY_R_O_BIAS, i, hp->dim, hp->attn_bias, &out->bo));

    hy_ffn *ffn = NULL;
    HY_TRY(hy_build_ffn(b, i, &ffn));
    HY_TRY(hy_build_norm(b, HY_R_FFN_NORM, i, hp->dim, &ffn->norm));
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

static const char *const types[] = {"qwen3", NULL};
const hy_family hy_fam_qwen3 = {"qwen3", "qwen3", types, build};
