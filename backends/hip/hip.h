/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the module hip: its map of codes, and the compiled kernels that the build embeds.
 *
 * Thread: any; constants.  Owner: none.
 */
#ifndef HY_HIP_H
#define HY_HIP_H

#include "backends/gpu/driver.h"

/* A code of the HIP runtime as a status. */
hy_status hip_status(int code);

/* backends/gpu/images.cmake writes them. */
extern const gpu_image gpu_images[];

#endif
