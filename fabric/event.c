/* SPDX-License-Identifier: Apache-2.0
 *
 * Events on their way out: a growing ring. It is bounded by what may be in flight: operations are
 * refused when too many are open or unpolled, messages by the sender's window.
 *
 * Thread: put under the fabric's lock, take from the one who polls.  Owner: the ring until taken.
 */
#include "fabric/fab_int.h"

#include <time.h>

enum { POLL_LOOP = 32 };
#define POLL_GAP_NS (20 * HY_US)

static bool grow(hy_fab *f)
{
    size_t cap = f->ev_cap == 0 ? 64 : f->ev_cap * 2;
    hy_fab_event *ev = hy_malloc(cap * sizeof(*ev));
    if (ev == NULL)
        return false;
    for (size_t i = 0; i < f->ev_n; i++)
        ev[i] = f->ev[(f->ev_head + i) % f->ev_cap];
    hy_free(f->ev);
    f->ev = ev;
    f->ev_cap = cap;
    f->ev_head = 0;
    return true;
}

void hy_fab__event(hy_fab *f, const hy_fab_event *ev)
{
    pthread_mutex_lock(&f->ev_lock);
    if (f->ev_n == f->ev_cap && !grow(f)) {
        pthread_mutex_unlock(&f->ev_lock);
        hy_error("fabric", "no memory for an event: operation %llu stays unreported",
                 (unsigned long long)ev->op);
        hy_free(ev->data);
        return;
    }
    f->ev[(f->ev_head + f->ev_n++) % f->ev_cap] = *ev;
    atomic_store(&f->ev_count, f->ev_n);
    pthread_mutex_unlock(&f->ev_lock);
    if (ev->kind == HY_FAB_EV_DONE || ev->kind == HY_FAB_EV_CONNECT)
        atomic_fetch_add(&f->ev_ops, 1);
    f->told = true;
}

/* The sender's window opens by what is taken here. */
static bool count_taken(hy_fab *f, const hy_fab_event *ev)
{
    if (ev->kind == HY_FAB_EV_DONE || ev->kind == HY_FAB_EV_CONNECT)
        atomic_fetch_sub(&f->ev_ops, 1);
    if (ev->kind != HY_FAB_EV_MSG && ev->kind != HY_FAB_EV_IMM)
        return false;
    uint64_t slot = (ev->peer & UINT32_MAX) - 1;
    return (atomic_fetch_add(&f->peers[slot].consumed, 1) + 1) % (HY_FAB_WINDOW / 4) == 0;
}

static size_t take(hy_fab *f, hy_fab_event *ev, size_t n)
{
    size_t got = 0;
    bool window = false;
    if (atomic_load(&f->ev_count) == 0)
        return 0;
    pthread_mutex_lock(&f->ev_lock);
    while (got < n && f->ev_n > 0) {
        ev[got++] = f->ev[f->ev_head];
        f->ev_head = (f->ev_head + 1) % f->ev_cap;
        f->ev_n--;
    }
    atomic_store(&f->ev_count, f->ev_n);
    pthread_mutex_unlock(&f->ev_lock);
    for (size_t i = 0; i < got; i++)
        window |= count_taken(f, &ev[i]);
    if (window)
        hy_fab__kick(f);
    return got;
}

/* Who polls again and again without a pause does the progress thread's work. Who polls now and then
 * does not: the thread must go on listening. A poll itself may take long (it sends). Two who spin
 * on one core would stand in each other's way: one waits for the lock, the other for the core. */
static void note_poll(hy_fab *f, bool begins)
{
    uint64_t now = hy_clock_now_ns(f->clock);
    uint64_t called = atomic_load_explicit(&f->called_ns, memory_order_relaxed);
    uint64_t last = called > f->last_poll_ns ? called : f->last_poll_ns;
    if (begins)
        f->poll_streak = now < last + POLL_GAP_NS ? f->poll_streak + 1 : 0;
    f->last_poll_ns = now;
    if (f->poll_streak == 0)
        atomic_store_explicit(&f->polling_since, now, memory_order_relaxed);
    if (f->poll_streak >= POLL_LOOP)
        atomic_store_explicit(&f->polled_ns, now, memory_order_relaxed);
}

size_t hy_fab_poll(hy_fab *f, hy_fab_event *ev, size_t n)
{
    size_t got = take(f, ev, n);
    if (f->has_thread)
        note_poll(f, true);
    /* who looks for an event now and then need not send a megabyte in between */
    if (got > 0 || f->stage != NULL ||
        (f->has_thread && !hy_fab__polled_lately(f, f->last_poll_ns)) ||
        pthread_mutex_trylock(&f->lock) != 0)
        return got;
    uint64_t next;
    bool hot;
    hy_fab__pass(f, &next, &hot);
    hy_fab__unlock(f);
    got = take(f, ev, n);
    if (f->has_thread)
        note_poll(f, false);
    return got;
}

void hy_fab_event_fini(hy_fab_event *ev)
{
    hy_free(ev->data);
    ev->data = NULL;
}

bool hy_fab_wait(hy_fab *f, uint64_t deadline_ns)
{
    struct timespec ts = {(time_t)(deadline_ns / HY_SEC), (long)(deadline_ns % HY_SEC)};
    if (f->has_thread && atomic_load(&f->polled_ns) != 0) { /* the thread takes over again */
        f->poll_streak = 0;
        atomic_store(&f->polled_ns, 0);
        f->ct->wake(f->ctx); /* also one that is only about to sleep */
    }
    pthread_mutex_lock(&f->ev_lock);
    int rc = 0;
    while (f->ev_n == 0 && rc == 0)
        rc = deadline_ns == HY_NEVER ? pthread_cond_wait(&f->ev_cond, &f->ev_lock)
                                     : pthread_cond_timedwait(&f->ev_cond, &f->ev_lock, &ts);
    bool some = f->ev_n > 0;
    pthread_mutex_unlock(&f->ev_lock);
    return some;
}
