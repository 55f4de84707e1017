/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: a peer's KV descriptor. What decodes must encode again to the same descriptor, and
 * any plan between it and a layout of ours must keep its ranges within both pools.
 *
 * Thread: one.  Owner: nothing kept.
 */
#include "core/base/log.h"
#include "hal/kv_plan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { IDS = 64, RANGES = 4096 };

static void check_ranges(const hy_kv_plan *p, const hy_kv_desc *a, const hy_kv_desc *b)
{
    static hy_kv_bytes r[RANGES];
    int32_t ids[IDS];
    hy_kv_piece x;
    hy_kv_iter it = hy_kv_plan_begin(p, &(hy_kv_want){.t0 = 3, .n = 40, .tail_free = true});
    for (int i = 0; i < 64 && hy_kv_plan_next(&it, &x); i++) {
        const hy_kv_desc_group *s = &a->g[x.group], *d = &b->g[x.group];
        size_t n = 0;
        int32_t least = s->n_blocks < d->n_blocks ? s->n_blocks : d->n_blocks;
        for (int k = 0; k < IDS; k++)
            ids[k] = least - 1 - k % least;
        hy_kv_blocks list = {ids, IDS};
        if (!x.direct || hy_kv_plan_ranges(p, &x, list, list, r, RANGES, &n) < 0)
            continue;
        for (size_t k = 0; k < n; k++) {
            if (r[k].len == 0 || r[k].src + r[k].len > hy_kv_desc_pool_bytes(s) ||
                r[k].dst + r[k].len > hy_kv_desc_pool_bytes(d))
                abort();
        }
    }
}

static void plan(const hy_kv_desc *a, const hy_kv_desc *b)
{
    hy_kv_plan *p = NULL;
    char why[HY_KV_REASON_MAX];
    hy_kv_match m = hy_kv_compat(a, b, why);
    if ((m == HY_KV_MATCH_LOSSLESS) != (why[0] == '\0') || memchr(why, 0, sizeof(why)) == NULL)
        abort();
    if (hy_kv_plan_create(a, b, &(hy_kv_plan_opts){.lossy = true, .min_run = 1}, &p) < 0)
        return;
    if (m == HY_KV_MATCH_NONE)
        abort();
    check_ranges(p, a, b);
    hy_kv_plan_destroy(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    hy_kv_desc d, e;
    size_t used = 0;
    hy_buf b;
    hy_log_set_level(HY_LOG_ERROR);
    if (hy_kv_desc_decode(data, size, &d, &used) < 0)
        return 0;
    hy_buf_init(&b);
    hy_kv_desc_encode(&d, &b);
    if (used > size || hy_kv_desc_decode(b.data, b.len, &e, NULL) < 0 || e.n_groups != d.n_groups)
        abort();
    hy_buf again;
    hy_buf_init(&again);
    hy_kv_desc_encode(&e, &again);
    if (again.len != b.len || memcmp(again.data, b.data, b.len) != 0)
        abort();
    plan(&d, &e);
    if (hy_kv_desc_decode(data + used, size - used, &e, NULL) == HY_OK) { /* two in one input */
        plan(&d, &e);
        plan(&e, &d);
    }
    hy_buf_fini(&again);
    hy_buf_fini(&b);
    return 0;
}
