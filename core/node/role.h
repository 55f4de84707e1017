/* SPDX-License-Identifier: Apache-2.0
 *
 * Roles: the one table from a role's name to the set of stages it runs. Only this file knows the
 * strings.
 *
 * Thread: any.  Owner: none.
 */
#ifndef HY_NODE_ROLE_H
#define HY_NODE_ROLE_H

#include "core/base/status.h"

enum {
    HY_ROLE_HTTP = 1,   /* http and text */
    HY_ROLE_SCHED = 2,  /* sched */
    HY_ROLE_EXEC = 4,   /* exec on a device */
    HY_ROLE_KV = 16,    /* connector and fabric */
    HY_ROLE_ROUTER = 8, /* route, and none of the others: no model */
};

/* HY_E_INVAL: unknown; HY_E_UNSUPPORTED: known, but this build has no stages for it yet. */
hy_status hy_role_stages(const char *role, unsigned *stages_out);

#endif
