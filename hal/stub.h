/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills what a backend left empty: stubs that answer HY_E_UNSUPPORTED, or composites made of
 * primitives. After it no slot is NULL, and callers never test one.
 *
 * Thread: at open.  Owner: the caller holds the tables.
 */
#ifndef HY_HAL_STUB_H
#define HY_HAL_STUB_H

#include "hal/backend.h"

/* Copies min(own->size, sizeof) bytes of the backend's tables (an older backend's tables are
 * shorter) and fills the rest. Returns the capability bits: which op slots the backend filled. */
uint64_t hy_stub_fill(const hy_dev_ops *own_ops, const hy_math_ops *own_math, hy_dev_ops *ops,
                      hy_math_ops *math);

#endif
