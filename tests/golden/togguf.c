/* SPDX-License-Identifier: Apache-2.0
 *
 * See togguf.h. The converter shares no code with the loader but the safetensors reader.
 *
 * Thread: one.  Owner: none.
 */
#include "tests/golden/togguf.h"

#include "core/base/buf.h"
#include "core/base/file.h"
#include "core/model/safetensors.h"
#include "hal/dtype.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct conv {
    const char *family; /* of the folder */
    const char *arch;   /* GGUF */
    json_t *cfg;
    hy_buf kv, info, data;
    uint64_t n_kv, n_tensors;
    int32_t heads, kv_heads, head_dim;
    int type;
} conv;

static void put(hy_buf *b, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        hy_buf_putc(b, (char)(v >> (8 * i)));
}

static void put_str(hy_buf *b, const char *s)
{
    put(b, strlen(s), 8);
    hy_buf_puts(b, s);
}

static void kv_key(conv *c, const char *key, uint32_t type)
{
    char full[128];
    snprintf(full, sizeof(full), "%s.%s", c->arch, key);
    put_str(&c->kv, strchr(key, ':') != NULL ? strchr(key, ':') + 1 : full);
    put(&c->kv, type, 4);
    c->n_kv++;
}

static void kv_u32(conv *c, const char *key, uint32_t v)
{
    kv_key(c, key, 4);
    put(&c->kv, v, 4);
}

static void kv_f32(conv *c, const char *key, double v)
{
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    kv_key(c, key, 6);
    put(&c->kv, u, 4);
}

static void kv_text(conv *c, const char *key, const char *v)
{
    kv_key(c, key, 8);
    put_str(&c->kv, v);
}

static void q8_row(hy_buf *b, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 32) {
        float peak = 0.0f;
        for (int k = 0; k < 32; k++)
            peak = fabsf(x[i + k]) > peak ? fabsf(x[i + k]) : peak;
        uint16_t d = hy_f32_to_f16(peak / 127.0f);
        float df = hy_f16_to_f32(d);
        put(b, d, 2);
        for (int k = 0; k < 32; k++)
            hy_buf_putc(b, (char)(int8_t)lrintf(df > 0.0f ? x[i + k] / df : 0.0f));
    }
}

/* rows of cols values; vectors are always f32. */
static void add_tensor(conv *c, const char *name, const float *x, int64_t rows, int64_t cols)
{
    int type = rows == 1 ? HY_F32 : c->type;
    if (type == HY_Q8_0 && cols % 32 != 0)
        type = HY_F32;
    while (c->data.len % 32 != 0)
        hy_buf_putc(&c->data, 0);
    put_str(&c->info, name);
    put(&c->info, rows == 1 ? 1 : 2, 4);
    put(&c->info, (uint64_t)cols, 8);
    if (rows != 1)
        put(&c->info, (uint64_t)rows, 8);
    put(&c->info, (uint64_t)type, 4);
    put(&c->info, c->data.len, 8);
    c->n_tensors++;
    for (int64_t r = 0; type == HY_Q8_0 && r < rows; r++)
        q8_row(&c->data, x + r * cols, cols);
    for (int64_t i = 0; type == HY_BF16 && i < rows * cols; i++)
        put(&c->data, hy_f32_to_bf16(x[i]), 2);
    if (type == HY_F32)
        hy_buf_add(&c->data, x, sizeof(float) * (size_t)(rows * cols));
}

static double num(conv *c, const char *key, double def)
{
    json_t *v = json_object_get(c->cfg, key);
    return json_is_number(v) ? json_number_value(v) : def;
}

/* Rows of each head from halves (i, i + hd/2) to pairs (2i, 2i + 1). */
static void permute(float *x, int32_t heads, int64_t rows, int64_t cols)
{
    int64_t hd = rows / heads;
    float *y = malloc(sizeof(float) * (size_t)(rows * cols));
    for (int32_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < hd; i++)
            memcpy(y + (h * hd + i) * cols, x + (h * hd + (i % 2) * (hd / 2) + i / 2) * cols,
                   sizeof(float) * (size_t)cols);
    memcpy(x, y, sizeof(float) * (size_t)(rows * cols));
    free(y);
}

static bool map_name(const conv *c, const char *hf, char *out, size_t cap)
{
    static const char *const map[][2] = {
        {"input_layernorm.weight", "attn_norm.weight"},
        {"self_attn.q_proj.", "attn_q."},
        {"self_attn.k_proj.", "attn_k."},
        {"self_attn.v_proj.", "attn_v."},
        {"self_attn.qkv_proj.", "attn_qkv."},
        {"self_attn.o_proj.", "attn_output."},
        {"self_attn.q_norm.", "attn_q_norm."},
        {"self_attn.k_norm.", "attn_k_norm."},
        {"mlp.gate_proj.", "ffn_gate."},
        {"mlp.up_proj.", "ffn_up."},
        {"mlp.gate_up_proj.", "ffn_up."},
        {"mlp.down_proj.", "ffn_down."},
        {"pre_feedforward_layernorm.", "ffn_norm."},
        {"post_feedforward_layernorm.", "post_ffw_norm."},
    };
    int layer = 0, at = 0;
    if (strcmp(hf, "model.embed_tokens.weight") == 0)
        snprintf(out, cap, "token_embd.weight");
    else if (strcmp(hf, "lm_head.weight") == 0)
        snprintf(out, cap, "output.weight");
    else if (strcmp(hf, "model.norm.weight") == 0)
        snprintf(out, cap, "output_norm.weight");
    else if (sscanf(hf, "model.layers.%d.%n", &layer, &at) == 1 && at > 0) {
        const char *rest = hf + at;
        if (strncmp(rest, "post_attention_layernorm.", 25) == 0) {
            snprintf(out, cap, "blk.%d.%s.weight", layer,
                     strcmp(c->family, "gemma3") == 0 ? "post_attention_norm" : "ffn_norm");
            return true;
        }
        for (size_t i = 0; i < HY_COUNTOF(map); i++) {
            size_t n = strlen(map[i][0]);
            if (strncmp(rest, map[i][0], n) == 0) {
                snprintf(out, cap, "blk.%d.%s%s", layer, map[i][1], rest + n);
                return true;
            }
        }
        return false;
    } else
        return false;
    return true;
}

static hy_status add_model(conv *c, const hy_safetensors *st)
{
    for (size_t i = 0; i < hy_safetensors_n(st); i++) {
        const hy_st_tensor *t = hy_safetensors_at(st, i);
        int64_t cols = t->dims[t->n_dims - 1], rows = t->n_dims > 1 ? t->dims[0] : 1;
        char name[128];
        if (!map_name(c, t->name, name, sizeof(name)))
            return hy_fail(HY_E_FORMAT, "no GGUF name for %s", t->name);
        float *x = malloc(sizeof(float) * (size_t)(rows * cols));
        hy_dtype_decode(t->type, t->data, x, rows * cols);
        bool q = strstr(name, "attn_q.") != NULL, k = strstr(name, "attn_k.") != NULL;
        if (strcmp(c->arch, "llama") == 0 && (q || k))
            permute(x, q ? c->heads : c->kv_heads, rows, cols);
        for (int64_t j = 0; strcmp(c->arch, "gemma3") == 0 && rows == 1 && j < cols; j++)
            x[j] = 1.0f + x[j];
        add_tensor(c, name, x, rows, cols);
        free(x);
    }
    return HY_OK;
}

static void add_factors(conv *c, const char *key, const char *name)
{
    float f[64];
    json_t *a = json_object_get(json_object_get(c->cfg, "rope_scaling"), key);
    for (size_t i = 0; i < json_array_size(a); i++)
        f[i] = (float)json_number_value(json_array_get(a, i));
    if (json_array_size(a) > 0)
        add_tensor(c, name, f, 1, (int64_t)json_array_size(a));
}

/* llama3 scaling as divisors of the frequencies. */
static void add_llama3(conv *c)
{
    json_t *s = json_object_get(c->cfg, "rope_scaling");
    double factor = json_number_value(json_object_get(s, "factor"));
    double lo = json_number_value(json_object_get(s, "low_freq_factor"));
    double hi = json_number_value(json_object_get(s, "high_freq_factor"));
    double old = json_number_value(json_object_get(s, "original_max_position_embeddings"));
    float f[64];
    for (int32_t i = 0; i < c->head_dim / 2; i++) {
        double wave =
            2.0 * 3.14159265358979323846 * pow(num(c, "rope_theta", 1e4), 2.0 * i / c->head_dim);
        double smooth = (old / wave - lo) / (hi - lo);
        f[i] = wave < old / hi   ? 1.0f
               : wave > old / lo ? (float)factor
                                 : (float)(1.0 / ((1.0 - smooth) / factor + smooth));
    }
    add_tensor(c, "rope_freqs.weight", f, 1, c->head_dim / 2);
}

static void add_numbers(conv *c)
{
    json_t *s = json_object_get(c->cfg, "rope_scaling");
    const char *type = json_string_value(json_object_get(s, "rope_type"));
    kv_text(c, "x:general.architecture", c->arch);
    kv_text(c, "x:general.name", "a tiny test model");
    kv_u32(c, "block_count", (uint32_t)num(c, "num_hidden_layers", 0));
    kv_u32(c, "context_length", (uint32_t)num(c, "max_position_embeddings", 0));
    kv_u32(c, "embedding_length", (uint32_t)num(c, "hidden_size", 0));
    kv_u32(c, "feed_forward_length", (uint32_t)num(c, "intermediate_size", 0));
    kv_u32(c, "attention.head_count", (uint32_t)c->heads);
    kv_u32(c, "attention.head_count_kv", (uint32_t)c->kv_heads);
    kv_u32(c, "attention.key_length", (uint32_t)c->head_dim);
    kv_u32(c, "attention.value_length", (uint32_t)c->head_dim);
    kv_f32(c, "attention.layer_norm_rms_epsilon", num(c, "rms_norm_eps", 0));
    kv_f32(c, "rope.freq_base", num(c, "rope_theta", 0));
    if (json_is_number(json_object_get(c->cfg, "sliding_window")))
        kv_u32(c, "attention.sliding_window", (uint32_t)num(c, "sliding_window", 0));
    if (type != NULL && strcmp(type, "linear") == 0) {
        kv_text(c, "rope.scaling.type", "linear");
        kv_f32(c, "rope.scaling.factor", json_number_value(json_object_get(s, "factor")));
    }
    if (strcmp(c->family, "phi3") == 0)
        kv_u32(c, "rope.scaling.original_context_length",
               (uint32_t)num(c, "original_max_position_embeddings", 0));
    if (strcmp(c->family, "gemma3") == 0) /* the tiny one has a scale of its own */
        kv_f32(c, "attention.scale", 1.0 / sqrt(num(c, "query_pre_attn_scalar", 0)));
    if (type != NULL && strcmp(type, "llama3") == 0)
        add_llama3(c);
    add_factors(c, "short_factor", "rope_factors_short.weight");
    add_factors(c, "long_factor", "rope_factors_long.weight");
}

static hy_status write_all(conv *c, const char *out)
{
    hy_buf f;
    hy_buf_init(&f);
    hy_buf_puts(&f, "GGUF");
    put(&f, 3, 4);
    put(&f, c->n_tensors, 8);
    put(&f, c->n_kv, 8);
    hy_buf_add(&f, c->kv.data, c->kv.len);
    hy_buf_add(&f, c->info.data, c->info.len);
    while (f.len % 32 != 0)
        hy_buf_putc(&f, 0);
    hy_buf_add(&f, c->data.data, c->data.len);
    hy_status st = hy_file_write(out, f.data, f.len, 0644);
    hy_buf_fini(&f);
    return st;
}

hy_status togguf(const char *dir, const char *family, const char *type, const char *out)
{
    char path[1024];
    conv c = {.family = family};
    snprintf(path, sizeof(path), "%s/config.json", dir);
    c.cfg = json_load_file(path, 0, NULL);
    if (c.cfg == NULL)
        return hy_fail(HY_E_NOTFOUND, "%s is missing", path);
    c.arch = strncmp(family, "llama", 5) == 0 ? "llama" : family;
    hy_dtype t = HY_F32;
    hy_safetensors *st = NULL;
    hy_status r = hy_dtype_parse(type, &t);
    c.type = t;
    c.heads = (int32_t)num(&c, "num_attention_heads", 1);
    c.kv_heads = (int32_t)num(&c, "num_key_value_heads", c.heads);
    c.head_dim = (int32_t)num(&c, "head_dim", num(&c, "hidden_size", 0) / c.heads);
    hy_buf_init(&c.kv);
    hy_buf_init(&c.info);
    hy_buf_init(&c.data);
    if (r >= 0)
        r = hy_safetensors_open_dir(dir, &st);
    if (r >= 0) {
        add_numbers(&c);
        r = add_model(&c, st);
    }
    if (r >= 0)
        r = write_all(&c, out);
    hy_safetensors_close(st);
    hy_buf_fini(&c.kv);
    hy_buf_fini(&c.info);
    hy_buf_fini(&c.data);
    json_decref(c.cfg);
    return r;
}
