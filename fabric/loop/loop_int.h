/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the loop: nodes with an inbox ordered by time, connection ends, packets.
 *
 * Thread: under the net's lock, which is taken inside a fabric's lock, never around it.
 * Owner: the net owns nodes and packets; connection ends are counted.
 */
#ifndef HY_FABRIC_LOOP_LOOP_INT_H
#define HY_FABRIC_LOOP_LOOP_INT_H

#include "fabric/fab_int.h"
#include "fabric/loop/loop.h"

typedef struct loop_node loop_node;
typedef struct loop_conn loop_conn;

struct loop_conn { /* one end */
    fab_conn base;
    loop_node *node;
    loop_conn *other; /* NULL: closed there */
    bool open;        /* here */
    int refs;
    char addr[80];                /* of the listener, the same at both ends */
    uint64_t last_at, busy_until; /* of what this end sends */
};

typedef enum loop_kind {
    LOOP_CONNECT,
    LOOP_ACCEPTED,
    LOOP_BYTES,
    LOOP_FIN,
    LOOP_WRITE,
    LOOP_READ,
    LOOP_READ_DATA,
    LOOP_ACK,
} loop_kind;

typedef struct loop_pkt {
    uint64_t at, seq;
    loop_kind kind;
    loop_node *to;
    loop_conn *conn;          /* the receiving end; counted */
    uint64_t dst, src, piece; /* data path ids; the sender's piece */
    char from_node[HY_FAB_NODE_MAX], addr[80];
    hy_status status;
    int n_segs;
    struct {
        uint64_t id, token, off, len;
    } seg[FAB_SEGS];
    size_t len;
    struct loop_pkt *next; /* held ones */
    uint8_t data[];
} loop_pkt;

struct loop_node {
    struct hy_loop_net *net;
    hy_fab *f;
    char name[HY_FAB_NODE_MAX];
    char addr[HY_FAB_RAILS_MAX][80];
    bool dead, silent, woken;
    uint64_t stalled_until;
    uint64_t device_bytes; /* registered */
    pthread_cond_t cond;
    loop_pkt **heap;
    size_t n, cap;
    struct loop_dpl *dpls;
    loop_conn **conns; /* open ends of this node, for resets */
    size_t n_conns, cap_conns;
    loop_node *next;
    bool gone; /* its endpoint is closed: kept for packets under way */
};

typedef struct loop_dpl { /* data path of a link */
    loop_node *node;
    fab_link *link;
    uint64_t id, peer_id, busy_until;
    char peer_node[HY_FAB_NODE_MAX], addr[80];
    struct loop_dpl *next;
} loop_dpl;

struct hy_loop_net {
    pthread_mutex_t lock;
    hy_clock *clock;
    hy_rng rng;
    hy_loop_model m;
    hy_loop_stats stats;
    loop_node *nodes;
    uint64_t seq, next_dpl;
    struct {
        char a[HY_FAB_NODE_MAX], b[HY_FAB_NODE_MAX];
    } part[32];
    int n_part;
    char cut[16][80];
    int n_cut;
    loop_pkt *held;
    hy_stage **stages; /* of closed endpoints, until the runtime is gone */
    size_t n_stages;
};

loop_node *loop__find_node(struct hy_loop_net *n, const char *name);
loop_pkt *loop__pkt(loop_kind kind, size_t len);
/* When a packet of so many bytes, sent now, arrives; moves *busy. HY_NEVER: lost. */
uint64_t loop__arrival(struct hy_loop_net *n, size_t len, uint64_t *busy, bool data);
/* Puts it into the receiver's inbox, or holds it while the way is shut. Frees it when nobody is
 * there. from, addr: for partitions and cuts. */
void loop__post(struct hy_loop_net *n, loop_pkt *p, const char *from, const char *addr);
void loop__pkt_free(loop_pkt *p);
bool loop__chance(struct hy_loop_net *n, double p);
/* loop_dp.c: a data packet has arrived. Without the net's lock. */
void loop__data_in(loop_node *node, loop_pkt *p);

#endif
