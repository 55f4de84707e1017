/* SPDX-License-Identifier: Apache-2.0
 *
 * Counted allocation.
 *
 * Thread: any.  Owner: the caller frees.
 */
#include "core/base/alloc.h"
#include "core/base/status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local uint64_t count;
static _Thread_local unsigned marks;
static _Atomic uint64_t violations;

static void note_alloc(void)
{
    count++;
    if (marks == 0)
        return;
#ifdef HY_DEBUG
    HY_ASSERT(!"allocation inside a step");
#endif
    atomic_fetch_add_explicit(&violations, 1, memory_order_relaxed);
}

void *hy_malloc(size_t n)
{
    note_alloc();
    return malloc(n != 0 ? n : 1);
}

void *hy_calloc(size_t n, size_t size)
{
    size_t len;
    if (__builtin_mul_overflow(n, size, &len))
        return NULL;
    note_alloc();
    return len != 0 ? calloc(n, size) : calloc(1, 1);
}

void *hy_realloc(void *p, size_t n)
{
    note_alloc();
    return realloc(p, n != 0 ? n : 1);
}

void *hy_aligned_alloc(size_t align, size_t n)
{
    note_alloc();
    return aligned_alloc(align, n != 0 ? n : align);
}

char *hy_strdup(const char *s)
{
    note_alloc();
    return strdup(s);
}

void hy_free(void *p)
{
    free(p);
}

uint64_t hy_alloc_count(void)
{
    return count;
}

void hy_noalloc_begin(void)
{
    marks++;
}

void hy_noalloc_end(void)
{
    HY_ASSERT(marks > 0);
    marks--;
}

uint64_t hy_noalloc_violations(void)
{
    return atomic_load_explicit(&violations, memory_order_relaxed);
}
