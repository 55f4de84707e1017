/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over the pool: planning of tiles and segments, and the op itself. Caches that the
 * kernels cannot read (other strides, odd widths) go to the scalar reference.
 *
 * Thread: see attn_plan.h.  Owner: the op's scratch.
 */
#include "backends/cpu/attn_plan.h"
#include "backends/cpu/ref_int.h"

#define TILE_ROWS  32
#define LOCAL_MAX  (256 << 10) /* floats of results that a tile may keep */
#define SPLIT_SEGS 2           /* segments of an item of a cut row, at least */

bool cpu_attn_able(const hy_attn *a)
{
    const hy_kv_layout *l = &a->pool->layout;
    int64_t elem = hy_dtype_get(l->type)->bytes;
    /* K with its tokens side by side is read as it is; with its dims side by side it is turned. */
    bool k = l->k.token == elem ||
             (l->k.dim == elem && l->k.width % 16 == 0 && l->k.width <= CPU_ATTN_WIDE);
    return k && l->block_tokens % 16 == 0 && l->v.dim == elem && l->v.width % 16 == 0 &&
           a->heads % l->n_heads == 0 &&
           (l->type == HY_F32 || l->type == HY_F16 || l->type == HY_BF16);
}

static int32_t first_visible(const hy_attn *a, int32_t pos)
{
    return a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
}

hy_status cpu_attn_check(const hy_attn *a)
{
    const hy_rows *rows = a->rows;
    int32_t bt = a->pool->layout.block_tokens;
    if (a->layer < 0 || a->layer >= a->pool->layout.n_layers)
        return hy_fail(HY_E_INVAL, "attention: layer %d is outside the pool", a->layer);
    for (int32_t s = 0; s < rows->n_seqs; s++) {
        int32_t r0 = rows->seq_row[s], r1 = rows->seq_row[s + 1];
        if (r0 >= r1)
            continue;
        const int32_t *blocks = a->bt.table + s * a->bt.stride;
        int32_t b0 = first_visible(a, rows->pos[r0]) / bt, b1 = rows->pos[r1 - 1] / bt;
        for (int32_t b = b0; b <= b1; b++) {
            if (blocks[b] < 0 || blocks[b] >= a->pool->n_blocks)
                return hy_fail(HY_E_INVAL, "attention: layer %d, block %d is outside the pool",
                               a->layer, blocks[b]);
        }
    }
    return HY_OK;
}

/* ---- planning ---- */

static int64_t seg_first(const hy_attn *a, int32_t row)
{
    return first_visible(a, a->rows->pos[row]) / CPU_SEG;
}

/* Rows of a tile that begins at `row` of `left`: fewer when their results would be many. */
static int32_t tile_rows(const cpu_attn_plan *p, int32_t row, int32_t left, int32_t most)
{
    int32_t n = left < most ? left : most;
    for (; n > 1; n = (n + 1) / 2) {
        int64_t segs = p->a->rows->pos[row + n - 1] / CPU_SEG - seg_first(p->a, row) + 1;
        if (segs * p->part_step * p->group * n <= LOCAL_MAX)
            break;
    }
    return n;
}

static void put_tile(cpu_attn_plan *p, const cpu_attn_item *t, int pieces, cpu_carve *c)
{
    int32_t segs = t->n_segs;
    if (pieces <= 1) {
        size_t len = (size_t)(segs * p->part_step * p->group * t->rows);
        p->local_len = len > p->local_len ? len : p->local_len;
        if (p->items != NULL)
            p->items[p->n_items] = *t;
        p->n_items++;
        return;
    }
    cpu_attn_item it = *t;
    it.part = cpu_carve_take(c, (size_t)(segs * p->part_step * p->group * t->rows) * 4);
    if (p->joins != NULL)
        p->joins[p->n_joins] = it;
    p->n_joins++;
    int32_t per = (segs + pieces - 1) / pieces;
    for (int32_t s = 0; s < segs; s += per) {
        cpu_attn_item piece = it;
        piece.seg0 = t->seg0 + s;
        piece.seg1 = s + per < segs ? piece.seg0 + per : t->seg1;
        if (it.part != NULL)
            piece.part = it.part + s * p->part_step;
        if (p->items != NULL)
            p->items[p->n_items] = piece;
        p->n_items++;
    }
}

/* Last tiles first: they see most, and short items at the end let threads finish together. */
static void put_tiles(cpu_attn_plan *p, int32_t most, int threads, cpu_carve *c)
{
    const hy_rows *rows = p->a->rows;
    int32_t heads = p->a->pool->layout.n_heads;
    for (int32_t s = rows->n_seqs - 1; s >= 0; s--) {
        for (int32_t end = rows->seq_row[s + 1], r0 = rows->seq_row[s]; end > r0;) {
            int32_t want = end - r0 < most ? end - r0 : most;
            int32_t n = tile_rows(p, end - want, want, most);
            cpu_attn_item t = {.seq = s, .row = end - n, .rows = n};
            t.seg0 = (int32_t)seg_first(p->a, t.row);
            t.seg1 = rows->pos[end - 1] / CPU_SEG + 1;
            t.n_segs = t.seg1 - t.seg0;
            int pieces = 1, jobs = rows->n * heads;
            if (n == 1 && threads > 1 && jobs < 16 * threads)
                pieces = t.n_segs / SPLIT_SEGS;
            for (t.kv_head = 0; t.kv_head < heads; t.kv_head++)
                put_tile(p, &t, pieces, c);
            end -= n;
        }
    }
}

void cpu_attn_plan_make(cpu_attn_plan *p, const cpu_fast *f, const hy_attn *a, cpu_carve *c)
{
    bool fill = c->p != NULL;
    int items = p->n_items, joins = p->n_joins, threads = cpu_pool_threads(f->pool);
    size_t local = p->local_len;
    int32_t heads = a->pool->layout.n_heads;
    *p = (cpu_attn_plan){.f = f, .a = a, .group = a->heads / heads};
    p->part_step = (a->pool->layout.v.width + 2 + 15) / 16 * 16;
    if (fill) {
        p->items = cpu_carve_take(c, (size_t)items * sizeof(*p->items));
        p->joins = cpu_carve_take(c, (size_t)joins * sizeof(*p->joins));
        p->local = cpu_carve_take(c, local * (size_t)threads * 4);
    }
    int64_t most = (int64_t)a->rows->n * heads / (threads * 4);
    if (a->rows->n <= 4 * threads)
        most = 1; /* every row may be cut into segments */
    else
        most = threads == 1 || most > TILE_ROWS ? TILE_ROWS : most < 8 ? 8 : most;
    put_tiles(p, (int32_t)most, threads, c);
    if (!fill) {
        cpu_carve_take(c, (size_t)p->n_items * sizeof(*p->items));
        cpu_carve_take(c, (size_t)p->n_joins * sizeof(*p->joins));
        cpu_carve_take(c, p->local_len * (size_t)threads * 4);
    }
}

/* ---- running ---- */

static void set_groups(cpu_attn_seg *s, const cpu_attn_item *it, const hy_attn *a)
{
    const hy_kv_layout *l = &a->pool->layout;
    const int32_t *blocks = a->bt.table + it->seq * a->bt.stride;
    int a0, b0, a1, b1;
    for (int g = 0; g < CPU_SEG_GRPS; g++)
        s->k[g] = s->v[g] = NULL;
    int lo = CPU_SEG, hi = -1; /* rows ascend, so the ends are the first and last that see any */
    for (int r = 0; r < s->rows; r++) {
        if (cpu_attn_range(s, r, &a0, &b0)) {
            lo = a0 < lo ? a0 : lo;
            break;
        }
    }
    for (int r = s->rows - 1; r >= 0; r--) {
        if (cpu_attn_range(s, r, &a1, &b1)) {
            hi = b1;
            break;
        }
    }
    for (int g = lo / 16; g * 16 <= hi; g++) {
        int32_t pos = s->first + g * 16, in = pos % l->block_tokens;
        const uint8_t *block = (const uint8_t *)a->pool->base + a->layer * l->layer_stride +
                               blocks[pos / l->block_tokens] * l->block_stride;
        s->k[g] = block + l->k.off + it->kv_head * l->k.head + in * l->k.token;
        s->v[g] = block + l->v.off + it->kv_head * l->v.head + in * l->v.token;
    }
}

void cpu_attn_join(const cpu_attn_plan *p, int join)
{
    const cpu_attn_item *it = &p->joins[join];
    const hy_attn *a = p->a;
    int v_dim = a->pool->layout.v.width;
    for (int q = 0; q < it->rows * p->group; q++) {
        int row = it->row + q / p->group, head = it->kv_head * p->group + q % p->group;
        int64_t s0 = seg_first(a, row) - it->seg0, s1 = a->rows->pos[row] / CPU_SEG - it->seg0;
        const float *part = it->part + (int64_t)q * it->n_segs * p->part_step + s0 * p->part_step;
        p->f->attn->combine(part, p->part_step, (int)(s1 - s0) + 1, v_dim,
                            a->out + row * a->ldo + (int64_t)head * v_dim);
    }
}

static void join_local(const cpu_attn_plan *p, const cpu_attn_item *it, float *part)
{
    cpu_attn_plan one = *p;
    cpu_attn_item t = *it;
    t.part = part;
    one.joins = &t;
    cpu_attn_join(&one, 0);
}

void cpu_attn_run(const cpu_attn_plan *p, int item, int thread)
{
    const cpu_attn_item *it = &p->items[item];
    const hy_attn *a = p->a;
    const hy_kv_layout *l = &a->pool->layout;
    cpu_local *loc = cpu_local_of(p->f, thread);
    float *part = it->part != NULL ? it->part : p->local + (size_t)thread * p->local_len;
    cpu_attn_seg s = {.ldq = a->ldq,
                      .pos = a->rows->pos + it->row,
                      .rows = it->rows,
                      .group = p->group,
                      .k_dim = l->k.width,
                      .v_dim = l->v.width,
                      .k_type = l->type,
                      .v_type = l->type,
                      .k_token = l->k.token,
                      .window = a->window,
                      .from_memory = true,
                      .scale = a->scale,
                      .softcap = a->softcap,
                      .part_step = it->n_segs * p->part_step,
                      .score = loc->row};
    s.q = a->q + it->row * a->ldq + (int64_t)it->kv_head * p->group * l->k.width;
    s.wide = (float *)(void *)loc->attn;
    s.all_wide = it->rows * p->group > 6;
    for (int32_t seg = it->seg0; seg < it->seg1; seg++) {
        s.first = seg * CPU_SEG;
        s.part = part + (int64_t)(seg - it->seg0) * p->part_step;
        s.k_step = l->k.dim;
        s.v_step = l->v.token;
        set_groups(&s, it, a);
        p->f->attn->segment(&s);
    }
    if (it->part == NULL)
        join_local(p, it, part);
}

/* ---- the op ---- */

static void run_item(void *ctx, int item, int thread)
{
    cpu_attn_run(ctx, item, thread);
}

static void join_item(void *ctx, int item, int thread)
{
    (void)thread;
    cpu_attn_join(ctx, item);
}

hy_status cpu_fast_attention(hy_queue *q, const hy_attn *a)
{
    cpu_fast *f = cpu_fast_of(q);
    if (!cpu_attn_able(a))
        return ref_attention(q, a);
    HY_TRY(cpu_attn_check(a));
    cpu_attn_plan p = {0};
    cpu_carve c = {0};
    cpu_attn_plan_make(&p, f, a, &c);
    HY_TRY(cpu_carve_get(q, &c));
    cpu_attn_plan_make(&p, f, a, &c);
    cpu_job job = {
        .n_phases = 2, .n_items = {p.n_items, p.n_joins}, .fn = {run_item, join_item}, .ctx = &p};
    cpu_pool_run(f->pool, &job);
    return HY_OK;
}
