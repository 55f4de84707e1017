/* SPDX-License-Identifier: Apache-2.0
 *
 * Matmul on matrix units, for numerics = fast: weights and activations are rounded to bf16 (f16
 * where the weights are), sums are f32 in the hardware's order. Tiles of 64 rows by 64 outputs, 64
 * columns at a time through shared memory; a team takes two strips of eight outputs.
 *
 * Thread: device code.  Owner: none.
 */
#ifndef HY_SIMT_K_MMA_H
#define HY_SIMT_K_MMA_H

#include "backends/simt/k_matmul.h"
#include "backends/simt/mma.h"

#define K_MMA_WORDS 32                /* of a row, a turn: 64 elements */
#define K_MMA_LD    (K_MMA_WORDS + 4) /* fragments of eight rows fall into all banks */

HY_DEV uint32_t k_mma_pack(float lo, float hi, const int f16)
{
    if (!f16)
        return k_f2b(lo) | (uint32_t)k_f2b(hi) << 16;
    lo = lo > 65504.0f ? 65504.0f : lo < -65504.0f ? -65504.0f : lo; /* NaN stays */
    hi = hi > 65504.0f ? 65504.0f : hi < -65504.0f ? -65504.0f : hi;
    return hy_f2h(lo) | (uint32_t)hy_f2h(hi) << 16;
}

/* 64 elements of the block's rows, from k0. */
HY_DEV void k_mma_fill_x(const ka_matmul *a, const k_rows *rs, int k0, const int f16,
                         HY_SH(uint32_t) as)
{
    for (int i = HY_TID; i < KA_MMA_M * K_MMA_WORDS; i += SIMT_BLOCK) {
        const int r = i / K_MMA_WORDS, w = i % K_MMA_WORDS, k = k0 + 2 * w;
        const float *x = a->x + k_row_x(rs, r) * a->ldx + k;
        const float lo = r < rs->n && k < a->k ? x[0] : 0.0f;
        const float hi = r < rs->n && k + 1 < a->k ? x[1] : 0.0f;
        SH_PUT(as, r * K_MMA_LD + w, k_mma_pack(lo, hi, f16));
    }
}

/* And of the block's outputs' weights: a thread two times 16 of one. */
HY_DEV void k_mma_fill_w(const int t, const ka_matmul *a, const k_rows *rs, int k0, const int f16,
                         HY_SH(uint32_t) bs)
{
    const int n = HY_TID % KA_MMA_N, col = HY_BX * KA_MMA_N + n;
    HY_UNROLL
    for (int j = 0; j < 2; j++) {
        const int part = HY_TID / KA_MMA_N + 2 * j, len = a->k - k0 - 16 * part;
        float w[16] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f,
                       0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        if (col < a->n && len > 0)
            k_decode_half(t, rs->w + col * a->w_row, a->k, k0 / 32 + part / 2, part % 2, len, w);
        HY_UNROLL
        for (int i = 0; i < 8; i++)
            SH_PUT(bs, n * K_MMA_LD + 8 * part + i, k_mma_pack(w[2 * i], w[2 * i + 1], f16));
    }
}

/* Grid: x outputs in 64s, y rows in 64s. */
HY_DEV void k_mma(const int t, const ka_matmul *a)
{
    HY_SHARED(uint32_t, as, KA_MMA_M * K_MMA_LD);
    HY_SHARED(uint32_t, bs, KA_MMA_N * K_MMA_LD);
    const int f16 = t == KT_F16;
    const k_rows rs = k_rows_of(a, KA_MMA_M);
    if (rs.n == 0) /* the whole block */
        return;
    float acc[KA_MMA_M / 16][2][4];
    HY_UNROLL
    for (int i = 0; i < KA_MMA_M / 16 * 8; i++)
        acc[i / 8][i / 4 % 2][i % 4] = 0.0f;
    for (int k0 = 0; k0 < a->k; k0 += 2 * K_MMA_WORDS) {
        k_mma_fill_x(a, &rs, k0, f16, as);
        k_mma_fill_w(t, a, &rs, k0, f16, bs);
        HY_BARRIER();
        HY_UNROLL
        for (int w = 0; w < K_MMA_WORDS; w += 8) {
            const hy_frag_b b0 = hy_mma_load_b(bs, HY_TEAM * 8 * K_MMA_LD + w, K_MMA_LD);
            const hy_frag_b b1 = hy_mma_load_b(bs, (HY_TEAM + 4) * 8 * K_MMA_LD + w, K_MMA_LD);
            HY_UNROLL
            for (int m = 0; m < KA_MMA_M / 16; m++) {
                if (16 * m >= rs.n) /* the whole block */
                    continue;
                const hy_frag_a x = hy_mma_load_a(as, 16 * m * K_MMA_LD + w, K_MMA_LD);
                hy_mma(acc[m][0], x, b0, f16);
                hy_mma(acc[m][1], x, b1, f16);
            }
        }
        HY_BARRIER(); /* before the next turn's elements */
    }
    HY_UNROLL
    for (int i = 0; i < KA_MMA_M / 16 * 8; i++) {
        const int r = i / 8 * 16 + hy_mma_row(i % 4);
        const int n = HY_BX * KA_MMA_N + (HY_TEAM + i / 4 % 2 * 4) * 8 + hy_mma_col(i % 4);
        const float v = acc[i / 8][i / 4 % 2][i % 4];
        if (r < rs.n && n < a->n)
            a->y[(rs.first + r) * a->ldy + n] = a->bias != NULL ? v + a->bias[n] : v;
    }
}

#define K_MMA(name, T)                                                                             \
    HY_KERNEL(k_mma_##name, SIMT_BLOCK, ka_matmul, a)                                              \
    {                                                                                              \
        k_mma(T, &a);                                                                              \
    }
K_MMA(f16, KT_F16)
K_MMA(bf16, KT_BF16)
K_EACH_QUANT(K_MMA)

#endif
