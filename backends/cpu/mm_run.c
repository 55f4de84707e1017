/* SPDX-License-Identifier: Apache-2.0
 *
 * Matmul over the pool: activations into panels, then strips of outputs. For many columns a strip
 * is decoded piece by piece into a buffer that stays in L1 and meets every tile of columns there;
 * for few, tiles read the packed form. The order of additions is the same either way.
 *
 * Thread: a queue's owner and the pool.  Owner: none.
 */
#include "backends/cpu/fast.h"

#include <string.h>

#define PIECE       16 /* blocks of 32 k decoded at a time; a multiple of 8 */
#define PIECE_F32   8
#define SCRATCH_MIN ((size_t)16 << 20)

hy_status cpu_carve_get(hy_queue *q, cpu_carve *c)
{
    /* Never less than a mapping of its own: small steps before large ones allocate once. */
    size_t bytes = c->used > SCRATCH_MIN ? c->used : SCRATCH_MIN;
    c->p = cpu_scratch(q, bytes);
    if (c->p == NULL)
        return hy_fail(HY_E_NOMEM_DEVICE, "cpu: no memory for %zu bytes of scratch", bytes);
    c->used = 0;
    return HY_OK;
}

void *cpu_carve_take(cpu_carve *c, size_t bytes)
{
    void *p = c->p != NULL ? c->p + c->used : NULL;
    c->used += (bytes + 127) & ~(size_t)63; /* vector loads may run past an end, within the gap */
    return p;
}

void cpu_cols_init(const cpu_fast *f, cpu_cols *x, int64_t m, int64_t k, unsigned kinds,
                   cpu_carve *c)
{
    x->m = m;
    x->k = k;
    x->tiles[0] = cpu_tiles_of(m, CPU_TILE_I8);
    x->tiles[1] = cpu_tiles_of(m, f->mm->tile_f32);
    for (int p = 0; p < PANEL_KINDS; p++) {
        x->panel[p] = NULL;
        if (kinds >> p & 1)
            x->panel[p] = cpu_carve_take(c, (size_t)m * cpu_col_bytes((cpu_panel)p, k));
    }
}

void cpu_cols_put(const cpu_fast *f, const cpu_cols *x, int64_t col, const float *row)
{
    for (int p = 0; p < PANEL_KINDS; p++) {
        if (x->panel[p] == NULL)
            continue;
        const cpu_tiles *t = cpu_tiles_for(x, (cpu_panel)p);
        int i = cpu_tile_of(t, (int)col), first = cpu_tile_first(t, i);
        cpu_act_args a = {.x = row,
                          .k = x->k,
                          .w = cpu_tile_width(t, i),
                          .col = (int)col - first,
                          .kind = (cpu_panel)p};
        a.panel = x->panel[p] + (size_t)first * cpu_col_bytes((cpu_panel)p, x->k);
        f->vec->pack_act(&a);
    }
}

void cpu_cols_put_block(const cpu_fast *f, const cpu_cols *x, int64_t col, int64_t block,
                        const float *v)
{
    for (int p = 0; p < PANEL_KINDS; p++) {
        if (x->panel[p] == NULL)
            continue;
        const cpu_tiles *t = cpu_tiles_for(x, (cpu_panel)p);
        int i = cpu_tile_of(t, (int)col), first = cpu_tile_first(t, i), w = cpu_tile_width(t, i);
        cpu_act_args a = {.x = v, .k = 32, .w = w, .col = (int)col - first, .kind = (cpu_panel)p};
        a.panel = x->panel[p] + (size_t)first * cpu_col_bytes((cpu_panel)p, x->k) +
                  (size_t)block * (size_t)(cpu_panel_words((cpu_panel)p) * w) * 4;
        f->vec->pack_act(&a);
    }
}

int cpu_edge(const cpu_tiles *t, int c)
{
    if (c >= t->m)
        return t->m;
    int i = cpu_tile_of(t, c);
    return cpu_tile_first(t, i) == c ? c : cpu_tile_first(t, i + 1);
}

cpu_cut cpu_cut_of(const cpu_fast *f, int64_t m, int64_t k, int strips, size_t unit_bytes,
                   int align)
{
    cpu_cut c = {.strips = strips};
    size_t fit = f->l2_panel / (size_t)(k + k / 2 + 1);
    c.cols = fit < 24 ? 24 : fit > CPU_MAX_COLS - 12 ? CPU_MAX_COLS - 12 : (int)fit;
    c.panels = (int)((m + c.cols - 1) / c.cols);
    c.cols = (int)((m + c.panels - 1) / c.panels);
    /* An item should last some microseconds, and threads should end together. */
    int threads = cpu_pool_threads(f->pool);
    size_t cost = unit_bytes * (size_t)(2 + c.cols / 2) / 2;
    size_t many = 65536 / cost + 1, share = (size_t)strips * (size_t)c.panels;
    share = threads == 1 ? (size_t)strips : share / (size_t)(threads * 8) + 1;
    if (threads == 1 && c.panels == 1)
        many = share;
    c.per_item = (int)(many < share ? many : share);
    c.per_item = (c.per_item + align - 1) / align * align;
    c.chunks = (strips + c.per_item - 1) / c.per_item;
    return c;
}

typedef struct span {
    const cpu_fast *f;
    const uint8_t *strip;
    const cpu_tiles *t;
    const uint8_t *panel;
    size_t col_bytes;
    int t0, t1; /* tiles */
    float *acc;
} span;

/* Asks for part i of n of the bytes from p on, to arrive while tiles are computed. */
static void fetch(const uint8_t *p, size_t bytes, int i, int n)
{
    size_t lines = bytes / 64, end = lines * (size_t)(i + 1) / (size_t)n;
    for (size_t l = lines * (size_t)i / (size_t)n; l < end; l++)
        __builtin_prefetch(p + l * 64, 0, 2);
}

/* One piece of weights against every tile: blocks (or k, f32) from `at` on, n of them, words a
 * column each. */
static void tiles(const span *s, const cpu_tile_fn *fn, const uint8_t *w, int64_t at, int64_t n,
                  int words, const uint8_t *next, size_t next_bytes)
{
    int R = s->f->mm->rows, c0 = cpu_tile_first(s->t, s->t0);
    for (int i = s->t0; i < s->t1; i++) {
        int first = cpu_tile_first(s->t, i), width = cpu_tile_width(s->t, i);
        const uint8_t *x = s->panel + (size_t)first * s->col_bytes +
                           (size_t)at * (size_t)words * (size_t)width * 4;
        if (next != NULL)
            fetch(next, next_bytes, i - s->t0, s->t1 - s->t0);
        fn[width](w, x, n, s->acc + (size_t)(first - c0) * (size_t)R);
    }
}

static void strip_i8(const span *s, const cpu_weight *w, cpu_panel kind, uint8_t *buf)
{
    const cpu_mm *mm = s->f->mm;
    const cpu_fmt *fmt = &cpu_fmts[w->pack];
    int64_t nb = w->base.k / 32;
    int words = cpu_panel_words(kind);
    bool decoded = mm->decoded[w->pack][1] != NULL && s->t1 - s->t0 > 2;
    if (s->t1 - s->t0 == 1) {
        tiles(s, mm->direct[w->pack], s->strip, 0, nb, words, NULL, 0);
        return;
    }
    for (int64_t b = 0; b < nb; b += PIECE) {
        int64_t n = nb - b < PIECE ? nb - b : PIECE;
        const uint8_t *at = s->strip + cpu_block_off(fmt, mm->rows, b);
        size_t bytes = cpu_block_off(fmt, mm->rows, n);
        if (decoded) {
            mm->decode[w->pack](at, n, buf);
            tiles(s, mm->decoded[w->pack], buf, b, n, words, at + bytes, bytes);
        } else {
            tiles(s, mm->direct[w->pack], at, b, n, words, NULL, 0);
        }
    }
}

static void strip_f32(const span *s, const cpu_weight *w, uint8_t *buf)
{
    const cpu_mm *mm = s->f->mm;
    const cpu_fmt *fmt = &cpu_fmts[w->pack];
    const cpu_tile_fn *f32 = mm->direct[PACK_F32];
    int64_t k = w->base.k, R = mm->rows, step = 32 * PIECE_F32;
    if (fmt->sub == 0 && s->t1 - s->t0 == 1) {
        tiles(s, mm->direct[w->pack], s->strip, 0, k, 1, NULL, 0);
        return;
    }
    for (int64_t i = 0; i < k; i += step) {
        int64_t n = k - i < step ? k - i : step;
        const uint8_t *next = NULL, *piece = buf;
        size_t bytes = 0;
        if (w->pack == PACK_F32) {
            piece = s->strip + i * R * 4;
        } else if (fmt->sub == 0) {
            const uint8_t *at = s->strip + i * R * 2;
            mm->widen16((cpu_pack)w->pack, at, n, (float *)(void *)buf);
            bytes = (size_t)(n * R) * 2;
            next = at + bytes;
        } else {
            const uint8_t *at = s->strip + cpu_block_off(fmt, mm->rows, i / 32);
            uint8_t *codes = buf + (size_t)step * (size_t)R * 4;
            mm->decode[w->pack](at, n / 32, codes);
            mm->widen(fmt, codes, n / 32, (float *)(void *)buf);
            bytes = cpu_block_off(fmt, mm->rows, n / 32);
            next = at + bytes;
        }
        tiles(s, f32, piece, i, n, 1, next, bytes);
    }
}

void cpu_strip(const cpu_fast *f, const cpu_weight *w, const cpu_cols *x, hy_act_mode act, int s,
               int c0, int c1, float *acc, uint8_t *buf)
{
    cpu_panel kind = cpu_panel_of(w, act);
    const cpu_tiles *t = cpu_tiles_for(x, kind);
    span sp = {.f = f, .t = t, .panel = x->panel[kind], .acc = acc};
    sp.strip = (const uint8_t *)w->packed +
               (size_t)s * cpu_strip_bytes((cpu_pack)w->pack, f->mm->rows, w->base.k);
    sp.col_bytes = cpu_col_bytes(kind, x->k);
    sp.t0 = cpu_tile_of(t, c0);
    sp.t1 = c1 >= t->m ? t->n : cpu_tile_of(t, c1);
    memset(acc, 0, (size_t)(c1 - c0) * (size_t)f->mm->rows * sizeof(float));
    if (kind == PANEL_F32)
        strip_f32(&sp, w, buf);
    else
        strip_i8(&sp, w, kind, buf);
}

/* ---- outputs ---- */

void cpu_mul_init(const cpu_fast *f, cpu_mul *j, int64_t m)
{
    size_t strip = cpu_strip_bytes((cpu_pack)j->w->pack, f->mm->rows, j->w->base.k);
    j->cut = cpu_cut_of(f, m, j->w->base.k, cpu_strips(f, j->w->base.n), strip, 1);
}

/* A column's n outputs from acc to y. */
static void put(const cpu_fast *f, const cpu_mul *j, float *acc, const float *bias, float *y,
                int64_t n)
{
    if (bias != NULL)
        f->vec->add(acc, bias, 1.0f, acc, n);
    if (j->add) {
        f->vec->add(y, acc, 1.0f, y, n);
        return;
    }
    memcpy(y, acc, (size_t)n * sizeof(float));
    if (j->scaled)
        f->vec->scale_cap(y, n, j->scale, j->cap);
}

void cpu_mul_item(const cpu_fast *f, const cpu_mul *j, int item, int thread)
{
    cpu_local *l = cpu_local_of(f, thread);
    const cpu_tiles *t = cpu_tiles_for(j->x, cpu_panel_of(j->w, j->act));
    int panel = item / j->cut.chunks, chunk = item % j->cut.chunks, R = f->mm->rows;
    int c0 = cpu_edge(t, panel * j->cut.cols), c1 = cpu_edge(t, (panel + 1) * j->cut.cols);
    int s1 = (chunk + 1) * j->cut.per_item;
    s1 = s1 < j->cut.strips ? s1 : j->cut.strips;
    for (int s = chunk * j->cut.per_item; c0 < c1 && s < s1; s++) {
        cpu_strip(f, j->w, j->x, j->act, s, c0, c1, l->acc[0], l->buf);
        int64_t n0 = (int64_t)s * R, n = j->w->base.n - n0 < R ? j->w->base.n - n0 : R;
        for (int c = c0; c < c1; c++)
            put(f, j, l->acc[0] + (c - c0) * R, j->bias != NULL ? j->bias + n0 : NULL,
                j->y + c * j->ldy + n0, n);
    }
}

/* ---- the op ---- */

typedef struct mm_job {
    const cpu_fast *f;
    const hy_matmul *a;
    cpu_cols x;
    cpu_mul mul;
} mm_job;

static void put_row(void *ctx, int item, int thread)
{
    (void)thread;
    mm_job *j = ctx;
    cpu_cols_put(j->f, &j->x, item, j->a->x + item * j->a->ldx);
}

static void mul_item(void *ctx, int item, int thread)
{
    mm_job *j = ctx;
    cpu_mul_item(j->f, &j->mul, item, thread);
}

hy_status cpu_fast_matmul(hy_queue *q, const hy_matmul *a)
{
    cpu_fast *f = cpu_fast_of(q);
    mm_job j = {.f = f, .a = a};
    j.mul = (cpu_mul){.w = cpu_weight_of(a->w), .x = &j.x, .act = a->act};
    if (j.mul.w->pack == PACK_NONE)
        return cpu_ref_math.matmul(q, a);
    if (a->m <= 0)
        return HY_OK;
    unsigned kinds = 1u << cpu_panel_of(j.mul.w, a->act);
    cpu_carve c = {0};
    cpu_cols_init(f, &j.x, a->m, a->w->k, kinds, &c);
    HY_TRY(cpu_carve_get(q, &c));
    cpu_cols_init(f, &j.x, a->m, a->w->k, kinds, &c);
    j.mul.bias = a->bias;
    j.mul.y = a->y;
    j.mul.ldy = a->ldy;
    cpu_mul_init(f, &j.mul, a->m);
    cpu_job job = {.n_phases = 2,
                   .n_items = {(int)a->m, cpu_cut_items(&j.mul.cut)},
                   .fn = {put_row, mul_item},
                   .ctx = &j};
    cpu_pool_run(f->pool, &job);
    return HY_OK;
}
