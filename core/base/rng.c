/* SPDX-License-Identifier: Apache-2.0
 *
 * SplitMix64 and Philox4x32-10, from their papers.
 *
 * Thread: pure, but for the state passed in.  Owner: nothing kept.
 */
#include "core/base/rng.h"
#include "core/base/status.h"

#include <sys/random.h>
#include <time.h>

void hy_rng_init(hy_rng *r, uint64_t seed)
{
    r->state = seed;
}

uint64_t hy_rng_u64(hy_rng *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t hy_rng_below(hy_rng *r, uint64_t n)
{
    HY_ASSERT(n > 0);
    /* 2^64 mod n values at the bottom would make small results likelier: draw again */
    uint64_t skip = (0 - n) % n;
    uint64_t x;
    do
        x = hy_rng_u64(r);
    while (x < skip);
    return x % n;
}

static double to_f64(uint64_t x)
{
    return (double)(x >> 11) * 0x1p-53;
}

double hy_rng_f64(hy_rng *r)
{
    return to_f64(hy_rng_u64(r));
}

void hy_rng_philox(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0;
        uint64_t p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t hy_rng_u64_at(uint64_t seed, uint32_t a, uint64_t b, uint32_t c)
{
    const uint32_t ctr[4] = {a, (uint32_t)b, (uint32_t)(b >> 32), c};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    hy_rng_philox(ctr, key, out);
    return (uint64_t)out[1] << 32 | out[0];
}

double hy_rng_f64_at(uint64_t seed, uint32_t a, uint64_t b, uint32_t c)
{
    return to_f64(hy_rng_u64_at(seed, a, b, c));
}

uint64_t hy_rng_entropy(void)
{
    uint64_t x;
    if (getrandom(&x, sizeof(x), 0) == (ssize_t)sizeof(x))
        return x;
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    hy_rng r = {(uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec};
    return hy_rng_u64(&r);
}
