/* SPDX-License-Identifier: Apache-2.0
 *
 * A backend to copy. It is a whole device whose memory is the host's, with one op (add); all other
 * slots stay NULL and supports() refuses them, so the conformance suite passes from the start and
 * stays green while ops are filled in. docs/PORTING.md says how to begin.
 *
 * Thread: device calls from any thread; a queue has one owner.
 * Owner: alloc'd memory is freed by free; queues and events by their destroy.
 */
#include "core/base/alloc.h"
#include "hal/backend.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct skel_dev {
    hy_dev base; /* first, so that hy_dev * is skel_dev * */
    int index;
    /* your context, streams, library handles */
} skel_dev;

typedef struct skel_queue {
    hy_queue base;
    /* your stream */
} skel_queue;

struct hy_event {
    int unused; /* your event */
};

/* ---- device table ---- */

static hy_status skel_props(hy_dev *d, hy_dev_props *out)
{
    const skel_dev *s = (const skel_dev *)(const void *)d;
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "skeleton%d: host memory", s->index);
    snprintf(out->backend, sizeof(out->backend), "skeleton");
    out->index = s->index;
    out->n_threads = 1;
    out->host_visible = true; /* false when alloc returns addresses that the host may not touch */
    out->exact = false;       /* true: composites give the composed bits, batches change nothing */
    return HY_OK;
}

static void skel_close(hy_dev *d)
{
    hy_free(d);
}

static hy_status skel_alloc(hy_dev *d, size_t bytes, void **out)
{
    (void)d;
    size_t len = (bytes / 64 + 2) * 64;
    void *p = bytes < SIZE_MAX / 2 ? hy_aligned_alloc(64, len) : NULL;
    if (p == NULL)
        return hy_fail(HY_E_NOMEM_DEVICE, "skeleton: no memory for %zu bytes", bytes);
    memset(p, 0, len); /* zeroed is part of the contract */
    *out = p;
    return HY_OK;
}

static void skel_free(hy_dev *d, void *p, size_t bytes)
{
    (void)d, (void)bytes;
    hy_free(p);
}

static hy_status skel_queue_create(hy_dev *d, hy_queue **out)
{
    skel_queue *q = hy_calloc(1, sizeof(*q));
    if (q == NULL)
        return hy_fail(HY_E_NOMEM, "skeleton: no memory for a queue");
    q->base.dev = d;
    *out = &q->base;
    return HY_OK;
}

static void skel_queue_destroy(hy_queue *q)
{
    hy_free(q);
}

static hy_status skel_queue_wait(hy_queue *q)
{
    (void)q; /* ops here are done when they return; yours may only be enqueued */
    return HY_OK;
}

static hy_status skel_copy(hy_queue *q, void *dst, const void *src, size_t bytes)
{
    (void)q;
    memmove(dst, src, bytes);
    return HY_OK;
}

static hy_status skel_event_create(hy_dev *d, hy_event **out)
{
    (void)d;
    *out = hy_calloc(1, sizeof(**out));
    return *out != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "skeleton: no memory for an event");
}

static void skel_event_destroy(hy_event *e)
{
    hy_free(e);
}

static hy_status skel_event_on_queue(hy_queue *q, hy_event *e)
{
    (void)q, (void)e;
    return HY_OK;
}

static hy_status skel_event_done(hy_event *e)
{
    (void)e;
    return HY_OK;
}

static const hy_dev_ops skel_dev_ops = {
    .size = sizeof(hy_dev_ops),
    .props = skel_props,
    .close = skel_close,
    .alloc = skel_alloc,
    .free = skel_free,
    .queue_create = skel_queue_create,
    .queue_destroy = skel_queue_destroy,
    .queue_wait = skel_queue_wait,
    .copy = skel_copy,
    .event_create = skel_event_create,
    .event_destroy = skel_event_destroy,
    .event_record = skel_event_on_queue,
    .event_wait = skel_event_on_queue,
    .event_query = skel_event_done,
    .event_sync = skel_event_done,
};

/* ---- math table ---- */

/* Say yes only to what conforms: a yes that is wrong fails the suite, a no is merely listed. */
static bool skel_supports(hy_dev *d, const hy_op_query *q)
{
    (void)d;
    return q->op == HY_OP_ADD;
}

static hy_status skel_add(hy_queue *q, const hy_add *a)
{
    (void)q;
    for (int64_t r = 0; r < a->m; r++) {
        for (int64_t i = 0; i < a->dim; i++)
            a->y[r * a->ldy + i] = fmaf(a->b[r * a->ldb + i], a->b_scale, a->a[r * a->lda + i]);
    }
    return HY_OK;
}

static const hy_math_ops skel_math_ops = {
    .size = sizeof(hy_math_ops), .supports = skel_supports, .add = skel_add,
    /* next: prepare_weight, weight_free, matmul, rms_norm, kv_layout, kv_write, attention, ... */
};

/* ---- entry ---- */

static int skel_count(void)
{
    return 1; /* devices found; 0 when the driver or its library is absent */
}

static const char *skel_why_none(void)
{
    return "";
}

static hy_status skel_open(const hy_dev_opts *o, hy_dev **out)
{
    skel_dev *s = hy_calloc(1, sizeof(*s));
    if (s == NULL)
        return hy_fail(HY_E_NOMEM, "skeleton: no memory for the device");
    s->base.ops = &skel_dev_ops;
    s->base.math = &skel_math_ops;
    s->index = o->index;
    *out = &s->base;
    return HY_OK;
}

__attribute__((visibility("default"))) const hy_backend hy_backend_v1;
const hy_backend hy_backend_v1 = {
    .size = sizeof(hy_backend),
    .abi = HY_HAL_ABI,
    .name = "skeleton",
    .count = skel_count,
    .why_none = skel_why_none,
    .open = skel_open,
};
