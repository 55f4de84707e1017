/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention kernels for AVX-512: the code is attn_impl.h.
 *
 * Thread: any (pure but for its scratch).  Owner: none.
 */
#include "backends/cpu/attn_impl.h"

const cpu_attn_kern cpu_attn_avx512 = {.segment = segment, .combine = combine};
