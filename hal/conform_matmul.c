/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance of matmul and embed: every weight type, both activation modes, odd shapes.
 *
 * Bounds. A sum of k products in any order errs by at most (k + 2) u sum|w x| (Higham, Accuracy
 * and Stability, 3.1), u = 2^-24. With int8 activations each block of 32 moves x by up to
 * amax / 254, which adds sum|w| of the block times that. With numerics = fast both sides may be
 * rounded to bf16, or to f16, which ends at 65504, where weights are.
 *
 * Thread: the caller of hy_conform_run.  Owner: the case.
 */
#include "hal/conform_int.h"
#include "hal/quant.h"

#include <math.h>
#include <string.h>

typedef struct mm {
    hy_dtype t;
    hy_act_mode act;
    int64_t m, n, k, ldx, ldy;
    const uint8_t *w;
    bool biased;
    float *x; /* starts off alignment */
    float *bias;
} mm;

static bool run(cf *c, cf_side *s, const mm *a, float *out)
{
    hy_weight_src src = {.type = a->t, .n = a->n, .k = a->k, .data = a->w};
    hy_weight *w = cf_weight(c, s, &src);
    size_t y_bytes = (size_t)(a->m * a->ldy) * sizeof(float);
    hy_matmul o = {.w = w, .ldx = a->ldx, .ldy = a->ldy, .m = a->m, .act = a->act};
    /* One float off, as rows of an odd width would be. */
    float *x = cf_dev(c, s, a->x - 1, (size_t)(a->m * a->ldx + 1) * sizeof(float));
    o.y = cf_dev(c, s, out, y_bytes);
    if (a->bias != NULL)
        o.bias = cf_dev(c, s, a->bias, (size_t)a->n * sizeof(float));
    if (w == NULL || x == NULL || o.y == NULL)
        return false;
    o.x = x + 1;
    return cf_ok(c, "matmul", s->dev->math->matmul(s->q, &o)) && cf_get(c, s, out, o.y, y_bytes);
}

/* Largest shift that int8 quantisation gives an element of each block of 32 of a row. */
static void shifts(const mm *a, const float *x, double *out)
{
    bool int8 = a->act == HY_ACT_INT8 && hy_quant_get(a->t) != NULL;
    for (int64_t b = 0; b * 32 < a->k; b++) {
        double amax = 0.0;
        for (int64_t i = b * 32; int8 && i < b * 32 + 32; i++)
            amax = fabs((double)x[i]) > amax ? fabs((double)x[i]) : amax;
        out[b] = int8 ? amax / 254.0 * 1.0001 : 0.0;
    }
}

static bool oracle(cf *c, const mm *a, double *want, double *bound)
{
    size_t row_bytes = hy_dtype_row_bytes(a->t, a->k);
    float *w = cf_host(c, (size_t)a->k * sizeof(float));
    int64_t blocks = (a->k + 31) / 32;
    double *shift = cf_host(c, (size_t)(a->m * blocks) * sizeof(double));
    if (w == NULL || shift == NULL)
        return false;
    for (int64_t r = 0; r < a->m; r++)
        shifts(a, a->x + r * a->ldx, shift + r * blocks);
    for (int64_t n = 0; n < a->n; n++) {
        hy_dtype_decode(a->t, a->w + (size_t)n * row_bytes, w, a->k);
        for (int64_t r = 0; r < a->m; r++) {
            const float *x = a->x + r * a->ldx;
            double sum = 0.0, abs_sum = 0.0, moved = 0.0, over = 0.0;
            for (int64_t k = 0; k < a->k; k++) {
                double p = (double)w[k] * (double)x[k];
                sum += p;
                abs_sum += fabs(p);
                moved += fabs((double)w[k]) * shift[r * blocks + k / 32];
                if (a->t == HY_F16)
                    over += fabs((double)w[k]) * fmax(0.0, fabs((double)x[k]) - 65504.0);
            }
            double bias = a->bias != NULL ? (double)a->bias[n] : 0.0;
            if (c->loose)
                moved += abs_sum * 1.01 * 0x1p-7 + over; /* 2^-8 of either side */
            want[r * a->n + n] = sum + bias;
            bound[r * a->n + n] =
                (double)(a->k + 8) * CF_U * (abs_sum + moved) + moved + fabs(bias) * CF_U;
        }
    }
    return true;
}

/* Rows that try the edges: zeros, tiny, huge beside small; with `wild` also NaN and infinity. */
static void edge_rows(cf *c, mm *a, bool wild)
{
    for (int64_t r = 0; r < a->m; r++) {
        float *x = a->x + r * a->ldx;
        int64_t at = cf_below(c, (int)a->k), len = a->k - at < 32 ? a->k - at : 32;
        switch (cf_below(c, 6)) {
        case 0:
            memset(x + at / 32 * 32, 0, (size_t)len * sizeof(float));
            break;
        case 1:
            for (int64_t i = 0; i < len; i++)
                x[at + i] *= 1e-39f;
            break;
        case 2:
            x[at] *= 3e4f;
            break;
        case 3:
            if (wild)
                x[at] = cf_below(c, 2) ? NAN : INFINITY;
            break;
        default:
            break;
        }
    }
}

/* An exact device gives a row the same bits alone as in company. */
static void alone(cf *c, const mm *a, const float *got)
{
    mm one_row = *a;
    int64_t r = a->m - 1;
    float *out = cf_out(c, a->ldy);
    one_row.m = 1;
    one_row.x = a->x + r * a->ldx;
    if (out == NULL || !run(c, &c->dut, &one_row, out))
        return;
    if (memcmp(out, got + r * a->ldy, (size_t)a->n * sizeof(float)) != 0)
        cf_bad(c, "row %lld alone has other bits than in a batch", (long long)r);
}

static void one(cf *c, mm *a, bool wild)
{
    cf_case(c, "m=%lld n=%lld k=%lld ldx=%lld%s%s", (long long)a->m, (long long)a->n,
            (long long)a->k, (long long)a->ldx, a->biased ? " bias" : "",
            wild ? " with NaN and infinity" : "");
    float *x = cf_rand(c, a->m * a->ldx + 1, 1.0f);
    a->w = cf_blocks(c, a->t, a->n, a->k);
    a->bias = a->biased ? cf_rand(c, a->n, 1.0f) : NULL;
    float *got = cf_out(c, a->m * a->ldy), *ref = cf_out(c, a->m * a->ldy);
    size_t n = (size_t)(a->m * a->n);
    double *want = cf_host(c, n * sizeof(double)), *bound = cf_host(c, n * sizeof(double));
    if (x == NULL || a->w == NULL || got == NULL || ref == NULL || want == NULL || bound == NULL)
        return;
    a->x = x + 1;
    edge_rows(c, a, wild);
    cf_cmp j = {.got = got, .rows = a->m, .cols = a->n, .ld = a->ldy};
    if (!wild && oracle(c, a, want, bound)) { /* NaN rules are the cpu order's own */
        j.want = want;
        j.bound = bound;
    }
    if (!run(c, &c->dut, a, got) || (c->bits && !run(c, &c->ref, a, ref)))
        return;
    j.ref = c->bits ? ref : NULL;
    cf_judge(c, &j);
    if (c->exact && !wild && a->m > 1)
        alone(c, a, got);
}

/* k of about the size asked for that the type allows; odd where it may be. */
static int64_t fit_k(hy_dtype t, int64_t k)
{
    int64_t b = hy_dtype_get(t)->block;
    return b == 1 ? k : (k + b - 1) / b * b;
}

static void shapes(cf *c, hy_dtype t, hy_act_mode act)
{
    static const int ks[] = {1, 3, 31, 33, 96, 160, 250, 576, 511, 768, 1025};
    static const int far[][3] = {/* m, n, k */ {33, 24, 576},
                                 {130, 19, 256},
                                 {1, 33, 8960},
                                 {4, 17, 8960},
                                 {1, 515, 64},
                                 {7, 130, 320},
                                 {64, 64, 256},
                                 {65, 40, 200},
                                 {2, 1, 1536},
                                 {3, 4099, 64},
                                 {257, 9, 96}};
    for (int m = 1; m <= 17; m += c->quick ? 4 : 1) {
        int64_t n = 1 + (m * 7 + cf_below(c, 40)) % 53;
        mm a = {.t = t, .act = act, .m = m, .n = n};
        a.k = fit_k(t, ks[(m + cf_below(c, 3)) % (int)HY_COUNTOF(ks)]);
        a.ldx = a.k + m % 5;
        a.ldy = a.n + m % 3;
        a.biased = m % 2 == 0;
        one(c, &a, false);
    }
    for (size_t i = 0; i < HY_COUNTOF(far); i++) {
        if (c->quick && i % 3 != 0)
            continue;
        mm a = {.t = t, .act = act, .m = far[i][0], .n = far[i][1], .k = fit_k(t, far[i][2])};
        a.ldx = a.k + (int64_t)i;
        a.ldy = a.n;
        one(c, &a, false);
    }
    if (c->bits) {
        mm a = {.t = t, .act = act, .m = 9, .n = 21, .k = fit_k(t, 512)};
        a.ldx = a.k;
        a.ldy = a.n;
        one(c, &a, true);
    }
}

static bool run_embed(cf *c, cf_side *s, const hy_weight_src *src, const int32_t *ids, int64_t m,
                      int64_t ldy, float scale, float *out)
{
    hy_weight *w = cf_weight(c, s, src);
    size_t bytes = (size_t)(m * ldy) * sizeof(float);
    float *y = cf_dev(c, s, out, bytes);
    hy_embed e = {.w = w, .ids = ids, .m = m, .y = y, .ldy = ldy, .scale = scale};
    return w != NULL && y != NULL && cf_ok(c, "embed", s->dev->math->embed(s->q, &e)) &&
           cf_get(c, s, out, y, bytes);
}

static void embed(cf *c, hy_dtype t, int64_t m, int64_t k, float scale)
{
    enum { ROWS = 37 };
    int64_t ldy = k + m % 3;
    cf_case(c, "m=%lld k=%lld scale=%g", (long long)m, (long long)k, (double)scale);
    hy_weight_src src = {.type = t, .n = ROWS, .k = k, .gather = true};
    src.data = cf_blocks(c, t, ROWS, k);
    float *got = cf_out(c, m * ldy), *ref = cf_out(c, m * ldy);
    float *row = cf_host(c, (size_t)k * sizeof(float));
    int32_t *ids = cf_host(c, (size_t)m * sizeof(int32_t));
    size_t n = (size_t)(m * k);
    double *want = cf_host(c, n * sizeof(double)), *bound = cf_host(c, n * sizeof(double));
    if (c->no_mem)
        return;
    for (int64_t r = 0; r < m; r++) {
        ids[r] = r == 0 ? ROWS - 1 : cf_below(c, ROWS);
        hy_dtype_decode(t, (const uint8_t *)src.data + (size_t)ids[r] * hy_dtype_row_bytes(t, k),
                        row, k);
        for (int64_t i = 0; i < k; i++) {
            want[r * k + i] = (double)row[i] * (double)scale;
            bound[r * k + i] = fabs(want[r * k + i]) * 2.0 * CF_U;
        }
    }
    if (!run_embed(c, &c->dut, &src, ids, m, ldy, scale, got) ||
        (c->bits && !run_embed(c, &c->ref, &src, ids, m, ldy, scale, ref)))
        return;
    cf_judge(c, &(cf_cmp){.got = got,
                          .ref = c->bits ? ref : NULL,
                          .want = want,
                          .bound = bound,
                          .rows = m,
                          .cols = k,
                          .ld = ldy});
}

void cf_matmul(cf *c)
{
    for (int i = 0; i < cf_n_weight_types; i++) {
        hy_dtype t = cf_weight_types[i];
        hy_op_query e = {.op = HY_OP_EMBED, .w_type = t, .k = 256, .n = 37};
        if (cf_group(c, &e, "%s", hy_dtype_name(t))) {
            embed(c, t, 1, fit_k(t, 33), 1.0f);
            embed(c, t, 3, fit_k(t, 576), 1.0f);
            embed(c, t, 17, fit_k(t, 640), 25.25f);
            cf_group_end(c);
        }
    }
    for (int i = 0; i < cf_n_weight_types; i++) {
        for (int act = HY_ACT_F32; act >= HY_ACT_INT8; act--) {
            hy_dtype t = cf_weight_types[i];
            hy_op_query q = {
                .op = HY_OP_MATMUL, .w_type = t, .act = (hy_act_mode)act, .k = 256, .n = 64};
            if (act == HY_ACT_INT8 && hy_quant_get(t) == NULL)
                continue;
            if (cf_group(c, &q, "%s %s", hy_dtype_name(t), act == HY_ACT_INT8 ? "int8" : "f32")) {
                shapes(c, t, (hy_act_mode)act);
                cf_group_end(c);
            }
        }
    }
}
