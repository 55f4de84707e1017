/* SPDX-License-Identifier: Apache-2.0
 *
 * What the transport suite needs of an implementation: two or more endpoints, a way to let time
 * pass, and what it can do.
 *
 * Thread: the test's.  Owner: tr_close frees all.
 */
#ifndef HY_TESTS_TRANSPORT_H
#define HY_TESTS_TRANSPORT_H

#include "fabric/fabric.h"
#include "fabric/loop/loop.h"

typedef struct tr_impl {
    const char *name; /* "loop-virtual", "loop", "net", "net-strict", "own", "shm", "verbs" */
    const char *providers;
    bool loop, virt, strict;
    hy_fab_pull pull;
    bool same;   /* the same-node path, which the others are without */
    bool beside; /* own TCP beside the provider */
    bool copies; /* the system does not lend pages to sockets */
} tr_impl;

typedef struct tr_node {
    hy_fab *f;
    hy_fab_peer peer; /* of the other one */
    hy_fab_info info;
    char addrs[256];
    char name[32];
    hy_fab_event ev[64]; /* taken and not yet looked at */
    size_t n_ev;
} tr_node;

typedef struct tr {
    const tr_impl *im;
    hy_runtime *rt;
    hy_loop_net *net;
    tr_node n[4];
    int rails;
    uint64_t epoch;
} tr;

/* opts: changes the defaults; may be NULL. */
void tr_init(tr *t, const tr_impl *im, int rails);
void tr_open(tr *t, int i, const char *secret, void (*tune)(hy_fab_opts *o));
void tr_join(tr *t, int a, int b);
void tr_close(tr *t);
void tr_close_node(tr *t, int i);
uint64_t tr_now(tr *t);
/* Lets a little time pass for everybody. */
void tr_pass(tr *t);
/* Two endpoints that know each other. */
void tr_pair(tr *t, const tr_impl *im, int rails);
/* The one event of node i's operation, which must be fine. */
void tr_done_ok(tr *t, int i, uint64_t op);
/* Waits until node 0 has that many links: further ones may take a moment. */
void tr_links(tr *t, uint64_t n);
/* The next event of node i of that kind (-1: any) within so long; false: none. Others are kept in
 * order. The caller finishes it. */
bool tr_event(tr *t, int i, int kind, uint64_t ns, hy_fab_event *out);
/* Registered memory of n bytes at node i, and its key at node j. */
hy_fab_mr *tr_mem(tr *t, int i, void *p, size_t n, int j, hy_fab_key *key);
/* Deregisters as soon as nothing may be under way any more. */
void tr_dereg(tr *t, int i, hy_fab_mr *mr);
/* transport_chaos.c: one seed of faults; counts operations. */
void transport_chaos(const tr_impl *im, uint64_t seed, uint64_t *ok, uint64_t *failed);
void tr_fill(void *p, size_t n, uint64_t seed);
/* Address of a rail: the n-th of HY_TEST_HOSTS ("10.0.0.1,10.0.0.2": verbs needs its device's),
 * else a loopback address. */
const char *tr_host(int rail);
/* Times longer than on a plain machine: HY_TEST_SLOW (an emulated one), else 1. */
uint64_t tr_slow(void);

#endif
