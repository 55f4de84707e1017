/* SPDX-License-Identifier: Apache-2.0
 *
 * Fast packing of the cache: the wire is made of tiles (one plane and head, up to 16 tokens of one
 * block), and each instruction set has a kernel for a tile each way. On one thread: pieces are
 * small, and the pool belongs to the step that runs meanwhile; several queues pack in parallel.
 *
 * Thread: a queue's owner.  Owner: none.
 */
#ifndef HY_CPU_KV_H
#define HY_CPU_KV_H

#include "backends/cpu/cpu_int.h"

typedef struct cpu_kv_tile {
    uint8_t *cache;     /* first token's first dim */
    int64_t token, dim; /* its strides in bytes */
    uint8_t *wire;      /* [m][width], rows wire_ld bytes apart */
    int64_t wire_ld;
    float *scales;    /* [m]; NULL when not quantised */
    int32_t m, width; /* 1..16 tokens */
    int32_t n;        /* such tiles, without scales: */
    int64_t cache_next, wire_next;
    hy_dtype value, type, w;
    float *rows;  /* scratch [16][cpu_kv_ld(width)] */
    uint8_t *alt; /* the same size again */
} cpu_kv_tile;

static inline int64_t cpu_kv_ld(int32_t width)
{
    return ((int64_t)width + 15) & ~(int64_t)15;
}

typedef struct cpu_kv_kern {
    void (*pack)(const cpu_kv_tile *t);
    void (*unpack)(const cpu_kv_tile *t);
    void (*settle)(void); /* after unpacking: others see all of it before what is told next */
    /* n values to codes of a quantised type, multiplied by inv first; and back. */
    void (*quantise)(const float *x, int64_t n, float inv, hy_dtype t, uint8_t *out);
    void (*dequantise)(const uint8_t *x, int64_t n, float scale, hy_dtype t, float *out);
} cpu_kv_kern;

extern const cpu_kv_kern cpu_kv_avx2, cpu_kv_avx512;

hy_status cpu_fast_kv_pack(hy_queue *q, const hy_kv_copy *a);
hy_status cpu_fast_kv_unpack(hy_queue *q, const hy_kv_copy *a);

#endif
