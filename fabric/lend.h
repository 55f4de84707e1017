/* SPDX-License-Identifier: Apache-2.0
 *
 * Sending memory over TCP without a copy: its pages are lent to the socket (vmsplice and splice)
 * and come back when the receiver's kernel has them, which no call here tells. So only bytes whose
 * receipt the peer acknowledges may go this way, and nothing may change them before.
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
    bool cannot; /* the system does not: the caller copies */
} fab_lend;

void hy_fab__lend_init(fab_lend *x);
void hy_fab__lend_fini(fab_lend *x);

/* Whether it can; opens the pipe. */
bool hy_fab__lend_can(fab_lend *x);

/* Sends what the pipe holds, or, where that is nothing, some of v[0..n). Never blocks. last: nothing
 * follows these bytes soon. Bytes that the socket took, or -1 with errno: EAGAIN: none now. When
 * nothing is held and cannot is set, nothing was sent. */
ssize_t hy_fab__lend_send(fab_lend *x, int fd, const struct iovec *v, int n, size_t left);

#endif
