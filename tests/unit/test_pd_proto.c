/* SPDX-License-Identifier: Apache-2.0
 *
 * Connector messages and kv_transfer_params: what is written is read back, bit for bit; everything
 * short, long, foreign or out of bounds is refused.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/connector/handover.h"
#include "core/connector/proto.h"
#include "tests/unit/cm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int32_t ids0[5] = {7, -1, 3, 900, 2}, ids1[5] = {1, 2, -1, -1, 5};

static hy_pdp_msg sample(hy_pdp_kind k)
{
    hy_pdp_msg m = {.kind = k,
                    .lease = UINT64_C(0x8000000000000001),
                    .job = 42,
                    .status = k == HY_PDP_HELD || k == HY_PDP_DONE ? HY_E_NOTFOUND : HY_OK,
                    .t0 = 16,
                    .n = 70,
                    .next = 86,
                    .stage_off = 4096,
                    .slot_bytes = 1 << 20,
                    .n_slots = 4,
                    .plan = 99,
                    .wait_ns = 5,
                    .n_groups = 2,
                    .first_block = 1,
                    .n_ids = 5,
                    .ids = {ids0, ids1},
                    .index = 12,
                    .valid = 70,
                    .digest = UINT64_MAX,
                    .bytes = 1,
                    .left_ns = 77,
                    .act = 1,
                    .wire = HY_I8 + 1,
                    .piece_bytes = 65536,
                    .min_run = 64,
                    .text = "why"};
    m.desc = (hy_pdp_bytes){(const uint8_t *)"desc", 4};
    m.key[0] = (hy_pdp_bytes){(const uint8_t *)"key0", 4};
    m.staging = (hy_pdp_bytes){(const uint8_t *)"st", 2};
    m.near_name = (hy_pdp_bytes){(const uint8_t *)"halyard-kv-7", 12};
    m.near_fd = 9;
    m.near_len = UINT64_C(1) << 33;
    if (k == HY_PDP_DONE) {
        m.flags = HY_PDP_FIRST;
        m.first = (hy_conn_first){.id = 5,
                                  .rank = 2,
                                  .logprob = -0.1f,
                                  .n_top = 2,
                                  .top_ids = {9, 5},
                                  .top_lps = {-0.05f, -INFINITY},
                                  .position = 86,
                                  .seed = UINT64_MAX,
                                  .barred = true};
    }
    return m;
}

static void round_trips(void **state)
{
    (void)state;
    for (int k = 1; k < HY_PDP_KINDS; k++) {
        const hy_pdp_msg m = sample((hy_pdp_kind)k);
        hy_pdp_msg r;
        hy_buf b;
        hy_buf_init(&b);
        hy_pdp_encode(&m, &b);
        assert_int_equal(hy_pdp_decode(HY_PDP_TYPE + (uint32_t)k, b.data, b.len, &r), HY_OK);
        if (k == HY_PDP_GET) {
            assert_int_equal(r.n_ids, 5);
            assert_memory_equal(r.ids[0], ids0, sizeof(ids0));
            assert_memory_equal(r.ids[1], ids1, sizeof(ids1));
            assert_true(r.lease == m.lease && r.plan == 99 && r.next == 86);
        }
        if (k == HY_PDP_HELLO)
            assert_true(r.act == 1 && r.wire == HY_I8 + 1 && r.min_run == 64 && r.near_fd == 9 &&
                        r.near_name.n == 12 && r.near_len == m.near_len);
        if (k == HY_PDP_PIECE)
            assert_true(r.job == 42 && r.index == 12 && r.stage_off == 4096);
        if (k == HY_PDP_DONE) {
            assert_true(r.first.seed == UINT64_MAX && r.first.barred && !r.first.stop);
            assert_true(r.first.logprob == -0.1f && isinf(r.first.top_lps[1]));
            assert_int_equal(r.status, HY_E_NOTFOUND);
            assert_string_equal(r.text, "why");
        }
        hy_pdp_fini(&r);
        /* every shorter one, and a longer one, is refused */
        for (size_t n = 0; n < b.len; n++) {
            uint8_t *cut = malloc(n + 1); /* its end is the memory's: a sanitiser sees beyond */
            memcpy(cut, b.data, n);
            assert_true(hy_pdp_decode(HY_PDP_TYPE + (uint32_t)k, cut, n, &r) < 0);
            free(cut);
        }
        hy_buf_putc(&b, 0);
        assert_true(hy_pdp_decode(HY_PDP_TYPE + (uint32_t)k, b.data, b.len, &r) < 0);
        b.data[0] = HY_PDP_VERSION + 1;
        assert_int_equal(hy_pdp_decode(HY_PDP_TYPE + (uint32_t)k, b.data, b.len - 1, &r),
                         HY_E_UNSUPPORTED);
        hy_buf_fini(&b);
    }
    hy_pdp_msg r;
    assert_int_equal(hy_pdp_decode(HY_PDP_TYPE, "", 0, &r), HY_E_FORMAT);
    assert_int_equal(hy_pdp_decode(HY_PDP_TYPE + HY_PDP_KINDS, "\2", 1, &r), HY_E_FORMAT);
    assert_int_equal(hy_pdp_decode(3, "\1", 1, &r), HY_E_FORMAT);
}

static void handover(void **state)
{
    (void)state;
    hy_handover h = {.prefill = true,
                     .lease = UINT64_C(0xfedcba9876543210),
                     .node = "p0",
                     .addrs = "127.0.0.1:18510,10.0.0.1:18510",
                     .epoch = UINT64_MAX,
                     .tokens = 17,
                     .lease_ns = 10000000000u,
                     .has_first = true};
    h.first = sample(HY_PDP_DONE).first;
    h.first.logprob = 0x1.fffffep-3f;
    memset(h.prompt, 0xab, 32);
    const int32_t ids[3] = {4, 5, 6};
    hy_buf b;
    hy_buf_init(&b);
    hy_handover_write(&h, "77", ids, 3, &b);
    hy_handover r;
    assert_int_equal(hy_handover_parse(hy_buf_str(&b), &r), HY_OK);
    assert_true(r.prefill && !r.decode && !r.push && !r.foreign && r.has_first);
    assert_true(r.lease == h.lease && r.epoch == h.epoch && r.lease_ns == h.lease_ns);
    assert_string_equal(r.node, "p0");
    assert_string_equal(r.addrs, h.addrs);
    assert_memory_equal(r.prompt, h.prompt, 32);
    assert_int_equal(memcmp(&r.first.logprob, &h.first.logprob, 4), 0);
    assert_true(r.first.seed == UINT64_MAX && isinf(r.first.top_lps[1]) && r.first.barred);
    assert_non_null(strstr(hy_buf_str(&b), "\"remote_host\":\"127.0.0.1\",\"remote_port\":18510"));
    assert_non_null(strstr(hy_buf_str(&b), "\"remote_block_ids\":[[4,5,6]]"));
    assert_int_equal(hy_handover_parse_release(hy_buf_str(&b), &r), HY_OK);
    assert_true(r.lease == h.lease && r.epoch == h.epoch && !r.push);
    hy_buf_fini(&b);
}

static void refused_handovers(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "7",
        "[]",
        "{",
        "{\"do_remote_prefill\":true,\"halyard\":{}}",
        "{\"do_remote_prefill\":true,\"halyard\":{\"v\":2}}",
        "{\"do_remote_prefill\":true,\"halyard\":{\"v\":1,\"node\":\"p\",\"addrs\":\"a:1\"}}",
        "{\"do_remote_prefill\":true,\"halyard\":{\"v\":1,\"node\":\"p\",\"epoch\":\"12\"}}",
        "{\"do_remote_prefill\":true,\"halyard\":{\"v\":1,\"node\":\"p q\",\"addrs\":\"a:1\"}}",
    };
    hy_handover h;
    for (size_t i = 0; i < HY_COUNTOF(bad); i++)
        assert_true(hy_handover_parse(bad[i], &h) < 0);
    assert_int_equal(hy_handover_parse(NULL, &h), HY_OK);
    assert_false(h.prefill);
    /* vLLM's own fields alone: understood, and nothing that could be read */
    assert_int_equal(
        hy_handover_parse("{\"do_remote_prefill\":true,\"remote_block_ids\":[[1]]}", &h), HY_OK);
    assert_true(h.foreign);
    assert_int_equal(hy_handover_parse("{\"do_remote_decode\":true}", &h), HY_OK);
    assert_true(h.decode && !h.push);
    assert_int_equal(
        hy_handover_parse("{\"do_remote_decode\":true,\"transfer_id\":\"00000000000000ff\"}", &h),
        HY_OK);
    assert_true(h.push && h.lease == 255);
    assert_true(hy_handover_parse_release("{}", &h) < 0);
    assert_true(hy_handover_parse_release("{\"lease\":\"00000000000000ff\",\"epoch\":7}", &h) < 0);
    assert_int_equal(hy_handover_parse_release("{\"lease\":\"00000000000000ff\"}", &h), HY_OK);
    assert_true(!h.push && h.lease == 255 && h.epoch == 0); /* one that the router named */
    assert_int_equal(
        hy_handover_parse(
            "{\"do_remote_decode\":true,\"halyard\":{\"lease\":\"00000000000000ff\"}}", &h),
        HY_OK);
    assert_true(h.decode && !h.push && h.lease == 0 && h.asked == 255);
    assert_true(hy_handover_parse("{\"do_remote_decode\":true,\"halyard\":{\"lease\":\"x\"}}", &h) <
                0);
    assert_int_equal(hy_handover_parse_release("{\"transfer_id\":\"abc\"}", &h), HY_OK);
    assert_true(h.push && h.lease == hy_handover_lease("abc"));
}

static void digests(void **state)
{
    (void)state;
    int32_t t[1000];
    uint8_t a[32], b[32];
    for (int i = 0; i < 1000; i++)
        t[i] = i;
    hy_handover_digest(t, 1000, false, a);
    hy_handover_digest(t, 1000, true, b);
    assert_memory_not_equal(a, b, 32); /* other keys */
    hy_handover_digest(t, 999, false, b);
    assert_memory_not_equal(a, b, 32);
    hy_handover_digest(t, 1000, false, b);
    assert_memory_equal(a, b, 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips),
        cmocka_unit_test(handover),
        cmocka_unit_test(refused_handovers),
        cmocka_unit_test(digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
