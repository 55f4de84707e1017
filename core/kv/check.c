/* SPDX-License-Identifier: Apache-2.0
 *
 * Invariants of the KV cache, recomputed from the holders' side.
 *
 * Thread: sched stage only.  Owner: see kv.h.
 */
#include "core/base/alloc.h"
#include "core/kv/kv_int.h"

#include <string.h>

static hy_status bad(const hy_kv_seq *s, int32_t g, const char *what)
{
    return hy_fail(HY_E_INVAL, "KV check: sequence %llu, group %d: %s",
                   (unsigned long long)s->owner, g, what);
}

static hy_status count_table(hy_kv *kv, const hy_kv_seq *s, int32_t g)
{
    const hy_kv_table *t = &s->tab[g];
    if (t->live > t->n || t->n > s->cap || t->live < 0)
        return bad(s, g, "table's bounds are wrong");
    for (int32_t i = 0; i < t->n; i++) {
        if (i < t->live) {
            if (t->ids[i] != -1)
                return bad(s, g, "a block out of the window is still in the table");
            continue;
        }
        if (t->ids[i] < 0 || t->ids[i] >= kv->pool[g].n_blocks)
            return bad(s, g, "table holds no block where it should");
        kv->held[g][(size_t)t->ids[i] * HY_HOLD_KINDS + HY_HOLD_COMPUTE]++;
    }
    return HY_OK;
}

/* A block that two sequences use is full and computed for both: else one would write into it. */
static hy_status check_shared(const hy_kv *kv, const hy_kv_seq *s, int32_t g)
{
    const hy_kv_table *t = &s->tab[g];
    for (int32_t i = t->live; i < t->n; i++)
        if (kv->pool[g].blk[t->ids[i]].holds[HY_HOLD_COMPUTE] > 1 && i >= s->published)
            return bad(s, g, "a block that is still written is shared");
    return HY_OK;
}

hy_status hy_kv_check(hy_kv *kv)
{
    for (int32_t g = 0; g < kv->n_groups; g++) {
        const size_t n = (size_t)kv->pool[g].n_blocks * HY_HOLD_KINDS;
        if (kv->held[g] == NULL)
            kv->held[g] = hy_malloc(n * sizeof(int32_t));
        if (kv->held[g] == NULL)
            return hy_fail(HY_E_NOMEM, "no memory for the KV check");
        memset(kv->held[g], 0, n * sizeof(int32_t));
    }
    for (const hy_kv_seq *s = kv->seqs; s != NULL; s = s->next)
        for (int32_t g = 0; g < kv->n_groups; g++)
            HY_TRY(count_table(kv, s, g));
    size_t n_holds = 0;
    for (size_t b = 0; b < HY_LEDGER__BUCKETS; b++)
        for (const hy_hold *h = kv->ledger.bucket[b]; h != NULL; h = h->chain) {
            n_holds++;
            for (int32_t i = 0; i < h->n; i++) {
                const hy_kv_ref *r = &h->refs[i];
                kv->held[r->group][(size_t)r->id * HY_HOLD_KINDS + (size_t)h->kind]++;
                if (kv->pool[r->group].blk[r->id].gen != r->gen)
                    return hy_fail(HY_E_INVAL, "KV check: a held block began a new life");
            }
        }
    if (n_holds != kv->ledger.n_holds)
        return hy_fail(HY_E_INVAL, "KV check: the ledger's count is wrong");
    for (int32_t g = 0; g < kv->n_groups; g++) {
        const char *what = hy_bpool_check(&kv->pool[g], kv->held[g]);
        if (what != NULL)
            return hy_fail(HY_E_INVAL, "KV check: group %d: %s", g, what);
    }
    for (const hy_kv_seq *s = kv->seqs; s != NULL; s = s->next)
        for (int32_t g = 0; g < kv->n_groups; g++)
            HY_TRY(check_shared(kv, s, g));
    return HY_OK;
}
