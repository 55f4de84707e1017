/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP client: one bufferevent per connection, which serves one call at a time and waits in
 * the client's list of kept ones between calls.
 *
 * A kept connection may have been closed by the peer while the request was on its way. Nothing of
 * an answer has come then, and the request is sent once more on a new connection; a failure on
 * that one is the caller's to judge.
 *
 * Thread: the loop's.  Owner: the client owns connections and calls.
 */
#include "core/http/client.h"

#include "core/base/buf.h"
#include "core/base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/bufferevent.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    READ_MOST = 256 << 10,  /* bytes taken off a socket before the caller sees them */
    ACK_TIMEOUT_MS = 30000, /* sent bytes that nobody acknowledges end a connection */
};

/* A request's bytes, shared with the connections that send them. */
typedef struct blob {
    int refs;
    size_t len;
    char data[];
} blob;

typedef struct conn {
    struct conn *next; /* kept ones */
    hy_client *c;
    struct bufferevent *bev;
    char *host;
    int port;
    hy_client_call *call; /* NULL: kept */
    bool reused, connected, got_bytes;
    bool opening, failed; /* inside connect: a failure then is told later */
} conn;

typedef enum phase { CONNECTING, WAIT_HEAD, IN_BODY, OVER } phase;

struct hy_client_call {
    hy_client_call *next, **link; /* of the client */
    hy_client *c;
    conn *conn;
    blob *msg;
    char *host;
    int port;
    uint64_t head_timeout_ns, stall_timeout_ns;
    hy_client_ops ops;
    void *arg;
    struct event *timer; /* the phase's deadline */
    struct event *start; /* a failure before the loop ran */
    struct evbuffer *piece;
    phase phase;
    size_t scanned;
    bool head_only, fresh, keep, paused;
    hy_wire_body body;
    int depth;  /* inside callbacks: freed when the last one returns */
    bool freed; /* cancelled, or ended */
};

struct hy_client {
    hy_client_opts o;
    struct evdns_base *dns; /* made for the first name that is no address */
    conn *kept;
    hy_client_call *calls;
};

static void on_read(struct bufferevent *bev, void *arg);
static void on_event(struct bufferevent *bev, short what, void *arg);

/* ---- small things ---- */

static void blob_unref(const void *data, size_t len, void *arg)
{
    blob *b = arg;
    (void)data;
    (void)len;
    if (--b->refs == 0)
        free(b);
}

static struct timeval tv_of(uint64_t ns)
{
    if (ns < HY_US)
        ns = HY_US;
    return (struct timeval){(time_t)(ns / HY_SEC), (suseconds_t)(ns % HY_SEC / HY_US)};
}

static void set_timer(hy_client_call *x, uint64_t ns)
{
    if (ns == 0) {
        event_del(x->timer);
        return;
    }
    struct timeval tv = tv_of(ns);
    event_add(x->timer, &tv);
}

static void conn_free(conn *k)
{
    bufferevent_free(k->bev);
    free(k->host);
    free(k);
}

static void unkeep(conn *k)
{
    for (conn **p = &k->c->kept; *p != NULL; p = &(*p)->next) {
        if (*p == k) {
            *p = k->next;
            return;
        }
    }
}

/* ---- the end of a call ---- */

static void call_free(hy_client_call *x)
{
    event_free(x->timer);
    event_free(x->start);
    evbuffer_free(x->piece);
    blob_unref(NULL, 0, x->msg);
    free(x->host);
    free(x);
}

static void drop_conn(hy_client_call *x)
{
    if (x->conn != NULL)
        conn_free(x->conn);
    x->conn = NULL;
}

/* Takes the call out of the client; its memory goes when no callback of it runs. */
static void retire(hy_client_call *x)
{
    if (x->freed)
        return;
    x->freed = true;
    x->phase = OVER;
    event_del(x->timer);
    event_del(x->start);
    drop_conn(x);
    *x->link = x->next;
    if (x->next != NULL)
        x->next->link = x->link;
    if (x->depth == 0)
        call_free(x);
}

static void enter(hy_client_call *x)
{
    x->depth++;
}

/* False: the call is gone. */
static bool leave(hy_client_call *x)
{
    if (--x->depth > 0 || !x->freed)
        return !x->freed;
    call_free(x);
    return false;
}

static void finish(hy_client_call *x, hy_client_fate fate, const char *why)
{
    hy_client_ops ops = x->ops;
    void *arg = x->arg;
    char text[512];
    snprintf(text, sizeof(text), "%s", why != NULL ? why : "");
    if (x->freed)
        return;
    retire(x);
    ops.on_end(arg, fate, text);
}

void hy_client_cancel(hy_client_call *x)
{
    if (x != NULL)
        retire(x);
}

/* The answer is complete: keep the connection if both sides can. */
static void complete(hy_client_call *x)
{
    hy_client *c = x->c;
    conn *k = x->conn;
    int n = 0;
    for (conn *i = c->kept; i != NULL; i = i->next)
        n += i->port == k->port && strcmp(i->host, k->host) == 0;
    bool keep = x->keep && !x->fresh && n < c->o.max_idle &&
                evbuffer_get_length(bufferevent_get_input(k->bev)) == 0 &&
                evbuffer_get_length(bufferevent_get_output(k->bev)) == 0;
    if (keep) {
        struct timeval tv = tv_of(c->o.idle_timeout_ns);
        x->conn = NULL;
        k->call = NULL;
        k->next = c->kept;
        c->kept = k;
        bufferevent_enable(k->bev, EV_READ); /* its end is seen */
        bufferevent_set_timeouts(k->bev, &tv, NULL);
    }
    finish(x, HY_CLIENT_DONE, "");
}

/* ---- connections ---- */

static void send_request(hy_client_call *x)
{
    struct evbuffer *out = bufferevent_get_output(x->conn->bev);
    x->msg->refs++;
    if (evbuffer_add_reference(out, x->msg->data, x->msg->len, blob_unref, x->msg) != 0)
        x->msg->refs--;
    x->phase = WAIT_HEAD;
    set_timer(x, x->head_timeout_ns);
}

/* Small pieces must not wait, and a peer that vanished without a word must be noticed. */
static void tune(int fd)
{
    int on = 1, idle = 10, interval = 5, count = 3, ack = ACK_TIMEOUT_MS;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ack, sizeof(ack));
}

static bool is_address(const char *host)
{
    unsigned char b[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, host, b) == 1 || inet_pton(AF_INET6, host, b) == 1;
}

static hy_status open_conn(hy_client_call *x)
{
    hy_client *c = x->c;
    conn *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for a connection");
    k->c = c;
    k->call = x;
    k->host = strdup(x->host);
    k->port = x->port;
    k->bev = bufferevent_socket_new(c->o.base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (k->host == NULL || k->bev == NULL) {
        if (k->bev != NULL)
            bufferevent_free(k->bev);
        free(k->host);
        free(k);
        return hy_fail(HY_E_NOMEM, "out of memory for a connection");
    }
    x->conn = k;
    x->phase = CONNECTING;
    bufferevent_setcb(k->bev, on_read, NULL, on_event, k);
    bufferevent_setwatermark(k->bev, EV_READ, 0, READ_MOST);
    bufferevent_enable(k->bev, EV_READ | EV_WRITE);
    set_timer(x, c->o.connect_timeout_ns);
    if (!is_address(x->host) && c->dns == NULL)
        c->dns = evdns_base_new(c->o.base, EVDNS_BASE_INITIALIZE_NAMESERVERS |
                                               EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    k->opening = true;
    int rc = bufferevent_socket_connect_hostname(k->bev, c->dns, AF_UNSPEC, x->host, x->port);
    k->opening = false;
    if (rc != 0 || k->failed)
        return hy_fail(HY_E_PEER, "no connection to %s:%d: %s", x->host, x->port, strerror(errno));
    return HY_OK;
}

static conn *take_kept(hy_client *c, const char *host, int port)
{
    for (conn **p = &c->kept; *p != NULL; p = &(*p)->next) {
        conn *k = *p;
        if (k->port == port && strcmp(k->host, host) == 0) {
            *p = k->next;
            k->next = NULL;
            return k;
        }
    }
    return NULL;
}

/* True: the call goes on, on a new connection. */
static bool try_again(hy_client_call *x)
{
    if (!x->conn->reused || x->conn->got_bytes || x->phase != WAIT_HEAD)
        return false;
    drop_conn(x);
    return open_conn(x) == HY_OK;
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    conn *k = arg;
    hy_client_call *x = k->call;
    int err = EVUTIL_SOCKET_ERROR();
    if (k->opening) {
        k->failed = true;
        return;
    }
    if (x == NULL) {
        unkeep(k);
        conn_free(k);
        return;
    }
    if (what & BEV_EVENT_CONNECTED) {
        k->connected = true;
        tune(bufferevent_getfd(bev));
        send_request(x);
        return;
    }
    char why[256];
    int dns = bufferevent_socket_get_dns_error(bev);
    if (dns != 0)
        snprintf(why, sizeof(why), "%s: %s", x->host, evutil_gai_strerror(dns));
    else if (what & BEV_EVENT_EOF)
        snprintf(why, sizeof(why), "%s:%d closed the connection", x->host, x->port);
    else
        snprintf(why, sizeof(why), "%s:%d: %s", x->host, x->port,
                 evutil_socket_error_to_string(err));
    if (x->phase == IN_BODY && (what & BEV_EVENT_EOF) && hy_wire_body_end(&x->body) == HY_OK) {
        complete(x);
        return;
    }
    if (!k->connected)
        finish(x, HY_CLIENT_REFUSED, why);
    else if (!try_again(x))
        finish(x, HY_CLIENT_CLOSED, why);
}

/* ---- answers ---- */

/* False: the call is gone or broken. */
static bool take_head(hy_client_call *x, struct evbuffer *in)
{
    hy_wire_head h;
    hy_status st;
    do { /* 100 Continue and its like are passed over */
        st = hy_wire_take_response(in, x->c->o.max_head_bytes, &x->scanned, x->head_only, &h);
        if (st == HY_OK && h.status < 200)
            hy_wire_head_fini(&h);
        else if (st == HY_OK)
            break;
    } while (st == HY_OK);
    if (st == HY_AGAIN)
        return false;
    if (st < 0) {
        finish(x, HY_CLIENT_BROKEN, hy_fail_text());
        return false;
    }
    x->phase = IN_BODY;
    x->keep = h.keep_alive;
    hy_wire_body_init(&x->body, &h);
    set_timer(x, x->paused ? 0 : x->stall_timeout_ns);
    enter(x);
    if (x->ops.on_head != NULL)
        x->ops.on_head(x->arg, &h);
    hy_wire_head_fini(&h);
    return leave(x);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    conn *k = arg;
    hy_client_call *x = k->call;
    struct evbuffer *in = bufferevent_get_input(bev);
    if (x == NULL) { /* bytes that nobody asked for */
        unkeep(k);
        conn_free(k);
        return;
    }
    k->got_bytes = true;
    if (x->phase == WAIT_HEAD && !take_head(x, in))
        return;
    if (x->phase != IN_BODY || x->paused)
        return;
    hy_status st = hy_wire_body_take(&x->body, in, x->piece);
    enter(x);
    if (evbuffer_get_length(x->piece) != 0) {
        set_timer(x, x->stall_timeout_ns);
        if (x->ops.on_body != NULL)
            x->ops.on_body(x->arg, x->piece);
        evbuffer_drain(x->piece, evbuffer_get_length(x->piece));
        if (!x->freed && x->paused)
            set_timer(x, 0);
    }
    if (!leave(x))
        return;
    if (st == HY_OK)
        complete(x);
    else if (st < 0)
        finish(x, HY_CLIENT_BROKEN, hy_fail_text());
}

void hy_client_follow(hy_client_call *x, const hy_client_ops *ops, void *arg)
{
    x->ops = *ops;
    x->arg = arg;
}

void hy_client_pause(hy_client_call *x, bool pause)
{
    if (x->paused == pause || x->freed)
        return;
    x->paused = pause;
    if (x->conn == NULL || x->phase == CONNECTING)
        return;
    if (pause) {
        bufferevent_disable(x->conn->bev, EV_READ);
        if (x->phase == IN_BODY)
            set_timer(x, 0);
        return;
    }
    if (x->phase == IN_BODY)
        set_timer(x, x->stall_timeout_ns);
    bufferevent_enable(x->conn->bev, EV_READ);
    if (evbuffer_get_length(bufferevent_get_input(x->conn->bev)) != 0)
        bufferevent_trigger(x->conn->bev, EV_READ, BEV_OPT_DEFER_CALLBACKS);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    hy_client_call *x = arg;
    char why[256];
    (void)fd;
    (void)what;
    if (x->phase == CONNECTING) {
        snprintf(why, sizeof(why), "no connection to %s:%d in time", x->host, x->port);
        finish(x, HY_CLIENT_UNREACHED, why);
        return;
    }
    snprintf(why, sizeof(why), "%s:%d did not answer in time", x->host, x->port);
    finish(x, HY_CLIENT_TIMED_OUT, why);
}

static void on_start(evutil_socket_t fd, short what, void *arg)
{
    hy_client_call *x = arg;
    char why[256];
    (void)fd;
    (void)what;
    snprintf(why, sizeof(why), "no connection to %s:%d", x->host, x->port);
    finish(x, HY_CLIENT_REFUSED, why);
}

/* ---- sending ---- */

static blob *make_message(const hy_client_req *r)
{
    hy_buf b;
    hy_buf_init(&b);
    bool v6 = strchr(r->host, ':') != NULL;
    hy_buf_printf(&b, "%s %s HTTP/1.1\r\nHost: %s%s%s:%d\r\n", r->method, r->target, v6 ? "[" : "",
                  r->host, v6 ? "]" : "", r->port);
    if (r->headers != NULL)
        hy_buf_puts(&b, r->headers);
    if (r->fresh)
        hy_buf_puts(&b, "Connection: close\r\n");
    if (r->body_len != 0 || strcmp(r->method, "POST") == 0)
        hy_buf_printf(&b, "Content-Length: %zu\r\n", r->body_len);
    hy_buf_puts(&b, "\r\n");
    blob *m = b.failed ? NULL : malloc(sizeof(*m) + b.len + r->body_len);
    if (m != NULL) {
        m->refs = 1;
        m->len = b.len + r->body_len;
        memcpy(m->data, b.data, b.len);
        if (r->body_len != 0)
            memcpy(m->data + b.len, r->body, r->body_len);
    }
    hy_buf_fini(&b);
    return m;
}

static hy_client_call *make_call(hy_client *c, const hy_client_req *r)
{
    hy_client_call *x = calloc(1, sizeof(*x));
    if (x == NULL)
        return NULL;
    x->c = c;
    x->port = r->port;
    x->head_timeout_ns = r->head_timeout_ns;
    x->stall_timeout_ns = r->stall_timeout_ns;
    x->ops = r->ops;
    x->arg = r->arg;
    x->fresh = r->fresh;
    x->head_only = strcmp(r->method, "HEAD") == 0;
    x->host = strdup(r->host);
    x->msg = make_message(r);
    x->timer = event_new(c->o.base, -1, 0, on_timer, x);
    x->start = event_new(c->o.base, -1, 0, on_start, x);
    x->piece = evbuffer_new();
    if (x->host != NULL && x->msg != NULL && x->timer != NULL && x->start != NULL &&
        x->piece != NULL)
        return x;
    free(x->host);
    free(x->msg);
    if (x->timer != NULL)
        event_free(x->timer);
    if (x->start != NULL)
        event_free(x->start);
    if (x->piece != NULL)
        evbuffer_free(x->piece);
    free(x);
    return NULL;
}

hy_status hy_client_send(hy_client *c, const hy_client_req *r, hy_client_call **out)
{
    hy_client_call *x = make_call(c, r);
    if (x == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for a call to %s:%d", r->host, r->port);
    x->link = &c->calls;
    x->next = c->calls;
    if (x->next != NULL)
        x->next->link = &x->next;
    c->calls = x;
    conn *k = r->fresh ? NULL : take_kept(c, r->host, r->port);
    if (k != NULL) {
        x->conn = k;
        k->call = x;
        k->reused = true;
        k->got_bytes = false;
        bufferevent_set_timeouts(k->bev, NULL, NULL);
        send_request(x);
    } else if (open_conn(x) < 0) {
        event_active(x->start, EV_TIMEOUT, 0);
    }
    *out = x;
    return HY_OK;
}

void hy_client_forget(hy_client *c, const char *host, int port)
{
    for (conn *k; (k = take_kept(c, host, port)) != NULL;)
        conn_free(k);
}

hy_status hy_client_create(const hy_client_opts *o, hy_client **out)
{
    hy_client *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for the HTTP client");
    c->o = *o;
    if (c->o.max_head_bytes == 0)
        c->o.max_head_bytes = 64 << 10;
    if (c->o.max_idle == 0)
        c->o.max_idle = 64;
    if (c->o.connect_timeout_ns == 0)
        c->o.connect_timeout_ns = 5 * HY_SEC;
    if (c->o.idle_timeout_ns == 0)
        c->o.idle_timeout_ns = 30 * HY_SEC;
    *out = c;
    return HY_OK;
}

void hy_client_destroy(hy_client *c)
{
    if (c == NULL)
        return;
    while (c->calls != NULL)
        retire(c->calls);
    while (c->kept != NULL) {
        conn *k = c->kept;
        c->kept = k->next;
        conn_free(k);
    }
    if (c->dns != NULL)
        evdns_base_free(c->dns, 0);
    free(c);
}
