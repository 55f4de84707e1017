/* SPDX-License-Identifier: Apache-2.0
 *
 * See drift.h. Both backends go through the text in step, chunk by chunk, so that only one chunk's
 * logits and hidden states are kept.
 *
 * Thread: main.  Owner: as in drift.h.
 */
#include "tools/cli/drift.h"

#include "core/node/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK = 16, GROUPS = 8 };

/* One run of the model on a device. */
typedef struct run {
    const hy_model *model;
    hy_exec *exec;
    int32_t *table, *pos, n_blocks[GROUPS];
    float *logits;     /* [chunk][vocab] */
    float *hidden;     /* [layers + 1][chunk][dim] */
    int32_t chunk, at; /* at: rows of this chunk that are done */
    double seconds;
} run;

typedef struct side {
    hy_dev *dev;
    hy_model *model;
    run run, control;
} side;

/* ---- comparing ---- */

static double lse_of(const float *v, int32_t n, int32_t *best_out)
{
    int32_t best = 0;
    double sum = 0.0;
    for (int32_t i = 1; i < n; i++)
        best = v[i] > v[best] ? i : best;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)v[i] - (double)v[best]);
    *best_out = best;
    return (double)v[best] + log(sum);
}

void hy_drift_compare(const float *a, const float *b, int32_t vocab, int32_t target,
                      hy_drift_row *out)
{
    int32_t best_a = 0, best_b = 0;
    const double la = lse_of(a, vocab, &best_a), lb = lse_of(b, vocab, &best_b);
    memset(out, 0, sizeof(*out));
    out->same_top = best_a == best_b;
    out->same_bits = memcmp(a, b, sizeof(float) * (size_t)vocab) == 0;
    if (target >= 0) {
        out->lp_a = (double)a[target] - la;
        out->lp_b = (double)b[target] - lb;
    }
    if (out->same_bits)
        return; /* 0, not what rounding leaves of it */
    for (int32_t i = 0; i < vocab; i++) {
        const double x = (double)a[i] - la;
        out->kl += exp(x) * (x - ((double)b[i] - lb));
    }
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double hy_drift_percentile(double *v, int32_t n, double p)
{
    if (n < 1)
        return 0.0;
    qsort(v, (size_t)n, sizeof(*v), by_value);
    const double at = p / 100.0 * (double)(n - 1);
    const int32_t i = (int32_t)floor(at);
    return i + 1 < n ? v[i] + (at - (double)i) * (v[i + 1] - v[i]) : v[n - 1];
}

double hy_drift_relative(const hy_drift_layer *l)
{
    return l->diff2 > 0.0 ? sqrt(l->diff2 / l->ref2) : 0.0;
}

static hy_status rows_init(hy_drift_rows *r, int32_t n)
{
    r->kl = calloc((size_t)n, sizeof(*r->kl));
    return r->kl != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory");
}

static double larger(double a, double b)
{
    return b > a || isnan(b) ? b : a;
}

static void add_row(hy_drift_rows *r, const float *a, const float *b, int32_t vocab, int32_t target)
{
    hy_drift_row x;
    hy_drift_compare(a, b, vocab, target, &x);
    r->kl[r->n++] = x.kl;
    r->kl_sum += x.kl;
    r->kl_max = larger(r->kl_max, fabs(x.kl));
    r->same_top += x.same_top;
    r->same_bits += x.same_bits;
    if (target < 0)
        return;
    r->n_scored++;
    r->lp_sum += fabs(x.lp_a - x.lp_b);
    r->lp_max = larger(r->lp_max, fabs(x.lp_a - x.lp_b));
    r->nll_a -= x.lp_a;
    r->nll_b -= x.lp_b;
}

static void add_hidden(hy_drift_layer *l, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double d = (double)a[i] - (double)b[i];
        l->diff2 += d * d;
        l->ref2 += (double)a[i] * (double)a[i];
        l->diff_max = larger(l->diff_max, fabs(d));
        l->ref_max = larger(l->ref_max, fabs((double)a[i]));
    }
}

/* ---- running ---- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *hidden_at(const run *r, int32_t layer, int32_t row)
{
    const size_t dim = (size_t)r->model->cfg.dim;
    return r->hidden + ((size_t)(layer + 1) * (size_t)r->chunk + (size_t)row) * dim;
}

/* What leaves a layer is kept. */
static void on_step(void *arg, const hy_step *s, const float *x, int32_t rows)
{
    const run *r = arg;
    if (s->kind == HY_STEP_ATTN_IN || s->kind == HY_STEP_ATTN_OUT || s->kind == HY_STEP_HEAD)
        return;
    memcpy(hidden_at(r, s->layer, r->at), x,
           sizeof(float) * (size_t)rows * (size_t)r->model->cfg.dim);
}

static hy_status run_open(run *r, hy_model *m, const hy_exec_opts *proto, int32_t blocks)
{
    const hy_model_cfg *c = &m->cfg;
    hy_exec_opts o = *proto;
    r->model = m;
    r->chunk = o.max_rows;
    if (m->n_groups > GROUPS)
        return hy_fail(HY_E_LIMIT, "the model has %d cache groups", m->n_groups);
    for (int32_t g = 0; g < m->n_groups; g++)
        r->n_blocks[g] = blocks;
    o.n_blocks = r->n_blocks;
    r->table = calloc((size_t)blocks, sizeof(*r->table));
    r->pos = calloc((size_t)r->chunk, sizeof(*r->pos));
    r->logits = calloc((size_t)r->chunk * (size_t)c->vocab, sizeof(float));
    r->hidden =
        calloc((size_t)(c->n_layers + 1) * (size_t)r->chunk * (size_t)c->dim, sizeof(float));
    if (r->table == NULL || r->pos == NULL || r->logits == NULL || r->hidden == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    for (int32_t i = 0; i < blocks; i++)
        r->table[i] = i;
    HY_TRY(hy_exec_create(m, &o, &r->exec));
    return hy_exec_set_probe(r->exec, on_step, r);
}

static void run_close(run *r)
{
    hy_exec_destroy(r->exec);
    free(r->table);
    free(r->pos);
    free(r->logits);
    free(r->hidden);
}

/* Rows [from, from + n) of ids as one step; they are rows r->at and on of the chunk. */
static hy_status run_step(run *r, const int32_t *ids, int32_t from, int32_t n)
{
    const size_t vocab = (size_t)r->model->cfg.vocab;
    const int32_t seq_row[2] = {0, n};
    hy_block_table bt[GROUPS];
    for (int32_t i = 0; i < n; i++)
        r->pos[i] = from + i;
    for (int32_t g = 0; g < r->model->n_groups; g++)
        bt[g] = (hy_block_table){r->table, r->n_blocks[0]};
    hy_batch_seq seq = {.req_id = 1, .prompt_lp_n = n, .targets = ids + from};
    hy_batch b = {
        .rows = {.n = n, .n_seqs = 1, .ids = ids + from, .pos = r->pos, .seq_row = seq_row},
        .n_groups = r->model->n_groups,
        .bt = bt,
        .seqs = &seq};
    const double t = seconds();
    HY_TRY(hy_exec_step(r->exec, &b));
    r->seconds += seconds() - t;
    HY_TRY(seq.status);
    for (int32_t i = 0; i < n; i++) {
        const float *row = hy_exec_logits(r->exec, i);
        if (row == NULL)
            return hy_fail(HY_E_DEVICE, "the logits of row %d did not come", i);
        memcpy(r->logits + (size_t)(r->at + i) * vocab, row, sizeof(float) * vocab);
    }
    r->at += n;
    return HY_OK;
}

static hy_status side_open(side *s, const char *spec, const hy_drift_opts *o, hy_drift_side *out)
{
    const hy_conf *c = o->conf;
    const bool f32 = strcmp(hy_conf_str(c, "engine", "activations"), "f32") == 0;
    hy_model_opts mo = {.act = f32 ? HY_ACT_F32 : HY_ACT_INT8};
    hy_exec_opts eo = {.block_tokens = BLOCK,
                       .max_rows = o->chunk,
                       .max_seqs = 1,
                       .max_logits = o->chunk,
                       .context = o->n,
                       .act = mo.act};
    hy_dev_props p;
    memset(&p, 0, sizeof(p));
    HY_TRY(hy_dtype_parse(hy_conf_str(c, "kv", "type"), &eo.kv_value));
    eo.kv_storage = eo.kv_value;
    HY_TRY(hy_node_open_spec(c, spec, &s->dev));
    HY_TRY(s->dev->ops->props(s->dev, &p));
    snprintf(out->device, sizeof(out->device), "%s", p.name);
    snprintf(out->isa, sizeof(out->isa), "%s", p.isa);
    out->exact = p.exact;
    HY_TRY(hy_model_load(o->path, s->dev, &mo, &s->model));
    const int32_t blocks = (o->n + BLOCK - 1) / BLOCK;
    HY_TRY(run_open(&s->run, s->model, &eo, blocks));
    if (!o->control)
        return HY_OK;
    HY_TRY(rows_init(&out->control, o->n));
    return run_open(&s->control, s->model, &eo, blocks);
}

static void side_close(side *s)
{
    run_close(&s->run);
    run_close(&s->control);
    hy_model_destroy(s->model);
    hy_dev_close(s->dev);
}

static int32_t target_of(const hy_drift_opts *o, int32_t pos)
{
    return pos + 1 < o->n ? o->ids[pos + 1] : -1;
}

/* The same chunk on the same device, in two steps where it promises that this changes nothing. */
static hy_status run_control(side *s, const hy_drift_opts *o, int32_t from, int32_t n,
                             hy_drift_side *out)
{
    const int32_t vocab = s->model->cfg.vocab, dim = s->model->cfg.dim;
    const int32_t first = out->exact && n > 1 ? n * 3 / 8 + 1 : n;
    s->control.at = 0;
    HY_TRY(run_step(&s->control, o->ids, from, first));
    if (first < n)
        HY_TRY(run_step(&s->control, o->ids, from + first, n - first));
    for (int32_t i = 0; i < n; i++) {
        const size_t at = (size_t)i * (size_t)vocab;
        add_row(&out->control, s->run.logits + at, s->control.logits + at, vocab,
                target_of(o, from + i));
        for (int32_t l = -1; l < s->model->cfg.n_layers; l++)
            out->control_layers += memcmp(hidden_at(&s->run, l, i), hidden_at(&s->control, l, i),
                                          sizeof(float) * (size_t)dim) != 0;
    }
    return HY_OK;
}

static hy_status run_chunk(side *a, side *b, const hy_drift_opts *o, int32_t from, int32_t n,
                           hy_drift *d)
{
    a->run.at = b->run.at = 0;
    HY_TRY(run_step(&a->run, o->ids, from, n));
    HY_TRY(run_step(&b->run, o->ids, from, n));
    for (int32_t i = 0; i < n; i++) {
        const size_t at = (size_t)i * (size_t)d->vocab;
        add_row(&d->rows, a->run.logits + at, b->run.logits + at, d->vocab, target_of(o, from + i));
    }
    for (int32_t l = 0; l < d->n_layers; l++)
        add_hidden(&d->layers[l], hidden_at(&a->run, l - 1, 0), hidden_at(&b->run, l - 1, 0),
                   (size_t)n * (size_t)a->model->cfg.dim);
    if (!o->control)
        return HY_OK;
    HY_TRY(run_control(a, o, from, n, &d->a));
    return run_control(b, o, from, n, &d->b);
}

static hy_status run_all(side *a, side *b, const hy_drift_opts *o, hy_drift *d)
{
    if (o->n < 2 || o->chunk < 1)
        return hy_fail(HY_E_INVAL, "at least two tokens are needed");
    HY_TRY(side_open(a, o->a, o, &d->a));
    HY_TRY(side_open(b, o->b, o, &d->b));
    const hy_model_cfg *c = &a->model->cfg;
    for (int32_t i = 0; i < o->n; i++)
        if (o->ids[i] < 0 || o->ids[i] >= c->vocab)
            return hy_fail(HY_E_INVAL, "token %d is outside the vocabulary of %d", o->ids[i],
                           c->vocab);
    d->vocab = c->vocab;
    d->n_layers = c->n_layers + 1;
    snprintf(d->model, sizeof(d->model), "%s, %.0f M parameters, %s", c->arch,
             (double)c->n_params / 1e6, c->quant);
    d->layers = calloc((size_t)d->n_layers, sizeof(*d->layers));
    if (d->layers == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    for (int32_t l = 0; l < d->n_layers; l++)
        d->layers[l].layer = l - 1;
    HY_TRY(rows_init(&d->rows, o->n));
    for (int32_t from = 0; from < o->n; from += o->chunk) {
        const int32_t n = o->n - from < o->chunk ? o->n - from : o->chunk;
        HY_TRY(run_chunk(a, b, o, from, n, d));
        if (o->progress != NULL)
            o->progress(o->arg, from + n, o->n);
    }
    d->a.seconds = a->run.seconds;
    d->b.seconds = b->run.seconds;
    return HY_OK;
}

hy_status hy_drift_run(const hy_drift_opts *o, hy_drift *out)
{
    side a = {0}, b = {0};
    memset(out, 0, sizeof(*out));
    const hy_status st = run_all(&a, &b, o, out);
    side_close(&a);
    side_close(&b);
    return st;
}

void hy_drift_fini(hy_drift *d)
{
    free(d->rows.kl);
    free(d->a.control.kl);
    free(d->b.control.kl);
    free(d->layers);
    memset(d, 0, sizeof(*d));
}
