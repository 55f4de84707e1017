/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the link benchmark share: two processes, their memory, a pipe between them.
 *
 * Thread: main of each.  Owner: bench.c.
 */
#ifndef HY_FABRIC_BENCH_INT_H
#define HY_FABRIC_BENCH_INT_H

#include "fabric/bench.h"
#include "fabric/fabric.h"

typedef struct bench {
    hy_fab_bench_opts o;
    int side, sock; /* 0: the one who measures */
    int peer_pid;
    char *pool;
    uint64_t pool_len;
    hy_fab_bench_result r;
} bench;

double bench_now(void);
/* Both sides meet; false: the other one is gone. */
bool bench_sync(bench *b);
bool bench_put(bench *b, const void *p, size_t n);
bool bench_get(bench *b, void *p, size_t n);
double bench_median(double *v, int n);
void bench_percentiles(double *v, int n, double *p50, double *p99);
uint64_t bench_total(const bench *b, uint64_t size);
/* Page i of a pool, strewn so that no two neighbours in order are neighbours in memory. */
uint64_t bench_page(const bench *b, uint64_t i, uint64_t size);

hy_status bench_tcp(bench *b);
hy_status bench_fabric(bench *b);
/* ofi/: raw rates of the provider that fabric chose; nothing for "own". */
hy_status bench_raw(bench *b);

#endif
