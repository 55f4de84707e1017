/* SPDX-License-Identifier: Apache-2.0
 *
 * What the links of this machine carry: the fabric as it is configured, over libfabric
 * alone and by the same-node path, beside plain TCP, the provider's raw rate and process_vm_readv.
 * Two processes on one machine, in rounds that take everything in turn. For `halyard bench link`.
 *
 * Thread: a process without threads yet (it forks).  Owner: nothing kept.
 */
#ifndef HY_FABRIC_BENCH_H
#define HY_FABRIC_BENCH_H

#include "core/base/buf.h"

typedef struct hy_fab_bench_opts {
    const char *providers; /* as in hy_fab_opts: "net,tcp,own"; NULL: the default list */
    uint64_t pool;         /* bytes of each side's memory, a power of two; 0: 256 MiB */
    uint64_t total;        /* bytes moved per figure; 0: 256 MiB (a quarter below 64 KiB) */
    int repeats;           /* rounds, at most 32; 0: 5 */
    bool raw, tcp;         /* also the provider's raw rate and process_vm_readv; also plain TCP */
    bool msgs, idle;       /* also message latency; also what an idle pair costs */
    uint64_t piece_bytes, window_bytes; /* 0: fabric's own */
    const char *congestion;             /* as in hy_fab_opts; NULL: its default */
    const char *only;                   /* "write,raw write": just these rows; NULL: all */
    /* Called for each line of the report as it comes; may be NULL. */
    void (*line)(void *arg, const char *text);
    void *arg;
} hy_fab_bench_opts;

enum { HY_FAB_BENCH_SIZES = 6, HY_FAB_BENCH_RATIOS = 10 };
extern const uint64_t hy_fab_bench_sizes[HY_FAB_BENCH_SIZES]; /* 16 KiB .. 4 MiB */

typedef enum hy_fab_bench_row {
    HY_BENCH_WRITE, /* the fabric as it is configured */
    HY_BENCH_PULL,
    HY_BENCH_RAW_WRITE, /* the provider without the fabric */
    HY_BENCH_RAW_READ,
    HY_BENCH_ALONE_WRITE, /* the fabric over the provider, with no own TCP beside it */
    HY_BENCH_ALONE_PULL,
    HY_BENCH_SAME_WRITE, /* the fabric on the same node */
    HY_BENCH_SAME_PULL,
    HY_BENCH_TCP_BLOCK, /* plain TCP; the receiver blocks, or spins */
    HY_BENCH_TCP_SPIN,
    HY_BENCH_TCP_TUNED, /* spins; with the congestion control that links have */
    HY_BENCH_CMA,       /* process_vm_readv, 16 pieces a call */
    HY_BENCH_ROWS,
} hy_fab_bench_row;
extern const char *const hy_fab_bench_names[HY_BENCH_ROWS];

typedef struct hy_fab_bench_figure { /* of all rounds; 0: not measured */
    double median, min, max;
} hy_fab_bench_figure;

typedef struct hy_fab_bench_ratio {
    const char *name;
    double wanted;
    hy_fab_bench_figure by_size[HY_FAB_BENCH_SIZES]; /* of the ratios inside each round */
} hy_fab_bench_ratio;

typedef struct hy_fab_bench_result {
    char provider[48];
    bool beside; /* what write and pull moved went over own TCP beside it */
    hy_fab_bench_figure rate[HY_BENCH_ROWS][HY_FAB_BENCH_SIZES]; /* GB/s */
    hy_fab_bench_ratio ratio[HY_FAB_BENCH_RATIOS];
    hy_fab_bench_figure msg_p50, msg_p99, tcp_p50, tcp_p99, msg_ratio; /* us one way, 8 bytes */
    double idle_core; /* share of a core, the worse of both processes */
} hy_fab_bench_result;

hy_status hy_fab_bench(const hy_fab_bench_opts *o, hy_fab_bench_result *out);

#endif
