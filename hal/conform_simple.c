/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance of the norms, rope, act_mul, add and topk. Bounds count roundings of f32 (u = 2^-24):
 * they are those of the definitions in docs/NUMERICS.md with a factor of about two to spare.
 *
 * Thread: the caller of hy_conform_run.  Owner: the case.
 */
#include "hal/conform_int.h"

#include <math.h>
#include <string.h>

static const int rows_of[] = {1, 2, 5, 17};
static const int dims_of[] = {1, 7, 16, 33, 64, 100, 576, 1537};

/* ---- norms ---- */

typedef struct norm_case {
    bool layer;
    hy_norm a; /* host addresses */
    bool in_place;
} norm_case;

static bool run_norm(cf *c, cf_side *s, const norm_case *t, float *out)
{
    hy_norm a = t->a;
    size_t x_bytes = (size_t)(a.m * a.ldx) * sizeof(float);
    size_t y_bytes = (size_t)(a.m * a.ldy) * sizeof(float), w_bytes = (size_t)a.dim * sizeof(float);
    a.x = cf_dev(c, s, a.x, x_bytes);
    a.y = t->in_place ? (float *)(uintptr_t)a.x : cf_dev(c, s, out, y_bytes);
    a.w = a.w != NULL ? cf_dev(c, s, a.w, w_bytes) : NULL;
    a.b = a.b != NULL ? cf_dev(c, s, a.b, w_bytes) : NULL;
    const hy_math_ops *m = s->dev->math;
    if (a.x == NULL || a.y == NULL)
        return false;
    return cf_ok(c, "norm", t->layer ? m->layer_norm(s->q, &a) : m->rms_norm(s->q, &a)) &&
           cf_get(c, s, out, a.y, y_bytes);
}

static void norm_row(const norm_case *t, const float *x, double *want, double *bound)
{
    const hy_norm *a = &t->a;
    double mean = 0.0, ss = 0.0, big = 0.0;
    for (int64_t i = 0; i < a->dim && t->layer; i++)
        mean += (double)x[i] / (double)a->dim;
    for (int64_t i = 0; i < a->dim; i++) {
        ss += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)a->dim;
        big = fabs((double)x[i]) > big ? fabs((double)x[i]) : big;
    }
    double r = 1.0 / sqrt(ss + (double)a->eps);
    double rel = ((double)a->dim / 8.0 + 24.0) * CF_U; /* 16 lanes, then the tree */
    for (int64_t i = 0; i < a->dim; i++) {
        double w = a->w != NULL ? (double)a->w[i] : 1.0, b = a->b != NULL ? (double)a->b[i] : 0.0;
        want[i] = ((double)x[i] - mean) * r * w + b;
        double size = t->layer ? 4.0 * big : fabs((double)x[i]);
        bound[i] = rel * size * r * fabs(w) + 2.0 * CF_U * fabs(b);
    }
}

static void one_norm(cf *c, bool layer, int64_t m, int64_t dim, int variant)
{
    norm_case t = {.layer = layer, .in_place = variant % 3 == 1};
    int64_t ld = dim + variant;
    cf_case(c, "m=%lld dim=%lld%s", (long long)m, (long long)dim, t.in_place ? " in place" : "");
    t.a = (hy_norm){.ldx = ld, .ldy = ld, .m = m, .dim = dim, .eps = 1e-6f};
    float *x = cf_out(c, m * ld), *got = cf_out(c, m * ld), *ref = cf_out(c, m * ld);
    t.a.x = x;
    t.a.w = variant != 2 ? cf_rand(c, dim, 1.0f) : NULL;
    t.a.b = layer && variant != 3 ? cf_rand(c, dim, 1.0f) : NULL;
    size_t n = (size_t)(m * dim);
    double *want = cf_host(c, n * sizeof(double)), *bound = cf_host(c, n * sizeof(double));
    if (c->no_mem)
        return;
    for (int64_t r = 0; r < m; r++) {
        float scale = r % 3 == 2 ? 1e-4f : r % 3 == 1 ? 50.0f : 1.0f;
        for (int64_t i = 0; i < dim; i++)
            x[r * ld + i] = cf_normal(c) * scale;
        norm_row(&t, x + r * ld, want + r * dim, bound + r * dim);
    }
    if (!run_norm(c, &c->dut, &t, got) || (c->bits && !run_norm(c, &c->ref, &t, ref)))
        return;
    cf_judge(c, &(cf_cmp){.got = got,
                          .ref = c->bits ? ref : NULL,
                          .want = want,
                          .bound = bound,
                          .rows = m,
                          .cols = dim,
                          .ld = ld});
}

static void norms(cf *c, bool layer)
{
    hy_op_query q = {.op = layer ? HY_OP_LAYER_NORM : HY_OP_RMS_NORM};
    if (!cf_group(c, &q, "f32"))
        return;
    for (size_t d = 0; d < HY_COUNTOF(dims_of); d++) {
        for (size_t r = 0; r < HY_COUNTOF(rows_of); r++)
            one_norm(c, layer, rows_of[r], dims_of[d], (int)(d + r) % 4);
    }
    cf_group_end(c);
}

/* ---- rope ---- */

static bool run_rope(cf *c, cf_side *s, const hy_rope *host, float *out)
{
    hy_rope a = *host;
    size_t bytes = (size_t)(a.m * a.ld) * sizeof(float);
    size_t t_bytes = (size_t)(a.m * a.t.rot / 2) * sizeof(float);
    a.x = cf_dev(c, s, a.x, bytes);
    a.t.cos = cf_dev(c, s, a.t.cos, t_bytes);
    a.t.sin = cf_dev(c, s, a.t.sin, t_bytes);
    return a.x != NULL && a.t.cos != NULL && a.t.sin != NULL &&
           cf_ok(c, "rope", s->dev->math->rope(s->q, &a)) && cf_get(c, s, out, a.x, bytes);
}

static void rope_head(const hy_rope *a, const float *x, int64_t row, double *want, double *bound)
{
    int32_t half = a->t.rot / 2;
    for (int32_t i = 0; i < a->dim; i++) {
        want[i] = (double)x[i];
        bound[i] = 0.0;
    }
    for (int32_t i = 0; i < half; i++) {
        bool halves = a->t.kind == HY_ROPE_HALVES;
        int32_t p = halves ? i : 2 * i, q = halves ? i + half : 2 * i + 1;
        double cs = (double)a->t.cos[row * half + i], sn = (double)a->t.sin[row * half + i];
        want[p] = (double)x[p] * cs - (double)x[q] * sn;
        want[q] = (double)x[p] * sn + (double)x[q] * cs;
        bound[p] = bound[q] = 4.0 * CF_U * (fabs((double)x[p]) + fabs((double)x[q]));
    }
}

static void one_rope(cf *c, hy_rope_kind kind, int32_t dim, int32_t rot, int32_t heads, int64_t m)
{
    hy_rope a = {.m = m, .heads = heads, .dim = dim, .ld = (int64_t)heads * dim + m % 4};
    int64_t cols = (int64_t)heads * dim, n = m * rot / 2;
    cf_case(c, "m=%lld heads=%d dim=%d rot=%d", (long long)m, heads, dim, rot);
    float *x = cf_out(c, m * a.ld), *got = cf_out(c, m * a.ld), *ref = cf_out(c, m * a.ld);
    float *cs = cf_host(c, (size_t)n * sizeof(float)), *sn = cf_host(c, (size_t)n * sizeof(float));
    size_t bytes = (size_t)(m * cols) * sizeof(double);
    double *want = cf_host(c, bytes), *bound = cf_host(c, bytes);
    if (c->no_mem)
        return;
    for (int64_t i = 0; i < n; i++) {
        double angle = hy_rng_f64(&c->rng) * 6.283185307;
        cs[i] = (float)cos(angle);
        sn[i] = (float)sin(angle);
    }
    a.x = x;
    a.t = (hy_rope_table){kind, rot, cs, sn};
    for (int64_t r = 0; r < m; r++) {
        for (int64_t i = 0; i < cols; i++)
            x[r * a.ld + i] = cf_normal(c);
        for (int32_t h = 0; h < heads; h++)
            rope_head(&a, x + r * a.ld + h * dim, r, want + r * cols + h * dim,
                      bound + r * cols + h * dim);
    }
    if (!run_rope(c, &c->dut, &a, got) || (c->bits && !run_rope(c, &c->ref, &a, ref)))
        return;
    cf_judge(c, &(cf_cmp){.got = got,
                          .ref = c->bits ? ref : NULL,
                          .want = want,
                          .bound = bound,
                          .rows = m,
                          .cols = cols,
                          .ld = a.ld});
}

static void ropes(cf *c)
{
    static const int shape[][4] = {/* dim, rot, heads, m */ {64, 64, 9, 1},
                                   {128, 128, 2, 17},
                                   {256, 256, 4, 3},
                                   {96, 48, 3, 5},
                                   {80, 32, 2, 33},
                                   {64, 2, 1, 2},
                                   {30, 30, 5, 7},
                                   {33, 14, 3, 4},
                                   {64, 64, 3, 130}};
    for (int kind = HY_ROPE_HALVES; kind <= HY_ROPE_PAIRS; kind++) {
        hy_op_query q = {.op = HY_OP_ROPE};
        if (!cf_group(c, &q, "%s", kind == HY_ROPE_HALVES ? "halves" : "pairs"))
            continue;
        for (size_t i = 0; i < HY_COUNTOF(shape); i++)
            one_rope(c, (hy_rope_kind)kind, shape[i][0], shape[i][1], shape[i][2], shape[i][3]);
        cf_group_end(c);
    }
}

/* ---- act_mul ---- */

static double act_f64(hy_act_fn fn, double x, double *bound)
{
    double y;
    switch (fn) {
    case HY_ACT_SILU:
        y = x / (1.0 + exp(-x));
        *bound = 16.0 * CF_U * fabs(y) + 1e-35; /* exp stops at 88.72: silu(-100) is -3e-37 */
        return y;
    case HY_ACT_GELU_TANH:
        y = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
        *bound = 8.0 * CF_U * fabs(x) + 8.0 * CF_U * fabs(y);
        return y;
    case HY_ACT_GELU_ERF:
        y = 0.5 * x * (1.0 + erf(x * 0.7071067811865476));
        *bound = 8.0 * CF_U * fabs(x) + 8.0 * CF_U * fabs(y);
        return y;
    case HY_ACT_RELU:
        break;
    }
    *bound = 0.0;
    return x > 0.0 ? x : 0.0;
}

static bool run_act(cf *c, cf_side *s, const hy_act_mul *host, float *out)
{
    hy_act_mul a = *host;
    size_t y_bytes = (size_t)(a.m * a.ldy) * sizeof(float);
    a.gate = cf_dev(c, s, a.gate, (size_t)(a.m * a.ldg) * sizeof(float));
    if (a.up != NULL)
        a.up = cf_dev(c, s, a.up, (size_t)(a.m * a.ldu) * sizeof(float));
    a.y = cf_dev(c, s, out, y_bytes);
    return a.gate != NULL && a.y != NULL && cf_ok(c, "act_mul", s->dev->math->act_mul(s->q, &a)) &&
           cf_get(c, s, out, a.y, y_bytes);
}

static void one_act(cf *c, hy_act_fn fn, int64_t m, int64_t dim, bool up)
{
    hy_act_mul a = {.ldg = dim + m % 2, .ldu = dim + m % 3, .ldy = dim + 1, .m = m, .dim = dim};
    a.fn = fn;
    cf_case(c, "m=%lld dim=%lld%s", (long long)m, (long long)dim, up ? "" : " without up");
    float *g = cf_rand(c, m * a.ldg, 6.0f), *u = up ? cf_rand(c, m * a.ldu, 1.0f) : NULL;
    float *got = cf_out(c, m * a.ldy), *ref = cf_out(c, m * a.ldy);
    size_t bytes = (size_t)(m * dim) * sizeof(double);
    double *want = cf_host(c, bytes), *bound = cf_host(c, bytes);
    if (c->no_mem)
        return;
    static const float edge[] = {0.0f, -0.0f, 90.0f, -90.0f, 1e-20f, -104.5f, 1e4f, -1e4f, 0.5f};
    for (size_t i = 0; i < HY_COUNTOF(edge) && (int64_t)i < dim; i++)
        g[i] = edge[i];
    for (int64_t r = 0; r < m; r++) {
        for (int64_t i = 0; i < dim; i++) {
            double b, y = act_f64(fn, (double)g[r * a.ldg + i], &b);
            double mul = up ? (double)u[r * a.ldu + i] : 1.0;
            want[r * dim + i] = y * mul;
            bound[r * dim + i] = b * fabs(mul) + 2.0 * CF_U * fabs(y * mul);
        }
    }
    a.gate = g;
    a.up = u;
    if (!run_act(c, &c->dut, &a, got) || (c->bits && !run_act(c, &c->ref, &a, ref)))
        return;
    cf_judge(c, &(cf_cmp){.got = got,
                          .ref = c->bits ? ref : NULL,
                          .want = want,
                          .bound = bound,
                          .rows = m,
                          .cols = dim,
                          .ld = a.ldy});
}

static void acts(cf *c)
{
    static const char *const names[] = {"silu", "gelu_tanh", "gelu_erf", "relu"};
    for (int fn = HY_ACT_SILU; fn <= HY_ACT_RELU; fn++) {
        hy_op_query q = {.op = HY_OP_ACT_MUL, .fn = (hy_act_fn)fn};
        if (!cf_group(c, &q, "%s", names[fn]))
            continue;
        for (size_t d = 0; d < HY_COUNTOF(dims_of); d++) {
            one_act(c, (hy_act_fn)fn, rows_of[d % 4], dims_of[d], true);
            one_act(c, (hy_act_fn)fn, rows_of[(d + 1) % 4], dims_of[d], false);
        }
        cf_group_end(c);
    }
}

/* ---- add ---- */

static bool run_add(cf *c, cf_side *s, const hy_add *host, float *out)
{
    hy_add a = *host;
    size_t bytes = (size_t)(a.m * a.ldy) * sizeof(float);
    a.a = cf_dev(c, s, a.a, (size_t)(a.m * a.lda) * sizeof(float));
    a.b = cf_dev(c, s, a.b, (size_t)(a.m * a.ldb) * sizeof(float));
    a.y = cf_dev(c, s, out, bytes);
    return a.a != NULL && a.b != NULL && a.y != NULL &&
           cf_ok(c, "add", s->dev->math->add(s->q, &a)) && cf_get(c, s, out, a.y, bytes);
}

static void adds(cf *c)
{
    static const float scales[] = {1.0f, 0.25f, -3.1f};
    hy_op_query q = {.op = HY_OP_ADD};
    if (!cf_group(c, &q, "f32"))
        return;
    for (size_t d = 0; d < HY_COUNTOF(dims_of); d++) {
        int64_t m = rows_of[d % 4], dim = dims_of[d];
        hy_add a = {.lda = dim + 1, .ldb = dim, .ldy = dim + 2, .m = m, .dim = dim};
        a.b_scale = scales[d % 3];
        cf_case(c, "m=%lld dim=%lld b_scale=%g", (long long)m, (long long)dim, (double)a.b_scale);
        a.a = cf_rand(c, m * a.lda, 1.0f);
        a.b = cf_rand(c, m * a.ldb, 1.0f);
        float *got = cf_out(c, m * a.ldy), *ref = cf_out(c, m * a.ldy);
        size_t bytes = (size_t)(m * dim) * sizeof(double);
        double *want = cf_host(c, bytes), *bound = cf_host(c, bytes);
        if (c->no_mem)
            break;
        for (int64_t i = 0; i < m * dim; i++) {
            double x = (double)a.a[i / dim * a.lda + i % dim];
            double y = (double)a.b[i / dim * a.ldb + i % dim] * (double)a.b_scale;
            want[i] = x + y;
            bound[i] = 2.0 * CF_U * (fabs(x) + fabs(y));
        }
        if (!run_add(c, &c->dut, &a, got) || (c->bits && !run_add(c, &c->ref, &a, ref)))
            continue;
        cf_judge(c, &(cf_cmp){.got = got,
                              .ref = c->bits ? ref : NULL,
                              .want = want,
                              .bound = bound,
                              .rows = m,
                              .cols = dim,
                              .ld = a.ldy});
    }
    cf_group_end(c);
}

/* ---- topk ---- */

static double rank_value(float x)
{
    return x == x ? (double)x : -INFINITY;
}

/* The order of ids is total: compare each listed id with all that are not listed before it. */
static void check_top(cf *c, const float *x, int64_t n, int32_t k, const int32_t *ids,
                      const float *values)
{
    for (int32_t i = 0; i < k; i++) {
        if (i >= n) {
            if (ids[i] != -1)
                cf_bad(c, "place %d of a row of %lld is id %d, should be -1", i, (long long)n,
                       ids[i]);
            continue;
        }
        int32_t best = -1;
        for (int32_t j = 0; j < n; j++) {
            bool used = false;
            for (int32_t u = 0; u < i && !used; u++)
                used = ids[u] == j;
            if (!used && (best < 0 || rank_value(x[j]) > rank_value(x[best])))
                best = j;
        }
        if (ids[i] != best) {
            cf_bad(c, "place %d is id %d, should be %d", i, ids[i], best);
            return;
        }
        if ((double)values[i] != rank_value(x[best]))
            cf_bad(c, "place %d has value %g, should be %g", i, (double)values[i],
                   rank_value(x[best]));
    }
}

static double lse_f64(const float *x, int64_t n)
{
    double m = -INFINITY, s = 0.0;
    for (int64_t i = 0; i < n; i++)
        m = fmax(m, rank_value(x[i]));
    for (int64_t i = 0; i < n; i++)
        s += exp(rank_value(x[i]) - m);
    return m + log(s);
}

static bool run_topk(cf *c, cf_side *s, const hy_topk *host)
{
    hy_topk a = *host;
    a.logits = cf_dev(c, s, a.logits, (size_t)(a.m * a.ld) * sizeof(float));
    return a.logits != NULL && cf_ok(c, "topk", s->dev->math->topk(s->q, &a)) &&
           cf_ok(c, "topk", s->dev->ops->queue_wait(s->q));
}

static void one_topk(cf *c, int64_t m, int64_t n, int32_t k, int kind)
{
    static const char *const kinds[] = {"plain", "many ties", "with NaN", "wide range"};
    hy_topk a = {.ld = n + m % 3, .m = m, .n = n, .k = k};
    cf_case(c, "m=%lld n=%lld k=%d %s", (long long)m, (long long)n, k, kinds[kind]);
    float *x = cf_rand(c, m * a.ld, kind == 3 ? 40.0f : 3.0f);
    float *lse = cf_out(c, m), *ref_lse = cf_out(c, m);
    a.ids = cf_host(c, (size_t)(m * k) * sizeof(int32_t));
    a.values = cf_host(c, (size_t)(m * k) * sizeof(float));
    double *want = cf_host(c, (size_t)m * sizeof(double));
    double *bound = cf_host(c, (size_t)m * sizeof(double));
    if (c->no_mem)
        return;
    for (int64_t i = 0; i < m * a.ld; i++) {
        if (kind == 1)
            x[i] = rintf(x[i]);
        if (kind == 2 && i % 7 == 3)
            x[i] = NAN;
    }
    for (int64_t r = 0; r < m; r++) {
        want[r] = lse_f64(x + r * a.ld, n);
        bound[r] = 4.0 * CF_U * (fabs(want[r]) + 4.0);
    }
    a.logits = x;
    a.lse = lse;
    if (!run_topk(c, &c->dut, &a))
        return;
    for (int64_t r = 0; r < m; r++)
        check_top(c, x + r * a.ld, n, k, a.ids + r * k, a.values + r * k);
    hy_topk only = {.logits = x, .ld = a.ld, .m = m, .n = n, .lse = ref_lse};
    if (c->bits && !run_topk(c, &c->ref, &only))
        return;
    cf_judge(c, &(cf_cmp){.got = lse,
                          .ref = c->bits ? ref_lse : NULL,
                          .want = want,
                          .bound = bound,
                          .rows = m,
                          .cols = 1,
                          .ld = 1});
}

static void topks(cf *c)
{
    static const int shape[][3] = {
        /* m, n, k */ {1, 1, 1}, {1, 5, 8}, {3, 100, 20}, {2, 1000, 1}, {17, 333, 5},
        {1, 5003, 256}};
    hy_op_query q = {.op = HY_OP_TOPK};
    if (!cf_group(c, &q, "f32"))
        return;
    for (size_t i = 0; i < HY_COUNTOF(shape); i++) {
        for (int kind = 0; kind < 4; kind++)
            one_topk(c, shape[i][0], shape[i][1], shape[i][2], kind);
    }
    cf_group_end(c);
}

void cf_simple(cf *c)
{
    norms(c, false);
    norms(c, true);
    ropes(c);
    acts(c);
    adds(c);
    topks(c);
}
