/* SPDX-License-Identifier: Apache-2.0
 *
 * A non-blocking HTTP/1.1 client in somebody's libevent loop: kept connections per address, bodies
 * handed on as they come, flow control, deadlines, and cancelling by hanging up. For the router's
 * way to its workers and the supervisor's to its nodes.
 *
 * Thread: the loop's.  Owner: the creator destroys the client, which cancels all calls.
 */
#ifndef HY_HTTP_CLIENT_H
#define HY_HTTP_CLIENT_H

#include "core/http/wire.h"

struct event_base;
typedef struct hy_client hy_client;
typedef struct hy_client_call hy_client_call;

typedef struct hy_client_opts {
    struct event_base *base;
    size_t max_head_bytes;       /* 0: 64 KiB */
    int max_idle;                /* connections kept per address; 0: 64 */
    uint64_t connect_timeout_ns; /* 0: 5 s */
    uint64_t idle_timeout_ns;    /* of a kept connection; 0: 30 s */
} hy_client_opts;

/* How a call ended. */
typedef enum hy_client_fate {
    HY_CLIENT_DONE,      /* the whole answer was handed on */
    HY_CLIENT_REFUSED,   /* no connection: nothing reached the peer */
    HY_CLIENT_UNREACHED, /* the same, after silence: the connect timeout */
    HY_CLIENT_CLOSED,    /* the connection ended too early */
    HY_CLIENT_TIMED_OUT, /* the head or the next byte did not come in time */
    HY_CLIENT_BROKEN,    /* what came is not HTTP, or its head is too long */
} hy_client_fate;

/* on_end comes exactly once unless the call is cancelled, and the call is gone then; `why` is
 * text for people. The callbacks never run inside hy_client_send, and may cancel their call. */
typedef struct hy_client_ops {
    void (*on_head)(void *arg, const hy_wire_head *head); /* borrowed; may be NULL */
    void (*on_body)(void *arg, struct evbuffer *piece);   /* take or leave: it is drained after; may
                                                             be NULL */
    void (*on_end)(void *arg, hy_client_fate fate, const char *why);
} hy_client_ops;

typedef struct hy_client_req {
    const char *host;
    int port;
    const char *method, *target;
    const char *headers; /* "Name: value\r\n"..., without framing and Host; NULL: none */
    const void *body;    /* copied */
    size_t body_len;
    uint64_t head_timeout_ns;  /* from the connection to the answer's head; 0: none */
    uint64_t stall_timeout_ns; /* most time without a byte of the body; 0: none */
    bool fresh;                /* on a connection of its own, closed after it */
    hy_client_ops ops;
    void *arg;
} hy_client_req;

/* HY_E_NOMEM. */
hy_status hy_client_create(const hy_client_opts *o, hy_client **out);
void hy_client_destroy(hy_client *c); /* NULL is fine; no on_end is called */

/* Strings are copied. HY_E_NOMEM; all else comes as on_end. */
hy_status hy_client_send(hy_client *c, const hy_client_req *r, hy_client_call **out);
/* Hang up; no callback comes any more. NULL is fine. */
void hy_client_cancel(hy_client_call *x);
/* Others hear of it from now on: of the rest of its body, and its end. */
void hy_client_follow(hy_client_call *x, const hy_client_ops *ops, void *arg);
/* Stop and go on reading the body: the peer's sending then fills the connection and waits. The
 * stall timeout rests meanwhile. */
void hy_client_pause(hy_client_call *x, bool pause);
/* Close kept connections to this address: the peer has died. */
void hy_client_forget(hy_client *c, const char *host, int port);

#endif
