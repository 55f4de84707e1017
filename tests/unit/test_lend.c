/* SPDX-License-Identifier: Apache-2.0
 *
 * Lent pages: ranges of odd lengths at odd places arrive as they are, through buffers of any size
 * and a receiver that takes little at a time; a system without it is found out and nothing is lost.
 *
 * Thread: main; a forked process for what the system refuses.  Owner: each test closes what it
 * opens.
 */
#include "core/base/rng.h"
#include "fabric/lend.h"
#include "tests/unit/cm.h"
#include "tests/unit/refuse.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POOL = 8 << 20, MOST = 16 };

/* Connected over loopback, neither end blocks. buf: of both ends, 0: the system's. */
static void sockets(int fd[2], int buf)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(a);
    int l = socket(AF_INET, SOCK_STREAM, 0);
    if (buf != 0)
        assert_int_equal(setsockopt(l, SOL_SOCKET, SO_RCVBUF, &buf, sizeof(buf)), 0);
    assert_int_equal(bind(l, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(l, 1), 0);
    assert_int_equal(getsockname(l, (struct sockaddr *)&a, &n), 0);
    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (buf != 0)
        assert_int_equal(setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &buf, sizeof(buf)), 0);
    assert_int_equal(connect(fd[0], (struct sockaddr *)&a, n), 0);
    fd[1] = accept(l, NULL, NULL);
    assert_true(fd[1] >= 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(fcntl(fd[i], F_SETFL, O_NONBLOCK), 0);
    close(l);
}

static char *pool(int seed)
{
    char *p = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    hy_rng r;
    hy_rng_init(&r, (uint64_t)seed);
    for (size_t i = 0; i < POOL; i += 8) {
        uint64_t x = hy_rng_u64(&r);
        memcpy(p + i, &x, 8);
    }
    return p;
}

/* Some ranges of the pool, and their bytes one after the other. */
static int cut(hy_rng *r, char *p, struct iovec *v, char *want, size_t *all)
{
    const int n = 1 + (int)hy_rng_below(r, MOST);
    *all = 0;
    for (int i = 0; i < n; i++) {
        const size_t len = 1 + hy_rng_below(r, hy_rng_below(r, 2) != 0 ? 9000 : 400000);
        v[i] = (struct iovec){p + hy_rng_below(r, POOL - len), len};
        memcpy(want + *all, v[i].iov_base, len);
        *all += len;
    }
    return n;
}

/* What is left of v after so many bytes. */
static int rest(const struct iovec *v, int n, size_t skip, struct iovec *out)
{
    int k = 0;
    for (int i = 0; i < n; i++) {
        const size_t s = skip < v[i].iov_len ? skip : v[i].iov_len;
        skip -= s;
        if (s < v[i].iov_len)
            out[k++] = (struct iovec){(char *)v[i].iov_base + s, v[i].iov_len - s};
    }
    return k;
}

static void arrives(void **state)
{
    (void)state;
    static const int bufs[] = {0, 4096, 65536};
    char *p = pool(1), *want = malloc((size_t)MOST * 400001), *got = malloc((size_t)MOST * 400001);
    for (size_t b = 0; b < HY_COUNTOF(bufs); b++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            int fd[2];
            struct iovec v[MOST], left[MOST];
            fab_lend x;
            hy_rng r;
            size_t all, sent = 0, in = 0;
            hy_rng_init(&r, 100 * b + seed);
            sockets(fd, bufs[b]);
            hy_fab__lend_init(&x);
            assert_true(hy_fab__lend_can(&x));
            const int n = cut(&r, p, v, want, &all);
            while (in < all) {
                if (sent < all) {
                    const int k = rest(v, n, sent, left);
                    ssize_t s = hy_fab__lend_send(&x, fd[0], left, k, all - sent);
                    assert_true(s > 0 || (s < 0 && errno == EAGAIN));
                    sent += s > 0 ? (size_t)s : 0;
                }
                ssize_t s = recv(fd[1], got + in, 1 + hy_rng_below(&r, 300000), 0);
                assert_true(s > 0 || (s < 0 && errno == EAGAIN));
                in += s > 0 ? (size_t)s : 0;
            }
            assert_false(x.cannot);
            assert_int_equal(x.held, 0);
            assert_memory_equal(got, want, all);
            hy_fab__lend_fini(&x);
            close(fd[0]);
            close(fd[1]);
        }
    free(want);
    free(got);
    munmap(p, POOL);
}

/* The other end is gone: an error and no signal, for this thread nor later; what is held goes back.
 */
static void gone(void **state)
{
    (void)state;
    char *p = pool(2);
    int fd[2];
    fab_lend x;
    ssize_t s = 0;
    sockets(fd, 4096);
    hy_fab__lend_init(&x);
    assert_true(hy_fab__lend_can(&x));
    close(fd[1]);
    struct iovec v = {p, POOL};
    for (int i = 0; i < 1000 && (s > 0 || i == 0 || errno == EAGAIN); i++)
        s = hy_fab__lend_send(&x, fd[0], &v, 1, POOL);
    assert_int_equal(s, -1);
    assert_true(errno == EPIPE || errno == ECONNRESET);
    hy_fab__lend_fini(&x);
    close(fd[0]);
    munmap(p, POOL);
}

/* Whatever the system refuses: nothing is sent, nothing held, and the caller is told to copy. */
static void refused(void **state)
{
    (void)state;
    static const long calls[] = {SYS_vmsplice, SYS_fcntl, SYS_pipe2};
    char *p = pool(3);
    int fd[2];
    sockets(fd, 0);
    for (size_t i = 0; i < HY_COUNTOF(calls); i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            fab_lend x;
            struct iovec v = {p, POOL};
            hy_fab__lend_init(&x);
            if (!hy_test_refuse(calls[i]))
                _exit(9);
            const bool can = hy_fab__lend_can(&x);
            if (can != (i == 0))
                _exit(1);
            if (can && (hy_fab__lend_send(&x, fd[0], &v, 1, POOL) != -1 || errno != EAGAIN))
                _exit(2);
            if (!x.cannot || x.held != 0 || hy_fab__lend_can(&x))
                _exit(3);
            hy_fab__lend_fini(&x);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        char c;
        assert_int_equal(recv(fd[1], &c, 1, 0), -1);
        assert_int_equal(errno, EAGAIN);
    }
    close(fd[0]);
    close(fd[1]);
    munmap(p, POOL);
}

/* A process's own refusal of more ranges than so many in one call. */
static bool refuse_above(unsigned most)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_vmsplice, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, most, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EFAULT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {HY_COUNTOF(code), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}

/* Refused for some memory only: after the first refusal nothing more is lent, so that the caller,
 * who then copies, knows what was sent. */
static void refused_once(void **state)
{
    (void)state;
    char *p = pool(4);
    int fd[2], status;
    sockets(fd, 0);
    pid_t pid = fork();
    if (pid == 0) {
        fab_lend x;
        struct iovec v[3] = {{p, 9000}, {p + 10000, 70000}, {p + 90000, 9000}};
        hy_fab__lend_init(&x);
        if (!refuse_above(2))
            _exit(9);
        if (!hy_fab__lend_can(&x) || hy_fab__lend_send(&x, fd[0], v, 2, 79000) != 79000)
            _exit(1);
        if (hy_fab__lend_send(&x, fd[0], v, 3, 88000) != -1 || !x.cannot || x.held != 0)
            _exit(2);
        if (hy_fab__lend_send(&x, fd[0], v, 1, 9000) != -1 || errno != EAGAIN || x.held != 0)
            _exit(3);
        hy_fab__lend_fini(&x);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(fd[0]);
    close(fd[1]);
    munmap(p, POOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrives),
        cmocka_unit_test(gone),
        cmocka_unit_test(refused),
        cmocka_unit_test(refused_once),
    };
    return cmocka_run_group_tests_name("lend", tests, NULL, NULL);
}
