/* SPDX-License-Identifier: Apache-2.0
 *
 * Mappings of any size: where huge pages can begin, zeros or a file's bytes, nothing left behind;
 * pages that are there before they are touched.
 *
 * Thread: main.  Owner: each test unmaps what it maps.
 */
#include "core/base/map.h"
#include "core/base/status.h"
#include "tests/unit/cm.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t sizes[] = {1,       4095,          4096,          4097,
                               1 << 20, (2 << 20) - 1, (2 << 20) + 1, (7 << 20) + 123};

static size_t mapped(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &pages), 1);
    fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void zeros(void **state)
{
    (void)state;
    for (size_t i = 0; i < HY_COUNTOF(sizes); i++) {
        char *p = hy_map(sizes[i], PROT_READ | PROT_WRITE, -1);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % HY_MAP_ALIGN, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(p[k], 0);
        memset(p, 1, sizes[i]);
        hy_unmap(p, sizes[i]);
    }
    hy_unmap(NULL, 5);
}

static void files(void **state)
{
    (void)state;
    for (size_t i = 0; i < HY_COUNTOF(sizes); i++) {
        const int fd = memfd_create("test", MFD_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, (off_t)sizes[i]), 0);
        char *a = hy_map(sizes[i], PROT_READ | PROT_WRITE, fd);
        const char *b = hy_map(sizes[i], PROT_READ, fd);
        assert_true(a != NULL && b != NULL);
        assert_int_equal((uintptr_t)a % HY_MAP_ALIGN, 0);
        assert_int_equal((uintptr_t)b % HY_MAP_ALIGN, 0);
        a[0] = 7;
        a[sizes[i] - 1] = 9;
        assert_int_equal(b[0], sizes[i] == 1 ? 9 : 7);
        assert_int_equal(b[sizes[i] - 1], 9);
        hy_unmap(a, sizes[i]);
        hy_unmap((void *)b, sizes[i]);
        close(fd);
    }
}

/* As many bytes are mapped after a thousand times as before; also where it fails. */
static void nothing_stays(void **state)
{
    (void)state;
    size_t before = 0;
    for (int i = 0; i < 1000; i++) {
        const size_t n = sizes[(size_t)i % HY_COUNTOF(sizes)];
        void *p = hy_map(n, PROT_READ | PROT_WRITE, -1);
        assert_non_null(p);
        hy_unmap(p, n);
        assert_null(hy_map(n, PROT_READ, 1000000)); /* no such descriptor */
        assert_int_equal(errno, EBADF);
        if (i == 10)
            before = mapped();
    }
    assert_int_equal(mapped(), before);
    assert_null(hy_map(SIZE_MAX, PROT_READ, -1));
    assert_null(hy_map(SIZE_MAX / 2, PROT_READ, -1));
}

static void populated(void **state)
{
    (void)state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 64 * page;
    char *p = hy_map(n, PROT_READ | PROT_WRITE, -1);
    unsigned char in[64];
    assert_non_null(p);
    madvise(p, n, MADV_NOHUGEPAGE);
    if (!hy_map_populate(p + 10 * page + 5, 3 * page, true)) {
        assert_int_equal(errno, EINVAL); /* a kernel without it */
        skip();
    }
    assert_int_equal(mincore(p, n, in), 0);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(in[i] & 1, i >= 10 && i < 14);
    assert_int_equal(p[12 * page], 0);
    assert_int_equal(munmap(p + 32 * page, page), 0);
    assert_false(hy_map_populate(p, n, false)); /* a hole in it */
    assert_int_equal(errno, ENOMEM);
    hy_unmap(p, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zeros),
        cmocka_unit_test(files),
        cmocka_unit_test(nothing_stays),
        cmocka_unit_test(populated),
    };
    return cmocka_run_group_tests_name("map", tests, NULL, NULL);
}
