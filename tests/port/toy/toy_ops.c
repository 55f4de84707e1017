/* SPDX-License-Identifier: Apache-2.0
 *
 * The made-up device's ops: steps 4 to 8 of docs/PORTING.md, each a job with copies of its
 * arguments and of the host arrays behind them. Weights are kept as f32.
 *
 * Thread: a queue's owner; run_* on the queue's thread.  Owner: a weight holds its rows.
 */
#include "tests/port/toy/toy.h"

#include "core/base/alloc.h"
#include "hal/fmath.h"

#include <math.h>
#include <string.h>

/* What most ops are: a copy of the arguments. */
#define ENQUEUE(q, fn, a) toy_submit((q), toy_job((q), (fn), (a), sizeof(*(a)), 0))

/* ---- what it can ---- */

static bool float_type(hy_dtype t)
{
    return t == HY_F32 || t == HY_F16 || t == HY_BF16;
}

static bool kv_ok(const hy_op_query *q)
{
    return float_type(q->kv_value) && (q->kv_type == q->kv_value || q->kv_type == HY_F32);
}

static bool supports(hy_dev *d, const hy_op_query *q)
{
    if ((int)q->op == toy_without(d))
        return false;
    switch (q->op) {
    case HY_OP_ADD:
    case HY_OP_RMS_NORM:
    case HY_OP_LAYER_NORM:
    case HY_OP_ACT_MUL:
    case HY_OP_ROPE:
    case HY_OP_TOPK:
        return true;
    case HY_OP_MATMUL:
    case HY_OP_EMBED:
    case HY_OP_FFN:
    case HY_OP_HEAD:
        return float_type(q->w_type);
    case HY_OP_KV_WRITE:
    case HY_OP_ATTENTION:
        return kv_ok(q);
    case HY_OP_KV_PACK:
    case HY_OP_KV_UNPACK:
        return kv_ok(q) && float_type(q->w_type);
    case HY_OP_ATTN_IN:
    case HY_OP_ATTN_OUT:
        return kv_ok(q) && float_type(q->w_type);
    default:
        return false;
    }
}

/* ---- 4: elementwise ---- */

static void run_add(void *p)
{
    const hy_add *a = p;
    for (int64_t r = 0; r < a->m; r++) {
        for (int64_t i = 0; i < a->dim; i++)
            a->y[r * a->ldy + i] = fmaf(a->b[r * a->ldb + i], a->b_scale, a->a[r * a->lda + i]);
    }
}

static void run_rms_norm(void *p)
{
    const hy_norm *a = p;
    for (int64_t r = 0; r < a->m; r++) {
        const float *x = a->x + r * a->ldx;
        double ss = 0.0;
        for (int64_t i = 0; i < a->dim; i++)
            ss += (double)x[i] * (double)x[i];
        const float f = (float)(1.0 / sqrt(ss / (double)a->dim + (double)a->eps));
        for (int64_t i = 0; i < a->dim; i++)
            a->y[r * a->ldy + i] = x[i] * f * (a->w != NULL ? a->w[i] : 1.0f);
    }
}

static void run_layer_norm(void *p)
{
    const hy_norm *a = p;
    for (int64_t r = 0; r < a->m; r++) {
        const float *x = a->x + r * a->ldx;
        double s = 0.0, ss = 0.0;
        for (int64_t i = 0; i < a->dim; i++)
            s += (double)x[i];
        const double mean = s / (double)a->dim;
        for (int64_t i = 0; i < a->dim; i++)
            ss += ((double)x[i] - mean) * ((double)x[i] - mean);
        const double f = 1.0 / sqrt(ss / (double)a->dim + (double)a->eps);
        for (int64_t i = 0; i < a->dim; i++)
            a->y[r * a->ldy + i] =
                fmaf((float)(((double)x[i] - mean) * f), a->w != NULL ? a->w[i] : 1.0f,
                     a->b != NULL ? a->b[i] : 0.0f);
    }
}

static void run_act_mul(void *p)
{
    const hy_act_mul *a = p;
    for (int64_t r = 0; r < a->m; r++) {
        for (int64_t i = 0; i < a->dim; i++) {
            const float x = a->gate[r * a->ldg + i];
            const float y = a->fn == HY_ACT_SILU        ? hy_m_silu(x)
                            : a->fn == HY_ACT_GELU_TANH ? hy_m_gelu_tanh(x)
                            : a->fn == HY_ACT_GELU_ERF  ? hy_m_gelu_erf(x)
                                                        : hy_m_relu(x);
            a->y[r * a->ldy + i] = a->up != NULL ? y * a->up[r * a->ldu + i] : y;
        }
    }
}

static void run_rope(void *p)
{
    const hy_rope *a = p;
    const int32_t half = a->t.rot / 2;
    for (int64_t r = 0; r < a->m * a->heads; r++) {
        const int64_t row = r / a->heads;
        float *x = a->x + row * a->ld + r % a->heads * a->dim;
        for (int32_t i = 0; i < half; i++) {
            const int32_t at = a->t.kind == HY_ROPE_PAIRS ? 2 * i : i;
            const int32_t to = a->t.kind == HY_ROPE_PAIRS ? at + 1 : i + half;
            const float c = a->t.cos[row * half + i], s = a->t.sin[row * half + i];
            const float u = x[at], v = x[to];
            x[at] = fmaf(u, c, -(v * s));
            x[to] = fmaf(u, s, v * c);
        }
    }
}

static hy_status add(hy_queue *q, const hy_add *a)
{
    return ENQUEUE(q, run_add, a);
}

static hy_status rms_norm(hy_queue *q, const hy_norm *a)
{
    return ENQUEUE(q, run_rms_norm, a);
}

static hy_status layer_norm(hy_queue *q, const hy_norm *a)
{
    if (toy_without(q->dev) == HY_OP_LAYER_NORM)
        return hy_fail(HY_E_UNSUPPORTED, "toy: no layer_norm");
    return ENQUEUE(q, run_layer_norm, a);
}

static hy_status act_mul(hy_queue *q, const hy_act_mul *a)
{
    return ENQUEUE(q, run_act_mul, a);
}

static hy_status rope(hy_queue *q, const hy_rope *a)
{
    if (a->t.rot < 0 || a->t.rot > a->dim || a->t.rot % 2 != 0)
        return hy_fail(HY_E_INVAL, "rope: %d of %d dimensions", a->t.rot, a->dim);
    return a->t.kind == HY_ROPE_NONE ? HY_OK : ENQUEUE(q, run_rope, a);
}

/* ---- 5: weights ---- */

typedef struct toy_weight {
    hy_weight base;
    float *rows;
} toy_weight;

static const float *row_of(const hy_weight *w, int64_t r)
{
    return ((const toy_weight *)(const void *)w)->rows + r * w->k;
}

static hy_status prepare_weight(hy_dev *d, const hy_weight_src *src, hy_weight **out)
{
    (void)d;
    if (!float_type(src->type))
        return hy_fail(HY_E_UNSUPPORTED, "toy: no weights of %s", hy_dtype_name((int)src->type));
    toy_weight *w = hy_calloc(1, sizeof(*w));
    const size_t bytes = (size_t)(src->n * src->k) * sizeof(float);
    if (w == NULL || (w->rows = hy_aligned_alloc(64, (bytes + 127) / 64 * 64)) == NULL) {
        hy_free(w);
        return hy_fail(HY_E_NOMEM_DEVICE, "toy: no memory for a weight");
    }
    hy_dtype_decode((int)src->type, src->data, w->rows, src->n * src->k);
    w->base = (hy_weight){.type = src->type, .n = src->n, .k = src->k, .bytes = bytes};
    *out = &w->base;
    return HY_OK;
}

static void weight_free(hy_dev *d, hy_weight *w)
{
    (void)d;
    if (w != NULL)
        hy_free(((toy_weight *)(void *)w)->rows);
    hy_free(w);
}

static void run_matmul(void *p)
{
    const hy_matmul *a = p;
    for (int64_t r = 0; r < a->m; r++) {
        for (int64_t i = 0; i < a->w->n; i++) {
            const float *w = row_of(a->w, i), *x = a->x + r * a->ldx;
            float s = 0.0f;
            for (int64_t k = 0; k < a->w->k; k++)
                s = fmaf(w[k], x[k], s);
            a->y[r * a->ldy + i] = a->bias != NULL ? s + a->bias[i] : s;
        }
    }
}

static void run_embed(void *p)
{
    const hy_embed *a = p;
    for (int64_t r = 0; r < a->m; r++) {
        for (int64_t k = 0; k < a->w->k; k++)
            a->y[r * a->ldy + k] = row_of(a->w, a->ids[r])[k] * a->scale;
    }
}

static hy_status matmul(hy_queue *q, const hy_matmul *a)
{
    return ENQUEUE(q, run_matmul, a);
}

static hy_status embed(hy_queue *q, const hy_embed *a)
{
    for (int64_t r = 0; r < a->m; r++) {
        if (a->ids[r] < 0 || a->ids[r] >= a->w->n)
            return hy_fail(HY_E_INVAL, "embed: token id %d", a->ids[r]);
    }
    const size_t bytes = (size_t)a->m * sizeof(int32_t);
    hy_embed *e = toy_job(q, run_embed, a, sizeof(*a), bytes);
    if (e != NULL)
        e->ids = toy_keep(e, a->ids, bytes);
    return toy_submit(q, e);
}

/* ---- 6: the cache ---- */

static hy_status kv_layout(hy_dev *d, hy_kv_layout *l)
{
    (void)d;
    const int64_t e = hy_dtype_get((int)l->type)->bytes, t = l->block_tokens, h = l->n_heads;
    l->k.dim = l->v.dim = e; /* [token][head][dim], K then V */
    l->k.head = l->k.width * e;
    l->v.head = l->v.width * e;
    l->k.token = h * l->k.head;
    l->v.token = h * l->v.head;
    l->k.off = 0;
    l->v.off = t * l->k.token;
    l->layer_stride = l->v.off + t * l->v.token;
    l->block_stride = l->bytes_per_block = l->layer_stride * l->n_layers;
    return HY_OK;
}

static float load(hy_dtype t, const uint8_t *p)
{
    float f;
    hy_dtype_decode((int)t, p, &f, 1);
    return f;
}

static void store(hy_dtype t, uint8_t *p, float f)
{
    const uint16_t h = t == HY_F16 ? hy_f32_to_f16(f) : hy_f32_to_bf16(f);
    if (t == HY_F32)
        memcpy(p, &f, sizeof(f));
    else
        memcpy(p, &h, sizeof(h));
}

/* Rounded to `value`, stored as `type`. */
static void store_as(hy_dtype value, hy_dtype type, uint8_t *p, float f)
{
    uint8_t v[4];
    store(value, v, f);
    store(type, p, load(value, v));
}

static uint8_t *row_at(const hy_kv_pool *p, const hy_kv_plane *plane, int32_t layer, int32_t block,
                       int32_t pos, int32_t head)
{
    const hy_kv_layout *l = &p->layout;
    return (uint8_t *)p->base + layer * l->layer_stride + block * l->block_stride + plane->off +
           head * plane->head + pos % l->block_tokens * plane->token;
}

/* Arrays of a step that outlive the call. */
typedef struct step {
    hy_kv_pool pool;
    hy_rows rows;
    hy_block_table bt;
    union {
        hy_kv_write write;
        hy_attn attn;
    } a;
} step;

static step *step_job(hy_queue *q, toy_fn fn, const hy_kv_pool *pool, const hy_rows *rows,
                      const hy_block_table *bt)
{
    const size_t n = (size_t)rows->n * sizeof(int32_t);
    const size_t seqs = (size_t)(rows->n_seqs + 1) * sizeof(int32_t);
    const size_t table = (size_t)(rows->n_seqs * bt->stride) * sizeof(int32_t);
    const step s = {.pool = *pool, .rows = *rows, .bt = *bt};
    step *j = toy_job(q, fn, &s, sizeof(s), n + seqs + table);
    if (j == NULL)
        return NULL;
    j->rows.ids = NULL;
    j->rows.pos = toy_keep(j, rows->pos, n);
    j->rows.seq_row = toy_keep(j, rows->seq_row, seqs);
    j->bt.table = toy_keep(j, bt->table, table);
    return j;
}

static void write_row(const step *s, const hy_kv_plane *p, int32_t block, int32_t pos,
                      const float *x)
{
    const hy_kv_layout *l = &s->pool.layout;
    for (int32_t h = 0; h < l->n_heads; h++) {
        uint8_t *at = row_at(&s->pool, p, s->a.write.layer, block, pos, h);
        for (int32_t d = 0; d < p->width; d++)
            store_as(l->value_type, l->type, at + d * p->dim, x[h * p->width + d]);
    }
}

static void run_kv_write(void *p)
{
    const step *s = p;
    const hy_kv_layout *l = &s->pool.layout;
    for (int32_t q = 0; q < s->rows.n_seqs; q++) {
        for (int32_t r = s->rows.seq_row[q]; r < s->rows.seq_row[q + 1]; r++) {
            const int32_t pos = s->rows.pos[r];
            const int32_t b = s->bt.table[q * s->bt.stride + pos / l->block_tokens];
            write_row(s, &l->k, b, pos, s->a.write.k + r * s->a.write.ldk);
            write_row(s, &l->v, b, pos, s->a.write.v + r * s->a.write.ldv);
        }
    }
}

static hy_status kv_write(hy_queue *q, const hy_kv_write *a)
{
    step *s = step_job(q, run_kv_write, a->pool, a->rows, &a->bt);
    if (s != NULL)
        s->a.write = *a;
    return toy_submit(q, s);
}

static float score(const step *s, const float *x, const uint8_t *k)
{
    const hy_kv_layout *l = &s->pool.layout;
    float v = 0.0f;
    for (int32_t d = 0; d < l->k.width; d++)
        v = fmaf(x[d], load(l->type, k + d * l->k.dim), v);
    v *= s->a.attn.scale;
    return s->a.attn.softcap != 0.0f ? hy_m_softcap(v, s->a.attn.softcap) : v;
}

/* One head of one row, online: a running maximum, the sum, and the output under that maximum. */
static void attend(const step *s, int32_t q, int32_t r, int32_t head)
{
    const hy_kv_layout *l = &s->pool.layout;
    const hy_attn *a = &s->a.attn;
    const int32_t pos = s->rows.pos[r], kv = (int32_t)((int64_t)head * l->n_heads / a->heads);
    const float *x = a->q + r * a->ldq + (int64_t)head * l->k.width;
    float *y = a->out + r * a->ldo + (int64_t)head * l->v.width, top = -INFINITY, sum = 0.0f;
    for (int32_t d = 0; d < l->v.width; d++)
        y[d] = 0.0f;
    for (int32_t i = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0; i <= pos; i++) {
        const int32_t b = s->bt.table[q * s->bt.stride + i / l->block_tokens];
        const float v = score(s, x, row_at(&s->pool, &l->k, a->layer, b, i, kv));
        const float m = v > top ? v : top, old = hy_m_exp(top - m), p = hy_m_exp(v - m);
        const uint8_t *at = row_at(&s->pool, &l->v, a->layer, b, i, kv);
        for (int32_t d = 0; d < l->v.width; d++)
            y[d] = fmaf(p, load(l->type, at + d * l->v.dim), y[d] * old);
        sum = fmaf(sum, old, p);
        top = m;
    }
    for (int32_t d = 0; d < l->v.width; d++)
        y[d] /= sum;
}

static void run_attention(void *p)
{
    const step *s = p;
    for (int32_t q = 0; q < s->rows.n_seqs; q++) {
        for (int32_t r = s->rows.seq_row[q]; r < s->rows.seq_row[q + 1]; r++) {
            for (int32_t h = 0; h < s->a.attn.heads; h++)
                attend(s, q, r, h);
        }
    }
}

static hy_status attention(hy_queue *q, const hy_attn *a)
{
    step *s = step_job(q, run_attention, a->pool, a->rows, &a->bt);
    if (s != NULL)
        s->a.attn = *a;
    return toy_submit(q, s);
}

/* ---- 7: topk ---- */

static void top_row(const hy_topk *a, int64_t r)
{
    const float *x = a->logits + r * a->ld;
    int32_t last = -1;
    float bound = INFINITY;
    for (int32_t j = 0; j < a->k; j++) {
        int32_t best = -1; /* the best that comes after the last one */
        float most = -INFINITY;
        for (int32_t i = 0; i < (int32_t)a->n; i++) {
            const float v = x[i] == x[i] ? x[i] : -INFINITY;
            const bool after = j == 0 || v < bound || (v == bound && i > last);
            if (after && (best < 0 || v > most)) {
                best = i;
                most = v;
            }
        }
        if (a->ids != NULL)
            a->ids[r * a->k + j] = best;
        if (a->values != NULL)
            a->values[r * a->k + j] = most;
        if (best < 0) { /* the row has no more */
            last = (int32_t)a->n;
            bound = -INFINITY;
        } else {
            last = best;
            bound = most;
        }
    }
}

static void run_topk(void *p)
{
    const hy_topk *a = p;
    for (int64_t r = 0; r < a->m; r++) {
        const float *x = a->logits + r * a->ld;
        float m = -INFINITY;
        double sum = 0.0;
        if (a->ids != NULL || a->values != NULL)
            top_row(a, r);
        for (int64_t i = 0; i < a->n; i++)
            m = x[i] > m ? x[i] : m;
        for (int64_t i = 0; i < a->n && !isinf(m); i++)
            sum += x[i] == x[i] ? (double)hy_m_exp(x[i] - m) : 0.0;
        if (a->lse != NULL)
            a->lse[r] = isinf(m) ? m : (float)((double)m + hy_m_log(sum));
    }
}

static hy_status topk(hy_queue *q, const hy_topk *a)
{
    if ((a->ids != NULL || a->values != NULL) && (a->k < 1 || a->k > 256))
        return hy_fail(HY_E_INVAL, "topk: k = %d is outside 1..256", a->k);
    return ENQUEUE(q, run_topk, a);
}

/* ---- 8: the wire ---- */

typedef struct wire {
    hy_kv_pool pool;
    hy_kv_copy a;
    bool pack;
} wire;

static void run_wire(void *p)
{
    const wire *w = p;
    const hy_kv_copy *a = &w->a;
    const hy_kv_layout *l = &w->pool.layout;
    const size_t e = hy_dtype_get((int)a->wire)->bytes;
    uint8_t *at = a->buf;
    for (int32_t layer = a->layer0; layer < a->layer0 + a->n_layers; layer++) {
        for (int32_t t0 = a->t0, t1; t0 < a->t0 + a->n; t0 = t1) {
            t1 = (t0 / 16 + 1) * 16 < a->t0 + a->n ? (t0 / 16 + 1) * 16 : a->t0 + a->n;
            for (int32_t i = 0; i < 2 * a->n_heads * (t1 - t0); i++) {
                const hy_kv_plane *plane = i < a->n_heads * (t1 - t0) ? &l->k : &l->v;
                const int32_t h = a->head0 + i / (t1 - t0) % a->n_heads, t = t0 + i % (t1 - t0);
                uint8_t *row = row_at(&w->pool, plane, layer, a->blocks[t / l->block_tokens], t, h);
                for (int32_t d = 0; d < plane->width; d++, at += e) {
                    uint8_t *c = row + d * plane->dim;
                    if (w->pack)
                        store(a->wire, at, load(l->type, c));
                    else
                        store_as(l->value_type, l->type, c, load(a->wire, at));
                }
            }
        }
    }
}

static hy_status travel(hy_queue *q, const hy_kv_copy *a, bool pack)
{
    const hy_kv_layout *l = &a->pool->layout;
    const size_t e = hy_dtype_get((int)a->wire)->bytes;
    const uint64_t rows = (uint64_t)a->n_layers * (uint64_t)a->n * (uint64_t)a->n_heads;
    const size_t blocks = (size_t)((a->t0 + a->n - 1) / l->block_tokens + 1) * sizeof(int32_t);
    const wire w = {.pool = *a->pool, .a = *a, .pack = pack};
    if (!float_type(a->wire))
        return hy_fail(HY_E_UNSUPPORTED, "toy: no KV as %s", hy_dtype_name((int)a->wire));
    if (rows * (uint64_t)(l->k.width + l->v.width) * e > a->bytes)
        return hy_fail(HY_E_INVAL, "kv wire: a buffer of %zu bytes is too small", a->bytes);
    if (rows == 0)
        return HY_OK;
    wire *j = toy_job(q, run_wire, &w, sizeof(w), blocks);
    if (j != NULL)
        j->a.blocks = toy_keep(j, a->blocks, blocks);
    return toy_submit(q, j);
}

static hy_status kv_pack(hy_queue *q, const hy_kv_copy *a)
{
    return travel(q, a, true);
}

static hy_status kv_unpack(hy_queue *q, const hy_kv_copy *a)
{
    return travel(q, a, false);
}

const hy_math_ops toy_math_ops = {
    .size = sizeof(hy_math_ops),
    .supports = supports,
    .kv_layout = kv_layout,
    .prepare_weight = prepare_weight,
    .weight_free = weight_free,
    .embed = embed,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .matmul = matmul,
    .rope = rope,
    .kv_write = kv_write,
    .attention = attention,
    .act_mul = act_mul,
    .add = add,
    .topk = topk,
    .kv_pack = kv_pack,
    .kv_unpack = kv_unpack,
};
