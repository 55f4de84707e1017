/* SPDX-License-Identifier: Apache-2.0
 *
 * One view of a model on disk, whether GGUF or Hugging Face folder: its numbers, and its tensors
 * by role ("the query matrix of layer 3") whatever the format calls them.
 *
 * Thread: one (load).  Owner: hy_source_close; tensors and names are borrowed from it.
 */
#ifndef HY_MODEL_SOURCE_H
#define HY_MODEL_SOURCE_H

#include "core/base/hash.h"
#include "core/model/gguf.h"
#include "core/model/hparams.h"
#include "core/model/safetensors.h"

typedef struct hy_tensor {
    char *name;
    const char *type_name;
    int type; /* hy_dtype, or -1: known to the format, not to us */
    int n_dims;
    int64_t rows, cols; /* matrix [rows][cols]; a vector is one row; more dimensions fold to rows */
    int64_t elements;
    const void *data;
    size_t bytes;
    bool used; /* the family took it */
    bool digested;
    uint8_t digest[HY_XXH128_LEN]; /* of its bytes */
    const hy_gguf_tensor *gguf;
} hy_tensor;

typedef enum hy_role {
    HY_R_EMBED,
    HY_R_OUTPUT,
    HY_R_OUT_NORM,
    HY_R_ATTN_NORM,
    HY_R_Q,
    HY_R_K,
    HY_R_V,
    HY_R_QKV,
    HY_R_Q_BIAS,
    HY_R_K_BIAS,
    HY_R_V_BIAS,
    HY_R_Q_NORM,
    HY_R_K_NORM,
    HY_R_O,
    HY_R_O_BIAS,
    HY_R_ATTN_POST_NORM, /* gemma: after the output product */
    HY_R_FFN_NORM,
    HY_R_FFN_PRE_NORM, /* gemma's name of it */
    HY_R_GATE,
    HY_R_UP,
    HY_R_GATE_UP, /* fused, gate rows first */
    HY_R_DOWN,
    HY_R_GATE_BIAS,
    HY_R_UP_BIAS,
    HY_R_DOWN_BIAS,
    HY_R_FFN_POST_NORM,
    HY_R_ROPE_FREQS, /* GGUF: divisors of the frequencies (llama3) */
    HY_R_ROPE_LONG,  /* GGUF: longrope */
    HY_R_ROPE_SHORT,
    HY_R_COUNT
} hy_role;

typedef struct hy_source {
    bool hf;
    char *path;
    hy_gguf *gguf;
    hy_safetensors *st;
    hy_hparams hp;
    char prefix[32];    /* HF: before "embed_tokens.weight" */
    hy_tensor *tensors; /* sorted by name */
    size_t n_tensors;
    size_t tensor_bytes;
} hy_source;

/* path: file or folder. On failure *s is empty and needs no close. */
hy_status hy_source_open(const char *path, hy_source *s);
void hy_source_close(hy_source *s);
/* Put "model PATH: " before the recorded text, unless it names the file already; returns st. */
hy_status hy_source_fail(hy_status st, const char *path);
/* NULL when absent. */
hy_tensor *hy_source_find(const hy_source *s, const char *name);
/* The tensor's name in this source; layer is ignored by roles outside layers. False: the format
 * has no such role. */
bool hy_source_name(const hy_source *s, hy_role role, int32_t layer, char *out, size_t cap);
/* The family takes it: its bytes are digested, once. */
void hy_source_use(hy_tensor *t);
/* Give the pages of a tensor back to the system; they come again from the file if touched. */
void hy_source_drop(const hy_source *s, const hy_tensor *t);

#endif
