/* SPDX-License-Identifier: Apache-2.0
 *
 * Composite ops from primitives. A port that has only primitives runs every model through this;
 * the order here is the composites' definition, and the conformance suite holds fused forms to it.
 *
 * Thread: a queue's owner.  Owner: scratch is the caller's.
 */
#include "hal/compose.h"
#include "hal/fmath.h"

#define ALIGN 64

hy_carve hy_carve_of(hy_ws ws)
{
    hy_carve c = {.p = ws.p, .left = ws.bytes};
    size_t skip = (ALIGN - (uintptr_t)ws.p % ALIGN) % ALIGN;
    if (ws.p == NULL || skip > c.left) {
        c.left = 0;
    } else {
        c.p += skip;
        c.left -= skip;
    }
    return c;
}

static size_t float_bytes(int64_t n)
{
    return ((size_t)n * sizeof(float) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

float *hy_carve_take(hy_carve *c, int64_t n)
{
    size_t bytes = float_bytes(n);
    if (n < 0 || bytes > c->left) {
        c->short_of = true;
        return NULL;
    }
    void *p = c->p;
    c->p += bytes;
    c->left -= bytes;
    return p;
}

hy_status hy_carve_check(const hy_carve *c, hy_op op)
{
    if (c->short_of)
        return hy_fail(HY_E_INVAL, "%s: scratch is smaller than hy_ws_bytes says", hy_op_name(op));
    return HY_OK;
}

size_t hy_ws_bytes(const hy_ws_need *n)
{
    int64_t kv = n->kv_heads * (n->k_dim > n->v_dim ? n->k_dim : n->v_dim);
    size_t dim = float_bytes(n->rows * n->dim);
    size_t in = dim + 2 * float_bytes(n->rows * kv);
    size_t out = dim + float_bytes(n->rows * n->heads * n->v_dim);
    size_t ffn = 2 * dim + 2 * float_bytes(n->rows * n->ffn);
    size_t most = in > out ? in : out;
    if (n->moe_k > 0) {
        int64_t part = hy_moe_part(n->moe_k), pairs = (n->rows < part ? n->rows : part) * n->moe_k;
        size_t moe = 2 * float_bytes(pairs * n->dim) + 2 * float_bytes(pairs * n->moe_ffn) +
                     float_bytes(n->dim);
        most = moe > most ? moe : most;
    }
    return (most > ffn ? most : ffn) + ALIGN; /* for a start that is not aligned */
}

static hy_status norm(hy_queue *q, const hy_norm_w *w, const float *x, int64_t ldx, float *y,
                      int64_t ldy, int64_t m, int64_t dim)
{
    hy_norm a = {.x = x,
                 .ldx = ldx,
                 .y = y,
                 .ldy = ldy,
                 .m = m,
                 .dim = dim,
                 .w = w->w,
                 .b = w->b,
                 .eps = w->eps};
    const hy_math_ops *ops = q->dev->math;
    return w->b != NULL ? ops->layer_norm(q, &a) : ops->rms_norm(q, &a);
}

static hy_status mul(hy_queue *q, const hy_weight *w, const float *x, int64_t ldx, float *y,
                     int64_t ldy, int64_t m, const float *bias, hy_act_mode act)
{
    hy_matmul a = {
        .w = w, .x = x, .ldx = ldx, .y = y, .ldy = ldy, .m = m, .bias = bias, .act = act};
    return q->dev->math->matmul(q, &a);
}

/* x += y */
static hy_status add_to(hy_queue *q, float *x, int64_t ldx, const float *y, int64_t ldy, int64_t m,
                        int64_t dim)
{
    hy_add a = {.a = x,
                .lda = ldx,
                .b = y,
                .ldb = ldy,
                .y = x,
                .ldy = ldx,
                .m = m,
                .dim = dim,
                .b_scale = 1.0f};
    return q->dev->math->add(q, &a);
}

/* Norm of every head, then rope, in place. */
static hy_status finish_heads(hy_queue *q, const hy_attn_in *a, const hy_norm_w *w, float *x,
                              int32_t heads)
{
    int32_t dim = a->pool->layout.k.width;
    if (w->w != NULL)
        HY_TRY(norm(q, w, x, dim, x, dim, (int64_t)a->rows->n * heads, dim));
    if (a->rope.kind == HY_ROPE_NONE)
        return HY_OK;
    hy_rope r = {.x = x,
                 .ld = (int64_t)heads * dim,
                 .m = a->rows->n,
                 .heads = heads,
                 .dim = dim,
                 .t = a->rope};
    return q->dev->math->rope(q, &r);
}

hy_status hy_compose_attn_in(hy_queue *q, const hy_attn_in *a)
{
    const hy_kv_layout *l = &a->pool->layout;
    int64_t n = a->rows->n, nq = (int64_t)a->heads * l->k.width;
    int64_t nk = (int64_t)l->n_heads * l->k.width, nv = (int64_t)l->n_heads * l->v.width;
    hy_carve c = hy_carve_of(a->ws);
    float *normed = a->norm.w != NULL ? hy_carve_take(&c, n * a->dim) : NULL;
    float *k = hy_carve_take(&c, n * nk), *v = hy_carve_take(&c, n * nv);
    HY_TRY(hy_carve_check(&c, HY_OP_ATTN_IN));

    const float *x = a->x;
    int64_t ldx = a->ldx;
    if (normed != NULL) {
        HY_TRY(norm(q, &a->norm, a->x, a->ldx, normed, a->dim, n, a->dim));
        x = normed;
        ldx = a->dim;
    }
    HY_TRY(mul(q, a->wq, x, ldx, a->q, nq, n, a->bq, a->act));
    HY_TRY(mul(q, a->wk, x, ldx, k, nk, n, a->bk, a->act));
    HY_TRY(mul(q, a->wv, x, ldx, v, nv, n, a->bv, a->v_f32 ? HY_ACT_F32 : a->act));
    HY_TRY(finish_heads(q, a, &a->q_norm, a->q, a->heads));
    HY_TRY(finish_heads(q, a, &a->k_norm, k, l->n_heads));
    hy_kv_write w = {.pool = a->pool,
                     .layer = a->layer,
                     .rows = a->rows,
                     .bt = a->bt,
                     .k = k,
                     .v = v,
                     .ldk = nk,
                     .ldv = nv};
    return q->dev->math->kv_write(q, &w);
}

hy_status hy_compose_attn_out(hy_queue *q, const hy_attn_out *a)
{
    int64_t n = a->attn.rows->n, width = (int64_t)a->attn.heads * a->attn.pool->layout.v.width;
    hy_carve c = hy_carve_of(a->ws);
    float *ctx = hy_carve_take(&c, n * width), *y = hy_carve_take(&c, n * a->dim);
    HY_TRY(hy_carve_check(&c, HY_OP_ATTN_OUT));

    hy_attn t = a->attn;
    t.out = ctx;
    t.ldo = width;
    HY_TRY(q->dev->math->attention(q, &t));
    HY_TRY(mul(q, a->wo, ctx, width, y, a->dim, n, a->bo, a->act));
    if (a->post_norm.w != NULL)
        HY_TRY(norm(q, &a->post_norm, y, a->dim, y, a->dim, n, a->dim));
    return add_to(q, a->x, a->ldx, y, a->dim, n, a->dim);
}

/* The FFN's input after its norm. */
static hy_status ffn_input(hy_queue *q, const hy_ffn *a, float *normed, const float **x,
                           int64_t *ldx)
{
    if (a->norm.w != NULL) {
        HY_TRY(norm(q, &a->norm, a->x, a->ldx, normed, a->dim, a->m, a->dim));
        *x = normed;
        *ldx = a->dim;
    } else if (a->normed != NULL) {
        *x = a->normed;
        *ldx = a->ldn;
    } else {
        *x = a->x;
        *ldx = a->ldx;
    }
    return HY_OK;
}

/* x = post_norm(y) or x += post_norm(y) of the last matmul. */
static hy_status ffn_down(hy_queue *q, const hy_ffn *a, const float *h, int64_t ldh, float *y)
{
    if (a->no_residual) {
        HY_TRY(mul(q, a->down, h, ldh, a->x, a->ldx, a->m, a->b_down, a->act));
        if (a->post_norm.w == NULL)
            return HY_OK;
        return norm(q, &a->post_norm, a->x, a->ldx, a->x, a->ldx, a->m, a->dim);
    }
    HY_TRY(mul(q, a->down, h, ldh, y, a->dim, a->m, a->b_down, a->act));
    if (a->post_norm.w != NULL)
        HY_TRY(norm(q, &a->post_norm, y, a->dim, y, a->dim, a->m, a->dim));
    return add_to(q, a->x, a->ldx, y, a->dim, a->m, a->dim);
}

hy_status hy_compose_ffn(hy_queue *q, const hy_ffn *a)
{
    int64_t width = a->up->n, ldx = 0;
    hy_carve c = hy_carve_of(a->ws);
    float *normed = a->norm.w != NULL ? hy_carve_take(&c, a->m * a->dim) : NULL;
    float *up = hy_carve_take(&c, a->m * width);
    float *gate = a->gate != NULL ? hy_carve_take(&c, a->m * width) : NULL;
    float *y = a->no_residual ? NULL : hy_carve_take(&c, a->m * a->dim);
    HY_TRY(hy_carve_check(&c, HY_OP_FFN));

    const float *x = NULL;
    HY_TRY(ffn_input(q, a, normed, &x, &ldx));
    HY_TRY(mul(q, a->up, x, ldx, up, width, a->m, a->b_up, a->act));
    hy_act_mul f = {
        .gate = up, .ldg = width, .y = up, .ldy = width, .m = a->m, .dim = width, .fn = a->fn};
    if (gate != NULL) {
        HY_TRY(mul(q, a->gate, x, ldx, gate, width, a->m, a->b_gate, a->act));
        f.gate = gate;
        f.up = up;
        f.ldu = width;
    }
    HY_TRY(q->dev->math->act_mul(q, &f));
    return ffn_down(q, a, up, width, y);
}

/* Chosen rows, normed, side by side. */
static hy_status head_input(hy_queue *q, const hy_head *a, float *out)
{
    for (int64_t i = 0; i < a->m;) {
        int64_t run = 1; /* rows that follow each other go together */
        while (i + run < a->m && a->rows[i + run] == a->rows[i] + run)
            run++;
        const float *x = a->x + a->rows[i] * a->ldx;
        float *y = out + i * a->dim;
        if (a->norm.w != NULL) {
            HY_TRY(norm(q, &a->norm, x, a->ldx, y, a->dim, run, a->dim));
        } else {
            for (int64_t r = 0; r < run; r++)
                HY_TRY(q->dev->ops->copy(q, y + r * a->dim, x + r * a->ldx,
                                         (size_t)a->dim * sizeof(float)));
        }
        i += run;
    }
    return HY_OK;
}

static void scale_some(const hy_head *a, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float v = y[i] * a->scale;
        y[i] = a->softcap != 0.0f ? hy_m_softcap(v, a->softcap) : v;
    }
}

/* No primitive scales or caps: done on the host, and where that does not see device memory, by
 * pieces that travel there and back. Slow; a backend's own head is not. */
static hy_status head_scale(hy_queue *q, const hy_head *a)
{
    enum { PIECE = 4096 };
    float piece[PIECE];
    hy_dev_props p;
    const hy_dev_ops *ops = q->dev->ops;
    HY_TRY(ops->props(q->dev, &p));
    HY_TRY(ops->queue_wait(q));
    for (int64_t r = 0; r < a->m; r++) {
        float *y = a->logits + r * a->ldl;
        if (p.host_visible) {
            scale_some(a, y, a->w->n);
            continue;
        }
        for (int64_t i = 0; i < a->w->n; i += PIECE) {
            const int64_t n = a->w->n - i < PIECE ? a->w->n - i : PIECE;
            HY_TRY(ops->copy(q, piece, y + i, (size_t)n * sizeof(float)));
            HY_TRY(ops->queue_wait(q));
            scale_some(a, piece, n);
            HY_TRY(ops->copy(q, y + i, piece, (size_t)n * sizeof(float)));
            HY_TRY(ops->queue_wait(q)); /* the piece is used anew */
        }
    }
    return HY_OK;
}

hy_status hy_compose_head(hy_queue *q, const hy_head *a)
{
    hy_carve c = hy_carve_of(a->ws);
    float *x = hy_carve_take(&c, a->m * a->dim);
    HY_TRY(hy_carve_check(&c, HY_OP_HEAD));
    HY_TRY(head_input(q, a, x));
    HY_TRY(mul(q, a->w, x, a->dim, a->logits, a->ldl, a->m, NULL, a->act));
    if (a->scale != 1.0f || a->softcap != 0.0f)
        return head_scale(q, a);
    return HY_OK;
}
