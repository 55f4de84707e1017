/* SPDX-License-Identifier: Apache-2.0
 *
 * Control connections over TCP, in one epoll that the progress thread also sleeps in. A second
 * epoll holds the first one and a doorbell, so that the thread can sleep without being woken by
 * traffic while somebody else polls.
 *
 * Thread: under the fabric's lock, but for wait (the progress thread) and wake (any).
 * Owner: connections are freed at the end of the poll after their close.
 */
#include "fabric/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RECV_BYTES = 256 << 10, MOST_OUT = 64 << 20, FEW = 4, LOOKS = 16 };

typedef struct sock_conn {
    fab_conn base;
    int fd;
    bool listener, connecting, want_out, dead, drain;
    hy_buf out;
    uint64_t drop_at; /* drain: give up then */
    struct sock_conn *next;
} sock_conn;

typedef struct sock {
    hy_fab *f;
    int ep, outer, bell;
    sock_conn *conns;
    sock_conn *listen[HY_FAB_RAILS_MAX];
    struct sockaddr_storage local[HY_FAB_RAILS_MAX];
    socklen_t local_len[HY_FAB_RAILS_MAX];
    uint8_t *buf;
    bool some_dead, armed;
    _Atomic unsigned looks;
    unsigned n_conns;
} sock;

hy_status hy_fab__addr_parse(const char *addr, struct sockaddr_storage *out, socklen_t *len,
                             bool numeric)
{
    char host[256], why[64] = "";
    const char *colon = addr != NULL ? strrchr(addr, ':') : NULL;
    const char *h = addr;
    size_t n = colon != NULL ? (size_t)(colon - addr) : 0;
    if (n >= 2 && h[0] == '[' && h[n - 1] == ']') {
        h++;
        n -= 2;
    }
    if (colon == NULL || n == 0 || n >= sizeof(host) || colon[1] == 0)
        return hy_fail(HY_E_INVAL, "address \"%s\": host:port is needed", addr != NULL ? addr : "");
    snprintf(host, sizeof(host), "%.*s", (int)n, h);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0)};
    struct addrinfo *ai = NULL;
    int rc = getaddrinfo(host, colon + 1, &hints, &ai);
    if (rc != 0) {
        snprintf(why, sizeof(why), "%s", gai_strerror(rc));
        return hy_fail(HY_E_INVAL, "address \"%s\": %s", addr, why);
    }
    memcpy(out, ai->ai_addr, ai->ai_addrlen);
    *len = ai->ai_addrlen;
    freeaddrinfo(ai);
    return HY_OK;
}

bool hy_fab__same_ip(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                      &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
    return a->ss_family == AF_INET && ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
                                          ((const struct sockaddr_in *)b)->sin_addr.s_addr;
}

void hy_fab__addr_text(const struct sockaddr_storage *a, char *out, size_t cap)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *s = (const struct sockaddr_in6 *)a;
        inet_ntop(AF_INET6, &s->sin6_addr, host, sizeof(host));
        snprintf(out, cap, "[%s]:%d", host, ntohs(s->sin6_port));
    } else {
        const struct sockaddr_in *s = (const struct sockaddr_in *)a;
        inet_ntop(AF_INET, &s->sin_addr, host, sizeof(host));
        snprintf(out, cap, "%s:%d", host, ntohs(s->sin_port));
    }
}

/* "node7:18400, node7b:18400" to numbers. May wait for a name server: not under the lock. */
hy_status hy_fab__resolve(const char *list, hy_buf *out)
{
    char *copy = hy_strdup(list), *save = NULL;
    if (copy == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for an address");
    hy_status st = HY_OK;
    const char *sep = "";
    for (char *a = strtok_r(copy, ", ", &save); a != NULL && st == HY_OK;
         a = strtok_r(NULL, ", ", &save)) {
        struct sockaddr_storage ss;
        socklen_t len;
        char text[80];
        st = hy_fab__addr_parse(a, &ss, &len, false);
        if (st == HY_OK) {
            hy_fab__addr_text(&ss, text, sizeof(text));
            hy_buf_printf(out, "%s%s", sep, text);
            sep = ",";
        }
    }
    hy_free(copy);
    if (st == HY_OK && (out->failed || out->len == 0))
        st = hy_fail(HY_E_INVAL, "peer address \"%s\": host:port is needed", list);
    return st;
}

void hy_fab__sock_tune(int fd)
{
    int one = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

hy_status hy_fab__sock_create(hy_fab *f, void **out)
{
    sock *s = hy_calloc(1, sizeof(*s));
    if (s == NULL)
        return hy_fail(HY_E_NOMEM, "fabric: no memory");
    s->f = f;
    s->buf = hy_malloc(RECV_BYTES);
    s->ep = epoll_create1(EPOLL_CLOEXEC);
    s->outer = epoll_create1(EPOLL_CLOEXEC);
    s->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *out = s;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = s};
    if (s->buf == NULL || s->ep < 0 || s->outer < 0 || s->bell < 0 ||
        epoll_ctl(s->outer, EPOLL_CTL_ADD, s->ep, &e) != 0 ||
        epoll_ctl(s->outer, EPOLL_CTL_ADD, s->bell, &(struct epoll_event){.events = EPOLLIN}) != 0)
        return hy_fail(HY_E_SYS, "fabric: epoll: %s", strerror(errno));
    s->armed = true;
    return HY_OK;
}

static sock_conn *add(sock *s, int fd, int rail, uint32_t events)
{
    sock_conn *c = hy_calloc(1, sizeof(*c));
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (c == NULL || epoll_ctl(s->ep, EPOLL_CTL_ADD, fd, &e) != 0) {
        hy_free(c);
        return NULL;
    }
    c->fd = fd;
    c->base.rail = rail;
    hy_buf_init(&c->out);
    c->next = s->conns;
    s->conns = c;
    s->n_conns++;
    return c;
}

static hy_status sock_listen(void *ct, int rail, const char *addr, char *bound, size_t cap)
{
    sock *s = ct;
    struct sockaddr_storage ss;
    socklen_t len;
    int one = 1;
    HY_TRY(hy_fab__addr_parse(addr, &ss, &len, false));
    int fd = socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return hy_fail(HY_E_SYS, "fabric: socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    hy_fab__congestion_set(s->f->congestion, fd, NULL); /* a name: those accepted inherit it */
    if (bind(fd, (struct sockaddr *)&ss, len) != 0 || listen(fd, 128) != 0) {
        int e = errno;
        close(fd);
        return hy_fail(HY_E_SYS, "cannot listen on %s: %s%s", addr, strerror(e),
                       e == EADDRINUSE ? "; another program uses it: choose another port" : "");
    }
    socklen_t got = sizeof(ss);
    getsockname(fd, (struct sockaddr *)&ss, &got);
    hy_fab__addr_text(&ss, bound, cap);
    sock_conn *c = add(s, fd, rail, EPOLLIN);
    if (c == NULL) {
        close(fd);
        return hy_fail(HY_E_SYS, "fabric: epoll: %s", strerror(errno));
    }
    c->listener = true;
    s->listen[rail] = c;
    s->local[rail] = ss; /* dial from the same interface */
    s->local_len[rail] = got;
    if (ss.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&s->local[rail])->sin6_port = 0;
    else
        ((struct sockaddr_in *)&s->local[rail])->sin_port = 0;
    return HY_OK;
}

/* A connecting socket from this rail's address; shared with own TCP's data connections. */
hy_status hy_fab__sock_dial(hy_fab *f, int rail, const char *addr, int *fd_out)
{
    sock *s = f->ctx;
    struct sockaddr_storage ss;
    socklen_t len;
    HY_TRY(hy_fab__addr_parse(addr, &ss, &len, true));
    int fd = socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return hy_fail(HY_E_SYS, "fabric: socket: %s", strerror(errno));
    hy_fab__sock_tune(fd);
    hy_fab__congestion_set(f->congestion, fd, NULL); /* a name: before the handshake */
    if (s->local[rail].ss_family == ss.ss_family)
        (void)!bind(fd, (struct sockaddr *)&s->local[rail], s->local_len[rail]);
    if (connect(fd, (struct sockaddr *)&ss, len) != 0 && errno != EINPROGRESS) {
        int e = errno;
        close(fd);
        return hy_fail(HY_E_PEER, "fabric: cannot reach %s: %s", addr, strerror(e));
    }
    hy_fab__congestion_set(f->congestion, fd, &ss);
    *fd_out = fd;
    return HY_OK;
}

static hy_status sock_connect(void *ct, int rail, const char *addr, fab_link *link, fab_conn **out)
{
    sock *s = ct;
    int fd;
    HY_TRY(hy_fab__sock_dial(s->f, rail, addr, &fd));
    sock_conn *c = add(s, fd, rail, EPOLLIN | EPOLLOUT);
    if (c == NULL) {
        close(fd);
        return hy_fail(HY_E_SYS, "fabric: epoll: %s", strerror(errno));
    }
    c->connecting = c->want_out = true;
    c->base.link = link;
    *out = &c->base;
    return HY_OK;
}

static void watch_out(sock *s, sock_conn *c, bool on)
{
    if (c->want_out == on)
        return;
    c->want_out = on;
    struct epoll_event e = {.events = EPOLLIN | (on ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(s->ep, EPOLL_CTL_MOD, c->fd, &e);
}

static void broken(sock *s, sock_conn *c, const char *why)
{
    fab_link *l = c->base.link;
    c->base.link = NULL;
    c->dead = s->some_dead = true;
    if (l != NULL)
        hy_fab__closed(l, why);
}

static void flush(sock *s, sock_conn *c)
{
    while (c->out.len > 0) {
        ssize_t k = send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL);
        if (k < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (k < 0) {
            broken(s, c, strerror(errno));
            return;
        }
        hy_buf_drop(&c->out, (size_t)k);
    }
    watch_out(s, c, c->out.len > 0);
    if (c->drain && c->out.len == 0)
        c->dead = s->some_dead = true;
}

static hy_status sock_send(void *ct, fab_conn *conn, const void *a, size_t na, const void *b,
                           size_t nb)
{
    sock *s = ct;
    sock_conn *c = (sock_conn *)conn;
    size_t sent = 0;
    if (c->dead)
        return HY_E_PEER;
    if (c->out.len == 0 && !c->connecting) {
        struct iovec v[2] = {{(void *)a, na}, {(void *)b, nb}};
        struct msghdr m = {.msg_iov = v, .msg_iovlen = nb > 0 ? 2 : 1};
        char small[256]; /* in one piece: a tenth of a microsecond sooner */
        ssize_t k;
        if (na + nb <= sizeof(small)) {
            memcpy(small, a, na);
            if (nb > 0)
                memcpy(small + na, b, nb);
            k = send(c->fd, small, na + nb, MSG_NOSIGNAL);
        } else {
            k = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        }
        sent = k > 0 ? (size_t)k : 0; /* an error shows at the next poll */
    }
    if (sent < na)
        hy_buf_add(&c->out, (const char *)a + sent, na - sent);
    if (sent < na + nb) {
        size_t skip = sent > na ? sent - na : 0;
        hy_buf_add(&c->out, (const char *)b + skip, nb - skip);
        watch_out(s, c, true);
    }
    if (c->out.failed || c->out.len > MOST_OUT) {
        broken(s, c, "it does not take what is sent");
        return HY_E_PEER;
    }
    return HY_OK;
}

static size_t sock_backlog(void *ct, fab_conn *conn)
{
    (void)ct;
    return ((sock_conn *)conn)->out.len;
}

static void sock_close(void *ct, fab_conn *conn)
{
    sock *s = ct;
    sock_conn *c = (sock_conn *)conn;
    c->base.link = NULL;
    if (c->out.len > 0 && !c->dead && !c->connecting) { /* a last word, for one second */
        c->drain = true;
        c->drop_at = hy_fab__now(s->f) + HY_SEC;
        hy_fab__timer(s->f, c->drop_at);
        s->some_dead = true;
        return;
    }
    c->dead = s->some_dead = true;
}

static void reap(sock *s, uint64_t now)
{
    s->some_dead = false;
    for (sock_conn **at = &s->conns; *at != NULL;) {
        sock_conn *c = *at;
        if (c->drain && now >= c->drop_at)
            c->dead = true;
        s->some_dead |= c->drain;
        if (!c->dead) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        if (c->fd >= 0)
            close(c->fd);
        hy_buf_fini(&c->out);
        hy_free(c);
        s->n_conns--;
    }
}

static void do_accept(sock *s, sock_conn *lc)
{
    for (int i = 0; i < 16; i++) {
        struct sockaddr_storage ss;
        socklen_t len = sizeof(ss);
        int fd = accept4(lc->fd, (struct sockaddr *)&ss, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        hy_fab__sock_tune(fd);
        hy_fab__congestion_set(s->f->congestion, fd, NULL);
        sock_conn *c = add(s, fd, lc->base.rail, EPOLLIN);
        if (c == NULL) {
            close(fd);
            continue;
        }
        hy_fab__accepted(s->f, lc->base.rail, &c->base);
        if (c->base.link != NULL)
            hy_fab__addr_text(&ss, c->base.link->from, sizeof(c->base.link->from));
    }
}

static bool do_in(sock *s, sock_conn *c)
{
    ssize_t k = recv(c->fd, s->buf, RECV_BYTES, MSG_DONTWAIT);
    if (k > 0) {
        if (c->base.link != NULL)
            hy_fab__bytes(c->base.link, s->buf, (size_t)k);
        return true;
    }
    if (k < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    broken(s, c, k == 0 ? "connection closed by the peer" : strerror(errno));
    return true;
}

static void do_connected(sock *s, sock_conn *c)
{
    int e = 0;
    socklen_t len = sizeof(e);
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &len);
    if (e != 0) {
        broken(s, c, strerror(e));
        return;
    }
    c->connecting = false;
    watch_out(s, c, false);
    if (c->base.link != NULL)
        hy_fab__opened(c->base.link);
}

static void do_event(sock *s, sock_conn *c, uint32_t ev)
{
    if (c->listener) {
        do_accept(s, c);
        return;
    }
    if (c->connecting) {
        if (ev & (EPOLLOUT | EPOLLERR | EPOLLHUP))
            do_connected(s, c);
        return;
    }
    if (!c->dead && (ev & EPOLLOUT))
        flush(s, c);
    if (!c->dead && (ev & (EPOLLIN | EPOLLERR | EPOLLHUP)))
        do_in(s, c);
}

static bool is_primary(const fab_link *l)
{
    return l->peer != NULL && l->peer->primary == l;
}

/* With few connections they are cheaper asked at once than through epoll. Not by recv: it would
 * take the socket's lock again and again, which who sends over loopback wants as well. Links
 * beside others have messages only when they are the last one. */
static bool look(sock *s)
{
    struct pollfd p[FEW + HY_FAB_RAILS_MAX];
    sock_conn *of[FEW + HY_FAB_RAILS_MAX];
    nfds_t n = 0;
    bool moved = false;
    for (sock_conn *c = s->conns; c != NULL; c = c->next)
        if (!c->listener && !c->connecting && !c->dead && !c->want_out &&
            (c->base.link == NULL || !c->base.link->beside || is_primary(c->base.link))) {
            p[n] = (struct pollfd){c->fd, POLLIN, 0};
            of[n++] = c;
        }
    if (n == 0 || poll(p, n, 0) <= 0)
        return false;
    for (nfds_t i = 0; i < n; i++)
        if (p[i].revents != 0 && !of[i]->dead)
            moved |= do_in(s, of[i]);
    return moved;
}

static bool sock_poll(void *ct, uint64_t now)
{
    sock *s = ct;
    struct epoll_event ev[64];
    bool moved = false;
    if (s->n_conns <= FEW + HY_FAB_RAILS_MAX && ++s->looks % LOOKS != 0) {
        moved = look(s);
    } else {
        int n = epoll_wait(s->ep, ev, 64, 0);
        for (int i = 0; i < n; i++)
            do_event(s, ev[i].data.ptr, ev[i].events);
        moved = n > 0;
    }
    if (s->some_dead)
        reap(s, now);
    return moved;
}

static uint64_t sock_next(void *ct)
{
    (void)ct;
    return HY_NEVER;
}

static void sock_wait(void *ct, uint64_t until, bool quiet)
{
    sock *s = ct;
    struct epoll_event ev[2];
    uint64_t now = hy_clock_now_ns(s->f->clock), v;
    int ms = -1;
    if (until != HY_NEVER)
        ms = until <= now ? 0
                          : (int)((until - now + HY_MS - 1) / HY_MS < 60000
                                      ? (until - now + HY_MS - 1) / HY_MS
                                      : 60000);
    if (s->armed == quiet) {
        struct epoll_event e = {.events = quiet ? 0u : EPOLLIN, .data.ptr = s};
        epoll_ctl(s->outer, EPOLL_CTL_MOD, s->ep, &e);
        s->armed = !quiet;
    }
    struct timespec ts = {0, (long)(until > now ? until - now : 0)};
    if (until != HY_NEVER && until - now < HY_MS && until > now)
        (void)!epoll_pwait2(s->outer, ev, 2, &ts, NULL);
    else
        (void)!epoll_wait(s->outer, ev, 2, ms);
    (void)!read(s->bell, &v, sizeof(v));
    s->looks = LOOKS - 1; /* look at all of them first */
}

static void sock_wake(void *ct)
{
    sock *s = ct;
    uint64_t one = 1;
    (void)!write(s->bell, &one, sizeof(one));
}

static int sock_take_fd(void *ct, fab_conn *conn)
{
    sock *s = ct;
    sock_conn *c = (sock_conn *)conn;
    int fd = c->fd;
    epoll_ctl(s->ep, EPOLL_CTL_DEL, fd, NULL);
    c->fd = -1;
    c->base.link = NULL;
    c->dead = s->some_dead = true;
    return fd;
}

static size_t sock_local(void *ct, fab_conn *conn, void *out, size_t cap)
{
    (void)ct;
    socklen_t len = (socklen_t)cap;
    return getsockname(((sock_conn *)conn)->fd, out, &len) == 0 && len <= cap ? len : 0;
}

static void sock_destroy(void *ct, hy_stage *stage)
{
    sock *s = ct;
    (void)stage;
    for (sock_conn *c = s->conns; c != NULL; c = c->next) {
        if (!c->listener && !c->connecting && !c->dead && c->out.len > 0)
            (void)!send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL);
        c->dead = true;
    }
    reap(s, 0);
    if (s->ep >= 0)
        close(s->ep);
    if (s->outer >= 0)
        close(s->outer);
    if (s->bell >= 0)
        close(s->bell);
    hy_free(s->buf);
    hy_free(s);
}

const fab_ct_ops hy_fab__sock_ops = {
    .listen = sock_listen,
    .connect = sock_connect,
    .send = sock_send,
    .backlog = sock_backlog,
    .close = sock_close,
    .poll = sock_poll,
    .next = sock_next,
    .wait = sock_wait,
    .wake = sock_wake,
    .take_fd = sock_take_fd,
    .local = sock_local,
    .destroy = sock_destroy,
};
