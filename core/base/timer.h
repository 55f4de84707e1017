/* SPDX-License-Identifier: Apache-2.0
 *
 * Timer queue: messages ordered by time, equal times in order of adding; cancel by id. A binary
 * heap over slots, so that add, cancel and pop cost O(log n).
 *
 * Thread: one at a time.  Owner: the queue owns its messages until they are popped.
 */
#ifndef HY_BASE_TIMER_H
#define HY_BASE_TIMER_H

#include "core/base/mbox.h"

typedef struct hy_timers {
    struct hy_timer_slot *slots;
    uint32_t *heap; /* slot numbers */
    uint32_t n_slots, n_heap, free_head;
    uint64_t seq;
} hy_timers;

void hy_timers_init(hy_timers *t);
void hy_timers_fini(hy_timers *t); /* drops the messages */
/* Moves msg on HY_OK; *id_out may be NULL, an id is never 0. HY_E_NOMEM. */
hy_status hy_timers_add(hy_timers *t, uint64_t at_ns, const hy_msg *msg, uint64_t *id_out);
/* Drops the message; false when the id is not waiting. */
bool hy_timers_cancel(hy_timers *t, uint64_t id);
/* Earliest time, HY_NEVER when empty. */
uint64_t hy_timers_next(const hy_timers *t);
/* Takes the earliest if it is due at now_ns. */
bool hy_timers_pop(hy_timers *t, uint64_t now_ns, hy_msg *out);

#endif
