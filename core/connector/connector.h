/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV connector contract: how a node's KV cache is filled from and copied to elsewhere. Two
 * halves that talk only through a per-step plan (meta, down) and events (up):
 *
 * Scheduler half, on the sched stage; nothing may block. Per sequence:
 *     arrived, matched (repeatable, no side effects) ..., allocated, ... , finished (exactly once)
 * and per step: progressed (when there are events), matched/allocated as needed, build_meta.
 *
 * Worker half, on the exec stage, in this order in every step, also in one without tokens:
 *     preempted, bind, start_load, then per layer wait_layer_load and save_layer, wait_save, poll,
 *     clear
 * hy_conn_step_begin and hy_conn_step_end make the calls outside the layers. A hook gets a queue
 * and only enqueues on it.
 *
 * Failures are reported per sequence, with the prefix that did arrive; a load that failed is still
 * reported, once. Events of unknown sequences are counted and dropped by sched.
 *
 * Thread: as above.  Owner: who creates a connector destroys it, after engine and exec.
 */
#ifndef HY_CONNECTOR_CONNECTOR_H
#define HY_CONNECTOR_CONNECTOR_H

#include "core/kv/kv.h"
#include "hal/backend.h"

enum { HY_CONN_TOP_MAX = 128 }; /* HY_MAX_TOP of core/req */

/* To the sched stage, from connectors that do their work on a stage of their own: data is a
 * hy_conn_event (hy_malloc), posted on reserved credit. The same as a worker half's report, but at
 * once and without a step. */
enum { HY_MSG_CONN_EVENT = 1002 };

/* A sequence as the connector sees it; borrowed for the call. */
typedef struct hy_conn_req {
    uint64_t uid; /* unique among all sequences of this process: never reused */
    uint64_t req_id;
    int32_t choice;
    const int32_t *tokens;
    int32_t n_tokens;
    const hy_kv_hash *links; /* [n_links]: one for every 16 tokens */
    int32_t n_links;
    int32_t n_prompt;
    int32_t computed;                  /* tokens whose KV is there */
    bool rope_long;                    /* longrope: the keys were rotated with the long factors */
    const char *handover;              /* the client's hand-over fields (JSON), NULL: none */
    const struct hy_conn_first *first; /* the first output token, once it is there; NULL: not yet */
} hy_conn_req;

/* A first output token that travels with the KV of its prompt, as sampled by its owner. */
typedef struct hy_conn_first {
    int32_t id, rank; /* rank 0: no log-probabilities */
    float logprob;
    int32_t n_top;
    int32_t top_ids[HY_CONN_TOP_MAX];
    float top_lps[HY_CONN_TOP_MAX];
    int32_t position; /* of the token in the sequence: the length of the prompt */
    uint64_t seed;    /* that it was drawn with: the rest is drawn with it too */
    bool stop;        /* it ended the owner's generation */
    bool barred;      /* drawn with end tokens barred (min_tokens) */
} hy_conn_first;

/* What a connector knows of a sequence's KV elsewhere. */
typedef struct hy_conn_info {
    bool remote;                /* it came with a reference to KV elsewhere */
    const hy_conn_first *first; /* usable when all of the prompt's KV is there; NULL: none */
} hy_conn_info;

/* Its blocks: table[g].ids[i] covers tokens from i * block_tokens on, -1 out of the window. */
typedef struct hy_conn_blocks {
    int32_t n_groups, block_tokens;
    const hy_kv_table *table; /* [n_groups] */
} hy_conn_blocks;

typedef enum hy_conn_event_kind {
    HY_CONN_RECEIVED, /* a load ended: the first `valid` of its tokens may be used */
    HY_CONN_SENT,     /* blocks kept by finished() may be freed, whether sending worked or not */
    HY_CONN_HELD,     /* the peer renewed its lease: the hold's new deadline */
} hy_conn_event_kind;

typedef struct hy_conn_event {
    hy_conn_event_kind kind;
    uint64_t uid;
    int32_t valid;
    hy_status status;                 /* < 0: why not all is valid, or sending failed */
    bool fatal;                       /* RECEIVED: do not compute the rest, fail the request */
    uint64_t deadline_ns;             /* HELD */
    uint64_t start_ns, end_ns, bytes; /* RECEIVED: of the transfer; start 0: it never began */
    hy_conn_first *first; /* RECEIVED, message only: with its KV; NULL: none. The message's */
    char text[120];       /* failures: why */
} hy_conn_event;

typedef struct hy_conn_events {
    hy_conn_event *ev; /* [cap] */
    int32_t n, cap;
} hy_conn_events;

/* HY_AGAIN when full: report it in the next step. */
hy_status hy_conn_events_add(hy_conn_events *e, const hy_conn_event *ev);

typedef struct hy_conn_step { /* what build_meta sees of a planned step */
    uint64_t step;
    int32_t n_tokens;          /* 0: only transfers go on */
    const uint64_t *preempted; /* uids that lost their blocks since the last step */
    int32_t n_preempted;
} hy_conn_step;

typedef struct hy_conn_verdict { /* finished()'s answer; zero: free at once, nothing to say */
    bool keep;                   /* blocks stay until HY_CONN_SENT */
    uint64_t deadline_ns;        /* of that wait; expired() is called then */
    const char *handover;        /* fields for the client (JSON), borrowed until the next call */
} hy_conn_verdict;

typedef struct hy_conn_sched_ops {
    size_t size;
    void (*arrived)(void *self, const hy_conn_req *r);
    /* Tokens to be had beyond the first `local`, as a prefix; async: the sequence parks until
     * HY_CONN_RECEIVED, else the worker half has them before the layer that reads them. HY_PENDING:
     * not known yet, ask in the next step. Negative: the request shall fail with that status and
     * the thread's failure text. */
    hy_status (*matched)(void *self, const hy_conn_req *r, int32_t local, int32_t *n_out,
                         bool *async_out);
    /* Blocks were given; load n_ext tokens after the first `local` (0: nothing). deadline_out:
     * when expired() shall be called if the load has not ended; HY_NEVER is preset. */
    void (*allocated)(void *self, const hy_conn_req *r, const hy_conn_blocks *b, int32_t local,
                      int32_t n_ext, uint64_t *deadline_out);
    /* Once a step. The meta is valid until the worker half's clear. */
    void *(*build_meta)(void *self, const hy_conn_step *s);
    /* Before sched acts on them. */
    void (*progressed)(void *self, const hy_conn_event *ev, int32_t n);
    /* Once per sequence that arrived, before its blocks are freed. */
    void (*finished)(void *self, const hy_conn_req *r, const hy_conn_blocks *b, bool completed,
                     hy_conn_verdict *out);
    /* A hold's deadline came: cancel and fence the transfer, then report it as usual. */
    void (*expired)(void *self, uint64_t uid, hy_hold_kind kind);
    /* True while steps without tokens are wanted, so that poll is called. */
    bool (*busy)(void *self);
    /* After arrived(), any time: may change with the events seen by progressed(). */
    void (*info)(void *self, uint64_t uid, hy_conn_info *out);
    /* The next n tokens of a sequence with a hand-over are computed in the step that build_meta is
     * asked for next. */
    void (*computing)(void *self, const hy_conn_req *r, const hy_conn_blocks *b, int32_t n);
    /* The first `computed` tokens of a sequence with a hand-over now have their KV. */
    void (*computed)(void *self, const hy_conn_req *r, const hy_conn_blocks *b);
} hy_conn_sched_ops;

typedef struct hy_conn_worker_ops {
    size_t size;
    hy_status (*register_kv)(void *self, int32_t group, const hy_kv_pool *pool);
    void (*preempted)(void *self, hy_queue *q,
                      const void *meta); /* before blocks are overwritten */
    void (*bind)(void *self, const void *meta);
    hy_status (*start_load)(void *self, hy_queue *q);
    hy_status (*wait_layer_load)(void *self, hy_queue *q, int32_t group, int32_t layer);
    hy_status (*save_layer)(void *self, hy_queue *q, int32_t group, int32_t layer);
    hy_status (*wait_save)(void *self, hy_queue *q);
    void (*poll)(void *self, hy_conn_events *out);
    void (*clear)(void *self);
} hy_conn_worker_ops;

typedef struct hy_connector {
    const char *name;
    hy_conn_sched_ops sched;
    hy_conn_worker_ops worker;
    void *sched_self, *worker_self;
    bool layers; /* worker has layer hooks: exec may skip the calls when false */
    bool posts;  /* reports by HY_MSG_CONN_EVENT: its transfers need no steps to move on */
} hy_connector;

/* Copy both tables (each of its own size) and fill what is missing with the null connector's
 * answers, so that callers never test a slot. */
void hy_connector_init(hy_connector *c, const char *name, const hy_conn_sched_ops *sched,
                       void *sched_self, const hy_conn_worker_ops *worker, void *worker_self);
/* Finds nothing, keeps nothing. Static. */
hy_connector *hy_connector_null(void);

/* The worker half's calls before the first and after the last layer. c NULL: no connector. */
hy_status hy_conn_step_begin(hy_connector *c, hy_queue *q, const void *meta);
hy_status hy_conn_step_end(hy_connector *c, hy_queue *q, hy_conn_events *out);

#endif
