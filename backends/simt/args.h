/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host side hands to kernels: one plain struct each, the same bytes for every compiler.
 * All addresses are device addresses. Includes nothing of ours, so that nvcc and hipcc take it. No
 * bytes of chance between fields (`pad`): gpu/graph.c compares launches byte by byte.
 *
 * Thread: plain values.  Owner: none.
 */
#ifndef HY_SIMT_ARGS_H
#define HY_SIMT_ARGS_H

#include <stdint.h>

/* hy_dtype's numbers (ops.c asserts it). */
enum {
    KT_F32 = 0,
    KT_F16 = 1,
    KT_Q4_0 = 2,
    KT_Q4_1 = 3,
    KT_Q5_0 = 6,
    KT_Q5_1 = 7,
    KT_Q8_0 = 8,
    KT_Q2_K = 10,
    KT_Q3_K = 11,
    KT_Q4_K = 12,
    KT_Q5_K = 13,
    KT_Q6_K = 14,
    KT_IQ4_NL = 20,
    KT_I8 = 24,
    KT_BF16 = 30,
    KT_F8_E4M3 = 64,
    KT_F8_E4M3FNUZ = 65,
};

#define KA_MV_ROWS   8 /* rows of x that the matrix-vector kernels take at once */
#define KA_MV_OUTS   4 /* and outputs of a team, with more than one row */
#define KA_MV_OUTS_I 2 /* of int8 kernels */
#define KA_TILE_M    32
#define KA_TILE_N    64
#define KA_SEG       256 /* positions of an attention split, at absolute multiples */
#define KA_NQ        8   /* queries (rows times heads of one KV head) of an attention block */
#define KA_KV_ROWS   16  /* of kv_write's tile */
#define KA_KV_COLS   64
#define KA_HEAD      512 /* greatest width of a head */
#define KA_MMA_M     64  /* tile of the matrix units */
#define KA_MMA_N     64
#define KA_EXPERTS   512
#define KA_GROUPS    32 /* of experts */

/* Quantised weights lie on the device by planes, so that neighbouring lanes load neighbouring
 * pieces: a row is chunks of 32 groups of 32 codes (the last: its groups, rounded up to 8), a chunk
 * is a plane of codes, one of what else each group has, and one of scales. Rows of any type begin
 * at multiples of 16 bytes. X(type, bytes of codes, of the second plane, of scales, groups that
 * share those): codes: 4 bits of element i and, above, of i + 16; Q2_K, Q3_K: 2 bits of 4 f + i in
 * field f of byte i, a word a half; Q8_0: two planes of 16. Second plane: high bits, one an element
 * (Q6_K: two, as Q2_K's codes); Q2_K: the scales of the group's halves. Scales: as in the file,
 * Q6_K: 16 bytes and d. */
#define KA_EACH_PLANES(X)                                                                          \
    X(KT_Q4_0, 16, 0, 2, 1)                                                                        \
    X(KT_Q4_1, 16, 0, 4, 1)                                                                        \
    X(KT_Q5_0, 16, 4, 2, 1)                                                                        \
    X(KT_Q5_1, 16, 4, 4, 1)                                                                        \
    X(KT_Q8_0, 32, 0, 2, 1)                                                                        \
    X(KT_IQ4_NL, 16, 0, 2, 1)                                                                      \
    X(KT_Q2_K, 8, 2, 4, 8)                                                                         \
    X(KT_Q3_K, 8, 4, 16, 8)                                                                        \
    X(KT_Q4_K, 16, 0, 16, 8)                                                                       \
    X(KT_Q5_K, 16, 4, 16, 8)                                                                       \
    X(KT_Q6_K, 16, 8, 18, 8)
#define KA_CHUNK(code, second, scales, per)                                                        \
    ((32 * ((code) + (second)) + 32 / (per) * (scales) + 15) / 16 * 16)

/* Activations as int8, also by planes: chunks of 32 groups (the last: its groups), each three
 * planes of 16 bytes a group: codes 0-15, codes 16-31, and {d, sum of the first 16, of the others,
 * 0}. value = d * code. */
#define KA_QX_BYTES 48 /* a group */

typedef struct ka_embed {
    const uint8_t *w;
    int64_t w_row; /* bytes */
    const int32_t *ids;
    float *y;
    int64_t ldy;
    int32_t m, k, type;
    float scale;
} ka_embed;

typedef struct ka_norm {
    const float *x;
    float *y;
    const float *w, *b;
    int64_t ldx, ldy;
    int32_t m, dim;
    float eps;
    int32_t pad;
} ka_norm;

typedef struct ka_quant {
    const float *x;
    int64_t ldx;
    uint8_t *out;                /* [m][groups * KA_QX_BYTES] */
    int32_t m, groups, vec, pad; /* vec: as in ka_matmul */
} ka_quant;

/* Places [first, first + n) of a list sorted by expert: what a block takes of one expert. */
typedef struct ka_tile {
    int32_t first, n, expert, pad;
} ka_tile;

typedef struct ka_matmul {
    const uint8_t *w;
    int64_t w_row; /* bytes */
    const float *x;
    int64_t ldx;
    const uint8_t *qx; /* [m][k / 32 * KA_QX_BYTES] in the int8 kernels */
    float *y;
    int64_t ldy;
    const float *bias;
    int32_t m, n, k;
    int32_t vec; /* rows of x begin at multiples of 16 bytes */
    /* experts: blocks along y take tiles; w is ws[expert]; place i reads row from[i] of x, or i */
    const ka_tile *tiles; /* NULL: none of this */
    const int32_t *n_tiles, *from;
    const uint8_t *const *ws;
} ka_matmul;

typedef struct ka_route {
    const float *logits, *bias;
    int64_t ld;
    int32_t *ids;
    float *weights;
    int32_t m, n, k, sigmoid, groups, top_groups, top2, norm;
    float scale;
    int32_t pad;
} ka_route;

typedef struct ka_sort {
    const int32_t *ids; /* [pairs] experts */
    int32_t *from;      /* [pairs] by place: the row */
    int32_t *slot;      /* [pairs]: the place */
    ka_tile *tiles;
    int32_t *n_tiles;
    int32_t pairs, k, n_experts, tile;
} ka_sort;

typedef struct ka_moe_sum {
    const float *x; /* [pairs][dim] by place */
    const int32_t *slot;
    const float *weights;
    float *y;
    int64_t ldy;
    int32_t m, dim, k, pad;
} ka_moe_sum;

/* Rows of a weight as a float type. */
typedef struct ka_decode {
    const uint8_t *w;
    int64_t w_row; /* bytes */
    uint8_t *y;
    int64_t ldy; /* elements */
    int32_t m, k, type, to;
} ka_decode;

typedef struct ka_rope {
    float *x;
    const float *cos, *sin;
    int64_t ld;
    int32_t m, heads, dim, half, pairs; /* pairs: (2i, 2i+1), else (i, i+half) */
    int32_t pad;
} ka_rope;

typedef struct ka_plane {
    int64_t off, head, token, dim;
    int32_t width, pad;
} ka_plane;

/* One layer of a pool. */
typedef struct ka_pool {
    uint8_t *base; /* of the layer in block 0 */
    int64_t block_stride, layer_stride;
    ka_plane k, v;
    int32_t type, value, heads, block_tokens;
} ka_pool;

typedef struct ka_kv_write {
    ka_pool pool;
    const float *k, *v;
    int64_t ldk, ldv;
    const int32_t *block, *pos; /* [n] */
    int32_t n, pad;
} ka_kv_write;

typedef struct ka_attn_item {
    int32_t row, n_rows, seq,
        pos; /* rows of one sequence that follow each other; pos of the first */
} ka_attn_item;

typedef struct ka_attn {
    ka_pool pool;
    const float *q;
    int64_t ldq;
    float *out;
    int64_t ldo;
    const ka_attn_item *items;
    const int32_t *table;
    int64_t stride;
    float *part;    /* NULL: one block folds all segments; else [row][head][segment][v width + 2] */
    int32_t n_segs; /* in part, from seg0 */
    int32_t seg0;
    int32_t heads;
    int32_t per;    /* heads of a KV head in a block */
    int32_t chunks; /* blocks that share a KV head's heads */
    float scale, softcap;
    int32_t window;
} ka_attn;

typedef struct ka_act {
    const float *gate, *up;
    float *y;
    int64_t ldg, ldu, ldy;
    int32_t m, dim, fn, pad; /* fn: hy_act_fn */
} ka_act;

typedef struct ka_add {
    const float *a, *b;
    float *y;
    int64_t lda, ldb, ldy;
    int32_t m, dim;
    float b_scale;
    int32_t pad;
} ka_add;

typedef struct ka_scale {
    float *y;
    int64_t ld;
    int32_t m, n;
    float scale, softcap;
} ka_scale;

typedef struct ka_topk {
    const float *x;
    int64_t ld;
    int32_t m, n, k, pad;
    int32_t *ids;
    float *values;
    float *lse;
} ka_topk;

typedef struct ka_wire {
    ka_pool pool;
    const int32_t *blocks;
    uint8_t *buf;
    float *scales;
    int32_t block0; /* position of blocks[0], in blocks */
    int32_t t0, n, n_layers, head0, n_heads, wire, pad;
} ka_wire;

#endif
