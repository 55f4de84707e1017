/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric/lend.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { PIPE_BYTES = 1 << 20, PIPE_LEAST = 256 << 10 };

void hy_fab__lend_init(fab_lend *x)
{
    *x = (fab_lend){.pipe = {-1, -1}};
}

void hy_fab__lend_fini(fab_lend *x)
{
    if (x->pipe[0] >= 0) {
        close(x->pipe[0]);
        close(x->pipe[1]);
    }
    hy_fab__lend_init(x);
}

bool hy_fab__lend_can(fab_lend *x)
{
    if (x->pipe[0] >= 0 || x->cannot)
        return !x->cannot;
    x->cannot = true;
    if (pipe2(x->pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
        x->pipe[0] = x->pipe[1] = -1;
        return false;
    }
    for (int n = PIPE_BYTES; n >= PIPE_LEAST && x->cannot; n /= 2)
        x->cannot = fcntl(x->pipe[1], F_SETPIPE_SZ, n) < n;
    return !x->cannot;
}

/* splice knows no MSG_NOSIGNAL. The signal of a broken connection goes to the thread that writes,
 * so it is blocked, and taken back if it was raised. */
static ssize_t splice_quietly(int from, int to, size_t n, unsigned flags)
{
    sigset_t pipe, old, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (pthread_sigmask(SIG_BLOCK, &pipe, &old) != 0)
        return -1;
    const bool before = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
    ssize_t k = splice(from, NULL, to, NULL, n, flags);
    const int e = errno;
    if (k < (ssize_t)n && !before) /* also where some were sent before it broke */
        sigtimedwait(&pipe, NULL, &(struct timespec){0, 0});
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = e;
    return k;
}

ssize_t hy_fab__lend_send(fab_lend *x, int fd, const struct iovec *v, int n, size_t left)
{
    if (x->held == 0) {
        /* once refused, always refused: the caller goes by that */
        ssize_t k = x->cannot ? 0 : vmsplice(x->pipe[1], v, (size_t)n, SPLICE_F_NONBLOCK);
        if (k <= 0) {
            x->cannot = true;
            errno = EAGAIN;
            return -1;
        }
        x->held = (size_t)k;
    }
    const unsigned more = x->held < left ? SPLICE_F_MORE : 0;
    ssize_t k = splice_quietly(x->pipe[0], fd, x->held, SPLICE_F_NONBLOCK | more);
    if (k > 0)
        x->held -= (size_t)k;
    return k;
}
