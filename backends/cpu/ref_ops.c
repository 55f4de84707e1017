/* SPDX-License-Identifier: Apache-2.0
 *
 * The scalar reference: its table, what it supports, weights, and the elementwise ops.
 *
 * Thread: a queue's owner.  Owner: a weight borrows its source.
 */
#include "backends/cpu/ref_int.h"
#include "core/base/alloc.h"
#include "hal/fmath.h"
#include "hal/quant.h"

static bool weight_type_ok(int t)
{
    return t == HY_F32 || t == HY_F16 || t == HY_BF16 || hy_quant_get(t) != NULL;
}

static bool kv_types_ok(hy_dtype value, hy_dtype type)
{
    if (value != HY_F32 && value != HY_F16 && value != HY_BF16)
        return false;
    return type == value || type == HY_F32;
}

static bool kv_shape_ok(const hy_op_query *q)
{
    return kv_types_ok(q->kv_value, q->kv_type) && q->block_tokens >= 1 && q->block_tokens <= 256 &&
           q->k_dim >= 1 && q->v_dim >= 1;
}

static bool wire_ok(hy_dtype t)
{
    return t == HY_F32 || t == HY_F16 || t == HY_BF16 || t == HY_I8 || t == HY_F8_E4M3 ||
           t == HY_F8_E4M3FNUZ;
}

static bool weight_ok(const hy_op_query *q)
{
    return weight_type_ok(q->w_type) && q->k % hy_dtype_get(q->w_type)->block == 0;
}

bool cpu_ref_supports(hy_dev *d, const hy_op_query *q)
{
    (void)d;
    switch (q->op) {
    case HY_OP_EMBED:
    case HY_OP_MATMUL:
    case HY_OP_FFN:
    case HY_OP_MOE_FFN:
    case HY_OP_HEAD:
        return weight_ok(q) && (int)q->fn <= HY_ACT_RELU;
    case HY_OP_RMS_NORM:
    case HY_OP_LAYER_NORM:
    case HY_OP_ROPE:
    case HY_OP_ADD:
    case HY_OP_TOPK:
    case HY_OP_MOE_ROUTE:
        return true;
    case HY_OP_ACT_MUL:
        return (int)q->fn <= HY_ACT_RELU;
    case HY_OP_KV_WRITE:
    case HY_OP_ATTENTION:
        return kv_shape_ok(q);
    case HY_OP_KV_PACK:
    case HY_OP_KV_UNPACK:
        return kv_shape_ok(q) && wire_ok(q->w_type);
    case HY_OP_ATTN_IN:
    case HY_OP_ATTN_OUT:
        return weight_ok(q) && kv_shape_ok(q);
    default:
        return false;
    }
}

static int64_t align64(int64_t n)
{
    return (n + 63) & ~(int64_t)63;
}

/* K [head][dim][token], so that scores of many tokens are one vector; V [head][token][dim]. Blocks
 * hold all their layers: [block][layer][K then V]. */
hy_status cpu_kv_layout(hy_dev *d, hy_kv_layout *l)
{
    (void)d;
    if (!kv_types_ok(l->value_type, l->type))
        return hy_fail(HY_E_UNSUPPORTED, "cpu: KV of value type %s cannot be stored as %s",
                       hy_dtype_name(l->value_type), hy_dtype_name(l->type));
    if (l->block_tokens < 1 || l->block_tokens > 256 || l->n_layers < 1 || l->n_heads < 1 ||
        l->k.width < 1 || l->v.width < 1)
        return hy_fail(HY_E_INVAL, "cpu: KV layout of %d tokens, %d layers, %d heads, widths %d/%d",
                       l->block_tokens, l->n_layers, l->n_heads, l->k.width, l->v.width);
    int64_t elem = hy_dtype_get(l->type)->bytes, tokens = l->block_tokens;
    l->k.dim = tokens * elem;
    l->k.token = elem;
    l->k.head = l->k.width * tokens * elem;
    l->k.off = 0;
    l->v.dim = elem;
    l->v.token = l->v.width * elem;
    l->v.head = l->v.width * tokens * elem;
    l->v.off = align64(l->n_heads * l->k.head);
    l->layer_stride = align64(l->v.off + l->n_heads * l->v.head);
    l->block_stride = l->layer_stride * l->n_layers;
    l->bytes_per_block = l->block_stride;
    return HY_OK;
}

hy_status cpu_ref_prepare_weight(hy_dev *d, const hy_weight_src *src, hy_weight **out)
{
    (void)d;
    if (!weight_type_ok(src->type))
        return hy_fail(HY_E_UNSUPPORTED, "cpu: no matmul for weights of type %s",
                       hy_dtype_name(src->type));
    size_t row = hy_dtype_row_bytes(src->type, src->k);
    if (src->n < 1 || src->k < 1 || row == 0)
        return hy_fail(HY_E_INVAL, "cpu: weight of %lld x %lld does not fit blocks of %s",
                       (long long)src->n, (long long)src->k, hy_dtype_name(src->type));
    cpu_weight *w = hy_calloc(1, sizeof(*w));
    if (w == NULL)
        return hy_fail(HY_E_NOMEM, "cpu: no memory for a weight");
    w->base.type = src->type;
    w->base.n = src->n;
    w->base.k = src->k;
    w->base.borrowed = true;
    w->raw = src->data;
    w->row_bytes = row;
    w->gather = src->gather;
    *out = &w->base;
    return HY_OK;
}

void cpu_ref_weight_free(hy_dev *d, hy_weight *w)
{
    (void)d;
    if (w == NULL)
        return;
    cpu_weight *c = (cpu_weight *)(void *)w;
    hy_free(c->owned);
    hy_free(c);
}

hy_status ref_embed(hy_queue *q, const hy_embed *a)
{
    (void)q;
    const cpu_weight *w = cpu_weight_of(a->w);
    for (int64_t r = 0; r < a->m; r++) {
        int32_t id = a->ids[r];
        float *y = a->y + r * a->ldy;
        if (id < 0 || id >= w->base.n)
            return hy_fail(HY_E_INVAL, "embed: token id %d is outside the %lld rows of the table",
                           id, (long long)w->base.n);
        hy_dtype_decode(w->base.type, w->raw + (size_t)id * w->row_bytes, y, w->base.k);
        for (int64_t i = 0; i < w->base.k; i++)
            y[i] *= a->scale;
    }
    return HY_OK;
}

static void rotate(float *a, float *b, float c, float s)
{
    float x = *a, y = *b;
    *a = fmaf(x, c, -(y * s));
    *b = fmaf(x, s, y * c);
}

hy_status ref_rope(hy_queue *q, const hy_rope *a)
{
    (void)q;
    int32_t half = a->t.rot / 2;
    if (a->t.kind == HY_ROPE_NONE)
        return HY_OK;
    if (a->t.rot < 0 || a->t.rot > a->dim || a->t.rot % 2 != 0)
        return hy_fail(HY_E_INVAL, "rope: %d of %d dimensions cannot be rotated", a->t.rot, a->dim);
    for (int64_t r = 0; r < a->m; r++) {
        const float *c = a->t.cos + r * half, *s = a->t.sin + r * half;
        for (int32_t h = 0; h < a->heads; h++) {
            float *x = a->x + r * a->ld + (int64_t)h * a->dim;
            for (int32_t i = 0; i < half; i++) {
                if (a->t.kind == HY_ROPE_HALVES)
                    rotate(&x[i], &x[i + half], c[i], s[i]);
                else
                    rotate(&x[2 * i], &x[2 * i + 1], c[i], s[i]);
            }
        }
    }
    return HY_OK;
}

static float act(hy_act_fn fn, float x)
{
    switch (fn) {
    case HY_ACT_SILU:
        return hy_m_silu(x);
    case HY_ACT_GELU_TANH:
        return hy_m_gelu_tanh(x);
    case HY_ACT_GELU_ERF:
        return hy_m_gelu_erf(x);
    case HY_ACT_RELU:
        break;
    }
    return hy_m_relu(x);
}

hy_status ref_act_mul(hy_queue *q, const hy_act_mul *a)
{
    (void)q;
    for (int64_t r = 0; r < a->m; r++) {
        const float *g = a->gate + r * a->ldg;
        const float *u = a->up != NULL ? a->up + r * a->ldu : NULL;
        float *y = a->y + r * a->ldy;
        for (int64_t i = 0; i < a->dim; i++) {
            float v = act(a->fn, g[i]);
            y[i] = u != NULL ? v * u[i] : v;
        }
    }
    return HY_OK;
}

hy_status ref_add(hy_queue *q, const hy_add *a)
{
    (void)q;
    for (int64_t r = 0; r < a->m; r++) {
        for (int64_t i = 0; i < a->dim; i++)
            a->y[r * a->ldy + i] = fmaf(a->b[r * a->ldb + i], a->b_scale, a->a[r * a->lda + i]);
    }
    return HY_OK;
}

const hy_math_ops cpu_ref_math = {
    .size = sizeof(hy_math_ops),
    .supports = cpu_ref_supports,
    .kv_layout = cpu_kv_layout,
    .prepare_weight = cpu_ref_prepare_weight,
    .weight_free = cpu_ref_weight_free,
    .embed = ref_embed,
    .rms_norm = ref_rms_norm,
    .layer_norm = ref_layer_norm,
    .matmul = ref_matmul,
    .rope = ref_rope,
    .kv_write = ref_kv_write,
    .attention = ref_attention,
    .act_mul = ref_act_mul,
    .add = ref_add,
    .topk = ref_topk,
    .kv_pack = ref_kv_pack,
    .kv_unpack = ref_kv_unpack,
    .moe_route = ref_moe_route,
};
