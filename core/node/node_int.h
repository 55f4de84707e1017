/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the node: what its two kinds, a node with a model and a router, share.
 *
 * Thread: main.  Owner: see each function.
 */
#ifndef HY_NODE_NODE_INT_H
#define HY_NODE_NODE_INT_H

#include "core/base/metric.h"
#include "core/base/trace.h"
#include "core/conf/conf.h"
#include "core/connector/pd.h"
#include "core/model/model.h"
#include "core/route/route.h"

/* Keys of clients, one a line: [http] api_key, or what api_key_file holds. malloc'd. */
hy_status hy_node__read_key(const hy_conf *c, char **out);
/* The router of [router], [peer.NAME] and [http], started. */
hy_status hy_node__router_create(const hy_conf *c, const char *api_key, hy_metrics *m, hy_trace *t,
                                 hy_route **out);
/* [cluster] secret_file can be used: asked before a model is loaded. */
hy_status hy_node__check_secret(const hy_conf *c);
/* The connector of [connector], [fabric] and [cluster]: it listens, and wants the pools next
 * (hy_exec_create). */
hy_status hy_node__connector_create(const hy_conf *c, hy_dev *dev, const hy_model *m,
                                    hy_act_mode act, int32_t max_waiting, hy_metrics *mx,
                                    hy_trace *t, hy_pd **out);
/* [node] name, else the host's. */
void hy_node__name(const hy_conf *c, char *out, size_t cap);
/* One line per fact: workers, address. */
void hy_node__router_describe(const hy_conf *c, const hy_route *r, hy_buf *out);

#endif
