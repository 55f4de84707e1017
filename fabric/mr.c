/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered memory and its keys. Every memory is registered with the data path of every rail;
 * own TCP and the loop go by id and a random token, which is the capability.
 *
 * Thread: under the fabric's lock.  Owner: hy_fab; the bytes stay the caller's.
 */
#include "core/base/map.h"
#include "fabric/fab_int.h"

hy_fab_mr *hy_fab__mr_find(hy_fab *f, uint64_t id)
{
    hy_fab_mr *mr = f->mrs;
    while (mr != NULL && mr->id != id)
        mr = mr->next;
    return mr;
}

static void release(hy_fab *f, hy_fab_mr *mr)
{
    for (int i = 0; i < f->n_rails; i++)
        if (mr->rail[i].dmr != NULL)
            f->rail[i].dp->dereg(mr->rail[i].dmr);
    hy_free(mr);
}

static hy_status reg(hy_fab *f, const hy_span *s, unsigned access, hy_fab_mr **out)
{
    hy_fab_mr *mr = hy_calloc(1, sizeof(*mr));
    if (mr == NULL)
        return hy_fail(HY_E_NOMEM, "no memory to register memory");
    mr->f = f;
    mr->span = *s;
    mr->access = (access & (HY_FAB_REMOTE_READ | HY_FAB_REMOTE_WRITE)) |
                 (s->mem == HY_MEM_FILE ? 0 : (unsigned)FAB_LAND) |
                 (s->mem == HY_MEM_DEVICE ? (unsigned)FAB_DEVICE : 0);
    mr->token = hy_rng_u64(&f->rng);
    const int node = s->mem == HY_MEM_DEVICE ? -1 : hy_fab__numa_of_page(s->addr);
    for (int i = 0; i < f->n_rails; i++) {
        mr->rail[i].distance = hy_fab__numa_distance(node, f->rail[i].node);
        hy_status st = f->rail[i].dp->reg(f->rail[i].rail, s, mr->access, mr->token,
                                          &mr->rail[i].dmr, &mr->rail[i].addr, &mr->rail[i].rkey);
        if (st < 0) {
            release(f, mr);
            return st;
        }
    }
    mr->id = ++f->next_mr;
    mr->next = f->mrs;
    f->mrs = mr;
    *out = mr;
    return HY_OK;
}

/* Most of the time that pinning takes is the kernel finding and clearing pages. It can do that
 * without the lock, so that links live on meanwhile. Where it cannot (before Linux 5.14), or there
 * is no memory, the registration itself does it and says so. */
static void populate(const hy_fab *f, const hy_span *s)
{
    bool pins = false;
    for (int i = 0; i < f->n_rails; i++)
        pins |= f->rail[i].pins;
    if (!pins || s->mem == HY_MEM_DEVICE)
        return;
    (void)hy_map_populate(s->addr, s->len, s->mem != HY_MEM_FILE);
}

hy_status hy_fab_reg(hy_fab *f, const hy_span *s, unsigned access, hy_fab_mr **out)
{
    if (s == NULL || s->addr == NULL || s->len == 0)
        return hy_fail(HY_E_INVAL, "register memory: empty span");
    if (s->mem == HY_MEM_FILE && (access & HY_FAB_REMOTE_WRITE) != 0)
        return hy_fail(HY_E_DENIED, "register memory: a read-only file mapping takes no writes");
    populate(f, s);
    hy_fab__lock(f);
    hy_status st = reg(f, s, access, out);
    hy_fab__unlock(f);
    return st;
}

static bool peer_uses(const fab_link *l, const hy_fab_mr *mr)
{
    return l->state == LINK_UP && l->dp->uses != NULL && l->dp->uses(l->dpl, mr);
}

static hy_status dereg(hy_fab *f, hy_fab_mr *mr)
{
    if (mr->users > 0)
        return hy_fail(HY_E_BUSY, "deregister memory: %u ranges of operations use it", mr->users);
    for (const fab_link *l = f->links; l != NULL; l = l->next)
        if (peer_uses(l, mr))
            return hy_fail(HY_E_BUSY, "deregister memory: %s may be using it", l->peer->node);
    hy_fab_mr **at = &f->mrs;
    while (*at != mr)
        at = &(*at)->next;
    *at = mr->next;
    release(f, mr);
    return HY_OK;
}

hy_status hy_fab_dereg(hy_fab *f, hy_fab_mr *mr)
{
    hy_fab__lock(f);
    hy_status st = dereg(f, mr);
    hy_fab__unlock(f);
    return st;
}

static bool op_uses(const fab_op *op, const hy_fab_mr *mr)
{
    for (uint32_t i = 0; i < op->n_ranges; i++)
        if (op->ranges[i].mr == mr)
            return true;
    return false;
}

/* Ends one operation that uses the memory; true: there may be more. */
static bool stop_one(hy_fab *f, const hy_fab_mr *mr)
{
    for (uint32_t i = 0; i < f->n_slots; i++)
        for (fab_op *op = f->peers[i].used ? f->peers[i].ops : NULL; op != NULL; op = op->next) {
            if (!op_uses(op, mr))
                continue;
            uint64_t id = op->id;
            hy_fab__op_stop(f, op, HY_E_ABORTED);
            op = hy_fab__op_find(f, id);
            if (op != NULL) { /* it has pieces under way */
                hy_fab__op_fence(f, op);
                hy_fab__links_reap(f);
            }
            return hy_fab__op_find(f, id) == NULL;
        }
    return false;
}

hy_status hy_fab_dereg_now(hy_fab *f, hy_fab_mr *mr)
{
    hy_fab__lock(f);
    while (stop_one(f, mr))
        ;
    for (fab_link *l = f->links; l != NULL; l = l->next)
        if (peer_uses(l, mr))
            hy_fab__break(l, HY_E_ABORTED, "closed to fence memory that is deregistered");
    hy_fab__links_reap(f);
    hy_status st = dereg(f, mr);
    hy_fab__unlock(f);
    hy_fab__kick(f);
    return st;
}

uint64_t hy_fab_mr_len(const hy_fab_mr *mr)
{
    return mr->span.len;
}

void hy_fab_key_pack(const hy_fab_mr *mr, hy_buf *out)
{
    const hy_fab *f = mr->f;
    hy_fab_key k = {.epoch = f->epoch,
                    .id = mr->id,
                    .token = mr->token,
                    .len = mr->span.len,
                    .access = mr->access,
                    .n_rails = (uint32_t)f->n_rails};
    for (int i = 0; i < f->n_rails; i++) {
        k.addr[i] = mr->rail[i].addr;
        k.rkey[i] = mr->rail[i].rkey;
    }
    hy_fab__key_put(out, &k);
}

hy_status hy_fab_key_unpack(hy_fab *f, hy_fab_peer peer, const void *data, size_t len,
                            hy_fab_key *out, size_t *used_out)
{
    size_t used;
    hy_fab_key k;
    HY_TRY(hy_fab__key_get(data, len, &k, &used));
    hy_fab__lock(f);
    fab_peer *p = hy_fab__peer(f, peer);
    hy_status st = HY_OK;
    if (p == NULL)
        st = hy_fail(HY_E_PEER, "a key of a peer that is gone");
    else if (p->epoch != k.epoch)
        st = hy_fail(HY_E_PEER, "a key of another epoch of %s", p->node);
    hy_fab__unlock(f);
    if (st < 0)
        return st;
    *out = k;
    if (used_out != NULL)
        *used_out = used;
    return HY_OK;
}
