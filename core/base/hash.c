/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 through OpenSSL's EVP, with one context per thread for the one-shot form: OpenSSL 3's
 * own one-shot calls look the algorithm up and allocate each time.
 *
 * Thread: any.  Owner: the thread's context is freed when the thread ends.
 */
#include "core/base/hash.h"

#include <errno.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
/* in this file's own code: as fast as the compiler makes it, whatever the library was built for */
#define XXH_INLINE_ALL
#include <xxhash.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static EVP_MD *sha256;

static _Thread_local EVP_MD_CTX *mine;

static void free_ctx(void *p)
{
    EVP_MD_CTX_free(p);
    mine = NULL;
}

static void setup(void)
{
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    HY_ASSERT(sha256 != NULL && "this OpenSSL has no SHA-256");
    HY_ASSERT(pthread_key_create(&key, free_ctx) == 0);
}

static EVP_MD_CTX *thread_ctx(void)
{
    if (mine == NULL) {
        pthread_once(&once, setup);
        mine = EVP_MD_CTX_new();
        HY_ASSERT(mine != NULL && "out of memory for a hash context");
        pthread_setspecific(key, mine);
    }
    return mine;
}

void hy_sha256(const void *data, size_t len, uint8_t out[HY_SHA256_LEN])
{
    EVP_MD_CTX *c = thread_ctx();
    HY_ASSERT(EVP_DigestInit_ex2(c, sha256, NULL) == 1);
    HY_ASSERT(EVP_DigestUpdate(c, data, len) == 1);
    HY_ASSERT(EVP_DigestFinal_ex(c, out, NULL) == 1);
}

hy_status hy_sha256_init(hy_sha256_ctx *c)
{
    pthread_once(&once, setup);
    c->impl = EVP_MD_CTX_new();
    if (c->impl == NULL || EVP_DigestInit_ex2(c->impl, sha256, NULL) != 1) {
        hy_sha256_fini(c);
        return hy_fail(HY_E_NOMEM, "out of memory for a SHA-256 context");
    }
    return HY_OK;
}

void hy_sha256_update(hy_sha256_ctx *c, const void *data, size_t len)
{
    HY_ASSERT(EVP_DigestUpdate(c->impl, data, len) == 1);
}

void hy_sha256_final(hy_sha256_ctx *c, uint8_t out[HY_SHA256_LEN])
{
    HY_ASSERT(EVP_DigestFinal_ex(c->impl, out, NULL) == 1);
    HY_ASSERT(EVP_DigestInit_ex2(c->impl, sha256, NULL) == 1);
}

void hy_sha256_fini(hy_sha256_ctx *c)
{
    EVP_MD_CTX_free(c->impl);
    c->impl = NULL;
}

hy_status hy_sha256_file(const char *path, uint8_t out[HY_SHA256_LEN])
{
    hy_sha256_ctx c = {NULL};
    static _Thread_local uint8_t block[1 << 16];
    FILE *f = fopen(path, "rbe");
    if (f == NULL)
        return hy_fail(errno == ENOENT ? HY_E_NOTFOUND : HY_E_IO, "cannot open %s: %s", path,
                       strerror(errno));
    hy_status st = hy_sha256_init(&c);
    size_t n = 0;
    while (st == HY_OK && (n = fread(block, 1, sizeof(block), f)) > 0)
        hy_sha256_update(&c, block, n);
    if (st == HY_OK && ferror(f))
        st = hy_fail(HY_E_IO, "cannot read %s: %s", path, strerror(errno));
    if (st == HY_OK)
        hy_sha256_final(&c, out);
    hy_sha256_fini(&c);
    fclose(f);
    return st;
}

void hy_hex(const void *data, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * n] = '\0';
}

void hy_xxh128(const void *data, size_t len, uint8_t out[HY_XXH128_LEN])
{
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits(data, len));
    memcpy(out, c.digest, HY_XXH128_LEN);
}

uint64_t hy_xxh64(const void *data, size_t len, uint64_t seed)
{
    return XXH64(data, len, seed);
}
