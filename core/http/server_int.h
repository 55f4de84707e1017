/* SPDX-License-Identifier: Apache-2.0
 *
 * The http stage's state: evhttp, its connections, and the calls that wait for an answer.
 *
 * Thread: http stage.  Owner: the server.
 */
#ifndef HY_HTTP_SERVER_INT_H
#define HY_HTTP_SERVER_INT_H

#include "core/http/http_int.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>

/* One TCP connection, from accept to its end. */
typedef struct hy_conn {
    struct hy_server *s;
    struct bufferevent *bev; /* with a reference of ours: it outlives evhttp's connection */
    uint64_t since_ns;       /* idle since, or first byte of the request at */
    bool reading;            /* a request has begun and is not complete */
    bool handling;           /* a request is complete and not answered */
    bool closing;            /* hung up to make room; evhttp hears of it */
} hy_conn;

/* A request whose answer another stage makes. */
typedef struct hy_slot {
    uint64_t id; /* 0: free */
    struct evhttp_request *req;
    struct evhttp_connection *evcon;
    hy_gone *gone;
    uint64_t *ids; /* engine requests */
    size_t n_ids;
    uint64_t arrival_ns;
    const char *handler, *method;
    bool streaming;
    struct hy_server *s;
} hy_slot;

struct hy_server {
    hy_http *h;
    struct event_base *base;
    struct evhttp *http;
    struct evconnlistener *listener; /* owned by evhttp once bound */
    struct evhttp_bound_socket *bound;
    struct event *mail, *tick, *deadline;
    int port;
    int fd; /* listening socket until evhttp has it */
    hy_conn *conns;
    int n_conns, most_conns;
    unsigned n_accepts;
    hy_slot *slots; /* [max_connections] */
    uint64_t next_id;
    bool paused; /* too many connections: not accepting */
    time_t start;
};

/* bind.c: from now on fd takes connections. Closes it on failure. */
hy_status hy_server__listen(const hy_http_opts *o, int fd, int *port_out);

/* conns.c */
hy_status hy_conns__init(hy_server *s);
void hy_conns__fini(hy_server *s);
/* evhttp's maker of bufferevents */
struct bufferevent *hy_conns__accept(struct event_base *base, void *arg);
hy_conn *hy_conns__find(hy_server *s, struct bufferevent *bev);
/* Forgets the dead, hangs up on the late. */
void hy_conns__sweep(hy_server *s, uint64_t now_ns);

/* errpage.c: what evhttp answers by itself gets an OpenAI body. */
void hy_errpage__watch(hy_server *s, struct bufferevent *bev);
/* pages.c: GET routes. True when the path is one; the request was answered. */
bool hy_pages__get(hy_server *s, struct evhttp_request *req, const char *path,
                   const char **handler);
/* release.c: answers, and returns the status */
int hy_release__post(hy_server *s, struct evhttp_request *req);
/* reply.c */
void hy_server__send(hy_server *s, struct evhttp_request *req, int status, const char *ctype,
                     hy_buf *body);
void hy_server__send_error(hy_server *s, struct evhttp_request *req, const hy_api_error *e);
void hy_server__common_headers(hy_server *s, struct evhttp_request *req);
void hy_server__header(struct evhttp_request *req, const char *name, const char *value);
const char *hy_server__reason(int status);
enum { HY_XID_LEN = 128 };
/* The client's X-Request-Id if it is harmless, else one of our own. True: the client's. */
bool hy_server__request_id(hy_server *s, struct evhttp_request *req, char out[HY_XID_LEN]);

#endif
