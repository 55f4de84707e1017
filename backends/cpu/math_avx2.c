/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms, activations, rope and quantising for AVX2: the code is math_impl.h.
 *
 * Thread: any (pure).  Owner: none.
 */
#include "backends/cpu/math_impl.h"

const cpu_vec cpu_vec_avx2 = {VEC_TABLE};
