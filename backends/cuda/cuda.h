/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the module cuda: its map of codes, and the compiled kernels that the build embeds.
 *
 * Thread: any; constants.  Owner: none.
 */
#ifndef HY_CUDA_H
#define HY_CUDA_H

#include "backends/gpu/driver.h"

enum { CUDA_ATTR_WAVE = 10, CUDA_ATTR_UNITS = 16, CUDA_IPC_LAZY = 1 };

/* cublasLt.h */
enum { CUBLAS_COMPUTE_F32 = 68, CUBLAS_TRANSPOSE = 1, CUBLASLT_TRANS_A = 3 };

/* A code of the CUDA driver as a status. */
hy_status cuda_status(int code, const char **text);

/* backends/gpu/images.cmake writes them. */
extern const gpu_image gpu_images[];

#endif
