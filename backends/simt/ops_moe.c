/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixture of experts over kernels. The host never sees which experts were chosen: rows are sorted
 * on the device into tiles of one expert each, and the grids allow for as many tiles as there can
 * be. The bits are those of hal/compose_moe.c.
 *
 * Thread: a queue's owner.  Owner: scratch is the caller's and the queue's.
 */
#include "backends/simt/ops_int.h"
#include "hal/compose.h"

hy_status simt_moe_route(hy_queue *q, const hy_moe_route *a)
{
    HY_TRY(hy_moe_route_check(a));
    if (a->m > INT32_MAX)
        return hy_fail(HY_E_LIMIT, "%s: moe_route of %lld rows", simt_name(q), (long long)a->m);
    ka_route k = {.logits = a->logits,
                  .bias = a->bias,
                  .ld = a->ld,
                  .ids = a->ids,
                  .weights = a->weights,
                  .m = (int32_t)a->m,
                  .n = a->n_experts,
                  .k = a->k,
                  .sigmoid = a->score == HY_MOE_SIGMOID,
                  .groups = a->n_groups > 1 ? a->n_groups : 1,
                  .top_groups = a->top_groups,
                  .top2 = a->group_top2,
                  .norm = a->norm,
                  .scale = a->scale};
    if (a->m < 1)
        return HY_OK;
    return simt_drv(q)->launch(q, SIMT_k_moe_route, simt_ceil_div(a->m, SIMT_TEAMS), 1, 1, &k,
                               sizeof(k));
}

/* What a call works with, on the device. */
typedef struct moe {
    const hy_moe_ffn *a;
    int64_t ffn;
    float *up, *gate, *down;                                    /* [pairs], by place */
    const uint8_t *const *w_gate, *const *w_up, *const *w_down; /* [n_experts] */
    int32_t *from, *slot, *n_tiles;
    ka_tile *tiles;
    void *qx;
    simt_shape shape;
} moe;

/* Addresses of all experts' weights. */
static hy_status stage_weights(hy_queue *q, moe *e)
{
    const hy_moe_ffn *a = e->a;
    const int n = a->n_experts;
    const size_t bytes = (size_t)(3 * n) * sizeof(uint8_t *);
    void *host = NULL;
    const void *dev = NULL;
    HY_TRY(simt_drv(q)->host(q, bytes, &host));
    const uint8_t **p = host;
    for (int i = 0; i < n; i++) {
        p[i] = simt_weight_of(a->up[i])->p;
        p[n + i] = simt_weight_of(a->down[i])->p;
        p[2 * n + i] = a->gate != NULL ? simt_weight_of(a->gate[i])->p : NULL;
    }
    HY_TRY(simt_drv(q)->stage(q, host, bytes, &dev));
    e->w_up = dev;
    e->w_down = e->w_up + n;
    e->w_gate = e->w_up + 2 * n;
    return HY_OK;
}

static size_t round64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Lists and codes, of parts of up to `pairs`. */
static hy_status take_scratch(hy_queue *q, moe *e, int64_t pairs, int64_t rows)
{
    const hy_moe_ffn *a = e->a;
    const int64_t x = rows * (a->dim / 32), h = pairs * (e->ffn / 32);
    const size_t list = round64((size_t)pairs * sizeof(int32_t));
    const size_t tiles = round64((size_t)pairs * sizeof(ka_tile)); /* no more than pairs */
    const bool int8 = simt_int8(a->up[0], a->act) || simt_int8(a->down[0], a->act);
    const size_t codes = int8 ? (size_t)(x > h ? x : h) * KA_QX_BYTES : 0;
    void *p = NULL;
    HY_TRY(simt_drv(q)->scratch(q, 64 + 2 * list + tiles + codes, &p));
    char *at = p;
    e->n_tiles = (int32_t *)(void *)at;
    e->from = (int32_t *)(void *)(at + 64);
    e->slot = (int32_t *)(void *)(at + 64 + list);
    e->tiles = (ka_tile *)(void *)(at + 64 + 2 * list);
    e->qx = int8 ? at + 64 + 2 * list + tiles : NULL;
    return HY_OK;
}

/* y = x W of each pair's expert; x by row (sorted = false) or by place. */
static hy_status multiply(hy_queue *q, const moe *e, const hy_weight *w,
                          const uint8_t *const *table, const float *x, int64_t ldx, bool sorted,
                          bool int8, float *y, int64_t pairs)
{
    const int32_t rows = simt_shape_rows(e->shape);
    const int64_t most = pairs < e->a->n_experts ? pairs : e->a->n_experts;
    ka_matmul k = {.x = x,
                   .ldx = ldx,
                   .qx = int8 ? e->qx : NULL,
                   .y = y,
                   .ldy = w->n,
                   .m = (int32_t)pairs,
                   .tiles = e->tiles,
                   .n_tiles = e->n_tiles,
                   .from = sorted ? NULL : e->from,
                   .ws = table};
    return simt_multiply(q, w, e->shape, (uint32_t)(pairs / rows + most), &k);
}

static hy_status run_experts(hy_queue *q, const moe *e, const float *x, int64_t m)
{
    const hy_moe_ffn *a = e->a;
    const int64_t pairs = m * a->k;
    const bool mma = e->shape == SIMT_MMA_TILE;
    const bool in8 = !mma && simt_int8(a->up[0], a->act);
    const bool out8 = !mma && simt_int8(a->down[0], a->act);
    hy_act_mul f = {.gate = e->up,
                    .ldg = e->ffn,
                    .y = e->up,
                    .ldy = e->ffn,
                    .m = pairs,
                    .dim = e->ffn,
                    .fn = a->fn};
    if (in8)
        HY_TRY(simt_quantise(q, x, a->ldx, m, a->dim / 32, e->qx));
    HY_TRY(multiply(q, e, a->up[0], e->w_up, x, a->ldx, false, in8, e->up, pairs));
    if (a->gate != NULL) {
        HY_TRY(multiply(q, e, a->gate[0], e->w_gate, x, a->ldx, false, in8, e->gate, pairs));
        f.gate = e->gate;
        f.up = e->up;
        f.ldu = e->ffn;
    }
    HY_TRY(q->dev->math->act_mul(q, &f));
    if (out8)
        HY_TRY(simt_quantise(q, e->up, e->ffn, pairs, e->ffn / 32, e->qx));
    return multiply(q, e, a->down[0], e->w_down, e->up, e->ffn, true, out8, e->down, pairs);
}

static hy_status run_part(hy_queue *q, const moe *e, int64_t row0, int64_t m)
{
    const hy_moe_ffn *a = e->a;
    ka_sort s = {.ids = a->ids + row0 * a->k,
                 .from = e->from,
                 .slot = e->slot,
                 .tiles = e->tiles,
                 .n_tiles = e->n_tiles,
                 .pairs = (int32_t)(m * a->k),
                 .k = a->k,
                 .n_experts = a->n_experts,
                 .tile = simt_shape_rows(e->shape)};
    ka_moe_sum t = {.x = e->down,
                    .slot = e->slot,
                    .weights = a->weights + row0 * a->k,
                    .y = a->y + row0 * a->ldy,
                    .ldy = a->ldy,
                    .m = (int32_t)m,
                    .dim = (int32_t)a->dim,
                    .k = a->k};
    HY_TRY(simt_drv(q)->launch(q, SIMT_k_moe_sort, 1, 1, 1, &s, sizeof(s)));
    HY_TRY(run_experts(q, e, a->x + row0 * a->ldx, m));
    return simt_drv(q)->launch(q, SIMT_k_moe_sum, simt_ceil_div(a->dim, SIMT_BLOCK), (uint32_t)m, 1,
                               &t, sizeof(t));
}

hy_status simt_moe_ffn(hy_queue *q, const hy_moe_ffn *a)
{
    HY_TRY(hy_moe_ffn_check(a));
    if (a->m < 1)
        return HY_OK;
    const int64_t part = hy_moe_part(a->k), rows = a->m < part ? a->m : part, pairs = rows * a->k;
    moe e = {.a = a, .ffn = a->up[0]->n};
    hy_carve c = hy_carve_of(a->ws);
    e.up = hy_carve_take(&c, pairs * e.ffn);
    e.gate = hy_carve_take(&c, pairs * e.ffn);
    e.down = hy_carve_take(&c, pairs * a->dim);
    HY_TRY(hy_carve_check(&c, HY_OP_MOE_FFN));
    const int64_t each = pairs / a->n_experts; /* one row has an expert once */
    e.shape = simt_shape_of(q, a->up[0], rows > 1 && each < 2 ? 2 : each); /* up and down alike */
    if (e.shape == SIMT_MMA_TILE && a->down[0]->type == HY_F32)
        e.shape = SIMT_TILE;
    HY_TRY(take_scratch(q, &e, pairs, rows));
    HY_TRY(stage_weights(q, &e));
    for (int64_t r = 0; r < a->m; r += rows)
        HY_TRY(run_part(q, &e, r, a->m - r < rows ? a->m - r : rows));
    return HY_OK;
}
