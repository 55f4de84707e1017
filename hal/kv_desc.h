/* SPDX-License-Identifier: Apache-2.0
 *
 * What a node tells another about its KV cache when they link: for every cache group the value and
 * storage types, layers, the range of KV heads held here, block size, widths, byte strides, window
 * and pool size. Strides, never names; nothing about engine, backend or vendor.
 *
 * The encoding is little-endian and fixed-width: magic, version, lengths, then one record a group.
 * A later minor version may lengthen records; a foreign version is refused by name. Decoding trusts
 * nothing: every number is bounded, and every element lies within hy_kv_desc_pool_bytes.
 *
 * Thread: plain values.  Owner: none.
 */
#ifndef HY_HAL_KV_DESC_H
#define HY_HAL_KV_DESC_H

#include "core/base/buf.h"
#include "hal/backend.h"

enum {
    HY_KV_DESC_VERSION = 1,
    HY_KV_GROUPS_MAX = 16,
    HY_KV_REASON_MAX = 192, /* bytes of a reason with its NUL */
};

/* Wire types as bits: which of them a backend packs and unpacks. */
enum {
    HY_KV_WIRE_F32 = 1,
    HY_KV_WIRE_F16 = 2,
    HY_KV_WIRE_BF16 = 4,
    HY_KV_WIRE_I8 = 8,
    HY_KV_WIRE_F8_E4M3 = 16,
    HY_KV_WIRE_F8_E4M3FNUZ = 32,
};

typedef struct hy_kv_desc_group {
    hy_kv_layout layout; /* n_heads: those held here */
    int32_t head0;       /* first of them among the model's */
    int32_t heads_total; /* KV heads of the model */
    int32_t window;      /* 0: full attention */
    int32_t n_blocks;    /* of the pool */
    uint32_t wires;      /* HY_KV_WIRE_* bits; 0: cannot pack, only equal strides will do */
} hy_kv_desc_group;

typedef struct hy_kv_desc {
    int32_t n_groups;
    hy_kv_desc_group g[HY_KV_GROUPS_MAX];
} hy_kv_desc;

/* Appends a group that describes a pool of dev. head0 and heads_total: 0 and the pool's own count
 * without tensor parallelism. HY_E_LIMIT: too many groups; HY_E_INVAL: a layout that no other node
 * could follow. */
hy_status hy_kv_desc_add(hy_kv_desc *d, hy_dev *dev, const hy_kv_pool *pool, int32_t window,
                         int32_t head0, int32_t heads_total);
/* HY_E_INVAL names the field. Bounds, and no two elements of a plane share a byte. */
hy_status hy_kv_desc_check(const hy_kv_desc *d);
/* One past the last byte that an element of the pool may have; of a checked descriptor. */
uint64_t hy_kv_desc_pool_bytes(const hy_kv_desc_group *g);

void hy_kv_desc_encode(const hy_kv_desc *d, hy_buf *out);
/* HY_E_FORMAT: does not parse; HY_E_UNSUPPORTED: foreign version; HY_E_INVAL: as check.
 * *used_out may be NULL. On failure *out is undefined. */
hy_status hy_kv_desc_decode(const void *data, size_t len, hy_kv_desc *out, size_t *used_out);

/* May src's KV be moved into dst's cache? */
typedef enum hy_kv_match {
    HY_KV_MATCH_NONE,     /* no; reason names the field */
    HY_KV_MATCH_LOSSY,    /* value types differ: only where dst is configured to take that */
    HY_KV_MATCH_LOSSLESS, /* every value arrives bit for bit */
} hy_kv_match;

/* Reason (may be NULL): "" when lossless, else the field and both values. Head ranges may differ as
 * long as the model's count is the same: hy_kv_share_out says whether they cover each other. */
hy_kv_match hy_kv_compat(const hy_kv_desc *src, const hy_kv_desc *dst,
                         char reason[HY_KV_REASON_MAX]);

/* The wire bit of a type; 0: KV never travels so. */
uint32_t hy_kv_wire_bit(hy_dtype t);
/* Quantised wires carry an f32 scale a token, head and plane. */
bool hy_kv_wire_scaled(hy_dtype t);

#endif
