/* SPDX-License-Identifier: Apache-2.0
 *
 * The dialect's word for matrix units: a team multiplies 16 x 16 by 16 x 8 16-bit floats into
 * 16 x 8 f32. Fragments come from shared memory, two elements a word, `ld` words from row to row.
 *
 *   hy_frag_a hy_mma_load_a(s, at, ld)      16 rows of 16 elements (8 words)
 *   hy_frag_b hy_mma_load_b(s, at, ld)      8 columns of 16 elements
 *   hy_mma(c, a, b, f16)                    c += a b; f16: halves, else bf16
 *   hy_mma_row(i), hy_mma_col(i)            where this lane's c[i] lies, from the tile's corner
 *
 * All teams of a wave come along, with the same A and with columns that follow each other in
 * memory: so that a wave of 64 may do it in one instruction of 16 columns, whose results then lie
 * in the neighbour's (hy_mma_col is negative there).
 *
 * The order of the sums is the hardware's: for numerics = fast only. NVIDIA: mma.m16n8k16 (PTX ISA,
 * "Matrix Fragments for mma.m16n8k16"), which the host executor imitates lane by lane. CDNA: MFMA
 * 16x16x16, as AMD's matrix instruction calculator lays it out. RDNA: products by exchange.
 *
 * Thread: device code.  Owner: none.
 */
#ifndef HY_SIMT_MMA_H
#define HY_SIMT_MMA_H

#include "backends/simt/dialect.h"

typedef struct hy_frag_a {
    uint32_t r[4];
} hy_frag_a;

typedef struct hy_frag_b {
    uint32_t r[2];
} hy_frag_b;

#if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx942__)

typedef _Float16 hy_half4 __attribute__((ext_vector_type(4)));
typedef short hy_short4 __attribute__((ext_vector_type(4)));
typedef float hy_float4 __attribute__((ext_vector_type(4)));

HY_DEV hy_frag_a hy_mma_load_a(HY_SH(uint32_t) s, int at, int ld)
{
    hy_frag_a f;
    at += HY_TID % 16 * ld + HY_TID % 64 / 16 * 2;
    f.r[0] = SH_GET(s, at);
    f.r[1] = SH_GET(s, at + 1);
    f.r[2] = f.r[3] = 0;
    return f;
}

HY_DEV hy_frag_b hy_mma_load_b(HY_SH(uint32_t) s, int at, int ld)
{
    hy_frag_b f;
    at += (HY_TID % 16 - HY_TEAM % 2 * 8) * ld + HY_TID % 64 / 16 * 2;
    f.r[0] = SH_GET(s, at);
    f.r[1] = SH_GET(s, at + 1);
    return f;
}

HY_DEV int hy_mma_row(int i)
{
    return HY_TID % 64 / 16 * 4 + i;
}

HY_DEV int hy_mma_col(int i)
{
    (void)i;
    return HY_TID % 16 - HY_TEAM % 2 * 8;
}

HY_DEV uint64_t hy_mma_words(uint32_t lo, uint32_t hi)
{
    return lo | (uint64_t)hi << 32;
}

HY_DEV void hy_mma(float c[4], hy_frag_a a, hy_frag_b b, int f16)
{
    const uint64_t x = hy_mma_words(a.r[0], a.r[1]), y = hy_mma_words(b.r[0], b.r[1]);
    hy_float4 v = {c[0], c[1], c[2], c[3]};
    if (f16)
        v = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(hy_half4, x),
                                                  __builtin_bit_cast(hy_half4, y), v, 0, 0, 0);
    else
        v = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(hy_short4, x),
                                                      __builtin_bit_cast(hy_short4, y), v, 0, 0, 0);
    HY_UNROLL
    for (int i = 0; i < 4; i++)
        c[i] = v[i];
}

#else

HY_DEV hy_frag_a hy_mma_load_a(HY_SH(uint32_t) s, int at, int ld)
{
    hy_frag_a f;
    at += HY_LANE / 4 * ld + HY_LANE % 4;
    f.r[0] = SH_GET(s, at);
    f.r[1] = SH_GET(s, at + 8 * ld);
    f.r[2] = SH_GET(s, at + 4);
    f.r[3] = SH_GET(s, at + 8 * ld + 4);
    return f;
}

HY_DEV hy_frag_b hy_mma_load_b(HY_SH(uint32_t) s, int at, int ld)
{
    hy_frag_b f;
    at += HY_LANE / 4 * ld + HY_LANE % 4;
    f.r[0] = SH_GET(s, at);
    f.r[1] = SH_GET(s, at + 4);
    return f;
}

HY_DEV int hy_mma_row(int i)
{
    return HY_LANE / 4 + i / 2 * 8;
}

HY_DEV int hy_mma_col(int i)
{
    return HY_LANE % 4 * 2 + i % 2;
}

#if defined(__CUDACC__)

HY_DEV void hy_mma(float c[4], hy_frag_a a, hy_frag_b b, int f16)
{
    if (f16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]),
                       "r"(b.r[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]),
                       "r"(b.r[1]));
}

#elif defined(__HIPCC__)

HY_DEV float hy_mma_elem(uint32_t w, int high, int f16)
{
    const uint32_t h = high ? w >> 16 : w & 0xffffu;
    float f;
    if (f16)
        return hy_h2f((uint16_t)h);
    const uint32_t u = h << 16;
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Row r of A is in lanes 4 (r % 8) to + 3, words 0 and 2 (rows 0-7) or 1 and 3. */
HY_DEV void hy_mma(float c[4], hy_frag_a a, hy_frag_b b, int f16)
{
    for (int half = 0; half < 2; half++) {
        for (int j = 0; j < 4; j++) {
            const int row = HY_LANE / 4 * 4 + j;
            const uint32_t lo = hy_shfl_u32(a.r[2 * half], row);
            const uint32_t hi = hy_shfl_u32(a.r[2 * half + 1], row);
            HY_UNROLL
            for (int n = 0; n < 2; n++) {
                const uint32_t w = hy_shfl_u32(b.r[half], (HY_LANE % 4 * 2 + n) * 4 + j);
                HY_UNROLL
                for (int e = 0; e < 2; e++) {
                    const float y = hy_mma_elem(w, e, f16);
                    c[n] = fmaf(hy_mma_elem(lo, e, f16), y, c[n]);
                    c[2 + n] = fmaf(hy_mma_elem(hi, e, f16), y, c[2 + n]);
                }
            }
        }
    }
}

#else /* the host executor */
#define hy_mma(c, a, b, f16) simt_mma((c), (a).r, (b).r, (f16), __FILE__, __LINE__)
#endif
#endif

#endif
