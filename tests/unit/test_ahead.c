/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of the KV pools come before they are needed, only so many, and never change a byte.
 *
 * Thread: the test's; the pages come from a thread of hy_ahead.  Owner: the test.
 */
#include "core/exec/ahead.h"
#include "tests/unit/cm.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MIB  ((size_t)1 << 20)
#define KEEP (6 * MIB)

static hy_kv_pool pool_of(size_t block, int32_t n)
{
    hy_kv_pool p = {.n_blocks = n};
    p.layout.bytes_per_block = (int64_t)block;
    p.base = mmap(NULL, block * (size_t)n, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(p.base, MAP_FAILED);
    madvise(p.base, block * (size_t)n, MADV_NOHUGEPAGE); /* so that pages can be told apart */
    return p;
}

static size_t len_of(const hy_kv_pool *p)
{
    return (size_t)p->layout.bytes_per_block * (size_t)p->n_blocks;
}

static size_t resident(const hy_kv_pool *p)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (len_of(p) + page - 1) / page;
    unsigned char *in = malloc(n);
    size_t k = 0;
    assert_int_equal(mincore(p->base, len_of(p), in), 0);
    while (k < n && (in[k] & 1) != 0)
        k++;
    for (size_t i = k; i < n; i++)
        assert_int_equal(in[i] & 1, 0); /* one run from the beginning */
    free(in);
    return k * page < len_of(p) ? k * page : len_of(p);
}

/* Waits until so much is ready; what is beyond, by less than two megabytes, is the last step's. */
static void wait_for(hy_ahead *a, int32_t i, const hy_kv_pool *p, size_t want)
{
    while (hy_ahead_done(a, i) < want)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    const size_t is = resident(p);
    assert_true(is >= want && is < want + 2 * MIB);
}

static void some_ahead_of_use(void **state)
{
    (void)state;
    /* odd sizes: a block that is no multiple of a page, one of several megabytes, a small pool */
    hy_kv_pool p[3] = {pool_of(3 * 4096 + 64, 4000), pool_of(3 * MIB, 20), pool_of(640, 10)};
    hy_ahead *a = hy_ahead_create(p, 3, KEEP);
    assert_non_null(a);
    wait_for(a, 0, &p[0], KEEP);
    wait_for(a, 1, &p[1], KEEP);
    wait_for(a, 2, &p[2], len_of(&p[2]));
    hy_ahead_note(a, 0, 999);
    wait_for(a, 0, &p[0], 1000 * (3 * 4096 + 64) + KEEP);
    hy_ahead_note(a, 0, 10); /* one that was there */
    hy_ahead_note(a, 0, -1); /* a window's table has such */
    hy_ahead_note(a, 1, 0);  /* half is left: nothing yet */
    hy_ahead_note(a, 0, 1600);
    wait_for(a, 0, &p[0], 1601 * (3 * 4096 + 64) + KEEP);
    assert_true(hy_ahead_done(a, 1) < KEEP + 2 * MIB);
    hy_ahead_note(a, 1, 1);
    wait_for(a, 1, &p[1], 6 * MIB + KEEP);
    hy_ahead_note(a, 0, 3999); /* its last blocks: all of it */
    hy_ahead_note(a, 1, 19);
    wait_for(a, 0, &p[0], len_of(&p[0]));
    wait_for(a, 1, &p[1], len_of(&p[1]));
    hy_ahead_note(a, 0, 3999);
    hy_ahead_destroy(a);
    for (int i = 0; i < 3; i++)
        munmap(p[i].base, len_of(&p[i]));
}

/* Somebody writes, in the same pages at the same time. */
static void bytes_stay(void **state)
{
    (void)state;
    hy_kv_pool p = pool_of(4096 + 32, 8000);
    hy_ahead *a = hy_ahead_create(&p, 1, KEEP);
    assert_non_null(a);
    for (int32_t i = 0; i < p.n_blocks; i++) {
        memset((char *)p.base + (size_t)i * 4128, i % 251 + 1, 4128);
        hy_ahead_note(a, 0, i);
    }
    wait_for(a, 0, &p, len_of(&p));
    for (int32_t i = 0; i < p.n_blocks; i++)
        for (size_t k = 0; k < 4128; k++)
            assert_int_equal(((unsigned char *)p.base)[(size_t)i * 4128 + k], i % 251 + 1);
    hy_ahead_destroy(a);
    munmap(p.base, len_of(&p));
}

/* Memory that cannot be had is given up, not tried for ever; the end comes at any moment. */
static void refused_and_ended(void **state)
{
    (void)state;
    hy_kv_pool p = pool_of(4096, 4096);
    assert_int_equal(mprotect((char *)p.base + 2 * MIB, 4096, PROT_READ), 0);
    hy_ahead *a = hy_ahead_create(&p, 1, len_of(&p));
    assert_non_null(a);
    while (hy_ahead_done(a, 0) < len_of(&p))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_true(resident(&p) <= 4 * MIB);
    hy_ahead_note(a, 0, 4095);
    hy_ahead_destroy(a);
    munmap(p.base, len_of(&p));
    for (int i = 0; i < 20; i++) {
        p = pool_of(MIB, 200);
        a = hy_ahead_create(&p, 1, len_of(&p));
        if (i % 2 != 0)
            nanosleep(&(struct timespec){0, 1000000 * i}, NULL);
        hy_ahead_destroy(a);
        munmap(p.base, len_of(&p));
    }
    hy_ahead_destroy(NULL);
    hy_ahead_note(NULL, 0, 1);
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(some_ahead_of_use),
        cmocka_unit_test(bytes_stay),
        cmocka_unit_test(refused_and_ended),
    };
    return cmocka_run_group_tests(t, NULL, NULL);
}
