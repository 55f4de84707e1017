/* SPDX-License-Identifier: Apache-2.0
 *
 * Family llama (and mistral, which is llama with a window): RMS norm, grouped-query attention with
 * rotary embedding, SiLU-gated FFN. GGUF files hold q and k permuted, so that rotation pairs
 * neighbours; Hugging Face folders pair halves.
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
    b->rope_kind = b->src->hf ? HY_ROPE_HALVES : HY_ROPE_PAIRS;
    HY_TRY(hy_build_groups(b));
    HY_TRY(hy_build_rope(b, &b->hp->rope, &rope));
    HY_TRY(hy_build_embed(b, 1.0f));
    for (int32_t i = 0; i < b->hp->n_layers; i++)
        HY_TRY(layer(b, i));
    return hy_build_head(b);
}

static const char *const types[] = {"llama", "mistral", NULL};
const hy_family hy_fam_llama = {"llama", "llama", types, build};
