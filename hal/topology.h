/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process may use of the machine: cores, caches, memory nodes and NICs near them. Limits
 * by affinity (taskset, cpusets) and by cgroup quota count: a container with two CPUs of 128 gets
 * two threads.
 *
 * Thread: any; read anew at each call.  Owner: the caller holds the buffer.
 */
#ifndef HY_HAL_TOPOLOGY_H
#define HY_HAL_TOPOLOGY_H

#include "core/base/buf.h"

typedef struct hy_topo {
    int packages, numa_nodes;
    int cores, pus;                /* allowed to this process */
    int cores_total, pus_total;    /* of the machine */
    double cpu_quota;              /* CPUs by cgroup; 0: no limit */
    uint64_t l1d, l2, l3;          /* bytes of one cache; 0: none or unknown */
    int l2_cores, l3_cores;        /* cores that share one */
    uint64_t mem_total, mem_limit; /* bytes; limit by cgroup, 0: none */
    uint64_t mem_free;             /* bytes that this process can still have */
} hy_topo;

hy_status hy_topo_get(hy_topo *out);
/* Threads to start: allowed physical cores, at most the quota rounded up, at least 1. */
int hy_topo_threads(void);
/* System numbers of the first allowed CPU of each allowed core, near ones side by side; returns
 * how many were written. For pinning. */
int hy_topo_cpus(int *out, int max);
/* For `halyard devices`. */
void hy_topo_print(hy_buf *out);

#endif
