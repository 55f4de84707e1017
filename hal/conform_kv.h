/* SPDX-License-Identifier: Apache-2.0
 *
 * A scene for the cache's conformance tests: a few sequences with random keys and values in a
 * paged pool of a side, blocks in random order.
 *
 * Thread: the caller of hy_conform_run.  Owner: the case.
 */
#ifndef HY_HAL_CONFORM_KV_H
#define HY_HAL_CONFORM_KV_H

#include "hal/conform_int.h"

#define CF_SEQS   4
#define CF_LAYERS 2
#define CF_LAYER  1 /* the layer under test; the other one holds other values */

typedef struct cf_shape {
    int32_t heads, kv_heads, k_dim, v_dim, block_tokens, window;
    float softcap;
} cf_shape;

typedef struct cf_scene {
    cf_shape s;
    hy_dtype value, type;
    int32_t n_seqs;
    int32_t total[CF_SEQS]; /* positions */
    int32_t fresh[CF_SEQS]; /* the last ones: rows of the step */
    int32_t start[CF_SEQS]; /* of the sequence in k and v */
    int32_t n_tokens, n_rows, n_blocks;
    float *k, *v;           /* [n_tokens][kv_heads * width] */
    float *seen_k, *seen_v; /* the same rounded to the value type */
    int64_t ldk, ldv;
    int32_t *table;   /* [n_seqs][stride] */
    int32_t *visible; /* the same with -1 before the windows of the step's rows */
    int64_t stride;
    /* the past, and the step */
    hy_rows past, rows;
} cf_scene;

/* Makes a scene from lengths; false when out of memory. */
bool cf_scene_make(cf *c, cf_scene *s);
/* A zeroed pool on a side, by the side's own layout. */
bool cf_pool_make(cf *c, cf_side *d, const cf_scene *s, hy_kv_pool *out);
/* Writes the past and then the step's rows. */
bool cf_scene_write(cf *c, cf_side *d, const cf_scene *s, const hy_kv_pool *pool);
/* The groups of one pair of value and storage type. */
void cf_kv_write(cf *c, hy_dtype value, hy_dtype type);
void cf_kv_wire(cf *c, hy_dtype value, hy_dtype type);
/* f rounded to a float type. */
float cf_round(hy_dtype t, float f);

#endif
