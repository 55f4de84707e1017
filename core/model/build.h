/* SPDX-License-Identifier: Apache-2.0
 *
 * What a family file is written with: make a step, attach weights, norms and biases to it by role.
 * Every call checks the tensor's presence, shape and type, and the backend's ability, and names the
 * tensor when something is wrong.
 *
 * Thread: one (load).  Owner: whatever is made belongs to the model.
 */
#ifndef HY_MODEL_BUILD_H
#define HY_MODEL_BUILD_H

#include "core/model/model.h"
#include "core/model/source.h"

typedef struct hy_build {
    hy_model *m;
    hy_source *src;
    const hy_hparams *hp;
    const hy_model_opts *opts;
    hy_dev *dev;
    hy_queue *q;
    hy_rope_kind rope_kind;
    bool norm_plus_one; /* norm tensors hold w, the norm multiplies by 1 + w (HF gemma) */
    int32_t local_rope; /* index into ropes for sliding layers; 0 when they share the first */
    size_t done, total; /* bytes, for progress */
} hy_build;

typedef struct hy_family {
    const char *name;      /* in messages */
    const char *gguf;      /* general.architecture; NULL: no such files */
    const char *const *hf; /* model_type values, NULL-terminated */
    hy_status (*build)(hy_build *b);
} hy_family;

extern const hy_family hy_fam_llama, hy_fam_qwen2, hy_fam_qwen3, hy_fam_gemma3, hy_fam_phi3;

/* ---- start: groups and ropes from the numbers, before any step ---- */
/* One KV group, or two (all positions; window) when some layers slide. */
hy_status hy_build_groups(hy_build *b);
hy_status hy_build_rope(hy_build *b, const hy_rope_params *r, int32_t *index_out);

/* ---- steps, in order ---- */
hy_status hy_build_embed(hy_build *b, float scale);
hy_status hy_build_attn_in(hy_build *b, int32_t layer, hy_attn_in **out);
hy_status hy_build_attn_out(hy_build *b, int32_t layer, hy_attn_out **out);
hy_status hy_build_ffn(hy_build *b, int32_t layer, hy_ffn **out);
/* Last norm and output matrix; the embedding's where there is none. */
hy_status hy_build_head(hy_build *b);

/* ---- parts ---- */
hy_status hy_build_norm(hy_build *b, hy_role role, int32_t layer, int64_t dim, hy_norm_w *out);
hy_status hy_build_matrix(hy_build *b, hy_role role, int32_t layer, int64_t n, int64_t k,
                          const hy_weight **out);
/* Rows [from, from + n) of a fused matrix of `rows` rows. */
hy_status hy_build_rows(hy_build *b, hy_role role, int32_t layer, int64_t rows, int64_t k,
                        int64_t from, int64_t n, const hy_weight **out);
/* f32 vector; absent: NULL, or an error when required. */
hy_status hy_build_bias(hy_build *b, hy_role role, int32_t layer, int64_t n, bool required,
                        const float **out);
/* q, k, v matrices and whatever biases the file has (all, when `required`). */
hy_status hy_build_qkv(hy_build *b, int32_t layer, bool required, hy_attn_in *in);
hy_status hy_build_gated_ffn(hy_build *b, int32_t layer, hy_ffn *f);

/* dry.c: a device that takes everything and computes nothing, to check a model's tables. */
hy_dev *hy_dry_dev(void);

/* The loader's own belongings, freed with the model. */
typedef struct hy_model_priv {
    hy_source src; /* kept open while a weight borrows from it */
    bool src_open;
    hy_weight **weights;
    size_t n_weights, cap_weights;
    struct hy_vec {
        void *p;
        size_t bytes;
    } * vecs; /* device vectors */
    size_t n_vecs, cap_vecs;
    void **copies; /* aligned copies of unaligned file data */
    size_t n_copies, cap_copies;
    int32_t cap_steps;
} hy_model_priv;

#endif
