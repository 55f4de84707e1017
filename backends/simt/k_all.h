/* SPDX-License-Identifier: Apache-2.0
 *
 * All kernels: what a translation unit of nvcc, hipcc or the host compiler includes.
 *
 * Thread: device code.  Owner: none.
 */
#ifndef HY_SIMT_K_ALL_H
#define HY_SIMT_K_ALL_H

#include "backends/simt/k_attn.h"
#include "backends/simt/k_kv.h"
#include "backends/simt/k_matmul.h"
#include "backends/simt/k_mma.h"
#include "backends/simt/k_moe.h"
#include "backends/simt/k_simple.h"
#include "backends/simt/k_topk.h"

#endif
