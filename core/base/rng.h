/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers, always seeded. Two kinds:
 * - hy_rng, a sequence (SplitMix64: Steele, Lea, Flood, OOPSLA 2014) for tests, the virtual
 *   scheduler, back-off;
 * - counter-based (Philox4x32-10: Salmon et al., SC 2011) for sampling: the number depends on
 *   (seed, choice, position, draw) alone, so that a request may move between nodes.
 * Both are part of what we promise: the same seed gives the same numbers in every version.
 *
 * Thread: one hy_rng, one thread at a time; the _at functions are pure.  Owner: plain values.
 */
#ifndef HY_BASE_RNG_H
#define HY_BASE_RNG_H

#include <stdint.h>

typedef struct hy_rng {
    uint64_t state;
} hy_rng;

void hy_rng_init(hy_rng *r, uint64_t seed);
uint64_t hy_rng_u64(hy_rng *r);
/* Uniform in 0..n-1, without modulo bias; n > 0. */
uint64_t hy_rng_below(hy_rng *r, uint64_t n);
/* Uniform in [0, 1), 53 bits. */
double hy_rng_f64(hy_rng *r);

/* a: choice (of n > 1), b: position in the sequence, c: which draw at that position. */
uint64_t hy_rng_u64_at(uint64_t seed, uint32_t a, uint64_t b, uint32_t c);
/* Uniform in [0, 1), 53 bits. */
double hy_rng_f64_at(uint64_t seed, uint32_t a, uint64_t b, uint32_t c);
/* The block function itself: 4 words of counter and 2 of key give 4 words. */
void hy_rng_philox(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);

/* A seed from the operating system, for requests that gave none. */
uint64_t hy_rng_entropy(void);

#endif
