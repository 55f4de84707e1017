/* SPDX-License-Identifier: Apache-2.0
 *
 * See dev.h.
 *
 * Thread: device calls from any thread; a queue has one owner.
 * Owner: as in dev.h.
 */
#include "backends/simt/gpu/dev.h"
#include "backends/simt/ops.h"
#include "core/base/alloc.h"

#include <stdio.h>
#include <string.h>

#define BLOCK      128 /* SIMT_BLOCK of dialect.h */
#define RING_BYTES ((size_t)4 << 20)

typedef struct gpu_dev {
    simt_base base;
    const gpu_api *api;
    void *ctx, *module;
    void *fn[SIMT_KERNELS];
    gpu_info info;
    int index;
} gpu_dev;

typedef struct gpu_queue {
    hy_queue base;
    void *stream;
    void *scratch; /* device */
    size_t scratch_bytes;
    void *host; /* pageable: built, then staged */
    size_t host_bytes;
    /* Staging: a pinned ring and its image on the device. A place is written again only after the
     * stream was waited for. */
    char *ring, *image;
    size_t ring_bytes, at;
} gpu_queue;

struct hy_event {
    gpu_dev *dev;
    void *e;
};

static const char *const kernel_names[] = {
#define NAME(k) #k,
    SIMT_EACH_KERNEL(NAME)
#undef NAME
};

static gpu_dev *dev_of(hy_dev *d)
{
    return (gpu_dev *)(void *)d;
}

static gpu_queue *queue_of(hy_queue *q)
{
    return (gpu_queue *)(void *)q;
}

static hy_status enter(hy_dev *d)
{
    return dev_of(d)->api->enter(dev_of(d)->ctx);
}

/* ---- device table ---- */

static hy_status props(hy_dev *d, hy_dev_props *out)
{
    gpu_dev *g = dev_of(d);
    memset(out, 0, sizeof(*out));
    HY_TRY(enter(d));
    HY_TRY(g->api->mem_info(&out->mem_free, &out->mem_total));
    snprintf(out->backend, sizeof(out->backend), "%s", g->api->name);
    snprintf(out->isa, sizeof(out->isa), "wave%d", g->info.wave);
    snprintf(out->name, sizeof(out->name), "%s%d: %s", g->api->name, g->index, g->info.name);
    out->index = g->index;
    out->n_threads = g->info.units;
    out->host_visible = false;
    out->exact = true;
    return HY_OK;
}

static void close_dev(hy_dev *d)
{
    gpu_dev *g = dev_of(d);
    if (g->ctx != NULL && enter(d) == HY_OK) {
        if (g->module != NULL)
            g->api->unload(g->module);
        g->api->close(g->index, g->ctx);
    }
    hy_free(g);
}

static hy_status dev_alloc(hy_dev *d, size_t bytes, void **out)
{
    gpu_dev *g = dev_of(d);
    void *p = NULL;
    HY_TRY(enter(d));
    HY_TRY(g->api->alloc(bytes != 0 ? bytes : 1, &p));
    hy_status st = g->api->zero(p, bytes != 0 ? bytes : 1, NULL);
    if (st == HY_OK)
        st = g->api->stream_sync(NULL); /* queues do not wait for the null stream */
    if (st != HY_OK) {
        g->api->free(p);
        return st;
    }
    *out = p;
    return HY_OK;
}

static void dev_free(hy_dev *d, void *p, size_t bytes)
{
    (void)bytes;
    if (p != NULL && enter(d) == HY_OK)
        dev_of(d)->api->free(p);
}

static hy_status host_register(hy_dev *d, void *p, size_t bytes)
{
    HY_TRY(enter(d));
    return dev_of(d)->api->host_register(p, bytes);
}

static void host_unregister(hy_dev *d, void *p)
{
    if (enter(d) == HY_OK)
        dev_of(d)->api->host_unregister(p);
}

static void queue_destroy(hy_queue *q)
{
    if (q == NULL)
        return;
    gpu_queue *g = queue_of(q);
    const gpu_api *api = dev_of(q->dev)->api;
    if (enter(q->dev) == HY_OK) {
        if (g->stream != NULL && api->stream_sync(g->stream) == HY_OK)
            api->stream_destroy(g->stream);
        if (g->scratch != NULL)
            api->free(g->scratch);
        if (g->image != NULL)
            api->free(g->image);
        if (g->ring != NULL)
            api->host_free(g->ring);
    }
    hy_free(g->host);
    hy_free(g);
}

static hy_status make_ring(gpu_queue *g, size_t bytes)
{
    const gpu_api *api = dev_of(g->base.dev)->api;
    void *ring = NULL, *image = NULL;
    HY_TRY(api->host_alloc(bytes, &ring));
    hy_status st = api->alloc(bytes, &image);
    if (st != HY_OK) {
        api->host_free(ring);
        return st;
    }
    if (g->ring != NULL) {
        api->host_free(g->ring);
        api->free(g->image);
    }
    g->ring = ring;
    g->image = image;
    g->ring_bytes = bytes;
    g->at = 0;
    return HY_OK;
}

static hy_status queue_create(hy_dev *d, hy_queue **out)
{
    HY_TRY(enter(d));
    gpu_queue *q = hy_calloc(1, sizeof(*q));
    if (q == NULL)
        return hy_fail(HY_E_NOMEM, "%s: no memory for a queue", dev_of(d)->api->name);
    q->base.dev = d;
    hy_status st = dev_of(d)->api->stream_create(&q->stream);
    if (st == HY_OK)
        st = make_ring(q, RING_BYTES);
    if (st != HY_OK) {
        queue_destroy(&q->base);
        return st;
    }
    *out = &q->base;
    return HY_OK;
}

static hy_status queue_wait(hy_queue *q)
{
    HY_TRY(enter(q->dev));
    return dev_of(q->dev)->api->stream_sync(queue_of(q)->stream);
}

static hy_status copy(hy_queue *q, void *dst, const void *src, size_t bytes)
{
    if (bytes == 0)
        return HY_OK;
    HY_TRY(enter(q->dev));
    return dev_of(q->dev)->api->copy(dst, src, bytes, queue_of(q)->stream);
}

static hy_status event_create(hy_dev *d, hy_event **out)
{
    HY_TRY(enter(d));
    hy_event *e = hy_calloc(1, sizeof(*e));
    if (e == NULL)
        return hy_fail(HY_E_NOMEM, "%s: no memory for an event", dev_of(d)->api->name);
    e->dev = dev_of(d);
    hy_status st = e->dev->api->event_create(&e->e);
    if (st != HY_OK) {
        hy_free(e);
        return st;
    }
    *out = e;
    return HY_OK;
}

static void event_destroy(hy_event *e)
{
    if (e == NULL)
        return;
    if (enter(&e->dev->base.base) == HY_OK)
        e->dev->api->event_destroy(e->e);
    hy_free(e);
}

static hy_status event_record(hy_queue *q, hy_event *e)
{
    HY_TRY(enter(q->dev));
    return e->dev->api->event_record(e->e, queue_of(q)->stream);
}

static hy_status event_wait(hy_queue *q, hy_event *e)
{
    HY_TRY(enter(q->dev));
    return e->dev->api->event_wait(queue_of(q)->stream, e->e);
}

static hy_status event_query(hy_event *e)
{
    HY_TRY(enter(&e->dev->base.base));
    return e->dev->api->event_query(e->e);
}

static hy_status event_sync(hy_event *e)
{
    HY_TRY(enter(&e->dev->base.base));
    return e->dev->api->event_sync(e->e);
}

static hy_status export_mem(hy_dev *d, void *p, size_t bytes, hy_span *out)
{
    int fd = -1;
    HY_TRY(enter(d));
    HY_TRY(dev_of(d)->api->export_fd(p, bytes, &fd));
    *out = (hy_span){p, bytes, HY_MEM_DEVICE, dev_of(d)->index, {HY_EXPORT_FD, fd, 0, 0}};
    return HY_OK;
}

static const hy_dev_ops dev_ops = {
    .size = sizeof(hy_dev_ops),
    .props = props,
    .close = close_dev,
    .alloc = dev_alloc,
    .free = dev_free,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .queue_create = queue_create,
    .queue_destroy = queue_destroy,
    .queue_wait = queue_wait,
    .copy = copy,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_query = event_query,
    .event_sync = event_sync,
    .fence = queue_wait, /* the fabric reads what a finished stream wrote */
    .acquire_remote = queue_wait,
    .export_mem = export_mem,
};

/* ---- driver of the ops ---- */

static hy_status launch(hy_queue *q, simt_kernel k, uint32_t x, uint32_t y, uint32_t z,
                        const void *args, size_t bytes)
{
    gpu_dev *g = dev_of(q->dev);
    HY_TRY(enter(q->dev));
    return g->api->launch(g->fn[k], x, y, z, BLOCK, args, bytes, queue_of(q)->stream);
}

static hy_status stage(hy_queue *q, const void *src, size_t bytes, const void **out)
{
    gpu_queue *g = queue_of(q);
    const gpu_api *api = dev_of(q->dev)->api;
    size_t len = (bytes + 255) / 256 * 256;
    *out = NULL;
    if (src == NULL)
        return HY_OK;
    HY_TRY(enter(q->dev));
    if (g->at + len > g->ring_bytes) { /* around: what was staged must be used up */
        HY_TRY(api->stream_sync(g->stream));
        g->at = 0;
        if (len > g->ring_bytes)
            HY_TRY(make_ring(g, 2 * len));
    }
    memcpy(g->ring + g->at, src, bytes);
    if (bytes != 0)
        HY_TRY(api->copy(g->image + g->at, g->ring + g->at, bytes, g->stream));
    *out = g->image + g->at;
    g->at += len;
    return HY_OK;
}

static hy_status host_scratch(hy_queue *q, size_t bytes, void **out)
{
    gpu_queue *g = queue_of(q);
    if (bytes > g->host_bytes) {
        size_t want = bytes + g->host_bytes / 2;
        void *p = hy_realloc(g->host, want);
        if (p == NULL)
            return hy_fail(HY_E_NOMEM, "%s: no memory for %zu bytes", dev_of(q->dev)->api->name,
                           bytes);
        g->host = p;
        g->host_bytes = want;
    }
    *out = g->host;
    return HY_OK;
}

static hy_status dev_scratch(hy_queue *q, size_t bytes, void **out)
{
    gpu_queue *g = queue_of(q);
    const gpu_api *api = dev_of(q->dev)->api;
    if (bytes > g->scratch_bytes) {
        size_t want = bytes + g->scratch_bytes / 2;
        void *p = NULL;
        HY_TRY(enter(q->dev));
        HY_TRY(api->alloc(want, &p));
        if (g->scratch != NULL) {
            hy_status st = api->stream_sync(g->stream); /* kernels may still read it */
            if (st != HY_OK) {
                api->free(p);
                return st;
            }
            api->free(g->scratch);
        }
        g->scratch = p;
        g->scratch_bytes = want;
    }
    *out = g->scratch;
    return HY_OK;
}

static const simt_driver driver = {launch, stage, host_scratch, dev_scratch, copy};

/* ---- entry ---- */

static hy_status load_kernels(gpu_dev *g)
{
    HY_TRY(g->api->load(&g->module));
    for (int i = 0; i < SIMT_KERNELS; i++)
        HY_TRY(g->api->function(g->module, kernel_names[i], &g->fn[i]));
    return HY_OK;
}

hy_status gpu_open(const gpu_api *api, const hy_dev_opts *o, hy_dev **out)
{
    gpu_dev *g = hy_calloc(1, sizeof(*g));
    if (g == NULL)
        return hy_fail(HY_E_NOMEM, "%s: no memory for the device", api->name);
    g->api = api;
    g->index = o->index;
    g->base = (simt_base){.name = api->name, .drv = &driver};
    g->base.base.ops = &dev_ops;
    g->base.base.math = &simt_math;
    hy_status st = api->open(o->index, &g->ctx, &g->info);
    if (st == HY_OK)
        st = load_kernels(g);
    if (st != HY_OK) {
        close_dev(&g->base.base);
        return st;
    }
    g->base.units = g->info.units;
    *out = &g->base.base;
    return HY_OK;
}
