/* SPDX-License-Identifier: Apache-2.0
 *
 * The block pool's list, counts and hash table.
 *
 * Thread: sched stage only.  Owner: see pool.h.
 */
#include "core/kv/pool.h"

#include "core/base/alloc.h"

#include <string.h>

static uint32_t bucket_of(const hy_bpool *p, const hy_kv_hash *h)
{
    uint32_t x;
    memcpy(&x, h->b, sizeof(x)); /* the digest's bits are uniform */
    return x & p->bucket_mask;
}

/* ---- free list ---- */

static void list_insert(hy_bpool *p, int32_t id, bool front)
{
    hy_kv_block *b = &p->blk[id];
    b->prev = front ? HY_KV__END : p->free_tail;
    b->next = front ? p->free_head : HY_KV__END;
    if (b->prev != HY_KV__END)
        p->blk[b->prev].next = id;
    else
        p->free_head = id;
    if (b->next != HY_KV__END)
        p->blk[b->next].prev = id;
    else
        p->free_tail = id;
    p->n_free++;
}

static void list_remove(hy_bpool *p, int32_t id)
{
    hy_kv_block *b = &p->blk[id];
    if (b->prev != HY_KV__END)
        p->blk[b->prev].next = b->next;
    else
        p->free_head = b->next;
    if (b->next != HY_KV__END)
        p->blk[b->next].prev = b->prev;
    else
        p->free_tail = b->prev;
    b->prev = b->next = HY_KV__OUT;
    p->n_free--;
}

hy_status hy_bpool_init(hy_bpool *p, int32_t group, int32_t n_blocks, int32_t block_tokens,
                        hy_kv_events *events)
{
    memset(p, 0, sizeof(*p));
    p->group = group;
    p->n_blocks = n_blocks;
    p->block_tokens = block_tokens;
    p->events = events;
    p->free_head = p->free_tail = HY_KV__END;
    uint32_t n = 16;
    while (n < (uint32_t)n_blocks * 2 && n < (UINT32_C(1) << 30))
        n *= 2;
    p->bucket_mask = n - 1;
    p->bucket = hy_malloc(n * sizeof(*p->bucket));
    p->blk = hy_calloc((size_t)n_blocks, sizeof(*p->blk));
    if (p->bucket == NULL || p->blk == NULL) {
        hy_bpool_fini(p);
        return hy_fail(HY_E_NOMEM, "no memory for the list of %d KV blocks of group %d", n_blocks,
                       group);
    }
    memset(p->bucket, 0xff, n * sizeof(*p->bucket)); /* all -1 */
    for (int32_t i = 0; i < n_blocks; i++) {
        p->blk[i].chain = HY_KV__END;
        list_insert(p, i, false);
    }
    return HY_OK;
}

void hy_bpool_fini(hy_bpool *p)
{
    hy_free(p->bucket);
    hy_free(p->blk);
    memset(p, 0, sizeof(*p));
}

/* ---- holds ---- */

static bool unheld(const hy_kv_block *b)
{
    for (int k = 0; k < HY_HOLD_KINDS; k++)
        if (b->holds[k] != 0)
            return false;
    return true;
}

bool hy_bpool_is_free(const hy_bpool *p, int32_t id)
{
    return p->blk[id].next != HY_KV__OUT;
}

int32_t hy_bpool_take(hy_bpool *p, hy_hold_kind kind)
{
    const int32_t id = p->free_head;
    if (id == HY_KV__END)
        return -1;
    list_remove(p, id);
    hy_bpool_unhash(p, id);
    p->blk[id].gen++;
    p->blk[id].holds[kind] = 1;
    return id;
}

void hy_bpool_hold(hy_bpool *p, int32_t id, hy_hold_kind kind)
{
    HY_ASSERT(id >= 0 && id < p->n_blocks);
    if (hy_bpool_is_free(p, id))
        list_remove(p, id);
    p->blk[id].holds[kind]++;
}

void hy_bpool_release(hy_bpool *p, int32_t id, hy_hold_kind kind)
{
    HY_ASSERT(id >= 0 && id < p->n_blocks);
    hy_kv_block *b = &p->blk[id];
    HY_ASSERT(b->holds[kind] > 0);
    b->holds[kind]--;
    if (unheld(b))
        list_insert(p, id, !b->hashed);
}

/* ---- hashes ---- */

int32_t hy_bpool_find(const hy_bpool *p, const hy_kv_hash *hash)
{
    int32_t id = p->bucket[bucket_of(p, hash)];
    while (id != HY_KV__END && memcmp(&p->blk[id].hash, hash, sizeof(*hash)) != 0)
        id = p->blk[id].chain;
    return id;
}

bool hy_bpool_publish(hy_bpool *p, int32_t id, const hy_kv_hash *hash, const hy_kv_hash *parent,
                      int32_t pos, const int32_t *ids, bool silent)
{
    hy_kv_block *b = &p->blk[id];
    HY_ASSERT(!hy_bpool_is_free(p, id));
    if (b->hashed) {
        HY_ASSERT(memcmp(&b->hash, hash, sizeof(*hash)) == 0);
        return true;
    }
    if (hy_bpool_find(p, hash) >= 0)
        return false;
    b->hash = *hash;
    b->parent = *parent;
    b->pos = pos;
    b->hashed = true;
    b->silent = silent;
    int32_t *head = &p->bucket[bucket_of(p, hash)];
    b->chain = *head;
    *head = id;
    p->n_hashed++;
    if (!silent) {
        const hy_kv_event ev = {.kind = HY_KV_STORED,
                                .group = p->group,
                                .pos = pos,
                                .hash = *hash,
                                .parent = *parent,
                                .ids = ids,
                                .n_ids = ids != NULL ? p->block_tokens : 0};
        hy_kv_events_add(p->events, &ev);
    }
    return true;
}

static void forget(hy_bpool *p, int32_t id)
{
    hy_kv_block *b = &p->blk[id];
    int32_t *at = &p->bucket[bucket_of(p, &b->hash)];
    while (*at != id)
        at = &p->blk[*at].chain;
    *at = b->chain;
    b->chain = HY_KV__END;
    b->hashed = false;
    p->n_hashed--;
}

void hy_bpool_unhash(hy_bpool *p, int32_t id)
{
    hy_kv_block *b = &p->blk[id];
    if (!b->hashed)
        return;
    forget(p, id);
    if (!b->silent) {
        const hy_kv_event ev = {.kind = HY_KV_REMOVED, .group = p->group, .hash = b->hash};
        hy_kv_events_add(p->events, &ev);
    }
}

void hy_bpool_clear(hy_bpool *p)
{
    for (int32_t i = 0; i < p->n_blocks; i++)
        if (p->blk[i].hashed)
            forget(p, i);
}

/* ---- invariants ---- */

static const char *check_list(const hy_bpool *p)
{
    int32_t n = 0, last = HY_KV__END;
    for (int32_t id = p->free_head; id != HY_KV__END; id = p->blk[id].next) {
        if (id < 0 || id >= p->n_blocks || p->blk[id].prev != last || n > p->n_blocks)
            return "free list is broken";
        if (!unheld(&p->blk[id]))
            return "a held block is in the free list";
        last = id;
        n++;
    }
    if (last != p->free_tail || n != p->n_free)
        return "free list's tail or count is wrong";
    return NULL;
}

const char *hy_bpool_check(const hy_bpool *p, const int32_t *held)
{
    const char *bad = check_list(p);
    if (bad != NULL)
        return bad;
    int32_t hashed = 0;
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const hy_kv_block *b = &p->blk[i];
        if (unheld(b) != hy_bpool_is_free(p, i))
            return "a block without holds is not in the free list";
        for (int k = 0; k < HY_HOLD_KINDS; k++)
            if (b->holds[k] != held[(size_t)i * HY_HOLD_KINDS + (size_t)k])
                return "a block's holds are not those of its holders";
        if (b->hashed) {
            hashed++;
            if (hy_bpool_find(p, &b->hash) != i)
                return "a hashed block cannot be found by its hash";
        }
    }
    return hashed == p->n_hashed ? NULL : "count of hashed blocks is wrong";
}
