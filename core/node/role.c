/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of roles.
 *
 * Thread: any.  Owner: none.
 */
#include "core/node/role.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned stages; /* 0: reserved, not built yet */
} roles[] = {
    {"all", HY_ROLE_HTTP | HY_ROLE_SCHED | HY_ROLE_EXEC},
    {"prefill", HY_ROLE_HTTP | HY_ROLE_SCHED | HY_ROLE_EXEC | HY_ROLE_KV},
    {"decode", HY_ROLE_HTTP | HY_ROLE_SCHED | HY_ROLE_EXEC | HY_ROLE_KV},
    {"both", HY_ROLE_HTTP | HY_ROLE_SCHED | HY_ROLE_EXEC | HY_ROLE_KV},
    {"encode", 0},
    {"attention", 0},
    {"ffn", 0},
    {"cache", 0},
    {"store", 0},
    {"router", HY_ROLE_ROUTER},
    {"planner", 0},
};

hy_status hy_role_stages(const char *role, unsigned *stages_out)
{
    for (size_t i = 0; i < HY_COUNTOF(roles); i++) {
        if (strcmp(roles[i].name, role) != 0)
            continue;
        if (roles[i].stages == 0)
            return hy_fail(HY_E_UNSUPPORTED,
                           "[node] role = %s: this version does not run this role yet", role);
        *stages_out = roles[i].stages;
        return HY_OK;
    }
    return hy_fail(HY_E_INVAL, "[node] role = %s: unknown role", role);
}
