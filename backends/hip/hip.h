/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the module hip: its map of codes, and the compiled kernels that the build embeds.
 *
 * Thread: any; constants.  Owner: none.
 */
#ifndef HY_HIP_H
#define HY_HIP_H

#include "backends/gpu/driver.h"

/* Attributes as numbered since HIP 5: the places of those that went are kept. */
enum { HIP_ATTR_WAVE = 87, HIP_ATTR_UNITS = 63, HIP_IPC_LAZY = 0, HIP_COPY_ANY_WAY = 4 };

/* hipblaslt.h, of ROCm 6 and later: older ones number types otherwise and refuse these. */
enum { HIPBLAS_COMPUTE_F32 = 2, HIPBLAS_TRANSPOSE = 112, HIPBLASLT_TRANS_A = 0 };

/* A code of the HIP runtime as a status. */
hy_status hip_status(int code, const char **text);

/* backends/gpu/images.cmake writes them. */
extern const gpu_image gpu_images[];

#endif
