/* SPDX-License-Identifier: Apache-2.0
 *
 * What the matmul kernel files of both instruction sets share: their formats as constants that the
 * compiler folds. Included only by mm_avx2.c and mm_avx512.c.
 *
 * Thread: any.  Owner: none.
 */
#ifndef HY_CPU_MM_H
#define HY_CPU_MM_H

#include "backends/cpu/fast_int.h"
#include "backends/cpu/vec16.h"

/* The same as cpu_fmts[], visible to the optimiser. */
static const cpu_fmt F_Q4_0 = {1, 0, 0, 0, 32, 3, 4, false, SCALE_D, 0, 18};
static const cpu_fmt F_Q4_1 = {1, 0, 0, 0, 32, 0, 4, true, SCALE_DM, 0, 20};
static const cpu_fmt F_Q5_0 = {1, 0, 1, 0, 32, 4, 5, false, SCALE_D, 0, 22};
static const cpu_fmt F_Q5_1 = {1, 0, 1, 0, 32, 0, 5, true, SCALE_DM, 0, 24};
static const cpu_fmt F_Q8_0 = {0, 0, 0, 1, 32, 7, 8, false, SCALE_D, 0, 34};
static const cpu_fmt F_Q4_K = {1, 0, 0, 0, 32, 0, 4, true, SCALE_K, 4, 18};
static const cpu_fmt F_Q5_K = {1, 0, 1, 0, 32, 0, 5, true, SCALE_K, 4, 22};
static const cpu_fmt F_Q6_K = {1, 1, 0, 0, 16, 5, 6, false, SCALE_K6, 2, 26};
static const cpu_fmt F_Q2_K = {0, 1, 0, 0, 16, 0, 2, true, SCALE_K, 4, 12};
static const cpu_fmt F_Q3_K = {0, 1, 1, 0, 16, 2, 3, false, SCALE_K6, 2, 14};

/* Decoded blocks: whole raised codes and f32 scales. */
INL cpu_fmt decoded_fmt(const cpu_fmt f)
{
    return (cpu_fmt){0, 0, 0, 1, f.sub, f.zero, f.bits, f.min, SCALE_NONE, 0, 0};
}
#define DECODED(F)        decoded_fmt(F)
#define DECODED_STRIDE(F) (R * (32 + 4 * (32 / (F).sub) * ((F).min ? 2 : 1)))

/* A block's worth of lines some blocks ahead: the hardware alone does not keep memory busy. */
INL void prefetch_block(const uint8_t *w, int bytes)
{
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)w + 4608 + i, _MM_HINT_T1);
}

#endif
