/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena: memory of one request, taken piece by piece and given back at once. Chunks are kept over
 * a reset, so that a recycled request allocates nothing.
 *
 * Thread: one at a time.  Owner: the arena owns all it handed out, until reset or destroy.
 */
#ifndef HY_BASE_ARENA_H
#define HY_BASE_ARENA_H

#include "core/base/status.h"

#include <stddef.h>

typedef struct hy_arena hy_arena;

/* chunk_len: bytes of a chunk, 0 for 4096. limit: most bytes handed out, 0 for none.
 * NULL when out of memory. */
hy_arena *hy_arena_create(size_t chunk_len, size_t limit);
void hy_arena_destroy(hy_arena *a); /* NULL is fine */
/* Everything handed out becomes invalid; standard chunks stay, oversize ones are freed. */
void hy_arena_reset(hy_arena *a);

/* 16-byte aligned, not zeroed; NULL when out of memory or over the limit. */
void *hy_arena_alloc(hy_arena *a, size_t n);
/* Zeroed array; NULL also when n * size overflows. */
void *hy_arena_calloc(hy_arena *a, size_t n, size_t size);
char *hy_arena_strdup(hy_arena *a, const char *s);
/* Copies n bytes and adds a NUL. */
char *hy_arena_strndup(hy_arena *a, const char *s, size_t n);
void *hy_arena_memdup(hy_arena *a, const void *p, size_t n);
char *hy_arena_printf(hy_arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Bytes handed out since the last reset, alignment included. */
size_t hy_arena_used(const hy_arena *a);

#endif
