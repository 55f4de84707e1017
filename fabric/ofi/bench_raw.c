/* SPDX-License-Identifier: Apache-2.0
 *
 * The provider's raw rate: one endpoint each, both polling, writes (delivery complete) and reads
 * with a window in flight, no fabric above.
 *
 * Thread: main of each process.  Owner: closes what it opens.
 */
#include "fabric/bench_int.h"
#include "fabric/ofi/ofi_int.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

typedef struct raw {
    bench *b;
    ofi_rail *r;
    ofi_link *l;
    ofi_mr *mr;
    fab_link link; /* an empty one: the data path wants to know its link */
    uint64_t addr, key;
} raw;

typedef struct names {
    uint64_t addr, key, len;
    uint8_t blob[FAB_BLOB_MAX];
} names;

static hy_status open_raw(raw *x, hy_fab *f)
{
    names me = {.len = FAB_BLOB_MAX}, you;
    size_t len = FAB_BLOB_MAX;
    void *p;
    hy_span s = hy_span_host(x->b->pool, x->b->pool_len);
    HY_TRY(ofi_rail_open(f, 0, "127.0.0.1", x->b->r.provider, &p));
    x->r = p;
    x->link.dp = &hy_fab__ofi_dp;
    HY_TRY(ofi_link_open(x->r, &x->link, &p, me.blob, &len));
    x->l = p;
    HY_TRY(ofi_reg(x->r, &s, FAB_LAND | HY_FAB_REMOTE_READ | HY_FAB_REMOTE_WRITE,
                   (uint64_t)x->b->side + 1, &p, &me.addr, &me.key));
    x->mr = p;
    me.len = len;
    if (!bench_put(x->b, &me, sizeof(me)) || !bench_get(x->b, &you, sizeof(you)))
        return hy_fail(HY_E_PEER, "bench: the other side is gone");
    x->addr = you.addr;
    x->key = you.key;
    return ofi_link_connect(x->l, you.blob, you.len);
}

static long reap(raw *x)
{
    struct fi_cq_entry e[16];
    ssize_t n = fi_cq_read(x->l->cq, e, 16);
    return n > 0 ? n : n == -FI_EAGAIN ? 0 : -1;
}

static hy_status move(raw *x, uint64_t size, bool read, double *gbs)
{
    static struct fi_context2 ctx[256];
    bench *b = x->b;
    uint64_t total = bench_total(b, size) / size, posted = 0, done = 0;
    uint64_t win = (8u << 20) / size < 64 ? (8u << 20) / size : 64;
    double t = bench_now();
    while (done < total) {
        while (posted < total && posted - done < win) {
            uint64_t off = bench_page(b, posted, size);
            struct iovec iov = {b->pool + off, size};
            struct fi_rma_iov rma = {x->addr + off, size, x->key};
            struct fi_msg_rma m = {&iov, &x->mr->desc,       1, x->l->peer, &rma,
                                   1,    &ctx[posted % 256], 0};
            ssize_t rc = read ? fi_readmsg(x->l->ep, &m, FI_COMPLETION)
                              : fi_writemsg(x->l->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE);
            if (rc == -FI_EAGAIN)
                break;
            if (rc != 0)
                return hy_fail(HY_E_PEER, "bench: raw: %s", fi_strerror((int)-rc));
            posted++;
        }
        long n = reap(x);
        if (n < 0)
            return hy_fail(HY_E_PEER, "bench: raw: a completion failed");
        done += (uint64_t)n;
    }
    *gbs = (double)(total * size) / (bench_now() - t) / 1e9;
    return HY_OK;
}

static hy_status measure(raw *x)
{
    bench *b = x->b;
    int n = b->o.repeats < 16 ? b->o.repeats : 16;
    for (int s = 0; s < HY_FAB_BENCH_SIZES; s++) {
        double v[2][16];
        for (int i = 0; i < n; i++) {
            HY_TRY(move(x, hy_fab_bench_sizes[s], false, &v[0][i]));
            HY_TRY(move(x, hy_fab_bench_sizes[s], true, &v[1][i]));
        }
        b->r.raw_write[s] = bench_median(v[0], n);
        b->r.raw_read[s] = bench_median(v[1], n);
    }
    return bench_sync(b) ? HY_OK : HY_E_PEER;
}

hy_status bench_raw(bench *b)
{
    hy_fab_opts o;
    if (strcmp(b->r.provider, "own") == 0)
        return HY_OK;
    hy_fab_opts_init(&o);
    hy_fab *f = hy_calloc(1, sizeof(*f));
    raw x = {.b = b};
    hy_status st = f != NULL ? open_raw(&x, f) : HY_E_NOMEM;
    char c = 0;
    if (st >= 0 && b->side == 0)
        st = measure(&x);
    while (st >= 0 && b->side == 1) { /* the target polls until the other side is done */
        reap(&x);
        ssize_t k = recv(b->sock, &c, 1, MSG_DONTWAIT);
        if (k == 0)
            st = HY_E_PEER;
        if (k == 1) {
            st = bench_put(b, &c, 1) ? HY_OK : HY_E_PEER;
            break;
        }
    }
    if (x.l != NULL)
        ofi_link_close(x.l);
    if (x.mr != NULL)
        ofi_dereg(x.mr);
    if (x.r != NULL)
        ofi_rail_close(x.r);
    hy_free(f);
    return st;
}
