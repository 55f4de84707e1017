/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance of moe_route and moe_ffn, with the routers of the families that have one.
 *
 * moe_route. Logits lie on a grid, so that keys are equal or apart; a row whose choice in f64 hangs
 * by less than 1e-5 is drawn anew. Then ids are checked exactly, weights to the roundings of exp,
 * of the sum over the experts and of the division.
 *
 * moe_ffn. With f32 activations against f64: a matmul's bound (conform_matmul.c) carried through
 * the activation, whose slope is at most 1.13, and the sum over a row's experts. With all
 * activations against the same device's primitives composed, as conform_compose.c does.
 *
 * Thread: the caller of hy_conform_run.  Owner: the case.
 */
#include "hal/compose.h"
#include "hal/conform_int.h"

#include <math.h>
#include <string.h>

/* ---- moe_route ---- */

typedef struct router {
    const char *name;
    int32_t n, k;
    hy_moe_score score;
    bool bias;
    int32_t groups, top_groups;
    bool top2, norm;
    float scale;
} router;

static const router routers[] = {
    {"mixtral", 8, 2, HY_MOE_SOFTMAX, false, 0, 0, false, true, 1.0f},
    {"olmoe", 64, 8, HY_MOE_SOFTMAX, false, 0, 0, false, false, 1.0f},
    {"qwen2moe", 60, 4, HY_MOE_SOFTMAX, false, 0, 0, false, false, 1.0f},
    {"qwen3moe", 128, 8, HY_MOE_SOFTMAX, false, 0, 0, false, true, 1.0f},
    {"deepseek2", 160, 6, HY_MOE_SOFTMAX, false, 8, 3, false, false, 16.0f},
    {"deepseek3", 256, 8, HY_MOE_SIGMOID, true, 8, 4, true, true, 2.5f},
    {"softmax with bias", 64, 6, HY_MOE_SOFTMAX, true, 0, 0, false, true, 1.0f},
    {"sums of two", 24, 5, HY_MOE_SOFTMAX, false, 6, 2, true, true, 0.5f},
    {"sigmoid", 33, 3, HY_MOE_SIGMOID, false, 11, 1, false, false, 1.5f},
    {"one", 1, 1, HY_MOE_SIGMOID, true, 1, 1, false, true, 1.0f},
    {"all", 32, 32, HY_MOE_SOFTMAX, false, 0, 0, false, true, 1.0f},
    {"most", 512, 32, HY_MOE_SIGMOID, true, 32, 9, true, true, 1.0f},
};

typedef struct route_case {
    const router *r;
    int64_t m, ld;
    float *logits, *bias; /* host */
} route_case;

static bool run_route(cf *c, cf_side *s, const route_case *t, int32_t *ids, float *weights)
{
    const router *r = t->r;
    const size_t n = (size_t)(t->m * r->k);
    hy_moe_route a = {.ld = t->ld,
                      .m = t->m,
                      .n_experts = r->n,
                      .k = r->k,
                      .score = r->score,
                      .n_groups = r->groups,
                      .top_groups = r->top_groups,
                      .group_top2 = r->top2,
                      .norm = r->norm,
                      .scale = r->scale};
    a.logits = cf_dev(c, s, t->logits, (size_t)(t->m * t->ld) * sizeof(float));
    a.ids = cf_dev(c, s, ids, n * sizeof(int32_t));
    a.weights = cf_dev(c, s, weights, n * sizeof(float));
    if (r->bias)
        a.bias = cf_dev(c, s, t->bias, (size_t)r->n * sizeof(float));
    return !c->no_mem && cf_ok(c, "moe_route", s->dev->math->moe_route(s->q, &a)) &&
           cf_get(c, s, ids, a.ids, n * sizeof(int32_t)) &&
           cf_get(c, s, weights, a.weights, n * sizeof(float));
}

/* The best left of n; how far it is ahead of the next that differs goes to *gap if that is less. */
static int32_t take_best(const double *key, bool *out, int32_t n, double *gap)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        if (!out[i] && (best < 0 || key[i] > key[best]))
            best = i;
    }
    out[best] = true;
    for (int32_t i = 0; i < n; i++) {
        const double d = key[best] - key[i];
        if (!out[i] && d != 0.0 && d < *gap)
            *gap = d;
    }
    return best;
}

typedef struct route_f64 {
    double score[HY_MOE_EXPERTS], key[HY_MOE_EXPERTS];
    bool out[HY_MOE_EXPERTS];
} route_f64;

static void scores_f64(const route_case *t, const float *x, route_f64 *o)
{
    const router *r = t->r;
    double m = -INFINITY, sum = 0.0;
    for (int32_t i = 0; i < r->n; i++)
        m = fmax(m, (double)x[i]);
    for (int32_t i = 0; i < r->n; i++)
        sum += exp((double)x[i] - m);
    for (int32_t i = 0; i < r->n; i++) {
        o->score[i] = r->score == HY_MOE_SIGMOID ? 1.0 / (1.0 + exp(-(double)x[i]))
                                                 : exp((double)x[i] - m) / sum;
        o->key[i] = o->score[i] + (r->bias ? (double)t->bias[i] : 0.0);
        if (r->score == HY_MOE_SOFTMAX && !r->bias && !r->top2)
            o->key[i] = (double)x[i];
        o->out[i] = false;
    }
}

/* A row's experts and weights, and the smallest lead that decided. */
static double route_row_f64(const route_case *t, const float *x, int32_t *ids, double *weights)
{
    const router *r = t->r;
    route_f64 o;
    double gap = INFINITY, total = 0.0;
    scores_f64(t, x, &o);
    if (r->groups > 1) {
        const int32_t per = r->n / r->groups;
        double key[HY_MOE_GROUPS];
        bool in[HY_MOE_GROUPS] = {false};
        for (int32_t g = 0; g < r->groups; g++) {
            double a = -INFINITY, b = -INFINITY;
            for (int32_t i = g * per; i < (g + 1) * per; i++) {
                b = fmax(b, fmin(a, o.key[i]));
                a = fmax(a, o.key[i]);
            }
            key[g] = r->top2 ? a + b : a;
        }
        for (int32_t g = 0; g < r->top_groups; g++)
            take_best(key, in, r->groups, &gap);
        for (int32_t i = 0; i < r->n; i++)
            o.out[i] = !in[i / per];
    }
    for (int32_t j = 0; j < r->k; j++) {
        ids[j] = take_best(o.key, o.out, r->n, &gap);
        weights[j] = o.score[ids[j]];
        total += weights[j];
    }
    for (int32_t j = 0; j < r->k; j++)
        weights[j] = (r->norm ? weights[j] / total : weights[j]) * (double)r->scale;
    return gap;
}

static void draw_row(cf *c, const route_case *t, float *x, int32_t *ids, double *weights)
{
    for (int tries = 0; tries < 1000; tries++) {
        for (int32_t i = 0; i < t->r->n; i++)
            x[i] = rintf(cf_normal(c) * 24.0f) / 8.0f; /* equal ones are frequent */
        if (route_row_f64(t, x, ids, weights) > 1e-5)
            return;
    }
    c->no_mem = true; /* cannot happen: the suite does not count then */
}

static void check_ids(cf *c, const route_case *t, const int32_t *got, const int32_t *want)
{
    for (int64_t i = 0; i < t->m * t->r->k; i++) {
        if (got[i] != want[i]) {
            cf_bad(c, "row %lld, place %lld: expert %d, should be %d", (long long)(i / t->r->k),
                   (long long)(i % t->r->k), got[i], want[i]);
            return;
        }
    }
}

/* Whatever the logits hold: k different experts of the right range, as the reference has them. */
static void wild_route(cf *c, route_case *t)
{
    const router *r = t->r;
    const size_t n = (size_t)(t->m * r->k);
    cf_case(c, "%s: m=%lld with NaN and infinity", r->name, (long long)t->m);
    t->logits = cf_rand(c, t->m * t->ld, 3.0f);
    t->bias = cf_rand(c, r->n, 0.5f);
    int32_t *got = cf_host(c, n * sizeof(int32_t)), *ref = cf_host(c, n * sizeof(int32_t));
    float *w = cf_out(c, (int64_t)n), *ref_w = cf_out(c, (int64_t)n);
    if (c->no_mem)
        return;
    for (int64_t i = 0; i < t->m * t->ld; i++) {
        if (i % 5 == 3 || i / t->ld == 1) /* a row of nothing else */
            t->logits[i] = i % 2 ? NAN : -INFINITY;
        if (i / t->ld == 2 && i % t->ld == r->n / 2)
            t->logits[i] = INFINITY;
    }
    if (!run_route(c, &c->dut, t, got, w) || (c->bits && !run_route(c, &c->ref, t, ref, ref_w)))
        return;
    for (int64_t row = 0; row < t->m; row++) {
        const int32_t *ids = got + row * r->k;
        for (int32_t j = 0; j < r->k; j++) {
            bool twice = false;
            for (int32_t i = 0; i < j; i++)
                twice = twice || ids[i] == ids[j];
            if (ids[j] < 0 || ids[j] >= r->n || twice)
                cf_bad(c, "row %lld, place %d: expert %d of %d%s", (long long)row, j, ids[j], r->n,
                       twice ? " again" : "");
        }
    }
    if (!c->bits)
        return;
    check_ids(c, t, got, ref);
    cf_judge(c, &(cf_cmp){.got = w, .ref = ref_w, .rows = 1, .cols = (int64_t)n, .ld = (int64_t)n});
}

static void one_route(cf *c, const router *r, int64_t m)
{
    route_case t = {.r = r, .m = m, .ld = r->n + m % 3};
    const size_t n = (size_t)(m * r->k);
    cf_case(c, "%s: m=%lld, %d of %d experts", r->name, (long long)m, r->k, r->n);
    t.logits = cf_rand(c, m * t.ld, 1.0f);
    t.bias = cf_rand(c, r->n, 0.5f);
    int32_t *got = cf_host(c, n * sizeof(int32_t)), *ref = cf_host(c, n * sizeof(int32_t));
    int32_t *ids = cf_host(c, n * sizeof(int32_t));
    float *w = cf_out(c, (int64_t)n), *ref_w = cf_out(c, (int64_t)n);
    double *want = cf_host(c, n * sizeof(double)), *bound = cf_host(c, n * sizeof(double));
    if (c->no_mem)
        return;
    for (int32_t i = 0; i < r->n; i++)
        t.bias[i] = rintf(t.bias[i] * 64.0f) / 64.0f;
    for (int64_t row = 0; row < m; row++)
        draw_row(c, &t, t.logits + row * t.ld, ids + row * r->k, want + row * r->k);
    for (size_t i = 0; i < n; i++)
        bound[i] = fabs(want[i]) * ((double)r->n / 32.0 + (double)r->k + 60.0) * CF_U;
    if (!run_route(c, &c->dut, &t, got, w) || (c->bits && !run_route(c, &c->ref, &t, ref, ref_w)))
        return;
    check_ids(c, &t, got, ids);
    cf_judge(c, &(cf_cmp){.got = w,
                          .ref = c->bits ? ref_w : NULL,
                          .want = want,
                          .bound = bound,
                          .rows = 1,
                          .cols = (int64_t)n,
                          .ld = (int64_t)n});
    wild_route(c, &t);
}

static void routes(cf *c)
{
    static const int64_t rows[] = {1, 3, 5, 18};
    hy_op_query q = {.op = HY_OP_MOE_ROUTE};
    if (!cf_group(c, &q, "f32"))
        return;
    for (size_t i = 0; i < HY_COUNTOF(routers); i++) {
        for (size_t j = 0; j < HY_COUNTOF(rows); j++) {
            if (!c->quick || (i + j) % 2 == 0)
                one_route(c, &routers[i], rows[j]);
        }
    }
    cf_group_end(c);
}

/* ---- moe_ffn ---- */

typedef struct moe_shape {
    int64_t m, dim, ffn;
    int32_t n, k;
    bool gated;
    hy_act_fn fn;
} moe_shape;

typedef struct moe_case {
    const moe_shape *s;
    hy_dtype type, down_type;
    hy_act_mode act;
    const uint8_t *gate, *up, *down; /* host, all experts one behind the other */
    float *x, *weights;
    int32_t *ids;
} moe_case;

static bool prepare(cf *c, cf_side *d, const moe_case *t, const uint8_t *data, hy_dtype type,
                    int64_t rows, int64_t cols, const hy_weight **out)
{
    const size_t bytes = hy_dtype_row_bytes(type, cols) * (size_t)rows;
    for (int32_t e = 0; e < t->s->n; e++) {
        hy_weight_src src = {.type = type, .n = rows, .k = cols, .data = data + (size_t)e * bytes};
        out[e] = cf_weight(c, d, &src);
        if (out[e] == NULL)
            return false;
    }
    return true;
}

static bool run_moe(cf *c, cf_side *d, const moe_case *t, bool composed, float *out)
{
    const moe_shape *s = t->s;
    const size_t pairs = (size_t)(s->m * s->k), y_bytes = (size_t)(s->m * s->dim) * sizeof(float);
    const hy_weight **w = cf_host(c, (size_t)(3 * s->n) * sizeof(*w));
    const hy_ws_need need = {.rows = s->m, .dim = s->dim, .moe_k = s->k, .moe_ffn = s->ffn};
    const size_t ws = hy_ws_bytes(&need);
    hy_moe_ffn a = {.ldx = s->dim,
                    .dim = s->dim,
                    .m = s->m,
                    .ldy = s->dim,
                    .k = s->k,
                    .n_experts = s->n,
                    .fn = s->fn,
                    .act = t->act};
    if (w == NULL || !prepare(c, d, t, t->up, t->type, s->ffn, s->dim, w) ||
        !prepare(c, d, t, t->down, t->down_type, s->dim, s->ffn, w + s->n) ||
        (s->gated && !prepare(c, d, t, t->gate, t->type, s->ffn, s->dim, w + 2 * s->n)))
        return false;
    a.up = w;
    a.down = w + s->n;
    a.gate = s->gated ? w + 2 * s->n : NULL;
    a.x = cf_dev(c, d, t->x, y_bytes);
    a.ids = cf_dev(c, d, t->ids, pairs * sizeof(int32_t));
    a.weights = cf_dev(c, d, t->weights, pairs * sizeof(float));
    a.y = cf_dev(c, d, out, y_bytes);
    a.ws = (hy_ws){cf_dev(c, d, cf_out(c, (int64_t)(ws / 4 + 1)), ws), ws};
    return !c->no_mem &&
           cf_ok(c, "moe_ffn",
                 composed ? hy_compose_moe_ffn(d->q, &a) : d->dev->math->moe_ffn(d->q, &a)) &&
           cf_get(c, d, out, a.y, y_bytes);
}

/* A weight's row times x, which errs by dx; the sum's error in f32. */
static void dot_f64(hy_dtype type, const uint8_t *row, int64_t k, const double *x, const double *dx,
                    float *w, double *sum, double *err)
{
    double s = 0.0, size = 0.0, moved = 0.0;
    hy_dtype_decode(type, row, w, k);
    for (int64_t i = 0; i < k; i++) {
        s += (double)w[i] * x[i];
        size += fabs((double)w[i] * x[i]);
        moved += fabs((double)w[i]) * dx[i];
    }
    *sum = s;
    *err = (double)(k + 8) * CF_U * (size + moved) + moved;
}

static double act_f64(hy_act_fn fn, double x)
{
    switch (fn) {
    case HY_ACT_SILU:
        return x / (1.0 + exp(-x));
    case HY_ACT_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case HY_ACT_GELU_ERF:
        return 0.5 * x * (1.0 + erf(x * 0.70710678118654752));
    case HY_ACT_RELU:
        break;
    }
    return x > 0.0 ? x : 0.0;
}

typedef struct moe_f64 { /* scratch of the oracle */
    double *x, *zero, *h, *dh;
    float *w;
} moe_f64;

/* The expert's hidden values for one row, and their errors. */
static void hidden_f64(const moe_case *t, int32_t e, const moe_f64 *o)
{
    const moe_shape *s = t->s;
    const size_t row = hy_dtype_row_bytes(t->type, s->dim);
    for (int64_t i = 0; i < s->ffn; i++) {
        const size_t at = ((size_t)e * (size_t)s->ffn + (size_t)i) * row;
        double up, d_up, gate, d_gate;
        dot_f64(t->type, t->up + at, s->dim, o->x, o->zero, o->w, &up, &d_up);
        if (!s->gated) {
            o->h[i] = act_f64(s->fn, up);
            o->dh[i] = 1.13 * d_up + 24.0 * CF_U * (fabs(up) + 0.1);
            continue;
        }
        dot_f64(t->type, t->gate + at, s->dim, o->x, o->zero, o->w, &gate, &d_gate);
        const double g = act_f64(s->fn, gate);
        const double dg = 1.13 * d_gate + 24.0 * CF_U * (fabs(gate) + 0.1);
        o->h[i] = g * up;
        o->dh[i] = (fabs(g) + dg) * d_up + fabs(up) * dg + CF_U * fabs(g * up);
    }
}

static void oracle(cf *c, const moe_case *t, double *want, double *bound)
{
    const moe_shape *s = t->s;
    const size_t row = hy_dtype_row_bytes(t->down_type, s->ffn);
    const int64_t wide = s->dim > s->ffn ? s->dim : s->ffn;
    moe_f64 o = {.x = cf_host(c, (size_t)s->dim * sizeof(double)),
                 .zero = cf_host(c, (size_t)s->dim * sizeof(double)),
                 .h = cf_host(c, (size_t)s->ffn * sizeof(double)),
                 .dh = cf_host(c, (size_t)s->ffn * sizeof(double)),
                 .w = cf_host(c, (size_t)wide * sizeof(float))};
    for (int64_t p = 0; !c->no_mem && p < s->m * s->k; p++) {
        const int64_t r = p / s->k;
        const double weight = (double)t->weights[p];
        for (int64_t i = 0; i < s->dim; i++)
            o.x[i] = (double)t->x[r * s->dim + i];
        hidden_f64(t, t->ids[p], &o);
        for (int64_t i = 0; i < s->dim; i++) {
            const size_t at = ((size_t)t->ids[p] * (size_t)s->dim + (size_t)i) * row;
            double y, dy;
            dot_f64(t->down_type, t->down + at, s->ffn, o.h, o.dh, o.w, &y, &dy);
            want[r * s->dim + i] += weight * y;
            bound[r * s->dim + i] +=
                fabs(weight) * (dy + (double)(s->k + 2) * CF_U * (fabs(y) + dy));
        }
    }
}

/* Experts of a row differ; some get many rows, some none. */
static void draw_ids(cf *c, const moe_case *t)
{
    for (int64_t r = 0; r < t->s->m; r++) {
        int32_t *ids = t->ids + r * t->s->k;
        for (int32_t j = 0; j < t->s->k; j++) {
            bool again = true;
            while (again) {
                ids[j] = cf_below(c, cf_below(c, 3) == 0 ? t->s->n : (t->s->n + t->s->k) / 2);
                again = false;
                for (int32_t i = 0; i < j; i++)
                    again = again || ids[i] == ids[j];
            }
            t->weights[r * t->s->k + j] = cf_normal(c) * 0.5f;
        }
    }
}

static void one_moe(cf *c, const moe_shape *s, hy_dtype type, hy_dtype down, hy_act_mode act)
{
    moe_case t = {.s = s, .type = type, .down_type = down, .act = act};
    const int64_t n = s->m * s->dim;
    cf_case(c, "m=%lld dim=%lld ffn=%lld, %d of %d experts%s", (long long)s->m, (long long)s->dim,
            (long long)s->ffn, s->k, s->n, s->gated ? "" : ", no gate");
    t.gate = s->gated ? cf_blocks(c, type, s->n * s->ffn, s->dim) : NULL;
    t.up = cf_blocks(c, type, s->n * s->ffn, s->dim);
    t.down = cf_blocks(c, down, s->n * s->dim, s->ffn);
    t.x = cf_rand(c, n, 0.3f);
    t.ids = cf_host(c, (size_t)(s->m * s->k) * sizeof(int32_t));
    t.weights = cf_host(c, (size_t)(s->m * s->k) * sizeof(float));
    float *got = cf_out(c, n), *own = cf_out(c, n), *ref = cf_out(c, n);
    double *want = cf_host(c, (size_t)n * sizeof(double));
    double *bound = cf_host(c, (size_t)n * sizeof(double)), big = 0.0;
    if (c->no_mem)
        return;
    draw_ids(c, &t);
    hy_dev_props p;
    if (!cf_ok(c, "props", c->dut.dev->ops->props(c->dut.dev, &p)))
        return;
    /* Composed it is a copy and an add for every pair: too many where each may wait. */
    const bool composed = p.host_visible || s->m * s->k <= 24;
    if (!run_moe(c, &c->dut, &t, false, got) || (composed && !run_moe(c, &c->dut, &t, true, own)) ||
        (c->bits && !run_moe(c, &c->ref, &t, true, ref)))
        return;
    cf_cmp j = {.got = got, .want = want, .bound = bound, .rows = s->m, .cols = s->dim};
    j.ld = s->dim;
    if (act == HY_ACT_F32 && !c->loose) {
        oracle(c, &t, want, bound);
        cf_judge(c, &j);
    }
    if (!composed)
        return;
    for (int64_t i = 0; i < n; i++)
        big = fmax(big, fabs((double)own[i]));
    for (int64_t i = 0; i < n; i++) {
        want[i] = (double)own[i];
        bound[i] = big * (c->loose || act == HY_ACT_INT8 ? 2e-2 : 1e-3);
    }
    j.ref = c->exact ? own : NULL;
    cf_judge(c, &j);
    j.ref = ref;
    if (c->bits)
        cf_judge(c, &j);
}

static void ffns(cf *c, hy_dtype type, hy_dtype down, hy_act_mode act)
{
    static const moe_shape shapes[] = {
        /* m, dim, ffn, experts, of them, gated, fn: the tiny golden families' first */
        {1, 64, 96, 4, 2, true, HY_ACT_SILU},   {7, 64, 32, 8, 3, true, HY_ACT_SILU},
        {50, 64, 32, 8, 2, true, HY_ACT_SILU},  {130, 96, 64, 2, 2, true, HY_ACT_GELU_TANH},
        {23, 32, 32, 3, 1, false, HY_ACT_RELU}, {3, 64, 32, 40, 8, true, HY_ACT_GELU_ERF},
        {70, 32, 32, 33, 31, true, HY_ACT_SILU}};
    hy_op_query q = {
        .op = HY_OP_MOE_FFN, .w_type = type, .act = act, .n = 256, .k = 256, .fn = HY_ACT_SILU};
    if (!cf_group(c, &q, "%s, %s %s", hy_dtype_name(type), hy_dtype_name(down),
                  act == HY_ACT_INT8 ? "int8" : "f32"))
        return;
    for (size_t i = 0; i < HY_COUNTOF(shapes); i++) {
        moe_shape s = shapes[i];
        const int64_t block = hy_dtype_get(type)->block > hy_dtype_get(down)->block
                                  ? hy_dtype_get(type)->block
                                  : hy_dtype_get(down)->block;
        s.dim = (s.dim + block - 1) / block * block;
        s.ffn = (s.ffn + block - 1) / block * block;
        if (block > 32 && s.m * s.n * s.k > 1000) /* long for an oracle */
            continue;
        if (hy_dtype_get(type)->block == 1 && i % 2 == 1)
            s.dim -= 3; /* odd widths where the types have them */
        if (!c->quick || i % 2 == 1 || i == 2)
            one_moe(c, &s, type, down, act);
    }
    cf_group_end(c);
}

void cf_moe(cf *c)
{
    static const struct {
        hy_dtype type, down;
        hy_act_mode act;
    } kinds[] = {{HY_F32, HY_F32, HY_ACT_F32},    {HY_BF16, HY_BF16, HY_ACT_F32},
                 {HY_F16, HY_F16, HY_ACT_F32},    {HY_Q8_0, HY_Q8_0, HY_ACT_INT8},
                 {HY_Q4_0, HY_Q4_0, HY_ACT_INT8}, {HY_Q4_K, HY_Q6_K, HY_ACT_INT8},
                 {HY_Q4_K, HY_Q4_K, HY_ACT_F32},  {HY_Q5_0, HY_Q8_0, HY_ACT_F32}};
    routes(c);
    for (size_t i = 0; i < HY_COUNTOF(kinds); i++)
        ffns(c, kinds[i].type, kinds[i].down, kinds[i].act);
}
