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

/* Never called: without libfabric the provider is "own". */
hy_status bench_raw_open(bench *b)
{
    (void)b;
    return hy_fail(HY_E_UNSUPPORTED, "bench: built without libfabric");
}

hy_status bench_raw_move(bench *b, uint64_t size, bool read, double *gbs)
{
    (void)size;
    (void)read;
    (void)gbs;
    return bench_raw_open(b);
}

void bench_raw_close(bench *b)
{
    (void)b;
}
