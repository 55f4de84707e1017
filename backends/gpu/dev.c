/* SPDX-License-Identifier: Apache-2.0
 *
 * The device table over a vendor's calls. See dev.h.
 *
 * Thread: device calls from any thread.  Owner: as in dev.h.
 */
#include "backends/gpu/dev.h"
#include "core/base/alloc.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NO_TIMING = 2, DMABUF = 1 };

struct hy_event {
    gpu_dev *dev;
    void *e;
};

static const char *const kernel_names[] = {
#define NAME(k) #k,
    SIMT_EACH_KERNEL(NAME)
#undef NAME
};

hy_status gpu_did(const gpu_dev *g, int code, const char *what)
{
    return code == 0 ? HY_OK : gpu_check(g->v, code, what);
}

hy_status gpu_enter(const gpu_dev *g)
{
    return gpu_did(g, g->v->calls->ctx_set(g->ctx), "context");
}

/* ---- memory ---- */

static hy_status props(hy_dev *d, hy_dev_props *out)
{
    const gpu_dev *g = gpu_dev_of(d);
    memset(out, 0, sizeof(*out));
    HY_TRY(gpu_enter(g));
    HY_TRY(gpu_did(g, g->v->calls->mem_info(&out->mem_free, &out->mem_total), "memory info"));
    snprintf(out->backend, sizeof(out->backend), "%s", g->v->name);
    snprintf(out->isa, sizeof(out->isa), "wave%d", g->wave);
    snprintf(out->name, sizeof(out->name), "%s%d: %.46s (wave %d, %.24s)", g->v->name, g->index,
             g->name, g->wave, g->arch);
    out->index = g->index;
    out->n_threads = g->units;
    out->host_visible = false;
    out->exact = !g->base.fast;
    return HY_OK;
}

static void close_dev(hy_dev *d)
{
    gpu_dev *g = gpu_dev_of(d);
    if (g->ctx != NULL) {
        g->v->calls->ctx_set(g->ctx);
        gpu_blas_destroy(g->blas);
        if (g->module != NULL)
            g->v->calls->unload(g->module);
        g->v->calls->ctx_release(g->handle);
    }
    hy_free(g);
}

static hy_status dev_alloc(hy_dev *d, size_t bytes, void **out)
{
    const gpu_dev *g = gpu_dev_of(d);
    const gpu_calls *c = g->v->calls;
    size_t n = bytes != 0 ? bytes : 1;
    void *p = NULL;
    char what[64];
    snprintf(what, sizeof(what), "allocating %zu bytes", n);
    HY_TRY(gpu_enter(g));
    HY_TRY(gpu_did(g, c->alloc(&p, n), what));
    hy_status st = gpu_did(g, c->zero(p, 0, n, NULL), "clearing memory");
    if (st == HY_OK) /* queues do not wait for the null stream */
        st = gpu_did(g, c->stream_sync(NULL), "clearing memory");
    if (st != HY_OK) {
        c->free(p);
        return st;
    }
    *out = p;
    return HY_OK;
}

static void dev_free(hy_dev *d, void *p, size_t bytes)
{
    const gpu_dev *g = gpu_dev_of(d);
    (void)bytes;
    if (p == NULL)
        return;
    g->v->calls->ctx_set(g->ctx);
    g->v->calls->free(p);
}

static hy_status host_register(hy_dev *d, void *p, size_t bytes)
{
    const gpu_dev *g = gpu_dev_of(d);
    HY_TRY(gpu_enter(g));
    return gpu_did(g, g->v->calls->host_register(p, bytes, 0), "registering host memory");
}

static void host_unregister(hy_dev *d, void *p)
{
    const gpu_dev *g = gpu_dev_of(d);
    g->v->calls->ctx_set(g->ctx);
    g->v->calls->host_unregister(p);
}

/* ---- events ---- */

static hy_status event_create(hy_dev *d, hy_event **out)
{
    gpu_dev *g = gpu_dev_of(d);
    HY_TRY(gpu_enter(g));
    hy_event *e = hy_calloc(1, sizeof(*e));
    if (e == NULL)
        return hy_fail(HY_E_NOMEM, "%s: no memory for an event", g->v->name);
    e->dev = g;
    hy_status st = gpu_did(g, g->v->calls->event_create(&e->e, NO_TIMING), "event");
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
    e->dev->v->calls->ctx_set(e->dev->ctx);
    e->dev->v->calls->event_destroy(e->e);
    hy_free(e);
}

static hy_status event_record(hy_queue *q, hy_event *e)
{
    HY_TRY(gpu_queue_flush(gpu_queue_of(q)));
    HY_TRY(gpu_enter(e->dev));
    return gpu_did(e->dev, e->dev->v->calls->event_record(e->e, gpu_queue_of(q)->stream),
                   "recording an event");
}

static hy_status event_wait(hy_queue *q, hy_event *e)
{
    HY_TRY(gpu_queue_flush(gpu_queue_of(q))); /* what was asked before does not wait */
    HY_TRY(gpu_enter(e->dev));
    return gpu_did(e->dev, e->dev->v->calls->stream_wait(gpu_queue_of(q)->stream, e->e, 0),
                   "a stream's wait for an event");
}

static hy_status event_query(hy_event *e)
{
    HY_TRY(gpu_enter(e->dev));
    return gpu_did(e->dev, e->dev->v->calls->event_query(e->e), "event");
}

static hy_status event_sync(hy_event *e)
{
    HY_TRY(gpu_enter(e->dev));
    return gpu_did(e->dev, e->dev->v->calls->event_sync(e->e), "waiting for an event");
}

/* ---- memory for others ---- */

/* The allocation that holds all of it. */
static hy_status find_block(const gpu_dev *g, void *p, size_t bytes, char **base, size_t *all)
{
    void *at = NULL;
    if (p == NULL || bytes == 0)
        return hy_fail(HY_E_INVAL, "%s: no memory to export", g->v->name);
    HY_TRY(gpu_did(g, g->v->calls->range(&at, all, p), "exporting memory"));
    *base = at;
    const size_t off = (size_t)((char *)p - *base);
    if (off > *all || bytes > *all - off)
        return hy_fail(HY_E_INVAL, "%s: %zu bytes at %zu of an allocation of %zu", g->v->name,
                       bytes, off, *all);
    return HY_OK;
}

static hy_status export_ipc(const gpu_dev *g, char *base, size_t all, hy_export *out)
{
    gpu_ipc h;
    HY_TRY(gpu_did(g, g->v->calls->ipc_get(&h, base), "exporting memory to a process"));
    out->kind = HY_EXPORT_IPC;
    out->key = all;
    memcpy(out->ipc, h.bytes, sizeof(h.bytes));
    return HY_OK;
}

/* Whole allocations, since the vendors export whole pages. *begin: where the descriptor does. */
static hy_status export_dmabuf(const gpu_dev *g, char **begin, size_t all, hy_export *out)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)*begin;
    uintptr_t from = at / page * page;
    size_t len = (at + all - from + page - 1) / page * page;
    int fd = -1;
    if (g->v->calls->export_fd == NULL)
        return hy_fail(HY_E_UNSUPPORTED, "%s: %s has no call to export memory as a dmabuf",
                       g->v->name, g->v->library);
    HY_TRY(gpu_did(g, g->v->calls->export_fd(&fd, (void *)from, len, DMABUF, 0),
                   "exporting memory as a dmabuf"));
    *begin = (char *)from;
    out->kind = HY_EXPORT_FD;
    out->fd = fd;
    out->key = g->v->memory;
    return HY_OK;
}

static hy_status export_mem(hy_dev *d, void *p, size_t bytes, hy_span *out)
{
    const gpu_dev *g = gpu_dev_of(d);
    hy_export e = {.fd = -1};
    char *base = NULL;
    size_t all = 0;
    if (out->exp.kind == HY_EXPORT_U64)
        return hy_fail(HY_E_UNSUPPORTED, "%s: memory has no keys", g->v->name);
    HY_TRY(gpu_enter(g));
    HY_TRY(find_block(g, p, bytes, &base, &all));
    HY_TRY(out->exp.kind == HY_EXPORT_IPC ? export_ipc(g, base, all, &e)
                                          : export_dmabuf(g, &base, all, &e));
    e.offset = (uint64_t)((char *)p - base);
    *out = (hy_span){p, bytes, HY_MEM_DEVICE, g->index, e};
    return HY_OK;
}

static hy_status import_mem(hy_dev *d, const hy_span *s, void **out)
{
    const gpu_dev *g = gpu_dev_of(d);
    gpu_ipc h;
    void *base = NULL;
    size_t left = 0, total = 0;
    if (s->exp.kind != HY_EXPORT_IPC)
        return hy_fail(HY_E_UNSUPPORTED, "%s: only memory exported for processes can be imported",
                       g->v->name);
    if (s->len == 0 || s->exp.offset > s->exp.key || s->len > s->exp.key - s->exp.offset)
        return hy_fail(HY_E_INVAL, "%s: a span larger than what was exported", g->v->name);
    memcpy(h.bytes, s->exp.ipc, sizeof(h.bytes));
    HY_TRY(gpu_enter(g));
    hy_status st = gpu_did(g, g->v->calls->ipc_open(&base, h, g->v->ipc_flags),
                           "importing another process's memory");
    if (st != HY_OK && st != HY_E_UNSUPPORTED && st != HY_E_NOMEM_DEVICE &&
        g->v->calls->mem_info(&left, &total) == 0) { /* the device is there: it is the handle */
        char why[128];
        snprintf(why, sizeof(why), "%.127s", hy_fail_text());
        return hy_fail(HY_E_INVAL, "%s", why);
    }
    if (st != HY_OK)
        return st;
    *out = (char *)base + s->exp.offset;
    return HY_OK;
}

static void import_close(hy_dev *d, const hy_span *s, void *p)
{
    const gpu_dev *g = gpu_dev_of(d);
    g->v->calls->ctx_set(g->ctx);
    g->v->calls->ipc_close((char *)p - s->exp.offset);
}

static const hy_dev_ops dev_ops = {
    .size = sizeof(hy_dev_ops),
    .props = props,
    .close = close_dev,
    .alloc = dev_alloc,
    .free = dev_free,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .queue_create = gpu_queue_create,
    .queue_destroy = gpu_queue_destroy,
    .queue_wait = gpu_queue_wait,
    .copy = gpu_queue_copy,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_query = event_query,
    .event_sync = event_sync,
    .fence = gpu_queue_wait, /* the fabric reads what a finished stream wrote */
    .acquire_remote = gpu_queue_wait,
    .export_mem = export_mem,
    .import_mem = import_mem,
    .import_close = import_close,
};

/* ---- opening ---- */

/* The first image that the device takes; what the others were refused for is in the text. */
static hy_status load_image(gpu_dev *g)
{
    hy_status st = HY_E_UNSUPPORTED;
    char archs[128] = "";
    for (const gpu_image *i = g->v->images; i->image != NULL; i++) {
        size_t at = strlen(archs);
        snprintf(archs + at, sizeof(archs) - at, "%s%s", at != 0 ? ", " : "", i->arch);
        st = gpu_did(g, g->v->calls->load(&g->module, i->image), "kernels");
        if (st == HY_OK) {
            g->arch = i->arch;
            return HY_OK;
        }
        g->module = NULL;
        if (st != HY_E_UNSUPPORTED)
            return st;
    }
    return hy_fail(st, "%s: %s has kernels for %s, none of which runs on %s: build them for it",
                   g->v->name, "this module", archs, g->name);
}

static hy_status load_kernels(gpu_dev *g)
{
    HY_TRY(load_image(g));
    for (int i = 0; i < SIMT_KERNELS; i++)
        HY_TRY(gpu_did(g, g->v->calls->function(&g->fn[i], g->module, kernel_names[i]),
                       kernel_names[i]));
    return HY_OK;
}

static hy_status open_vendor(gpu_dev *g)
{
    const gpu_calls *c = g->v->calls;
    void *ctx = NULL;
    HY_TRY(gpu_did(g, c->device(&g->handle, g->index), "device"));
    HY_TRY(gpu_did(g, c->device_name(g->name, sizeof(g->name) - 1, g->handle), "device name"));
    HY_TRY(gpu_did(g, c->attribute(&g->wave, g->v->attr_wave, g->handle), "width of a wave"));
    HY_TRY(gpu_did(g, c->attribute(&g->units, g->v->attr_units, g->handle), "compute units"));
    if ((g->wave != 32 && g->wave != 64) || g->units < 1)
        return hy_fail(HY_E_UNSUPPORTED, "%s: a device of %d units with waves of %d lanes",
                       g->v->name, g->units, g->wave);
    HY_TRY(gpu_did(g, c->ctx_retain(&ctx, g->handle), "context"));
    g->ctx = ctx;
    HY_TRY(gpu_enter(g));
    return load_kernels(g);
}

static bool wants_graphs(const gpu_dev *g, const hy_dev_opts *o)
{
    const gpu_calls *c = g->v->calls;
    const char *s = gpu_option(o, "graphs");
    bool can = c->capture_begin != NULL && c->capture_end != NULL && c->graph_build != NULL &&
               c->graph_free != NULL && c->graph_launch != NULL && c->graph_exec_free != NULL;
    return can && (s == NULL || strcmp(s, "off") != 0);
}

hy_status gpu_open(gpu_library *l, const hy_dev_opts *o, hy_dev **out)
{
    if (!gpu_library_load(l))
        return hy_fail(HY_E_NOTFOUND, "%s: %s", l->v->name, l->why);
    gpu_dev *g = hy_calloc(1, sizeof(*g));
    if (g == NULL)
        return hy_fail(HY_E_NOMEM, "%s: no memory for the device", l->v->name);
    g->v = l->v;
    g->index = o->index;
    g->graphs = wants_graphs(g, o);
    g->base = (simt_base){
        .name = l->v->name, .drv = &gpu_driver, .threads = o->n_threads, .fast = o->fast};
    g->base.base.ops = &dev_ops;
    gpu_math_fill(&g->math);
    g->base.base.math = &g->math;
    hy_status st = open_vendor(g);
    if (st != HY_OK) {
        close_dev(&g->base.base);
        return st;
    }
    g->base.units = g->units;
    if (o->fast)
        g->blas = gpu_blas_create(g->v->blas, gpu_option(o, "blas"));
    *out = &g->base.base;
    return HY_OK;
}
