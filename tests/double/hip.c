/* SPDX-License-Identifier: Apache-2.0
 *
 * A double of the HIP runtime: the entry points that backends/hip uses, under the runtime's names
 * and with its numbers, over sim.h. The signatures are those of gpu/driver.h.
 *
 * Thread: any.  Owner: the process.
 */
#include "tests/double/entry.h"

enum { ATTR_WARP_SIZE = 87, ATTR_UNITS = 63 };

ENTRY(hipInit, (unsigned flags), sim_init(flags))
ENTRY(hipGetDeviceCount, (int *n), sim_count(n))
ENTRY(hipDeviceGet, (int *dev, int i), (*dev = i) == 0 ? SIM_OK : SIM_INVALID)
ENTRY(hipDeviceGetName, (char *s, int len, int dev), entry_name(s, len, dev))
ENTRY(hipDeviceGetAttribute, (int *v, int attr, int dev),
      entry_attribute(v, attr == ATTR_WARP_SIZE, attr == ATTR_UNITS, dev))
ENTRY(hipSetDevice, (int dev), dev == 0 ? SIM_OK : SIM_INVALID)
ENTRY(hipMemGetInfo, (size_t * left, size_t *total), sim_mem_info(left, total))
ENTRY(hipMalloc, (void **p, size_t n), sim_alloc(p, n))
FREEING(hipFree, (void *p), sim_free(p))
ENTRY(hipMemsetD8Async, (void *p, unsigned char v, size_t n, void *s), sim_zero(p, v, n, s))
ENTRY(hipHostMalloc, (void **p, size_t n, unsigned flags),
      flags == 0 ? sim_host_alloc(p, n) : SIM_INVALID)
FREEING(hipHostFree, (void *p), sim_host_free(p))
ENTRY(hipHostRegister, (void *p, size_t n, unsigned flags),
      flags == 0 ? sim_host_register(p, n) : SIM_INVALID)
FREEING(hipHostUnregister, (void *p), sim_host_unregister(p))
ENTRY(hipStreamCreateWithFlags, (void **s, unsigned flags), sim_stream_create(s, flags))
FREEING(hipStreamDestroy, (void *s), sim_stream_destroy(s))
ENTRY(hipStreamSynchronize, (void *s), sim_stream_sync(s))
ENTRY(hipStreamWaitEvent, (void *s, void *e, unsigned flags), sim_stream_wait(s, e, flags))
ENTRY(hipMemcpyAsync, (void *dst, const void *src, size_t n, int kind, void *s),
      kind == 4 ? sim_copy(dst, src, n, s) : SIM_INVALID)
ENTRY(hipEventCreateWithFlags, (void **e, unsigned flags),
      flags == 2 ? sim_event_create(e) : SIM_INVALID)
FREEING(hipEventDestroy, (void *e), sim_event_destroy(e))
ENTRY(hipEventRecord, (void *e, void *s), sim_event_record(e, s))
ENTRY(hipEventQuery, (void *e), sim_event_query(e))
ENTRY(hipEventSynchronize, (void *e), sim_event_sync(e))
ENTRY(hipModuleLoadData, (void **m, const void *image), sim_load(m, image))
FREEING(hipModuleUnload, (void *m), sim_unload(m))
ENTRY(hipModuleGetFunction, (void **fn, void *m, const char *name), sim_function(fn, m, name))
ENTRY(hipModuleLaunchKernel, ENTRY_LAUNCH_ARGS, ENTRY_LAUNCH)
ENTRY(hipMemGetAddressRange, (void **base, size_t *n, void *p), sim_range(base, n, p))
ENTRY(hipIpcGetMemHandle, (sim_ipc * out, void *p), sim_ipc_get(out, p))
ENTRY(hipIpcOpenMemHandle, (void **p, sim_ipc h, unsigned flags),
      flags == 0 ? sim_ipc_open(p, h) : SIM_INVALID)
FREEING(hipIpcCloseMemHandle, (void *p), sim_ipc_close(p))
ENTRY(hipMemGetHandleForAddressRange,
      (void *fd, void *p, size_t n, int kind, unsigned long long flags),
      flags == 0 ? sim_export(fd, p, n, kind) : SIM_INVALID)
ENTRY(hipStreamBeginCapture, (void *s, int mode), sim_capture_begin(s, mode))
FREEING(hipStreamEndCapture, (void *s, void **graph), sim_capture_end(s, graph))
ENTRY(hipGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags),
      flags == 0 ? sim_graph_build(exec, graph) : SIM_INVALID)
FREEING(hipGraphDestroy, (void *graph), sim_graph_free(graph))
ENTRY(hipGraphLaunch, (void *exec, void *s), sim_graph_launch(exec, s))
FREEING(hipGraphExecDestroy, (void *exec), sim_graph_exec_free(exec))

API const char *hipGetErrorName(int code);
API const char *hipGetErrorName(int code)
{
    return sim_error_name(code);
}
