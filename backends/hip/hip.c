/* SPDX-License-Identifier: Apache-2.0
 *
 * HIP: names and numbers of its runtime (hip_runtime_api.h, which is not needed to build) for gpu/.
 * Attributes are asked for one by one: the struct of properties changes from release to release.
 *
 * Thread: as gpu/dev.h.  Owner: none.
 */
#include "backends/hip/hip.h"
#include "backends/gpu/blas.h"
#include "backends/gpu/dev.h"
#include "core/base/conf_key.h"

static gpu_calls hip;
static int (*set_device)(int dev);
static int (*memcpy_async)(void *dst, const void *src, size_t n, int kind, void *stream);

/* HIP knows no contexts: a device is made a thread's. Never NULL, so a device is its number + 1. */
static int ctx_set(void *ctx)
{
    return set_device((int)(intptr_t)ctx - 1);
}

static int ctx_retain(void **ctx, int dev)
{
    *ctx = (void *)((intptr_t)dev + 1);
    return set_device(dev);
}

static int ctx_release(int dev)
{
    (void)dev;
    return 0;
}

static int copy(void *dst, const void *src, size_t n, void *stream)
{
    return memcpy_async(dst, src, n, HIP_COPY_ANY_WAY, stream);
}

static const gpu_symbol symbols[] = {
    {"hipInit", &hip.init, false},
    {"hipGetDeviceCount", &hip.count, false},
    {"hipDeviceGet", &hip.device, false},
    {"hipDeviceGetName", &hip.device_name, false},
    {"hipDeviceGetAttribute", &hip.attribute, false},
    {"hipSetDevice", &set_device, false},
    {"hipMemGetInfo", &hip.mem_info, false},
    {"hipMalloc", &hip.alloc, false},
    {"hipFree", &hip.free, false},
    {"hipMemsetD8Async", &hip.zero, false},
    {"hipHostMalloc", &hip.host_alloc, false},
    {"hipHostFree", &hip.host_free, false},
    {"hipHostRegister", &hip.host_register, false},
    {"hipHostUnregister", &hip.host_unregister, false},
    {"hipStreamCreateWithFlags", &hip.stream_create, false},
    {"hipStreamDestroy", &hip.stream_destroy, false},
    {"hipStreamSynchronize", &hip.stream_sync, false},
    {"hipStreamWaitEvent", &hip.stream_wait, false},
    {"hipMemcpyAsync", &memcpy_async, false},
    {"hipEventCreateWithFlags", &hip.event_create, false},
    {"hipEventDestroy", &hip.event_destroy, false},
    {"hipEventRecord", &hip.event_record, false},
    {"hipEventQuery", &hip.event_query, false},
    {"hipEventSynchronize", &hip.event_sync, false},
    {"hipModuleLoadData", &hip.load, false},
    {"hipModuleUnload", &hip.unload, false},
    {"hipModuleGetFunction", &hip.function, false},
    {"hipModuleLaunchKernel", &hip.launch, false},
    {"hipMemGetAddressRange", &hip.range, false},
    {"hipIpcGetMemHandle", &hip.ipc_get, false},
    {"hipIpcOpenMemHandle", &hip.ipc_open, false},
    {"hipIpcCloseMemHandle", &hip.ipc_close, false},
    {"hipGetErrorName", &hip.error_name, false},
    {"hipMemGetHandleForAddressRange", &hip.export_fd, true},
    {"hipStreamBeginCapture", &hip.capture_begin, true},
    {"hipStreamEndCapture", &hip.capture_end, true},
    {"hipGraphInstantiateWithFlags", &hip.graph_build, true},
    {"hipGraphDestroy", &hip.graph_free, true},
    {"hipGraphLaunch", &hip.graph_launch, true},
    {"hipGraphExecDestroy", &hip.graph_exec_free, true},
};

static gpu_calls hip = {
    .ctx_retain = ctx_retain, .ctx_release = ctx_release, .ctx_set = ctx_set, .copy = copy};

static const char *const files[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6",
                                    "libamdhip64.so.5", NULL};

static const gpu_blas_names blas = {
    .files = {"libhipblaslt.so", "libhipblaslt.so.1", "libhipblaslt.so.0", NULL},
    .create = "hipblasLtCreate",
    .destroy = "hipblasLtDestroy",
    .desc_create = "hipblasLtMatmulDescCreate",
    .desc_set = "hipblasLtMatmulDescSetAttribute",
    .desc_destroy = "hipblasLtMatmulDescDestroy",
    .layout_create = "hipblasLtMatrixLayoutCreate",
    .layout_destroy = "hipblasLtMatrixLayoutDestroy",
    .matmul = "hipblasLtMatmul",
    .compute_f32 = HIPBLAS_COMPUTE_F32,
    .transpose = HIPBLAS_TRANSPOSE,
    .attr_trans_a = HIPBLASLT_TRANS_A,
    .type_f32 = 0,
    .type_f16 = 2,
    .type_bf16 = 14,
};

static const gpu_vendor vendor = {
    .name = "hip",
    .library = "the HIP runtime",
    .files = files,
    .symbols = symbols,
    .n_symbols = HY_COUNTOF(symbols),
    .calls = &hip,
    .status = hip_status,
    .attr_wave = HIP_ATTR_WAVE,
    .attr_units = HIP_ATTR_UNITS,
    .ipc_flags = HIP_IPC_LAZY,
    .memory = HY_MAKER_ROCM,
    .images = gpu_images,
    .blas = &blas,
};

static gpu_library library = {.v = &vendor};

static int count(void)
{
    return gpu_library_load(&library) ? library.n_devices : 0;
}

static const char *why_none(void)
{
    gpu_library_load(&library);
    return library.why;
}

static hy_status configure(const hy_dev_opts *o)
{
    return gpu_library_path(&library, o);
}

static hy_status open_dev(const hy_dev_opts *o, hy_dev **out)
{
    return gpu_open(&library, o, out);
}

static const hy_conf_key keys[] = {
    {"backend.hip", "driver", HY_CONF_PATH, "", NULL, NULL, NULL,
     "The HIP runtime's library; empty: libamdhip64.so where the system keeps it."},
    {"backend.hip", "graphs", HY_CONF_ENUM, "auto", NULL, NULL, "auto|off",
     "Start a step that comes again as one graph instead of kernel by kernel. Changes speed "
     "alone."},
    {"backend.hip", "blas", HY_CONF_PATH, "auto", NULL, NULL, NULL,
     "With numerics = fast: hipBLASLt for dense products of many rows, opened when the first "
     "comes: auto (where the system keeps it), a path, or off (our own kernels)."},
};

__attribute__((visibility("default"))) extern const hy_backend hy_backend_v1;
const hy_backend hy_backend_v1 = {
    .size = sizeof(hy_backend),
    .abi = HY_HAL_ABI,
    .name = "hip",
    .count = count,
    .why_none = why_none,
    .open = open_dev,
    .keys = keys,
    .n_keys = HY_COUNTOF(keys),
    .configure = configure,
};
