/* SPDX-License-Identifier: Apache-2.0
 *
 * State of the fast table and the pieces its ops are made of: activations put into panels once,
 * strips of outputs computed from them, and jobs over the pool.
 *
 * Thread: an op runs on its queue's owner and the pool.  Owner: the device.
 */
#ifndef HY_CPU_FAST_H
#define HY_CPU_FAST_H

#include "backends/cpu/fast_int.h"

#include <pthread.h>

#define CPU_MAX_COLS 128 /* columns of an item */

/* A thread's scratch. */
typedef struct cpu_local {
    _Alignas(64) uint8_t buf[48 << 10];                  /* decoded or widened weights */
    _Alignas(64) float acc[2][CPU_MAX_COLS * CPU_MAX_R]; /* outputs of a strip; two for gate, up */
    _Alignas(64) float row[4096];
    _Alignas(64) uint8_t attn[512 << 10]; /* a segment of K and V as f32 */
} cpu_local;

struct cpu_chunk;

struct cpu_attn_kern;
struct cpu_kv_kern;

typedef struct cpu_fast {
    const cpu_mm *mm;
    const cpu_vec *vec;
    const struct cpu_attn_kern *attn;
    const struct cpu_kv_kern *kv;
    cpu_pool *pool;
    size_t l2_panel;      /* bytes of activations that an item may keep in L2 */
    pthread_mutex_t lock; /* of the chunks */
    struct cpu_chunk *chunks;
} cpu_fast;

static inline cpu_fast *cpu_fast_of(hy_queue *q)
{
    return cpu_dev_of(q->dev)->fast;
}

static inline cpu_local *cpu_local_of(const cpu_fast *f, int thread)
{
    return cpu_pool_scratch(f->pool, thread);
}

/* Activations of an op: m rows of k, in the panels that its weights want. */
typedef struct cpu_cols {
    int64_t m, k;
    cpu_tiles tiles[2];          /* int8; f32 */
    uint8_t *panel[PANEL_KINDS]; /* NULL: not wanted */
} cpu_cols;

/* Which panel a weight reads. */
static inline cpu_panel cpu_panel_of(const cpu_weight *w, hy_act_mode act)
{
    const cpu_fmt *f = &cpu_fmts[w->pack];
    if (f->sub == 0 || act == HY_ACT_F32)
        return PANEL_F32;
    return f->sub == 16 ? PANEL_I16 : PANEL_I32;
}

static inline const cpu_tiles *cpu_tiles_for(const cpu_cols *c, cpu_panel p)
{
    return &c->tiles[p == PANEL_F32];
}

/* Bytes of one column of a panel. */
static inline size_t cpu_col_bytes(cpu_panel p, int64_t k)
{
    return p == PANEL_F32 ? (size_t)k * 4 : (size_t)(k / 32) * (size_t)cpu_panel_words(p) * 4;
}

/* A region cut from an op's scratch. */
typedef struct cpu_carve {
    uint8_t *p; /* NULL while sizes are only added up */
    size_t used;
} cpu_carve;
void *cpu_carve_take(cpu_carve *c, size_t bytes);

/* Memory for what was added up; c is then ready to be carved. */
hy_status cpu_carve_get(hy_queue *q, cpu_carve *c);

/* Tiles for m rows of k; takes a panel for each kind of `kinds` (bit set) from c. */
void cpu_cols_init(const cpu_fast *f, cpu_cols *x, int64_t m, int64_t k, unsigned kinds,
                   cpu_carve *c);
/* Puts row `col` into every panel. */
void cpu_cols_put(const cpu_fast *f, const cpu_cols *x, int64_t col, const float *row);
/* The same for the 32 values of one block of a row. */
void cpu_cols_put_block(const cpu_fast *f, const cpu_cols *x, int64_t col, int64_t block,
                        const float *v);

/* How the columns and strips of an op are cut into items. */
typedef struct cpu_cut {
    int strips;       /* all */
    int per_item;     /* strips an item */
    int chunks;       /* items along the strips */
    int cols, panels; /* columns of a piece, pieces */
} cpu_cut;

/* unit_bytes: packed bytes of a strip; align: per_item is a multiple of it. */
cpu_cut cpu_cut_of(const cpu_fast *f, int64_t m, int64_t k, int strips, size_t unit_bytes,
                   int align);
static inline int cpu_cut_items(const cpu_cut *c)
{
    return c->chunks * c->panels;
}

/* Columns c0..c1 of strip s of w into acc[col - c0][R]. buf: a thread's. c0 and c1 must be edges of
 * tiles of w's panel kind (cpu_edge). */
void cpu_strip(const cpu_fast *f, const cpu_weight *w, const cpu_cols *x, hy_act_mode act, int s,
               int c0, int c1, float *acc, uint8_t *buf);
/* First tile edge at or after column c. */
int cpu_edge(const cpu_tiles *t, int c);

static inline int cpu_strips(const cpu_fast *f, int64_t n)
{
    return (int)((n + f->mm->rows - 1) / f->mm->rows);
}

/* A product whose outputs go to memory: y = or += x . W^T (+ bias), or cap(scale * that). */
typedef struct cpu_mul {
    const cpu_weight *w;
    const cpu_cols *x;
    hy_act_mode act;
    const float *bias;
    float *y;
    int64_t ldy;
    bool add, scaled;
    float scale, cap;
    cpu_cut cut; /* by cpu_mul_init */
} cpu_mul;
void cpu_mul_init(const cpu_fast *f, cpu_mul *j, int64_t m);
void cpu_mul_item(const cpu_fast *f, const cpu_mul *j, int item, int thread);

/* fast_weight.c */
hy_status cpu_fast_prepare(hy_dev *d, const hy_weight_src *src, hy_weight **out);
void cpu_fast_weight_free(hy_dev *d, hy_weight *w);
void cpu_chunks_free(cpu_fast *f);

/* ops */
hy_status cpu_fast_matmul(hy_queue *q, const hy_matmul *a);
hy_status cpu_fast_attention(hy_queue *q, const hy_attn *a);
hy_status cpu_fast_topk(hy_queue *q, const hy_topk *a);
hy_status cpu_fast_attn_in(hy_queue *q, const hy_attn_in *a);
hy_status cpu_fast_attn_out(hy_queue *q, const hy_attn_out *a);
hy_status cpu_fast_ffn(hy_queue *q, const hy_ffn *a);
hy_status cpu_fast_head(hy_queue *q, const hy_head *a);

#endif
