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
#include "core/route/flow_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- ends ---- */

void hy_leg__drop(hy_leg *l)
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
             "request %s: %s, prefill %s %.1f ms, decode %s, first byte %.1f ms, total %.1f ms%s%s",
             rid, names[how], f->owner != NULL ? f->owner->name : "-", (double)f->prefill_ns / 1e6,
             f->d.w != NULL ? f->d.w->name : "-", (double)f->first_ns / 1e6,
             (double)(now - f->t0_ns) / 1e6, f->last[0] != '\0' ? "; " : "", f->last);
}

void hy_flow__end(hy_flow *f, hy_outcome how, const char *rid)
{
    hy_route *r = f->r;
    const bool taken = how == HY_OUT_OK && f->d.status < 300; /* decode gives it back itself */
    log_end(f, rid, how);
    if (how == HY_OUT_GONE)
        hy_trace_set(r->o.trace, f->trace, HY_TRACE_STATUS, 499);
    hy_trace_mark(r->o.trace, f->trace, HY_TRACE_ANSWERED, hy_route__now(r));
    hy_metric_inc(r->mx_requests[how]);
    if (how == HY_OUT_OK)
        hy_flow__rest(f);
    else
        hy_leg__drop(&f->p);
    hy_leg__drop(&f->d);
    hy_flow__disown(f);
    if (!taken && f->params != NULL && f->owner != NULL)
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
    free(f->skip);
    free(f->params);
    free(f);
}

void hy_flow__fail(hy_flow *f, int status, const char *text)
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
    hy_trace_set(f->r->o.trace, f->trace, HY_TRACE_STATUS, status);
    hy_flow__end(f, status == 503 ? HY_OUT_UNAVAILABLE : HY_OUT_UPSTREAM, rid);
}

static void refuse(hy_flow *f, const char *text)
{
    char rid[HY_RID_LEN];
    snprintf(rid, sizeof(rid), "%s", f->conn->rid);
    hy_front_reply_error(f->conn, 400, "BadRequestError", text, NULL);
    hy_trace_set(f->r->o.trace, f->trace, HY_TRACE_STATUS, 400);
    hy_flow__end(f, HY_OUT_CLIENT_ERROR, rid);
}

void hy_flow_gone(hy_flow *f)
{
    char rid[HY_RID_LEN];
    snprintf(rid, sizeof(rid), "%s", f->conn->rid);
    hy_flow__end(f, HY_OUT_GONE, rid);
}

void hy_flow_resume(hy_flow *f)
{
    if (f->d.call != NULL)
        hy_client_pause(f->d.call, false);
}

/* ---- legs ---- */

hy_status hy_leg__send(hy_flow *f, hy_leg *l, hy_worker *w, const char *body, size_t len,
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
    hy_trace_add(f->r->o.trace, f->trace, HY_TRACE_LEGS, 1);
    hy_route__worker_use(w, 1);
    return HY_OK;
}

void hy_leg__over(hy_leg *l)
{
    l->call = NULL;
    hy_route__worker_use(l->w, -1);
}

bool hy_flow__was_refused(hy_client_fate fate)
{
    return fate == HY_CLIENT_REFUSED || fate == HY_CLIENT_UNREACHED;
}

void hy_flow__blame(hy_flow *f, hy_worker *w, hy_client_fate fate, const char *why)
{
    snprintf(f->last, sizeof(f->last), "%s: %s", w->name, why);
    if (hy_flow__was_refused(fate))
        hy_route__worker_lost(w, why);
    else
        hy_route__worker_suspect(w);
}

/* ---- silence ---- */

static bool give_up(hy_flow *f, hy_worker *w)
{
    if (f->p.call != NULL && f->p.w == w) {
        hy_leg__drop(&f->p);
        hy_flow__disown(f);
        snprintf(f->last, sizeof(f->last), "%s is silent", w->name);
        hy_flow__prefill_failed(f, true);
        return true;
    }
    if (f->d.call != NULL && f->d.w == w) {
        int status = f->d.status;
        hy_leg__drop(&f->d);
        f->d.status = status;
        snprintf(f->last, sizeof(f->last), "%s is silent", w->name);
        hy_flow__decode_failed(f, HY_CLIENT_CLOSED);
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
    f->skip = calloc(r->n_workers, sizeof(bool));
    f->p.answer = evbuffer_new();
    f->d.answer = evbuffer_new();
    f->hold = evbuffer_new();
    pass_on(f, c, "Content-Type");
    pass_on(f, c, "Authorization");
    pass_on(f, c, "traceparent");
    pass_on(f, c, "tracestate");
    hy_buf_printf(&f->headers, "Accept: */*\r\nX-Request-Id: %s\r\n", c->rid);
    if (f->target == NULL || f->raw == NULL || f->tried_p == NULL || f->tried_d == NULL ||
        f->skip == NULL || f->p.answer == NULL || f->d.answer == NULL || f->hold == NULL ||
        f->headers.failed)
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
    if (generate) {
        f->trace = ++r->n_traced;
        hy_trace_begin(r->o.trace, f->trace, c->rid, f->t0_ns);
    }
    if (!make(f, c)) {
        hy_flow__fail(f, 500, "The router is out of memory.");
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
    f->paired = generate && !f->facts.alone && f->facts.prompt_len >= r->o.min_prefill_len;
    if (f->paired)
        hy_flow__prefill(f);
    else
        hy_flow__decode(f);
}
