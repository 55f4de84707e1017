/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport between nodes: one interface for libfabric, own framed TCP and the in-process
 * loop. What it promises, on every provider:
 * - calls never block: they start something, and each started operation ends in exactly one
 *   event, in bounded time (deadline, then fence), whatever the provider reports or does not;
 * - complete means applied at the destination, visible to its threads;
 * - once an operation's event is out, fabric touches its local memory no more;
 * - a peer is (node id, epoch); a handle names one epoch and never the next. Addresses are hints;
 * - no key and no data address is given to anyone who does not know the shared secret.
 *
 * A write whose outcome is unknown is never repeated: its event carries HY_FAB_UNKNOWN, and the
 * remote range must be quarantined until that peer's epoch is over. Reads are repeated on another
 * rail. What malformed peers send is counted and refused.
 *
 * Thread: any, except where a call says otherwise; events come out of hy_fab_poll, from one thread
 * at a time. notify runs on any thread.
 * Owner: the opener closes; memory that is registered stays the caller's and outlives its
 * hy_fab_mr.
 */
#ifndef HY_FABRIC_FABRIC_H
#define HY_FABRIC_FABRIC_H

#include "core/base/buf.h"
#include "core/base/runtime.h"
#include "core/base/span.h"

enum {
    HY_FAB_PROTO = 2,          /* version of the wire protocol; others are refused by name */
    HY_FAB_NODE_MAX = 64,      /* bytes of a node id, with its NUL */
    HY_FAB_RAILS_MAX = 8,      /* addresses of a node */
    HY_FAB_MSG_MAX = 65536,    /* bytes of one message */
    HY_FAB_KEY_MAX = 192,      /* bytes of a packed key */
    HY_FAB_SECRET_MIN = 16,    /* bytes of a shared secret */
    HY_FAB_RANGES_MAX = 65536, /* ranges of one operation */
};

typedef struct hy_fab hy_fab;
typedef struct hy_fab_mr hy_fab_mr;
typedef uint64_t hy_fab_peer; /* a node in one epoch; 0 names nobody */
struct hy_loop_net;           /* fabric/loop/loop.h */

/* The default of [fabric] providers. */
#define HY_FAB_PROVIDERS "verbs,efa,tcp,own"

typedef enum hy_fab_pull {                    /* how reads are done */
                           HY_FAB_PULL_AUTO,  /* what is faster on the provider */
                           HY_FAB_PULL_WRITE, /* ask the owner to write: for software providers */
                           HY_FAB_PULL_READ,  /* the provider's own read: verbs, EFA */
} hy_fab_pull;

typedef struct hy_fab_opts {
    const char *node;                    /* own id, at most 63 bytes */
    uint64_t epoch;                      /* 0: random */
    const char *addrs[HY_FAB_RAILS_MAX]; /* "host:port" to listen on, one per rail; port 0: any */
    int n_addrs;
    int rail_node[HY_FAB_RAILS_MAX]; /* NUMA node of each rail's card; -1: as the system tells */
    const char *providers; /* names in order of preference: "verbs,efa,tcp,shm,own". tcp (or net) is
                            * native TCP of any libfabric version, own our framed TCP; with both on
                            * the list own also stands beside tcp, and carries the bytes */
    const void *secret;    /* copied */
    size_t secret_len;
    struct hy_loop_net *loop; /* not NULL: in-process transport; addrs are names in that net */
    hy_runtime *runtime;      /* virtual time (loop only); NULL: a thread of its own */
    uint64_t heartbeat_ns, peer_timeout_ns; /* silence that ends a peer */
    uint64_t connect_timeout_ns, op_timeout_ns;
    uint64_t stall_ns; /* in flight and nothing completes: the link is given up */
    uint64_t grace_ns; /* a cancelled operation may drain that long before its link is torn down */
    uint64_t piece_bytes, window_bytes; /* per write; in flight per link */
    uint32_t max_ops; /* started and not yet polled: more are refused (HY_AGAIN) */
    uint32_t max_peers;
    hy_fab_pull pull;
    const char *congestion; /* TCP's congestion control: "auto", "system" or its name; copied */
    bool strict;    /* impose EFA's rules: completions out of order, one remote range per write */
    bool same_node; /* writes between processes of one user on one host go by process_vm_readv */
    void (*notify)(void *arg); /* events are there: wake the one who polls; must not call fabric */
    void *notify_arg;
} hy_fab_opts;

void hy_fab_opts_init(hy_fab_opts *o);

/* Listens on every address. HY_E_INVAL, HY_E_NOTFOUND (no provider of the list), HY_E_SYS. */
hy_status hy_fab_open(const hy_fab_opts *o, hy_fab **out);
/* Tells the peers, tears everything down; operations in flight get no event. NULL is fine. */
void hy_fab_close(hy_fab *f);

typedef struct hy_fab_info {
    uint64_t epoch;
    int n_rails;
    struct {
        char addr[80];     /* as bound, with the real port */
        char provider[48]; /* "net", "shm", "own", "loop" */
    } rail[HY_FAB_RAILS_MAX];
} hy_fab_info;
void hy_fab_info_get(hy_fab *f, hy_fab_info *out);

/* Memory. Not for the hot path: registering pins pages. Device memory needs a provider that takes
 * it (HY_E_UNSUPPORTED: stage through host memory). */
enum { HY_FAB_REMOTE_READ = 1, HY_FAB_REMOTE_WRITE = 2 };
hy_status hy_fab_reg(hy_fab *f, const hy_span *s, unsigned access, hy_fab_mr **out);
/* HY_E_BUSY while own operations use it, or while a peer's may be landing in it. */
hy_status hy_fab_dereg(hy_fab *f, hy_fab_mr *mr);
/* Does not wait for them: own operations on it are stopped (their events follow), links over which
 * a peer's may be landing are closed. HY_OK: nothing of fabric touches the memory any more. */
hy_status hy_fab_dereg_now(hy_fab *f, hy_fab_mr *mr);
uint64_t hy_fab_mr_len(const hy_fab_mr *mr);

/* A key: what a peer needs to read and write a registered memory. Send it in a message. */
typedef struct hy_fab_key {
    uint64_t epoch; /* of the owner */
    uint64_t id, token, len;
    uint32_t access, n_rails;
    uint64_t addr[HY_FAB_RAILS_MAX], rkey[HY_FAB_RAILS_MAX];
} hy_fab_key;
/* Appends at most HY_FAB_KEY_MAX bytes. */
void hy_fab_key_pack(const hy_fab_mr *mr, hy_buf *out);
/* HY_E_FORMAT: not a key. HY_E_PEER: of another epoch than the peer's. *used_out may be NULL. */
hy_status hy_fab_key_unpack(hy_fab *f, hy_fab_peer peer, const void *data, size_t len,
                            hy_fab_key *out, size_t *used_out);

typedef enum hy_fab_ev_kind {
    HY_FAB_EV_CONNECT, /* hy_fab_connect ended: status, peer, user, op */
    HY_FAB_EV_UP,      /* a peer is there (by either side's wish): peer, node, epoch */
    HY_FAB_EV_DOWN,    /* and gone: every operation of it has had its event before; status why */
    HY_FAB_EV_DONE, /* a read, write or send ended: status, op, user, flags, len = bytes applied */
    HY_FAB_EV_MSG,  /* a message: type, data, len */
    HY_FAB_EV_IMM,  /* a peer's write with an immediate is applied here: imm */
} hy_fab_ev_kind;

enum { HY_FAB_UNKNOWN = 1 }; /* flags: a failed write or send may have been applied, or be yet */

typedef struct hy_fab_event {
    hy_fab_ev_kind kind;
    hy_status status;
    uint32_t flags, type;
    hy_fab_peer peer;
    uint64_t op, user, imm, epoch;
    void *data; /* yours: hy_fab_event_fini */
    uint64_t len;
    char text[96]; /* UP: node id; failures: why */
} hy_fab_event;

/* Takes at most n events. From some 30 calls without a pause on it also moves the transport, and
 * the progress thread keeps away; call hy_fab_wait when the loop ends, or it comes back only some
 * milliseconds later. */
size_t hy_fab_poll(hy_fab *f, hy_fab_event *ev, size_t n);
void hy_fab_event_fini(hy_fab_event *ev); /* frees data */
/* Sleeps until there is an event or CLOCK_MONOTONIC reaches deadline_ns; false: nothing came. For
 * threads with nothing else to do; never under virtual time. */
bool hy_fab_wait(hy_fab *f, uint64_t deadline_ns);

/* Peers. addrs: "host:port[,host:port...]", one per rail of the peer. node: expected id, NULL: any.
 * Ends in EV_CONNECT; a peer that is there already is found by its id. */
hy_status hy_fab_connect(hy_fab *f, const char *addrs, const char *node, uint64_t user,
                         uint64_t *op_out);
/* Ends all its operations, then EV_DOWN. */
void hy_fab_disconnect(hy_fab *f, hy_fab_peer peer);
bool hy_fab_peer_is_up(hy_fab *f, hy_fab_peer peer);
/* "net on rail 0 to 0, same node, process_vm on rail 1 to 1" */
hy_status hy_fab_peer_path(hy_fab *f, hy_fab_peer peer, hy_buf *out);

/* Is it a process on this host whose memory this one may read (opts.same_node)? Its id, then. */
bool hy_fab_peer_near(hy_fab *f, hy_fab_peer peer, uint32_t *pid_out);

/* One stretch of local memory and one of the peer's; pieces next to each other are joined. */
typedef struct hy_fab_range {
    hy_fab_mr *mr;
    uint64_t off;
    const hy_fab_key *key; /* copied */
    uint64_t roff, len;
} hy_fab_range;

typedef struct hy_fab_op_opts {
    uint64_t user;
    uint64_t timeout_ns; /* 0: the endpoint's */
    bool has_imm;        /* writes: EV_IMM at the peer once all bytes are applied there */
    uint64_t imm;
} hy_fab_op_opts;

/* All return at once: HY_OK and an id (never 0, never used again), HY_AGAIN when too much is
 * started, HY_E_PEER when the handle's epoch is over, HY_E_INVAL for a range outside its memory or
 * key. ranges and data are copied; opts may be NULL. The memory of a write must not change before
 * its event: a card, and own TCP, read it when they like. What arrived of one that failed is of no
 * use to anybody. */
hy_status hy_fab_write(hy_fab *f, hy_fab_peer peer, const hy_fab_range *r, size_t n,
                       const hy_fab_op_opts *opts, uint64_t *op_out);
hy_status hy_fab_read(hy_fab *f, hy_fab_peer peer, const hy_fab_range *r, size_t n,
                      const hy_fab_op_opts *opts, uint64_t *op_out);
/* Messages of one peer arrive in order, each once. */
hy_status hy_fab_send(hy_fab *f, hy_fab_peer peer, uint32_t type, const void *data, size_t len,
                      const hy_fab_op_opts *opts, uint64_t *op_out);
/* Stop it: its event comes after a fence, with HY_E_ABORTED, or HY_OK if it was done already.
 * HY_E_NOTFOUND: it has ended. */
hy_status hy_fab_cancel(hy_fab *f, uint64_t op);

typedef struct hy_fab_stats {
    uint64_t ops, ops_failed, bytes_written, bytes_read, bytes_served, msgs_sent, msgs_received;
    uint64_t bad_frames, foreign_versions, refused_auth, dup_msgs, links_lost, peers_lost;
    uint64_t retried_pieces, unknown_writes, timeouts,
        late; /* late: completions nobody waits for */
    uint64_t spins, sleeps;
    uint64_t beside;                       /* bytes that own TCP carried beside native TCP */
    uint64_t same_node;                    /* bytes taken from a peer by process_vm_readv */
    uint64_t rail_bytes[HY_FAB_RAILS_MAX]; /* moved by writes and reads started here */
    uint32_t peers_up, ops_open, links_up;
} hy_fab_stats;
void hy_fab_stats_get(hy_fab *f, hy_fab_stats *out);

#endif
