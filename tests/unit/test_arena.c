/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena: alignment, content, reuse after reset, limit.
 *
 * Thread: test.  Owner: the test.
 */
#include "core/base/alloc.h"
#include "core/base/arena.h"
#include "core/base/rng.h"
#include "tests/unit/cm.h"

#include <string.h>

static void pieces_do_not_overlap(void **state)
{
    (void)state;
    enum { N = 500 };
    static unsigned char *p[N];
    static size_t len[N];
    hy_arena *a = hy_arena_create(256, 0);
    assert_non_null(a);
    hy_rng r;
    for (int round = 0; round < 3; round++) {
        hy_rng_init(&r, 42);
        size_t sum = 0;
        for (int i = 0; i < N; i++) {
            len[i] = (size_t)hy_rng_below(&r, i % 10 == 0 ? 2000 : 90); /* also above a chunk */
            p[i] = hy_arena_alloc(a, len[i]);
            assert_non_null(p[i]);
            assert_int_equal((uintptr_t)p[i] % 16, 0);
            memset(p[i], i & 255, len[i]);
            sum += len[i];
        }
        assert_true(hy_arena_used(a) >= sum);
        for (int i = 0; i < N; i++)
            for (size_t k = 0; k < len[i]; k++)
                assert_int_equal(p[i][k], i & 255);
        hy_arena_reset(a);
        assert_int_equal(hy_arena_used(a), 0);
    }
    hy_arena_destroy(a);
}

static void strings(void **state)
{
    (void)state;
    hy_arena *a = hy_arena_create(0, 0);
    char *s = hy_arena_strdup(a, "hello");
    char *t = hy_arena_strndup(a, "hello", 3);
    char *u = hy_arena_printf(a, "%s %d", t, 9);
    int *z = hy_arena_calloc(a, 10, sizeof(int));
    uint64_t *m = hy_arena_memdup(a, &(uint64_t){77}, 8);
    assert_string_equal(s, "hello");
    assert_string_equal(t, "hel");
    assert_string_equal(u, "hel 9");
    for (int i = 0; i < 10; i++)
        assert_int_equal(z[i], 0);
    assert_int_equal(*m, 77);
    assert_null(hy_arena_calloc(a, SIZE_MAX / 2, 3));
    assert_null(hy_arena_alloc(a, SIZE_MAX - 8));
    hy_arena_destroy(a);
    hy_arena_destroy(NULL);
}

static void reset_keeps_chunks(void **state)
{
    (void)state;
    hy_arena *a = hy_arena_create(1024, 0);
    for (int i = 0; i < 40; i++)
        hy_arena_alloc(a, 100);
    hy_arena_reset(a);
    uint64_t before = hy_alloc_count();
    for (int i = 0; i < 40; i++)
        hy_arena_alloc(a, 100);
    assert_int_equal(hy_alloc_count(), before);
    hy_arena_destroy(a);
}

static void limit_holds(void **state)
{
    (void)state;
    hy_arena *a = hy_arena_create(64, 128);
    assert_non_null(hy_arena_alloc(a, 64));
    assert_non_null(hy_arena_alloc(a, 64));
    assert_null(hy_arena_alloc(a, 1));
    hy_arena_reset(a);
    assert_non_null(hy_arena_alloc(a, 128));
    assert_null(hy_arena_alloc(a, 1));
    hy_arena_destroy(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_do_not_overlap),
        cmocka_unit_test(strings),
        cmocka_unit_test(reset_keeps_chunks),
        cmocka_unit_test(limit_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
