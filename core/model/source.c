/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a GGUF file or a Hugging Face folder and makes one sorted table of its tensors, with the
 * names that either format gives to each role.
 *
 * Thread: one (load).  Owner: hy_source owns readers and names.
 */
#include "core/model/source.h"

#include "core/base/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CONFIG_MAX = 16 << 20, NAME_SHOWN = 96 };

/* %d is the layer; NULL: the format has no such tensor. HF names stand after the prefix. */
static const struct {
    const char *gguf, *hf;
} names[HY_R_COUNT] = {
    [HY_R_EMBED] = {"token_embd.weight", "embed_tokens.weight"},
    [HY_R_OUTPUT] = {"output.weight", "lm_head.weight"},
    [HY_R_OUT_NORM] = {"output_norm.weight", "norm.weight"},
    [HY_R_ATTN_NORM] = {"blk.%d.attn_norm.weight", "layers.%d.input_layernorm.weight"},
    [HY_R_Q] = {"blk.%d.attn_q.weight", "layers.%d.self_attn.q_proj.weight"},
    [HY_R_K] = {"blk.%d.attn_k.weight", "layers.%d.self_attn.k_proj.weight"},
    [HY_R_V] = {"blk.%d.attn_v.weight", "layers.%d.self_attn.v_proj.weight"},
    [HY_R_QKV] = {"blk.%d.attn_qkv.weight", "layers.%d.self_attn.qkv_proj.weight"},
    [HY_R_Q_BIAS] = {"blk.%d.attn_q.bias", "layers.%d.self_attn.q_proj.bias"},
    [HY_R_K_BIAS] = {"blk.%d.attn_k.bias", "layers.%d.self_attn.k_proj.bias"},
    [HY_R_V_BIAS] = {"blk.%d.attn_v.bias", "layers.%d.self_attn.v_proj.bias"},
    [HY_R_Q_NORM] = {"blk.%d.attn_q_norm.weight", "layers.%d.self_attn.q_norm.weight"},
    [HY_R_K_NORM] = {"blk.%d.attn_k_norm.weight", "layers.%d.self_attn.k_norm.weight"},
    [HY_R_O] = {"blk.%d.attn_output.weight", "layers.%d.self_attn.o_proj.weight"},
    [HY_R_O_BIAS] = {"blk.%d.attn_output.bias", "layers.%d.self_attn.o_proj.bias"},
    [HY_R_ATTN_POST_NORM] = {"blk.%d.post_attention_norm.weight",
                             "layers.%d.post_attention_layernorm.weight"},
    [HY_R_FFN_NORM] = {"blk.%d.ffn_norm.weight", "layers.%d.post_attention_layernorm.weight"},
    [HY_R_FFN_PRE_NORM] = {"blk.%d.ffn_norm.weight", "layers.%d.pre_feedforward_layernorm.weight"},
    [HY_R_GATE] = {"blk.%d.ffn_gate.weight", "layers.%d.mlp.gate_proj.weight"},
    [HY_R_UP] = {"blk.%d.ffn_up.weight", "layers.%d.mlp.up_proj.weight"},
    [HY_R_GATE_UP] = {"blk.%d.ffn_up.weight", "layers.%d.mlp.gate_up_proj.weight"},
    [HY_R_DOWN] = {"blk.%d.ffn_down.weight", "layers.%d.mlp.down_proj.weight"},
    [HY_R_GATE_BIAS] = {"blk.%d.ffn_gate.bias", "layers.%d.mlp.gate_proj.bias"},
    [HY_R_UP_BIAS] = {"blk.%d.ffn_up.bias", "layers.%d.mlp.up_proj.bias"},
    [HY_R_DOWN_BIAS] = {"blk.%d.ffn_down.bias", "layers.%d.mlp.down_proj.bias"},
    [HY_R_FFN_POST_NORM] = {"blk.%d.post_ffw_norm.weight",
                            "layers.%d.post_feedforward_layernorm.weight"},
    [HY_R_ROPE_FREQS] = {"rope_freqs.weight", NULL},
    [HY_R_ROPE_LONG] = {"rope_factors_long.weight", NULL},
    [HY_R_ROPE_SHORT] = {"rope_factors_short.weight", NULL},
};

static void put_layer(const char *fmt, const char *prefix, int32_t layer, char *out, size_t cap)
{
    const char *at = strstr(fmt, "%d");
    if (at == NULL)
        snprintf(out, cap, "%s%s", prefix, fmt);
    else
        snprintf(out, cap, "%s%.*s%" PRId32 "%s", prefix, (int)(at - fmt), fmt, layer, at + 2);
}

bool hy_source_name(const hy_source *s, hy_role role, int32_t layer, char *out, size_t cap)
{
    const char *fmt = s->hf ? names[role].hf : names[role].gguf;
    if (fmt == NULL)
        return false;
    put_layer(fmt, s->hf && role != HY_R_OUTPUT ? s->prefix : "", layer, out, cap);
    if (s->hf && role == HY_R_OUTPUT && hy_source_find(s, out) == NULL &&
        strncmp(s->prefix, "language_model.", 15) == 0)
        snprintf(out, cap, "language_model.%s", fmt);
    return true;
}

static int cmp_tensor(const void *a, const void *b)
{
    return strcmp(((const hy_tensor *)a)->name, ((const hy_tensor *)b)->name);
}

hy_tensor *hy_source_find(const hy_source *s, const char *name)
{
    hy_tensor want = {.name = (char *)(uintptr_t)name};
    if (s->n_tensors == 0)
        return NULL;
    return bsearch(&want, s->tensors, s->n_tensors, sizeof(want), cmp_tensor);
}

static hy_status table_gguf(hy_source *s)
{
    s->n_tensors = 0;
    size_t n = hy_gguf_n_tensors(s->gguf);
    s->tensors = calloc(n + 1, sizeof(s->tensors[0]));
    if (s->tensors == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a table of %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const hy_gguf_tensor *g = hy_gguf_tensor_at(s->gguf, i);
        hy_tensor *t = &s->tensors[i];
        t->name = strndup(g->name.p, g->name.len);
        if (t->name == NULL)
            return hy_fail(HY_E_NOMEM, "no memory for tensor names");
        t->type = (int)g->type;
        t->type_name = hy_dtype_name((int)g->type);
        t->n_dims = g->n_dims;
        t->cols = g->dims[0];
        t->rows = g->dims[1] * g->dims[2] * g->dims[3]; /* the reader has bounded the product */
        t->elements = t->rows * t->cols;
        t->data = g->data;
        t->bytes = g->bytes;
        t->gguf = g;
        s->n_tensors++;
        s->tensor_bytes += t->bytes;
    }
    return HY_OK;
}

static hy_status table_hf(hy_source *s)
{
    size_t n = hy_safetensors_n(s->st);
    s->tensors = calloc(n + 1, sizeof(s->tensors[0]));
    if (s->tensors == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a table of %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const hy_st_tensor *g = hy_safetensors_at(s->st, i);
        hy_tensor *t = &s->tensors[i];
        t->name = strdup(g->name);
        if (t->name == NULL)
            return hy_fail(HY_E_NOMEM, "no memory for tensor names");
        t->type = g->type;
        t->type_name = g->type_name;
        t->n_dims = g->n_dims;
        t->cols = g->n_dims > 0 ? g->dims[g->n_dims - 1] : 1;
        t->rows = 1;
        for (int d = 0; d + 1 < g->n_dims; d++)
            t->rows *= g->dims[d];
        t->elements = t->rows * t->cols;
        t->data = g->data;
        t->bytes = g->bytes;
        s->n_tensors++;
        s->tensor_bytes += t->bytes;
    }
    return HY_OK;
}

/* Where a folder's language model has its tensors. */
static hy_status find_prefix(hy_source *s)
{
    static const char *const known[] = {"model.", "language_model.model.", "model.language_model.",
                                        ""};
    char name[NAME_SHOWN];
    for (size_t i = 0; i < HY_COUNTOF(known); i++) {
        snprintf(name, sizeof(name), "%sembed_tokens.weight", known[i]);
        if (hy_source_find(s, name) != NULL) {
            snprintf(s->prefix, sizeof(s->prefix), "%s", known[i]);
            return HY_OK;
        }
    }
    return hy_fail(HY_E_FORMAT, "tensor model.embed_tokens.weight is missing");
}

static void base_name(const char *path, char *out, size_t cap)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t b = n;
    while (b > 0 && path[b - 1] != '/')
        b--;
    snprintf(out, cap, "%.*s", (int)(n - b), path + b);
}

static hy_status open_hf(hy_source *s)
{
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/config.json", s->path);
    if (n < 0 || (size_t)n >= sizeof(path))
        return hy_fail(HY_E_LIMIT, "path too long: %.80s...", path);
    s->hf = true;
    if (!hy_file_exists(path))
        return hy_fail(HY_E_NOTFOUND,
                       "no config.json: neither a GGUF file nor a Hugging Face folder");
    hy_buf text;
    hy_buf_init(&text);
    hy_status st = hy_file_read(path, CONFIG_MAX, &text);
    if (st >= 0)
        st = hy_hparams_from_hf(hy_buf_str(&text), text.len, &s->hp);
    hy_buf_fini(&text);
    HY_TRY(st);
    HY_TRY(hy_safetensors_open_dir(s->path, &s->st));
    HY_TRY(table_hf(s));
    return find_prefix(s);
}

static hy_status open_any(hy_source *s, const char *path)
{
    s->path = strdup(path);
    if (s->path == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a path");
    if (hy_file_is_dir(path)) {
        HY_TRY(open_hf(s));
    } else {
        HY_TRY(hy_gguf_open(path, &s->gguf));
        HY_TRY(hy_hparams_from_gguf(s->gguf, &s->hp));
        HY_TRY(table_gguf(s));
        qsort(s->tensors, s->n_tensors, sizeof(s->tensors[0]), cmp_tensor);
    }
    if (s->hp.name[0] == '\0')
        base_name(path, s->hp.name, sizeof(s->hp.name));
    return HY_OK;
}

hy_status hy_source_open(const char *path, hy_source *s)
{
    memset(s, 0, sizeof(*s));
    hy_status st = open_any(s, path);
    if (st < 0)
        hy_source_close(s);
    return st;
}

void hy_source_close(hy_source *s)
{
    for (size_t i = 0; s->tensors != NULL && i < s->n_tensors; i++)
        free(s->tensors[i].name);
    free(s->tensors);
    hy_gguf_close(s->gguf);
    hy_safetensors_close(s->st);
    free(s->path);
    memset(s, 0, sizeof(*s));
}

hy_status hy_source_fail(hy_status st, const char *path)
{
    if (strncmp(hy_fail_text(), path, strlen(path)) == 0)
        return hy_fail_in(st, "model ");
    return hy_fail_in(st, "model %s: ", path);
}

void hy_source_use(hy_tensor *t)
{
    t->used = true;
    if (!t->digested)
        hy_xxh128(t->data, t->bytes, t->digest);
    t->digested = true;
}

void hy_source_drop(const hy_source *s, const hy_tensor *t)
{
    if (t->gguf != NULL) {
        hy_gguf_drop_pages(s->gguf, t->gguf);
        return;
    }
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t lo = ((uintptr_t)t->data + page - 1) & ~(page - 1);
    uintptr_t hi = ((uintptr_t)t->data + t->bytes) & ~(page - 1);
    if (hi > lo)
        madvise((void *)lo, hi - lo, MADV_DONTNEED); /* a hint: failure costs memory only */
}
