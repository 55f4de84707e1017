/* SPDX-License-Identifier: Apache-2.0
 *
 * Family phi3: as llama, with q, k, v in one matrix and gate, up in another (cut here by rows),
 * partial rotation in some models, and longrope: two sets of frequencies, for requests that stay
 * within the original context and for those that go beyond.
 *
 * Thread: one (load).  Owner: the model.
 */
#include "core/model/build.h"

static hy_status qkv(hy_build *b, int32_t i, hy_attn_in *in)
{
    const hy_hparams *hp = b->hp;
    int64_t nq = (int64_t)hp->heads * hp->k_dim, nk = (int64_t)hp->kv_heads * hp->k_dim,
            nv = (int64_t)hp->kv_heads * hp->v_dim, all = nq + nk + nv;
    HY_TRY(hy_build_rows(b, HY_R_QKV, i, all, hp->dim, 0, nq, &in->wq));
    HY_TRY(hy_build_rows(b, HY_R_QKV, i, all, hp->dim, nq, nk, &in->wk));
    return hy_build_rows(b, HY_R_QKV, i, all, hp->dim, nq + nk, nv, &in->wv);
}

static hy_status layer(hy_build *b, int32_t i)
{
    const hy_hparams *hp = b->hp;
    hy_attn_in *in = NULL;
    HY_TRY(hy_build_attn_in(b, i, &in));
    HY_TRY(hy_build_norm(b, HY_R_ATTN_NORM, i, hp->dim, &in->norm));
    HY_TRY(qkv(b, i, in));

    hy_attn_out *out = NULL;
    HY_TRY(hy_build_attn_out(b, i, &out));

    hy_ffn *ffn = NULL;
    HY_TRY(hy_build_ffn(b, i, &ffn));
    HY_TRY(hy_build_norm(b, HY_R_FFN_NORM, i, hp->dim, &ffn->norm));
    int64_t two = 2 * (int64_t)hp->ffn;
    HY_TRY(hy_build_rows(b, HY_R_GATE_UP, i, two, hp->dim, 0, hp->ffn, &ffn->gate));
    HY_TRY(hy_build_rows(b, HY_R_GATE_UP, i, two, hp->dim, hp->ffn, hp->ffn, &ffn->up));
    return hy_build_matrix(b, HY_R_DOWN, i, hp->dim, hp->ffn, &ffn->down);
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

static const char *const types[] = {"phi3", NULL};
const hy_family hy_fam_phi3 = {"phi3", "phi3", types, build};
