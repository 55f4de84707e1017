/* SPDX-License-Identifier: Apache-2.0
 *
 * The provider's raw rate: one endpoint each, both polling while it is measured, writes (delivery
 * complete) and reads with a window in flight, no fabric above.
 *
 * Thread: main of each process.  Owner: closes what it opens.
 */
#include "fabric/bench_int.h"
#include "fabric/ofi/ofi_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

struct bench_raw {
    ofi_rail *r;
    ofi_link *l;
    ofi_mr *mr;
    fab_link link; /* an empty one: the data path wants to know its link */
    hy_fab *f;
    uint64_t addr, key;
};

typedef struct names {
    uint64_t addr, key, len;
    uint8_t blob[FAB_BLOB_MAX];
} names;

hy_status bench_raw_open(bench *b)
{
    names me = {.len = FAB_BLOB_MAX}, you;
    size_t len = FAB_BLOB_MAX;
    void *p;
    hy_span s = hy_span_host(b->pool, b->pool_len);
    struct bench_raw *x = hy_calloc(1, sizeof(*x));
    b->raw = x;
    if (x == NULL || (x->f = hy_calloc(1, sizeof(*x->f))) == NULL)
        return hy_fail(HY_E_NOMEM, "bench: no memory");
    hy_fab_opts_init(&x->f->o);
    x->f->clock = hy_clock_real();
    snprintf(x->f->congestion, sizeof(x->f->congestion), "%s",
             b->o.congestion != NULL ? b->o.congestion : x->f->o.congestion);
    HY_TRY(ofi_rail_open(x->f, 0, "127.0.0.1", b->r.provider, &p));
    x->r = p;
    x->link.f = x->f;
    x->link.dp = &hy_fab__ofi_dp;
    HY_TRY(ofi_link_open(x->r, &x->link, &p, me.blob, &len));
    x->l = p;
    HY_TRY(ofi_reg(x->r, &s, FAB_LAND | HY_FAB_REMOTE_READ | HY_FAB_REMOTE_WRITE,
                   (uint64_t)b->side + 1, &p, &me.addr, &me.key));
    x->mr = p;
    me.len = len;
    if (!bench_put(b, &me, sizeof(me)) || !bench_get(b, &you, sizeof(you)))
        return hy_fail(HY_E_PEER, "bench: the other side is gone");
    x->addr = you.addr;
    x->key = you.key;
    return ofi_link_connect(x->l, you.blob, you.len);
}

void bench_raw_close(bench *b)
{
    struct bench_raw *x = b->raw;
    if (x == NULL)
        return;
    if (x->l != NULL)
        ofi_link_close(x->l);
    if (x->mr != NULL)
        ofi_dereg(x->mr);
    if (x->r != NULL)
        ofi_rail_close(x->r);
    hy_free(x->f);
    hy_free(x);
    b->raw = NULL;
}

static long reap(struct bench_raw *x)
{
    struct fi_cq_entry e[16];
    ssize_t n = fi_cq_read(x->l->cq, e, 16);
    if (!x->l->tuned)
        ofi_tune(x->l);
    return n > 0 ? n : n == -FI_EAGAIN ? 0 : -1;
}

/* The target polls until the other side has gone on. */
static hy_status serve(bench *b)
{
    for (char c;;) {
        reap(b->raw);
        ssize_t k = recv(b->sock, &c, 1, MSG_DONTWAIT | MSG_PEEK);
        if (k >= 0)
            return k == 1 ? HY_OK : hy_fail(HY_E_PEER, "bench: the other side is gone");
    }
}

hy_status bench_raw_move(bench *b, uint64_t size, bool read, double *gbs)
{
    static struct fi_context2 ctx[256];
    struct bench_raw *x = b->raw;
    uint64_t total = bench_total(b, size) / size, posted = 0, done = 0;
    uint64_t win = (8u << 20) / size < 64 ? (8u << 20) / size : 64;
    if (b->side == 1)
        return serve(b);
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
