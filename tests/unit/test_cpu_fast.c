/* SPDX-License-Identifier: Apache-2.0
 *
 * The fast kernels of the cpu backend give the bits of the scalar reference: every type, odd
 * shapes, both instruction sets where the machine has them, one and two threads.
 */
#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_int.h"
#include "backends/cpu/pool.h"
#include "hal/quant.h"
#include "tests/thin.h"
#include "tests/unit/cm.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t rng_state = 1;

static uint32_t rnd(void)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng_state >> 33);
}

static float rnd_f(void)
{
    return (float)((int)(rnd() % 20001) - 10000) / 5000.0f;
}

static float *floats(int64_t n)
{
    float *p = malloc((size_t)n * sizeof(float));
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++)
        p[i] = rnd_f();
    return p;
}

static void put_f16(uint8_t *p, float f)
{
    uint16_t h = hy_f32_to_f16(f);
    memcpy(p, &h, 2);
}

/* Random bytes with sane scales. */
static uint8_t *weights(hy_dtype t, int64_t n, int64_t k)
{
    const hy_dtype_info *info = hy_dtype_get(t);
    size_t bytes = hy_dtype_row_bytes(t, k) * (size_t)n;
    uint8_t *p = malloc(bytes);
    assert_non_null(p);
    static const int d_at[HY_DTYPE_MAX] = {[HY_Q6_K] = 208, [HY_Q2_K] = 80, [HY_Q3_K] = 108};
    bool two = t == HY_Q4_1 || t == HY_Q5_1 || t == HY_Q4_K || t == HY_Q5_K || t == HY_Q2_K;
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)rnd();
    for (size_t i = 0; i < bytes; i += info->bytes) {
        float f = rnd_f();
        if (t == HY_F32) {
            memcpy(p + i, &f, 4);
        } else if (t == HY_F16) {
            put_f16(p + i, f);
        } else if (t == HY_BF16) {
            uint16_t h = hy_f32_to_bf16(f);
            memcpy(p + i, &h, 2);
        } else {
            put_f16(p + i + d_at[t], f * 0.01f);
            if (two)
                put_f16(p + i + d_at[t] + 2, rnd_f() * 0.01f);
        }
    }
    return p;
}

static void same(const float *a, const float *b, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t x, y;
        memcpy(&x, &a[i], 4);
        memcpy(&y, &b[i], 4);
        if (x != y && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: element %lld is %.9g (%08x), the reference says %.9g (%08x)", what,
                     (long long)i, (double)a[i], x, (double)b[i], y);
    }
}

typedef struct pair {
    hy_dev *ref, *fast;
    hy_queue *qr, *qf;
    const char *isa;
    int threads;
} pair;

/* false: this machine lacks the instruction set */
static bool open_pair(pair *p, const char *isa, int threads)
{
    cpu_features feat;
    cpu_isa got;
    cpu_isa_detect(&feat);
    if (cpu_isa_pick(isa, &feat, &got) != HY_OK)
        return false;
    hy_dev_opts r = {.backend = "cpu", .isa = "scalar", .n_threads = 1};
    hy_dev_opts f = {.backend = "cpu", .isa = isa, .n_threads = threads};
    assert_int_equal(cpu_backend.open(&r, &p->ref), HY_OK);
    assert_int_equal(cpu_backend.open(&f, &p->fast), HY_OK);
    assert_int_equal(p->ref->ops->queue_create(p->ref, &p->qr), HY_OK);
    assert_int_equal(p->fast->ops->queue_create(p->fast, &p->qf), HY_OK);
    p->isa = isa;
    p->threads = threads;
    return true;
}

static void close_pair(pair *p)
{
    p->ref->ops->queue_destroy(p->qr);
    p->fast->ops->queue_destroy(p->qf);
    p->ref->ops->close(p->ref);
    p->fast->ops->close(p->fast);
}

static void for_isas(void (*fn)(const pair *))
{
    static const char *const isas[] = {"avx2", "avx512"};
    for (size_t i = 0; i < HY_COUNTOF(isas); i++) {
        for (int threads = 1; threads <= 2; threads++) {
            pair p;
            if (!open_pair(&p, isas[i], threads)) {
                printf("skipped: no %s here\n", isas[i]);
                break;
            }
            fn(&p);
            close_pair(&p);
        }
    }
}

static void check_matmul(const pair *p, hy_dtype t, int64_t n, int64_t k, int64_t m,
                         hy_act_mode act, bool bias)
{
    char what[128];
    snprintf(what, sizeof(what), "%s %s n=%d k=%d m=%d act=%d threads=%d", p->isa, hy_dtype_name(t),
             (int)n, (int)k, (int)m, (int)act, p->threads);
    uint8_t *raw = weights(t, n, k);
    float *x = floats(m * (k + 3)), *b = floats(n);
    float *y0 = floats(m * (n + 5)), *y1 = malloc((size_t)(m * (n + 5)) * sizeof(float));
    memcpy(y1, y0, (size_t)(m * (n + 5)) * sizeof(float));
    if (k >= 32 && m > 1) { /* a block of zeros, one with an infinity */
        memset(x + k + 3, 0, 32 * sizeof(float));
        if (m > 2)
            x[2 * (k + 3) + 5] = INFINITY;
    }
    hy_weight_src src = {.type = t, .n = n, .k = k, .data = raw, .gather = true};
    hy_weight *wr, *wf;
    assert_int_equal(p->ref->math->prepare_weight(p->ref, &src, &wr), HY_OK);
    assert_int_equal(p->fast->math->prepare_weight(p->fast, &src, &wf), HY_OK);
    hy_matmul a = {.x = x, .ldx = k + 3, .ldy = n + 5, .m = m, .act = act};
    a.bias = bias ? b : NULL;
    a.w = wr;
    a.y = y0;
    assert_int_equal(p->ref->math->matmul(p->qr, &a), HY_OK);
    a.w = wf;
    a.y = y1;
    assert_int_equal(p->fast->math->matmul(p->qf, &a), HY_OK);
    same(y1, y0, m * (n + 5), what);
    int32_t ids[3] = {0, (int32_t)(n - 1), (int32_t)(n / 2)};
    float *e0 = floats(3 * k), *e1 = floats(3 * k);
    hy_embed e = {.w = wr, .ids = ids, .m = 3, .y = e0, .ldy = k, .scale = 1.25f};
    assert_int_equal(p->ref->math->embed(p->qr, &e), HY_OK);
    e.w = wf;
    e.y = e1;
    assert_int_equal(p->fast->math->embed(p->qf, &e), HY_OK);
    same(e1, e0, 3 * k, what);
    p->ref->math->weight_free(p->ref, wr);
    p->fast->math->weight_free(p->fast, wf);
    free(raw), free(x), free(b), free(y0), free(y1), free(e0), free(e1);
}

static const hy_dtype types[] = {HY_F32,  HY_F16,  HY_BF16, HY_Q4_0, HY_Q4_1, HY_Q5_0, HY_Q5_1,
                                 HY_Q8_0, HY_Q2_K, HY_Q3_K, HY_Q4_K, HY_Q5_K, HY_Q6_K, HY_IQ4_NL};

static void matmuls(const pair *p)
{
    for (size_t i = 0; i < HY_COUNTOF(types); i++) {
        int64_t block = hy_dtype_get(types[i])->block, k = block == 1    ? 67
                                                           : block == 32 ? 608
                                                                         : 768;
        for (int act = HY_ACT_INT8; act <= HY_ACT_F32; act++) {
            if (act == HY_ACT_F32 && p->threads == 2)
                continue;
            for (int64_t m = 1; m <= 14; m += test_thin() ? 4 : 1)
                check_matmul(p, types[i], m % 2 == 0 ? 40 : 97, k, m, (hy_act_mode)act, m % 3 == 0);
        }
        check_matmul(p, types[i], 33, block == 1 ? 1 : block, 1, HY_ACT_INT8, false);
        check_matmul(p, types[i], 1, 5 * (block == 1 ? 61 : block), 150, HY_ACT_INT8, true);
    }
}

static void test_matmul(void **state)
{
    (void)state;
    for_isas(matmuls);
}

/* ---- the pool ---- */

typedef struct pool_ctx {
    atomic_int done[3];
    int n;
    atomic_bool early; /* an item ran before the phase before it was complete */
} pool_ctx;

static void pool_count(pool_ctx *c, int phase)
{
    if (phase > 0 && atomic_load(&c->done[phase - 1]) != c->n)
        atomic_store(&c->early, true);
    atomic_fetch_add(&c->done[phase], 1);
}

static void pool_0(void *ctx, int item, int thread)
{
    (void)item, (void)thread;
    pool_count(ctx, 0);
}

static void pool_1(void *ctx, int item, int thread)
{
    (void)item, (void)thread;
    pool_count(ctx, 1);
}

static void pool_2(void *ctx, int item, int thread)
{
    (void)item, (void)thread;
    pool_count(ctx, 2);
}

/* Every item runs once, phases follow each other, and sleeping workers are woken. */
static void test_pool(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        cpu_pool *p;
        assert_int_equal(cpu_pool_create(threads, 4096, &p), HY_OK);
        for (int i = 0; i < 2000; i++) {
            pool_ctx c = {.n = i % 17 + 1};
            cpu_job job = {.n_phases = 3,
                           .n_items = {c.n, c.n, c.n},
                           .fn = {pool_0, pool_1, pool_2},
                           .ctx = &c};
            cpu_pool_run(p, &job);
            for (int ph = 0; ph < 3; ph++)
                assert_int_equal(atomic_load(&c.done[ph]), c.n);
            assert_false(atomic_load(&c.early));
            if (i % 500 == 0)
                usleep(2000);
        }
        cpu_job none = {.n_phases = 2, .fn = {pool_0, pool_1}};
        cpu_pool_run(p, &none);
        cpu_pool_destroy(p);
    }
    cpu_pool *p;
    assert_int_equal(cpu_pool_create(0, 4096, &p), HY_E_INVAL);
    assert_int_equal(cpu_pool_create(CPU_MAX_THREADS + 1, 4096, &p), HY_E_INVAL);
}

/* ---- attention and the cache ---- */

typedef struct attn_case {
    hy_dtype value, type;
    int32_t heads, kv_heads, k_dim, v_dim, block;
    int32_t window;
    float softcap;
    int32_t n_seqs;
    int32_t start[3], rows[3]; /* of each sequence: positions before, rows now */
} attn_case;

typedef struct cache {
    hy_kv_pool pool;
    int32_t table[3 * 256];
    hy_block_table bt;
    hy_rows rows;
    int32_t pos[1024], seq_row[4];
} cache;

/* Where the elements of a cache lie: as the backend likes it, or as a cluster's other node does. */
typedef enum order { OWN, NHD, HND, N_ORDERS } order;

static void set_order(const hy_kv_layout *l, hy_kv_plane *p, order o)
{
    int64_t elem = hy_dtype_get(l->type)->bytes, row = p->width * elem;
    if (o == OWN)
        return;
    p->dim = elem;
    p->token = o == NHD ? row * l->n_heads : row;
    p->head = o == NHD ? row : row * l->block_tokens;
}

static void cache_init(cache *c, hy_dev *d, const attn_case *t, order o)
{
    hy_kv_layout *l = &c->pool.layout;
    memset(c, 0, sizeof(*c));
    l->value_type = t->value;
    l->type = t->type;
    l->n_layers = 2;
    l->n_heads = t->kv_heads;
    l->block_tokens = t->block;
    l->k.width = t->k_dim;
    l->v.width = t->v_dim;
    assert_int_equal(d->math->kv_layout(d, l), HY_OK);
    set_order(l, &l->k, o);
    set_order(l, &l->v, o);
    int32_t next = 0;
    for (int32_t s = 0; s < t->n_seqs; s++) {
        for (int32_t r = 0; r < t->rows[s]; r++)
            c->pos[c->seq_row[s] + r] = t->start[s] + r;
        c->seq_row[s + 1] = c->seq_row[s] + t->rows[s];
        int32_t blocks = (t->start[s] + t->rows[s] + t->block - 1) / t->block;
        int32_t dead = t->window > 0 ? (t->start[s] - t->window + 1) / t->block : 0;
        for (int32_t b = 0; b < blocks; b++) /* scattered; passed blocks are gone */
            c->table[s * 256 + b] = b < dead ? -1 : (next++ * 7) % 257;
    }
    c->pool.n_blocks = 257;
    c->bt = (hy_block_table){c->table, 256};
    c->rows = (hy_rows){
        .n = c->seq_row[t->n_seqs], .n_seqs = t->n_seqs, .pos = c->pos, .seq_row = c->seq_row};
    size_t bytes = (size_t)l->bytes_per_block * 257;
    assert_int_equal(d->ops->alloc(d, bytes, &c->pool.base), HY_OK);
    size_t elem = hy_dtype_get(t->type)->bytes;
    for (size_t i = 0; i < bytes; i += elem) {
        float f = rnd_f();
        uint16_t h = t->type == HY_F16 ? hy_f32_to_f16(f) : hy_f32_to_bf16(f);
        memcpy((char *)c->pool.base + i, elem == 4 ? (void *)&f : (void *)&h, elem);
    }
}

static void check_attention(const pair *p, const attn_case *t, order o)
{
    char what[160];
    snprintf(what, sizeof(what),
             "%s attention %s/%s heads %d/%d dims %d/%d block %d window %d cap %g "
             "threads %d order %d",
             p->isa, hy_dtype_name(t->value), hy_dtype_name(t->type), t->heads, t->kv_heads,
             t->k_dim, t->v_dim, t->block, t->window, (double)t->softcap, p->threads, (int)o);
    cache *c = malloc(sizeof(*c));
    cache_init(c, p->fast, t, o);
    int64_t n = c->rows.n, ldq = (int64_t)t->heads * t->k_dim + 3;
    int64_t ldo = (int64_t)t->heads * t->v_dim + 5;
    float *q = floats(n * ldq), *o0 = floats(n * ldo), *o1 = malloc((size_t)(n * ldo) * 4);
    memcpy(o1, o0, (size_t)(n * ldo) * 4);
    float *k = floats(n * t->kv_heads * t->k_dim), *v = floats(n * t->kv_heads * t->v_dim);
    hy_kv_write w = {.pool = &c->pool, .layer = 1, .rows = &c->rows, .bt = c->bt, .k = k, .v = v};
    w.ldk = t->kv_heads * t->k_dim;
    w.ldv = t->kv_heads * t->v_dim;
    size_t bytes = (size_t)c->pool.layout.bytes_per_block * 257;
    uint8_t *before = malloc(bytes), *by_ref = malloc(bytes);
    memcpy(before, c->pool.base, bytes);
    assert_int_equal(p->ref->math->kv_write(p->qr, &w), HY_OK);
    memcpy(by_ref, c->pool.base, bytes);
    memcpy(c->pool.base, before, bytes);
    assert_int_equal(p->fast->math->kv_write(p->qf, &w), HY_OK);
    assert_memory_equal(c->pool.base, by_ref, bytes);
    hy_attn a = {.pool = &c->pool,
                 .layer = 1,
                 .rows = &c->rows,
                 .bt = c->bt,
                 .q = q,
                 .ldq = ldq,
                 .heads = t->heads,
                 .out = o0,
                 .ldo = ldo,
                 .scale = 0.125f,
                 .softcap = t->softcap,
                 .window = t->window};
    assert_int_equal(p->ref->math->attention(p->qr, &a), HY_OK);
    a.out = o1;
    assert_int_equal(p->fast->math->attention(p->qf, &a), HY_OK);
    same(o1, o0, n * ldo, what);
    c->table[(t->start[0] + t->rows[0] - 1) / t->block] = 257;
    assert_int_equal(p->fast->math->attention(p->qf, &a), HY_E_INVAL);
    p->fast->ops->free(p->fast, c->pool.base, bytes);
    free(c), free(q), free(o0), free(o1), free(k), free(v), free(before), free(by_ref);
}

static void attentions(const pair *p)
{
    static const attn_case cases[] = {
        {HY_F16, HY_F16, 9, 3, 64, 64, 16, 0, 0, 1, {0}, {70}},
        {HY_F16, HY_F16, 9, 3, 64, 64, 16, 0, 0, 3, {700, 255, 0}, {1, 1, 1}},
        {HY_F16, HY_F16, 9, 3, 64, 64, 16, 0, 0, 2, {1800, 513}, {1, 3}},
        {HY_F16, HY_F16, 12, 2, 128, 128, 16, 0, 0, 3, {250, 3, 511}, {20, 1, 2}},
        {HY_F16, HY_F16, 4, 1, 256, 256, 16, 40, 0, 2, {500, 230}, {60, 1}},
        {HY_F16, HY_F16, 4, 1, 256, 256, 16, 300, 30.0f, 1, {240}, {40}},
        {HY_F16, HY_F32, 7, 1, 32, 48, 32, 0, 0, 2, {20, 300}, {40, 1}},
        {HY_F32, HY_F32, 5, 5, 64, 80, 16, 3, 0, 2, {250, 10}, {33, 9}},
        {HY_BF16, HY_BF16, 16, 2, 96, 96, 64, 0, 50.0f, 2, {10, 1000}, {17, 1}},
        {HY_F16, HY_F16, 2, 2, 20, 20, 5, 0, 0, 1, {3}, {10}}, /* no kernel: the reference */
        {HY_F16, HY_F16, 1, 1, 16, 16, 16, 0, 0, 1, {0}, {1}},
    };
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        for (order o = OWN; o < N_ORDERS; o++)
            check_attention(p, &cases[i], o);
    }
}

static void test_attention(void **state)
{
    (void)state;
    for_isas(attentions);
}

/* ---- the small ops ---- */

static float *copy_of(const float *x, int64_t n)
{
    float *p = malloc((size_t)n * 4);
    memcpy(p, x, (size_t)n * 4);
    return p;
}

static void spice(float *x, int64_t n)
{
    static const float odd[] = {0.0f,   -0.0f,  INFINITY, -INFINITY, NAN,   1e-42f,
                                -1e30f, 3e38f,  -103.9f,  -104.5f,   88.8f, 87.0f,
                                -87.5f, 1e-20f, 120.0f,   -60.0f};
    for (int64_t i = 0; i < n; i += 3)
        x[i] = odd[rnd() % HY_COUNTOF(odd)];
}

static void check_norms(const pair *p, int64_t m, int64_t dim)
{
    float *x = floats(m * (dim + 1)), *w = floats(dim), *b = floats(dim);
    float *y0 = floats(m * dim), *y1 = copy_of(y0, m * dim);
    for (int i = 0; i < 6; i++) {
        hy_norm a = {.x = x,
                     .ldx = dim + 1,
                     .y = y0,
                     .ldy = dim,
                     .m = m,
                     .dim = dim,
                     .w = i % 2 ? w : NULL,
                     .b = i > 3 ? b : NULL,
                     .eps = 1e-5f};
        const hy_math_ops *r = p->ref->math, *f = p->fast->math;
        assert_int_equal((i > 1 ? r->layer_norm : r->rms_norm)(p->qr, &a), HY_OK);
        a.y = y1;
        assert_int_equal((i > 1 ? f->layer_norm : f->rms_norm)(p->qf, &a), HY_OK);
        same(y1, y0, m * dim, "norm");
    }
    free(x), free(w), free(b), free(y0), free(y1);
}

static void check_elementwise(const pair *p, int64_t m, int64_t dim)
{
    float *g = floats(m * dim), *u = floats(m * dim), *y0 = floats(m * dim);
    float *y1 = copy_of(y0, m * dim);
    spice(g, m * dim);
    for (int fn = HY_ACT_SILU; fn <= HY_ACT_RELU; fn++) {
        hy_act_mul a = {.gate = g,
                        .up = fn % 2 ? u : NULL,
                        .ldg = dim,
                        .ldu = dim,
                        .y = y0,
                        .ldy = dim,
                        .m = m,
                        .dim = dim,
                        .fn = (hy_act_fn)fn};
        assert_int_equal(p->ref->math->act_mul(p->qr, &a), HY_OK);
        a.y = y1;
        assert_int_equal(p->fast->math->act_mul(p->qf, &a), HY_OK);
        same(y1, y0, m * dim, "act_mul");
    }
    hy_add a = {.a = g,
                .b = u,
                .lda = dim,
                .ldb = dim,
                .y = y0,
                .ldy = dim,
                .m = m,
                .dim = dim,
                .b_scale = 0.7f};
    assert_int_equal(p->ref->math->add(p->qr, &a), HY_OK);
    a.y = y1;
    assert_int_equal(p->fast->math->add(p->qf, &a), HY_OK);
    same(y1, y0, m * dim, "add");
    free(g), free(u), free(y0), free(y1);
}

static void check_rope(const pair *p, hy_rope_kind kind, int32_t dim, int32_t rot)
{
    int64_t m = 3, ld = 4 * dim + 7;
    float *x0 = floats(m * ld), *x1 = copy_of(x0, m * ld);
    float *c = floats(m * rot / 2), *s = floats(m * rot / 2);
    hy_rope a = {.x = x0, .ld = ld, .m = m, .heads = 4, .dim = dim, .t = {kind, rot, c, s}};
    assert_int_equal(p->ref->math->rope(p->qr, &a), HY_OK);
    a.x = x1;
    assert_int_equal(p->fast->math->rope(p->qf, &a), HY_OK);
    same(x1, x0, m * ld, "rope");
    free(x0), free(x1), free(c), free(s);
}

static void check_topk(const pair *p, int64_t n, int32_t k, int kind)
{
    int64_t m = 3;
    float *x = floats(m * n);
    if (kind == 1)
        spice(x, m * n);
    for (int64_t i = 0; kind == 2 && i < m * n; i++)
        x[i] = i % 2 ? NAN : -INFINITY;
    int32_t *i0 = malloc((size_t)m * (size_t)k * 4), *i1 = malloc((size_t)m * (size_t)k * 4);
    float *v0 = floats(m * k), *v1 = floats(m * k), l0[3], l1[3];
    hy_topk a = {.logits = x, .ld = n, .m = m, .n = n, .k = k, .ids = i0, .values = v0, .lse = l0};
    assert_int_equal(p->ref->math->topk(p->qr, &a), HY_OK);
    a.ids = i1, a.values = v1, a.lse = l1;
    assert_int_equal(p->fast->math->topk(p->qf, &a), HY_OK);
    assert_memory_equal(i0, i1, (size_t)m * (size_t)k * 4);
    same(v1, v0, m * k, "topk");
    same(l1, l0, m, "lse");
    free(x), free(i0), free(i1), free(v0), free(v1);
}

static void smalls(const pair *p)
{
    check_norms(p, 3, 576);
    check_norms(p, 2, 67);
    check_norms(p, 1, 7);
    check_elementwise(p, 3, 1536);
    check_elementwise(p, 2, 45);
    check_rope(p, HY_ROPE_HALVES, 64, 64);
    check_rope(p, HY_ROPE_PAIRS, 64, 64);
    check_rope(p, HY_ROPE_HALVES, 80, 44);
    check_rope(p, HY_ROPE_PAIRS, 80, 38);
    for (int kind = 0; kind < 3; kind++) {
        check_topk(p, 1000, 1, kind);
        check_topk(p, 49152, 1, kind);
        check_topk(p, 4999, 20, kind);
        check_topk(p, 37, 50, kind);
    }
}

static void test_small_ops(void **state)
{
    (void)state;
    for_isas(smalls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pool), cmocka_unit_test(test_matmul),
                                       cmocka_unit_test(test_attention),
                                       cmocka_unit_test(test_small_ops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
