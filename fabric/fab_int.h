/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the fabric: one state machine for peers, messages and operations, above two small
 * interfaces: control connections (byte streams: TCP, or the loop) and data paths (who moves the
 * bytes of a piece: libfabric, own TCP, the loop).
 *
 * A *link* is one control connection to a peer over one rail, with the data path beside it. A peer
 * is up while one link is. Closing a link is the fence: its data path is gone on this side, so
 * nothing moves in or out of local memory through it any more.
 *
 * Thread: all under hy_fab.lock.  Owner: hy_fab owns all; a dead link is freed at the end of a
 * pass.
 */
#ifndef HY_FABRIC_FAB_INT_H
#define HY_FABRIC_FAB_INT_H

#include "core/base/alloc.h"
#include "core/base/log.h"
#include "fabric/fabric.h"
#include "fabric/wire.h"

#include <pthread.h>
#include <stdatomic.h>

enum { FAB_LAND = 4 /* access: bytes may land in it */, FAB_DEVICE = 8 /* not host memory */ };
enum { FAB_SEGS = 16, FAB_CTX = 128, FAB_OPS_HASH = 4096, HY_FAB_WINDOW = 256 /* messages */ };
enum { FAB_CONGESTION_MAX = 16 };

typedef struct fab_link fab_link;
typedef struct fab_op fab_op;
typedef struct fab_piece fab_piece;
typedef struct fab_peer fab_peer;

/* Control connections. The core gives and gets bytes; a conn carries its link in `link`. */
typedef struct fab_conn {
    fab_link *link; /* NULL: nobody listens any more */
    int rail;
} fab_conn;

typedef struct fab_ct_ops {
    hy_status (*listen)(void *ct, int rail, const char *addr, char *bound, size_t cap);
    /* Result through hy_fab__opened or hy_fab__closed. */
    hy_status (*connect)(void *ct, int rail, const char *addr, fab_link *link, fab_conn **out);
    /* Takes all of it (queues what does not go now). */
    hy_status (*send)(void *ct, fab_conn *c, const void *a, size_t na, const void *b, size_t nb);
    size_t (*backlog)(void *ct, fab_conn *c);
    void (*close)(void *ct, fab_conn *c); /* what was sent still goes out if it can */
    bool (*poll)(void *ct, uint64_t now); /* true: something happened */
    uint64_t (*next)(void *ct);           /* when it wants to be polled by itself; HY_NEVER */
    /* The node stands still until then (the loop only; NULL: never). */
    bool (*frozen)(void *ct, uint64_t now, uint64_t *until);
    /* Sleep; quiet: only wake ends it, traffic does not (somebody else polls). */
    void (*wait)(void *ct, uint64_t until_ns, bool quiet);
    void (*wake)(void *ct);                /* any thread */
    int (*take_fd)(void *ct, fab_conn *c); /* give the socket away; -1: not a socket */
    /* This end's address as a sockaddr of at most cap bytes; 0: it has none. May be NULL. */
    size_t (*local)(void *ct, fab_conn *c, void *sockaddr, size_t cap);
    void (*destroy)(void *ct, hy_stage *stage); /* stage: ran the endpoint; may be NULL */
} fab_ct_ops;

/* Data paths, one object per rail and one per link. */
typedef struct fab_dp_ops {
    const char *name;
    int max_segs;
    bool pull_by_write; /* HY_FAB_PULL_AUTO */
    hy_status (*rail_open)(hy_fab *f, int rail, const char *host, const char *provider,
                           void **rail_out);
    void (*rail_close)(void *rail);
    hy_status (*reg)(void *rail, const hy_span *s, unsigned access, uint64_t token, void **mr_out,
                     uint64_t *addr_out, uint64_t *rkey_out);
    void (*dereg)(void *mr);
    /* blob: what the peer needs to reach this link (at most FAB_BLOB_MAX bytes). */
    hy_status (*link_open)(void *rail, fab_link *l, void **dpl_out, void *blob, size_t *blob_len);
    hy_status (*link_connect)(void *dpl, const void *blob, size_t blob_len);
    void (*link_close)(void *dpl); /* the fence; no hy_fab__piece_done for its pieces after it */
    /* HY_OK, HY_AGAIN (no room now), or a failure of the link. */
    hy_status (*post)(void *dpl, fab_piece *p);
    bool (*progress)(void *dpl, uint64_t now);
    /* By the peer's wish, bytes may be on their way into or out of this memory, and would go on
     * after its deregistration. NULL: never. */
    bool (*uses)(void *dpl, const hy_fab_mr *mr);
} fab_dp_ops;

struct hy_fab_mr {
    hy_fab *f;
    uint64_t id, token;
    hy_span span;
    unsigned access;
    uint32_t users;
    struct {
        void *dmr;
        uint64_t addr, rkey;
        int distance; /* of the rail's card */
    } rail[HY_FAB_RAILS_MAX];
    hy_fab_mr *next;
};

typedef struct fab_seg { /* one stretch of a piece */
    hy_fab_mr *mr;
    uint64_t off;
    const hy_fab_key *key;
    uint64_t roff, len;
} fab_seg;

struct fab_piece {
    _Alignas(64) unsigned char ctx[FAB_CTX]; /* the provider's, while posted */
    fab_op *op;
    fab_link *link; /* where it was posted; NULL for a pull */
    fab_piece *prev, *next;
    uint64_t id;           /* pulls: names it on the wire */
    bool read, pull, same; /* same: by process_vm_readv of the target */
    uint64_t lost_link;    /* pulls: the owner's link that died under it */
    int n_segs;
    uint64_t len;
    uint32_t first; /* pulls: from byte skip of range first on */
    uint64_t skip;
    fab_seg seg[FAB_SEGS];
};

typedef struct fab_range {
    hy_fab_mr *mr;
    uint64_t off, roff, len;
    uint32_t key;
} fab_range;

typedef enum fab_op_kind { FAB_WRITE, FAB_READ, FAB_SEND, FAB_SERVE, FAB_CONNECT } fab_op_kind;

struct fab_op {
    uint64_t id, user, deadline, grace; /* grace 0: not stopping */
    fab_op_kind kind;
    fab_peer *peer;
    hy_status status;
    uint32_t flags;
    fab_range *ranges;
    uint32_t n_ranges, cur;
    uint64_t cur_off, len, done;
    hy_fab_key *keys;
    uint32_t n_keys;
    uint32_t n_out;   /* pieces posted */
    fab_piece *redo;  /* reads to post again */
    fab_piece *pulls; /* asked of the owner, not answered */
    bool has_imm, imm_sent, pull, queued;
    bool device; /* a range of it lies in a device's memory, here or there */
    uint64_t imm;
    uint32_t retries;
    uint64_t serve_id, lost_link;    /* FAB_SERVE: the reader's piece; the link that died */
    fab_op *hash_next, *next, *prev; /* list of the peer */
    int n_links;                     /* FAB_CONNECT: links under way */
    char *addrs;
};

typedef struct fab_msg { /* sent, not yet acknowledged */
    struct fab_msg *next;
    uint64_t seq, op;
    uint32_t sub, len;
    uint8_t *data; /* payload of a MSG frame with its fixed part */
} fab_msg;

struct fab_peer {
    hy_fab_peer handle;
    char node[HY_FAB_NODE_MAX];
    uint64_t epoch;
    bool used, up;
    fab_link *primary;
    fab_msg *head, *tail, *tx_next; /* unacknowledged; next to transmit on primary */
    uint64_t tx_seq, rx_seq;
    uint64_t inc, their_inc; /* incarnations of this state here and there: both must agree */
    uint32_t n_links;
    uint64_t tx_app, tx_consumed; /* application messages sent; handed out by the peer's poll */
    bool ack_dirty;
    uint64_t ack_since;
    fab_op *ops, *ops_tail; /* all open ones, in turn order */
    uint32_t n_queued;      /* ops with something to post */
    uint64_t pulling;       /* bytes asked for and not answered */
    uint32_t n_serves;
    _Atomic uint64_t consumed; /* application messages that poll handed out */
    uint64_t consumed_base, consumed_told;
    char *addrs; /* NULL: it dialled us */
    uint64_t redial_at;
    struct {
        uint64_t at; /* not before */
        uint32_t fails;
    } again[2][HY_FAB_RAILS_MAX]; /* by kind of link (beside) and place in addrs */
};

typedef enum fab_link_state {
    LINK_OPENING,   /* connection under way */
    LINK_HELLO,     /* accepted, awaits HELLO */
    LINK_CHALLENGE, /* dialled, HELLO sent */
    LINK_AUTH,      /* accepted, challenge sent */
    LINK_READY,     /* dialled, AUTH sent */
    LINK_UP,
    LINK_DEAD,
} fab_link_state;

struct fab_link {
    hy_fab *f;
    fab_link *next;
    fab_conn *conn;
    fab_link_state state;
    bool out;
    int rail, rrail;
    fab_peer *peer;
    uint64_t connect_op;
    const fab_dp_ops *dp;
    void *dpl;
    fab_hello mine, theirs;
    uint8_t transcript[32];
    uint64_t id;
    hy_buf rx;
    uint64_t deadline, last_rx, last_tx, last_done;
    uint64_t bytes_out, carried, up_at;
    uint32_t n_out, n_dp; /* pieces in flight; those on the data path, the others by same.c */
    fab_piece *pieces;
    bool we_announce, they_announce, broken;
    int max_segs; /* ranges of one piece; a data path may lower it */
    bool pull_by_write;
    bool native_tcp;      /* libfabric's: few ranges a piece, slow where one is just above 64 KiB */
    bool beside;          /* own TCP that stands beside native TCP: carries its bytes */
    bool awaits;          /* own TCP: its data connection is not there yet */
    bool lost_some;       /* closed with bytes under way */
    bool busy;            /* its data path wants to be polled though nothing is in flight */
    bool full;            /* takes no more in this pass */
    uint64_t again_since; /* it has taken nothing since then; 0: it does */
    hy_status broken_st;
    char broken_why[96];
    uint64_t idle_since;
    uint64_t worked_ns;         /* spent in the data path since it last had nothing */
    uint64_t rest_until;        /* it is left alone till then, so that bytes gather */
    char addr[80];              /* dialled */
    char from[80];              /* accepted: whose socket it is; "": not known */
    char want[HY_FAB_NODE_MAX]; /* dialled: who shall answer; "": anybody */
    struct {
        bool rx, tx; /* the peer's memory can be read from here; ours from there */
        uint32_t pid, n_in;
        uint64_t addr;
        uint8_t nonce[16]; /* lies at addr of process pid as long as that is the peer */
        struct fab_same_in *head, *tail;
    } same;
};

struct hy_fab {
    hy_fab_opts o;
    char node[HY_FAB_NODE_MAX];
    char congestion[FAB_CONGESTION_MAX];
    bool beside; /* own TCP is on the list: it may stand beside native TCP */
    uint64_t epoch;
    uint8_t secret[64];
    pthread_mutex_t turn, lock; /* turn: who waits for the lock next, so that nobody starves */
    hy_clock *clock;
    hy_rng rng;
    const fab_ct_ops *ct;
    void *ctx;
    int n_rails;
    struct {
        char addr[80];
        char provider[48];
        const fab_dp_ops *dp;
        void *rail;
        int node;  /* NUMA node of its card, -1: not known */
        bool pins; /* memory is pinned when it is registered */
    } rail[HY_FAB_RAILS_MAX];
    void *own_rail;
    struct {
        uint64_t host;     /* machine and user; 0: no same-node path */
        uint8_t nonce[16]; /* a peer that reads it here is on this machine */
    } same;
    fab_peer *peers;
    uint32_t peers_gen, n_slots; /* slots ever used: loops end there */
    fab_link *links;
    hy_fab_mr *mrs;
    uint64_t next_mr, next_op, next_piece;
    fab_op *ops[FAB_OPS_HASH];
    fab_op *connects; /* FAB_CONNECT, list by next */
    uint32_t n_ops;
    fab_piece *free_pieces;
    hy_fab_stats stats;
    uint64_t next_timers, bad_logged, denied_logged;
    char denied[96]; /* the refusal that was logged last */
    bool closing;
    /* events */
    pthread_mutex_t ev_lock;
    pthread_cond_t ev_cond;
    hy_fab_event *ev;
    size_t ev_head, ev_n, ev_cap;
    _Atomic size_t ev_count;
    _Atomic uint32_t ev_ops; /* DONE events not yet polled */
    bool put_off;            /* the last pass posted nothing, so that an event is told first */
    bool told;               /* notify is owed at the end of the pass */
    /* driver */
    pthread_t thread;
    bool has_thread;
    _Atomic bool stop;
    hy_stage *stage;
    _Atomic uint64_t polled_ns; /* somebody polls in a loop: the thread keeps away */
    _Atomic uint64_t polling_since;
    _Atomic uint64_t called_ns; /* the end of another call, which may have taken long */
    _Atomic bool asleep;
    uint64_t last_poll_ns; /* of the thread that polls */
    unsigned poll_streak;
    _Atomic uint64_t spins, sleeps;
};

/* drive.c */
uint64_t hy_fab__now(hy_fab *f);
void hy_fab__lock(hy_fab *f);
void hy_fab__unlock(hy_fab *f);
/* Somebody polls in a loop and does the thread's work. */
bool hy_fab__polled_lately(hy_fab *f, uint64_t now);
/* After something was started: let the thread look at it. */
void hy_fab__kick(hy_fab *f);
/* One pass; true when something happened. *next: when to come again. *hot: bytes may move that
 * only polling moves: in flight, or announced by a peer. */
bool hy_fab__pass(hy_fab *f, uint64_t *next, bool *hot);
hy_status hy_fab__drive_start(hy_fab *f);
void hy_fab__drive_stop(hy_fab *f);

/* event.c */
void hy_fab__event(hy_fab *f, const hy_fab_event *ev);

/* link.c */
void hy_fab__accepted(hy_fab *f, int rail, fab_conn *c);
void hy_fab__opened(fab_link *l);
void hy_fab__bytes(fab_link *l, const void *data, size_t n);
void hy_fab__closed(fab_link *l, const char *why);
hy_status hy_fab__dial(hy_fab *f, int rail, const char *addr, const char *want,
                       uint64_t connect_op);
/* Whether a dialled link of that kind may be dialled again: one that is lost over and over waits.
 */
bool hy_fab__may_dial(hy_fab *f, const fab_peer *p, const char *addr, bool beside);
/* Own TCP, a second link beside one over native TCP that was dialled, if it has none. */
void hy_fab__dial_beside(const fab_link *l);
void hy_fab__link_close(fab_link *l, hy_status st, const char *why);
hy_status hy_fab__frame(fab_link *l, fab_kind kind, const void *a, size_t na, const void *b,
                        size_t nb);
/* Close it at the end of the pass: safe in callbacks of its connection and data path. */
void hy_fab__break(fab_link *l, hy_status st, const char *why);
void hy_fab__bad(fab_link *l, hy_status st); /* what came over it is malformed: counted, broken */
void hy_fab__announce(fab_link *l); /* bytes come: the peer's thread polls till told otherwise */
bool hy_fab__links_progress(hy_fab *f, uint64_t now, bool *hot);
void hy_fab__links_timers(hy_fab *f, uint64_t now); /* lowers next_timers */
void hy_fab__links_reap(hy_fab *f);
/* auth.c: handshake frames */
void hy_fab__shake(fab_link *l, fab_kind kind, const uint8_t *p, size_t n);
void hy_fab__hello(fab_link *l);
/* Log that a greeting was refused, by this side or by them; the same again at most once a minute.
 */
void hy_fab__denied(fab_link *l, bool by_them, const char *why);

/* peer.c */
fab_peer *hy_fab__peer(hy_fab *f, hy_fab_peer h);
/* The other side is proven: find or make its peer; an older epoch of the node goes down first. */
hy_status hy_fab__peer_meet(fab_link *l);
/* The link is up. their_inc: the peer's incarnation of us. */
hy_status hy_fab__peer_join(fab_link *l, uint64_t their_inc);
void hy_fab__peer_leave(fab_link *l, hy_status st, const char *why);
void hy_fab__peer_down(fab_peer *p, hy_fab *f, hy_status st, const char *why);
void hy_fab__peers_timers(hy_fab *f, uint64_t now);
void hy_fab__connect_failed(hy_fab *f, uint64_t op, hy_status st, const char *why);
void hy_fab__timer(hy_fab *f, uint64_t at_ns);

/* msg.c */
hy_status hy_fab__msg(hy_fab *f, fab_peer *p, fab_sub sub, uint32_t type, uint64_t num,
                      const void *a, size_t na, const void *b, size_t nb, uint64_t op);
void hy_fab__msg_in(fab_link *l, const uint8_t *data, size_t n);
void hy_fab__msg_acked(hy_fab *f, fab_peer *p, uint64_t delivered, uint64_t consumed);
void hy_fab__msg_flush(hy_fab *f, fab_peer *p, uint64_t now, bool force);
void hy_fab__msg_repoint(hy_fab *f, fab_peer *p); /* primary changed */
void hy_fab__msg_drop(hy_fab *f, fab_peer *p);

/* op.c */
fab_op *hy_fab__op_find(hy_fab *f, uint64_t id);
fab_op *hy_fab__op_new(hy_fab *f, fab_op_kind kind, fab_peer *p);
void hy_fab__op_add(fab_op *op, const fab_range *r); /* room was made; joins neighbours */
void hy_fab__op_queue(fab_op *op, bool on);
void hy_fab__op_stop(hy_fab *f, fab_op *op, hy_status st);
void hy_fab__op_end(hy_fab *f, fab_op *op); /* its event, then gone */
void hy_fab__op_check(hy_fab *f, fab_op *op);
void hy_fab__op_free(hy_fab *f, fab_op *op);
void hy_fab__ops_timers(hy_fab *f, fab_peer *p, uint64_t now);
void hy_fab__op_fence(hy_fab *f, fab_op *op); /* breaks the links that carry it */
/* piece.c */
bool hy_fab__post(hy_fab *f, fab_peer *p, uint64_t now);
void hy_fab__piece_done(fab_piece *p, hy_status st);
void hy_fab__piece_free(hy_fab *f, fab_piece *p);
fab_piece *hy_fab__piece_new(hy_fab *f, fab_op *op);
void hy_fab__link_lost_pieces(fab_link *l);
/* pull.c */
/* From the cursor on, at most so many bytes and stretches; moves the cursor. */
void hy_fab__op_cut(fab_op *op, fab_piece *p, uint64_t most, int max_segs);
hy_status hy_fab__pull_ask(hy_fab *f, fab_op *op);
void hy_fab__pull_cancel(hy_fab *f, fab_op *op);
void hy_fab__pull_serve(hy_fab *f, fab_peer *p, const uint8_t *d, size_t n);
void hy_fab__pull_stop(hy_fab *f, fab_peer *p, uint64_t id);
void hy_fab__pull_answer(hy_fab *f, fab_peer *p, const uint8_t *d, size_t n);
void hy_fab__serve_end(hy_fab *f, fab_op *op);
void hy_fab__serve_lost(hy_fab *f, fab_op *op); /* tells op->lost_link ahead of the answer */

/* near.c: NUMA nodes, -1: not known */
int hy_fab__numa_of_addr(const char *addr);
int hy_fab__numa_of_page(const void *p);
int hy_fab__numa_distance(int a, int b);

/* same.c */
void hy_fab__same_open(hy_fab *f);
void hy_fab__same_offer(const fab_link *l, uint8_t out[FAB_SAME_LEN]);
/* What the peer has offered: tries to read it. */
void hy_fab__same_meet(fab_link *l, const uint8_t in[FAB_SAME_LEN]);
bool hy_fab__same_fits(const fab_link *l, const fab_piece *p);
hy_status hy_fab__same_post(fab_link *l, fab_piece *p);
void hy_fab__same_frame(fab_link *l, fab_kind kind, const uint8_t *p, size_t n);
bool hy_fab__same_progress(fab_link *l);
void hy_fab__same_close(fab_link *l);
/* The name of the path that a link's data takes. */
const char *hy_fab__path(const fab_link *l);

/* mr.c */
hy_fab_mr *hy_fab__mr_find(hy_fab *f, uint64_t id);

/* implementations */
extern const fab_ct_ops hy_fab__sock_ops;
hy_status hy_fab__sock_create(hy_fab *f, void **out);
hy_status hy_fab__resolve(const char *list, hy_buf *out); /* may wait for a name server */
extern const fab_ct_ops hy_fab__loop_ct;
hy_status hy_fab__loop_create(hy_fab *f, void **out);
extern const fab_dp_ops hy_fab__loop_dp, hy_fab__own_dp, hy_fab__ofi_dp, hy_fab__ofi_strict_dp;

/* Application messages that the peer has not handed out yet are limited. */
static inline bool fab_window_full(const fab_peer *p)
{
    return p->tx_app - p->tx_consumed >= HY_FAB_WINDOW;
}

#endif
