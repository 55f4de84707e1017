/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of a request in work: its two legs, and what flow.c, prefill.c and decode.c share.
 *
 * Thread: route stage.  Owner: the router; a flow frees itself with the end of its request.
 */
#ifndef HY_ROUTE_FLOW_INT_H
#define HY_ROUTE_FLOW_INT_H

#include "core/route/route_int.h"

enum { LEG_PREFILL, LEG_DECODE, LEG_ALONE, LEG_ANY };

typedef struct hy_leg {
    hy_worker *w;
    hy_client_call *call;
    int status; /* 0: no head yet */
    struct evbuffer *answer;
} hy_leg;

struct hy_flow {
    hy_flow *next, **link;
    hy_route *r;
    hy_front *conn;
    bool generate, paired /* goes through prefill and decode */, streaming, until_close, done_seen;
    char *target;
    const char *method;
    hy_buf headers; /* for workers */
    hy_buf out;     /* headers for the client */
    char *raw;
    size_t raw_len;
    hy_body body;
    bool parsed;
    hy_body_facts facts;
    hy_leg p, d;
    bool *tried_p, *tried_d, *skip;
    int left_p, left_d; /* further tries */
    char *params;       /* kv_transfer_params for decode; NULL: none */
    hy_worker *owner;   /* the prefill node that holds the KV of params */
    uint64_t lease;     /* pull: what the first leg's KV is to be called; 0: none is in doubt */
    struct evbuffer *hold;
    char last[256]; /* what went wrong last */
    uint64_t t0_ns, prefill_ns, first_ns;
    uint64_t trace; /* number of its timeline; 0: none */
};

/* flow.c */
/* The answer has been sent, or nobody waits for it: frees the flow. */
void hy_flow__end(hy_flow *f, hy_outcome how, const char *rid);
/* An error of ours to the client, in the form that its answer has by now; frees the flow. */
void hy_flow__fail(hy_flow *f, int status, const char *text);
hy_status hy_leg__send(hy_flow *f, hy_leg *l, hy_worker *w, const char *body, size_t len,
                       const hy_client_ops *ops, uint64_t head_ns, uint64_t stall_ns);
/* Hang up. */
void hy_leg__drop(hy_leg *l);
/* It has ended by itself. */
void hy_leg__over(hy_leg *l);
bool hy_flow__was_refused(hy_client_fate fate);
/* Keeps `why` for the answer and tells the worker's state. */
void hy_flow__blame(hy_flow *f, hy_worker *w, hy_client_fate fate, const char *why);

/* prefill.c: begin the first leg (or go on without); what to do when it has failed. */
void hy_flow__prefill(hy_flow *f);
void hy_flow__prefill_failed(hy_flow *f, bool elsewhere);
/* The first leg's answer will not be read, but its node may keep KV for it: that may go. */
void hy_flow__disown(hy_flow *f);
/* rest.c: the request is answered, the first leg may not have ended: it does so by itself. */
void hy_flow__rest(hy_flow *f);
/* decode.c: the same of the second. f->last says what was wrong. Either may free the flow. */
void hy_flow__decode(hy_flow *f);
void hy_flow__decode_failed(hy_flow *f, hy_client_fate fate);

#endif
