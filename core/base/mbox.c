/* SPDX-License-Identifier: Apache-2.0
 *
 * Mailbox: a ring under a mutex. The lock is held for a copy of 40 bytes; the wake-up happens
 * outside it, and only when the consumer sleeps. (Inside, on a core that both share, the consumer
 * would wake up only to wait for the lock. And it is a futex, not a condition variable: once the
 * lock is given up the mailbox may be gone, and of a futex only the address is needed.)
 *
 * Thread: see the header.  Owner: the ring owns what was posted until it is taken.
 */
#include "core/base/mbox.h"
#include "core/base/alloc.h"
#include "core/base/clock.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct hy_mbox {
    pthread_mutex_t lock;
    _Atomic uint32_t bell; /* a futex: rung while the consumer sleeps */
    hy_msg *ring;
    size_t cap, slots; /* all slots; those for everybody */
    size_t head, len;
    uint64_t posted, refused;
    bool closed, woken, sleeping;
    int fd;
    void (*notify)(void *arg);
    void *notify_arg;
};

hy_mbox *hy_mbox_create(size_t slots, size_t reserved)
{
    HY_ASSERT(slots > 0);
    hy_mbox *m = hy_calloc(1, sizeof(*m));
    if (m == NULL)
        return NULL;
    m->slots = slots;
    m->cap = slots + reserved;
    m->fd = -1;
    m->ring = hy_calloc(m->cap, sizeof(*m->ring));
    if (m->ring == NULL) {
        hy_free(m);
        return NULL;
    }
    pthread_mutex_init(&m->lock, NULL);
    return m;
}

void hy_mbox_destroy(hy_mbox *m)
{
    if (m == NULL)
        return;
    for (size_t i = 0; i < m->len; i++)
        hy_msg_drop(&m->ring[(m->head + i) % m->cap]);
    if (m->fd >= 0)
        close(m->fd);
    pthread_mutex_destroy(&m->lock);
    hy_free(m->ring);
    hy_free(m);
}

/* Called with the lock held; gives it up. */
static void unlock_and_wake(hy_mbox *m)
{
    const bool wake = m->sleeping;
    _Atomic uint32_t *bell = &m->bell;
    if (wake)
        atomic_fetch_add_explicit(bell, 1, memory_order_relaxed);
    m->sleeping = false; /* one ring is enough */
    int fd = m->fd;
    void (*notify)(void *) = m->notify;
    void *arg = m->notify_arg;
    pthread_mutex_unlock(&m->lock);
    if (wake)
        (void)syscall(SYS_futex, bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    if (fd >= 0) {
        const uint64_t one = 1;
        while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
            ;
    }
    if (notify != NULL)
        notify(arg);
}

static hy_status post(hy_mbox *m, const hy_msg *msg, size_t most)
{
    pthread_mutex_lock(&m->lock);
    if (m->closed || m->len >= most) {
        hy_status st = m->closed ? HY_E_ABORTED : HY_AGAIN;
        m->refused += st == HY_AGAIN;
        pthread_mutex_unlock(&m->lock);
        return st == HY_AGAIN ? st : hy_fail(st, "the receiver has stopped");
    }
    m->ring[(m->head + m->len) % m->cap] = *msg;
    m->len++;
    m->posted++;
    unlock_and_wake(m);
    return HY_OK;
}

hy_status hy_mbox_post(hy_mbox *m, const hy_msg *msg)
{
    return post(m, msg, m->slots);
}

hy_status hy_mbox_post_reserved(hy_mbox *m, const hy_msg *msg)
{
    return post(m, msg, m->cap);
}

hy_status hy_mbox_take(hy_mbox *m, hy_msg *out)
{
    pthread_mutex_lock(&m->lock);
    hy_status st = HY_OK;
    if (m->len == 0) {
        st = m->closed ? HY_END : HY_AGAIN;
    } else {
        *out = m->ring[m->head];
        m->len--;
        /* an empty ring begins at its start again: memory is touched only as far as messages ever
         * waited, instead of all of it in the first some thousand */
        m->head = m->len != 0 ? (m->head + 1) % m->cap : 0;
    }
    pthread_mutex_unlock(&m->lock);
    return st;
}

/* What is left of the time; NULL: there is no limit. */
static const struct timespec *until(uint64_t deadline_ns, struct timespec *left)
{
    struct timespec t;
    if (deadline_ns == HY_NEVER)
        return NULL;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const uint64_t now = (uint64_t)t.tv_sec * HY_SEC + (uint64_t)t.tv_nsec;
    const uint64_t ns = deadline_ns > now ? deadline_ns - now : 0;
    *left = (struct timespec){(time_t)(ns / HY_SEC), (long)(ns % HY_SEC)};
    return left;
}

void hy_mbox_wait(hy_mbox *m, uint64_t deadline_ns)
{
    bool late = false;
    pthread_mutex_lock(&m->lock);
    while (m->len == 0 && !m->closed && !m->woken && !late) {
        const uint32_t was = atomic_load_explicit(&m->bell, memory_order_relaxed);
        m->sleeping = true;
        pthread_mutex_unlock(&m->lock);
        struct timespec left;
        /* not at all where the bell has rung since */
        const long rc = syscall(SYS_futex, &m->bell, FUTEX_WAIT_PRIVATE, was,
                                until(deadline_ns, &left), NULL, 0);
        late = rc != 0 && errno == ETIMEDOUT;
        pthread_mutex_lock(&m->lock);
    }
    m->sleeping = false;
    m->woken = false;
    pthread_mutex_unlock(&m->lock);
}

void hy_mbox_wake(hy_mbox *m)
{
    pthread_mutex_lock(&m->lock);
    m->woken = true;
    unlock_and_wake(m);
}

void hy_mbox_close(hy_mbox *m)
{
    pthread_mutex_lock(&m->lock);
    m->closed = true;
    unlock_and_wake(m);
}

int hy_mbox_fd(hy_mbox *m)
{
    pthread_mutex_lock(&m->lock);
    if (m->fd < 0) {
        bool ready = m->len != 0 || m->closed || m->woken;
        m->fd = eventfd(ready ? 1 : 0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (m->fd < 0)
            hy_fail(HY_E_SYS, "no eventfd for a mailbox: %s", strerror(errno));
    }
    int fd = m->fd;
    pthread_mutex_unlock(&m->lock);
    return fd;
}

void hy_mbox_fd_clear(hy_mbox *m)
{
    uint64_t x;
    pthread_mutex_lock(&m->lock);
    int fd = m->fd;
    m->woken = false;
    pthread_mutex_unlock(&m->lock);
    while (fd >= 0 && read(fd, &x, sizeof(x)) < 0 && errno == EINTR)
        ;
}

void hy_mbox_set_notify(hy_mbox *m, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&m->lock);
    m->notify = fn;
    m->notify_arg = arg;
    pthread_mutex_unlock(&m->lock);
}

size_t hy_mbox_len(hy_mbox *m)
{
    pthread_mutex_lock(&m->lock);
    size_t n = m->len;
    pthread_mutex_unlock(&m->lock);
    return n;
}

uint64_t hy_mbox_posted(hy_mbox *m)
{
    pthread_mutex_lock(&m->lock);
    uint64_t n = m->posted;
    pthread_mutex_unlock(&m->lock);
    return n;
}

uint64_t hy_mbox_refused(hy_mbox *m)
{
    pthread_mutex_lock(&m->lock);
    uint64_t n = m->refused;
    pthread_mutex_unlock(&m->lock);
    return n;
}
