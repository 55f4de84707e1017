/* SPDX-License-Identifier: Apache-2.0
 *
 * Copy plans move the right bytes: every pair of block sizes and memory orders, storage types, head
 * splits, windows. The source holds a value for every place that follows from the place alone; the
 * destination's whole pool must afterwards equal what was there before plus what was asked for.
 *
 * Thread: one.  Owner: each test.
 */
#include "tests/unit/cm.h"

#include "hal/registry.h"
#include "tests/unit/kv_kit.h"

#include <math.h>

static hy_dev *dev;
static hy_queue *queue;

static int setup(void **state)
{
    (void)state;
    hy_dev_opts o = {.backend = "cpu", .n_threads = 1};
    return hy_dev_open(&o, &dev) < 0 || dev->ops->queue_create(dev, &queue) < 0 ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    dev->ops->queue_destroy(queue);
    hy_dev_close(dev);
    return 0;
}

static void ok(hy_status st)
{
    if (st < 0)
        fail_msg("%s", hy_fail_text());
}

typedef struct moved {
    uint64_t bytes, staged;
    size_t pieces;
    bool whole_tail;
} moved;

/* Each side lists its runs knowing only its own ids: the same bytes in the same order, which is
 * what digests are taken of. */
static void same_runs(const hy_kv_plan *p, const hy_kv_piece *x, const kit *src, const kit *dst)
{
    static const int32_t none[4096];
    const hy_kv_blocks other = {none, 4096};
    const size_t cap = hy_kv_plan_max_ranges(p, x);
    size_t n = 0, m = 0;
    hy_kv_bytes *a = malloc((cap + 1) * sizeof(*a)), *b = malloc((cap + 1) * sizeof(*b));
    assert_non_null(a);
    assert_non_null(b);
    ok(hy_kv_plan_runs(p, x, (hy_kv_blocks){src->blocks, src->s.n_blocks}, other, a, cap, &n));
    ok(hy_kv_plan_runs(p, x, other, (hy_kv_blocks){dst->blocks, dst->s.n_blocks}, b, cap, &m));
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(a[i].len, b[i].len);
        assert_memory_equal((const uint8_t *)src->pool.base + a[i].src,
                            (const uint8_t *)dst->pool.base + b[i].dst, a[i].len);
    }
    free(a);
    free(b);
}

static void move_direct(const hy_kv_plan *p, const hy_kv_piece *x, const kit *src, kit *dst)
{
    size_t cap = hy_kv_plan_max_ranges(p, x), n = 0;
    hy_kv_bytes *r = malloc((cap + 1) * sizeof(*r));
    assert_non_null(r);
    ok(hy_kv_plan_ranges(p, x, (hy_kv_blocks){src->blocks, src->s.n_blocks},
                         (hy_kv_blocks){dst->blocks, dst->s.n_blocks}, r, cap, &n));
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(r[i].src + r[i].len <= src->bytes && r[i].dst + r[i].len <= dst->bytes);
        memcpy((uint8_t *)dst->pool.base + r[i].dst, (uint8_t *)src->pool.base + r[i].src,
               r[i].len);
        sum += r[i].len;
    }
    assert_true(sum >= x->wire_bytes); /* padding besides */
    free(r);
    same_runs(p, x, src, dst);
}

static void move_packed(const hy_kv_plan *p, const hy_kv_piece *x, const kit *src, kit *dst)
{
    hy_kv_copy c;
    uint8_t *buf = malloc(x->bytes + 1);
    assert_non_null(buf);
    buf[x->bytes] = 0x5c;
    ok(hy_kv_piece_pack(p, x, &src->pool, (hy_kv_blocks){src->blocks, src->s.n_blocks}, buf, &c));
    ok(dev->math->kv_pack(queue, &c));
    ok(hy_kv_piece_unpack(p, x, &dst->pool, (hy_kv_blocks){dst->blocks, dst->s.n_blocks}, buf, &c));
    ok(dev->math->kv_unpack(queue, &c));
    assert_int_equal(buf[x->bytes], 0x5c);
    free(buf);
}

static moved move(const hy_kv_plan *p, const hy_kv_want *w, const kit *src, kit *dst)
{
    moved m = {0};
    hy_kv_piece x;
    hy_kv_iter it = hy_kv_plan_begin(p, w);
    while (hy_kv_plan_next(&it, &x)) {
        m.pieces++;
        m.bytes += x.bytes;
        m.whole_tail |= x.whole_tail;
        if (x.direct) {
            move_direct(p, &x, src, dst);
        } else {
            m.staged += x.bytes;
            assert_true(x.bytes <= hy_kv_plan_piece_max(p));
            move_packed(p, &x, src, dst);
        }
    }
    hy_kv_total t = hy_kv_plan_total(p, w);
    assert_int_equal(t.pieces, m.pieces);
    assert_true(t.bytes == m.bytes && t.staged == m.staged);
    return m;
}

static uint8_t *copy_of_pool(const kit *k)
{
    uint8_t *p = malloc(k->bytes);
    assert_non_null(p);
    memcpy(p, k->pool.base, k->bytes);
    return p;
}

static kit_shape shape(int order, int32_t bt, hy_dtype value, hy_dtype type)
{
    return (kit_shape){.order = order,
                       .value = value,
                       .type = type,
                       .bt = bt,
                       .n_layers = 2,
                       .k_width = 16,
                       .v_width = 24,
                       .n_heads = 2,
                       .heads_total = 2,
                       .n_blocks = 320 / bt + 2};
}

static kit source(kit_shape s)
{
    kit k = kit_make(s);
    kit_fill(&k, k.pool.base, 0, s.bt * s.n_blocks, s.head0, s.head0 + s.n_heads);
    return k;
}

/* One move of random tokens, checked to the byte. */
static void one_pair(const kit *src, kit_shape ds)
{
    static const size_t runs[] = {1, 100, 4096};
    kit dst = kit_make(ds);
    hy_kv_desc a = kit_desc(src), b = kit_desc(&dst);
    hy_kv_plan *p = NULL;
    hy_kv_plan_opts o = {.min_run = runs[kit_rnd(3)], .never_direct = kit_rnd(4) == 0};
    hy_kv_want w = {.t0 = (int32_t)kit_rnd(100), .tail_free = kit_rnd(4) == 0};
    w.n = 1 + (int32_t)kit_rnd(kit_rnd(2) != 0 ? 20u : (uint32_t)(300 - w.t0));
    ok(hy_kv_plan_create(&a, &b, &o, &p));
    assert_false(hy_kv_plan_lossy(p));
    if (ds.order == src->s.order && ds.bt == src->s.bt && ds.type == src->s.type && o.min_run == 1)
        assert_int_equal(hy_kv_plan_direct(p), !o.never_direct);
    uint8_t *want = copy_of_pool(&dst);
    moved m = move(p, &w, src, &dst);
    int32_t end = w.t0 + w.n;
    if (m.whole_tail)
        end = (end + ds.bt - 1) / ds.bt * ds.bt;
    assert_true(!m.whole_tail || w.tail_free);
    kit_fill(&dst, want, w.t0, end, 0, ds.n_heads);
    if (memcmp(want, dst.pool.base, dst.bytes) != 0)
        fail_msg("orders %d -> %d, blocks %d -> %d, storage %s -> %s, tokens %d+%d, runs of %zu",
                 src->s.order, ds.order, src->s.bt, ds.bt, hy_dtype_name((int)src->s.type),
                 hy_dtype_name((int)ds.type), w.t0, w.n, o.min_run);
    free(want);
    hy_kv_plan_destroy(p);
    kit_free(&dst);
}

static const int32_t sizes[] = {1, 2, 3, 8, 16, 17, 32, 64, 100, 256};

static void all_pairs(hy_dtype value, hy_dtype from, hy_dtype to, uint32_t one_in)
{
    for (size_t i = 0; i < HY_COUNTOF(sizes); i++) {
        for (int so = 0; so < KIT_ORDERS; so++) {
            kit src = source(shape(so, sizes[i], value, from));
            for (size_t j = 0; j < HY_COUNTOF(sizes); j++) {
                for (int d = 0; d < KIT_ORDERS; d++) {
                    if (kit_rnd(one_in) == 0)
                        one_pair(&src, shape(d, sizes[j], value, to));
                }
            }
            kit_free(&src);
        }
    }
}

static void test_every_pair_f16(void **state)
{
    (void)state;
    all_pairs(HY_F16, HY_F16, HY_F16, 1);
}

static void test_storages(void **state)
{
    (void)state;
    static const hy_dtype t[][3] = {{HY_F16, HY_F16, HY_F32},    {HY_F16, HY_F32, HY_F16},
                                    {HY_F16, HY_F32, HY_F32},    {HY_F32, HY_F32, HY_F32},
                                    {HY_BF16, HY_BF16, HY_BF16}, {HY_BF16, HY_BF16, HY_F32},
                                    {HY_BF16, HY_F32, HY_BF16}};
    for (size_t i = 0; i < HY_COUNTOF(t); i++)
        all_pairs(t[i][0], t[i][1], t[i][2], 4);
}

/* ---- head splits ---- */

enum { MAX_SHARDS = 8 };

static kit_shape shard(kit_shape s, int32_t head0, int32_t n, int32_t total)
{
    s.head0 = head0;
    s.n_heads = n;
    s.heads_total = total;
    return s;
}

typedef struct split {
    int n;
    int32_t head0[MAX_SHARDS], heads[MAX_SHARDS];
} split;

static void split_case(int32_t total, const split *from, const split *to, int so, int d_order,
                       int32_t sbt, int32_t dbt)
{
    kit src[MAX_SHARDS];
    hy_kv_desc descs[MAX_SHARDS];
    const hy_kv_desc *ptr[MAX_SHARDS];
    for (int i = 0; i < from->n; i++) {
        src[i] =
            source(shard(shape(so, sbt, HY_F16, HY_F16), from->head0[i], from->heads[i], total));
        descs[i] = kit_desc(&src[i]);
        ptr[i] = &descs[i];
    }
    for (int r = 0; r < to->n; r++) {
        kit dst =
            kit_make(shard(shape(d_order, dbt, HY_F16, HY_F16), to->head0[r], to->heads[r], total));
        hy_kv_desc b = kit_desc(&dst);
        hy_kv_share shares[16];
        size_t n = 0;
        ok(hy_kv_share_out(ptr, from->n, &b, r, shares, HY_COUNTOF(shares), &n));
        uint8_t *want = copy_of_pool(&dst);
        kit_fill(&dst, want, 5, 205, to->head0[r], to->head0[r] + to->heads[r]);
        uint64_t bytes = 0;
        for (int i = 0; i < from->n; i++) {
            hy_kv_plan *p = NULL;
            hy_kv_plan_opts o = {.shares = shares, .n_shares = n, .src = i, .min_run = 64};
            ok(hy_kv_plan_create(ptr[i], &b, &o, &p));
            bytes += move(p, &(hy_kv_want){.t0 = 5, .n = 200}, &src[i], &dst).bytes;
            hy_kv_plan_destroy(p);
        }
        assert_memory_equal(want, dst.pool.base, dst.bytes);
        /* each head once: 200 tokens, 2 layers, 40 dims of 2 bytes */
        assert_int_equal(bytes, 200u * 2 * 40 * 2 * (uint32_t)to->heads[r]);
        free(want);
        kit_free(&dst);
    }
    for (int i = 0; i < from->n; i++)
        kit_free(&src[i]);
}

static void test_head_splits(void **state)
{
    (void)state;
    const split one4 = {1, {0}, {4}}, two4 = {2, {0, 2}, {2, 2}},
                four4 = {4, {0, 1, 2, 3}, {1, 1, 1, 1}};
    const split one3 = {1, {0}, {3}}, two3 = {2, {0, 2}, {2, 1}};
    /* 8 shards over 3 heads: shard r has the heads of [3r/8, 3(r+1)/8): some share one, some two */
    const split eight3 = {8, {0, 0, 0, 1, 1, 1, 2, 2}, {1, 1, 2, 1, 1, 2, 1, 1}};
    for (int so = 0; so < KIT_ORDERS; so++) {
        for (int d = 0; d < KIT_ORDERS; d++) {
            split_case(4, &one4, &two4, so, d, 16, 16);
            split_case(4, &two4, &one4, so, d, 16, 64);
            split_case(4, &four4, &one4, so, d, 32, 16);
            split_case(4, &four4, &two4, so, d, 16, 16);
            split_case(4, &one4, &four4, so, d, 3, 16);
            split_case(3, &eight3, &one3, so, d, 16, 16);
            split_case(3, &eight3, &two3, so, d, 8, 100);
            split_case(3, &two3, &eight3, so, d, 16, 16);
            split_case(3, &eight3, &eight3, so, d, 16, 16);
        }
    }
}

/* Readers of a replicated head are spread; a head that nobody holds is named. */
static void test_shares(void **state)
{
    (void)state;
    kit_shape s = shape(KIT_HND, 16, HY_F16, HY_F16);
    kit k[4], d = kit_make(shard(s, 0, 1, 2));
    hy_kv_desc descs[4], want = kit_desc(&d);
    const hy_kv_desc *ptr[4];
    bool used[4] = {false};
    for (int i = 0; i < 4; i++) {
        k[i] = kit_make(shard(s, i / 2, 1, 2));
        descs[i] = kit_desc(&k[i]);
        ptr[i] = &descs[i];
    }
    hy_kv_share out[4];
    size_t n = 0;
    for (int rank = 0; rank < 2; rank++) {
        ok(hy_kv_share_out(ptr, 4, &want, rank, out, 4, &n));
        assert_int_equal(n, 1);
        used[out[0].src] = true;
    }
    assert_true(used[0] && used[1] && !used[2] && !used[3]);
    assert_int_equal(hy_kv_share_out(ptr + 2, 2, &want, 0, out, 4, &n), HY_E_INVAL);
    assert_non_null(strstr(hy_fail_text(), "head 0"));
    want.g[0].heads_total = 3;
    assert_int_equal(hy_kv_share_out(ptr, 4, &want, 0, out, 4, &n), HY_E_UNSUPPORTED);
    for (int i = 0; i < 4; i++)
        kit_free(&k[i]);
    kit_free(&d);
}

/* ---- windows, blocks out of them, bad block lists ---- */

static void test_window(void **state)
{
    (void)state;
    for (int order = 0; order < KIT_ORDERS; order++) {
        for (int32_t dbt = 8; dbt <= 16; dbt += 8) {
            kit_shape s = shape(order, 16, HY_F16, HY_F16), t = shape(order, dbt, HY_F16, HY_F16);
            s.window = t.window = 40;
            kit src = source(s), dst = kit_make(t);
            hy_kv_desc a = kit_desc(&src), b = kit_desc(&dst);
            hy_kv_plan *p = NULL;
            ok(hy_kv_plan_create(&a, &b, NULL, &p));
            uint8_t *want = copy_of_pool(&dst);
            /* the row at 200 sees positions 161..199 */
            kit_fill(&dst, want, 161, 200, 0, 2);
            for (int i = 0; i < 161 / 16; i++)
                src.blocks[i] = -1;
            for (int i = 0; i < 161 / dbt; i++)
                dst.blocks[i] = -1;
            move(p, &(hy_kv_want){.t0 = 3, .n = 197}, &src, &dst);
            assert_memory_equal(want, dst.pool.base, dst.bytes);
            /* a chunk of a longer prompt that no later row will see moves nothing */
            hy_kv_total none = hy_kv_plan_total(p, &(hy_kv_want){.t0 = 3, .n = 100, .next = 300});
            assert_int_equal(none.pieces, 0);
            free(want);
            hy_kv_plan_destroy(p);
            kit_free(&src);
            kit_free(&dst);
        }
    }
}

static void test_bad_blocks(void **state)
{
    (void)state;
    kit src = source(shape(KIT_HND, 16, HY_F16, HY_F16));
    kit dst = kit_make(shape(KIT_HND, 16, HY_F16, HY_F16));
    hy_kv_desc a = kit_desc(&src), b = kit_desc(&dst);
    hy_kv_plan *p = NULL, *q = NULL;
    ok(hy_kv_plan_create(&a, &b, &(hy_kv_plan_opts){.min_run = 1}, &p));
    ok(hy_kv_plan_create(&a, &b, &(hy_kv_plan_opts){.never_direct = true}, &q));
    hy_kv_want w = {.t0 = 16, .n = 64};
    hy_kv_piece x, y;
    hy_kv_iter it = hy_kv_plan_begin(p, &w), jt = hy_kv_plan_begin(q, &w);
    assert_true(hy_kv_plan_next(&it, &x) && hy_kv_plan_next(&jt, &y));
    assert_true(x.direct && !y.direct);
    hy_kv_bytes r[64];
    hy_kv_copy c;
    size_t n = 0;
    static const int32_t bad[] = {-1, 22, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        int32_t ids[] = {-1, 1, 2, bad[i], 4};
        hy_kv_blocks good = {src.blocks, 22}, wrong = {ids, 5};
        assert_int_equal(hy_kv_plan_ranges(p, &x, wrong, good, r, 64, &n), HY_E_INVAL);
        assert_int_equal(hy_kv_plan_ranges(p, &x, good, wrong, r, 64, &n), HY_E_INVAL);
        assert_int_equal(hy_kv_piece_pack(q, &y, &src.pool, wrong, NULL, &c), HY_E_INVAL);
        assert_int_equal(hy_kv_piece_unpack(q, &y, &dst.pool, wrong, NULL, &c), HY_E_INVAL);
    }
    hy_kv_blocks four = {src.blocks, 4}, all = {src.blocks, 22};
    assert_int_equal(hy_kv_plan_ranges(p, &x, four, all, r, 64, &n), HY_E_INVAL); /* too short */
    assert_int_equal(hy_kv_plan_ranges(p, &x, all, all, r, 0, &n), HY_E_LIMIT);
    hy_kv_want odd[] = {{.t0 = -1, .n = 4},
                        {.t0 = 0, .n = 0},
                        {.t0 = 5, .n = INT32_MAX - 4},
                        {.n = 4, .group = 1},
                        {.n = 4, .n_groups = 2},
                        {.n = 4, .layer0 = 2, .n_layers = 1},
                        {.n = 4, .layer0 = 1, .n_layers = INT32_MAX}};
    for (size_t i = 0; i < HY_COUNTOF(odd); i++) {
        assert_int_equal(hy_kv_want_check(p, &odd[i]), HY_E_INVAL);
        assert_int_equal(hy_kv_plan_total(p, &odd[i]).pieces, 0);
    }
    hy_kv_plan_destroy(p);
    hy_kv_plan_destroy(q);
    kit_free(&src);
    kit_free(&dst);
}

/* ---- zero copy ---- */

/* Whole pools of equal layout and blocks in order are one range. */
static void test_coalesce(void **state)
{
    (void)state;
    for (int order = 0; order < KIT_ORDERS; order++) {
        kit src = source(shape(order, 16, HY_F16, HY_F16));
        kit dst = kit_make(shape(order, 16, HY_F16, HY_F16));
        hy_kv_desc a = kit_desc(&src), b = kit_desc(&dst);
        hy_kv_plan *p = NULL;
        ok(hy_kv_plan_create(&a, &b, &(hy_kv_plan_opts){.min_run = 512}, &p));
        assert_true(hy_kv_plan_direct(p));
        hy_kv_piece x;
        hy_kv_iter it = hy_kv_plan_begin(p, &(hy_kv_want){.n = 10 * 16});
        assert_true(hy_kv_plan_next(&it, &x));
        int32_t up[22], down[22];
        for (int32_t i = 0; i < 22; i++)
            up[i] = i, down[i] = 21 - i;
        hy_kv_bytes r[1024];
        size_t n = 0;
        /* a range a layer where layers are outermost; K and V apart where they are */
        size_t least = order == KIT_LAYERS_FIRST ? 2 : order == KIT_PLANES_FIRST ? 40 : 1;
        ok(hy_kv_plan_ranges(p, &x, (hy_kv_blocks){up, 22}, (hy_kv_blocks){up, 22}, r, 1024, &n));
        assert_int_equal(n, least);
        ok(hy_kv_plan_ranges(p, &x, (hy_kv_blocks){down, 22}, (hy_kv_blocks){down, 22}, r, 1024,
                             &n));
        assert_int_equal(n, least);
        assert_false(hy_kv_plan_next(&it, &x));
        hy_kv_plan_destroy(p);
        kit_free(&src);
        kit_free(&dst);
    }
}

/* A partial block goes packed where its tokens are scattered, or whole when nothing is behind. */
static void test_partial(void **state)
{
    (void)state;
    kit src = source(shape(KIT_CPU, 16, HY_F16, HY_F16));
    kit dst = kit_make(shape(KIT_CPU, 16, HY_F16, HY_F16));
    hy_kv_desc a = kit_desc(&src), b = kit_desc(&dst);
    hy_kv_plan *p = NULL;
    ok(hy_kv_plan_create(&a, &b, &(hy_kv_plan_opts){.min_run = 512}, &p));
    hy_kv_want w = {.t0 = 5, .n = 100};
    hy_kv_piece x[4];
    hy_kv_iter it = hy_kv_plan_begin(p, &w);
    for (int i = 0; i < 3; i++)
        assert_true(hy_kv_plan_next(&it, &x[i]));
    assert_false(hy_kv_plan_next(&it, &x[3]));
    assert_true(!x[0].direct && x[0].t0 == 5 && x[0].n == 11);
    assert_true(x[1].direct && x[1].t0 == 16 && x[1].n == 80 && !x[1].whole_tail);
    assert_true(!x[2].direct && x[2].t0 == 96 && x[2].n == 9);
    w.t0 = 16, w.n = 89, w.tail_free = true;
    hy_kv_total t = hy_kv_plan_total(p, &w);
    assert_true(t.pieces == 1 && t.direct_pieces == 1 && t.staged == 0);
    hy_kv_plan_destroy(p);
    kit_free(&src);
    kit_free(&dst);
}

/* ---- pieces ---- */

/* Sizes as of real models; nothing is moved. */
static void test_piece_sizes(void **state)
{
    (void)state;
    static const struct {
        int32_t layers, heads, width, bt;
    } models[] = {
        {30, 3, 64, 16}, {28, 2, 128, 16}, {80, 8, 128, 32}, {61, 1, 576, 64}, {4, 64, 256, 16}};
    static const size_t most[] = {256 << 10, 1 << 20, 4 << 20};
    for (size_t m = 0; m < HY_COUNTOF(models); m++) {
        for (size_t i = 0; i < HY_COUNTOF(most) * 4; i++) {
            kit_shape s = {.order = i % 2 == 0 ? KIT_CPU : KIT_NHD,
                           .value = HY_F16,
                           .type = HY_F16,
                           .bt = models[m].bt,
                           .n_layers = models[m].layers,
                           .k_width = models[m].width,
                           .v_width = models[m].width,
                           .n_heads = models[m].heads,
                           .heads_total = models[m].heads,
                           .n_blocks = 512};
            kit k = {.s = s, .pool = {.layout = kit_layout(&s), .n_blocks = 512}};
            hy_kv_desc a = kit_desc(&k);
            k.s.order = KIT_CPU;
            k.pool.layout = kit_layout(&k.s);
            hy_kv_desc b = kit_desc(&k);
            hy_kv_plan *p = NULL;
            hy_kv_plan_opts o = {.piece_bytes = most[i / 4], .lossy = true};
            o.has_wire = i % 4 >= 2;
            o.wire = HY_I8;
            ok(hy_kv_plan_create(&a, &b, &o, &p));
            hy_kv_piece x;
            hy_kv_want w = {.t0 = 7, .n = 3001};
            hy_kv_iter it = hy_kv_plan_begin(p, &w);
            uint64_t cells = 0;
            size_t small = 0, n = 0;
            for (; hy_kv_plan_next(&it, &x); n++) {
                bool block = x.direct && x.n_layers == 1 && x.n <= models[m].bt;
                assert_true(x.bytes <= most[i / 4] || block);
                assert_int_equal(x.scale_off % 64, 0);
                small += x.bytes < most[i / 4] / 4;
                cells += (uint64_t)x.n * (uint64_t)x.n_layers;
            }
            assert_int_equal(cells, 3001u * (uint32_t)models[m].layers);
            assert_true(small <= n / 8 + 4); /* the ends of the range alone are small */
            hy_kv_want layer = {.t0 = 0, .n = 512, .layer0 = 3, .n_layers = 1};
            for (it = hy_kv_plan_begin(p, &layer), cells = 0; hy_kv_plan_next(&it, &x);) {
                assert_true(x.layer0 == 3 && x.n_layers == 1);
                cells += (uint64_t)x.n;
            }
            assert_int_equal(cells, 512);
            hy_kv_plan_destroy(p);
        }
    }
}

/* ---- lossy ---- */

static void test_lossy(void **state)
{
    (void)state;
    kit src = source(shape(KIT_CPU, 16, HY_F32, HY_F32));
    kit dst = kit_make(shape(KIT_HND, 32, HY_F16, HY_F16));
    hy_kv_desc a = kit_desc(&src), b = kit_desc(&dst);
    hy_kv_plan *p = NULL;
    float *v = (float *)(void *)kit_at(&src, src.pool.base, 1, true, 1, 50, 3);
    *v = 1.0f + 0x1p-11f + 0x1p-20f; /* rounds up in f16 */
    assert_int_equal(hy_kv_plan_create(&a, &b, NULL, &p), HY_E_UNSUPPORTED);
    assert_non_null(strstr(hy_fail_text(), "value type: f32 at the source, f16"));
    ok(hy_kv_plan_create(&a, &b, &(hy_kv_plan_opts){.lossy = true}, &p));
    assert_true(hy_kv_plan_lossy(p) && hy_kv_plan_wire(p, 0) == HY_F16);
    uint8_t *want = copy_of_pool(&dst);
    kit_fill(&dst, want, 0, 77, 0, 2);
    kit_put(HY_F16, kit_at(&dst, want, 1, true, 1, 50, 3), 1.0f + 0x1p-10f);
    move(p, &(hy_kv_want){.n = 77}, &src, &dst);
    assert_memory_equal(want, dst.pool.base, dst.bytes);
    hy_kv_plan_destroy(p);
    free(want);
    kit_free(&src);
    kit_free(&dst);
}

/* Quantised wires: half the bytes; each value within the code's step of its row's greatest. */
static void test_quantised(void **state)
{
    (void)state;
    static const hy_dtype wires[] = {HY_I8, HY_F8_E4M3, HY_F8_E4M3FNUZ};
    for (size_t i = 0; i < HY_COUNTOF(wires); i++) {
        kit src = source(shape(KIT_NHD, 17, HY_F16, HY_F16));
        kit dst = kit_make(shape(KIT_CPU, 8, HY_F16, HY_F32));
        hy_kv_desc a = kit_desc(&src), b = kit_desc(&dst);
        hy_kv_plan *p = NULL;
        hy_kv_plan_opts o = {.has_wire = true, .wire = wires[i]};
        assert_int_equal(hy_kv_plan_create(&a, &b, &o, &p), HY_E_UNSUPPORTED);
        o.lossy = true;
        ok(hy_kv_plan_create(&a, &b, &o, &p));
        kit_put(HY_F16, kit_at(&src, src.pool.base, 0, false, 1, 9, 2), INFINITY);
        move(p, &(hy_kv_want){.n = 123}, &src, &dst);
        for (int t = 0; t < 123; t++) {
            double amax = 0.0;
            for (int d = 0; d < 16; d++)
                amax = fmax(amax, fabs((double)kit_value(1, true, 1, t, d)));
            for (int d = 0; d < 16; d++) {
                double x = (double)kit_value(1, true, 1, t, d);
                double got = (double)kit_get(HY_F32, kit_at(&dst, dst.pool.base, 1, true, 1, t, d));
                double step = wires[i] == HY_I8 ? amax / 254 : fabs(x) / 16 + amax * 3e-6;
                assert_true(fabs(got - x) <= step * 1.001 + fabs(x) / 1024);
            }
        }
        /* a row with an infinity comes back as NaN, all of it, and no other row */
        for (int d = 0; d < 24; d++)
            assert_true(isnan(kit_get(HY_F32, kit_at(&dst, dst.pool.base, 0, false, 1, 9, d))));
        assert_false(isnan(kit_get(HY_F32, kit_at(&dst, dst.pool.base, 0, false, 1, 8, 0))));
        hy_kv_plan_destroy(p);
        kit_free(&src);
        kit_free(&dst);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair_f16), cmocka_unit_test(test_storages),
        cmocka_unit_test(test_head_splits),    cmocka_unit_test(test_shares),
        cmocka_unit_test(test_window),         cmocka_unit_test(test_bad_blocks),
        cmocka_unit_test(test_coalesce),       cmocka_unit_test(test_partial),
        cmocka_unit_test(test_piece_sizes),    cmocka_unit_test(test_lossy),
        cmocka_unit_test(test_quantised),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
