/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu backend's entry in the registry's table of built-in backends.
 *
 * Thread: any.  Owner: static.
 */
#ifndef HY_CPU_CPU_H
#define HY_CPU_CPU_H

#include "hal/backend.h"

extern const hy_backend cpu_backend;

#endif
