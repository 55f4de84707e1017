/* SPDX-License-Identifier: Apache-2.0
 *
 * The counting malloc.
 *
 * Thread: any.  Owner: see heap.h.
 */
#include "tests/chaos/heap.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED

size_t __sanitizer_get_current_allocated_bytes(void);

heap heap_now(void)
{
    return (heap){__sanitizer_get_current_allocated_bytes(), 0};
}

#else

void *__libc_malloc(size_t n);
void __libc_free(void *p);

/* Also shared libraries are to find these (-fvisibility=hidden would keep them to the program). */
#pragma GCC visibility push(default)

static _Atomic size_t bytes, blocks;

/* In front of every block: what free needs, and how much was asked for (the allocator's own sizes
 * depend on which hole it found). */
typedef struct mark {
    void *base;
    size_t n;
} mark;
_Static_assert(sizeof(mark) == 16, "blocks stay aligned to 16");

static void *take(size_t align, size_t n)
{
    size_t all;
    align = align < sizeof(mark) ? sizeof(mark) : align;
    if (__builtin_add_overflow(n, align + sizeof(mark), &all))
        return NULL;
    char *base = __libc_malloc(all);
    if (base == NULL)
        return NULL;
    char *p = (char *)(((uintptr_t)base + sizeof(mark) + align - 1) / align * align);
    ((mark *)(void *)p)[-1] = (mark){base, n};
    atomic_fetch_add_explicit(&bytes, n, memory_order_relaxed);
    atomic_fetch_add_explicit(&blocks, 1, memory_order_relaxed);
    return p;
}

void free(void *p)
{
    if (p == NULL)
        return;
    const mark m = ((mark *)p)[-1];
    atomic_fetch_sub_explicit(&bytes, m.n, memory_order_relaxed);
    atomic_fetch_sub_explicit(&blocks, 1, memory_order_relaxed);
    __libc_free(m.base);
}

void *malloc(size_t n)
{
    return take(0, n);
}

void *calloc(size_t n, size_t size)
{
    size_t all;
    void *p = __builtin_mul_overflow(n, size, &all) ? NULL : take(0, all);
    for (size_t i = 0; p != NULL && i < all; i++)
        ((volatile char *)p)[i] = 0; /* memset after malloc would become calloc: this function */
    return p;
}

void *realloc(void *p, size_t n)
{
    if (p != NULL && n == 0) {
        free(p);
        return NULL;
    }
    void *q = take(0, n);
    if (p == NULL || q == NULL)
        return q;
    const size_t old = ((mark *)p)[-1].n;
    memcpy(q, p, old < n ? old : n);
    free(p);
    return q;
}

void *memalign(size_t align, size_t n)
{
    return take(align, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return take(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = take(align, n);
    if (p == NULL)
        return ENOMEM;
    *out = p;
    return 0;
}

#pragma GCC visibility pop

heap heap_now(void)
{
    return (heap){atomic_load(&bytes), atomic_load(&blocks)};
}

#endif
