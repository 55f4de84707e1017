/* SPDX-License-Identifier: Apache-2.0
 *
 * The composite ops as jobs of a few phases: norm and quantising of rows, products, epilogues that
 * end in the cache, in the next product's panels or in the residual stream. The same bits as
 * hal/compose.c makes of primitives, which also takes the shapes that do not fit here.
 *
 * Thread: a queue's owner and the pool.  Owner: the queue's scratch.
 */
#include "backends/cpu/attn_plan.h"
#include "backends/cpu/fast.h"
#include "backends/cpu/ref_int.h"
#include "hal/compose.h"

#include <string.h>

/* Rows into panels, through a norm. */
typedef struct norm_in {
    const float *x;
    int64_t ldx, dim;
    const int32_t *pick;   /* rows of x; NULL: all */
    const hy_norm_w *norm; /* NULL or w NULL: none */
    cpu_cols cols;
    float *row; /* a row for each thread */
} norm_in;

static void norm_row(const cpu_fast *f, const hy_norm_w *n, const float *x, float *y, int64_t dim)
{
    if (n->b != NULL)
        f->vec->layer_norm(x, y, dim, n->w, n->b, n->eps);
    else
        f->vec->rms_norm(x, y, dim, n->w, n->eps);
}

static void norm_put(const cpu_fast *f, const norm_in *n, int item, int thread)
{
    const float *x = n->x + (n->pick != NULL ? n->pick[item] : item) * n->ldx;
    if (n->norm != NULL && n->norm->w != NULL) {
        float *row = n->row + thread * ((n->dim + 15) / 16 * 16);
        norm_row(f, n->norm, x, row, n->dim);
        x = row;
    }
    cpu_cols_put(f, &n->cols, item, x);
}

static void norm_carve(const cpu_fast *f, norm_in *n, int64_t m, unsigned kinds, cpu_carve *c)
{
    int threads = cpu_pool_threads(f->pool);
    cpu_cols_init(f, &n->cols, m, n->dim, kinds, c);
    n->row = cpu_carve_take(c, (size_t)((n->dim + 15) / 16 * 16) * (size_t)threads * 4);
}

/* x (+)= norm(y), rows apart. */
typedef struct post_norm {
    const hy_norm_w *norm;
    const float *y;
    int64_t dim;
    float *x;
    int64_t ldx;
    bool add;
    float *row;
} post_norm;

static void post_row(const cpu_fast *f, const post_norm *p, int item, int thread)
{
    float *row = p->row + thread * ((p->dim + 15) / 16 * 16), *x = p->x + item * p->ldx;
    norm_row(f, p->norm, p->y + item * p->dim, p->add ? row : x, p->dim);
    if (p->add)
        f->vec->add(x, row, 1.0f, x, p->dim);
}

static unsigned kind_of(const hy_weight *w, hy_act_mode act)
{
    return 1u << cpu_panel_of(cpu_weight_of(w), act);
}

static bool packed(const hy_weight *w)
{
    return w == NULL || cpu_weight_of(w)->pack != PACK_NONE;
}

/* ---- attention, first half ---- */

typedef struct in_job {
    const cpu_fast *f;
    const hy_attn_in *a;
    norm_in in;
    cpu_cut cut;
    int32_t *seq; /* of each row */
    int heads;    /* items of a panel: query, key and value heads */
} in_job;

static void in_norm(void *ctx, int item, int thread)
{
    in_job *j = ctx;
    norm_put(j->f, &j->in, item, thread);
}

static void finish_head(const in_job *j, const hy_norm_w *n, float *x, int32_t row)
{
    const hy_attn_in *a = j->a;
    const hy_rope_table *t = &a->rope;
    if (n->w != NULL)
        norm_row(j->f, n, x, x, a->pool->layout.k.width);
    if (t->kind != HY_ROPE_NONE)
        j->f->vec->rope(x, t->rot, t->kind, t->cos + (int64_t)row * (t->rot / 2),
                        t->sin + (int64_t)row * (t->rot / 2));
}

static void store_head(const in_job *j, const hy_kv_plane *p, int32_t row, int32_t head,
                       const float *x)
{
    const hy_attn_in *a = j->a;
    const hy_kv_layout *l = &a->pool->layout;
    int32_t pos = a->rows->pos[row];
    int32_t block = a->bt.table[j->seq[row] * a->bt.stride + pos / l->block_tokens];
    uint8_t *at = (uint8_t *)a->pool->base + a->layer * l->layer_stride + block * l->block_stride +
                  p->off + head * p->head + pos % l->block_tokens * p->token;
    j->f->vec->kv_store(x, p->width, l->value_type, l->type, at, p->dim);
}

static hy_act_mode v_act(const hy_attn_in *a)
{
    return a->v_f32 ? HY_ACT_F32 : a->act;
}

/* One head of q, k or v for a panel of rows. */
static void in_head(void *ctx, int item, int thread)
{
    in_job *j = ctx;
    const hy_attn_in *a = j->a;
    const hy_kv_layout *l = &a->pool->layout;
    cpu_local *loc = cpu_local_of(j->f, thread);
    int panel = item / j->heads, h = item % j->heads, R = j->f->mm->rows;
    bool is_q = h < a->heads, is_k = !is_q && h < a->heads + l->n_heads;
    hy_act_mode act = is_q || is_k ? a->act : v_act(a);
    const hy_weight *w = is_q ? a->wq : is_k ? a->wk : a->wv;
    const float *bias = is_q ? a->bq : is_k ? a->bk : a->bv;
    int head = is_q ? h : is_k ? h - a->heads : h - a->heads - l->n_heads;
    int width = is_q || is_k ? l->k.width : l->v.width;
    const cpu_tiles *t = cpu_tiles_for(&j->in.cols, cpu_panel_of(cpu_weight_of(w), act));
    int c0 = cpu_edge(t, panel * j->cut.cols), c1 = cpu_edge(t, (panel + 1) * j->cut.cols);
    float *out = (float *)(void *)loc->attn; /* [col][width] */
    if (c0 >= c1)
        return;
    for (int s = 0; s < width / R; s++) {
        cpu_strip(j->f, cpu_weight_of(w), &j->in.cols, act, head * (width / R) + s, c0, c1,
                  loc->acc[0], loc->buf);
        for (int c = 0; c < c1 - c0; c++)
            memcpy(out + c * width + s * R, loc->acc[0] + c * R, (size_t)R * 4);
    }
    for (int c = c0; c < c1; c++) {
        float *x = out + (c - c0) * width;
        if (bias != NULL)
            j->f->vec->add(x, bias + head * width, 1.0f, x, width);
        if (is_q) {
            finish_head(j, &a->q_norm, x, c);
            memcpy(a->q + (int64_t)c * a->heads * width + head * width, x, (size_t)width * 4);
        } else if (is_k) {
            finish_head(j, &a->k_norm, x, c);
            store_head(j, &l->k, c, head, x);
        } else {
            store_head(j, &l->v, c, head, x);
        }
    }
}

static bool in_fits(const cpu_fast *f, const hy_attn_in *a)
{
    const hy_kv_layout *l = &a->pool->layout;
    int R = f->mm->rows;
    return packed(a->wq) && packed(a->wk) && packed(a->wv) && l->k.width % R == 0 &&
           l->v.width % R == 0 && l->k.width <= 1024 && l->v.width <= 1024 && a->rows->n > 0;
}

static hy_status check_writes(const hy_attn_in *a)
{
    const hy_rows *rows = a->rows;
    const hy_kv_layout *l = &a->pool->layout;
    for (int32_t s = 0; s < rows->n_seqs; s++) {
        for (int32_t r = rows->seq_row[s]; r < rows->seq_row[s + 1]; r++) {
            int32_t id = a->bt.table[s * a->bt.stride + rows->pos[r] / l->block_tokens];
            if (ref_kv_block(a->pool, a->layer, id) == NULL)
                return hy_fail(HY_E_INVAL, "kv_write: layer %d, block %d is outside the pool",
                               a->layer, id);
        }
    }
    return HY_OK;
}

static void in_carve(in_job *j, cpu_carve *c)
{
    const hy_attn_in *a = j->a;
    unsigned kinds = kind_of(a->wq, a->act) | kind_of(a->wk, a->act) | kind_of(a->wv, v_act(a));
    norm_carve(j->f, &j->in, a->rows->n, kinds, c);
    j->seq = cpu_carve_take(c, (size_t)a->rows->n * 4);
}

hy_status cpu_fast_attn_in(hy_queue *q, const hy_attn_in *a)
{
    cpu_fast *f = cpu_fast_of(q);
    if (!in_fits(f, a))
        return hy_compose_attn_in(q, a);
    HY_TRY(check_writes(a));
    const hy_kv_layout *l = &a->pool->layout;
    in_job j = {.f = f, .a = a};
    j.in = (norm_in){.x = a->x, .ldx = a->ldx, .dim = a->dim, .norm = &a->norm};
    cpu_carve c = {0};
    in_carve(&j, &c);
    HY_TRY(cpu_carve_get(q, &c));
    in_carve(&j, &c);
    for (int32_t s = 0; s < a->rows->n_seqs; s++) {
        for (int32_t r = a->rows->seq_row[s]; r < a->rows->seq_row[s + 1]; r++)
            j.seq[r] = s;
    }
    j.heads = a->heads + 2 * l->n_heads;
    j.cut = cpu_cut_of(f, a->rows->n, a->dim, j.heads, 1 << 20, 1);
    int wide = l->k.width > l->v.width ? l->k.width : l->v.width;
    int most =
        (int)(sizeof(((cpu_local *)0)->attn) / 4) / wide - 12; /* rows of a head in scratch */
    if (j.cut.cols > most) {
        j.cut.cols = most;
        j.cut.panels = (a->rows->n + most - 1) / most;
    }
    cpu_job job = {.n_phases = 2,
                   .n_items = {a->rows->n, j.heads * j.cut.panels},
                   .fn = {in_norm, in_head},
                   .ctx = &j};
    cpu_pool_run(f->pool, &job);
    return HY_OK;
}

/* ---- attention, second half ---- */

typedef struct out_job {
    const cpu_fast *f;
    const hy_attn_out *a;
    hy_attn attn;
    cpu_attn_plan plan;
    float *ctx; /* attention's output */
    cpu_cols cols;
    cpu_mul mul;
    post_norm post;
} out_job;

static void out_attn(void *ctx, int item, int thread)
{
    out_job *j = ctx;
    cpu_attn_run(&j->plan, item, thread);
}

static void out_put(void *ctx, int item, int thread)
{
    (void)thread;
    out_job *j = ctx;
    for (int i = 0; i < j->plan.n_joins; i++) {
        const cpu_attn_item *t = &j->plan.joins[i];
        if (t->row == item) /* a joined tile has one row */
            cpu_attn_join(&j->plan, i);
    }
    cpu_cols_put(j->f, &j->cols, item, j->ctx + item * j->attn.ldo);
}

static void out_mul(void *ctx, int item, int thread)
{
    out_job *j = ctx;
    cpu_mul_item(j->f, &j->mul, item, thread);
}

static void out_post(void *ctx, int item, int thread)
{
    out_job *j = ctx;
    post_row(j->f, &j->post, item, thread);
}

static void out_carve(out_job *j, cpu_carve *c)
{
    const hy_attn_out *a = j->a;
    int64_t n = a->attn.rows->n, threads = cpu_pool_threads(j->f->pool);
    j->ctx = cpu_carve_take(c, (size_t)(n * j->attn.ldo) * 4);
    cpu_cols_init(j->f, &j->cols, n, j->attn.ldo, kind_of(a->wo, a->act), c);
    j->post.row = cpu_carve_take(c, (size_t)((a->dim + 15) / 16 * 16 * threads) * 4);
    if (a->post_norm.w != NULL)
        j->mul.y = cpu_carve_take(c, (size_t)(n * a->dim) * 4);
    j->attn.out = j->ctx;
    cpu_attn_plan_make(&j->plan, j->f, &j->attn, c);
}

hy_status cpu_fast_attn_out(hy_queue *q, const hy_attn_out *a)
{
    cpu_fast *f = cpu_fast_of(q);
    int32_t n = a->attn.rows->n;
    if (!packed(a->wo) || !cpu_attn_able(&a->attn) || n <= 0)
        return hy_compose_attn_out(q, a);
    HY_TRY(cpu_attn_check(&a->attn));
    out_job j = {.f = f, .a = a, .attn = a->attn};
    j.attn.ldo = (int64_t)a->attn.heads * a->attn.pool->layout.v.width;
    cpu_carve c = {0};
    out_carve(&j, &c);
    HY_TRY(cpu_carve_get(q, &c));
    out_carve(&j, &c);
    bool post = a->post_norm.w != NULL;
    j.mul.w = cpu_weight_of(a->wo);
    j.mul.x = &j.cols;
    j.mul.act = a->act;
    j.mul.bias = a->bo;
    j.mul.add = !post;
    j.mul.ldy = post ? a->dim : a->ldx;
    if (!post)
        j.mul.y = a->x;
    cpu_mul_init(f, &j.mul, n);
    j.post.norm = &a->post_norm;
    j.post.y = j.mul.y;
    j.post.dim = a->dim;
    j.post.x = a->x;
    j.post.ldx = a->ldx;
    j.post.add = true;
    cpu_job job = {.n_phases = 4,
                   .n_items = {j.plan.n_items, n, cpu_cut_items(&j.mul.cut), post ? n : 0},
                   .fn = {out_attn, out_put, out_mul, out_post},
                   .ctx = &j};
    cpu_pool_run(f->pool, &job);
    return HY_OK;
}

/* ---- ffn ---- */

typedef struct ffn_job {
    const cpu_fast *f;
    const hy_ffn *a;
    norm_in in;
    cpu_cut cut;  /* of gate and up, in strips */
    cpu_cols mid; /* panels of down */
    cpu_mul down;
    post_norm post;
} ffn_job;

static void ffn_norm(void *ctx, int item, int thread)
{
    ffn_job *j = ctx;
    norm_put(j->f, &j->in, item, thread);
}

/* One strip of gate and up to h = fn(gate) * up, in acc[1] ([col][R]). */
static float *ffn_strip(const ffn_job *j, cpu_local *l, int s, int c0, int c1)
{
    const hy_ffn *a = j->a;
    const cpu_fast *f = j->f;
    int R = f->mm->rows;
    const hy_weight *w[2] = {a->up, a->gate};
    const float *bias[2] = {a->b_up, a->b_gate};
    int n = a->gate != NULL ? 2 : 1;
    for (int i = 0; i < n; i++) {
        cpu_strip(f, cpu_weight_of(w[i]), &j->in.cols, a->act, s, c0, c1, l->acc[i], l->buf);
        for (int c = 0; bias[i] != NULL && c < c1 - c0; c++)
            f->vec->add(l->acc[i] + c * R, bias[i] + s * R, 1.0f, l->acc[i] + c * R, R);
    }
    float *h = l->acc[n - 1];
    f->vec->act_mul(h, n == 2 ? l->acc[0] : NULL, h, (int64_t)(c1 - c0) * R, a->fn);
    return h;
}

/* Blocks of 32 outputs: with 32 rows a strip each is one, with 16 two. */
static void ffn_mid(void *ctx, int item, int thread)
{
    ffn_job *j = ctx;
    cpu_local *l = cpu_local_of(j->f, thread);
    int panel = item / j->cut.chunks, chunk = item % j->cut.chunks, R = j->f->mm->rows;
    const cpu_tiles *t =
        cpu_tiles_for(&j->in.cols, cpu_panel_of(cpu_weight_of(j->a->up), j->a->act));
    int c0 = cpu_edge(t, panel * j->cut.cols), c1 = cpu_edge(t, (panel + 1) * j->cut.cols);
    int s1 = (chunk + 1) * j->cut.per_item;
    s1 = s1 < j->cut.strips ? s1 : j->cut.strips;
    float *both = (float *)(void *)l->attn; /* [col][32] */
    for (int s = chunk * j->cut.per_item; c0 < c1 && s < s1; s += 32 / R) {
        float *h = ffn_strip(j, l, s, c0, c1);
        if (R < 32) {
            for (int part = 0; part < 2; part++) {
                for (int c = 0; c < c1 - c0; c++)
                    memcpy(both + c * 32 + part * 16, h + c * R, 64);
                h = part == 0 ? ffn_strip(j, l, s + 1, c0, c1) : both;
            }
        }
        for (int c = c0; c < c1; c++)
            cpu_cols_put_block(j->f, &j->mid, c, s * R / 32, h + (c - c0) * 32);
    }
}

static void ffn_down(void *ctx, int item, int thread)
{
    ffn_job *j = ctx;
    cpu_mul_item(j->f, &j->down, item, thread);
}

static void ffn_post(void *ctx, int item, int thread)
{
    ffn_job *j = ctx;
    post_row(j->f, &j->post, item, thread);
}

static void ffn_carve(ffn_job *j, cpu_carve *c)
{
    const hy_ffn *a = j->a;
    unsigned kinds = kind_of(a->up, a->act) | (a->gate != NULL ? kind_of(a->gate, a->act) : 0);
    norm_carve(j->f, &j->in, a->m, kinds, c);
    cpu_cols_init(j->f, &j->mid, a->m, a->up->n, kind_of(a->down, a->act), c);
    int64_t threads = cpu_pool_threads(j->f->pool);
    j->post.row = cpu_carve_take(c, (size_t)((a->dim + 15) / 16 * 16 * threads) * 4);
    if (a->post_norm.w != NULL)
        j->down.y = cpu_carve_take(c, (size_t)(a->m * a->dim) * 4);
}

/* gate and up must read the same tiles: an f32 one beside a quantised one is left to compose. */
static bool ffn_fits(const hy_ffn *a)
{
    if (!packed(a->gate) || !packed(a->up) || !packed(a->down) || a->up->n % 32 != 0 || a->m <= 0)
        return false;
    return a->gate == NULL || (cpu_panel_of(cpu_weight_of(a->gate), a->act) == PANEL_F32) ==
                                  (cpu_panel_of(cpu_weight_of(a->up), a->act) == PANEL_F32);
}

hy_status cpu_fast_ffn(hy_queue *q, const hy_ffn *a)
{
    cpu_fast *f = cpu_fast_of(q);
    if (!ffn_fits(a))
        return hy_compose_ffn(q, a);
    ffn_job j = {.f = f, .a = a};
    j.in = (norm_in){.x = a->x, .ldx = a->ldx, .dim = a->dim, .norm = &a->norm};
    if (a->norm.w == NULL && a->normed != NULL) {
        j.in.x = a->normed;
        j.in.ldx = a->ldn;
    }
    cpu_carve c = {0};
    ffn_carve(&j, &c);
    HY_TRY(cpu_carve_get(q, &c));
    ffn_carve(&j, &c);
    const cpu_weight *up = cpu_weight_of(a->up);
    size_t strip =
        cpu_strip_bytes((cpu_pack)up->pack, f->mm->rows, a->dim) * (a->gate != NULL ? 2 : 1);
    j.cut = cpu_cut_of(f, a->m, a->dim, cpu_strips(f, a->up->n), strip, 32 / f->mm->rows);
    bool post = a->post_norm.w != NULL;
    j.down.w = cpu_weight_of(a->down);
    j.down.x = &j.mid;
    j.down.act = a->act;
    j.down.bias = a->b_down;
    j.down.add = !post && !a->no_residual;
    j.down.ldy = post ? a->dim : a->ldx;
    if (!post)
        j.down.y = a->x;
    cpu_mul_init(f, &j.down, a->m);
    j.post.norm = &a->post_norm;
    j.post.y = j.down.y;
    j.post.dim = a->dim;
    j.post.x = a->x;
    j.post.ldx = a->ldx;
    j.post.add = !a->no_residual;
    cpu_job job = {.n_phases = 4,
                   .n_items = {(int)a->m, cpu_cut_items(&j.cut), cpu_cut_items(&j.down.cut),
                               post ? (int)a->m : 0},
                   .fn = {ffn_norm, ffn_mid, ffn_down, ffn_post},
                   .ctx = &j};
    cpu_pool_run(f->pool, &job);
    return HY_OK;
}

/* ---- head ---- */

typedef struct head_job {
    const cpu_fast *f;
    norm_in in;
    cpu_mul mul;
} head_job;

static void head_norm(void *ctx, int item, int thread)
{
    head_job *j = ctx;
    norm_put(j->f, &j->in, item, thread);
}

static void head_mul(void *ctx, int item, int thread)
{
    head_job *j = ctx;
    cpu_mul_item(j->f, &j->mul, item, thread);
}

hy_status cpu_fast_head(hy_queue *q, const hy_head *a)
{
    cpu_fast *f = cpu_fast_of(q);
    if (!packed(a->w))
        return hy_compose_head(q, a);
    if (a->m <= 0)
        return HY_OK;
    head_job j = {.f = f};
    j.in = (norm_in){.x = a->x, .ldx = a->ldx, .dim = a->dim, .pick = a->rows, .norm = &a->norm};
    cpu_carve c = {0};
    norm_carve(f, &j.in, a->m, kind_of(a->w, a->act), &c);
    HY_TRY(cpu_carve_get(q, &c));
    norm_carve(f, &j.in, a->m, kind_of(a->w, a->act), &c);
    j.mul = (cpu_mul){.w = cpu_weight_of(a->w),
                      .x = &j.in.cols,
                      .act = a->act,
                      .y = a->logits,
                      .ldy = a->ldl,
                      .scaled = a->scale != 1.0f || a->softcap != 0.0f,
                      .scale = a->scale,
                      .cap = a->softcap};
    cpu_mul_init(f, &j.mul, a->m);
    cpu_job job = {.n_phases = 2,
                   .n_items = {(int)a->m, cpu_cut_items(&j.mul.cut)},
                   .fn = {head_norm, head_mul},
                   .ctx = &j};
    cpu_pool_run(f->pool, &job);
    return HY_OK;
}
