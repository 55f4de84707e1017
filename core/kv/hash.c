/* SPDX-License-Identifier: Apache-2.0
 *
 * The prefix hash chain's two functions.
 *
 * Thread: any.  Owner: see hash.h.
 */
#include "core/kv/hash.h"

#include "core/base/hash.h"

#include <string.h>

static void put_string(uint8_t *at, const char *s)
{
    if (s != NULL)
        hy_sha256(s, strlen(s), at);
    else
        memset(at, 0, HY_SHA256_LEN);
}

void hy_kv_hash_root(const hy_kv_root_opts *o, hy_kv_hash *out)
{
    static const char label[] = "halyard-kv-chain-1"; /* its NUL is hashed too */
    uint8_t buf[sizeof(label) + 32 + 1 + 32 + 32 + 8];
    uint8_t *p = buf;
    memcpy(p, label, sizeof(label));
    p += sizeof(label);
    memcpy(p, o->fingerprint, 32);
    p += 32;
    *p++ = (uint8_t)((o->rope_long ? 1 : 0) | (o->adapter != NULL ? 2 : 0) |
                     (o->salt != NULL ? 4 : 0) | (o->private_id != 0 ? 8 : 0));
    put_string(p, o->adapter);
    p += 32;
    put_string(p, o->salt);
    p += 32;
    for (int i = 0; i < 8; i++)
        *p++ = (uint8_t)(o->private_id >> (8 * i));
    hy_sha256(buf, sizeof(buf), out->b);
}

void hy_kv_hash_link(const hy_kv_hash *parent, const int32_t ids[HY_KV_LINK_TOKENS],
                     hy_kv_hash *out)
{
    uint8_t buf[HY_KV_HASH_LEN + 4 * HY_KV_LINK_TOKENS];
    memcpy(buf, parent->b, HY_KV_HASH_LEN);
    uint8_t *p = buf + HY_KV_HASH_LEN;
    for (int i = 0; i < HY_KV_LINK_TOKENS; i++) {
        const uint32_t id = (uint32_t)ids[i];
        *p++ = (uint8_t)id;
        *p++ = (uint8_t)(id >> 8);
        *p++ = (uint8_t)(id >> 16);
        *p++ = (uint8_t)(id >> 24);
    }
    hy_sha256(buf, sizeof(buf), out->b);
}
