/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels as fast as fibres allow.
 *
 * Thread: code of a kernel.  Owner: static.
 */
#define SIMT_TABLE simt_table_fast
#include "backends/simt/host/kern_impl.h"
