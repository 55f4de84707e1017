/* SPDX-License-Identifier: Apache-2.0
 *
 * The simt device: GPU kernels on the host executor. Memory is the host's; ops are done when they
 * return, so that queues and events have nothing to wait for.
 *
 * Thread: device calls from any thread; a queue has one owner; launches take turns.
 * Owner: alloc'd memory is freed by free; a queue holds its scratch.
 */
#include "backends/simt/host/simt.h"
#include "backends/simt/host/exec.h"
#include "backends/simt/host/table.h"
#include "backends/simt/ops.h"
#include "core/base/alloc.h"
#include "core/base/conf_key.h"
#include "core/base/log.h"
#include "hal/limits.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define LANES_A_BLOCK 128 /* SIMT_BLOCK of dialect.h */

typedef struct simt_dev {
    simt_base base;
    simt_exec *exec;
    const simt_entry *table;
    int index, wave, threads;
    bool check, traffic;
} simt_dev;

typedef struct area {
    void *p;
    size_t bytes;
} area;

typedef struct simt_queue {
    hy_queue base;
    area device, host;
} simt_queue;

struct hy_event {
    int unused;
};

static simt_dev *dev_of(hy_dev *d)
{
    return (simt_dev *)(void *)d;
}

static simt_queue *queue_of(hy_queue *q)
{
    return (simt_queue *)(void *)q;
}

/* ---- device table ---- */

static hy_status props(hy_dev *d, hy_dev_props *out)
{
    const simt_dev *s = dev_of(d);
    hy_limits limits;
    memset(out, 0, sizeof(*out));
    hy_limits_read("", &limits);
    snprintf(out->backend, sizeof(out->backend), "simt");
    snprintf(out->isa, sizeof(out->isa), "wave%d", s->wave);
    snprintf(out->name, sizeof(out->name), "simt%d: GPU kernels on this CPU (wave %d%s)", s->index,
             s->wave, s->check ? ", checked" : "");
    out->index = s->index;
    out->mem_total = (size_t)limits.mem_total;
    out->mem_free = (size_t)limits.mem_free;
    out->n_threads = s->threads;
    out->host_visible = true;
    out->exact = !s->base.fast;
    return HY_OK;
}

size_t simt_dev_traffic(const hy_dev *d, const simt_traffic **out)
{
    return simt_exec_traffic(((const simt_dev *)(const void *)d)->exec, out);
}

static int percent(uint64_t bytes, uint64_t sectors)
{
    return sectors != 0 ? (int)(100 * bytes / (32 * sectors)) : 100;
}

static void close_dev(hy_dev *d)
{
    const simt_traffic *t = NULL;
    const size_t n = dev_of(d)->traffic ? simt_dev_traffic(d, &t) : 0;
    for (size_t i = 0; i < n; i++)
        hy_info("simt", "%-14s loads %9llu KiB, %3d %% of their sectors; stores %9llu KiB, %3d %%",
                t[i].kernel, (unsigned long long)t[i].load_bytes >> 10,
                percent(t[i].load_bytes, t[i].load_sectors),
                (unsigned long long)t[i].store_bytes >> 10,
                percent(t[i].store_bytes, t[i].store_sectors));
    simt_exec_destroy(dev_of(d)->exec);
    hy_free(d);
}

/* Mapped, not from the heap: zeroed, and no allocation inside a step. */
static void *map(size_t bytes)
{
    size_t len = (bytes + 4095) & ~(size_t)4095;
    void *p = mmap(NULL, len != 0 ? len : 4096, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p != MAP_FAILED ? p : NULL;
}

static void unmap(void *p, size_t bytes)
{
    size_t len = (bytes + 4095) & ~(size_t)4095;
    if (p != NULL)
        munmap(p, len != 0 ? len : 4096);
}

static hy_status dev_alloc(hy_dev *d, size_t bytes, void **out)
{
    hy_limits limits;
    (void)d;
    hy_limits_read("", &limits); /* a mapping may promise more than there is */
    void *p = bytes <= limits.mem_total ? map(bytes) : NULL;
    if (p == NULL)
        return hy_fail(HY_E_NOMEM_DEVICE, "simt: no memory for %zu bytes", bytes);
    *out = p;
    return HY_OK;
}

static void dev_free(hy_dev *d, void *p, size_t bytes)
{
    (void)d;
    unmap(p, bytes);
}

static hy_status host_register(hy_dev *d, void *p, size_t bytes)
{
    (void)d, (void)p, (void)bytes;
    return HY_OK;
}

static void host_unregister(hy_dev *d, void *p)
{
    (void)d, (void)p;
}

static hy_status queue_create(hy_dev *d, hy_queue **out)
{
    simt_queue *q = hy_calloc(1, sizeof(*q));
    if (q == NULL)
        return hy_fail(HY_E_NOMEM, "simt: no memory for a queue");
    q->base.dev = d;
    *out = &q->base;
    return HY_OK;
}

static void queue_destroy(hy_queue *q)
{
    if (q == NULL)
        return;
    unmap(queue_of(q)->device.p, queue_of(q)->device.bytes);
    unmap(queue_of(q)->host.p, queue_of(q)->host.bytes);
    hy_free(q);
}

static hy_status queue_done(hy_queue *q)
{
    (void)q;
    return HY_OK;
}

static hy_status copy(hy_queue *q, void *dst, const void *src, size_t bytes)
{
    (void)q;
    if (bytes != 0)
        memmove(dst, src, bytes);
    return HY_OK;
}

static hy_status event_create(hy_dev *d, hy_event **out)
{
    (void)d;
    hy_event *e = hy_calloc(1, sizeof(*e));
    if (e == NULL)
        return hy_fail(HY_E_NOMEM, "simt: no memory for an event");
    *out = e;
    return HY_OK;
}

static void event_destroy(hy_event *e)
{
    hy_free(e);
}

static hy_status event_on_queue(hy_queue *q, hy_event *e)
{
    (void)q, (void)e;
    return HY_OK;
}

static hy_status event_done(hy_event *e)
{
    (void)e;
    return HY_OK;
}

static hy_status export_mem(hy_dev *d, void *p, size_t bytes, hy_span *out)
{
    (void)d;
    if (out->exp.kind != HY_EXPORT_NONE)
        return hy_fail(HY_E_UNSUPPORTED, "simt: memory is this process's alone");
    if (p == NULL || bytes == 0 || (uintptr_t)p + bytes < bytes)
        return hy_fail(HY_E_INVAL, "simt: no memory to export");
    *out = hy_span_host(p, bytes);
    return HY_OK;
}

static hy_status import_mem(hy_dev *d, const hy_span *s, void **out)
{
    (void)d;
    if (s->mem == HY_MEM_DEVICE)
        return hy_fail(HY_E_UNSUPPORTED, "simt: cannot map memory of device %d", s->device);
    if (s->exp.kind != HY_EXPORT_NONE)
        return hy_fail(HY_E_UNSUPPORTED, "simt: imports by address alone");
    if (s->addr == NULL || s->len == 0)
        return hy_fail(HY_E_INVAL, "simt: an empty span");
    *out = s->addr;
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
    .queue_wait = queue_done,
    .copy = copy,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_on_queue,
    .event_wait = event_on_queue,
    .event_query = event_done,
    .event_sync = event_done,
    .fence = queue_done,
    .acquire_remote = queue_done,
    .export_mem = export_mem,
    .import_mem = import_mem,
};

/* ---- driver ---- */

static hy_status launch(hy_queue *q, simt_kernel k, uint32_t x, uint32_t y, uint32_t z,
                        const void *args, size_t bytes)
{
    (void)bytes;
    simt_dev *s = dev_of(q->dev);
    simt_launch l = {.name = s->table[k].name,
                     .fn = s->table[k].fn,
                     .lanes = LANES_A_BLOCK,
                     .x = x,
                     .y = y,
                     .z = z,
                     .args = args};
    return simt_exec_run(s->exec, &l);
}

static hy_status stage(hy_queue *q, const void *src, size_t bytes, const void **out)
{
    (void)q, (void)bytes;
    *out = src;
    return HY_OK;
}

static hy_status grow(area *a, size_t bytes, void **out)
{
    if (bytes > a->bytes) {
        size_t want = bytes + a->bytes / 2;
        void *p = map(want);
        if (p == NULL)
            return hy_fail(HY_E_NOMEM_DEVICE, "simt: no memory for %zu bytes of scratch", bytes);
        unmap(a->p, a->bytes);
        *a = (area){p, want};
    }
    *out = a->p;
    return HY_OK;
}

static hy_status host_scratch(hy_queue *q, size_t bytes, void **out)
{
    return grow(&queue_of(q)->host, bytes, out);
}

static hy_status dev_scratch(hy_queue *q, size_t bytes, void **out)
{
    return grow(&queue_of(q)->device, bytes, out);
}

static const simt_driver driver = {launch, stage, host_scratch, dev_scratch, copy};

/* ---- entry ---- */

/* The value of "key=value" in the option list, or NULL. */
static const char *option(const hy_dev_opts *o, const char *key)
{
    size_t n = strlen(key);
    for (const char *const *kv = o->kv; kv != NULL && *kv != NULL; kv++) {
        if (strncmp(*kv, key, n) == 0 && (*kv)[n] == '=')
            return *kv + n + 1;
    }
    return NULL;
}

static bool yes(const hy_dev_opts *o, const char *key)
{
    const char *v = option(o, key);
    return v != NULL && (strcmp(v, "true") == 0 || strcmp(v, "1") == 0 || strcmp(v, "yes") == 0 ||
                         strcmp(v, "on") == 0);
}

static const simt_entry *table_of(bool check)
{
#if defined(SIMT_HAVE_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return check ? simt_table_check : simt_table_fast;
#endif
    (void)check;
    return simt_table_base;
}

static hy_status read_opts(const hy_dev_opts *o, simt_dev *s)
{
    const char *wave = option(o, "wave"), *split = option(o, "split");
    if (wave == NULL && o->isa != NULL && strncmp(o->isa, "wave", 4) == 0)
        wave = o->isa + 4; /* --isa wave64 */
    if (wave == NULL)
        wave = "32";
    if (strcmp(wave, "32") != 0 && strcmp(wave, "64") != 0)
        return hy_fail(HY_E_INVAL, "[backend.simt] wave = %.20s: waves have 32 or 64 lanes", wave);
    s->wave = wave[0] == '3' ? 32 : 64;
    s->traffic = yes(o, "traffic");
    s->check = s->traffic || yes(o, "check");
    s->base.split = split == NULL || strcmp(split, "auto") == 0 ? SIMT_SPLIT_AUTO
                    : strcmp(split, "on") == 0                  ? SIMT_SPLIT_ON
                                                                : SIMT_SPLIT_OFF;
    return HY_OK;
}

static hy_status open_dev(const hy_dev_opts *o, hy_dev **out)
{
    simt_dev *s = hy_calloc(1, sizeof(*s));
    if (s == NULL)
        return hy_fail(HY_E_NOMEM, "simt: no memory for the device");
    s->threads = o->n_threads > 0 ? o->n_threads : 1;
    s->base = (simt_base){.name = "simt",
                          .drv = &driver,
                          .units = s->threads,
                          .threads = s->threads,
                          .fast = o->fast,
                          .borrow = true};
    s->base.base.ops = &dev_ops;
    s->base.base.math = &simt_math;
    s->index = o->index;
    hy_status st = read_opts(o, s);
    if (st == HY_OK) {
        s->table = table_of(s->check);
        simt_exec_opts e = {.wave = s->wave, .threads = s->threads, .traffic = s->traffic};
        st = simt_exec_create(&e, &s->exec);
    }
    if (st != HY_OK) {
        hy_free(s);
        return st;
    }
    *out = &s->base.base;
    return HY_OK;
}

static int count(void)
{
    return 1;
}

static const char *why_none(void)
{
    return "";
}

static const hy_conf_key keys[] = {
    {"backend.simt", "wave", HY_CONF_ENUM, "32", NULL, NULL, "32|64",
     "Lanes of a wave: 32 as on NVIDIA and RDNA, 64 as on CDNA. Both give the same bits."},
    {"backend.simt", "check", HY_CONF_BOOL, "false", NULL, NULL, NULL,
     "Check every access to shared memory: bounds, reads before writes, missing barriers."},
    {"backend.simt", "traffic", HY_CONF_BOOL, "false", NULL, NULL, NULL,
     "Count what each kernel loads and stores of device memory, and log at the end how much of the "
     "sectors that it touched it used."},
    {"backend.simt", "split", HY_CONF_ENUM, "auto", NULL, NULL, "auto|on|off",
     "Attention as a block for each 256 positions. Changes speed alone."},
};

const hy_backend simt_backend = {
    .size = sizeof(hy_backend),
    .abi = HY_HAL_ABI,
    .name = "simt",
    .count = count,
    .why_none = why_none,
    .open = open_dev,
    .keys = keys,
    .n_keys = HY_COUNTOF(keys),
};
