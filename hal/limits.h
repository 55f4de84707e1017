/* SPDX-License-Identifier: Apache-2.0
 *
 * What cgroups (version 2 or 1) leave this process of the machine's CPUs and memory: a container
 * with 4 GiB on a machine of 512 GiB has 4 GiB, and what it uses already is not free.
 *
 * Thread: any; read anew at each call.  Owner: plain values.
 */
#ifndef HY_HAL_LIMITS_H
#define HY_HAL_LIMITS_H

#include "core/base/status.h"

#include <stdint.h>

typedef struct hy_limits {
    double cpus;                  /* 0: no limit */
    uint64_t mem_limit;           /* bytes; 0: none */
    uint64_t mem_total, mem_free; /* bytes that this process can have at all, and still */
} hy_limits;

/* root: "" for this machine; tests name a folder that holds proc/ and sys/. */
void hy_limits_read(const char *root, hy_limits *out);

#endif
