/* SPDX-License-Identifier: Apache-2.0
 *
 * Block tables over the pools: hits, growth, publication, windows.
 *
 * Thread: sched stage only.  Owner: see kv.h.
 */
#include "core/kv/kv.h"

#include "core/base/alloc.h"
#include "core/kv/kv_int.h"

#include <string.h>

hy_status hy_kv_create(const hy_kv_opts *o, hy_kv **out)
{
    if (o->n_groups < 1 || o->n_groups > HY_KV_MAX_GROUPS)
        return hy_fail(HY_E_INVAL, "KV cache: %d cache groups, 1 to %d are possible", o->n_groups,
                       HY_KV_MAX_GROUPS);
    if (o->block_tokens < HY_KV_LINK_TOKENS || o->block_tokens % HY_KV_LINK_TOKENS != 0)
        return hy_fail(HY_E_INVAL, "[kv] block_tokens = %d: must be a multiple of %d",
                       o->block_tokens, HY_KV_LINK_TOKENS);
    hy_kv *kv = hy_calloc(1, sizeof(*kv));
    if (kv == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the KV cache's tables");
    kv->n_groups = o->n_groups;
    kv->block_tokens = o->block_tokens;
    hy_ledger_init(&kv->ledger, kv->pool, kv->n_groups);
    hy_status st = HY_E_NOMEM;
    kv->events = hy_kv_events_create(o->epoch, o->n_events, o->block_tokens);
    if (kv->events == NULL) {
        hy_fail(HY_E_NOMEM, "no memory for %d KV events", o->n_events);
        goto err;
    }
    for (int32_t g = 0; g < o->n_groups; g++) {
        kv->window[g] = o->windows != NULL ? o->windows[g] : 0;
        if (o->n_blocks[g] < 1 || kv->window[g] < 0) {
            st = hy_fail(HY_E_INVAL, "KV cache: group %d has %d blocks and window %d", g,
                         o->n_blocks[g], kv->window[g]);
            goto err;
        }
        st = hy_bpool_init(&kv->pool[g], g, o->n_blocks[g], o->block_tokens, kv->events);
        if (st < 0)
            goto err;
    }
    *out = kv;
    return HY_OK;
err:
    hy_kv_destroy(kv);
    return st;
}

void hy_kv_destroy(hy_kv *kv)
{
    if (kv == NULL)
        return;
    HY_ASSERT(kv->seqs == NULL);
    hy_ledger_fini(&kv->ledger);
    for (int32_t g = 0; g < kv->n_groups; g++) {
        hy_bpool_fini(&kv->pool[g]);
        hy_free(kv->held[g]);
    }
    hy_kv_events_destroy(kv->events);
    hy_free(kv);
}

int32_t hy_kv_n_groups(const hy_kv *kv)
{
    return kv->n_groups;
}

int32_t hy_kv_block_tokens(const hy_kv *kv)
{
    return kv->block_tokens;
}

int32_t hy_kv_n_blocks(const hy_kv *kv, int32_t g)
{
    return kv->pool[g].n_blocks;
}

int32_t hy_kv_n_free(const hy_kv *kv, int32_t g)
{
    return kv->pool[g].n_free;
}

int32_t hy_kv_n_hashed(const hy_kv *kv, int32_t g)
{
    return kv->pool[g].n_hashed;
}

hy_kv_events *hy_kv_events_of(hy_kv *kv)
{
    return kv->events;
}

hy_ledger *hy_kv_ledger(hy_kv *kv)
{
    return &kv->ledger;
}

/* ---- sequences ---- */

hy_status hy_kv_seq_init(hy_kv *kv, hy_kv_seq *s, int32_t max_tokens, const hy_kv_hash *root,
                         bool silent)
{
    memset(s, 0, sizeof(*s));
    s->kv = kv;
    s->root = *root;
    s->silent = silent;
    s->cap = max_tokens / kv->block_tokens + 1;
    s->next = kv->seqs;
    if (kv->seqs != NULL)
        kv->seqs->prev = s;
    kv->seqs = s;
    const size_t per_block = (size_t)(kv->block_tokens / HY_KV_LINK_TOKENS);
    s->links = hy_malloc((size_t)s->cap * per_block * sizeof(*s->links));
    bool ok = s->links != NULL;
    for (int32_t g = 0; g < kv->n_groups; g++) {
        s->tab[g].ids = hy_malloc((size_t)s->cap * sizeof(int32_t));
        ok = ok && s->tab[g].ids != NULL;
    }
    if (!ok) {
        hy_kv_seq_fini(s);
        return hy_fail(HY_E_NOMEM, "no memory for the block tables of %d tokens", max_tokens);
    }
    return HY_OK;
}

void hy_kv_seq_fini(hy_kv_seq *s)
{
    hy_kv *kv = s->kv;
    if (kv == NULL)
        return;
    hy_kv_drop(s);
    if (s->prev != NULL)
        s->prev->next = s->next;
    else
        kv->seqs = s->next;
    if (s->next != NULL)
        s->next->prev = s->prev;
    for (int32_t g = 0; g < kv->n_groups; g++)
        hy_free(s->tab[g].ids);
    hy_free(s->links);
    memset(s, 0, sizeof(*s));
}

void hy_kv_chain(hy_kv_seq *s, const int32_t *ids, int32_t n)
{
    const int32_t most = s->cap * (s->kv->block_tokens / HY_KV_LINK_TOKENS);
    const int32_t upto = n / HY_KV_LINK_TOKENS;
    for (int32_t i = s->n_links; i < upto && i < most; i++) {
        hy_kv_hash_link(i > 0 ? &s->links[i - 1] : &s->root, ids + i * HY_KV_LINK_TOKENS,
                        &s->links[i]);
        s->n_links = i + 1;
    }
}

/* Hash of block i: its last link; NULL when not hashed yet. */
static const hy_kv_hash *block_hash(const hy_kv_seq *s, int32_t i)
{
    const int32_t per = s->kv->block_tokens / HY_KV_LINK_TOKENS;
    const int32_t link = (i + 1) * per - 1;
    return link < s->n_links ? &s->links[link] : NULL;
}

static const hy_kv_hash *block_parent(const hy_kv_seq *s, int32_t i)
{
    return i > 0 ? block_hash(s, i - 1) : &s->root;
}

/* ---- prefix hits ---- */

int32_t hy_kv__first_block(const hy_kv *kv, int32_t g, int32_t computed)
{
    const int32_t w = kv->window[g];
    if (w == 0 || computed < w)
        return 0;
    return (computed - w + 1) / kv->block_tokens;
}

static int32_t find_block(const hy_kv_seq *s, int32_t g, int32_t i)
{
    const hy_kv_hash *h = block_hash(s, i);
    return h != NULL ? hy_bpool_find(&s->kv->pool[g], h) : -1;
}

/* Last block in [first, n) that group g lacks, -1: none. */
static int32_t last_missing(const hy_kv_seq *s, int32_t g, int32_t first, int32_t n)
{
    for (int32_t i = n - 1; i >= first; i--)
        if (find_block(s, g, i) < 0)
            return i;
    return -1;
}

/* Full groups: blocks before the first that is missing. */
static int32_t leading(const hy_kv_seq *s, int32_t g, int32_t most)
{
    int32_t n = 0;
    while (n < most && find_block(s, g, n) >= 0)
        n++;
    return n;
}

void hy_kv_match_prefix(const hy_kv_seq *s, int32_t max_tokens, hy_kv_hit *out)
{
    const hy_kv *kv = s->kv;
    memset(out, 0, sizeof(*out));
    int32_t n = max_tokens > 0 ? max_tokens / kv->block_tokens : 0;
    for (int32_t g = 0; g < kv->n_groups; g++)
        if (kv->window[g] == 0)
            n = leading(s, g, n);
    /* A missing block in a window's tail bars every end that still sees it: end before it. */
    for (int32_t g = 0; g < kv->n_groups;) {
        const int32_t first = hy_kv__first_block(kv, g, n * kv->block_tokens);
        const int32_t miss = kv->window[g] == 0 ? -1 : last_missing(s, g, first, n);
        if (miss < 0) {
            g++;
            continue;
        }
        n = miss;
        g = 0;
    }
    out->tokens = n * kv->block_tokens;
    hy_kv_match_beyond(s, out->tokens, out);
}

void hy_kv_match_beyond(const hy_kv_seq *s, int32_t start, hy_kv_hit *hit)
{
    const hy_kv *kv = s->kv;
    const int32_t n = hit->tokens / kv->block_tokens;
    hit->start = start;
    for (int32_t g = 0; g < kv->n_groups; g++) {
        const int32_t first = hy_kv__first_block(kv, g, start);
        hit->n[g] = hit->n_free[g] = 0;
        hit->entries[g] = first > n ? first : n;
        for (int32_t i = first; i < n; i++) {
            hit->n[g]++;
            if (hy_bpool_is_free(&kv->pool[g], find_block(s, g, i)))
                hit->n_free[g]++;
        }
    }
}

void hy_kv_attach(hy_kv_seq *s, const hy_kv_hit *hit)
{
    hy_kv *kv = s->kv;
    const int32_t n = hit->tokens / kv->block_tokens;
    for (int32_t g = 0; g < kv->n_groups; g++) {
        hy_kv_table *t = &s->tab[g];
        HY_ASSERT(t->n == 0 && hit->entries[g] <= s->cap);
        t->live = hy_kv__first_block(kv, g, hit->start);
        for (int32_t i = 0; i < hit->entries[g]; i++) {
            t->ids[i] = -1;
            if (i < t->live)
                continue;
            const int32_t id = find_block(s, g, i);
            HY_ASSERT(id >= 0);
            hy_bpool_hold(&kv->pool[g], id, HY_HOLD_COMPUTE);
            t->ids[i] = id;
        }
        t->n = hit->entries[g];
    }
    s->published = n;
}

bool hy_kv_can_start(const hy_kv_seq *s, int32_t computed)
{
    for (int32_t g = 0; g < s->kv->n_groups; g++)
        if (hy_kv__first_block(s->kv, g, computed) < s->tab[g].live)
            return false;
    return true;
}

/* ---- growth ---- */

static int32_t blocks_for(const hy_kv *kv, int32_t tokens)
{
    return (tokens + kv->block_tokens - 1) / kv->block_tokens;
}

bool hy_kv_grow(hy_kv_seq *s, int32_t upto, int32_t upto_window)
{
    hy_kv *kv = s->kv;
    int32_t n[HY_KV_MAX_GROUPS];
    for (int32_t g = 0; g < kv->n_groups; g++) {
        n[g] = blocks_for(kv, kv->window[g] > 0 ? upto_window : upto);
        HY_ASSERT(n[g] <= s->cap);
        if (n[g] - s->tab[g].n > kv->pool[g].n_free)
            return false;
    }
    for (int32_t g = 0; g < kv->n_groups; g++) {
        hy_kv_table *t = &s->tab[g];
        while (t->n < n[g]) {
            const int32_t id = hy_bpool_take(&kv->pool[g], HY_HOLD_COMPUTE);
            HY_ASSERT(id >= 0);
            t->ids[t->n++] = id;
        }
    }
    return true;
}

void hy_kv_publish(hy_kv_seq *s, const int32_t *ids, int32_t computed)
{
    hy_kv *kv = s->kv;
    const int32_t n = computed / kv->block_tokens;
    if (n <= s->published)
        return;
    hy_kv_chain(s, ids, n * kv->block_tokens);
    for (int32_t g = 0; g < kv->n_groups; g++) {
        const hy_kv_table *t = &s->tab[g];
        int32_t from = s->published > t->live ? s->published : t->live;
        from = from > s->whole[g] ? from : s->whole[g];
        for (int32_t i = from; i < n; i++)
            hy_bpool_publish(&kv->pool[g], t->ids[i], block_hash(s, i), block_parent(s, i),
                             i * kv->block_tokens, ids + (size_t)i * (size_t)kv->block_tokens,
                             s->silent);
    }
    s->published = n;
}

void hy_kv_received(hy_kv_seq *s, int32_t local, int32_t start)
{
    const hy_kv *kv = s->kv;
    for (int32_t g = 0; g < kv->n_groups; g++) {
        const int32_t from = start - kv->window[g] + 1;
        if (kv->window[g] > 0 && from > local)
            s->whole[g] = blocks_for(kv, from);
    }
}

void hy_kv_trim(hy_kv_seq *s, int32_t computed)
{
    hy_kv *kv = s->kv;
    for (int32_t g = 0; g < kv->n_groups; g++) {
        hy_kv_table *t = &s->tab[g];
        int32_t first = hy_kv__first_block(kv, g, computed);
        first = first < t->n ? first : t->n;
        for (int32_t i = t->live; i < first; i++) {
            hy_bpool_release(&kv->pool[g], t->ids[i], HY_HOLD_COMPUTE);
            t->ids[i] = -1;
        }
        t->live = first > t->live ? first : t->live;
    }
}

void hy_kv_drop(hy_kv_seq *s)
{
    hy_kv *kv = s->kv;
    for (int32_t g = 0; g < kv->n_groups; g++) {
        hy_kv_table *t = &s->tab[g];
        for (int32_t i = t->n - 1; i >= t->live; i--)
            hy_bpool_release(&kv->pool[g], t->ids[i], HY_HOLD_COMPUTE);
        t->n = t->live = 0;
        s->whole[g] = 0;
    }
    s->published = 0;
}

int32_t hy_kv_least(const hy_kv *kv, int32_t g, int32_t tokens)
{
    const int32_t all = blocks_for(kv, tokens);
    if (kv->window[g] == 0)
        return all;
    /* the w - 1 tokens before a row and its own: they touch at most one block more than they fill
     */
    const int32_t tail = blocks_for(kv, kv->window[g] - 1) + 1;
    return all < tail ? all : tail;
}

/* ---- holds, clear, snapshot ---- */

hy_status hy_kv_hold_seq(hy_kv_seq *s, hy_hold_kind kind, int32_t from, int32_t upto,
                         uint64_t deadline_ns, uint64_t *hold_out)
{
    hy_kv *kv = s->kv;
    const int32_t b0 = from / kv->block_tokens, b1 = blocks_for(kv, upto);
    hy_kv_ref *refs = hy_malloc((size_t)kv->n_groups * (size_t)(b1 - b0 + 1) * sizeof(*refs));
    if (refs == NULL)
        return hy_fail(HY_E_NOMEM, "no memory to hold the KV blocks of %d tokens", upto - from);
    int32_t n = 0;
    for (int32_t g = 0; g < kv->n_groups; g++) {
        const hy_kv_table *t = &s->tab[g];
        for (int32_t i = b0 > t->live ? b0 : t->live; i < b1 && i < t->n; i++)
            refs[n++] = (hy_kv_ref){g, t->ids[i], kv->pool[g].blk[t->ids[i]].gen};
    }
    const hy_status st =
        hy_ledger_take(&kv->ledger, kind, s->owner, deadline_ns, refs, n, hold_out);
    hy_free(refs);
    return st;
}

bool hy_kv_ref_valid(const hy_kv *kv, const hy_kv_ref *r)
{
    if (r->group < 0 || r->group >= kv->n_groups || r->id < 0 ||
        r->id >= kv->pool[r->group].n_blocks)
        return false;
    const hy_bpool *p = &kv->pool[r->group];
    return p->blk[r->id].gen == r->gen && !hy_bpool_is_free(p, r->id);
}

void hy_kv_clear(hy_kv *kv)
{
    for (int32_t g = 0; g < kv->n_groups; g++)
        hy_bpool_clear(&kv->pool[g]);
    const hy_kv_event ev = {.kind = HY_KV_CLEARED};
    hy_kv_events_add(kv->events, &ev);
}

uint64_t hy_kv_snapshot(const hy_kv *kv, void (*fn)(void *arg, const hy_kv_event *ev), void *arg)
{
    const uint64_t last = hy_kv_events_last(kv->events);
    for (int32_t g = 0; g < kv->n_groups; g++)
        for (int32_t i = 0; i < kv->pool[g].n_blocks; i++) {
            const hy_kv_block *b = &kv->pool[g].blk[i];
            if (!b->hashed || b->silent)
                continue;
            const hy_kv_event ev = {.epoch = hy_kv_events_epoch(kv->events),
                                    .seq = last,
                                    .kind = HY_KV_STORED,
                                    .group = g,
                                    .pos = b->pos,
                                    .hash = b->hash,
                                    .parent = b->parent};
            fn(arg, &ev);
        }
    return last;
}
