/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels for the host executor; included once for each way to compile them.
 *
 * Thread: code of a kernel.  Owner: static.
 */
#include "backends/simt/host/table.h"
#include "backends/simt/k_all.h"

#define ENTRY(name) [SIMT_##name] = {#name, name, name##_bytes},
const simt_entry SIMT_TABLE[SIMT_KERNELS] = {SIMT_EACH_KERNEL(ENTRY)};
#undef ENTRY
