/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefix hash chain: what makes two KV blocks the same. Each link covers 16 tokens, whatever the
 * pool's block size, so that nodes with unlike blocks can compare.
 *
 *     root   = SHA-256("halyard-kv-chain-1" 0, fingerprint[32], flags, H(adapter)[32], H(salt)[32],
 *                      private id as 8 bytes LE)
 *     link 0 = SHA-256(root, 16 token ids as int32 LE)
 *     link i = SHA-256(link i-1, 16 token ids)
 * where H of an absent string is 32 zero bytes and flags: 1 long rope factors, 2 adapter, 4 salt,
 * 8 private. 256 bits throughout: a collision would be another prompt's answer.
 *
 * Thread: any; pure.  Owner: plain values.
 */
#ifndef HY_KV_HASH_H
#define HY_KV_HASH_H

#include "core/base/status.h"

#include <stdint.h>

enum { HY_KV_LINK_TOKENS = 16, HY_KV_HASH_LEN = 32 };

typedef struct hy_kv_hash {
    uint8_t b[HY_KV_HASH_LEN];
} hy_kv_hash;
_Static_assert(sizeof(hy_kv_hash) == 32, "travels on the wire");

typedef struct hy_kv_root_opts {
    const uint8_t *fingerprint; /* [32]: model, KV value type, numerics */
    bool rope_long;             /* longrope: keys were rotated with the long factors */
    const char *adapter;        /* NULL: none */
    const char *salt;           /* tenant; NULL: none. "" is a salt of its own */
    uint64_t private_id;        /* not 0: a chain that nobody else can meet */
} hy_kv_root_opts;

void hy_kv_hash_root(const hy_kv_root_opts *o, hy_kv_hash *out);
/* out may be parent. */
void hy_kv_hash_link(const hy_kv_hash *parent, const int32_t ids[HY_KV_LINK_TOKENS],
                     hy_kv_hash *out);

#endif
