/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of the KV pools ahead of their use. A pool is reserved address space (core/node/size.c);
 * the kernel finds and clears a page when it is first written, and takes longer for it than a
 * transfer or an attention step takes for its bytes (docs/PERFORMANCE.md). A thread of low priority
 * has it done for the next megabytes of each pool, so that nobody who waits for KV waits for that;
 * what is never used beyond them costs no memory. Blocks are first given out in the order of their
 * numbers (core/kv/pool.h), so that "next" is what follows the highest one seen.
 *
 * Thread: create and destroy from the owner's; note from one thread at a time, any.
 * Owner: the creator; the pools' memory outlives it.
 */
#ifndef HY_EXEC_AHEAD_H
#define HY_EXEC_AHEAD_H

#include "hal/kv_layout.h"

typedef struct hy_ahead hy_ahead;

enum { HY_AHEAD_POOLS = 8 };

/* pools[n], n <= HY_AHEAD_POOLS, in memory of the host; of each, `bytes` behind the highest block
 * seen are made ready whenever less than half of that is. Begins at once. NULL: no thread or no
 * memory for it; everything works without, only slower. */
hy_ahead *hy_ahead_create(const hy_kv_pool *pools, int32_t n, size_t bytes);
void hy_ahead_destroy(hy_ahead *a); /* NULL is fine */

/* A block of a pool is written now. Never blocks for long; NULL is fine. */
void hy_ahead_note(hy_ahead *a, int32_t pool, int32_t block);

/* Bytes from a pool's beginning that are ready, or were given up (tests). */
size_t hy_ahead_done(hy_ahead *a, int32_t pool);

#endif
