/* SPDX-License-Identifier: Apache-2.0
 *
 * A backend made from hal/skeleton by docs/PORTING.md: the device half. Work begins some time
 * after it was enqueued, and memory counts as out of the host's reach, as with any GPU.
 *
 * Thread: device calls from any thread; a queue has one owner.
 * Owner: alloc'd memory is freed by free; queues and events by their destroy.
 */
#include "tests/port/toy/toy.h"

#include "core/base/alloc.h"
#include "core/base/conf_key.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct toy_dev {
    hy_dev base; /* first, so that hy_dev * is toy_dev * */
    int index, without;
} toy_dev;

typedef struct job {
    struct job *next;
    toy_fn fn;
    char *room; /* free, behind the arguments */
    _Alignas(16) char args[];
} job;

typedef struct toy_queue {
    hy_queue base;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    job *first, **last;
    bool busy, stop;
} toy_queue;

struct hy_event {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint64_t asked, done; /* records enqueued, and reached */
};

static toy_queue *queue_of(hy_queue *q)
{
    return (toy_queue *)(void *)q;
}

int toy_without(const hy_dev *d)
{
    return ((const toy_dev *)(const void *)d)->without;
}

/* ---- jobs ---- */

static void *work(void *arg)
{
    toy_queue *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->first == NULL && !q->stop)
            pthread_cond_wait(&q->cond, &q->lock);
        if (q->first == NULL)
            break;
        job *j = q->first;
        q->first = j->next;
        if (q->first == NULL)
            q->last = &q->first;
        q->busy = true;
        pthread_mutex_unlock(&q->lock);
        usleep(20); /* the caller's stack is gone by now */
        j->fn(j->args);
        free(j);
        pthread_mutex_lock(&q->lock);
        q->busy = false;
        pthread_cond_broadcast(&q->cond);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

void *toy_job(hy_queue *q, toy_fn fn, const void *args, size_t bytes, size_t more)
{
    const size_t room = (bytes + 15) / 16 * 16;
    (void)q;
    job *j = malloc(sizeof(*j) + room + more + 256); /* not of ours: steps must not allocate */
    if (j == NULL)
        return NULL;
    j->next = NULL;
    j->fn = fn;
    j->room = j->args + room;
    memcpy(j->args, args, bytes);
    return j->args;
}

static job *job_of(void *args)
{
    return (job *)(void *)((char *)args - offsetof(job, args));
}

const void *toy_keep(void *args, const void *src, size_t bytes)
{
    job *j = job_of(args);
    void *at = j->room;
    memcpy(at, src, bytes);
    j->room += (bytes + 15) / 16 * 16;
    return at;
}

hy_status toy_submit(hy_queue *hq, void *args)
{
    toy_queue *q = queue_of(hq);
    if (args == NULL)
        return hy_fail(HY_E_NOMEM, "toy: no memory for a job");
    pthread_mutex_lock(&q->lock);
    *q->last = job_of(args);
    q->last = &job_of(args)->next;
    pthread_cond_broadcast(&q->cond);
    pthread_mutex_unlock(&q->lock);
    return HY_OK;
}

/* ---- device table ---- */

static hy_status toy_props(hy_dev *d, hy_dev_props *out)
{
    const toy_dev *s = (const toy_dev *)(const void *)d;
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "toy%d: threads that are late", s->index);
    snprintf(out->backend, sizeof(out->backend), "toy");
    out->index = s->index;
    out->n_threads = 1;
    out->host_visible = false;
    out->exact = true; /* a row's bits depend on nothing but the row */
    return HY_OK;
}

static void toy_close(hy_dev *d)
{
    hy_free(d);
}

static hy_status toy_alloc(hy_dev *d, size_t bytes, void **out)
{
    (void)d;
    size_t len = (bytes / 64 + 2) * 64;
    void *p = bytes < SIZE_MAX / 2 ? hy_aligned_alloc(64, len) : NULL;
    if (p == NULL)
        return hy_fail(HY_E_NOMEM_DEVICE, "toy: no memory for %zu bytes", bytes);
    memset(p, 0, len); /* zeroed is part of the contract */
    *out = p;
    return HY_OK;
}

static void toy_free(hy_dev *d, void *p, size_t bytes)
{
    (void)d, (void)bytes;
    hy_free(p);
}

static hy_status toy_queue_create(hy_dev *d, hy_queue **out)
{
    toy_queue *q = hy_calloc(1, sizeof(*q));
    if (q == NULL)
        return hy_fail(HY_E_NOMEM, "toy: no memory for a queue");
    q->base.dev = d;
    q->last = &q->first;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->cond, NULL);
    if (pthread_create(&q->thread, NULL, work, q) != 0) {
        hy_free(q);
        return hy_fail(HY_E_SYS, "toy: no thread for a queue");
    }
    *out = &q->base;
    return HY_OK;
}

static void toy_queue_destroy(hy_queue *hq)
{
    toy_queue *q = queue_of(hq);
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->cond);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->cond);
    hy_free(q);
}

static hy_status toy_queue_wait(hy_queue *hq)
{
    toy_queue *q = queue_of(hq);
    pthread_mutex_lock(&q->lock);
    while (q->first != NULL || q->busy)
        pthread_cond_wait(&q->cond, &q->lock);
    pthread_mutex_unlock(&q->lock);
    return HY_OK;
}

typedef struct moved {
    void *dst;
    const void *src;
    size_t bytes;
} moved;

static void run_copy(void *p)
{
    const moved *m = p;
    if (m->bytes != 0)
        memmove(m->dst, m->src, m->bytes);
}

static hy_status toy_copy(hy_queue *q, void *dst, const void *src, size_t bytes)
{
    const moved m = {dst, src, bytes};
    return toy_submit(q, toy_job(q, run_copy, &m, sizeof(m), 0));
}

/* ---- events ---- */

static hy_status toy_event_create(hy_dev *d, hy_event **out)
{
    (void)d;
    hy_event *e = hy_calloc(1, sizeof(*e));
    if (e == NULL)
        return hy_fail(HY_E_NOMEM, "toy: no memory for an event");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->cond, NULL);
    *out = e;
    return HY_OK;
}

static void toy_event_destroy(hy_event *e)
{
    if (e == NULL)
        return;
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->cond);
    hy_free(e);
}

typedef struct mark {
    hy_event *e;
    uint64_t value;
} mark;

static void run_record(void *p)
{
    const mark *m = p;
    pthread_mutex_lock(&m->e->lock);
    m->e->done = m->value > m->e->done ? m->value : m->e->done;
    pthread_cond_broadcast(&m->e->cond);
    pthread_mutex_unlock(&m->e->lock);
}

static void run_wait(void *p)
{
    const mark *m = p;
    pthread_mutex_lock(&m->e->lock);
    while (m->e->done < m->value)
        pthread_cond_wait(&m->e->cond, &m->e->lock);
    pthread_mutex_unlock(&m->e->lock);
}

static uint64_t asked(hy_event *e, int more)
{
    pthread_mutex_lock(&e->lock);
    const uint64_t v = e->asked += (uint64_t)more;
    pthread_mutex_unlock(&e->lock);
    return v;
}

static hy_status toy_event_record(hy_queue *q, hy_event *e)
{
    const mark m = {e, asked(e, 1)};
    return toy_submit(q, toy_job(q, run_record, &m, sizeof(m), 0));
}

static hy_status toy_event_wait(hy_queue *q, hy_event *e)
{
    const mark m = {e, asked(e, 0)};
    return toy_submit(q, toy_job(q, run_wait, &m, sizeof(m), 0));
}

static hy_status toy_event_query(hy_event *e)
{
    pthread_mutex_lock(&e->lock);
    const bool done = e->done >= e->asked;
    pthread_mutex_unlock(&e->lock);
    return done ? HY_OK : HY_AGAIN;
}

static hy_status toy_event_sync(hy_event *e)
{
    mark m = {e, asked(e, 0)};
    run_wait(&m);
    return HY_OK;
}

static const hy_dev_ops toy_dev_ops = {
    .size = sizeof(hy_dev_ops),
    .props = toy_props,
    .close = toy_close,
    .alloc = toy_alloc,
    .free = toy_free,
    .queue_create = toy_queue_create,
    .queue_destroy = toy_queue_destroy,
    .queue_wait = toy_queue_wait,
    .copy = toy_copy,
    .event_create = toy_event_create,
    .event_destroy = toy_event_destroy,
    .event_record = toy_event_record,
    .event_wait = toy_event_wait,
    .event_query = toy_event_query,
    .event_sync = toy_event_sync,
    .fence = toy_queue_wait,
    .acquire_remote = toy_queue_wait,
};

/* ---- entry ---- */

static int toy_count(void)
{
    return 1;
}

static const char *toy_why_none(void)
{
    return "";
}

/* An op left out, as a port on its way has it: what needs it fails, and nothing crashes. */
static int without(const hy_dev_opts *o)
{
    for (const char *const *kv = o->kv; kv != NULL && *kv != NULL; kv++) {
        for (int op = 0; strncmp(*kv, "without=", 8) == 0 && op < HY_OP_COUNT; op++) {
            if (strcmp(*kv + 8, hy_op_name((hy_op)op)) == 0)
                return op;
        }
    }
    return -1;
}

static hy_status toy_open(const hy_dev_opts *o, hy_dev **out)
{
    toy_dev *s = hy_calloc(1, sizeof(*s));
    if (s == NULL)
        return hy_fail(HY_E_NOMEM, "toy: no memory for the device");
    s->base.ops = &toy_dev_ops;
    s->base.math = &toy_math_ops;
    s->index = o->index;
    s->without = without(o);
    *out = &s->base;
    return HY_OK;
}

static const hy_conf_key keys[] = {
    {"backend.toy", "without", HY_CONF_STRING, "", NULL, NULL, NULL, "An operation to leave out."},
};

__attribute__((visibility("default"))) const hy_backend hy_backend_v1;
const hy_backend hy_backend_v1 = {
    .size = sizeof(hy_backend),
    .abi = HY_HAL_ABI,
    .name = "toy",
    .count = toy_count,
    .why_none = toy_why_none,
    .open = toy_open,
    .keys = keys,
    .n_keys = sizeof(keys) / sizeof(keys[0]),
};
