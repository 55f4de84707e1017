/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded mailbox: many producers, one consumer. Posting never blocks: a full mailbox answers
 * HY_AGAIN, which is back-pressure at the entrance. Some slots are a reserved credit that only
 * completions and releases may use, so that cycles of stages cannot deadlock.
 *
 * Thread: post from any; take and wait from the consumer only; close from any.
 * Owner: a post moves the message on HY_OK and leaves it with the caller otherwise; messages
 * still inside at destroy are dropped through their own `drop`.
 */
#ifndef HY_BASE_MBOX_H
#define HY_BASE_MBOX_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct hy_msg {
    int kind;                 /* meaning belongs to the receiving stage */
    uint64_t arg;             /* a number, where no data is needed */
    void *data;               /* owned by the message */
    void (*drop)(void *data); /* frees data when nobody handles it; NULL: nothing to free */
    uint64_t at_ns;           /* not before this time of the stage's clock; 0: at once */
} hy_msg;

/* Drop the payload of a message that nobody wants. */
static inline void hy_msg_drop(hy_msg *m)
{
    if (m->drop != NULL && m->data != NULL)
        m->drop(m->data);
    m->data = NULL;
}

typedef struct hy_mbox hy_mbox;

/* slots > 0 for everybody, `reserved` more for hy_mbox_post_reserved. NULL when out of memory. */
hy_mbox *hy_mbox_create(size_t slots, size_t reserved);
void hy_mbox_destroy(hy_mbox *m); /* NULL is fine */

/* HY_OK: moved. HY_AGAIN: full. HY_E_ABORTED: closed. In order of posting, for one producer. */
hy_status hy_mbox_post(hy_mbox *m, const hy_msg *msg);
/* The same for completions and releases: may use the ordinary slots and the reserved ones. */
hy_status hy_mbox_post_reserved(hy_mbox *m, const hy_msg *msg);

/* HY_OK: *out is yours. HY_AGAIN: empty. HY_END: closed and empty. Never blocks. */
hy_status hy_mbox_take(hy_mbox *m, hy_msg *out);
/* Sleep until something may be taken, the mailbox is closed, hy_mbox_wake is called, or
 * CLOCK_MONOTONIC reaches deadline_ns (HY_NEVER: no limit). */
void hy_mbox_wait(hy_mbox *m, uint64_t deadline_ns);
/* Make the consumer's present or next hy_mbox_wait return. */
void hy_mbox_wake(hy_mbox *m);

/* No more posts; what is inside can still be taken. */
void hy_mbox_close(hy_mbox *m);

/* A descriptor that is readable while there is something to see, for consumers that sleep in
 * epoll or libevent; made on the first call, owned by the mailbox. Call hy_mbox_fd_clear before
 * taking. -1 and a failure text when the system has none left. */
int hy_mbox_fd(hy_mbox *m);
void hy_mbox_fd_clear(hy_mbox *m);

/* Called after each post and wake, on the poster's thread, outside the lock. Set before use. */
void hy_mbox_set_notify(hy_mbox *m, void (*fn)(void *arg), void *arg);

size_t hy_mbox_len(hy_mbox *m);
/* Messages ever accepted. */
uint64_t hy_mbox_posted(hy_mbox *m);
/* Posts ever refused for want of room. */
uint64_t hy_mbox_refused(hy_mbox *m);

#endif
