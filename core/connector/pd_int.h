/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the point-to-point connector.
 *
 * Thread: the connector stage, except pd_sched.c (sched stage) and the atomics.  Owner: hy_pd.
 */
#ifndef HY_CONNECTOR_PD_INT_H
#define HY_CONNECTOR_PD_INT_H

#include "core/connector/handover.h"
#include "core/connector/pd.h"
#include "core/connector/proto.h"
#include "hal/kv_plan.h"

#include <pthread.h>
#include <stdatomic.h>

enum {                 /* messages to the connector stage */
       PD_ARRIVED = 1, /* data: pd_cmd */
       PD_LOAD,
       PD_END,     /* the sequence wants no load any more */
       PD_LEASE,   /* keep these blocks for a peer */
       PD_GROW,    /* push: more of a prompt is computed */
       PD_STEP,    /* push: the next n tokens of it are in the step that begins */
       PD_LAYER,   /* arg: group << 32 | layer that the step has written */
       PD_NOLEASE, /* push: the sequence ended without one */
       PD_VOID,    /* push: its blocks went, it is computed again */
       PD_EXPIRED, /* arg: uid, data NULL: HY_HOLD_SEND, else HY_HOLD_RECEIVE */
       PD_RELEASE, /* arg: lease */
       PD_T_LEASE, /* timers; arg: lease */
       PD_T_LOAD,  /* arg: uid */
       PD_T_HOLD,  /* arg: uid */
       PD_T_WAIT,  /* arg: number of a waiting GET */
       PD_T_RETRY,
       PD_T_LINK,
};

enum { PD_RETRIES = 2 };
enum { PD_ENDED_ROWS = 1024, PD_ENDED = 8 }; /* ended transfers that are remembered */
enum { PD_BUCKETS = 512, PD_UNIT = 65536, PD_JOB_OPS = 32, PD_SLOTS = 8, PD_JOBS_MAX = 4096 };

/* Memory that a reader has just read is slow to write: of the pieces in place as many as go. */
enum { PD_NEAR_SLOTS = 16 };

typedef struct pd_tab { /* copied block tables */
    int32_t n_groups, block_tokens;
    int32_t n[HY_KV_MAX_GROUPS];
    int32_t *ids[HY_KV_MAX_GROUPS];
} pd_tab;

typedef struct pd_cmd {   /* from the scheduler half */
    uint64_t uid, req_id; /* req_id: owner's side */
    hy_handover h;
    pd_tab tab;
    int32_t local, n_ext, next; /* LOAD */
    int32_t tokens, n_prompt;   /* LEASE, GROW, STEP: with KV */
    int32_t n_step;             /* STEP: tokens in it */
    uint8_t prompt[32];
    bool last;      /* LEASE: no more comes */
    uint64_t at_ns; /* when the scheduler half gave it */
} pd_cmd;

/* ---- peers ---- */
typedef struct pd_peer {
    char node[HY_HANDOVER_NODE_MAX];
    char addrs[HY_HANDOVER_ADDRS_MAX];
    uint64_t number; /* user of connects */
    hy_fab_peer fab;
    uint64_t epoch;
    bool up, connecting, hello; /* hello: theirs came and fits */
    bool wanted;                /* [connector] link: connected without a request */
    char refused[200];          /* why this link cannot be used, "" if it can */
    char why[120];              /* why it is down */
    hy_kv_desc desc;
    hy_kv_plan *serve, *take; /* ours to theirs, theirs to ours */
    bool has_key[HY_KV_MAX_GROUPS], has_staging;
    hy_fab_key key[HY_KV_MAX_GROUPS], staging;
    void *near; /* its staging, mapped here: it is on this node; else NULL */
    uint64_t near_len;
    struct pd_peer *next;
} pd_peer;

/* ---- owner's side ---- */
struct pd_job;
typedef struct pd_lease {
    uint64_t id, uid, req_id;
    pd_tab tab;
    int32_t tokens;   /* with KV now */
    int32_t n_prompt; /* that will have it */
    bool complete;    /* nothing more comes */
    bool held;        /* sched holds blocks until SENT */
    int32_t step_to;  /* push: tokens with KV when the step under way is done; 0: none is */
    int32_t layers[HY_KV_MAX_GROUPS]; /* of that step, written so far */
    bool unwanted;                    /* push: released before it was finished */
    bool push;                        /* its end is remembered */
    bool ended;  /* released, expired, cancelled: waits for its jobs to be fenced */
    bool spared; /* its timer was late; its peer's words come first */
    uint64_t deadline, born;
    uint64_t t_prefill; /* end of the prompt */
    uint64_t timer;
    uint8_t prompt[32];
    bool has_first;
    hy_conn_first first;
    int32_t n_jobs;
    struct pd_lease *chain;
} pd_lease;

typedef struct pd_op {
    struct pd_job *job;
    uint64_t id;
    void *buf; /* staging of a packed piece */
    size_t buf_bytes;
    bool near; /* no write: the reader takes it from buf, until its ACK of `index` */
    uint32_t index;
    struct pd_op *prev, *next;
} pd_op;

typedef struct pd_job {
    uint64_t id, lease_id, number;
    pd_lease *lease; /* NULL: a push that waits for it */
    pd_peer *peer;
    hy_pdp_msg get; /* the order */
    int32_t *dst[HY_KV_MAX_GROUPS];
    int32_t n_dst;
    int32_t upto;  /* tokens ordered so far from t0 on (push: as computed) */
    int32_t ahead; /* push: tokens behind those that go layer by layer */
    int32_t ahead_layers[HY_KV_MAX_GROUPS]; /* of them, ordered */
    hy_kv_iter iter;
    bool iterating;
    bool has_piece;
    hy_kv_piece piece;
    pd_op *ops;
    int32_t n_ops;
    uint32_t n_packed, acked; /* packed pieces sent, unpacked */
    uint64_t digest, bytes, n_pieces;
    uint64_t t_asked, t_first, t_last; /* GET came, first write began, last one was applied */
    hy_status status;
    char text[HY_PDP_TEXT_MAX];
    bool stopping; /* cancelled or failed: no new writes */
    bool by_peer;  /* CANCEL: answer GONE */
    bool unknown;  /* a write may land yet */
    bool starved;  /* waits for staging or room */
    uint64_t timer;
    struct pd_job *prev, *next;
} pd_job;

typedef struct pd_early { /* a piece that stands packed in the staging before it is ordered */
    const pd_lease *lease;
    hy_kv_piece piece;
    void *buf;
    struct pd_early *next;
} pd_early;

/* ---- reader's side ---- */
typedef enum pd_load_state {
    PD_HELD,      /* arrived: the lease is renewed */
    PD_WAIT,      /* blocks are there; waits for link or staging */
    PD_JOB,       /* GET was sent */
    PD_CANCELLED, /* CANCEL was sent */
    PD_FENCING,   /* the link is cut */
    PD_OVER,      /* only RELEASE is left to be sent */
} pd_load_state;

typedef struct pd_chunk {
    int32_t t0, n, group, groups, layer0, layers;
} pd_chunk;

typedef struct pd_load {
    uint64_t uid;
    hy_handover h;
    pd_load_state state;
    pd_peer *peer;
    pd_tab tab;
    int32_t local, n_ext, next;
    bool loading;    /* a RECEIVED is owed */
    int32_t retries; /* after lost links */
    bool lost;       /* the owner said the lease is no more */
    uint64_t job;
    int32_t at;    /* tokens of [local, local + n_ext) that came */
    int32_t now_n; /* of the job under way */
    size_t stage_off, stage_bytes;
    uint32_t slot_bytes, n_slots, n_pieces;
    bool near;       /* packed pieces are read in the owner's staging */
    uint32_t landed; /* bit a slot: written and not unpacked */
    pd_chunk *chunk; /* [n_chunks] of the job under way */
    int32_t n_chunks, n_begun;
    int64_t cover[HY_KV_MAX_GROUPS]; /* push: tokens times layers that were told */
    hy_kv_iter iter;
    uint64_t digest, bytes, index;
    hy_status status;
    bool corrupt, expired, missed;
    char text[120];
    bool has_first;
    hy_conn_first first;
    uint64_t timer, hold_timer;
    uint64_t t_arrived, t_alloc, t_get, t_done;
    struct pd_load *chain;
} pd_load;

typedef struct pd_out { /* a message that the fabric had no room for */
    hy_fab_peer peer;
    uint32_t type;
    hy_buf b;
    struct pd_out *next;
} pd_out;

typedef struct pd_evout { /* an event that sched had no room for */
    hy_conn_event *ev;
    struct pd_evout *next;
} pd_evout;

typedef struct pd_seq { /* scheduler half */
    uint64_t uid;
    hy_handover h;
    enum { PS_NONE, PS_READY, PS_LOADING, PS_LOADED, PS_FAILED, PS_LOCAL } state;
    bool told; /* the stage has a load of it */
    bool bad;  /* the reference cannot be used */
    hy_status why;
    char text[160];
    uint8_t prompt[32];
    struct pd_seq *chain;
} pd_seq;

typedef struct pd_metrics {
    hy_metric *bytes_in, *bytes_out, *seconds, *failed, *expired_leases, *missed, *corrupt;
    hy_metric *held_blocks, *leases, *oldest, *loads, *full_hits, *refused, *links;
    hy_metric *oldest_load, *early_used, *early_dropped;
} pd_metrics;

struct hy_pd {
    hy_pd_opts o;
    char node[HY_HANDOVER_NODE_MAX], addrs[HY_HANDOVER_ADDRS_MAX];
    int32_t windows[HY_KV_MAX_GROUPS];
    hy_connector conn;
    hy_stage *stage, *sched;
    hy_fab *fab;
    uint64_t epoch;
    hy_queue *queue;
    hy_kv_pool pool[HY_KV_MAX_GROUPS];
    bool has_pool[HY_KV_MAX_GROUPS];
    hy_fab_mr *mr[HY_KV_MAX_GROUPS];    /* NULL: peers do not reach the cache */
    hy_span exported[HY_KV_MAX_GROUPS]; /* of a device: what mr was made of */
    bool staged;                        /* a device's cache that the fabric cannot reach */
    char memory[200];                   /* how peers reach it, for people */
    hy_kv_desc desc;
    /* staging: units of PD_UNIT bytes */
    void *staging;
    hy_fab_mr *staging_mr;
    void *bounce; /* a piece in memory that the device alone sees, between cache and staging; else
                     NULL */
    size_t bounce_bytes;
    int near_fd;    /* the staging is this memfd; -1: it is none */
    bool near_huge; /* huge pages were asked for: there is a reader */
    char near_name[HY_PDP_NAME_MAX];
    bool pinned;               /* staging is registered with the device */
    uint8_t *used;             /* [n_units] */
    size_t n_units, n_landing; /* the first n_landing are for what comes in */
    pd_peer *peers;
    pthread_mutex_t links_lock;
    hy_buf links; /* list of links as JSON; under the lock */
    uint64_t links_timer, links_wait;
    uint64_t next_number;
    uint64_t unwanted[256]; /* push: released before anything of them was computed; a ring */
    uint32_t n_unwanted;
    uint64_t ended[PD_ENDED_ROWS][PD_ENDED]; /* push: ids that had their time; rows are rings */
    uint8_t n_ended[PD_ENDED_ROWS];
    pd_lease *lease[PD_BUCKETS];
    pd_load *load[PD_BUCKETS];
    pd_job *jobs;
    struct {
        const pd_peer *like; /* whose last order was of a whole prompt */
        pd_lease *lease;     /* being packed; NULL: none */
        hy_kv_iter iter;
        int32_t left;   /* pieces that may be packed yet */
        pd_early *list; /* newest first */
    } early;
    pd_out *out, **out_tail;
    pd_evout *evout, **evout_tail;
    bool retry_set, staging_freed;
    bool by_layer;           /* layers can be read as soon as they are written */
    _Atomic int32_t pushing; /* prompts in the step under way that are pushed */
    hy_rng rng;              /* of the scheduler half: lease ids */
    /* scheduler half */
    pd_seq *seq[PD_BUCKETS];
    hy_buf handover;
    pd_metrics m;
    _Atomic uint64_t born_lease, born_load; /* of the oldest one; 0: none */
    struct {
        _Atomic uint64_t loads, received, missed, failed, expired, corrupt, aborted;
        _Atomic uint64_t bytes_in, bytes_out, bytes_near, tokens_in, jobs_out, full_hits;
        _Atomic uint64_t early_used, early_dropped;
        _Atomic uint64_t leases, leases_released, leases_expired, late, malformed, refused_links;
        _Atomic int32_t loads_open, leases_open, jobs_open;
    } st;
};

#define PD_COUNT(p, what) atomic_fetch_add_explicit(&(p)->st.what, 1, memory_order_relaxed)

/* pd_mem.c */
hy_status hy_pd__tab_copy(pd_tab *t, const hy_conn_blocks *b);
void hy_pd__tab_fini(pd_tab *t);
/* Bytes rounded up to units; NULL: none free now. landing: for what comes in. */
void *hy_pd__stage_take(hy_pd *p, size_t bytes, bool landing);
void hy_pd__stage_give(hy_pd *p, void *at, size_t bytes);
size_t hy_pd__stage_free(const hy_pd *p, bool landing);
hy_status hy_pd__register_kv(void *self, int32_t group, const hy_kv_pool *pool);
/* Staging memory that both the fabric and the device reach, with a bounce where needed; after
 * n_units and n_landing are set. */
hy_status hy_pd__staging_open(hy_pd *p, bool host_visible);
void hy_pd__staging_close(hy_pd *p);
/* xxh64 of a direct piece's bytes in this node's pool, which is the plan's source or destination.
 */
hy_status hy_pd__hash_direct(hy_pd *p, const hy_kv_plan *plan, const hy_kv_piece *c,
                             hy_kv_blocks own, bool src, uint64_t seed, uint64_t *out);

/* pd_near.c */
/* Staging that readers on this node can map. HY_E_SYS: none is to be had. */
hy_status hy_pd__near_create(hy_pd *p, size_t bytes);
void hy_pd__near_destroy(hy_pd *p, size_t bytes);
/* The memfd that HELLO told of, if process pid has it and it is what was told; else -1. */
int hy_pd__near_open(uint32_t pid, const hy_pdp_msg *m);
/* Maps what HELLO told of, where the peer is on this node. */
void hy_pd__near_map(hy_pd *p, pd_peer *x, const hy_pdp_msg *m);
void hy_pd__near_unmap(pd_peer *x);

/* pd_stage.c */
uint64_t hy_pd__now(hy_pd *p);
void hy_pd__send(hy_pd *p, pd_peer *to, const hy_pdp_msg *m);
/* Gives an event to sched; takes a copy, and *first over. */
void hy_pd__report(hy_pd *p, const hy_conn_event *ev, const hy_conn_first *first);
void hy_pd__timer(hy_pd *p, uint64_t at, int kind, uint64_t arg, uint64_t *id);
void hy_pd__untimer(hy_pd *p, uint64_t *id);
void hy_pd__cmd_free(void *cmd);

/* pd_peer.c */
pd_peer *hy_pd__peer(hy_pd *p, const char *node, const char *addrs);
pd_peer *hy_pd__peer_of(hy_pd *p, hy_fab_peer fab);
bool hy_pd__connect(hy_pd *p, pd_peer *x); /* false: not even begun */
void hy_pd__on_fab(hy_pd *p, hy_fab_event *ev);
void hy_pd__peers_free(hy_pd *p);

/* pd_link.c */
hy_status hy_pd__links_init(hy_pd *p, const char *links);
void hy_pd__links_fini(hy_pd *p);
void hy_pd__links_timer(hy_pd *p);
/* How KV comes from there. */
void hy_pd__link_copy(const pd_peer *x, hy_buf *out);
void hy_pd__links_note(hy_pd *p); /* a link came, went or was refused */

/* pd_serve.c: the owner's side */
pd_lease *hy_pd__lease_find(hy_pd *p, uint64_t id);
void hy_pd__lease_put(hy_pd *p, pd_cmd *c, bool last);
void hy_pd__lease_step(hy_pd *p, pd_cmd *c);
void hy_pd__lease_layer(hy_pd *p, int32_t group, int32_t layer);
/* final: no lease of that id will come. */
void hy_pd__lease_none(hy_pd *p, uint64_t id, bool final);
void hy_pd__lease_release(hy_pd *p, uint64_t id, bool may_come);
void hy_pd__lease_timer(hy_pd *p, uint64_t id);
void hy_pd__lease_expired(hy_pd *p, uint64_t uid);
void hy_pd__on_hold(hy_pd *p, pd_peer *x, const hy_pdp_msg *m);
void hy_pd__on_get(hy_pd *p, pd_peer *x, hy_pdp_msg *m);
void hy_pd__on_ack(hy_pd *p, pd_peer *x, const hy_pdp_msg *m);
void hy_pd__on_cancel(hy_pd *p, pd_peer *x, const hy_pdp_msg *m);
void hy_pd__op_done(hy_pd *p, pd_op *op, const hy_fab_event *ev);
void hy_pd__job_wait_timer(hy_pd *p, uint64_t number);
void hy_pd__serve_down(hy_pd *p, pd_peer *x);
void hy_pd__pump_starved(hy_pd *p);
void hy_pd__serve_free(hy_pd *p);

/* Into staging of its own. HY_AGAIN: none is free now. */
hy_status hy_pd__pack(hy_pd *p, const hy_kv_plan *plan, const pd_lease *l, const hy_kv_piece *c,
                      void **buf_out);

/* pd_early.c: pieces packed before they are ordered */
void hy_pd__early_begin(hy_pd *p, pd_lease *l); /* the lease is held, and nobody has asked */
bool hy_pd__early_step(hy_pd *p);               /* packs one; false: none is to be packed */
void hy_pd__early_stop(hy_pd *p, const pd_lease *l);
/* Staging that holds this piece, now the caller's; NULL: it is not there. */
void *hy_pd__early_take(hy_pd *p, const pd_lease *l, const hy_kv_piece *c);
bool hy_pd__early_yield(hy_pd *p);                   /* gives up the newest; false: there is none */
void hy_pd__early_drop(hy_pd *p, const pd_lease *l); /* those of a lease; NULL: all */

/* pd_load.c: the reader's side */
void hy_pd__load_arrived(hy_pd *p, pd_cmd *c);
void hy_pd__load_start(hy_pd *p, pd_cmd *c);
void hy_pd__load_end(hy_pd *p, uint64_t uid);
void hy_pd__load_timer(hy_pd *p, uint64_t uid);
void hy_pd__load_hold(hy_pd *p, uint64_t uid);
void hy_pd__load_link(hy_pd *p, pd_peer *x); /* hello came: go on */
/* The link is no more: fenced. again: its owner may still be there. */
void hy_pd__load_down(hy_pd *p, pd_peer *x, const char *why, bool again);
void hy_pd__loads_staging(hy_pd *p); /* staging became free */
void hy_pd__on_held(hy_pd *p, pd_peer *x, const hy_pdp_msg *m);
void hy_pd__on_chunk(hy_pd *p, pd_peer *x, const hy_pdp_msg *m);
void hy_pd__on_piece(hy_pd *p, pd_peer *x, const hy_pdp_msg *m);
void hy_pd__on_imm(hy_pd *p, pd_peer *x, uint64_t imm);
void hy_pd__on_done(hy_pd *p, pd_peer *x, const hy_pdp_msg *m);
void hy_pd__on_gone(hy_pd *p, pd_peer *x, const hy_pdp_msg *m);
void hy_pd__loads_free(hy_pd *p);

/* pd_sched.c */
extern const hy_conn_sched_ops hy_pd__sched_ops;
void hy_pd__sched_free(hy_pd *p);

/* pd_metrics.c */
void hy_pd__metrics_init(hy_pd *p, hy_metrics *m);
void hy_pd__metrics_leases(hy_pd *p);

#endif
