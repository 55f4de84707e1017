/* SPDX-License-Identifier: Apache-2.0
 *
 * The connector's memory: pools that peers may write into, the staging ring for packed pieces,
 * copies of block tables, digests of what moved.
 *
 * Thread: register_kv before start, else the connector stage.  Owner: hy_pd.
 */
#include "core/connector/pd_int.h"

#include "core/base/alloc.h"
#include "core/base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

hy_status hy_pd__tab_copy(pd_tab *t, const hy_conn_blocks *b)
{
    memset(t, 0, sizeof(*t));
    t->n_groups = b->n_groups;
    t->block_tokens = b->block_tokens;
    for (int32_t g = 0; g < b->n_groups; g++) {
        const size_t bytes = (size_t)b->table[g].n * sizeof(int32_t);
        t->n[g] = b->table[g].n;
        t->ids[g] = hy_malloc(bytes + sizeof(int32_t));
        if (t->ids[g] == NULL) {
            hy_pd__tab_fini(t);
            return hy_fail(HY_E_NOMEM, "no memory for a block table");
        }
        if (bytes > 0)
            memcpy(t->ids[g], b->table[g].ids, bytes);
    }
    return HY_OK;
}

void hy_pd__tab_fini(pd_tab *t)
{
    for (int32_t g = 0; g < HY_KV_MAX_GROUPS; g++)
        hy_free(t->ids[g]);
    memset(t, 0, sizeof(*t));
}

/* ---- staging ---- */

void *hy_pd__stage_take(hy_pd *p, size_t bytes, bool landing)
{
    const size_t n = (bytes + PD_UNIT - 1) / PD_UNIT;
    const size_t from = landing ? 0 : p->n_landing, to = landing ? p->n_landing : p->n_units;
    size_t run = 0;
    for (size_t i = from; n > 0 && i < to; i++) {
        run = p->used[i] ? 0 : run + 1;
        if (run < n)
            continue;
        memset(p->used + i + 1 - n, 1, n);
        return (char *)p->staging + (i + 1 - n) * PD_UNIT;
    }
    return NULL;
}

size_t hy_pd__stage_free(const hy_pd *p, bool landing)
{
    const size_t from = landing ? 0 : p->n_landing, to = landing ? p->n_landing : p->n_units;
    size_t n = 0;
    for (size_t i = from; i < to; i++)
        n += !p->used[i];
    return n * PD_UNIT;
}

void hy_pd__stage_give(hy_pd *p, void *at, size_t bytes)
{
    if (at == NULL)
        return;
    const size_t i = (size_t)((char *)at - (char *)p->staging) / PD_UNIT;
    const size_t n = (bytes + PD_UNIT - 1) / PD_UNIT;
    HY_ASSERT(i + n <= p->n_units);
    memset(p->used + i, 0, n);
}

hy_status hy_pd__staging_open(hy_pd *p, bool host_visible)
{
    hy_dev *d = p->o.dev;
    const size_t bytes = p->n_units * PD_UNIT, out = p->n_units - p->n_landing;
    if (!host_visible) {
        p->bounce_bytes = (out > p->n_landing ? out : p->n_landing) * PD_UNIT;
        HY_TRY(d->ops->alloc(d, p->bounce_bytes, &p->bounce));
    }
    if (p->o.fab.same_node && hy_pd__near_create(p, bytes) < 0)
        hy_info("connector", "%s", hy_fail_text());
    if (p->near_fd < 0 && host_visible) {
        HY_TRY(d->ops->alloc(d, bytes, &p->staging));
    } else if (p->near_fd < 0) {
        p->staging = hy_aligned_alloc(4096, bytes);
        if (p->staging == NULL)
            return hy_fail(HY_E_NOMEM, "no memory for %zu bytes of staging", bytes);
    }
    if (!host_visible)
        p->pinned = d->ops->host_register(d, p->staging, bytes) == HY_OK; /* else only slower */
    const hy_span s = hy_span_host(p->staging, bytes);
    return hy_fab_reg(p->fab, &s, HY_FAB_REMOTE_WRITE, &p->staging_mr);
}

void hy_pd__staging_close(hy_pd *p)
{
    hy_dev *d = p->o.dev;
    const bool ours = p->bounce_bytes > 0;
    for (int32_t g = 0; g < p->o.n_groups; g++)
        if (p->bounce != NULL && p->mr[g] != NULL)
            close(p->exported[g].exp.fd);
    if (p->pinned)
        d->ops->host_unregister(d, p->staging);
    if (p->bounce != NULL)
        d->ops->free(d, p->bounce, p->bounce_bytes);
    hy_pd__near_destroy(p, p->n_units * PD_UNIT);
    if (ours)
        hy_free(p->staging);
    else if (p->staging != NULL)
        d->ops->free(d, p->staging, p->n_units * PD_UNIT);
}

/* ---- pools ---- */

static void note_memory(hy_pd *p, const char *path, const char *why)
{
    static const char *const paths[] = {"host", "dmabuf", "host staging"};
    for (size_t i = 0; i < HY_COUNTOF(paths) && p->o.metrics != NULL; i++) {
        const hy_label label = {"path", paths[i]};
        hy_metric_set(hy_metric_gauge(p->o.metrics, "halyard:kv_memory",
                                      "How peers reach this node's KV: 1 for the way it is.",
                                      &label, 1),
                      strcmp(path, paths[i]) == 0);
    }
    snprintf(p->memory, sizeof(p->memory), "%s%s%s", path, why != NULL ? ": " : "",
             why != NULL ? why : "");
    for (char *c = p->memory; *c != '\0'; c++) /* it stands in JSON */
        *c = *c == '"' || *c == '\\' || (unsigned char)*c < ' ' ? '\'' : *c;
}

/* Takes back what of the pool is registered; all of it goes packed then. */
static void stage_all(hy_pd *p, const char *why)
{
    for (int32_t g = 0; g < p->o.n_groups; g++) {
        if (p->mr[g] == NULL)
            continue;
        (void)hy_fab_dereg(p->fab, p->mr[g]); /* no peer is there yet */
        p->mr[g] = NULL;
        close(p->exported[g].exp.fd);
    }
    p->staged = true;
    note_memory(p, "host staging", why);
    hy_info("connector", "KV goes through host staging: %s", why);
}

/* A device's cache is reached by peers as a dmabuf, where the device and every rail of the fabric
 * can; else through the staging. All groups one way. */
static hy_status register_device(hy_pd *p, int32_t group, const hy_kv_pool *pool, uint64_t len)
{
    hy_span *s = &p->exported[group];
    hy_dev *d = p->o.dev;
    if (p->staged)
        return HY_OK;
    *s = (hy_span){.exp = {.kind = HY_EXPORT_FD, .fd = -1}};
    hy_status st = d->ops->export_mem(d, pool->base, (size_t)len, s);
    if (st == HY_OK) {
        st = hy_fab_reg(p->fab, s, HY_FAB_REMOTE_WRITE, &p->mr[group]);
        if (st != HY_OK)
            close(s->exp.fd);
    }
    if (st != HY_OK) { /* a device that is lost says so with the first step */
        char why[160];
        snprintf(why, sizeof(why), "%.159s", hy_fail_text());
        p->mr[group] = NULL;
        stage_all(p, why);
        return HY_OK;
    }
    if (group == 0) {
        note_memory(p, "dmabuf", NULL);
        hy_info("connector", "KV is registered as a dmabuf: the fabric reaches the device's cache");
    }
    return HY_OK;
}

hy_status hy_pd__register_kv(void *self, int32_t group, const hy_kv_pool *pool)
{
    hy_pd *p = self;
    HY_ASSERT(group >= 0 && group < p->o.n_groups && !p->has_pool[group]);
    if (group != p->desc.n_groups)
        return hy_fail(HY_E_INVAL, "connector: KV groups are to be registered in order");
    p->pool[group] = *pool;
    p->has_pool[group] = true;
    HY_TRY(hy_kv_desc_add(&p->desc, p->o.dev, pool, p->windows[group], 0, pool->layout.n_heads));
    const uint64_t len = (uint64_t)pool->layout.bytes_per_block * (uint64_t)pool->n_blocks;
    if (p->bounce != NULL)
        return register_device(p, group, pool, len);
    note_memory(p, "host", NULL);
    const hy_span s = hy_span_host(pool->base, len);
    return hy_fab_reg(p->fab, &s, HY_FAB_REMOTE_WRITE, &p->mr[group]);
}

/* The host reads a device's cache through a copy. */
static hy_status hash_run(hy_pd *p, XXH64_state_t *s, const char *at, uint64_t len, char *via)
{
    hy_dev *d = p->o.dev;
    if (via == NULL) {
        XXH64_update(s, at, (size_t)len);
        return HY_OK;
    }
    for (uint64_t n; len > 0; len -= n, at += n) {
        n = len < PD_UNIT ? len : PD_UNIT;
        HY_TRY(d->ops->copy(p->queue, via, at, (size_t)n));
        HY_TRY(d->ops->queue_wait(p->queue));
        XXH64_update(s, via, (size_t)n);
    }
    return HY_OK;
}

/* Runs are listed against a made-up block list of the other side, and none is joined, so that both
 * sides see the same ones in the same order. */
hy_status hy_pd__hash_direct(hy_pd *p, const hy_kv_plan *plan, const hy_kv_piece *c,
                             hy_kv_blocks own, bool src, uint64_t seed, uint64_t *out)
{
    const size_t cap = hy_kv_plan_max_ranges(plan, c);
    const int32_t n_zero = (c->t0 + c->n) / 16 + 1; /* blocks are of 16 tokens at least */
    hy_kv_bytes *r = hy_malloc((cap + 1) * sizeof(*r));
    int32_t *zero = hy_calloc((size_t)n_zero, sizeof(*zero));
    XXH64_state_t *s = XXH64_createState();
    const hy_kv_blocks other = {zero, n_zero};
    size_t n = 0;
    hy_status st = HY_OK;
    char *via = p->bounce != NULL ? hy_malloc(PD_UNIT) : NULL;
    if (r == NULL || zero == NULL || s == NULL || (p->bounce != NULL && via == NULL))
        st = hy_fail(HY_E_NOMEM, "no memory for a digest");
    else
        st = hy_kv_plan_runs(plan, c, src ? own : other, src ? other : own, r, cap, &n);
    if (st == HY_OK) {
        XXH64_reset(s, seed);
        for (size_t i = 0; i < n && st == HY_OK; i++)
            st = hash_run(p, s, (const char *)p->pool[c->group].base + (src ? r[i].src : r[i].dst),
                          r[i].len, via);
        *out = XXH64_digest(s);
    }
    hy_free(via);
    XXH64_freeState(s);
    hy_free(zero);
    hy_free(r);
    return st;
}
