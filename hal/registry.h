/* SPDX-License-Identifier: Apache-2.0
 *
 * Backends by name: built-in ones from one table (registry.c), others from modules
 * "halyard-NAME.so" beside the program or in a folder of HY_BACKEND_PATH (colons between).
 *
 * Thread: any.  Owner: a backend is static; a module stays loaded until the program ends.
 */
#ifndef HY_HAL_REGISTRY_H
#define HY_HAL_REGISTRY_H

#include "core/base/buf.h"
#include "hal/backend.h"

/* HY_E_NOTFOUND names the nearest known name; HY_E_UNSUPPORTED: a module of another ABI. */
hy_status hy_backend_find(const char *name, const hy_backend **out);
/* The i-th known name: built-in ones, then modules on disk (loaded or not); NULL: no more. The
 * list is made at the first call. */
const char *hy_backend_name_at(size_t i);
/* Is the op's slot the backend's own? A composite without the bit is composed. */
static inline bool hy_dev_has(const hy_dev *d, hy_op op)
{
    return d->caps >> op & 1;
}
/* One line per device of every known backend, or why there is none. */
void hy_backend_print(hy_buf *out);

#endif
