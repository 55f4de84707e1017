/* SPDX-License-Identifier: Apache-2.0
 *
 * Making a connector from its tables, and the order of the worker half's calls.
 *
 * Thread: see connector.h.  Owner: see connector.h.
 */
#include "core/connector/connector.h"

#include "core/connector/null.h"

#include <string.h>

hy_status hy_conn_events_add(hy_conn_events *e, const hy_conn_event *ev)
{
    if (e->n >= e->cap)
        return HY_AGAIN;
    e->ev[e->n++] = *ev;
    return HY_OK;
}

/* Slots are function pointers of one size: take each that is present and inside `size`. */
static void fill(void *to, const void *from, const void *stubs, size_t full)
{
    size_t size = 0;
    memcpy(to, stubs, full);
    if (from != NULL)
        memcpy(&size, from, sizeof(size));
    if (size > full)
        size = full;
    void (*const none)(void) = NULL;
    for (size_t at = sizeof(size_t); at + sizeof(none) <= size; at += sizeof(none))
        if (memcmp((const char *)from + at, &none, sizeof(none)) != 0)
            memcpy((char *)to + at, (const char *)from + at, sizeof(none));
    memcpy(to, &full, sizeof(full));
}

void hy_connector_init(hy_connector *c, const char *name, const hy_conn_sched_ops *sched,
                       void *sched_self, const hy_conn_worker_ops *worker, void *worker_self)
{
    memset(c, 0, sizeof(*c));
    c->name = name;
    c->sched_self = sched_self;
    c->worker_self = worker_self;
    fill(&c->sched, sched, &hy_conn__null_sched, sizeof(c->sched));
    fill(&c->worker, worker, &hy_conn__null_worker, sizeof(c->worker));
    c->layers = c->worker.wait_layer_load != hy_conn__null_worker.wait_layer_load ||
                c->worker.save_layer != hy_conn__null_worker.save_layer;
}

hy_status hy_conn_step_begin(hy_connector *c, hy_queue *q, const void *meta)
{
    if (c == NULL)
        return HY_OK;
    c->worker.preempted(c->worker_self, q, meta);
    c->worker.bind(c->worker_self, meta);
    return c->worker.start_load(c->worker_self, q);
}

hy_status hy_conn_step_end(hy_connector *c, hy_queue *q, hy_conn_events *out)
{
    if (c == NULL)
        return HY_OK;
    const hy_status st = c->worker.wait_save(c->worker_self, q);
    if (out != NULL)
        c->worker.poll(c->worker_self, out);
    c->worker.clear(c->worker_self);
    return st;
}
