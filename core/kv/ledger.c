/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger: holds by id, and a heap by deadline.
 *
 * Thread: sched stage only.  Owner: see ledger.h.
 */
#include "core/kv/ledger.h"

#include "core/base/alloc.h"
#include "core/base/clock.h"

#include <string.h>

void hy_ledger_init(hy_ledger *l, hy_bpool *pools, int32_t n_groups)
{
    memset(l, 0, sizeof(*l));
    l->pools = pools;
    l->n_groups = n_groups;
}

/* ---- heap ---- */

static void place(hy_ledger *l, size_t at, hy_hold *h)
{
    l->heap[at] = h;
    h->heap_pos = at;
}

static void sift(hy_ledger *l, size_t at, hy_hold *h)
{
    while (at > 0 && l->heap[(at - 1) / 2]->deadline_ns > h->deadline_ns) {
        place(l, at, l->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        size_t kid = 2 * at + 1;
        if (kid >= l->n_heap)
            break;
        if (kid + 1 < l->n_heap && l->heap[kid + 1]->deadline_ns < l->heap[kid]->deadline_ns)
            kid++;
        if (l->heap[kid]->deadline_ns >= h->deadline_ns)
            break;
        place(l, at, l->heap[kid]);
        at = kid;
    }
    place(l, at, h);
}

static void heap_remove(hy_ledger *l, hy_hold *h)
{
    if (h->heap_pos == SIZE_MAX)
        return;
    const size_t at = h->heap_pos;
    hy_hold *last = l->heap[--l->n_heap];
    if (last != h)
        sift(l, at, last);
    h->heap_pos = SIZE_MAX;
}

static bool heap_room(hy_ledger *l)
{
    if (l->n_heap < l->cap_heap)
        return true;
    const size_t cap = l->cap_heap > 0 ? l->cap_heap * 2 : 64;
    hy_hold **heap = hy_realloc(l->heap, cap * sizeof(*heap));
    if (heap == NULL)
        return false;
    l->heap = heap;
    l->cap_heap = cap;
    return true;
}

/* ---- by id ---- */

static hy_hold **slot(hy_ledger *l, uint64_t id)
{
    hy_hold **at = &l->bucket[id % HY_LEDGER__BUCKETS];
    while (*at != NULL && (*at)->id != id)
        at = &(*at)->chain;
    return at;
}

const hy_hold *hy_ledger_find(const hy_ledger *l, uint64_t hold)
{
    const hy_hold *h = l->bucket[hold % HY_LEDGER__BUCKETS];
    while (h != NULL && h->id != hold)
        h = h->chain;
    return h;
}

static bool ref_ok(const hy_ledger *l, const hy_kv_ref *r)
{
    if (r->group < 0 || r->group >= l->n_groups || r->id < 0 ||
        r->id >= l->pools[r->group].n_blocks)
        return false;
    const hy_bpool *p = &l->pools[r->group];
    return p->blk[r->id].gen == r->gen && !hy_bpool_is_free(p, r->id);
}

hy_status hy_ledger_take(hy_ledger *l, hy_hold_kind kind, uint64_t owner, uint64_t deadline_ns,
                         const hy_kv_ref *refs, int32_t n, uint64_t *hold_out)
{
    for (int32_t i = 0; i < n; i++)
        if (!ref_ok(l, &refs[i]))
            return hy_fail(HY_E_INVAL, "KV block %d of group %d is not the one that was meant",
                           refs[i].id, refs[i].group);
    hy_hold *h = hy_malloc(sizeof(*h) + (size_t)n * sizeof(h->refs[0]));
    if (h == NULL || !heap_room(l)) {
        hy_free(h);
        return hy_fail(HY_E_NOMEM, "no memory to hold %d KV blocks", n);
    }
    *h = (hy_hold){.id = ++l->n_taken * HY_LEDGER__BUCKETS + owner % HY_LEDGER__BUCKETS,
                   .owner = owner,
                   .kind = kind,
                   .deadline_ns = deadline_ns,
                   .heap_pos = SIZE_MAX,
                   .n = n};
    memcpy(h->refs, refs, (size_t)n * sizeof(*refs));
    for (int32_t i = 0; i < n; i++)
        hy_bpool_hold(&l->pools[refs[i].group], refs[i].id, kind);
    *slot(l, h->id) = h;
    l->n_holds++;
    if (deadline_ns != HY_NEVER)
        sift(l, l->n_heap++, h);
    *hold_out = h->id;
    return HY_OK;
}

bool hy_ledger_release(hy_ledger *l, uint64_t hold)
{
    hy_hold **at = slot(l, hold);
    hy_hold *h = *at;
    if (h == NULL) {
        l->n_unknown++;
        return false;
    }
    *at = h->chain;
    heap_remove(l, h);
    for (int32_t i = h->n - 1; i >= 0; i--) /* tail first, as sequences do */
        hy_bpool_release(&l->pools[h->refs[i].group], h->refs[i].id, h->kind);
    hy_free(h);
    l->n_holds--;
    return true;
}

bool hy_ledger_release_owner(hy_ledger *l, hy_hold_kind kind, uint64_t owner)
{
    bool any = false;
    for (const hy_hold *h = l->bucket[owner % HY_LEDGER__BUCKETS], *next; h != NULL; h = next) {
        next = h->chain;
        if (h->owner == owner && h->kind == kind)
            any = hy_ledger_release(l, h->id) || any;
    }
    if (!any)
        l->n_unknown++;
    return any;
}

bool hy_ledger_extend(hy_ledger *l, uint64_t hold, uint64_t deadline_ns)
{
    hy_hold *h = *slot(l, hold);
    if (h == NULL) {
        l->n_unknown++;
        return false;
    }
    if (h->heap_pos == SIZE_MAX || deadline_ns <= h->deadline_ns)
        return true;
    if (deadline_ns == HY_NEVER)
        heap_remove(l, h);
    h->deadline_ns = deadline_ns;
    if (h->heap_pos != SIZE_MAX)
        sift(l, h->heap_pos, h);
    return true;
}

bool hy_ledger_extend_owner(hy_ledger *l, hy_hold_kind kind, uint64_t owner, uint64_t deadline_ns)
{
    bool any = false;
    for (const hy_hold *h = l->bucket[owner % HY_LEDGER__BUCKETS]; h != NULL; h = h->chain)
        if (h->owner == owner && h->kind == kind)
            any = hy_ledger_extend(l, h->id, deadline_ns) || any;
    if (!any)
        l->n_unknown++;
    return any;
}

uint64_t hy_ledger_next_deadline(const hy_ledger *l)
{
    return l->n_heap > 0 ? l->heap[0]->deadline_ns : HY_NEVER;
}

const hy_hold *hy_ledger_expired(hy_ledger *l, uint64_t now_ns)
{
    if (l->n_heap == 0 || l->heap[0]->deadline_ns > now_ns)
        return NULL;
    hy_hold *h = l->heap[0];
    heap_remove(l, h);
    h->expired = true;
    l->n_expired++;
    return h;
}

void hy_ledger_fini(hy_ledger *l)
{
    for (size_t i = 0; i < HY_LEDGER__BUCKETS; i++)
        while (l->bucket[i] != NULL)
            hy_ledger_release(l, l->bucket[i]->id);
    hy_free(l->heap);
    l->heap = NULL;
}
