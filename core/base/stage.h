/* SPDX-License-Identifier: Apache-2.0
 *
 * A stage: a name, one bounded mailbox, timers and a handler table. Its handlers run one at a
 * time, so its state needs no lock. The same stage runs on a thread of its own or, with all
 * others, in one thread under virtual time (core/base/runtime.h); it never knows which.
 *
 * A stage reads time only from hy_stage_now, randomness only from hy_stage_rng.
 *
 * Thread: post from any; timers, notes and rng from the stage's own handlers (or before start).
 * Owner: the creator destroys the stage, after its runtime was stopped; what `self` points to
 * stays the creator's.
 */
#ifndef HY_BASE_STAGE_H
#define HY_BASE_STAGE_H

#include "core/base/clock.h"
#include "core/base/mbox.h"
#include "core/base/rng.h"

typedef struct hy_stage hy_stage;

/* All but on_msg may be NULL. Every handler runs in the stage's turn. */
typedef struct hy_stage_ops {
    /* Once, before the first message. A failure fails hy_runtime_start. */
    hy_status (*on_start)(void *self);
    /* A message or a due timer. The handler owns msg->data from here on (hy_msg_drop frees it).
     * A failure is logged with its text and counted; one of node scope fails the runtime. */
    hy_status (*on_msg)(void *self, hy_msg *msg);
    /* The mailbox is empty (or 64 messages went by without it): do background work. Returns when
     * to be called again if no message comes: now_ns for "at once", HY_NEVER for "when a message
     * or timer comes". */
    uint64_t (*on_idle)(void *self, uint64_t now_ns);
    /* Drain was asked: take no new work from outside, finish what is there. */
    void (*on_drain)(void *self);
    /* True while work is held that will go on by itself: drain waits for it. */
    bool (*busy)(void *self);
    /* Once, after the last message. */
    void (*on_stop)(void *self);
    /* Threads only: sleep instead of the mailbox's own wait, until hy_mbox_fd is readable or
     * CLOCK_MONOTONIC reaches deadline_ns; for stages that live in an event loop. Never called
     * under virtual time. */
    void (*wait)(void *self, uint64_t deadline_ns);
} hy_stage_ops;

/* name is copied. slots: ordinary mailbox slots; reserved: more, for completions and releases.
 * NULL when out of memory. */
hy_stage *hy_stage_create(const char *name, const hy_stage_ops *ops, void *self, size_t slots,
                          size_t reserved);
void hy_stage_destroy(hy_stage *s); /* NULL is fine; drops undelivered messages and timers */

const char *hy_stage_name(const hy_stage *s);
hy_mbox *hy_stage_mbox(hy_stage *s);

/* As hy_mbox_post: HY_OK moved, HY_AGAIN full, HY_E_ABORTED stopped. */
hy_status hy_stage_post(hy_stage *s, const hy_msg *msg);
hy_status hy_stage_post_reserved(hy_stage *s, const hy_msg *msg);

/* Deliver msg to this stage's on_msg at at_ns (its clock), without a mailbox slot; equal times
 * in order of setting. Moves the message on HY_OK; *id_out (may be NULL) is for cancel, never 0. */
hy_status hy_stage_timer(hy_stage *s, uint64_t at_ns, const hy_msg *msg, uint64_t *id_out);
/* Drops the message. False when it was already delivered or never was. */
bool hy_stage_timer_cancel(hy_stage *s, uint64_t id);

/* Set by hy_runtime_add; the real clock before. */
hy_clock *hy_stage_clock(hy_stage *s);
uint64_t hy_stage_now(hy_stage *s);
/* Seeded from the runtime's seed and the stage's name. */
hy_rng *hy_stage_rng(hy_stage *s);

/* What the stage is doing, for the watchdog: a string that lives forever. It holds until the
 * handler returns. */
void hy_stage_note(hy_stage *s, const char *what);

/* Handlers run so far, and how many of them failed. */
uint64_t hy_stage_handled(const hy_stage *s);
uint64_t hy_stage_failed(const hy_stage *s);

#endif
