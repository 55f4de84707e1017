/* SPDX-License-Identifier: Apache-2.0
 *
 * The clients' connections: one request at a time each, read whole (bounded), then answered by a
 * page or a flow. While a request is in work its connection is still read, up to a watermark, so
 * that a hang-up is seen at once; what a client sends ahead waits in the buffer.
 *
 * Thread: route stage.  Owner: the router owns connections; a flow borrows its own.
 */
#include "core/base/log.h"
#include "core/http/http.h"
#include "core/http/json_out.h"
#include "core/route/route_int.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum { READ_HEAD, READ_BODY, WORK, FLUSH, LINGER };
enum { MAX_AHEAD = 256 << 10 };
#define LINGER_NS (2 * HY_SEC)

static void on_read(struct bufferevent *bev, void *arg);
static void on_write(struct bufferevent *bev, void *arg);
static void on_event(struct bufferevent *bev, short what, void *arg);

static void set_owed(hy_front *c, bool owed)
{
    if (c->owed != owed)
        atomic_fetch_add(&c->r->n_active, owed ? 1 : -1);
    c->owed = owed;
}

static void front_free(hy_front *c)
{
    hy_route *r = c->r;
    hy_flow *f = c->flow;
    c->flow = NULL;
    if (f != NULL)
        hy_flow_gone(f);
    set_owed(c, false);
    *c->link = c->next;
    if (c->next != NULL)
        c->next->link = c->link;
    r->n_fronts--;
    hy_metric_set(r->mx_conns, r->n_fronts);
    hy_wire_head_fini(&c->head);
    evbuffer_free(c->in);
    bufferevent_free(c->bev);
    free(c);
    if (r->paused && r->listener != NULL && r->n_fronts < r->o.max_connections + HY_HTTP_SPARE) {
        r->paused = false;
        evconnlistener_enable(r->listener);
    }
}

/* ---- answers ---- */

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } names[] = {
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {413, "Content Too Large"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };
    for (size_t i = 0; i < HY_COUNTOF(names); i++)
        if (names[i].status == status)
            return names[i].text;
    return status < 400 ? "OK" : "Error";
}

void hy_route__error_json(hy_buf *b, int status, const char *type, const char *text)
{
    hy_buf_puts(b, "{\"error\":{\"message\":");
    hy_json_cstr(b, text);
    hy_buf_puts(b, ",\"type\":");
    hy_json_cstr(b, type);
    hy_buf_printf(b, ",\"param\":null,\"code\":%d}}", status);
}

static void put_head(hy_front *c, int status, const char *headers)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    if (atomic_load(&c->r->draining))
        c->keep = false;
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nX-Request-Id: %s\r\n", status, reason(status),
                        c->rid);
    if (!c->keep)
        evbuffer_add(out, "Connection: close\r\n", 19);
    else if (c->head.minor == 0)
        evbuffer_add(out, "Connection: keep-alive\r\n", 24);
    if (headers != NULL)
        evbuffer_add(out, headers, strlen(headers));
}

/* The request is answered: on to the next, or to the end of the connection. */
static void next_request(hy_front *c)
{
    c->flow = NULL;
    c->full = false;
    hy_wire_head_fini(&c->head);
    evbuffer_drain(c->in, evbuffer_get_length(c->in));
    c->since_ns = hy_route__now(c->r);
    c->reading = false;
    c->phase = c->keep ? READ_HEAD : FLUSH;
    bufferevent_setwatermark(c->bev, EV_WRITE, 0, 0);
    /* not from inside a callback: on_write may free, on_read begins the next request */
    bufferevent_trigger(c->bev, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
    if (c->keep && evbuffer_get_length(bufferevent_get_input(c->bev)) != 0)
        bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS);
}

void hy_front_reply(hy_front *c, int status, const char *headers, struct evbuffer *body)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    size_t len = body != NULL ? evbuffer_get_length(body) : 0;
    put_head(c, status, headers);
    if (status != 204)
        evbuffer_add_printf(out, "Content-Length: %zu\r\n", len);
    evbuffer_add(out, "\r\n", 2);
    bool head = c->head.method != NULL && strcmp(c->head.method, "HEAD") == 0;
    if (len != 0 && !head)
        evbuffer_add_buffer(out, body);
    next_request(c);
}

static void free_ref(const void *data, size_t len, void *arg)
{
    (void)data;
    (void)len;
    free(arg);
}

void hy_front_reply_buf(hy_front *c, int status, const char *headers, hy_buf *body)
{
    struct evbuffer *b = evbuffer_new();
    size_t len = body->len;
    char *p = hy_buf_take(body);
    if (b == NULL || p == NULL || evbuffer_add_reference(b, p, len, free_ref, p) != 0)
        free(p);
    hy_front_reply(c, status, headers, b);
    if (b != NULL)
        evbuffer_free(b);
}

void hy_front_reply_error(hy_front *c, int status, const char *type, const char *text,
                          const char *headers)
{
    hy_buf b, h;
    hy_buf_init(&b);
    hy_buf_init(&h);
    hy_route__error_json(&b, status, type, text);
    hy_buf_puts(&h, "Content-Type: application/json\r\n");
    if (headers != NULL)
        hy_buf_puts(&h, headers);
    hy_front_reply_buf(c, status, hy_buf_str(&h), &b);
    hy_buf_fini(&h);
}

void hy_front_stream(hy_front *c, int status, const char *headers)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    c->chunked = c->head.minor >= 1;
    if (!c->chunked)
        c->keep = false;
    put_head(c, status, headers);
    evbuffer_add_printf(out, "%s\r\n", c->chunked ? "Transfer-Encoding: chunked\r\n" : "");
}

bool hy_front_piece(hy_front *c, struct evbuffer *piece)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    size_t n = evbuffer_get_length(piece), most = c->r->o.max_unsent_bytes;
    if (n == 0)
        return !c->full;
    if (c->chunked)
        evbuffer_add_printf(out, "%zx\r\n", n);
    evbuffer_add_buffer(out, piece);
    if (c->chunked)
        evbuffer_add(out, "\r\n", 2);
    if (!c->full && evbuffer_get_length(out) > most) {
        c->full = true;
        bufferevent_setwatermark(c->bev, EV_WRITE, most / 4, 0);
    }
    return !c->full;
}

void hy_front_stream_end(hy_front *c)
{
    if (c->chunked)
        evbuffer_add(bufferevent_get_output(c->bev), "0\r\n\r\n", 5);
    next_request(c);
}

/* ---- requests ---- */

static bool is_harmless(const char *s)
{
    size_t n = strlen(s);
    if (n == 0 || n >= HY_RID_LEN)
        return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)s[i];
        if (ch <= 0x20 || ch >= 0x7f || strchr("\"\\<>", ch) != NULL)
            return false;
    }
    return true;
}

static void choose_rid(hy_front *c)
{
    const char *given = hy_wire_find(&c->head, "X-Request-Id");
    if (given != NULL && is_harmless(given))
        snprintf(c->rid, sizeof(c->rid), "%s", given);
    else
        snprintf(c->rid, sizeof(c->rid), "%016llx",
                 (unsigned long long)hy_rng_u64(hy_stage_rng(c->r->stage)));
}

static void refuse(hy_front *c, int status, const char *text)
{
    c->keep = false; /* where the next request would begin is not known */
    if (c->rid[0] == '\0')
        choose_rid(c);
    hy_front_reply_error(c, status, status == 413 ? "RequestTooLargeError" : "BadRequestError",
                         text, NULL);
}

/* False: nothing more can be done with what is there. */
static bool take_head(hy_front *c, struct evbuffer *in)
{
    hy_route *r = c->r;
    hy_status st = hy_wire_take_request(in, r->o.max_header_bytes, &c->scanned, &c->head);
    if (st == HY_AGAIN)
        return false;
    set_owed(c, true);
    c->rid[0] = '\0';
    if (st < 0) {
        refuse(c, st == HY_E_LIMIT ? 431 : 400, hy_fail_text());
        return false;
    }
    choose_rid(c);
    c->keep = c->head.keep_alive;
    hy_wire_body_init(&c->body, &c->head);
    if (c->head.framing == HY_WIRE_LENGTH && c->head.length > r->o.max_body_bytes) {
        refuse(c, 413, "The body is larger than [http] max_body allows.");
        return false;
    }
    if (c->head.expect_continue && c->head.framing != HY_WIRE_EMPTY)
        bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    c->phase = READ_BODY;
    return true;
}

static void take_body(hy_front *c, struct evbuffer *in)
{
    hy_status st = hy_wire_body_take(&c->body, in, c->in);
    if (st < 0) {
        refuse(c, 400, hy_fail_text());
    } else if (evbuffer_get_length(c->in) > c->r->o.max_body_bytes) {
        refuse(c, 413, "The body is larger than [http] max_body allows.");
    } else if (st == HY_OK) {
        c->phase = WORK;
        c->reading = false;
        c->t0_ns = hy_route__now(c->r);
        hy_route__request(c);
    }
}

static void on_read(struct bufferevent *bev, void *arg)
{
    hy_front *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    if (c->phase >= FLUSH) {
        evbuffer_drain(in, evbuffer_get_length(in));
        return;
    }
    if (c->phase == READ_HEAD && !c->reading && evbuffer_get_length(in) != 0) {
        c->reading = true;
        c->since_ns = hy_route__now(c->r);
    }
    if (c->phase == READ_HEAD && !take_head(c, in))
        return;
    if (c->phase == READ_BODY)
        take_body(c, in);
}

/* Bytes that the client has sent and nobody has read would turn our close into a reset, which may
 * overtake the answer: say goodbye first, and wait a little for theirs. */
static void linger(hy_front *c)
{
    c->phase = LINGER;
    c->since_ns = hy_route__now(c->r);
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    hy_front *c = arg;
    size_t left = evbuffer_get_length(bufferevent_get_output(bev));
    if (c->full && left <= c->r->o.max_unsent_bytes / 4) {
        c->full = false;
        bufferevent_setwatermark(bev, EV_WRITE, 0, 0);
        if (c->flow != NULL)
            hy_flow_resume(c->flow);
        return;
    }
    if (left != 0 || c->phase == WORK || c->phase == READ_BODY)
        return;
    set_owed(c, false);
    if (c->phase == FLUSH)
        linger(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    hy_front *c = arg;
    (void)bev;
    if ((what & BEV_EVENT_TIMEOUT) && (what & BEV_EVENT_WRITING))
        hy_warn("route", "a client took nothing for too long and was dropped");
    front_free(c);
}

/* ---- connections ---- */

/* For its client; what is unread may be a request. */
static bool is_waiting(const hy_front *c, uint64_t now_ns)
{
    int n = 0;
    return (c->phase == READ_HEAD || c->phase == READ_BODY) &&
           now_ns - c->since_ns >= HY_HTTP_PATIENCE_NS &&
           evbuffer_get_length(bufferevent_get_output(c->bev)) == 0 &&
           (ioctl(bufferevent_getfd(c->bev), FIONREAD, &n) != 0 || n == 0);
}

/* As in core/http/conns.c: hangs up on one that waits for its client. False: none does. */
static bool make_room(hy_route *r, uint64_t now_ns)
{
    hy_front *worst = NULL;
    bool worst_begun = false;
    for (hy_front *c = r->fronts; c != NULL; c = c->next) {
        const bool begun = c->phase == READ_BODY || c->reading;
        if (worst != NULL &&
            (begun > worst_begun || (begun == worst_begun && c->since_ns >= worst->since_ns)))
            continue;
        if (is_waiting(c, now_ns)) {
            worst = c;
            worst_begun = begun;
        }
    }
    if (worst != NULL)
        front_free(worst);
    return worst != NULL;
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int len,
                      void *arg)
{
    hy_route *r = arg;
    (void)l;
    (void)addr;
    (void)len;
    hy_front *c = calloc(1, sizeof(*c));
    struct bufferevent *bev =
        c != NULL ? bufferevent_socket_new(r->base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
    if (bev == NULL || (c->in = evbuffer_new()) == NULL) {
        if (bev != NULL)
            bufferevent_free(bev);
        else
            evutil_closesocket(fd);
        free(c);
        return;
    }
    c->r = r;
    c->bev = bev;
    c->phase = READ_HEAD;
    c->since_ns = hy_route__now(r);
    c->link = &r->fronts;
    c->next = r->fronts;
    if (c->next != NULL)
        c->next->link = &c->next;
    r->fronts = c;
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)); /* the vanished are noticed */
    struct timeval wr = {(time_t)(r->o.write_timeout_ns / HY_SEC),
                         (suseconds_t)(r->o.write_timeout_ns % HY_SEC / HY_US)};
    bufferevent_set_timeouts(bev, NULL, r->o.write_timeout_ns != 0 ? &wr : NULL);
    bufferevent_setcb(bev, on_read, on_write, on_event, c);
    size_t most = r->o.max_header_bytes + 4 > MAX_AHEAD ? r->o.max_header_bytes + 4 : MAX_AHEAD;
    bufferevent_setwatermark(bev, EV_READ, 0, most);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
    hy_metric_set(r->mx_conns, ++r->n_fronts);
    if (r->n_fronts > r->o.max_connections)
        (void)make_room(r, c->since_ns);
    if (r->n_fronts >= r->o.max_connections + HY_HTTP_SPARE && !r->paused) {
        r->paused = true;
        evconnlistener_disable(r->listener);
        hy_warn("route", "%d connections are open, as many as may be; others wait", r->n_fronts);
    }
}

void hy_route__front_sweep(hy_route *r, uint64_t now_ns)
{
    const bool shortage = r->n_fronts >= r->o.max_connections + HY_HTTP_SPARE;
    while (r->n_fronts > r->o.max_connections && make_room(r, now_ns))
        ;
    if (r->paused && r->listener != NULL && r->n_fronts < r->o.max_connections + HY_HTTP_SPARE) {
        r->paused = false;
        evconnlistener_enable(r->listener);
    }
    for (hy_front *c = r->fronts, *next; c != NULL; c = next) {
        next = c->next;
        uint64_t limit = c->phase == LINGER                    ? LINGER_NS
                         : c->phase == READ_BODY || c->reading ? r->o.header_timeout_ns
                                                               : r->o.idle_timeout_ns;
        bool drained = atomic_load(&r->draining) && c->phase == READ_HEAD && !c->reading;
        if (c->phase == WORK || c->phase == FLUSH || c->owed)
            drained = false;
        if (c->phase == WORK || c->phase == FLUSH)
            continue;
        const bool room = shortage && !c->reading && c->phase == READ_HEAD && is_waiting(c, now_ns);
        if (drained || room || (limit != 0 && now_ns - c->since_ns > limit))
            front_free(c);
    }
}

void hy_route__front_stop(hy_route *r)
{
    if (r->listener != NULL)
        evconnlistener_free(r->listener);
    r->listener = NULL;
}

void hy_route__front_hangup(hy_route *r)
{
    while (r->fronts != NULL)
        front_free(r->fronts);
}

/* Out of descriptors, most likely: trying again at once would only burn time. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
    hy_route *r = arg;
    hy_warn("route", "accept: %s", evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR()));
    evconnlistener_disable(l);
    r->paused = true;
}

hy_status hy_route__front_init(hy_route *r)
{
    hy_http_opts o = {.host = r->host, .port = r->o.port, .api_key = r->api_key};
    int fd = -1;
    HY_TRY(hy_http_bind(&o, &fd, &r->port));
    r->listener = evconnlistener_new(r->base, on_accept, r,
                                     LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    if (r->listener == NULL) {
        evutil_closesocket(fd);
        return hy_fail(HY_E_NOMEM, "out of memory for the listener");
    }
    evconnlistener_set_error_cb(r->listener, on_accept_error);
    return HY_OK;
}

void hy_route__front_fini(hy_route *r)
{
    hy_route__front_stop(r);
    hy_route__front_hangup(r);
}
