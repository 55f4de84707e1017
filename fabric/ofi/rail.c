/* SPDX-License-Identifier: Apache-2.0
 *
 * libfabric rails: which provider, with which registration rules, and registered memory.
 *
 * Thread: under the fabric's lock.  Owner: the rail.
 */
#include "fabric/ofi/ofi_int.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* What libfabric reads from the environment at its first call; the site's own values stay.
 * - An endpoint here has one peer. Sized for the default of 256 or more, a queue of verbs;ofi_rxm
 *   is larger than small devices have (fi_enable: EINVAL) and megabytes per link on others.
 * - Cached registrations of verbs stay valid after they are closed: a key must die with its memory.
 * - Receive buffers per endpoint, not per connection: else ofi_rxm sends credits to and fro and
 *   crashes when one is still unread as an endpoint closes (libfabric issue 11828).
 * And the soft limit of locked memory goes up to the hard one. */
static void set_defaults(void)
{
    struct rlimit l;
    setenv("FI_UNIVERSE_SIZE", "16", 0);
    setenv("FI_MR_CACHE_MAX_COUNT", "0", 0);
    setenv("FI_OFI_RXM_USE_SRX", "1", 0);
    if (getrlimit(RLIMIT_MEMLOCK, &l) == 0 && l.rlim_cur != l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        (void)setrlimit(RLIMIT_MEMLOCK, &l);
    }
}

/* dmabuf came with API 1.20; the headers may be of 1.17 and the library newer. So its words are
 * written out here, and whether it is there is asked at run time. */
#define OFI_DMABUF (UINT64_C(1) << 40)

typedef struct ofi_dmabuf { /* struct fi_mr_dmabuf */
    int fd;
    uint64_t offset;
    size_t len;
    void *base_addr;
} ofi_dmabuf;

/* Later releases have members behind those of 1.17, which they read where that API is asked for. */
typedef struct ofi_attr {
    struct fi_mr_attr a;
    uint64_t later[8];
} ofi_attr;

#ifdef FI_MR_DMABUF
_Static_assert(FI_MR_DMABUF == OFI_DMABUF && sizeof(ofi_dmabuf) == sizeof(struct fi_mr_dmabuf) &&
                   offsetof(ofi_dmabuf, base_addr) == offsetof(struct fi_mr_dmabuf, base_addr) &&
                   offsetof(struct fi_mr_attr, dmabuf) == offsetof(struct fi_mr_attr, mr_iov),
               "as libfabric has them");
#endif

static bool has_dmabuf(void)
{
    return FI_VERSION_GE(fi_version(), FI_VERSION(1, 20));
}

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
    /* what of an attribute is read depends on it */
    const uint32_t api = hmem && has_dmabuf() ? FI_VERSION(1, 20) : FI_VERSION(1, 17);
    *rc = fi_getinfo(api, addr ? host : NULL, NULL, addr ? FI_SOURCE : 0, h, &list);
    for (struct fi_info *i = list; i != NULL && *rc == 0 && found == NULL; i = i->next)
        if (strcmp(i->fabric_attr->prov_name, real) == 0)
            found = fi_dupinfo(i);
    fi_freeinfo(list);
    fi_freeinfo(h);
    return found;
}

static bool is_rdma(const char *real)
{
    return strcmp(real, "efa") == 0 || strncmp(real, "verbs", 5) == 0;
}

/* Queues lie in locked memory, too: a card that cannot have them says anything but that. */
static hy_status with_limit(hy_status st, const char *real)
{
    struct rlimit l;
    if (!is_rdma(real) || access("/sys/class/infiniband", F_OK) != 0 ||
        getrlimit(RLIMIT_MEMLOCK, &l) != 0 || l.rlim_cur >= 64u << 20)
        return st;
    char why[200];
    snprintf(why, sizeof(why), "%s", hy_fail_text());
    return hy_fail(st, "%s (locked memory is limited to %llu kB: raise `ulimit -l`)", why,
                   (unsigned long long)l.rlim_cur / 1024);
}

static hy_status open_domain(ofi_rail *r, const char *real, const char *host)
{
    int rc = 0;
    if (is_rdma(real))
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
    r->f->rail[r->rail].pins = (mode & FI_MR_ALLOCATED) != 0;
    size_t key = r->info->domain_attr->mr_key_size;
    if (key > 8)
        return hy_fail(HY_E_UNSUPPORTED, "%s has keys of %zu bytes", real, key);
    r->key_mask = key == 8 ? UINT64_MAX : (UINT64_C(1) << (8 * key)) - 1;
    size_t iov = r->info->tx_attr->iov_limit, rma = r->info->tx_attr->rma_iov_limit;
    size_t segs = iov < rma ? iov : rma;
    r->max_segs = segs < 1 ? 1 : segs > FAB_SEGS ? FAB_SEGS : (int)segs;
    size_t most = r->info->ep_attr->max_msg_size;
    if (r->f->o.piece_bytes > most) {
        hy_warn("fabric", "%s moves at most %zu bytes at once: pieces are cut to that", real, most);
        r->f->o.piece_bytes = most;
    }
    if ((rc = fi_fabric(r->info->fabric_attr, &r->fabric, NULL)) != 0)
        return hy_fail(HY_E_SYS, "%s: fi_fabric: %s", real, fi_strerror(-rc));
    if ((rc = fi_domain(r->fabric, r->info, &r->domain, NULL)) != 0)
        return hy_fail(HY_E_SYS, "%s: fi_domain: %s", real, fi_strerror(-rc));
    return HY_OK;
}

hy_status ofi_rail_open(hy_fab *f, int rail, const char *host, const char *provider, void **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *real = real_name(provider);
    pthread_once(&once, set_defaults);
    if (strcmp(provider, "sockets") == 0 || strcmp(provider, "udp") == 0)
        return hy_fail(HY_E_UNSUPPORTED, "%s is not supported: it stalls", provider);
    ofi_rail *r = hy_calloc(1, sizeof(*r));
    if (r == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a rail");
    r->f = f;
    r->rail = rail;
    r->any_addr = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    snprintf(r->name, sizeof(r->name), "%.*s", (int)strcspn(real, ";"), real);
    r->per_link = strcmp(real, "net") == 0 || strcmp(real, "tcp") == 0;
    hy_status st = open_domain(r, real, host);
    if (st == HY_OK)
        st = ofi_link_probe(r);
    if (st < 0) {
        ofi_rail_close(r);
        return with_limit(st, real);
    }
    hy_info("fabric",
            "%s %u.%u of libfabric %u.%u at %s: mr_mode %#x, %d ranges a write, device memory %s",
            real, FI_MAJOR(r->info->fabric_attr->prov_version),
            FI_MINOR(r->info->fabric_attr->prov_version), FI_MAJOR(fi_version()),
            FI_MINOR(fi_version()), host, (unsigned)r->info->domain_attr->mr_mode, r->max_segs,
            !r->hmem       ? "staged through host memory"
            : has_dmabuf() ? "registered by dmabuf"
                           : "staged through host memory (this libfabric has no dmabuf)");
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

static hy_status share_one(ofi_link *l, ofi_mr *m)
{
    ofi_copy *c = hy_calloc(1, sizeof(*c));
    if (c == NULL)
        return hy_fail(HY_E_NOMEM, "no memory to register memory");
    const ofi_attr a = {.a = {.mr_iov = &m->iov,
                              .iov_count = 1,
                              .access = m->access,
                              .requested_key = fi_mr_key(m->mr)}};
    int rc = fi_mr_regattr(l->domain, &a.a, 0, &c->mr);
    if (rc != 0) {
        hy_free(c);
        return hy_fail(HY_E_SYS, "%s: registering memory for a link: %s", l->r->name,
                       fi_strerror(-rc));
    }
    c->l = l;
    c->next = m->copies;
    m->copies = c;
    return HY_OK;
}

hy_status ofi_share(ofi_link *l)
{
    l->next = l->r->links;
    l->r->links = l;
    for (ofi_mr *m = l->r->mrs; m != NULL; m = m->next)
        HY_TRY(share_one(l, m));
    return HY_OK;
}

void ofi_unshare(ofi_link *l)
{
    for (ofi_link **at = &l->r->links; *at != NULL; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            break;
        }
    for (ofi_mr *m = l->r->mrs; m != NULL; m = m->next)
        for (ofi_copy **at = &m->copies; *at != NULL;) {
            ofi_copy *c = *at;
            if (c->l != l) {
                at = &c->next;
                continue;
            }
            *at = c->next;
            fi_close(&c->mr->fid);
            hy_free(c);
        }
}

/* Compiled only: it takes a GPU and a card that reaches it (docs/FABRIC.md). */
static int reg_device(ofi_rail *r, const hy_span *s, ofi_attr *a, struct fid_mr **mr)
{
    const ofi_dmabuf d = {.fd = s->exp.fd,
                          .offset = s->exp.offset,
                          .len = s->len,
                          .base_addr = (char *)s->addr - s->exp.offset};
    const void *at = &d;
    if (!has_dmabuf() || s->exp.kind != HY_EXPORT_FD || s->exp.key == HY_MAKER_NONE)
        return -FI_ENOSYS;
    memcpy(&a->a.mr_iov, &at, sizeof(at)); /* one place with `dmabuf` */
    a->a.iface = s->exp.key == HY_MAKER_CUDA ? FI_HMEM_CUDA : FI_HMEM_ROCR;
    a->a.device.cuda = s->device;
    return fi_mr_regattr(r->domain, &a->a, OFI_DMABUF, mr);
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
    m->r = r;
    m->iov = (struct iovec){s->addr, s->len};
    m->access = FI_WRITE | FI_REMOTE_READ | (land ? (uint64_t)FI_READ | FI_REMOTE_WRITE : 0);
    ofi_attr a = {.a = {.mr_iov = &m->iov,
                        .iov_count = 1,
                        .access = m->access,
                        .requested_key = r->prov_key ? 0 : token & r->key_mask}};
    int rc = device ? reg_device(r, s, &a, &m->mr) : fi_mr_regattr(r->domain, &a.a, 0, &m->mr);
    if (rc != 0) {
        hy_free(m);
        return hy_fail(rc == -FI_ENOSYS ? HY_E_UNSUPPORTED : HY_E_SYS,
                       "%s: registering %llu bytes: %s%s", r->name, (unsigned long long)s->len,
                       fi_strerror(-rc),
                       rc == -FI_ENOMEM ? " (raise `ulimit -l`, the limit of locked memory)" : "");
    }
    m->local = r->local || device;
    m->desc = fi_mr_desc(m->mr);
    m->next = r->mrs;
    r->mrs = m;
    for (ofi_link *l = r->links; l != NULL; l = l->next) {
        hy_status st = share_one(l, m);
        if (st < 0) {
            ofi_dereg(m);
            return st;
        }
    }
    *mr_out = m;
    *addr_out = r->virt_addr ? (uint64_t)(uintptr_t)s->addr : 0;
    *rkey_out = fi_mr_key(m->mr);
    return HY_OK;
}

void ofi_dereg(void *mr)
{
    ofi_mr *m = mr;
    while (m->copies != NULL) {
        ofi_copy *c = m->copies;
        m->copies = c->next;
        fi_close(&c->mr->fid);
        hy_free(c);
    }
    ofi_mr **at = &m->r->mrs;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    fi_close(&m->mr->fid);
    hy_free(m);
}
