/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA: the driver API, opened at run time, so that the module loads on machines without a driver
 * and says so. Kernels are embedded as one fatbin. HY_CUDA_DRIVER names another driver library
 * (tests have a double).
 *
 * Thread: any; contexts are made current by enter.  Owner: the device.
 */
#include "backends/simt/gpu/dev.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the driver's interface: names and numbers of cuda.h, which is not needed to build ---- */

enum {
    CU_OK = 0,
    CU_OUT_OF_MEMORY = 2,
    CU_NO_DEVICE = 100,
    CU_NO_BINARY = 209,
    CU_NOT_READY = 600,
};
enum { ATTR_WARP_SIZE = 10, ATTR_UNITS = 16, ATTR_CC_MAJOR = 75, ATTR_CC_MINOR = 76 };
enum { NON_BLOCKING = 1, NO_TIMING = 2, HANDLE_DMABUF = 1 };

typedef int cu_result;
typedef unsigned long long cu_ptr;

/* One line a function: name in the library, name here, arguments. */
#define CU_FUNCTIONS(X)                                                                            \
    X(cuInit, init, (unsigned flags))                                                              \
    X(cuDeviceGetCount, count, (int *n))                                                           \
    X(cuDeviceGet, device, (int *dev, int i))                                                      \
    X(cuDeviceGetName, device_name, (char *s, int len, int dev))                                   \
    X(cuDeviceGetAttribute, attribute, (int *v, int attr, int dev))                                \
    X(cuDeviceTotalMem_v2, total_mem, (size_t * bytes, int dev))                                   \
    X(cuDevicePrimaryCtxRetain, ctx_retain, (void **ctx, int dev))                                 \
    X(cuDevicePrimaryCtxRelease_v2, ctx_release, (int dev))                                        \
    X(cuCtxSetCurrent, ctx_set, (void *ctx))                                                       \
    X(cuMemGetInfo_v2, mem_info, (size_t * free, size_t * total))                                  \
    X(cuMemAlloc_v2, alloc, (cu_ptr * p, size_t bytes))                                            \
    X(cuMemFree_v2, free, (cu_ptr p))                                                              \
    X(cuMemsetD8Async, zero, (cu_ptr p, unsigned char v, size_t n, void *stream))                  \
    X(cuMemAllocHost_v2, host_alloc, (void **p, size_t bytes))                                     \
    X(cuMemFreeHost, host_free, (void *p))                                                         \
    X(cuMemHostRegister_v2, host_register, (void *p, size_t bytes, unsigned flags))                \
    X(cuMemHostUnregister, host_unregister, (void *p))                                             \
    X(cuStreamCreate, stream_create, (void **s, unsigned flags))                                   \
    X(cuStreamDestroy_v2, stream_destroy, (void *s))                                               \
    X(cuStreamSynchronize, stream_sync, (void *s))                                                 \
    X(cuStreamWaitEvent, stream_wait, (void *s, void *e, unsigned flags))                          \
    X(cuMemcpyAsync, copy, (cu_ptr dst, cu_ptr src, size_t bytes, void *stream))                   \
    X(cuEventCreate, event_create, (void **e, unsigned flags))                                     \
    X(cuEventDestroy_v2, event_destroy, (void *e))                                                 \
    X(cuEventRecord, event_record, (void *e, void *s))                                             \
    X(cuEventQuery, event_query, (void *e))                                                        \
    X(cuEventSynchronize, event_sync, (void *e))                                                   \
    X(cuModuleLoadData, load, (void **m, const void *image))                                       \
    X(cuModuleUnload, unload, (void *m))                                                           \
    X(cuModuleGetFunction, function, (void **fn, void *m, const char *name))                       \
    X(cuLaunchKernel, launch,                                                                      \
      (void *fn, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,        \
       unsigned shared, void *stream, void **params, void **extra))                                \
    X(cuMemGetHandleForAddressRange, export_fd,                                                    \
      (void *handle, cu_ptr p, size_t bytes, int kind, unsigned long long flags))                  \
    X(cuGetErrorName, error_name, (cu_result code, const char **s))                                \
    X(cuGetErrorString, error_text, (cu_result code, const char **s))

static struct {
#define MEMBER(sym, name, args) cu_result(*name) args;
    CU_FUNCTIONS(MEMBER)
#undef MEMBER
} cu;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int n_devices;
static char why[256];

/* The fatbin of target gpu-kernels. */
__asm__(".section .rodata\n"
        ".balign 64\n"
        ".globl hy_cuda_fatbin\n"
        ".hidden hy_cuda_fatbin\n"
        "hy_cuda_fatbin:\n"
        ".incbin \"" HY_CUDA_FATBIN "\"\n"
        ".balign 8\n"
        ".quad 0\n"
        ".previous\n");
extern const unsigned char hy_cuda_fatbin[];

static cu_ptr ptr(const void *p)
{
    return (cu_ptr)(uintptr_t)p;
}

/* Every code of the driver becomes a status here. */
static hy_status check(cu_result r, const char *what)
{
    const char *name = NULL, *text = NULL;
    if (r == CU_OK)
        return HY_OK;
    if (cu.error_name(r, &name) != CU_OK || name == NULL)
        name = "unknown error";
    if (cu.error_text(r, &text) != CU_OK || text == NULL)
        text = "";
    hy_status st = r == CU_OUT_OF_MEMORY ? HY_E_NOMEM_DEVICE
                   : r == CU_NO_DEVICE   ? HY_E_NOTFOUND
                   : r == CU_NO_BINARY   ? HY_E_UNSUPPORTED
                                         : HY_E_DEVICE;
    return hy_fail(st, "cuda: %s: %s (%d): %s", what, name, r, text);
}

static bool find_all(void *lib)
{
    const char *missing = NULL;
#define FIND(sym, name, args)                                                                      \
    {                                                                                              \
        void *f = dlsym(lib, #sym);                                                                \
        memcpy(&cu.name, &f, sizeof(f));                                                           \
        missing = f == NULL && missing == NULL ? #sym : missing;                                   \
    }
    CU_FUNCTIONS(FIND)
#undef FIND
    if (missing != NULL)
        snprintf(why, sizeof(why), "the CUDA driver has no %s: too old", missing);
    return missing == NULL;
}

static void load_driver(void)
{
    const char *path = getenv("HY_CUDA_DRIVER");
    void *lib = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) {
        const char *text = dlerror();
        snprintf(why, sizeof(why), "no CUDA driver: %.200s", text != NULL ? text : "?");
        return;
    }
    if (!find_all(lib))
        return;
    cu_result r = cu.init(0);
    if (r == CU_OK)
        r = cu.count(&n_devices);
    if (r != CU_OK) {
        n_devices = 0;
        check(r, "no device");
        snprintf(why, sizeof(why), "%.250s", hy_fail_text());
    } else if (n_devices == 0) {
        snprintf(why, sizeof(why), "the CUDA driver sees no device");
    }
}

static int count(void)
{
    pthread_once(&once, load_driver);
    return n_devices;
}

static const char *why_none(void)
{
    pthread_once(&once, load_driver);
    return why;
}

/* ---- gpu_api ---- */

static hy_status api_open(int index, void **ctx, gpu_info *info)
{
    int dev = 0, major = 0, minor = 0;
    char name[48] = "";
    HY_TRY(check(cu.device(&dev, index), "device"));
    HY_TRY(check(cu.device_name(name, sizeof(name), dev), "device name"));
    HY_TRY(check(cu.attribute(&info->wave, ATTR_WARP_SIZE, dev), "warp size"));
    HY_TRY(check(cu.attribute(&info->units, ATTR_UNITS, dev), "multiprocessors"));
    HY_TRY(check(cu.attribute(&major, ATTR_CC_MAJOR, dev), "compute capability"));
    HY_TRY(check(cu.attribute(&minor, ATTR_CC_MINOR, dev), "compute capability"));
    HY_TRY(check(cu.total_mem(&info->mem, dev), "memory size"));
    snprintf(info->name, sizeof(info->name), "%.47s (sm_%d%d)", name, major, minor);
    return check(cu.ctx_retain(ctx, dev), "context");
}

static void api_close(int index, void *ctx)
{
    int dev = 0;
    (void)ctx;
    if (cu.device(&dev, index) == CU_OK)
        cu.ctx_release(dev);
}

static hy_status api_enter(void *ctx)
{
    return check(cu.ctx_set(ctx), "context");
}

static hy_status api_load(void **module)
{
    return check(cu.load(module, hy_cuda_fatbin), "kernels for this device");
}

static void api_unload(void *module)
{
    cu.unload(module);
}

static hy_status api_function(void *module, const char *name, void **fn)
{
    return check(cu.function(fn, module, name), name);
}

static hy_status api_mem_info(size_t *free, size_t *total)
{
    return check(cu.mem_info(free, total), "memory info");
}

static hy_status api_alloc(size_t bytes, void **out)
{
    cu_ptr p = 0;
    char what[64];
    snprintf(what, sizeof(what), "allocating %zu bytes", bytes);
    HY_TRY(check(cu.alloc(&p, bytes), what));
    *out = (void *)(uintptr_t)p;
    return HY_OK;
}

static void api_free(void *p)
{
    cu.free(ptr(p));
}

static hy_status api_zero(void *p, size_t bytes, void *stream)
{
    return check(cu.zero(ptr(p), 0, bytes, stream), "clearing memory");
}

static hy_status api_host_alloc(size_t bytes, void **out)
{
    return check(cu.host_alloc(out, bytes), "pinned memory");
}

static void api_host_free(void *p)
{
    cu.host_free(p);
}

static hy_status api_host_register(void *p, size_t bytes)
{
    return check(cu.host_register(p, bytes, 0), "registering host memory");
}

static void api_host_unregister(void *p)
{
    cu.host_unregister(p);
}

static hy_status api_stream_create(void **out)
{
    return check(cu.stream_create(out, NON_BLOCKING), "stream");
}

static void api_stream_destroy(void *s)
{
    cu.stream_destroy(s);
}

static hy_status api_stream_sync(void *s)
{
    return check(cu.stream_sync(s), "waiting for a stream");
}

static hy_status api_copy(void *dst, const void *src, size_t bytes, void *s)
{
    return check(cu.copy(ptr(dst), ptr(src), bytes, s), "copy");
}

static hy_status api_event_create(void **out)
{
    return check(cu.event_create(out, NO_TIMING), "event");
}

static void api_event_destroy(void *e)
{
    cu.event_destroy(e);
}

static hy_status api_event_record(void *e, void *s)
{
    return check(cu.event_record(e, s), "recording an event");
}

static hy_status api_event_wait(void *s, void *e)
{
    return check(cu.stream_wait(s, e, 0), "a stream's wait for an event");
}

static hy_status api_event_query(void *e)
{
    cu_result r = cu.event_query(e);
    return r == CU_NOT_READY ? HY_AGAIN : check(r, "event");
}

static hy_status api_event_sync(void *e)
{
    return check(cu.event_sync(e), "waiting for an event");
}

static hy_status api_launch(void *fn, uint32_t x, uint32_t y, uint32_t z, uint32_t threads,
                            const void *args, size_t bytes, void *s)
{
    void *params[1] = {(void *)(uintptr_t)args};
    (void)bytes;
    return check(cu.launch(fn, x, y, z, threads, 1, 1, 0, s, params, NULL), "launching a kernel");
}

static hy_status api_export_fd(void *p, size_t bytes, int *fd)
{
    return check(cu.export_fd(fd, ptr(p), bytes, HANDLE_DMABUF, 0), "exporting memory as dmabuf");
}

static const gpu_api api = {
    .name = "cuda",
    .open = api_open,
    .close = api_close,
    .enter = api_enter,
    .load = api_load,
    .unload = api_unload,
    .function = api_function,
    .mem_info = api_mem_info,
    .alloc = api_alloc,
    .free = api_free,
    .zero = api_zero,
    .host_alloc = api_host_alloc,
    .host_free = api_host_free,
    .host_register = api_host_register,
    .host_unregister = api_host_unregister,
    .stream_create = api_stream_create,
    .stream_destroy = api_stream_destroy,
    .stream_sync = api_stream_sync,
    .copy = api_copy,
    .event_create = api_event_create,
    .event_destroy = api_event_destroy,
    .event_record = api_event_record,
    .event_wait = api_event_wait,
    .event_query = api_event_query,
    .event_sync = api_event_sync,
    .launch = api_launch,
    .export_fd = api_export_fd,
};

static hy_status open_dev(const hy_dev_opts *o, hy_dev **out)
{
    pthread_once(&once, load_driver);
    if (n_devices == 0)
        return hy_fail(HY_E_NOTFOUND, "cuda: %s", why);
    return gpu_open(&api, o, out);
}

__attribute__((visibility("default"))) extern const hy_backend hy_backend_v1;
const hy_backend hy_backend_v1 = {
    .size = sizeof(hy_backend),
    .abi = HY_HAL_ABI,
    .name = "cuda",
    .count = count,
    .why_none = why_none,
    .open = open_dev,
};
