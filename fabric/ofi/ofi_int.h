/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the libfabric data path. A rail is a provider's domain at one address; a link has an
 * endpoint, an address table and a completion queue of its own. That costs memory per peer and
 * buys the fence: closing the link's endpoint is something every provider can do, recalling a
 * write is something none can. It also keeps a provider that answers FI_EAGAIN for ever after a
 * failure (net, verbs) from doing so to other peers.
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
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    bool hmem, local, virt_addr, prov_key;
    uint64_t key_mask;
    int max_segs;
} ofi_rail;

typedef struct ofi_mr {
    struct fid_mr *mr;
    void *desc;
    bool local;
} ofi_mr;

typedef struct ofi_link {
    ofi_rail *r;
    fab_link *link;
    struct fid_ep *ep;
    struct fid_av *av;
    struct fid_cq *cq;
    fi_addr_t peer;
    bool connected;
    /* strict profile */
    fab_piece *held[OFI_STASH], *done[OFI_STASH];
    int n_held, n_done;
} ofi_link;

hy_status ofi_rail_open(hy_fab *f, int rail, const char *host, const char *provider, void **out);
void ofi_rail_close(void *rail);
hy_status ofi_reg(void *rail, const hy_span *s, unsigned access, uint64_t token, void **mr_out,
                  uint64_t *addr_out, uint64_t *rkey_out);
void ofi_dereg(void *mr);
hy_status ofi_link_open(void *rail, fab_link *l, void **out, void *blob, size_t *blob_len);
/* Opens an endpoint as a link has it, and closes it: or the provider is of no use. */
hy_status ofi_link_probe(ofi_rail *r);
hy_status ofi_link_connect(void *dpl, const void *blob, size_t n);
void ofi_link_close(void *dpl);
hy_status ofi_post(void *dpl, fab_piece *p);
/* Completions to `done` (at most max); -1: the link is broken and said so. */
int ofi_completions(ofi_link *l, fab_piece **done, int max);

#endif
