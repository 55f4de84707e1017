/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels with checked shared memory.
 *
 * Thread: code of a kernel.  Owner: static.
 */
#define SIMT_CHECK
#define SIMT_TABLE simt_table_check
#include "backends/simt/host/kern_impl.h"
