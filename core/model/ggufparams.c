/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF metadata to numbers, and the checks that hold for every source of numbers.
 *
 * Thread: any.  Owner: nothing kept.
 * Source: the GGUF specification's list of standardized keys.
 */
#include "core/model/hparams.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct meta {
    const hy_gguf *g;
    const char *arch;
    char key[128];
} meta;

static const char *key_of(meta *m, const char *suffix)
{
    snprintf(m->key, sizeof(m->key), "%s.%s", m->arch, suffix);
    return m->key;
}

static hy_status get_int(meta *m, const char *suffix, int64_t lo, int64_t hi, int64_t def,
                         int32_t *out)
{
    int64_t v = 0;
    hy_status st = hy_gguf_get_i64(m->g, key_of(m, suffix), &v);
    if (st == HY_E_NOTFOUND && def >= lo) {
        *out = (int32_t)def;
        return HY_OK;
    }
    if (st == HY_E_NOTFOUND)
        return hy_fail(HY_E_FORMAT, "GGUF lacks the key \"%s\"", m->key);
    if (st < 0)
        return st;
    if (v < lo || v > hi)
        return hy_fail(HY_E_FORMAT,
                       "GGUF key \"%s\" is %" PRId64 ", outside %" PRId64 " to %" PRId64, m->key, v,
                       lo, hi);
    *out = (int32_t)v;
    return HY_OK;
}

static hy_status get_num(meta *m, const char *suffix, double lo, double hi, double def, double *out)
{
    double v = 0.0;
    hy_status st = hy_gguf_get_f64(m->g, key_of(m, suffix), &v);
    if (st == HY_E_NOTFOUND) {
        *out = def;
        return HY_OK;
    }
    if (st < 0)
        return st;
    if (!(v >= lo && v <= hi))
        return hy_fail(HY_E_FORMAT, "GGUF key \"%s\" is %g, outside %g to %g", m->key, v, lo, hi);
    *out = v;
    return HY_OK;
}

static hy_status read_scaling(meta *m, hy_hparams *hp)
{
    hy_rope_params *r = &hp->rope;
    hy_str type = {NULL, 0};
    hy_status st = hy_gguf_get_str(m->g, key_of(m, "rope.scaling.type"), &type);
    if (st < 0 && st != HY_E_NOTFOUND)
        return st;
    HY_TRY(get_num(m, "rope.scaling.factor", 0.0, 1e6, 0.0, &r->factor));
    HY_TRY(get_num(m, "rope.scaling.original_context_length", 0, HY_MAX_CONTEXT, 0, &r->original));
    HY_TRY(get_num(m, "rope.scaling.attn_factor", 0.0, 1e6, 0.0, &r->attention_factor));
    r->beta_fast = 32.0;
    r->beta_slow = 1.0;
    if (st == HY_E_NOTFOUND) {
        if (r->factor == 0.0) /* the key's old name */
            HY_TRY(get_num(m, "rope.scale_linear", 0.0, 1e6, 0.0, &r->factor));
        r->scaling = r->factor > 1.0 ? HY_ROPE_LINEAR : HY_ROPE_PLAIN;
    } else if (type.len == 4 && memcmp(type.p, "none", 4) == 0) {
        r->scaling = HY_ROPE_PLAIN;
    } else if (type.len == 6 && memcmp(type.p, "linear", 6) == 0) {
        r->scaling = HY_ROPE_LINEAR;
    } else if (type.len == 4 && memcmp(type.p, "yarn", 4) == 0) {
        r->scaling = HY_ROPE_YARN;
    } else if (type.len == 8 && memcmp(type.p, "longrope", 8) == 0) {
        r->scaling = HY_ROPE_LONGROPE;
    } else {
        return hy_fail(HY_E_UNSUPPORTED,
                       "GGUF key \"%s\": \"%.*s\" is not supported; known are none, linear, yarn, "
                       "longrope",
                       m->key, (int)(type.len < 40 ? type.len : 40), type.p);
    }
    if (r->scaling == HY_ROPE_YARN && r->original <= 0.0)
        return hy_fail(HY_E_FORMAT, "GGUF lacks the key \"%s\", which yarn needs",
                       key_of(m, "rope.scaling.original_context_length"));
    bool scaled = r->scaling == HY_ROPE_LINEAR || r->scaling == HY_ROPE_YARN;
    if (scaled && r->factor <= 0.0)
        return hy_fail(HY_E_FORMAT, "GGUF lacks the key \"%s\"", key_of(m, "rope.scaling.factor"));
    return HY_OK;
}

static hy_status read_windows(meta *m, hy_hparams *hp)
{
    bool gemma = strcmp(m->arch, "gemma3") == 0;
    HY_TRY(get_int(m, "attention.sliding_window", 0, HY_MAX_CONTEXT, 0, &hp->window));
    if (gemma && hp->window == 0)
        return hy_fail(HY_E_FORMAT, "GGUF lacks the key \"%s\"", m->key);
    int32_t pattern = 6;
    if (gemma)
        HY_TRY(get_int(m, "attention.sliding_window_pattern", 1, HY_MAX_LAYERS, 6, &pattern));
    for (int32_t i = 0; i < hp->n_layers; i++)
        hp->sliding[i] = hp->window > 0 && (!gemma || (i + 1) % pattern != 0);
    return HY_OK;
}

static hy_status read_arch(meta *m, hy_hparams *hp)
{
    hy_str s = {NULL, 0};
    hy_status st = hy_gguf_get_str(m->g, "general.architecture", &s);
    if (st == HY_E_NOTFOUND)
        return hy_fail(HY_E_FORMAT, "GGUF lacks the key \"general.architecture\"");
    HY_TRY(st);
    snprintf(hp->arch, sizeof(hp->arch), "%.*s", (int)(s.len < 31 ? s.len : 31), s.p);
    if (hy_gguf_get_str(m->g, "general.name", &s) == HY_OK)
        snprintf(hp->name, sizeof(hp->name), "%.*s", (int)(s.len < 127 ? s.len : 127), s.p);
    return HY_OK;
}

hy_status hy_hparams_from_gguf(const hy_gguf *g, hy_hparams *hp)
{
    memset(hp, 0, sizeof(*hp));
    meta m = {g, hp->arch, ""};
    HY_TRY(read_arch(&m, hp));
    HY_TRY(hy_family_check(hp->arch, false));
    HY_TRY(get_int(&m, "block_count", 1, HY_MAX_LAYERS, 0, &hp->n_layers));
    HY_TRY(get_int(&m, "embedding_length", 1, HY_MAX_DIM, 0, &hp->dim));
    HY_TRY(get_int(&m, "feed_forward_length", 1, HY_MAX_DIM, 0, &hp->ffn));
    HY_TRY(get_int(&m, "attention.head_count", 1, HY_MAX_HEADS, 0, &hp->heads));
    HY_TRY(get_int(&m, "attention.head_count_kv", 1, HY_MAX_HEADS, hp->heads, &hp->kv_heads));
    HY_TRY(
        get_int(&m, "attention.key_length", 1, HY_MAX_HEAD_DIM, hp->dim / hp->heads, &hp->k_dim));
    HY_TRY(
        get_int(&m, "attention.value_length", 1, HY_MAX_HEAD_DIM, hp->dim / hp->heads, &hp->v_dim));
    HY_TRY(get_int(&m, "context_length", 1, HY_MAX_CONTEXT, 0, &hp->context));
    HY_TRY(get_int(&m, "rope.dimension_count", 1, HY_MAX_ROT, hp->k_dim, &hp->rot));
    HY_TRY(get_int(&m, "expert_count", 0, 1 << 20, 0, &hp->experts));
    double v = 0.0;
    HY_TRY(get_num(&m, "attention.layer_norm_rms_epsilon", 0.0, 1.0, 1e-5, &v));
    hp->eps = (float)v;
    bool gemma = strcmp(hp->arch, "gemma3") == 0;
    HY_TRY(get_num(&m, "rope.freq_base", 1.0, 1e15, gemma ? 1e6 : 1e4, &hp->rope.base));
    HY_TRY(get_num(&m, "rope.freq_base_swa", 1.0, 1e15, 1e4, &hp->rope_local.base));
    HY_TRY(get_num(&m, "attention.scale", 1e-6, 1e6, 0.0, &hp->attn_scale));
    if (gemma && hp->attn_scale == 0.0 && hp->n_layers == 62) /* the 27B has no key for it */
        hp->attn_scale = 1.0 / sqrt((double)hp->dim / hp->heads);
    HY_TRY(get_num(&m, "attn_logit_softcapping", 0.0, 1e6, 0.0, &v));
    hp->attn_softcap = (float)v;
    HY_TRY(get_num(&m, "final_logit_softcapping", 0.0, 1e6, 0.0, &v));
    hp->final_softcap = (float)v;
    hp->tied = -1;
    hp->act = gemma ? HY_ACT_GELU_TANH : HY_ACT_SILU;
    HY_TRY(read_scaling(&m, hp));
    HY_TRY(read_windows(&m, hp));
    return hy_hparams_check(hp);
}

hy_status hy_hparams_check(const hy_hparams *hp)
{
    if (hp->heads % hp->kv_heads != 0)
        return hy_fail(HY_E_FORMAT, "%d attention heads cannot share %d KV heads evenly", hp->heads,
                       hp->kv_heads);
    if (hp->k_dim < 1 || hp->v_dim < 1)
        return hy_fail(HY_E_FORMAT,
                       "width %d is no multiple of %d heads, and no head width is given", hp->dim,
                       hp->heads);
    if ((int64_t)hp->heads * hp->k_dim > HY_MAX_DIM || (int64_t)hp->heads * hp->v_dim > HY_MAX_DIM)
        return hy_fail(HY_E_LIMIT, "%d heads of width %d are more than %d", hp->heads, hp->k_dim,
                       HY_MAX_DIM);
    if (hp->rot < 2 || hp->rot % 2 != 0 || hp->rot > hp->k_dim || hp->rot > HY_MAX_ROT)
        return hy_fail(HY_E_FORMAT,
                       "%d rotated dimensions do not fit heads of width %d (even, at most %d)",
                       hp->rot, hp->k_dim, HY_MAX_ROT);
    const hy_rope_params *r = &hp->rope;
    if (r->has_factors && (r->n_short != hp->rot / 2 || r->n_long != hp->rot / 2))
        return hy_fail(HY_E_FORMAT, "longrope has %d short and %d long factors, %d are needed",
                       r->n_short, r->n_long, hp->rot / 2);
    return HY_OK;
}
