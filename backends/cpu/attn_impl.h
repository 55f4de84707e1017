/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a segment, by 16 lanes: the body of attn_avx2.c and attn_avx512.c. Scores have
 * lanes = positions (K is [dim][token]), outputs lanes = dims; up to 6 queries share every load of
 * K and V. With several rows in the tile the segment is converted to f32 once;
 * K of a cache with its dims side by side is turned on the way.
 *
 * Thread: any (pure but for its scratch).  Owner: none.
 */
#include "backends/cpu/attn.h"
#include "backends/cpu/vec16.h"

#define MAX_Q 6
#ifdef __AVX512F__
#define SCORE_GROUPS(NQ) 4
#define PV_VECS(NQ)      4
#else
#define SCORE_GROUPS(NQ) ((NQ) == 1 ? 4 : (NQ) <= 3 ? 2 : 1)
#define PV_VECS(NQ)      ((NQ) == 1 ? 4 : (NQ) <= 3 ? 2 : 1)
#endif

INL v16 load_kv(const uint8_t *p, const hy_dtype T)
{
    if (T == HY_F32)
        return v_load((const float *)(const void *)p);
    return T == HY_F16 ? v_load_f16(p) : v_load_bf16(p);
}

/* Queries that are handled together. */
typedef struct tile {
    const float *q[MAX_Q];
    float *o[MAX_Q];
    float *score; /* [query][SEG] */
} tile;

/* ---- scores ---- */

/* Blocks lie far apart, in pieces too short for the hardware to foresee the next: while scores of a
 * group are made, its V and the K of a later group are asked for. */
INL void fetch_of(const cpu_attn_seg *s, int g, const uint8_t *other, const uint8_t **k,
                  const uint8_t **v)
{
    const uint8_t *next = g + 4 < CPU_SEG_GRPS ? s->k[g + 4] : NULL;
    *k = next != NULL ? next : other;
    *v = s->v[g];
}

INL void score_groups(const cpu_attn_seg *s, const tile *t, int g, const hy_dtype T, const int NQ,
                      const int NB)
{
    v16 a[MAX_Q][4];
    UNROLL(6)
    for (int i = 0; i < NQ; i++) {
        UNROLL(4)
        for (int b = 0; b < NB; b++)
            a[i][b] = v_zero();
    }
    const uint8_t *k[4], *kn[4], *vn[4];
    UNROLL(4)
    for (int b = 0; b < NB; b++) {
        k[b] = s->k[g + b];
        fetch_of(s, g + b, k[b], &kn[b], &vn[b]);
    }
    for (int d = 0; d < s->k_dim; d++) {
        v16 kv[4];
        if (s->from_memory) {
            UNROLL(4)
            for (int b = 0; b < NB; b++)
                _mm_prefetch((const char *)(d % 2 == 0 ? kn[b] : vn[b]) + d / 2 * 64, _MM_HINT_T1);
        }
        UNROLL(4)
        for (int b = 0; b < NB; b++) {
            kv[b] = load_kv(k[b], T);
            k[b] += s->k_step;
        }
        UNROLL(6)
        for (int i = 0; i < NQ; i++) {
            v16 q = v_set1(t->q[i][d]);
            UNROLL(4)
            for (int b = 0; b < NB; b++)
                a[i][b] = v_fma(q, kv[b], a[i][b]);
        }
    }
    UNROLL(6)
    for (int i = 0; i < NQ; i++) {
        UNROLL(4)
        for (int b = 0; b < NB; b++)
            v_store(t->score + i * CPU_SEG + (g + b) * 16, a[i][b]);
    }
}

/* Scores of groups g0..g1. */
INL void scores(const cpu_attn_seg *s, const tile *t, int g0, int g1, const hy_dtype T,
                const int NQ)
{
    int g = g0;
    for (; g + SCORE_GROUPS(NQ) <= g1; g += SCORE_GROUPS(NQ))
        score_groups(s, t, g, T, NQ, SCORE_GROUPS(NQ));
    for (; g < g1; g++)
        score_groups(s, t, g, T, NQ, 1);
}

/* Lanes of group g that lie in a..b. */
INL m16 visible(int g, int a, int b)
{
    int lo = a - g * 16, hi = b - g * 16 + 1;
    return lo > 0 ? v_and(v_notfirst(lo), v_first(hi)) : v_first(hi);
}

/* Scores a..b to weights; zero elsewhere in their groups. Maximum and sum go behind the output. */
static void softmax(const cpu_attn_seg *s, float *score, int a, int b, float *o)
{
    int g0 = a / 16, g1 = b / 16 + 1;
    v16 m = v_set1(-INFINITY), l = v_zero(), scale = v_set1(s->scale), cap = v_set1(s->softcap);
    for (int g = g0; g < g1; g++) {
        v16 v = v_mul(v_load(score + g * 16), scale);
        if (s->softcap != 0.0f)
            v = v_mul(cap, v_tanh(v_div(v, cap)));
        if (g == g0 || g == g1 - 1)
            v = v_sel(visible(g, a, b), v, v_set1(-INFINITY));
        v_store(score + g * 16, v);
        m = v_max(v, m);
    }
    float max = v_tree_max(m);
    m = v_set1(max);
    for (int g = g0; g < g1; g++) {
        v16 p = v_exp(v_sub(v_load(score + g * 16), m));
        if (g == g0 || g == g1 - 1) /* also when the maximum is -inf and p is NaN */
            p = v_sel(visible(g, a, b), p, v_zero());
        v_store(score + g * 16, p);
        l = v_add(l, p);
    }
    o[s->v_dim] = max;
    o[s->v_dim + 1] = v_tree_sum(l);
}

/* ---- weighted sums of V ---- */

INL void sum_dims(const cpu_attn_seg *s, const tile *t, int a, int b, int d, const hy_dtype T,
                  const int NQ, const int NV)
{
    const int elem = T == HY_F32 ? 4 : 2;
    v16 o[MAX_Q][4];
    UNROLL(6)
    for (int i = 0; i < NQ; i++) {
        UNROLL(4)
        for (int j = 0; j < NV; j++)
            o[i][j] = v_load(t->o[i] + d + 16 * j);
    }
    for (int at = a; at <= b;) {
        int end = at / 16 * 16 + 15;
        end = end < b ? end : b;
        const uint8_t *v = s->v[at / 16] + at % 16 * s->v_step + d * elem;
        const float *p = t->score + at;
        for (; at <= end; at++, v += s->v_step, p++) {
            v16 x[4];
            UNROLL(4)
            for (int j = 0; j < NV; j++)
                x[j] = load_kv(v + 16 * j * elem, T);
            UNROLL(6)
            for (int i = 0; i < NQ; i++) {
                v16 w = v_set1(p[i * CPU_SEG]);
                UNROLL(4)
                for (int j = 0; j < NV; j++)
                    o[i][j] = v_fma(w, x[j], o[i][j]);
            }
        }
    }
    UNROLL(6)
    for (int i = 0; i < NQ; i++) {
        UNROLL(4)
        for (int j = 0; j < NV; j++)
            v_store(t->o[i] + d + 16 * j, o[i][j]);
    }
}

INL void sum_v(const cpu_attn_seg *s, const tile *t, int a, int b, const hy_dtype T, const int NQ)
{
    int d = 0;
    for (; d + 16 * PV_VECS(NQ) <= s->v_dim; d += 16 * PV_VECS(NQ))
        sum_dims(s, t, a, b, d, T, NQ, PV_VECS(NQ));
    for (; d < s->v_dim; d += 16)
        sum_dims(s, t, a, b, d, T, NQ, 1);
}

/* ---- by type and number of queries ---- */

typedef void (*score_fn)(const cpu_attn_seg *s, const tile *t, int g0, int g1);
typedef void (*sum_fn)(const cpu_attn_seg *s, const tile *t, int a, int b);

#define FNS(T, NQ)                                                                                 \
    static void score_##T##_##NQ(const cpu_attn_seg *s, const tile *t, int g0, int g1)             \
    {                                                                                              \
        scores(s, t, g0, g1, HY_##T, NQ);                                                          \
    }                                                                                              \
    static void sum_##T##_##NQ(const cpu_attn_seg *s, const tile *t, int a, int b)                 \
    {                                                                                              \
        sum_v(s, t, a, b, HY_##T, NQ);                                                             \
    }
#define SIX(T) FNS(T, 1) FNS(T, 2) FNS(T, 3) FNS(T, 4) FNS(T, 5) FNS(T, 6)
SIX(F32)
SIX(F16)
SIX(BF16)
#define L6(P, T)                                                                                   \
    {                                                                                              \
        NULL, P##T##_1, P##T##_2, P##T##_3, P##T##_4, P##T##_5, P##T##_6                           \
    }
static const score_fn score_fns[3][MAX_Q + 1] = {L6(score_, F32), L6(score_, F16),
                                                 L6(score_, BF16)};
static const sum_fn sum_fns[3][MAX_Q + 1] = {L6(sum_, F32), L6(sum_, F16), L6(sum_, BF16)};

INL int type_at(hy_dtype t)
{
    return t == HY_F32 ? 0 : t == HY_F16 ? 1 : 2;
}

/* ---- a segment ---- */

INL v16 load_any(const uint8_t *p, hy_dtype t)
{
    return t == HY_F32   ? load_kv(p, HY_F32)
           : t == HY_F16 ? load_kv(p, HY_F16)
                         : load_kv(p, HY_BF16);
}

/* 8 rows of 8 floats, 16 apart, to columns. */
INL void turn8(const float *x, float *y)
{
    __m256 a[8], b[8];
    UNROLL(8)
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_load_ps(x + 16 * i);
    UNROLL(4)
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    UNROLL(2)
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    UNROLL(4)
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(y + 16 * i, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(y + 16 * (i + 4), _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

/* K of 16 positions to f32 as [dim][token]. */
static void widen_keys(const cpu_attn_seg *s, const uint8_t *p, float *k)
{
    if (s->k_token == hy_dtype_get(s->k_type)->bytes) {
        for (int d = 0; d < s->k_dim; d++)
            v_store(k + 16 * d, load_any(p + d * s->k_step, s->k_type));
        return;
    }
    for (int d = 0; d < s->k_dim; d += 16, k += 256, p += 16 * s->k_step) {
        _Alignas(64) float x[256];
        for (int t = 0; t < 16; t++)
            v_store(x + 16 * t, load_any(p + t * s->k_token, s->k_type));
        turn8(x, k);
        turn8(x + 8, k + 128);
        turn8(x + 128, k + 8);
        turn8(x + 136, k + 136);
    }
}

/* Copies the groups in use to f32 and points s at them; V only with `values`. */
static void widen_segment(cpu_attn_seg *s, bool values)
{
    float *k = s->wide, *v = s->wide + (size_t)CPU_SEG * CPU_ATTN_WIDE;
    for (int g = 0; g < CPU_SEG_GRPS; g++, k += 16 * s->k_dim, v += 16 * s->v_dim) {
        if (s->k[g] == NULL)
            continue;
        const uint8_t *kn, *vn;
        fetch_of(s, g, s->k[g], &kn, &vn);
        for (int i = 0; i < 32 * s->k_dim; i += 64) {
            _mm_prefetch((const char *)kn + i, _MM_HINT_T1);
            _mm_prefetch((const char *)vn + i, _MM_HINT_T1);
        }
        widen_keys(s, s->k[g], k);
        s->k[g] = (const uint8_t *)k;
        if (!values)
            continue;
        for (int t = 0; t < 16; t++) {
            const uint8_t *p = s->v[g] + t * s->v_step;
            int elem = hy_dtype_get(s->v_type)->bytes;
            for (int d = 0; d < s->v_dim; d += 16)
                v_store(v + t * s->v_dim + d, load_any(p + d * elem, s->v_type));
        }
        s->v[g] = (const uint8_t *)v;
    }
    s->k_step = 64;
    s->k_type = HY_F32;
    s->from_memory = false;
    if (values) {
        s->v_step = (int64_t)s->v_dim * 4;
        s->v_type = HY_F32;
    }
}

/* Rows r0..r1, heads h0..h1: at most MAX_Q queries. */
static void queries(const cpu_attn_seg *s, int r0, int r1, int h0, int h1)
{
    int kt = type_at(s->k_type), vt = type_at(s->v_type), per = h1 - h0, n = 0;
    int a[MAX_Q], b[MAX_Q], all_a = 0, all_b = CPU_SEG - 1, min_a = CPU_SEG, max_b = -1;
    tile t = {.score = s->score};
    for (int r = r0; r < r1; r++) {
        if (!cpu_attn_range(s, r, &a[n / per], &b[n / per]))
            continue; /* the window has passed, or it is yet to come */
        int lo = a[n / per], hi = b[n / per];
        all_a = lo > all_a ? lo : all_a;
        all_b = hi < all_b ? hi : all_b;
        min_a = lo < min_a ? lo : min_a;
        max_b = hi > max_b ? hi : max_b;
        for (int h = h0; h < h1; h++, n++) {
            t.q[n] = s->q + r * s->ldq + (int64_t)h * s->k_dim;
            t.o[n] = s->part + (int64_t)(r * s->group + h) * s->part_step;
        }
    }
    if (n == 0)
        return;
    score_fns[kt][n](s, &t, min_a / 16, max_b / 16 + 1);
    for (int i = 0; i < n; i++) {
        memset(t.o[i], 0, (size_t)s->v_dim * sizeof(float));
        softmax(s, t.score + i * CPU_SEG, a[i / per], b[i / per], t.o[i]);
    }
    /* What all rows see goes together; before and after it, each row has its own positions. */
    if (all_a > all_b)
        all_a = CPU_SEG, all_b = CPU_SEG - 1;
    for (int after = 0; after <= 1; after++) {
        for (int i = 0; i < n; i += per) {
            int lo = after ? all_b + 1 : a[i / per], hi = after ? b[i / per] : all_a - 1;
            lo = lo > a[i / per] ? lo : a[i / per];
            hi = hi < b[i / per] ? hi : b[i / per];
            if (lo > hi)
                continue;
            tile one = {.score = t.score + i * CPU_SEG};
            memcpy(one.o, t.o + i, (size_t)per * sizeof(one.o[0]));
            sum_fns[vt][per](s, &one, lo, hi);
        }
        if (!after && all_a <= all_b)
            sum_fns[vt][n](s, &t, all_a, all_b);
    }
}

static void segment(const cpu_attn_seg *in)
{
    cpu_attn_seg s = *in;
    int heads = (s.group + MAX_Q - 1) / MAX_Q; /* pieces of a row's heads */
    int per = (s.group + heads - 1) / heads, rows = heads == 1 ? MAX_Q / s.group : 1;
    bool fits = s.k_dim <= CPU_ATTN_WIDE && s.v_dim <= CPU_ATTN_WIDE;
    bool all = s.all_wide && fits && s.k_type != HY_F32;
    if (all || s.k_token != hy_dtype_get(s.k_type)->bytes)
        widen_segment(&s, all);
    for (int r = 0; r < s.rows; r += rows) {
        int r1 = r + rows < s.rows ? r + rows : s.rows;
        for (int h = 0; h < s.group; h += per)
            queries(&s, r, r1, h, h + per < s.group ? h + per : s.group);
    }
}

static void combine(const float *part, int64_t step, int n, int v_dim, float *out)
{
    float max = -INFINITY, sum = 0.0f;
    for (int i = 0; i < n; i++) {
        float m = part[i * step + v_dim];
        max = m > max ? m : max;
    }
    for (int d = 0; d < v_dim; d += 16)
        v_store(out + d, v_zero());
    for (int i = 0; i < n; i++) {
        const float *p = part + i * step;
        float lane[16];
        v_store(lane, v_exp(v_sub(v_set1(p[v_dim]), v_set1(max))));
        sum = fmaf(p[v_dim + 1], lane[0], sum);
        v16 e = v_set1(lane[0]);
        for (int d = 0; d < v_dim; d += 16)
            v_store(out + d, v_fma(v_load(p + d), e, v_load(out + d)));
    }
    v16 inv = v_set1(1.0f / sum);
    for (int d = 0; d < v_dim; d += 16)
        v_store(out + d, v_mul(v_load(out + d), inv));
}
