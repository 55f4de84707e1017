/* SPDX-License-Identifier: Apache-2.0
 *
 * Timer queue: heap of slot numbers, ordered by (time, sequence). An id is (generation, slot), so
 * that an old id never cancels a newer timer.
 *
 * Thread: one at a time.  Owner: the queue owns waiting messages.
 */
#include "core/base/timer.h"
#include "core/base/alloc.h"
#include "core/base/clock.h"

#include <string.h>

typedef struct hy_timer_slot {
    hy_msg msg;
    uint64_t at_ns, seq;
    uint32_t gen;  /* of the id; never 0 */
    uint32_t pos;  /* in the heap; NOWHERE when free */
    uint32_t next; /* free list */
} slot;

#define NOWHERE UINT32_MAX

void hy_timers_init(hy_timers *t)
{
    memset(t, 0, sizeof(*t));
    t->free_head = NOWHERE;
}

void hy_timers_fini(hy_timers *t)
{
    for (uint32_t i = 0; i < t->n_heap; i++)
        hy_msg_drop(&t->slots[t->heap[i]].msg);
    hy_free(t->slots);
    hy_free(t->heap);
    hy_timers_init(t);
}

static bool before(const hy_timers *t, uint32_t a, uint32_t b)
{
    const slot *x = &t->slots[a], *y = &t->slots[b];
    return x->at_ns != y->at_ns ? x->at_ns < y->at_ns : x->seq < y->seq;
}

static void place(hy_timers *t, uint32_t pos, uint32_t s)
{
    t->heap[pos] = s;
    t->slots[s].pos = pos;
}

static void sift(hy_timers *t, uint32_t pos, uint32_t s)
{
    while (pos > 0 && before(t, s, t->heap[(pos - 1) / 2])) {
        place(t, pos, t->heap[(pos - 1) / 2]);
        pos = (pos - 1) / 2;
    }
    for (;;) {
        uint32_t kid = 2 * pos + 1;
        if (kid + 1 < t->n_heap && before(t, t->heap[kid + 1], t->heap[kid]))
            kid++;
        if (kid >= t->n_heap || !before(t, t->heap[kid], s))
            break;
        place(t, pos, t->heap[kid]);
        pos = kid;
    }
    place(t, pos, s);
}

static hy_status grow(hy_timers *t)
{
    uint32_t n = t->n_slots != 0 ? t->n_slots * 2 : 16;
    if (n > UINT32_MAX / 4)
        return hy_fail(HY_E_LIMIT, "too many timers");
    slot *slots = hy_realloc(t->slots, n * sizeof(*slots));
    if (slots != NULL)
        t->slots = slots;
    uint32_t *heap = hy_realloc(t->heap, n * sizeof(*heap));
    if (heap != NULL)
        t->heap = heap;
    if (slots == NULL || heap == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for timers");
    for (uint32_t i = n; i-- > t->n_slots;) {
        t->slots[i] = (slot){.gen = 1, .pos = NOWHERE, .next = t->free_head};
        t->free_head = i;
    }
    t->n_slots = n;
    return HY_OK;
}

hy_status hy_timers_add(hy_timers *t, uint64_t at_ns, const hy_msg *msg, uint64_t *id_out)
{
    if (t->free_head == NOWHERE)
        HY_TRY(grow(t));
    uint32_t i = t->free_head;
    slot *s = &t->slots[i];
    t->free_head = s->next;
    s->msg = *msg;
    s->at_ns = at_ns;
    s->seq = t->seq++;
    sift(t, t->n_heap++, i);
    if (id_out != NULL)
        *id_out = (uint64_t)s->gen << 32 | i;
    return HY_OK;
}

/* Take the timer at a heap position out; its message is the caller's. */
static hy_msg take(hy_timers *t, uint32_t pos)
{
    uint32_t i = t->heap[pos];
    slot *s = &t->slots[i];
    hy_msg msg = s->msg;
    t->n_heap--;
    if (pos != t->n_heap)
        sift(t, pos, t->heap[t->n_heap]);
    s->pos = NOWHERE;
    s->gen = s->gen == UINT32_MAX ? 1 : s->gen + 1;
    s->next = t->free_head;
    t->free_head = i;
    return msg;
}

bool hy_timers_cancel(hy_timers *t, uint64_t id)
{
    uint32_t i = (uint32_t)id;
    if (i >= t->n_slots || t->slots[i].gen != (uint32_t)(id >> 32) || t->slots[i].pos == NOWHERE)
        return false;
    hy_msg msg = take(t, t->slots[i].pos);
    hy_msg_drop(&msg);
    return true;
}

uint64_t hy_timers_next(const hy_timers *t)
{
    return t->n_heap != 0 ? t->slots[t->heap[0]].at_ns : HY_NEVER;
}

bool hy_timers_pop(hy_timers *t, uint64_t now_ns, hy_msg *out)
{
    if (t->n_heap == 0 || t->slots[t->heap[0]].at_ns > now_ns)
        return false;
    *out = take(t, 0);
    return true;
}
