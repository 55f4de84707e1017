/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fast half of the cpu backend shares: packed weights, panels of activations, and the
 * table of kernels that each instruction set fills.
 *
 * A packed weight is a row of strips. A strip holds R output rows (32 with AVX-512, 16 with AVX2;
 * missing rows are zeros) so that vector lanes are output rows and a chain over k needs no
 * horizontal sum. Along k it is a row of blocks of 32 columns, each with its codes in planes and
 * its scales beside them:
 *     nib  16 B a row: [4][R][4], byte = code of k 4g+i | code of k 16+4g+i << 4
 *     b2    8 B a row: [2][R][4], byte = two bits of groups g, g+2, g+4, g+6 (a group is 4 k)
 *     b1    4 B a row: [R][4], bit g of byte i = one bit of k 4g+i
 *     b8   32 B a row: [8][R][4], whole codes
 *     scales: f16 d[R] (and f16 m[R]); K types: u8 or i8 sc[subs][R] (and u8 m[subs][R])
 * K types put f16 d[R] (and f16 dmin[R]) before every 8 blocks. F32: [k][R]; F16, BF16: [k][R].
 *
 * Codes are stored unsigned, raised by 1 << zero; the kernels subtract it through the activations'
 * sums, in exact integers. (b8 is signed with AVX2, which multiplies by sign and magnitude.)
 *
 * Thread: constant tables.  Owner: cpu_weight owns its packed memory.
 */
#ifndef HY_CPU_FAST_INT_H
#define HY_CPU_FAST_INT_H

#include "backends/cpu/cpu_int.h"
#include "backends/cpu/pool.h"
#include "hal/quant.h"

#define CPU_MAX_R 32
/* Columns (rows of x) of a tile: int8 and f32. */
#define CPU_TILE_I8  6
#define CPU_TILE_F32 12

typedef enum cpu_pack {
    PACK_NONE = 0,
    PACK_F32,
    PACK_F16,
    PACK_BF16,
    PACK_Q4_0,
    PACK_Q4_1,
    PACK_Q5_0,
    PACK_Q5_1,
    PACK_Q8_0,
    PACK_Q4_K,
    PACK_Q5_K,
    PACK_Q6_K,
    PACK_Q2_K,
    PACK_Q3_K,
    PACK_COUNT
} cpu_pack;

typedef enum cpu_scale {
    SCALE_NONE,
    SCALE_D,  /* f16 d a block */
    SCALE_DM, /* f16 d, m a block */
    SCALE_K,  /* f16 d, dmin a 256; u8 sc, m a sub-block */
    SCALE_K6, /* f16 d a 256; i8 sc a sub-block */
} cpu_scale;

typedef struct cpu_fmt {
    uint8_t nib, b2, b1, b8; /* planes present */
    uint8_t sub;             /* codes a scale: 32, 16 */
    uint8_t zero;            /* codes are raised by 1 << zero; 0: not at all */
    uint8_t bits;            /* of a raised code */
    bool min;
    cpu_scale scale;
    uint16_t hdr; /* bytes a row before every 8 blocks */
    uint16_t blk; /* bytes a row of a block */
} cpu_fmt;

extern const cpu_fmt cpu_fmts[PACK_COUNT];
cpu_pack cpu_pack_of(hy_dtype t);
/* Bytes of one strip of R rows of k columns. */
size_t cpu_strip_bytes(cpu_pack f, int R, int64_t k);
/* First byte of block b of a strip (quantised); of its 256-group's header when b % 8 == 0. */
static inline size_t cpu_block_off(const cpu_fmt *f, int R, int64_t b)
{
    return (size_t)R * (size_t)(b / 8 * f->hdr + b * f->blk);
}

/* Fills one strip from n <= R rows of file format. */
void cpu_pack_strip(cpu_pack f, hy_dtype t, int R, bool signed8, const uint8_t *rows,
                    size_t row_bytes, int n, int64_t k, uint8_t *out);
/* One row of a strip to f32, the bits of hy_dtype_decode. */
void cpu_unpack_row(cpu_pack f, int R, bool signed8, const uint8_t *strip, int row, int64_t k,
                    float *out);

/* ---- panels: activations, cut into tiles of columns ----
 * A tile of w columns holds, for every 32 k:
 *     int8, sub 32: q[8][w] (4 codes a word), d[w], -sum[w], d*sum[w]
 *     int8, sub 16: q[8][w], d[w], -sum[2][w], d*sum[2][w]
 *     f32: x[32][w]
 * Tiles of an op are even: w or w - 1 columns. */
typedef enum cpu_panel { PANEL_I32 = 0, PANEL_I16 = 1, PANEL_F32 = 2, PANEL_KINDS = 3 } cpu_panel;

/* Words of one column and 32 k. */
static inline int cpu_panel_words(cpu_panel p)
{
    return p == PANEL_I32 ? 11 : p == PANEL_I16 ? 13 : 32;
}

typedef struct cpu_tiles {
    int m, n, w; /* columns, tiles, columns of the first tiles */
    int wide;    /* how many tiles have w columns; the rest w - 1 */
} cpu_tiles;

static inline cpu_tiles cpu_tiles_of(int64_t m, int max)
{
    cpu_tiles t = {.m = (int)m, .n = (int)((m + max - 1) / max)};
    t.w = (t.m + t.n - 1) / t.n;
    t.wide = t.m - t.n * (t.w - 1);
    return t;
}
static inline int cpu_tile_first(const cpu_tiles *t, int i)
{
    return i <= t->wide ? i * t->w : t->wide * t->w + (i - t->wide) * (t->w - 1);
}
static inline int cpu_tile_width(const cpu_tiles *t, int i)
{
    return i < t->wide ? t->w : t->w - 1;
}
static inline int cpu_tile_of(const cpu_tiles *t, int col)
{
    int edge = t->wide * t->w;
    return col < edge ? col / t->w : t->wide + (col - edge) / (t->w - 1);
}

/* ---- kernels of an instruction set ---- */

/* acc[w][R] goes on over nb blocks of 32 k (f32 forms: nb single k). */
typedef void (*cpu_tile_fn)(const uint8_t *w, const void *x, int64_t nb, float *acc);
/* Blocks b0..b0+nb (b0 % 8 == 0) of a strip to codes and f32 scales (below). */
typedef void (*cpu_decode_fn)(const uint8_t *strip, int64_t nb, uint8_t *out);

/* A decoded block: codes [8][R][4], f32 dw[subs][R], then mw[subs][R] when the type has a minimum.
 */
static inline size_t cpu_decoded_bytes(const cpu_fmt *f, int R)
{
    return (size_t)R * (32 + 4 * (size_t)(32 / f->sub) * (f->min ? 2 : 1));
}

typedef struct cpu_act_args { /* rows to a panel */
    const float *x;
    int64_t k;
    void *panel; /* of the row's tile */
    int w, col;  /* its width, the row's column in it */
    cpu_panel kind;
} cpu_act_args;

typedef struct cpu_mm {
    int rows;     /* of a strip: R */
    int tile_f32; /* widest f32 tile */
    bool signed8; /* b8 planes are signed */
    /* Straight from packed blocks, [width]; f32 forms for PACK_F32, F16, BF16. */
    cpu_tile_fn direct[PACK_COUNT][CPU_TILE_F32 + 1];
    cpu_decode_fn decode[PACK_COUNT];
    /* On decoded blocks; NULL: direct is as good at every width. */
    cpu_tile_fn decoded[PACK_COUNT][CPU_TILE_I8 + 1];
    /* Decoded blocks to f32 [k][R]. */
    void (*widen)(const cpu_fmt *f, const uint8_t *in, int64_t nb, float *out);
    /* n columns of F16 or BF16 [k][R] to f32. */
    void (*widen16)(cpu_pack f, const uint8_t *in, int64_t n, float *out);
} cpu_mm;

extern const cpu_mm cpu_mm_avx2, cpu_mm_avx512;

typedef struct cpu_vec {
    /* One row of x into its panel. */
    void (*pack_act)(const cpu_act_args *a);
    void (*rms_norm)(const float *x, float *y, int64_t dim, const float *w, float eps);
    void (*layer_norm)(const float *x, float *y, int64_t dim, const float *w, const float *b,
                       float eps);
    /* y = fn(g) * u; u NULL: fn(g) */
    void (*act_mul)(const float *g, const float *u, float *y, int64_t n, hy_act_fn fn);
    /* y = fma(b, s, a) */
    void (*add)(const float *a, const float *b, float s, float *y, int64_t n);
    /* One head in place; cos and sin of its row. */
    void (*rope)(float *x, int32_t rot, hy_rope_kind kind, const float *cos, const float *sin);
    /* x = cap * tanh(x * scale / cap); cap 0: x * scale */
    void (*scale_cap)(float *x, int64_t n, float scale, float cap);
    /* Greatest value, NaN as -inf. */
    float (*max)(const float *x, int64_t n);
    /* First index of v, or n. */
    int64_t (*find)(const float *x, int64_t n, float v);
    /* exp(x[i] - m), NaN as -inf. */
    void (*exp_sub)(const float *x, int64_t n, float m, float *out);
    /* n values to storage type t, `step` bytes apart, rounded to the value type first. */
    void (*kv_store)(const float *x, int32_t n, hy_dtype value, hy_dtype t, uint8_t *out,
                     int64_t step);
} cpu_vec;

extern const cpu_vec cpu_vec_avx2, cpu_vec_avx512;

#endif
