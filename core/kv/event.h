/* SPDX-License-Identifier: Apache-2.0
 *
 * KV events: which prefixes this node holds, for routers and indexes. Each carries the process's
 * epoch and a sequence number without gaps; the newest are kept in a ring. A reader that fell out
 * of the ring, or sees a new epoch, asks for a snapshot (hy_kv_snapshot) and goes on from its
 * sequence number.
 *
 * Thread: sched stage only.  Owner: the ring owns its entries; what is read is borrowed until the
 * next event.
 */
#ifndef HY_KV_EVENT_H
#define HY_KV_EVENT_H

#include "core/kv/hash.h"

#include <stddef.h>

typedef enum hy_kv_event_kind {
    HY_KV_STORED,
    HY_KV_REMOVED,
    HY_KV_CLEARED, /* all groups, all hashes */
} hy_kv_event_kind;

typedef struct hy_kv_event {
    uint64_t epoch, seq; /* seq 1 is the first of an epoch */
    hy_kv_event_kind kind;
    int32_t group;
    int32_t pos;        /* STORED: position of its first token */
    hy_kv_hash hash;    /* of the block's last link */
    hy_kv_hash parent;  /* STORED: of the link before its first (the root for pos 0) */
    const int32_t *ids; /* STORED: [n_ids] its tokens; NULL in a snapshot */
    int32_t n_ids;
} hy_kv_event;

typedef struct hy_kv_events hy_kv_events;

/* Keeps the newest `cap` events (0: numbers them only). NULL: no memory. */
hy_kv_events *hy_kv_events_create(uint64_t epoch, int32_t cap, int32_t block_tokens);
void hy_kv_events_destroy(hy_kv_events *e); /* NULL is fine */

/* Gives ev its epoch and seq; copies ids. e NULL: dropped. */
void hy_kv_events_add(hy_kv_events *e, const hy_kv_event *ev);
uint64_t hy_kv_events_last(const hy_kv_events *e); /* 0: none yet */
uint64_t hy_kv_events_epoch(const hy_kv_events *e);
/* Event number seq. HY_AGAIN: not yet happened; HY_E_NOTFOUND: no longer kept, take a snapshot. */
hy_status hy_kv_events_get(const hy_kv_events *e, uint64_t seq, hy_kv_event *out);

#endif
