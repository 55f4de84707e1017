/* SPDX-License-Identifier: Apache-2.0
 *
 * One turn of a stage, the same for threads and virtual time.
 *
 * Thread: see stage.h.  Owner: see stage.h.
 */
#include "core/base/stage_int.h"
#include "core/base/alloc.h"
#include "core/base/log.h"

#include <stdio.h>

enum { MOST_WITHOUT_IDLE = 64 };

hy_stage *hy_stage_create(const char *name, const hy_stage_ops *ops, void *self, size_t slots,
                          size_t reserved)
{
    HY_ASSERT(ops->on_msg != NULL);
    hy_stage *s = hy_calloc(1, sizeof(*s));
    if (s == NULL)
        return NULL;
    s->mbox = hy_mbox_create(slots, reserved);
    if (s->mbox == NULL) {
        hy_free(s);
        return NULL;
    }
    snprintf(s->name, sizeof(s->name), "%s", name);
    s->ops = *ops;
    s->self = self;
    s->clock = hy_clock_real();
    s->ready_pos = HY_STAGE__NOT_READY;
    hy_timers_init(&s->timers);
    hy_rng_init(&s->rng, 0);
    return s;
}

void hy_stage_destroy(hy_stage *s)
{
    if (s == NULL)
        return;
    HY_ASSERT(!s->has_thread && "stop the runtime before destroying a stage");
    hy_timers_fini(&s->timers);
    hy_mbox_destroy(s->mbox);
    hy_free(s);
}

const char *hy_stage_name(const hy_stage *s)
{
    return s->name;
}

hy_mbox *hy_stage_mbox(hy_stage *s)
{
    return s->mbox;
}

hy_status hy_stage_post(hy_stage *s, const hy_msg *msg)
{
    return hy_mbox_post(s->mbox, msg);
}

hy_status hy_stage_post_reserved(hy_stage *s, const hy_msg *msg)
{
    return hy_mbox_post_reserved(s->mbox, msg);
}

hy_status hy_stage_timer(hy_stage *s, uint64_t at_ns, const hy_msg *msg, uint64_t *id_out)
{
    if (s->stopped)
        return hy_fail(HY_E_ABORTED, "stage %s has stopped", s->name);
    HY_TRY(hy_timers_add(&s->timers, at_ns, msg, id_out));
    if (s->rt != NULL && !s->running)
        hy_runtime__poke(s->rt, s);
    return HY_OK;
}

bool hy_stage_timer_cancel(hy_stage *s, uint64_t id)
{
    return hy_timers_cancel(&s->timers, id);
}

hy_clock *hy_stage_clock(hy_stage *s)
{
    return s->clock;
}

uint64_t hy_stage_now(hy_stage *s)
{
    return hy_clock_now_ns(s->clock);
}

hy_rng *hy_stage_rng(hy_stage *s)
{
    return &s->rng;
}

void hy_stage_note(hy_stage *s, const char *what)
{
    atomic_store_explicit(&s->note.what, what, memory_order_release);
}

uint64_t hy_stage_handled(const hy_stage *s)
{
    return atomic_load_explicit(&s->handled, memory_order_relaxed);
}

uint64_t hy_stage_failed(const hy_stage *s)
{
    return atomic_load_explicit(&s->failed, memory_order_relaxed);
}

bool hy_stage__busy(hy_stage *s)
{
    return s->ops.busy != NULL && s->ops.busy(s->self);
}

static void handle(hy_stage *s, hy_msg *msg, uint64_t now)
{
    int kind = msg->kind;
    s->since_idle++;
    hy_watch_begin(&s->note, "message of kind", kind, now);
    hy_status st = s->ops.on_msg(s->self, msg);
    hy_watch_end(&s->note);
    atomic_fetch_add_explicit(&s->handled, 1, memory_order_relaxed);
    if (st < 0) {
        atomic_fetch_add_explicit(&s->failed, 1, memory_order_relaxed);
        hy_error(s->name, "message %d: %s (%s)", kind, hy_fail_text(), hy_status_name(st));
        if (s->rt != NULL && hy_status_scope(st) == HY_SCOPE_NODE)
            hy_runtime__fail(s->rt, st);
    }
    if (s->rt != NULL)
        hy_runtime__handled(s->rt, s, kind);
}

/* Due timers and messages take turns, so that neither can starve the other. */
static bool take(hy_stage *s, uint64_t now, hy_msg *out, bool *ended)
{
    *ended = false;
    if (!s->timer_last && hy_timers_pop(&s->timers, now, out)) {
        s->timer_last = true;
        return true;
    }
    s->timer_last = false;
    hy_status st = hy_mbox_take(s->mbox, out);
    if (st == HY_OK)
        return true;
    *ended = st == HY_END;
    return !*ended && hy_timers_pop(&s->timers, now, out);
}

static hy_turn turn(hy_stage *s, uint64_t *wake_ns)
{
    uint64_t now = hy_clock_now_ns(s->clock);
    hy_msg msg;
    bool ended = false;
    if (atomic_exchange(&s->drain_asked, false)) {
        hy_watch_begin(&s->note, "drain", 0, now);
        if (s->ops.on_drain != NULL)
            s->ops.on_drain(s->self);
        hy_watch_end(&s->note);
        return HY_TURN_RAN;
    }
    if (s->since_idle < MOST_WITHOUT_IDLE && take(s, now, &msg, &ended)) {
        if (msg.at_ns <= now) {
            handle(s, &msg, now);
            return HY_TURN_RAN;
        }
        uint64_t at = msg.at_ns; /* came ahead of its time */
        if (hy_timers_add(&s->timers, at, &msg, NULL) != HY_OK) {
            hy_error(s->name, "message %d lost: %s", msg.kind, hy_fail_text());
            hy_msg_drop(&msg);
        }
        return HY_TURN_RAN;
    }
    if (ended)
        return HY_TURN_END;
    bool forced = s->since_idle >= MOST_WITHOUT_IDLE;
    uint64_t next = HY_NEVER;
    s->since_idle = 0;
    if (s->ops.on_idle != NULL) {
        hy_watch_begin(&s->note, "idle work", 0, now);
        next = s->ops.on_idle(s->self, now);
        hy_watch_end(&s->note);
    }
    uint64_t timer = hy_timers_next(&s->timers);
    *wake_ns = next < timer ? next : timer;
    return forced ? HY_TURN_RAN : HY_TURN_IDLE;
}

hy_turn hy_stage__turn(hy_stage *s, uint64_t *wake_ns)
{
    s->running = true;
    hy_turn t = turn(s, wake_ns);
    s->running = false;
    return t;
}
