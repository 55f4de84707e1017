/* SPDX-License-Identifier: Apache-2.0
 *
 * How KV gets from one cache into another of unlike layout: a copy plan, made once per pair of
 * descriptors, that turns "tokens [t0, t0+n)" into pieces.
 *
 * A piece is one of two kinds:
 * - direct: bytes go from cache to cache without a copy; hy_kv_plan_ranges lists (source range,
 *   destination range) for given block lists, adjacent ones joined;
 * - packed: the source packs into the canonical wire [layer][16 tokens][K|V][head][token][dim]
 *   (hy_kv_piece_pack -> kv_pack), the bytes travel, the destination unpacks
 *   (hy_kv_piece_unpack -> kv_unpack).
 *
 * Who converts: the wire has the source's value type, or the destination's where that is narrower
 * (then the source rounds once and the destination stores exactly). So storage width never travels
 * and a lossy pair rounds on one side only; both may be overridden with opts.wire.
 *
 * Both ends make the plan from the same descriptors and options and then see the same pieces in the
 * same order; hy_kv_plan_digest says whether they do (send it in the handshake).
 *
 *     hy_kv_want w = {.t0 = t0, .n = n};             all groups and layers
 *     hy_kv_iter it = hy_kv_plan_begin(plan, &w);
 *     while (hy_kv_plan_next(&it, &piece)) ...
 *
 * Thread: a plan is immutable after create; iterators are plain values.
 * Owner: the creator destroys a plan; it keeps no pointer to descriptors or options.
 */
#ifndef HY_HAL_KV_PLAN_H
#define HY_HAL_KV_PLAN_H

#include "hal/kv_desc.h"

enum { HY_KV_WIRE_TOKENS = 16 }; /* tokens of a wire group, cut at absolute multiples */

/* Part of a destination's heads that one source gives: global head numbers. */
typedef struct hy_kv_share {
    int32_t src; /* index of the source shard */
    int32_t group;
    int32_t head0, n_heads;
} hy_kv_share;

/* Which of n source shards (P of tensor-parallel degree n, any split, replicas too) give which
 * heads to dst: every head of dst once, as few and as long ranges as possible. Where several hold
 * the same head, `rank` (of dst) spreads readers over them. Each shard must match dst
 * (hy_kv_compat). HY_E_INVAL names the head that nobody holds; HY_E_LIMIT: cap is too small
 * (groups * heads always suffice). */
hy_status hy_kv_share_out(const hy_kv_desc *const *srcs, int32_t n, const hy_kv_desc *dst,
                          int32_t rank, hy_kv_share *out, size_t cap, size_t *n_out);

typedef struct hy_kv_plan_opts {
    bool lossy;         /* the destination takes other value types, and narrower wires */
    bool has_wire;      /* wire is set */
    hy_dtype wire;      /* e.g. HY_I8 to send half of f16; wider than needed is allowed */
    size_t piece_bytes; /* most bytes of a piece; 0: 1 MiB. Clamped to 256 KiB..4 MiB. (A direct
                     piece is at least one block of one layer, however long.) */
    size_t min_run;     /* direct only where runs are at least so long; 0: 4096 */
    bool never_direct;  /* always pack: memory that the fabric cannot register */
    const hy_kv_share *shares; /* heads to move, those of source `src`; NULL: all of dst's */
    size_t n_shares;
    int32_t src;
} hy_kv_plan_opts;

typedef struct hy_kv_plan hy_kv_plan;

/* opts may be NULL. HY_E_UNSUPPORTED: no match, or lossy and not allowed, or no common wire type;
 * HY_E_INVAL: heads that the source does not hold. The text names the field. */
hy_status hy_kv_plan_create(const hy_kv_desc *src, const hy_kv_desc *dst,
                            const hy_kv_plan_opts *opts, hy_kv_plan **out);
void hy_kv_plan_destroy(hy_kv_plan *p); /* NULL is fine */
/* All groups go without a copy (but for partial blocks, see hy_kv_want). */
bool hy_kv_plan_direct(const hy_kv_plan *p);
bool hy_kv_plan_lossy(const hy_kv_plan *p);
/* The wire type of a group that is packed. */
hy_dtype hy_kv_plan_wire(const hy_kv_plan *p, int32_t group);
uint64_t hy_kv_plan_digest(const hy_kv_plan *p);
/* For the log: "group 0: packed as f16, blocks 16 -> 64, heads 0-2; ..." */
void hy_kv_plan_describe(const hy_kv_plan *p, hy_buf *out);
/* Most staging bytes that one piece may need; 0 when no piece is ever packed. */
size_t hy_kv_plan_piece_max(const hy_kv_plan *p);

/* What to move. */
typedef struct hy_kv_want {
    int32_t t0, n;            /* token positions [t0, t0 + n) */
    int32_t group, n_groups;  /* n_groups 0: all */
    int32_t layer0, n_layers; /* of each group; n_layers 0: all. Push: one layer, one chunk */
    /* First position that will be computed from this KV, for windows: a group with a window w
     * moves positions >= next - w + 1 only. 0: t0 + n. */
    int32_t next;
    /* The destination's last block holds nothing of worth after t0 + n: a direct piece may then
     * overwrite the rest of it, and needs no packing for a partial block. */
    bool tail_free;
} hy_kv_want;

typedef struct hy_kv_piece {
    bool direct;
    int32_t group;
    int32_t layer0, n_layers;
    int32_t t0, n;
    int32_t head0, n_heads; /* global */
    /* Packed: bytes of the elements, then (aligned to 64) of the scales; `bytes` is all of it, what
     * to stage and to send. Direct: wire_bytes are those of the elements. */
    size_t wire_bytes, scale_bytes, scale_off, bytes;
    hy_dtype wire;
    bool whole_tail; /* direct: the last block is copied whole */
} hy_kv_piece;

typedef struct hy_kv_iter {
    const hy_kv_plan *plan;
    hy_kv_want want;
    int32_t lane; /* of the plan; the fields below say where in it */
    int32_t zone, token, layer;
} hy_kv_iter;

/* A want outside of what the descriptors hold gives no pieces: check it first with
 * hy_kv_want_check where it comes from a peer. */
hy_kv_iter hy_kv_plan_begin(const hy_kv_plan *p, const hy_kv_want *w);
bool hy_kv_plan_next(hy_kv_iter *it, hy_kv_piece *out);
hy_status hy_kv_want_check(const hy_kv_plan *p, const hy_kv_want *w);

/* Sums over all pieces of a want. */
typedef struct hy_kv_total {
    size_t pieces, direct_pieces;
    uint64_t bytes;  /* that travel */
    uint64_t staged; /* of them through staging memory */
} hy_kv_total;
hy_kv_total hy_kv_plan_total(const hy_kv_plan *p, const hy_kv_want *w);

/* ---- direct pieces ---- */
typedef struct hy_kv_bytes {
    uint64_t src, dst, len; /* offsets from the bases of the group's pools */
} hy_kv_bytes;

/* A group's blocks by token / block_tokens, from position 0, as in hy_kv_copy. */
typedef struct hy_kv_blocks {
    const int32_t *ids;
    int32_t n;
} hy_kv_blocks;

/* HY_E_INVAL: a block list that is too short, or an id outside the pool (nothing is ever outside
 * the bounds that the descriptors give); HY_E_LIMIT: more than cap ranges. */
hy_status hy_kv_plan_ranges(const hy_kv_plan *p, const hy_kv_piece *piece, hy_kv_blocks src,
                            hy_kv_blocks dst, hy_kv_bytes *out, size_t cap, size_t *n_out);
/* The same with none joined: each side's part of the list, in order, depends on its own ids alone,
 * so that both can digest what was moved. */
hy_status hy_kv_plan_runs(const hy_kv_plan *p, const hy_kv_piece *piece, hy_kv_blocks src,
                          hy_kv_blocks dst, hy_kv_bytes *out, size_t cap, size_t *n_out);
/* A cap that always suffices for both. */
size_t hy_kv_plan_max_ranges(const hy_kv_plan *p, const hy_kv_piece *piece);

/* ---- packed pieces ---- */
/* Arguments of kv_pack on the source and of kv_unpack on the destination; buf: piece->bytes of
 * device memory, 64-byte aligned, shared by codes and scales. */
hy_status hy_kv_piece_pack(const hy_kv_plan *p, const hy_kv_piece *piece, const hy_kv_pool *pool,
                           hy_kv_blocks blocks, void *buf, hy_kv_copy *out);
hy_status hy_kv_piece_unpack(const hy_kv_plan *p, const hy_kv_piece *piece, const hy_kv_pool *pool,
                             hy_kv_blocks blocks, void *buf, hy_kv_copy *out);

#endif
