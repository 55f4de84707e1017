/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop's data path: one-sided writes and reads that land when the target polls. A path is
 * known by a number; what arrives for a path that is closed lands nowhere, which is its fence.
 *
 * Thread: under the fabric's lock, taking the net's inside.  Owner: the link.
 */
#include "fabric/loop/loop_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static hy_status rail_open(hy_fab *f, int rail, const char *host, const char *provider, void **out)
{
    (void)host;
    (void)provider;
    (void)rail;
    *out = f->ctx;
    return HY_OK;
}

static void rail_close(void *rail)
{
    (void)rail;
}

typedef struct loop_map { /* a device's memory, as its descriptor shows it */
    loop_node *node;
    char *all, *at;
    size_t len;
    uint64_t bytes;
} loop_map;

static hy_status map_device(loop_node *x, const hy_span *s, void **out)
{
    if (s->exp.kind != HY_EXPORT_FD || x->net->m.device_bytes < x->device_bytes + s->len)
        return hy_fail(HY_E_UNSUPPORTED, "loop: takes no device memory here");
    const size_t len = (size_t)(s->exp.offset + s->len);
    char *all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, s->exp.fd, 0);
    if (all == MAP_FAILED)
        return hy_fail(HY_E_UNSUPPORTED, "loop: a dmabuf that the host cannot map: %s",
                       strerror(errno));
    loop_map *m = hy_calloc(1, sizeof(*m));
    if (m == NULL) {
        munmap(all, len);
        return hy_fail(HY_E_NOMEM, "no memory to register memory");
    }
    *m = (loop_map){x, all, all + s->exp.offset, len, s->len};
    x->device_bytes += s->len;
    *out = m;
    return HY_OK;
}

static hy_status reg(void *rail, const hy_span *s, unsigned access, uint64_t token, void **mr_out,
                     uint64_t *addr_out, uint64_t *rkey_out)
{
    (void)access;
    if (s->mem == HY_MEM_DEVICE)
        HY_TRY(map_device(rail, s, mr_out));
    *addr_out = 0;
    *rkey_out = token;
    return HY_OK;
}

static void dereg(void *mr)
{
    loop_map *m = mr;
    m->node->device_bytes -= m->bytes;
    munmap(m->all, m->len);
    hy_free(m);
}

/* Where the bytes of a registered memory are for this process. Each rail maps them; any will do. */
static char *base_of(const hy_fab_mr *mr)
{
    const loop_map *m = mr->rail[0].dmr;
    return m != NULL ? m->at : mr->span.addr;
}

static hy_status link_open(void *rail, fab_link *l, void **out, void *blob, size_t *blob_len)
{
    loop_node *x = rail;
    loop_dpl *d = hy_calloc(1, sizeof(*d));
    if (d == NULL)
        return hy_fail(HY_E_NOMEM, "loop: no memory for a data path");
    d->node = x;
    d->link = l;
    snprintf(d->peer_node, sizeof(d->peer_node), "%s", l->theirs.node);
    snprintf(d->addr, sizeof(d->addr), "%s", ((loop_conn *)l->conn)->addr);
    pthread_mutex_lock(&x->net->lock);
    d->id = ++x->net->next_dpl;
    pthread_mutex_unlock(&x->net->lock);
    d->next = x->dpls;
    x->dpls = d;
    fab_put64(blob, d->id);
    *blob_len = 8;
    *out = d;
    return HY_OK;
}

static hy_status link_connect(void *dpl, const void *blob, size_t n)
{
    loop_dpl *d = dpl;
    if (n != 8)
        return hy_fail(HY_E_FORMAT, "loop: data path address of %zu bytes", n);
    d->peer_id = fab_get64(blob);
    return HY_OK;
}

static void link_close(void *dpl)
{
    loop_dpl *d = dpl;
    loop_dpl **at = &d->node->dpls;
    while (*at != d)
        at = &(*at)->next;
    *at = d->next;
    hy_free(d);
}

static loop_dpl *find_dpl(loop_node *x, uint64_t id)
{
    loop_dpl *d = x->dpls;
    while (d != NULL && d->id != id)
        d = d->next;
    return d;
}

static void send_data(loop_dpl *d, loop_pkt *p, size_t cost)
{
    hy_loop_net *n = d->node->net;
    pthread_mutex_lock(&n->lock);
    p->dst = d->peer_id;
    p->src = d->id;
    p->to = loop__find_node(n, d->peer_node);
    p->at = loop__arrival(n, cost, &d->busy_until, p->kind != LOOP_ACK);
    n->stats.pieces += p->kind == LOOP_WRITE || p->kind == LOOP_READ;
    if (p->kind != LOOP_ACK && p->len > 0 && loop__chance(n, n->m.corrupt_data)) {
        n->stats.corrupted++;
        p->data[hy_rng_below(&n->rng, p->len)] ^= (uint8_t)(1u << hy_rng_below(&n->rng, 8));
    }
    if (p->to == NULL || p->at == HY_NEVER || d->node->dead)
        loop__pkt_free(p);
    else
        loop__post(n, p, d->node->name, d->addr);
    pthread_mutex_unlock(&n->lock);
}

static hy_status post(void *dpl, fab_piece *x)
{
    loop_dpl *d = dpl;
    loop_pkt *p = loop__pkt(x->read ? LOOP_READ : LOOP_WRITE, x->read ? 0 : x->len);
    size_t at = 0;
    p->piece = x->id;
    p->n_segs = x->n_segs;
    for (int i = 0; i < x->n_segs; i++) {
        const fab_seg *s = &x->seg[i];
        p->seg[i].id = s->key->id;
        p->seg[i].token = s->key->token;
        p->seg[i].off = s->roff;
        p->seg[i].len = s->len;
        if (!x->read)
            memcpy(p->data + at, base_of(s->mr) + s->off, s->len);
        at += s->len;
    }
    send_data(d, p, x->read ? 64 : x->len);
    return HY_OK;
}

static bool progress(void *dpl, uint64_t now)
{
    (void)dpl;
    (void)now;
    return false; /* everything comes through the node's inbox */
}

/* The memory that a stretch names, NULL when it names none. */
static char *target(loop_node *x, const loop_pkt *p, int i)
{
    hy_fab_mr *mr = hy_fab__mr_find(x->f, p->seg[i].id);
    if (mr == NULL || mr->token != p->seg[i].token ||
        !hy_span_has(&mr->span, p->seg[i].off, p->seg[i].len) ||
        (p->kind == LOOP_WRITE && (mr->access & FAB_LAND) == 0))
        return NULL;
    return base_of(mr) + p->seg[i].off;
}

static void serve(loop_node *x, loop_dpl *d, const loop_pkt *p)
{
    size_t total = 0, at = 0;
    bool ok = true;
    for (int i = 0; i < p->n_segs; i++) {
        ok &= target(x, p, i) != NULL;
        total += p->seg[i].len;
    }
    bool read = p->kind == LOOP_READ && ok;
    loop_pkt *r = loop__pkt(read ? LOOP_READ_DATA : LOOP_ACK, read ? total : 0);
    r->piece = p->piece;
    r->status = ok ? HY_OK : HY_E_DENIED;
    for (int i = 0; i < p->n_segs && ok; i++) {
        if (read)
            memcpy(r->data + at, target(x, p, i), p->seg[i].len);
        else
            memcpy(target(x, p, i), p->data + at, p->seg[i].len);
        at += p->seg[i].len;
    }
    bool twice = loop__chance(x->net, x->net->m.duplicate);
    send_data(d, r, r->len);
    if (twice && !read) { /* reported twice: the second report is late */
        loop_pkt *again = loop__pkt(LOOP_ACK, 0);
        again->piece = p->piece;
        x->net->stats.duplicated++;
        send_data(d, again, 0);
    }
}

static void complete(loop_dpl *d, const loop_pkt *p)
{
    fab_piece *x = d->link->pieces;
    size_t at = 0;
    while (x != NULL && x->id != p->piece)
        x = x->next;
    if (x == NULL || (p->kind == LOOP_READ_DATA && p->len != x->len)) {
        d->link->f->stats.late++;
        return;
    }
    for (int i = 0; i < x->n_segs && p->kind == LOOP_READ_DATA; i++) {
        memcpy(base_of(x->seg[i].mr) + x->seg[i].off, p->data + at, x->seg[i].len);
        at += x->seg[i].len;
    }
    if (p->status < 0)
        hy_fail(p->status, "loop: the peer refused the key");
    hy_fab__piece_done(x, p->status);
}

void loop__data_in(loop_node *x, loop_pkt *p)
{
    loop_dpl *d = find_dpl(x, p->dst);
    if (d == NULL || d->peer_id != p->src || d->link->broken) {
        x->net->stats.landed_dead++;
        return;
    }
    d->link->last_rx = hy_fab__now(x->f);
    if (p->kind == LOOP_WRITE || p->kind == LOOP_READ)
        serve(x, d, p);
    else
        complete(d, p);
}

const fab_dp_ops hy_fab__loop_dp = {
    .name = "loop",
    .max_segs = 4,
    .pull_by_write = true,
    .rail_open = rail_open,
    .rail_close = rail_close,
    .reg = reg,
    .dereg = dereg,
    .link_open = link_open,
    .link_connect = link_connect,
    .link_close = link_close,
    .post = post,
    .progress = progress,
};
