/* SPDX-License-Identifier: Apache-2.0
 *
 * Thread pool without barriers. One word holds (epoch of the job, phase, next item); whoever swaps
 * it for its successor owns that item. Whoever completes the last item of a phase opens the next.
 * A waiting thread spins some microseconds, then yields, then sleeps on a futex.
 *
 * Thread: see pool.h.  Owner: the device.
 */
#include "backends/cpu/pool.h"
#include "backends/cpu/cpu_int.h"
#include "core/base/alloc.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define IDLE     255u
#define SPIN_NS  30000
#define YIELD_NS 150000

typedef struct worker {
    struct cpu_pool *pool;
    pthread_t thread;
    int id;
} worker;

struct cpu_pool {
    /* epoch 32 bits, phase 8, next item 24 */
    _Alignas(64) _Atomic uint64_t state;
    _Alignas(64) atomic_int left; /* items of the phase not complete */
    _Alignas(64) atomic_uint wake;
    atomic_int sleepers;
    atomic_bool stop;
    _Alignas(64) atomic_int n_items[CPU_MAX_PHASES];
    atomic_int n_phases;
    cpu_item_fn fn[CPU_MAX_PHASES];
    void *ctx;
    pthread_mutex_t turn; /* one job at a time */
    int n_threads, started;
    size_t scratch_bytes;
    void **scratch;
    worker *workers;
};

static uint64_t word(uint32_t epoch, uint32_t phase, uint32_t next)
{
    return (uint64_t)epoch << 32 | (uint64_t)phase << 24 | next;
}

static uint32_t phase_of(uint64_t s)
{
    return (uint32_t)s >> 24;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void publish(cpu_pool *p, uint64_t s)
{
    atomic_store_explicit(&p->state, s, memory_order_seq_cst);
    if (atomic_load_explicit(&p->sleepers, memory_order_seq_cst) > 0) {
        atomic_fetch_add(&p->wake, 1);
        syscall(SYS_futex, &p->wake, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

/* Opens the first phase from `phase` on that has items, or ends the job. */
static void open_phase(cpu_pool *p, uint32_t epoch, int phase)
{
    int n = atomic_load_explicit(&p->n_phases, memory_order_relaxed);
    for (; phase < n; phase++) {
        int items = atomic_load_explicit(&p->n_items[phase], memory_order_relaxed);
        if (items > 0) {
            atomic_store_explicit(&p->left, items, memory_order_relaxed);
            publish(p, word(epoch, (uint32_t)phase, 0));
            return;
        }
    }
    publish(p, word(epoch, IDLE, 0));
}

/* Takes and runs one item; false when there was none. *seen is the state that had none. */
static bool help(cpu_pool *p, int thread, uint64_t *seen)
{
    uint64_t s = atomic_load_explicit(&p->state, memory_order_acquire);
    for (;;) {
        uint32_t phase = phase_of(s), item = (uint32_t)s & 0xffffffu;
        *seen = s;
        if (phase == IDLE ||
            (int)item >= atomic_load_explicit(&p->n_items[phase], memory_order_relaxed))
            return false;
        if (!atomic_compare_exchange_weak_explicit(&p->state, &s, s + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        p->fn[phase](p->ctx, (int)item, thread);
        if (atomic_fetch_sub_explicit(&p->left, 1, memory_order_acq_rel) == 1)
            open_phase(p, (uint32_t)(s >> 32), (int)phase + 1);
        return true;
    }
}

/* Until the state is another than `seen`. Items taken by others change it too: harmless. */
static void wait_change(cpu_pool *p, uint64_t seen)
{
    for (int i = 0; i < 64; i++) {
        if (atomic_load_explicit(&p->state, memory_order_acquire) != seen)
            return;
        relax();
    }
    int64_t start = now_ns();
    for (;;) {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&p->state, memory_order_acquire) != seen)
                return;
            relax();
        }
        int64_t spent = now_ns() - start;
        if (spent > YIELD_NS)
            break;
        if (spent > SPIN_NS)
            sched_yield();
    }
    unsigned w = atomic_load(&p->wake);
    atomic_fetch_add_explicit(&p->sleepers, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&p->state, memory_order_seq_cst) == seen && !atomic_load(&p->stop))
        syscall(SYS_futex, &p->wake, FUTEX_WAIT_PRIVATE, w, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&p->sleepers, 1, memory_order_seq_cst);
}

static void *work(void *arg)
{
    worker *w = arg;
    uint64_t seen;
    while (!atomic_load_explicit(&w->pool->stop, memory_order_relaxed)) {
        if (!help(w->pool, w->id, &seen))
            wait_change(w->pool, seen);
    }
    return NULL;
}

void cpu_pool_run(cpu_pool *p, const cpu_job *job)
{
    HY_ASSERT(job->n_phases <= CPU_MAX_PHASES);
    pthread_mutex_lock(&p->turn);
    if (p->n_threads == 1) {
        for (int ph = 0; ph < job->n_phases; ph++) {
            for (int i = 0; i < job->n_items[ph]; i++)
                job->fn[ph](job->ctx, i, 0);
        }
        pthread_mutex_unlock(&p->turn);
        return;
    }
    for (int i = 0; i < job->n_phases; i++) {
        atomic_store_explicit(&p->n_items[i], job->n_items[i], memory_order_relaxed);
        p->fn[i] = job->fn[i];
    }
    atomic_store_explicit(&p->n_phases, job->n_phases, memory_order_relaxed);
    p->ctx = job->ctx;
    uint32_t epoch = (uint32_t)(atomic_load_explicit(&p->state, memory_order_relaxed) >> 32) + 1;
    open_phase(p, epoch, 0);
    for (;;) {
        uint64_t seen;
        if (help(p, 0, &seen))
            continue;
        if (phase_of(seen) == IDLE)
            break;
        wait_change(p, seen);
    }
    pthread_mutex_unlock(&p->turn);
}

void cpu_pool_for(cpu_pool *p, int n, cpu_item_fn fn, void *ctx)
{
    cpu_job job = {.n_phases = 1, .n_items = {n}, .fn = {fn}, .ctx = ctx};
    cpu_pool_run(p, &job);
}

int cpu_pool_threads(const cpu_pool *p)
{
    return p->n_threads;
}

void *cpu_pool_scratch(const cpu_pool *p, int thread)
{
    return p->scratch[thread];
}

void cpu_pool_destroy(cpu_pool *p)
{
    if (p == NULL)
        return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->wake, 1);
    /* A state that no thread waits for: sleepers are woken, spinners leave. */
    publish(p, word((uint32_t)(atomic_load(&p->state) >> 32) + 1, IDLE, 0));
    for (int i = 1; i <= p->started; i++)
        pthread_join(p->workers[i].thread, NULL);
    for (int i = 0; p->scratch != NULL && i < p->n_threads; i++)
        cpu_free(p->scratch[i], p->scratch_bytes);
    pthread_mutex_destroy(&p->turn);
    hy_free(p->scratch);
    hy_free(p->workers);
    hy_free(p);
}

hy_status cpu_pool_create(int n_threads, size_t scratch_bytes, cpu_pool **out)
{
    if (n_threads < 1 || n_threads > CPU_MAX_THREADS)
        return hy_fail(HY_E_INVAL, "cpu: %d threads are outside 1..%d", n_threads, CPU_MAX_THREADS);
    cpu_pool *p = hy_aligned_alloc(64, (sizeof(*p) + 63) & ~(size_t)63);
    if (p == NULL)
        return hy_fail(HY_E_NOMEM, "cpu: no memory for the thread pool");
    memset(p, 0, sizeof(*p));
    p->n_threads = n_threads;
    p->scratch_bytes = scratch_bytes;
    pthread_mutex_init(&p->turn, NULL);
    atomic_store(&p->state, word(0, IDLE, 0));
    p->scratch = hy_calloc((size_t)n_threads, sizeof(*p->scratch));
    p->workers = hy_calloc((size_t)n_threads, sizeof(*p->workers));
    bool ok = p->scratch != NULL && p->workers != NULL;
    for (int i = 0; ok && i < n_threads; i++)
        ok = (p->scratch[i] = cpu_alloc(scratch_bytes)) != NULL;
    if (!ok) {
        cpu_pool_destroy(p);
        return hy_fail(HY_E_NOMEM, "cpu: no memory for the scratch of %d threads", n_threads);
    }
    for (int i = 1; i < n_threads; i++) {
        p->workers[i] = (worker){.pool = p, .id = i};
        int e = pthread_create(&p->workers[i].thread, NULL, work, &p->workers[i]);
        if (e != 0) {
            cpu_pool_destroy(p);
            return hy_fail(HY_E_SYS, "cpu: cannot start thread %d of %d: %s", i, n_threads,
                           strerror(e));
        }
        char name[16];
        snprintf(name, sizeof(name), "hy-cpu-%u", (unsigned)i % 1000);
        pthread_setname_np(p->workers[i].thread, name);
        p->started = i;
    }
    *out = p;
    return HY_OK;
}
