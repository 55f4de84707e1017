/* SPDX-License-Identifier: Apache-2.0
 *
 * Who moves the fabric on: a thread of its own that spins while bytes move, takes naps while
 * something is in flight or announced, and sleeps in its control connections otherwise, or, under
 * virtual time, a stage. A thread that polls in a loop takes the work over; the progress thread
 * then keeps away.
 *
 * The thread never yields: on a core that it shares with a busy thread, sched_yield gives a whole
 * slice away (milliseconds) for each look that finds nothing, and a socket's buffer holds only
 * some hundred KiB. A nap keeps the thread's claim to the core instead.
 *
 * Thread: as named.  Owner: hy_fab.
 */
#include "fabric/fab_int.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_NS   (50 * HY_US)  /* nothing moved for so long: naps */
#define NAP_NS    (40 * HY_US)  /* far less than what socket buffers hold at full rate */
#define DULL_NS   (20 * HY_MS)  /* nothing moved for so long: */
#define DOZE_NS   (200 * HY_US) /* longer naps */
#define SLICE_NS  (200 * HY_US)
#define POLLER_NS HY_MS       /* a poll that recent: somebody is polling in a loop */
#define AWAY_NS   (4 * HY_MS) /* who has done so for long is not disturbed more often */

uint64_t hy_fab__now(hy_fab *f)
{
    return hy_clock_now_ns(f->clock);
}

void hy_fab__lock(hy_fab *f)
{
    pthread_mutex_lock(&f->turn);
    pthread_mutex_lock(&f->lock);
    pthread_mutex_unlock(&f->turn);
}

void hy_fab__unlock(hy_fab *f)
{
    bool tell = f->told;
    f->told = false;
    pthread_mutex_unlock(&f->lock);
    if (!tell)
        return;
    pthread_cond_broadcast(&f->ev_cond); /* not before: who wakes on this core wants the lock */
    if (f->o.notify != NULL)
        f->o.notify(f->o.notify_arg);
}

bool hy_fab__polled_lately(hy_fab *f, uint64_t now)
{
    return now < atomic_load_explicit(&f->polled_ns, memory_order_relaxed) + POLLER_NS;
}

void hy_fab__kick(hy_fab *f)
{
    if (f->has_thread)
        atomic_store_explicit(&f->called_ns, hy_fab__now(f), memory_order_relaxed);
    if (f->stage != NULL)
        hy_mbox_wake(hy_stage_mbox(f->stage));
    else if (f->has_thread && atomic_load(&f->asleep) && !hy_fab__polled_lately(f, hy_fab__now(f)))
        f->ct->wake(f->ctx);
}

void hy_fab__timer(hy_fab *f, uint64_t at_ns)
{
    if (at_ns < f->next_timers)
        f->next_timers = at_ns;
}

static void timers(hy_fab *f, uint64_t now)
{
    if (now < f->next_timers)
        return;
    f->next_timers = HY_NEVER;
    hy_fab__links_timers(f, now);
    hy_fab__peers_timers(f, now);
}

bool hy_fab__pass(hy_fab *f, uint64_t *next, bool *hot)
{
    uint64_t now = hy_fab__now(f);
    *hot = false;
    if (f->ct->frozen != NULL && f->ct->frozen(f->ctx, now, next))
        return false;
    bool moved = f->ct->poll(f->ctx, now);
    moved |= hy_fab__links_progress(f, now, hot);
    /* an event goes first: what is posted next may take a millisecond; but not time after time */
    f->put_off = f->told && f->has_thread && !f->put_off;
    for (uint32_t i = 0; i < f->n_slots && !f->put_off; i++) {
        fab_peer *p = &f->peers[i];
        if (p->up && p->n_queued > 0)
            moved |= hy_fab__post(f, p, now);
    }
    timers(f, now);
    hy_fab__links_reap(f);
    for (uint32_t i = 0; i < f->n_slots; i++)
        if (f->peers[i].up)
            hy_fab__msg_flush(f, &f->peers[i], now, !moved);
    *next = f->next_timers;
    uint64_t due = f->ct->next(f->ctx);
    if (due < *next)
        *next = due;
    return moved;
}

/* Naps that end when they should, and a short slice of the processor: who asks for little at a time
 * gets it sooner (Linux 6.12 and later; others ignore it). */
static void be_prompt(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a = {.size = sizeof(a)};
    _Static_assert(sizeof(a) == 48, "struct sched_attr, first version");
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    if (syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0) != 0 || a.policy != SCHED_OTHER)
        return;
    a.runtime = SLICE_NS;
    (void)!syscall(SYS_sched_setattr, 0, &a, 0);
}

static void sleep_till(hy_fab *f, uint64_t until, bool quiet)
{
    atomic_fetch_add(&f->sleeps, 1);
    atomic_store(&f->asleep, true);
    f->ct->wait(f->ctx, until, quiet);
    atomic_store(&f->asleep, false);
}

static void *thread_main(void *arg)
{
    hy_fab *f = arg;
    uint64_t moved_at = 0;
    be_prompt();
    while (!atomic_load(&f->stop)) {
        uint64_t next, now = hy_fab__now(f);
        bool hot;
        if (hy_fab__polled_lately(f, now)) { /* two on one core stand in each other's way */
            const uint64_t since = atomic_load_explicit(&f->polling_since, memory_order_relaxed);
            const uint64_t away = now < since + AWAY_NS ? HY_MS : AWAY_NS;
            sleep_till(f, now + away, true);
            continue;
        }
        hy_fab__lock(f);
        bool moved = hy_fab__pass(f, &next, &hot);
        bool tell = f->told;
        if (!moved && !hot)
            atomic_store(&f->asleep, true);
        hy_fab__unlock(f);
        now = hy_fab__now(f);
        if (moved || tell)
            moved_at = now;
        if (moved) {
            atomic_fetch_add(&f->spins, 1);
            continue;
        }
        if (hot) {
            const uint64_t dull = now - moved_at;
            const uint64_t nap = now + (dull < DULL_NS ? NAP_NS : DOZE_NS);
            if (dull < SPIN_NS) {
                atomic_fetch_add(&f->spins, 1);
                continue;
            }
            next = nap < next ? nap : next;
        }
        sleep_till(f, next, false);
    }
    return NULL;
}

static hy_status on_msg(void *self, hy_msg *m)
{
    (void)self;
    hy_msg_drop(m);
    return HY_OK;
}

static uint64_t on_idle(void *self, uint64_t now_ns)
{
    hy_fab *f = self;
    uint64_t next;
    bool hot;
    hy_fab__lock(f);
    bool moved = hy_fab__pass(f, &next, &hot);
    hy_fab__unlock(f);
    return moved ? now_ns : next;
}

static const hy_stage_ops stage_ops = {.on_msg = on_msg, .on_idle = on_idle};

hy_status hy_fab__drive_start(hy_fab *f)
{
    if (f->o.runtime != NULL) {
        char name[80];
        snprintf(name, sizeof(name), "fabric.%.40s", f->node);
        f->stage = hy_stage_create(name, &stage_ops, f, 16, 0);
        if (f->stage == NULL)
            return hy_fail(HY_E_NOMEM, "no memory for the stage of the fabric");
        return hy_runtime_add(f->o.runtime, f->stage);
    }
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&f->thread, NULL, thread_main, f);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return hy_fail(HY_E_SYS, "cannot start the fabric's thread: %s", strerror(rc));
    pthread_setname_np(f->thread, "hy-fabric");
    f->has_thread = true;
    return HY_OK;
}

void hy_fab__drive_stop(hy_fab *f)
{
    if (f->has_thread) {
        atomic_store(&f->stop, true);
        f->ct->wake(f->ctx);
        pthread_join(f->thread, NULL);
        f->has_thread = false;
    }
    if (f->stage != NULL && hy_runtime_mode_get(f->o.runtime) == HY_RUNTIME_VIRTUAL)
        hy_runtime_kill(f->o.runtime, f->stage); /* the loop's net frees it, after the runtime */
}
