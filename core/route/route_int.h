/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the router: connections of clients (front.c), requests in work (flow.c and its two
 * legs), workers and their health (worker.c), pages of its own (pages.c).
 *
 * Thread: the route stage, except where said.  Owner: hy_route owns all of it.
 */
#ifndef HY_ROUTE_ROUTE_INT_H
#define HY_ROUTE_ROUTE_INT_H

#include "core/http/client.h"
#include "core/route/body.h"
#include "core/route/route.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <stdatomic.h>

enum { HY_RID_LEN = 128 };

typedef struct hy_front hy_front; /* one client connection */
typedef struct hy_flow hy_flow;   /* one request in work */

/* ---- workers ---- */

typedef enum hy_worker_state { HY_WORKER_UNKNOWN, HY_WORKER_UP, HY_WORKER_DOWN } hy_worker_state;

typedef struct hy_worker {
    hy_route *r;
    char *name, *host, *addrs; /* addrs: "" unless the file or its page of links told them */
    char *node;                /* what it says its [node] name is; "": nothing */
    int32_t context;           /* tokens a request may have there, as it says; 0: not known */
    int port;
    unsigned can;
    hy_worker_state state;
    int active;      /* legs under way */
    int silent;      /* checks in a row without an answer */
    uint64_t picked; /* turn of the last pick: ties go to the one that waited longest */
    uint64_t since_ns;
    char why[160]; /* why it is down */
    struct event *timer;
    hy_client_call *probe;
    int probe_status;
    bool hung_up; /* the last check was */
    char **bars;  /* [n_workers]: why it cannot take KV from that one; NULL: nothing is known */
    hy_client_call *links_call;
    hy_buf links_text;
    int links_status;
    bool told_addrs; /* by its page, not by our file */
    bool no_fabric;  /* a Halyard node whose fabric address nobody has told */
    bool twin;       /* another one says the same node name */
    hy_metric *up, *mx_active, *mx_bars, *errors;
} hy_worker;

hy_status hy_route__workers_init(hy_route *r);
void hy_route__workers_fini(hy_route *r);
void hy_route__workers_start(hy_route *r);
/* Best of those that can and were not tried yet, NULL: none. Does not mark it. */
hy_worker *hy_route__pick(hy_route *r, unsigned can, const bool *tried);
/* A leg begins (+1) or ends (-1). */
void hy_route__worker_use(hy_worker *w, int by);
/* A connection failed: down at once, until a check is answered. */
void hy_route__worker_lost(hy_worker *w, const char *why);
/* Something went wrong on a connection: check soon. */
void hy_route__worker_suspect(hy_worker *w);
/* {"workers": [...]} */
void hy_route__workers_json(hy_route *r, hy_buf *b);
/* Workers up that can. */
int hy_route__n_up(const hy_route *r, unsigned can);
/* pair.c: why decode node d cannot take KV from p; NULL: it can, as far as known. */
const char *hy_route__bar(const hy_route *r, const hy_worker *p, const hy_worker *d);
/* The longest context of those that may take KV of p; 0: one of them does not say. */
int32_t hy_route__context(const hy_route *r, const hy_worker *p);
/* Another node that is not down can take its KV; any prefill node has such a one. */
bool hy_route__has_taker(const hy_route *r, const hy_worker *p);
bool hy_route__has_pair(const hy_route *r);
/* Read who it is and what its links are. */
void hy_route__links_ask(hy_worker *w);
/* [{"peer", "why"}]: of whom it cannot take KV. */
void hy_route__bars_json(const hy_worker *d, hy_buf *b);
/* "same_name": [[NAME, NAME...]...], of workers that say one node name; false: there are none. */
bool hy_route__twins_json(const hy_route *r, hy_buf *b);
/* Why nothing goes through prefill. */
void hy_route__why_alone(const hy_route *r, hy_buf *b);
/* Tell P that nobody will fetch what `params` names. Keeps going by itself. */
void hy_route__release(hy_route *r, hy_worker *p, const char *headers, const char *params);

/* ---- client connections ---- */

hy_status hy_route__front_init(hy_route *r);
void hy_route__front_stop(hy_route *r);   /* no new connections */
void hy_route__front_hangup(hy_route *r); /* close all */
void hy_route__front_fini(hy_route *r);
void hy_route__front_sweep(hy_route *r, uint64_t now_ns);

/* Whole answer. `headers`: more lines "Name: value\r\n", or NULL. The body moves. The request is
 * over with it and hy_flow must not touch the connection again. */
void hy_front_reply(hy_front *c, int status, const char *headers, struct evbuffer *body);
void hy_front_reply_buf(hy_front *c, int status, const char *headers, hy_buf *body);
void hy_front_reply_error(hy_front *c, int status, const char *type, const char *text,
                          const char *headers);
/* A stream: head, pieces (moved), end. False: the reader is slow, wait for hy_flow_resume. */
void hy_front_stream(hy_front *c, int status, const char *headers);
bool hy_front_piece(hy_front *c, struct evbuffer *piece);
void hy_front_stream_end(hy_front *c);
/* {"error": {...}} */
void hy_route__error_json(hy_buf *b, int status, const char *type, const char *text);

/* A complete request, to be answered by one of the above, now or later (pages.c). */
void hy_route__request(hy_front *c);

struct hy_front {
    hy_route *r;
    hy_front *next, **link;
    struct bufferevent *bev;
    hy_wire_head head;
    hy_wire_body body;
    struct evbuffer *in; /* the request's body */
    size_t scanned;
    int phase;
    uint64_t since_ns; /* idle since; the request's first byte; closing since */
    uint64_t t0_ns;    /* request complete */
    hy_flow *flow;     /* who waits for room or must hear of a hang-up; NULL: nobody */
    char rid[HY_RID_LEN];
    bool keep, chunked, owed, full, reading, no_more;
};

/* ---- requests in work ---- */

/* To any worker, or through prefill and decode. Consumes the connection's request. */
void hy_flow_begin(hy_front *c, bool generate);
/* From the connection: the client is gone; there is room again. */
void hy_flow_gone(hy_flow *f);
void hy_flow_resume(hy_flow *f);
/* The worker is silent: whatever it has under way has failed. */
void hy_flow_worker_silent(hy_route *r, hy_worker *w);
void hy_flow_cancel_all(hy_route *r);
/* Hang up on first legs that outlived their requests, and the moment that they have. */
void hy_route__rests_sweep(hy_route *r, bool all);

/* ---- all of it ---- */

typedef enum hy_outcome {
    HY_OUT_OK,
    HY_OUT_CLIENT_ERROR, /* 4xx */
    HY_OUT_UPSTREAM,     /* a worker failed */
    HY_OUT_UNAVAILABLE,  /* no worker, or too many requests */
    HY_OUT_GONE,         /* the client left */
    HY_OUT_N,
} hy_outcome;

typedef struct hy_release hy_release;
typedef struct hy_rest hy_rest;

struct hy_route {
    hy_route_opts o;
    hy_runtime *rt;
    hy_stage *stage;
    struct event_base *base;
    struct event *mail, *tick, *deadline;
    hy_client *client;
    char *host, *api_key;
    bool started;
    /* front */
    struct evconnlistener *listener;
    hy_front *fronts;
    int n_fronts, port;
    bool paused;
    atomic_bool draining;
    atomic_int n_active;
    /* workers */
    hy_worker *workers;
    size_t n_workers;
    uint64_t turn;
    hy_release *releases;
    hy_rest *rests;
    /* flows */
    hy_flow *flows;
    int n_flows;
    uint64_t n_traced; /* numbers of timelines */
    hy_metric *mx_requests[HY_OUT_N], *mx_active, *mx_releases[3], *mx_conns;
    hy_metric *mx_legs[4], *mx_first, *mx_prefill;
};

uint64_t hy_route__now(hy_route *r);

#endif
