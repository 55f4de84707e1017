/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a paged KV cache keeps each element: byte strides plus element type, never a name.
 * One layout describes one cache group (layers that share block tables).
 *
 * Address of K element (layer, block, head, token-in-block, dim):
 *     base + k.off + layer*layer_stride + block*block_stride
 *          + head*k.head + token*k.token + dim*k.dim
 * and likewise V with v.*. All strides are bytes.
 *
 * Thread: plain values.  Owner: none.
 */
#ifndef HY_HAL_KV_LAYOUT_H
#define HY_HAL_KV_LAYOUT_H

#include "hal/dtype.h"

typedef struct hy_kv_plane {
    int64_t off; /* of the plane inside (layer, block) */
    int64_t head, token, dim;
    int32_t width; /* elements a head: k_dim or v_dim */
} hy_kv_plane;

typedef struct hy_kv_layout {
    hy_dtype value_type; /* what attention sees: every written value is rounded to it */
    hy_dtype type;       /* storage, at least as wide as value_type */
    int32_t n_layers;    /* of this group */
    int32_t n_heads;     /* KV heads held here */
    int32_t block_tokens;
    int64_t layer_stride, block_stride;
    hy_kv_plane k, v;
    int64_t bytes_per_block; /* all layers of the group */
} hy_kv_layout;

/* A pool of blocks in device memory. */
typedef struct hy_kv_pool {
    hy_kv_layout layout;
    void *base; /* device address */
    int32_t n_blocks;
} hy_kv_pool;

#endif
