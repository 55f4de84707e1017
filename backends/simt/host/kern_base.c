/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels for any processor, checked as well: fmaf is a call there anyway.
 *
 * Thread: code of a kernel.  Owner: static.
 */
#define SIMT_CHECK
#define SIMT_TABLE simt_table_base
#include "backends/simt/host/kern_impl.h"
