/* SPDX-License-Identifier: Apache-2.0
 *
 * Block pool of one cache group: which block ids are free, which are held and why, and which hold
 * a known prefix. Ids only; the bytes are exec's.
 *
 * Free blocks stand in an intrusive doubly linked LRU list and keep their hash until they are
 * taken anew, so that a later request may still hit them. Blocks without a hash are taken first.
 * Every taking raises the block's generation: a reference (id, generation) that outlives its block
 * can be told from the block's next life.
 *
 * Thread: sched stage only.  Owner: core/kv/kv.c; others go through kv.h.
 */
#ifndef HY_KV_POOL_H
#define HY_KV_POOL_H

#include "core/kv/event.h"
#include "core/kv/hash.h"

typedef enum hy_hold_kind {
    HY_HOLD_COMPUTE, /* a sequence computes or attends with it */
    HY_HOLD_SEND,    /* being read by a peer */
    HY_HOLD_RECEIVE, /* being written by a peer */
    HY_HOLD_STORE,   /* being copied to a store */
    HY_HOLD_KINDS
} hy_hold_kind;

typedef struct hy_kv_block {
    hy_kv_hash hash;
    bool hashed;
    bool silent; /* its hash is private: no events */
    uint32_t gen;
    int32_t pos; /* of its first token, when hashed */
    hy_kv_hash parent;
    int32_t holds[HY_HOLD_KINDS];
    int32_t prev, next; /* free list; HY_KV__OUT: not in it */
    int32_t chain;      /* next block of the hash bucket, -1 end */
} hy_kv_block;

enum { HY_KV__END = -1, HY_KV__OUT = -2 };

typedef struct hy_bpool {
    int32_t group;
    int32_t n_blocks, block_tokens;
    hy_kv_block *blk;
    int32_t free_head, free_tail;
    int32_t n_free, n_hashed;
    int32_t *bucket;
    uint32_t bucket_mask;
    hy_kv_events *events; /* borrowed; may be NULL */
} hy_bpool;

/* HY_E_NOMEM. */
hy_status hy_bpool_init(hy_bpool *p, int32_t group, int32_t n_blocks, int32_t block_tokens,
                        hy_kv_events *events);
void hy_bpool_fini(hy_bpool *p);

/* The block that was free longest, with one hold of that kind and a new generation; its old hash
 * is gone. -1: none free. */
int32_t hy_bpool_take(hy_bpool *p, hy_hold_kind kind);
/* One more hold; a free block leaves the free list and keeps its hash. */
void hy_bpool_hold(hy_bpool *p, int32_t id, hy_hold_kind kind);
/* One hold less; without any the block is free. */
void hy_bpool_release(hy_bpool *p, int32_t id, hy_hold_kind kind);
bool hy_bpool_is_free(const hy_bpool *p, int32_t id);

/* The block with that hash, -1: none. */
int32_t hy_bpool_find(const hy_bpool *p, const hy_kv_hash *hash);
/* The block's tokens are computed: it may be found from now on. False when another block has that
 * hash already (this one stays unhashed). ids [block_tokens] go into the event. */
bool hy_bpool_publish(hy_bpool *p, int32_t id, const hy_kv_hash *hash, const hy_kv_hash *parent,
                      int32_t pos, const int32_t *ids, bool silent);
/* Forget the hash without freeing. */
void hy_bpool_unhash(hy_bpool *p, int32_t id);
/* Forget all hashes; no event (the caller sends one HY_KV_CLEARED). */
void hy_bpool_clear(hy_bpool *p);

/* Counts, list and table agree with each other; held[id * HY_HOLD_KINDS + kind] are the holds that
 * the holders say they have. NULL, or what is wrong. */
const char *hy_bpool_check(const hy_bpool *p, const int32_t *held);

#endif
