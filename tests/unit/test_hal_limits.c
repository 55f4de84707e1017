/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and CPUs that cgroups leave, read from made-up /proc and /sys trees.
 *
 * Thread: one.  Owner: each test has a folder of its own, which teardown removes.
 */
#include "core/base/file.h"
#include "hal/limits.h"
#include "tests/unit/cm.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GIB ((uint64_t)1 << 30)

static char root[64];

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/hy-limits-XXXXXX");
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int drop(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st;
    (void)flag;
    (void)at;
    return remove(path);
}

static int teardown(void **state)
{
    (void)state;
    return nftw(root, drop, 16, FTW_DEPTH | FTW_PHYS);
}

/* Makes the folders on the way. */
static void put(const char *file, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", root, file);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(path, 0755);
        *p = '/';
    }
    assert_int_equal(hy_file_write(path, text, strlen(text), 0644), HY_OK);
}

static void machine(void)
{
    put("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:         1048576 kB\n"
                        "MemAvailable:   33554432 kB\n"); /* 64 and 32 GiB */
}

static void no_limits(void **state)
{
    (void)state;
    hy_limits l;
    machine();
    hy_limits_read(root, &l);
    assert_true(l.cpus == 0.0 && l.mem_limit == 0);
    assert_true(l.mem_total == 64 * GIB && l.mem_free == 32 * GIB);
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/memory.max", "max\n");
    put("sys/fs/cgroup/memory.current", "123456789\n");
    hy_limits_read(root, &l);
    assert_true(l.cpus == 0.0 && l.mem_limit == 0);
    assert_true(l.mem_total == 64 * GIB && l.mem_free == 32 * GIB);
}

/* A container: its own group is the root. Pages of files can go. */
static void container(void **state)
{
    (void)state;
    hy_limits l;
    machine();
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/cpu.max", "150000 100000\n");
    put("sys/fs/cgroup/memory.max", "4294967296\n");
    put("sys/fs/cgroup/memory.current", "3221225472\n");
    put("sys/fs/cgroup/memory.stat",
        "anon 2147483648\nfile 1073741824\ninactive_file 805306368\nactive_file 268435456\n");
    hy_limits_read(root, &l);
    assert_true(l.cpus == 1.5);
    assert_true(l.mem_limit == 4 * GIB && l.mem_total == 4 * GIB);
    assert_true(l.mem_free == 2 * GIB);
    put("sys/fs/cgroup/memory.current", "99999999999\n"); /* over its limit */
    hy_limits_read(root, &l);
    assert_true(l.mem_free == 0);
}

/* The tightest group of those above counts, for each question apart. */
static void nested(void **state)
{
    (void)state;
    hy_limits l;
    machine();
    put("proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
    put("sys/fs/cgroup/a/memory.max", "17179869184\n"); /* 16 GiB, of which 15 are used */
    put("sys/fs/cgroup/a/memory.current", "16106127360\n");
    put("sys/fs/cgroup/a/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/a/b/memory.max", "8589934592\n"); /* 8 GiB, of which 2 are used */
    put("sys/fs/cgroup/a/b/memory.current", "2147483648\n");
    put("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
    hy_limits_read(root, &l);
    assert_true(l.cpus == 4.0);
    assert_true(l.mem_limit == 8 * GIB && l.mem_total == 8 * GIB);
    assert_true(l.mem_free == 1 * GIB);
}

static void version_1(void **state)
{
    (void)state;
    hy_limits l;
    machine();
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "3221225472\n");
    hy_limits_read(root, &l);
    assert_true(l.cpus == 2.0 && l.mem_limit == 0 && l.mem_free == 32 * GIB);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n");
    put("sys/fs/cgroup/memory/memory.stat",
        "cache 5\ntotal_inactive_file 1073741824\ntotal_active_file 0\n");
    hy_limits_read(root, &l);
    assert_true(l.mem_limit == 4 * GIB && l.mem_free == 2 * GIB);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {T(no_limits), T(container), T(nested), T(version_1)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
