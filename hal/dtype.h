/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types of weights, activations and KV: names, block sizes, bytes. A type's value equals
 * its GGUF number where one exists, so that a file's type is ours after a range check.
 *
 * Thread: any (constant tables).  Owner: none.
 * Source of the block layouts: the GGUF format as documented by ggml.
 */
#ifndef HY_HAL_DTYPE_H
#define HY_HAL_DTYPE_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum hy_dtype {
    HY_F32 = 0,
    HY_F16 = 1,
    HY_Q4_0 = 2,
    HY_Q4_1 = 3,
    HY_Q5_0 = 6,
    HY_Q5_1 = 7,
    HY_Q8_0 = 8,
    HY_Q2_K = 10,
    HY_Q3_K = 11,
    HY_Q4_K = 12,
    HY_Q5_K = 13,
    HY_Q6_K = 14,
    HY_IQ4_NL = 20,
    HY_I8 = 24,
    HY_I32 = 26,
    HY_BF16 = 30,
    /* not in GGUF: KV alone */
    HY_F8_E4M3 = 64,     /* "fn": bias 7, +-448, S.1111.111 is NaN */
    HY_F8_E4M3FNUZ = 65, /* bias 8, +-240, no -0: 0x80 is NaN */
    HY_DTYPE_MAX = 66,
} hy_dtype;

typedef struct hy_dtype_info {
    const char *name; /* "q4_k"; NULL: this number is no type */
    uint16_t block;   /* elements a block: 1, 32 or 256 */
    uint16_t bytes;   /* bytes a block */
    bool quantised;   /* integer codes with scales */
} hy_dtype_info;

/* NULL when t is out of range or no type. */
const hy_dtype_info *hy_dtype_get(int t);
/* "?" when unknown. */
const char *hy_dtype_name(int t);
/* Case-insensitive; HY_E_INVAL names the known ones. */
hy_status hy_dtype_parse(const char *name, hy_dtype *out);
/* Bytes of a row of n elements; 0 when n is no multiple of the block, or the type is unknown. */
size_t hy_dtype_row_bytes(int t, int64_t n);

/* Decode n elements (a multiple of the block) to f32: the exact value of the format, computed in
 * f32 as docs/NUMERICS.md says. The scalar reference of every weight type. */
void hy_dtype_decode(int t, const void *src, float *dst, int64_t n);

/* Scalar conversions, round to nearest even. */
float hy_f16_to_f32(uint16_t h);
uint16_t hy_f32_to_f16(float f);
float hy_bf16_to_f32(uint16_t h);
uint16_t hy_f32_to_bf16(float f);
/* t: HY_F8_E4M3 or HY_F8_E4M3FNUZ. Beyond the largest value, infinities too, it stays at that;
 * a NaN stays one; fnuz has no -0. */
float hy_f8_to_f32(hy_dtype t, uint8_t b);
uint8_t hy_f32_to_f8(hy_dtype t, float f);

#endif
