/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared staging: what one process puts there another one reads, also when the first is dead; and
 * nothing is opened that is not what was told.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/base/alloc.h"
#include "core/connector/pd_int.h"
#include "tests/unit/cm.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEN = 4 * PD_UNIT };

static hy_pdp_msg told(const hy_pd *p)
{
    return (hy_pdp_msg){
        .near_name = {(const uint8_t *)p->near_name, strlen(p->near_name)},
        .near_fd = (uint32_t)p->near_fd,
        .near_len = LEN,
    };
}

static int make(void **state)
{
    hy_pd *p = hy_calloc(1, sizeof(*p));
    p->near_fd = -1;
    *state = p;
    return hy_pd__near_create(p, LEN) == HY_OK ? 0 : -1;
}

static int end(void **state)
{
    hy_pd__near_destroy(*state, LEN);
    hy_free(*state);
    return 0;
}

static void survives_its_owner(void **state)
{
    (void)state;
    int up[2];
    assert_int_equal(pipe(up), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        static hy_pd p = {.near_fd = -1};
        if (hy_pd__near_create(&p, LEN) < 0)
            _exit(1);
        memset(p.staging, 0x5a, LEN);
        (void)!write(up[1], &p, sizeof(p));
        pause();
        _exit(1);
    }
    hy_pd *p = hy_calloc(1, sizeof(*p));
    size_t got = 0;
    while (got < sizeof(*p)) {
        const ssize_t n = read(up[0], (char *)p + got, sizeof(*p) - got);
        assert_true(n > 0);
        got += (size_t)n;
    }
    const hy_pdp_msg m = told(p);
    const int fd = hy_pd__near_open((uint32_t)pid, &m);
    assert_true(fd >= 0);
    const uint8_t *at = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(ftruncate(fd, 0), -1); /* read-only, and sealed */
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    for (size_t i = 0; i < LEN; i++)
        if (at[i] != 0x5a)
            fail_msg("byte %zu is %d", i, at[i]);
    assert_int_equal(hy_pd__near_open((uint32_t)pid, &m), -1); /* nobody is there any more */
    munmap((void *)(uintptr_t)at, LEN);
    close(fd);
    close(up[0]);
    close(up[1]);
    hy_free(p);
}

/* Both sides map it where huge pages can be. */
static void begins_where_huge_pages_do(void **state)
{
    const hy_pd *p = *state;
    const uintptr_t huge = (uintptr_t)2 << 20;
    assert_int_equal((uintptr_t)p->staging % huge, 0);
    ((char *)p->staging)[LEN - 1] = 7;
    /* nothing else of the address space that was asked for is left mapped */
    char line[256], *const end = (char *)p->staging + LEN;
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps) != NULL) {
        unsigned long from, to;
        char how[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, how) == 3 && strcmp(how, "---p") == 0)
            assert_false(to == (uintptr_t)p->staging || from == (uintptr_t)end);
    }
    fclose(maps);
}

static void opens(const hy_pdp_msg *m, bool ok)
{
    const int fd = hy_pd__near_open((uint32_t)getpid(), m);
    assert_int_equal(fd >= 0, ok);
    if (fd >= 0)
        close(fd);
}

static void other_files(void **state)
{
    const hy_pd *p = *state;
    const hy_pdp_msg good = told(p);
    opens(&good, true);
    assert_int_equal(ftruncate(p->near_fd, 1), -1); /* not even its owner shrinks it */
    hy_pdp_msg m = good;
    m.near_len = LEN + 1;
    opens(&m, false);
    m = good;
    m.near_name.n--; /* another's name, and none */
    opens(&m, false);
    m.near_name.n = 0;
    opens(&m, false);
    m = good;
    m.near_fd = 1000000; /* no such number */
    opens(&m, false);
    m.near_fd = (uint32_t)-1;
    opens(&m, false);
    /* a memfd that may shrink under the reader, and one of another purpose that may not */
    static const char *const names[] = {"halyard-kv-0123456789abcdef", "else-0123456789abcdef"};
    for (int i = 0; i < 2; i++) {
        const int fd = memfd_create(names[i], MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_true(fd >= 0 && ftruncate(fd, LEN) == 0);
        assert_int_equal(i == 1 ? fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) : 0, 0);
        m = good;
        m.near_fd = (uint32_t)fd;
        opens(&m, false); /* under the good one's name */
        m.near_name = (hy_pdp_bytes){(const uint8_t *)names[i], strlen(names[i])};
        opens(&m, false);
        assert_int_equal(i == 0 ? fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) : 0, 0);
        opens(&m, i == 0);
        close(fd);
    }
    /* a plain file, and a pipe, which to open would wait */
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    m = good;
    m.near_fd = (uint32_t)ends[0];
    opens(&m, false);
    close(ends[0]);
    close(ends[1]);
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    m.near_fd = (uint32_t)null;
    opens(&m, false);
    close(null);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survives_its_owner),
        cmocka_unit_test_setup_teardown(begins_where_huge_pages_do, make, end),
        cmocka_unit_test_setup_teardown(other_files, make, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
