/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop's control connections: in order, nothing lost, as TCP; late when the model drops.
 *
 * Thread: under the fabric's lock, taking the net's inside.  Owner: ends are counted.
 */
#include "fabric/loop/loop_int.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

hy_status hy_fab__loop_create(hy_fab *f, void **out)
{
    hy_loop_net *n = f->o.loop;
    loop_node *x = hy_calloc(1, sizeof(*x));
    if (x == NULL)
        return hy_fail(HY_E_NOMEM, "loop: no memory for a node");
    x->net = n;
    x->f = f;
    snprintf(x->name, sizeof(x->name), "%s", f->node);
    pthread_condattr_t ca;
    pthread_condattr_init(&ca);
    pthread_condattr_setclock(&ca, CLOCK_MONOTONIC);
    pthread_cond_init(&x->cond, &ca);
    pthread_condattr_destroy(&ca);
    pthread_mutex_lock(&n->lock);
    x->next = n->nodes;
    n->nodes = x;
    pthread_mutex_unlock(&n->lock);
    *out = x;
    return HY_OK;
}

static loop_node *listener(hy_loop_net *n, const char *addr, int *rail)
{
    for (loop_node *x = n->nodes; x != NULL; x = x->next)
        for (int i = 0; i < HY_FAB_RAILS_MAX && !x->gone && !x->dead; i++)
            if (strcmp(x->addr[i], addr) == 0) {
                *rail = i;
                return x;
            }
    return NULL;
}

static hy_status ct_listen(void *ct, int rail, const char *addr, char *bound, size_t cap)
{
    loop_node *x = ct;
    int r;
    hy_status st = HY_OK;
    pthread_mutex_lock(&x->net->lock);
    if (addr == NULL || addr[0] == 0)
        st = hy_fail(HY_E_INVAL, "loop: an address is needed for rail %d", rail);
    else if (listener(x->net, addr, &r) != NULL)
        st = hy_fail(HY_E_SYS, "loop: address %s is in use", addr);
    else
        snprintf(x->addr[rail], sizeof(x->addr[rail]), "%s", addr);
    pthread_mutex_unlock(&x->net->lock);
    snprintf(bound, cap, "%s", addr);
    return st;
}

static loop_conn *new_end(loop_node *x, int rail, const char *addr)
{
    loop_conn *c = hy_calloc(1, sizeof(*c));
    HY_ASSERT(c != NULL);
    c->base.rail = rail;
    c->node = x;
    c->open = true;
    c->refs = 1;
    snprintf(c->addr, sizeof(c->addr), "%s", addr);
    if (x->n_conns == x->cap_conns) {
        x->cap_conns = x->cap_conns == 0 ? 8 : 2 * x->cap_conns;
        x->conns = hy_realloc(x->conns, x->cap_conns * sizeof(loop_conn *));
        HY_ASSERT(x->conns != NULL);
    }
    x->conns[x->n_conns++] = c;
    return c;
}

/* To the other end of c, in order. */
static void send_pkt(loop_conn *c, loop_pkt *p)
{
    hy_loop_net *n = c->node->net;
    p->at = loop__arrival(n, p->len, &c->busy_until, false);
    if (p->at < c->last_at)
        p->at = c->last_at;
    c->last_at = p->at;
    p->to = c->other->node;
    p->conn = c->other;
    p->conn->refs++;
    n->stats.frames++;
    loop__post(n, p, c->node->name, c->addr);
}

static hy_status ct_connect(void *ct, int rail, const char *addr, fab_link *link, fab_conn **out)
{
    loop_node *x = ct;
    hy_loop_net *n = x->net;
    int there;
    pthread_mutex_lock(&n->lock);
    loop_node *to = x->dead ? NULL : listener(n, addr, &there);
    loop_conn *c = NULL;
    if (to != NULL) {
        c = new_end(x, rail, addr);
        c->base.link = link;
        c->other = new_end(to, there, addr);
        c->other->other = c;
        loop_pkt *p = loop__pkt(LOOP_CONNECT, 0);
        send_pkt(c, p);
    }
    pthread_mutex_unlock(&n->lock);
    if (c == NULL)
        return hy_fail(HY_E_PEER, "loop: nobody listens at %s", addr);
    *out = &c->base;
    return HY_OK;
}

static hy_status ct_send(void *ct, fab_conn *conn, const void *a, size_t na, const void *b,
                         size_t nb)
{
    loop_node *x = ct;
    loop_conn *c = (loop_conn *)conn;
    hy_loop_net *n = x->net;
    pthread_mutex_lock(&n->lock);
    if (!x->dead && c->open && c->other != NULL) {
        /* TCP doubles nothing; a sequenced message may come twice, after a link was lost */
        bool msg = na == FAB_HEAD && ((const uint8_t *)a)[5] == FAB_MSG;
        int copies = msg && loop__chance(n, n->m.duplicate) ? 2 : 1;
        for (int i = 0; i < copies; i++) {
            loop_pkt *p = loop__pkt(LOOP_BYTES, na + nb);
            memcpy(p->data, a, na);
            if (nb > 0)
                memcpy(p->data + na, b, nb);
            if (loop__chance(n, n->m.corrupt)) {
                n->stats.corrupted++;
                p->data[hy_rng_below(&n->rng, p->len)] ^= (uint8_t)(1u << hy_rng_below(&n->rng, 8));
            }
            n->stats.duplicated += i > 0;
            send_pkt(c, p);
        }
    }
    pthread_mutex_unlock(&n->lock);
    return HY_OK;
}

static size_t ct_backlog(void *ct, fab_conn *conn)
{
    (void)ct;
    (void)conn;
    return 0;
}

/* Under the net's lock. */
static void shut_end(loop_conn *c, bool tell)
{
    loop_node *x = c->node;
    if (!c->open)
        return;
    c->open = false;
    for (size_t i = 0; i < x->n_conns; i++)
        if (x->conns[i] == c) {
            x->conns[i] = x->conns[--x->n_conns];
            break;
        }
    if (c->other != NULL) {
        if (tell && !x->dead)
            send_pkt(c, loop__pkt(LOOP_FIN, 0));
        c->other->other = NULL;
        c->other = NULL;
    }
    if (--c->refs == 0)
        hy_free(c);
}

static void ct_close(void *ct, fab_conn *conn)
{
    loop_node *x = ct;
    pthread_mutex_lock(&x->net->lock);
    shut_end((loop_conn *)conn, true);
    pthread_mutex_unlock(&x->net->lock);
}

static loop_pkt *pop_due(loop_node *x, uint64_t now)
{
    loop_pkt *p = NULL;
    pthread_mutex_lock(&x->net->lock);
    if (x->n > 0 && x->heap[0]->at <= now && !x->dead && now >= x->stalled_until) {
        p = x->heap[0];
        loop_pkt *last = x->heap[--x->n];
        size_t i = 0, k;
        while ((k = 2 * i + 1) < x->n) {
            if (k + 1 < x->n &&
                (x->heap[k + 1]->at != x->heap[k]->at ? x->heap[k + 1]->at < x->heap[k]->at
                                                      : x->heap[k + 1]->seq < x->heap[k]->seq))
                k++;
            if (last->at != x->heap[k]->at ? last->at < x->heap[k]->at
                                           : last->seq < x->heap[k]->seq)
                break;
            x->heap[i] = x->heap[k];
            i = k;
        }
        if (x->n > 0)
            x->heap[i] = last;
    }
    pthread_mutex_unlock(&x->net->lock);
    return p;
}

static void accept_end(loop_node *x, loop_conn *c)
{
    if (!c->open)
        return;
    hy_fab__accepted(x->f, c->base.rail, &c->base);
    pthread_mutex_lock(&x->net->lock);
    if (c->open && c->other != NULL && c->base.link != NULL)
        send_pkt(c, loop__pkt(LOOP_ACCEPTED, 0));
    pthread_mutex_unlock(&x->net->lock);
}

static void handle(loop_node *x, loop_pkt *p)
{
    loop_conn *c = p->conn;
    if (p->kind >= LOOP_WRITE) {
        loop__data_in(x, p);
    } else if (p->kind == LOOP_CONNECT) {
        accept_end(x, c);
    } else if (c->base.link == NULL || !c->open) {
        /* closed here: nobody listens */
    } else if (p->kind == LOOP_ACCEPTED) {
        hy_fab__opened(c->base.link);
    } else if (p->kind == LOOP_BYTES) {
        hy_fab__bytes(c->base.link, p->data, p->len);
    } else {
        fab_link *l = c->base.link;
        c->base.link = NULL;
        hy_fab__closed(l, "connection closed by the peer");
        pthread_mutex_lock(&x->net->lock);
        shut_end(c, false);
        pthread_mutex_unlock(&x->net->lock);
    }
}

static bool ct_poll(void *ct, uint64_t now)
{
    loop_node *x = ct;
    bool moved = false;
    loop_pkt *p;
    for (int i = 0; i < 256 && (p = pop_due(x, now)) != NULL; i++) {
        handle(x, p);
        pthread_mutex_lock(&x->net->lock);
        loop__pkt_free(p);
        pthread_mutex_unlock(&x->net->lock);
        moved = true;
    }
    return moved;
}

static uint64_t ct_next(void *ct)
{
    loop_node *x = ct;
    pthread_mutex_lock(&x->net->lock);
    uint64_t at = x->n > 0 && !x->dead ? x->heap[0]->at : HY_NEVER;
    if (at < x->stalled_until)
        at = x->stalled_until;
    pthread_mutex_unlock(&x->net->lock);
    return at;
}

static bool ct_frozen(void *ct, uint64_t now, uint64_t *until)
{
    loop_node *x = ct;
    pthread_mutex_lock(&x->net->lock);
    *until = x->dead ? HY_NEVER : x->stalled_until;
    pthread_mutex_unlock(&x->net->lock);
    return now < *until;
}

static void ct_wait(void *ct, uint64_t until, bool quiet)
{
    loop_node *x = ct;
    pthread_mutex_lock(&x->net->lock);
    while (!x->woken) {
        uint64_t at = until;
        if (!quiet && x->n > 0 && !x->dead && x->heap[0]->at < at)
            at = x->heap[0]->at > x->stalled_until ? x->heap[0]->at : x->stalled_until;
        struct timespec ts = {(time_t)(at / HY_SEC), (long)(at % HY_SEC)};
        if (at <= hy_clock_now_ns(x->net->clock))
            break;
        if (at == HY_NEVER)
            pthread_cond_wait(&x->cond, &x->net->lock);
        else
            pthread_cond_timedwait(&x->cond, &x->net->lock, &ts);
    }
    x->woken = false;
    pthread_mutex_unlock(&x->net->lock);
}

static void ct_wake(void *ct)
{
    loop_node *x = ct;
    pthread_mutex_lock(&x->net->lock);
    x->woken = true;
    pthread_cond_broadcast(&x->cond);
    pthread_mutex_unlock(&x->net->lock);
}

static int ct_take_fd(void *ct, fab_conn *c)
{
    (void)ct;
    (void)c;
    return -1;
}

static void ct_destroy(void *ct, hy_stage *stage)
{
    loop_node *x = ct;
    hy_loop_net *n = x->net;
    pthread_mutex_lock(&n->lock);
    while (x->n_conns > 0) /* a silent death closes nothing over there */
        shut_end(x->conns[0], !x->dead);
    x->gone = true;
    if (stage != NULL) {
        n->stages = hy_realloc(n->stages, (n->n_stages + 1) * sizeof(hy_stage *));
        HY_ASSERT(n->stages != NULL);
        n->stages[n->n_stages++] = stage;
    }
    pthread_mutex_unlock(&n->lock);
}

const fab_ct_ops hy_fab__loop_ct = {
    .listen = ct_listen,
    .connect = ct_connect,
    .send = ct_send,
    .backlog = ct_backlog,
    .close = ct_close,
    .poll = ct_poll,
    .next = ct_next,
    .frozen = ct_frozen,
    .wait = ct_wait,
    .wake = ct_wake,
    .take_fd = ct_take_fd,
    .destroy = ct_destroy,
};
