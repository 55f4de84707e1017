/* SPDX-License-Identifier: Apache-2.0
 *
 * Counted allocation: a debug build aborts on an allocation inside a mark, a release build counts.
 *
 * Thread: test; the abort happens in a child process.  Owner: the test.
 */
#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/hash.h"
#include "tests/unit/cm.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void counts(void **state)
{
    (void)state;
    uint64_t n = hy_alloc_count();
    void *a = hy_malloc(10), *b = hy_calloc(3, 5), *c = hy_aligned_alloc(64, 128);
    char *d = hy_strdup("x");
    a = hy_realloc(a, 1000);
    assert_int_equal(hy_alloc_count(), n + 5);
    assert_int_equal((uintptr_t)c % 64, 0);
    hy_free(a);
    hy_free(b);
    hy_free(c);
    free(d); /* compatible with libc */
    assert_null(hy_calloc(SIZE_MAX / 2, 4));
    void *z = hy_malloc(0);
    assert_non_null(z);
    hy_free(z);
}

static void allocation_inside_a_mark(void **state)
{
    (void)state;
    hy_buf buf;
    hy_buf_init(&buf);
    hy_buf_reserve(&buf, 100);
    uint8_t digest[32];
    hy_sha256("x", 1, digest);
    hy_noalloc_begin();
    hy_noalloc_begin();
    hy_buf_puts(&buf, "fits"); /* no allocation: fine */
    hy_sha256("x", 1, digest);
    hy_noalloc_end();
    hy_noalloc_end();
    assert_int_equal(hy_noalloc_violations(), 0);
    pid_t pid = fork();
    if (pid == 0) {
        fclose(stderr);
        signal(SIGABRT, SIG_DFL);
        hy_noalloc_begin();
        hy_buf_reserve(&buf, 100000);
        hy_noalloc_end();
        _exit(hy_noalloc_violations() == 1 ? 7 : 8);
    }
    int status = 0;
    waitpid(pid, &status, 0);
#ifdef HY_DEBUG
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#else
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
#endif
    hy_buf_fini(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(allocation_inside_a_mark),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
