/* SPDX-License-Identifier: Apache-2.0
 *
 * What fabric puts on a control connection: frames of a 32-byte header and a payload, numbers in
 * little endian, checked by length, version and checksum before anything is believed.
 *
 *   magic "HYFB" | version u8 | kind u8 | 0 u16 | len u32 | sum u32 | delivered u64 | consumed u64
 *
 * sum is the low half of xxHash64 over the header without it and the payload. delivered and
 * consumed acknowledge the sequenced messages of the peer on any frame.
 *
 * Thread: pure functions.  Owner: nothing kept.
 */
#ifndef HY_FABRIC_WIRE_H
#define HY_FABRIC_WIRE_H

#include "fabric/fabric.h"

enum {
    FAB_HEAD = 32,
    FAB_FRAME_MAX = HY_FAB_MSG_MAX + 64, /* payload */
    FAB_SHAKE_MAX = 1024,                /* payload before authentication */
    FAB_BLOB_MAX = 256,
    FAB_MSG_FIXED = 24, /* seq u64, sub u32, type u32, num u64 */
    FAB_SAME_LEN = 37,  /* host u64, pid u32, address u64, 16 bytes that lie there, verdict u8 */
};

typedef enum fab_kind {
    FAB_HELLO = 1, /* -> who I am, nonce */
    FAB_CHALLENGE, /* <- who I am, nonce, proof */
    FAB_AUTH,      /* -> proof, data path address */
    FAB_READY,     /* <- data path address */
    FAB_REFUSE,    /* why, as text */
    FAB_PING,
    FAB_MSG,        /* sequenced: see fab_sub */
    FAB_ANNOUNCE,   /* u8: data is (not) on its way to you: poll your data path */
    FAB_BYE,        /* this epoch ends */
    FAB_DATA,       /* first frame of own data connection: link id, proof */
    FAB_SAME,       /* u8: your memory can (not) be read from here: same.c */
    FAB_SAME_WRITE, /* where a piece lies and where it goes */
    FAB_SAME_DONE,  /* pieces that are applied here */
    FAB_KIND_END,
} fab_kind;

typedef enum fab_sub {
    FAB_SUB_APP = 1, /* num: unused */
    FAB_SUB_IMM,     /* num: the immediate */
    FAB_SUB_ASK,     /* a pull: num is the reader's piece */
    FAB_SUB_ANSWER,  /* num: the piece; status, lost link */
    FAB_SUB_STOP,    /* num: the piece */
} fab_sub;

typedef struct fab_head {
    fab_kind kind;
    uint32_t len, sum;
    uint64_t delivered, consumed;
} fab_head;

/* out[FAB_HEAD]; payload in two parts. */
void hy_fab__head_put(uint8_t *out, const fab_head *h, const void *a, size_t na, const void *b,
                      size_t nb);
/* HY_AGAIN: fewer than FAB_HEAD bytes. HY_E_FORMAT, or HY_E_PROTOCOL for another version. */
hy_status hy_fab__head_get(const uint8_t *in, size_t n, uint32_t max, fab_head *out);
bool hy_fab__head_sum_ok(const uint8_t *in, const fab_head *h);

typedef struct fab_hello {
    char node[HY_FAB_NODE_MAX];
    char dp[48]; /* data path wished for (HELLO) or chosen (CHALLENGE) */
    uint64_t epoch;
    uint8_t nonce[32];
    uint32_t rail;
} fab_hello;
void hy_fab__hello_put(hy_buf *out, const fab_hello *h);
hy_status hy_fab__hello_get(const uint8_t *p, size_t n, fab_hello *out, size_t *used);

void hy_fab__hmac(const void *key, size_t key_len, const void *data, size_t n, uint8_t out[32]);
bool hy_fab__same(const uint8_t *a, const uint8_t *b, size_t n); /* constant time */

void hy_fab__key_put(hy_buf *out, const hy_fab_key *k);
hy_status hy_fab__key_get(const uint8_t *p, size_t n, hy_fab_key *out, size_t *used);

static inline void fab_put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}
static inline void fab_put64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}
static inline uint32_t fab_get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t fab_get64(const uint8_t *p)
{
    return (uint64_t)fab_get32(p) | (uint64_t)fab_get32(p + 4) << 32;
}

#endif
