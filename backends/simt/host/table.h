/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels as the host executor holds them: fast (needs AVX2 and FMA), checked, and checked for
 * any processor.
 *
 * Thread: constants.  Owner: static.
 */
#ifndef HY_SIMT_HOST_TABLE_H
#define HY_SIMT_HOST_TABLE_H

#include "backends/simt/host/exec.h"
#include "backends/simt/kernels.h"

typedef struct simt_entry {
    const char *name;
    simt_fn fn;
    size_t bytes; /* of its argument */
} simt_entry;

extern const simt_entry simt_table_fast[SIMT_KERNELS];
extern const simt_entry simt_table_check[SIMT_KERNELS];
extern const simt_entry simt_table_base[SIMT_KERNELS];

#endif
