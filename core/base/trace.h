/* SPDX-License-Identifier: Apache-2.0
 *
 * Timelines of the last requests: when each reached which point of its way through this node, and
 * a few numbers. A fixed ring of records, found by the request's number alone, so that a mark costs
 * a few atomic operations and never memory. Written out as Chrome trace events, which Perfetto and
 * chrome://tracing show; `halyard trace` joins the pages of several nodes by the request's name.
 *
 * Times are the clock's (monotonic). A page says which clock that is: processes that share it (one
 * machine) share one time line exactly, others are aligned by who reads their pages.
 *
 * Thread: any.  Owner: the creator destroys. NULL is a trace that keeps nothing: every call takes
 * it.
 */
#ifndef HY_BASE_TRACE_H
#define HY_BASE_TRACE_H

#include "core/base/buf.h"

typedef struct hy_trace hy_trace;

typedef enum hy_trace_point { /* in the order in which a node with a model passes them */
                              HY_TRACE_ARRIVED,  /* the request was read whole */
                              HY_TRACE_QUEUED,   /* tokenised; the scheduler has it */
                              HY_TRACE_ADMITTED, /* its KV blocks are allocated */
                              HY_TRACE_LOAD,   /* a transfer from the prompt's owner was ordered */
                              HY_TRACE_LOADED, /* and has ended */
                              HY_TRACE_FIRST,  /* first token, computed or handed over */
                              HY_TRACE_DECODE, /* the first token after it: a step of this node */
                              HY_TRACE_FINISHED, /* the scheduler is done with it */
                              HY_TRACE_ANSWERED, /* the last byte was handed to the connection, or
                                                    it was hung up */
                              HY_TRACE_SEND,     /* owner: the peer's order came, writing begins */
                              HY_TRACE_SENT,     /* owner: the last byte was applied there */
                              HY_TRACE_FREED, /* owner: the blocks kept for the peer were given back
                                               */
                              HY_TRACE_P_SENT,  /* router: the request went to a prefill node */
                              HY_TRACE_P_DONE,  /* router: whose answer is complete */
                              HY_TRACE_D_SENT,  /* router: the request went to a decode node */
                              HY_TRACE_D_FIRST, /* router: whose answer begins */
                              HY_TRACE_POINTS,
} hy_trace_point;

typedef enum hy_trace_num {
    HY_TRACE_PROMPT,    /* tokens */
    HY_TRACE_HIT,       /* of them found in this node's prefix cache */
    HY_TRACE_MOVED,     /* of them brought by a transfer */
    HY_TRACE_OUTPUT,    /* tokens */
    HY_TRACE_BYTES_IN,  /* of the transfer */
    HY_TRACE_BYTES_OUT, /* owner: written into the peer */
    HY_TRACE_STATUS,    /* of HTTP; 499: the client hung up */
    HY_TRACE_LEGS,      /* router: requests sent to workers: two, where nothing failed */
    HY_TRACE_NUMS,
} hy_trace_num;

typedef enum hy_trace_text { HY_TRACE_P_NAME, HY_TRACE_D_NAME, HY_TRACE_TEXTS } hy_trace_text;

enum { HY_TRACE_RID_MAX = 128, HY_TRACE_NAME_MAX = 41, HY_TRACE_CLOCK_MAX = 96 };
/* Requests that a ring may keep. */
#define HY_TRACE_MOST 1000000ul

/* Keeps the last n requests; n 0 or no memory: NULL. Strings are copied. */
hy_trace *hy_trace_create(const char *node, const char *role, size_t n);
void hy_trace_destroy(hy_trace *t);

/* A request with this number (never 0, ascending) begins; rid is its name on all nodes. The record
 * of the one that was n earlier is dropped. */
void hy_trace_begin(hy_trace *t, uint64_t id, const char *rid, uint64_t now_ns);
/* The first mark of a point counts; again: the last one. Unknown and dropped numbers are no-ops. */
void hy_trace_mark(hy_trace *t, uint64_t id, hy_trace_point p, uint64_t now_ns);
void hy_trace_again(hy_trace *t, uint64_t id, hy_trace_point p, uint64_t now_ns);
void hy_trace_set(hy_trace *t, uint64_t id, hy_trace_num k, int64_t v);
void hy_trace_add(hy_trace *t, uint64_t id, hy_trace_num k, int64_t v);
void hy_trace_name(hy_trace *t, uint64_t id, hy_trace_text k, const char *s);

/* One line for people: where this request's time went on this node. False: it is not kept. */
bool hy_trace_line(hy_trace *t, uint64_t id, hy_buf *out);
/* {"traceEvents":[...],"otherData":{...}}: the last `most` requests, oldest first; rid: only those
 * of this name (NULL: all). otherData names the clock and its time now. */
void hy_trace_json(hy_trace *t, uint64_t now_ns, uint64_t unix_ns, const char *rid, size_t most,
                   hy_buf *out);
/* Name of the clock that this process reads: equal names, equal times. */
void hy_trace_clock(char *out, size_t cap);

#endif
