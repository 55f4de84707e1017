/* SPDX-License-Identifier: Apache-2.0
 *
 * The second half of mm_avx2.c and mm_avx512.c, the same for both: f32 tiles, widening, and the
 * functions of every format and width. R, tile() and decode() come from the including file.
 *
 * Thread: any (pure).  Owner: none.
 */

#define NV (R / 16)

/* Weights at k, rows 16v.. */
INL v16 plain(const uint8_t *w, const cpu_pack f, int v)
{
    if (f == PACK_F32)
        return v_load((const float *)(const void *)w + 16 * v);
    return f == PACK_F16 ? v_load_f16(w + 32 * v) : v_load_bf16(w + 32 * v);
}

INL void tile_f32(const uint8_t *w, const void *panel, int64_t n, float *acc, const cpu_pack f,
                  const int W)
{
    const float *x = panel;
    v16 a[CPU_TILE_F32][NV];
    UNROLL(12)
    for (int c = 0; c < W; c++) {
        UNROLL(2)
        for (int v = 0; v < NV; v++)
            a[c][v] = v_load(acc + c * R + 16 * v);
    }
    for (int64_t k = 0; k < n; k++, w += R * (f == PACK_F32 ? 4 : 2), x += W) {
        v16 wv[NV];
        if (W == 1)
            _mm_prefetch((const char *)w + 4096, _MM_HINT_T1);
        UNROLL(2)
        for (int v = 0; v < NV; v++)
            wv[v] = plain(w, f, v);
        UNROLL(12)
        for (int c = 0; c < W; c++) {
            v16 b = v_set1(x[c]);
            UNROLL(2)
            for (int v = 0; v < NV; v++)
                a[c][v] = v_fma(wv[v], b, a[c][v]);
        }
    }
    UNROLL(12)
    for (int c = 0; c < W; c++) {
        UNROLL(2)
        for (int v = 0; v < NV; v++)
            v_store(acc + c * R + 16 * v, a[c][v]);
    }
}

static void widen(const cpu_fmt *f, const uint8_t *in, int64_t nb, float *out)
{
    const int subs = 32 / f->sub, per = 8 / subs;
    const size_t bytes = cpu_decoded_bytes(f, R);
    const bool s8 = f->b8 && R == 16; /* this instruction set keeps whole codes signed */
    const v16 zero = v_set1(f->zero && !s8 ? (float)(1 << f->zero) : 0.0f);
    for (int64_t b = 0; b < nb; b++, in += bytes) {
        const float *sc = (const float *)(const void *)(in + 32 * R);
        for (int g = 0; g < 8; g++) {
            for (int v = 0; v < NV; v++) {
                const uint8_t *p = in + (g * R + 16 * v) * 4;
                v16 d = v_load(sc + g / per * R + 16 * v);
                v16 m = f->min ? v_load(sc + (subs + g / per) * R + 16 * v) : v_zero();
                UNROLL(4)
                for (int i = 0; i < 4; i++) {
                    v16 q = s8 ? v_sbyte(p, i) : v_sub(v_byte(p, i), zero);
                    q = f->min ? v_fma(d, q, m) : v_mul(d, q);
                    v_store(out + (g * 4 + i) * R + 16 * v, q);
                }
            }
        }
        out += 32 * R;
    }
}

static void widen16(cpu_pack f, const uint8_t *in, int64_t n, float *out)
{
    for (int64_t i = 0; i < n * NV; i++)
        v_store(out + 16 * i, f == PACK_F16 ? v_load_f16(in + 32 * i) : v_load_bf16(in + 32 * i));
}

#define DIRECT(T, W)                                                                               \
    static void direct_##T##_##W(const uint8_t *w, const void *x, int64_t nb, float *acc)          \
    {                                                                                              \
        tile(w, x, nb, acc, F_##T, F_##T.blk *R, W);                                               \
    }
#define DECODE(T)                                                                                  \
    static void decode_##T(const uint8_t *w, int64_t nb, uint8_t *out)                             \
    {                                                                                              \
        decode(w, nb, out, F_##T);                                                                 \
    }
#define DEC_TILE(T, W)                                                                             \
    static void decoded_##T##_##W(const uint8_t *w, const void *x, int64_t nb, float *acc)         \
    {                                                                                              \
        tile(w, x, nb, acc, DECODED(F_##T), DECODED_STRIDE(F_##T), W);                             \
    }
#define F32_TILE(T, W)                                                                             \
    static void f32_##T##_##W(const uint8_t *w, const void *x, int64_t n, float *acc)              \
    {                                                                                              \
        tile_f32(w, x, n, acc, PACK_##T, W);                                                       \
    }
#define SIX(M, T) M(T, 1) M(T, 2) M(T, 3) M(T, 4) M(T, 5) M(T, 6)
#if R == 32
#define TWELVE(M, T) SIX(M, T) M(T, 7) M(T, 8) M(T, 9) M(T, 10) M(T, 11) M(T, 12)
#else
#define TWELVE(M, T) SIX(M, T)
#endif

SIX(DIRECT, Q4_0)
SIX(DIRECT, Q4_1)
SIX(DIRECT, Q5_0)
SIX(DIRECT, Q5_1)
SIX(DIRECT, Q8_0)
SIX(DIRECT, Q4_K)
SIX(DIRECT, Q5_K)
SIX(DIRECT, Q6_K)
SIX(DIRECT, Q2_K)
SIX(DIRECT, Q3_K)
TWELVE(F32_TILE, F32)
TWELVE(F32_TILE, F16)
TWELVE(F32_TILE, BF16)
DECODE(Q4_0)
DECODE(Q4_1)
DECODE(Q5_0)
DECODE(Q5_1)
DECODE(Q8_0)
DECODE(Q4_K)
DECODE(Q5_K)
DECODE(Q6_K)
DECODE(Q2_K)
DECODE(Q3_K)
/* One function serves all types of the same sub-block, minimum, zero point and width of codes. */
SIX(DEC_TILE, Q4_0)
SIX(DEC_TILE, Q4_1)
SIX(DEC_TILE, Q5_0)
SIX(DEC_TILE, Q5_1)
SIX(DEC_TILE, Q6_K)
SIX(DEC_TILE, Q2_K)
SIX(DEC_TILE, Q3_K)

#define L6(P, T)                                                                                   \
    {                                                                                              \
        NULL, P##T##_1, P##T##_2, P##T##_3, P##T##_4, P##T##_5, P##T##_6                           \
    }
#if R == 32
#define L12(P, T)                                                                                  \
    {                                                                                              \
        NULL, P##T##_1, P##T##_2, P##T##_3, P##T##_4, P##T##_5, P##T##_6, P##T##_7, P##T##_8,      \
            P##T##_9, P##T##_10, P##T##_11, P##T##_12                                              \
    }
#else
#define L12(P, T) L6(P, T)
#endif

#define MM_TABLE                                                                                   \
    .direct = {[PACK_F32] = L12(f32_, F32),     [PACK_F16] = L12(f32_, F16),                       \
               [PACK_BF16] = L12(f32_, BF16),   [PACK_Q4_0] = L6(direct_, Q4_0),                   \
               [PACK_Q4_1] = L6(direct_, Q4_1), [PACK_Q5_0] = L6(direct_, Q5_0),                   \
               [PACK_Q5_1] = L6(direct_, Q5_1), [PACK_Q8_0] = L6(direct_, Q8_0),                   \
               [PACK_Q4_K] = L6(direct_, Q4_K), [PACK_Q5_K] = L6(direct_, Q5_K),                   \
               [PACK_Q6_K] = L6(direct_, Q6_K), [PACK_Q2_K] = L6(direct_, Q2_K),                   \
               [PACK_Q3_K] = L6(direct_, Q3_K)},                                                   \
    .decode = {[PACK_Q4_0] = decode_Q4_0, [PACK_Q4_1] = decode_Q4_1, [PACK_Q5_0] = decode_Q5_0,    \
               [PACK_Q5_1] = decode_Q5_1, [PACK_Q8_0] = decode_Q8_0, [PACK_Q4_K] = decode_Q4_K,    \
               [PACK_Q5_K] = decode_Q5_K, [PACK_Q6_K] = decode_Q6_K, [PACK_Q2_K] = decode_Q2_K,    \
               [PACK_Q3_K] = decode_Q3_K},                                                         \
    .decoded = {[PACK_Q4_0] = L6(decoded_, Q4_0), [PACK_Q4_1] = L6(decoded_, Q4_1),                \
                [PACK_Q5_0] = L6(decoded_, Q5_0), [PACK_Q5_1] = L6(decoded_, Q5_1),                \
                [PACK_Q4_K] = L6(decoded_, Q4_1), [PACK_Q5_K] = L6(decoded_, Q5_1),                \
                [PACK_Q6_K] = L6(decoded_, Q6_K), [PACK_Q2_K] = L6(decoded_, Q2_K),                \
                [PACK_Q3_K] = L6(decoded_, Q3_K)},                                                 \
    .widen = widen, .widen16 = widen16
