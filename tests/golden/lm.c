/* SPDX-License-Identifier: Apache-2.0
 *
 * See lm.h.
 *
 * Thread: one.  Owner: lm_close.
 */
#include "tests/golden/lm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t or_default(int32_t v, int32_t def)
{
    return v > 0 ? v : def;
}

static hy_status open_all(const char *path, lm *l)
{
    hy_dev_opts d = {.backend = l->o.backend != NULL ? l->o.backend : "cpu",
                     .n_threads = l->o.threads,
                     .isa = l->o.isa,
                     .kv = l->o.dev_kv};
    hy_model_opts mo = {.act = l->o.act};
    HY_TRY(hy_dev_open(&d, &l->dev));
    HY_TRY(hy_model_load(path, l->dev, &mo, &l->model));
    l->stride = (l->o.context + l->o.block_tokens - 1) / l->o.block_tokens;
    size_t per = (size_t)l->stride * (size_t)l->o.max_seqs;
    l->tables = calloc(per * (size_t)l->model->n_groups, sizeof(int32_t));
    if (l->tables == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for block tables");
    for (int32_t g = 0; g < l->model->n_groups; g++) {
        l->n_blocks[g] = (int32_t)per;
        /* scattered: neighbours in a sequence are no neighbours in the pool */
        for (size_t i = 0; i < per; i++)
            l->tables[(size_t)g * per + i] = (int32_t)(per - 1 - i);
    }
    hy_exec_opts eo = {.kv_value = l->o.kv,
                       .kv_storage = l->o.kv,
                       .block_tokens = l->o.block_tokens,
                       .n_blocks = l->n_blocks,
                       .max_rows = l->o.max_rows,
                       .max_seqs = l->o.max_seqs,
                       .max_logits = or_default(l->o.max_logits, l->o.max_rows),
                       .context = l->o.context,
                       .act = l->o.act};
    return hy_exec_create(l->model, &eo, &l->exec);
}

hy_status lm_open(const char *path, const lm_opts *o, lm *l)
{
    memset(l, 0, sizeof(*l));
    l->o = *o;
    l->o.threads = or_default(o->threads, 1);
    l->o.block_tokens = or_default(o->block_tokens, 16);
    l->o.context = or_default(o->context, 512);
    l->o.max_rows = or_default(o->max_rows, 64);
    l->o.max_seqs = or_default(o->max_seqs, 1);
    hy_status st = open_all(path, l);
    if (st < 0)
        lm_close(l);
    return st;
}

void lm_close(lm *l)
{
    hy_exec_destroy(l->exec);
    hy_model_destroy(l->model);
    if (l->dev != NULL)
        hy_dev_close(l->dev);
    free(l->tables);
    memset(l, 0, sizeof(*l));
}

hy_status lm_step(lm *l, const lm_part *parts, int32_t n_parts)
{
    enum { ROWS = 4096, SEQS = 64 };
    static int32_t ids[ROWS], pos[ROWS], seq_row[SEQS + 1], tab[8][SEQS * 4096];
    static hy_batch_seq seqs[SEQS];
    hy_block_table bt[8];
    int32_t n = 0;
    memset(seqs, 0, sizeof(seqs));
    HY_ASSERT(n_parts <= SEQS && l->stride <= 4096);
    for (int32_t i = 0; i < n_parts; i++) {
        const lm_part *p = &parts[i];
        seq_row[i] = n;
        HY_ASSERT(n + p->n <= ROWS);
        int32_t skip = p->logits_from > p->from ? p->logits_from - p->from : 0;
        seqs[i].prompt_lp_first = skip < p->n ? n + skip : -1;
        seqs[i].prompt_lp_n = skip < p->n ? p->n - skip : 0;
        seqs[i].targets = p->ids + p->from; /* any valid token: only logits are read */
        seqs[i].rope_long = p->rope_long;
        for (int32_t k = 0; k < p->n; k++, n++) {
            ids[n] = p->ids[p->from + k];
            pos[n] = p->from + k;
        }
        for (int32_t g = 0; g < l->model->n_groups; g++)
            memcpy(&tab[g][i * l->stride],
                   l->tables +
                       ((size_t)g * (size_t)l->o.max_seqs + (size_t)p->slot) * (size_t)l->stride,
                   sizeof(int32_t) * (size_t)l->stride);
    }
    seq_row[n_parts] = n;
    for (int32_t g = 0; g < l->model->n_groups; g++)
        bt[g] = (hy_block_table){tab[g], l->stride};
    hy_batch b = {.n_groups = l->model->n_groups, .bt = bt, .seqs = seqs};
    b.rows = (hy_rows){.n = n, .n_seqs = n_parts, .ids = ids, .pos = pos, .seq_row = seq_row};
    HY_TRY(hy_exec_step(l->exec, &b));
    for (int32_t i = 0; i < n_parts; i++)
        HY_TRY(seqs[i].status);
    return HY_OK;
}

hy_status lm_run(lm *l, int32_t slot, const int32_t *ids, int32_t n, int32_t chunk, int32_t first,
                 lm_row_fn fn, void *arg)
{
    for (int32_t at = 0; at < n; at += chunk) {
        lm_part p = {.slot = slot,
                     .ids = ids,
                     .from = at,
                     .n = n - at < chunk ? n - at : chunk,
                     .logits_from = first};
        HY_TRY(lm_step(l, &p, 1));
        for (int32_t i = 0; fn != NULL && i < p.n; i++)
            if (at + i >= first)
                fn(arg, at + i, hy_exec_logits(l->exec, i));
    }
    return HY_OK;
}

double lm_lse(const float *v, int32_t n)
{
    double m = v[0], s = 0.0;
    for (int32_t i = 1; i < n; i++)
        m = v[i] > m ? v[i] : m;
    for (int32_t i = 0; i < n; i++)
        s += exp(v[i] - m);
    return m + log(s);
}

int32_t lm_argmax(const float *v, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (v[i] > v[best])
            best = i;
    return best;
}

json_t *lm_read_jsonl(const char *path)
{
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return NULL;
    json_t *a = json_array();
    for (;;) {
        json_error_t err;
        json_t *v = json_loadf(f, JSON_DISABLE_EOF_CHECK, &err);
        if (v == NULL)
            break;
        json_array_append_new(a, v);
    }
    fclose(f);
    return a;
}

int32_t *lm_ids(json_t *a, size_t *n_out)
{
    size_t n = json_array_size(a);
    int32_t *v = calloc(n + 1, sizeof(*v));
    for (size_t i = 0; v != NULL && i < n; i++)
        v[i] = (int32_t)json_integer_value(json_array_get(a, i));
    *n_out = n;
    return v;
}

const char *lm_source_dir(void)
{
    const char *d = getenv("HY_SOURCE_DIR");
    return d != NULL ? d : ".";
}

typedef struct scoring {
    const int32_t *ids; /* prompt, then golden */
    int32_t n_prompt, n_golden, vocab;
    json_t *line;
    double margin;
    lm_score *s;
    lm_row_fn extra;
    void *arg;
} scoring;

static void score_row(void *arg, int32_t pos, const float *logits)
{
    scoring *c = arg;
    int32_t k = pos - (c->n_prompt - 1);
    if (k < 0 || k >= c->n_golden)
        return;
    int32_t want = c->ids[c->n_prompt + k];
    double lp = logits[want] - lm_lse(logits, c->vocab);
    double gold = json_number_value(json_array_get(json_object_get(c->line, "lp"), (size_t)k));
    json_t *top = json_array_get(json_object_get(c->line, "top"), (size_t)k);
    double m = json_number_value(json_array_get(json_array_get(top, 0), 1)) -
               json_number_value(json_array_get(json_array_get(top, 1), 1));
    double d = fabs(lp - gold);
    c->s->sum += d;
    c->s->max = d > c->s->max || isnan(d) ? d : c->s->max;
    c->s->n++;
    if (lm_argmax(logits, c->vocab) != want) {
        c->s->top1_miss++;
        c->s->worst_margin = m > c->s->worst_margin ? m : c->s->worst_margin;
        c->s->argmax_wrong += m >= c->margin;
    }
    if (c->extra != NULL)
        c->extra(c->arg, k, logits);
}

hy_status lm_generate(lm *l, json_t *line, double margin, lm_score *s, lm_row_fn extra, void *arg)
{
    size_t np = 0, ng = 0;
    int32_t *p = lm_ids(json_object_get(line, "ids"), &np);
    int32_t *g = lm_ids(json_object_get(line, "golden"), &ng);
    int32_t *all = p == NULL ? NULL : realloc(p, sizeof(*p) * (np + ng + 1));
    hy_status st = HY_E_NOMEM;
    if (all != NULL && g != NULL) {
        memcpy(all + np, g, sizeof(*g) * ng);
        scoring c = {all, (int32_t)np, (int32_t)ng, l->model->cfg.vocab, line, margin,
                     s,   extra,       arg};
        st = lm_run(l, 0, all, (int32_t)(np + ng) - 1, l->o.max_rows, (int32_t)np - 1, score_row,
                    &c);
    }
    free(all);
    free(g);
    return st;
}
