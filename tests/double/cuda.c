/* SPDX-License-Identifier: Apache-2.0
 *
 * A double of the CUDA driver: the entry points that backends/cuda uses, with kernels run by name
 * on the host executor. It is as unkind as the real one may be: work on a stream runs only when
 * something waits for it; "device" memory cannot be touched by the host; pinned memory is read
 * when the copy runs, not when it is asked for; new and freed memory is poisoned.
 *
 * HY_DOUBLE_WAVE: 32 (default) or 64. HY_DOUBLE_FAIL=N: the N-th allocation is out of memory.
 *
 * Thread: any; one lock.  Owner: the process.
 */
#include "backends/simt/host/exec.h"
#include "backends/simt/host/table.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define API   __attribute__((visibility("default")))
#define ARENA ((size_t)4 << 30)
#define PAGE  ((size_t)4096)

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_FOUND = 500, NOT_READY = 600, LAUNCH_FAILED = 719 };
enum { COPY, ZERO, LAUNCH, RECORD, WAIT };

typedef struct stream stream;

typedef struct item {
    struct item *next;
    int kind;
    char *dst;
    const char *src;
    size_t bytes;
    char *own; /* snapshot of pageable memory, or a kernel's argument */
    int kernel;
    uint32_t grid[3];
    int lanes;
    stream *on; /* WAIT: until that stream has done `upto` */
    uint64_t upto;
} item;

struct stream {
    struct stream *next;
    item *first, **last;
    uint64_t asked, done; /* items */
};

typedef struct event {
    stream *on;
    uint64_t seq;
} event;

typedef struct range { /* of device memory in use, by address; or pinned memory */
    struct range *next;
    char *p;
    size_t bytes;
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *arena, *high; /* high: end of what was ever used */
static range *used, *pinned;
static stream null_stream, *streams = &null_stream;
static simt_exec *exec;
static int sticky, wave = 32, allocs, fail_at;

static bool in_arena(const void *p)
{
    return (const char *)p >= arena && (const char *)p < arena + ARENA;
}

static bool is_pinned(const char *p)
{
    for (const range *r = pinned; r != NULL; r = r->next) {
        if (p >= r->p && p < r->p + r->bytes)
            return true;
    }
    return false;
}

/* Device memory is there only while the device works. */
static void open_arena(bool on)
{
    if (high == NULL || high == arena)
        return;
    mprotect(arena, (size_t)(high - arena), on ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static void poison(char *p, size_t bytes, int with)
{
    mprotect(p, bytes, PROT_READ | PROT_WRITE);
    memset(p, with, bytes);
    mprotect(p, bytes, PROT_NONE);
}

/* ---- work ---- */

static void run_until(stream *s, uint64_t seq);

static void run_item(item *i)
{
    if (i->kind == COPY)
        memmove(i->dst, i->own != NULL ? i->own : i->src, i->bytes);
    if (i->kind == ZERO)
        memset(i->dst, 0, i->bytes);
    if (i->kind == WAIT)
        run_until(i->on, i->upto);
    if (i->kind == LAUNCH && sticky == OK) {
        simt_launch l = {.name = simt_table_base[i->kernel].name,
                         .fn = simt_table_base[i->kernel].fn,
                         .lanes = i->lanes,
                         .x = i->grid[0],
                         .y = i->grid[1],
                         .z = i->grid[2],
                         .args = i->own};
        if (simt_exec_run(exec, &l) != HY_OK) {
            fprintf(stderr, "cuda double: %s\n", hy_fail_text());
            sticky = LAUNCH_FAILED;
        }
    }
}

static void run_until(stream *s, uint64_t seq)
{
    while (s->done < seq && s->first != NULL) {
        item *i = s->first;
        run_item(i);
        s->first = i->next;
        if (s->first == NULL)
            s->last = &s->first;
        s->done++;
        free(i->own);
        free(i);
    }
}

static int finish(stream *s, uint64_t seq)
{
    if (s->done >= seq)
        return sticky;
    open_arena(true);
    run_until(s, seq);
    open_arena(false);
    return sticky;
}

static stream *stream_of(void *s)
{
    return s != NULL ? s : &null_stream;
}

static item *ask(void *on, int kind)
{
    stream *s = stream_of(on);
    item *i = calloc(1, sizeof(*i));
    if (i == NULL)
        abort();
    i->kind = kind;
    if (s->last == NULL)
        s->last = &s->first;
    *s->last = i;
    s->last = &i->next;
    s->asked++;
    return i;
}

/* ---- entry points ---- */

/* The names and numbers are the driver's. */
API int cuInit(unsigned flags);
API int cuInit(unsigned flags)
{
    const char *w = getenv("HY_DOUBLE_WAVE");
    wave = w != NULL ? atoi(w) : 32;
    arena = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    simt_exec_opts o = {.wave = wave, .threads = 1, .seed = 3};
    if (flags != 0 || arena == MAP_FAILED || simt_exec_create(&o, &exec) != HY_OK)
        return INVALID;
    return OK;
}

API int cuDeviceGetCount(int *n);
API int cuDeviceGetCount(int *n)
{
    *n = 1;
    return OK;
}

API int cuDeviceGet(int *dev, int i);
API int cuDeviceGet(int *dev, int i)
{
    *dev = i;
    return i == 0 ? OK : INVALID;
}

API int cuDeviceGetName(char *s, int len, int dev);
API int cuDeviceGetName(char *s, int len, int dev)
{
    (void)dev;
    snprintf(s, (size_t)len, "driver double");
    return OK;
}

API int cuDeviceGetAttribute(int *v, int attr, int dev);
API int cuDeviceGetAttribute(int *v, int attr, int dev)
{
    (void)dev;
    *v = attr == 10 ? wave : attr == 16 ? 4 : attr == 75 ? 9 : 0;
    return OK;
}

API int cuDeviceTotalMem_v2(size_t *bytes, int dev);
API int cuDeviceTotalMem_v2(size_t *bytes, int dev)
{
    (void)dev;
    *bytes = ARENA;
    return OK;
}

API int cuDevicePrimaryCtxRetain(void **ctx, int dev);
API int cuDevicePrimaryCtxRetain(void **ctx, int dev)
{
    (void)dev;
    *ctx = &null_stream;
    return OK;
}

API int cuDevicePrimaryCtxRelease_v2(int dev);
API int cuDevicePrimaryCtxRelease_v2(int dev)
{
    int leaks = 0;
    (void)dev;
    for (const range *r = used; r != NULL; r = r->next)
        leaks++;
    if (leaks != 0 || pinned != NULL || null_stream.next != NULL || streams != &null_stream) {
        fprintf(stderr, "cuda double: %d device blocks%s%s left at the end\n", leaks,
                pinned != NULL ? ", pinned memory" : "",
                streams != &null_stream ? ", streams" : "");
        abort();
    }
    return OK;
}

API int cuCtxSetCurrent(void *ctx);
API int cuCtxSetCurrent(void *ctx)
{
    return ctx == &null_stream ? OK : INVALID;
}

API int cuMemGetInfo_v2(size_t *left, size_t *total);
API int cuMemGetInfo_v2(size_t *left, size_t *total)
{
    pthread_mutex_lock(&lock);
    *left = *total = ARENA;
    for (const range *r = used; r != NULL; r = r->next)
        *left -= r->bytes;
    pthread_mutex_unlock(&lock);
    return OK;
}

API int cuMemAlloc_v2(unsigned long long *p, size_t bytes);
API int cuMemAlloc_v2(unsigned long long *p, size_t bytes)
{
    size_t len = (bytes + PAGE - 1) / PAGE * PAGE;
    int rc = NO_MEMORY;
    pthread_mutex_lock(&lock);
    char *at = arena;
    range **r = &used;
    while (*r != NULL && (size_t)((*r)->p - at) < len) {
        at = (*r)->p + (*r)->bytes;
        r = &(*r)->next;
    }
    fail_at = getenv("HY_DOUBLE_FAIL") != NULL ? atoi(getenv("HY_DOUBLE_FAIL")) : 0;
    if (fail_at == 0) /* counts from when it is set */
        allocs = 0;
    if ((fail_at == 0 || ++allocs != fail_at) && bytes != 0 &&
        (size_t)(arena + ARENA - at) >= len) {
        range *n = calloc(1, sizeof(*n));
        if (n == NULL)
            abort();
        *n = (range){*r, at, len};
        *r = n;
        high = high < at + len ? at + len : high;
        poison(at, len, 0xa5);
        *p = (uintptr_t)at;
        rc = OK;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

API int cuMemFree_v2(unsigned long long p);
API int cuMemFree_v2(unsigned long long p)
{
    int rc = INVALID;
    pthread_mutex_lock(&lock);
    for (stream *s = streams; s != NULL; s = s->next) /* as the real one: waits for all */
        finish(s, s->asked);
    for (range **r = &used; *r != NULL; r = &(*r)->next) {
        if ((*r)->p == (char *)(uintptr_t)p) {
            range *old = *r;
            poison(old->p, old->bytes, 0xdb);
            *r = old->next;
            free(old);
            rc = OK;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

API int cuMemsetD8Async(unsigned long long p, unsigned char v, size_t n, void *s);
API int cuMemsetD8Async(unsigned long long p, unsigned char v, size_t n, void *s)
{
    if (v != 0 || !in_arena((void *)(uintptr_t)p))
        return INVALID;
    pthread_mutex_lock(&lock);
    item *i = ask(s, ZERO);
    i->dst = (char *)(uintptr_t)p;
    i->bytes = n;
    pthread_mutex_unlock(&lock);
    return sticky;
}

static int pin(void *p, size_t bytes)
{
    range *r = calloc(1, sizeof(*r));
    if (r == NULL)
        abort();
    pthread_mutex_lock(&lock);
    *r = (range){pinned, p, bytes};
    pinned = r;
    pthread_mutex_unlock(&lock);
    return OK;
}

static int unpin(void *p)
{
    int rc = INVALID;
    pthread_mutex_lock(&lock);
    for (range **r = &pinned; *r != NULL; r = &(*r)->next) {
        if ((*r)->p == p) {
            range *old = *r;
            *r = old->next;
            free(old);
            rc = OK;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

API int cuMemAllocHost_v2(void **p, size_t bytes);
API int cuMemAllocHost_v2(void **p, size_t bytes)
{
    *p = malloc(bytes);
    return *p != NULL ? pin(*p, bytes) : NO_MEMORY;
}

API int cuMemFreeHost(void *p);
API int cuMemFreeHost(void *p)
{
    int rc = unpin(p);
    if (rc == OK)
        free(p);
    return rc;
}

API int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags);
API int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
    return flags == 0 ? pin(p, bytes) : INVALID;
}

API int cuMemHostUnregister(void *p);
API int cuMemHostUnregister(void *p)
{
    return unpin(p);
}

API int cuStreamCreate(void **out, unsigned flags);
API int cuStreamCreate(void **out, unsigned flags)
{
    stream *s = calloc(1, sizeof(*s));
    if (s == NULL || flags != 1) {
        free(s);
        return INVALID;
    }
    pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    *out = s;
    return OK;
}

API int cuStreamDestroy_v2(void *p);
API int cuStreamDestroy_v2(void *p)
{
    pthread_mutex_lock(&lock);
    stream *s = p;
    finish(s, s->asked);
    for (stream **t = &streams; *t != NULL; t = &(*t)->next) {
        if (*t == s) {
            *t = s->next;
            break;
        }
    }
    free(s);
    pthread_mutex_unlock(&lock);
    return OK;
}

API int cuStreamSynchronize(void *s);
API int cuStreamSynchronize(void *s)
{
    pthread_mutex_lock(&lock);
    int rc = finish(stream_of(s), stream_of(s)->asked);
    pthread_mutex_unlock(&lock);
    return rc;
}

API int cuStreamWaitEvent(void *s, void *e, unsigned flags);
API int cuStreamWaitEvent(void *s, void *e, unsigned flags)
{
    const event *v = e;
    if (flags != 0)
        return INVALID;
    pthread_mutex_lock(&lock);
    if (v->on != NULL) {
        item *i = ask(s, WAIT);
        i->on = v->on;
        i->upto = v->seq;
    }
    pthread_mutex_unlock(&lock);
    return sticky;
}

API int cuMemcpyAsync(unsigned long long dst, unsigned long long src, size_t bytes, void *s);
API int cuMemcpyAsync(unsigned long long dst, unsigned long long src, size_t bytes, void *s)
{
    char *d = (char *)(uintptr_t)dst;
    const char *from = (const char *)(uintptr_t)src;
    pthread_mutex_lock(&lock);
    item *i = ask(s, COPY);
    i->dst = d;
    i->src = from;
    i->bytes = bytes;
    if (!in_arena(from) && !is_pinned(from)) { /* pageable: taken before the call returns */
        i->own = malloc(bytes + 1);
        if (i->own == NULL)
            abort();
        memcpy(i->own, from, bytes);
    }
    int rc = sticky;
    if (!in_arena(d) && !is_pinned(d))
        rc = finish(stream_of(s), stream_of(s)->asked);
    pthread_mutex_unlock(&lock);
    return rc;
}

API int cuEventCreate(void **e, unsigned flags);
API int cuEventCreate(void **e, unsigned flags)
{
    (void)flags;
    *e = calloc(1, sizeof(event));
    return *e != NULL ? OK : NO_MEMORY;
}

API int cuEventDestroy_v2(void *e);
API int cuEventDestroy_v2(void *e)
{
    free(e);
    return OK;
}

API int cuEventRecord(void *e, void *s);
API int cuEventRecord(void *e, void *s)
{
    pthread_mutex_lock(&lock);
    ask(s, RECORD);
    *(event *)e = (event){stream_of(s), stream_of(s)->asked};
    pthread_mutex_unlock(&lock);
    return sticky;
}

/* Each look lets the device do one thing more: who polls gets there. */
API int cuEventQuery(void *e);
API int cuEventQuery(void *e)
{
    event *v = e;
    int rc = sticky;
    pthread_mutex_lock(&lock);
    if (v->on != NULL && v->on->done < v->seq) {
        finish(v->on, v->on->done + 1);
        rc = NOT_READY;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

API int cuEventSynchronize(void *e);
API int cuEventSynchronize(void *e)
{
    event *v = e;
    pthread_mutex_lock(&lock);
    int rc = v->on != NULL ? finish(v->on, v->seq) : sticky;
    pthread_mutex_unlock(&lock);
    return rc;
}

API int cuModuleLoadData(void **m, const void *image);
API int cuModuleLoadData(void **m, const void *image)
{
    *m = &exec;
    return image != NULL ? OK : INVALID;
}

API int cuModuleUnload(void *m);
API int cuModuleUnload(void *m)
{
    return m == &exec ? OK : INVALID;
}

API int cuModuleGetFunction(void **fn, void *m, const char *name);
API int cuModuleGetFunction(void **fn, void *m, const char *name)
{
    (void)m;
    for (int k = 0; k < SIMT_KERNELS; k++) {
        if (strcmp(simt_table_base[k].name, name) == 0) {
            *fn = (void *)(uintptr_t)(k + 1);
            return OK;
        }
    }
    return NOT_FOUND;
}

API int cuLaunchKernel(void *fn, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared, void *s, void **params, void **extra);
API int cuLaunchKernel(void *fn, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared, void *s, void **params, void **extra)
{
    int k = (int)(uintptr_t)fn - 1;
    if (x < 1 || y < 1 || z < 1 || x > 0x7fffffffu || y > 65535 || z > 65535 || bx > 1024 ||
        by != 1 || bz != 1 || shared != 0 || extra != NULL)
        return INVALID;
    pthread_mutex_lock(&lock);
    item *i = ask(s, LAUNCH);
    i->kernel = k;
    i->lanes = (int)bx;
    i->grid[0] = x, i->grid[1] = y, i->grid[2] = z;
    i->own = malloc(simt_table_base[k].bytes);
    if (i->own == NULL)
        abort();
    memcpy(i->own, params[0], simt_table_base[k].bytes);
    pthread_mutex_unlock(&lock);
    return sticky;
}

API int cuMemGetHandleForAddressRange(void *h, unsigned long long p, size_t n, int kind,
                                      unsigned long long flags);
API int cuMemGetHandleForAddressRange(void *h, unsigned long long p, size_t n, int kind,
                                      unsigned long long flags)
{
    (void)h, (void)p, (void)n, (void)kind, (void)flags;
    return 801; /* not supported */
}

API int cuGetErrorName(int code, const char **s);
API int cuGetErrorName(int code, const char **s)
{
    *s = code == NO_MEMORY       ? "CUDA_ERROR_OUT_OF_MEMORY"
         : code == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
                                 : "CUDA_ERROR";
    return OK;
}

API int cuGetErrorString(int code, const char **s);
API int cuGetErrorString(int code, const char **s)
{
    (void)code;
    *s = "the double says so";
    return OK;
}
