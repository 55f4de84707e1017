/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu device: memory, queues and events, and the choice of its math table. Ops run on the
 * caller's thread (helped by the pool) and are done when they return, so waiting is free.
 *
 * Thread: device calls from any thread; a queue has one owner.
 * Owner: alloc'd memory is freed by free; a queue holds its scratch.
 */
#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_int.h"
#include "core/base/alloc.h"
#include "core/base/map.h"
#include "core/conf/conf.h"
#include "hal/limits.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct hy_event {
    hy_dev *dev;
};

void *cpu_alloc(size_t bytes)
{
    if (bytes >= HY_MAP_ALIGN)
        return hy_map(bytes, PROT_READ | PROT_WRITE, -1);
    size_t len = (bytes + 63) & ~(size_t)63;
    void *p = hy_aligned_alloc(64, len != 0 ? len : 64);
    if (p != NULL)
        memset(p, 0, len);
    return p;
}

void cpu_free(void *p, size_t bytes)
{
    if (p == NULL)
        return;
    if (bytes >= HY_MAP_ALIGN)
        hy_unmap(p, bytes);
    else
        hy_free(p);
}

void *cpu_scratch(hy_queue *q, size_t bytes)
{
    cpu_queue *c = cpu_queue_of(q);
    if (bytes > c->scratch_bytes) {
        size_t grow = c->scratch_bytes + c->scratch_bytes / 2;
        size_t want = bytes > grow ? bytes : grow;
        if (want < HY_MAP_ALIGN) /* mapped: the heap is not touched in a step */
            want = HY_MAP_ALIGN;
        void *p = cpu_alloc(want);
        if (p == NULL)
            return NULL;
        cpu_free(c->scratch, c->scratch_bytes);
        c->scratch = p;
        c->scratch_bytes = want;
    }
    return c->scratch;
}

static void model_name(char *out, size_t n)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    snprintf(out, n, "unknown CPU");
    if (f == NULL)
        return;
    while (fgets(line, sizeof(line), f) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        colon += strspn(colon, ": \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(out, n, "%.63s", colon);
        break;
    }
    fclose(f);
}

static hy_status cpu_props(hy_dev *d, hy_dev_props *out)
{
    cpu_dev *c = cpu_dev_of(d);
    char model[64];
    hy_limits limits;
    memset(out, 0, sizeof(*out));
    hy_limits_read("", &limits);
    model_name(model, sizeof(model));
    snprintf(out->backend, sizeof(out->backend), "cpu");
    snprintf(out->isa, sizeof(out->isa), "%s", cpu_isa_name(c->isa));
    snprintf(out->name, sizeof(out->name), "cpu%d: %.44s (%.15s)", c->index, model, out->isa);
    out->index = c->index;
    out->mem_total = (size_t)limits.mem_total;
    out->mem_free = (size_t)limits.mem_free;
    out->n_threads = c->n_threads;
    out->host_visible = true;
    out->exact = true;
    return HY_OK;
}

static void cpu_close(hy_dev *d)
{
#ifdef CPU_HAVE_FAST
    if (cpu_dev_of(d)->isa != CPU_ISA_SCALAR)
        cpu_fast_close(cpu_dev_of(d));
#endif
    hy_free(d);
}

static hy_status dev_alloc(hy_dev *d, size_t bytes, void **out)
{
    (void)d;
    void *p = cpu_alloc(bytes);
    if (p == NULL)
        return hy_fail(HY_E_NOMEM_DEVICE, "cpu: no memory for %zu bytes", bytes);
    *out = p;
    return HY_OK;
}

static void dev_free(hy_dev *d, void *p, size_t bytes)
{
    (void)d;
    cpu_free(p, bytes);
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
    cpu_queue *q = hy_calloc(1, sizeof(*q));
    if (q == NULL)
        return hy_fail(HY_E_NOMEM, "cpu: no memory for a queue");
    q->base.dev = d;
    *out = &q->base;
    return HY_OK;
}

static void queue_destroy(hy_queue *q)
{
    if (q == NULL)
        return;
    cpu_queue *c = cpu_queue_of(q);
    cpu_free(c->scratch, c->scratch_bytes);
    hy_free(c);
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
    hy_event *e = hy_calloc(1, sizeof(*e));
    if (e == NULL)
        return hy_fail(HY_E_NOMEM, "cpu: no memory for an event");
    e->dev = d;
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
        return hy_fail(HY_E_UNSUPPORTED, "cpu: memory is this process's alone");
    if (p == NULL || bytes == 0 || (uintptr_t)p + bytes < bytes)
        return hy_fail(HY_E_INVAL, "cpu: no memory to export");
    *out = hy_span_host(p, bytes);
    return HY_OK;
}

static hy_status import_mem(hy_dev *d, const hy_span *s, void **out)
{
    (void)d;
    if (s->mem == HY_MEM_DEVICE)
        return hy_fail(HY_E_UNSUPPORTED, "cpu: cannot map memory of device %d", s->device);
    if (s->exp.kind != HY_EXPORT_NONE)
        return hy_fail(HY_E_UNSUPPORTED, "cpu: imports by address alone");
    if (s->addr == NULL || s->len == 0)
        return hy_fail(HY_E_INVAL, "cpu: an empty span");
    *out = s->addr;
    return HY_OK;
}

static const hy_dev_ops cpu_dev_ops = {
    .size = sizeof(hy_dev_ops),
    .props = cpu_props,
    .close = cpu_close,
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

static int allowed_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

static hy_status cpu_open(const hy_dev_opts *o, hy_dev **out)
{
    if (o->index != 0)
        return hy_fail(HY_E_NOTFOUND, "cpu: device %d does not exist; there is only cpu0",
                       o->index);
    cpu_dev *c = hy_calloc(1, sizeof(*c));
    if (c == NULL)
        return hy_fail(HY_E_NOMEM, "cpu: no memory for the device");
    c->base.ops = &cpu_dev_ops;
    c->base.math = &cpu_ref_math;
    c->n_threads = o->n_threads > 0 ? o->n_threads : allowed_cpus();
    cpu_isa_detect(&c->feat);
    const char *isa = o->isa != NULL ? o->isa : option(o, "isa");
    hy_status st = cpu_isa_pick(isa, &c->feat, &c->isa);
#ifdef CPU_HAVE_FAST
    if (st == HY_OK && c->isa != CPU_ISA_SCALAR) {
        st = cpu_fast_open(c);
        if (st == HY_OK)
            c->base.math = cpu_fast_math(c);
    }
#else
    c->isa = CPU_ISA_SCALAR;
#endif
    if (st != HY_OK) {
        hy_free(c);
        return st;
    }
    if (c->base.math == &cpu_ref_math)
        c->n_threads = 1;
    *out = &c->base;
    return HY_OK;
}

static int cpu_count(void)
{
    return 1;
}

static const char *cpu_why_none(void)
{
    return "";
}

static const hy_conf_key cpu_keys[] = {
    {"backend.cpu", "isa", HY_CONF_ENUM, "auto", NULL, NULL, "auto|scalar|avx2|avx512",
     "Instruction set of the kernels. auto takes the best this CPU has; one that it lacks is "
     "refused. All give the same bits: it changes speed alone."},
};

const hy_backend cpu_backend = {
    .size = sizeof(hy_backend),
    .abi = HY_HAL_ABI,
    .name = "cpu",
    .count = cpu_count,
    .why_none = cpu_why_none,
    .open = cpu_open,
    .keys = cpu_keys,
    .n_keys = HY_COUNTOF(cpu_keys),
};
