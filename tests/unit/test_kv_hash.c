/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefix chain. The digests were computed with Python's hashlib from the layout in hash.h.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/kv/hash.h"
#include "tests/unit/cm.h"

#include "core/base/hash.h"

#include <string.h>

static const char *hex(const hy_kv_hash *h)
{
    static char text[HY_SHA256_HEX_LEN + 1];
    hy_hex(h->b, sizeof(h->b), text);
    return text;
}

static void known_digests(void **state)
{
    (void)state;
    uint8_t fp[32];
    for (int i = 0; i < 32; i++)
        fp[i] = (uint8_t)i;
    hy_kv_hash root, h;
    hy_kv_root_opts o = {.fingerprint = fp};
    hy_kv_hash_root(&o, &root);
    assert_string_equal(hex(&root),
                        "e6c06d2b3196a5e25caf8fe2411428cc75b1a2c7ad1ef85a42b70e6b7f59f125");
    o = (hy_kv_root_opts){fp, true, "lora-a", "tenant-1", UINT64_C(0x0123456789abcdef)};
    hy_kv_hash_root(&o, &h);
    assert_string_equal(hex(&h),
                        "c5551a8b20bedd70bd6c78833703ffc4daaa9e102dd55f8fa3235645b9e760ae");
    int32_t ids[16];
    for (int i = 0; i < 16; i++)
        ids[i] = 1 + i;
    hy_kv_hash_link(&root, ids, &h);
    assert_string_equal(hex(&h),
                        "95836a5757d90a436091efd67e39e12d7752133865baf2a0ff85a9ad15dfcfdc");
    for (int i = 0; i < 16; i++)
        ids[i] = i == 3 ? -1 : 70000 + i;
    hy_kv_hash_link(&h, ids, &h); /* in place */
    assert_string_equal(hex(&h),
                        "4c719fad864be77ed198543070a6d376931c451c321a04c3fd9d7641abaf768e");
}

/* Whatever changes the values of the KV, or who may see them, changes the root. */
static void each_part_matters(void **state)
{
    (void)state;
    uint8_t fp[32] = {0}, other[32] = {0};
    other[31] = 1;
    const hy_kv_root_opts o[] = {
        {.fingerprint = fp},
        {.fingerprint = other},
        {.fingerprint = fp, .rope_long = true},
        {.fingerprint = fp, .adapter = "a"},
        {.fingerprint = fp, .salt = "a"},
        {.fingerprint = fp, .salt = "b"},
        {.fingerprint = fp, .salt = ""},
        {.fingerprint = fp, .adapter = ""},
        {.fingerprint = fp, .private_id = 1},
        {.fingerprint = fp, .private_id = 2},
    };
    hy_kv_hash h[HY_COUNTOF(o)];
    for (size_t i = 0; i < HY_COUNTOF(o); i++) {
        hy_kv_hash_root(&o[i], &h[i]);
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(&h[i], &h[k], sizeof(h[0]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_digests),
        cmocka_unit_test(each_part_matters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
