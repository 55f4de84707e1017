/* SPDX-License-Identifier: Apache-2.0
 *
 * What fabric puts on the wire: frames, greetings, keys and the proof; known vectors, every prefix,
 * every flipped bit.
 *
 * Thread: one.  Owner: nothing.
 */
#include "core/base/hash.h"
#include "fabric/wire.h"
#include "tests/unit/cm.h"

#include <string.h>

/* RFC 4231, cases 1, 2 and 6 (a key longer than the block). */
static void test_hmac(void **state)
{
    (void)state;
    uint8_t key[131], out[32];
    char hex[65];
    memset(key, 0x0b, 20);
    hy_fab__hmac(key, 20, "Hi There", 8, out);
    hy_hex(out, 32, hex);
    assert_string_equal(hex, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    hy_fab__hmac("Jefe", 4, "what do ya want for nothing?", 28, out);
    hy_hex(out, 32, hex);
    assert_string_equal(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    hy_fab__hmac(key, sizeof(key), "Test Using Larger Than Block-Size Key - Hash Key First", 54,
                 out);
    hy_hex(out, 32, hex);
    assert_string_equal(hex, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    assert_true(hy_fab__same(out, out, 32));
    memcpy(key, out, 32);
    key[31] ^= 1;
    assert_false(hy_fab__same(out, key, 32));
}

static void test_frame(void **state)
{
    (void)state;
    uint8_t f[FAB_HEAD + 100], body[100], g[FAB_HEAD + 100];
    fab_head h = {.kind = FAB_MSG, .delivered = 7, .consumed = UINT64_MAX}, got;
    for (size_t i = 0; i < sizeof(body); i++)
        body[i] = (uint8_t)(i * 31);
    hy_fab__head_put(f, &h, body, sizeof(body), NULL, 0);
    memcpy(f + FAB_HEAD, body, sizeof(body));
    hy_fab__head_put(g, &h, body, 40, body + 40, 60); /* in two parts: the same frame */
    assert_memory_equal(f, g, FAB_HEAD);
    assert_memory_equal(f, "HYFB\2\7\0\0", 8);
    for (size_t n = 0; n < FAB_HEAD; n++)
        assert_int_equal(hy_fab__head_get(f, n, 4096, &got), HY_AGAIN);
    assert_int_equal(hy_fab__head_get(f, FAB_HEAD, 4096, &got), HY_OK);
    assert_int_equal(got.kind, FAB_MSG);
    assert_int_equal(got.len, 100);
    assert_int_equal(got.delivered, 7);
    assert_true(got.consumed == UINT64_MAX);
    assert_true(hy_fab__head_sum_ok(f, &got));
    assert_int_equal(hy_fab__head_get(f, FAB_HEAD, 99, &got), HY_E_FORMAT);
    for (size_t bit = 0; bit < sizeof(f) * 8; bit++) {
        memcpy(g, f, sizeof(f));
        g[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        hy_status st = hy_fab__head_get(g, sizeof(g), 4096, &got);
        if (bit / 8 == 4)
            assert_int_equal(st, HY_E_PROTOCOL); /* the version */
        else
            assert_true(st == HY_E_FORMAT ||
                        (st == HY_OK && (got.len > 100 || !hy_fab__head_sum_ok(g, &got))));
    }
}

static void test_hello(void **state)
{
    (void)state;
    fab_hello h = {.node = "p0", .dp = "net", .epoch = 5, .rail = 1}, got;
    hy_buf b;
    size_t used;
    hy_buf_init(&b);
    hy_fab__hello_put(&b, &h);
    const uint8_t *p = (const uint8_t *)b.data;
    assert_int_equal(hy_fab__hello_get(p, b.len, &got, &used), HY_OK);
    assert_int_equal(used, b.len);
    assert_memory_equal(&got, &h, sizeof(h));
    for (size_t n = 0; n < b.len; n++)
        assert_int_equal(hy_fab__hello_get(p, n, &got, &used), HY_E_FORMAT);
    b.data[1] = '\n'; /* no control characters into logs */
    assert_int_equal(hy_fab__hello_get(p, b.len, &got, &used), HY_E_FORMAT);
    b.data[1] = 'p';
    b.data[0] = 64; /* longer than a node id may be */
    assert_int_equal(hy_fab__hello_get(p, b.len, &got, &used), HY_E_FORMAT);
    b.data[0] = 2;
    b.data[b.len - 4] = HY_FAB_RAILS_MAX;
    assert_int_equal(hy_fab__hello_get(p, b.len, &got, &used), HY_E_FORMAT);
    hy_buf_fini(&b);
}

static void test_key(void **state)
{
    (void)state;
    hy_fab_key k = {.epoch = 1, .id = 2, .token = 3, .len = 4096, .access = 3, .n_rails = 8}, got;
    hy_buf b;
    size_t used;
    for (uint64_t i = 0; i < 8; i++) {
        k.addr[i] = 0x1000 * i;
        k.rkey[i] = UINT64_MAX - i;
    }
    hy_buf_init(&b);
    hy_fab__key_put(&b, &k);
    const uint8_t *p = (const uint8_t *)b.data;
    assert_true(b.len <= HY_FAB_KEY_MAX);
    assert_int_equal(hy_fab__key_get(p, b.len, &got, &used), HY_OK);
    assert_int_equal(used, b.len);
    assert_memory_equal(&got, &k, sizeof(k));
    for (size_t n = 0; n < b.len; n++)
        assert_int_equal(hy_fab__key_get(p, n, &got, &used), HY_E_FORMAT);
    b.data[40] = 9; /* rails */
    assert_int_equal(hy_fab__key_get(p, b.len, &got, &used), HY_E_FORMAT);
    b.data[40] = 0;
    assert_int_equal(hy_fab__key_get(p, b.len, &got, &used), HY_E_FORMAT);
    b.data[40] = 8;
    memset(b.data + 44, 0xff, 8); /* an address from which the range wraps */
    assert_int_equal(hy_fab__key_get(p, b.len, &got, &used), HY_E_FORMAT);
    hy_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hmac),
        cmocka_unit_test(test_frame),
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
