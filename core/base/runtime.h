/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs stages: each on its own thread under the real clock, or all in the caller's thread under
 * virtual time. Virtual: whenever several stages could run, the seed picks one; when none can,
 * the clock jumps to the next timer. So one seed is one order of events, and can be replayed.
 *
 * Thread: one controlling thread; hy_runtime_failed from any.
 * Owner: the creator destroys the runtime before the stages it was given.
 */
#ifndef HY_BASE_RUNTIME_H
#define HY_BASE_RUNTIME_H

#include "core/base/stage.h"

typedef enum hy_runtime_mode {
    HY_RUNTIME_THREADS,
    HY_RUNTIME_VIRTUAL,
} hy_runtime_mode;

typedef struct hy_runtime hy_runtime;

/* NULL when out of memory. */
hy_runtime *hy_runtime_create(hy_runtime_mode mode, uint64_t seed);
void hy_runtime_destroy(hy_runtime *rt); /* NULL is fine; stops first */

/* Before start (virtual: at any time). Borrowed: stages outlive the runtime. */
hy_status hy_runtime_add(hy_runtime *rt, hy_stage *s);

/* Calls every on_start; threads begin to run. When one fails, all are stopped again. */
hy_status hy_runtime_start(hy_runtime *rt);
/* Calls every on_drain and waits until no stage has a message or is busy, at most timeout_ns:
 * HY_OK, or HY_E_TIMEOUT naming a stage that is not done. The stages still run afterwards. */
hy_status hy_runtime_drain(hy_runtime *rt, uint64_t timeout_ns);
/* Closes mailboxes, delivers what is inside, calls every on_stop, in the order of adding. */
void hy_runtime_stop(hy_runtime *rt);
/* Stop one stage at once, as a crash would: undelivered messages and timers are dropped, on_stop
 * is not called, later posts answer HY_E_ABORTED. Virtual time only. */
void hy_runtime_kill(hy_runtime *rt, hy_stage *s);

/* Until no stage has a message, a timer or a deadline, or limit_ns went by (HY_E_TIMEOUT).
 * Threads: until no message is left; timers ahead do not count. */
hy_status hy_runtime_run_until_idle(hy_runtime *rt, uint64_t limit_ns);
/* Virtual: handle all events of the next ns; threads: sleep that long. HY_E_BUSY names a stage
 * that wants to run for ever without time passing. */
hy_status hy_runtime_run_for(hy_runtime *rt, uint64_t ns);
/* Virtual: one event at or before until_ns. HY_END when there is none. */
hy_status hy_runtime_step(hy_runtime *rt, uint64_t until_ns);

hy_clock *hy_runtime_clock(hy_runtime *rt);
hy_runtime_mode hy_runtime_mode_get(const hy_runtime *rt);

/* HY_OK, or the first failure of node scope that a handler returned; its text in *text_out
 * (may be NULL), borrowed from the runtime. */
hy_status hy_runtime_failed(hy_runtime *rt, const char **text_out);
/* Called once on that failure, on the stage's thread. Set before start. */
void hy_runtime_on_fail(hy_runtime *rt, void (*fn)(void *arg), void *arg);

/* Virtual: called after every handled message and timer, with its kind: for invariants. */
typedef void (*hy_runtime_observer)(void *arg, uint64_t now_ns, hy_stage *s, int kind);
void hy_runtime_observe(hy_runtime *rt, hy_runtime_observer fn, void *arg);

/* Threads: warn about a stage that is in one handler longer than this (default 10 s, 0: off).
 * Set before start. */
void hy_runtime_set_watch(hy_runtime *rt, uint64_t limit_ns);

#endif
