/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding and decoding of connector messages. Every kind lists its fields once, in one function
 * that both directions walk, so that they cannot disagree.
 *
 * Thread: pure.  Owner: see proto.h.
 */
#include "core/connector/proto.h"

#include "core/base/alloc.h"

#include <stdio.h>
#include <string.h>

/* One walk over the fields: writes when out is set, else reads. */
typedef struct walker {
    hy_buf *out;
    const uint8_t *at, *end;
    bool bad;
} walker;

static void raw(walker *w, void *p, size_t n)
{
    if (w->out != NULL) {
        hy_buf_add(w->out, p, n);
        return;
    }
    if ((size_t)(w->end - w->at) < n || w->bad) {
        w->bad = true;
        memset(p, 0, n);
        return;
    }
    memcpy(p, w->at, n);
    w->at += n;
}

static void u64(walker *w, uint64_t *x)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(*x >> (8 * i));
    raw(w, b, 8);
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v |= (uint64_t)b[i] << (8 * i);
    *x = v;
}

static void u32(walker *w, uint32_t *x)
{
    uint8_t b[4] = {(uint8_t)*x, (uint8_t)(*x >> 8), (uint8_t)(*x >> 16), (uint8_t)(*x >> 24)};
    raw(w, b, 4);
    *x = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static void i32(walker *w, int32_t *x, int32_t lo, int32_t hi)
{
    uint32_t u = (uint32_t)*x;
    u32(w, &u);
    *x = (int32_t)u;
    if (*x < lo || *x > hi)
        w->bad = true;
}

static void u8(walker *w, uint8_t *x)
{
    raw(w, x, 1);
}

static void f32(walker *w, float *x)
{
    uint32_t u;
    memcpy(&u, x, 4);
    u32(w, &u);
    memcpy(x, &u, 4);
}

static void bytes(walker *w, hy_pdp_bytes *b, size_t most)
{
    uint32_t n = (uint32_t)b->n;
    u32(w, &n);
    if (w->out != NULL) {
        hy_buf_add(w->out, b->p, b->n);
        return;
    }
    if (n > most || (size_t)(w->end - w->at) < n || w->bad) {
        w->bad = true;
        *b = (hy_pdp_bytes){0};
        return;
    }
    *b = (hy_pdp_bytes){w->at, n};
    w->at += n;
}

static void text(walker *w, char *t)
{
    hy_pdp_bytes b = {(const uint8_t *)t, w->out != NULL ? strnlen(t, HY_PDP_TEXT_MAX - 1) : 0};
    bytes(w, &b, HY_PDP_TEXT_MAX - 1);
    if (w->out != NULL)
        return;
    for (size_t i = 0; i < b.n; i++) /* it goes into logs and answers */
        t[i] = b.p[i] >= 0x20 && b.p[i] < 0x7f ? (char)b.p[i] : '?';
    t[b.n] = '\0';
}

/* Only failures and 0 travel; a positive status has no meaning to another node. */
static void status(walker *w, hy_status *st)
{
    int32_t v = *st;
    i32(w, &v, -999, 0);
    *st = (hy_status)v;
}

static void hello(walker *w, hy_pdp_msg *m)
{
    raw(w, m->model, sizeof(m->model));
    u8(w, &m->act);
    u8(w, &m->numerics);
    u8(w, &m->wire);
    u32(w, &m->piece_bytes);
    u32(w, &m->min_run);
    i32(w, &m->n_groups, 1, HY_KV_MAX_GROUPS);
    bytes(w, &m->desc, 16384);
    for (int32_t g = 0; g < m->n_groups && !w->bad; g++)
        bytes(w, &m->key[g], HY_PDP_KEY_MAX);
    bytes(w, &m->staging, HY_PDP_KEY_MAX);
    bytes(w, &m->near_name, HY_PDP_NAME_MAX);
    u32(w, &m->near_fd);
    u64(w, &m->near_len);
}

static void ids(walker *w, hy_pdp_msg *m)
{
    i32(w, &m->n_groups, 1, HY_KV_MAX_GROUPS);
    i32(w, &m->first_block, 0, INT32_MAX / 2);
    i32(w, &m->n_ids, 0, HY_PDP_IDS_MAX);
    for (int32_t g = 0; g < m->n_groups && !w->bad; g++) {
        if (w->out == NULL) {
            if ((size_t)(w->end - w->at) < (size_t)m->n_ids * 4) {
                w->bad = true;
                return;
            }
            m->ids[g] = hy_malloc((size_t)m->n_ids * 4 + 4);
            if (m->ids[g] == NULL) {
                w->bad = true;
                return;
            }
        }
        for (int32_t i = 0; i < m->n_ids; i++)
            i32(w, &m->ids[g][i], -1, INT32_MAX);
    }
}

static void get(walker *w, hy_pdp_msg *m)
{
    u64(w, &m->lease);
    u64(w, &m->job);
    i32(w, &m->t0, 0, INT32_MAX / 2);
    i32(w, &m->n, 1, INT32_MAX / 2);
    i32(w, &m->next, 0, INT32_MAX / 2);
    u64(w, &m->stage_off);
    u32(w, &m->slot_bytes);
    u32(w, &m->n_slots);
    u64(w, &m->plan);
    u64(w, &m->wait_ns);
    raw(w, m->prompt, sizeof(m->prompt));
    ids(w, m);
}

static void first(walker *w, hy_conn_first *f)
{
    i32(w, &f->id, 0, INT32_MAX);
    i32(w, &f->rank, 0, INT32_MAX);
    f32(w, &f->logprob);
    i32(w, &f->position, 0, INT32_MAX / 2);
    u64(w, &f->seed);
    uint8_t bits = (uint8_t)((f->stop ? 1 : 0) | (f->barred ? 2 : 0));
    u8(w, &bits);
    f->stop = (bits & 1) != 0;
    f->barred = (bits & 2) != 0;
    i32(w, &f->n_top, 0, HY_CONN_TOP_MAX);
    for (int32_t i = 0; i < f->n_top && !w->bad; i++) {
        i32(w, &f->top_ids[i], 0, INT32_MAX);
        f32(w, &f->top_lps[i]);
    }
}

static void done(walker *w, hy_pdp_msg *m)
{
    u64(w, &m->job);
    status(w, &m->status);
    i32(w, &m->valid, 0, INT32_MAX / 2);
    u32(w, &m->index);
    u64(w, &m->digest);
    u64(w, &m->bytes);
    text(w, m->text);
    if ((m->flags & HY_PDP_FIRST) != 0)
        first(w, &m->first);
}

static void fields(walker *w, hy_pdp_msg *m)
{
    u32(w, &m->flags);
    switch (m->kind) {
    case HY_PDP_HELLO:
        hello(w, m);
        break;
    case HY_PDP_REFUSE:
        text(w, m->text);
        break;
    case HY_PDP_HOLD:
    case HY_PDP_RELEASE:
        u64(w, &m->lease);
        break;
    case HY_PDP_HELD:
        u64(w, &m->lease);
        status(w, &m->status);
        u64(w, &m->left_ns);
        break;
    case HY_PDP_GET:
        get(w, m);
        break;
    case HY_PDP_CHUNK:
        u64(w, &m->job);
        i32(w, &m->t0, 0, INT32_MAX / 2);
        i32(w, &m->n, 1, INT32_MAX / 2);
        i32(w, &m->group, 0, HY_KV_MAX_GROUPS);
        i32(w, &m->groups, 0, 1);
        i32(w, &m->layer0, 0, 65536);
        i32(w, &m->layers, 0, 65536);
        break;
    case HY_PDP_ACK:
        u64(w, &m->job);
        u32(w, &m->index);
        break;
    case HY_PDP_DONE:
        done(w, m);
        break;
    case HY_PDP_CANCEL:
    case HY_PDP_GONE:
        u64(w, &m->job);
        break;
    case HY_PDP_PIECE:
        u64(w, &m->job);
        u32(w, &m->index);
        u64(w, &m->stage_off);
        break;
    case HY_PDP_KINDS:
        w->bad = true;
        break;
    }
}

const char *hy_pdp_name(hy_pdp_kind k)
{
    static const char *const names[] = {"?",    "HELLO",   "REFUSE", "HOLD", "HELD",
                                        "GET",  "CHUNK",   "ACK",    "DONE", "CANCEL",
                                        "GONE", "RELEASE", "PIECE"};
    _Static_assert(HY_COUNTOF(names) == HY_PDP_KINDS, "one name a kind");
    return k > 0 && k < HY_PDP_KINDS ? names[k] : names[0];
}

void hy_pdp_encode(const hy_pdp_msg *m, hy_buf *out)
{
    walker w = {.out = out};
    uint8_t version = HY_PDP_VERSION;
    hy_pdp_msg copy = *m; /* the walk writes back what it read: the same */
    u8(&w, &version);
    fields(&w, &copy);
    HY_ASSERT(!w.bad);
}

hy_status hy_pdp_decode(uint32_t type, const void *data, size_t len, hy_pdp_msg *out)
{
    memset(out, 0, sizeof(*out));
    const uint32_t kind = type - HY_PDP_TYPE;
    if (type <= HY_PDP_TYPE || kind >= HY_PDP_KINDS)
        return hy_fail(HY_E_FORMAT, "message of unknown type %#x", type);
    out->kind = (hy_pdp_kind)kind;
    walker w = {.at = data, .end = (const uint8_t *)data + len};
    uint8_t version = 0;
    u8(&w, &version);
    if (!w.bad && version != HY_PDP_VERSION)
        return hy_fail(HY_E_UNSUPPORTED, "%s message of protocol version %d, this is version %d",
                       hy_pdp_name(out->kind), version, HY_PDP_VERSION);
    fields(&w, out);
    if (!w.bad && w.at == w.end)
        return HY_OK;
    hy_pdp_fini(out);
    return hy_fail(HY_E_FORMAT, "%s message of %zu bytes does not parse", hy_pdp_name(kind), len);
}

void hy_pdp_fini(hy_pdp_msg *m)
{
    for (int32_t g = 0; g < HY_KV_MAX_GROUPS; g++) {
        hy_free(m->ids[g]);
        m->ids[g] = NULL;
    }
}
