/* SPDX-License-Identifier: Apache-2.0
 *
 * The link benchmark's own side: writes, pulls and messages through the fabric; what it costs idle.
 *
 * Thread: main of each process, beside the endpoint's own.  Owner: closes what it opens.
 */
#include "fabric/bench_int.h"
#include "core/base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { OP_BYTES = 8 << 20, OPS = 3, PINGS = 20000, WARM = 1000, MOST_S = 3, BULK = 1 };

typedef struct fb {
    bench *b;
    hy_fab *f;
    hy_fab_peer peer;
    hy_fab_mr *mr;
    hy_fab_key key;
} fb;

static hy_status wait_kind(fb *x, hy_fab_ev_kind kind, hy_fab_event *ev)
{
    uint64_t end = hy_clock_now_ns(hy_clock_real()) + 20 * HY_SEC;
    while (hy_clock_now_ns(hy_clock_real()) < end) {
        if (hy_fab_poll(x->f, ev, 1) == 0) {
            hy_fab_wait(x->f, hy_clock_now_ns(hy_clock_real()) + 10 * HY_MS);
            continue;
        }
        if (ev->kind == kind)
            return ev->status;
        hy_fab_event_fini(ev);
    }
    return hy_fail(HY_E_TIMEOUT, "bench: an event of kind %d did not come", kind);
}

static hy_status open_pair(fb *x)
{
    bench *b = x->b;
    hy_fab_opts o;
    hy_fab_info info;
    hy_fab_event ev;
    char addr[80];
    hy_fab_opts_init(&o);
    o.node = b->side == 0 ? "bench0" : "bench1";
    o.addrs[0] = "127.0.0.1:0";
    o.n_addrs = 1;
    o.secret = "bench, this machine only";
    o.secret_len = 24;
    if (b->o.providers != NULL)
        o.providers = b->o.providers;
    if (b->o.piece_bytes != 0)
        o.piece_bytes = b->o.piece_bytes;
    if (b->o.window_bytes != 0)
        o.window_bytes = b->o.window_bytes;
    HY_TRY(hy_fab_open(&o, &x->f));
    hy_span s = hy_span_host(b->pool, b->pool_len);
    HY_TRY(hy_fab_reg(x->f, &s, HY_FAB_REMOTE_READ | HY_FAB_REMOTE_WRITE, &x->mr));
    hy_fab_info_get(x->f, &info);
    snprintf(b->r.provider, sizeof(b->r.provider), "%s", info.rail[0].provider);
    memcpy(addr, info.rail[0].addr, sizeof(addr));
    if (b->side == 1) {
        if (!bench_put(b, addr, sizeof(addr)))
            return HY_E_PEER;
    } else {
        if (!bench_get(b, addr, sizeof(addr)))
            return HY_E_PEER;
        HY_TRY(hy_fab_connect(x->f, addr, "bench1", 0, NULL));
    }
    HY_TRY(wait_kind(x, HY_FAB_EV_UP, &ev));
    x->peer = ev.peer;
    hy_buf k;
    hy_buf_init(&k);
    hy_fab_key_pack(x->mr, &k);
    hy_fab_send(x->f, x->peer, 1, k.data, k.len, NULL, NULL);
    hy_buf_fini(&k);
    HY_TRY(wait_kind(x, HY_FAB_EV_MSG, &ev));
    hy_status st = hy_fab_key_unpack(x->f, x->peer, ev.data, ev.len, &x->key, NULL);
    hy_fab_event_fini(&ev);
    return st;
}

static hy_status move(fb *x, uint64_t size, bool read, double *gbs)
{
    uint64_t total = bench_total(x->b, size), posted = 0, done = 0, page = 0, per = OP_BYTES / size;
    hy_fab_range *r = hy_malloc(per * sizeof(*r));
    if (r == NULL)
        return hy_fail(HY_E_NOMEM, "bench: no memory");
    hy_status st = HY_OK;
    const hy_fab_op_opts oo = {.user = BULK}; /* the key's message ends some time, too */
    double t = bench_now();
    while (done < total && st >= 0) {
        hy_fab_event ev;
        if (posted < total && posted - done < (uint64_t)OPS * OP_BYTES) {
            for (uint64_t i = 0; i < per; i++, page++)
                r[i] = (hy_fab_range){x->mr, bench_page(x->b, page, size), &x->key,
                                      bench_page(x->b, page, size), size};
            st = read ? hy_fab_read(x->f, x->peer, r, per, &oo, NULL)
                      : hy_fab_write(x->f, x->peer, r, per, &oo, NULL);
            posted += st == HY_OK ? per * size : 0;
        }
        while (st >= 0 && hy_fab_poll(x->f, &ev, 1) == 1) {
            if (ev.kind == HY_FAB_EV_DOWN || ev.status < 0)
                st = hy_fail(HY_E_PEER, "bench: %s", ev.text);
            done += ev.kind == HY_FAB_EV_DONE && ev.user == BULK ? ev.len : 0;
        }
    }
    *gbs = (double)total / (bench_now() - t) / 1e9;
    hy_free(r);
    return st;
}

static hy_status bulk(fb *x)
{
    bench *b = x->b;
    if (b->side == 1)
        return bench_sync(b) ? HY_OK : HY_E_PEER; /* its progress thread does the work */
    for (int s = 0; s < HY_FAB_BENCH_SIZES; s++) {
        double v[2][16];
        int n = b->o.repeats < 16 ? b->o.repeats : 16;
        for (int i = 0; i < n; i++) {
            HY_TRY(move(x, hy_fab_bench_sizes[s], false, &v[0][i]));
            HY_TRY(move(x, hy_fab_bench_sizes[s], true, &v[1][i]));
        }
        b->r.write[s] = bench_median(v[0], n);
        b->r.pull[s] = bench_median(v[1], n);
    }
    return bench_sync(b) ? HY_OK : HY_E_PEER;
}

static hy_status recv_msg(fb *x, uint32_t *type)
{
    hy_fab_event ev;
    for (;;) {
        while (hy_fab_poll(x->f, &ev, 1) == 0)
            ;
        hy_fab_event_fini(&ev);
        *type = ev.type;
        if (ev.kind == HY_FAB_EV_MSG)
            return HY_OK;
        if (ev.kind == HY_FAB_EV_DOWN || ev.status < 0)
            return hy_fail(HY_E_PEER, "bench: %s", ev.text);
    }
}

enum { PING = 2, LAST = 3 };

static hy_status echo(fb *x)
{
    uint32_t type = PING;
    while (type != LAST) {
        HY_TRY(recv_msg(x, &type));
        HY_TRY(hy_fab_send(x->f, x->peer, type, "12345678", 8, NULL, NULL));
    }
    return HY_OK;
}

/* Until enough, or for some seconds where the machine is busy. */
static hy_status pings(fb *x)
{
    if (x->b->side == 1)
        return echo(x);
    double *v = hy_malloc(PINGS * sizeof(*v)), begin = bench_now();
    hy_status st = v != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "bench: no memory");
    uint32_t type = PING;
    int n = -WARM;
    for (; st >= 0 && type != LAST; n++) {
        double t = bench_now();
        type = n >= PINGS - 1 || t - begin > MOST_S ? LAST : PING;
        st = hy_fab_send(x->f, x->peer, type, &t, 8, NULL, NULL);
        if (st >= 0)
            st = recv_msg(x, &type);
        if (n >= 0 && v != NULL)
            v[n] = (bench_now() - t) / 2 * 1e6;
    }
    if (st >= 0 && n > 0)
        bench_percentiles(v, n, &x->b->r.msg_p50_us, &x->b->r.msg_p99_us);
    hy_free(v);
    return st < 0 ? st : HY_OK;
}

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static hy_status idle(fb *x)
{
    double other, t = cpu_s();
    nanosleep(&(struct timespec){2, 0}, NULL);
    t = (cpu_s() - t) / 2;
    if (!bench_put(x->b, &t, sizeof(t)) || !bench_get(x->b, &other, sizeof(other)))
        return HY_E_PEER;
    x->b->r.idle_core = t > other ? t : other;
    return HY_OK;
}

hy_status bench_fabric(bench *b)
{
    fb x = {.b = b};
    hy_status st = open_pair(&x);
    if (st >= 0)
        st = bulk(&x);
    if (st >= 0 && b->o.small)
        st = pings(&x);
    if (st >= 0 && b->o.idle)
        st = idle(&x);
    if (st >= 0 && !bench_sync(b))
        st = HY_E_PEER;
    hy_fab_close(x.f);
    return st;
}
