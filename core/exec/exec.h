/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs planned steps on one device: owns activations, scratch and the KV pools' bytes.
 *
 * Thread: exec stage only, after create.  Owner: the caller destroys; model and device outlive it.
 */
#ifndef HY_EXEC_EXEC_H
#define HY_EXEC_EXEC_H

#include "core/model/model.h"
#include "core/req/batch.h"

typedef struct hy_exec hy_exec;

typedef struct hy_exec_opts {
    hy_dtype kv_value;   /* [kv] type */
    hy_dtype kv_storage; /* [kv] storage */
    int32_t block_tokens;
    const int32_t *n_blocks; /* [model->n_groups] */
    int32_t max_rows;        /* tokens a step */
    int32_t max_seqs;
    int32_t max_logits; /* logits rows at once; more are done in turns */
    int32_t context;    /* longest sequence */
    hy_act_mode act;
} hy_exec_opts;

/* Bytes of one block of group g at these options (for sizing the pool). */
hy_status hy_exec_block_bytes(const hy_model *m, int32_t g, const hy_exec_opts *o, size_t *out);
/* HY_E_NOMEM_DEVICE names the pool size that did not fit. */
hy_status hy_exec_create(hy_model *m, const hy_exec_opts *o, hy_exec **out);
void hy_exec_destroy(hy_exec *e);
/* Run one step; results go into the batch. No allocation inside. */
hy_status hy_exec_step(hy_exec *e, hy_batch *b);
/* The pool of a group (connector: register_kv). Borrowed. */
const hy_kv_pool *hy_exec_pool(const hy_exec *e, int32_t group);
/* Logits of the last step's row i (tests, drift); NULL when out of range. */
const float *hy_exec_logits(const hy_exec *e, int32_t i);
/* Model fingerprint with KV value type and activation mode mixed in: root of the prefix hash. */
void hy_exec_fingerprint(const hy_exec *e, uint8_t out[32]);

#endif
