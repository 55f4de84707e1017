/* SPDX-License-Identifier: Apache-2.0
 *
 * Links: control connections from opening to the fence, frames in and out, heartbeats.
 *
 * Thread: under the fabric's lock.  Owner: hy_fab; a dead link lives until the end of the pass.
 */
#include "fabric/own.h"

#include <stdio.h>
#include <string.h>

enum { MOST_STRANGERS = 64 }; /* accepted and not yet proven */

#define BULK_NS            (30 * HY_US) /* some 128 KiB */
#define REST_NS            (40 * HY_US)
#define ANNOUNCE_LINGER_NS (500 * HY_US) /* so that a stream of small writes announces once */

static fab_link *new_link(hy_fab *f, int rail, fab_link_state state)
{
    fab_link *l = hy_calloc(1, sizeof(*l));
    if (l == NULL)
        return NULL;
    uint64_t now = hy_fab__now(f);
    l->f = f;
    l->rail = rail;
    l->state = state;
    l->last_rx = l->last_tx = l->last_done = now;
    l->deadline = hy_clock_after(now, f->o.connect_timeout_ns);
    hy_fab__timer(f, l->deadline);
    hy_buf_init(&l->rx);
    l->next = f->links;
    f->links = l;
    return l;
}

static int strangers(const hy_fab *f)
{
    int n = 0;
    for (const fab_link *l = f->links; l != NULL; l = l->next)
        n += !l->out && l->state != LINK_UP && l->state != LINK_DEAD;
    return n;
}

void hy_fab__accepted(hy_fab *f, int rail, fab_conn *c)
{
    fab_link *l = strangers(f) < MOST_STRANGERS ? new_link(f, rail, LINK_HELLO) : NULL;
    if (l == NULL) {
        f->stats.refused_auth++;
        f->ct->close(f->ctx, c);
        return;
    }
    l->conn = c;
    c->link = l;
}

hy_status hy_fab__dial(hy_fab *f, int rail, const char *addr, const char *want, uint64_t connect_op)
{
    fab_link *l = new_link(f, rail, LINK_OPENING);
    if (l == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a link");
    l->out = true;
    l->connect_op = connect_op;
    snprintf(l->addr, sizeof(l->addr), "%s", addr);
    snprintf(l->want, sizeof(l->want), "%s", want != NULL ? want : "");
    hy_status st = f->ct->connect(f->ctx, rail, addr, l, &l->conn);
    if (st < 0) {
        l->state = LINK_DEAD;
        return st;
    }
    return HY_OK;
}

void hy_fab__dial_beside(const fab_link *l)
{
    hy_fab *f = l->f;
    if (!f->beside || !l->out || !l->native_tcp || l->same.rx || f->o.strict ||
        !hy_fab__may_dial(f, l->peer, l->addr, true))
        return;
    for (const fab_link *o = f->links; o != NULL; o = o->next)
        if (o->beside && o->out && o->state != LINK_DEAD && strcmp(o->addr, l->addr) == 0)
            return;
    if (hy_fab__dial(f, l->rail, l->addr, l->theirs.node, 0) == HY_OK)
        f->links->beside = true;
}

void hy_fab__opened(fab_link *l)
{
    if (l->state == LINK_OPENING)
        hy_fab__hello(l);
}

void hy_fab__break(fab_link *l, hy_status st, const char *why)
{
    if (l->broken || l->state == LINK_DEAD)
        return;
    l->broken = true;
    l->broken_st = st;
    snprintf(l->broken_why, sizeof(l->broken_why), "%s", why);
    hy_fab__timer(l->f, 0);
}

void hy_fab__closed(fab_link *l, const char *why)
{
    l->conn = NULL; /* the control layer frees it */
    hy_fab__break(l, HY_E_PEER, why);
}

void hy_fab__bad(fab_link *l, hy_status st)
{
    hy_fab *f = l->f;
    uint64_t now = hy_fab__now(f);
    if (st == HY_E_PROTOCOL)
        f->stats.foreign_versions++;
    else
        f->stats.bad_frames++;
    if (now >= f->bad_logged) { /* a flood of them must not flood the log */
        hy_warn("fabric", "refused from %s: %s (%llu so far)",
                l->peer != NULL ? l->peer->node : "a stranger", hy_fail_text(),
                (unsigned long long)(f->stats.bad_frames + f->stats.foreign_versions));
        f->bad_logged = now + HY_SEC;
    }
    hy_fab__break(l, st, hy_fail_text());
}

hy_status hy_fab__frame(fab_link *l, fab_kind kind, const void *a, size_t na, const void *b,
                        size_t nb)
{
    hy_fab *f = l->f;
    if (l->conn == NULL || l->state == LINK_DEAD)
        return HY_E_PEER;
    uint8_t head[FAB_HEAD];
    fab_head h = {.kind = kind};
    fab_peer *p = l->state == LINK_UP ? l->peer : NULL;
    if (p != NULL) {
        h.delivered = p->rx_seq;
        h.consumed = p->consumed_told = atomic_load(&p->consumed) - p->consumed_base;
        p->ack_dirty = false;
    }
    hy_fab__head_put(head, &h, a, na, b, nb);
    l->last_tx = hy_fab__now(f);
    if (nb == 0)
        return f->ct->send(f->ctx, l->conn, head, sizeof(head), a, na);
    hy_buf t;
    hy_buf_init(&t);
    hy_buf_add(&t, a, na);
    hy_buf_add(&t, b, nb);
    hy_status st =
        t.failed ? HY_E_NOMEM : f->ct->send(f->ctx, l->conn, head, sizeof(head), t.data, t.len);
    hy_buf_fini(&t);
    return st;
}

static void take_frame(fab_link *l, const fab_head *h, const uint8_t *p)
{
    hy_fab *f = l->f;
    if (h->kind < FAB_REFUSE) {
        hy_fab__shake(l, h->kind, p, h->len);
        return;
    }
    if (h->kind == FAB_REFUSE) {
        char text[80];
        snprintf(text, sizeof(text), "refused: %.*s", h->len > 60 ? 60 : (int)h->len,
                 (const char *)p);
        for (char *c = text; *c != 0; c++)
            *c = *c < 0x20 || *c > 0x7e ? '?' : *c;
        hy_fab__denied(l, true, text + strlen("refused: "));
        hy_fab__break(l, HY_E_DENIED, text);
        return;
    }
    if (h->kind == FAB_DATA && l->state == LINK_HELLO) {
        if (!hy_fab__own_attach(l, p, h->len))
            hy_fab__bad(l, hy_fail(HY_E_DENIED, "a data connection that no link awaits"));
        else
            hy_fab__break(l, HY_OK, "it is a data connection now");
        return;
    }
    if (l->state != LINK_UP) {
        hy_fab__bad(l, hy_fail(HY_E_FORMAT, "frame %d before the greeting is over", h->kind));
        return;
    }
    hy_fab__msg_acked(f, l->peer, h->delivered, h->consumed);
    if (h->kind == FAB_MSG)
        hy_fab__msg_in(l, p, h->len);
    else if (h->kind == FAB_ANNOUNCE && h->len == 1)
        l->they_announce = p[0] != 0;
    else if (h->kind == FAB_BYE)
        hy_fab__break(l, HY_E_PEER, "it said goodbye");
    else if (h->kind >= FAB_SAME)
        hy_fab__same_frame(l, h->kind, p, h->len);
    else if (h->kind != FAB_PING)
        hy_fab__bad(l, hy_fail(HY_E_FORMAT, "malformed frame of kind %d", h->kind));
}

/* One frame from p[0..n); 0: not all of it is there. */
static size_t one_frame(fab_link *l, const uint8_t *p, size_t n)
{
    fab_head h;
    uint32_t max = l->state == LINK_UP ? FAB_FRAME_MAX : FAB_SHAKE_MAX;
    hy_status st = hy_fab__head_get(p, n, max, &h);
    if (st < 0) {
        if (st == HY_E_PROTOCOL && l->state != LINK_UP)
            hy_fab__frame(l, FAB_REFUSE, hy_fail_text(), strlen(hy_fail_text()), NULL, 0);
        hy_fab__bad(l, st);
        return 0;
    }
    if (st == HY_AGAIN || n < FAB_HEAD + (size_t)h.len)
        return 0;
    if (!hy_fab__head_sum_ok(p, &h)) {
        hy_fab__bad(l, hy_fail(HY_E_FORMAT, "frame of kind %d with a wrong checksum", h.kind));
        return 0;
    }
    take_frame(l, &h, p + FAB_HEAD);
    return FAB_HEAD + h.len;
}

void hy_fab__bytes(fab_link *l, const void *data, size_t n)
{
    if (l->broken || l->state == LINK_DEAD)
        return;
    const uint8_t *p = data;
    bool kept = l->rx.len > 0; /* else the frames are read where they are */
    l->last_rx = hy_fab__now(l->f);
    if (kept) {
        hy_buf_add(&l->rx, data, n);
        p = (const uint8_t *)l->rx.data;
        n = l->rx.len;
    }
    size_t used = 0, k = 1;
    while (used < n && !l->broken && l->state != LINK_DEAD &&
           (k = one_frame(l, p + used, n - used)))
        used += k;
    if (kept)
        hy_buf_drop(&l->rx, used);
    else if (used < n)
        hy_buf_add(&l->rx, p + used, n - used);
    if (l->rx.failed)
        hy_fab__break(l, HY_E_NOMEM, "no memory for what it sent");
}

void hy_fab__link_close(fab_link *l, hy_status st, const char *why)
{
    hy_fab *f = l->f;
    if (l->state == LINK_DEAD)
        return;
    bool was_up = l->state == LINK_UP;
    const char *path = hy_fab__path(l);
    char text[96]; /* why may lie in the link */
    snprintf(text, sizeof(text), "%s", why);
    l->state = LINK_DEAD;
    if (l->conn != NULL) {
        l->conn->link = NULL;
        f->ct->close(f->ctx, l->conn);
        l->conn = NULL;
    }
    if (l->dpl != NULL)
        l->dp->link_close(l->dpl); /* the fence */
    l->dpl = NULL;
    hy_fab__same_close(l);
    if (was_up) {
        f->stats.links_up--;
        f->stats.links_lost += !f->closing;
        if (!f->closing)
            hy_info("fabric", "%s: link to %s over rail %d (%s) closed: %s", f->node, l->peer->node,
                    l->rail, path, text);
    }
    l->lost_some = l->pieces != NULL;
    hy_fab__link_lost_pieces(l);
    if (l->connect_op != 0) {
        char at[96];
        snprintf(at, sizeof(at), "%.50s: %.43s", l->addr, text);
        hy_fab__connect_failed(f, l->connect_op, st,
                               st == HY_E_PEER || st == HY_E_TIMEOUT ? at : text);
    }
    l->connect_op = 0;
    if (l->peer != NULL)
        hy_fab__peer_leave(l, st, text);
    hy_fab__timer(f, 0);
}

void hy_fab__links_reap(hy_fab *f)
{
    for (fab_link *l = f->links; l != NULL; l = l->next)
        if (l->broken && l->state != LINK_DEAD)
            hy_fab__link_close(l, l->broken_st, l->broken_why);
    for (fab_link **at = &f->links; *at != NULL;) {
        fab_link *l = *at;
        if (l->state != LINK_DEAD) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        hy_buf_fini(&l->rx);
        hy_free(l);
    }
}

static void tell(fab_link *l, bool on)
{
    const uint8_t b = on;
    l->we_announce = on;
    l->idle_since = 0;
    hy_fab__frame(l, FAB_ANNOUNCE, &b, 1, NULL, 0);
}

void hy_fab__announce(fab_link *l)
{
    if (!l->we_announce)
        tell(l, true);
}

/* Tell the peer that data is on its way, so that its thread polls; and when it no longer is. */
static void announce(fab_link *l, uint64_t now)
{
    /* also when nothing could be posted yet: a provider connects by both sides' polling */
    if (l->n_dp > 0 || l->again_since != 0) {
        hy_fab__announce(l);
        l->idle_since = 0;
    } else if (l->we_announce) {
        if (l->idle_since == 0)
            l->idle_since = now;
        if (now - l->idle_since >= ANNOUNCE_LINGER_NS)
            tell(l, false);
        else
            hy_fab__timer(l->f, l->idle_since + ANNOUNCE_LINGER_NS);
    }
}

/* Bytes that come in bulk are taken in lumps: who asks for each as it comes takes the socket's lock
 * from the one who sends over loopback, which costs a tenth of the rate. The buffers hold far more.
 */
static bool advance(fab_link *l, uint64_t now)
{
    const uint64_t begun = hy_fab__now(l->f);
    const bool moved = l->dp->progress(l->dpl, now);
    const uint64_t ended = hy_fab__now(l->f);
    if (moved) {
        l->worked_ns += ended - begun;
        return true;
    }
    if (l->worked_ns >= BULK_NS)
        l->rest_until = ended + REST_NS;
    l->worked_ns = 0;
    return false;
}

bool hy_fab__links_progress(hy_fab *f, uint64_t now, bool *hot)
{
    bool moved = false;
    for (fab_link *l = f->links; l != NULL; l = l->next) {
        if (l->state != LINK_UP || l->broken)
            continue;
        if (l->again_since != 0 && l->peer->n_queued == 0)
            l->again_since = 0;
        if (l->same.head != NULL)
            moved |= hy_fab__same_progress(l);
        if (l->n_dp > 0 || l->they_announce || l->busy || l->again_since != 0) {
            *hot = true;
            if (l->n_dp > 0 || l->busy || now >= l->rest_until)
                moved |= advance(l, now);
        }
        announce(l, now);
    }
    return moved;
}

static void watch_up(fab_link *l, uint64_t now)
{
    hy_fab *f = l->f;
    uint64_t silent = l->last_rx + f->o.peer_timeout_ns;
    if (now >= silent) {
        hy_fab__break(l, HY_E_PEER, "no sign of life within the peer timeout");
        return;
    }
    if (l->awaits && now >= l->deadline) {
        hy_fab__break(l, HY_E_PEER, "no data connection within the connect timeout");
        return;
    }
    if (l->awaits)
        hy_fab__timer(f, l->deadline);
    if (l->n_out > 0 || l->again_since != 0) {
        uint64_t since = l->last_done;
        if (l->again_since > since || l->n_out == 0)
            since = l->again_since;
        uint64_t stalled = since + f->o.stall_ns;
        if (now >= stalled) {
            hy_fab__break(l, HY_E_PEER, "data in flight and nothing completes");
            return;
        }
        hy_fab__timer(f, stalled);
    }
    if (now >= l->last_tx + f->o.heartbeat_ns)
        hy_fab__frame(l, FAB_PING, NULL, 0, NULL, 0);
    hy_fab__timer(f, silent);
    hy_fab__timer(f, l->last_tx + f->o.heartbeat_ns);
}

void hy_fab__links_timers(hy_fab *f, uint64_t now)
{
    for (fab_link *l = f->links; l != NULL; l = l->next) {
        if (l->state == LINK_DEAD || l->broken)
            continue;
        if (l->state == LINK_UP)
            watch_up(l, now);
        else if (now >= l->deadline)
            hy_fab__break(l, HY_E_TIMEOUT,
                          l->state == LINK_OPENING ? "no connection within the connect timeout"
                                                   : "no answer within the connect timeout");
        else
            hy_fab__timer(f, l->deadline);
    }
}
