/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of KV events.
 *
 * Thread: sched stage only.  Owner: see event.h.
 */
#include "core/kv/event.h"

#include "core/base/alloc.h"

#include <string.h>

struct hy_kv_events {
    uint64_t epoch, last;
    int32_t cap, block_tokens;
    hy_kv_event *ring; /* [cap]; number seq is at (seq - 1) % cap */
    int32_t *ids;      /* [cap][block_tokens] */
};

hy_kv_events *hy_kv_events_create(uint64_t epoch, int32_t cap, int32_t block_tokens)
{
    hy_kv_events *e = hy_calloc(1, sizeof(*e));
    if (e == NULL)
        return NULL;
    e->epoch = epoch;
    e->cap = cap;
    e->block_tokens = block_tokens;
    if (cap > 0) {
        e->ring = hy_malloc((size_t)cap * sizeof(*e->ring));
        e->ids = hy_malloc((size_t)cap * (size_t)block_tokens * sizeof(*e->ids));
        if (e->ring == NULL || e->ids == NULL) {
            hy_kv_events_destroy(e);
            return NULL;
        }
        /* touched now: megabytes that come page by page with the first thousands of requests look
         * as a leak does */
        memset(e->ring, 0, (size_t)cap * sizeof(*e->ring));
        memset(e->ids, 0, (size_t)cap * (size_t)block_tokens * sizeof(*e->ids));
    }
    return e;
}

void hy_kv_events_destroy(hy_kv_events *e)
{
    if (e == NULL)
        return;
    hy_free(e->ring);
    hy_free(e->ids);
    hy_free(e);
}

void hy_kv_events_add(hy_kv_events *e, const hy_kv_event *ev)
{
    if (e == NULL)
        return;
    e->last++;
    if (e->cap == 0)
        return;
    const size_t at = (size_t)((e->last - 1) % (uint64_t)e->cap);
    hy_kv_event *to = &e->ring[at];
    *to = *ev;
    to->epoch = e->epoch;
    to->seq = e->last;
    to->ids = NULL;
    if (ev->ids != NULL) {
        HY_ASSERT(ev->n_ids <= e->block_tokens);
        int32_t *ids = e->ids + at * (size_t)e->block_tokens;
        memcpy(ids, ev->ids, (size_t)ev->n_ids * sizeof(*ids));
        to->ids = ids;
    }
}

uint64_t hy_kv_events_last(const hy_kv_events *e)
{
    return e->last;
}

uint64_t hy_kv_events_epoch(const hy_kv_events *e)
{
    return e->epoch;
}

hy_status hy_kv_events_get(const hy_kv_events *e, uint64_t seq, hy_kv_event *out)
{
    if (seq > e->last)
        return HY_AGAIN;
    if (seq == 0 || e->last - seq >= (uint64_t)e->cap)
        return HY_E_NOTFOUND; /* not hy_fail: an ordinary answer, no text needed */
    *out = e->ring[(seq - 1) % (uint64_t)e->cap];
    return HY_OK;
}
