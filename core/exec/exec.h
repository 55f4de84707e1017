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
struct hy_connector; /* core/connector/connector.h */

/* Memory order inside a block: the backend's own, or token or head major (slower where the
 * backend's kernels want their own). */
typedef enum hy_kv_order { HY_KV_ORDER_DEFAULT, HY_KV_ORDER_NHD, HY_KV_ORDER_HND } hy_kv_order;

typedef struct hy_exec_opts {
    hy_dtype kv_value;    /* [kv] type */
    hy_dtype kv_storage;  /* [kv] storage */
    hy_kv_order kv_order; /* [kv] order */
    int32_t block_tokens;
    const int32_t *n_blocks; /* [model->n_groups] */
    int32_t max_rows;        /* tokens a step */
    int32_t max_seqs;
    int32_t max_logits; /* logits rows at once; more are done in turns */
    int32_t context;    /* longest sequence */
    hy_act_mode act;
    struct hy_connector *connector; /* worker half is called here; NULL: none */
} hy_exec_opts;

/* Bytes of one block of group g at these options (for sizing the pool). */
hy_status hy_exec_block_bytes(const hy_model *m, int32_t g, const hy_exec_opts *o, size_t *out);
/* HY_E_NOMEM_DEVICE names the pool size that did not fit. */
hy_status hy_exec_create(hy_model *m, const hy_exec_opts *o, hy_exec **out);
void hy_exec_destroy(hy_exec *e);
/* Run one step; results go into the batch. No allocation inside. A step without rows only drives
 * the connector. */
hy_status hy_exec_step(hy_exec *e, hy_batch *b);
/* The pool of a group (connector: register_kv). Borrowed. */
const hy_kv_pool *hy_exec_pool(const hy_exec *e, int32_t group);
/* Logits of the last step's row i (tests, drift), where that row was sampled or scored and its
 * turn was the last; else NULL. Valid until the next step. */
const float *hy_exec_logits(const hy_exec *e, int32_t i);
/* Called after each of the model's steps with the residual stream [rows][dim] in host memory
 * (tests, drift). NULL: none. HY_E_NOMEM: no memory for a copy of what the device alone can see. */
typedef void (*hy_exec_probe)(void *arg, const hy_step *s, const float *x, int32_t rows);
hy_status hy_exec_set_probe(hy_exec *e, hy_exec_probe fn, void *arg);
/* Model fingerprint with KV value type and activation mode mixed in: root of the prefix hash. */
void hy_exec_fingerprint(const hy_exec *e, uint8_t out[32]);

#endif
