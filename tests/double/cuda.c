/* SPDX-License-Identifier: Apache-2.0
 *
 * A double of the CUDA driver: the entry points that backends/cuda uses, under the driver's names
 * and with its numbers, over sim.h. The signatures are those of gpu/driver.h.
 *
 * Thread: any.  Owner: the process.
 */
#include "tests/double/entry.h"

enum { ATTR_WARP_SIZE = 10, ATTR_UNITS = 16 };

static int context;

static int retain(void **ctx, int dev)
{
    *ctx = &context;
    return dev == 0 ? SIM_OK : SIM_INVALID;
}

static int set_current(void *ctx)
{
    return ctx == &context ? SIM_OK : SIM_INVALID;
}

ENTRY(cuInit, (unsigned flags), sim_init(flags))
ENTRY(cuDeviceGetCount, (int *n), sim_count(n))
ENTRY(cuDeviceGet, (int *dev, int i), (*dev = i) == 0 ? SIM_OK : SIM_INVALID)
ENTRY(cuDeviceGetName, (char *s, int len, int dev), entry_name(s, len, dev))
ENTRY(cuDeviceGetAttribute, (int *v, int attr, int dev),
      entry_attribute(v, attr == ATTR_WARP_SIZE, attr == ATTR_UNITS, dev))
ENTRY(cuDevicePrimaryCtxRetain, (void **ctx, int dev), retain(ctx, dev))
FREEING(cuDevicePrimaryCtxRelease_v2, (int dev), dev == 0 ? SIM_OK : SIM_INVALID)
ENTRY(cuCtxSetCurrent, (void *ctx), set_current(ctx))
ENTRY(cuMemGetInfo_v2, (size_t * left, size_t *total), sim_mem_info(left, total))
ENTRY(cuMemAlloc_v2, (void **p, size_t n), sim_alloc(p, n))
FREEING(cuMemFree_v2, (void *p), sim_free(p))
ENTRY(cuMemsetD8Async, (void *p, unsigned char v, size_t n, void *s), sim_zero(p, v, n, s))
ENTRY(cuMemHostAlloc, (void **p, size_t n, unsigned flags),
      flags == 0 ? sim_host_alloc(p, n) : SIM_INVALID)
FREEING(cuMemFreeHost, (void *p), sim_host_free(p))
ENTRY(cuMemHostRegister_v2, (void *p, size_t n, unsigned flags),
      flags == 0 ? sim_host_register(p, n) : SIM_INVALID)
FREEING(cuMemHostUnregister, (void *p), sim_host_unregister(p))
ENTRY(cuStreamCreate, (void **s, unsigned flags), sim_stream_create(s, flags))
FREEING(cuStreamDestroy_v2, (void *s), sim_stream_destroy(s))
ENTRY(cuStreamSynchronize, (void *s), sim_stream_sync(s))
ENTRY(cuStreamWaitEvent, (void *s, void *e, unsigned flags), sim_stream_wait(s, e, flags))
ENTRY(cuMemcpyAsync, (void *dst, const void *src, size_t n, void *s), sim_copy(dst, src, n, s))
ENTRY(cuEventCreate, (void **e, unsigned flags), flags == 2 ? sim_event_create(e) : SIM_INVALID)
FREEING(cuEventDestroy_v2, (void *e), sim_event_destroy(e))
ENTRY(cuEventRecord, (void *e, void *s), sim_event_record(e, s))
ENTRY(cuEventQuery, (void *e), sim_event_query(e))
ENTRY(cuEventSynchronize, (void *e), sim_event_sync(e))
ENTRY(cuModuleLoadData, (void **m, const void *image), sim_load(m, image))
FREEING(cuModuleUnload, (void *m), sim_unload(m))
ENTRY(cuModuleGetFunction, (void **fn, void *m, const char *name), sim_function(fn, m, name))
ENTRY(cuLaunchKernel, ENTRY_LAUNCH_ARGS, ENTRY_LAUNCH)
ENTRY(cuMemGetAddressRange_v2, (void **base, size_t *n, void *p), sim_range(base, n, p))
ENTRY(cuIpcGetMemHandle, (sim_ipc * out, void *p), sim_ipc_get(out, p))
ENTRY(cuIpcOpenMemHandle_v2, (void **p, sim_ipc h, unsigned flags),
      flags == 1 ? sim_ipc_open(p, h) : SIM_INVALID)
FREEING(cuIpcCloseMemHandle, (void *p), sim_ipc_close(p))
ENTRY(cuMemGetHandleForAddressRange,
      (void *fd, void *p, size_t n, int kind, unsigned long long flags),
      flags == 0 ? sim_export(fd, p, n, kind) : SIM_INVALID)
ENTRY(cuStreamBeginCapture_v2, (void *s, int mode), sim_capture_begin(s, mode))
FREEING(cuStreamEndCapture, (void *s, void **graph), sim_capture_end(s, graph))
ENTRY(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags),
      flags == 0 ? sim_graph_build(exec, graph) : SIM_INVALID)
FREEING(cuGraphDestroy, (void *graph), sim_graph_free(graph))
ENTRY(cuGraphLaunch, (void *exec, void *s), sim_graph_launch(exec, s))
FREEING(cuGraphExecDestroy, (void *exec), sim_graph_exec_free(exec))

API int cuGetErrorName(int code, const char **s);
API int cuGetErrorName(int code, const char **s)
{
    *s = sim_error_name(code);
    return *s != NULL ? SIM_OK : SIM_INVALID;
}
