/* SPDX-License-Identifier: Apache-2.0
 *
 * Watchdog: each stage notes what it is doing and since when; the watchdog names the one that has
 * been at it for too long, once per stall and again each time the stall doubles.
 *
 * Thread: a note is written by its one worker, read by the watchdog; add and remove from any.
 * Owner: notes belong to their workers and leave the watch before they die.
 */
#ifndef HY_BASE_WATCH_H
#define HY_BASE_WATCH_H

#include "core/base/clock.h"

#include <stdatomic.h>
#include <stddef.h>

typedef struct hy_watch_note {
    const char *name;           /* of the worker */
    _Atomic(const char *) what; /* a string that lives forever; NULL: idle */
    _Atomic int detail;         /* a number beside it: the kind of message */
    _Atomic uint64_t since_ns;  /* when the present work began */
    uint64_t warned_ns;         /* watchdog's own: length of the stall at the last warning */
    uint64_t warned_since_ns;   /* and which stall that was */
    struct hy_watch_note *next; /* list of the watch */
} hy_watch_note;

static inline void hy_watch_begin(hy_watch_note *n, const char *what, int detail, uint64_t now_ns)
{
    atomic_store_explicit(&n->detail, detail, memory_order_relaxed);
    atomic_store_explicit(&n->since_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&n->what, what, memory_order_release);
}

static inline void hy_watch_end(hy_watch_note *n)
{
    atomic_store_explicit(&n->what, NULL, memory_order_release);
}

typedef struct hy_watch hy_watch;

/* NULL when out of memory. */
hy_watch *hy_watch_create(hy_clock *clock, uint64_t limit_ns);
void hy_watch_destroy(hy_watch *w); /* NULL is fine; stops the thread */
void hy_watch_add(hy_watch *w, hy_watch_note *n, const char *name);
void hy_watch_remove(hy_watch *w, hy_watch_note *n);
/* Warns about what is stuck and returns how many workers are. */
size_t hy_watch_check(hy_watch *w);
/* Check on a thread of its own, four times per limit. */
hy_status hy_watch_start(hy_watch *w);
void hy_watch_stop(hy_watch *w);

#endif
