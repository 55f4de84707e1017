/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages on threads of their own, under the real clock.
 *
 * Thread: start, quiet and stop from the controlling thread.  Owner: the runtime.
 */
#include "core/base/alloc.h"
#include "core/base/stage_int.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void tell_start(hy_runtime *rt, hy_status st)
{
    pthread_mutex_lock(&rt->lock);
    rt->start_st = st;
    if (st < 0)
        snprintf(rt->text, sizeof(rt->text), "%s", hy_fail_text());
    pthread_cond_signal(&rt->cond);
    pthread_mutex_unlock(&rt->lock);
}

static void loop(hy_stage *s)
{
    uint64_t wake = HY_NEVER;
    for (;;) {
        hy_turn t = hy_stage__turn(s, &wake);
        if (t == HY_TURN_END)
            return;
        if (t == HY_TURN_RAN || wake <= hy_clock_now_ns(s->clock))
            continue;
        atomic_store(&s->is_busy, hy_stage__busy(s));
        atomic_store(&s->active, false);
        if (s->ops.wait != NULL)
            s->ops.wait(s->self, wake);
        else
            hy_mbox_wait(s->mbox, wake);
        atomic_store(&s->active, true);
    }
}

static void *stage_main(void *arg)
{
    hy_stage *s = arg;
    hy_status st = HY_OK;
    hy_watch_begin(&s->note, "start", 0, hy_stage_now(s));
    if (s->ops.on_start != NULL)
        st = s->ops.on_start(s->self);
    hy_watch_end(&s->note);
    s->started = st >= 0;
    tell_start(s->rt, st < 0 ? st : HY_OK);
    if (st < 0)
        return NULL;
    loop(s);
    hy_watch_begin(&s->note, "stop", 0, hy_stage_now(s));
    if (s->ops.on_stop != NULL)
        s->ops.on_stop(s->self);
    hy_watch_end(&s->note);
    atomic_store(&s->is_busy, false);
    atomic_store(&s->active, false);
    return NULL;
}

static hy_status start_one(hy_runtime *rt, hy_stage *s)
{
    rt->start_st = HY_PENDING;
    atomic_store(&s->active, true);
    int rc = pthread_create(&s->thread, NULL, stage_main, s);
    if (rc != 0)
        return hy_fail(HY_E_SYS, "cannot start a thread for stage %s: %s", s->name, strerror(rc));
    s->has_thread = true;
    char name[16]; /* the kernel's limit */
    snprintf(name, sizeof(name), "hy-%.12s", s->name);
    pthread_setname_np(s->thread, name);
    pthread_mutex_lock(&rt->lock);
    while (rt->start_st == HY_PENDING)
        pthread_cond_wait(&rt->cond, &rt->lock);
    hy_status st = rt->start_st;
    pthread_mutex_unlock(&rt->lock);
    return st < 0 ? hy_fail(st, "stage %s: %s", s->name, rt->text) : HY_OK;
}

hy_status hy_threads__start(hy_runtime *rt)
{
    if (rt->watch_ns != 0 && rt->watch == NULL)
        rt->watch = hy_watch_create(rt->clock, rt->watch_ns);
    for (size_t i = 0; i < rt->n_stages && rt->watch != NULL; i++)
        hy_watch_add(rt->watch, &rt->stages[i]->note, rt->stages[i]->name);
    /* signals belong to the controlling thread */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    hy_status st = rt->watch != NULL ? hy_watch_start(rt->watch) : HY_OK;
    for (size_t i = 0; i < rt->n_stages && st == HY_OK; i++)
        st = start_one(rt, rt->stages[i]);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return st;
}

/* Index of the first stage that is not quiet, n_stages if none; *posted: all messages ever. The
 * mailbox is looked at before the flag: a stage raises its flag before it takes a message. */
static size_t scan(hy_runtime *rt, uint64_t *posted)
{
    size_t first = rt->n_stages;
    *posted = 0;
    for (size_t i = 0; i < rt->n_stages; i++) {
        hy_stage *s = rt->stages[i];
        *posted += hy_mbox_posted(s->mbox);
        bool quiet = hy_mbox_len(s->mbox) == 0 && !atomic_load(&s->drain_asked) &&
                     !atomic_load(&s->active) && !atomic_load(&s->is_busy);
        if (!quiet && first == rt->n_stages)
            first = i;
    }
    return first;
}

/* Two quiet scans with no post between them: nobody could have been woken in the meantime. */
hy_status hy_threads__quiet(hy_runtime *rt, uint64_t limit_ns)
{
    uint64_t end = hy_clock_after(hy_clock_now_ns(rt->clock), limit_ns);
    for (;;) {
        uint64_t p1, p2;
        size_t first = scan(rt, &p1);
        if (first == rt->n_stages && scan(rt, &p2) == rt->n_stages && p1 == p2)
            return HY_OK;
        if (hy_clock_now_ns(rt->clock) >= end)
            return hy_fail(HY_E_TIMEOUT, "stage %s is not done after %.1f s",
                           first < rt->n_stages ? rt->stages[first]->name : "(several)",
                           (double)limit_ns / 1e9);
        nanosleep(&(struct timespec){0, 300000}, NULL);
    }
}

void hy_threads__stop(hy_runtime *rt)
{
    for (size_t i = 0; i < rt->n_stages; i++) {
        hy_stage *s = rt->stages[i];
        hy_mbox_close(s->mbox);
        if (s->has_thread)
            pthread_join(s->thread, NULL);
        s->has_thread = false;
        if (rt->watch != NULL)
            hy_watch_remove(rt->watch, &s->note);
    }
    if (rt->watch != NULL)
        hy_watch_stop(rt->watch);
}
