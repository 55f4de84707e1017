/* SPDX-License-Identifier: Apache-2.0
 *
 * The null connector's tables: also the stubs of every other connector.
 *
 * Thread: any.  Owner: static.
 */
#ifndef HY_CONNECTOR_NULL_H
#define HY_CONNECTOR_NULL_H

#include "core/connector/connector.h"

extern const hy_conn_sched_ops hy_conn__null_sched;
extern const hy_conn_worker_ops hy_conn__null_worker;

#endif
