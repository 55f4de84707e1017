/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues: a stream, the list of kernels that wait to be started, and what kernels need of the
 * host. See dev.h.
 *
 * Thread: a queue's owner.  Owner: as in dev.h.
 */
#include "backends/gpu/dev.h"
#include "core/base/alloc.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static const char *const kernel_names[] = {
#define NAME(k) #k,
    SIMT_EACH_KERNEL(NAME)
#undef NAME
};

/* ---- lists ---- */

static size_t list_bytes(size_t items, size_t args)
{
    return items * sizeof(gpu_launch) + args;
}

/* Mapped, not from the heap: no allocation inside a step. */
hy_status gpu_list_init(gpu_list *l, size_t items, size_t args)
{
    void *p = mmap(NULL, list_bytes(items, args), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return hy_fail(HY_E_NOMEM, "no memory for a list of %zu kernels", items);
    *l = (gpu_list){.args = p, .items = (gpu_launch *)(void *)((char *)p + args)};
    return HY_OK;
}

void gpu_list_fini(gpu_list *l, size_t items, size_t args)
{
    if (l->args != NULL)
        munmap(l->args, list_bytes(items, args));
    *l = (gpu_list){0};
}

hy_status gpu_list_launch(gpu_queue *q, const gpu_list *l)
{
    const gpu_dev *g = gpu_dev_of(q->base.dev);
    for (int i = 0; i < l->n; i++) {
        const gpu_launch *k = &l->items[i];
        void *params[1] = {l->args + k->at};
        int code = g->v->calls->launch(g->fn[k->kernel], k->x, k->y, k->z, GPU_BLOCK, 1, 1, 0,
                                       q->stream, params, NULL);
        if (code != 0)
            return gpu_did(g, code, kernel_names[k->kernel]);
    }
    return HY_OK;
}

/* ---- starting ---- */

static hy_status send_staged(gpu_queue *q)
{
    const gpu_dev *g = gpu_dev_of(q->base.dev);
    const gpu_ring *r = &q->ring;
    size_t from = q->sent;
    if (from == q->at)
        return HY_OK;
    q->sent = q->at;
    return gpu_did(g, g->v->calls->copy(r->image + from, r->host + from, q->at - from, q->stream),
                   "staging");
}

hy_status gpu_queue_flush(gpu_queue *q)
{
    if (q->list.n == 0)
        return HY_OK;
    hy_status st = gpu_enter(gpu_dev_of(q->base.dev));
    if (st == HY_OK)
        st = send_staged(q);
    if (st == HY_OK)
        st = gpu_graph_run(q);
    if (st == HY_AGAIN)
        st = gpu_list_launch(q, &q->list);
    q->list.n = 0; /* after a failure too: what was not started never will be */
    q->list.used = 0;
    return st;
}

static hy_status drain(gpu_queue *q)
{
    const gpu_dev *g = gpu_dev_of(q->base.dev);
    hy_status st = gpu_queue_flush(q);
    if (st != HY_OK)
        return st;
    HY_TRY(gpu_enter(g));
    return gpu_did(g, g->v->calls->stream_sync(q->stream), "waiting for a stream");
}

static void free_ring(const gpu_calls *c, gpu_ring *r)
{
    if (r->image != NULL)
        c->free(r->image);
    if (r->host != NULL)
        c->host_free(r->host);
    *r = (gpu_ring){0};
}

static void free_full(gpu_queue *q)
{
    while (q->n_full > 0)
        free_ring(gpu_dev_of(q->base.dev)->v->calls, &q->full[--q->n_full]);
}

hy_status gpu_queue_wait(hy_queue *hq)
{
    gpu_queue *q = gpu_queue_of(hq);
    HY_TRY(drain(q));
    free_full(q);
    q->sent = q->at = 0; /* the same places every step: the same arguments, so the same graph */
    q->n_staged = 0;
    return HY_OK;
}

hy_status gpu_queue_copy(hy_queue *q, void *dst, const void *src, size_t bytes)
{
    const gpu_dev *g = gpu_dev_of(q->dev);
    if (bytes == 0)
        return HY_OK;
    HY_TRY(gpu_queue_flush(gpu_queue_of(q)));
    HY_TRY(gpu_enter(g));
    return gpu_did(g, g->v->calls->copy(dst, src, bytes, gpu_queue_of(q)->stream), "copy");
}

/* ---- create, destroy ---- */

void gpu_queue_destroy(hy_queue *hq)
{
    if (hq == NULL)
        return;
    gpu_queue *q = gpu_queue_of(hq);
    const gpu_dev *g = gpu_dev_of(hq->dev);
    const gpu_calls *c = g->v->calls;
    c->ctx_set(g->ctx); /* codes are of no use here: a lost device too gets everything back */
    if (q->stream != NULL)
        c->stream_sync(q->stream);
    gpu_graph_free_all(q);
    free_full(q);
    free_ring(c, &q->ring);
    if (q->scratch != NULL)
        c->free(q->scratch);
    if (q->space != NULL)
        c->free(q->space);
    if (q->stream != NULL)
        c->stream_destroy(q->stream);
    gpu_list_fini(&q->list, GPU_PENDING, GPU_ARGS);
    if (q->host != NULL)
        munmap(q->host, q->host_bytes);
    hy_free(q);
}

hy_status gpu_queue_create(hy_dev *d, hy_queue **out)
{
    const gpu_dev *g = gpu_dev_of(d);
    HY_TRY(gpu_enter(g));
    gpu_queue *q = hy_calloc(1, sizeof(*q));
    if (q == NULL)
        return hy_fail(HY_E_NOMEM, "%s: no memory for a queue", g->v->name);
    q->base.dev = d;
    q->no_graphs = !g->graphs;
    hy_status st = gpu_did(g, g->v->calls->stream_create(&q->stream, 1), "stream");
    if (st != HY_OK) {
        q->stream = NULL;
        gpu_queue_destroy(&q->base);
        return st;
    }
    *out = &q->base;
    return HY_OK;
}

/* ---- driver of the ops ---- */

static hy_status launch(hy_queue *hq, simt_kernel k, uint32_t x, uint32_t y, uint32_t z,
                        const void *args, size_t bytes)
{
    gpu_queue *q = gpu_queue_of(hq);
    gpu_list *l = &q->list;
    size_t len = (bytes + 15) / 16 * 16;
    if (l->args == NULL)
        HY_TRY(gpu_list_init(l, GPU_PENDING, GPU_ARGS));
    if (l->n == GPU_PENDING || l->used + len > GPU_ARGS)
        HY_TRY(gpu_queue_flush(q));
    memcpy(l->args + l->used, args, bytes);
    l->items[l->n++] = (gpu_launch){(uint32_t)k, x, y, z, (uint32_t)l->used, (uint32_t)bytes};
    l->used += len;
    return q->no_graphs ? gpu_queue_flush(q) : HY_OK;
}

static hy_status make_ring(const gpu_dev *g, size_t bytes, gpu_ring *r)
{
    void *p = NULL;
    HY_TRY(gpu_did(g, g->v->calls->host_alloc(&p, bytes, 0), "pinned memory"));
    *r = (gpu_ring){.host = p, .bytes = bytes};
    p = NULL;
    hy_status st = gpu_did(g, g->v->calls->alloc(&p, bytes), "the staging ring");
    if (st != HY_OK) {
        free_ring(g->v->calls, r);
        return st;
    }
    r->image = p;
    return HY_OK;
}

/* A larger one; the full one stays until the queue is waited for, since kernels to come read it. */
static hy_status next_ring(gpu_queue *q, size_t len)
{
    const gpu_dev *g = gpu_dev_of(q->base.dev);
    size_t want = q->ring.bytes < GPU_RING_MAX ? 2 * q->ring.bytes : q->ring.bytes;
    gpu_ring r;
    while (want < len)
        want = want != 0 ? 2 * want : GPU_RING;
    if (q->n_full == GPU_RINGS) {
        HY_TRY(drain(q));
        free_full(q);
    }
    HY_TRY(make_ring(g, want, &r));
    hy_status st = send_staged(q);
    if (q->ring.bytes != 0)
        q->full[q->n_full++] = q->ring;
    q->ring = r;
    q->sent = q->at = 0;
    q->n_staged = 0;
    return st;
}

static hy_status stage(hy_queue *hq, const void *src, size_t bytes, const void **out)
{
    gpu_queue *q = gpu_queue_of(hq);
    size_t len = (bytes + 255) / 256 * 256;
    *out = NULL;
    if (src == NULL || bytes == 0)
        return HY_OK;
    for (int i = 0; i < q->n_staged; i++) { /* as for the layer before */
        const gpu_staged *s = &q->staged[i];
        if (s->src == src && s->bytes == bytes && memcmp(q->ring.host + s->at, src, bytes) == 0) {
            *out = q->ring.image + s->at;
            return HY_OK;
        }
    }
    HY_TRY(gpu_enter(gpu_dev_of(hq->dev)));
    if (q->at + len > q->ring.bytes)
        HY_TRY(next_ring(q, len));
    memcpy(q->ring.host + q->at, src, bytes);
    if (q->n_staged < GPU_STAGED)
        q->staged[q->n_staged++] = (gpu_staged){src, q->at, bytes};
    *out = q->ring.image + q->at;
    q->at += len;
    return HY_OK;
}

/* Mapped, too: it grows inside a step. */
static hy_status host_scratch(hy_queue *hq, size_t bytes, void **out)
{
    gpu_queue *q = gpu_queue_of(hq);
    if (bytes > q->host_bytes) {
        size_t want = (bytes + q->host_bytes / 2 + 65535) / 65536 * 65536;
        void *p = mmap(NULL, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return hy_fail(HY_E_NOMEM, "%s: no memory for %zu bytes", gpu_dev_of(hq->dev)->v->name,
                           bytes);
        if (q->host != NULL)
            munmap(q->host, q->host_bytes);
        q->host = p;
        q->host_bytes = want;
    }
    *out = q->host;
    return HY_OK;
}

static hy_status dev_scratch(hy_queue *hq, size_t bytes, void **out)
{
    gpu_queue *q = gpu_queue_of(hq);
    const gpu_dev *g = gpu_dev_of(hq->dev);
    if (bytes > q->scratch_bytes) {
        size_t want = bytes + q->scratch_bytes / 2;
        void *p = NULL;
        HY_TRY(drain(q)); /* kernels may still read it */
        if (q->scratch != NULL)
            g->v->calls->free(q->scratch);
        q->scratch = NULL;
        q->scratch_bytes = 0;
        HY_TRY(gpu_did(g, g->v->calls->alloc(&p, want), "scratch"));
        q->scratch = p;
        q->scratch_bytes = want;
    }
    *out = q->scratch;
    return HY_OK;
}

const simt_driver gpu_driver = {launch, stage, host_scratch, dev_scratch, gpu_queue_copy};
