/* SPDX-License-Identifier: Apache-2.0
 *
 * A request in work: a leg to a prefill node, then one to a decode node (push: both at once), or
 * only the second, and the answer on its way back.
 *
 * Whatever the first leg comes to, the request goes on: another prefill node, or decode alone,
 * which then computes the prompt itself. The second leg may be tried again elsewhere until the
 * first byte of its answer; afterwards a failure is an error to the client: an event in a stream,
 * which then ends without [DONE], or a 502. Answers that are no stream are kept whole before they
 * go out, so that half of one is never sent as if it were all. When nobody will fetch the KV that
 * a prefill node holds, it is told so.
 *
 * Thread: route stage.  Owner: the router; a flow frees itself with the end of its request.
 */
#include "core/base/log.h"
#include "core/route/route_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_EVENT = 16 << 20 }; /* bytes kept back until an SSE event is complete */
enum { LEG_PREFILL, LEG_DECODE, LEG_ALONE, LEG_ANY };

typedef struct leg {
    hy_worker *w;
    hy_client_call *call;
    int status; /* 0: no head yet */
    struct evbuffer *answer;
} leg;

struct hy_flow {
    hy_flow *next, **link;
    hy_route *r;
    hy_front *conn;
    bool generate, streaming, until_close, done_seen;
    char *target;
    const char *method;
    hy_buf headers; /* for workers */
    hy_buf out;     /* headers for the client */
    char *raw;
    size_t raw_len;
    hy_body body;
    bool parsed;
    hy_body_facts facts;
    leg p, d;
    bool *tried_p, *tried_d;
    int left_p, left_d; /* further tries */
    char *params;       /* kv_transfer_params for decode; NULL: none */
    hy_worker *owner;   /* the prefill node that holds the KV of params */
    struct evbuffer *hold;
    char last[256]; /* what went wrong last */
    int last_status;
    uint64_t t0_ns, prefill_ns, first_ns;
};

static void prefill_start(hy_flow *f);
static void decode_start(hy_flow *f);

/* ---- ends ---- */

static void leg_drop(leg *l)
{
    if (l->call != NULL) {
        hy_client_cancel(l->call);
        hy_route__worker_use(l->w, -1);
    }
    l->call = NULL;
    l->status = 0;
    if (l->answer != NULL)
        evbuffer_drain(l->answer, evbuffer_get_length(l->answer));
}

static void log_end(const hy_flow *f, const char *rid, hy_outcome how)
{
    static const char *const names[] = {"ok", "client error", "worker failed", "unavailable",
                                        "client gone"};
    uint64_t now = hy_route__now(f->r);
    hy_debug("route",
             "%s: %s, prefill %s %.1f ms, decode %s, first byte %.1f ms, total %.1f ms%s%s", rid,
             names[how], f->owner != NULL ? f->owner->name : "-", (double)f->prefill_ns / 1e6,
             f->d.w != NULL ? f->d.w->name : "-", (double)f->first_ns / 1e6,
             (double)(now - f->t0_ns) / 1e6, f->last[0] != '\0' ? "; " : "", f->last);
}

/* The answer has been sent, or nobody waits for it. */
static void flow_end(hy_flow *f, hy_outcome how, const char *rid)
{
    hy_route *r = f->r;
    log_end(f, rid, how);
    hy_metric_inc(r->mx_requests[how]);
    leg_drop(&f->p);
    leg_drop(&f->d);
    if (how != HY_OUT_OK && f->params != NULL && f->owner != NULL)
        hy_route__release(r, f->owner, hy_buf_str(&f->headers), f->params);
    *f->link = f->next;
    if (f->next != NULL)
        f->next->link = f->link;
    hy_metric_set(r->mx_active, --r->n_flows);
    if (f->p.answer != NULL)
        evbuffer_free(f->p.answer);
    if (f->d.answer != NULL)
        evbuffer_free(f->d.answer);
    if (f->hold != NULL)
        evbuffer_free(f->hold);
    hy_buf_fini(&f->headers);
    hy_buf_fini(&f->out);
    free(f->target);
    free(f->raw);
    free(f->tried_p);
    free(f->tried_d);
    free(f->params);
    free(f);
}

/* An error of ours to the client, in the form that its answer has by now. */
static void fail(hy_flow *f, int status, const char *text)
{
    hy_front *c = f->conn;
    const char *type = status == 503 ? "ServiceUnavailableError" : "UpstreamError";
    char rid[HY_RID_LEN];
    snprintf(rid, sizeof(rid), "%s", c->rid);
    if (status != 503)
        hy_warn("route", "request %s failed: %s", rid, text);
    if (f->streaming) {
        hy_buf b;
        hy_buf_init(&b);
        hy_buf_puts(&b, "data: ");
        hy_route__error_json(&b, status, type, text);
        hy_buf_puts(&b, "\n\n");
        evbuffer_drain(f->hold, evbuffer_get_length(f->hold));
        evbuffer_add(f->hold, b.data, b.len);
        hy_buf_fini(&b);
        hy_front_piece(c, f->hold);
        hy_front_stream_end(c);
    } else {
        hy_front_reply_error(c, status, type, text, status == 503 ? "Retry-After: 1\r\n" : NULL);
    }
    flow_end(f, status == 503 ? HY_OUT_UNAVAILABLE : HY_OUT_UPSTREAM, rid);
}

static void refuse(hy_flow *f, const char *text)
{
    char rid[HY_RID_LEN];
    snprintf(rid, sizeof(rid), "%s", f->conn->rid);
    hy_front_reply_error(f->conn, 400, "BadRequestError", text, NULL);
    flow_end(f, HY_OUT_CLIENT_ERROR, rid);
}

void hy_flow_gone(hy_flow *f)
{
    char rid[HY_RID_LEN];
    snprintf(rid, sizeof(rid), "%s", f->conn->rid);
    flow_end(f, HY_OUT_GONE, rid);
}

void hy_flow_resume(hy_flow *f)
{
    if (f->d.call != NULL)
        hy_client_pause(f->d.call, false);
}

/* ---- legs ---- */

static hy_status leg_send(hy_flow *f, leg *l, hy_worker *w, const char *body, size_t len,
                          const hy_client_ops *ops, uint64_t head_ns, uint64_t stall_ns)
{
    hy_client_req q = {
        .host = w->host,
        .port = w->port,
        .method = f->method,
        .target = f->target,
        .headers = hy_buf_str(&f->headers),
        .body = body,
        .body_len = len,
        .head_timeout_ns = head_ns,
        .stall_timeout_ns = stall_ns,
        .ops = *ops,
        .arg = f,
    };
    l->w = w;
    l->status = 0;
    evbuffer_drain(l->answer, evbuffer_get_length(l->answer)); /* of an earlier try */
    HY_TRY(hy_client_send(f->r->client, &q, &l->call));
    hy_route__worker_use(w, 1);
    return HY_OK;
}

/* A leg has ended by itself. */
static void leg_over(leg *l)
{
    l->call = NULL;
    hy_route__worker_use(l->w, -1);
}

static bool was_refused(hy_client_fate fate)
{
    return fate == HY_CLIENT_REFUSED || fate == HY_CLIENT_UNREACHED;
}

static void blame(hy_flow *f, hy_worker *w, hy_client_fate fate, const char *why)
{
    snprintf(f->last, sizeof(f->last), "%s: %s", w->name, why);
    if (was_refused(fate))
        hy_route__worker_lost(w, why);
    else
        hy_route__worker_suspect(w);
}

/* ---- prefill ---- */

static void on_p_head(void *arg, const hy_wire_head *head)
{
    hy_flow *f = arg;
    f->p.status = head->status;
}

static void prefill_failed(hy_flow *f, bool elsewhere)
{
    f->p.status = 0;
    if (f->r->o.push) {
        /* what decode waits for will not come: let it begin again, alone */
        if (f->d.status != 0 || f->streaming)
            return;
        bool again = f->d.call != NULL;
        hy_worker *w = f->d.w;
        leg_drop(&f->d);
        free(f->params);
        f->params = NULL;
        f->owner = NULL;
        if (again)
            f->tried_d[w - f->r->workers] = false;
        decode_start(f);
        return;
    }
    if (elsewhere && f->left_p-- > 0)
        prefill_start(f);
    else
        decode_start(f);
}

static void on_p_body(void *arg, struct evbuffer *piece)
{
    hy_flow *f = arg;
    evbuffer_add_buffer(f->p.answer, piece);
    if (evbuffer_get_length(f->p.answer) <= f->r->o.max_answer_bytes)
        return;
    snprintf(f->last, sizeof(f->last), "%s: its answer is too long", f->p.w->name);
    leg_drop(&f->p);
    prefill_failed(f, false);
}

/* The object that prefill answered in kv_transfer_params, malloc'd; NULL: none. */
static char *params_of(struct evbuffer *answer)
{
    hy_body b;
    size_t len = evbuffer_get_length(answer);
    const char *s = (const char *)evbuffer_pullup(answer, -1);
    if (s == NULL || hy_body_parse(s, len, &b) < 0)
        return NULL;
    const hy_member *m = hy_body_find(&b, "kv_transfer_params");
    if (m == NULL || s[m->from] != '{')
        return NULL;
    return strndup(s + m->from, m->to - m->from);
}

static void on_p_end(void *arg, hy_client_fate fate, const char *why)
{
    hy_flow *f = arg;
    hy_worker *w = f->p.w;
    int status = f->p.status;
    leg_over(&f->p);
    if (fate != HY_CLIENT_DONE) {
        blame(f, w, fate, why);
        prefill_failed(f, fate != HY_CLIENT_TIMED_OUT);
        return;
    }
    if (status < 200 || status > 299) {
        snprintf(f->last, sizeof(f->last), "%s: prefill answered %d", w->name, status);
        prefill_failed(f, status == 429 || status >= 500);
        return;
    }
    f->prefill_ns = hy_route__now(f->r) - f->t0_ns;
    hy_metric_observe(f->r->mx_prefill, (double)f->prefill_ns / 1e9);
    if (f->r->o.push)
        return;
    f->params = params_of(f->p.answer);
    evbuffer_drain(f->p.answer, evbuffer_get_length(f->p.answer));
    f->owner = w;
    decode_start(f);
}

static bool other_decoder(const hy_route *r, const hy_worker *p)
{
    for (size_t i = 0; i < r->n_workers; i++) {
        const hy_worker *w = &r->workers[i];
        if (w != p && (w->can & HY_ROUTE_DECODE) && w->state != HY_WORKER_DOWN)
            return true;
    }
    return false;
}

/* Push: the KV is named before it exists. */
static bool mint(hy_flow *f, hy_worker *p, hy_buf *for_p)
{
    hy_buf d;
    unsigned long long id = hy_rng_u64(hy_stage_rng(f->r->stage));
    hy_buf_init(&d);
    hy_buf_printf(for_p,
                  "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
                  "\"transfer_id\":\"%016llx\"}",
                  id);
    hy_buf_printf(&d,
                  "{\"do_remote_decode\":false,\"do_remote_prefill\":true,"
                  "\"transfer_id\":\"%016llx\",\"remote_engine_id\":\"%s\","
                  "\"remote_bootstrap_addr\":\"http://%s:%d\"}",
                  id, p->name, p->host, p->port);
    free(f->params);
    f->params = hy_buf_take(&d);
    f->owner = p;
    return f->params != NULL && !for_p->failed;
}

static void prefill_start(hy_flow *f)
{
    static const hy_client_ops ops = {on_p_head, on_p_body, on_p_end};
    hy_route *r = f->r;
    hy_worker *w = hy_route__pick(r, HY_ROUTE_PREFILL, f->tried_p);
    hy_buf b, params;
    if (w == NULL || !other_decoder(r, w)) {
        decode_start(f);
        return;
    }
    f->tried_p[w - r->workers] = true;
    hy_buf_init(&b);
    hy_buf_init(&params);
    bool ok = true;
    if (r->o.push)
        ok = mint(f, w, &params);
    else
        hy_buf_puts(&params, "{\"do_remote_decode\":true,\"do_remote_prefill\":false}");
    hy_body_prefill(&b, &f->body, &f->facts, hy_buf_str(&params));
    ok = ok && !b.failed &&
         leg_send(f, &f->p, w, b.data, b.len, &ops, r->o.prefill_timeout_ns,
                  r->o.prefill_timeout_ns) == HY_OK;
    hy_buf_fini(&b);
    hy_buf_fini(&params);
    if (ok)
        hy_metric_inc(r->mx_legs[LEG_PREFILL]);
    if (!ok || r->o.push)
        decode_start(f);
}

/* ---- decode ---- */

static void pass_header(hy_flow *f, const hy_wire_head *head, const char *name)
{
    const char *v = hy_wire_find(head, name);
    if (v != NULL)
        hy_buf_printf(&f->out, "%s: %s\r\n", name, v);
}

static bool is_event_stream(const hy_wire_head *head)
{
    const char *t = hy_wire_find(head, "Content-Type");
    return t != NULL && strncasecmp(t, "text/event-stream", 17) == 0;
}

static bool another_decoder(const hy_flow *f)
{
    const hy_route *r = f->r;
    for (size_t i = 0; i < r->n_workers; i++) {
        const hy_worker *w = &r->workers[i];
        if ((w->can & HY_ROUTE_DECODE) && w->state != HY_WORKER_DOWN && !f->tried_d[i])
            return true;
    }
    return false;
}

/* True: the request has gone to another worker. */
static bool decode_elsewhere(hy_flow *f)
{
    if (f->left_d <= 0 || !another_decoder(f))
        return false;
    f->left_d--;
    decode_start(f);
    return true;
}

static void on_d_head(void *arg, const hy_wire_head *head)
{
    static const char *const names[] = {"Content-Type",  "Retry-After",       "WWW-Authenticate",
                                        "Cache-Control", "X-Accel-Buffering", "Allow"};
    hy_flow *f = arg;
    if ((head->status == 503 || head->status == 429) && f->left_d > 0 && another_decoder(f)) {
        snprintf(f->last, sizeof(f->last), "%s answered %d", f->d.w->name, head->status);
        leg_drop(&f->d);
        decode_elsewhere(f);
        return;
    }
    f->d.status = head->status;
    f->first_ns = hy_route__now(f->r) - f->t0_ns;
    f->until_close = head->framing == HY_WIRE_CLOSE;
    hy_buf_clear(&f->out);
    for (size_t i = 0; i < HY_COUNTOF(names); i++)
        pass_header(f, head, names[i]);
    if (f->owner != NULL && f->params != NULL)
        hy_buf_printf(&f->out, "X-Halyard-Prefill: %s\r\n", f->owner->name);
    hy_buf_printf(&f->out, "X-Halyard-Worker: %s\r\n", f->d.w->name);
    if (f->generate)
        hy_metric_observe(f->r->mx_first, (double)f->first_ns / 1e9);
    if (!is_event_stream(head) || head->status > 299)
        return;
    f->streaming = true;
    hy_front_stream(f->conn, head->status, hy_buf_str(&f->out));
}

/* Bytes of `hold` up to the end of the last complete event. */
static size_t whole_events(struct evbuffer *hold)
{
    size_t len = evbuffer_get_length(hold);
    const char *s;
    if (len > MAX_EVENT)
        return len;
    s = (const char *)evbuffer_pullup(hold, -1);
    if (s == NULL)
        return 0;
    for (size_t n = len; n >= 2; n--) {
        if (s[n - 1] != '\n')
            continue;
        if (s[n - 2] == '\n' || (n >= 3 && s[n - 2] == '\r' && s[n - 3] == '\n'))
            return n;
    }
    return 0;
}

static bool ends_with_done(struct evbuffer *b, size_t n)
{
    static const char *const ends[] = {"data: [DONE]\n\n", "data: [DONE]\r\n\r\n"};
    const char *s = (const char *)evbuffer_pullup(b, (ev_ssize_t)n);
    for (size_t i = 0; s != NULL && i < HY_COUNTOF(ends); i++) {
        size_t len = strlen(ends[i]);
        if (n >= len && memcmp(s + n - len, ends[i], len) == 0)
            return true;
    }
    return false;
}

static void forward(hy_flow *f)
{
    size_t n = whole_events(f->hold);
    struct evbuffer *piece;
    if (n == 0 || (piece = evbuffer_new()) == NULL)
        return;
    f->done_seen = f->done_seen || ends_with_done(f->hold, n);
    evbuffer_remove_buffer(f->hold, piece, n);
    if (!hy_front_piece(f->conn, piece) && f->d.call != NULL)
        hy_client_pause(f->d.call, true);
    evbuffer_free(piece);
}

static void on_d_body(void *arg, struct evbuffer *piece)
{
    hy_flow *f = arg;
    if (f->streaming) {
        evbuffer_add_buffer(f->hold, piece);
        forward(f);
        return;
    }
    evbuffer_add_buffer(f->d.answer, piece);
    if (evbuffer_get_length(f->d.answer) > f->r->o.max_answer_bytes) {
        leg_drop(&f->d);
        fail(f, 502, "A worker's answer is longer than [router] max_answer allows.");
    }
}

static void decode_done(hy_flow *f)
{
    hy_front *c = f->conn;
    char rid[HY_RID_LEN];
    int status = f->d.status;
    snprintf(rid, sizeof(rid), "%s", c->rid);
    if (f->streaming) {
        if (evbuffer_get_length(f->hold) != 0 || (f->until_close && !f->done_seen)) {
            fail(f, 502, "The worker's stream ended in the middle.");
            return;
        }
        hy_front_stream_end(c);
    } else {
        hy_front_reply(c, status, hy_buf_str(&f->out), f->d.answer);
    }
    flow_end(f,
             status < 400   ? HY_OUT_OK
             : status < 500 ? HY_OUT_CLIENT_ERROR
                            : HY_OUT_UPSTREAM,
             rid);
}

/* The leg has broken, `fate` says how; f->last is set. */
static void decode_failed(hy_flow *f, hy_client_fate fate)
{
    char text[512];
    if (!f->streaming && f->d.status == 0 && fate != HY_CLIENT_TIMED_OUT && decode_elsewhere(f))
        return;
    snprintf(text, sizeof(text), "%s (%s)",
             f->d.status != 0              ? "The worker was lost while it answered."
             : was_refused(fate)           ? "No worker can be reached."
             : fate == HY_CLIENT_TIMED_OUT ? "The worker did not answer in time."
                                           : "The worker was lost before it answered.",
             f->last);
    fail(f,
         was_refused(fate)                                 ? 503
         : fate == HY_CLIENT_TIMED_OUT && f->d.status == 0 ? 504
                                                           : 502,
         text);
}

static void on_d_end(void *arg, hy_client_fate fate, const char *why)
{
    hy_flow *f = arg;
    leg_over(&f->d);
    if (fate == HY_CLIENT_DONE) {
        decode_done(f);
        return;
    }
    blame(f, f->d.w, fate, why);
    /* a stream that said [DONE] is complete, however its connection ended */
    if (f->streaming && f->done_seen && evbuffer_get_length(f->hold) == 0)
        decode_done(f);
    else
        decode_failed(f, fate);
}

/* Not the prefill node itself, unless there is no other. */
static hy_worker *pick_decoder(hy_flow *f)
{
    hy_route *r = f->r;
    size_t own = f->owner != NULL ? (size_t)(f->owner - r->workers) : r->n_workers;
    bool was = own < r->n_workers && f->tried_d[own];
    if (own < r->n_workers)
        f->tried_d[own] = true;
    hy_worker *w = hy_route__pick(r, HY_ROUTE_DECODE, f->tried_d);
    if (own < r->n_workers)
        f->tried_d[own] = was;
    return w != NULL ? w : hy_route__pick(r, HY_ROUTE_DECODE, f->tried_d);
}

static void decode_start(hy_flow *f)
{
    static const hy_client_ops ops = {on_d_head, on_d_body, on_d_end};
    hy_route *r = f->r;
    hy_worker *w = pick_decoder(f);
    if (w == NULL && !f->generate)
        w = hy_route__pick(r, HY_ROUTE_PREFILL, f->tried_d);
    if (w == NULL) {
        char text[512];
        snprintf(text, sizeof(text), "No worker that can decode is up%s%s%s.",
                 f->last[0] != '\0' ? " (" : "", f->last, f->last[0] != '\0' ? ")" : "");
        fail(f, 503, text);
        return;
    }
    f->tried_d[w - r->workers] = true;
    hy_buf b;
    hy_buf_init(&b);
    /* untouched unless there is something to change */
    bool splice =
        f->parsed && (f->params != NULL || hy_body_find(&f->body, "kv_transfer_params") != NULL);
    if (splice)
        hy_body_decode(&b, &f->body, f->params);
    hy_status st =
        b.failed ? hy_fail(HY_E_NOMEM, "out of memory for a request")
                 : leg_send(f, &f->d, w, splice ? b.data : f->raw, splice ? b.len : f->raw_len,
                            &ops, r->o.answer_timeout_ns, r->o.stall_timeout_ns);
    hy_buf_fini(&b);
    if (st < 0) {
        fail(f, 500, "The router is out of memory.");
        return;
    }
    hy_metric_inc(r->mx_legs[!f->generate ? LEG_ANY : f->params != NULL ? LEG_DECODE : LEG_ALONE]);
}

/* ---- silence ---- */

static bool give_up(hy_flow *f, hy_worker *w)
{
    if (f->p.call != NULL && f->p.w == w) {
        leg_drop(&f->p);
        snprintf(f->last, sizeof(f->last), "%s is silent", w->name);
        prefill_failed(f, true);
        return true;
    }
    if (f->d.call != NULL && f->d.w == w) {
        int status = f->d.status;
        leg_drop(&f->d);
        f->d.status = status;
        snprintf(f->last, sizeof(f->last), "%s is silent", w->name);
        decode_failed(f, HY_CLIENT_CLOSED);
        return true;
    }
    return false;
}

void hy_flow_worker_silent(hy_route *r, hy_worker *w)
{
    hy_flow *f;
    do { /* from the start each time: a flow may be gone afterwards */
        for (f = r->flows; f != NULL && !give_up(f, w); f = f->next)
            continue;
    } while (f != NULL);
}

void hy_flow_cancel_all(hy_route *r)
{
    while (r->flows != NULL) {
        r->flows->conn->flow = NULL;
        hy_flow_gone(r->flows);
    }
}

/* ---- begin ---- */

static void pass_on(hy_flow *f, const hy_front *c, const char *name)
{
    const char *v = hy_wire_find(&c->head, name);
    if (v != NULL)
        hy_buf_printf(&f->headers, "%s: %s\r\n", name, v);
}

static char *target_of(const char *t)
{
    if (strncasecmp(t, "http://", 7) == 0) {
        t += 7;
        t += strcspn(t, "/");
    }
    return strdup(*t != '\0' ? t : "/");
}

static bool make(hy_flow *f, hy_front *c)
{
    hy_route *r = f->r;
    f->method = strcmp(c->head.method, "POST") == 0 ? "POST" : "GET";
    f->target = target_of(c->head.target);
    f->raw_len = evbuffer_get_length(c->in);
    f->raw = malloc(f->raw_len + 1);
    f->tried_p = calloc(r->n_workers, sizeof(bool));
    f->tried_d = calloc(r->n_workers, sizeof(bool));
    f->p.answer = evbuffer_new();
    f->d.answer = evbuffer_new();
    f->hold = evbuffer_new();
    pass_on(f, c, "Content-Type");
    pass_on(f, c, "Authorization");
    pass_on(f, c, "traceparent");
    pass_on(f, c, "tracestate");
    hy_buf_printf(&f->headers, "Accept: */*\r\nX-Request-Id: %s\r\n", c->rid);
    if (f->target == NULL || f->raw == NULL || f->tried_p == NULL || f->tried_d == NULL ||
        f->p.answer == NULL || f->d.answer == NULL || f->hold == NULL || f->headers.failed)
        return false;
    evbuffer_remove(c->in, f->raw, f->raw_len);
    f->raw[f->raw_len] = '\0';
    return true;
}

void hy_flow_begin(hy_front *c, bool generate)
{
    hy_route *r = c->r;
    hy_flow *f = calloc(1, sizeof(*f));
    if (f == NULL) {
        hy_front_reply_error(c, 500, "InternalServerError", "The router is out of memory.", NULL);
        return;
    }
    f->r = r;
    f->conn = c;
    f->generate = generate;
    f->t0_ns = c->t0_ns;
    f->left_p = f->left_d = r->o.retries;
    hy_buf_init(&f->headers);
    hy_buf_init(&f->out);
    f->link = &r->flows;
    f->next = r->flows;
    if (f->next != NULL)
        f->next->link = &f->next;
    r->flows = f;
    c->flow = f;
    hy_metric_set(r->mx_active, ++r->n_flows);
    if (!make(f, c)) {
        fail(f, 500, "The router is out of memory.");
        return;
    }
    if (generate && hy_body_parse(f->raw, f->raw_len, &f->body) < 0) {
        /* not passed on unread: kv_transfer_params of a client's making might be inside */
        refuse(f, hy_fail_text());
        return;
    }
    f->parsed = generate;
    if (generate)
        hy_body_facts_get(&f->body, &f->facts);
    if (generate && !f->facts.alone && f->facts.prompt_len >= r->o.min_prefill_len)
        prefill_start(f);
    else
        decode_start(f);
}
