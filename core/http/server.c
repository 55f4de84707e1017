/* SPDX-License-Identifier: Apache-2.0
 *
 * The http stage: evhttp in libevent's loop, woken through the mailbox's descriptor. A request for
 * the API takes a slot, travels through text and out, and is answered by messages that name the
 * slot; a client that hangs up frees the slot and aborts its engine requests at once.
 *
 * Thread: http stage; create and destroy before and after it runs.
 * Owner: evhttp owns connections and requests; a slot only points at its own.
 */
#include "core/http/server_int.h"

#include "core/base/log.h"
#include "core/http/out_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    SLOT_BITS = 20,
    MAX_AHEAD = 256 << 10, /* bytes that a client may send before it has its answer */
};

/* ---- slots ---- */

static hy_slot *slot_of(hy_server *s, uint64_t id)
{
    size_t i = (size_t)(id & ((1u << SLOT_BITS) - 1));
    if (i >= (size_t)s->h->o.max_connections || s->slots[i].id != id)
        return NULL;
    return &s->slots[i];
}

static hy_slot *take_slot(hy_server *s)
{
    for (int i = 0; i < s->h->o.max_connections; i++) {
        hy_slot *x = &s->slots[i];
        if (x->id == 0) {
            x->id = (++s->next_id << SLOT_BITS) | (uint64_t)i;
            x->s = s;
            atomic_fetch_add(&s->h->n_calls, 1);
            return x;
        }
    }
    return NULL;
}

static void free_slot(hy_slot *x, int status)
{
    hy_server *s = x->s;
    hy_conn *c = NULL;
    if (x->evcon != NULL)
        c = hy_conns__find(s, evhttp_connection_get_bufferevent(x->evcon));
    uint64_t now = hy_stage_now(s->h->http);
    if (c != NULL) {
        c->handling = false;
        c->reading = false;
        c->since_ns = now;
    }
    hy_http_metrics__request(s->h->mx, x->handler, x->method, status,
                             (double)(now - x->arrival_ns) / 1e9);
    hy_http_trace__answered(s->h, x->ids, x->n_ids, status);
    hy_gone__unref(x->gone);
    free(x->ids);
    *x = (hy_slot){0};
    atomic_fetch_sub(&s->h->n_calls, 1);
}

/* Nobody wants the answer any more. */
static void give_up(hy_slot *x)
{
    atomic_store(&x->gone->gone, true);
    for (size_t i = 0; i < x->n_ids; i++)
        hy_engine_abort(x->s->h->o.engine, x->ids[i]);
}

/* A client that closed only its sending side looks as one that left (see docs/HTTP.md), but it
 * still reads: it learns why there is no answer. To the others the bytes do not matter. */
static void tell_half_closed(const hy_slot *x)
{
    static const char body[] =
        "{\"error\":{\"message\":\"The connection's sending side was closed before the answer was "
        "there, which counts as hanging up: keep it open until then.\",\"type\":"
        "\"BadRequestError\",\"param\":null,\"code\":400}}";
    char text[512];
    struct bufferevent *bev = evhttp_connection_get_bufferevent(x->evcon);
    if (x->streaming || evbuffer_get_length(bufferevent_get_output(bev)) != 0)
        return; /* inside an answer: its missing end tells */
    int n = snprintf(text, sizeof(text),
                     "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                     sizeof(body) - 1, body);
    if (n > 0 && send(bufferevent_getfd(bev), text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        hy_debug("http", "a client is gone for good: %s", strerror(errno));
}

/* The connection goes down under an unanswered request. */
static void on_close(struct evhttp_connection *evcon, void *arg)
{
    hy_slot *x = arg;
    give_up(x);
    tell_half_closed(x);
    if (evhttp_request_get_connection(x->req) != evcon)
        evhttp_request_free(x->req); /* evhttp has cut it off: it is ours */
    hy_debug("http", "a client hung up on request %llu", (unsigned long long)x->id);
    free_slot(x, 499);
}

/* ---- answers from the other stages ---- */

static void end_slot(hy_slot *x, int status)
{
    evhttp_connection_set_closecb(x->evcon, NULL, NULL);
    bufferevent_setwatermark(evhttp_connection_get_bufferevent(x->evcon), EV_READ, 0, 0);
    free_slot(x, status);
}

static void start_stream(hy_server *s, hy_slot *x)
{
    hy_server__common_headers(s, x->req);
    hy_server__header(x->req, "Content-Type", "text/event-stream; charset=utf-8");
    hy_server__header(x->req, "Cache-Control", "no-cache");
    hy_server__header(x->req, "X-Accel-Buffering", "no");
    evhttp_send_reply_start(x->req, 200, "OK");
    x->streaming = true;
}

static void stream_piece(hy_server *s, hy_slot *x, hy_reply *r)
{
    struct evhttp_connection *evcon = x->evcon;
    struct evhttp_request *req = x->req;
    if (!x->streaming)
        start_stream(s, x);
    struct evbuffer *b = evbuffer_new();
    if (b == NULL || (r->body.len != 0 && evbuffer_add(b, r->body.data, r->body.len) != 0)) {
        if (b != NULL)
            evbuffer_free(b);
        evhttp_connection_free(evcon);
        return;
    }
    evhttp_send_reply_chunk(req, b);
    evbuffer_free(b);
    size_t unsent =
        evbuffer_get_length(bufferevent_get_output(evhttp_connection_get_bufferevent(evcon)));
    if (unsent > s->h->o.max_slow_reader_bytes) {
        hy_warn("http", "a client reads too slowly: %zu bytes are unsent, its request is aborted",
                unsent);
        evhttp_connection_free(evcon); /* calls on_close */
        return;
    }
    if (r->end) {
        end_slot(x, 200);
        evhttp_send_reply_end(req);
    }
}

static void whole_answer(hy_server *s, hy_slot *x, hy_reply *r)
{
    struct evhttp_request *req = x->req;
    if (r->retry_after_s != 0) {
        char t[16];
        snprintf(t, sizeof(t), "%d", r->retry_after_s);
        hy_server__header(req, "Retry-After", t);
    }
    end_slot(x, r->status);
    hy_server__send(s, req, r->status, "application/json", &r->body);
}

static void take_ids(hy_server *s, hy_slot *x, hy_reply *r)
{
    if (x == NULL) {
        for (size_t i = 0; i < r->n_ids; i++)
            hy_engine_abort(s->h->o.engine, r->ids[i]);
        hy_http_trace__answered(s->h, r->ids, r->n_ids, 499); /* hung up before its ids came */
        return;
    }
    x->ids = r->ids;
    x->n_ids = r->n_ids;
    r->ids = NULL;
}

/* Answers all that are owed with an error: a stream ends with an error event. */
static void stop_all(hy_server *s)
{
    hy_api_error e;
    hy_api_error_set(&e, 503, "ServiceUnavailableError", NULL,
                     "The server was stopped before the answer was complete.");
    for (int i = 0; i < s->h->o.max_connections; i++) {
        hy_slot *x = &s->slots[i];
        if (x->id == 0)
            continue;
        struct evhttp_request *req = x->req;
        give_up(x);
        if (!x->streaming) {
            end_slot(x, e.status);
            hy_server__send_error(s, req, &e);
            continue;
        }
        hy_reply r = {.end = true};
        hy_buf_init(&r.body);
        hy_out__error_chunk(&e, &r.body);
        stream_piece(s, x, &r);
        hy_buf_fini(&r.body);
    }
}

static void stop_listening(hy_server *s)
{
    if (s->bound != NULL)
        evhttp_del_accept_socket(s->http, s->bound);
    s->bound = NULL;
    s->listener = NULL;
    s->paused = false;
}

static hy_status on_msg(void *self, hy_msg *msg)
{
    hy_server *s = ((hy_http *)self)->server;
    hy_reply *r = msg->data;
    if (msg->kind == HY_HTTP_STOP) {
        stop_listening(s);
        stop_all(s);
        return HY_OK;
    }
    hy_slot *x = slot_of(s, r->call);
    if (msg->kind == HY_HTTP_IDS)
        take_ids(s, x, r);
    else if (x != NULL && r->stream)
        stream_piece(s, x, r);
    else if (x != NULL)
        whole_answer(s, x, r);
    hy_reply__destroy(r);
    return HY_OK;
}

/* ---- requests ---- */

static const struct {
    const char *path;
    hy_api api;
} routes[] = {
    {"/v1/completions", HY_API_COMPLETIONS},
    {"/v1/chat/completions", HY_API_CHAT},
    {"/tokenize", HY_API_TOKENIZE},
    {"/detokenize", HY_API_DETOKENIZE},
};

/* Time depends on the lengths only. */
static bool same(const char *given, size_t m, const char *key, size_t n)
{
    unsigned char diff = n != m;
    for (size_t i = 0; i < m && n != 0; i++)
        diff |= (unsigned char)(given[i] ^ key[i % n]);
    return n != 0 && diff == 0;
}

static bool key_fits(const hy_server *s, struct evhttp_request *req)
{
    const char *key = s->h->o.api_key;
    if (key == NULL || key[0] == '\0')
        return true;
    const char *given = evhttp_find_header(evhttp_request_get_input_headers(req), "Authorization");
    if (given == NULL || strncasecmp(given, "Bearer ", 7) != 0)
        return false;
    given += 7;
    bool fits = false;
    for (size_t n; *key != '\0'; key += n + (key[n] != '\0')) {
        n = strcspn(key, "\r\n");
        fits |= same(given, strlen(given), key, n);
    }
    return fits;
}

static bool is_json(struct evhttp_request *req)
{
    const char *t = evhttp_find_header(evhttp_request_get_input_headers(req), "Content-Type");
    if (t == NULL)
        return true;
    size_t n = strcspn(t, "; \t");
    return n == strlen("application/json") && strncasecmp(t, "application/json", n) == 0;
}

static bool check_post(hy_server *s, struct evhttp_request *req, hy_api_error *e)
{
    size_t len = evbuffer_get_length(evhttp_request_get_input_buffer(req));
    if (atomic_load(&s->h->draining)) {
        hy_api_error_set(e, 503, "ServiceUnavailableError", NULL, "The server is shutting down.");
        e->retry_after_s = 5;
    } else if (len > s->h->o.max_body_bytes) {
        hy_api_error_set(e, 413, "RequestTooLargeError", NULL,
                         "The body has %zu bytes, at most %zu may be ([http] max_body).", len,
                         s->h->o.max_body_bytes);
    } else if (!is_json(req)) {
        hy_api_bad(e, NULL, "Unsupported Media Type: Only 'application/json' is allowed.");
    } else {
        return true;
    }
    return false;
}

static hy_call *make_call(hy_server *s, hy_slot *x, struct evhttp_request *req, hy_api api)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    hy_call *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return NULL;
    c->id = x->id;
    c->api = api;
    c->arrival_ns = hy_stage_now(s->h->http);
    c->created = (int64_t)(hy_clock_unix_ns(hy_stage_clock(s->h->http)) / HY_SEC);
    c->body_len = evbuffer_get_length(in);
    c->body = malloc(c->body_len + 1);
    c->gone = hy_gone__create();
    if (c->body == NULL || c->gone == NULL) {
        hy_call__destroy(c);
        return NULL;
    }
    evbuffer_remove(in, c->body, c->body_len);
    char xid[HY_XID_LEN];
    c->rid_given = hy_server__request_id(s, req, xid);
    hy_server__header(req, "X-Request-Id", xid);
    snprintf(c->rid, sizeof(c->rid), "%s%s", api == HY_API_CHAT ? "chatcmpl-" : "cmpl-", xid);
    return c;
}

/* evhttp stops reading while a request is in work and would see a hang-up only when it writes. Read
 * on, without a read callback, as it does itself while it writes: what the client sends ahead stays
 * in the buffer (up to its watermark), and its end or reset goes to evhttp's event callback, which
 * frees the connection. */
static void watch_peer(hy_slot *x)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(x->evcon);
    bufferevent_data_cb wr;
    bufferevent_event_cb ev;
    void *arg;
    evhttp_connection_set_closecb(x->evcon, on_close, x);
    bufferevent_getcb(bev, NULL, &wr, &ev, &arg);
    bufferevent_setcb(bev, NULL, wr, ev, arg);
    /* not while evhttp reads: it leaves a body in this buffer until all is there */
    bufferevent_setwatermark(bev, EV_READ, 0, MAX_AHEAD);
    bufferevent_enable(bev, EV_READ);
}

/* To the text stage, or an error to send. */
static bool accept_call(hy_server *s, struct evhttp_request *req, hy_api api, const char *handler,
                        hy_api_error *e)
{
    hy_slot *x = take_slot(s);
    hy_call *c = x != NULL ? make_call(s, x, req, api) : NULL;
    hy_status st = HY_AGAIN;
    if (c != NULL) {
        x->req = req;
        x->evcon = evhttp_request_get_connection(req);
        x->handler = handler;
        x->method = "POST";
        x->arrival_ns = c->arrival_ns;
        x->gone = c->gone;
        atomic_fetch_add(&c->gone->refs, 1);
        hy_msg m = {.kind = HY_TEXT_CALL, .data = c, .drop = (void (*)(void *))hy_call__destroy};
        st = hy_stage_post(s->h->text, &m);
    }
    if (st == HY_OK) {
        watch_peer(x);
        return true;
    }
    hy_api_error_set(e, 503, "ServiceUnavailableError", NULL,
                     "The server is busy. Try again later.");
    e->retry_after_s = 1;
    hy_call__destroy(c);
    if (x != NULL) {
        hy_gone__unref(x->gone);
        *x = (hy_slot){0};
        atomic_fetch_sub(&s->h->n_calls, 1);
    }
    return false;
}

static void not_found(hy_server *s, struct evhttp_request *req, const char *path, int status,
                      const char *allow)
{
    hy_api_error e;
    hy_buf b;
    hy_buf_init(&b);
    if (status == 404)
        hy_api_error_set(&e, 404, "NotFoundError", NULL, "Not Found: there is no %.200s here.",
                         path);
    else
        hy_api_error_set(&e, 405, "MethodNotAllowedError", NULL,
                         "Method Not Allowed: %.200s takes %s.", path, allow);
    hy_reply__error_body(&b, &e);
    b.len--; /* FastAPI's form beside OpenAI's: routers look for it */
    hy_buf_printf(&b, ",\"detail\":\"%s\"}", hy_server__reason(status));
    if (allow != NULL)
        hy_server__header(req, "Allow", allow);
    hy_server__send(s, req, status, "application/json", &b);
}

static void answer_options(hy_server *s, struct evhttp_request *req)
{
    const char *cors = s->h->o.cors_origin;
    hy_server__header(req, "Allow", "GET, HEAD, POST, OPTIONS");
    if (cors != NULL && cors[0] != '\0') {
        hy_server__header(req, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        hy_server__header(req, "Access-Control-Allow-Headers",
                          "Authorization, Content-Type, X-Request-Id");
        hy_server__header(req, "Access-Control-Max-Age", "600");
    }
    hy_server__send(s, req, 204, NULL, NULL);
}

static const char *method_name(enum evhttp_cmd_type m)
{
    switch (m) {
    case EVHTTP_REQ_GET:
        return "GET";
    case EVHTTP_REQ_HEAD:
        return "HEAD";
    case EVHTTP_REQ_POST:
        return "POST";
    case EVHTTP_REQ_OPTIONS:
        return "OPTIONS";
    default:
        return "other";
    }
}

/* Status sent; 0 when another stage will answer. *handler is for the metrics. */
static int dispatch(hy_server *s, struct evhttp_request *req, const char *path,
                    const char **handler)
{
    enum evhttp_cmd_type m = evhttp_request_get_command(req);
    bool get = m == EVHTTP_REQ_GET || m == EVHTTP_REQ_HEAD;
    hy_api_error e = {0};
    if (m == EVHTTP_REQ_OPTIONS) {
        answer_options(s, req);
        return 204;
    }
    bool open = strncmp(path, "/v1/", 4) != 0 && get;
    if (!open && !key_fits(s, req)) {
        hy_api_error_set(&e, 401, "AuthenticationError", NULL,
                         "A valid API key is required: Authorization: Bearer KEY.");
        hy_server__header(req, "WWW-Authenticate", "Bearer");
        hy_server__send_error(s, req, &e);
        return 401;
    }
    for (size_t i = 0; i < HY_COUNTOF(routes); i++) {
        if (strcmp(path, routes[i].path) != 0)
            continue;
        *handler = routes[i].path;
        if (m != EVHTTP_REQ_POST) {
            not_found(s, req, path, 405, "POST");
            return 405;
        }
        if (check_post(s, req, &e) && accept_call(s, req, routes[i].api, *handler, &e))
            return 0;
        hy_server__send_error(s, req, &e);
        return e.status;
    }
    if (strcmp(path, "/v1/kv/release") == 0) {
        *handler = "/v1/kv/release";
        if (m == EVHTTP_REQ_POST)
            return hy_release__post(s, req);
        not_found(s, req, path, 405, "POST");
        return 405;
    }
    bool ping = strcmp(path, "/ping") == 0;
    if ((get || (ping && m == EVHTTP_REQ_POST)) && hy_pages__get(s, req, path, handler))
        return evhttp_request_get_response_code(req);
    bool page = strcmp(path, "/health") == 0 || strcmp(path, "/version") == 0 || ping ||
                strcmp(path, "/metrics") == 0 || strcmp(path, "/trace") == 0 ||
                strcmp(path, "/links") == 0 || strncmp(path, "/v1/models", 10) == 0;
    not_found(s, req, path, page && !get ? 405 : 404, page && !get ? "GET" : NULL);
    return page && !get ? 405 : 404;
}

static void on_request(struct evhttp_request *req, void *arg)
{
    hy_server *s = arg;
    struct evhttp_connection *evcon = evhttp_request_get_connection(req);
    hy_conn *c = hy_conns__find(s, evhttp_connection_get_bufferevent(evcon));
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
    const char *path = uri != NULL ? evhttp_uri_get_path(uri) : NULL;
    const char *method = method_name(evhttp_request_get_command(req));
    const char *handler = "none";
    uint64_t t0 = hy_stage_now(s->h->http);
    if (c != NULL) {
        c->handling = true;
        c->reading = false;
    }
    /* an answer may end the connection before dispatch returns: neither req nor evcon after it */
    int status = dispatch(s, req, path != NULL && path[0] != '\0' ? path : "/", &handler);
    if (status == 0)
        return;
    if (c != NULL) {
        c->handling = false;
        c->since_ns = hy_stage_now(s->h->http);
    }
    hy_http_metrics__request(s->h->mx, handler, method, status,
                             (double)(hy_stage_now(s->h->http) - t0) / 1e9);
}

/* ---- the loop ---- */

static void on_mail(evutil_socket_t fd, short what, void *arg)
{
    hy_server *s = arg;
    (void)fd;
    (void)what;
    hy_mbox_fd_clear(hy_stage_mbox(s->h->http)); /* the loop ends and the stage takes them */
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    hy_server *s = arg;
    (void)fd;
    (void)what;
    hy_conns__sweep(s, hy_stage_now(s->h->http));
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
}

static void wait_events(void *self, uint64_t deadline_ns)
{
    hy_server *s = ((hy_http *)self)->server;
    if (deadline_ns != HY_NEVER) {
        uint64_t now = hy_stage_now(s->h->http);
        uint64_t ns = deadline_ns > now ? deadline_ns - now : 0;
        struct timeval tv = {(time_t)(ns / HY_SEC), (suseconds_t)(ns % HY_SEC / 1000)};
        event_add(s->deadline, &tv);
    }
    event_base_loop(s->base, EVLOOP_ONCE);
}

static void log_event(int severity, const char *text)
{
    hy_log_level level = severity == EVENT_LOG_ERR ? HY_LOG_ERROR : HY_LOG_DEBUG;
    if (hy_log_level_get() >= level)
        hy_log(level, "http", "libevent: %s", text);
}

static hy_status make_events(hy_server *s)
{
    static const struct timeval second = {1, 0};
    int fd = hy_mbox_fd(hy_stage_mbox(s->h->http));
    if (fd < 0)
        return HY_E_SYS;
    s->mail = event_new(s->base, fd, EV_READ | EV_PERSIST, on_mail, s);
    s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    s->deadline = event_new(s->base, -1, 0, on_deadline, s);
    if (s->mail == NULL || s->tick == NULL || s->deadline == NULL ||
        event_add(s->mail, NULL) != 0 || event_add(s->tick, &second) != 0)
        return hy_fail(HY_E_NOMEM, "out of memory for the server's events");
    return HY_OK;
}

static hy_status make_http(hy_server *s)
{
    const hy_http_opts *o = &s->h->o;
    int fd = o->fd;
    s->h->o.fd = -1;
    if (fd < 0)
        HY_TRY(hy_http_reserve(o, &fd));
    HY_TRY(hy_server__listen(o, fd, &s->port));
    s->fd = fd;
    s->listener = evconnlistener_new(s->base, NULL, NULL,
                                     LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, s->fd);
    if (s->listener == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for the listener");
    s->fd = -1;
    s->bound = evhttp_bind_listener(s->http, s->listener);
    if (s->bound == NULL) {
        evconnlistener_free(s->listener);
        return hy_fail(HY_E_NOMEM, "out of memory for the listener");
    }
    evhttp_set_max_headers_size(s->http, (ev_ssize_t)o->max_header_bytes);
    /* up to twice the limit is read and refused with a proper body, evhttp cuts off what is more */
    evhttp_set_max_body_size(s->http, (ev_ssize_t)(o->max_body_bytes * 2 + 65536));
    evhttp_set_flags(s->http, EVHTTP_SERVER_LINGERING_CLOSE);
    evhttp_set_default_content_type(s->http, NULL);
    evhttp_set_allowed_methods(s->http, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD |
                                            EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |
                                            EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PATCH);
    evhttp_set_bevcb(s->http, hy_conns__accept, s);
    evhttp_set_gencb(s->http, on_request, s);
    return HY_OK;
}

hy_status hy_server__create(hy_http *h)
{
    hy_server *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for the server");
    s->h = h;
    s->fd = -1;
    s->start = (time_t)(hy_clock_unix_ns(hy_clock_real()) / HY_SEC);
    h->server = s;
    event_set_log_callback(log_event);
    HY_TRY(hy_conns__init(s));
    s->slots = calloc((size_t)h->o.max_connections, sizeof(*s->slots));
    s->base = event_base_new();
    s->http = s->base != NULL ? evhttp_new(s->base) : NULL;
    if (s->slots == NULL || s->http == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for the server");
    HY_TRY(make_events(s));
    return make_http(s);
}

static size_t n_unsent(const hy_server *s)
{
    size_t n = 0;
    for (int i = 0; s->conns != NULL && i < s->most_conns; i++) {
        struct bufferevent *bev = s->conns[i].bev;
        if (bev != NULL)
            n += evbuffer_get_length(bufferevent_get_output(bev));
    }
    return n;
}

/* The last answers go out. Readers that take nothing delay the end by half a second, slow ones by
 * five at most. */
static void flush(hy_server *s)
{
    size_t left = n_unsent(s), before = left;
    for (int ms = 0, still = 0; left != 0 && still < 500 && ms < 5000; ms++) {
        event_base_loop(s->base, EVLOOP_NONBLOCK);
        usleep(1000);
        left = n_unsent(s);
        still = left < before ? 0 : still + 1;
        before = left;
    }
}

void hy_server__destroy(hy_server *s)
{
    if (s == NULL)
        return;
    flush(s);
    for (int i = 0; s->slots != NULL && i < s->h->o.max_connections; i++) {
        if (s->slots[i].id != 0)
            end_slot(&s->slots[i], 499);
    }
    struct event *const ev[] = {s->mail, s->tick, s->deadline};
    for (size_t i = 0; i < HY_COUNTOF(ev); i++) /* before the loop runs again */
        if (ev[i] != NULL)
            event_free(ev[i]);
    if (s->http != NULL)
        evhttp_free(s->http);
    hy_conns__fini(s);
    if (s->base != NULL)
        event_base_loop(s->base, EVLOOP_NONBLOCK); /* libevent frees bufferevents from its loop */
    if (s->base != NULL)
        event_base_free(s->base);
    if (s->fd >= 0)
        close(s->fd);
    free(s->slots);
    free(s);
}

int hy_server__port(const hy_server *s)
{
    return s->port;
}

const hy_stage_ops hy_server__ops = {.on_msg = on_msg, .wait = wait_events};
