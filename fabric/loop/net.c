/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop's network: who is there, what travels, what goes wrong.
 *
 * Thread: any; under the net's lock.  Owner: the net.
 */
#include "fabric/loop/loop_int.h"

#include <stdio.h>
#include <string.h>

hy_loop_net *hy_loop_net_create(hy_clock *clock, uint64_t seed)
{
    hy_loop_net *n = hy_calloc(1, sizeof(*n));
    if (n == NULL)
        return NULL;
    pthread_mutex_init(&n->lock, NULL);
    n->clock = clock;
    hy_rng_init(&n->rng, seed);
    n->m = (hy_loop_model){.latency_ns = 10 * HY_US, .rto_ns = 200 * HY_MS};
    return n;
}

void loop__pkt_free(loop_pkt *p)
{
    if (p->conn != NULL && --p->conn->refs == 0)
        hy_free(p->conn);
    hy_free(p);
}

void hy_loop_net_destroy(hy_loop_net *n)
{
    if (n == NULL)
        return;
    while (n->held != NULL) {
        loop_pkt *p = n->held;
        n->held = p->next;
        loop__pkt_free(p);
    }
    while (n->nodes != NULL) {
        loop_node *x = n->nodes;
        n->nodes = x->next;
        HY_ASSERT(x->gone && "close every endpoint before the loop's net");
        for (size_t i = 0; i < x->n; i++)
            loop__pkt_free(x->heap[i]);
        hy_free(x->heap);
        hy_free(x->conns);
        pthread_cond_destroy(&x->cond);
        hy_free(x);
    }
    for (size_t i = 0; i < n->n_stages; i++)
        hy_stage_destroy(n->stages[i]);
    hy_free(n->stages);
    pthread_mutex_destroy(&n->lock);
    hy_free(n);
}

void hy_loop_set(hy_loop_net *n, const hy_loop_model *m)
{
    pthread_mutex_lock(&n->lock);
    n->m = *m;
    pthread_mutex_unlock(&n->lock);
}

loop_node *loop__find_node(hy_loop_net *n, const char *name)
{
    loop_node *x = n->nodes;
    while (x != NULL && (x->gone || x->dead || strcmp(x->name, name) != 0))
        x = x->next;
    return x;
}

loop_pkt *loop__pkt(loop_kind kind, size_t len)
{
    loop_pkt *p = hy_malloc(sizeof(*p) + len);
    HY_ASSERT(p != NULL && "the loop is for tests: out of memory ends them");
    memset(p, 0, sizeof(*p));
    p->kind = kind;
    p->len = len;
    return p;
}

bool loop__chance(hy_loop_net *n, double p)
{
    return p > 0 && hy_rng_f64(&n->rng) < p;
}

uint64_t loop__arrival(hy_loop_net *n, size_t len, uint64_t *busy, bool data)
{
    uint64_t now = hy_clock_now_ns(n->clock), at = *busy > now ? *busy : now;
    if (n->m.bytes_per_s != 0)
        at += (uint64_t)((double)len * 1e9 / (double)n->m.bytes_per_s);
    *busy = at;
    at += n->m.latency_ns;
    if (n->m.jitter_ns != 0)
        at += hy_rng_below(&n->rng, n->m.jitter_ns);
    if (loop__chance(n, n->m.drop)) {
        n->stats.dropped++;
        if (data)
            return HY_NEVER;
        at += n->m.rto_ns;
    }
    if (data && loop__chance(n, n->m.reorder)) {
        n->stats.reordered++;
        at += hy_rng_below(&n->rng, n->m.rto_ns + 1);
    }
    return at;
}

static bool earlier(const loop_pkt *a, const loop_pkt *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void push(loop_node *x, loop_pkt *p)
{
    if (x->n == x->cap) {
        x->cap = x->cap == 0 ? 64 : 2 * x->cap;
        x->heap = hy_realloc(x->heap, x->cap * sizeof(*x->heap));
        HY_ASSERT(x->heap != NULL);
    }
    size_t i = x->n++;
    while (i > 0 && earlier(p, x->heap[(i - 1) / 2])) {
        x->heap[i] = x->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    x->heap[i] = p;
    pthread_cond_broadcast(&x->cond);
    if (x->f->stage != NULL)
        hy_mbox_wake(hy_stage_mbox(x->f->stage));
}

static bool pair(const char *a, const char *b, const char *x, const char *y)
{
    return (strcmp(a, x) == 0 || a[0] == 0) && (strcmp(b, y) == 0 || b[0] == 0);
}

static bool shut(const hy_loop_net *n, const char *from, const char *to, const char *addr)
{
    for (int i = 0; i < n->n_part; i++)
        if (pair(n->part[i].a, n->part[i].b, from, to) ||
            pair(n->part[i].b, n->part[i].a, from, to))
            return true;
    for (int i = 0; i < n->n_cut; i++)
        if (strcmp(n->cut[i], addr) == 0)
            return true;
    return false;
}

void loop__post(hy_loop_net *n, loop_pkt *p, const char *from, const char *addr)
{
    p->seq = ++n->seq;
    snprintf(p->from_node, sizeof(p->from_node), "%s", from);
    snprintf(p->addr, sizeof(p->addr), "%s", addr);
    if (p->to->gone || p->to->dead) {
        loop__pkt_free(p);
        return;
    }
    if (shut(n, from, p->to->name, addr)) {
        n->stats.held++;
        loop_pkt **at = &n->held;
        while (*at != NULL)
            at = &(*at)->next;
        *at = p;
        return;
    }
    push(p->to, p);
}

static void release_held(hy_loop_net *n)
{
    loop_pkt *p = n->held;
    uint64_t now = hy_clock_now_ns(n->clock);
    n->held = NULL;
    while (p != NULL) {
        loop_pkt *next = p->next;
        p->next = NULL;
        if (p->at < now)
            p->at = now;
        char from[HY_FAB_NODE_MAX], addr[80];
        snprintf(from, sizeof(from), "%s", p->from_node);
        snprintf(addr, sizeof(addr), "%s", p->addr);
        loop__post(n, p, from, addr);
        p = next;
    }
}

void hy_loop_partition(hy_loop_net *n, const char *a, const char *b)
{
    pthread_mutex_lock(&n->lock);
    HY_ASSERT(n->n_part < (int)HY_COUNTOF(n->part));
    snprintf(n->part[n->n_part].a, HY_FAB_NODE_MAX, "%s", a);
    snprintf(n->part[n->n_part++].b, HY_FAB_NODE_MAX, "%s", b != NULL ? b : "");
    pthread_mutex_unlock(&n->lock);
}

void hy_loop_heal(hy_loop_net *n)
{
    pthread_mutex_lock(&n->lock);
    n->n_part = 0;
    release_held(n);
    pthread_mutex_unlock(&n->lock);
}

void hy_loop_cut(hy_loop_net *n, const char *addr, bool cut)
{
    pthread_mutex_lock(&n->lock);
    if (cut) {
        HY_ASSERT(n->n_cut < (int)HY_COUNTOF(n->cut));
        snprintf(n->cut[n->n_cut++], sizeof(n->cut[0]), "%s", addr);
    } else {
        for (int i = 0; i < n->n_cut; i++)
            if (strcmp(n->cut[i], addr) == 0)
                memmove(n->cut[i--], n->cut[--n->n_cut], sizeof(n->cut[0]));
        release_held(n);
    }
    pthread_mutex_unlock(&n->lock);
}

void hy_loop_stall(hy_loop_net *n, const char *node, uint64_t ns)
{
    pthread_mutex_lock(&n->lock);
    loop_node *x = loop__find_node(n, node);
    if (x != NULL)
        x->stalled_until = hy_clock_after(hy_clock_now_ns(n->clock), ns);
    pthread_mutex_unlock(&n->lock);
}

void hy_loop_kill(hy_loop_net *n, hy_fab *f, bool silent)
{
    pthread_mutex_lock(&n->lock);
    for (loop_node *x = n->nodes; x != NULL; x = x->next) {
        if (x->f != f || x->gone)
            continue;
        x->dead = true;
        x->silent = silent;
        for (size_t i = 0; i < x->n_conns; i++) {
            loop_conn *c = x->conns[i];
            if (silent || c->other == NULL || !c->other->open)
                continue;
            loop_pkt *p = loop__pkt(LOOP_FIN, 0);
            p->at = hy_clock_now_ns(n->clock) + n->m.latency_ns;
            p->to = c->other->node;
            p->conn = c->other;
            p->conn->refs++;
            loop__post(n, p, x->name, c->addr);
        }
    }
    pthread_mutex_unlock(&n->lock);
}

void hy_loop_stats_get(hy_loop_net *n, hy_loop_stats *out)
{
    pthread_mutex_lock(&n->lock);
    *out = n->stats;
    pthread_mutex_unlock(&n->lock);
}
