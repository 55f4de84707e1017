/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of a stage, for stage.c and the two runtimes only.
 *
 * Thread: the stage's own, but for the atomics.  Owner: see stage.h.
 */
#ifndef HY_BASE_STAGE_INT_H
#define HY_BASE_STAGE_INT_H

#include "core/base/runtime.h"
#include "core/base/timer.h"
#include "core/base/watch.h"

#include <pthread.h>
#include <stdatomic.h>

struct hy_stage {
    char name[48];
    hy_stage_ops ops;
    void *self;
    hy_mbox *mbox;
    hy_timers timers;
    hy_clock *clock;
    hy_rng rng;
    hy_watch_note note;
    hy_runtime *rt;
    unsigned since_idle; /* events since on_idle ran */
    bool timer_last;     /* the last event was a timer: a message goes first now */
    _Atomic uint64_t handled, failed;
    _Atomic bool drain_asked;
    /* threads */
    pthread_t thread;
    bool has_thread;
    _Atomic bool active;  /* between waking up and going to sleep */
    _Atomic bool is_busy; /* what ops.busy said before going to sleep */
    /* virtual time */
    bool running, started, stopped;
    size_t ready_pos; /* HY_STAGE__NOT_READY, or index in the runtime's ready set */
    uint64_t wake_id; /* entry in the runtime's wake queue; 0: none */
};

#define HY_STAGE__NOT_READY SIZE_MAX

typedef enum hy_turn {
    HY_TURN_RAN,  /* did something: call again */
    HY_TURN_IDLE, /* nothing until *wake_ns or a post */
    HY_TURN_END,  /* closed and empty */
} hy_turn;

/* One event of the stage: a timer, a message, a drain request or on_idle. */
hy_turn hy_stage__turn(hy_stage *s, uint64_t *wake_ns);
bool hy_stage__busy(hy_stage *s);

struct hy_runtime {
    hy_runtime_mode mode;
    uint64_t seed;
    hy_clock *clock;
    hy_stage **stages;
    size_t n_stages, cap_stages;
    bool started;
    hy_watch *watch;
    uint64_t watch_ns;
    hy_runtime_observer observer;
    void *observer_arg;
    void (*on_fail)(void *arg);
    void *on_fail_arg;
    pthread_mutex_t lock; /* what follows, up to virtual */
    pthread_cond_t cond;
    hy_status start_st; /* result of the on_start now running: HY_PENDING until it is known */
    hy_status failed;
    char text[1024];
    /* virtual time */
    hy_rng rng;
    hy_stage **ready;
    size_t n_ready;
    hy_timers wakes;               /* message data: the stage */
    uint64_t turns_now, idles_now; /* since the clock moved; idle turns since work was done */
};

void hy_runtime__handled(hy_runtime *rt, hy_stage *s, int kind);
void hy_runtime__fail(hy_runtime *rt, hy_status st);
/* A timer was set from outside the stage's turn. */
void hy_runtime__poke(hy_runtime *rt, hy_stage *s);

hy_status hy_threads__start(hy_runtime *rt);
hy_status hy_threads__quiet(hy_runtime *rt, uint64_t limit_ns);
void hy_threads__stop(hy_runtime *rt);

hy_status hy_virtual__start_one(hy_runtime *rt, hy_stage *s);
hy_status hy_virtual__drain(hy_runtime *rt, uint64_t limit_ns);
void hy_virtual__stop(hy_runtime *rt);
void hy_virtual__ready(hy_runtime *rt, hy_stage *s);

#endif
