/* SPDX-License-Identifier: Apache-2.0
 *
 * How big the parts of a node are: KV pools, context, rows a step; from the configuration, the
 * model and the free memory.
 *
 * Thread: any.  Owner: plain values.
 */
#ifndef HY_NODE_SIZE_H
#define HY_NODE_SIZE_H

#include "core/conf/conf.h"
#include "core/exec/exec.h"

enum { HY_SIZE_MAX_GROUPS = 8 };

typedef struct hy_size {
    hy_dtype kv_value, kv_storage;
    int32_t block_tokens;
    int32_t n_groups;
    int32_t n_blocks[HY_SIZE_MAX_GROUPS];
    size_t block_bytes[HY_SIZE_MAX_GROUPS];
    size_t pool_bytes;
    int32_t context;
    int32_t max_rows, max_seqs, max_logits;
} hy_size;

/* The part that needs no model: the types of [kv] and its block_tokens; HY_E_INVAL names the key.
 */
hy_status hy_size_kv(const hy_conf *c, hy_size *out);

/* HY_E_INVAL names the key that asks for too much; HY_E_NOMEM when not even a short context fits.
 */
hy_status hy_size_choose(const hy_conf *c, const hy_model *m, hy_act_mode act, hy_size *out);
void hy_size_describe(const hy_size *s, hy_buf *out);

#endif
