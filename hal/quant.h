/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised blocks in one canonical form: signed integer codes, and for each sub-block of 16 or 32
 * codes an f32 scale dw and an f32 offset mw, so that value = dw * q (+ mw). Every decoder, the
 * reference matmul and the packers of fast backends read weights through this, so a file format is
 * understood in one place.
 *
 * Thread: any.  Owner: none.
 * Source of the block layouts: the GGUF format as documented by ggml.
 */
#ifndef HY_HAL_QUANT_H
#define HY_HAL_QUANT_H

#include "hal/dtype.h"

#define HY_QUANT_CODES 256 /* most codes in a block */
#define HY_QUANT_SUBS  16  /* most sub-blocks in a block */

typedef struct hy_quant_info {
    uint16_t block;  /* codes a file block: 32 or 256 */
    uint16_t sub;    /* codes a scale: 32; 16 for Q2_K, Q3_K, Q6_K */
    bool has_min;    /* mw matters */
    int8_t code_min; /* range of codes */
    int8_t code_max;
} hy_quant_info;

typedef struct hy_quant_block {
    int8_t q[HY_QUANT_CODES]; /* signed: Q4_0 q-8, IQ4_NL the table's value, K types as stored */
    float dw[HY_QUANT_SUBS];
    float mw[HY_QUANT_SUBS]; /* 0 where the type has none; K types: -(dmin * m) */
} hy_quant_block;

/* NULL when t is not a quantised type. */
const hy_quant_info *hy_quant_get(int t);
/* One file block of a quantised type (HY_ASSERT). Codes and sub-blocks beyond the type's own are
 * left alone. */
void hy_quant_unpack(int t, const void *block, hy_quant_block *out);

#endif
