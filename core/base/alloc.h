/* SPDX-License-Identifier: Apache-2.0
 *
 * Counted allocation. A step allocates nothing: between hy_noalloc_begin and hy_noalloc_end a
 * debug build (HY_DEBUG) asserts on any call here, a release build counts it as a violation.
 *
 * The functions are malloc's own with a count beside: memory from here may go to free() and back.
 *
 * Thread: any; counts and the no-allocation mark are thread-local.  Owner: the caller frees.
 */
#ifndef HY_BASE_ALLOC_H
#define HY_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

/* Backend modules take these from the program: exported in spite of -fvisibility=hidden. */
#pragma GCC visibility push(default)
/* NULL when out of memory. n = 0 gives a pointer that may be freed. */
void *hy_malloc(size_t n);
/* Zeroed; NULL also when n * size overflows. */
void *hy_calloc(size_t n, size_t size);
void *hy_realloc(void *p, size_t n);
/* n must be a multiple of align, align a power of two; freed by hy_free. */
void *hy_aligned_alloc(size_t align, size_t n);
char *hy_strdup(const char *s);
void hy_free(void *p);

/* Allocations of this thread so far. */
uint64_t hy_alloc_count(void);

/* Marks nest. */
void hy_noalloc_begin(void);
void hy_noalloc_end(void);
/* Allocations made inside a mark, by all threads (always 0 in a debug build: it asserts). */
uint64_t hy_noalloc_violations(void);
#pragma GCC visibility pop

#endif
