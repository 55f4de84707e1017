/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside a copy plan: lanes, each one group and one range of heads that goes one way.
 *
 * Thread: immutable after create.  Owner: the plan.
 */
#ifndef HY_HAL_KV_PLAN_INT_H
#define HY_HAL_KV_PLAN_INT_H

#include "hal/kv_plan.h"

typedef struct hy_kv_lane {
    int32_t group;
    int32_t head0, n_heads; /* global */
    bool direct;
    bool slab;         /* direct: whole blocks are the same bytes on both sides, padding too */
    uint64_t slab_len; /* then: bytes of a (layer, block) */
    int32_t unit;      /* direct: every multiple of it is a place where pieces may be cut */
    hy_dtype wire;
    size_t token_bytes; /* one layer's elements of one token on the wire */
    size_t token_scale_bytes;
} hy_kv_lane;

struct hy_kv_plan {
    hy_kv_desc src, dst;
    hy_kv_lane *lanes;
    size_t n_lanes;
    size_t piece_bytes, min_run;
    bool lossy;
    uint64_t digest;
};

/* Length of the stretches that are contiguous on both sides when n tokens of a block, from token
 * `first` of it, move for one layer: the shorter of K's and V's. */
uint64_t hy_kv__run(const hy_kv_plan *p, const hy_kv_lane *l, int32_t tokens);
/* Decides slab and slab_len. */
void hy_kv__slab(const hy_kv_plan *p, hy_kv_lane *l);

#endif
