/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain TCP on loopback, for comparison: bulk with a blocking and with a spinning receiver, and
 * 8-byte round trips with both sides spinning.
 *
 * Thread: main of each process.  Owner: closes its sockets.
 */
#include "fabric/bench_int.h"
#include "core/base/alloc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PINGS = 20000, WARM = 1000, MOST_S = 3 };

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

static bool bulk(bench *b, int s, uint64_t size, bool spin, double *gbs)
{
    uint64_t total = bench_total(b, size);
    char ack = 0;
    double t = bench_now();
    for (uint64_t done = 0, page = 0; done < total; done += size, page++)
        if (!all(s, b->pool + bench_page(b, page, size), size, b->side == 0, spin && b->side == 1))
            return false;
    if (!all(s, &ack, 1, b->side == 1, false)) /* the last byte is there */
        return false;
    *gbs = (double)total / (bench_now() - t) / 1e9;
    return true;
}

/* Until enough, or for some seconds where the machine is busy; a negative time ends it. */
static bool pings(bench *b, int s)
{
    double *v = hy_malloc(PINGS * sizeof(*v)), begin = bench_now(), t = 0;
    bool ok = v != NULL;
    int n = -WARM;
    for (; ok && n < PINGS && t >= 0; n++) {
        t = b->side != 0 || (bench_now() - begin < MOST_S && n < PINGS - 1) ? bench_now() : -1;
        double got = t;
        if (b->side == 0)
            ok = all(s, (char *)&t, 8, true, true) && all(s, (char *)&got, 8, false, true);
        else
            ok = all(s, (char *)&t, 8, false, true) && all(s, (char *)&t, 8, true, true);
        if (n >= 0 && v != NULL && t >= 0)
            v[n] = (bench_now() - t) / 2 * 1e6;
    }
    if (ok && n > 1)
        bench_percentiles(v, n - 1, &b->r.tcp_p50_us, &b->r.tcp_p99_us);
    hy_free(v);
    return ok;
}

hy_status bench_tcp(bench *b)
{
    int s = open_pair(b), n = b->o.repeats < 16 ? b->o.repeats : 16;
    bool ok = s >= 0;
    for (int z = 0; z < HY_FAB_BENCH_SIZES && ok; z++) {
        double v[2][16];
        for (int i = 0; i < n && ok; i++)
            ok = bulk(b, s, hy_fab_bench_sizes[z], false, &v[0][i]) &&
                 bulk(b, s, hy_fab_bench_sizes[z], true, &v[1][i]);
        b->r.tcp_block[z] = ok ? bench_median(v[0], n) : 0;
        b->r.tcp_spin[z] = ok ? bench_median(v[1], n) : 0;
    }
    if (ok && b->o.small)
        ok = pings(b, s);
    if (s >= 0)
        close(s);
    return ok ? HY_OK : hy_fail(HY_E_SYS, "bench: plain TCP: %s", strerror(errno));
}
