/* SPDX-License-Identifier: Apache-2.0
 *
 * The second leg: a decode node's answer, on its way back to the client.
 *
 * Thread: route stage.  Owner: the router; a flow frees itself with the end of its request.
 */
#include "core/route/flow_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_EVENT = 16 << 20 }; /* bytes kept back until an SSE event is complete */

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
    hy_flow__decode(f);
    return true;
}

static void on_d_head(void *arg, const hy_wire_head *head)
{
    static const char *const names[] = {"Content-Type",  "Retry-After",       "WWW-Authenticate",
                                        "Cache-Control", "X-Accel-Buffering", "Allow"};
    hy_flow *f = arg;
    if ((head->status == 503 || head->status == 429) && f->left_d > 0 && another_decoder(f)) {
        snprintf(f->last, sizeof(f->last), "%s answered %d", f->d.w->name, head->status);
        hy_leg__drop(&f->d);
        decode_elsewhere(f);
        return;
    }
    f->d.status = head->status;
    f->first_ns = hy_route__now(f->r) - f->t0_ns;
    hy_trace_again(f->r->o.trace, f->trace, HY_TRACE_D_FIRST, hy_route__now(f->r));
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
        hy_leg__drop(&f->d);
        hy_flow__fail(f, 502, "A worker's answer is longer than [router] max_answer allows.");
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
            hy_flow__fail(f, 502, "The worker's stream ended in the middle.");
            return;
        }
        hy_front_stream_end(c);
    } else {
        hy_front_reply(c, status, hy_buf_str(&f->out), f->d.answer);
    }
    hy_trace_set(f->r->o.trace, f->trace, HY_TRACE_STATUS, status);
    hy_flow__end(f,
                 status < 400   ? HY_OUT_OK
                 : status < 500 ? HY_OUT_CLIENT_ERROR
                                : HY_OUT_UPSTREAM,
                 rid);
}

/* The leg has broken, `fate` says how; f->last is set. */
void hy_flow__decode_failed(hy_flow *f, hy_client_fate fate)
{
    char text[512];
    if (!f->streaming && f->d.status == 0 && fate != HY_CLIENT_TIMED_OUT && decode_elsewhere(f))
        return;
    snprintf(text, sizeof(text), "%s (%s)",
             f->d.status != 0              ? "The worker was lost while it answered."
             : hy_flow__was_refused(fate)  ? "No worker can be reached."
             : fate == HY_CLIENT_TIMED_OUT ? "The worker did not answer in time."
                                           : "The worker was lost before it answered.",
             f->last);
    hy_flow__fail(f,
                  hy_flow__was_refused(fate)                        ? 503
                  : fate == HY_CLIENT_TIMED_OUT && f->d.status == 0 ? 504
                                                                    : 502,
                  text);
}

static void on_d_end(void *arg, hy_client_fate fate, const char *why)
{
    hy_flow *f = arg;
    hy_leg__over(&f->d);
    if (fate == HY_CLIENT_DONE) {
        decode_done(f);
        return;
    }
    hy_flow__blame(f, f->d.w, fate, why);
    /* a stream that said [DONE] is complete, however its connection ended */
    if (f->streaming && f->done_seen && evbuffer_get_length(f->hold) == 0)
        decode_done(f);
    else
        hy_flow__decode_failed(f, fate);
}

/* Nobody can take the KV that prefill has or makes. */
static void forsake(hy_flow *f)
{
    hy_leg__drop(&f->p);
    hy_route__release(f->r, f->owner, hy_buf_str(&f->headers), f->params);
    free(f->params);
    f->params = NULL;
    f->owner = NULL;
}

/* One that can take the KV of the prefill node; not that node itself, unless there is no other. If
 * there is none: any, which then computes the prompt. */
static hy_worker *pick_decoder(hy_flow *f)
{
    hy_route *r = f->r;
    if (f->owner == NULL || f->params == NULL)
        return hy_route__pick(r, HY_ROUTE_DECODE, f->tried_d);
    const size_t own = (size_t)(f->owner - r->workers);
    for (size_t i = 0; i < r->n_workers; i++)
        f->skip[i] = f->tried_d[i] || hy_route__bar(r, f->owner, &r->workers[i]) != NULL;
    f->skip[own] = true;
    hy_worker *w = hy_route__pick(r, HY_ROUTE_DECODE, f->skip);
    f->skip[own] = f->tried_d[own];
    if (w == NULL)
        w = hy_route__pick(r, HY_ROUTE_DECODE, f->skip);
    if (w != NULL)
        return w;
    w = hy_route__pick(r, HY_ROUTE_DECODE, f->tried_d);
    if (w != NULL)
        forsake(f);
    return w;
}

static void fail_alone(hy_flow *f)
{
    hy_buf b;
    hy_buf_init(&b);
    if (f->last[0] != '\0')
        hy_buf_puts(&b, f->last);
    else
        hy_route__why_alone(f->r, &b);
    hy_buf_puts(&b, "), and [router] without_prefill = fail");
    char text[512];
    snprintf(text, sizeof(text), "No prefill node can be used (%s.", hy_buf_str(&b));
    hy_buf_fini(&b);
    hy_flow__fail(f, 503, text);
}

void hy_flow__decode(hy_flow *f)
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
        hy_flow__fail(f, 503, text);
        return;
    }
    if (f->paired && f->params == NULL && r->o.need_prefill) {
        fail_alone(f);
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
                 : hy_leg__send(f, &f->d, w, splice ? b.data : f->raw, splice ? b.len : f->raw_len,
                                &ops, r->o.answer_timeout_ns, r->o.stall_timeout_ns);
    hy_buf_fini(&b);
    if (st < 0) {
        hy_flow__fail(f, 500, "The router is out of memory.");
        return;
    }
    hy_trace_again(r->o.trace, f->trace, HY_TRACE_D_SENT, hy_route__now(r));
    hy_trace_name(r->o.trace, f->trace, HY_TRACE_D_NAME, w->name);
    hy_metric_inc(r->mx_legs[!f->generate ? LEG_ANY : f->params != NULL ? LEG_DECODE : LEG_ALONE]);
}
