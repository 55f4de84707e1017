/* SPDX-License-Identifier: Apache-2.0
 *
 * The host executor as a backend: its entry in the registry's table of built-in backends.
 *
 * Thread: any.  Owner: static.
 */
#ifndef HY_SIMT_HOST_SIMT_H
#define HY_SIMT_HOST_SIMT_H

#include "backends/simt/host/exec.h"
#include "hal/backend.h"

extern const hy_backend simt_backend;

/* What kernels loaded and stored so far, of a device opened with traffic=true; the device's. */
size_t simt_dev_traffic(const hy_dev *d, const simt_traffic **out);

#endif
