/* SPDX-License-Identifier: Apache-2.0
 *
 * libfabric rails: which provider, with which registration rules, and registered memory.
 *
 * Thread: under the fabric's lock.  Owner: the rail.
 */
#include "fabric/ofi/ofi_int.h"

#include <stdio.h>
#include <string.h>

/* Our name to libfabric's, which depends on its version (research: native RDM over TCP is `net` in
 * 1.17 and `tcp` from 1.18 on; there `tcp` of 1.17 is an older layer that ofi_rxm sits on). */
static const char *real_name(const char *name)
{
    bool old = FI_VERSION_LT(fi_version(), FI_VERSION(1, 18));
    if (strcmp(name, "tcp") == 0 || strcmp(name, "net") == 0)
        return old ? "net" : "tcp";
    return strcmp(name, "verbs") == 0 ? "verbs;ofi_rxm" : name;
}

static bool has_address(const char *name)
{
    return strcmp(name, "shm") != 0 && strcmp(name, "sm2") != 0 && strcmp(name, "efa") != 0;
}

static struct fi_info *get_info(const char *real, const char *host, bool hmem, int *rc)
{
    struct fi_info *h = fi_allocinfo(), *list = NULL, *found = NULL;
    if (h == NULL)
        return NULL;
    h->fabric_attr->prov_name = strdup(real);
    h->ep_attr->type = FI_EP_RDM;
    h->caps = FI_MSG | FI_RMA | (hmem ? FI_HMEM : 0);
    h->mode = FI_CONTEXT | FI_CONTEXT2;
    h->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | (hmem ? FI_MR_HMEM : 0);
    h->domain_attr->av_type = FI_AV_TABLE;
    h->domain_attr->threading = FI_THREAD_DOMAIN;
    h->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    bool addr = has_address(real) && host[0] != 0;
    *rc = fi_getinfo(FI_VERSION(1, 17), addr ? host : NULL, NULL, addr ? FI_SOURCE : 0, h, &list);
    for (struct fi_info *i = list; i != NULL && *rc == 0 && found == NULL; i = i->next)
        if (strcmp(i->fabric_attr->prov_name, real) == 0)
            found = fi_dupinfo(i);
    fi_freeinfo(list);
    fi_freeinfo(h);
    return found;
}

static hy_status open_domain(ofi_rail *r, const char *real, const char *host)
{
    int rc = 0;
    bool try_hmem = strcmp(real, "efa") == 0 || strncmp(real, "verbs", 5) == 0;
    if (try_hmem)
        r->info = get_info(real, host, true, &rc);
    r->hmem = r->info != NULL;
    if (r->info == NULL)
        r->info = get_info(real, host, false, &rc);
    if (r->info == NULL)
        return hy_fail(HY_E_NOTFOUND, "libfabric has no %s at %s: %s", real, host,
                       rc != 0 ? fi_strerror(-rc) : "not listed");
    int mode = r->info->domain_attr->mr_mode;
    if (mode & (FI_MR_ENDPOINT | FI_MR_RAW))
        return hy_fail(HY_E_UNSUPPORTED, "%s wants registrations per endpoint", real);
    r->local = (mode & FI_MR_LOCAL) != 0;
    r->virt_addr = (mode & FI_MR_VIRT_ADDR) != 0;
    r->prov_key = (mode & FI_MR_PROV_KEY) != 0;
    size_t key = r->info->domain_attr->mr_key_size;
    if (key > 8)
        return hy_fail(HY_E_UNSUPPORTED, "%s has keys of %zu bytes", real, key);
    r->key_mask = key == 8 ? UINT64_MAX : (UINT64_C(1) << (8 * key)) - 1;
    size_t iov = r->info->tx_attr->iov_limit, rma = r->info->tx_attr->rma_iov_limit;
    size_t segs = iov < rma ? iov : rma;
    r->max_segs = segs < 1 ? 1 : segs > FAB_SEGS ? FAB_SEGS : (int)segs;
    if ((rc = fi_fabric(r->info->fabric_attr, &r->fabric, NULL)) != 0)
        return hy_fail(HY_E_SYS, "%s: fi_fabric: %s", real, fi_strerror(-rc));
    if ((rc = fi_domain(r->fabric, r->info, &r->domain, NULL)) != 0)
        return hy_fail(HY_E_SYS, "%s: fi_domain: %s", real, fi_strerror(-rc));
    return HY_OK;
}

hy_status ofi_rail_open(hy_fab *f, int rail, const char *host, const char *provider, void **out)
{
    const char *real = real_name(provider);
    if (strcmp(provider, "sockets") == 0 || strcmp(provider, "udp") == 0)
        return hy_fail(HY_E_UNSUPPORTED, "%s is not supported: it stalls", provider);
    ofi_rail *r = hy_calloc(1, sizeof(*r));
    if (r == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a rail");
    r->f = f;
    r->rail = rail;
    snprintf(r->name, sizeof(r->name), "%.*s", (int)strcspn(real, ";"), real);
    hy_status st = open_domain(r, real, host);
    if (st == HY_OK)
        st = ofi_link_probe(r);
    if (st < 0) {
        ofi_rail_close(r);
        return st;
    }
    hy_info("fabric",
            "%s %u.%u of libfabric %u.%u at %s: mr_mode %#x, %d ranges a write, device memory %s",
            real, FI_MAJOR(r->info->fabric_attr->prov_version),
            FI_MINOR(r->info->fabric_attr->prov_version), FI_MAJOR(fi_version()),
            FI_MINOR(fi_version()), host, (unsigned)r->info->domain_attr->mr_mode, r->max_segs,
            r->hmem ? "registered" : "staged through host memory");
    /* both ends compare it: `net` and `tcp` are not one protocol */
    snprintf(f->rail[rail].provider, sizeof(f->rail[rail].provider), "%s", r->name);
    *out = r;
    return HY_OK;
}

void ofi_rail_close(void *rail)
{
    ofi_rail *r = rail;
    if (r->domain != NULL)
        fi_close(&r->domain->fid);
    if (r->fabric != NULL)
        fi_close(&r->fabric->fid);
    fi_freeinfo(r->info);
    hy_free(r);
}

static int reg_device(ofi_rail *r, const hy_span *s, struct fi_mr_attr *a, struct fid_mr **mr)
{
#ifdef FI_MR_DMABUF
    struct fi_mr_dmabuf d = {.fd = s->exp.fd,
                             .offset = s->exp.offset,
                             .len = s->len,
                             .base_addr = (char *)s->addr - s->exp.offset};
    if (s->exp.kind == HY_EXPORT_FD) {
        a->dmabuf = &d;
        return fi_mr_regattr(r->domain, a, FI_MR_DMABUF, mr);
    }
#else
    (void)r;
    (void)s;
    (void)a;
    (void)mr;
#endif
    return -FI_ENOSYS;
}

hy_status ofi_reg(void *rail, const hy_span *s, unsigned access, uint64_t token, void **mr_out,
                  uint64_t *addr_out, uint64_t *rkey_out)
{
    ofi_rail *r = rail;
    bool land = (access & FAB_LAND) != 0, device = s->mem == HY_MEM_DEVICE;
    if (device && !r->hmem)
        return hy_fail(HY_E_UNSUPPORTED,
                       "%s takes no device memory here: stage through host memory", r->name);
    ofi_mr *m = hy_calloc(1, sizeof(*m));
    if (m == NULL)
        return hy_fail(HY_E_NOMEM, "no memory to register memory");
    struct iovec iov = {s->addr, s->len};
    struct fi_mr_attr a = {.mr_iov = &iov,
                           .iov_count = 1,
                           .access = FI_WRITE | FI_REMOTE_READ |
                                     (land ? (uint64_t)FI_READ | FI_REMOTE_WRITE : 0),
                           .requested_key = r->prov_key ? 0 : token & r->key_mask};
    int rc = device ? reg_device(r, s, &a, &m->mr) : fi_mr_regattr(r->domain, &a, 0, &m->mr);
    if (rc != 0) {
        hy_free(m);
        return hy_fail(rc == -FI_ENOSYS ? HY_E_UNSUPPORTED : HY_E_SYS,
                       "%s: registering %llu bytes: %s%s", r->name, (unsigned long long)s->len,
                       fi_strerror(-rc),
                       rc == -FI_ENOMEM ? " (raise `ulimit -l`, the limit of locked memory)" : "");
    }
    m->local = r->local || device;
    m->desc = fi_mr_desc(m->mr);
    *mr_out = m;
    *addr_out = r->virt_addr ? (uint64_t)(uintptr_t)s->addr : 0;
    *rkey_out = fi_mr_key(m->mr);
    return HY_OK;
}

void ofi_dereg(void *mr)
{
    ofi_mr *m = mr;
    fi_close(&m->mr->fid);
    hy_free(m);
}
