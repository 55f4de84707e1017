/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections: their number and their patience. evhttp neither counts them nor limits the time of a
 * whole request (a byte now and then resets its timer), so every bufferevent it makes is kept here
 * with a reference. Those that evhttp has freed are forgotten by a sweep, each second and before
 * there are too many; those that are late are shut down, which evhttp then sees as the peer's end.
 *
 * The descriptor is closed with the last reference, never before: the events of a bufferevent live
 * as long as it does, and on a number that the system gave to another connection they would take
 * that one's bytes. evhttp itself shuts the sending side down, so the peer sees the end at once.
 *
 * Some more than [http] max_connections are taken, so that pages are answered while all of those
 * are in work (who watches this server would take it for hung); further requests find no slot. For
 * each one above that number, one that has left us waiting is hung up.
 *
 * Thread: http stage.  Owner: evhttp owns connections, this file the table.
 */
#include "core/http/server_int.h"

#include "core/base/log.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum { SWEEP_EVERY = 32 }; /* accepts: most dead connections between two seconds */

hy_status hy_conns__init(hy_server *s)
{
    s->most_conns = s->h->o.max_connections + HY_HTTP_SPARE;
    s->conns = calloc((size_t)s->most_conns, sizeof(*s->conns));
    return s->conns != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory for connections");
}

/* evhttp takes its callbacks away when it frees a connection. */
static bool is_dead(const hy_conn *c)
{
    bufferevent_event_cb event = NULL;
    bufferevent_getcb(c->bev, NULL, NULL, &event, NULL);
    return event == NULL;
}

void hy_conns__fini(hy_server *s)
{
    for (int i = 0; s->conns != NULL && i < s->most_conns; i++) {
        if (s->conns[i].bev != NULL)
            bufferevent_decref(s->conns[i].bev);
    }
    free(s->conns);
    s->conns = NULL;
}

static void on_input(struct evbuffer *buf, const struct evbuffer_cb_info *info, void *arg)
{
    hy_conn *c = arg;
    (void)buf;
    if (is_dead(c)) { /* what it still sends is for nobody */
        bufferevent_disable(c->bev, EV_READ);
        return;
    }
    if (info->n_added == 0 || c->reading || c->handling)
        return;
    c->reading = true;
    c->since_ns = hy_stage_now(c->s->h->http);
}

static bool is_waiting(const hy_conn *c)
{
    return !c->handling && evbuffer_get_length(bufferevent_get_output(c->bev)) == 0;
}

/* Long enough to be hung up for others; what is unread may be a request. */
static bool may_go(const hy_conn *c, uint64_t now_ns)
{
    int n = 0;
    return is_waiting(c) && now_ns - c->since_ns >= HY_HTTP_PATIENCE_NS &&
           (ioctl(bufferevent_getfd(c->bev), FIONREAD, &n) != 0 || n == 0);
}

/* Hangs up on one that waits for its client: none if all are in work, or have hardly begun. */
static void make_room(hy_server *s, uint64_t now_ns)
{
    hy_conn *worst = NULL;
    for (int i = 0; i < s->most_conns; i++) {
        hy_conn *c = &s->conns[i];
        if (c->bev == NULL || c->closing || is_dead(c))
            continue;
        if (worst != NULL && (c->reading > worst->reading ||
                              (c->reading == worst->reading && c->since_ns >= worst->since_ns)))
            continue;
        if (may_go(c, now_ns))
            worst = c;
    }
    if (worst != NULL) {
        worst->closing = true;
        shutdown(bufferevent_getfd(worst->bev), SHUT_RDWR);
    }
}

struct bufferevent *hy_conns__accept(struct event_base *base, void *arg)
{
    hy_server *s = arg;
    hy_conn *c = NULL;
    if (++s->n_accepts % SWEEP_EVERY == 0 || s->n_conns + 1 >= s->h->o.max_connections)
        hy_conns__sweep(s, hy_stage_now(s->h->http));
    for (int i = 0; i < s->most_conns && c == NULL; i++) {
        if (s->conns[i].bev == NULL)
            c = &s->conns[i];
    }
    struct bufferevent *bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (bev == NULL)
        return NULL;
    hy_errpage__watch(s, bev);
    struct timeval wr = {(time_t)(s->h->o.write_timeout_ns / HY_SEC),
                         (suseconds_t)(s->h->o.write_timeout_ns % HY_SEC / 1000)};
    bufferevent_set_timeouts(bev, NULL, s->h->o.write_timeout_ns != 0 ? &wr : NULL);
    if (c == NULL) /* accepted in the same turn that reached the limit: no patience limits */
        return bev;
    *c = (hy_conn){.s = s, .bev = bev, .since_ns = hy_stage_now(s->h->http)};
    bufferevent_incref(bev);
    evbuffer_add_cb(bufferevent_get_input(bev), on_input, c);
    s->n_conns++;
    hy_http_metrics__conns(s->h->mx, s->n_conns);
    if (s->n_conns > s->h->o.max_connections)
        make_room(s, c->since_ns);
    if (s->n_conns >= s->most_conns && !s->paused) {
        s->paused = true;
        evconnlistener_disable(s->listener);
        hy_warn("http", "%d connections are open, as many as may be; others wait", s->n_conns);
    }
    return bev;
}

hy_conn *hy_conns__find(hy_server *s, struct bufferevent *bev)
{
    for (int i = 0; i < s->most_conns; i++) {
        if (s->conns[i].bev == bev)
            return &s->conns[i];
    }
    return NULL;
}

static bool is_late(const hy_server *s, const hy_conn *c, uint64_t now_ns)
{
    /* while an answer is on its way the write timeout watches it */
    uint64_t limit = c->reading ? s->h->o.read_timeout_ns : s->h->o.idle_timeout_ns;
    if (s->paused && !c->reading && may_go(c, now_ns)) /* others wait */
        return true;
    return is_waiting(c) && limit != 0 && now_ns - c->since_ns > limit;
}

void hy_conns__sweep(hy_server *s, uint64_t now_ns)
{
    for (int i = 0; i < s->most_conns && s->n_conns > 0; i++) {
        hy_conn *c = &s->conns[i];
        if (c->bev == NULL)
            continue;
        if (is_dead(c)) {
            bufferevent_decref(c->bev);
            *c = (hy_conn){0};
            s->n_conns--;
        } else if (is_late(s, c, now_ns)) {
            shutdown(bufferevent_getfd(c->bev), SHUT_RDWR);
        }
    }
    hy_http_metrics__conns(s->h->mx, s->n_conns);
    for (int n = s->n_conns; n > s->h->o.max_connections; n--)
        make_room(s, now_ns);
    if (s->paused && s->n_conns < s->most_conns && s->listener != NULL) {
        s->paused = false;
        evconnlistener_enable(s->listener);
    }
}
