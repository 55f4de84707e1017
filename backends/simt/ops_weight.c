/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights on the device: rows begin at multiples of 16 bytes, quantised ones lie by planes
 * (args.h). A few rows at a time are laid out on the host and copied.
 *
 * Thread: the loader's, one weight at a time.  Owner: a weight holds its device copy, or borrows
 * its source (a device whose memory is the host's, and rows that are fine as they are).
 */
#include "backends/simt/ops_int.h"
#include "core/base/alloc.h"
#include "hal/quant.h"

#include <pthread.h>
#include <string.h>

#define STAGE        ((size_t)16 << 20) /* bytes laid out at a time, about */
#define A_THREAD     ((size_t)1 << 20)  /* of them, at least */
#define MOST_THREADS 16

typedef struct planes {
    int code, second, scales, per; /* args.h */
    size_t chunk;
} planes;

static planes planes_of(hy_dtype t)
{
#define CASE(type, c, s, d, p)                                                                     \
    if ((int)t == (int)type)                                                                       \
        return (planes){c, s, d, p, KA_CHUNK(c, s, d, p)};
    KA_EACH_PLANES(CASE)
#undef CASE
    return (planes){0};
}

bool simt_weight_type_ok(int t)
{
    return t == HY_F32 || t == HY_F16 || t == HY_BF16 || planes_of((hy_dtype)t).chunk != 0;
}

static size_t round16(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* Bytes of a row on the device; `row` in the file. */
static size_t device_row(hy_dtype t, int64_t k, size_t row)
{
    const planes p = planes_of(t);
    const size_t groups = ((size_t)k / 32 + 7) / 8 * 8, rest = groups % 32;
    if (p.chunk == 0)
        return round16(row);
    return groups / 32 * p.chunk +
           round16(rest * (size_t)(p.code + p.second) + rest / (size_t)p.per * (size_t)p.scales);
}

/* ---- layout ---- */

/* A group's places in its chunk (k_dtype.h reads them). */
typedef struct place {
    uint8_t *code, *second, *scales;
    size_t slots;
} place;

static place place_of(const planes *p, uint8_t *row, size_t groups, size_t g)
{
    const size_t i = g % 32, left = (groups + 7) / 8 * 8 - (g - i), slots = left < 32 ? left : 32;
    uint8_t *b = row + g / 32 * p->chunk;
    uint8_t *scales = b + slots * (size_t)(p->code + p->second);
    return (place){b + i * (size_t)(p->code < 16 ? p->code : 16),
                   b + slots * (size_t)p->code + i * (size_t)p->second,
                   scales + i / (size_t)p->per * (size_t)p->scales, slots};
}

/* Types of 32 codes a block: (d or d, m), high bits, codes. */
static void lay_legacy(const planes *p, const place *at, const uint8_t *block)
{
    memcpy(at->scales, block, (size_t)p->scales);
    block += p->scales;
    memcpy(at->second, block, (size_t)p->second);
    block += p->second;
    memcpy(at->code, block, 16);
    if (p->code == 32)
        memcpy(at->code + 16 * at->slots, block + 16, 16);
}

static uint32_t word_at(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, sizeof(w));
    return w;
}

/* Bits [bit, bit + 2) of each of 32 codes: 4 f + i of a half in field f of byte i, a word a half.
 */
static void two_bits(const uint8_t *code, int bit, uint8_t out[8])
{
    for (int h = 0; h < 2; h++) {
        uint32_t w = 0;
        for (int f = 0; f < 4; f++)
            w |= (word_at(code + 16 * h + 4 * f) >> bit & 0x03030303u) << 2 * f;
        memcpy(out + 4 * h, &w, sizeof(w));
    }
}

/* Bit `bit` of each of 32 codes, an element a bit. */
static void one_bit(const uint8_t *code, int bit, uint8_t out[4])
{
    for (int i = 0; i < 4; i++) { /* the product moves the eight bits into the highest byte */
        const uint64_t lo = word_at(code + 8 * i), hi = word_at(code + 8 * i + 4);
        out[i] =
            (uint8_t)(((lo | hi << 32) >> bit & 0x0101010101010101u) * 0x0102040810204080u >> 56);
    }
}

/* On a machine whose low byte comes first, as every one that has such a device. */
static void lay_codes(hy_dtype t, const place *at, const uint8_t *code)
{
    if (t == HY_Q2_K || t == HY_Q3_K) {
        two_bits(code, 0, at->code);
    } else {
        for (int i = 0; i < 16; i++)
            at->code[i] = (uint8_t)((code[i] & 15) | code[16 + i] << 4);
    }
    if (t == HY_Q6_K)
        two_bits(code, 4, at->second);
    else if (t == HY_Q3_K || t == HY_Q5_K)
        one_bit(code, t == HY_Q3_K ? 2 : 4, at->second);
}

/* Types of 256 codes a block, group g of it. */
static void lay_k(hy_dtype t, const place *at, const uint8_t *block, const hy_quant_block *b, int g)
{
    const int zero = t == HY_Q3_K ? 4 : t == HY_Q6_K ? 32 : 0;
    uint8_t code[32];
    for (int e = 0; e < 32; e++)
        code[e] = (uint8_t)(b->q[32 * g + e] + zero);
    lay_codes(t, at, code);
    if (t == HY_Q2_K)
        memcpy(at->second, block + 2 * g, 2);
    if (g != 0)
        return;
    if (t == HY_Q2_K) {
        memcpy(at->scales, block + 80, 4);
    } else if (t == HY_Q3_K) {
        memcpy(at->scales, block + 96, 14);
    } else if (t == HY_Q6_K) {
        memcpy(at->scales, block + 192, 18);
    } else {
        memcpy(at->scales, block, 16);
    }
}

static void lay_row(hy_dtype t, const uint8_t *src, int64_t k, size_t row, uint8_t *out)
{
    const planes p = planes_of(t);
    const hy_quant_info *info = hy_quant_get((int)t);
    const size_t groups = (size_t)k / 32, bytes = hy_dtype_get((int)t)->bytes;
    hy_quant_block b;
    if (p.chunk == 0) {
        memcpy(out, src, row);
        return;
    }
    for (size_t g = 0; g < groups; g++) {
        const place at = place_of(&p, out, groups, g);
        const uint8_t *block = src + g * 32 / info->block * bytes;
        if (info->block == 32) {
            lay_legacy(&p, &at, block);
            continue;
        }
        if (g % 8 == 0)
            hy_quant_unpack((int)t, block, &b);
        lay_k(t, &at, block, &b, (int)(g % 8));
    }
}

/* ---- onto the device ---- */

/* Rows that a thread lays out. */
typedef struct rows {
    const hy_weight_src *src;
    const uint8_t *from;
    uint8_t *to;
    size_t row, to_row;
    int64_t n;
    pthread_t thread;
    bool started;
} rows;

static void *lay_rows(void *arg)
{
    const rows *r = arg;
    memset(r->to, 0, (size_t)r->n * r->to_row);
    for (int64_t i = 0; i < r->n; i++)
        lay_row(r->src->type, r->from + (size_t)i * r->row, r->src->k, r->row,
                r->to + (size_t)i * r->to_row);
    return NULL;
}

/* Rows in equal parts, a thread each; a part whose thread does not start is the caller's, too. */
static void lay_all(const rows *all, int threads)
{
    rows part[MOST_THREADS];
    const int by_size = (int)(all->to_row * (size_t)all->n / A_THREAD) + 1;
    int n = threads < by_size ? threads : by_size;
    n = n > MOST_THREADS ? MOST_THREADS : n < 1 ? 1 : n;
    for (int i = 0; i < n; i++) {
        const int64_t lo = all->n * i / n;
        part[i] = *all;
        part[i].from += (size_t)lo * all->row;
        part[i].to += (size_t)lo * all->to_row;
        part[i].n = all->n * (i + 1) / n - lo;
        part[i].started =
            i + 1 < n && pthread_create(&part[i].thread, NULL, lay_rows, &part[i]) == 0;
        if (!part[i].started)
            lay_rows(&part[i]);
    }
    for (int i = 0; i < n; i++)
        if (part[i].started)
            pthread_join(part[i].thread, NULL);
}

static hy_status send_rows(hy_queue *q, const simt_weight *w, const hy_weight_src *src, size_t row,
                           void *host, int64_t at, int64_t n)
{
    const hy_dev_ops *ops = q->dev->ops;
    uint8_t *to = (uint8_t *)(uintptr_t)w->p + (size_t)at * w->row_bytes;
    const rows all = {.src = src,
                      .from = (const uint8_t *)src->data + (size_t)at * row,
                      .to = host,
                      .row = row,
                      .to_row = w->row_bytes,
                      .n = n};
    lay_all(&all, simt_base_of(q->dev)->threads);
    HY_TRY(ops->copy(q, to, host, (size_t)n * w->row_bytes));
    return ops->queue_wait(q);
}

static hy_status send_all(hy_dev *d, const simt_weight *w, const hy_weight_src *src, size_t row)
{
    const int64_t n = w->row_bytes < STAGE ? (int64_t)(STAGE / w->row_bytes) : 1;
    const int64_t part = n < src->n ? n : src->n;
    const bool as_is = hy_quant_get((int)src->type) == NULL && row == w->row_bytes;
    hy_queue *q = NULL;
    void *host = as_is ? NULL : hy_aligned_alloc(64, (size_t)part * w->row_bytes / 64 * 64 + 64);
    if (!as_is && host == NULL)
        return hy_fail(HY_E_NOMEM, "%s: no memory to lay out a weight", simt_base_of(d)->name);
    hy_status st = d->ops->queue_create(d, &q);
    if (st == HY_OK && as_is) {
        st = d->ops->copy(q, (void *)(uintptr_t)w->p, src->data, row * (size_t)src->n);
        if (st == HY_OK)
            st = d->ops->queue_wait(q);
    }
    for (int64_t r = 0; st == HY_OK && !as_is && r < src->n; r += part)
        st = send_rows(q, w, src, row, host, r, src->n - r < part ? src->n - r : part);
    if (q != NULL)
        d->ops->queue_destroy(q);
    hy_free(host);
    return st;
}

hy_status simt_prepare_weight(hy_dev *d, const hy_weight_src *src, hy_weight **out)
{
    const simt_base *s = simt_base_of(d);
    if (!simt_weight_type_ok((int)src->type))
        return hy_fail(HY_E_UNSUPPORTED, "%s: no matmul for weights of type %s", s->name,
                       hy_dtype_name(src->type));
    const size_t row = hy_dtype_row_bytes(src->type, src->k);
    if (src->n < 1 || src->k < 1 || row == 0 || src->n > INT32_MAX || src->k > INT32_MAX)
        return hy_fail(HY_E_INVAL, "%s: weight of %lld x %lld does not fit blocks of %s", s->name,
                       (long long)src->n, (long long)src->k, hy_dtype_name(src->type));
    simt_weight *w = hy_calloc(1, sizeof(*w));
    if (w == NULL)
        return hy_fail(HY_E_NOMEM, "%s: no memory for a weight", s->name);
    w->row_bytes = device_row(src->type, src->k, row);
    w->base = (hy_weight){.type = src->type, .n = src->n, .k = src->k};
    w->p = src->data;
    w->base.borrowed = s->borrow && hy_quant_get((int)src->type) == NULL && row == w->row_bytes &&
                       (uintptr_t)src->data % 16 == 0;
    if (!w->base.borrowed) {
        void *p = NULL;
        w->base.bytes = w->row_bytes * (size_t)src->n;
        hy_status st = d->ops->alloc(d, w->base.bytes, &p);
        w->p = p;
        if (st == HY_OK)
            st = send_all(d, w, src, row);
        if (st != HY_OK) {
            if (p != NULL)
                d->ops->free(d, p, w->base.bytes);
            hy_free(w);
            return st;
        }
    }
    *out = &w->base;
    return HY_OK;
}

void simt_weight_free(hy_dev *d, hy_weight *w)
{
    if (w == NULL)
        return;
    if (!w->borrowed)
        d->ops->free(d, (void *)(uintptr_t)simt_weight_of(w)->p, w->bytes);
    hy_free(w);
}
