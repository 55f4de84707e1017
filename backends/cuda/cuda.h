/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the module cuda: its map of codes, and the compiled kernels that the build embeds.
 *
 * Thread: any; constants.  Owner: none.
 */
#ifndef HY_CUDA_H
#define HY_CUDA_H

#include "backends/gpu/driver.h"

/* A code of the CUDA driver as a status. */
hy_status cuda_status(int code);

/* backends/gpu/images.cmake writes them. */
extern const gpu_image gpu_images[];

#endif
