/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads a model: opens the source, picks the family from one table, lets it build its steps, and
 * takes the fingerprint.
 *
 * Thread: one.  Owner: hy_model_destroy frees all.
 */
#include "core/base/buf.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/model/build.h"
#include "core/model/rope.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The one table of families. */
static const hy_family *const families[] = {
    &hy_fam_llama, &hy_fam_qwen2, &hy_fam_qwen3, &hy_fam_gemma3, &hy_fam_phi3,
};

static bool named(const hy_family *f, const char *arch, bool hf)
{
    if (!hf)
        return f->gguf != NULL && strcmp(f->gguf, arch) == 0;
    for (size_t i = 0; f->hf[i] != NULL; i++)
        if (strcmp(f->hf[i], arch) == 0)
            return true;
    return false;
}

static const hy_family *find_family(const char *arch, bool hf)
{
    for (size_t i = 0; i < HY_COUNTOF(families); i++)
        if (named(families[i], arch, hf))
            return families[i];
    return NULL;
}

hy_status hy_family_check(const char *arch, bool hf)
{
    if (find_family(arch, hf) != NULL)
        return HY_OK;
    char known[256] = "", shown[32];
    size_t n = 0;
    for (size_t i = 0; i < HY_COUNTOF(families) && n < sizeof(known); i++)
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", i > 0 ? ", " : "",
                              families[i]->name);
    size_t k = 0;
    for (; k < sizeof(shown) - 1 && arch[k] != '\0'; k++)
        shown[k] = arch[k] >= 0x20 && arch[k] < 0x7f ? arch[k] : '?';
    shown[k] = '\0';
    return hy_fail(HY_E_UNSUPPORTED, "model family \"%s\" is not supported yet; known are %s",
                   shown, known);
}

/* GGUF keeps some rotary parameters in tensors. */
static hy_status read_floats(hy_build *b, hy_role role, float *out, int32_t want, bool *found)
{
    char name[128];
    hy_tensor *t = NULL;
    *found = false;
    if (hy_source_name(b->src, role, 0, name, sizeof(name)))
        t = hy_source_find(b->src, name);
    if (t == NULL)
        return HY_OK;
    hy_source_use(t);
    if (t->type != HY_F32 || t->elements != want)
        return hy_fail(HY_E_FORMAT,
                       "tensor %s has %" PRId64 " elements of type %s; %d of f32 were expected",
                       name, t->elements, t->type_name, want);
    memcpy(out, t->data, sizeof(float) * (size_t)want);
    for (int32_t i = 0; i < want; i++)
        if (!(out[i] > 1e-6f && out[i] < 1e6f))
            return hy_fail(HY_E_FORMAT, "tensor %s holds an impossible factor", name);
    *found = true;
    return HY_OK;
}

static hy_status gguf_rope(hy_build *b, hy_hparams *hp, float *divisors, bool *divide)
{
    hy_rope_params *r = &hp->rope;
    bool has_long = false, has_short = false;
    HY_TRY(read_floats(b, HY_R_ROPE_FREQS, divisors, hp->rot / 2, divide));
    HY_TRY(read_floats(b, HY_R_ROPE_LONG, r->long_factor, hp->rot / 2, &has_long));
    HY_TRY(read_floats(b, HY_R_ROPE_SHORT, r->short_factor, hp->rot / 2, &has_short));
    if (has_long && has_short) {
        r->scaling = HY_ROPE_LONGROPE;
        r->factor = r->original > 0.0 ? hp->context / r->original : 1.0;
    } else if (r->scaling == HY_ROPE_LONGROPE) {
        return hy_fail(HY_E_FORMAT, "tensor rope_factors_%s.weight is missing",
                       has_long ? "short" : "long");
    }
    return HY_OK;
}

static void set_cfg(hy_model *m, const hy_source *s)
{
    const hy_hparams *hp = &s->hp;
    hy_model_cfg *c = &m->cfg;
    snprintf(c->arch, sizeof(c->arch), "%s", hp->arch);
    snprintf(c->name, sizeof(c->name), "%s", hp->name);
    c->n_layers = hp->n_layers;
    c->dim = hp->dim;
    c->ffn = hp->ffn;
    c->heads = hp->heads;
    c->kv_heads = hp->kv_heads;
    c->k_dim = hp->k_dim;
    c->v_dim = hp->v_dim;
    c->vocab = hp->vocab;
    c->context = hp->context;
    c->norm_eps = hp->eps;
    c->weight_bytes = s->tensor_bytes;
}

/* The types that hold most bytes, largest first, up to three: "q4_k+q6_k". */
static void set_quant(hy_model_cfg *c, const hy_source *s)
{
    size_t bytes[HY_DTYPE_MAX] = {0}, n = 0;
    for (size_t i = 0; i < s->n_tensors; i++)
        if (s->tensors[i].type >= 0 && s->tensors[i].type < HY_DTYPE_MAX && s->tensors[i].rows > 1)
            bytes[s->tensors[i].type] += s->tensors[i].bytes;
    c->quant[0] = '\0';
    for (int k = 0; k < 3; k++) {
        int best = 0;
        for (int t = 1; t < HY_DTYPE_MAX; t++)
            if (bytes[t] > bytes[best])
                best = t;
        if (bytes[best] == 0 || n >= sizeof(c->quant))
            break;
        n += (size_t)snprintf(c->quant + n, sizeof(c->quant) - n, "%s%s", k > 0 ? "+" : "",
                              hy_dtype_name(best));
        bytes[best] = 0;
    }
}

static void add_i(hy_sha256_ctx *c, int64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)((uint64_t)v >> (8 * i));
    hy_sha256_update(c, b, sizeof(b));
}

static void add_f(hy_sha256_ctx *c, double v)
{
    uint64_t u;
    memcpy(&u, &v, sizeof(u));
    add_i(c, (int64_t)u);
}

static void add_s(hy_sha256_ctx *c, const char *s)
{
    add_i(c, (int64_t)strlen(s));
    hy_sha256_update(c, s, strlen(s));
}

static void add_numbers(hy_sha256_ctx *c, const hy_model *m, const hy_hparams *hp)
{
    const int32_t v[] = {hp->n_layers, hp->dim,          hp->ffn,   hp->heads,
                         hp->kv_heads, hp->k_dim,        hp->v_dim, hp->context,
                         hp->rot,      (int32_t)hp->act, hp->tied,  hp->window};
    add_s(c, hp->arch);
    for (size_t i = 0; i < HY_COUNTOF(v); i++)
        add_i(c, v[i]);
    add_f(c, (double)hp->eps);
    add_f(c, hp->attn_scale);
    add_f(c, (double)hp->attn_softcap);
    add_f(c, (double)hp->final_softcap);
    hy_sha256_update(c, hp->sliding, (size_t)hp->n_layers);
    for (int32_t i = 0; i < m->n_ropes; i++) {
        const hy_rope_desc *d = &m->ropes[i];
        add_i(c, d->long_from);
        add_f(c, (double)d->mscale);
        for (int32_t k = 0; k < d->rot / 2; k++) {
            add_f(c, (double)d->inv_freq[k]);
            if (d->inv_freq_long != NULL)
                add_f(c, (double)d->inv_freq_long[k]);
        }
    }
}

/* SHA-256 over the numbers and every used tensor's name, type, shape and digest: models that differ
 * in any byte differ here. The digests (XXH3-128) run at memory speed while the weights are read
 * anyway; they are not made against forgers, who could as well change the program. */
static hy_status take_fingerprint(hy_model *m, const hy_source *s)
{
    hy_sha256_ctx c = {NULL};
    HY_TRY(hy_sha256_init(&c));
    add_numbers(&c, m, &s->hp);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const hy_tensor *t = &s->tensors[i];
        if (!t->used)
            continue;
        add_s(&c, t->name);
        add_s(&c, t->type_name);
        add_i(&c, t->rows);
        add_i(&c, t->cols);
        hy_sha256_update(&c, t->digest, sizeof(t->digest));
    }
    hy_sha256_final(&c, m->fingerprint);
    hy_sha256_fini(&c);
    return HY_OK;
}

/* Ops whose types do not depend on the KV cache; exec asks for the others. */
static hy_status check_ops(hy_build *b)
{
    const hy_op_query q[] = {
        {.op = HY_OP_RMS_NORM, .n = b->hp->dim, .k = b->hp->dim},
        {.op = HY_OP_ROPE, .k_dim = b->hp->k_dim, .n = b->hp->heads},
        {.op = HY_OP_ACT_MUL, .fn = b->hp->act, .n = b->hp->ffn},
        {.op = HY_OP_ADD, .n = b->hp->dim},
        {.op = HY_OP_TOPK, .n = b->m->cfg.vocab, .k = 1},
    };
    for (size_t i = 0; i < HY_COUNTOF(q); i++)
        if (!b->dev->math->supports(b->dev, &q[i]))
            return hy_fail(HY_E_UNSUPPORTED, "this backend lacks the op %s, which family %s needs",
                           hy_op_name(q[i].op), b->hp->arch);
    for (int32_t i = 0; i < b->m->n_steps; i++) {
        const hy_step *s = &b->m->steps[i];
        if (s->kind != HY_STEP_ATTN_IN || !s->u.attn_in.v_f32)
            continue;
        const hy_weight *w = s->u.attn_in.wv;
        hy_op_query v = {.op = HY_OP_MATMUL, .w_type = w->type, .act = HY_ACT_F32, .n = w->n};
        v.k = w->k;
        if (!b->dev->math->supports(b->dev, &v))
            return hy_fail(HY_E_UNSUPPORTED,
                           "this backend lacks matmul of %s weights and f32 activations",
                           hy_dtype_name(w->type));
    }
    return HY_OK;
}

/* Tensors that change values if they exist and nobody took them. */
static void warn_unused(const hy_source *s)
{
    size_t n = 0;
    const char *first = NULL;
    for (size_t i = 0; i < s->n_tensors; i++) {
        const hy_tensor *t = &s->tensors[i];
        bool ours = !s->hf || strncmp(t->name, s->prefix, strlen(s->prefix)) == 0;
        if (t->used || !ours || strstr(t->name, "rotary_emb.inv_freq") != NULL)
            continue;
        n++;
        first = first != NULL ? first : t->name;
    }
    if (n > 0)
        hy_warn("model", "%s: %zu tensors are not used, the first is %.80s", s->path, n, first);
}

static hy_status load(hy_build *b, const hy_family *f)
{
    hy_model_priv *pv = b->m->priv;
    float divisors[HY_MAX_ROT / 2];
    bool divide = false;
    if (pv->src.hp.experts > 0)
        return hy_fail(HY_E_UNSUPPORTED, "%s with %d experts is not supported yet", f->name,
                       pv->src.hp.experts);
    if (!pv->src.hf)
        HY_TRY(gguf_rope(b, &pv->src.hp, divisors, &divide));
    HY_TRY(b->dev->ops->queue_create(b->dev, &b->q));
    b->total = pv->src.tensor_bytes;
    set_cfg(b->m, &pv->src);
    set_quant(&b->m->cfg, &pv->src);
    HY_TRY(f->build(b));
    for (int32_t i = 0; divide && i < b->m->ropes[0].rot / 2; i++)
        b->m->ropes[0].inv_freq[i] /= divisors[i];
    HY_TRY(check_ops(b));
    if (!b->opts->check_only)
        HY_TRY(take_fingerprint(b->m, &pv->src));
    warn_unused(&pv->src);
    if (b->opts->progress != NULL)
        b->opts->progress(b->opts->arg, b->total, b->total);
    return HY_OK;
}

/* Keep the mapping only while a weight reads it. */
static void release_source(hy_model *m)
{
    hy_model_priv *pv = m->priv;
    for (size_t i = 0; i < pv->n_weights; i++)
        if (pv->weights[i]->borrowed)
            return;
    hy_source_close(&pv->src);
    pv->src_open = false;
}

hy_status hy_model_load(const char *path, hy_dev *dev, const hy_model_opts *opts, hy_model **out)
{
    hy_model *m = calloc(1, sizeof(*m));
    hy_model_priv *pv = calloc(1, sizeof(*pv));
    if (m == NULL || pv == NULL) {
        free(m);
        free(pv);
        return hy_fail(HY_E_NOMEM, "no memory for a model");
    }
    m->priv = pv;
    m->dev = dev;
    hy_status st = hy_source_open(path, &pv->src);
    if (st >= 0) {
        pv->src_open = true;
        hy_build b = {.m = m, .src = &pv->src, .hp = &pv->src.hp, .opts = opts, .dev = dev};
        const hy_family *f = find_family(pv->src.hp.arch, pv->src.hf);
        HY_ASSERT(f != NULL); /* opening has checked */
        st = load(&b, f);
        if (b.q != NULL)
            dev->ops->queue_destroy(b.q);
    }
    if (st < 0) {
        hy_model_destroy(m);
        return hy_source_fail(st, path);
    }
    release_source(m);
    *out = m;
    return HY_OK;
}

hy_status hy_model_check(const char *path)
{
    const hy_model_opts o = {.act = HY_ACT_INT8, .check_only = true};
    hy_model *m = NULL;
    HY_TRY(hy_model_load(path, hy_dry_dev(), &o, &m));
    hy_model_destroy(m);
    return HY_OK;
}

void hy_model_destroy(hy_model *m)
{
    if (m == NULL)
        return;
    hy_model_priv *pv = m->priv;
    for (size_t i = 0; i < pv->n_weights; i++)
        m->dev->math->weight_free(m->dev, pv->weights[i]);
    for (size_t i = 0; i < pv->n_vecs; i++)
        m->dev->ops->free(m->dev, pv->vecs[i].p, pv->vecs[i].bytes);
    for (size_t i = 0; i < pv->n_copies; i++)
        free(pv->copies[i]);
    for (int32_t i = 0; i < m->n_ropes; i++)
        hy_rope_free(&m->ropes[i]);
    if (pv->src_open)
        hy_source_close(&pv->src);
    free(pv->weights);
    free(pv->vecs);
    free(pv->copies);
    free(pv);
    free(m->ropes);
    free(m->groups);
    free(m->steps);
    free(m);
}
