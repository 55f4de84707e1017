/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json of a Hugging Face folder to numbers. Both generations of keys are read: rope_theta
 * with rope_scaling, and rope_parameters (flat, or one set for each kind of layer); multimodal
 * configurations keep the language model's keys in text_config.
 *
 * Thread: any.  Owner: nothing kept.
 * Source: transformers' configuration classes (defaults) and modeling_rope_utils (keys).
 */
#include "core/model/hparams.h"

#include <jansson.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct cfg {
    json_t *j; /* text_config or the root */
    json_t *root;
} cfg;

static json_t *get(const cfg *c, const char *key)
{
    json_t *v = json_object_get(c->j, key);
    if (v == NULL)
        v = json_object_get(c->root, key);
    return json_is_null(v) ? NULL : v;
}

/* What a configuration that leaves a key out means, where families differ. */
typedef struct defaults {
    const char *arch; /* its beginning */
    int32_t context, head_dim, window, original;
    double eps;
} defaults;

static const defaults *defaults_of(const char *arch)
{
    static const defaults table[] = {
        {"gemma3", 131072, 256, 4096, 0, 1e-6}, {"mistral", 131072, 0, 4096, 0, 1e-6},
        {"qwen2", 32768, 0, 4096, 0, 1e-6},     {"qwen3", 32768, 128, 4096, 0, 1e-6},
        {"phi3", 4096, 0, 0, 4096, 1e-5},       {"", 2048, 0, 0, 0, 1e-6},
    };
    const defaults *d = table;
    while (strncmp(arch, d->arch, strlen(d->arch)) != 0)
        d++;
    return d;
}

/* A whole number within [lo, hi]; absent: def, or an error when def < lo. */
static hy_status get_int(const cfg *c, const char *key, int64_t lo, int64_t hi, int64_t def,
                         int32_t *out)
{
    json_t *v = get(c, key);
    if (v == NULL) {
        if (def < lo)
            return hy_fail(HY_E_FORMAT, "config.json lacks \"%s\"", key);
        *out = (int32_t)def;
        return HY_OK;
    }
    double d = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(d >= (double)lo && d <= (double)hi) || d != floor(d))
        return hy_fail(HY_E_FORMAT,
                       "config.json: \"%s\" must be a whole number from %" PRId64 " to %" PRId64,
                       key, lo, hi);
    *out = (int32_t)d;
    return HY_OK;
}

static hy_status num_of(json_t *obj, const char *key, double lo, double hi, double def, double *out)
{
    json_t *v = json_object_get(obj, key);
    if (v == NULL || json_is_null(v)) {
        *out = def;
        return HY_OK;
    }
    double d = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(d >= lo && d <= hi))
        return hy_fail(HY_E_FORMAT, "config.json: \"%s\" must be a number from %g to %g", key, lo,
                       hi);
    *out = d;
    return HY_OK;
}

static hy_status get_num(const cfg *c, const char *key, double lo, double hi, double def,
                         double *out)
{
    return num_of(get(c, key) != NULL && json_object_get(c->j, key) == NULL ? c->root : c->j, key,
                  lo, hi, def, out);
}

static hy_status get_bool(const cfg *c, const char *key, bool def, bool *out)
{
    json_t *v = get(c, key);
    if (v != NULL && !json_is_boolean(v))
        return hy_fail(HY_E_FORMAT, "config.json: \"%s\" must be true or false", key);
    *out = v != NULL ? json_is_true(v) : def;
    return HY_OK;
}

static hy_status get_factors(json_t *obj, const char *key, float *f, int32_t *n_out)
{
    json_t *a = json_object_get(obj, key);
    size_t n = json_array_size(a);
    if (n == 0 || n > HY_MAX_ROT / 2)
        return hy_fail(HY_E_FORMAT, "config.json: longrope needs \"%s\", a list of 1 to %d numbers",
                       key, HY_MAX_ROT / 2);
    for (size_t i = 0; i < n; i++) {
        json_t *v = json_array_get(a, i);
        double d = json_is_number(v) ? json_number_value(v) : NAN;
        if (!(d > 1e-6 && d < 1e6))
            return hy_fail(HY_E_FORMAT, "config.json: \"%s\" holds an impossible factor", key);
        f[i] = (float)d;
    }
    *n_out = (int32_t)n;
    return HY_OK;
}

static hy_status scaling_kind(json_t *s, hy_rope_scaling *out)
{
    static const struct {
        const char *name;
        hy_rope_scaling kind;
    } kinds[] = {
        {"default", HY_ROPE_PLAIN}, {"linear", HY_ROPE_LINEAR}, {"dynamic", HY_ROPE_DYNAMIC},
        {"llama3", HY_ROPE_LLAMA3}, {"yarn", HY_ROPE_YARN},     {"longrope", HY_ROPE_LONGROPE},
        {"su", HY_ROPE_LONGROPE},
    };
    json_t *t = json_object_get(s, "rope_type");
    if (t == NULL)
        t = json_object_get(s, "type");
    if (t == NULL) {
        *out = HY_ROPE_PLAIN;
        return HY_OK;
    }
    const char *name = json_string_value(t);
    for (size_t i = 0; name != NULL && i < HY_COUNTOF(kinds); i++) {
        if (strcmp(name, kinds[i].name) == 0) {
            *out = kinds[i].kind;
            return HY_OK;
        }
    }
    return hy_fail(HY_E_UNSUPPORTED,
                   "config.json: rope type \"%.40s\" is not supported; known are default, linear, "
                   "dynamic, llama3, yarn, longrope",
                   name != NULL ? name : "(not a string)");
}

/* s: the scaling object, or NULL for none. */
static hy_status read_scaling(const cfg *c, json_t *s, const hy_hparams *hp, hy_rope_params *r)
{
    const int32_t context = hp->context;
    if (s == NULL)
        return HY_OK;
    if (!json_is_object(s))
        return hy_fail(HY_E_FORMAT, "config.json: rope scaling is not an object");
    HY_TRY(scaling_kind(s, &r->scaling));
    HY_TRY(num_of(s, "rope_theta", 1.0, 1e15, r->base, &r->base));
    double outer = 0.0;
    HY_TRY(get_num(c, "original_max_position_embeddings", 1, HY_MAX_CONTEXT,
                   defaults_of(hp->arch)->original, &outer));
    HY_TRY(num_of(s, "original_max_position_embeddings", 1, HY_MAX_CONTEXT, outer, &r->original));
    double ratio = r->original > 0 ? context / r->original : 0.0;
    HY_TRY(num_of(s, "factor", 1.0, 1e6, 0.0, &r->factor));
    HY_TRY(num_of(s, "low_freq_factor", 1e-6, 1e6, 1.0, &r->low_freq));
    HY_TRY(num_of(s, "high_freq_factor", 1e-6, 1e6, 4.0, &r->high_freq));
    HY_TRY(num_of(s, "beta_fast", 1e-6, 1e6, 32.0, &r->beta_fast));
    HY_TRY(num_of(s, "beta_slow", 1e-6, 1e6, 1.0, &r->beta_slow));
    HY_TRY(num_of(s, "attention_factor", 1e-6, 1e6, 0.0, &r->attention_factor));
    HY_TRY(num_of(s, "mscale", 0.0, 1e6, 0.0, &r->mscale));
    HY_TRY(num_of(s, "mscale_all_dim", 0.0, 1e6, 0.0, &r->mscale_all));
    r->no_truncate = json_is_false(json_object_get(s, "truncate"));
    if (r->factor == 0.0 || (r->scaling == HY_ROPE_LONGROPE && outer > 0))
        r->factor = ratio;
    if (r->scaling == HY_ROPE_LONGROPE) {
        HY_TRY(get_factors(s, "short_factor", r->short_factor, &r->n_short));
        HY_TRY(get_factors(s, "long_factor", r->long_factor, &r->n_long));
        r->has_factors = true;
    }
    if (r->scaling != HY_ROPE_PLAIN && r->factor <= 0.0)
        return hy_fail(HY_E_FORMAT, "config.json: rope scaling lacks \"factor\"");
    if (r->original == 0.0)
        r->original = context;
    if (r->scaling == HY_ROPE_LLAMA3 && r->high_freq <= r->low_freq)
        return hy_fail(HY_E_FORMAT,
                       "config.json: \"high_freq_factor\" must be above \"low_freq_factor\"");
    return HY_OK;
}

static hy_status read_rope(const cfg *c, hy_hparams *hp)
{
    HY_TRY(get_num(c, "rope_theta", 1.0, 1e15, strncmp(hp->arch, "gemma3", 6) ? 1e4 : 1e6,
                   &hp->rope.base));
    HY_TRY(get_num(c, "rope_local_base_freq", 1.0, 1e15, 1e4, &hp->rope_local.base));
    json_t *s = get(c, "rope_parameters"), *local = NULL;
    if (json_is_object(json_object_get(s, "full_attention"))) {
        local = json_object_get(s, "sliding_attention");
        s = json_object_get(s, "full_attention");
    }
    if (s == NULL)
        s = get(c, "rope_scaling");
    HY_TRY(read_scaling(c, s, hp, &hp->rope));
    HY_TRY(read_scaling(c, local, hp, &hp->rope_local));
    double part = 1.0;
    HY_TRY(get_num(c, "partial_rotary_factor", 0.01, 1.0, 1.0, &part));
    HY_TRY(num_of(s, "partial_rotary_factor", 0.01, 1.0, part, &part));
    hp->rot = (int32_t)(hp->k_dim * part);
    return HY_OK;
}

static hy_status read_act(const cfg *c, hy_hparams *hp)
{
    static const struct {
        const char *name;
        hy_act_fn fn;
    } acts[] = {
        {"silu", HY_ACT_SILU},          {"swish", HY_ACT_SILU},
        {"gelu", HY_ACT_GELU_ERF},      {"gelu_pytorch_tanh", HY_ACT_GELU_TANH},
        {"gelu_new", HY_ACT_GELU_TANH}, {"relu", HY_ACT_RELU},
    };
    bool gemma = strncmp(hp->arch, "gemma", 5) == 0;
    json_t *v = get(c, "hidden_activation");
    if (v == NULL && !gemma)
        v = get(c, "hidden_act");
    const char *name = v == NULL ? (gemma ? "gelu_pytorch_tanh" : "silu") : json_string_value(v);
    for (size_t i = 0; name != NULL && i < HY_COUNTOF(acts); i++) {
        if (strcmp(name, acts[i].name) == 0) {
            hp->act = acts[i].fn;
            return HY_OK;
        }
    }
    return hy_fail(HY_E_UNSUPPORTED, "config.json: activation \"%.40s\" is not supported",
                   name != NULL ? name : "(not a string)");
}

/* Which layers see only a window. */
static hy_status read_windows(const cfg *c, hy_hparams *hp)
{
    bool gemma = strncmp(hp->arch, "gemma3", 6) == 0, use = true;
    bool qwen = strncmp(hp->arch, "qwen", 4) == 0;
    int32_t pattern = 0, from = 0;
    /* null means that none slides */
    bool said = json_object_get(c->j, "sliding_window") != NULL;
    HY_TRY(get_int(c, "sliding_window", 0, HY_MAX_CONTEXT, said ? 0 : defaults_of(hp->arch)->window,
                   &hp->window));
    HY_TRY(get_bool(c, "use_sliding_window", !qwen, &use));
    if (!use || strcmp(hp->arch, "llama") == 0)
        hp->window = 0;
    HY_TRY(get_int(c, "_sliding_window_pattern", 1, HY_MAX_LAYERS, 6, &pattern));
    HY_TRY(get_int(c, "sliding_window_pattern", 1, HY_MAX_LAYERS, pattern, &pattern));
    if (qwen)
        HY_TRY(get_int(c, "max_window_layers", 0, HY_MAX_LAYERS, 28, &from));
    json_t *list = get(c, "layer_types");
    if (list != NULL && json_array_size(list) != (size_t)hp->n_layers)
        return hy_fail(HY_E_FORMAT, "config.json: \"layer_types\" must list all %d layers",
                       hp->n_layers);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        bool slides = gemma ? (i + 1) % pattern != 0 : i >= from;
        if (list != NULL) {
            const char *t = json_string_value(json_array_get(list, (size_t)i));
            slides = t != NULL && strcmp(t, "sliding_attention") == 0;
            if (!slides && (t == NULL || strcmp(t, "full_attention") != 0))
                return hy_fail(HY_E_UNSUPPORTED,
                               "config.json: layer type \"%.40s\" of layer %d is not supported",
                               t != NULL ? t : "(not a string)", i);
        }
        hp->sliding[i] = slides && hp->window > 0;
    }
    return HY_OK;
}

static hy_status read_sizes(const cfg *c, hy_hparams *hp)
{
    bool gemma = strncmp(hp->arch, "gemma3", 6) == 0; /* its configurations leave defaults out */
    const defaults *d = defaults_of(hp->arch);
    HY_TRY(get_int(c, "num_hidden_layers", 1, HY_MAX_LAYERS, 0, &hp->n_layers));
    HY_TRY(get_int(c, "hidden_size", 1, HY_MAX_DIM, 0, &hp->dim));
    HY_TRY(get_int(c, "intermediate_size", 1, HY_MAX_DIM, 0, &hp->ffn));
    HY_TRY(get_int(c, "num_attention_heads", 1, HY_MAX_HEADS, gemma ? 8 : 0, &hp->heads));
    HY_TRY(
        get_int(c, "num_key_value_heads", 1, HY_MAX_HEADS, gemma ? 4 : hp->heads, &hp->kv_heads));
    if (hp->dim < hp->heads && d->head_dim == 0 && get(c, "head_dim") == NULL)
        return hy_fail(HY_E_FORMAT,
                       "config.json: \"hidden_size\" %d is less than \"num_attention_heads\" %d",
                       hp->dim, hp->heads);
    HY_TRY(get_int(c, "head_dim", 1, HY_MAX_HEAD_DIM,
                   d->head_dim != 0 ? d->head_dim : hp->dim / hp->heads, &hp->k_dim));
    hp->v_dim = hp->k_dim;
    HY_TRY(get_int(c, "vocab_size", 1, HY_MAX_VOCAB, gemma ? 262208 : 0, &hp->vocab));
    return get_int(c, "max_position_embeddings", 1, HY_MAX_CONTEXT, d->context, &hp->context);
}

static hy_status read_rest(const cfg *c, hy_hparams *hp)
{
    bool gemma = strncmp(hp->arch, "gemma3", 6) == 0, b = false;
    double v = 0.0;
    HY_TRY(get_num(c, "rms_norm_eps", 0.0, 1.0, defaults_of(hp->arch)->eps, &v));
    hp->eps = (float)v;
    HY_TRY(get_bool(c, "tie_word_embeddings", gemma, &b));
    hp->tied = b ? 1 : 0;
    HY_TRY(get_bool(c, "attention_bias", false, &hp->attn_bias));
    HY_TRY(get_bool(c, "mlp_bias", false, &hp->mlp_bias));
    if (gemma) {
        HY_TRY(get_num(c, "query_pre_attn_scalar", 1e-6, 1e6, 256.0, &v));
        hp->attn_scale = 1.0 / sqrt(v);
    }
    HY_TRY(get_num(c, "attn_logit_softcapping", 0.0, 1e6, 0.0, &v));
    hp->attn_softcap = (float)v;
    HY_TRY(get_num(c, "final_logit_softcapping", 0.0, 1e6, 0.0, &v));
    hp->final_softcap = (float)v;
    HY_TRY(get_bool(c, "use_bidirectional_attention", false, &b));
    if (b)
        return hy_fail(HY_E_UNSUPPORTED, "config.json: \"use_bidirectional_attention\" is not "
                                         "supported: such a model does not generate text");
    HY_TRY(get_int(c, "num_local_experts", 0, 1 << 20, 0, &hp->experts));
    if (hp->experts == 0)
        HY_TRY(get_int(c, "num_experts", 0, 1 << 20, 0, &hp->experts));
    json_t *q = get(c, "quantization_config");
    if (q != NULL) {
        const char *m = json_string_value(json_object_get(q, "quant_method"));
        return hy_fail(HY_E_UNSUPPORTED,
                       "config.json: weights quantized by \"%.40s\" are not supported in a folder; "
                       "use a GGUF file",
                       m != NULL ? m : "?");
    }
    return HY_OK;
}

static hy_status read_all(const cfg *c, hy_hparams *hp)
{
    const char *type = json_string_value(json_object_get(c->j, "model_type"));
    if (type == NULL)
        type = json_string_value(json_object_get(c->root, "model_type"));
    if (type == NULL)
        return hy_fail(HY_E_FORMAT, "config.json lacks \"model_type\"");
    snprintf(hp->arch, sizeof(hp->arch), "%s", type);
    return HY_OK;
}

hy_status hy_hparams_from_hf(const char *text, size_t len, hy_hparams *hp)
{
    memset(hp, 0, sizeof(*hp));
    json_error_t err;
    json_t *root = json_loadb(text, len, 0, &err);
    if (root == NULL)
        return hy_fail(HY_E_FORMAT, "config.json, line %d: %s", err.line, err.text);
    cfg c = {root, root};
    json_t *inner = json_object_get(root, "text_config");
    if (json_is_object(inner))
        c.j = inner;
    hy_status st = json_is_object(root) ? read_all(&c, hp)
                                        : hy_fail(HY_E_FORMAT, "config.json is not an object");
    if (st >= 0 && inner != NULL && !json_is_null(inner) && c.j == root)
        st = hy_fail(HY_E_FORMAT, "config.json: \"text_config\" is not an object");
    /* an unknown family is named before its missing keys are */
    if (st >= 0)
        st = hy_family_check(hp->arch, true);
    if (st >= 0)
        st = read_sizes(&c, hp);
    if (st >= 0)
        st = read_rope(&c, hp);
    if (st >= 0)
        st = read_act(&c, hp);
    if (st >= 0)
        st = read_windows(&c, hp);
    if (st >= 0)
        st = read_rest(&c, hp);
    json_decref(root);
    return st < 0 ? st : hy_hparams_check(hp);
}
