/* SPDX-License-Identifier: Apache-2.0
 *
 * A node: reads its role from the configuration and builds the stages of that role. The only
 * folder that sees all of core.
 *
 * Thread: one controlling thread (main).  Owner: the caller destroys.
 */
#ifndef HY_NODE_NODE_H
#define HY_NODE_NODE_H

#include "core/base/runtime.h"
#include "core/conf/conf.h"
#include "core/model/model.h"
#include "core/sched/engine.h"
#include "core/text/chat.h"
#include "core/text/tokenizer.h"

typedef struct hy_node hy_node;

typedef struct hy_node_opts {
    const hy_conf *conf;    /* outlives the node */
    const char *model_path; /* resolved [model] path */
    const char *alias; /* another name that clients may use, unless [model] name is set; NULL: none;
                          outlives the node */
    bool http;         /* false: engine only (`halyard run`) */
    void (*progress)(void *arg, size_t done, size_t total); /* loading; may be NULL */
    void *arg;
} hy_node_opts;

/* Opens the device, loads the model, starts the stages. Errors are ready for the user. */
hy_status hy_node_create(const hy_node_opts *o, hy_node **out);
/* Take no new work, wait until running requests end, at most timeout_ns. */
hy_status hy_node_drain(hy_node *n, uint64_t timeout_ns);
void hy_node_destroy(hy_node *n); /* NULL is fine; stops at once */

hy_engine *hy_node_engine(hy_node *n);
const hy_model *hy_node_model(const hy_node *n);
const hy_tok *hy_node_tok(const hy_node *n);
/* NULL: the model has no template. */
const hy_jinja *hy_node_template(const hy_node *n);
int32_t hy_node_context(const hy_node *n);
int hy_node_port(const hy_node *n); /* of http; 0 without */
/* One line per fact: device, model, KV pool, address. */
void hy_node_describe(const hy_node *n, hy_buf *out);
/* HY_OK while all stages work; else the failure that stopped the node. */
hy_status hy_node_health(hy_node *n, const char **text_out);

#endif
