/* SPDX-License-Identifier: Apache-2.0
 *
 * The dialect in CUDA and HIP. Included by dialect.h alone.
 *
 * Thread: device code.  Owner: none.
 */
#ifndef HY_SIMT_DIALECT_GPU_H
#define HY_SIMT_DIALECT_GPU_H

#if defined(__HIPCC__) && !defined(__CUDACC__)
#include <hip/hip_runtime.h>
#endif

#define HY_KERNEL(name, threads, T, a)                                                             \
    extern "C" __global__ void __launch_bounds__(threads) name(const T a)
#define HY_DEV             static __device__ __forceinline__
#define HY_CONST           static __device__ const
#define HY_UNROLL          _Pragma("unroll")
#define HY_M_FN            static __device__ __forceinline__ /* hal/fmath.h */
#define HY_TID             ((int)threadIdx.x)
#define HY_BX              ((int)blockIdx.x)
#define HY_BY              ((int)blockIdx.y)
#define HY_BZ              ((int)blockIdx.z)
#define HY_WAVE            ((int)warpSize)
#define HY_BARRIER()       __syncthreads()
#define HY_SHARED(T, t, n) __shared__ T t[n]
#define HY_SH(T)           T * /* as a parameter */
#define SH_GET(t, i)       ((t)[i])
#define SH_PUT(t, i, v)    ((t)[i] = (v))

#define HY_LD(p)    (*(p))
#define HY_ST(p, v) (*(p) = (v))

#if defined(__CUDACC__)
#define HY_SHFL_XOR_(v, m) __shfl_xor_sync(0xffffffffu, (v), (m), 32)
#define HY_SHFL_(v, l)     __shfl_sync(0xffffffffu, (v), (l), 32)
#else
#define HY_SHFL_XOR_(v, m) __shfl_xor((v), (m), 32)
#define HY_SHFL_(v, l)     __shfl((v), (l), 32)
#endif

HY_DEV float hy_shfl_xor_f32(float v, int mask)
{
    return HY_SHFL_XOR_(v, mask);
}

HY_DEV uint32_t hy_shfl_u32(uint32_t v, int lane)
{
    return HY_SHFL_(v, lane);
}

/* By pairs, then pairs of pairs: all lanes hold the same bits, because x + y is y + x. */
HY_DEV float hy_team_sum(float v)
{
    HY_UNROLL
    for (int m = 1; m < 32; m *= 2)
        v += HY_SHFL_XOR_(v, m);
    return v;
}

HY_DEV double hy_team_sum_f64(double v)
{
    HY_UNROLL
    for (int m = 1; m < 32; m *= 2)
        v += HY_SHFL_XOR_(v, m);
    return v;
}

HY_DEV float hy_team_max(float v)
{
    HY_UNROLL
    for (int m = 1; m < 32; m *= 2) {
        float o = HY_SHFL_XOR_(v, m);
        v = o > v ? o : v;
    }
    return v;
}

HY_DEV uint64_t hy_team_max_u64(uint64_t v)
{
    HY_UNROLL
    for (int m = 1; m < 32; m *= 2) {
        uint64_t o = HY_SHFL_XOR_((unsigned long long)v, m);
        v = o > v ? o : v;
    }
    return v;
}

HY_DEV uint32_t hy_team_ballot(int p)
{
#if defined(__CUDACC__)
    return __ballot_sync(0xffffffffu, p);
#else
    return (uint32_t)(__ballot(p) >> (threadIdx.x % warpSize / 32 * 32));
#endif
}

HY_DEV uint32_t hy_atomic_add_u32(uint32_t *p, uint32_t v)
{
    return atomicAdd(p, v);
}

HY_DEV int32_t hy_atomic_max_i32(int32_t *p, int32_t v)
{
    return atomicMax(p, v);
}

/* c + the four products of signed bytes. */
HY_DEV int32_t hy_dp4a_(uint32_t a, uint32_t b, int32_t c)
{
#if defined(__CUDACC__)
    return __dp4a((int)a, (int)b, c);
#else
    HY_UNROLL
    for (int i = 0; i < 32; i += 8)
        c += (int32_t)(int8_t)(a >> i) * (int32_t)(int8_t)(b >> i);
    return c;
#endif
}

/* c + the sixteen. */
HY_DEV int32_t hy_dot16(const uint32_t a[4], const uint32_t b[4], int32_t c)
{
    HY_UNROLL
    for (int i = 0; i < 4; i++)
        c = hy_dp4a_(a[i], b[i], c);
    return c;
}

HY_DEV float hy_h2f(uint16_t h)
{
#if defined(__CUDACC__)
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
#else
    _Float16 x;
    memcpy(&x, &h, sizeof(x));
    return (float)x;
#endif
}

HY_DEV uint16_t hy_f2h(float f)
{
    uint16_t h;
#if defined(__CUDACC__)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
#else
    _Float16 x = (_Float16)f;
    memcpy(&h, &x, sizeof(h));
#endif
    return h;
}

#endif
