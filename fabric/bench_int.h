/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the link benchmark share: two processes, their memory, a pipe between them.
 * Side 0 measures; side 1 does what it is told over the pipe.
 *
 * Thread: main of each.  Owner: bench.c.
 */
#ifndef HY_FABRIC_BENCH_INT_H
#define HY_FABRIC_BENCH_INT_H

#include "fabric/bench.h"
#include "fabric/fabric.h"

typedef struct bench_pair bench_pair; /* a fabric in each process */
struct bench_raw;

enum { BENCH_MAIN, BENCH_ALONE, BENCH_SAME, BENCH_PAIRS };

typedef struct bench {
    hy_fab_bench_opts o;
    int side, sock; /* 0: the one who measures */
    int peer_pid;
    char *pool;
    uint64_t pool_len, peer_pool;
    int tcp, tuned; /* plain TCP; -1: none */
    bench_pair *pair[BENCH_PAIRS];
    struct bench_raw *raw;
    hy_fab_bench_result r;
} bench;

double bench_now(void);
/* Both sides meet; false: the other one is gone. */
bool bench_sync(bench *b);
bool bench_put(bench *b, const void *p, size_t n);
bool bench_get(bench *b, void *p, size_t n);
void bench_percentiles(double *v, int n, double *p50, double *p99);
uint64_t bench_total(const bench *b, uint64_t size);
/* Page i of a pool, strewn so that no two neighbours in order are neighbours in memory. */
uint64_t bench_page(const bench *b, uint64_t i, uint64_t size);

/* Each is called by both sides at once; side 0 gets the figure. */
hy_status bench_tcp_open(bench *b);
hy_status bench_tcp_bulk(bench *b, hy_fab_bench_row row, uint64_t size, double *gbs);
hy_status bench_tcp_pings(bench *b, double *p50, double *p99);
void bench_tcp_close(bench *b);

hy_status bench_pair_open(bench *b, int which);
hy_status bench_pair_move(bench *b, int which, uint64_t size, bool read, double *gbs);
hy_status bench_pair_pings(bench *b, double *p50, double *p99);
hy_status bench_idle(bench *b);
void bench_pair_close(bench *b, int which);

/* ofi/: the provider that fabric chose, without fabric; HY_E_UNSUPPORTED without libfabric. */
hy_status bench_raw_open(bench *b);
hy_status bench_raw_move(bench *b, uint64_t size, bool read, double *gbs);
void bench_raw_close(bench *b);

#endif
