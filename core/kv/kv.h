/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV cache as the scheduler sees it: pools of all cache groups, block tables of sequences,
 * prefix hits, and the ledger of holds.
 *
 * A sequence has one table per group, entry i covering tokens [i * block, (i + 1) * block). In a
 * window group the entries that no later row can see are -1 and their blocks are free again.
 * Order of use: chain, match, attach, then per step: grow before it, publish and trim after it.
 *
 * Thread: sched stage only.  Owner: the creator destroys; sequences are finished before.
 */
#ifndef HY_KV_KV_H
#define HY_KV_KV_H

#include "core/kv/event.h"
#include "core/kv/hash.h"
#include "core/kv/ledger.h"
#include "core/kv/pool.h"

enum { HY_KV_MAX_GROUPS = 8 };

typedef struct hy_kv_opts {
    int32_t n_groups;
    const int32_t *windows;  /* [n_groups], 0: full */
    const int32_t *n_blocks; /* [n_groups] */
    int32_t block_tokens;    /* a multiple of 16 */
    int32_t n_events;        /* kept for readers; 0: none */
    uint64_t epoch;
} hy_kv_opts;

typedef struct hy_kv_table {
    int32_t *ids; /* [cap] */
    int32_t n;    /* entries in use */
    int32_t live; /* entries before this one are -1 */
} hy_kv_table;

typedef struct hy_kv hy_kv;

/* Block tables of one sequence. Zero before init. */
typedef struct hy_kv_seq {
    hy_kv *kv;
    uint64_t owner; /* sequence's uid: of its holds, and for messages */
    hy_kv_table tab[HY_KV_MAX_GROUPS];
    int32_t cap; /* entries of each table */
    hy_kv_hash root;
    bool silent;       /* private chain: no events */
    hy_kv_hash *links; /* [cap * block / 16] */
    int32_t n_links;
    int32_t published;               /* blocks whose tokens are known to be computed */
    int32_t whole[HY_KV_MAX_GROUPS]; /* blocks before this one may lack tokens: not for others */
    struct hy_kv_seq *prev, *next;
} hy_kv_seq;

/* A prefix found in the pools. */
typedef struct hy_kv_hit {
    int32_t tokens; /* a multiple of the block size */
    int32_t start;  /* rows begin here: tokens, or more when the rest is loaded */
    int32_t entries[HY_KV_MAX_GROUPS]; /* of the table after attach */
    int32_t n[HY_KV_MAX_GROUPS];       /* blocks found (window groups: the tail alone) */
    int32_t n_free[HY_KV_MAX_GROUPS];  /* of them in the free list */
} hy_kv_hit;

/* HY_E_INVAL names the option; HY_E_NOMEM. */
hy_status hy_kv_create(const hy_kv_opts *o, hy_kv **out);
void hy_kv_destroy(hy_kv *kv); /* NULL is fine */

int32_t hy_kv_n_groups(const hy_kv *kv);
int32_t hy_kv_block_tokens(const hy_kv *kv);
int32_t hy_kv_n_blocks(const hy_kv *kv, int32_t g);
int32_t hy_kv_n_free(const hy_kv *kv, int32_t g);
int32_t hy_kv_n_hashed(const hy_kv *kv, int32_t g);
hy_kv_events *hy_kv_events_of(hy_kv *kv);
hy_ledger *hy_kv_ledger(hy_kv *kv);

/* Room for max_tokens. HY_E_NOMEM. */
hy_status hy_kv_seq_init(hy_kv *kv, hy_kv_seq *s, int32_t max_tokens, const hy_kv_hash *root,
                         bool silent);
void hy_kv_seq_fini(hy_kv_seq *s); /* drops its blocks; zero or finished is fine */

/* Hash the whole links of the first n tokens (those hashed before are kept). */
void hy_kv_chain(hy_kv_seq *s, const int32_t *ids, int32_t n);
/* Longest prefix, at most max_tokens, that all groups hold; takes nothing. Needs the chain. */
void hy_kv_match_prefix(const hy_kv_seq *s, int32_t max_tokens, hy_kv_hit *out);
/* The same hit when tokens up to `start` come from elsewhere: window groups need less of it. */
void hy_kv_match_beyond(const hy_kv_seq *s, int32_t start, hy_kv_hit *hit);
/* Hold the hit's blocks, as matched just before; the tables are empty. */
void hy_kv_attach(hy_kv_seq *s, const hy_kv_hit *hit);
/* True when rows may begin at `computed` with the blocks that the tables hold: a window group may
 * have passed it already. */
bool hy_kv_can_start(const hy_kv_seq *s, int32_t computed);

/* Take blocks so that positions before `upto` (in window groups: `upto_window`) have one, in all
 * groups or none at all: false when some group has too few free. */
bool hy_kv_grow(hy_kv_seq *s, int32_t upto, int32_t upto_window);
/* The first `computed` tokens have their KV: full blocks may be found by others from now on. */
void hy_kv_publish(hy_kv_seq *s, const int32_t *ids, int32_t computed);
/* Tokens from `local` on came from elsewhere, for rows from `start` on: of a window group only what
 * those can see, so that its first block may lack its beginning and is never published. */
void hy_kv_received(hy_kv_seq *s, int32_t local, int32_t start);
/* Free what a row at position `computed` and later can no longer see. */
void hy_kv_trim(hy_kv_seq *s, int32_t computed);
/* Drop all blocks, tail first; the chain stays. */
void hy_kv_drop(hy_kv_seq *s);

/* Most blocks of group g that one sequence of `tokens` needs at once when it advances token by
 * token: what the pool must have for it to run at all. */
int32_t hy_kv_least(const hy_kv *kv, int32_t g, int32_t tokens);

/* Hold the sequence's blocks that cover positions [from, upto) for a transfer. */
hy_status hy_kv_hold_seq(hy_kv_seq *s, hy_hold_kind kind, int32_t from, int32_t upto,
                         uint64_t deadline_ns, uint64_t *hold_out);
/* True while the block lives the life that was meant. */
bool hy_kv_ref_valid(const hy_kv *kv, const hy_kv_ref *r);

/* Forget every prefix (weights changed); blocks in use stay. One HY_KV_CLEARED. */
void hy_kv_clear(hy_kv *kv);
/* Calls fn for each prefix block held, as a STORED event without ids, with the present epoch and
 * last sequence number: the reader goes on with the next. Returns that number. */
uint64_t hy_kv_snapshot(const hy_kv *kv, void (*fn)(void *arg, const hy_kv_event *ev), void *arg);

/* Every invariant of pools, tables and ledger; HY_OK, or HY_E_INVAL with the text of what is
 * broken. Slow (tests, debug); allocates once per pool at the first call. */
hy_status hy_kv_check(hy_kv *kv);

#endif
