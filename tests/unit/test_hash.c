/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes against published answers: SHA-256 from FIPS 180-4's examples (NIST CSRC), XXH64 from
 * the xxHash specification's empty input.
 *
 * Thread: test.  Owner: the test.
 */
#include "core/base/file.h"
#include "core/base/hash.h"
#include "tests/unit/cm.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *text, *hex;
} known[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
};
/* one million 'a' */
static const char million[] = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

static void one_shot(void **state)
{
    (void)state;
    uint8_t d[32];
    char hex[65];
    for (int round = 0; round < 2; round++) /* the context is used again */
        for (size_t i = 0; i < HY_COUNTOF(known); i++) {
            hy_sha256(known[i].text, strlen(known[i].text), d);
            hy_hex(d, 32, hex);
            assert_string_equal(hex, known[i].hex);
        }
}

static void incremental(void **state)
{
    (void)state;
    uint8_t d[32];
    char hex[65], block[1000];
    memset(block, 'a', sizeof(block));
    hy_sha256_ctx c;
    assert_int_equal(hy_sha256_init(&c), HY_OK);
    for (int i = 0; i < 1000; i++)
        hy_sha256_update(&c, block, sizeof(block));
    hy_sha256_final(&c, d);
    hy_hex(d, 32, hex);
    assert_string_equal(hex, million);
    hy_sha256_update(&c, "a", 1);
    hy_sha256_update(&c, "bc", 2);
    hy_sha256_final(&c, d);
    hy_hex(d, 32, hex);
    assert_string_equal(hex, known[1].hex);
    hy_sha256_fini(&c);
}

static void of_a_file(void **state)
{
    (void)state;
    char path[] = "/tmp/hy_hash_XXXXXX";
    close(mkstemp(path));
    char *a = malloc(1000000);
    memset(a, 'a', 1000000);
    assert_int_equal(hy_file_write(path, a, 1000000, 0600), HY_OK);
    free(a);
    uint8_t d[32];
    char hex[65];
    assert_int_equal(hy_sha256_file(path, d), HY_OK);
    hy_hex(d, 32, hex);
    assert_string_equal(hex, million);
    unlink(path);
    assert_int_equal(hy_sha256_file(path, d), HY_E_NOTFOUND);
    assert_non_null(strstr(hy_fail_text(), path));
}

static void *hash_on_thread(void *arg)
{
    hy_sha256("abc", 3, arg);
    return NULL;
}

static void other_threads(void **state)
{
    (void)state;
    uint8_t d[4][32];
    pthread_t t[4];
    char hex[65];
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, hash_on_thread, d[i]);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        hy_hex(d[i], 32, hex);
        assert_string_equal(hex, known[1].hex);
    }
}

static void xxh(void **state)
{
    (void)state;
    assert_true(hy_xxh64("", 0, 0) == UINT64_C(0xef46db3751d8e999));
    assert_true(hy_xxh64("abc", 3, 0) == UINT64_C(0x44bc2cf5ad770999));
    assert_true(hy_xxh64("abc", 3, 1) != hy_xxh64("abc", 3, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_shot),      cmocka_unit_test(incremental), cmocka_unit_test(of_a_file),
        cmocka_unit_test(other_threads), cmocka_unit_test(xxh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
