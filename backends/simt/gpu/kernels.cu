/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels for nvcc and, as -x hip, for hipcc.
 *
 * Thread: device code.  Owner: none.
 */
#include "backends/simt/k_all.h"
