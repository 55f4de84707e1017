/* SPDX-License-Identifier: Apache-2.0
 *
 * Built without libfabric: every provider name but "own" says so.
 *
 * Thread: any.  Owner: nothing.
 */
#include "fabric/bench_int.h"
#include "fabric/fab_int.h"

static hy_status rail_open(hy_fab *f, int rail, const char *host, const char *provider, void **out)
{
    (void)f;
    (void)rail;
    (void)host;
    (void)out;
    return hy_fail(HY_E_UNSUPPORTED, "provider %s: built without libfabric (libfabric-dev)",
                   provider);
}

const fab_dp_ops hy_fab__ofi_dp = {.name = "ofi", .rail_open = rail_open};
const fab_dp_ops hy_fab__ofi_strict_dp = {.name = "ofi", .rail_open = rail_open};

hy_status bench_raw(bench *b)
{
    (void)b;
    return HY_OK;
}
