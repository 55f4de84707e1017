/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between connectors (docs/PD.md): one struct, one encoder, one decoder. Little-endian,
 * fixed order, a version byte first. Decoding trusts nothing: lengths, counts and enums are
 * bounded, trailing bytes are refused, foreign versions are refused by name.
 *
 * Thread: pure.  Owner: a decoded message borrows from the bytes, except ids: hy_pdp_fini.
 */
#ifndef HY_CONNECTOR_PROTO_H
#define HY_CONNECTOR_PROTO_H

#include "core/connector/connector.h"
#include "hal/kv_desc.h"

enum {
    HY_PDP_VERSION = 4,
    HY_PDP_TYPE = 0x4b560000, /* message types are this + kind */
    HY_PDP_IDS_MAX = 12000,   /* block ids of one message, all groups together */
    HY_PDP_TEXT_MAX = 120,
    HY_PDP_KEY_MAX = 192,
    HY_PDP_NAME_MAX = 48,
};

typedef enum hy_pdp_kind {
    HY_PDP_HELLO = 1, /* both ways, once a link */
    HY_PDP_REFUSE,    /* text: the field that bars the link */
    HY_PDP_HOLD,      /* D: renew this lease */
    HY_PDP_HELD,      /* P: status and ns left of it */
    HY_PDP_GET,       /* D: write tokens [t0, t0 + n) into my landing */
    HY_PDP_CHUNK,     /* P, push: the pieces that follow are of tokens [t0, t0 + n) */
    HY_PDP_ACK,       /* D: pieces before `index` are unpacked */
    HY_PDP_DONE,      /* P: all is applied, or it failed; no write of the job will follow */
    HY_PDP_CANCEL,    /* D: stop the job */
    HY_PDP_GONE,      /* P: no write of the job is in flight or will start */
    HY_PDP_RELEASE,   /* D: the lease is not needed any more */
    HY_PDP_PIECE,     /* P: packed piece `index` stands at stage_off of the owner's staging */
    HY_PDP_KINDS,
} hy_pdp_kind;

enum {                    /* flags */
       HY_PDP_VERIFY = 1, /* GET: DONE shall carry a digest */
       HY_PDP_PUSH = 2,   /* GET, HOLD, RELEASE: the lease is a transfer id, which may come later */
       HY_PDP_UNKNOWN = 4, /* DONE, GONE: a write may land yet: fence the peer */
       HY_PDP_LOSSY = 8,   /* HELLO: other value types are taken */
       HY_PDP_FIRST = 16,  /* DONE: has the first token */
       HY_PDP_MORE = 32,   /* DONE: the prompt goes on beyond the tokens asked for */
       HY_PDP_NEAR = 64,   /* GET: leave packed pieces in your staging, I read them there */
};

typedef struct hy_pdp_bytes {
    const uint8_t *p;
    size_t n;
} hy_pdp_bytes;

typedef struct hy_pdp_msg {
    hy_pdp_kind kind;
    uint32_t flags;
    uint64_t lease, job;
    hy_status status;
    char text[HY_PDP_TEXT_MAX];
    /* HELLO */
    uint8_t model[32];
    uint8_t act, numerics;
    uint8_t wire; /* what comes to the sender travels as this hy_dtype, plus 1; 0: as it is */
    uint32_t piece_bytes, min_run; /* of copy plans: the smaller and the larger of both sides' */
    hy_pdp_bytes desc;
    hy_pdp_bytes key[HY_KV_MAX_GROUPS]; /* of the pools; n 0: cannot be written to */
    hy_pdp_bytes staging;
    hy_pdp_bytes near_name; /* of the memfd that the staging is; n 0: it is none */
    uint32_t near_fd;       /* its number in the sender's process */
    uint64_t near_len;
    int32_t n_groups;
    /* HELD */
    uint64_t left_ns;
    /* GET */
    int32_t t0, n, next;
    uint64_t stage_off; /* PIECE, too */
    uint32_t slot_bytes, n_slots;
    uint64_t plan; /* digest: both must see the same pieces */
    uint64_t wait_ns;
    int32_t group, groups, layer0, layers; /* CHUNK: those alone; groups 0: all of everything */
    int32_t first_block;                   /* ids[g][i] is block first_block + i; -1: none */
    int32_t *ids[HY_KV_MAX_GROUPS];
    int32_t n_ids;
    uint8_t prompt[32]; /* digest of the first t0 + n tokens; all 0: not checked */
    /* ACK, PIECE; DONE: packed pieces sent */
    uint32_t index;
    /* DONE */
    int32_t valid;
    uint64_t digest, bytes;
    hy_conn_first first;
} hy_pdp_msg;

/* The immediate of the write of a packed piece: whose it is, and which (modulo 65536). */
static inline uint64_t hy_pdp_imm(uint64_t job, uint32_t index)
{
    return job << 16 | (index & 0xffff);
}

const char *hy_pdp_name(hy_pdp_kind k);
/* Appends the payload. */
void hy_pdp_encode(const hy_pdp_msg *m, hy_buf *out);
/* type: the fabric's. HY_E_FORMAT, HY_E_UNSUPPORTED (version), HY_E_LIMIT, HY_E_NOMEM. */
hy_status hy_pdp_decode(uint32_t type, const void *data, size_t len, hy_pdp_msg *out);
void hy_pdp_fini(hy_pdp_msg *m);

#endif
