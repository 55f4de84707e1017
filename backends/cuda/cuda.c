/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA: names and numbers of the driver API (cuda.h, which is not needed to build) for gpu/.
 *
 * Thread: as gpu/dev.h.  Owner: none.
 */
#include "backends/cuda/cuda.h"
#include "backends/gpu/blas.h"
#include "backends/gpu/dev.h"
#include "core/base/conf_key.h"

static gpu_calls cu;
static int (*get_error_name)(int code, const char **s);

static const char *error_name(int code)
{
    const char *s = NULL;
    return get_error_name(code, &s) == 0 ? s : NULL;
}

static const gpu_symbol symbols[] = {
    {"cuInit", &cu.init, false},
    {"cuDeviceGetCount", &cu.count, false},
    {"cuDeviceGet", &cu.device, false},
    {"cuDeviceGetName", &cu.device_name, false},
    {"cuDeviceGetAttribute", &cu.attribute, false},
    {"cuDevicePrimaryCtxRetain", &cu.ctx_retain, false},
    {"cuDevicePrimaryCtxRelease_v2", &cu.ctx_release, false},
    {"cuCtxSetCurrent", &cu.ctx_set, false},
    {"cuMemGetInfo_v2", &cu.mem_info, false},
    {"cuMemAlloc_v2", &cu.alloc, false},
    {"cuMemFree_v2", &cu.free, false},
    {"cuMemsetD8Async", &cu.zero, false},
    {"cuMemHostAlloc", &cu.host_alloc, false},
    {"cuMemFreeHost", &cu.host_free, false},
    {"cuMemHostRegister_v2", &cu.host_register, false},
    {"cuMemHostUnregister", &cu.host_unregister, false},
    {"cuStreamCreate", &cu.stream_create, false},
    {"cuStreamDestroy_v2", &cu.stream_destroy, false},
    {"cuStreamSynchronize", &cu.stream_sync, false},
    {"cuStreamWaitEvent", &cu.stream_wait, false},
    {"cuMemcpyAsync", &cu.copy, false},
    {"cuEventCreate", &cu.event_create, false},
    {"cuEventDestroy_v2", &cu.event_destroy, false},
    {"cuEventRecord", &cu.event_record, false},
    {"cuEventQuery", &cu.event_query, false},
    {"cuEventSynchronize", &cu.event_sync, false},
    {"cuModuleLoadData", &cu.load, false},
    {"cuModuleUnload", &cu.unload, false},
    {"cuModuleGetFunction", &cu.function, false},
    {"cuLaunchKernel", &cu.launch, false},
    {"cuMemGetAddressRange_v2", &cu.range, false},
    {"cuIpcGetMemHandle", &cu.ipc_get, false},
    {"cuIpcOpenMemHandle_v2", &cu.ipc_open, false},
    {"cuIpcCloseMemHandle", &cu.ipc_close, false},
    {"cuGetErrorName", &get_error_name, false},
    {"cuMemGetHandleForAddressRange", &cu.export_fd, true},
    {"cuStreamBeginCapture_v2", &cu.capture_begin, true},
    {"cuStreamEndCapture", &cu.capture_end, true},
    {"cuGraphInstantiateWithFlags", &cu.graph_build, true},
    {"cuGraphDestroy", &cu.graph_free, true},
    {"cuGraphLaunch", &cu.graph_launch, true},
    {"cuGraphExecDestroy", &cu.graph_exec_free, true},
};

static gpu_calls cu = {.error_name = error_name};

static const char *const files[] = {"libcuda.so.1", NULL};

static const gpu_blas_names blas = {
    .files = {"libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12", NULL},
    .create = "cublasLtCreate",
    .destroy = "cublasLtDestroy",
    .desc_create = "cublasLtMatmulDescCreate",
    .desc_set = "cublasLtMatmulDescSetAttribute",
    .desc_destroy = "cublasLtMatmulDescDestroy",
    .layout_create = "cublasLtMatrixLayoutCreate",
    .layout_destroy = "cublasLtMatrixLayoutDestroy",
    .matmul = "cublasLtMatmul",
    .compute_f32 = CUBLAS_COMPUTE_F32,
    .transpose = CUBLAS_TRANSPOSE,
    .attr_trans_a = CUBLASLT_TRANS_A,
    .type_f32 = 0,
    .type_f16 = 2,
    .type_bf16 = 14,
};

static const gpu_vendor vendor = {
    .name = "cuda",
    .library = "the CUDA driver",
    .files = files,
    .symbols = symbols,
    .n_symbols = HY_COUNTOF(symbols),
    .calls = &cu,
    .status = cuda_status,
    .attr_wave = CUDA_ATTR_WAVE,
    .attr_units = CUDA_ATTR_UNITS,
    .ipc_flags = CUDA_IPC_LAZY,
    .memory = HY_MAKER_CUDA,
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
    {"backend.cuda", "driver", HY_CONF_PATH, "", NULL, NULL, NULL,
     "The CUDA driver's library; empty: libcuda.so.1 where the system keeps it."},
    {"backend.cuda", "graphs", HY_CONF_ENUM, "auto", NULL, NULL, "auto|off",
     "Start a step that comes again as one graph instead of kernel by kernel. Changes speed "
     "alone."},
    {"backend.cuda", "blas", HY_CONF_PATH, "auto", NULL, NULL, NULL,
     "With numerics = fast: cuBLASLt for dense products of many rows, opened when the first "
     "comes: auto (where the system keeps it), a path, or off (our own kernels)."},
};

__attribute__((visibility("default"))) extern const hy_backend hy_backend_v1;
const hy_backend hy_backend_v1 = {
    .size = sizeof(hy_backend),
    .abi = HY_HAL_ABI,
    .name = "cuda",
    .count = count,
    .why_none = why_none,
    .open = open_dev,
    .keys = keys,
    .n_keys = HY_COUNTOF(keys),
    .configure = configure,
};
