/* SPDX-License-Identifier: Apache-2.0
 *
 * The router as a whole: options, the stage and its loop, drain and end.
 *
 * Thread: see route.h.  Owner: see route.h.
 */
#include "core/base/log.h"
#include "core/route/route_int.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MSG_DRAIN = 1, MSG_HANGUP };

void hy_route_opts_init(hy_route_opts *o)
{
    *o = (hy_route_opts){
        .retries = 2,
        .max_answer_bytes = (size_t)64 << 20,
        .health_interval_ns = 2 * HY_SEC,
        .health_timeout_ns = 5 * HY_SEC,
        .down_after = 3,
        .connect_timeout_ns = 2 * HY_SEC,
        .prefill_timeout_ns = 300 * HY_SEC,
        .stall_timeout_ns = 120 * HY_SEC,
        .host = "127.0.0.1",
        .port = 8000,
        .max_body_bytes = (size_t)32 << 20,
        .max_header_bytes = 64 << 10,
        .max_unsent_bytes = 1 << 20,
        .max_connections = 1024,
        .max_requests = 4096,
        .idle_timeout_ns = 75 * HY_SEC,
        .header_timeout_ns = 60 * HY_SEC,
        .write_timeout_ns = 60 * HY_SEC,
    };
}

uint64_t hy_route__now(hy_route *r)
{
    return hy_stage_now(r->stage);
}

/* ---- the loop ---- */

static void on_mail(evutil_socket_t fd, short what, void *arg)
{
    hy_route *r = arg;
    (void)fd;
    (void)what;
    hy_mbox_fd_clear(hy_stage_mbox(r->stage)); /* the loop ends and the stage takes them */
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    hy_route *r = arg;
    (void)fd;
    (void)what;
    hy_route__front_sweep(r, hy_route__now(r));
    hy_route__rests_sweep(r, false);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
}

static void wait_events(void *self, uint64_t deadline_ns)
{
    hy_route *r = self;
    if (deadline_ns != HY_NEVER) {
        uint64_t now = hy_route__now(r), ns = deadline_ns > now ? deadline_ns - now : 0;
        struct timeval tv = {(time_t)(ns / HY_SEC), (suseconds_t)(ns % HY_SEC / HY_US)};
        event_add(r->deadline, &tv);
    }
    event_base_loop(r->base, EVLOOP_ONCE);
}

static hy_status on_start(void *self)
{
    hy_route__workers_start(self);
    return HY_OK;
}

static hy_status on_msg(void *self, hy_msg *msg)
{
    hy_route *r = self;
    hy_route__front_stop(r);
    hy_route__front_sweep(r, hy_route__now(r));
    if (msg->kind == MSG_HANGUP)
        hy_route__front_hangup(r);
    hy_route__rests_sweep(r, msg->kind == MSG_HANGUP);
    return HY_OK;
}

static const hy_stage_ops route_ops = {.on_start = on_start, .on_msg = on_msg, .wait = wait_events};

static void log_event(int severity, const char *text)
{
    hy_log_level level = severity == EVENT_LOG_ERR ? HY_LOG_ERROR : HY_LOG_DEBUG;
    if (hy_log_level_get() >= level)
        hy_log(level, "route", "libevent: %s", text);
}

/* ---- making ---- */

static hy_metric *counter(hy_route *r, const char *name, const char *help, const char *label,
                          const char *value)
{
    hy_label l = {label, value};
    return hy_metric_counter(r->o.metrics, name, help, &l, 1);
}

static void make_metrics(hy_route *r)
{
    static const char *const outcomes[] = {"ok", "client_error", "upstream", "unavailable", "gone"};
    static const char *const results[] = {"released", "unknown", "failed"};
    static const char *const legs[] = {"prefill", "decode", "alone", "any"};
    static const double bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                    1,     2.5,    5,     10,   30,    60,   120, 300};
    hy_metrics *m = r->o.metrics;
    if (m == NULL)
        return;
    for (size_t i = 0; i < HY_OUT_N; i++)
        r->mx_requests[i] = counter(r, "halyard:router_requests_total",
                                    "Requests by how they ended.", "outcome", outcomes[i]);
    for (size_t i = 0; i < HY_COUNTOF(results); i++)
        r->mx_releases[i] =
            counter(r, "halyard:router_releases_total",
                    "Leases of prefill nodes given back by the router.", "result", results[i]);
    for (size_t i = 0; i < HY_COUNTOF(legs); i++)
        r->mx_legs[i] = counter(r, "halyard:router_legs_total",
                                "Requests sent to workers: prefill, decode after it, decode "
                                "alone, any.",
                                "leg", legs[i]);
    r->mx_active = hy_metric_gauge(m, "halyard:router_active", "Requests in work.", NULL, 0);
    r->mx_conns =
        hy_metric_gauge(m, "halyard:router_connections", "Open client connections.", NULL, 0);
    r->mx_prefill =
        hy_metric_histogram(m, "halyard:router_prefill_seconds", "Time of the prefill leg.", bounds,
                            HY_COUNTOF(bounds), NULL, 0);
    r->mx_first = hy_metric_histogram(m, "halyard:router_first_byte_seconds",
                                      "From a request's arrival to the first byte of its answer.",
                                      bounds, HY_COUNTOF(bounds), NULL, 0);
}

static hy_status make_loop(hy_route *r)
{
    static const struct timeval second = {1, 0};
    event_set_log_callback(log_event);
    r->base = event_base_new();
    r->rt = hy_runtime_create(HY_RUNTIME_THREADS, hy_rng_entropy());
    r->stage = hy_stage_create("route", &route_ops, r, 16, 4);
    if (r->base == NULL || r->rt == NULL || r->stage == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for the router");
    HY_TRY(hy_runtime_add(r->rt, r->stage));
    int fd = hy_mbox_fd(hy_stage_mbox(r->stage));
    if (fd < 0)
        return HY_E_SYS;
    r->mail = event_new(r->base, fd, EV_READ | EV_PERSIST, on_mail, r);
    r->tick = event_new(r->base, -1, EV_PERSIST, on_tick, r);
    r->deadline = event_new(r->base, -1, 0, on_deadline, r);
    if (r->mail == NULL || r->tick == NULL || r->deadline == NULL ||
        event_add(r->mail, NULL) != 0 || event_add(r->tick, &second) != 0)
        return hy_fail(HY_E_NOMEM, "out of memory for the router's events");
    hy_client_opts co = {.base = r->base, .connect_timeout_ns = r->o.connect_timeout_ns};
    return hy_client_create(&co, &r->client);
}

static void free_all(hy_route *r)
{
    if (r == NULL)
        return;
    hy_runtime_destroy(r->rt);
    hy_flow_cancel_all(r);
    hy_route__rests_sweep(r, true);
    hy_route__front_fini(r);
    hy_route__workers_fini(r);
    hy_client_destroy(r->client);
    hy_stage_destroy(r->stage);
    if (r->mail != NULL)
        event_free(r->mail);
    if (r->tick != NULL)
        event_free(r->tick);
    if (r->deadline != NULL)
        event_free(r->deadline);
    if (r->base != NULL)
        event_base_free(r->base);
    free(r->host);
    free(r->api_key);
    free(r);
}

static hy_status check_opts(const hy_route_opts *o)
{
    unsigned can = 0;
    for (size_t i = 0; i < o->n_peers; i++)
        can |= o->peers[i].can;
    if ((can & HY_ROUTE_DECODE) == 0)
        return hy_fail(HY_E_INVAL, "the router has no worker that can decode: name one in a "
                                   "[peer.NAME] section with role = decode, both or all, and url");
    return HY_OK;
}

hy_status hy_route_create(const hy_route_opts *o, hy_route **out)
{
    HY_TRY(check_opts(o));
    hy_route *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for the router");
    r->o = *o;
    r->host = strdup(o->host != NULL ? o->host : "127.0.0.1");
    r->api_key = strdup(o->api_key != NULL ? o->api_key : "");
    hy_status st = r->host != NULL && r->api_key != NULL
                       ? HY_OK
                       : hy_fail(HY_E_NOMEM, "out of memory for the router");
    if (st == HY_OK)
        st = make_loop(r);
    make_metrics(r);
    if (st == HY_OK)
        st = hy_route__workers_init(r);
    if (st == HY_OK)
        st = hy_route__front_init(r);
    r->o.peers = NULL; /* copied into workers */
    r->o.host = r->host;
    r->o.api_key = r->api_key;
    if (st < 0) {
        free_all(r);
        return st;
    }
    *out = r;
    return HY_OK;
}

hy_status hy_route_start(hy_route *r)
{
    HY_TRY(hy_runtime_start(r->rt));
    r->started = true;
    return HY_OK;
}

int hy_route_port(const hy_route *r)
{
    return r->port;
}

void hy_route_stop_accepting(hy_route *r)
{
    hy_msg m = {.kind = MSG_DRAIN};
    if (!atomic_exchange(&r->draining, true) && r->started)
        hy_stage_post_reserved(r->stage, &m);
}

int hy_route_active(const hy_route *r)
{
    return atomic_load(&r->n_active);
}

hy_status hy_route_health(hy_route *r, const char **text_out)
{
    return hy_runtime_failed(r->rt, text_out);
}

/* Time for releases to reach their nodes after everybody was hung up on. */
static void wait_releases(hy_route *r)
{
    for (int i = 0; i < 250 && hy_route_active(r) > 0; i++)
        nanosleep(&(struct timespec){0, 2000000}, NULL);
}

void hy_route_destroy(hy_route *r)
{
    if (r == NULL)
        return;
    if (r->started) {
        hy_msg m = {.kind = MSG_HANGUP};
        atomic_store(&r->draining, true);
        hy_stage_post_reserved(r->stage, &m);
        wait_releases(r);
        hy_runtime_stop(r->rt);
    }
    free_all(r);
}
