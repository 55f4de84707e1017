/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache's ops over kernels: layout, writing rows, attention, the wire.
 *
 * Thread: a queue's owner.  Owner: none.
 */
#include "backends/simt/ops_int.h"

static bool kv_types_ok(hy_dtype value, hy_dtype type)
{
    if (value != HY_F32 && value != HY_F16 && value != HY_BF16)
        return false;
    return type == value || type == HY_F32;
}

static bool scaled(hy_dtype t)
{
    return t == HY_I8 || t == HY_F8_E4M3 || t == HY_F8_E4M3FNUZ;
}

static bool wire_ok(hy_dtype t)
{
    return t == HY_F32 || t == HY_F16 || t == HY_BF16 || scaled(t);
}

bool simt_kv_ok(const hy_op_query *q)
{
    bool wire = q->op == HY_OP_KV_PACK || q->op == HY_OP_KV_UNPACK;
    return kv_types_ok(q->kv_value, q->kv_type) && q->block_tokens >= 1 && q->block_tokens <= 256 &&
           q->k_dim >= 1 && q->v_dim >= 1 && q->k_dim <= KA_HEAD && q->v_dim <= KA_HEAD &&
           (!wire || wire_ok(q->w_type));
}

static int64_t align64(int64_t n)
{
    return (n + 63) & ~(int64_t)63;
}

/* K [head][dim][token], so that a team reads neighbouring positions at once; V [head][token][dim].
 * Blocks hold all their layers. The cpu backend's layout, so that blocks travel between them as
 * they are. */
hy_status simt_kv_layout(hy_dev *d, hy_kv_layout *l)
{
    const char *name = simt_base_of(d)->name;
    if (!kv_types_ok(l->value_type, l->type))
        return hy_fail(HY_E_UNSUPPORTED, "%s: KV of value type %s cannot be stored as %s", name,
                       hy_dtype_name(l->value_type), hy_dtype_name(l->type));
    if (l->block_tokens < 1 || l->block_tokens > 256 || l->n_layers < 1 || l->n_heads < 1 ||
        l->k.width < 1 || l->v.width < 1 || l->k.width > KA_HEAD || l->v.width > KA_HEAD)
        return hy_fail(HY_E_UNSUPPORTED,
                       "%s: KV layout of %d tokens, %d layers, %d heads, widths %d/%d", name,
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

static ka_plane plane_of(const hy_kv_plane *p)
{
    return (ka_plane){p->off, p->head, p->token, p->dim, p->width, 0};
}

static ka_pool pool_of(const hy_kv_pool *p, int32_t layer)
{
    const hy_kv_layout *l = &p->layout;
    return (ka_pool){.base = (uint8_t *)p->base + layer * l->layer_stride,
                     .block_stride = l->block_stride,
                     .layer_stride = l->layer_stride,
                     .k = plane_of(&l->k),
                     .v = plane_of(&l->v),
                     .type = (int32_t)l->type,
                     .value = (int32_t)l->value_type,
                     .heads = l->n_heads,
                     .block_tokens = l->block_tokens};
}

static bool block_ok(const hy_kv_pool *p, int32_t layer, int32_t block)
{
    return layer >= 0 && layer < p->layout.n_layers && block >= 0 && block < p->n_blocks;
}

hy_status simt_kv_write(hy_queue *q, const hy_kv_write *a)
{
    const hy_kv_layout *l = &a->pool->layout;
    size_t bytes = (size_t)a->rows->n * sizeof(int32_t);
    void *host = NULL;
    const void *block = NULL, *pos = NULL;
    if (a->rows->n < 1)
        return HY_OK;
    HY_TRY(simt_drv(q)->host(q, bytes, &host));
    int32_t *ids = host;
    for (int32_t s = 0; s < a->rows->n_seqs; s++) {
        for (int32_t r = a->rows->seq_row[s]; r < a->rows->seq_row[s + 1]; r++) {
            ids[r] = a->bt.table[s * a->bt.stride + a->rows->pos[r] / l->block_tokens];
            if (!block_ok(a->pool, a->layer, ids[r]))
                return hy_fail(HY_E_INVAL, "kv_write: layer %d, block %d is outside the pool",
                               a->layer, ids[r]);
        }
    }
    HY_TRY(simt_drv(q)->stage(q, ids, bytes, &block));
    HY_TRY(simt_drv(q)->stage(q, a->rows->pos, bytes, &pos));
    const uint32_t x = simt_ceil_div((int64_t)l->n_heads * l->k.width, KA_KV_COLS) +
                       simt_ceil_div((int64_t)l->n_heads * l->v.width, KA_KV_COLS);
    ka_kv_write k = {.pool = pool_of(a->pool, a->layer), .ldk = a->ldk, .ldv = a->ldv};
    for (int32_t r = 0; r < a->rows->n; r += SIMT_GRID_MAX) {
        k.n = a->rows->n - r < SIMT_GRID_MAX ? a->rows->n - r : SIMT_GRID_MAX;
        k.k = a->k + r * a->ldk;
        k.v = a->v + r * a->ldv;
        k.block = (const int32_t *)block + r;
        k.pos = (const int32_t *)pos + r;
        HY_TRY(simt_drv(q)->launch(q, SIMT_k_kv_write, x, simt_ceil_div(k.n, KA_KV_ROWS), 1, &k,
                                   sizeof(k)));
    }
    return HY_OK;
}

/* ---- attention ---- */

typedef struct plan {
    ka_attn_item *items;
    int32_t n_items, rows; /* rows of an item at most */
    int32_t seg0, n_segs;
} plan;

static int32_t first_of(const hy_attn *a, int32_t pos)
{
    return a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
}

static hy_status check_blocks(const hy_attn *a, int32_t seq, int32_t first, int32_t last)
{
    int32_t bt = a->pool->layout.block_tokens;
    for (int32_t b = first / bt; b <= last / bt; b++) {
        int32_t id = a->bt.table[seq * a->bt.stride + b];
        if (!block_ok(a->pool, a->layer, id))
            return hy_fail(HY_E_INVAL, "attention: layer %d, block %d is outside the pool",
                           a->layer, id);
    }
    return HY_OK;
}

static hy_status make_items(const hy_attn *a, plan *p)
{
    const hy_rows *r = a->rows;
    int32_t seg0 = INT32_MAX, end = 0;
    for (int32_t s = 0; s < r->n_seqs; s++) {
        int32_t row = r->seq_row[s], stop = r->seq_row[s + 1];
        if (row == stop)
            continue;
        int32_t first = first_of(a, r->pos[row]), last = r->pos[stop - 1];
        HY_TRY(check_blocks(a, s, first, last));
        seg0 = first / KA_SEG < seg0 ? first / KA_SEG : seg0;
        end = last / KA_SEG + 1 > end ? last / KA_SEG + 1 : end;
        for (; row < stop; row += p->rows) {
            int32_t n = stop - row < p->rows ? stop - row : p->rows;
            p->items[p->n_items++] = (ka_attn_item){row, n, s, r->pos[row]};
        }
    }
    p->seg0 = p->n_items > 0 ? seg0 : 0;
    p->n_segs = p->n_items > 0 ? end - seg0 : 0;
    return HY_OK;
}

/* Most query heads that share a KV head. */
static int32_t group_of(const hy_attn *a)
{
    int32_t kv = a->pool->layout.n_heads, most = 0;
    for (int32_t j = 0; j < kv; j++) {
        int64_t lo = ((int64_t)j * a->heads + kv - 1) / kv;
        int64_t hi = ((int64_t)(j + 1) * a->heads + kv - 1) / kv;
        most = hi - lo > most ? (int32_t)(hi - lo) : most;
    }
    return most;
}

static bool want_split(const hy_queue *q, int64_t blocks, int32_t n_segs)
{
    const simt_base *s = simt_base_of(q->dev);
    if (s->split != SIMT_SPLIT_AUTO)
        return s->split == SIMT_SPLIT_ON;
    return n_segs > 1 && blocks < 2 * (int64_t)s->units;
}

static simt_kernel attn_kernel(hy_dtype t)
{
    return t == HY_F32 ? SIMT_k_attn_f32 : t == HY_F16 ? SIMT_k_attn_f16 : SIMT_k_attn_bf16;
}

/* Partial results of all segments, then their fold. */
static hy_status run_split(hy_queue *q, const hy_attn *a, const plan *p, ka_attn *k, uint32_t y)
{
    size_t row = (size_t)a->heads * (size_t)p->n_segs * (size_t)(k->pool.v.width + 2);
    void *part = NULL;
    HY_TRY(simt_drv(q)->scratch(q, (size_t)a->rows->n * row * sizeof(float), &part));
    k->part = part;
    k->n_segs = p->n_segs;
    k->seg0 = p->seg0;
    HY_TRY(simt_drv(q)->launch(q, attn_kernel(a->pool->layout.type), (uint32_t)p->n_items, y,
                               (uint32_t)p->n_segs, k, sizeof(*k)));
    return simt_drv(q)->launch(q, SIMT_k_attn_fold, (uint32_t)p->n_items, (uint32_t)a->heads,
                               (uint32_t)p->rows, k, sizeof(*k));
}

hy_status simt_attention(hy_queue *q, const hy_attn *a)
{
    const hy_kv_layout *l = &a->pool->layout;
    int32_t group = group_of(a), per = group < KA_NQ ? group : KA_NQ;
    plan p = {.rows = per > 0 ? KA_NQ / per : 1};
    void *host = NULL;
    const void *items = NULL, *table = NULL;
    if (a->rows->n < 1 || a->heads < 1)
        return HY_OK;
    if (l->k.width > KA_HEAD || l->v.width > KA_HEAD)
        return hy_fail(HY_E_UNSUPPORTED, "%s: attention heads of %d/%d, at most %d", simt_name(q),
                       l->k.width, l->v.width, KA_HEAD);
    HY_TRY(simt_drv(q)->host(q, (size_t)a->rows->n * sizeof(ka_attn_item), &host));
    p.items = host;
    HY_TRY(make_items(a, &p));
    HY_TRY(simt_drv(q)->stage(q, p.items, (size_t)p.n_items * sizeof(ka_attn_item), &items));
    size_t entries = (size_t)(a->rows->n_seqs * a->bt.stride);
    HY_TRY(simt_drv(q)->stage(q, a->bt.table, entries * sizeof(int32_t), &table));
    ka_attn k = {.pool = pool_of(a->pool, a->layer),
                 .q = a->q,
                 .ldq = a->ldq,
                 .out = a->out,
                 .ldo = a->ldo,
                 .items = items,
                 .table = table,
                 .stride = a->bt.stride,
                 .heads = a->heads,
                 .per = per,
                 .chunks = (group + per - 1) / per,
                 .scale = a->scale,
                 .softcap = a->softcap,
                 .window = a->window};
    uint32_t y = (uint32_t)(l->n_heads * k.chunks);
    if (want_split(q, (int64_t)p.n_items * y, p.n_segs))
        return run_split(q, a, &p, &k, y);
    return simt_drv(q)->launch(q, attn_kernel(l->type), (uint32_t)p.n_items, y, 1, &k, sizeof(k));
}

/* ---- wire ---- */

static hy_status wire_check(hy_queue *q, const hy_kv_copy *a)
{
    const hy_kv_layout *l = &a->pool->layout;
    if (!wire_ok(a->wire))
        return hy_fail(HY_E_UNSUPPORTED, "%s: KV cannot travel as %s", simt_name(q),
                       hy_dtype_name((int)a->wire));
    if (a->layer0 < 0 || a->n_layers < 0 || a->layer0 > l->n_layers - a->n_layers || a->head0 < 0 ||
        a->n_heads < 0 || a->head0 > l->n_heads - a->n_heads || a->t0 < 0 || a->n < 0)
        return hy_fail(HY_E_INVAL, "kv wire: layers, heads or tokens outside the cache");
    if (scaled(a->wire) && a->scales == NULL)
        return hy_fail(HY_E_INVAL, "kv wire: type %s needs room for scales",
                       hy_dtype_name((int)a->wire));
    uint64_t rows = (uint64_t)a->n_layers * (uint64_t)a->n * (uint64_t)a->n_heads;
    uint64_t need = rows * (uint64_t)(l->k.width + l->v.width) * hy_dtype_get((int)a->wire)->bytes;
    if (need > a->bytes)
        return hy_fail(HY_E_INVAL, "kv wire: %llu bytes do not fit a buffer of %zu",
                       (unsigned long long)need, a->bytes);
    if (rows > INT32_MAX / 2)
        return hy_fail(HY_E_LIMIT, "kv wire: %llu rows at once", (unsigned long long)rows);
    int32_t bt = l->block_tokens;
    for (int32_t b = a->t0 / bt; a->n > 0 && b <= (a->t0 + a->n - 1) / bt; b++) {
        if (!block_ok(a->pool, a->layer0, a->blocks[b]))
            return hy_fail(HY_E_INVAL, "kv wire: block %d is outside the pool", a->blocks[b]);
    }
    return HY_OK;
}

static hy_status wire(hy_queue *q, const hy_kv_copy *a, simt_kernel kernel)
{
    int32_t bt = a->pool->layout.block_tokens;
    HY_TRY(wire_check(q, a));
    int64_t rows = 2 * (int64_t)a->n_layers * a->n * a->n_heads;
    if (rows == 0)
        return HY_OK;
    const void *blocks = NULL;
    size_t first = (size_t)(a->t0 / bt), n = (size_t)((a->t0 + a->n - 1) / bt + 1) - first;
    HY_TRY(simt_drv(q)->stage(q, a->blocks + first, n * sizeof(int32_t), &blocks));
    ka_wire k = {.pool = pool_of(a->pool, a->layer0),
                 .blocks = blocks,
                 .block0 = (int32_t)first,
                 .buf = a->buf,
                 .scales = a->scales,
                 .t0 = a->t0,
                 .n = a->n,
                 .n_layers = a->n_layers,
                 .head0 = a->head0,
                 .n_heads = a->n_heads,
                 .wire = (int32_t)a->wire};
    uint32_t x = (uint32_t)((rows + SIMT_TEAMS - 1) / SIMT_TEAMS);
    return simt_drv(q)->launch(q, kernel, x, 1, 1, &k, sizeof(k));
}

hy_status simt_kv_pack(hy_queue *q, const hy_kv_copy *a)
{
    return wire(q, a, SIMT_k_kv_pack);
}

hy_status simt_kv_unpack(hy_queue *q, const hy_kv_copy *a)
{
    return wire(q, a, SIMT_k_kv_unpack);
}
