/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames, handshake payloads and keys: encoding and checked decoding.
 *
 * Thread: pure functions.  Owner: nothing kept.
 */
#include "fabric/wire.h"
#include "core/base/hash.h"

#include <string.h>

static const uint8_t magic[4] = {'H', 'Y', 'F', 'B'};

static uint32_t checksum(const uint8_t *head, const void *a, size_t na, const void *b, size_t nb)
{
    uint64_t h = hy_xxh64(head, 12, 0);
    h = hy_xxh64(head + 16, FAB_HEAD - 16, h);
    /* parts are hashed apart only by position, so both sides must see one payload */
    if (nb == 0)
        return (uint32_t)hy_xxh64(a, na, h);
    if (na == 0)
        return (uint32_t)hy_xxh64(b, nb, h);
    uint8_t stack[FAB_FRAME_MAX];
    memcpy(stack, a, na);
    memcpy(stack + na, b, nb);
    return (uint32_t)hy_xxh64(stack, na + nb, h);
}

void hy_fab__head_put(uint8_t *out, const fab_head *h, const void *a, size_t na, const void *b,
                      size_t nb)
{
    HY_ASSERT(na + nb <= FAB_FRAME_MAX);
    memcpy(out, magic, 4);
    out[4] = HY_FAB_PROTO;
    out[5] = (uint8_t)h->kind;
    out[6] = out[7] = 0;
    fab_put32(out + 8, (uint32_t)(na + nb));
    fab_put64(out + 16, h->delivered);
    fab_put64(out + 24, h->consumed);
    fab_put32(out + 12, checksum(out, a, na, b, nb));
}

hy_status hy_fab__head_get(const uint8_t *in, size_t n, uint32_t max, fab_head *out)
{
    size_t have = n < 4 ? n : 4;
    if (memcmp(in, magic, have) != 0)
        return hy_fail(HY_E_FORMAT, "not a fabric frame");
    if (n > 4 && in[4] != HY_FAB_PROTO)
        return hy_fail(HY_E_PROTOCOL, "fabric protocol version %d, this node speaks %d: %s", in[4],
                       HY_FAB_PROTO, "run the same version on all nodes");
    if (n < FAB_HEAD)
        return HY_AGAIN;
    fab_head h = {.kind = (fab_kind)in[5],
                  .len = fab_get32(in + 8),
                  .sum = fab_get32(in + 12),
                  .delivered = fab_get64(in + 16),
                  .consumed = fab_get64(in + 24)};
    if (in[5] < FAB_HELLO || in[5] >= FAB_KIND_END || in[6] != 0 || in[7] != 0)
        return hy_fail(HY_E_FORMAT, "unknown frame kind %d", in[5]);
    if (h.len > max)
        return hy_fail(HY_E_FORMAT, "frame of %u bytes, at most %u here", h.len, max);
    *out = h;
    return HY_OK;
}

bool hy_fab__head_sum_ok(const uint8_t *in, const fab_head *h)
{
    return checksum(in, in + FAB_HEAD, h->len, NULL, 0) == h->sum;
}

static void put_str(hy_buf *out, const char *s)
{
    size_t n = strlen(s);
    hy_buf_putc(out, (char)n);
    hy_buf_add(out, s, n);
}

static void put_u64(hy_buf *out, uint64_t v)
{
    uint8_t b[8];
    fab_put64(b, v);
    hy_buf_add(out, b, 8);
}

static void put_u32(hy_buf *out, uint32_t v)
{
    uint8_t b[4];
    fab_put32(b, v);
    hy_buf_add(out, b, 4);
}

/* Bytes 1..cap-1 of printable ASCII. */
static bool get_str(const uint8_t **p, size_t *n, char *out, size_t cap)
{
    if (*n < 1 || **p == 0 || **p >= cap || *n - 1 < **p)
        return false;
    size_t len = **p;
    for (size_t i = 0; i < len; i++) {
        if ((*p)[1 + i] < 0x21 || (*p)[1 + i] > 0x7e)
            return false;
        out[i] = (char)(*p)[1 + i];
    }
    out[len] = 0;
    *p += 1 + len;
    *n -= 1 + len;
    return true;
}

void hy_fab__hello_put(hy_buf *out, const fab_hello *h)
{
    put_str(out, h->node);
    put_str(out, h->dp);
    put_u64(out, h->epoch);
    hy_buf_add(out, h->nonce, sizeof(h->nonce));
    put_u32(out, h->rail);
}

hy_status hy_fab__hello_get(const uint8_t *p, size_t n, fab_hello *out, size_t *used)
{
    const uint8_t *at = p;
    fab_hello h;
    memset(&h, 0, sizeof(h));
    if (!get_str(&at, &n, h.node, sizeof(h.node)) || !get_str(&at, &n, h.dp, sizeof(h.dp)) ||
        n < 8 + sizeof(h.nonce) + 4)
        return hy_fail(HY_E_FORMAT, "malformed greeting");
    h.epoch = fab_get64(at);
    memcpy(h.nonce, at + 8, sizeof(h.nonce));
    h.rail = fab_get32(at + 8 + sizeof(h.nonce));
    if (h.epoch == 0 || h.rail >= HY_FAB_RAILS_MAX)
        return hy_fail(HY_E_FORMAT, "malformed greeting: epoch or rail");
    *used = (size_t)(at - p) + 8 + sizeof(h.nonce) + 4;
    *out = h;
    return HY_OK;
}

/* RFC 2104 over SHA-256. */
void hy_fab__hmac(const void *key, size_t key_len, const void *data, size_t n, uint8_t out[32])
{
    uint8_t k[64] = {0}, inner[HY_SHA256_LEN], outer[64 + HY_SHA256_LEN];
    if (key_len > sizeof(k))
        hy_sha256(key, key_len, k);
    else
        memcpy(k, key, key_len);
    hy_buf b;
    hy_buf_init(&b);
    for (int i = 0; i < 64; i++)
        hy_buf_putc(&b, (char)(k[i] ^ 0x36));
    hy_buf_add(&b, data, n);
    if (b.failed) { /* no memory: a proof that nobody accepts */
        memset(out, 0, 32);
        hy_buf_fini(&b);
        return;
    }
    hy_sha256(b.data, b.len, inner);
    hy_buf_fini(&b);
    for (int i = 0; i < 64; i++)
        outer[i] = k[i] ^ 0x5c;
    memcpy(outer + 64, inner, sizeof(inner));
    hy_sha256(outer, sizeof(outer), out);
}

bool hy_fab__same(const uint8_t *a, const uint8_t *b, size_t n)
{
    unsigned diff = 0;
    for (size_t i = 0; i < n; i++)
        diff |= (unsigned)(a[i] ^ b[i]);
    return diff == 0;
}

/* "HYK1", access u32, epoch, id, token, len, n u32, n times addr and rkey */
enum { KEY_FIXED = 4 + 4 + 8 * 4 + 4 };

void hy_fab__key_put(hy_buf *out, const hy_fab_key *k)
{
    hy_buf_add(out, "HYK1", 4);
    put_u32(out, k->access);
    put_u64(out, k->epoch);
    put_u64(out, k->id);
    put_u64(out, k->token);
    put_u64(out, k->len);
    put_u32(out, k->n_rails);
    for (uint32_t i = 0; i < k->n_rails; i++) {
        put_u64(out, k->addr[i]);
        put_u64(out, k->rkey[i]);
    }
}
_Static_assert(KEY_FIXED + 16 * HY_FAB_RAILS_MAX <= HY_FAB_KEY_MAX, "a packed key fits");

hy_status hy_fab__key_get(const uint8_t *p, size_t n, hy_fab_key *out, size_t *used)
{
    if (n < KEY_FIXED || memcmp(p, "HYK1", 4) != 0)
        return hy_fail(HY_E_FORMAT, "not a fabric key");
    hy_fab_key k = {.access = fab_get32(p + 4),
                    .epoch = fab_get64(p + 8),
                    .id = fab_get64(p + 16),
                    .token = fab_get64(p + 24),
                    .len = fab_get64(p + 32),
                    .n_rails = fab_get32(p + 40)};
    if (k.n_rails == 0 || k.n_rails > HY_FAB_RAILS_MAX || n - KEY_FIXED < 16 * (size_t)k.n_rails)
        return hy_fail(HY_E_FORMAT, "fabric key with %u rails in %zu bytes", k.n_rails, n);
    for (uint32_t i = 0; i < k.n_rails; i++) {
        k.addr[i] = fab_get64(p + KEY_FIXED + 16 * (size_t)i);
        k.rkey[i] = fab_get64(p + KEY_FIXED + 16 * (size_t)i + 8);
        if (k.addr[i] > UINT64_MAX - k.len)
            return hy_fail(HY_E_FORMAT, "fabric key: its range wraps");
    }
    *out = k;
    *used = KEY_FIXED + 16 * (size_t)k.n_rails;
    return HY_OK;
}
