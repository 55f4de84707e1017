/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool of threads that takes a grid's blocks in order, one at a time each.
 *
 * Thread: one launch at a time; the caller works, too.  Owner: simt_exec_destroy.
 */
#include "backends/simt/host/exec.h"
#include "backends/simt/host/block.h"
#include "core/base/alloc.h"
#include "core/base/rng.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define MOST_KERNELS 160

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK ((size_t)256 << 10) /* frames are large there */
#else
#define STACK ((size_t)64 << 10)
#endif

typedef struct worker {
    simt_exec *e;
    simt_block *block;
    pthread_t thread;
    bool started;
} worker;

struct simt_exec {
    simt_exec_opts o;
    worker *workers; /* the first is the caller */
    int n;
    pthread_mutex_t turn; /* one launch at a time */
    pthread_mutex_t lock;
    pthread_cond_t go, done;
    uint64_t round; /* counts launches */
    int busy;
    bool stop;
    const simt_launch *l;
    atomic_uint_fast64_t next;
    uint64_t total;
    atomic_bool failed;
    char text[384];                     /* of the first failure, under lock */
    simt_traffic traffic[MOST_KERNELS]; /* under lock */
    size_t n_traffic;
};

/* The kernel's entry, under lock; the last one is for all that found no room. */
static simt_traffic *traffic_of(simt_exec *e, const char *kernel)
{
    for (size_t i = 0; i < e->n_traffic; i++) {
        if (strcmp(e->traffic[i].kernel, kernel) == 0)
            return &e->traffic[i];
    }
    if (e->n_traffic == MOST_KERNELS)
        return &e->traffic[MOST_KERNELS - 1];
    e->traffic[e->n_traffic].kernel = kernel;
    return &e->traffic[e->n_traffic++];
}

size_t simt_exec_traffic(const simt_exec *e, const simt_traffic **out)
{
    *out = e->traffic;
    return e->n_traffic;
}

static void run_blocks(simt_exec *e, simt_block *b)
{
    const simt_launch *l = e->l;
    uint64_t i;
    while (!atomic_load(&e->failed) && (i = atomic_fetch_add(&e->next, 1)) < e->total) {
        uint64_t xy = (uint64_t)l->x * l->y;
        simt_block_run(b, l, e->o.wave, (uint32_t)(i % l->x), (uint32_t)(i % xy / l->x),
                       (uint32_t)(i / xy));
        if (b->access != NULL) {
            pthread_mutex_lock(&e->lock);
            simt_traffic_fold(b, traffic_of(e, l->name));
            pthread_mutex_unlock(&e->lock);
        }
        if (!b->failed)
            continue;
        pthread_mutex_lock(&e->lock);
        if (!atomic_load(&e->failed))
            memcpy(e->text, b->text, sizeof(e->text));
        atomic_store(&e->failed, true);
        pthread_mutex_unlock(&e->lock);
    }
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    simt_exec *e = w->e;
    uint64_t seen = 0;
    pthread_mutex_lock(&e->lock);
    for (;;) {
        while (!e->stop && e->round == seen)
            pthread_cond_wait(&e->go, &e->lock);
        if (e->stop)
            break;
        seen = e->round;
        pthread_mutex_unlock(&e->lock);
        run_blocks(e, w->block);
        pthread_mutex_lock(&e->lock);
        if (--e->busy == 0)
            pthread_cond_signal(&e->done);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* A permutation of the lanes from the seed; the same in every block. */
static void shuffle(uint16_t *order, int n, uint64_t seed)
{
    hy_rng rng;
    hy_rng_init(&rng, seed);
    for (int i = 0; i < n; i++)
        order[i] = (uint16_t)i;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)hy_rng_below(&rng, (uint64_t)i + 1);
        uint16_t t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

static hy_status start_worker(simt_exec *e, int i)
{
    worker *w = &e->workers[i];
    w->e = e;
    w->block = hy_calloc(1, sizeof(*w->block));
    if (w->block == NULL || !simt_block_init(w->block, e->o.stack != 0 ? e->o.stack : STACK))
        return hy_fail(HY_E_NOMEM, "simt: no memory for the lanes of a block");
    if (e->o.traffic && !simt_traffic_init(w->block))
        return hy_fail(HY_E_NOMEM, "simt: no memory to count accesses");
    if (i == 0)
        return HY_OK;
    if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
        return hy_fail(HY_E_SYS, "simt: cannot start thread %d of %d", i + 1, e->n);
    w->started = true;
    return HY_OK;
}

hy_status simt_exec_create(const simt_exec_opts *o, simt_exec **out)
{
    if ((o->wave != 32 && o->wave != 64) || o->threads < 1)
        return hy_fail(HY_E_INVAL, "simt: a wave of %d lanes on %d threads; waves have 32 or 64",
                       o->wave, o->threads);
    simt_exec *e = hy_calloc(1, sizeof(*e));
    if (e == NULL)
        return hy_fail(HY_E_NOMEM, "simt: no memory for the executor");
    e->o = *o;
    e->n = o->threads;
    pthread_mutex_init(&e->turn, NULL);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->go, NULL);
    pthread_cond_init(&e->done, NULL);
    e->workers = hy_calloc((size_t)e->n, sizeof(*e->workers));
    hy_status st = HY_OK;
    if (e->workers == NULL)
        st = hy_fail(HY_E_NOMEM, "simt: no memory for the executor");
    for (int i = 0; st == HY_OK && i < e->n; i++)
        st = start_worker(e, i);
    if (st != HY_OK) {
        simt_exec_destroy(e);
        return st;
    }
    *out = e;
    return HY_OK;
}

void simt_exec_destroy(simt_exec *e)
{
    if (e == NULL)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_broadcast(&e->go);
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; e->workers != NULL && i < e->n; i++) {
        if (e->workers[i].started)
            pthread_join(e->workers[i].thread, NULL);
        if (e->workers[i].block != NULL)
            simt_block_fini(e->workers[i].block);
        hy_free(e->workers[i].block);
    }
    hy_free(e->workers);
    pthread_cond_destroy(&e->go);
    pthread_cond_destroy(&e->done);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->turn);
    hy_free(e);
}

static void run_all(simt_exec *e, const simt_launch *l)
{
    for (int i = 0; e->o.seed != 0 && i < e->n; i++)
        shuffle(e->workers[i].block->order, l->lanes, e->o.seed);
    e->l = l;
    atomic_store(&e->next, 0);
    atomic_store(&e->failed, false);
    bool alone = e->n == 1 || e->total == 1;
    if (!alone) {
        pthread_mutex_lock(&e->lock);
        e->busy = e->n - 1;
        e->round++;
        pthread_cond_broadcast(&e->go);
        pthread_mutex_unlock(&e->lock);
    }
    run_blocks(e, e->workers[0].block);
    if (!alone) {
        pthread_mutex_lock(&e->lock);
        while (e->busy != 0)
            pthread_cond_wait(&e->done, &e->lock);
        pthread_mutex_unlock(&e->lock);
    }
}

hy_status simt_exec_run(simt_exec *e, const simt_launch *l)
{
    hy_status st = HY_OK;
    if (l->lanes < 1 || l->lanes > SIMT_MAX_LANES)
        return hy_fail(HY_E_INVAL, "simt: kernel %s wants blocks of %d threads, at most %d here",
                       l->name, l->lanes, SIMT_MAX_LANES);
    pthread_mutex_lock(&e->turn);
    e->total = (uint64_t)l->x * l->y * l->z;
    if (e->total > 0)
        run_all(e, l);
    if (e->total > 0 && atomic_load(&e->failed))
        st = hy_fail(HY_E_DEVICE, "simt: %s", e->text);
    pthread_mutex_unlock(&e->turn);
    return st;
}
