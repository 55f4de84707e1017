/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops over kernels: matmul, norms and elementwise ops. The cache's ops are in ops_kv.c, weights in
 * ops_weight.c.
 *
 * Thread: a queue's owner.  Owner: none.
 */
#include "backends/simt/ops_int.h"
#include "hal/compose.h"
#include "hal/quant.h"

#include <string.h>

_Static_assert((int)KT_F32 == HY_F32 && (int)KT_F16 == HY_F16 && (int)KT_BF16 == HY_BF16, "");
_Static_assert((int)KT_Q4_0 == HY_Q4_0 && (int)KT_Q4_1 == HY_Q4_1 && (int)KT_Q5_0 == HY_Q5_0, "");
_Static_assert((int)KT_Q5_1 == HY_Q5_1 && (int)KT_Q8_0 == HY_Q8_0 && (int)KT_Q2_K == HY_Q2_K, "");
_Static_assert((int)KT_Q3_K == HY_Q3_K && (int)KT_Q4_K == HY_Q4_K && (int)KT_Q5_K == HY_Q5_K, "");
_Static_assert((int)KT_Q6_K == HY_Q6_K && (int)KT_IQ4_NL == HY_IQ4_NL && (int)KT_I8 == HY_I8, "");
_Static_assert((int)KT_F8_E4M3 == HY_F8_E4M3 && (int)KT_F8_E4M3FNUZ == HY_F8_E4M3FNUZ, "");
_Static_assert(KA_EXPERTS == HY_MOE_EXPERTS && KA_GROUPS == HY_MOE_GROUPS, "");

static bool weight_ok(const hy_op_query *q)
{
    return simt_weight_type_ok(q->w_type) && q->k % hy_dtype_get(q->w_type)->block == 0;
}

static bool supports(hy_dev *d, const hy_op_query *q)
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
    case HY_OP_KV_PACK:
    case HY_OP_KV_UNPACK:
        return simt_kv_ok(q);
    case HY_OP_ATTN_IN:
    case HY_OP_ATTN_OUT:
        return weight_ok(q) && simt_kv_ok(q);
    default:
        return false;
    }
}

/* ---- matmul ---- */

/* Place of a type in the lists of kernels.h. */
static int type_index(hy_dtype t)
{
    static const hy_dtype quant[] = {HY_Q4_0, HY_Q4_1, HY_Q5_0, HY_Q5_1, HY_Q8_0,  HY_Q2_K,
                                     HY_Q3_K, HY_Q4_K, HY_Q5_K, HY_Q6_K, HY_IQ4_NL};
    for (size_t i = 0; i < HY_COUNTOF(quant); i++) {
        if (quant[i] == t)
            return (int)i;
    }
    return t == HY_F32 ? 0 : t == HY_F16 ? 1 : 2;
}

/* Rows begin where a lane may load four floats at once. */
static bool aligned_rows(const float *x, int64_t ld)
{
    return (uintptr_t)x % 16 == 0 && ld % 4 == 0;
}

hy_status simt_quantise(hy_queue *q, const float *x, int64_t ldx, int64_t m, int64_t groups,
                        void *out)
{
    for (int64_t r = 0; r < m; r += SIMT_GRID_MAX) {
        int64_t n = m - r < SIMT_GRID_MAX ? m - r : SIMT_GRID_MAX;
        ka_quant k = {.x = x + r * ldx,
                      .ldx = ldx,
                      .out = (uint8_t *)out + r * groups * KA_QX_BYTES,
                      .m = (int32_t)n,
                      .groups = (int32_t)groups,
                      .vec = aligned_rows(x, ldx)};
        HY_TRY(simt_drv(q)->launch(q, SIMT_k_quant, simt_ceil_div(groups, SIMT_BLOCK / 8),
                                   (uint32_t)n, 1, &k, sizeof(k)));
    }
    return HY_OK;
}

bool simt_int8(const hy_weight *w, hy_act_mode act)
{
    return act == HY_ACT_INT8 && hy_quant_get((int)w->type) != NULL;
}

simt_shape simt_shape_of(const hy_queue *q, const hy_weight *w, int64_t rows)
{
    if (rows <= KA_MV_ROWS)
        return rows <= 1 ? SIMT_VECTOR : SIMT_VECTORS;
    return simt_base_of(q->dev)->fast && w->type != HY_F32 ? SIMT_MMA_TILE : SIMT_TILE;
}

int simt_shape_rows(simt_shape s)
{
    static const int rows[] = {1, KA_MV_ROWS, KA_TILE_M, KA_MMA_M};
    return rows[s];
}

/* The kernel for the first type of its list, and the outputs of a block. */
typedef struct choice {
    int first, wide;
} choice;

static choice choose(const ka_matmul *k, simt_shape s, bool quant)
{
    const bool int8 = k->qx != NULL;
    if (s == SIMT_MMA_TILE)
        return (choice){quant ? SIMT_k_mma_q4_0 : SIMT_k_mma_f16 - 1, KA_MMA_N}; /* no f32 */
    if (s == SIMT_TILE)
        return (choice){int8    ? SIMT_k_mm_i_q4_0
                        : quant ? SIMT_k_mm_f_q4_0
                                : SIMT_k_mm_f_f32,
                        KA_TILE_N};
    if (quant && !int8)
        return (choice){SIMT_k_mv8_f_q4_0, SIMT_TEAMS};
    if (s == SIMT_VECTOR)
        return (choice){int8 ? SIMT_k_mv1_i_q4_0 : SIMT_k_mv1_f_f32, SIMT_TEAMS};
    if (int8)
        return (choice){SIMT_k_mv16_i_q4_0, SIMT_TEAMS * KA_MV_OUTS_I};
    return (choice){SIMT_k_mv32_f_f32, SIMT_TEAMS * KA_MV_OUTS};
}

hy_status simt_multiply(hy_queue *q, const hy_weight *w, simt_shape s, uint32_t blocks,
                        ka_matmul *k)
{
    k->w = simt_weight_of(w)->p;
    k->w_row = (int64_t)simt_weight_of(w)->row_bytes;
    k->n = (int32_t)w->n;
    k->k = (int32_t)w->k;
    k->vec = aligned_rows(k->x, k->ldx);
    const choice c = choose(k, s, hy_quant_get((int)w->type) != NULL);
    return simt_drv(q)->launch(q, (simt_kernel)(c.first + type_index(w->type)),
                               simt_ceil_div(k->n, c.wide), blocks, 1, k, sizeof(*k));
}

static hy_status matmul(hy_queue *q, const hy_matmul *a)
{
    ka_matmul k = {
        .x = a->x, .ldx = a->ldx, .y = a->y, .ldy = a->ldy, .bias = a->bias, .m = (int32_t)a->m};
    if (a->m < 1)
        return HY_OK;
    if (a->m > INT32_MAX)
        return hy_fail(HY_E_LIMIT, "%s: matmul of %lld rows", simt_name(q), (long long)a->m);
    const simt_shape s = simt_shape_of(q, a->w, a->m);
    if (simt_int8(a->w, a->act) && s != SIMT_MMA_TILE) {
        const int64_t groups = a->w->k / 32;
        void *p = NULL;
        HY_TRY(simt_drv(q)->scratch(q, (size_t)(a->m * groups) * KA_QX_BYTES, &p));
        HY_TRY(simt_quantise(q, a->x, a->ldx, a->m, groups, p));
        k.qx = p;
    }
    return simt_multiply(q, a->w, s, simt_ceil_div(a->m, simt_shape_rows(s)), &k);
}

/* ---- the rest ---- */

static hy_status embed(hy_queue *q, const hy_embed *a)
{
    const simt_weight *w = simt_weight_of(a->w);
    const void *ids = NULL;
    for (int64_t r = 0; r < a->m; r++) {
        if (a->ids[r] < 0 || a->ids[r] >= w->base.n)
            return hy_fail(HY_E_INVAL, "embed: token id %d is outside the %lld rows of the table",
                           a->ids[r], (long long)w->base.n);
    }
    HY_TRY(simt_drv(q)->stage(q, a->ids, (size_t)a->m * sizeof(int32_t), &ids));
    ka_embed k = {.w = w->p,
                  .w_row = (int64_t)w->row_bytes,
                  .k = (int32_t)w->base.k,
                  .type = (int32_t)w->base.type,
                  .scale = a->scale,
                  .ldy = a->ldy};
    for (int64_t r = 0; r < a->m; r += SIMT_GRID_MAX) {
        k.m = (int32_t)(a->m - r < SIMT_GRID_MAX ? a->m - r : SIMT_GRID_MAX);
        k.ids = (const int32_t *)ids + r;
        k.y = a->y + r * a->ldy;
        HY_TRY(simt_drv(q)->launch(q, SIMT_k_embed, simt_ceil_div(k.k, 32 * SIMT_BLOCK),
                                   (uint32_t)k.m, 1, &k, sizeof(k)));
    }
    return HY_OK;
}

static hy_status norm(hy_queue *q, const hy_norm *a, simt_kernel kernel)
{
    ka_norm k = {.x = a->x,
                 .y = a->y,
                 .w = a->w,
                 .b = a->b,
                 .ldx = a->ldx,
                 .ldy = a->ldy,
                 .m = (int32_t)a->m,
                 .dim = (int32_t)a->dim,
                 .eps = a->eps};
    return a->m < 1 ? HY_OK : simt_drv(q)->launch(q, kernel, (uint32_t)a->m, 1, 1, &k, sizeof(k));
}

static hy_status rms_norm(hy_queue *q, const hy_norm *a)
{
    return norm(q, a, SIMT_k_rms_norm);
}

static hy_status layer_norm(hy_queue *q, const hy_norm *a)
{
    return norm(q, a, SIMT_k_layer_norm);
}

/* Rows go along y, which a grid allows 65535 of. */
typedef struct rows {
    int64_t at, n;
} rows;

static bool next_rows(rows *r, int64_t m)
{
    r->at += r->n;
    r->n = m - r->at < SIMT_GRID_MAX ? m - r->at : SIMT_GRID_MAX;
    return r->n > 0;
}

static hy_status rope(hy_queue *q, const hy_rope *a)
{
    if (a->t.kind == HY_ROPE_NONE)
        return HY_OK;
    if (a->t.rot < 0 || a->t.rot > a->dim || a->t.rot % 2 != 0)
        return hy_fail(HY_E_INVAL, "rope: %d of %d dimensions cannot be rotated", a->t.rot, a->dim);
    ka_rope k = {.ld = a->ld,
                 .heads = a->heads,
                 .dim = a->dim,
                 .half = a->t.rot / 2,
                 .pairs = a->t.kind == HY_ROPE_PAIRS};
    for (rows r = {0, 0}; k.half > 0 && next_rows(&r, a->m);) {
        k.x = a->x + r.at * a->ld;
        k.cos = a->t.cos + r.at * k.half;
        k.sin = a->t.sin + r.at * k.half;
        k.m = (int32_t)r.n;
        HY_TRY(simt_drv(q)->launch(q, SIMT_k_rope,
                                   simt_ceil_div((int64_t)k.heads * k.half, SIMT_BLOCK),
                                   (uint32_t)r.n, 1, &k, sizeof(k)));
    }
    return HY_OK;
}

static hy_status act_mul(hy_queue *q, const hy_act_mul *a)
{
    ka_act k = {
        .ldg = a->ldg, .ldu = a->ldu, .ldy = a->ldy, .dim = (int32_t)a->dim, .fn = (int32_t)a->fn};
    for (rows r = {0, 0}; next_rows(&r, a->m);) {
        k.gate = a->gate + r.at * a->ldg;
        k.up = a->up != NULL ? a->up + r.at * a->ldu : NULL;
        k.y = a->y + r.at * a->ldy;
        k.m = (int32_t)r.n;
        HY_TRY(simt_drv(q)->launch(q, SIMT_k_act_mul, simt_ceil_div(a->dim, SIMT_BLOCK),
                                   (uint32_t)r.n, 1, &k, sizeof(k)));
    }
    return HY_OK;
}

static hy_status add(hy_queue *q, const hy_add *a)
{
    ka_add k = {
        .lda = a->lda, .ldb = a->ldb, .ldy = a->ldy, .dim = (int32_t)a->dim, .b_scale = a->b_scale};
    for (rows r = {0, 0}; next_rows(&r, a->m);) {
        k.a = a->a + r.at * a->lda;
        k.b = a->b + r.at * a->ldb;
        k.y = a->y + r.at * a->ldy;
        k.m = (int32_t)r.n;
        HY_TRY(simt_drv(q)->launch(q, SIMT_k_add, simt_ceil_div(a->dim, SIMT_BLOCK), (uint32_t)r.n,
                                   1, &k, sizeof(k)));
    }
    return HY_OK;
}

static hy_status topk(hy_queue *q, const hy_topk *a)
{
    bool list = a->ids != NULL || a->values != NULL;
    if (list && (a->k < 1 || a->k > 256))
        return hy_fail(HY_E_INVAL, "topk: k = %d is outside 1..256", a->k);
    if (a->m < 1)
        return HY_OK;
    size_t n = list ? (size_t)a->m * (size_t)a->k : 0, m = (size_t)a->m;
    void *p = NULL;
    HY_TRY(simt_drv(q)->scratch(q, (2 * n + m) * sizeof(float), &p));
    ka_topk k = {.x = a->logits,
                 .ld = a->ld,
                 .m = (int32_t)a->m,
                 .n = (int32_t)a->n,
                 .k = a->k,
                 .ids = p,
                 .values = (float *)p + n,
                 .lse = (float *)p + 2 * n};
    if (list)
        HY_TRY(simt_drv(q)->launch(q, SIMT_k_topk, (uint32_t)m, 1, 1, &k, sizeof(k)));
    if (a->lse != NULL)
        HY_TRY(simt_drv(q)->launch(q, SIMT_k_lse, (uint32_t)m, 1, 1, &k, sizeof(k)));
    if (a->ids != NULL)
        HY_TRY(simt_drv(q)->fetch(q, a->ids, k.ids, n * sizeof(int32_t)));
    if (a->values != NULL)
        HY_TRY(simt_drv(q)->fetch(q, a->values, k.values, n * sizeof(float)));
    return a->lse != NULL ? simt_drv(q)->fetch(q, a->lse, k.lse, m * sizeof(float)) : HY_OK;
}

/* As composed, with the scale and the cap in a kernel. */
static hy_status head(hy_queue *q, const hy_head *a)
{
    hy_head plain = *a;
    plain.scale = 1.0f;
    plain.softcap = 0.0f;
    HY_TRY(hy_compose_head(q, &plain));
    if (a->scale == 1.0f && a->softcap == 0.0f)
        return HY_OK;
    ka_scale k = {.ld = a->ldl, .n = (int32_t)a->w->n, .scale = a->scale, .softcap = a->softcap};
    for (rows r = {0, 0}; next_rows(&r, a->m);) {
        k.y = a->logits + r.at * a->ldl;
        k.m = (int32_t)r.n;
        HY_TRY(simt_drv(q)->launch(q, SIMT_k_scale, simt_ceil_div(k.n, SIMT_BLOCK), (uint32_t)r.n,
                                   1, &k, sizeof(k)));
    }
    return HY_OK;
}

const hy_math_ops simt_math = {
    .size = sizeof(hy_math_ops),
    .supports = supports,
    .kv_layout = simt_kv_layout,
    .prepare_weight = simt_prepare_weight,
    .weight_free = simt_weight_free,
    .embed = embed,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .matmul = matmul,
    .rope = rope,
    .kv_write = simt_kv_write,
    .attention = simt_attention,
    .act_mul = act_mul,
    .add = add,
    .topk = topk,
    .kv_pack = simt_kv_pack,
    .kv_unpack = simt_kv_unpack,
    .head = head,
    .moe_route = simt_moe_route,
    .moe_ffn = simt_moe_ffn,
};
