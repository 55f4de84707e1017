/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the KV manager, for core/kv only.
 *
 * Thread: sched stage only.  Owner: hy_kv.
 */
#ifndef HY_KV_KV_INT_H
#define HY_KV_KV_INT_H

#include "core/kv/kv.h"

struct hy_kv {
    int32_t n_groups, block_tokens;
    int32_t window[HY_KV_MAX_GROUPS];
    hy_bpool pool[HY_KV_MAX_GROUPS];
    hy_ledger ledger;
    hy_kv_events *events;
    hy_kv_seq *seqs;                 /* all live ones */
    int32_t *held[HY_KV_MAX_GROUPS]; /* scratch of hy_kv_check */
};

/* First block that a row at position `computed` sees. */
int32_t hy_kv__first_block(const hy_kv *kv, int32_t g, int32_t computed);

#endif
