/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual-time scheduler: all stages in one thread. The seed picks among the stages that could
 * run; when none can, the clock jumps to the earliest wake-up.
 *
 * Thread: the controlling one.  Owner: the runtime.
 */
#include "core/base/log.h"
#include "core/base/stage_int.h"

#include <time.h>

/* A stage that asks to run "at once" again and again, or stages that post in a circle, would keep
 * time from passing: a bug that must not look like a hang. */
enum { MOST_IDLES = 200000, MOST_TURNS = 20000000 };

void hy_virtual__ready(hy_runtime *rt, hy_stage *s)
{
    if (s->stopped || !s->started || s->ready_pos != HY_STAGE__NOT_READY)
        return;
    s->ready_pos = rt->n_ready;
    rt->ready[rt->n_ready++] = s;
}

static void unready(hy_runtime *rt, hy_stage *s)
{
    if (s->ready_pos == HY_STAGE__NOT_READY)
        return;
    hy_stage *last = rt->ready[--rt->n_ready];
    rt->ready[s->ready_pos] = last;
    last->ready_pos = s->ready_pos;
    s->ready_pos = HY_STAGE__NOT_READY;
}

static hy_status set_wake(hy_runtime *rt, hy_stage *s, uint64_t at_ns)
{
    if (s->wake_id != 0)
        hy_timers_cancel(&rt->wakes, s->wake_id);
    s->wake_id = 0;
    if (at_ns == HY_NEVER)
        return HY_OK;
    const hy_msg m = {.data = s};
    return hy_timers_add(&rt->wakes, at_ns, &m, &s->wake_id);
}

hy_status hy_virtual__start_one(hy_runtime *rt, hy_stage *s)
{
    hy_status st = s->ops.on_start != NULL ? s->ops.on_start(s->self) : HY_OK;
    if (st < 0)
        return hy_fail_in(st, "stage %s: ", s->name);
    s->started = true;
    hy_virtual__ready(rt, s);
    return HY_OK;
}

static hy_status count_turn(hy_runtime *rt, hy_stage *s, bool idle)
{
    rt->turns_now++;
    rt->idles_now = idle ? rt->idles_now + 1 : 0;
    if (rt->idles_now > MOST_IDLES + 2 * rt->n_stages || rt->turns_now > MOST_TURNS)
        return hy_fail(HY_E_BUSY, "stage %s keeps running while virtual time stands still at %llu",
                       s->name, (unsigned long long)hy_clock_now_ns(rt->clock));
    return HY_OK;
}

static void wake_due(hy_runtime *rt)
{
    hy_msg m;
    while (hy_timers_pop(&rt->wakes, hy_clock_now_ns(rt->clock), &m)) {
        hy_stage *s = m.data;
        s->wake_id = 0;
        hy_virtual__ready(rt, s);
    }
}

hy_status hy_runtime_step(hy_runtime *rt, uint64_t until_ns)
{
    HY_ASSERT(rt->mode == HY_RUNTIME_VIRTUAL && rt->started);
    if (rt->n_ready == 0) {
        uint64_t next = hy_timers_next(&rt->wakes);
        if (next == HY_NEVER || next > until_ns)
            return HY_END;
        if (next > hy_clock_now_ns(rt->clock))
            rt->turns_now = rt->idles_now = 0;
        hy_clock_advance_to(rt->clock, next);
    }
    wake_due(rt);
    hy_stage *s = rt->ready[hy_rng_below(&rt->rng, rt->n_ready)];
    unready(rt, s);
    uint64_t wake = HY_NEVER;
    hy_turn t = hy_stage__turn(s, &wake);
    if (s->stopped) /* killed from inside its own turn */
        return HY_OK;
    if (t == HY_TURN_RAN || (t == HY_TURN_IDLE && wake <= hy_clock_now_ns(rt->clock)))
        hy_virtual__ready(rt, s);
    else if (t == HY_TURN_IDLE)
        HY_TRY(set_wake(rt, s, wake));
    return count_turn(rt, s, t == HY_TURN_IDLE);
}

hy_status hy_runtime_run_until_idle(hy_runtime *rt, uint64_t limit_ns)
{
    if (rt->mode == HY_RUNTIME_THREADS)
        return hy_threads__quiet(rt, limit_ns);
    uint64_t until = hy_clock_after(hy_clock_now_ns(rt->clock), limit_ns);
    hy_status st;
    while ((st = hy_runtime_step(rt, until)) == HY_OK)
        ;
    if (st < 0)
        return st;
    if (hy_timers_next(&rt->wakes) == HY_NEVER)
        return HY_OK;
    hy_clock_advance_to(rt->clock, until);
    return hy_fail(HY_E_TIMEOUT, "stages still have timers after %.3f s of virtual time",
                   (double)limit_ns / 1e9);
}

hy_status hy_runtime_run_for(hy_runtime *rt, uint64_t ns)
{
    if (rt->mode == HY_RUNTIME_THREADS) {
        struct timespec left = {(time_t)(ns / HY_SEC), (long)(ns % HY_SEC)};
        while (nanosleep(&left, &left) != 0)
            ;
        return HY_OK;
    }
    uint64_t until = hy_clock_after(hy_clock_now_ns(rt->clock), ns);
    hy_status st;
    while ((st = hy_runtime_step(rt, until)) == HY_OK)
        ;
    if (st < 0)
        return st;
    hy_clock_advance_to(rt->clock, until);
    rt->turns_now = rt->idles_now = 0;
    return HY_OK;
}

static hy_stage *first_unquiet(hy_runtime *rt)
{
    for (size_t i = 0; i < rt->n_stages; i++) {
        hy_stage *s = rt->stages[i];
        if (!s->stopped &&
            (hy_mbox_len(s->mbox) != 0 || atomic_load(&s->drain_asked) || hy_stage__busy(s)))
            return s;
    }
    return NULL;
}

hy_status hy_virtual__drain(hy_runtime *rt, uint64_t limit_ns)
{
    uint64_t until = hy_clock_after(hy_clock_now_ns(rt->clock), limit_ns);
    hy_stage *s;
    while ((s = first_unquiet(rt)) != NULL) {
        hy_status st = hy_runtime_step(rt, until);
        if (st < 0)
            return st;
        if (st == HY_END)
            return hy_fail(HY_E_TIMEOUT, "stage %s is not done after %.1f s", s->name,
                           (double)limit_ns / 1e9);
    }
    return HY_OK;
}

void hy_virtual__stop(hy_runtime *rt)
{
    for (size_t i = 0; i < rt->n_stages; i++) {
        hy_stage *s = rt->stages[i];
        if (s->stopped)
            continue;
        hy_mbox_close(s->mbox);
        uint64_t wake;
        while (s->started && hy_stage__turn(s, &wake) != HY_TURN_END)
            ;
        if (s->started && s->ops.on_stop != NULL)
            s->ops.on_stop(s->self);
        unready(rt, s);
        set_wake(rt, s, HY_NEVER);
        s->stopped = true;
    }
}

void hy_runtime_kill(hy_runtime *rt, hy_stage *s)
{
    HY_ASSERT(rt->mode == HY_RUNTIME_VIRTUAL && s->rt == rt);
    if (s->stopped)
        return;
    s->stopped = true;
    hy_mbox_close(s->mbox);
    hy_msg m;
    while (hy_mbox_take(s->mbox, &m) == HY_OK)
        hy_msg_drop(&m);
    hy_timers_fini(&s->timers);
    unready(rt, s);
    set_wake(rt, s, HY_NEVER);
    hy_debug("runtime", "stage %s killed", s->name);
}
