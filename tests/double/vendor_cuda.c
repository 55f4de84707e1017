/* SPDX-License-Identifier: Apache-2.0
 *
 * What backends/cuda believes of its vendor's interface, against the vendor's own header; compiled
 * where there is one. gpu/driver.h says void * for addresses and int for codes and enums.
 *
 * Thread: none.  Owner: none.
 */
#include "backends/cuda/cuda.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif
#include <cuda.h>

#define IS(f, type)   _Static_assert(_Generic(&(f), type : 1, default : 0), #f)
#define SAME(a, b)    _Static_assert((int)(a) == (int)(b), #b)
#define SIZE(T, like) _Static_assert(sizeof(T) == sizeof(like), #T)

IS(cuInit, CUresult (*)(unsigned));
IS(cuDeviceGetCount, CUresult (*)(int *));
IS(cuDeviceGet, CUresult (*)(CUdevice *, int));
IS(cuDeviceGetName, CUresult (*)(char *, int, CUdevice));
IS(cuDeviceGetAttribute, CUresult (*)(int *, CUdevice_attribute, CUdevice));
IS(cuDevicePrimaryCtxRetain, CUresult (*)(CUcontext *, CUdevice));
IS(cuDevicePrimaryCtxRelease, CUresult (*)(CUdevice));
IS(cuCtxSetCurrent, CUresult (*)(CUcontext));
IS(cuMemGetInfo, CUresult (*)(size_t *, size_t *));
IS(cuMemAlloc, CUresult (*)(CUdeviceptr *, size_t));
IS(cuMemFree, CUresult (*)(CUdeviceptr));
IS(cuMemsetD8Async, CUresult (*)(CUdeviceptr, unsigned char, size_t, CUstream));
IS(cuMemHostAlloc, CUresult (*)(void **, size_t, unsigned));
IS(cuMemFreeHost, CUresult (*)(void *));
IS(cuMemHostRegister, CUresult (*)(void *, size_t, unsigned));
IS(cuMemHostUnregister, CUresult (*)(void *));
IS(cuStreamCreate, CUresult (*)(CUstream *, unsigned));
IS(cuStreamDestroy, CUresult (*)(CUstream));
IS(cuStreamSynchronize, CUresult (*)(CUstream));
IS(cuStreamWaitEvent, CUresult (*)(CUstream, CUevent, unsigned));
IS(cuMemcpyAsync, CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, CUstream));
IS(cuEventCreate, CUresult (*)(CUevent *, unsigned));
IS(cuEventDestroy, CUresult (*)(CUevent));
IS(cuEventRecord, CUresult (*)(CUevent, CUstream));
IS(cuEventQuery, CUresult (*)(CUevent));
IS(cuEventSynchronize, CUresult (*)(CUevent));
IS(cuModuleLoadData, CUresult (*)(CUmodule *, const void *));
IS(cuModuleUnload, CUresult (*)(CUmodule));
IS(cuModuleGetFunction, CUresult (*)(CUfunction *, CUmodule, const char *));
IS(cuLaunchKernel, CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                unsigned, unsigned, CUstream, void **, void **));
IS(cuMemGetAddressRange, CUresult (*)(CUdeviceptr *, size_t *, CUdeviceptr));
IS(cuIpcGetMemHandle, CUresult (*)(CUipcMemHandle *, CUdeviceptr));
IS(cuIpcOpenMemHandle, CUresult (*)(CUdeviceptr *, CUipcMemHandle, unsigned));
IS(cuIpcCloseMemHandle, CUresult (*)(CUdeviceptr));
IS(cuMemGetHandleForAddressRange,
   CUresult (*)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long));
IS(cuStreamBeginCapture, CUresult (*)(CUstream, CUstreamCaptureMode));
IS(cuStreamEndCapture, CUresult (*)(CUstream, CUgraph *));
IS(cuGraphInstantiateWithFlags, CUresult (*)(CUgraphExec *, CUgraph, unsigned long long));
IS(cuGraphDestroy, CUresult (*)(CUgraph));
IS(cuGraphLaunch, CUresult (*)(CUgraphExec, CUstream));
IS(cuGraphExecDestroy, CUresult (*)(CUgraphExec));
IS(cuGetErrorName, CUresult (*)(CUresult, const char **));

SIZE(CUdeviceptr, void *);
SIZE(CUstream, void *);
SIZE(CUresult, int);
SIZE(CUdevice, int);
SIZE(CUstreamCaptureMode, int);
SIZE(CUmemRangeHandleType, int);
SIZE(CUipcMemHandle, gpu_ipc);
SAME(CUDA_ATTR_WAVE, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
SAME(CUDA_ATTR_UNITS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CUDA_IPC_LAZY, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(1, CU_STREAM_NON_BLOCKING);
SAME(2, CU_EVENT_DISABLE_TIMING);
SAME(1, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME(1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
#if __has_include(<cublasLt.h>)
SAME(CUBLAS_COMPUTE_F32, CUBLAS_COMPUTE_32F);
SAME(CUBLAS_TRANSPOSE, CUBLAS_OP_T);
SAME(CUBLASLT_TRANS_A, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(0, CUDA_R_32F);
SAME(2, CUDA_R_16F);
SAME(14, CUDA_R_16BF);
IS(cublasLtMatmul,
   cublasStatus_t (*)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                      cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t, const void *,
                      const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,
                      const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t));
IS(cublasLtMatrixLayoutCreate,
   cublasStatus_t (*)(cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t));
IS(cublasLtMatmulDescCreate,
   cublasStatus_t (*)(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t));
#endif
