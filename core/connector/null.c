/* SPDX-License-Identifier: Apache-2.0
 *
 * The null connector: nothing is found elsewhere, nothing is kept for others.
 *
 * Thread: any.  Owner: static.
 */
#include "core/connector/null.h"

#include <pthread.h>

static void arrived(void *self, const hy_conn_req *r)
{
    (void)self, (void)r;
}

static hy_status matched(void *self, const hy_conn_req *r, int32_t local, int32_t *n_out,
                         bool *async_out)
{
    (void)self, (void)r, (void)local;
    *n_out = 0;
    *async_out = false;
    return HY_OK;
}

static void allocated(void *self, const hy_conn_req *r, const hy_conn_blocks *b, int32_t local,
                      int32_t n_ext, uint64_t *deadline_out)
{
    (void)self, (void)r, (void)b, (void)local, (void)n_ext, (void)deadline_out;
}

static void *build_meta(void *self, const hy_conn_step *s)
{
    (void)self, (void)s;
    return NULL;
}

static void progressed(void *self, const hy_conn_event *ev, int32_t n)
{
    (void)self, (void)ev, (void)n;
}

static void finished(void *self, const hy_conn_req *r, const hy_conn_blocks *b, bool completed,
                     hy_conn_verdict *out)
{
    (void)self, (void)r, (void)b, (void)completed;
    *out = (hy_conn_verdict){0};
}

static void expired(void *self, uint64_t uid, hy_hold_kind kind)
{
    (void)self, (void)uid, (void)kind;
}

static bool busy(void *self)
{
    (void)self;
    return false;
}

static void info(void *self, uint64_t uid, hy_conn_info *out)
{
    (void)self, (void)uid;
    *out = (hy_conn_info){0};
}

static void computed(void *self, const hy_conn_req *r, const hy_conn_blocks *b)
{
    (void)self, (void)r, (void)b;
}

static void computing(void *self, const hy_conn_req *r, const hy_conn_blocks *b, int32_t n)
{
    (void)self, (void)r, (void)b, (void)n;
}

const hy_conn_sched_ops hy_conn__null_sched = {
    .size = sizeof(hy_conn_sched_ops),
    .arrived = arrived,
    .matched = matched,
    .allocated = allocated,
    .build_meta = build_meta,
    .progressed = progressed,
    .finished = finished,
    .expired = expired,
    .busy = busy,
    .info = info,
    .computing = computing,
    .computed = computed,
};

static hy_status register_kv(void *self, int32_t group, const hy_kv_pool *pool)
{
    (void)self, (void)group, (void)pool;
    return HY_OK;
}

static void w_preempted(void *self, hy_queue *q, const void *meta)
{
    (void)self, (void)q, (void)meta;
}

static void w_bind(void *self, const void *meta)
{
    (void)self, (void)meta;
}

static hy_status on_queue(void *self, hy_queue *q)
{
    (void)self, (void)q;
    return HY_OK;
}

static hy_status on_layer(void *self, hy_queue *q, int32_t group, int32_t layer)
{
    (void)self, (void)q, (void)group, (void)layer;
    return HY_OK;
}

static void w_poll(void *self, hy_conn_events *out)
{
    (void)self, (void)out;
}

static void w_clear(void *self)
{
    (void)self;
}

const hy_conn_worker_ops hy_conn__null_worker = {
    .size = sizeof(hy_conn_worker_ops),
    .register_kv = register_kv,
    .preempted = w_preempted,
    .bind = w_bind,
    .start_load = on_queue,
    .wait_layer_load = on_layer,
    .save_layer = on_layer,
    .wait_save = on_queue,
    .poll = w_poll,
    .clear = w_clear,
};

static hy_connector null_connector;

static void make_null(void)
{
    hy_connector_init(&null_connector, "null", NULL, NULL, NULL, NULL);
}

hy_connector *hy_connector_null(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_null);
    return &null_connector;
}
