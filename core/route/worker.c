/* SPDX-License-Identifier: Apache-2.0
 *
 * Workers: which are up, which is best, and what to do when one fails.
 *
 * A refused connection marks a worker down at once, a check that is answered brings it back. A
 * check that is hung up on says nothing yet and is made again at once; the second such in a row is
 * a failure. A worker that drains refuses too and yet finishes what it has, so only silence (checks
 * that time out `down_after` times in a row: a stopped process, a lost machine) ends what is under
 * way there; a dead process closes its connections by itself.
 *
 * Thread: route stage.  Owner: the router.
 */
#include "core/base/log.h"
#include "core/http/json_out.h"
#include "core/route/route_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOWN_INTERVAL_NS (500 * HY_MS)
#define SOON_NS          (10 * HY_MS)
#define RELEASE_TIMEOUT  (2 * HY_SEC)

hy_worker *hy_route__pick(hy_route *r, unsigned can, const bool *tried)
{
    hy_worker *best = NULL;
    for (size_t i = 0; i < r->n_workers; i++) {
        hy_worker *w = &r->workers[i];
        if ((w->can & can) == 0 || w->state == HY_WORKER_DOWN || (tried != NULL && tried[i]))
            continue;
        bool better = best == NULL;
        if (!better && (w->state == HY_WORKER_UP) != (best->state == HY_WORKER_UP))
            better = w->state == HY_WORKER_UP;
        else if (!better && !r->o.round_robin && w->active != best->active)
            better = w->active < best->active;
        else if (!better)
            better = w->picked < best->picked;
        if (better)
            best = w;
    }
    if (best != NULL)
        best->picked = ++r->turn;
    return best;
}

void hy_route__worker_use(hy_worker *w, int by)
{
    w->active += by;
    hy_metric_set(w->mx_active, w->active);
}

int hy_route__n_up(const hy_route *r, unsigned can)
{
    int n = 0;
    for (size_t i = 0; i < r->n_workers; i++)
        n += (r->workers[i].can & can) != 0 && r->workers[i].state == HY_WORKER_UP;
    return n;
}

static void check_in(hy_worker *w, uint64_t ns)
{
    struct timeval tv = {(time_t)(ns / HY_SEC), (suseconds_t)(ns % HY_SEC / HY_US)};
    event_add(w->timer, &tv);
}

static const char *roles_of(const hy_worker *w)
{
    static const char *const names[] = {"none", "prefill", "decode", "both"};
    return names[w->can & 3];
}

static void set_state(hy_worker *w, hy_worker_state s, const char *why)
{
    if (s == HY_WORKER_DOWN)
        snprintf(w->why, sizeof(w->why), "%s", why);
    if (w->state == s)
        return;
    const bool met = w->state != HY_WORKER_UNKNOWN; /* else it may only be starting */
    w->state = s;
    w->since_ns = hy_route__now(w->r);
    hy_metric_set(w->up, s == HY_WORKER_UP);
    if (s == HY_WORKER_UP)
        hy_info("route", "%s (%s) is up at %s:%d", w->name, roles_of(w), w->host, w->port);
    else
        hy_log(met ? HY_LOG_WARN : HY_LOG_INFO, "route", "%s (%s) is %s: %s", w->name, roles_of(w),
               met ? "down" : "not up yet", why);
}

void hy_route__worker_lost(hy_worker *w, const char *why)
{
    hy_metric_inc(w->errors);
    hy_client_forget(w->r->client, w->host, w->port);
    set_state(w, HY_WORKER_DOWN, why);
    if (w->probe == NULL)
        check_in(w, DOWN_INTERVAL_NS);
}

void hy_route__worker_suspect(hy_worker *w)
{
    hy_metric_inc(w->errors);
    if (w->probe == NULL)
        check_in(w, SOON_NS);
}

/* ---- checks ---- */

static void on_probe_head(void *arg, const hy_wire_head *head)
{
    hy_worker *w = arg;
    w->probe_status = head->status;
}

static void on_probe_body(void *arg, struct evbuffer *piece)
{
    (void)arg;
    (void)piece;
}

static void silence(hy_worker *w, const char *why)
{
    if (++w->silent < w->r->o.down_after)
        return;
    set_state(w, HY_WORKER_DOWN, why);
    if (w->active > 0) {
        hy_warn("route", "%s was asked %d times and is silent: %d requests there are given up",
                w->name, w->silent, w->active);
        hy_client_forget(w->r->client, w->host, w->port);
        hy_flow_worker_silent(w->r, w);
    }
}

static void on_probe_end(void *arg, hy_client_fate fate, const char *why)
{
    hy_worker *w = arg;
    char text[96];
    w->probe = NULL;
    if (fate == HY_CLIENT_TIMED_OUT || fate == HY_CLIENT_UNREACHED) {
        silence(w, why);
    } else if (fate == HY_CLIENT_CLOSED && w->state == HY_WORKER_UP && !w->hung_up) {
        w->hung_up = true; /* of a dead process the next one hears more */
        check_in(w, SOON_NS);
        return;
    } else {
        w->silent = 0;
        w->hung_up = false;
        snprintf(text, sizeof(text), "/health answers %d", w->probe_status);
        if (fate != HY_CLIENT_DONE)
            set_state(w, HY_WORKER_DOWN, why);
        else if (w->probe_status != 200)
            set_state(w, HY_WORKER_DOWN, text);
        else
            set_state(w, HY_WORKER_UP, NULL);
    }
    if (w->state == HY_WORKER_UP)
        hy_route__links_ask(w);
    uint64_t ns = w->r->o.health_interval_ns;
    check_in(w, w->state == HY_WORKER_UP || ns < DOWN_INTERVAL_NS ? ns : DOWN_INTERVAL_NS);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    hy_worker *w = arg;
    (void)fd;
    (void)what;
    if (w->probe != NULL)
        return;
    hy_client_req q = {
        .host = w->host,
        .port = w->port,
        .method = "GET",
        .target = "/health",
        .head_timeout_ns = w->r->o.health_timeout_ns,
        .stall_timeout_ns = w->r->o.health_timeout_ns,
        .fresh = true,
        .ops = {on_probe_head, on_probe_body, on_probe_end},
        .arg = w,
    };
    w->probe_status = 0;
    if (hy_client_send(w->r->client, &q, &w->probe) < 0)
        check_in(w, w->r->o.health_interval_ns);
}

/* ---- releases ---- */

struct hy_release {
    hy_release *next, **link;
    hy_route *r;
    hy_client_call *call;
    int status;
    char name[64];
};

static void release_free(hy_release *x)
{
    *x->link = x->next;
    if (x->next != NULL)
        x->next->link = x->link;
    atomic_fetch_sub(&x->r->n_active, 1);
    free(x);
}

static void on_release_head(void *arg, const hy_wire_head *head)
{
    hy_release *x = arg;
    x->status = head->status;
}

static void on_release_end(void *arg, hy_client_fate fate, const char *why)
{
    hy_release *x = arg;
    /* a worker without that endpoint (404) lets its lease run out by itself */
    int i = fate != HY_CLIENT_DONE ? 2 : x->status < 300 ? 0 : x->status == 404 ? 1 : 2;
    hy_metric_inc(x->r->mx_releases[i]);
    if (i == 2)
        hy_debug("route", "release at %s: %s, status %d", x->name, why, x->status);
    release_free(x);
}

/* {"lease":…,"epoch":…,"kv_transfer_params":{…}}: the first two also at the top, for who needs no
 * more. */
static void release_body(hy_buf *b, const char *params)
{
    hy_body p, h;
    const hy_member *m = NULL;
    hy_buf_putc(b, '{');
    if (hy_body_parse(params, strlen(params), &p) == HY_OK &&
        (m = hy_body_find(&p, "halyard")) != NULL &&
        hy_body_parse(params + m->from, m->to - m->from, &h) == HY_OK) {
        static const char *const names[] = {"lease", "epoch"};
        for (size_t i = 0; i < HY_COUNTOF(names); i++) {
            const hy_member *v = hy_body_find(&h, names[i]);
            if (v == NULL)
                continue;
            hy_buf_printf(b, "\"%s\":", names[i]);
            hy_buf_add(b, h.s + v->from, v->to - v->from);
            hy_buf_putc(b, ',');
        }
    }
    hy_buf_puts(b, "\"kv_transfer_params\":");
    hy_buf_puts(b, params);
    hy_buf_putc(b, '}');
}

void hy_route__release(hy_route *r, hy_worker *p, const char *headers, const char *params)
{
    hy_release *x = calloc(1, sizeof(*x));
    hy_buf b;
    if (x == NULL)
        return;
    hy_buf_init(&b);
    release_body(&b, params);
    hy_client_req q = {
        .host = p->host,
        .port = p->port,
        .method = "POST",
        .target = "/v1/kv/release",
        .headers = headers,
        .body = b.data,
        .body_len = b.len,
        .head_timeout_ns = RELEASE_TIMEOUT,
        .stall_timeout_ns = RELEASE_TIMEOUT,
        .ops = {on_release_head, on_probe_body, on_release_end},
        .arg = x,
    };
    x->r = r;
    snprintf(x->name, sizeof(x->name), "%s", p->name);
    if (b.failed || hy_client_send(r->client, &q, &x->call) < 0) {
        free(x);
    } else {
        x->link = &r->releases;
        x->next = r->releases;
        if (x->next != NULL)
            x->next->link = &x->next;
        r->releases = x;
        atomic_fetch_add(&r->n_active, 1);
    }
    hy_buf_fini(&b);
}

/* ---- the table ---- */

void hy_route__workers_json(hy_route *r, hy_buf *b)
{
    static const char *const names[] = {"unknown", "up", "down"};
    hy_buf_puts(b, "{\"workers\":[");
    for (size_t i = 0; i < r->n_workers; i++) {
        const hy_worker *w = &r->workers[i];
        hy_buf_puts(b, i != 0 ? ",{\"name\":" : "{\"name\":");
        hy_json_cstr(b, w->name);
        hy_buf_puts(b, ",\"url\":\"");
        hy_buf_put_url(b, w->host, w->port);
        hy_buf_printf(b,
                      "\",\"role\":\"%s\",\"state\":\"%s\",\"active\":%d,\"for_s\":%.1f,\"why\":",
                      roles_of(w), names[w->state], w->active,
                      (double)(hy_route__now(r) - w->since_ns) / 1e9);
        hy_json_cstr(b, w->state == HY_WORKER_DOWN ? w->why : NULL);
        if (w->node[0] != '\0') {
            hy_buf_puts(b, ",\"node\":");
            hy_json_cstr(b, w->node);
        }
        if (w->can & HY_ROUTE_DECODE) {
            hy_buf_puts(b, ",\"refuses\":");
            hy_route__bars_json(w, b);
        }
        hy_buf_putc(b, '}');
    }
    hy_buf_puts(b, "]}");
}

hy_status hy_route__workers_init(hy_route *r)
{
    r->workers = calloc(r->o.n_peers, sizeof(*r->workers));
    if (r->workers == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for workers");
    for (size_t i = 0; i < r->o.n_peers; i++) {
        const hy_route_peer *p = &r->o.peers[i];
        hy_worker *w = &r->workers[i];
        r->n_workers++;
        *w = (hy_worker){.r = r, .port = p->port, .can = p->can};
        w->name = strdup(p->name);
        w->host = strdup(p->host);
        w->addrs = strdup(p->addrs != NULL ? p->addrs : "");
        w->node = strdup("");
        w->timer = event_new(r->base, -1, 0, on_timer, w);
        w->bars = calloc(r->o.n_peers, sizeof(char *));
        hy_buf_init(&w->links_text);
        if (w->name == NULL || w->host == NULL || w->addrs == NULL || w->node == NULL ||
            w->timer == NULL || w->bars == NULL)
            return hy_fail(HY_E_NOMEM, "out of memory for workers");
        hy_label l[] = {{"worker", w->name}};
        if (r->o.metrics == NULL)
            continue;
        w->up = hy_metric_gauge(r->o.metrics, "halyard:router_worker_up",
                                "1 while the worker answers its health checks.", l, 1);
        w->mx_active = hy_metric_gauge(r->o.metrics, "halyard:router_worker_active",
                                       "Requests under way at the worker.", l, 1);
        w->mx_bars = hy_metric_gauge(
            r->o.metrics, "halyard:router_pairs_refused",
            "Prefill nodes that the worker cannot take KV from; no request goes through the pair.",
            l, 1);
        w->errors =
            hy_metric_counter(r->o.metrics, "halyard:router_upstream_errors_total",
                              "Connections to the worker that failed, broke or timed out.", l, 1);
    }
    return HY_OK;
}

void hy_route__workers_start(hy_route *r)
{
    for (size_t i = 0; i < r->n_workers; i++) {
        r->workers[i].since_ns = hy_route__now(r);
        event_active(r->workers[i].timer, EV_TIMEOUT, 0);
    }
}

void hy_route__workers_fini(hy_route *r)
{
    while (r->releases != NULL) {
        hy_client_cancel(r->releases->call);
        release_free(r->releases);
    }
    for (size_t i = 0; i < r->n_workers; i++) {
        hy_worker *w = &r->workers[i];
        hy_client_cancel(w->probe);
        hy_client_cancel(w->links_call);
        hy_buf_fini(&w->links_text);
        for (size_t k = 0; k < r->n_workers && w->bars != NULL; k++)
            free(w->bars[k]);
        free(w->bars);
        if (w->timer != NULL)
            event_free(w->timer);
        free(w->name);
        free(w->host);
        free(w->addrs);
        free(w->node);
    }
    free(r->workers);
    r->workers = NULL;
    r->n_workers = 0;
}
