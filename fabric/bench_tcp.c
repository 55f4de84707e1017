/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain TCP on loopback, for comparison: bulk with a blocking and with a spinning receiver, and
 * 8-byte round trips with both sides spinning.
 *
 * Thread: main of each process.  Owner: closes its sockets.
 */
#include "fabric/bench_int.h"
#include "core/base/alloc.h"
#include "fabric/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PINGS = 10000, WARM = 500, MOST_S = 3 };

static int open_pair(bench *b)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int one = 1, s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), c = -1;
    if (s < 0)
        return -1;
    if (b->side == 1) {
        if (bind(s, (struct sockaddr *)&a, len) == 0 && listen(s, 1) == 0 &&
            getsockname(s, (struct sockaddr *)&a, &len) == 0 && bench_put(b, &a, sizeof(a)))
            c = accept(s, NULL, NULL);
        close(s);
        s = c;
    } else if (!bench_get(b, &a, sizeof(a)) || connect(s, (struct sockaddr *)&a, len) != 0) {
        close(s);
        return -1;
    }
    if (s >= 0)
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return s;
}

static bool all(int s, char *p, uint64_t n, bool out, bool spin)
{
    int flags = MSG_NOSIGNAL | (spin ? MSG_DONTWAIT : 0);
    while (n > 0) {
        ssize_t k = out ? send(s, p, n, flags) : recv(s, p, n, flags);
        if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (k > 0) {
            p += k;
            n -= (uint64_t)k;
        }
    }
    return true;
}

hy_status bench_tcp_bulk(bench *b, hy_fab_bench_row row, uint64_t size, double *gbs)
{
    const int s = row == HY_BENCH_TCP_TUNED ? b->tuned : b->tcp;
    const bool spin = row != HY_BENCH_TCP_BLOCK;
    uint64_t total = bench_total(b, size), done = 0;
    char ack = 0;
    bool ok = true;
    double t = bench_now();
    for (uint64_t page = 0; ok && done < total; done += size, page++)
        ok = all(s, b->pool + bench_page(b, page, size), size, b->side == 0, spin && b->side == 1);
    if (!ok || !all(s, &ack, 1, b->side == 1, false)) /* the last byte is there */
        return hy_fail(HY_E_SYS, "bench: plain TCP: %s", strerror(errno));
    *gbs = (double)done / (bench_now() - t) / 1e9;
    return HY_OK;
}

/* Until enough, or for some seconds where the machine is busy; a negative time ends it. */
hy_status bench_tcp_pings(bench *b, double *p50, double *p99)
{
    int s = b->tcp;
    double *v = hy_malloc(PINGS * sizeof(*v)), begin = bench_now(), t = 0;
    bool ok = v != NULL;
    int n = -WARM;
    for (; ok && n < PINGS && t >= 0; n++) {
        bool more = n < 1 || (bench_now() - begin < MOST_S && n < PINGS - 1);
        t = b->side != 0 || more ? bench_now() : -1;
        double got = t;
        if (b->side == 0)
            ok = all(s, (char *)&t, 8, true, true) && all(s, (char *)&got, 8, false, true);
        else
            ok = all(s, (char *)&t, 8, false, true) && all(s, (char *)&t, 8, true, true);
        if (n >= 0 && v != NULL && t >= 0)
            v[n] = (bench_now() - t) / 2 * 1e6;
    }
    if (ok && n > 1)
        bench_percentiles(v, n - 1, p50, p99);
    hy_free(v);
    return ok ? HY_OK : hy_fail(HY_E_SYS, "bench: plain TCP: %s", strerror(errno));
}

hy_status bench_tcp_open(bench *b)
{
    b->tcp = open_pair(b);
    b->tuned = open_pair(b);
    if (b->tuned >= 0)
        hy_fab__congestion_set(b->o.congestion != NULL ? b->o.congestion : "auto", b->tuned, NULL);
    return b->tcp >= 0 && b->tuned >= 0
               ? HY_OK
               : hy_fail(HY_E_SYS, "bench: plain TCP: %s", strerror(errno));
}

void bench_tcp_close(bench *b)
{
    if (b->tcp >= 0)
        close(b->tcp);
    if (b->tuned >= 0)
        close(b->tuned);
    b->tcp = b->tuned = -1;
}
