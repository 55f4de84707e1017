/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena of chunks. `used` chunks come first in the list; a reset only rewinds, so that the next
 * use of the arena finds its chunks there.
 *
 * Thread: one at a time.  Owner: the arena.
 */
#include "core/base/arena.h"
#include "core/base/alloc.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { ALIGN = 16 };

typedef struct chunk {
    struct chunk *next;
    size_t cap, used;
    /* bytes follow, at HEAD */
} chunk;

#define HEAD ((sizeof(chunk) + ALIGN - 1) / ALIGN * ALIGN)

struct hy_arena {
    chunk *first, *now; /* standard chunks; those behind `now` are empty */
    chunk *big;         /* one per oversize piece */
    size_t chunk_len, limit, used;
};

hy_arena *hy_arena_create(size_t chunk_len, size_t limit)
{
    hy_arena *a = hy_calloc(1, sizeof(*a));
    if (a == NULL)
        return NULL;
    a->chunk_len = chunk_len != 0 ? (chunk_len + ALIGN - 1) / ALIGN * ALIGN : 4096;
    a->limit = limit;
    return a;
}

static void free_list(chunk *c)
{
    while (c != NULL) {
        chunk *next = c->next;
        hy_free(c);
        c = next;
    }
}

void hy_arena_destroy(hy_arena *a)
{
    if (a == NULL)
        return;
    free_list(a->first);
    free_list(a->big);
    hy_free(a);
}

void hy_arena_reset(hy_arena *a)
{
    free_list(a->big);
    a->big = NULL;
    for (chunk *c = a->first; c != NULL; c = c->next)
        c->used = 0;
    a->now = a->first;
    a->used = 0;
}

static chunk *new_chunk(size_t cap)
{
    chunk *c = hy_malloc(HEAD + cap);
    if (c != NULL)
        *c = (chunk){NULL, cap, 0};
    return c;
}

void *hy_arena_alloc(hy_arena *a, size_t n)
{
    if (n > SIZE_MAX / 2)
        return NULL;
    n = n != 0 ? (n + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    if (a->limit != 0 && (n > a->limit || a->used > a->limit - n))
        return NULL;
    if (n > a->chunk_len) {
        chunk *c = new_chunk(n);
        if (c == NULL)
            return NULL;
        c->next = a->big;
        a->big = c;
        a->used += n;
        return (char *)c + HEAD;
    }
    chunk *c = a->now;
    if (c == NULL || c->cap - c->used < n) {
        chunk **link = c != NULL ? &c->next : &a->first;
        if (*link == NULL && (*link = new_chunk(a->chunk_len)) == NULL)
            return NULL;
        c = a->now = *link;
    }
    void *p = (char *)c + HEAD + c->used;
    c->used += n;
    a->used += n;
    return p;
}

void *hy_arena_calloc(hy_arena *a, size_t n, size_t size)
{
    size_t len;
    if (__builtin_mul_overflow(n, size, &len))
        return NULL;
    void *p = hy_arena_alloc(a, len);
    if (p != NULL)
        memset(p, 0, len);
    return p;
}

void *hy_arena_memdup(hy_arena *a, const void *src, size_t n)
{
    void *p = hy_arena_alloc(a, n);
    if (p != NULL && n != 0)
        memcpy(p, src, n);
    return p;
}

char *hy_arena_strndup(hy_arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX / 2 ? hy_arena_alloc(a, n + 1) : NULL;
    if (p == NULL)
        return NULL;
    if (n != 0)
        memcpy(p, s, n);
    p[n] = '\0';
    return p;
}

char *hy_arena_strdup(hy_arena *a, const char *s)
{
    return hy_arena_strndup(a, s, strlen(s));
}

char *hy_arena_printf(hy_arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = n >= 0 ? hy_arena_alloc(a, (size_t)n + 1) : NULL;
    if (p == NULL)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

size_t hy_arena_used(const hy_arena *a)
{
    return a->used;
}
