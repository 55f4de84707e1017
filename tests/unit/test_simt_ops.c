/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops of the simt backend give the same bits at wave 32 and 64, on any number of threads, whether
 * rows come few (vectors) or many (tiles), and whether attention is split over segments; and close
 * values to the cpu backend's. That they are right is the conformance suite's business.
 *
 * Thread: main.  Owner: each test.
 */
#include "backends/simt/ops_int.h"
#include "core/base/alloc.h"
#include "core/base/rng.h"
#include "hal/conform.h"
#include "hal/quant.h"
#include "tests/unit/cm.h"

#include <math.h>
#include <string.h>

static const char *const w32[] = {"wave=32", "check=true", "split=off", NULL};
static const char *const w64[] = {"wave=64", "split=on", NULL};

typedef struct side {
    hy_dev *d;
    hy_queue *q;
} side;

static side open_side(const char *backend, const char *const *kv, int threads)
{
    hy_dev_opts o = {.backend = backend, .n_threads = threads, .kv = kv};
    side s = {NULL, NULL};
    assert_int_equal(hy_dev_open(&o, &s.d), HY_OK);
    assert_int_equal(s.d->ops->queue_create(s.d, &s.q), HY_OK);
    return s;
}

static void close_side(side *s)
{
    s->d->ops->queue_destroy(s->q);
    hy_dev_close(s->d);
}

static void fill(hy_rng *r, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(hy_rng_f64(r) * 4.0 - 2.0);
}

/* Random blocks whose f16 scales are small and finite. */
static void fill_weight(hy_rng *r, hy_dtype t, uint8_t *p, size_t bytes)
{
    static const int at[][3] = {{HY_Q2_K, 80, 82}, {HY_Q3_K, 108, -1}, {HY_Q6_K, 208, -1},
                                {HY_Q4_1, 0, 2},   {HY_Q5_1, 0, 2},    {HY_Q4_K, 0, 2},
                                {HY_Q5_K, 0, 2}};
    const size_t block = hy_dtype_get(t)->bytes;
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)hy_rng_u64(r);
    if (hy_quant_get(t) == NULL) {
        for (size_t i = 0; i < bytes; i += block) {
            float f = (float)(hy_rng_f64(r) * 2.0 - 1.0);
            uint16_t h = t == HY_F16 ? hy_f32_to_f16(f) : hy_f32_to_bf16(f);
            memcpy(p + i, block == 4 ? (void *)&f : (void *)&h, block);
        }
        return;
    }
    int d = 0, m = -1;
    for (size_t i = 0; i < HY_COUNTOF(at); i++) {
        if (at[i][0] == (int)t) {
            d = at[i][1];
            m = at[i][2];
        }
    }
    for (size_t i = 0; i < bytes; i += block) {
        uint16_t h = hy_f32_to_f16((float)(hy_rng_f64(r) * 0.02 + 0.001));
        memcpy(p + i + d, &h, sizeof(h));
        if (m >= 0)
            memcpy(p + i + m, &h, sizeof(h));
    }
}

enum { ROWS = 41, OUT = 70, K = 1536 };

static void matmul(side *s, hy_dtype t, hy_act_mode act, const uint8_t *w, int64_t k, float *x,
                   int64_t m, float *y)
{
    hy_weight_src src = {.type = t, .n = OUT, .k = k, .data = w};
    hy_weight *p = NULL;
    assert_int_equal(s->d->math->prepare_weight(s->d, &src, &p), HY_OK);
    hy_matmul a = {.w = p, .x = x, .ldx = k, .y = y, .ldy = OUT, .m = m, .act = act};
    assert_int_equal(s->d->math->matmul(s->q, &a), HY_OK);
    s->d->math->weight_free(s->d, p);
}

static void test_matmul(void **state)
{
    (void)state;
    static const hy_dtype types[] = {HY_F32,  HY_F16,  HY_BF16, HY_Q8_0,  HY_Q4_0,
                                     HY_Q4_1, HY_Q5_0, HY_Q5_1, HY_Q2_K,  HY_Q3_K,
                                     HY_Q4_K, HY_Q5_K, HY_Q6_K, HY_IQ4_NL};
    static float x[ROWS * K], y[3][ROWS * OUT], few[ROWS * OUT];
    static uint8_t w[OUT * K * 4];
    side a = open_side("simt", w32, 1), b = open_side("simt", w64, 2),
         c = open_side("cpu", NULL, 1);
    hy_rng r;
    hy_rng_init(&r, 7);
    for (size_t i = 0; i < HY_COUNTOF(types); i++) {
        for (int act = HY_ACT_INT8; act <= HY_ACT_F32; act++) {
            const int64_t k = hy_quant_get((int)types[i]) != NULL ? K : K - 5;
            const size_t row = hy_dtype_row_bytes((int)types[i], k);
            fill(&r, x, ROWS * k);
            fill_weight(&r, types[i], w, row * OUT);
            matmul(&a, types[i], (hy_act_mode)act, w, k, x, ROWS, y[0]);
            matmul(&b, types[i], (hy_act_mode)act, w, k, x, ROWS, y[1]);
            matmul(&c, types[i], (hy_act_mode)act, w, k, x, ROWS, y[2]);
            assert_memory_equal(y[0], y[1], sizeof(y[0]));
            for (int from = 0, n = 1; from < ROWS; from += n, n = n % 9 + 1) {
                n = n < ROWS - from ? n : ROWS - from; /* 9 rows: a tile */
                matmul(&b, types[i], (hy_act_mode)act, w, k, x + from * k, n, few);
                assert_memory_equal(few, y[0] + from * OUT, (size_t)(n * OUT) * sizeof(float));
            }
            double big = 0.0, off = 0.0;
            for (int j = 0; j < ROWS * OUT; j++) {
                big = fmax(big, fabs((double)y[2][j]));
                off = fmax(off, fabs((double)y[2][j] - (double)y[0][j]));
            }
            assert_true(big > 0.0 && off < big * 2e-5);
        }
    }
    close_side(&a);
    close_side(&b);
    close_side(&c);
}

/* Heads 6 on 2, decode and prefill rows over several segments, with and without a window. */
static void attend(side *s, int32_t window, const float *k, const float *v, const float *q,
                   float *out)
{
    enum { HEADS = 6, KV = 2, DIM = 48, BT = 16, LEN = 700, FRESH = 11 };
    hy_kv_pool pool = {.layout = {.value_type = HY_F16,
                                  .type = HY_F16,
                                  .n_layers = 1,
                                  .n_heads = KV,
                                  .block_tokens = BT,
                                  .k = {.width = DIM},
                                  .v = {.width = DIM}}};
    int32_t pos[LEN], table[LEN / BT + 1], seq_row[3] = {0, LEN, LEN};
    assert_int_equal(s->d->math->kv_layout(s->d, &pool.layout), HY_OK);
    pool.n_blocks = LEN / BT + 1;
    size_t bytes = (size_t)pool.layout.bytes_per_block * (size_t)pool.n_blocks;
    assert_int_equal(s->d->ops->alloc(s->d, bytes, &pool.base), HY_OK);
    for (int32_t i = 0; i < LEN; i++)
        pos[i] = i;
    for (int32_t i = 0; i < pool.n_blocks; i++)
        table[i] = pool.n_blocks - 1 - i;
    hy_rows rows = {.n = LEN, .n_seqs = 1, .pos = pos, .seq_row = seq_row};
    hy_kv_write w = {.pool = &pool,
                     .rows = &rows,
                     .bt = {table, pool.n_blocks},
                     .k = k,
                     .v = v,
                     .ldk = KV * DIM,
                     .ldv = KV * DIM};
    assert_int_equal(s->d->math->kv_write(s->q, &w), HY_OK);
    hy_attn a = {.pool = &pool,
                 .rows = &rows,
                 .bt = w.bt,
                 .q = q,
                 .ldq = HEADS * DIM,
                 .heads = HEADS,
                 .out = out,
                 .ldo = HEADS * DIM,
                 .scale = 0.3f,
                 .softcap = window != 0 ? 20.0f : 0.0f,
                 .window = window};
    rows.n = FRESH;
    rows.pos = pos + LEN - FRESH;
    seq_row[1] = FRESH;
    assert_int_equal(s->d->math->attention(s->q, &a), HY_OK);
    rows.n = 1; /* one row of them alone, behind the others */
    seq_row[1] = 1;
    rows.pos = pos + LEN - 4;
    a.q = q + (FRESH - 4) * HEADS * DIM;
    a.out = out + FRESH * HEADS * DIM;
    assert_int_equal(s->d->math->attention(s->q, &a), HY_OK);
    assert_memory_equal(a.out, out + (FRESH - 4) * HEADS * DIM, HEADS * DIM * sizeof(float));
    s->d->ops->free(s->d, pool.base, bytes);
}

static void test_attention(void **state)
{
    (void)state;
    enum { N = 700 * 2 * 48, Q = 12 * 6 * 48 };
    static float k[N], v[N], q[Q], y[3][Q];
    side a = open_side("simt", w32, 1), b = open_side("simt", w64, 2),
         c = open_side("cpu", NULL, 1);
    hy_rng r;
    hy_rng_init(&r, 8);
    fill(&r, k, N);
    fill(&r, v, N);
    fill(&r, q, Q);
    for (int32_t window = 0; window <= 300; window += 300) {
        attend(&a, window, k, v, q, y[0]);
        attend(&b, window, k, v, q, y[1]);
        attend(&c, window, k, v, q, y[2]);
        assert_memory_equal(y[0], y[1], sizeof(y[0]));
        for (int i = 0; i < Q; i++)
            assert_true(fabs((double)y[0][i] - (double)y[2][i]) < 2e-5);
    }
    close_side(&a);
    close_side(&b);
    close_side(&c);
}

static void test_norms(void **state)
{
    (void)state;
    enum { M = 5, D = 1000 };
    static float x[M * D], w[D], y[4][M * D], lse[4][M];
    int32_t ids[2][M * 7];
    side s[2] = {open_side("simt", w32, 1), open_side("simt", w64, 2)};
    hy_rng r;
    hy_rng_init(&r, 9);
    fill(&r, x, M * D);
    fill(&r, w, D);
    for (int i = 0; i < 2; i++) {
        hy_norm n = {
            .x = x, .ldx = D, .y = y[i], .ldy = D, .m = M, .dim = D, .w = w, .b = w, .eps = 1e-5f};
        assert_int_equal(s[i].d->math->rms_norm(s[i].q, &n), HY_OK);
        n.y = y[2 + i];
        assert_int_equal(s[i].d->math->layer_norm(s[i].q, &n), HY_OK);
        hy_topk t = {.logits = x, .ld = D, .m = M, .n = D, .k = 7, .ids = ids[i], .lse = lse[i]};
        assert_int_equal(s[i].d->math->topk(s[i].q, &t), HY_OK);
        close_side(&s[i]);
    }
    assert_memory_equal(y[0], y[1], sizeof(y[0]));
    assert_memory_equal(y[2], y[3], sizeof(y[0]));
    assert_memory_equal(lse[0], lse[1], sizeof(lse[0]));
    assert_memory_equal(ids[0], ids[1], sizeof(ids[0]));
}

static void fail_item(void *arg, const hy_conform_item *it)
{
    (void)arg;
    if (it->result == HY_CONFORM_FAIL)
        print_error("%s %s: %s\n", hy_op_name(it->op), it->what, it->text);
}

/* What docs/NUMERICS.md says is the cpu backend's to the bit. */
static void test_cpu_bits(void **state)
{
    (void)state;
    enum { M = 7, D = 96 };
    static float x[M * D], u[M * D], y[2][M * D];
    static uint8_t w[M * 32 * 4 * 6];
    side s[2] = {open_side("simt", w64, 2), open_side("cpu", NULL, 1)};
    const int32_t ids[M] = {6, 0, 3, 3, 1, 5, 2};
    hy_rng r;
    hy_rng_init(&r, 10);
    fill(&r, u, M * D);
    for (int i = 0; i < M * D; i++)
        x[i] = (float)(hy_rng_f64(&r) * 60.0 - 30.0);
    for (int fn = HY_ACT_SILU; fn <= HY_ACT_RELU; fn++) {
        for (int i = 0; i < 2; i++) {
            hy_act_mul a = {.gate = x,
                            .up = u,
                            .ldg = D,
                            .ldu = D,
                            .y = y[i],
                            .ldy = D,
                            .m = M,
                            .dim = D,
                            .fn = (hy_act_fn)fn};
            assert_int_equal(s[i].d->math->act_mul(s[i].q, &a), HY_OK);
        }
        assert_memory_equal(y[0], y[1], sizeof(y[0]));
    }
    for (int t = 0; t < HY_DTYPE_MAX; t++) {
        if (hy_quant_get(t) == NULL || hy_quant_get(t)->block != 32)
            continue;
        fill_weight(&r, (hy_dtype)t, w, hy_dtype_row_bytes(t, D) * M);
        for (int i = 0; i < 2; i++) {
            hy_weight_src src = {.type = (hy_dtype)t, .n = M, .k = D, .data = w, .gather = true};
            hy_weight *p = NULL;
            assert_int_equal(s[i].d->math->prepare_weight(s[i].d, &src, &p), HY_OK);
            hy_embed e = {.w = p, .ids = ids, .m = M, .y = y[i], .ldy = D, .scale = 1.5f};
            assert_int_equal(s[i].d->math->embed(s[i].q, &e), HY_OK);
            s[i].d->math->weight_free(s[i].d, p);
        }
        assert_memory_equal(y[0], y[1], sizeof(y[0]));
    }
    close_side(&s[0]);
    close_side(&s[1]);
}

/* Cache and wire: equal layouts, equal bytes in all wire types. */
static void test_cpu_bits_wire(void **state)
{
    (void)state;
    enum { N = 23, HEADS = 3, DIM = 40, BT = 8, ROW = HEADS * DIM };
    static const hy_dtype wires[] = {HY_F32, HY_F16, HY_BF16, HY_I8, HY_F8_E4M3, HY_F8_E4M3FNUZ};
    static float k[N * ROW], v[N * ROW];
    static uint8_t wire[2][N * ROW * 2 * 4];
    static float scales[2][N * HEADS * 2];
    int32_t pos[N], table[3] = {1, 2, 0}, seq_row[2] = {0, N};
    side s[2] = {open_side("simt", w32, 1), open_side("cpu", NULL, 1)};
    hy_rng r;
    hy_rng_init(&r, 11);
    fill(&r, k, N * ROW);
    fill(&r, v, N * ROW);
    memset(k + ROW, 0, DIM * sizeof(float));
    v[5 * ROW + 3] = INFINITY;
    v[6 * ROW + 3] = NAN;
    k[7 * ROW] = 1e-30f;
    for (int32_t i = 0; i < N; i++)
        pos[i] = i;
    hy_kv_pool pool[2];
    for (int i = 0; i < 2; i++) {
        pool[i] = (hy_kv_pool){.layout = {.value_type = HY_BF16,
                                          .type = HY_F32,
                                          .n_layers = 1,
                                          .n_heads = HEADS,
                                          .block_tokens = BT,
                                          .k = {.width = DIM},
                                          .v = {.width = DIM}},
                               .n_blocks = 3};
        assert_int_equal(s[i].d->math->kv_layout(s[i].d, &pool[i].layout), HY_OK);
        size_t bytes = (size_t)pool[i].layout.bytes_per_block * 3;
        assert_int_equal(s[i].d->ops->alloc(s[i].d, bytes, &pool[i].base), HY_OK);
        hy_rows rows = {.n = N, .n_seqs = 1, .pos = pos, .seq_row = seq_row};
        hy_kv_write w = {.pool = &pool[i], .rows = &rows, .bt = {table, 3}, .k = k, .v = v};
        w.ldk = w.ldv = ROW;
        assert_int_equal(s[i].d->math->kv_write(s[i].q, &w), HY_OK);
    }
    assert_memory_equal(&pool[0].layout, &pool[1].layout, sizeof(pool[0].layout));
    for (size_t t = 0; t < HY_COUNTOF(wires); t++) {
        memset(scales, 0, sizeof(scales));
        for (int i = 0; i < 2; i++) {
            hy_kv_copy c = {.pool = &pool[i],
                            .blocks = table,
                            .t0 = 3,
                            .n = N - 4,
                            .n_layers = 1,
                            .n_heads = HEADS,
                            .wire = wires[t],
                            .buf = wire[i],
                            .bytes = sizeof(wire[i]),
                            .scales = scales[i]};
            assert_int_equal(s[i].d->math->kv_pack(s[i].q, &c), HY_OK);
        }
        assert_memory_equal(wire[0], wire[1],
                            (N - 4) * ROW * 2 * hy_dtype_get((int)wires[t])->bytes);
        for (size_t i = 0; i < HY_COUNTOF(scales[0]); i++)
            assert_true(scales[0][i] == scales[1][i] ||
                        (isnan(scales[0][i]) && isnan(scales[1][i])));
    }
    for (int i = 0; i < 2; i++) {
        s[i].d->ops->free(s[i].d, pool[i].base, (size_t)pool[i].layout.bytes_per_block * 3);
        close_side(&s[i]);
    }
}

/* ---- caches in any order of head, token and dimension ---- */

enum {
    LO_N = 45,
    LO_HEADS = 2,
    LO_DIM = 24,
    LO_BT = 16,
    LO_ROW = LO_HEADS * LO_DIM,
    LO_BLOCKS = 3
};

/* Order 0 to 5 of the strides of a plane of f16; what it takes. */
static int64_t order_plane(hy_kv_plane *p, int order, int64_t off)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}; /* outermost first */
    const int64_t n[3] = {LO_HEADS, LO_BT, LO_DIM};
    int64_t *stride[3] = {&p->head, &p->token, &p->dim}, at = 2;
    for (int i = 2; i >= 0; i--) {
        *stride[orders[order][i]] = at;
        at *= n[orders[order][i]];
    }
    p->off = off;
    return off + at;
}

static hy_kv_pool ordered_pool(side *s, int k_order, int v_order)
{
    hy_kv_pool p = {.layout = {.value_type = HY_F16,
                               .type = HY_F16,
                               .n_layers = 1,
                               .n_heads = LO_HEADS,
                               .block_tokens = LO_BT,
                               .k = {.width = LO_DIM},
                               .v = {.width = LO_DIM}},
                    .n_blocks = LO_BLOCKS};
    const int64_t k_end = order_plane(&p.layout.k, k_order, 0);
    p.layout.layer_stride = order_plane(&p.layout.v, v_order, k_end);
    p.layout.block_stride = p.layout.bytes_per_block = p.layout.layer_stride;
    assert_int_equal(s->d->ops->alloc(s->d, (size_t)p.layout.bytes_per_block * LO_BLOCKS, &p.base),
                     HY_OK);
    return p;
}

static void wire_of(side *s, const hy_kv_pool *p, const int32_t *table, bool pack, hy_dtype wire,
                    uint8_t *buf, float *scales)
{
    hy_kv_copy c = {.pool = p,
                    .blocks = table,
                    .t0 = 5,
                    .n = LO_N - 7,
                    .n_layers = 1,
                    .n_heads = LO_HEADS,
                    .wire = wire,
                    .buf = buf,
                    .bytes = (LO_N - 7) * LO_ROW * 2 * hy_dtype_get((int)wire)->bytes,
                    .scales = scales};
    assert_int_equal(pack ? s->d->math->kv_pack(s->q, &c) : s->d->math->kv_unpack(s->q, &c), HY_OK);
}

/* Every pair of orders: written, packed, unpacked into the other, packed again, attended. */
static void test_layouts(void **state)
{
    (void)state;
    static const hy_dtype wires[] = {HY_F16, HY_I8};
    static float k[LO_N * LO_ROW], v[LO_N * LO_ROW], q[LO_ROW], y[2][LO_ROW];
    static uint8_t first[2][LO_N * LO_ROW * 4], other[LO_N * LO_ROW * 4];
    static float scales[2][LO_N * LO_HEADS * 2], back[LO_N * LO_HEADS * 2];
    int32_t pos[LO_N], table[LO_BLOCKS] = {1, 2, 0}, seq_row[2] = {0, LO_N};
    side s = open_side("simt", w32, 1);
    hy_rng r;
    hy_rng_init(&r, 15);
    fill(&r, k, LO_N * LO_ROW);
    fill(&r, v, LO_N * LO_ROW);
    fill(&r, q, LO_ROW);
    for (int32_t i = 0; i < LO_N; i++)
        pos[i] = i;
    for (int o = 0; o < 36; o++) {
        hy_kv_pool a = ordered_pool(&s, o / 6, o % 6), b = ordered_pool(&s, o % 6, 5 - o / 6);
        hy_rows rows = {.n = LO_N, .n_seqs = 1, .pos = pos, .seq_row = seq_row};
        hy_kv_write w = {.pool = &a, .rows = &rows, .bt = {table, LO_BLOCKS}, .k = k, .v = v};
        w.ldk = w.ldv = LO_ROW;
        assert_int_equal(s.d->math->kv_write(s.q, &w), HY_OK);
        int32_t last = LO_N - 1, one[2] = {0, 1};
        hy_rows end = {.n = 1, .n_seqs = 1, .pos = &last, .seq_row = one};
        hy_attn at = {.pool = &a,
                      .rows = &end,
                      .bt = {table, LO_BLOCKS},
                      .q = q,
                      .ldq = LO_ROW,
                      .heads = LO_HEADS,
                      .out = y[o > 0],
                      .ldo = LO_ROW,
                      .scale = 0.2f};
        assert_int_equal(s.d->math->attention(s.q, &at), HY_OK);
        assert_memory_equal(y[0], y[o > 0], sizeof(y[0]));
        for (size_t t = 0; t < HY_COUNTOF(wires); t++) {
            uint8_t *buf = o == 0 ? first[t] : other;
            float *sc = o == 0 ? scales[t] : back;
            memset(buf, 0, sizeof(other));
            memset(sc, 0, sizeof(back));
            wire_of(&s, &a, table, true, wires[t], buf, sc);
            assert_memory_equal(first[t], buf, sizeof(other));
            assert_memory_equal(scales[t], sc, sizeof(back));
            wire_of(&s, &b, table, false, wires[t], buf, sc);
            if (wires[t] != HY_F16)
                continue;
            memset(other, 0, sizeof(other));
            wire_of(&s, &b, table, true, HY_F16, other, NULL);
            assert_memory_equal(first[t], other, sizeof(other));
        }
        s.d->ops->free(s.d, a.base, (size_t)a.layout.bytes_per_block * LO_BLOCKS);
        s.d->ops->free(s.d, b.base, (size_t)b.layout.bytes_per_block * LO_BLOCKS);
    }
    close_side(&s);
}

/* With k = 32 a row is one group, so that the orders are one: activations and codes meet exactly.
 */
static void test_cpu_bits_int8(void **state)
{
    (void)state;
    static float x[ROWS * 32], y[2][ROWS * OUT];
    static uint8_t w[OUT * 34];
    side s[2] = {open_side("simt", w32, 1), open_side("cpu", NULL, 1)};
    hy_rng r;
    hy_rng_init(&r, 12);
    fill(&r, x, ROWS * 32);
    memset(x + 32, 0, 32 * sizeof(float));
    for (int i = 64; i < 96; i++)
        x[i] *= 1e-38f;
    x[100] = INFINITY;
    for (int t = 0; t < HY_DTYPE_MAX; t++) {
        if (hy_quant_get(t) == NULL || hy_quant_get(t)->block != 32)
            continue;
        fill_weight(&r, (hy_dtype)t, w, hy_dtype_row_bytes(t, 32) * OUT);
        for (int i = 0; i < 2; i++)
            matmul(&s[i], (hy_dtype)t, HY_ACT_INT8, w, 32, x, ROWS, y[i]);
        for (int i = 0; i < ROWS * OUT; i++) /* a sum with +0.0 has no -0.0 */
            assert_true(y[0][i] == y[1][i] || (isnan(y[0][i]) && isnan(y[1][i])));
    }
    close_side(&s[0]);
    close_side(&s[1]);
}

/* Over all the suite's cases. */
static void test_cpu_bits_suite(void **state)
{
    (void)state;
    static const char *const ops[] = {"embed", "rope", "act_mul", "add", "moe_route"};
    side a = open_side("simt", w32, 1), b = open_side("cpu", NULL, 1);
    for (size_t i = 0; i < HY_COUNTOF(ops); i++) {
        hy_conform_opts o = {.only = ops[i], .quick = true, .same = b.d};
        hy_conform_sum sum = {0};
        assert_int_equal(hy_conform_run(a.d, &o, fail_item, NULL, &sum), HY_OK);
        assert_true(sum.passed > 0 && sum.failed == 0 && sum.refused == 0 && sum.bits);
    }
    close_side(&a);
    close_side(&b);
}

/* Rows of weights as dense floats, which a vendor's GEMM takes. */
static void test_decode(void **state)
{
    (void)state;
    enum { M = 3, D = 512 };
    static const hy_dtype to[] = {HY_F32, HY_F16, HY_BF16};
    static uint8_t w[M * D * 4], y[M * (D + 8) * 4];
    static float f[D];
    side s = open_side("simt", w64, 2);
    const simt_driver *drv = ((const simt_base *)(const void *)s.d)->drv;
    hy_rng r;
    hy_rng_init(&r, 13);
    for (int t = 0; t < HY_DTYPE_MAX; t++) {
        if (hy_quant_get(t) == NULL && t != HY_F32 && t != HY_F16 && t != HY_BF16)
            continue;
        const int64_t k = hy_quant_get(t) == NULL ? D - 13 : D;
        const size_t row = hy_dtype_row_bytes(t, k);
        fill_weight(&r, (hy_dtype)t, w, row * M);
        const hy_weight_src src = {.type = (hy_dtype)t, .n = M, .k = k, .data = w};
        hy_weight *dev = NULL;
        assert_int_equal(s.d->math->prepare_weight(s.d, &src, &dev), HY_OK);
        for (size_t i = 0; i < HY_COUNTOF(to); i++) {
            const size_t size = hy_dtype_get((int)to[i])->bytes;
            ka_decode a = {.w = simt_weight_of(dev)->p,
                           .w_row = (int64_t)simt_weight_of(dev)->row_bytes,
                           .y = y,
                           .ldy = D + 8,
                           .m = M,
                           .k = (int32_t)k,
                           .type = t,
                           .to = (int32_t)to[i]};
            memset(y, 0xaa, sizeof(y));
            assert_int_equal(drv->launch(s.q, SIMT_k_decode, 1, M, 1, &a, sizeof(a)), HY_OK);
            for (int m = 0; m < M; m++) {
                hy_dtype_decode(t, w + (size_t)m * row, f, k);
                const uint8_t *at = y + (size_t)m * (D + 8) * size;
                for (int64_t d = 0; d < k; d++) {
                    uint16_t h = to[i] == HY_F16 ? hy_f32_to_f16(f[d]) : hy_f32_to_bf16(f[d]);
                    const void *want = to[i] == HY_F32 ? (const void *)&f[d] : (const void *)&h;
                    assert_memory_equal(at + (size_t)d * size, want, size);
                }
                assert_int_equal(at[(size_t)k * size], 0xaa); /* and no further */
            }
        }
        s.d->math->weight_free(s.d, dev);
    }
    close_side(&s);
}

/* numerics = fast: many rows go over matrix units, few do not; the device promises no bits. */
static void test_fast(void **state)
{
    (void)state;
    static float x[ROWS * K], y[2][ROWS * OUT];
    static uint8_t w[OUT * K * 2];
    hy_dev_opts o = {.backend = "simt", .n_threads = 1, .kv = w64, .fast = true};
    side s[2] = {open_side("simt", w32, 1), {NULL, NULL}};
    hy_dev_props p;
    hy_rng r;
    assert_int_equal(hy_dev_open(&o, &s[1].d), HY_OK);
    assert_int_equal(s[1].d->ops->queue_create(s[1].d, &s[1].q), HY_OK);
    assert_int_equal(s[1].d->ops->props(s[1].d, &p), HY_OK);
    assert_false(p.exact);
    hy_rng_init(&r, 14);
    fill(&r, x, ROWS * K);
    fill_weight(&r, HY_BF16, w, sizeof(w));
    double off = 0.0, big = 0.0;
    for (int64_t m = ROWS; m > 0; m -= ROWS - 8) {
        for (int i = 0; i < 2; i++)
            matmul(&s[i], HY_BF16, HY_ACT_F32, w, K, x, m, y[i]);
        if (m == 8) {
            assert_memory_equal(y[0], y[1], (size_t)m * OUT * sizeof(float));
            break;
        }
        for (int j = 0; j < ROWS * OUT; j++) {
            big = fmax(big, fabs((double)y[0][j]));
            off = fmax(off, fabs((double)y[0][j] - (double)y[1][j]));
        }
        assert_true(off > 0.0 && off < big * 1e-2); /* x is rounded to 8 bits */
    }
    close_side(&s[0]);
    close_side(&s[1]);
}

static void test_options(void **state)
{
    (void)state;
    static const char *const bad[] = {"wave=48", NULL};
    hy_dev_opts o = {.backend = "simt", .n_threads = 1, .kv = bad};
    hy_dev *d = NULL;
    hy_dev_props p;
    assert_int_equal(hy_dev_open(&o, &d), HY_E_INVAL);
    assert_non_null(strstr(hy_fail_text(), "[backend.simt] wave = 48"));
    o.kv = NULL;
    o.isa = "wave64";
    assert_int_equal(hy_dev_open(&o, &d), HY_OK);
    assert_int_equal(d->ops->props(d, &p), HY_OK);
    assert_string_equal(p.isa, "wave64");
    assert_true(p.exact);
    hy_dev_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),         cmocka_unit_test(test_attention),
        cmocka_unit_test(test_norms),          cmocka_unit_test(test_cpu_bits),
        cmocka_unit_test(test_cpu_bits_wire),  cmocka_unit_test(test_cpu_bits_int8),
        cmocka_unit_test(test_cpu_bits_suite), cmocka_unit_test(test_decode),
        cmocka_unit_test(test_layouts),        cmocka_unit_test(test_fast),
        cmocka_unit_test(test_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
