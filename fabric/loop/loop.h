/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop: fabric's transport inside one process, for many nodes, under virtual or real time,
 * with seeded faults. Control connections behave like TCP (what is dropped comes later, nothing is
 * reordered); data pieces behave like one-sided writes and reads of a network card that needs the
 * target to poll: delayed, lost, doubled, reordered, flipped, as asked.
 *
 * Addresses are any names ("p0:1"); a name is free again when its endpoint is closed or killed.
 *
 * Thread: any.  Owner: the creator destroys it, after every endpoint, and after the runtime that
 * drove them.
 */
#ifndef HY_FABRIC_LOOP_LOOP_H
#define HY_FABRIC_LOOP_LOOP_H

#include "fabric/fabric.h"

typedef struct hy_loop_net hy_loop_net;

/* Faults and costs of everything that travels; probabilities are per frame or piece. */
typedef struct hy_loop_model {
    uint64_t latency_ns, jitter_ns; /* one way: latency + uniform 0..jitter */
    uint64_t bytes_per_s;           /* per direction of a link; 0: infinite */
    double drop;                    /* data: lost for good; control: late by rto_ns */
    double duplicate;               /* it lands twice, the second time later */
    double reorder;                 /* data only: late by up to rto_ns while others pass */
    double corrupt;                 /* control: a flipped bit (its checksum tells) */
    double corrupt_data;            /* data: a flipped bit that nobody below tells */
    uint64_t rto_ns;
    uint64_t device_bytes; /* device memory that a node takes, as dmabufs that the host can map */
} hy_loop_model;

/* NULL when out of memory. clock: the runtime's, or hy_clock_real(). */
hy_loop_net *hy_loop_net_create(hy_clock *clock, uint64_t seed);
void hy_loop_net_destroy(hy_loop_net *n);
void hy_loop_set(hy_loop_net *n, const hy_loop_model *m);

/* Nodes are named by their ids. */
/* Nothing passes between a and b (NULL: anybody) until heal; connections do not notice. */
void hy_loop_partition(hy_loop_net *n, const char *a, const char *b);
void hy_loop_heal(hy_loop_net *n);
/* Nothing passes over this address (a rail) any more, as when its cable is pulled. */
void hy_loop_cut(hy_loop_net *n, const char *addr, bool cut);
/* The node does nothing for so long, as when it is stopped. */
void hy_loop_stall(hy_loop_net *n, const char *node, uint64_t ns);
/* kill -9: its connections reset (or, silent, they do not: a lost machine). The endpoint may then
 * be closed; nobody hears of it. */
void hy_loop_kill(hy_loop_net *n, hy_fab *f, bool silent);

typedef struct hy_loop_stats {
    uint64_t frames, pieces, dropped, duplicated, reordered, corrupted, held, landed_dead;
} hy_loop_stats;
void hy_loop_stats_get(hy_loop_net *n, hy_loop_stats *out);

#endif
