/* SPDX-License-Identifier: Apache-2.0
 *
 * The fast table of the cpu backend: its opening, and the ops that are one loop over rows. Vector
 * code chosen by instruction set (cpu_mm, cpu_vec, cpu_attn), threads from the pool, the bits of
 * the scalar reference.
 *
 * Thread: an op runs on its queue's owner and the pool.  Owner: the device.
 */
#include "backends/cpu/attn.h"
#include "backends/cpu/fast.h"
#include "backends/cpu/kv.h"
#include "backends/cpu/ref_int.h"
#include "core/base/alloc.h"

#include <math.h>
#include <string.h>

/* ---- ops over rows ---- */

typedef struct rows_job {
    const cpu_fast *f;
    const void *a;
    int64_t m, per_item;
    void (*row)(const struct rows_job *j, int64_t r);
} rows_job;

static void rows_item(void *ctx, int item, int thread)
{
    (void)thread;
    const rows_job *j = ctx;
    int64_t r1 = (item + 1) * j->per_item;
    for (int64_t r = item * j->per_item; r < r1 && r < j->m; r++)
        j->row(j, r);
}

/* cost: elements a row */
static void for_rows(const cpu_fast *f, rows_job *j, int64_t cost)
{
    j->f = f;
    j->per_item = 16384 / (cost + 1) + 1;
    int64_t items = (j->m + j->per_item - 1) / j->per_item;
    if (items == 1)
        rows_item(j, 0, 0);
    else
        cpu_pool_for(f->pool, (int)items, rows_item, j);
}

static void rms_row(const rows_job *j, int64_t r)
{
    const hy_norm *a = j->a;
    j->f->vec->rms_norm(a->x + r * a->ldx, a->y + r * a->ldy, a->dim, a->w, a->eps);
}

static hy_status fast_rms_norm(hy_queue *q, const hy_norm *a)
{
    rows_job j = {.a = a, .m = a->m, .row = rms_row};
    for_rows(cpu_fast_of(q), &j, a->dim);
    return HY_OK;
}

static void layer_row(const rows_job *j, int64_t r)
{
    const hy_norm *a = j->a;
    j->f->vec->layer_norm(a->x + r * a->ldx, a->y + r * a->ldy, a->dim, a->w, a->b, a->eps);
}

static hy_status fast_layer_norm(hy_queue *q, const hy_norm *a)
{
    rows_job j = {.a = a, .m = a->m, .row = layer_row};
    for_rows(cpu_fast_of(q), &j, a->dim);
    return HY_OK;
}

static void act_row(const rows_job *j, int64_t r)
{
    const hy_act_mul *a = j->a;
    j->f->vec->act_mul(a->gate + r * a->ldg, a->up != NULL ? a->up + r * a->ldu : NULL,
                       a->y + r * a->ldy, a->dim, a->fn);
}

static hy_status fast_act_mul(hy_queue *q, const hy_act_mul *a)
{
    rows_job j = {.a = a, .m = a->m, .row = act_row};
    for_rows(cpu_fast_of(q), &j, 4 * a->dim);
    return HY_OK;
}

static void add_row(const rows_job *j, int64_t r)
{
    const hy_add *a = j->a;
    j->f->vec->add(a->a + r * a->lda, a->b + r * a->ldb, a->b_scale, a->y + r * a->ldy, a->dim);
}

static hy_status fast_add(hy_queue *q, const hy_add *a)
{
    rows_job j = {.a = a, .m = a->m, .row = add_row};
    for_rows(cpu_fast_of(q), &j, a->dim);
    return HY_OK;
}

static void rope_row(const rows_job *j, int64_t r)
{
    const hy_rope *a = j->a;
    const float *c = a->t.cos + r * (a->t.rot / 2), *s = a->t.sin + r * (a->t.rot / 2);
    for (int32_t h = 0; h < a->heads; h++)
        j->f->vec->rope(a->x + r * a->ld + (int64_t)h * a->dim, a->t.rot, a->t.kind, c, s);
}

static hy_status fast_rope(hy_queue *q, const hy_rope *a)
{
    if (a->t.kind == HY_ROPE_NONE)
        return HY_OK;
    if (a->t.rot < 0 || a->t.rot > a->dim || a->t.rot % 2 != 0)
        return hy_fail(HY_E_INVAL, "rope: %d of %d dimensions cannot be rotated", a->t.rot, a->dim);
    rows_job j = {.a = a, .m = a->m, .row = rope_row};
    for_rows(cpu_fast_of(q), &j, (int64_t)a->heads * a->dim);
    return HY_OK;
}

static void embed_row(const rows_job *j, int64_t r)
{
    const hy_embed *a = j->a;
    const cpu_weight *w = cpu_weight_of(a->w);
    int R = j->f->mm->rows, id = a->ids[r];
    float *y = a->y + r * a->ldy;
    size_t strip = cpu_strip_bytes((cpu_pack)w->pack, R, w->base.k);
    cpu_unpack_row((cpu_pack)w->pack, R, j->f->mm->signed8,
                   (const uint8_t *)w->packed + (size_t)(id / R) * strip, id % R, w->base.k, y);
    for (int64_t i = 0; i < w->base.k; i++)
        y[i] *= a->scale;
}

static hy_status fast_embed(hy_queue *q, const hy_embed *a)
{
    if (cpu_weight_of(a->w)->pack == PACK_NONE)
        return cpu_ref_math.embed(q, a);
    for (int64_t r = 0; r < a->m; r++) {
        if (a->ids[r] < 0 || a->ids[r] >= a->w->n)
            return hy_fail(HY_E_INVAL, "embed: token id %d is outside the %lld rows of the table",
                           a->ids[r], (long long)a->w->n);
    }
    rows_job j = {.a = a, .m = a->m, .row = embed_row};
    for_rows(cpu_fast_of(q), &j, 8 * a->w->k);
    return HY_OK;
}

typedef struct write_job {
    const hy_kv_write *a;
    const int32_t *seq; /* of each row */
} write_job;

static void write_plane(const cpu_fast *f, const hy_kv_layout *l, const hy_kv_plane *p,
                        uint8_t *token, const float *x)
{
    for (int32_t h = 0; h < l->n_heads; h++)
        f->vec->kv_store(x + (int64_t)h * p->width, p->width, l->value_type, l->type,
                         token + h * p->head, p->dim);
}

static void write_row(const rows_job *j, int64_t r)
{
    const write_job *w = j->a;
    const hy_kv_write *a = w->a;
    const hy_kv_layout *l = &a->pool->layout;
    int32_t pos = a->rows->pos[r], in = pos % l->block_tokens;
    int32_t id = a->bt.table[w->seq[r] * a->bt.stride + pos / l->block_tokens];
    uint8_t *block = ref_kv_block(a->pool, a->layer, id);
    write_plane(j->f, l, &l->k, block + l->k.off + in * l->k.token, a->k + r * a->ldk);
    write_plane(j->f, l, &l->v, block + l->v.off + in * l->v.token, a->v + r * a->ldv);
}

static hy_status fast_kv_write(hy_queue *q, const hy_kv_write *a)
{
    const hy_rows *rows = a->rows;
    const hy_kv_layout *l = &a->pool->layout;
    cpu_carve c = {.used = (size_t)rows->n * 4};
    HY_TRY(cpu_carve_get(q, &c));
    int32_t *seq = cpu_carve_take(&c, (size_t)rows->n * 4);
    for (int32_t s = 0; s < rows->n_seqs; s++) {
        for (int32_t r = rows->seq_row[s]; r < rows->seq_row[s + 1]; r++) {
            int32_t id = a->bt.table[s * a->bt.stride + rows->pos[r] / l->block_tokens];
            if (ref_kv_block(a->pool, a->layer, id) == NULL)
                return hy_fail(HY_E_INVAL, "kv_write: layer %d, block %d is outside the pool",
                               a->layer, id);
            seq[r] = s;
        }
    }
    write_job w = {.a = a, .seq = seq};
    rows_job j = {.a = &w, .m = rows->n, .row = write_row};
    for_rows(cpu_fast_of(q), &j, (int64_t)l->n_heads * (l->k.width + l->v.width));
    return HY_OK;
}

/* ---- the table ---- */

static const hy_math_ops fast_math = {
    .size = sizeof(hy_math_ops),
    .supports = cpu_ref_supports,
    .kv_layout = cpu_kv_layout,
    .prepare_weight = cpu_fast_prepare,
    .weight_free = cpu_fast_weight_free,
    .embed = fast_embed,
    .rms_norm = fast_rms_norm,
    .layer_norm = fast_layer_norm,
    .matmul = cpu_fast_matmul,
    .rope = fast_rope,
    .kv_write = fast_kv_write,
    .attention = cpu_fast_attention,
    .act_mul = fast_act_mul,
    .add = fast_add,
    .topk = cpu_fast_topk,
    .kv_pack = cpu_fast_kv_pack,
    .kv_unpack = cpu_fast_kv_unpack,
    .attn_in = cpu_fast_attn_in,
    .attn_out = cpu_fast_attn_out,
    .ffn = cpu_fast_ffn,
    .head = cpu_fast_head,
    .moe_route = ref_moe_route,
};

const hy_math_ops *cpu_fast_math(cpu_dev *d)
{
    (void)d;
    return &fast_math;
}

hy_status cpu_fast_open(cpu_dev *d)
{
    cpu_fast *f = hy_calloc(1, sizeof(*f));
    if (f == NULL)
        return hy_fail(HY_E_NOMEM, "cpu: no memory for the device");
    bool wide = d->isa == CPU_ISA_AVX512;
    f->mm = wide ? &cpu_mm_avx512 : &cpu_mm_avx2;
    f->vec = wide ? &cpu_vec_avx512 : &cpu_vec_avx2;
    f->kv = wide ? &cpu_kv_avx512 : &cpu_kv_avx2;
    f->attn = wide ? &cpu_attn_avx512 : &cpu_attn_avx2;
    f->l2_panel = wide ? 1 << 20 : 320 << 10;
    hy_status st = cpu_pool_create(d->n_threads, sizeof(cpu_local), &f->pool);
    if (st != HY_OK) {
        hy_free(f);
        return st;
    }
    pthread_mutex_init(&f->lock, NULL);
    d->pool = f->pool;
    d->fast = f;
    return HY_OK;
}

void cpu_fast_close(cpu_dev *d)
{
    cpu_fast *f = d->fast;
    if (f == NULL)
        return;
    cpu_pool_destroy(f->pool);
    cpu_chunks_free(f);
    pthread_mutex_destroy(&f->lock);
    hy_free(f);
    d->fast = NULL;
    d->pool = NULL;
}
