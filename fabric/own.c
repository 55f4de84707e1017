/* SPDX-License-Identifier: Apache-2.0
 *
 * Own framed TCP as a data path: what is left when no libfabric provider works, or the two ends of
 * a link have none in common. The one who dialled the link opens a second connection to the same
 * address for the bytes; payloads go from and into registered memory without a copy of ours.
 *
 *   frame: magic "HYFD" | kind u8 | n_segs u8 | 0 u16 | piece u64 | len u64 | status u32 | 0 u32,
 *          n_segs times (memory u64, token u64, offset u64, length u64), then len bytes
 *
 * Thread: under the fabric's lock.  Owner: the link.
 */
#include "fabric/lend.h"
#include "fabric/own.h"
#include "fabric/sock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEAD = 32, SEG = 32, HEAD_MAX = HEAD + SEG * FAB_SEGS, COOKIE = 16 };
enum { BUDGET = 1 << 20 /* a turn */, MOST_IOV = 64 };
enum { MOST_SERVED = 128 /* reads of the peer waiting to be answered */ };

typedef enum own_kind { OWN_WRITE = 1, OWN_READ, OWN_READ_DATA, OWN_ACK, OWN_HELLO } own_kind;

typedef struct own_seg {
    char *p;
    hy_fab_mr *mr;
    size_t len;
} own_seg;

typedef struct own_out { /* a frame on its way */
    struct own_out *next;
    uint8_t head[HEAD_MAX];
    size_t head_len, sent;
    int n_segs;
    own_seg seg[FAB_SEGS];
    bool lent; /* its bytes go without a copy: acknowledged, so that they stay till then */
    bool uses; /* counted in the memories: a read served */
    bool free_me;
} own_out;
_Static_assert(sizeof(void *) <= FAB_CTX, "a piece carries a pointer");

typedef struct own_dpl {
    hy_fab *f;
    fab_link *link;
    uint64_t id, peer_id;
    uint8_t cookie[COOKIE], peer_cookie[COOKIE];
    int fd;
    bool full; /* the socket took no more */
    own_out *head, *tail;
    fab_lend lend;
    int n_served;
    /* what comes in */
    uint8_t in[HEAD_MAX];
    size_t in_len, in_need;
    own_kind kind;
    uint64_t piece, left;
    int n_segs, cur;
    size_t cur_off;
    own_seg seg[FAB_SEGS];
    bool counted;
    struct own_dpl *next;
} own_dpl;

typedef struct own_rail {
    hy_fab *f;
} own_rail;

/* Data paths that await their connection, by id. One list per process would be shared state. */
static own_dpl *find(hy_fab *f, uint64_t id)
{
    for (fab_link *l = f->links; l != NULL; l = l->next)
        if (l->dp == &hy_fab__own_dp && l->dpl != NULL && ((own_dpl *)l->dpl)->id == id)
            return l->dpl;
    return NULL;
}

static hy_status rail_open(hy_fab *f, int rail, const char *host, const char *provider, void **out)
{
    (void)rail;
    (void)host;
    (void)provider;
    own_rail *r = hy_calloc(1, sizeof(*r));
    if (r == NULL)
        return hy_fail(HY_E_NOMEM, "own TCP: no memory");
    r->f = f;
    *out = r;
    return HY_OK;
}

static void rail_close(void *rail)
{
    hy_free(rail);
}

static hy_status reg(void *rail, const hy_span *s, unsigned access, uint64_t token, void **mr_out,
                     uint64_t *addr_out, uint64_t *rkey_out)
{
    (void)rail;
    (void)access;
    (void)mr_out;
    if (s->mem == HY_MEM_DEVICE)
        return hy_fail(HY_E_UNSUPPORTED, "own TCP: device memory goes through host memory");
    *addr_out = 0;
    *rkey_out = token;
    return HY_OK;
}

static void dereg(void *mr)
{
    (void)mr;
}

static hy_status link_open(void *rail, fab_link *l, void **out, void *blob, size_t *blob_len)
{
    own_rail *r = rail;
    own_dpl *d = hy_calloc(1, sizeof(*d));
    if (d == NULL)
        return hy_fail(HY_E_NOMEM, "own TCP: no memory for a data path");
    d->f = r->f;
    d->link = l;
    d->fd = -1;
    hy_fab__lend_init(&d->lend);
    l->awaits = true;
    d->in_need = HEAD;
    d->id = hy_rng_u64(&r->f->rng);
    for (int i = 0; i < COOKIE; i += 8)
        fab_put64(d->cookie + i, hy_rng_u64(&r->f->rng));
    fab_put64(blob, d->id);
    memcpy((uint8_t *)blob + 8, d->cookie, COOKIE);
    *blob_len = 8 + COOKIE;
    *out = d;
    return HY_OK;
}

static void queue(own_dpl *d, own_out *o)
{
    o->next = NULL;
    if (d->tail != NULL)
        d->tail->next = o;
    else
        d->head = o;
    d->tail = o;
}

static own_out *new_out(own_kind kind, uint64_t piece, uint64_t len, hy_status st)
{
    own_out *o = hy_calloc(1, sizeof(*o));
    if (o == NULL)
        return NULL;
    memcpy(o->head, "HYFD", 4);
    o->head[4] = (uint8_t)kind;
    fab_put64(o->head + 8, piece);
    fab_put64(o->head + 16, len);
    fab_put32(o->head + 24, (uint32_t)st);
    o->head_len = HEAD;
    o->free_me = true;
    return o;
}

static void drop_out(own_dpl *d, own_out *o)
{
    for (int i = 0; i < o->n_segs && o->uses; i++)
        o->seg[i].mr->users--;
    d->n_served -= o->uses;
    hy_free(o);
}

static hy_status link_connect(void *dpl, const void *blob, size_t n)
{
    own_dpl *d = dpl;
    if (n != 8 + COOKIE)
        return hy_fail(HY_E_FORMAT, "own TCP: data path address of %zu bytes", n);
    d->peer_id = fab_get64(blob);
    memcpy(d->peer_cookie, (const uint8_t *)blob + 8, COOKIE);
    if (!d->link->out)
        return HY_OK; /* the other side dials */
    HY_TRY(hy_fab__sock_dial(d->f, d->link->rail, d->link->addr, &d->fd));
    /* the first frame is of the control protocol: that is who listens there */
    own_out *o = new_out(OWN_HELLO, 0, 0, HY_OK);
    if (o == NULL)
        return hy_fail(HY_E_NOMEM, "own TCP: no memory");
    uint8_t body[8 + COOKIE];
    fab_put64(body, d->peer_id);
    memcpy(body + 8, d->peer_cookie, COOKIE);
    fab_head h = {.kind = FAB_DATA};
    hy_fab__head_put(o->head, &h, body, sizeof(body), NULL, 0);
    memcpy(o->head + FAB_HEAD, body, sizeof(body));
    o->head_len = FAB_HEAD + sizeof(body);
    queue(d, o);
    d->link->busy = true; /* until the other side says that it is attached */
    return HY_OK;
}

bool hy_fab__own_attach(fab_link *stranger, const uint8_t *p, size_t n)
{
    hy_fab *f = stranger->f;
    own_dpl *d = n == 8 + COOKIE ? find(f, fab_get64(p)) : NULL;
    if (d == NULL || d->fd >= 0 || d->link->out || !hy_fab__same(d->cookie, p + 8, COOKIE))
        return false;
    int fd = f->ct->take_fd(f->ctx, stranger->conn);
    stranger->conn = NULL;
    own_out *o = new_out(OWN_HELLO, 0, 0, HY_OK);
    if (fd < 0 || o == NULL) {
        hy_free(o);
        if (fd >= 0)
            close(fd);
        return false;
    }
    d->fd = fd;
    d->link->awaits = false;
    queue(d, o);
    d->link->busy = true; /* let progress send it */
    return true;
}

static void in_done(own_dpl *d)
{
    for (int i = 0; i < d->n_segs && d->counted; i++)
        d->seg[i].mr->users--;
    d->counted = false;
    d->in_len = 0;
    d->in_need = HEAD;
    d->n_segs = d->cur = 0;
    d->cur_off = 0;
    d->left = 0;
}

static void link_close(void *dpl)
{
    own_dpl *d = dpl;
    in_done(d);
    while (d->head != NULL) {
        own_out *o = d->head;
        d->head = o->next;
        drop_out(d, o);
    }
    if (d->fd >= 0) {
        /* unsent bytes must not arrive after the fence: reset instead of a graceful end */
        struct linger lg = {1, 0};
        setsockopt(d->fd, SOL_SOCKET, SO_LINGER, &lg, sizeof(lg));
        close(d->fd);
    }
    hy_fab__lend_fini(&d->lend);
    hy_free(d);
}

static bool flush(own_dpl *d);

static hy_status post(void *dpl, fab_piece *x)
{
    own_dpl *d = dpl;
    if (d->link->awaits)
        return HY_AGAIN;
    if (x->op->device)
        return hy_fail(HY_E_UNSUPPORTED, "own TCP: device memory goes through host memory");
    own_out *o = new_out(x->read ? OWN_READ : OWN_WRITE, x->id, x->len, HY_OK);
    if (o == NULL)
        return HY_AGAIN;
    o->head[5] = (uint8_t)x->n_segs;
    for (int i = 0; i < x->n_segs; i++) {
        const fab_seg *s = &x->seg[i];
        uint8_t *h = o->head + HEAD + (size_t)SEG * (size_t)i;
        fab_put64(h, s->key->id);
        fab_put64(h + 8, s->key->token);
        fab_put64(h + 16, s->roff);
        fab_put64(h + 24, s->len);
        if (!x->read)
            o->seg[o->n_segs++] =
                (own_seg){(char *)s->mr->span.addr + s->off, s->mr, (size_t)s->len};
    }
    o->head_len = HEAD + (size_t)SEG * (size_t)x->n_segs;
    o->lent = !x->read && x->len >= FAB_LEND_MIN && hy_fab__lend_can(&d->lend);
    queue(d, o);
    if (!d->full && x->op->cur == x->op->n_ranges) /* else with what comes next */
        flush(d);
    return HY_OK;
}

static void lost(own_dpl *d, const char *why)
{
    hy_fab__break(d->link, HY_E_PEER, why);
}

static size_t size_of(const own_out *o)
{
    size_t n = o->head_len;
    for (int i = 0; i < o->n_segs; i++)
        n += o->seg[i].len;
    return n;
}

/* What is left of a frame; the number of entries, of which there is room for a whole frame's. */
static int fill_iov(const own_out *o, struct iovec *v)
{
    size_t skip = o->sent;
    int n = 0;
    if (skip < o->head_len)
        v[n++] = (struct iovec){(void *)(o->head + skip), o->head_len - skip};
    skip = skip > o->head_len ? skip - o->head_len : 0;
    for (int i = 0; i < o->n_segs; i++) {
        if (skip >= o->seg[i].len) {
            skip -= o->seg[i].len;
            continue;
        }
        v[n++] = (struct iovec){o->seg[i].p + skip, o->seg[i].len - skip};
        skip = 0;
    }
    return n;
}

/* Frames that have gone leave the queue. */
static void sent(own_dpl *d, size_t k)
{
    while (d->head != NULL) {
        own_out *o = d->head;
        const size_t left = size_of(o) - o->sent;
        if (k < left) {
            o->sent += k;
            return;
        }
        k -= left;
        d->head = o->next;
        if (d->head == NULL)
            d->tail = NULL;
        drop_out(d, o);
    }
}

static bool failed(own_dpl *d)
{
    d->full = errno == EAGAIN;
    if (errno != EAGAIN && errno != EINTR && errno != ENOTCONN)
        lost(d, "own TCP: data connection lost");
    return false;
}

/* The frame whose bytes are lent: its head with a copy, then the rest. */
static bool flush_lent(own_dpl *d)
{
    own_out *o = d->head;
    struct iovec v[1 + FAB_SEGS];
    bool moved = false;
    if (o->sent < o->head_len) {
        ssize_t k = send(d->fd, o->head + o->sent, o->head_len - o->sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT | MSG_MORE);
        if (k < 0)
            return failed(d);
        o->sent += (size_t)k;
        d->full = o->sent < o->head_len;
        moved = true;
    }
    for (size_t n = 0; n < BUDGET && d->head == o && !d->full;) {
        ssize_t k = hy_fab__lend_send(&d->lend, d->fd, v, fill_iov(o, v), size_of(o) - o->sent);
        if (k < 0 && d->lend.cannot && d->lend.held == 0) {
            o->lent = false;
            return moved;
        }
        if (k < 0)
            return failed(d) || moved;
        n += (size_t)k;
        moved = true;
        sent(d, (size_t)k);
    }
    return moved;
}

/* As many frames as a turn may send, in one call: small ones cost a call each otherwise. */
static bool flush(own_dpl *d)
{
    struct iovec v[MOST_IOV];
    size_t bytes = 0;
    int n = 0;
    if (d->fd < 0 || d->head == NULL)
        return false;
    if (d->head->lent)
        return flush_lent(d);
    for (const own_out *o = d->head; o != NULL && !o->lent; o = o->next) {
        if (bytes >= BUDGET || n + 1 + o->n_segs > MOST_IOV)
            break;
        n += fill_iov(o, v + n);
        bytes += size_of(o) - o->sent;
    }
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
    ssize_t k = sendmsg(d->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (k < 0)
        return failed(d);
    d->full = (size_t)k < bytes;
    sent(d, (size_t)k);
    return true;
}

static fab_piece *find_piece(own_dpl *d, uint64_t id)
{
    fab_piece *p = d->link->pieces;
    while (p != NULL && p->id != id)
        p = p->next;
    return p;
}

static bool reply(own_dpl *d, own_out *o)
{
    if (o == NULL) {
        lost(d, "own TCP: no memory to answer");
        return false;
    }
    queue(d, o);
    return true;
}

/* The stretches of a frame, found and checked; false: refused. */
static bool find_segs(own_dpl *d, bool write)
{
    uint64_t sum = 0;
    for (int i = 0; i < d->n_segs; i++) {
        const uint8_t *h = d->in + HEAD + (size_t)SEG * (size_t)i;
        hy_fab_mr *mr = hy_fab__mr_find(d->f, fab_get64(h));
        uint64_t off = fab_get64(h + 16), len = fab_get64(h + 24);
        if (mr == NULL || mr->token != fab_get64(h + 8) || !hy_span_has(&mr->span, off, len) ||
            (mr->access & FAB_DEVICE) != 0 || (write && (mr->access & FAB_LAND) == 0))
            return false;
        d->seg[i] = (own_seg){(char *)mr->span.addr + off, mr, (size_t)len};
        sum += len;
    }
    return sum == fab_get64(d->in + 16);
}

static bool serve_read(own_dpl *d)
{
    bool ok = find_segs(d, false) && d->n_served < MOST_SERVED;
    own_out *o = new_out(ok ? OWN_READ_DATA : OWN_ACK, d->piece, ok ? fab_get64(d->in + 16) : 0,
                         ok ? HY_OK : HY_E_DENIED);
    for (int i = 0; i < d->n_segs && ok && o != NULL; i++) {
        o->seg[o->n_segs++] = d->seg[i];
        d->seg[i].mr->users++;
    }
    if (o != NULL) {
        o->uses = ok;
        d->n_served += ok;
    }
    in_done(d);
    return reply(d, o);
}

static bool take_head(own_dpl *d)
{
    d->kind = (own_kind)d->in[4];
    d->n_segs = d->in[5];
    d->piece = fab_get64(d->in + 8);
    uint64_t len = fab_get64(d->in + 16);
    if (memcmp(d->in, "HYFD", 4) != 0 || d->n_segs > FAB_SEGS || d->kind < OWN_WRITE ||
        d->kind > OWN_HELLO) {
        d->n_segs = 0;
        d->f->stats.bad_frames++;
        lost(d, "own TCP: malformed frame");
        return false;
    }
    if (d->in_len < HEAD + (size_t)SEG * (size_t)d->n_segs) {
        d->in_need = HEAD + (size_t)SEG * (size_t)d->n_segs;
        return true;
    }
    hy_status st = (hy_status)(int32_t)fab_get32(d->in + 24);
    fab_piece *p;
    switch (d->kind) {
    case OWN_HELLO:
        d->link->awaits = false;
        in_done(d);
        return true;
    case OWN_READ:
        return serve_read(d);
    case OWN_WRITE:
        if (!find_segs(d, true)) {
            d->n_segs = 0;
            lost(d, "own TCP: a write outside of what is shared");
            return false;
        }
        break;
    case OWN_READ_DATA:
        p = find_piece(d, d->piece);
        if (p == NULL || p->len != len || !p->read) {
            d->n_segs = 0;
            lost(d, "own TCP: an answer that nobody awaits");
            return false;
        }
        d->n_segs = p->n_segs;
        for (int i = 0; i < p->n_segs; i++)
            d->seg[i] = (own_seg){(char *)p->seg[i].mr->span.addr + p->seg[i].off, p->seg[i].mr,
                                  (size_t)p->seg[i].len};
        break;
    case OWN_ACK:
        p = find_piece(d, d->piece);
        in_done(d);
        if (p == NULL) {
            d->f->stats.late++;
            return true;
        }
        if (st < 0)
            hy_fail(st, "own TCP: the peer refused the key");
        hy_fab__piece_done(p, st < 0 ? HY_E_DENIED : HY_OK);
        return st >= 0;
    }
    for (int i = 0; i < d->n_segs; i++)
        d->seg[i].mr->users++;
    d->counted = true;
    d->left = len;
    return true;
}

static bool take_body(own_dpl *d)
{
    own_kind kind = d->kind;
    uint64_t piece = d->piece;
    in_done(d);
    if (kind == OWN_WRITE)
        return reply(d, new_out(OWN_ACK, piece, 0, HY_OK));
    fab_piece *p = find_piece(d, piece);
    if (p != NULL)
        hy_fab__piece_done(p, HY_OK);
    return true;
}

static ssize_t recv_some(own_dpl *d)
{
    struct iovec v[FAB_SEGS + 1];
    int n = 0;
    size_t off = d->cur_off;
    if (d->left == 0) {
        v[n++] = (struct iovec){d->in + d->in_len, d->in_need - d->in_len};
    } else {
        for (int i = d->cur; i < d->n_segs; i++, off = 0)
            v[n++] = (struct iovec){d->seg[i].p + off, d->seg[i].len - off};
    }
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
    return recvmsg(d->fd, &m, MSG_DONTWAIT);
}

static void advance(own_dpl *d, size_t k)
{
    d->left -= k;
    while (k > 0 || (d->cur < d->n_segs && d->cur_off == d->seg[d->cur].len)) {
        size_t room = d->seg[d->cur].len - d->cur_off, n = k < room ? k : room;
        d->cur_off += n;
        k -= n;
        if (d->cur_off == d->seg[d->cur].len) {
            d->cur++;
            d->cur_off = 0;
        }
    }
}

static bool receive(own_dpl *d)
{
    bool moved = false;
    for (size_t got = 0; got < BUDGET && !d->link->broken;) {
        ssize_t k = recv_some(d);
        if (k <= 0) {
            if (k == 0 || (errno != EAGAIN && errno != EINTR && errno != ENOTCONN))
                lost(d, "own TCP: data connection closed");
            return moved;
        }
        moved = true;
        got += (size_t)k;
        bool body = d->left > 0;
        if (body)
            advance(d, (size_t)k);
        else
            d->in_len += (size_t)k;
        if (!body && d->in_len == d->in_need && !take_head(d))
            return moved;
        /* a frame without bytes is done with its head */
        if (d->counted && d->left == 0 && !take_body(d))
            return moved;
    }
    return moved;
}

static bool progress(void *dpl, uint64_t now)
{
    own_dpl *d = dpl;
    (void)now;
    if (d->fd < 0)
        return false;
    /* Not by recv and send: they would take the socket's lock again and again, which the other end
     * wants as well over loopback. */
    struct pollfd p = {d->fd, (short)(POLLIN | (d->full ? POLLOUT : 0)), 0};
    bool moved = poll(&p, 1, 0) > 0 && (p.revents & ~POLLOUT) != 0 && receive(d);
    if ((p.revents & POLLOUT) != 0)
        d->full = false;
    if (!d->link->broken && !d->full && (!d->f->told || d->f->put_off)) /* an event goes first */
        moved |= flush(d);
    if (moved)
        d->link->last_rx = hy_fab__now(d->f);
    d->link->busy = d->link->awaits || d->head != NULL;
    return moved;
}

static bool uses(void *dpl, const hy_fab_mr *mr)
{
    const own_dpl *d = dpl;
    bool yes = false;
    for (int i = 0; i < d->n_segs && d->counted; i++)
        yes |= d->seg[i].mr == mr;
    for (const own_out *o = d->head; o != NULL; o = o->next)
        for (int i = 0; i < o->n_segs; i++)
            yes |= o->seg[i].mr == mr;
    return yes;
}

const fab_dp_ops hy_fab__own_dp = {
    .name = "own",
    .max_segs = FAB_SEGS,
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
    .uses = uses,
};
