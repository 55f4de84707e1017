/* SPDX-License-Identifier: Apache-2.0
 *
 * Ledger of holds: every reason beside computing why blocks may not be reused yet (send, receive,
 * store), each with an owner and a deadline. (Compute holds are the block tables of hy_kv_seq.)
 *
 * A deadline never frees: bytes may still be on their way. It makes hy_ledger_expired report the
 * hold, whereupon the owner cancels and fences the transfer and then releases it. Releases of
 * unknown or already released holds are no-ops that are counted.
 *
 * Thread: sched stage only.  Owner: core/kv/kv.c.
 */
#ifndef HY_KV_LEDGER_H
#define HY_KV_LEDGER_H

#include "core/kv/pool.h"

#include <stddef.h>

/* A block in one of its lives. */
typedef struct hy_kv_ref {
    int32_t group;
    int32_t id;
    uint32_t gen;
} hy_kv_ref;

typedef struct hy_hold {
    uint64_t id;    /* its low bits are the owner's: one bucket for both */
    uint64_t owner; /* sequence's uid */
    hy_hold_kind kind;
    uint64_t deadline_ns;
    bool expired;    /* was reported */
    size_t heap_pos; /* SIZE_MAX: not in the heap (no deadline, or expired) */
    struct hy_hold *chain;
    int32_t n;
    hy_kv_ref refs[];
} hy_hold;

enum { HY_LEDGER__BUCKETS = 1024 };

typedef struct hy_ledger {
    hy_bpool *pools; /* borrowed: [n_groups] */
    int32_t n_groups;
    uint64_t n_taken;
    size_t n_holds;
    uint64_t n_unknown; /* late or unknown releases so far */
    uint64_t n_expired;
    hy_hold **heap; /* by deadline */
    size_t n_heap, cap_heap;
    hy_hold *bucket[HY_LEDGER__BUCKETS];
} hy_ledger;

void hy_ledger_init(hy_ledger *l, hy_bpool *pools, int32_t n_groups);
void hy_ledger_fini(hy_ledger *l); /* releases what is left */

/* Hold those blocks (each held by someone now: nobody can hold a free block's bytes). Deadline
 * HY_NEVER: none. HY_E_NOMEM takes nothing. HY_E_INVAL: a reference is stale. */
hy_status hy_ledger_take(hy_ledger *l, hy_hold_kind kind, uint64_t owner, uint64_t deadline_ns,
                         const hy_kv_ref *refs, int32_t n, uint64_t *hold_out);
/* False and counted: no such hold. */
bool hy_ledger_release(hy_ledger *l, uint64_t hold);
/* All holds of that owner and kind; false and counted: none. */
bool hy_ledger_release_owner(hy_ledger *l, hy_hold_kind kind, uint64_t owner);
/* A renewed lease: never shortens. A hold already reported as expired stays so. False and counted:
 * no such hold. */
bool hy_ledger_extend(hy_ledger *l, uint64_t hold, uint64_t deadline_ns);
/* The same for all holds of that owner and kind. */
bool hy_ledger_extend_owner(hy_ledger *l, hy_hold_kind kind, uint64_t owner, uint64_t deadline_ns);
const hy_hold *hy_ledger_find(const hy_ledger *l, uint64_t hold); /* NULL: none */
/* Earliest deadline, HY_NEVER: none. */
uint64_t hy_ledger_next_deadline(const hy_ledger *l);
/* One hold whose deadline has come, each once; NULL: no more. It is still held. */
const hy_hold *hy_ledger_expired(hy_ledger *l, uint64_t now_ns);

#endif
