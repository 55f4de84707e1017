/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing kernels for AVX-512.
 *
 * Thread: any.  Owner: none.
 */
#include "backends/cpu/kv_impl.h"

const cpu_kv_kern cpu_kv_avx512 = {KV_TABLE};
