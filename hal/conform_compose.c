/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance of the composites, with all their flags: against the same device's primitives
 * composed by the HAL, and against the cpu reference where bits are promised. The primitives have
 * been held to double precision already, so agreement with them is what remains to show. An exact
 * device has equal bits; another one may differ by 1e-3 of the largest value (2e-2 with int8,
 * where one rounding more or less moves a code).
 *
 * Thread: the caller of hy_conform_run.  Owner: the case.
 */
#include "hal/compose.h"
#include "hal/conform_kv.h"
#include "hal/fmath.h"

#include <math.h>
#include <string.h>

typedef struct model { /* a layer's parameters, host addresses */
    int64_t dim, ffn, vocab;
    hy_dtype w_type;
    hy_act_mode act;
    bool biased, layer_norm, post_norm, head_norm, v_f32;
    hy_act_fn fn;
    hy_rope_kind rope;
} model;

/* Results of one side: composite or composed. */
typedef bool (*run_fn)(cf *c, cf_side *d, const void *arg, bool composed, float *out);

typedef struct part {
    const float *p; /* host */
    int64_t n;
} part;

static const float *up(cf *c, cf_side *d, part h)
{
    return h.p != NULL ? cf_dev(c, d, h.p, (size_t)h.n * sizeof(float)) : NULL;
}

typedef struct weight_host {
    hy_weight_src src;
    part bias;
} weight_host;

static weight_host make_weight(cf *c, const model *m, int64_t n, int64_t k)
{
    weight_host w = {.src = {.type = m->w_type, .n = n, .k = k}};
    w.src.data = cf_blocks(c, m->w_type, n, k);
    if (m->biased)
        w.bias = (part){cf_rand(c, n, 1.0f), n};
    return w;
}

typedef struct norm_host {
    part w, b;
} norm_host;

static norm_host make_norm(cf *c, const model *m, int64_t dim, bool on)
{
    norm_host n = {{NULL, 0}, {NULL, 0}};
    if (on)
        n.w = (part){cf_rand(c, dim, 1.0f), dim};
    if (on && m->layer_norm)
        n.b = (part){cf_rand(c, dim, 0.5f), dim};
    return n;
}

static hy_norm_w norm_on(cf *c, cf_side *d, const norm_host *h)
{
    return (hy_norm_w){.w = up(c, d, h->w), .b = up(c, d, h->b), .eps = 1e-5f};
}

static hy_ws scratch(cf *c, cf_side *d, const hy_ws_need *need)
{
    hy_ws ws = {.bytes = hy_ws_bytes(need)};
    void *zero = cf_host(c, ws.bytes);
    ws.p = cf_dev(c, d, zero, ws.bytes);
    return ws;
}

/* Device against composed, and both against the reference where bits are promised. */
static void compare(cf *c, const model *m, run_fn run, const void *arg, int64_t n)
{
    float *got = cf_out(c, n), *own = cf_out(c, n), *ref = cf_out(c, n);
    double *want = cf_host(c, (size_t)n * sizeof(double));
    double *bound = cf_host(c, (size_t)n * sizeof(double));
    if (c->no_mem || !run(c, &c->dut, arg, false, got) || !run(c, &c->dut, arg, true, own) ||
        (c->bits && !run(c, &c->ref, arg, true, ref)))
        return;
    double big = 0.0;
    for (int64_t i = 0; i < n; i++)
        big = fmax(big, fabs((double)own[i]));
    for (int64_t i = 0; i < n; i++) {
        want[i] = (double)own[i];
        bound[i] = big * (m->act == HY_ACT_INT8 ? 2e-2 : 1e-3);
    }
    cf_cmp j = {.got = got, .want = want, .bound = bound, .rows = 1, .cols = n, .ld = n};
    j.ref = c->exact ? own : NULL;
    cf_judge(c, &j);
    j.ref = ref;
    if (c->bits)
        cf_judge(c, &j);
}

/* ---- attn_in and attn_out ---- */

typedef struct attn_case {
    const model *m;
    cf_scene s;
    part x, cos, sin;
    weight_host wq, wk, wv, wo;
    norm_host norm, q_norm, k_norm, post;
    hy_ws_need need;
} attn_case;

static bool make_attn(cf *c, attn_case *t)
{
    const model *m = t->m;
    const cf_shape *s = &t->s.s;
    if (!cf_scene_make(c, &t->s))
        return false;
    int64_t n = t->s.n_rows, half = s->k_dim / 2;
    t->x = (part){cf_rand(c, n * m->dim, 1.0f), n * m->dim};
    t->wq = make_weight(c, m, (int64_t)s->heads * s->k_dim, m->dim);
    t->wk = make_weight(c, m, (int64_t)s->kv_heads * s->k_dim, m->dim);
    t->wv = make_weight(c, m, (int64_t)s->kv_heads * s->v_dim, m->dim);
    t->wo = make_weight(c, m, m->dim, (int64_t)s->heads * s->v_dim);
    t->norm = make_norm(c, m, m->dim, true);
    model plain = *m;
    plain.layer_norm = false;
    t->q_norm = make_norm(c, &plain, s->k_dim, m->head_norm);
    t->k_norm = make_norm(c, &plain, s->k_dim, m->head_norm);
    t->post = make_norm(c, m, m->dim, m->post_norm);
    float *cs = cf_host(c, (size_t)(n * half) * sizeof(float));
    float *sn = cf_host(c, (size_t)(n * half) * sizeof(float));
    for (int64_t i = 0; !c->no_mem && i < n * half; i++) {
        cs[i] = (float)cos((double)i * 0.37);
        sn[i] = (float)sin((double)i * 0.37);
    }
    t->cos = (part){cs, n * half};
    t->sin = (part){sn, n * half};
    t->need = (hy_ws_need){.rows = n,
                           .dim = m->dim,
                           .heads = s->heads,
                           .k_dim = s->k_dim,
                           .v_dim = s->v_dim,
                           .kv_heads = s->kv_heads};
    return !c->no_mem;
}

/* q, then what the cache holds of the step's rows, read by the reference wire in f32. */
static bool run_in(cf *c, cf_side *d, const void *arg, bool composed, float *out)
{
    const attn_case *t = arg;
    const cf_scene *s = &t->s;
    hy_kv_pool pool;
    if (!cf_pool_make(c, d, s, &pool) || !cf_scene_write(c, d, s, &pool))
        return false;
    int64_t nq = (int64_t)s->n_rows * s->s.heads * s->s.k_dim;
    float *q = cf_host(c, (size_t)nq * sizeof(float));
    hy_attn_in a = {.ldx = t->m->dim,
                    .dim = t->m->dim,
                    .norm = norm_on(c, d, &t->norm),
                    .wq = cf_weight(c, d, &t->wq.src),
                    .wk = cf_weight(c, d, &t->wk.src),
                    .wv = cf_weight(c, d, &t->wv.src),
                    .bq = up(c, d, t->wq.bias),
                    .bk = up(c, d, t->wk.bias),
                    .bv = up(c, d, t->wv.bias),
                    .q_norm = norm_on(c, d, &t->q_norm),
                    .k_norm = norm_on(c, d, &t->k_norm),
                    .heads = s->s.heads,
                    .rope = {t->m->rope, s->s.k_dim, up(c, d, t->cos), up(c, d, t->sin)},
                    .pool = &pool,
                    .layer = CF_LAYER,
                    .rows = &s->rows,
                    .bt = {s->table, s->stride},
                    .act = t->m->act,
                    .v_f32 = t->m->v_f32,
                    .ws = scratch(c, d, &t->need)};
    a.x = up(c, d, t->x);
    a.q = cf_dev(c, d, q, (size_t)nq * sizeof(float));
    if (c->no_mem || a.wq == NULL || a.wk == NULL || a.wv == NULL)
        return false;
    if (!cf_ok(c, "attn_in",
               composed ? hy_compose_attn_in(d->q, &a) : d->dev->math->attn_in(d->q, &a)) ||
        !cf_get(c, d, out, a.q, (size_t)nq * sizeof(float)))
        return false;
    int64_t row = s->ldk + s->ldv;
    out += nq;
    for (int32_t seq = 0; seq < s->n_seqs; seq++) {
        int32_t n = s->fresh[seq];
        hy_kv_copy k = {.pool = &pool,
                        .blocks = s->table + seq * s->stride,
                        .t0 = s->total[seq] - n,
                        .n = n,
                        .layer0 = CF_LAYER,
                        .n_layers = 1,
                        .n_heads = s->s.kv_heads,
                        .wire = HY_F32,
                        .bytes = (size_t)(n * row) * sizeof(float)};
        k.buf = cf_dev(c, d, out, k.bytes);
        if (k.buf == NULL || !cf_ok(c, "kv_pack", d->dev->math->kv_pack(d->q, &k)) ||
            !cf_get(c, d, out, k.buf, k.bytes))
            return false;
        out += n * row;
    }
    return true;
}

static bool run_out(cf *c, cf_side *d, const void *arg, bool composed, float *out)
{
    const attn_case *t = arg;
    const cf_scene *s = &t->s;
    hy_kv_pool pool;
    if (!cf_pool_make(c, d, s, &pool) || !cf_scene_write(c, d, s, &pool))
        return false;
    /* The step's queries: the residual stream's numbers do, repeated. */
    int64_t nq = (int64_t)s->n_rows * s->s.heads * s->s.k_dim;
    float *q = cf_host(c, (size_t)nq * sizeof(float));
    for (int64_t i = 0; q != NULL && i < nq; i++)
        q[i] = t->x.p[i % t->x.n];
    hy_attn_out a = {.attn = {.pool = &pool,
                              .layer = CF_LAYER,
                              .rows = &s->rows,
                              .bt = {s->visible, s->stride},
                              .ldq = (int64_t)s->s.heads * s->s.k_dim,
                              .heads = s->s.heads,
                              .scale = 0.125f,
                              .softcap = s->s.softcap,
                              .window = s->s.window},
                     .wo = cf_weight(c, d, &t->wo.src),
                     .bo = up(c, d, t->wo.bias),
                     .post_norm = norm_on(c, d, &t->post),
                     .ldx = t->m->dim,
                     .dim = t->m->dim,
                     .act = t->m->act,
                     .ws = scratch(c, d, &t->need)};
    a.attn.q = cf_dev(c, d, q, (size_t)nq * sizeof(float));
    a.x = cf_dev(c, d, t->x.p, (size_t)t->x.n * sizeof(float));
    if (c->no_mem || a.wo == NULL)
        return false;
    return cf_ok(c, "attn_out",
                 composed ? hy_compose_attn_out(d->q, &a) : d->dev->math->attn_out(d->q, &a)) &&
           cf_get(c, d, out, a.x, (size_t)t->x.n * sizeof(float));
}

/* ---- ffn ---- */

typedef struct ffn_case {
    const model *m;
    int64_t rows;
    bool gated, normed_in, no_residual;
    part x, normed;
    weight_host gate, up, down;
    norm_host norm, post;
} ffn_case;

static bool run_ffn(cf *c, cf_side *d, const void *arg, bool composed, float *out)
{
    const ffn_case *t = arg;
    hy_ws_need need = {.rows = t->rows, .dim = t->m->dim, .ffn = t->m->ffn};
    hy_ffn a = {.ldx = t->m->dim,
                .dim = t->m->dim,
                .m = t->rows,
                .norm = norm_on(c, d, &t->norm),
                .normed = up(c, d, t->normed),
                .ldn = t->m->dim,
                .gate = t->gated ? cf_weight(c, d, &t->gate.src) : NULL,
                .up = cf_weight(c, d, &t->up.src),
                .down = cf_weight(c, d, &t->down.src),
                .b_gate = up(c, d, t->gate.bias),
                .b_up = up(c, d, t->up.bias),
                .b_down = up(c, d, t->down.bias),
                .fn = t->m->fn,
                .post_norm = norm_on(c, d, &t->post),
                .no_residual = t->no_residual,
                .act = t->m->act,
                .ws = scratch(c, d, &need)};
    a.x = cf_dev(c, d, t->x.p, (size_t)t->x.n * sizeof(float));
    if (c->no_mem || a.up == NULL || a.down == NULL)
        return false;
    return cf_ok(c, "ffn", composed ? hy_compose_ffn(d->q, &a) : d->dev->math->ffn(d->q, &a)) &&
           cf_get(c, d, out, a.x, (size_t)t->x.n * sizeof(float));
}

static void one_ffn(cf *c, const model *m, int64_t rows, int variant)
{
    ffn_case t = {.m = m, .rows = rows, .gated = variant % 4 != 3, .normed_in = variant % 3 == 1};
    t.no_residual = variant % 5 == 2;
    cf_case(c, "m=%lld dim=%lld ffn=%lld variant %d", (long long)rows, (long long)m->dim,
            (long long)m->ffn, variant);
    t.x = (part){cf_rand(c, rows * m->dim, 1.0f), rows * m->dim};
    t.norm = make_norm(c, m, m->dim, !t.normed_in);
    if (t.normed_in && variant % 2 == 0)
        t.normed = (part){cf_rand(c, rows * m->dim, 1.0f), rows * m->dim};
    t.post = make_norm(c, m, m->dim, m->post_norm);
    t.gate = make_weight(c, m, m->ffn, m->dim);
    t.up = make_weight(c, m, m->ffn, m->dim);
    t.down = make_weight(c, m, m->dim, m->ffn);
    if (!c->no_mem)
        compare(c, m, run_ffn, &t, rows * m->dim);
}

/* ---- head ---- */

typedef struct head_case {
    const model *m;
    part x;
    int32_t *rows;
    int64_t n;
    float scale, softcap;
    norm_host norm;
    weight_host w;
} head_case;

static bool run_head(cf *c, cf_side *d, const void *arg, bool composed, float *out)
{
    const head_case *t = arg;
    hy_ws_need need = {.rows = t->n, .dim = t->m->dim};
    size_t bytes = (size_t)(t->n * t->m->vocab) * sizeof(float);
    hy_head a = {.x = up(c, d, t->x),
                 .ldx = t->m->dim,
                 .dim = t->m->dim,
                 .rows = t->rows,
                 .m = t->n,
                 .norm = norm_on(c, d, &t->norm),
                 .w = cf_weight(c, d, &t->w.src),
                 .scale = t->scale,
                 .softcap = t->softcap,
                 .ldl = t->m->vocab,
                 .act = t->m->act,
                 .ws = scratch(c, d, &need)};
    a.logits = cf_dev(c, d, out, bytes);
    if (c->no_mem || a.w == NULL)
        return false;
    return cf_ok(c, "head", composed ? hy_compose_head(d->q, &a) : d->dev->math->head(d->q, &a)) &&
           cf_get(c, d, out, a.logits, bytes);
}

static void one_head(cf *c, const model *m, int64_t rows, int variant)
{
    head_case t = {.m = m, .n = rows, .scale = variant % 2 ? 0.5f : 1.0f};
    t.softcap = variant % 3 == 1 ? 30.0f : 0.0f;
    cf_case(c, "m=%lld dim=%lld vocab=%lld scale=%g cap=%g", (long long)rows, (long long)m->dim,
            (long long)m->vocab, (double)t.scale, (double)t.softcap);
    int64_t all = 2 * rows + 3;
    t.x = (part){cf_rand(c, all * m->dim, 1.0f), all * m->dim};
    t.norm = make_norm(c, m, m->dim, variant % 4 != 3);
    t.w = make_weight(c, m, m->vocab, m->dim);
    t.rows = cf_host(c, (size_t)rows * sizeof(int32_t));
    if (c->no_mem)
        return;
    for (int64_t i = 0; i < rows; i++)
        t.rows[i] = (int32_t)(i < rows / 2 ? i + 1 : 2 * i + 2); /* a run, then gaps */
    compare(c, m, run_head, &t, rows * m->vocab);
}

/* ---- groups ---- */

static const cf_shape shapes[] = {
    {4, 2, 64, 64, 16, 0, 0.0f},
    {8, 4, 32, 32, 3, 5, 20.0f},
    {4, 1, 64, 64, 16, 0, 0.0f},
};

static void one_attn(cf *c, const model *m, int variant, bool out)
{
    attn_case t = {.m = m};
    t.s = (cf_scene){
        .s = shapes[variant % 3], .value = HY_F16, .type = HY_F16, .n_seqs = 1 + variant % 3};
    for (int32_t q = 0; q < t.s.n_seqs; q++) {
        t.s.total[q] = 20 + 30 * q + variant;
        t.s.fresh[q] = 1 + 6 * ((q + variant) % 3);
    }
    cf_case(c, "rows of %d sequences, heads %d/%d, variant %d", t.s.n_seqs, t.s.s.heads,
            t.s.s.kv_heads, variant);
    if (!make_attn(c, &t))
        return;
    int64_t n = t.s.n_rows;
    if (out)
        compare(c, m, run_out, &t, n * m->dim);
    else
        compare(c, m, run_in, &t, n * ((int64_t)t.s.s.heads * t.s.s.k_dim + t.s.ldk + t.s.ldv));
}

static void op_group(cf *c, hy_op op, hy_dtype type, hy_act_mode act)
{
    static const int rows[] = {1, 2, 5, 16, 33};
    hy_op_query q = {.op = op,
                     .w_type = type,
                     .act = act,
                     .kv_type = HY_F16,
                     .kv_value = HY_F16,
                     .k_dim = 64,
                     .v_dim = 64,
                     .block_tokens = 16,
                     .n = 256,
                     .k = 256};
    if (!cf_group(c, &q, "%s %s", hy_dtype_name(type), act == HY_ACT_INT8 ? "int8" : "f32"))
        return;
    q.op = HY_OP_MATMUL; /* a v product of its own type, as models have in their first layers */
    q.act = HY_ACT_F32;
    const bool f32_too = act == HY_ACT_INT8 && c->dut.dev->math->supports(c->dut.dev, &q);
    for (int v = 0; v < 6; v++) {
        model m = {.dim = 256, .ffn = 512, .vocab = 101, .w_type = type, .act = act};
        m.biased = v % 2 == 1;
        m.layer_norm = v % 4 == 2;
        m.post_norm = v % 3 == 1;
        m.head_norm = v % 3 != 0;
        m.v_f32 = f32_too && v >= 3;
        m.fn = (hy_act_fn)(v % 3);
        m.rope = v % 4 == 3 ? HY_ROPE_NONE : v % 2 == 0 ? HY_ROPE_HALVES : HY_ROPE_PAIRS;
        if (op == HY_OP_FFN)
            one_ffn(c, &m, rows[v % 5], v);
        else if (op == HY_OP_HEAD)
            one_head(c, &m, rows[v % 5], v);
        else
            one_attn(c, &m, v, op == HY_OP_ATTN_OUT);
    }
    cf_group_end(c);
}

void cf_compose(cf *c)
{
    static const struct {
        hy_dtype t;
        hy_act_mode act;
    } kinds[] = {{HY_F32, HY_ACT_F32},   {HY_BF16, HY_ACT_F32},    {HY_Q8_0, HY_ACT_INT8},
                 {HY_Q4_1, HY_ACT_INT8}, {HY_Q4_K, HY_ACT_INT8},   {HY_Q6_K, HY_ACT_INT8},
                 {HY_Q5_0, HY_ACT_INT8}, {HY_IQ4_NL, HY_ACT_INT8}, {HY_Q4_K, HY_ACT_F32}};
    for (int op = HY_OP_ATTN_IN; op <= HY_OP_HEAD; op++) {
        for (size_t i = 0; i < HY_COUNTOF(kinds); i++)
            op_group(c, (hy_op)op, kinds[i].t, kinds[i].act);
    }
}
