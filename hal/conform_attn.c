/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance of attention over the paged cache: groups of heads, windows, soft caps, odd widths,
 * any block size, several sequences with prefill and decode rows in one step.
 *
 * Bound. Roundings have random signs, so that n of them add up like sqrt(n) (Higham and Mary 2019,
 * SIAM J. Sci. Comput. 41; factor 4): a score errs by ds = (4 sqrt(width) + 6) u scale sum|q k|
 * (and 4 u cap); a weight p by 2 ds relatively; sums over a segment of 256 and over segments add
 * (4 sqrt(256) + n / 256) u: in all that part of the largest |v|.
 *
 * Thread: the caller of hy_conform_run.  Owner: the case.
 */
#include "hal/conform_kv.h"

#include <math.h>
#include <string.h>

static bool run(cf *c, cf_side *d, const cf_scene *s, const float *q, int64_t ldq, int64_t ldo,
                float *out)
{
    hy_kv_pool pool;
    size_t bytes = (size_t)(s->n_rows * ldo) * sizeof(float);
    if (!cf_pool_make(c, d, s, &pool) || !cf_scene_write(c, d, s, &pool))
        return false;
    hy_attn a = {.pool = &pool,
                 .layer = CF_LAYER,
                 .rows = &s->rows,
                 .bt = {s->visible, s->stride},
                 .ldq = ldq,
                 .heads = s->s.heads,
                 .ldo = ldo,
                 .scale = 1.0f / sqrtf((float)s->s.k_dim),
                 .softcap = s->s.softcap,
                 .window = s->s.window};
    a.q = cf_dev(c, d, q, (size_t)(s->n_rows * ldq) * sizeof(float));
    a.out = cf_dev(c, d, out, bytes);
    return a.q != NULL && a.out != NULL &&
           cf_ok(c, "attention", d->dev->math->attention(d->q, &a)) &&
           cf_get(c, d, out, a.out, bytes);
}

/* One row and head in f64 over keys and values as the cache rounds them. */
static void head_f64(const cf_scene *s, int32_t seq, int32_t pos, int32_t h, const float *q,
                     double *score, double *want, double *bound)
{
    int32_t kd = s->s.k_dim, vd = s->s.v_dim;
    int32_t kvh = (int32_t)((int64_t)h * s->s.kv_heads / s->s.heads);
    int32_t first = s->s.window > 0 && pos >= s->s.window ? pos - s->s.window + 1 : 0;
    double top = -INFINITY, sum = 0.0, scale = 1.0 / sqrt((double)kd), cap = (double)s->s.softcap;
    double ds = 0.0, big = 0.0;
    for (int32_t p = first; p <= pos; p++) {
        const float *k = s->seen_k + (s->start[seq] + p) * s->ldk + kvh * kd;
        double acc = 0.0, size = 0.0;
        for (int32_t d = 0; d < kd; d++) {
            double t = (double)q[d] * (double)k[d];
            acc += t;
            size += fabs(t);
        }
        acc *= scale;
        score[p] = cap != 0.0 ? cap * tanh(acc / cap) : acc;
        ds = fmax(ds, (4.0 * sqrt(kd) + 6.0) * CF_U * scale * size + 4.0 * CF_U * cap);
        top = fmax(top, score[p]);
    }
    for (int32_t d = 0; d < vd; d++)
        want[d] = 0.0;
    for (int32_t p = first; p <= pos; p++) {
        const float *v = s->seen_v + (s->start[seq] + p) * s->ldv + kvh * vd;
        double e = exp(score[p] - top);
        sum += e;
        for (int32_t d = 0; d < vd; d++) {
            double x = (double)v[d];
            want[d] += e * x;
            big = fmax(big, fabs(x));
        }
    }
    for (int32_t d = 0; d < vd; d++) {
        want[d] /= sum;
        bound[d] = big * (2.0 * ds + (64.0 + (pos - first) / 256.0) * CF_U);
    }
}

static void one(cf *c, cf_scene *s, float spread)
{
    cf_case(c, "%d rows to position %d, heads %d/%d, widths %d/%d, blocks of %d, window %d, cap %g",
            s->n_seqs, s->total[s->n_seqs - 1], s->s.heads, s->s.kv_heads, s->s.k_dim, s->s.v_dim,
            s->s.block_tokens, s->s.window, (double)s->s.softcap);
    if (!cf_scene_make(c, s))
        return;
    int64_t cols = (int64_t)s->s.heads * s->s.v_dim, ldo = cols + s->n_seqs % 3;
    int64_t ldq = (int64_t)s->s.heads * s->s.k_dim + 1;
    float *q = cf_rand(c, s->n_rows * ldq, spread);
    float *got = cf_out(c, s->n_rows * ldo), *ref = cf_out(c, s->n_rows * ldo);
    size_t bytes = (size_t)(s->n_rows * cols) * sizeof(double);
    double *want = cf_host(c, bytes), *bound = cf_host(c, bytes);
    double *score = cf_host(c, (size_t)s->n_tokens * sizeof(double));
    if (c->no_mem)
        return;
    for (int32_t seq = 0; seq < s->n_seqs; seq++) {
        for (int32_t r = s->rows.seq_row[seq]; r < s->rows.seq_row[seq + 1]; r++) {
            for (int32_t h = 0; h < s->s.heads; h++)
                head_f64(s, seq, s->rows.pos[r], h, q + r * ldq + h * s->s.k_dim, score,
                         want + r * cols + h * s->s.v_dim, bound + r * cols + h * s->s.v_dim);
        }
    }
    if (!run(c, &c->dut, s, q, ldq, ldo, got) || (c->bits && !run(c, &c->ref, s, q, ldq, ldo, ref)))
        return;
    cf_judge(c, &(cf_cmp){.got = got,
                          .ref = c->bits ? ref : NULL,
                          .want = want,
                          .bound = bound,
                          .rows = s->n_rows,
                          .cols = cols,
                          .ld = ldo});
}

typedef struct lengths {
    int32_t n, total[CF_SEQS], fresh[CF_SEQS];
} lengths;

static const lengths mixes[] = {
    {4, {1, 8, 300, 513}, {1, 3, 1, 2}}, /* decode rows and short chunks */
    {2, {40, 700}, {40, 5}},             /* a prompt beside a chunk */
    {3, {17, 256, 257}, {16, 2, 2}},     /* around a segment's end */
    {1, {290}, {130}},                   /* one long chunk */
    {2, {2100, 1300}, {1, 3}},           /* many segments */
};

static const cf_shape shapes[] = {
    {9, 3, 64, 64, 16, 0, 0.0f},    {4, 1, 256, 256, 16, 100, 0.0f}, {14, 2, 64, 64, 32, 0, 0.0f},
    {12, 2, 128, 128, 16, 0, 0.0f}, {2, 2, 80, 80, 1, 0, 0.0f},      {3, 1, 33, 17, 3, 50, 0.0f},
    {8, 8, 96, 96, 256, 0, 50.0f},  {4, 2, 192, 128, 64, 64, 30.0f}, {1, 1, 8, 8, 100, 1, 0.0f},
    {5, 5, 16, 48, 7, 0, 0.0f},     {6, 3, 40, 40, 16, 257, 0.0f},   {7, 1, 64, 64, 48, 0, 0.0f},
};

static void attention(cf *c, hy_dtype value, hy_dtype type)
{
    hy_op_query q = {.op = HY_OP_ATTENTION,
                     .kv_value = value,
                     .kv_type = type,
                     .k_dim = 64,
                     .v_dim = 64,
                     .block_tokens = 16};
    if (!cf_group(c, &q, "%s in %s", hy_dtype_name(value), hy_dtype_name(type)))
        return;
    for (size_t i = 0; i < HY_COUNTOF(shapes); i++) {
        for (size_t j = 0; j < HY_COUNTOF(mixes); j++) {
            if ((c->quick && (i + j) % 4 != 0) || (j >= 3 && i > 2))
                continue;
            cf_scene s = {.s = shapes[i], .value = value, .type = type, .n_seqs = mixes[j].n};
            memcpy(s.total, mixes[j].total, sizeof(s.total));
            memcpy(s.fresh, mixes[j].fresh, sizeof(s.fresh));
            one(c, &s, i % 3 == 2 ? 8.0f : 1.0f); /* flat and peaked softmax */
        }
    }
    cf_group_end(c);
}

void cf_cache(cf *c)
{
    static const hy_dtype pairs[][2] = {{HY_F16, HY_F16},
                                        {HY_F32, HY_F32},
                                        {HY_BF16, HY_BF16},
                                        {HY_F16, HY_F32},
                                        {HY_BF16, HY_F32}};
    for (size_t i = 0; i < HY_COUNTOF(pairs); i++)
        cf_kv_write(c, pairs[i][0], pairs[i][1]);
    for (size_t i = 0; i < HY_COUNTOF(pairs); i++)
        attention(c, pairs[i][0], pairs[i][1]);
    for (size_t i = 0; i < HY_COUNTOF(pairs); i++)
        cf_kv_wire(c, pairs[i][0], pairs[i][1]);
}
