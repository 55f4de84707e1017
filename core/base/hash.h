/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes: SHA-256 (OpenSSL) where a collision would be an error or an attack (prefix chain,
 * downloads), XXH3-128 where gigabytes are told apart and nobody forges (a model's own weights),
 * xxHash64 where a collision only costs time (tables).
 *
 * Thread: any; one context, one thread at a time.  Owner: hy_sha256_fini frees a context.
 */
#ifndef HY_BASE_HASH_H
#define HY_BASE_HASH_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { HY_SHA256_LEN = 32, HY_SHA256_HEX_LEN = 64, HY_XXH128_LEN = 16 };

/* One shot. After a thread's first call it allocates nothing. */
void hy_sha256(const void *data, size_t len, uint8_t out[HY_SHA256_LEN]);

typedef struct hy_sha256_ctx {
    void *impl;
} hy_sha256_ctx;

hy_status hy_sha256_init(hy_sha256_ctx *c);
void hy_sha256_update(hy_sha256_ctx *c, const void *data, size_t len);
/* Writes the digest; the context may be fed again, as new. */
void hy_sha256_final(hy_sha256_ctx *c, uint8_t out[HY_SHA256_LEN]);
void hy_sha256_fini(hy_sha256_ctx *c); /* NULL impl is fine */

/* Digest of a file's bytes. HY_E_IO names the file. */
hy_status hy_sha256_file(const char *path, uint8_t out[HY_SHA256_LEN]);

/* Lower-case hex of n bytes and a NUL: out holds 2n + 1. */
void hy_hex(const void *data, size_t n, char *out);

/* XXH3-128 in its canonical (big-endian) form: the same on every machine. */
void hy_xxh128(const void *data, size_t len, uint8_t out[HY_XXH128_LEN]);
uint64_t hy_xxh64(const void *data, size_t len, uint64_t seed);

#endif
