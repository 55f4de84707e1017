/* SPDX-License-Identifier: Apache-2.0
 *
 * KV descriptors: round trip, hostile bytes, fields out of bounds, and reasons of a mismatch.
 *
 * Thread: one.  Owner: each test.
 */
#include "tests/unit/cm.h"

#include "hal/registry.h"
#include "tests/unit/kv_kit.h"

static hy_kv_desc sample(int order)
{
    kit_shape s = {.order = order,
                   .value = HY_F16,
                   .type = HY_F16,
                   .bt = 16,
                   .n_layers = 5,
                   .k_width = 64,
                   .v_width = 32,
                   .head0 = 1,
                   .n_heads = 2,
                   .heads_total = 8,
                   .n_blocks = 11};
    kit k = {.s = s, .pool = {.layout = kit_layout(&s), .n_blocks = s.n_blocks}};
    hy_kv_desc d = kit_desc(&k);
    d.g[d.n_groups++] = d.g[0];
    d.g[1].window = 128;
    return d;
}

static void test_round_trip(void **state)
{
    (void)state;
    for (int order = 0; order < KIT_ORDERS; order++) {
        hy_kv_desc d = sample(order), e;
        hy_buf b;
        size_t used = 0;
        hy_buf_init(&b);
        hy_kv_desc_encode(&d, &b);
        size_t n = b.len;
        hy_buf_puts(&b, "what follows");
        assert_int_equal(hy_kv_desc_decode(b.data, b.len, &e, &used), HY_OK);
        assert_int_equal(used, n);
        assert_int_equal(e.n_groups, 2);
        hy_buf again;
        hy_buf_init(&again);
        hy_kv_desc_encode(&e, &again);
        assert_int_equal(again.len, n);
        assert_memory_equal(again.data, b.data, n);
        assert_string_equal(b.data + n, "what follows");
        assert_true(e.g[1].window == 128 && e.g[0].head0 == 1 && e.g[0].heads_total == 8 &&
                    e.g[1].layout.v.off == d.g[1].layout.v.off && e.g[0].wires == 63);
        for (size_t cut = 0; cut < n; cut++)
            assert_int_equal(hy_kv_desc_decode(b.data, cut, &e, NULL), HY_E_FORMAT);
        hy_buf_fini(&again);
        hy_buf_fini(&b);
    }
}

/* A later minor version may append to records. */
static void test_versions(void **state)
{
    (void)state;
    hy_kv_desc d = sample(KIT_HND), e;
    hy_buf b, longer;
    hy_buf_init(&b);
    hy_buf_init(&longer);
    hy_kv_desc_encode(&d, &b);
    size_t rec = (b.len - 16) / 2, used = 0;
    hy_buf_add(&longer, b.data, 16);
    longer.data[12] = (char)(rec + 8);
    for (int i = 0; i < 2; i++) {
        hy_buf_add(&longer, b.data + 16 + (size_t)i * rec, rec);
        hy_buf_add(&longer, "newfield", 8);
    }
    assert_int_equal(hy_kv_desc_decode(longer.data, longer.len, &e, &used), HY_OK);
    assert_true(used == longer.len && e.g[1].window == 128);
    b.data[4] = 2;
    assert_int_equal(hy_kv_desc_decode(b.data, b.len, &e, NULL), HY_E_UNSUPPORTED);
    assert_non_null(strstr(hy_fail_text(), "version 2"));
    b.data[4] = 1;
    b.data[0] = 'X';
    assert_int_equal(hy_kv_desc_decode(b.data, b.len, &e, NULL), HY_E_FORMAT);
    hy_buf_fini(&b);
    hy_buf_fini(&longer);
}

static void bad(hy_kv_desc d, const char *text)
{
    assert_int_equal(hy_kv_desc_check(&d), HY_E_INVAL);
    if (strstr(hy_fail_text(), text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", hy_fail_text(), text);
    /* and what is encoded is refused by who decodes it */
    hy_buf b;
    hy_kv_desc e;
    hy_buf_init(&b);
    hy_kv_desc_encode(&d, &b);
    assert_true(hy_kv_desc_decode(b.data, b.len, &e, NULL) < 0);
    hy_buf_fini(&b);
}

#define BAD(field, value, text)                                                                    \
    do {                                                                                           \
        hy_kv_desc bad_ = sample(KIT_HND);                                                         \
        bad_.g[1].field = value;                                                                   \
        bad(bad_, text);                                                                           \
    } while (0)

static void test_bounds(void **state)
{
    (void)state;
    hy_kv_desc d = sample(KIT_HND);
    assert_int_equal(hy_kv_desc_check(&d), HY_OK);
    BAD(layout.value_type, HY_Q4_0, "value type");
    BAD(layout.value_type, HY_BF16, "value type"); /* would not survive f16 */
    BAD(layout.block_tokens, 0, "blocks of");
    BAD(layout.block_tokens, 1 << 20, "blocks of");
    BAD(layout.n_layers, -1, "layers");
    BAD(layout.n_layers, 6, "K strides overlap");
    BAD(layout.n_heads, 0, "heads");
    BAD(head0, 7, "heads 7+2 of 8");
    BAD(head0, INT32_MAX, "heads");
    BAD(layout.k.width, 0, "K width");
    BAD(layout.v.width, 33, "V strides overlap");
    BAD(window, -1, "window");
    BAD(n_blocks, 0, "pool of 0");
    BAD(layout.k.token, 2, "K strides overlap");
    BAD(layout.k.dim, 0, "K strides overlap");
    BAD(layout.k.dim, -2, "K strides out of range");
    BAD(layout.v.off, (int64_t)1 << 40, "leave the pool");
    BAD(layout.v.off, INT64_MIN, "out of range");
    BAD(layout.k.head, (int64_t)1 << 51, "K strides leave the pool");
    BAD(layout.k.head, (int64_t)1 << 52, "too long");
    BAD(layout.layer_stride, -1, "out of range");
    BAD(layout.block_stride, INT64_MAX, "out of range");
    BAD(layout.bytes_per_block, 0, "out of range");
    BAD(layout.bytes_per_block, (int64_t)1 << 50, "out of range");
    d.n_groups = 0;
    bad(d, "0 groups");
}

static void mismatch(const hy_kv_desc *a, const hy_kv_desc *b, hy_kv_match m, const char *text)
{
    char why[HY_KV_REASON_MAX];
    assert_int_equal(hy_kv_compat(a, b, why), m);
    assert_string_equal(why, text);
    assert_int_equal(hy_kv_compat(a, b, NULL), m);
}

static void test_compat(void **state)
{
    (void)state;
    hy_kv_desc a = sample(KIT_HND), b = sample(KIT_CPU);
    mismatch(&a, &b, HY_KV_MATCH_LOSSLESS, "");
    b.g[0].layout.block_tokens = 64; /* strides, block sizes, storage and heads here may differ */
    b.g[0].layout.type = HY_F32;
    b.g[0].head0 = 4;
    mismatch(&a, &b, HY_KV_MATCH_LOSSLESS, "");
    b = a;
    b.g[1].layout.value_type = b.g[1].layout.type = HY_BF16;
    mismatch(&a, &b, HY_KV_MATCH_LOSSY,
             "group 1: value type: f16 at the source, bf16 at the destination");
    b.g[1].window = 0;
    mismatch(&a, &b, HY_KV_MATCH_NONE, "group 1: window: 128 at the source, 0 at the destination");
    b = a, b.g[0].layout.k.width = 128;
    mismatch(&a, &b, HY_KV_MATCH_NONE,
             "group 0: K width: 64 at the source, 128 at the destination");
    b = a, b.g[0].layout.v.width = 16;
    mismatch(&a, &b, HY_KV_MATCH_NONE, "group 0: V width: 32 at the source, 16 at the destination");
    b = a, b.g[1].layout.n_layers = 4;
    mismatch(&a, &b, HY_KV_MATCH_NONE, "group 1: layers: 5 at the source, 4 at the destination");
    b = a, b.g[1].heads_total = 4;
    mismatch(&a, &b, HY_KV_MATCH_NONE,
             "group 1: KV heads of the model: 8 at the source, 4 at the destination");
    b = a, b.n_groups = 1;
    mismatch(&a, &b, HY_KV_MATCH_NONE, "cache groups: 2 at the source, 1 at the destination");
}

/* Made-up quantised and fp8 caches: the kinds stay apart; wires are picked, or the lack named. */
static void test_wires(void **state)
{
    (void)state;
    hy_kv_desc a = sample(KIT_HND), b = sample(KIT_NHD);
    hy_kv_plan *p = NULL;
    assert_int_equal(hy_kv_plan_create(&a, &b, NULL, &p), HY_OK);
    assert_true(hy_kv_plan_wire(p, 0) == HY_F16 && !hy_kv_plan_direct(p));
    uint64_t digest = hy_kv_plan_digest(p);
    hy_buf text;
    hy_buf_init(&text);
    hy_kv_plan_describe(p, &text);
    assert_string_equal(text.data,
                        "group 0: packed as f16, storage f16 -> f16, blocks 16 -> 16, heads 1-2; "
                        "group 1: packed as f16, storage f16 -> f16, blocks 16 -> 16, heads 1-2");
    hy_buf_fini(&text);
    hy_kv_plan_destroy(p);
    assert_int_equal(hy_kv_plan_create(&a, &b, &(hy_kv_plan_opts){.piece_bytes = 2 << 20}, &p),
                     HY_OK);
    assert_true(hy_kv_plan_digest(p) != digest); /* unlike options make unlike pieces */
    hy_kv_plan_destroy(p);
    b.g[0].wires = HY_KV_WIRE_F32 | HY_KV_WIRE_I8;
    assert_int_equal(hy_kv_plan_create(&a, &b, NULL, &p), HY_OK);
    assert_int_equal(hy_kv_plan_wire(p, 0), HY_F32);
    assert_false(hy_kv_plan_lossy(p));
    hy_kv_plan_destroy(p);
    b.g[0].wires = HY_KV_WIRE_I8;
    assert_int_equal(hy_kv_plan_create(&a, &b, NULL, &p), HY_E_UNSUPPORTED);
    assert_non_null(strstr(hy_fail_text(), "f16 cannot be unpacked by the destination"));
    a.g[0].wires = 0; /* no wire at all, but equal strides */
    assert_int_equal(hy_kv_plan_create(&a, &a, NULL, &p), HY_OK);
    assert_true(hy_kv_plan_direct(p));
    hy_kv_plan_destroy(p);
    a = sample(KIT_HND), b = a;
    for (int i = 0; i < 2; i++) { /* heads of half the bytes leave holes; that is fine */
        a.g[i].layout.value_type = a.g[i].layout.type = HY_F8_E4M3;
        b.g[i].layout.value_type = b.g[i].layout.type = HY_F8_E4M3FNUZ;
    }
    assert_int_equal(hy_kv_compat(&a, &b, NULL), HY_KV_MATCH_LOSSY);
    assert_int_equal(hy_kv_plan_create(&a, &b, NULL, &p), HY_E_UNSUPPORTED);
    assert_non_null(strstr(hy_fail_text(), "f8_e4m3 at the source, f8_e4m3fnuz at the dest"));
    assert_int_equal(hy_kv_plan_create(&a, &b, &(hy_kv_plan_opts){.lossy = true}, &p), HY_OK);
    assert_true(hy_kv_plan_wire(p, 0) == HY_F8_E4M3 && !hy_kv_plan_direct(p));
    hy_kv_plan_destroy(p);
    b = a, b.g[0].head0 = 3;
    assert_int_equal(hy_kv_plan_create(&a, &b, NULL, &p), HY_E_INVAL);
    assert_non_null(strstr(hy_fail_text(), "heads 3+2: the source holds 1+2"));
}

/* A descriptor of a real device's pool: what the cpu backend says about itself. */
static void test_of_device(void **state)
{
    (void)state;
    hy_dev *dev = NULL;
    hy_dev_opts o = {.backend = "cpu", .n_threads = 1};
    assert_int_equal(hy_dev_open(&o, &dev), HY_OK);
    hy_kv_pool pool = {.n_blocks = 7};
    pool.layout = (hy_kv_layout){
        .value_type = HY_F16, .type = HY_F16, .n_layers = 30, .n_heads = 3, .block_tokens = 16};
    pool.layout.k.width = pool.layout.v.width = 64;
    assert_int_equal(dev->math->kv_layout(dev, &pool.layout), HY_OK);
    hy_kv_desc d = {0};
    assert_int_equal(hy_kv_desc_add(&d, dev, &pool, 0, 0, 3), HY_OK);
    assert_int_equal(d.g[0].wires, 63);
    assert_int_equal(hy_kv_desc_add(&d, dev, &pool, 0, 1, 3), HY_E_INVAL);
    assert_int_equal(d.n_groups, 1);
    hy_kv_plan *p = NULL;
    assert_int_equal(hy_kv_plan_create(&d, &d, NULL, &p), HY_OK);
    assert_true(hy_kv_plan_direct(p));
    hy_kv_plan_destroy(p);
    hy_dev_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_versions),
        cmocka_unit_test(test_bounds),     cmocka_unit_test(test_compat),
        cmocka_unit_test(test_wires),      cmocka_unit_test(test_of_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
