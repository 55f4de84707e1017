/* SPDX-License-Identifier: Apache-2.0
 *
 * KV descriptors: checks, wire form, and whether two of them match.
 *
 * Thread: any (pure functions).  Owner: none.
 */
#include "hal/kv_desc.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_TOKENS = 1024, /* of a block */
    MAX_LAYERS = 65536,
    MAX_HEADS = 65536,
    MAX_WIDTH = 65536,
    HEAD_BYTES = 16,
    RECORD_BYTES = 14 * 4 + 11 * 8,
    RECORD_MAX = 4096,
};
#define MAX_BYTES ((uint64_t)1 << 52)

uint32_t hy_kv_wire_bit(hy_dtype t)
{
    switch (t) {
    case HY_F32:
        return HY_KV_WIRE_F32;
    case HY_F16:
        return HY_KV_WIRE_F16;
    case HY_BF16:
        return HY_KV_WIRE_BF16;
    case HY_I8:
        return HY_KV_WIRE_I8;
    case HY_F8_E4M3:
        return HY_KV_WIRE_F8_E4M3;
    case HY_F8_E4M3FNUZ:
        return HY_KV_WIRE_F8_E4M3FNUZ;
    default:
        return 0;
    }
}

bool hy_kv_wire_scaled(hy_dtype t)
{
    return t == HY_I8 || t == HY_F8_E4M3 || t == HY_F8_E4M3FNUZ;
}

/* ---- making and checking ---- */

hy_status hy_kv_desc_add(hy_kv_desc *d, hy_dev *dev, const hy_kv_pool *pool, int32_t window,
                         int32_t head0, int32_t heads_total)
{
    static const hy_dtype wires[] = {HY_F32, HY_F16, HY_BF16, HY_I8, HY_F8_E4M3, HY_F8_E4M3FNUZ};
    const hy_kv_layout *l = &pool->layout;
    if (d->n_groups < 0 || d->n_groups >= HY_KV_GROUPS_MAX)
        return hy_fail(HY_E_LIMIT, "more than %d KV groups", HY_KV_GROUPS_MAX);
    hy_kv_desc_group g = {.layout = *l,
                          .head0 = head0,
                          .heads_total = heads_total,
                          .window = window,
                          .n_blocks = pool->n_blocks};
    for (size_t i = 0; i < HY_COUNTOF(wires); i++) {
        hy_op_query q = {.op = HY_OP_KV_PACK,
                         .w_type = wires[i],
                         .kv_type = l->type,
                         .kv_value = l->value_type,
                         .k_dim = l->k.width,
                         .v_dim = l->v.width,
                         .block_tokens = l->block_tokens};
        bool pack = dev->math->supports(dev, &q);
        q.op = HY_OP_KV_UNPACK;
        if (pack && dev->math->supports(dev, &q))
            g.wires |= hy_kv_wire_bit(wires[i]);
    }
    d->g[d->n_groups++] = g;
    hy_status st = hy_kv_desc_check(d);
    if (st < 0)
        d->n_groups--;
    return st;
}

static bool in(int64_t v, int64_t lo, int64_t hi)
{
    return v >= lo && v <= hi;
}

typedef struct axis {
    int64_t count, stride;
} axis;

/* Bytes from the first to past the last element; 0 when two elements share a byte or it is absurdly
 * long. Strides that nest (each steps over all that the smaller ones reach) cannot collide. */
static uint64_t reach_of(axis *a, size_t n, uint64_t elem)
{
    uint64_t reach = elem;
    for (size_t i = 1; i < n; i++) { /* insertion sort by stride */
        axis x = a[i];
        size_t j = i;
        for (; j > 0 && a[j - 1].stride > x.stride; j--)
            a[j] = a[j - 1];
        a[j] = x;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t s = (uint64_t)a[i].stride, c = (uint64_t)a[i].count - 1;
        if (c == 0)
            continue;
        if (s < reach || s > MAX_BYTES / c || c * s > MAX_BYTES - reach)
            return 0;
        reach += c * s;
    }
    return reach;
}

static hy_status check_plane(int g, const char *name, const hy_kv_desc_group *d,
                             const hy_kv_plane *p)
{
    const hy_kv_layout *l = &d->layout;
    int64_t top = (int64_t)MAX_BYTES;
    if (!in(p->width, 1, MAX_WIDTH))
        return hy_fail(HY_E_INVAL, "KV group %d: %s width of %d", g, name, p->width);
    if (!in(p->off, 0, top) || !in(p->head, 0, top) || !in(p->token, 0, top) || !in(p->dim, 0, top))
        return hy_fail(HY_E_INVAL, "KV group %d: %s strides out of range", g, name);
    axis a[] = {{p->width, p->dim},
                {l->block_tokens, p->token},
                {l->n_heads, p->head},
                {l->n_layers, l->layer_stride},
                {d->n_blocks, l->block_stride}};
    uint64_t reach = reach_of(a, HY_COUNTOF(a), hy_dtype_get(l->type)->bytes);
    if (reach == 0)
        return hy_fail(HY_E_INVAL, "KV group %d: %s strides overlap or are too long", g, name);
    if (reach + (uint64_t)p->off > hy_kv_desc_pool_bytes(d))
        return hy_fail(HY_E_INVAL, "KV group %d: %s strides leave the pool of %llu bytes", g, name,
                       (unsigned long long)hy_kv_desc_pool_bytes(d));
    return HY_OK;
}

/* A value must survive its storage. */
static bool types_ok(hy_dtype value, hy_dtype type)
{
    if (hy_kv_wire_bit(value) == 0 || hy_kv_wire_bit(type) == 0)
        return false;
    if (value == type || type == HY_F32)
        return true;
    return (type == HY_F16 || type == HY_BF16) && (value == HY_F8_E4M3 || value == HY_F8_E4M3FNUZ);
}

static hy_status check_group(int i, const hy_kv_desc_group *g)
{
    const hy_kv_layout *l = &g->layout;
    if (!types_ok(l->value_type, l->type))
        return hy_fail(HY_E_INVAL, "KV group %d: value type %s (%d) stored as %s (%d)", i,
                       hy_dtype_name((int)l->value_type), (int)l->value_type,
                       hy_dtype_name((int)l->type), (int)l->type);
    if (!in(l->block_tokens, 1, MAX_TOKENS))
        return hy_fail(HY_E_INVAL, "KV group %d: blocks of %d tokens", i, l->block_tokens);
    if (!in(l->n_layers, 1, MAX_LAYERS))
        return hy_fail(HY_E_INVAL, "KV group %d: %d layers", i, l->n_layers);
    if (!in(g->heads_total, 1, MAX_HEADS) || !in(l->n_heads, 1, g->heads_total) ||
        !in(g->head0, 0, g->heads_total - l->n_heads))
        return hy_fail(HY_E_INVAL, "KV group %d: heads %d+%d of %d", i, g->head0, l->n_heads,
                       g->heads_total);
    if (g->window < 0)
        return hy_fail(HY_E_INVAL, "KV group %d: window of %d", i, g->window);
    if (g->n_blocks < 1)
        return hy_fail(HY_E_INVAL, "KV group %d: pool of %d blocks", i, g->n_blocks);
    if (!in(l->layer_stride, 0, (int64_t)MAX_BYTES) ||
        !in(l->block_stride, 0, (int64_t)MAX_BYTES) ||
        !in(l->bytes_per_block, 1, (int64_t)(MAX_BYTES / (uint64_t)g->n_blocks)))
        return hy_fail(HY_E_INVAL, "KV group %d: block or layer strides out of range", i);
    HY_TRY(check_plane(i, "K", g, &l->k));
    return check_plane(i, "V", g, &l->v);
}

hy_status hy_kv_desc_check(const hy_kv_desc *d)
{
    if (!in(d->n_groups, 1, HY_KV_GROUPS_MAX))
        return hy_fail(HY_E_INVAL, "a KV descriptor of %d groups", d->n_groups);
    for (int i = 0; i < d->n_groups; i++)
        HY_TRY(check_group(i, &d->g[i]));
    return HY_OK;
}

uint64_t hy_kv_desc_pool_bytes(const hy_kv_desc_group *g)
{
    return (uint64_t)g->layout.bytes_per_block * (uint64_t)g->n_blocks;
}

/* ---- wire form ---- */

static void put32(uint8_t **p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        *(*p)++ = (uint8_t)(v >> 8 * i);
}

static void put64(uint8_t **p, int64_t v)
{
    put32(p, (uint32_t)(uint64_t)v);
    put32(p, (uint32_t)((uint64_t)v >> 32));
}

static uint32_t get32(const uint8_t **p)
{
    const uint8_t *b = *p;
    *p += 4;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static int64_t get64(const uint8_t **p)
{
    uint64_t lo = get32(p);
    return (int64_t)(lo | (uint64_t)get32(p) << 32);
}

static void put_plane(uint8_t **p, const hy_kv_plane *k)
{
    put64(p, k->off);
    put64(p, k->head);
    put64(p, k->token);
    put64(p, k->dim);
}

static void put_group(uint8_t **p, const hy_kv_desc_group *g)
{
    const hy_kv_layout *l = &g->layout;
    put32(p, 0); /* kind: attention with K and V; no other yet */
    put32(p, (uint32_t)l->value_type);
    put32(p, (uint32_t)l->type);
    put32(p, (uint32_t)l->n_layers);
    put32(p, (uint32_t)l->n_heads);
    put32(p, (uint32_t)g->head0);
    put32(p, (uint32_t)g->heads_total);
    put32(p, (uint32_t)l->block_tokens);
    put32(p, (uint32_t)l->k.width);
    put32(p, (uint32_t)l->v.width);
    put32(p, (uint32_t)g->window);
    put32(p, (uint32_t)g->n_blocks);
    put32(p, g->wires);
    put32(p, 0);
    put64(p, l->layer_stride);
    put64(p, l->block_stride);
    put64(p, l->bytes_per_block);
    put_plane(p, &l->k);
    put_plane(p, &l->v);
}

void hy_kv_desc_encode(const hy_kv_desc *d, hy_buf *out)
{
    uint8_t head[HEAD_BYTES], rec[RECORD_BYTES], *p = head;
    size_t n = d->n_groups > 0 ? (size_t)d->n_groups : 0;
    memcpy(p, "HYKV", 4);
    p += 4;
    put32(&p, HY_KV_DESC_VERSION);
    put32(&p, (uint32_t)n);
    put32(&p, RECORD_BYTES);
    hy_buf_add(out, head, sizeof(head));
    for (size_t i = 0; i < n; i++) {
        p = rec;
        put_group(&p, &d->g[i]);
        hy_buf_add(out, rec, sizeof(rec));
    }
}

static void get_plane(const uint8_t **p, hy_kv_plane *k)
{
    k->off = get64(p);
    k->head = get64(p);
    k->token = get64(p);
    k->dim = get64(p);
}

static hy_status get_group(const uint8_t *p, hy_kv_desc_group *g)
{
    hy_kv_layout *l = &g->layout;
    uint32_t kind = get32(&p);
    if (kind != 0)
        return hy_fail(HY_E_UNSUPPORTED, "KV descriptor: cache group of kind %u", kind);
    uint32_t value = get32(&p), type = get32(&p);
    if (hy_dtype_get(value < HY_DTYPE_MAX ? (int)value : -1) == NULL ||
        hy_dtype_get(type < HY_DTYPE_MAX ? (int)type : -1) == NULL)
        return hy_fail(HY_E_INVAL, "KV descriptor: unknown element types %u, %u", value, type);
    l->value_type = (hy_dtype)value;
    l->type = (hy_dtype)type;
    l->n_layers = (int32_t)get32(&p);
    l->n_heads = (int32_t)get32(&p);
    g->head0 = (int32_t)get32(&p);
    g->heads_total = (int32_t)get32(&p);
    l->block_tokens = (int32_t)get32(&p);
    l->k.width = (int32_t)get32(&p);
    l->v.width = (int32_t)get32(&p);
    g->window = (int32_t)get32(&p);
    g->n_blocks = (int32_t)get32(&p);
    g->wires = get32(&p);
    (void)get32(&p);
    l->layer_stride = get64(&p);
    l->block_stride = get64(&p);
    l->bytes_per_block = get64(&p);
    get_plane(&p, &l->k);
    get_plane(&p, &l->v);
    return HY_OK;
}

hy_status hy_kv_desc_decode(const void *data, size_t len, hy_kv_desc *out, size_t *used_out)
{
    const uint8_t *p = data;
    if (len < HEAD_BYTES || memcmp(p, "HYKV", 4) != 0)
        return hy_fail(HY_E_FORMAT, "KV descriptor: %zu bytes that are none", len);
    p += 4;
    uint32_t version = get32(&p), n = get32(&p), rec = get32(&p);
    if (version != HY_KV_DESC_VERSION)
        return hy_fail(HY_E_UNSUPPORTED, "KV descriptor of version %u, this node knows %d", version,
                       HY_KV_DESC_VERSION);
    if (n < 1 || n > HY_KV_GROUPS_MAX)
        return hy_fail(HY_E_FORMAT, "KV descriptor of %u groups", n);
    if (rec < RECORD_BYTES || rec > RECORD_MAX || (len - HEAD_BYTES) / rec < n)
        return hy_fail(HY_E_FORMAT, "KV descriptor: %u records of %u bytes in %zu", n, rec, len);
    memset(out, 0, sizeof(*out));
    out->n_groups = (int32_t)n;
    for (uint32_t i = 0; i < n; i++, p += rec)
        HY_TRY(get_group(p, &out->g[i]));
    HY_TRY(hy_kv_desc_check(out));
    if (used_out != NULL)
        *used_out = HEAD_BYTES + (size_t)n * rec;
    return HY_OK;
}

/* ---- match ---- */

static bool differ(char *why, int g, const char *field, int64_t a, int64_t b)
{
    if (a == b)
        return false;
    if (g < 0)
        snprintf(why, HY_KV_REASON_MAX, "%s: %lld at the source, %lld at the destination", field,
                 (long long)a, (long long)b);
    else
        snprintf(why, HY_KV_REASON_MAX, "group %d: %s: %lld at the source, %lld at the destination",
                 g, field, (long long)a, (long long)b);
    return true;
}

hy_kv_match hy_kv_compat(const hy_kv_desc *src, const hy_kv_desc *dst,
                         char reason[HY_KV_REASON_MAX])
{
    char spare[HY_KV_REASON_MAX], *why = reason != NULL ? reason : spare;
    hy_kv_match m = HY_KV_MATCH_LOSSLESS;
    why[0] = '\0';
    if (differ(why, -1, "cache groups", src->n_groups, dst->n_groups))
        return HY_KV_MATCH_NONE;
    for (int i = 0; i < src->n_groups; i++) {
        const hy_kv_desc_group *a = &src->g[i], *b = &dst->g[i];
        if (differ(why, i, "layers", a->layout.n_layers, b->layout.n_layers) ||
            differ(why, i, "KV heads of the model", a->heads_total, b->heads_total) ||
            differ(why, i, "K width", a->layout.k.width, b->layout.k.width) ||
            differ(why, i, "V width", a->layout.v.width, b->layout.v.width) ||
            differ(why, i, "window", a->window, b->window))
            return HY_KV_MATCH_NONE;
        if (a->layout.value_type == b->layout.value_type || m == HY_KV_MATCH_LOSSY)
            continue;
        snprintf(
            why, HY_KV_REASON_MAX, "group %d: value type: %s at the source, %s at the destination",
            i, hy_dtype_name((int)a->layout.value_type), hy_dtype_name((int)b->layout.value_type));
        m = HY_KV_MATCH_LOSSY;
    }
    return m;
}
