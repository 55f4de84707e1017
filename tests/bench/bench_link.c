/* SPDX-License-Identifier: Apache-2.0
 *
 * The link benchmark alone: bench_link [PROVIDERS [MIB [PIECE WINDOW [POOL_MIB [ROUNDS
 * [ROWS]]]]]]. Figures, never pass or fail on time.
 *
 * Thread: main.  Owner: nothing.
 */
#include "core/base/log.h"
#include "fabric/bench.h"

#include <stdio.h>
#include <stdlib.h>

static void line(void *arg, const char *text)
{
    (void)arg;
    puts(text);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    hy_fab_bench_opts o = {.providers = argc > 1 ? argv[1] : "net,tcp,own",
                           .total = (argc > 2 ? strtoull(argv[2], NULL, 10) : 256) << 20,
                           .raw = true,
                           .tcp = true,
                           .small = true,
                           .idle = true,
                           .line = line};
    hy_fab_bench_result r;
    if (argc > 4) {
        o.piece_bytes = strtoull(argv[3], NULL, 0);
        o.window_bytes = strtoull(argv[4], NULL, 0);
    }
    if (argc > 5)
        o.pool = strtoull(argv[5], NULL, 0) << 20;
    if (argc > 6)
        o.repeats = atoi(argv[6]);
    if (argc > 7) {
        o.only = argv[7];
        o.small = o.idle = false;
    }
    hy_log_set_level(HY_LOG_WARN);
    if (hy_fab_bench(&o, &r) < 0) {
        fprintf(stderr, "%s\n", hy_fail_text());
        return 1;
    }
    return 0;
}
