/* SPDX-License-Identifier: Apache-2.0
 *
 * The link benchmark's own side: writes, pulls and messages through the fabric; what it costs idle.
 *
 * Thread: main of each process, beside the endpoints' own.  Owner: closes what it opens.
 */
#include "core/base/alloc.h"
#include "fabric/bench_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { OP_BYTES = 8 << 20, OPS = 3, PINGS = 10000, WARM = 500, MOST_S = 3, BULK = 1 };
#define PATIENCE (60 * HY_SEC) /* with a side that gets no CPU: figures are then bad, but there */

struct bench_pair {
    bench *b;
    hy_fab *f;
    hy_fab_peer peer;
    hy_fab_mr *mr;
    hy_fab_key key;
};

static hy_status wait_kind(bench_pair *x, hy_fab_ev_kind kind, hy_fab_event *ev)
{
    uint64_t end = hy_clock_now_ns(hy_clock_real()) + PATIENCE;
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

static void options(const bench *b, int which, hy_fab_opts *o)
{
    hy_fab_opts_init(o);
    o->node = b->side == 0 ? "bench0" : "bench1";
    o->addrs[0] = "127.0.0.1:0";
    o->n_addrs = 1;
    o->secret = "bench, this machine only";
    o->secret_len = 24;
    o->same_node = which == BENCH_SAME;
    o->peer_timeout_ns = o->connect_timeout_ns = o->op_timeout_ns = o->stall_ns = PATIENCE;
    if (which == BENCH_ALONE)
        o->providers = b->r.provider; /* BENCH_MAIN's */
    else if (which == BENCH_SAME)
        o->providers = "own";
    else if (b->o.providers != NULL)
        o->providers = b->o.providers;
    if (b->o.piece_bytes != 0)
        o->piece_bytes = b->o.piece_bytes;
    if (b->o.congestion != NULL)
        o->congestion = b->o.congestion;
    if (b->o.window_bytes != 0)
        o->window_bytes = b->o.window_bytes;
}

static hy_status meet(bench_pair *x)
{
    bench *b = x->b;
    hy_fab_info info;
    hy_fab_event ev;
    char addr[80];
    hy_fab_info_get(x->f, &info);
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

/* A same-node path that is refused here is no row of the table, and no failure. */
static bool is_same_node(bench_pair *x)
{
    hy_buf path;
    hy_buf_init(&path);
    bool yes = hy_fab_peer_path(x->f, x->peer, &path) == HY_OK &&
               strncmp(hy_buf_str(&path), "same node", 9) == 0;
    hy_buf_fini(&path);
    return yes;
}

hy_status bench_pair_open(bench *b, int which)
{
    hy_fab_opts o;
    hy_fab_info info;
    bench_pair *x = hy_calloc(1, sizeof(*x));
    if (x == NULL)
        return hy_fail(HY_E_NOMEM, "bench: no memory");
    x->b = b;
    b->pair[which] = x;
    options(b, which, &o);
    HY_TRY(hy_fab_open(&o, &x->f));
    hy_span s = hy_span_host(b->pool, b->pool_len);
    HY_TRY(hy_fab_reg(x->f, &s, HY_FAB_REMOTE_READ | HY_FAB_REMOTE_WRITE, &x->mr));
    hy_fab_info_get(x->f, &info);
    if (which == BENCH_MAIN)
        snprintf(b->r.provider, sizeof(b->r.provider), "%s", info.rail[0].provider);
    HY_TRY(meet(x));
    if (!bench_sync(b)) /* what follows the greeting has come */
        return HY_E_PEER;
    char mine = which != BENCH_SAME || is_same_node(x), theirs = 0;
    if (!bench_put(b, &mine, 1) || !bench_get(b, &theirs, 1))
        return HY_E_PEER;
    if (!mine || !theirs)
        bench_pair_close(b, which);
    return HY_OK;
}

void bench_pair_close(bench *b, int which)
{
    if (b->pair[which] == NULL)
        return;
    hy_fab_close(b->pair[which]->f);
    hy_free(b->pair[which]);
    b->pair[which] = NULL;
}

hy_status bench_pair_move(bench *b, int which, uint64_t size, bool read, double *gbs)
{
    bench_pair *x = b->pair[which];
    uint64_t total = bench_total(b, size), posted = 0, done = 0, page = 0, per = OP_BYTES / size;
    if (b->side == 1)
        return HY_OK; /* its progress thread does the work */
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
                r[i] = (hy_fab_range){x->mr, bench_page(b, page, size), &x->key,
                                      bench_page(b, page, size), size};
            st = read ? hy_fab_read(x->f, x->peer, r, per, &oo, NULL)
                      : hy_fab_write(x->f, x->peer, r, per, &oo, NULL);
            posted += st == HY_OK ? per * size : 0;
        }
        /* as who has other things to do: it leaves the moving to the progress thread */
        if (posted >= total || posted - done >= (uint64_t)OPS * OP_BYTES)
            hy_fab_wait(x->f, hy_clock_now_ns(hy_clock_real()) + HY_SEC);
        while (st >= 0 && hy_fab_poll(x->f, &ev, 1) == 1) {
            if (ev.kind == HY_FAB_EV_DOWN || ev.status < 0)
                st = hy_fail(HY_E_PEER, "bench: %s", ev.text);
            done += ev.kind == HY_FAB_EV_DONE && ev.user == BULK ? ev.len : 0;
        }
    }
    *gbs = (double)done / (bench_now() - t) / 1e9;
    hy_fab_stats s;
    hy_fab_stats_get(x->f, &s);
    b->r.beside |= which == BENCH_MAIN && s.beside > 0;
    hy_free(r);
    return st;
}

static hy_status recv_msg(bench_pair *x, uint32_t *type)
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

static hy_status echo(bench_pair *x)
{
    uint32_t type = PING;
    while (type != LAST) {
        HY_TRY(recv_msg(x, &type));
        HY_TRY(hy_fab_send(x->f, x->peer, type, "12345678", 8, NULL, NULL));
    }
    return HY_OK;
}

/* Until enough, or for some seconds and at least one where the machine is busy. */
hy_status bench_pair_pings(bench *b, double *p50, double *p99)
{
    bench_pair *x = b->pair[BENCH_MAIN];
    if (b->side == 1)
        return echo(x);
    double *v = hy_malloc(PINGS * sizeof(*v)), begin = bench_now();
    hy_status st = v != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "bench: no memory");
    uint32_t type = PING;
    int n = -WARM;
    for (; st >= 0 && type != LAST; n++) {
        double t = bench_now();
        type = n >= PINGS - 1 || (n > 0 && t - begin > MOST_S) ? LAST : PING;
        st = hy_fab_send(x->f, x->peer, type, &t, 8, NULL, NULL);
        if (st >= 0)
            st = recv_msg(x, &type);
        if (n >= 0 && v != NULL)
            v[n] = (bench_now() - t) / 2 * 1e6;
    }
    if (st >= 0 && n > 0)
        bench_percentiles(v, n, p50, p99);
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

/* One pair alone. */
hy_status bench_idle(bench *b)
{
    bench_raw_close(b);
    bench_pair_close(b, BENCH_ALONE);
    bench_pair_close(b, BENCH_SAME);
    if (!bench_sync(b))
        return HY_E_PEER;
    double other, t = cpu_s();
    nanosleep(&(struct timespec){2, 0}, NULL);
    t = (cpu_s() - t) / 2;
    if (!bench_put(b, &t, sizeof(t)) || !bench_get(b, &other, sizeof(other)))
        return HY_E_PEER;
    b->r.idle_core = t > other ? t : other;
    return HY_OK;
}
