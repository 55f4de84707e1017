/* SPDX-License-Identifier: Apache-2.0
 *
 * A loaded model: its numbers, its weights on one device, and its forward pass as a list of steps.
 * A family file (core/model/fam_*.c) turns a file's tensors into this list; core/exec runs it and
 * knows no family. Each step is marked attention-side or FFN-side, which is where AFD cuts.
 *
 * Thread: immutable after load; any.  Owner: hy_model_destroy frees steps, weights, mapping.
 */
#ifndef HY_MODEL_MODEL_H
#define HY_MODEL_MODEL_H

#include "core/base/status.h"
#include "hal/backend.h"

/* Layers that share block tables. */
typedef struct hy_kv_group {
    int32_t n_layers;
    int32_t n_heads;      /* KV heads */
    int32_t k_dim, v_dim; /* widths a head */
    int32_t window;       /* 0: full */
} hy_kv_group;

/* Angles of one kind of rotary embedding. angle(pos, i) = pos * inv_freq[i], both f32 as the
 * published implementations have them; cos and sin times mscale. */
typedef struct hy_rope_desc {
    hy_rope_kind kind;
    int32_t rot;          /* dimensions rotated */
    float *inv_freq;      /* [rot/2] */
    float *inv_freq_long; /* longrope: for requests longer than long_from; else NULL */
    int32_t long_from;    /* tokens; 0: never */
    float mscale, mscale_long;
} hy_rope_desc;

typedef enum hy_step_kind {
    HY_STEP_EMBED,    /* x = embed(ids) * scale */
    HY_STEP_ATTN_IN,  /* norm, QKV, q/k norms, rope, KV write */
    HY_STEP_ATTN_OUT, /* attention, output product, post norm, residual */
    HY_STEP_FFN,      /* norm, gate/up, act, down, post norm, residual */
    HY_STEP_MOE,      /* reserved: norm, route, experts */
    HY_STEP_HEAD,     /* last norm, logits */
} hy_step_kind;

typedef enum hy_side { HY_SIDE_ATTN, HY_SIDE_FFN } hy_side;

/* One step: the HAL's argument struct with all that is fixed at load; exec fills addresses, rows,
 * pools and scratch (fields x, q, rows, bt, pool, ws, m, logits, rope.cos/sin). */
typedef struct hy_step {
    hy_step_kind kind;
    hy_side side;
    int32_t layer;       /* of the model; -1 for embed and head */
    int32_t group;       /* KV group of attention steps */
    int32_t group_layer; /* layer within the group */
    int32_t rope;        /* index into ropes; -1: none */
    union {
        hy_embed embed;
        hy_attn_in attn_in;
        hy_attn_out attn_out;
        hy_ffn ffn;
        hy_head head;
    } u;
} hy_step;

typedef struct hy_model_cfg {
    char arch[32];  /* "llama", "qwen2", ... */
    char name[128]; /* general.name or the folder's */
    int32_t n_layers, dim, ffn, heads, kv_heads, k_dim, v_dim, vocab;
    int32_t context; /* as trained */
    float norm_eps;
    int64_t n_params;
    size_t weight_bytes; /* in the file */
    char quant[32];      /* e.g. "Q4_K_M"-like summary: "q4_k+q6_k" */
} hy_model_cfg;

typedef struct hy_model {
    hy_model_cfg cfg;
    hy_dev *dev;
    hy_step *steps;
    int32_t n_steps;
    hy_kv_group *groups;
    int32_t n_groups;
    hy_rope_desc *ropes;
    int32_t n_ropes;
    size_t device_bytes;     /* weights held by the device */
    uint8_t fingerprint[32]; /* of weights and config; exec adds KV type and numerics */
    void *priv;              /* loader's: mapping, weight list, f32 vectors */
} hy_model;

typedef struct hy_model_opts {
    hy_act_mode act;
    void (*progress)(void *arg, size_t done, size_t total); /* bytes; may be NULL */
    void *arg;
    bool check_only; /* hy_model_check's: no fingerprint */
} hy_model_opts;

/* path: a GGUF file, or a Hugging Face folder (config.json + safetensors). Errors name file and
 * tensor: HY_E_FORMAT, HY_E_UNSUPPORTED (family, type, op missing on this backend), HY_E_NOTFOUND.
 */
hy_status hy_model_load(const char *path, hy_dev *dev, const hy_model_opts *opts, hy_model **out);
void hy_model_destroy(hy_model *m);

/* Everything that loading would refuse whatever the backend: a tensor that the family needs is
 * missing, or has another shape or type. Weights are not read. */
hy_status hy_model_check(const char *path);

/* For `halyard inspect`: configuration, metadata and tensors as text, without loading weights. */
struct hy_buf;
hy_status hy_model_inspect(const char *path, bool tensors, struct hy_buf *out);

#endif
