/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the libfabric data path. A rail is a provider's domain at one address; a link has an
 * endpoint, an address table and a completion queue of its own. That costs memory per peer and
 * buys the fence: closing the link's endpoint is something every provider can do, recalling a
 * write is something none can. It also keeps a provider that answers FI_EAGAIN for ever after a
 * failure (net, verbs) from doing so to other peers.
 *
 * With net and tcp a link has even a domain of its own: a connection that is accepted there and has
 * not told its peer's name yet outlives its endpoint in the domain, points to freed memory, and
 * kills the process at the next poll of any other endpoint of that domain (seen in 1.17: a
 * peer that dies, or a link that is closed, while it connects). It dies with the domain. Memory is
 * registered in each domain under the same key, which costs these providers nothing.
 *
 * Thread: under the fabric's lock (FI_THREAD_DOMAIN).  Owner: the rail; the link.
 */
#ifndef HY_FABRIC_OFI_INT_H
#define HY_FABRIC_OFI_INT_H

#include "fabric/fab_int.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

_Static_assert(sizeof(struct fi_context2) <= FAB_CTX, "a piece carries the provider's context");

enum { OFI_STASH = 32 };

typedef struct ofi_rail {
    hy_fab *f;
    int rail;
    char name[48];
    struct fi_info *info;
    bool any_addr; /* listens on all interfaces: a link takes the address it was met at */
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    bool hmem, local, virt_addr, prov_key, per_link;
    uint64_t key_mask;
    int max_segs;
    struct ofi_link *links; /* those with a domain of their own */
    struct ofi_mr *mrs;
} ofi_rail;

typedef struct ofi_copy { /* a memory in the domain of a link */
    struct ofi_copy *next;
    struct ofi_link *l;
    struct fid_mr *mr;
} ofi_copy;

typedef struct ofi_mr {
    ofi_rail *r;
    struct ofi_mr *next;
    struct fid_mr *mr;
    ofi_copy *copies;
    struct iovec iov;
    uint64_t access;
    void *desc;
    bool local;
} ofi_mr;

typedef struct ofi_link {
    ofi_rail *r;
    struct ofi_link *next;
    fab_link *link;
    struct fid_domain *domain; /* the rail's, or its own */
    struct fid_ep *ep;
    struct fid_av *av;
    struct fid_cq *cq;
    fi_addr_t peer;
    bool connected, tuned; /* the provider's own connection has its congestion control */
    uint8_t name[FAB_BLOB_MAX], peer_name[FAB_BLOB_MAX];
    size_t n_name, n_peer_name;
    /* strict profile */
    fab_piece *held[OFI_STASH], *done[OFI_STASH];
    int n_held, n_done;
} ofi_link;

hy_status ofi_rail_open(hy_fab *f, int rail, const char *host, const char *provider, void **out);
void ofi_rail_close(void *rail);
hy_status ofi_reg(void *rail, const hy_span *s, unsigned access, uint64_t token, void **mr_out,
                  uint64_t *addr_out, uint64_t *rkey_out);
void ofi_dereg(void *mr);
/* The rail's memories into and out of a link's own domain. */
hy_status ofi_share(ofi_link *l);
void ofi_unshare(ofi_link *l);
hy_status ofi_link_open(void *rail, fab_link *l, void **out, void *blob, size_t *blob_len);
/* Opens an endpoint as a link has it, and closes it: or the provider is of no use. */
hy_status ofi_link_probe(ofi_rail *r);
hy_status ofi_link_connect(void *dpl, const void *blob, size_t n);
void ofi_link_close(void *dpl);
hy_status ofi_post(void *dpl, fab_piece *p);
/* Completions to `done` (at most max); -1: the link is broken and said so. */
int ofi_completions(ofi_link *l, fab_piece **done, int max);
void ofi_tune(ofi_link *l);
bool ofi_uses(void *dpl, const hy_fab_mr *mr);

#endif
