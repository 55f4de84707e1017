/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one tile (rows of one sequence that follow each other, the query heads of one KV
 * head) over one segment of 256 positions: what the kernels take.
 *
 * Thread: any.  Owner: none.
 */
#ifndef HY_CPU_ATTN_H
#define HY_CPU_ATTN_H

#include "backends/cpu/fast_int.h"

#define CPU_SEG      256
#define CPU_SEG_GRPS (CPU_SEG / 16)
/* Widest head whose segment is converted to f32 (K and V each SEG * WIDE floats of scratch). */
#define CPU_ATTN_WIDE 256

typedef struct cpu_attn_seg {
    const float *q;     /* of the first row, first head */
    int64_t ldq;        /* row to row */
    const int32_t *pos; /* of the rows */
    int rows, group;    /* query heads a row */
    int k_dim, v_dim;
    hy_dtype k_type, v_type;
    const uint8_t *k[CPU_SEG_GRPS], *v[CPU_SEG_GRPS]; /* of 16 positions; NULL: none visible */
    int64_t k_step, v_step; /* bytes: from dim to dim of K, token to token of V */
    int64_t k_token;        /* bytes from token to token of K; the element's size: side by side */
    int32_t first;          /* position of the segment */
    int32_t window;
    bool from_memory; /* K and V are read once: ask for them ahead */
    float scale, softcap;
    /* Result of query (row * group + head): o[v_dim], then m, l at v_dim, v_dim + 1. */
    float *part;
    int64_t part_step;
    float *wide;   /* scratch of 2 * SEG * WIDE floats */
    bool all_wide; /* convert K and V to f32 first: many queries will read them */
    float *score;  /* scratch of 6 * SEG floats */
} cpu_attn_seg;

/* Visible positions of a row within the segment; false when there are none. */
static inline bool cpu_attn_range(const cpu_attn_seg *s, int row, int *a, int *b)
{
    int32_t last = s->pos[row], lo = 0;
    if (s->window > 0 && last >= s->window)
        lo = last - s->window + 1;
    lo -= s->first;
    last -= s->first;
    *a = lo > 0 ? lo : 0;
    *b = last < CPU_SEG ? last : CPU_SEG - 1;
    return *a <= *b;
}

typedef struct cpu_attn_kern {
    void (*segment)(const cpu_attn_seg *s);
    /* Segments of one query, n of them `step` floats apart, to out[v_dim]. */
    void (*combine)(const float *part, int64_t step, int n, int v_dim, float *out);
} cpu_attn_kern;

extern const cpu_attn_kern cpu_attn_avx2, cpu_attn_avx512;

#endif
