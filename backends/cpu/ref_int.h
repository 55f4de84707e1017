/* SPDX-License-Identifier: Apache-2.0
 *
 * The scalar reference's ops and the reductions they share. One op per function, in the order of
 * docs/NUMERICS.md, on one thread: clear first.
 *
 * Thread: a queue's owner.  Owner: none.
 */
#ifndef HY_CPU_REF_INT_H
#define HY_CPU_REF_INT_H

#include "backends/cpu/cpu_int.h"

/* Sum of 16 lanes by the tree of docs/NUMERICS.md. */
static inline float ref_tree16(float l[16])
{
    for (int w = 8; w >= 1; w /= 2) {
        for (int i = 0; i < w; i++)
            l[i] += l[i + w];
    }
    return l[0];
}

hy_status ref_embed(hy_queue *q, const hy_embed *a);
hy_status ref_rms_norm(hy_queue *q, const hy_norm *a);
hy_status ref_layer_norm(hy_queue *q, const hy_norm *a);
hy_status ref_matmul(hy_queue *q, const hy_matmul *a);
hy_status ref_rope(hy_queue *q, const hy_rope *a);
hy_status ref_kv_write(hy_queue *q, const hy_kv_write *a);
hy_status ref_attention(hy_queue *q, const hy_attn *a);
hy_status ref_act_mul(hy_queue *q, const hy_act_mul *a);
hy_status ref_add(hy_queue *q, const hy_add *a);
hy_status ref_topk(hy_queue *q, const hy_topk *a);
hy_status ref_kv_pack(hy_queue *q, const hy_kv_copy *a);
hy_status ref_kv_unpack(hy_queue *q, const hy_kv_copy *a);
hy_status ref_moe_route(hy_queue *q, const hy_moe_route *a);

/* ---- cache access (ref_kv.c) ---- */
float ref_kv_load(hy_dtype type, const uint8_t *p);
/* Rounds to the value type, then stores. */
void ref_kv_store(hy_dtype value, hy_dtype type, uint8_t *p, float f);
/* That a copy's arguments are sound: types, ranges, room, block ids. */
hy_status ref_kv_wire_check(const hy_kv_copy *a);
/* First byte of a (layer, block); NULL when the block or the layer is outside the pool. */
uint8_t *ref_kv_block(const hy_kv_pool *pool, int32_t layer, int32_t block);

#endif
