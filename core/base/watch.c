/* SPDX-License-Identifier: Apache-2.0
 *
 * Watchdog over the notes of workers.
 *
 * Thread: see the header; the list is locked, notes are atomic.  Owner: workers own their notes.
 */
#include "core/base/watch.h"
#include "core/base/alloc.h"
#include "core/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

struct hy_watch {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    hy_watch_note *notes;
    hy_clock *clock;
    uint64_t limit_ns;
    pthread_t thread;
    bool running, stop;
};

hy_watch *hy_watch_create(hy_clock *clock, uint64_t limit_ns)
{
    hy_watch *w = hy_calloc(1, sizeof(*w));
    if (w == NULL)
        return NULL;
    w->clock = clock;
    w->limit_ns = limit_ns;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->cond, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

void hy_watch_destroy(hy_watch *w)
{
    if (w == NULL)
        return;
    hy_watch_stop(w);
    pthread_cond_destroy(&w->cond);
    pthread_mutex_destroy(&w->lock);
    hy_free(w);
}

void hy_watch_add(hy_watch *w, hy_watch_note *n, const char *name)
{
    n->name = name;
    n->warned_ns = 0;
    n->warned_since_ns = 0;
    pthread_mutex_lock(&w->lock);
    n->next = w->notes;
    w->notes = n;
    pthread_mutex_unlock(&w->lock);
}

void hy_watch_remove(hy_watch *w, hy_watch_note *n)
{
    pthread_mutex_lock(&w->lock);
    for (hy_watch_note **p = &w->notes; *p != NULL; p = &(*p)->next)
        if (*p == n) {
            *p = n->next;
            break;
        }
    pthread_mutex_unlock(&w->lock);
}

/* True when n is stuck; warns when that is news. */
static bool check_one(hy_watch *w, hy_watch_note *n, uint64_t now)
{
    const char *what = atomic_load_explicit(&n->what, memory_order_acquire);
    uint64_t since = atomic_load_explicit(&n->since_ns, memory_order_relaxed);
    int detail = atomic_load_explicit(&n->detail, memory_order_relaxed);
    if (what == NULL || now <= since || now - since < w->limit_ns)
        return false;
    uint64_t stuck = now - since;
    bool is_new = since != n->warned_since_ns;
    if (is_new || stuck >= 2 * n->warned_ns) {
        hy_warn("watch", "stage %s has been at '%s' (%d) for %.1f s", n->name, what, detail,
                (double)stuck / 1e9);
        n->warned_ns = stuck;
        n->warned_since_ns = since;
    }
    return true;
}

size_t hy_watch_check(hy_watch *w)
{
    size_t stuck = 0;
    uint64_t now = hy_clock_now_ns(w->clock);
    pthread_mutex_lock(&w->lock);
    for (hy_watch_note *n = w->notes; n != NULL; n = n->next)
        stuck += check_one(w, n, now);
    pthread_mutex_unlock(&w->lock);
    return stuck;
}

static void *watch_main(void *arg)
{
    hy_watch *w = arg;
    uint64_t period = w->limit_ns / 4 + 1;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        uint64_t at = hy_clock_after(hy_clock_now_ns(hy_clock_real()), period);
        const struct timespec ts = {(time_t)(at / HY_SEC), (long)(at % HY_SEC)};
        int rc = 0;
        while (!w->stop && rc != ETIMEDOUT)
            rc = pthread_cond_timedwait(&w->cond, &w->lock, &ts);
        if (w->stop)
            break;
        pthread_mutex_unlock(&w->lock);
        hy_watch_check(w);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

hy_status hy_watch_start(hy_watch *w)
{
    HY_ASSERT(!w->running);
    w->stop = false;
    int rc = pthread_create(&w->thread, NULL, watch_main, w);
    if (rc != 0)
        return hy_fail(HY_E_SYS, "cannot start the watchdog thread: %s", strerror(rc));
    pthread_setname_np(w->thread, "hy-watch");
    w->running = true;
    return HY_OK;
}

void hy_watch_stop(hy_watch *w)
{
    if (!w->running)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->running = false;
}
