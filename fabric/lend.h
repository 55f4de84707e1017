/* SPDX-License-Identifier: Apache-2.0
 *
 * Sending memory over TCP without a copy: its pages are lent to the socket (vmsplice, splice) until
 * the other end has read them, which no call here tells. So only bytes whose receipt the peer
 * acknowledges may go this way, and nothing may change them before; bytes of an operation that
 * failed may arrive changed.
 *
 * Thread: one at a time.  Owner: whoever holds the struct.
 */
#ifndef HY_FABRIC_LEND_H
#define HY_FABRIC_LEND_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { FAB_LEND_MIN = 64 << 10 /* bytes that are worth it */ };

typedef struct fab_lend {
    int pipe[2]; /* -1: none yet */
    size_t held; /* bytes lent to the pipe that the socket has not taken */
    bool cannot; /* the system refuses: the caller copies */
} fab_lend;

void hy_fab__lend_init(fab_lend *x);
void hy_fab__lend_fini(fab_lend *x);

/* Whether it can. Opens the pipe. */
bool hy_fab__lend_can(fab_lend *x);

/* Sends the first bytes of v[0..n) over a TCP socket that does not block. What is held from the
 * call before are the first bytes of v. left: bytes from there to where the caller pauses, at least
 * those of v. Bytes sent, or -1 with errno; EAGAIN: none now, or, where cannot is set and nothing
 * held, none this way. Raises no signal. */
ssize_t hy_fab__lend_send(fab_lend *x, int fd, const struct iovec *v, int n, size_t left);

#endif
