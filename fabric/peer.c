/* SPDX-License-Identifier: Apache-2.0
 *
 * Peers: one state per (node, epoch), made when a first link is proven, gone with the last link.
 * Both sides number this state (incarnations), so that a side that dropped it can never be met by
 * one that did not.
 *
 * Thread: under the fabric's lock.  Owner: hy_fab.
 */
#include "fabric/fab_int.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FREE_FAILS = 2 /* that cost no wait */, MOST_DOUBLED = 5 };
#define REDIAL_NS HY_SEC
#define STEADY_NS (10 * HY_SEC)

fab_peer *hy_fab__peer(hy_fab *f, hy_fab_peer h)
{
    uint64_t slot = (h & UINT32_MAX) - 1;
    if (h == 0 || slot >= f->o.max_peers || !f->peers[slot].used || f->peers[slot].handle != h)
        return NULL;
    return &f->peers[slot];
}

static fab_peer *find_node(hy_fab *f, const char *node)
{
    for (uint32_t i = 0; i < f->n_slots; i++)
        if (f->peers[i].used && strcmp(f->peers[i].node, node) == 0)
            return &f->peers[i];
    return NULL;
}

static fab_peer *new_peer(hy_fab *f, const fab_hello *h)
{
    for (uint32_t i = 0; i < f->o.max_peers; i++) {
        fab_peer *p = &f->peers[i];
        if (p->used)
            continue;
        uint64_t consumed = atomic_load(&p->consumed);
        memset(p, 0, sizeof(*p));
        atomic_store(&p->consumed, consumed); /* events of the former may still be polled */
        p->consumed_base = consumed;
        p->used = true;
        if (i >= f->n_slots)
            f->n_slots = i + 1;
        p->handle = (uint64_t)++f->peers_gen << 32 | (i + 1);
        p->epoch = h->epoch;
        p->inc = hy_rng_u64(&f->rng) | 1;
        memcpy(p->node, h->node, sizeof(p->node));
        return p;
    }
    return NULL;
}

hy_status hy_fab__peer_meet(fab_link *l)
{
    hy_fab *f = l->f;
    if (strcmp(l->theirs.node, f->node) == 0)
        return hy_fail(HY_E_INVAL, "node id %s is taken twice (or the node dialled itself)",
                       f->node);
    fab_peer *p = find_node(f, l->theirs.node);
    if (l->beside && (p == NULL || !p->up || p->epoch != l->theirs.epoch))
        return hy_fail(HY_E_ABORTED, "the link that this one was to stand beside is gone");
    if (p != NULL && p->epoch != l->theirs.epoch) {
        hy_fab__peer_down(p, f, HY_E_PEER, "it has restarted: a new epoch");
        p = NULL;
    }
    if (p == NULL)
        p = new_peer(f, &l->theirs);
    if (p == NULL)
        return hy_fail(HY_E_LIMIT, "more than %u peers", f->o.max_peers);
    p->n_links++;
    l->peer = p;
    return HY_OK;
}

static void tell(hy_fab *f, hy_fab_ev_kind kind, const fab_peer *p, hy_status st, const char *text,
                 uint64_t op, uint64_t user)
{
    hy_fab_event ev = {.kind = kind, .status = st, .op = op, .user = user};
    if (p != NULL) {
        ev.peer = p->handle;
        ev.epoch = p->epoch;
    }
    snprintf(ev.text, sizeof(ev.text), "%s", text);
    hy_fab__event(f, &ev);
}

static void end_connect(hy_fab *f, fab_op *op, const fab_peer *p, hy_status st, const char *text)
{
    tell(f, HY_FAB_EV_CONNECT, p, st, text, op->id, op->user);
    hy_fab__op_free(f, op);
}

void hy_fab__connect_failed(hy_fab *f, uint64_t id, hy_status st, const char *why)
{
    fab_op *op = hy_fab__op_find(f, id);
    if (op != NULL && --op->n_links <= 0)
        end_connect(f, op, NULL, st, why);
}

hy_status hy_fab__peer_join(fab_link *l, uint64_t their_inc)
{
    hy_fab *f = l->f;
    fab_peer *p = l->peer;
    uint64_t now = hy_fab__now(f);
    p->their_inc = their_inc;
    l->state = LINK_UP;
    l->up_at = l->last_rx = l->last_done = now;
    l->deadline = hy_clock_after(now, f->o.connect_timeout_ns); /* for its data connection */
    f->stats.links_up++;
    hy_fab__timer(f, 0);
    hy_info("fabric", "%s: link to %s over rail %d to %d: %s", f->node, p->node, l->rail, l->rrail,
            l->same.rx ? "same node, process_vm" : hy_fab__path(l));
    if (!p->up) {
        p->up = true;
        f->stats.peers_up++;
        tell(f, HY_FAB_EV_UP, p, HY_OK, p->node, 0, 0);
    }
    fab_op *op = l->connect_op != 0 ? hy_fab__op_find(f, l->connect_op) : NULL;
    if (op != NULL) {
        hy_free(p->addrs);
        p->addrs = op->addrs;
        op->addrs = NULL;
        p->redial_at = hy_clock_after(now, REDIAL_NS + f->o.connect_timeout_ns);
        end_connect(f, op, p, HY_OK, p->node);
    }
    l->connect_op = 0;
    if (p->primary == NULL || (p->primary->beside && !l->beside)) {
        p->primary = l;
        hy_fab__msg_repoint(f, p);
    }
    hy_fab__dial_beside(l);
    return HY_OK;
}

void hy_fab__peer_down(fab_peer *p, hy_fab *f, hy_status st, const char *why)
{
    if (!p->used)
        return;
    bool was_up = p->up;
    p->used = p->up = false; /* first: what follows comes back here */
    for (fab_link *l = f->links; l != NULL; l = l->next) {
        if (l->peer != p || l->state == LINK_DEAD)
            continue;
        hy_fab__link_close(l, st, why);
    }
    while (p->ops != NULL) {
        fab_op *op = p->ops;
        op->status = op->status < 0 ? op->status : st;
        if (op->kind == FAB_WRITE || op->kind == FAB_SEND)
            op->flags |= HY_FAB_UNKNOWN;
        hy_fab__op_end(f, op);
    }
    hy_fab__msg_drop(f, p);
    hy_free(p->addrs);
    p->addrs = NULL;
    p->primary = NULL;
    if (was_up) {
        f->stats.peers_up--;
        f->stats.peers_lost += !f->closing;
        tell(f, HY_FAB_EV_DOWN, p, st, why, 0, 0);
    }
}

/* Place of an address in the list that was dialled; HY_FAB_RAILS_MAX: it is not there. */
static int place(const fab_peer *p, const char *addr)
{
    const size_t n = strlen(addr);
    int i = 0;
    for (const char *a = p->addrs; a != NULL && *a != 0; i++) {
        a += strspn(a, ", ");
        const size_t k = strcspn(a, ", ");
        if (k == n && strncmp(a, addr, n) == 0)
            return i;
        a += k;
    }
    return HY_FAB_RAILS_MAX;
}

bool hy_fab__may_dial(hy_fab *f, const fab_peer *p, const char *addr, bool beside)
{
    const int i = place(p, addr);
    return i >= HY_FAB_RAILS_MAX || hy_fab__now(f) >= p->again[beside][i].at;
}

/* A link that was up and is lost soon, or before anything came through, may be so each time: the
 * wait till it is dialled again doubles. */
static void count_loss(const fab_link *l, fab_peer *p)
{
    const uint64_t now = hy_fab__now(l->f);
    const int i = place(p, l->addr);
    if (!l->out || l->up_at == 0 || i >= HY_FAB_RAILS_MAX)
        return;
    const bool bad = now < l->up_at + STEADY_NS || (l->carried == 0 && l->lost_some);
    uint32_t *n = &p->again[l->beside][i].fails;
    *n = bad ? *n + 1 : 0;
    if (*n <= FREE_FAILS)
        return;
    const uint32_t doubled = *n - FREE_FAILS < MOST_DOUBLED ? *n - FREE_FAILS : MOST_DOUBLED;
    p->again[l->beside][i].at = hy_clock_after(now, REDIAL_NS << doubled);
}

void hy_fab__peer_leave(fab_link *l, hy_status st, const char *why)
{
    hy_fab *f = l->f;
    fab_peer *p = l->peer;
    count_loss(l, p);
    l->peer = NULL;
    if (--p->n_links == 0 || !p->used) {
        hy_fab__peer_down(p, f, st, why);
        return;
    }
    bool any_up = false;
    fab_link *best = NULL;
    for (fab_link *o = f->links; o != NULL; o = o->next)
        if (o->peer == p && o->state == LINK_UP && !o->broken) {
            any_up = true;
            if (best == NULL || best->beside)
                best = o;
        }
    if (p->up && !any_up) { /* others are only on their way: they belong to the next state */
        hy_fab__peer_down(p, f, st, why);
        return;
    }
    if (p->primary == l) {
        p->primary = best;
        hy_fab__msg_repoint(f, p);
    }
    for (fab_op *op = p->ops, *next; op != NULL; op = next) {
        next = op->next;
        hy_fab__op_check(f, op);
    }
}

/* Dial again the rails that a dialled peer has lost. */
static void redial(hy_fab *f, fab_peer *p)
{
    char *list = hy_strdup(p->addrs), *save = NULL;
    int rail = 0;
    for (char *a = list != NULL ? strtok_r(list, ", ", &save) : NULL; a != NULL;
         a = strtok_r(NULL, ", ", &save), rail++) {
        const fab_link *there = NULL;
        for (fab_link *l = f->links; l != NULL; l = l->next)
            if (l->out && !l->beside && l->state != LINK_DEAD && strcmp(l->addr, a) == 0)
                there = l;
        if (there == NULL && hy_fab__may_dial(f, p, a, false))
            hy_fab__dial(f, rail % f->n_rails, a, p->node, 0);
        else if (there != NULL && there->state == LINK_UP)
            hy_fab__dial_beside(there);
    }
    hy_free(list);
}

void hy_fab__peers_timers(hy_fab *f, uint64_t now)
{
    for (uint32_t i = 0; i < f->n_slots; i++) {
        fab_peer *p = &f->peers[i];
        if (!p->used)
            continue;
        hy_fab__ops_timers(f, p, now);
        if (!p->up || p->addrs == NULL)
            continue;
        if (now >= p->redial_at) {
            redial(f, p);
            p->redial_at = hy_clock_after(now, REDIAL_NS);
        }
        hy_fab__timer(f, p->redial_at);
    }
    for (fab_op *op = f->connects, *next; op != NULL; op = next) {
        next = op->next;
        if (now >= op->deadline)
            end_connect(f, op, NULL, HY_E_TIMEOUT, "no connection within the timeout");
        else
            hy_fab__timer(f, op->deadline);
    }
}

static int count_addrs(const char *s)
{
    int n = 1;
    for (; *s != 0; s++)
        n += *s == ',';
    return n;
}

static void dial_all(hy_fab *f, fab_op *op, char *list, const char *node)
{
    char *save = NULL;
    char why[96] = "no address";
    int rail = 0;
    uint64_t id = op->id;
    op->n_links = 1; /* ours, until all are dialled */
    for (char *a = strtok_r(list, ", ", &save); a != NULL && rail < HY_FAB_RAILS_MAX;
         a = strtok_r(NULL, ", ", &save), rail++) {
        op->n_links++;
        if (hy_fab__dial(f, rail % f->n_rails, a, node, id) < 0) {
            snprintf(why, sizeof(why), "%s", hy_fail_text());
            op->n_links--;
        }
    }
    hy_fab__connect_failed(f, id, HY_E_PEER, why);
}

static hy_status connect_to(hy_fab *f, const char *addrs, const char *node, uint64_t user,
                            uint64_t *op_out)
{
    hy_fab__lock(f);
    hy_status st = HY_OK;
    fab_op *op = hy_fab__op_new(f, FAB_CONNECT, NULL);
    char *list = hy_strdup(addrs);
    fab_peer *p = node != NULL ? find_node(f, node) : NULL;
    if (op == NULL || list == NULL || (op->addrs = hy_strdup(addrs)) == NULL) {
        st = op == NULL ? HY_AGAIN : hy_fail(HY_E_NOMEM, "no memory to connect");
        if (op != NULL)
            hy_fab__op_free(f, op);
    } else {
        op->user = user;
        if (op_out != NULL)
            *op_out = op->id;
        op->deadline = hy_clock_after(hy_fab__now(f), f->o.connect_timeout_ns);
        hy_fab__timer(f, op->deadline);
        if (p != NULL && p->up)
            end_connect(f, op, p, HY_OK, p->node);
        else
            dial_all(f, op, list, node);
    }
    hy_free(list);
    hy_fab__unlock(f);
    hy_fab__kick(f);
    return st;
}

hy_status hy_fab_connect(hy_fab *f, const char *addrs, const char *node, uint64_t user,
                         uint64_t *op_out)
{
    if (node != NULL && (node[0] == 0 || strlen(node) >= HY_FAB_NODE_MAX))
        return hy_fail(HY_E_INVAL, "node id \"%s\": 1 to %d bytes", node, HY_FAB_NODE_MAX - 1);
    if (addrs == NULL || addrs[0] == 0 || count_addrs(addrs) > HY_FAB_RAILS_MAX)
        return hy_fail(HY_E_INVAL, "peer address \"%s\": 1 to %d times host:port",
                       addrs != NULL ? addrs : "", HY_FAB_RAILS_MAX);
    hy_buf numbers;
    hy_buf_init(&numbers);
    hy_status st = HY_OK;
    if (f->o.loop != NULL)
        hy_buf_puts(&numbers, addrs);
    else
        st = hy_fab__resolve(addrs, &numbers);
    if (st == HY_OK)
        st = connect_to(f, hy_buf_str(&numbers), node, user, op_out);
    hy_buf_fini(&numbers);
    return st;
}

void hy_fab_disconnect(hy_fab *f, hy_fab_peer peer)
{
    hy_fab__lock(f);
    fab_peer *p = hy_fab__peer(f, peer);
    if (p != NULL) {
        for (fab_link *l = f->links; l != NULL; l = l->next)
            if (l->peer == p && l->state == LINK_UP)
                hy_fab__frame(l, FAB_BYE, NULL, 0, NULL, 0);
        hy_fab__peer_down(p, f, HY_E_ABORTED, "disconnected from here");
    }
    hy_fab__unlock(f);
    hy_fab__kick(f);
}

bool hy_fab_peer_is_up(hy_fab *f, hy_fab_peer peer)
{
    hy_fab__lock(f);
    fab_peer *p = hy_fab__peer(f, peer);
    bool up = p != NULL && p->up;
    hy_fab__unlock(f);
    return up;
}

bool hy_fab_peer_near(hy_fab *f, hy_fab_peer peer, uint32_t *pid_out)
{
    hy_fab__lock(f);
    fab_peer *p = hy_fab__peer(f, peer);
    uint32_t pid = 0;
    for (fab_link *l = f->links; p != NULL && l != NULL; l = l->next)
        if (l->peer == p && l->state == LINK_UP && l->same.rx)
            pid = l->same.pid;
    if (p != NULL && f->o.loop != NULL && f->o.same_node)
        pid = (uint32_t)getpid();
    hy_fab__unlock(f);
    *pid_out = pid;
    return pid != 0;
}

hy_status hy_fab_peer_path(hy_fab *f, hy_fab_peer peer, hy_buf *out)
{
    hy_fab__lock(f);
    fab_peer *p = hy_fab__peer(f, peer);
    const char *sep = "";
    for (fab_link *l = f->links; p != NULL && l != NULL; l = l->next) {
        if (l->peer != p || l->state != LINK_UP)
            continue;
        hy_buf_printf(out, "%s%s on rail %d to %d", sep, hy_fab__path(l), l->rail, l->rrail);
        sep = ", ";
    }
    hy_fab__unlock(f);
    return p != NULL ? HY_OK : hy_fail(HY_E_PEER, "no such peer any more");
}
