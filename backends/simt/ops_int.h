/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside ops: what ops.c and ops_kv.c share.
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

bool simt_kv_ok(const hy_op_query *q);
hy_status simt_kv_layout(hy_dev *d, hy_kv_layout *l);
hy_status simt_kv_write(hy_queue *q, const hy_kv_write *a);
hy_status simt_attention(hy_queue *q, const hy_attn *a);
hy_status simt_kv_pack(hy_queue *q, const hy_kv_copy *a);
hy_status simt_kv_unpack(hy_queue *q, const hy_kv_copy *a);

#endif
