/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel dialect: the few words in which GPU kernels are written once, for nvcc (CUDA), hipcc
 * (HIP) and a C compiler (the host executor, backends/simt/host).
 *
 *   HY_KERNEL(name, threads, T, a)  a kernel of blocks of `threads`, with one argument struct a
 *   HY_DEV                          a device function, always inlined
 *   HY_TID, HY_BX, HY_BY, HY_BZ     thread in its block, block in its grid
 *   HY_SHARED(T, t, n)              n elements of shared memory; SH_GET(t, i), SH_PUT(t, i, v)
 *   HY_SH(T)                        type of a parameter that is such memory
 *   HY_BARRIER()                    all threads of the block
 *   HY_LD(p), HY_ST(p, v)           device memory, whole words at their alignment; p has no effects
 *   hy_u2, hy_u4, hy_f4             words of 8 and 16 bytes
 *   HY_LANE, HY_TEAM                lane in a team of 32, team in the block
 *   hy_shfl_*, hy_team_*            exchange, sums, maxima and ballots inside a team
 *   hy_mma, hy_mma_*                a team's product of 16-bit floats on matrix units: mma.h
 *   HY_WAVE                         32 or 64: hardware width, a multiple of a team
 *
 * Rules. Results may depend on teams, never on HY_WAVE: so wave 32 and 64 give the same bits. Team
 * operations and barriers are reached by all threads of a wave, or block, at the same line.
 * Lanes share memory across barriers only. Floating point: fmaf where one is meant, no contraction
 * (nvcc -fmad=false, hipcc -ffp-contract=off), no approximate functions.
 *
 * Thread: device code.  Owner: none.
 */
#ifndef HY_SIMT_DIALECT_H
#define HY_SIMT_DIALECT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define SIMT_LANES 32
#define SIMT_TEAMS 4
#define SIMT_BLOCK (SIMT_LANES * SIMT_TEAMS) /* threads of a block, in every kernel of ours */

typedef struct __attribute__((aligned(8))) hy_u2 {
    uint32_t x, y;
} hy_u2;

typedef struct __attribute__((aligned(16))) hy_u4 {
    uint32_t x, y, z, w;
} hy_u4;

typedef struct __attribute__((aligned(16))) hy_f4 {
    float x, y, z, w;
} hy_f4;

#if defined(__CUDACC__) || defined(__HIPCC__)
#include "backends/simt/dialect_gpu.h"
#else
#include "backends/simt/host/lane.h"
#endif

#define HY_LANE (HY_TID % SIMT_LANES)
#define HY_TEAM (HY_TID / SIMT_LANES)

#endif
