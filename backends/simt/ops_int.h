/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside ops: what ops.c, ops_kv.c and ops_moe.c share.
 *
 * Thread: a queue's owner.  Owner: none.
 */
#ifndef HY_SIMT_OPS_INT_H
#define HY_SIMT_OPS_INT_H

#include "backends/simt/ops.h"

#define SIMT_LANES    32 /* as dialect.h, which only kernels include */
#define SIMT_TEAMS    4
#define SIMT_BLOCK    128
#define SIMT_GRID_MAX 65535 /* along y and z */

static inline const simt_base *simt_base_of(const hy_dev *d)
{
    return (const simt_base *)(const void *)d;
}

static inline const simt_driver *simt_drv(const hy_queue *q)
{
    return simt_base_of(q->dev)->drv;
}

static inline const char *simt_name(const hy_queue *q)
{
    return simt_base_of(q->dev)->name;
}

static inline uint32_t simt_ceil_div(int64_t n, int64_t by)
{
    return (uint32_t)((n + by - 1) / by);
}

typedef struct simt_weight {
    hy_weight base;
    const uint8_t *p; /* device; quantised types by planes (args.h) */
    size_t row_bytes; /* a multiple of 16 */
} simt_weight;

static inline const simt_weight *simt_weight_of(const hy_weight *w)
{
    return (const simt_weight *)(const void *)w;
}

/* ---- ops_weight.c ---- */
bool simt_weight_type_ok(int t);
hy_status simt_prepare_weight(hy_dev *d, const hy_weight_src *src, hy_weight **out);
void simt_weight_free(hy_dev *d, hy_weight *w);

/* ---- matmul (ops.c) ---- */

/* Kernels of a matmul: one row, few, many, many on matrix units. */
typedef enum simt_shape { SIMT_VECTOR, SIMT_VECTORS, SIMT_TILE, SIMT_MMA_TILE } simt_shape;

simt_shape simt_shape_of(const hy_queue *q, const hy_weight *w, int64_t rows);
int simt_shape_rows(simt_shape s); /* of a block */
/* That activations go to int8 for this weight. */
bool simt_int8(const hy_weight *w, hy_act_mode act);
hy_status simt_quantise(hy_queue *q, const float *x, int64_t ldx, int64_t m, int64_t groups,
                        void *out);
/* Fills k's weight and widths, and launches `blocks` along the rows. */
hy_status simt_multiply(hy_queue *q, const hy_weight *w, simt_shape s, uint32_t blocks,
                        ka_matmul *k);

/* ---- ops_moe.c ---- */
hy_status simt_moe_route(hy_queue *q, const hy_moe_route *a);
hy_status simt_moe_ffn(hy_queue *q, const hy_moe_ffn *a);

/* ---- ops_kv.c ---- */
bool simt_kv_ok(const hy_op_query *q);
hy_status simt_kv_layout(hy_dev *d, hy_kv_layout *l);
hy_status simt_kv_write(hy_queue *q, const hy_kv_write *a);
hy_status simt_attention(hy_queue *q, const hy_attn *a);
hy_status simt_kv_pack(hy_queue *q, const hy_kv_copy *a);
hy_status simt_kv_unpack(hy_queue *q, const hy_kv_copy *a);

#endif
