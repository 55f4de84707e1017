/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing kernels for AVX2.
 *
 * Thread: any.  Owner: none.
 */
#include "backends/cpu/kv_impl.h"

const cpu_kv_kern cpu_kv_avx2 = {KV_TABLE};
