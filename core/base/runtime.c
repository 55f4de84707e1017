/* SPDX-License-Identifier: Apache-2.0
 *
 * What both ways of running have in common.
 *
 * Thread: see runtime.h.  Owner: the runtime owns its clock (virtual) and its watchdog.
 */
#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "core/base/stage_int.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

hy_runtime *hy_runtime_create(hy_runtime_mode mode, uint64_t seed)
{
    hy_runtime *rt = hy_calloc(1, sizeof(*rt));
    if (rt == NULL)
        return NULL;
    rt->mode = mode;
    rt->seed = seed;
    rt->watch_ns = 10 * HY_SEC;
    rt->clock = mode == HY_RUNTIME_VIRTUAL ? hy_clock_create_virtual(HY_SEC) : hy_clock_real();
    if (rt->clock == NULL) {
        hy_free(rt);
        return NULL;
    }
    hy_rng_init(&rt->rng, seed);
    hy_timers_init(&rt->wakes);
    pthread_mutex_init(&rt->lock, NULL);
    pthread_cond_init(&rt->cond, NULL);
    return rt;
}

void hy_runtime_destroy(hy_runtime *rt)
{
    if (rt == NULL)
        return;
    hy_runtime_stop(rt);
    for (size_t i = 0; i < rt->n_stages; i++) {
        hy_mbox_set_notify(rt->stages[i]->mbox, NULL, NULL);
        rt->stages[i]->rt = NULL;
        rt->stages[i]->clock = hy_clock_real();
    }
    hy_timers_fini(&rt->wakes);
    hy_watch_destroy(rt->watch);
    hy_clock_destroy(rt->clock);
    pthread_cond_destroy(&rt->cond);
    pthread_mutex_destroy(&rt->lock);
    hy_free(rt->ready);
    hy_free(rt->stages);
    hy_free(rt);
}

static void on_post(void *arg)
{
    hy_stage *s = arg;
    hy_virtual__ready(s->rt, s);
}

hy_status hy_runtime_add(hy_runtime *rt, hy_stage *s)
{
    HY_ASSERT(s->rt == NULL);
    HY_ASSERT(!rt->started || rt->mode == HY_RUNTIME_VIRTUAL);
    if (rt->n_stages == rt->cap_stages) {
        size_t cap = rt->cap_stages != 0 ? rt->cap_stages * 2 : 8;
        hy_stage **p = hy_realloc(rt->stages, cap * sizeof(hy_stage *));
        if (p != NULL)
            rt->stages = p;
        hy_stage **q = hy_realloc(rt->ready, cap * sizeof(hy_stage *));
        if (q != NULL)
            rt->ready = q;
        if (p == NULL || q == NULL)
            return hy_fail(HY_E_NOMEM, "out of memory for stage %s", s->name);
        rt->cap_stages = cap;
    }
    rt->stages[rt->n_stages++] = s;
    s->rt = rt;
    s->clock = rt->clock;
    hy_rng_init(&s->rng, hy_xxh64(s->name, strlen(s->name), rt->seed));
    if (rt->mode != HY_RUNTIME_VIRTUAL)
        return HY_OK;
    hy_mbox_set_notify(s->mbox, on_post, s);
    return rt->started ? hy_virtual__start_one(rt, s) : HY_OK;
}

hy_status hy_runtime_start(hy_runtime *rt)
{
    HY_ASSERT(!rt->started);
    rt->started = true;
    hy_status st = HY_OK;
    if (rt->mode == HY_RUNTIME_THREADS)
        st = hy_threads__start(rt);
    else
        for (size_t i = 0; i < rt->n_stages && st == HY_OK; i++)
            st = hy_virtual__start_one(rt, rt->stages[i]);
    if (st < 0) {
        char text[1024]; /* on_stop handlers may fail with texts of their own */
        snprintf(text, sizeof(text), "%s", hy_fail_text());
        hy_runtime_stop(rt);
        return hy_fail(st, "%s", text);
    }
    return HY_OK;
}

hy_status hy_runtime_drain(hy_runtime *rt, uint64_t timeout_ns)
{
    if (!rt->started)
        return HY_OK;
    for (size_t i = 0; i < rt->n_stages; i++) {
        hy_stage *s = rt->stages[i];
        atomic_store(&s->drain_asked, true);
        hy_mbox_wake(s->mbox); /* under virtual time this makes it ready, too */
    }
    return rt->mode == HY_RUNTIME_THREADS ? hy_threads__quiet(rt, timeout_ns)
                                          : hy_virtual__drain(rt, timeout_ns);
}

void hy_runtime_stop(hy_runtime *rt)
{
    if (!rt->started)
        return;
    if (rt->mode == HY_RUNTIME_THREADS)
        hy_threads__stop(rt);
    else
        hy_virtual__stop(rt);
    rt->started = false;
}

hy_clock *hy_runtime_clock(hy_runtime *rt)
{
    return rt->clock;
}

hy_runtime_mode hy_runtime_mode_get(const hy_runtime *rt)
{
    return rt->mode;
}

hy_status hy_runtime_failed(hy_runtime *rt, const char **text_out)
{
    pthread_mutex_lock(&rt->lock);
    hy_status st = rt->failed;
    pthread_mutex_unlock(&rt->lock);
    if (text_out != NULL)
        *text_out = st < 0 ? rt->text : "";
    return st;
}

void hy_runtime_on_fail(hy_runtime *rt, void (*fn)(void *arg), void *arg)
{
    rt->on_fail = fn;
    rt->on_fail_arg = arg;
}

void hy_runtime_observe(hy_runtime *rt, hy_runtime_observer fn, void *arg)
{
    rt->observer = fn;
    rt->observer_arg = arg;
}

void hy_runtime_set_watch(hy_runtime *rt, uint64_t limit_ns)
{
    rt->watch_ns = limit_ns;
}

void hy_runtime__handled(hy_runtime *rt, hy_stage *s, int kind)
{
    if (rt->observer != NULL && rt->mode == HY_RUNTIME_VIRTUAL)
        rt->observer(rt->observer_arg, hy_clock_now_ns(rt->clock), s, kind);
}

void hy_runtime__fail(hy_runtime *rt, hy_status st)
{
    pthread_mutex_lock(&rt->lock);
    bool first = rt->failed == HY_OK;
    if (first) {
        rt->failed = st;
        snprintf(rt->text, sizeof(rt->text), "%s", hy_fail_text());
    }
    pthread_mutex_unlock(&rt->lock);
    if (first && rt->on_fail != NULL)
        rt->on_fail(rt->on_fail_arg);
}

void hy_runtime__poke(hy_runtime *rt, hy_stage *s)
{
    if (rt->mode == HY_RUNTIME_VIRTUAL)
        hy_virtual__ready(rt, s);
}
