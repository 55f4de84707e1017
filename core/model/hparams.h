/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's numbers, read from GGUF metadata (ggufparams.c) or a Hugging Face config.json
 * (hfconfig.c) into one struct, bounded and checked for consistency. Families read this and never
 * the files' own keys.
 *
 * Thread: plain values.  Owner: the holder; no pointers inside.
 */
#ifndef HY_MODEL_HPARAMS_H
#define HY_MODEL_HPARAMS_H

#include "core/base/status.h"
#include "core/model/gguf.h"
#include "hal/backend.h"

enum {
    HY_MAX_LAYERS = 1024,
    HY_MAX_DIM = 1 << 20, /* any width */
    HY_MAX_HEADS = 4096,
    HY_MAX_HEAD_DIM = 8192,
    HY_MAX_VOCAB = 1 << 24,
    HY_MAX_CONTEXT = 1 << 30,
    HY_MAX_ROT = 1024, /* dimensions rotated */
};

typedef enum hy_rope_scaling {
    HY_ROPE_PLAIN,
    HY_ROPE_LINEAR,
    HY_ROPE_DYNAMIC,
    HY_ROPE_LLAMA3,
    HY_ROPE_YARN,
    HY_ROPE_LONGROPE,
} hy_rope_scaling;

/* How one kind of rotary embedding gets its angles (core/model/rope.c turns it into numbers). */
typedef struct hy_rope_params {
    double base;
    hy_rope_scaling scaling;
    double factor;
    double original;             /* context before the scaling; 0: not stated */
    double low_freq, high_freq;  /* llama3 */
    double beta_fast, beta_slow; /* yarn */
    double attention_factor;     /* 0: by formula */
    double mscale, mscale_all;   /* yarn; 0: not stated */
    bool no_truncate;            /* yarn: correction range kept unrounded */
    bool has_factors;            /* longrope: both arrays below; GGUF keeps them in tensors */
    float short_factor[HY_MAX_ROT / 2], long_factor[HY_MAX_ROT / 2];
    int32_t n_short, n_long;
} hy_rope_params;

typedef struct hy_hparams {
    char arch[32]; /* general.architecture or model_type, as the file has it */
    char name[128];
    int32_t n_layers, dim, ffn, heads, kv_heads, k_dim, v_dim;
    int32_t vocab;   /* 0: that of the embedding tensor (GGUF) */
    int32_t context; /* as trained */
    int32_t rot;     /* dimensions rotated, <= k_dim */
    float eps;
    hy_act_fn act;
    int tied;       /* output = embedding: 1 yes, 0 no, -1 when the output tensor is absent */
    bool attn_bias; /* the configuration asks for q, k, v biases */
    bool mlp_bias;
    int32_t experts; /* > 0: mixture of experts */
    int32_t window;  /* of sliding layers; 0: none slides */
    uint8_t sliding[HY_MAX_LAYERS];
    double attn_scale; /* 0: 1 / sqrt(k_dim) */
    float attn_softcap, final_softcap;
    hy_rope_params rope;
    hy_rope_params rope_local; /* sliding layers of families that have two */
} hy_hparams;

/* HY_OK when a family of that name is built in; HY_E_UNSUPPORTED names it and the known ones.
 * hf: a model_type, else a GGUF architecture (fam.c). */
hy_status hy_family_check(const char *arch, bool hf);

/* Fills hp from metadata. HY_E_FORMAT names key, value and bounds. */
hy_status hy_hparams_from_gguf(const hy_gguf *g, hy_hparams *hp);
/* Fills hp from the text of config.json. */
hy_status hy_hparams_from_hf(const char *text, size_t len, hy_hparams *hp);
/* Bounds and consistency that hold for every family. */
hy_status hy_hparams_check(const hy_hparams *hp);

#endif
