/* SPDX-License-Identifier: Apache-2.0
 *
 * What the links of this machine carry: fabric beside plain TCP and the provider's raw rate, two
 * processes on loopback, in one run. For `halyard bench link`.
 *
 * Thread: a process without threads yet (it forks).  Owner: nothing kept.
 */
#ifndef HY_FABRIC_BENCH_H
#define HY_FABRIC_BENCH_H

#include "core/base/buf.h"

typedef struct hy_fab_bench_opts {
    const char *providers; /* as in hy_fab_opts: "net,tcp,own"; NULL: the default list */
    uint64_t pool;         /* bytes of each side's memory; 0: 256 MiB */
    uint64_t total;        /* bytes moved per figure; 0: 1 GiB (a quarter below 64 KiB) */
    int repeats;           /* the median is reported; 0: 3 */
    bool raw, tcp;         /* also the provider's raw rate; also plain TCP */
    bool small, idle;      /* also message latency; also what an idle pair costs */
    uint64_t piece_bytes, window_bytes; /* 0: fabric's own */
    /* Called for each line of the report as it comes; may be NULL. */
    void (*line)(void *arg, const char *text);
    void *arg;
} hy_fab_bench_opts;

enum { HY_FAB_BENCH_SIZES = 6 };
extern const uint64_t hy_fab_bench_sizes[HY_FAB_BENCH_SIZES]; /* 16 KiB .. 4 MiB */

typedef struct hy_fab_bench_result { /* GB/s by size; 0: not measured */
    char provider[48];
    double write[HY_FAB_BENCH_SIZES], pull[HY_FAB_BENCH_SIZES];
    double raw_write[HY_FAB_BENCH_SIZES], raw_read[HY_FAB_BENCH_SIZES];
    double tcp_block[HY_FAB_BENCH_SIZES], tcp_spin[HY_FAB_BENCH_SIZES];
    double cma[HY_FAB_BENCH_SIZES];                        /* process_vm_readv, 16 pieces a call */
    double msg_p50_us, msg_p99_us, tcp_p50_us, tcp_p99_us; /* one way, 8 bytes */
    double idle_core; /* share of a core, both processes' worse */
} hy_fab_bench_result;

hy_status hy_fab_bench(const hy_fab_bench_opts *o, hy_fab_bench_result *out);

#endif
