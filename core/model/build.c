/* SPDX-License-Identifier: Apache-2.0
 *
 * Building blocks of the family files: steps, weights, norms, biases, groups.
 *
 * Thread: one (load).  Owner: hy_model_priv keeps everything made here.
 */
#include "core/model/build.h"

#include "core/model/rope.h"
#include "hal/quant.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_CAP = 128 };

/* Room for one more element of a growing array. */
static hy_status grow(void *arr, size_t *cap, size_t n, size_t size)
{
    void *p;
    memcpy(&p, arr, sizeof(p));
    if (n < *cap)
        return HY_OK;
    size_t more = *cap != 0 ? *cap * 2 : 64;
    p = realloc(p, more * size);
    if (p == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the model's tables");
    memcpy(arr, &p, sizeof(p));
    *cap = more;
    return HY_OK;
}

static const char *role_name(hy_build *b, hy_role role, int32_t layer, char buf[NAME_CAP])
{
    if (!hy_source_name(b->src, role, layer, buf, NAME_CAP))
        snprintf(buf, NAME_CAP, "(none in this format)");
    return buf;
}

/* NULL when absent. */
static hy_tensor *find_role(hy_build *b, hy_role role, int32_t layer)
{
    char name[NAME_CAP];
    if (!hy_source_name(b->src, role, layer, name, sizeof(name)))
        return NULL;
    hy_tensor *t = hy_source_find(b->src, name);
    if (t != NULL && b->opts->check_only)
        t->used = true;
    else if (t != NULL)
        hy_source_use(t); /* now: its pages are read next, and dropped then */
    return t;
}

static hy_status need_role(hy_build *b, hy_role role, int32_t layer, hy_tensor **out)
{
    char name[NAME_CAP];
    *out = find_role(b, role, layer);
    if (*out == NULL)
        return hy_fail(HY_E_FORMAT, "tensor %s is missing", role_name(b, role, layer, name));
    if ((*out)->type < 0)
        return hy_fail(HY_E_UNSUPPORTED, "tensor %s has type %s, which is not supported",
                       (*out)->name, (*out)->type_name);
    return HY_OK;
}

static hy_status check_matrix(const hy_tensor *t, int64_t n, int64_t k)
{
    if (t->n_dims != 2 && !(t->n_dims == 1 && n == 1))
        return hy_fail(HY_E_FORMAT,
                       "tensor %s has %d dimensions; a matrix of %" PRId64 " rows of %" PRId64
                       " was expected",
                       t->name, t->n_dims, n, k);
    if (t->rows != n || t->cols != k)
        return hy_fail(HY_E_FORMAT,
                       "tensor %s has %" PRId64 " rows of %" PRId64 "; %" PRId64 " rows of %" PRId64
                       " were expected",
                       t->name, t->rows, t->cols, n, k);
    if (hy_dtype_row_bytes(t->type, k) == 0)
        return hy_fail(HY_E_FORMAT,
                       "tensor %s: rows of %" PRId64 " are no whole number of %s blocks", t->name,
                       k, t->type_name);
    return HY_OK;
}

static hy_status supports(hy_build *b, const hy_op_query *q, const char *tensor)
{
    if (b->dev->math->supports(b->dev, q))
        return HY_OK;
    hy_dev_props p;
    memset(&p, 0, sizeof(p));
    if (b->dev->ops->props(b->dev, &p) < 0)
        snprintf(p.backend, sizeof(p.backend), "?");
    return hy_fail(HY_E_UNSUPPORTED,
                   "backend %s cannot do %s with %s weights of %" PRId64 " by %" PRId64
                   " (tensor %s)",
                   p.backend, hy_op_name(q->op), hy_dtype_name(q->w_type), q->n, q->k, tensor);
}

static void advance(hy_build *b, size_t bytes)
{
    b->done += bytes;
    if (b->opts->progress != NULL)
        b->opts->progress(b->opts->arg, b->done < b->total ? b->done : b->total, b->total);
}

/* The bytes at an address that suits their type: themselves, or a copy that the model keeps. */
static hy_status aligned(hy_build *b, const hy_tensor *t, const void *p, size_t bytes,
                         const void **out)
{
    uintptr_t align = t->type == HY_F32 ? 4 : 2;
    hy_model_priv *pv = b->m->priv;
    *out = p;
    if ((uintptr_t)p % align == 0)
        return HY_OK;
    HY_TRY(grow(&pv->copies, &pv->cap_copies, pv->n_copies, sizeof(pv->copies[0])));
    void *c = malloc(bytes);
    if (c == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a copy of tensor %s", t->name);
    memcpy(c, p, bytes);
    pv->copies[pv->n_copies++] = c;
    *out = c;
    return HY_OK;
}

/* Hand rows [from, from + n) of a checked matrix to the backend. */
static hy_status prepare(hy_build *b, const hy_tensor *t, int64_t from, int64_t n, bool gather,
                         const hy_weight **out)
{
    hy_model_priv *pv = b->m->priv;
    size_t row = hy_dtype_row_bytes(t->type, t->cols);
    hy_op_query q = {.op = gather ? HY_OP_EMBED : HY_OP_MATMUL,
                     .w_type = (hy_dtype)t->type,
                     .act = b->opts->act,
                     .n = n,
                     .k = t->cols};
    HY_TRY(supports(b, &q, t->name));
    HY_TRY(grow(&pv->weights, &pv->cap_weights, pv->n_weights, sizeof(pv->weights[0])));
    hy_weight_src src = {.type = (hy_dtype)t->type, .n = n, .k = t->cols, .gather = gather};
    src.data = (const char *)t->data + row * (size_t)from;
    if (!b->opts->check_only)
        HY_TRY(aligned(b, t, src.data, row * (size_t)n, &src.data));
    size_t n_copies = pv->n_copies;
    hy_weight *w = NULL;
    hy_status st = b->dev->math->prepare_weight(b->dev, &src, &w);
    if (st < 0)
        return hy_fail_in(st, "tensor %s: ", t->name);
    pv->weights[pv->n_weights++] = w;
    b->m->device_bytes += w->bytes;
    if (!w->borrowed) {
        bool copied = n_copies > 0 && pv->copies[n_copies - 1] == src.data;
        if (copied)
            free(pv->copies[--pv->n_copies]);
        hy_source_drop(b->src, t);
    }
    b->m->cfg.n_params += n * t->cols;
    advance(b, row * (size_t)n);
    *out = w;
    return HY_OK;
}

hy_status hy_build_rows(hy_build *b, hy_role role, int32_t layer, int64_t rows, int64_t k,
                        int64_t from, int64_t n, const hy_weight **out)
{
    hy_tensor *t = NULL;
    HY_TRY(need_role(b, role, layer, &t));
    HY_TRY(check_matrix(t, rows, k));
    return prepare(b, t, from, n, false, out);
}

hy_status hy_build_matrix(hy_build *b, hy_role role, int32_t layer, int64_t n, int64_t k,
                          const hy_weight **out)
{
    return hy_build_rows(b, role, layer, n, k, 0, n, out);
}

/* A vector as f32 on the device, plus a constant. */
static hy_status put_vector(hy_build *b, const hy_tensor *t, int64_t n, float plus,
                            const float **out)
{
    hy_model_priv *pv = b->m->priv;
    if (t->type < 0)
        return hy_fail(HY_E_UNSUPPORTED, "tensor %s has type %s, which is not supported", t->name,
                       t->type_name);
    if (t->type != HY_F32 && t->type != HY_F16 && t->type != HY_BF16 &&
        hy_quant_get(t->type) == NULL)
        return hy_fail(HY_E_UNSUPPORTED, "tensor %s is a vector of type %s, which is not supported",
                       t->name, hy_dtype_name(t->type));
    if (t->elements != n || t->rows != 1 || hy_dtype_row_bytes(t->type, n) == 0)
        return hy_fail(HY_E_FORMAT,
                       "tensor %s has %" PRId64 " by %" PRId64 " elements; a vector of %" PRId64
                       " was expected",
                       t->name, t->rows, t->cols, n);
    HY_TRY(grow(&pv->vecs, &pv->cap_vecs, pv->n_vecs, sizeof(pv->vecs[0])));
    size_t bytes = sizeof(float) * (size_t)n;
    float *host = malloc(bytes);
    const void *src = NULL;
    hy_status st = host == NULL ? hy_fail(HY_E_NOMEM, "no memory for tensor %s", t->name) : HY_OK;
    size_t n_copies = pv->n_copies;
    if (st >= 0)
        st = aligned(b, t, t->data, t->bytes, &src);
    if (st >= 0) {
        hy_dtype_decode(t->type, src, host, n);
        for (int64_t i = 0; plus != 0.0f && i < n; i++)
            host[i] += plus;
        void *dev = NULL;
        st = b->dev->ops->alloc(b->dev, bytes, &dev);
        if (st >= 0) {
            pv->vecs[pv->n_vecs++] = (struct hy_vec){dev, bytes};
            b->m->device_bytes += bytes;
            *out = dev;
            st = b->dev->ops->copy(b->q, dev, host, bytes);
        }
        if (st >= 0)
            st = b->dev->ops->queue_wait(b->q);
    }
    while (pv->n_copies > n_copies)
        free(pv->copies[--pv->n_copies]);
    free(host);
    if (st < 0)
        return st;
    b->m->cfg.n_params += n;
    advance(b, t->bytes);
    return HY_OK;
}

hy_status hy_build_bias(hy_build *b, hy_role role, int32_t layer, int64_t n, bool required,
                        const float **out)
{
    char name[NAME_CAP];
    hy_tensor *t = find_role(b, role, layer);
    *out = NULL;
    if (t == NULL && !required)
        return HY_OK;
    if (t == NULL)
        return hy_fail(HY_E_FORMAT, "tensor %s is missing", role_name(b, role, layer, name));
    return put_vector(b, t, n, 0.0f, out);
}

hy_status hy_build_norm(hy_build *b, hy_role role, int32_t layer, int64_t dim, hy_norm_w *out)
{
    hy_tensor *t = NULL;
    HY_TRY(need_role(b, role, layer, &t));
    out->eps = b->hp->eps;
    out->b = NULL;
    return put_vector(b, t, dim, b->norm_plus_one ? 1.0f : 0.0f, &out->w);
}

static hy_status new_step(hy_build *b, hy_step_kind kind, hy_side side, int32_t layer,
                          hy_step **out)
{
    hy_model_priv *pv = b->m->priv;
    size_t cap = (size_t)pv->cap_steps;
    HY_TRY(grow(&b->m->steps, &cap, (size_t)b->m->n_steps, sizeof(b->m->steps[0])));
    pv->cap_steps = (int32_t)cap;
    hy_step *s = &b->m->steps[b->m->n_steps++];
    memset(s, 0, sizeof(*s));
    s->kind = kind;
    s->side = side;
    s->layer = layer;
    s->group = s->group_layer = s->rope = -1;
    *out = s;
    return HY_OK;
}

/* Index of the layer among those of its group. */
static void place(const hy_build *b, hy_step *s, int32_t layer)
{
    const hy_hparams *hp = b->hp;
    s->group = b->m->n_groups > 1 && hp->sliding[layer] ? 1 : 0;
    s->group_layer = 0;
    for (int32_t i = 0; i < layer; i++)
        s->group_layer += b->m->n_groups == 1 || hp->sliding[i] == hp->sliding[layer];
}

hy_status hy_build_groups(hy_build *b)
{
    const hy_hparams *hp = b->hp;
    int32_t slide = 0;
    for (int32_t i = 0; i < hp->n_layers; i++)
        slide += hp->sliding[i];
    b->m->groups = calloc(2, sizeof(b->m->groups[0]));
    if (b->m->groups == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the model's tables");
    hy_kv_group g = {.n_heads = hp->kv_heads, .k_dim = hp->k_dim, .v_dim = hp->v_dim};
    for (int pass = 0; pass < 2; pass++) {
        g.n_layers = pass == 0 ? hp->n_layers - slide : slide;
        g.window = pass == 0 ? 0 : hp->window;
        if (g.n_layers > 0)
            b->m->groups[b->m->n_groups++] = g;
    }
    return HY_OK;
}

hy_status hy_build_rope(hy_build *b, const hy_rope_params *r, int32_t *index_out)
{
    hy_model *m = b->m;
    hy_rope_desc *more = realloc(m->ropes, sizeof(*more) * (size_t)(m->n_ropes + 1));
    if (more == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the model's tables");
    m->ropes = more;
    hy_rope_desc *d = &more[m->n_ropes++];
    memset(d, 0, sizeof(*d));
    d->kind = b->rope_kind;
    d->rot = b->hp->rot;
    *index_out = m->n_ropes - 1;
    return hy_rope_make(r, b->hp->context, d);
}

hy_status hy_build_embed(hy_build *b, float scale)
{
    hy_step *s = NULL;
    hy_tensor *t = NULL;
    HY_TRY(need_role(b, HY_R_EMBED, 0, &t));
    int64_t vocab = b->hp->vocab > 0 ? b->hp->vocab : t->rows;
    if (vocab < 1 || vocab > HY_MAX_VOCAB)
        return hy_fail(HY_E_FORMAT, "tensor %s has %" PRId64 " rows, outside 1 to %d", t->name,
                       t->rows, HY_MAX_VOCAB);
    HY_TRY(check_matrix(t, vocab, b->hp->dim));
    HY_TRY(new_step(b, HY_STEP_EMBED, HY_SIDE_ATTN, -1, &s));
    HY_TRY(prepare(b, t, 0, vocab, true, &s->u.embed.w));
    s->u.embed.scale = scale;
    b->m->cfg.vocab = (int32_t)vocab;
    return HY_OK;
}

hy_status hy_build_attn_in(hy_build *b, int32_t layer, hy_attn_in **out)
{
    hy_step *s = NULL;
    HY_TRY(new_step(b, HY_STEP_ATTN_IN, HY_SIDE_ATTN, layer, &s));
    place(b, s, layer);
    s->rope = b->hp->sliding[layer] ? b->local_rope : 0;
    hy_attn_in *a = &s->u.attn_in;
    a->dim = b->hp->dim;
    a->heads = b->hp->heads;
    a->layer = s->group_layer;
    a->act = b->opts->act;
    /* In the first layers the residual stream is still small and the values' rounding errors are
     * not: 8-bit activations of this one small product would make a quarter of the whole model's
     * error (docs/NUMERICS.md). */
    a->v_f32 = layer < (b->hp->n_layers + 9) / 10;
    *out = a;
    return HY_OK;
}

hy_status hy_build_attn_out(hy_build *b, int32_t layer, hy_attn_out **out)
{
    const hy_hparams *hp = b->hp;
    hy_step *s = NULL;
    HY_TRY(new_step(b, HY_STEP_ATTN_OUT, HY_SIDE_ATTN, layer, &s));
    place(b, s, layer);
    hy_attn_out *a = &s->u.attn_out;
    a->dim = hp->dim;
    a->act = b->opts->act;
    a->attn.layer = s->group_layer;
    a->attn.heads = hp->heads;
    a->attn.ldq = (int64_t)hp->heads * hp->k_dim;
    a->attn.scale = (float)(hp->attn_scale != 0.0 ? hp->attn_scale : 1.0 / sqrt((double)hp->k_dim));
    a->attn.softcap = hp->attn_softcap;
    a->attn.window = b->m->groups[s->group].window;
    HY_TRY(hy_build_matrix(b, HY_R_O, layer, hp->dim, (int64_t)hp->heads * hp->v_dim, &a->wo));
    *out = a;
    return HY_OK;
}

hy_status hy_build_ffn(hy_build *b, int32_t layer, hy_ffn **out)
{
    hy_step *s = NULL;
    HY_TRY(new_step(b, HY_STEP_FFN, HY_SIDE_FFN, layer, &s));
    hy_ffn *f = &s->u.ffn;
    f->dim = b->hp->dim;
    f->fn = b->hp->act;
    f->act = b->opts->act;
    *out = f;
    return HY_OK;
}

hy_status hy_build_head(hy_build *b)
{
    hy_step *s = NULL;
    const hy_weight *embed = b->m->steps[0].u.embed.w;
    HY_TRY(new_step(b, HY_STEP_HEAD, HY_SIDE_FFN, -1, &s));
    hy_head *h = &s->u.head;
    h->dim = b->hp->dim;
    h->scale = 1.0f;
    h->softcap = b->hp->final_softcap;
    h->act = b->opts->act;
    HY_TRY(hy_build_norm(b, HY_R_OUT_NORM, 0, b->hp->dim, &h->norm));
    bool own = b->hp->tied == 0 || (b->hp->tied < 0 && find_role(b, HY_R_OUTPUT, 0) != NULL);
    if (own)
        return hy_build_matrix(b, HY_R_OUTPUT, 0, b->m->cfg.vocab, b->hp->dim, &h->w);
    h->w = embed;
    hy_op_query q = {.op = HY_OP_MATMUL,
                     .w_type = embed->type,
                     .act = b->opts->act,
                     .n = embed->n,
                     .k = embed->k};
    return supports(b, &q, "the embedding, as output");
}

hy_status hy_build_qkv(hy_build *b, int32_t layer, bool required, hy_attn_in *in)
{
    const hy_hparams *hp = b->hp;
    int64_t nq = (int64_t)hp->heads * hp->k_dim, nk = (int64_t)hp->kv_heads * hp->k_dim,
            nv = (int64_t)hp->kv_heads * hp->v_dim;
    HY_TRY(hy_build_matrix(b, HY_R_Q, layer, nq, hp->dim, &in->wq));
    HY_TRY(hy_build_matrix(b, HY_R_K, layer, nk, hp->dim, &in->wk));
    HY_TRY(hy_build_matrix(b, HY_R_V, layer, nv, hp->dim, &in->wv));
    HY_TRY(hy_build_bias(b, HY_R_Q_BIAS, layer, nq, required, &in->bq));
    HY_TRY(hy_build_bias(b, HY_R_K_BIAS, layer, nk, required, &in->bk));
    return hy_build_bias(b, HY_R_V_BIAS, layer, nv, required, &in->bv);
}

hy_status hy_build_gated_ffn(hy_build *b, int32_t layer, hy_ffn *f)
{
    const hy_hparams *hp = b->hp;
    HY_TRY(hy_build_matrix(b, HY_R_GATE, layer, hp->ffn, hp->dim, &f->gate));
    HY_TRY(hy_build_matrix(b, HY_R_UP, layer, hp->ffn, hp->dim, &f->up));
    HY_TRY(hy_build_matrix(b, HY_R_DOWN, layer, hp->dim, hp->ffn, &f->down));
    HY_TRY(hy_build_bias(b, HY_R_GATE_BIAS, layer, hp->ffn, hp->mlp_bias, &f->b_gate));
    HY_TRY(hy_build_bias(b, HY_R_UP_BIAS, layer, hp->ffn, hp->mlp_bias, &f->b_up));
    return hy_build_bias(b, HY_R_DOWN_BIAS, layer, hp->dim, hp->mlp_bias, &f->b_down);
}
