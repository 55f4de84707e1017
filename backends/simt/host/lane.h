/* SPDX-License-Identifier: Apache-2.0
 *
 * The dialect on a CPU: a lane is a fibre, a block is a set of fibres on one thread, and whatever
 * waits for other lanes switches to one of them. Included by dialect.h alone.
 *
 * With SIMT_CHECK every access to shared memory is checked: inside its array, written before it is
 * read, and no other lane's access in the same barrier interval unless both read.
 *
 * Thread: code of a kernel.  Owner: none.
 */
#ifndef HY_SIMT_HOST_LANE_H
#define HY_SIMT_HOST_LANE_H

#include <stddef.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

typedef struct simt_lane {
    int32_t tid;
    int32_t bx, by, bz;
    int32_t wave;  /* width */
    int32_t stack; /* while it waits */
    struct simt_block *block;
    void *sp; /* where it goes on, while it waits */
} simt_lane;

/* The lane that runs on this thread. */
extern _Thread_local simt_lane *simt_me;

/* Element's last accesses, in barrier intervals (0: none). */
typedef struct simt_shadow {
    uint32_t wrote, read;
    int16_t writer, reader; /* reader -1: several lanes */
} simt_shadow;

typedef enum simt_op {
    SIMT_XOR,    /* the value of lane ^ arg */
    SIMT_LANE,   /* the value of lane arg of the team */
    SIMT_BALLOT, /* bits of the team's values */
    SIMT_SUM32,
    SIMT_SUM64, /* f64 */
    SIMT_MAX32,
    SIMT_MAXU64,
    SIMT_MMA,
} simt_op;

void simt_barrier(const char *file, int line);
uint64_t simt_team(simt_op op, uint64_t v, int arg, const char *file, int line);
/* c += a b, with fragments as in mma.h: sums in ascending k by fma. */
void simt_mma(float c[4], const uint32_t a[4], const uint32_t b[2], int f16, const char *file,
              int line);
/* The block's array of this key; made by the first lane that asks. */
void *simt_shared(const char *key, uint32_t n, uint32_t size, const char *name, simt_shadow **sh);
/* An access to device memory: fails when its address is no multiple of its size, and counts. */
void simt_touch(const void *p, size_t bytes, int write, const char *file, int line);
void simt_check_read(simt_shadow *s, uint32_t n, int64_t i, const char *what, const char *file,
                     int line);
void simt_check_write(simt_shadow *s, uint32_t n, int64_t i, const char *what, const char *file,
                      int line);

#define HY_KERNEL(name, threads, T, a)                                                             \
    static void name##_lane(const T a);                                                            \
    static void name(const void *p)                                                                \
    {                                                                                              \
        T args;                                                                                    \
        memcpy(&args, p, sizeof(args));                                                            \
        name##_lane(args);                                                                         \
    }                                                                                              \
    enum { name##_bytes = sizeof(T) };                                                             \
    static void name##_lane(const T a)
#define HY_DEV       static inline __attribute__((always_inline, unused))
#define HY_CONST     static const
#define HY_UNROLL    /* the compiler decides */
#define HY_TID       (simt_me->tid)
#define HY_BX        (simt_me->bx)
#define HY_BY        (simt_me->by)
#define HY_BZ        (simt_me->bz)
#define HY_WAVE      (simt_me->wave)
#define HY_BARRIER() simt_barrier(__FILE__, __LINE__)

#define SIMT_SHARED_OF(T)                                                                          \
    typedef struct simt_sh_##T {                                                                   \
        T *p;                                                                                      \
        simt_shadow *shadow;                                                                       \
        uint32_t n;                                                                                \
    } simt_sh_##T;
SIMT_SHARED_OF(float)
SIMT_SHARED_OF(double)
SIMT_SHARED_OF(int32_t)
SIMT_SHARED_OF(uint32_t)
SIMT_SHARED_OF(uint64_t)

#define HY_SH(T) const simt_sh_##T /* as a parameter */
#define HY_SHARED(T, t, count)                                                                     \
    static const char t##_key = 0;                                                                 \
    simt_sh_##T t = {NULL, NULL, (count)};                                                         \
    t.p = (T *)simt_shared(&t##_key, (count), sizeof(T), #t, &t.shadow)

#ifdef SIMT_CHECK
#define HY_LD(p)     (*(simt_touch((p), sizeof(*(p)), 0, __FILE__, __LINE__), (p)))
#define HY_ST(p, v)  (simt_touch((p), sizeof(*(p)), 1, __FILE__, __LINE__), *(p) = (v))
#define SH_GET(t, i) (*(simt_check_read((t).shadow, (t).n, (i), #t, __FILE__, __LINE__), &(t).p[i]))
#define SH_PUT(t, i, v)                                                                            \
    (simt_check_write((t).shadow, (t).n, (i), #t, __FILE__, __LINE__), (t).p[i] = (v))
#else
#define HY_LD(p)        (*(p))
#define HY_ST(p, v)     (*(p) = (v))
#define SH_GET(t, i)    ((t).p[i])
#define SH_PUT(t, i, v) ((t).p[i] = (v))
#endif

HY_DEV uint64_t simt_of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

HY_DEV float simt_to_f32(uint64_t v)
{
    uint32_t u = (uint32_t)v;
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

HY_DEV uint64_t simt_of_f64(double f)
{
    uint64_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

HY_DEV double simt_to_f64(uint64_t u)
{
    double f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Macros, so that the line is the caller's. */
#define SIMT_AT                  __FILE__, __LINE__
#define hy_shfl_xor_f32(v, mask) simt_to_f32(simt_team(SIMT_XOR, simt_of_f32(v), (mask), SIMT_AT))
#define hy_shfl_u32(v, lane)     ((uint32_t)simt_team(SIMT_LANE, (v), (lane), SIMT_AT))
#define hy_team_sum(v)           simt_to_f32(simt_team(SIMT_SUM32, simt_of_f32(v), 0, SIMT_AT))
#define hy_team_sum_f64(v)       simt_to_f64(simt_team(SIMT_SUM64, simt_of_f64(v), 0, SIMT_AT))
#define hy_team_max(v)           simt_to_f32(simt_team(SIMT_MAX32, simt_of_f32(v), 0, SIMT_AT))
#define hy_team_max_u64(v)       simt_team(SIMT_MAXU64, (v), 0, SIMT_AT)
#define hy_team_ballot(p)        ((uint32_t)simt_team(SIMT_BALLOT, (p) != 0, 0, SIMT_AT))

HY_DEV uint32_t hy_atomic_add_u32(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

HY_DEV int32_t hy_atomic_max_i32(int32_t *p, int32_t v)
{
    int32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < v &&
           !__atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

/* c + the sixteen products of signed bytes. */
HY_DEV int32_t hy_dot16(const uint32_t a[4], const uint32_t b[4], int32_t c)
{
#ifdef __AVX2__
    const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)a));
    const __m256i y = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)b));
    const __m256i p = _mm256_madd_epi16(x, y);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(p), _mm256_extracti128_si256(p, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return c + _mm_cvtsi128_si32(s);
#else
    for (int i = 0; i < 128; i += 8)
        c += (int32_t)(int8_t)(a[i / 32] >> i % 32) * (int32_t)(int8_t)(b[i / 32] >> i % 32);
    return c;
#endif
}

/* Exact, and round to nearest even: as hal/dtype.c. */
HY_DEV float hy_h2f(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = h >> 10 & 0x1fu, man = h & 0x3ffu;
    if (exp == 31)
        return simt_to_f32(sign | 0x7f800000u | man << 13 | (man != 0 ? 0x400000u : 0));
    if (exp == 0)
        return simt_to_f32(sign | simt_of_f32((float)man * 0x1p-24f));
    return simt_to_f32(sign | (exp + 112) << 23 | man << 13);
}

HY_DEV uint16_t hy_f2h(float f)
{
    uint32_t u = (uint32_t)simt_of_f32(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u)
        return (uint16_t)(sign | ((uint32_t)simt_of_f32(simt_to_f32(a) + 0.5f) - 0x3f000000u));
    a += 0xfffu + (a >> 13 & 1u);
    return (uint16_t)(sign | ((a >> 13) - (112u << 10)));
}

#endif
