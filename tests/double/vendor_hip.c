/* SPDX-License-Identifier: Apache-2.0
 *
 * What backends/hip believes of its vendor's interface, against the vendor's own header; compiled
 * where there is one. gpu/driver.h says void * for addresses and int for codes and enums.
 *
 * Thread: none.  Owner: none.
 */
#include "backends/hip/hip.h"

#define __HIP_PLATFORM_AMD__ 1
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <hip/hip_runtime_api.h>

#define IS(f, type)   _Static_assert(_Generic(&(f), type : 1, default : 0), #f)
#define SAME(a, b)    _Static_assert((int)(a) == (int)(b), #b)
#define SIZE(T, like) _Static_assert(sizeof(T) == sizeof(like), #T)

IS(hipInit, hipError_t (*)(unsigned));
IS(hipGetDeviceCount, hipError_t (*)(int *));
IS(hipDeviceGet, hipError_t (*)(hipDevice_t *, int));
IS(hipDeviceGetName, hipError_t (*)(char *, int, hipDevice_t));
IS(hipDeviceGetAttribute, hipError_t (*)(int *, hipDeviceAttribute_t, int));
IS(hipSetDevice, hipError_t (*)(int));
IS(hipMemGetInfo, hipError_t (*)(size_t *, size_t *));
IS(hipMalloc, hipError_t (*)(void **, size_t));
IS(hipFree, hipError_t (*)(void *));
IS(hipMemsetD8Async, hipError_t (*)(hipDeviceptr_t, unsigned char, size_t, hipStream_t));
IS(hipHostMalloc, hipError_t (*)(void **, size_t, unsigned));
IS(hipHostFree, hipError_t (*)(void *));
IS(hipHostRegister, hipError_t (*)(void *, size_t, unsigned));
IS(hipHostUnregister, hipError_t (*)(void *));
IS(hipStreamCreateWithFlags, hipError_t (*)(hipStream_t *, unsigned));
IS(hipStreamDestroy, hipError_t (*)(hipStream_t));
IS(hipStreamSynchronize, hipError_t (*)(hipStream_t));
IS(hipStreamWaitEvent, hipError_t (*)(hipStream_t, hipEvent_t, unsigned));
IS(hipMemcpyAsync, hipError_t (*)(void *, const void *, size_t, hipMemcpyKind, hipStream_t));
IS(hipEventCreateWithFlags, hipError_t (*)(hipEvent_t *, unsigned));
IS(hipEventDestroy, hipError_t (*)(hipEvent_t));
IS(hipEventRecord, hipError_t (*)(hipEvent_t, hipStream_t));
IS(hipEventQuery, hipError_t (*)(hipEvent_t));
IS(hipEventSynchronize, hipError_t (*)(hipEvent_t));
IS(hipModuleLoadData, hipError_t (*)(hipModule_t *, const void *));
IS(hipModuleUnload, hipError_t (*)(hipModule_t));
IS(hipModuleGetFunction, hipError_t (*)(hipFunction_t *, hipModule_t, const char *));
IS(hipModuleLaunchKernel,
   hipError_t (*)(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  unsigned, hipStream_t, void **, void **));
IS(hipMemGetAddressRange, hipError_t (*)(hipDeviceptr_t *, size_t *, hipDeviceptr_t));
IS(hipIpcGetMemHandle, hipError_t (*)(hipIpcMemHandle_t *, void *));
IS(hipIpcOpenMemHandle, hipError_t (*)(void **, hipIpcMemHandle_t, unsigned));
IS(hipIpcCloseMemHandle, hipError_t (*)(void *));
IS(hipStreamBeginCapture, hipError_t (*)(hipStream_t, hipStreamCaptureMode));
IS(hipStreamEndCapture, hipError_t (*)(hipStream_t, hipGraph_t *));
IS(hipGraphInstantiateWithFlags, hipError_t (*)(hipGraphExec_t *, hipGraph_t, unsigned long long));
IS(hipGraphDestroy, hipError_t (*)(hipGraph_t));
IS(hipGraphLaunch, hipError_t (*)(hipGraphExec_t, hipStream_t));
IS(hipGraphExecDestroy, hipError_t (*)(hipGraphExec_t));

SIZE(hipStream_t, void *);
SIZE(hipError_t, int);
SIZE(hipDevice_t, int);
SIZE(hipMemcpyKind, int);
SIZE(hipStreamCaptureMode, int);
SIZE(hipDeviceptr_t, void *);
SIZE(hipIpcMemHandle_t, gpu_ipc);
SAME(HIP_ATTR_WAVE, hipDeviceAttributeWarpSize);
SAME(HIP_ATTR_UNITS, hipDeviceAttributeMultiprocessorCount);
SAME(HIP_IPC_LAZY, hipIpcMemLazyEnablePeerAccess);
SAME(HIP_COPY_ANY_WAY, hipMemcpyDefault);
SAME(1, hipStreamNonBlocking);
SAME(2, hipEventDisableTiming);
SAME(1, hipStreamCaptureModeThreadLocal);
