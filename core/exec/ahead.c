/* SPDX-License-Identifier: Apache-2.0
 *
 * One thread that lets the kernel fill in pages of the pools, two megabytes at a time.
 *
 * Thread: see ahead.h; `used` is the only thing that note shares without the lock.
 * Owner: see ahead.h.
 */
#include "core/exec/ahead.h"

#include "core/base/alloc.h"
#include "core/base/log.h"
#include "core/base/map.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NICE = 10 }; /* below those who compute; not so low that it never gets a turn */
#define STEP HY_MAP_ALIGN

typedef struct pool_ahead {
    char *base;
    size_t len, block;   /* bytes of the pool, of a block */
    _Atomic size_t used; /* bytes up to the end of the highest block seen */
    size_t done;         /* lock */
    bool filling;        /* lock */
} pool_ahead;

struct hy_ahead {
    pool_ahead pool[HY_AHEAD_POOLS];
    int32_t n;
    size_t bytes; /* to keep ready */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool stop, sleeping; /* lock */
};

/* Bytes of the pool up to `bytes` behind what is used. */
static size_t behind(pool_ahead *p, size_t bytes)
{
    const size_t used = atomic_load_explicit(&p->used, memory_order_relaxed);
    return p->len - used > bytes ? used + bytes : p->len;
}

/* Not with each block: pages are cleared in one go when half of them are used up, so that most of
 * those who wait for KV have the memory and the core for themselves. */
static bool is_low(const hy_ahead *a, pool_ahead *p)
{
    return p->done < behind(p, a->bytes / 2);
}

static pool_ahead *next_of(hy_ahead *a)
{
    for (int32_t i = 0; i < a->n; i++) {
        pool_ahead *p = &a->pool[i];
        p->filling = p->done < behind(p, a->bytes) && (p->filling || is_low(a, p));
        if (p->filling)
            return p;
    }
    return NULL;
}

static bool all_done(const hy_ahead *a)
{
    for (int32_t i = 0; i < a->n; i++)
        if (a->pool[i].done < a->pool[i].len)
            return false;
    return true;
}

static void *work(void *arg)
{
    hy_ahead *a = arg;
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE); /* of this thread alone, on Linux */
    pthread_mutex_lock(&a->lock);
    while (!a->stop) {
        pool_ahead *p = next_of(a);
        if (p == NULL && all_done(a))
            break;
        if (p == NULL) {
            a->sleeping = true;
            pthread_cond_wait(&a->cond, &a->lock);
            a->sleeping = false;
            continue;
        }
        const size_t to_edge = STEP - ((uintptr_t)(p->base + p->done) & (STEP - 1));
        const size_t n = to_edge < p->len - p->done ? to_edge : p->len - p->done;
        pthread_mutex_unlock(&a->lock);
        const bool ok = hy_map_populate(p->base + p->done, n, true);
        const int why = errno;
        pthread_mutex_lock(&a->lock);
        p->done = ok ? p->done + n : p->len;
        if (!ok)
            hy_debug("exec", "pages of the KV pool come as it is used: %s", strerror(why));
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

hy_ahead *hy_ahead_create(const hy_kv_pool *pools, int32_t n, size_t bytes)
{
    HY_ASSERT(n >= 0 && n <= HY_AHEAD_POOLS);
    hy_ahead *a = hy_calloc(1, sizeof(*a));
    if (a == NULL)
        return NULL;
    a->n = n;
    a->bytes = bytes;
    for (int32_t i = 0; i < n; i++) {
        const size_t block = (size_t)pools[i].layout.bytes_per_block;
        a->pool[i] = (pool_ahead){
            .base = pools[i].base, .len = block * (size_t)pools[i].n_blocks, .block = block};
    }
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->cond, NULL);
    if (pthread_create(&a->thread, NULL, work, a) != 0) {
        pthread_cond_destroy(&a->cond);
        pthread_mutex_destroy(&a->lock);
        hy_free(a);
        return NULL;
    }
    (void)pthread_setname_np(a->thread, "hy-ahead");
    return a;
}

void hy_ahead_destroy(hy_ahead *a)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_signal(&a->cond);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->cond);
    pthread_mutex_destroy(&a->lock);
    hy_free(a);
}

void hy_ahead_note(hy_ahead *a, int32_t pool, int32_t block)
{
    if (a == NULL || block < 0)
        return;
    pool_ahead *p = &a->pool[pool];
    const size_t used = ((size_t)block + 1) * p->block;
    if (used <= atomic_load_explicit(&p->used, memory_order_relaxed))
        return;
    HY_ASSERT(used <= p->len);
    atomic_store_explicit(&p->used, used, memory_order_relaxed);
    pthread_mutex_lock(&a->lock);
    const bool wake = a->sleeping && is_low(a, p);
    pthread_mutex_unlock(&a->lock);
    if (wake)
        pthread_cond_signal(&a->cond);
}

size_t hy_ahead_done(hy_ahead *a, int32_t pool)
{
    pthread_mutex_lock(&a->lock);
    const size_t done = a->pool[pool].done;
    pthread_mutex_unlock(&a->lock);
    return done;
}
