/* SPDX-License-Identifier: Apache-2.0
 *
 * libfabric links: an endpoint per link, pieces as delivery-complete writes and reads.
 *
 * Thread: under the fabric's lock.  Owner: the link.
 */
#include "fabric/ofi/ofi_int.h"
#include "fabric/sock.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOVED_NS (2 * HY_US)

/* On a rail of all interfaces each endpoint is bound to the address that the peer has reached, for
 * that is what the peer is told. */
static hy_status open_ep(ofi_link *l, int *rc)
{
    ofi_rail *r = l->r;
    const fab_ct_ops *ct = r->f->ct;
    struct sockaddr_storage ss;
    size_t n = 0;
    if (!r->any_addr || l->link == NULL || l->link->conn == NULL || ct->local == NULL) {
        *rc = fi_endpoint(l->domain, r->info, &l->ep, NULL);
        return HY_OK;
    }
    n = ct->local(r->f->ctx, l->link->conn, &ss, sizeof(ss));
    struct fi_info *info = n > 0 ? fi_dupinfo(r->info) : NULL;
    void *addr = info != NULL ? malloc(n) : NULL;
    if (addr == NULL) {
        fi_freeinfo(info);
        return hy_fail(HY_E_SYS, "%s: no address of this end of the link", r->name);
    }
    if (ss.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&ss)->sin6_port = 0;
    else
        ((struct sockaddr_in *)&ss)->sin_port = 0;
    memcpy(addr, &ss, n);
    free(info->src_addr); /* libfabric's, from malloc */
    info->src_addr = addr;
    info->src_addrlen = n;
    *rc = fi_endpoint(l->domain, info, &l->ep, NULL);
    fi_freeinfo(info);
    return HY_OK;
}

static hy_status open_parts(ofi_link *l)
{
    ofi_rail *r = l->r;
    struct fi_av_attr aa = {.type = FI_AV_TABLE, .count = 1};
    struct fi_cq_attr ca = {.size = 512, .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_NONE};
    const char *what = "fi_domain";
    int rc = 0;
    l->domain = r->domain;
    if (r->per_link) {
        l->domain = NULL;
        rc = fi_domain(r->fabric, r->info, &l->domain, NULL);
        if (rc == 0)
            HY_TRY(ofi_share(l));
    }
    if (rc == 0) {
        what = "fi_av_open";
        rc = fi_av_open(l->domain, &aa, &l->av, NULL);
    }
    if (rc == 0) {
        what = "fi_cq_open";
        rc = fi_cq_open(l->domain, &ca, &l->cq, NULL);
    }
    if (rc == 0) {
        what = "fi_endpoint";
        HY_TRY(open_ep(l, &rc));
    }
    if (rc == 0) {
        what = "fi_ep_bind";
        rc = fi_ep_bind(l->ep, &l->av->fid, 0);
    }
    if (rc == 0)
        rc = fi_ep_bind(l->ep, &l->cq->fid, FI_TRANSMIT | FI_RECV);
    if (rc == 0) {
        what = "fi_enable (with verbs, try FI_UNIVERSE_SIZE=16)";
        rc = fi_enable(l->ep);
    }
    return rc == 0 ? HY_OK : hy_fail(HY_E_SYS, "%s: %s: %s", r->name, what, fi_strerror(abs(rc)));
}

hy_status ofi_link_open(void *rail, fab_link *link, void **out, void *blob, size_t *blob_len)
{
    ofi_rail *r = rail;
    ofi_link *l = hy_calloc(1, sizeof(*l));
    if (l == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a data path");
    l->r = r;
    l->link = link;
    hy_status st = open_parts(l);
    if (st == HY_OK) {
        int rc = fi_getname(&l->ep->fid, blob, blob_len);
        if (rc != 0 || *blob_len > FAB_BLOB_MAX)
            st = hy_fail(HY_E_SYS, "%s: fi_getname: %s", r->name, fi_strerror(abs(rc)));
    }
    if (st < 0) {
        ofi_link_close(l);
        return st;
    }
    memcpy(l->name, blob, *blob_len);
    l->n_name = *blob_len;
    l->tuned = !r->per_link;
    link->max_segs = link->dp->max_segs < r->max_segs ? link->dp->max_segs : r->max_segs;
    link->pull_by_write = link->native_tcp = r->per_link;
    *out = l;
    return HY_OK;
}

hy_status ofi_link_probe(ofi_rail *r)
{
    ofi_link *l = hy_calloc(1, sizeof(*l));
    if (l == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a data path");
    l->r = r;
    hy_status st = open_parts(l);
    ofi_link_close(l);
    return st;
}

hy_status ofi_link_connect(void *dpl, const void *blob, size_t n)
{
    ofi_link *l = dpl;
    uint8_t name[FAB_BLOB_MAX + 1] = {0}; /* some providers' names are strings */
    if (n == 0 || n > FAB_BLOB_MAX)
        return hy_fail(HY_E_FORMAT, "%s: address of %zu bytes", l->r->name, n);
    memcpy(name, blob, n);
    memcpy(l->peer_name, blob, n);
    l->n_peer_name = n;
    int rc = fi_av_insert(l->av, name, 1, &l->peer, 0, NULL);
    if (rc != 1)
        return hy_fail(HY_E_PEER, "%s: the peer's address is not accepted", l->r->name);
    l->connected = true;
    return HY_OK;
}

void ofi_link_close(void *dpl)
{
    ofi_link *l = dpl;
    if (l->ep != NULL)
        fi_close(&l->ep->fid);
    if (l->cq != NULL)
        fi_close(&l->cq->fid);
    if (l->av != NULL)
        fi_close(&l->av->fid);
    if (l->r->per_link && l->domain != NULL) {
        ofi_unshare(l);
        fi_close(&l->domain->fid);
    }
    hy_free(l);
}

hy_status ofi_post(void *dpl, fab_piece *p)
{
    ofi_link *l = dpl;
    struct iovec iov[FAB_SEGS];
    struct fi_rma_iov rma[FAB_SEGS];
    void *desc[FAB_SEGS];
    int rail = l->link->rail, rrail = l->link->rrail;
    if (!l->connected)
        return HY_AGAIN;
    for (int i = 0; i < p->n_segs; i++) {
        const fab_seg *s = &p->seg[i];
        const ofi_mr *m = s->mr->rail[rail].dmr;
        if (rrail >= (int)s->key->n_rails)
            return hy_fail(HY_E_PROTOCOL, "a key without rail %d", rrail);
        iov[i] = (struct iovec){(char *)s->mr->span.addr + s->off, s->len};
        rma[i] = (struct fi_rma_iov){s->key->addr[rrail] + s->roff, s->len, s->key->rkey[rrail]};
        desc[i] = m->local ? m->desc : NULL;
    }
    struct fi_msg_rma m = {.msg_iov = iov,
                           .desc = desc,
                           .iov_count = (size_t)p->n_segs,
                           .addr = l->peer,
                           .rma_iov = rma,
                           .rma_iov_count = (size_t)p->n_segs,
                           .context = p};
    /* delivery complete is honoured per call only (net ignores it among the endpoint's flags) */
    ssize_t rc = p->read ? fi_readmsg(l->ep, &m, FI_COMPLETION)
                         : fi_writemsg(l->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE);
    if (rc == 0)
        return HY_OK;
    if (rc == -FI_EAGAIN)
        return HY_AGAIN;
    return hy_fail(HY_E_PEER, "%s: %s: %s", l->r->name, p->read ? "read" : "write",
                   fi_strerror((int)-rc));
}

static void failed(ofi_link *l)
{
    struct fi_cq_err_entry e = {0};
    if (fi_cq_readerr(l->cq, &e, 0) < 1)
        return;
    char why[96]; /* err is negative in shm */
    snprintf(why, sizeof(why), "%s: %s (%d/%d)", l->r->name, fi_strerror(abs(e.err)), e.err,
             e.prov_errno);
    hy_fab__break(l->link, HY_E_PEER, why);
}

/* The provider's own connection, which is there once bytes have gone. */
void ofi_tune(ofi_link *l)
{
    l->tuned = hy_fab__congestion_find(l->r->f->congestion, l->name, l->n_name, l->peer_name,
                                       l->n_peer_name);
}

int ofi_completions(ofi_link *l, fab_piece **done, int max)
{
    struct fi_cq_entry e[OFI_STASH];
    ssize_t n = fi_cq_read(l->cq, e, (size_t)(max < OFI_STASH ? max : OFI_STASH));
    if (n == -FI_EAGAIN || n == 0)
        return 0;
    if (n < 0) {
        if (n == -FI_EAVAIL)
            failed(l);
        else
            hy_fab__break(l->link, HY_E_PEER, fi_strerror((int)-n));
        return -1;
    }
    int k = 0;
    for (ssize_t i = 0; i < n; i++)
        if (e[i].op_context != NULL)
            done[k++] = e[i].op_context;
    return k;
}

static bool progress(void *dpl, uint64_t now)
{
    ofi_link *l = dpl;
    fab_piece *done[OFI_STASH];
    (void)now;
    uint64_t t = hy_fab__now(l->r->f);
    int n = ofi_completions(l, done, OFI_STASH);
    /* a target has no completions: that its provider has moved bytes shows by the time it took */
    bool moved = n != 0 || hy_fab__now(l->r->f) - t > MOVED_NS;
    if (moved && !l->tuned)
        ofi_tune(l);
    for (int i = 0; i < n; i++)
        hy_fab__piece_done(done[i], HY_OK);
    return moved;
}

/* Once begun, a software provider goes on copying whatever is deregistered meanwhile. */
bool ofi_uses(void *dpl, const hy_fab_mr *mr)
{
    const ofi_link *l = dpl;
    (void)mr;
    return l->link->they_announce || l->link->n_dp > 0;
}

const fab_dp_ops hy_fab__ofi_dp = {
    .name = "ofi",
    .max_segs = 4,
    .rail_open = ofi_rail_open,
    .rail_close = ofi_rail_close,
    .reg = ofi_reg,
    .dereg = ofi_dereg,
    .link_open = ofi_link_open,
    .link_connect = ofi_link_connect,
    .link_close = ofi_link_close,
    .post = ofi_post,
    .progress = progress,
    .uses = ofi_uses,
};
