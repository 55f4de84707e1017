/* SPDX-License-Identifier: Apache-2.0
 *
 * Copy plans: how each group and range of heads goes (direct or packed, in which wire type), and
 * the cutting of a want into pieces.
 *
 * Thread: a plan is immutable after create.  Owner: the creator.
 */
#include "hal/kv_plan.h"

#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "hal/kv_plan_int.h"

#include <string.h>

#define MIN_PIECE ((size_t)256 << 10)
#define MAX_PIECE ((size_t)4 << 20)
#define ALIGN     ((size_t)64) /* of scales behind codes */

enum { ZONE_HEAD, ZONE_BODY, ZONE_TAIL, ZONES }; /* packed, direct, packed; or body alone */

/* ---- shares ---- */

static bool holds(const hy_kv_desc_group *g, int32_t head)
{
    return head >= g->head0 && head < g->head0 + g->layout.n_heads;
}

static hy_status share_group(const hy_kv_desc *const *srcs, int32_t n, const hy_kv_desc_group *dst,
                             int32_t group, int32_t rank, hy_kv_share *out, size_t cap,
                             size_t *used)
{
    int32_t end = dst->head0 + dst->layout.n_heads;
    for (int32_t h = dst->head0; h < end;) {
        int32_t best = 0, ties = 0, pick = -1;
        for (int32_t i = 0; i < n; i++) {
            const hy_kv_desc_group *s = &srcs[i]->g[group];
            int32_t len = holds(s, h) ? s->head0 + s->layout.n_heads - h : 0;
            len = len < end - h ? len : end - h;
            if (len > best)
                best = len, ties = 0;
            if (len == best)
                ties++;
        }
        if (best == 0)
            return hy_fail(HY_E_INVAL, "group %d: no source holds KV head %d", group, h);
        int32_t nth = (int32_t)((uint32_t)rank % (uint32_t)ties);
        for (int32_t i = 0; i < n && pick < 0; i++) {
            const hy_kv_desc_group *s = &srcs[i]->g[group];
            int32_t len = holds(s, h) ? s->head0 + s->layout.n_heads - h : 0;
            len = len < end - h ? len : end - h;
            if (len == best && nth-- == 0)
                pick = i;
        }
        if (*used == cap)
            return hy_fail(HY_E_LIMIT, "KV heads come in more than %zu ranges", cap);
        out[(*used)++] = (hy_kv_share){pick, group, h, best};
        h += best;
    }
    return HY_OK;
}

hy_status hy_kv_share_out(const hy_kv_desc *const *srcs, int32_t n, const hy_kv_desc *dst,
                          int32_t rank, hy_kv_share *out, size_t cap, size_t *n_out)
{
    char why[HY_KV_REASON_MAX];
    size_t used = 0;
    for (int32_t i = 0; i < n; i++) {
        if (hy_kv_compat(srcs[i], dst, why) == HY_KV_MATCH_NONE)
            return hy_fail(HY_E_UNSUPPORTED, "KV shard %d does not match: %s", i, why);
    }
    for (int32_t g = 0; g < dst->n_groups; g++)
        HY_TRY(share_group(srcs, n, &dst->g[g], g, rank, out, cap, &used));
    *n_out = used;
    return HY_OK;
}

/* ---- create ---- */

static size_t bytes_of(hy_dtype t)
{
    return hy_dtype_get((int)t)->bytes;
}

static int32_t gcd(int32_t a, int32_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

static hy_status pick_wire(const hy_kv_plan *p, const hy_kv_plan_opts *o, hy_kv_lane *l)
{
    const hy_kv_desc_group *s = &p->src.g[l->group], *d = &p->dst.g[l->group];
    hy_dtype sv = s->layout.value_type, dv = d->layout.value_type;
    l->wire = o->has_wire ? o->wire : bytes_of(dv) < bytes_of(sv) ? dv : sv;
    uint32_t both = s->wires & d->wires;
    if ((both & hy_kv_wire_bit(l->wire)) == 0 && !o->has_wire && l->wire != HY_F32 &&
        (both & HY_KV_WIRE_F32) != 0 && !hy_kv_wire_scaled(l->wire))
        l->wire = HY_F32; /* wider, and the same values */
    if ((both & hy_kv_wire_bit(l->wire)) == 0)
        return hy_fail(HY_E_UNSUPPORTED, "group %d: wire type: %s cannot be %s", l->group,
                       hy_dtype_name((int)l->wire),
                       (s->wires & hy_kv_wire_bit(l->wire)) == 0 ? "packed by the source"
                                                                 : "unpacked by the destination");
    return HY_OK;
}

/* Does every value of v survive on the wire w? */
static bool wire_keeps(hy_dtype w, hy_dtype v)
{
    return w == v || (w == HY_F32 && !hy_kv_wire_scaled(v));
}

static hy_status lane_init(hy_kv_plan *p, const hy_kv_plan_opts *o, hy_kv_lane *l)
{
    const hy_kv_desc_group *s = &p->src.g[l->group], *d = &p->dst.g[l->group];
    const hy_kv_layout *a = &s->layout, *b = &d->layout;
    bool same_value = a->value_type == b->value_type;
    int32_t st = a->block_tokens, dt = b->block_tokens;
    if (l->n_heads < 1 || l->head0 < s->head0 || l->head0 < d->head0 ||
        l->n_heads > s->head0 + a->n_heads - l->head0 ||
        l->n_heads > d->head0 + b->n_heads - l->head0)
        return hy_fail(HY_E_INVAL,
                       "group %d: heads %d+%d: the source holds %d+%d, the destination "
                       "%d+%d",
                       l->group, l->head0, l->n_heads, s->head0, a->n_heads, d->head0, b->n_heads);
    hy_kv__slab(p, l);
    l->unit = gcd(st, dt);
    uint64_t run = hy_kv__run(p, l, l->unit);
    if (l->slab && l->slab_len * (uint64_t)a->n_layers > run)
        run = l->slab_len * (uint64_t)a->n_layers;
    l->direct = !o->never_direct && same_value && a->type == b->type && run >= p->min_run &&
                !hy_kv_wire_scaled(a->type) && (!o->has_wire || wire_keeps(o->wire, a->value_type));
    if (l->direct && (st % dt == 0 || dt % st == 0))
        l->unit = st > dt ? st : dt;
    hy_status st_wire = pick_wire(p, o, l);
    if (st_wire < 0 && !l->direct)
        return st_wire;
    if (st_wire == HY_OK && (!same_value || (!l->direct && !wire_keeps(l->wire, a->value_type))))
        p->lossy = true;
    size_t n = (size_t)l->n_heads;
    hy_dtype e = l->direct ? a->type : l->wire;
    l->token_bytes = n * (size_t)(a->k.width + a->v.width) * bytes_of(e);
    if (l->token_bytes + n * 2 * sizeof(float) > p->piece_bytes - ALIGN)
        return hy_fail(HY_E_LIMIT,
                       "group %d: %zu bytes of a token and layer do not fit a piece of "
                       "%zu",
                       l->group, l->token_bytes, p->piece_bytes);
    l->token_scale_bytes = !l->direct && hy_kv_wire_scaled(l->wire) ? n * 2 * sizeof(float) : 0;
    return HY_OK;
}

static hy_status lanes_init(hy_kv_plan *p, const hy_kv_plan_opts *o)
{
    size_t n = 0, max = o->shares != NULL ? o->n_shares : (size_t)p->dst.n_groups;
    p->lanes = hy_calloc(max != 0 ? max : 1, sizeof(*p->lanes));
    if (p->lanes == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a KV plan");
    for (size_t i = 0; i < max; i++) {
        hy_kv_lane *l = &p->lanes[n];
        if (o->shares == NULL) {
            l->group = (int32_t)i;
            l->head0 = p->dst.g[i].head0;
            l->n_heads = p->dst.g[i].layout.n_heads;
        } else if (o->shares[i].src == o->src) {
            l->group = o->shares[i].group;
            l->head0 = o->shares[i].head0;
            l->n_heads = o->shares[i].n_heads;
        } else {
            continue;
        }
        if (l->group < 0 || l->group >= p->dst.n_groups)
            return hy_fail(HY_E_INVAL, "KV share of group %d of %d", l->group, p->dst.n_groups);
        HY_TRY(lane_init(p, o, l));
        n++;
    }
    p->n_lanes = n;
    return HY_OK;
}

static hy_status digest(hy_kv_plan *p)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_kv_desc_encode(&p->src, &b);
    hy_kv_desc_encode(&p->dst, &b);
    for (size_t i = 0; i < p->n_lanes; i++) {
        const hy_kv_lane *l = &p->lanes[i];
        hy_buf_printf(&b, "%d %d %d %d %d %d;", l->group, l->head0, l->n_heads, l->direct, l->unit,
                      (int)l->wire);
    }
    hy_buf_printf(&b, "%zu %zu", p->piece_bytes, p->min_run);
    p->digest = b.failed ? 0 : hy_xxh64(b.data, b.len, HY_KV_DESC_VERSION);
    bool failed = b.failed;
    hy_buf_fini(&b);
    return failed ? hy_fail(HY_E_NOMEM, "no memory for a KV plan") : HY_OK;
}

static hy_status plan_init(hy_kv_plan *p, const hy_kv_plan_opts *o)
{
    char why[HY_KV_REASON_MAX];
    HY_TRY(hy_kv_desc_check(&p->src));
    HY_TRY(hy_kv_desc_check(&p->dst));
    hy_kv_match m = hy_kv_compat(&p->src, &p->dst, why);
    if (m == HY_KV_MATCH_NONE)
        return hy_fail(HY_E_UNSUPPORTED, "KV caches do not match: %s", why);
    if (m == HY_KV_MATCH_LOSSY && !o->lossy)
        return hy_fail(HY_E_UNSUPPORTED,
                       "KV caches do not match: %s, and the destination takes no lossy KV", why);
    size_t piece = o->piece_bytes != 0 ? o->piece_bytes : (size_t)1 << 20;
    p->piece_bytes = piece < MIN_PIECE ? MIN_PIECE : piece > MAX_PIECE ? MAX_PIECE : piece;
    p->min_run = o->min_run != 0 ? o->min_run : 4096;
    HY_TRY(lanes_init(p, o));
    if (p->lossy && !o->lossy)
        return hy_fail(HY_E_UNSUPPORTED,
                       "wire type: %s loses values, and the destination takes no "
                       "lossy KV",
                       hy_dtype_name((int)o->wire));
    return digest(p);
}

hy_status hy_kv_plan_create(const hy_kv_desc *src, const hy_kv_desc *dst,
                            const hy_kv_plan_opts *opts, hy_kv_plan **out)
{
    hy_kv_plan_opts none = {0};
    hy_kv_plan *p = hy_calloc(1, sizeof(*p));
    if (p == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a KV plan");
    p->src = *src;
    p->dst = *dst;
    hy_status st = plan_init(p, opts != NULL ? opts : &none);
    if (st < 0) {
        hy_kv_plan_destroy(p);
        return st;
    }
    *out = p;
    return HY_OK;
}

void hy_kv_plan_destroy(hy_kv_plan *p)
{
    if (p == NULL)
        return;
    hy_free(p->lanes);
    hy_free(p);
}

bool hy_kv_plan_direct(const hy_kv_plan *p)
{
    for (size_t i = 0; i < p->n_lanes; i++) {
        if (!p->lanes[i].direct)
            return false;
    }
    return true;
}

bool hy_kv_plan_lossy(const hy_kv_plan *p)
{
    return p->lossy;
}

hy_dtype hy_kv_plan_wire(const hy_kv_plan *p, int32_t group)
{
    for (size_t i = 0; i < p->n_lanes; i++) {
        if (p->lanes[i].group == group)
            return p->lanes[i].wire;
    }
    return HY_F32;
}

uint64_t hy_kv_plan_digest(const hy_kv_plan *p)
{
    return p->digest;
}

void hy_kv_plan_describe(const hy_kv_plan *p, hy_buf *out)
{
    for (size_t i = 0; i < p->n_lanes; i++) {
        const hy_kv_lane *l = &p->lanes[i];
        const hy_kv_layout *a = &p->src.g[l->group].layout, *b = &p->dst.g[l->group].layout;
        hy_buf_printf(out, "%sgroup %d: ", i == 0 ? "" : "; ", l->group);
        if (l->direct)
            hy_buf_printf(out, "direct %s", hy_dtype_name((int)a->type));
        else
            hy_buf_printf(out, "packed as %s, storage %s -> %s", hy_dtype_name((int)l->wire),
                          hy_dtype_name((int)a->type), hy_dtype_name((int)b->type));
        hy_buf_printf(out, ", blocks %d -> %d, heads %d-%d", a->block_tokens, b->block_tokens,
                      l->head0, l->head0 + l->n_heads - 1);
    }
    if (p->lossy)
        hy_buf_puts(out, "; lossy");
}

/* ---- pieces ---- */

/* Bytes of a token and layer in a packed piece of a lane, and of its scales. */
static void packed_bytes(const hy_kv_plan *p, const hy_kv_lane *l, size_t *elems, size_t *scales)
{
    const hy_kv_layout *a = &p->src.g[l->group].layout;
    size_t n = (size_t)l->n_heads;
    *elems = n * (size_t)(a->k.width + a->v.width) * bytes_of(l->wire);
    *scales = hy_kv_wire_scaled(l->wire) ? n * 2 * sizeof(float) : 0;
}

static void fill(const hy_kv_plan *p, const hy_kv_lane *l, hy_kv_piece *o)
{
    size_t cells = (size_t)o->n * (size_t)o->n_layers;
    size_t elems = l->token_bytes, scales = 0;
    if (!o->direct)
        packed_bytes(p, l, &elems, &scales);
    if (o->whole_tail) {
        int32_t bt = p->src.g[l->group].layout.block_tokens, end = o->t0 + o->n;
        cells = (size_t)((end + bt - 1) / bt * bt - o->t0) * (size_t)o->n_layers;
    }
    o->wire_bytes = cells * elems;
    o->scale_bytes = cells * scales;
    o->scale_off = scales != 0 ? (o->wire_bytes + ALIGN - 1) / ALIGN * ALIGN : 0;
    o->bytes = scales != 0 ? o->scale_off + o->scale_bytes : o->wire_bytes;
}

/* How many tokens and layers a piece takes. */
typedef struct cut {
    int32_t unit;  /* tokens are cut at multiples of it */
    int32_t units; /* of a piece, counted from the unit that its first token is in */
    int32_t layers;
} cut;

static int32_t ceil_div(int32_t a, int32_t b)
{
    return a / b + (a % b != 0);
}

/* Packing likes whole blocks of one layer better than parts of blocks of many: their lines are then
 * read and written once. */
static int32_t packed_unit(const hy_kv_plan *p, const hy_kv_lane *l)
{
    int32_t a = p->src.g[l->group].layout.block_tokens, b = p->dst.g[l->group].layout.block_tokens;
    int32_t unit = HY_KV_WIRE_TOKENS;
    while (unit < 256 && (unit < a || unit < b))
        unit *= 2;
    return unit;
}

/* Even pieces of at most piece_bytes: whole units of all layers where that fits, else of some
 * layers, else less than a unit (packed alone). */
static cut cut_of(const hy_kv_plan *p, const hy_kv_lane *l, bool direct, int32_t t0, int32_t t1,
                  int32_t n_layers)
{
    size_t elems = l->token_bytes, scales = 0, max = p->piece_bytes - ALIGN;
    if (!direct)
        packed_bytes(p, l, &elems, &scales);
    size_t b = elems + scales;
    cut c = {.unit = direct ? l->unit : packed_unit(p, l), .units = 1, .layers = 1};
    while (!direct && c.unit > 1 && b * (size_t)c.unit > max)
        c.unit /= 2;
    size_t unit_bytes = b * (size_t)c.unit;
    size_t fit = unit_bytes < max ? max / unit_bytes : 1; /* layers of a unit */
    if (fit < (size_t)n_layers) {
        c.layers = ceil_div(n_layers, ceil_div(n_layers, (int32_t)fit));
        return c;
    }
    c.layers = n_layers;
    int32_t units = (t1 - 1) / c.unit - t0 / c.unit + 1;
    size_t per = max / (unit_bytes * (size_t)n_layers);
    int32_t most = per == 0 ? 1 : per < (size_t)units ? (int32_t)per : units;
    c.units = ceil_div(units, ceil_div(units, most));
    return c;
}

typedef struct zones {
    int32_t at[ZONES + 1];
    bool whole_tail;
} zones;

/* Where a want's tokens are direct and where packed. */
static zones zones_of(const hy_kv_plan *p, const hy_kv_lane *l, const hy_kv_want *w)
{
    const hy_kv_desc_group *s = &p->src.g[l->group];
    int32_t end = w->t0 + w->n, t0 = w->t0, next = w->next != 0 ? w->next : end;
    if (s->window > 0 && next - s->window + 1 > t0)
        t0 = next - s->window + 1 < end ? next - s->window + 1 : end;
    if (!l->direct)
        return (zones){{t0, t0, end, end}, false};
    int32_t bt = s->layout.block_tokens, u = l->unit;
    bool whole =
        w->tail_free && bt == p->dst.g[l->group].layout.block_tokens && end % bt != 0 && end > t0;
    int32_t stop = whole ? end + bt - end % bt : end;
    int32_t a = t0, b = stop;
    int32_t up = t0 + (t0 % u != 0 ? u - t0 % u : 0), down = stop - stop % u;
    /* A wire type in common may be missing: then every run is direct, however short. */
    bool can_pack = (s->wires & p->dst.g[l->group].wires & hy_kv_wire_bit(l->wire)) != 0;
    if (up != t0 && can_pack && hy_kv__run(p, l, (up < stop ? up : stop) - t0) < p->min_run)
        a = up < end ? up : end;
    if (down != stop && down >= a && can_pack && hy_kv__run(p, l, stop - down) < p->min_run)
        b = down;
    if (a >= b || a >= end)
        return (zones){{t0, end, end, end}, false};
    bool cut_tail = b < stop;
    return (zones){{t0, a, b < end ? b : end, end}, whole && !cut_tail};
}

static bool want_ok(const hy_kv_plan *p, const hy_kv_want *w)
{
    if (w->t0 < 0 || w->n < 1 || w->n > INT32_MAX - 4096 - w->t0 || w->next < 0 || w->group < 0 ||
        w->n_groups < 0 || w->layer0 < 0 || w->n_layers < 0 || w->group >= p->dst.n_groups ||
        w->n_groups > p->dst.n_groups - w->group)
        return false;
    int32_t g1 = w->n_groups != 0 ? w->group + w->n_groups : p->dst.n_groups;
    for (int32_t g = w->group; g < g1 && (w->layer0 != 0 || w->n_layers != 0); g++) {
        int32_t have = p->dst.g[g].layout.n_layers;
        if (w->layer0 >= have || w->n_layers > have - w->layer0)
            return false;
    }
    return true;
}

hy_status hy_kv_want_check(const hy_kv_plan *p, const hy_kv_want *w)
{
    if (want_ok(p, w))
        return HY_OK;
    return hy_fail(HY_E_INVAL, "KV tokens %d+%d, groups %d+%d, layers %d+%d are not in this cache",
                   w->t0, w->n, w->group, w->n_groups, w->layer0, w->n_layers);
}

hy_kv_iter hy_kv_plan_begin(const hy_kv_plan *p, const hy_kv_want *w)
{
    hy_kv_iter it = {.plan = p, .want = *w, .token = -1, .layer = -1};
    if (!want_ok(p, w))
        it.lane = (int32_t)p->n_lanes;
    if (it.want.n_groups == 0)
        it.want.n_groups = p->dst.n_groups - w->group;
    return it;
}

bool hy_kv_plan_next(hy_kv_iter *it, hy_kv_piece *out)
{
    const hy_kv_plan *p = it->plan;
    const hy_kv_want *w = &it->want;
    for (; it->lane < (int32_t)p->n_lanes; it->lane++, it->zone = 0) {
        const hy_kv_lane *l = &p->lanes[it->lane];
        if (l->group < w->group || l->group >= w->group + w->n_groups)
            continue;
        int32_t layer_end =
            w->n_layers != 0 ? w->layer0 + w->n_layers : p->dst.g[l->group].layout.n_layers;
        zones z = zones_of(p, l, w);
        for (; it->zone < ZONES; it->zone++, it->token = -1) {
            int32_t t1 = z.at[it->zone + 1];
            if (it->token < 0)
                it->token = z.at[it->zone], it->layer = w->layer0;
            if (it->token >= t1)
                continue;
            bool direct = l->direct && it->zone == ZONE_BODY;
            cut c = cut_of(p, l, direct, z.at[it->zone], t1, layer_end - w->layer0);
            int64_t stop = ((int64_t)it->token / c.unit + c.units) * c.unit;
            int32_t end = stop < t1 ? (int32_t)stop : t1, left = layer_end - it->layer;
            *out = (hy_kv_piece){.direct = direct,
                                 .group = l->group,
                                 .layer0 = it->layer,
                                 .n_layers = left < c.layers ? left : c.layers,
                                 .t0 = it->token,
                                 .n = end - it->token,
                                 .head0 = l->head0,
                                 .n_heads = l->n_heads,
                                 .wire = direct ? p->src.g[l->group].layout.type : l->wire,
                                 .whole_tail = direct && z.whole_tail && end == t1};
            fill(p, l, out);
            it->layer += out->n_layers;
            if (it->layer == layer_end)
                it->token = end, it->layer = w->layer0;
            return true;
        }
    }
    return false;
}

hy_kv_total hy_kv_plan_total(const hy_kv_plan *p, const hy_kv_want *w)
{
    hy_kv_total t = {0};
    hy_kv_piece piece;
    hy_kv_iter it = hy_kv_plan_begin(p, w);
    while (hy_kv_plan_next(&it, &piece)) {
        t.pieces++;
        t.direct_pieces += piece.direct;
        t.bytes += piece.bytes;
        t.staged += piece.direct ? 0 : piece.bytes;
    }
    return t;
}

size_t hy_kv_plan_piece_max(const hy_kv_plan *p)
{
    for (size_t i = 0; i < p->n_lanes; i++) {
        const hy_kv_lane *l = &p->lanes[i];
        bool can_pack =
            (p->src.g[l->group].wires & p->dst.g[l->group].wires & hy_kv_wire_bit(l->wire)) != 0;
        if (can_pack)
            return p->piece_bytes;
    }
    return 0;
}
