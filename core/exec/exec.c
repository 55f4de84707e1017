/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a planned step: rotary tables, the model's steps through the backend's composites, then the
 * logits of the sampled rows in turns, and the sampler on each.
 *
 * Thread: exec stage only, after create.  Owner: hy_exec owns device memory and result stores.
 */
#include "core/exec/exec.h"

#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/connector/connector.h"
#include "core/exec/exec_int.h"
#include "core/exec/sample.h"
#include "core/model/rope.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- create ---- */

static hy_kv_layout layout_of(const hy_model *m, int32_t g, const hy_exec_opts *o)
{
    const hy_kv_group *k = &m->groups[g];
    hy_kv_layout l = {.value_type = o->kv_value,
                      .type = o->kv_storage,
                      .n_layers = k->n_layers,
                      .n_heads = k->n_heads,
                      .block_tokens = o->block_tokens};
    l.k.width = k->k_dim;
    l.v.width = k->v_dim;
    return l;
}

hy_status hy_exec_block_bytes(const hy_model *m, int32_t g, const hy_exec_opts *o, size_t *out)
{
    if (g < 0 || g >= m->n_groups || o->block_tokens < 1)
        return hy_fail(HY_E_INVAL, "KV group %d or block of %d tokens does not exist", g,
                       o->block_tokens);
    hy_kv_layout l = layout_of(m, g, o);
    HY_TRY(m->dev->math->kv_layout(m->dev, &l));
    *out = (size_t)l.bytes_per_block;
    return HY_OK;
}

static hy_status check_kv_ops(const hy_model *m, const hy_exec_opts *o)
{
    static const hy_op ops[] = {HY_OP_KV_WRITE, HY_OP_ATTENTION};
    for (int32_t g = 0; g < m->n_groups; g++) {
        for (size_t i = 0; i < HY_COUNTOF(ops); i++) {
            hy_op_query q = {.op = ops[i],
                             .kv_type = o->kv_storage,
                             .kv_value = o->kv_value,
                             .k_dim = m->groups[g].k_dim,
                             .v_dim = m->groups[g].v_dim,
                             .block_tokens = o->block_tokens};
            if (!m->dev->math->supports(m->dev, &q))
                return hy_fail(HY_E_UNSUPPORTED,
                               "this backend cannot do %s with a KV cache of %s stored as %s, "
                               "heads of %d and blocks of %d tokens: choose another [kv] type",
                               hy_op_name(ops[i]), hy_dtype_name(o->kv_value),
                               hy_dtype_name(o->kv_storage), q.k_dim, o->block_tokens);
        }
    }
    return HY_OK;
}

/* Device memory that destroy frees. */
static hy_status dev_alloc(hy_exec *e, size_t bytes, const char *what, void **out)
{
    HY_ASSERT(e->n_mem < HY_COUNTOF(e->mem));
    hy_status st = e->dev->ops->alloc(e->dev, bytes != 0 ? bytes : 1, out);
    if (st < 0)
        return hy_fail_in(st, "%s of %zu MiB does not fit: ", what, bytes >> 20);
    e->mem[e->n_mem].p = *out;
    e->mem[e->n_mem++].bytes = bytes != 0 ? bytes : 1;
    return HY_OK;
}

static hy_status alloc_pools(hy_exec *e)
{
    for (int32_t g = 0; g < e->m->n_groups; g++) {
        hy_kv_pool *p = &e->pools[g];
        p->layout = layout_of(e->m, g, &e->o);
        p->n_blocks = e->o.n_blocks[g];
        HY_TRY(e->dev->math->kv_layout(e->dev, &p->layout));
        char what[64];
        snprintf(what, sizeof(what), "KV pool of %d blocks", p->n_blocks);
        if (p->n_blocks < 1)
            return hy_fail(HY_E_INVAL, "a KV pool needs at least one block");
        HY_TRY(
            dev_alloc(e, (size_t)p->layout.bytes_per_block * (size_t)p->n_blocks, what, &p->base));
        hy_connector *c = e->o.connector;
        if (c != NULL)
            HY_TRY(c->worker.register_kv(c->worker_self, g, p));
    }
    return HY_OK;
}

static hy_status alloc_work(hy_exec *e)
{
    const hy_model_cfg *c = &e->m->cfg;
    size_t rows = (size_t)e->o.max_rows, f = sizeof(float);
    hy_ws_need need = {.rows = e->o.max_rows,
                       .dim = c->dim,
                       .heads = c->heads,
                       .k_dim = c->k_dim,
                       .v_dim = c->v_dim,
                       .kv_heads = c->kv_heads,
                       .ffn = c->ffn,
                       .max_ctx = e->o.context};
    e->ws.bytes = hy_ws_bytes(&need);
    HY_TRY(dev_alloc(e, e->ws.bytes, "scratch", &e->ws.p));
    void *p = NULL;
    HY_TRY(dev_alloc(e, rows * (size_t)c->dim * f, "activations", &p));
    e->x = p;
    HY_TRY(dev_alloc(e, rows * (size_t)c->heads * (size_t)c->k_dim * f, "queries", &p));
    e->q = p;
    HY_TRY(dev_alloc(e, (size_t)e->o.max_logits * (size_t)c->vocab * f, "logits", &p));
    e->logits = p;
    for (int32_t r = 0; r < e->m->n_ropes; r++) {
        size_t n = rows * (size_t)(e->m->ropes[r].rot / 2) * f;
        HY_TRY(dev_alloc(e, n, "rotary table", &p));
        e->rope[r].cos = p;
        HY_TRY(dev_alloc(e, n, "rotary table", &p));
        e->rope[r].sin = p;
    }
    return HY_OK;
}

static hy_status alloc_host(hy_exec *e)
{
    size_t jobs = (size_t)e->o.max_rows + (size_t)e->o.max_seqs, vocab = (size_t)e->m->cfg.vocab;
    size_t half = 1;
    for (int32_t r = 0; r < e->m->n_ropes; r++)
        half = (size_t)e->m->ropes[r].rot / 2 > half ? (size_t)e->m->ropes[r].rot / 2 : half;
    e->jobs = hy_calloc(jobs, sizeof(e->jobs[0]));
    e->head_rows = hy_calloc((size_t)e->o.max_logits, sizeof(int32_t));
    e->best = hy_calloc((size_t)e->o.max_logits, sizeof(int32_t));
    e->best_value = hy_calloc((size_t)e->o.max_logits, sizeof(float));
    e->lse = hy_calloc((size_t)e->o.max_logits, sizeof(float));
    e->sample_ws = hy_sample_ws_create(e->m->cfg.vocab);
    bool ok = e->jobs != NULL && e->head_rows != NULL && e->best != NULL && e->best_value != NULL &&
              e->lse != NULL && e->sample_ws != NULL;
    if (!e->host_visible) {
        e->stage_cos = hy_calloc((size_t)e->o.max_rows * half, sizeof(float));
        e->stage_sin = hy_calloc((size_t)e->o.max_rows * half, sizeof(float));
        e->host_logits = hy_calloc((size_t)e->o.max_logits * vocab, sizeof(float));
        ok = ok && e->stage_cos != NULL && e->stage_sin != NULL && e->host_logits != NULL;
    }
    for (int i = 0; i < HY_EXEC_STORES; i++) {
        hy_exec_store *s = &e->stores[i];
        s->ids = hy_calloc(jobs * HY_MAX_TOP, sizeof(int32_t));
        s->lps = hy_calloc(jobs * HY_MAX_TOP, sizeof(float));
        s->prompt = hy_calloc((size_t)e->o.max_rows, sizeof(hy_token_out));
        ok = ok && s->ids != NULL && s->lps != NULL && s->prompt != NULL;
    }
    return ok ? HY_OK : hy_fail(HY_E_NOMEM, "no memory for the executor's tables");
}

static hy_status create(hy_exec *e)
{
    const hy_exec_opts *o = &e->o;
    hy_dev_props props;
    memset(&props, 0, sizeof(props));
    if (o->max_rows < 1 || o->max_seqs < 1 || o->max_logits < 1 || o->context < 1)
        return hy_fail(
            HY_E_INVAL,
            "executor of %d rows, %d sequences, %d logits rows, context %d: each must be "
            "at least 1",
            o->max_rows, o->max_seqs, o->max_logits, o->context);
    if (e->m->n_groups > HY_EXEC_GROUPS || e->m->n_ropes > HY_EXEC_ROPES)
        return hy_fail(HY_E_LIMIT, "%d KV groups and %d rotary kinds are more than %d and %d",
                       e->m->n_groups, e->m->n_ropes, HY_EXEC_GROUPS, HY_EXEC_ROPES);
    HY_TRY(e->dev->ops->props(e->dev, &props));
    e->host_visible = props.host_visible;
    HY_TRY(check_kv_ops(e->m, o));
    HY_TRY(e->dev->ops->queue_create(e->dev, &e->queue));
    HY_TRY(alloc_pools(e));
    HY_TRY(alloc_work(e));
    return alloc_host(e);
}

hy_status hy_exec_create(hy_model *m, const hy_exec_opts *o, hy_exec **out)
{
    hy_exec *e = hy_calloc(1, sizeof(*e));
    if (e == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for an executor");
    e->m = m;
    e->dev = m->dev;
    e->o = *o;
    hy_status st = create(e);
    e->o.n_blocks = NULL; /* the caller's; the pools know */
    if (st < 0) {
        hy_exec_destroy(e);
        return st;
    }
    *out = e;
    return HY_OK;
}

void hy_exec_destroy(hy_exec *e)
{
    if (e == NULL)
        return;
    if (e->queue != NULL)
        e->dev->ops->queue_destroy(e->queue);
    for (size_t i = 0; i < e->n_mem; i++)
        e->dev->ops->free(e->dev, e->mem[i].p, e->mem[i].bytes);
    for (int i = 0; i < HY_EXEC_STORES; i++) {
        hy_free(e->stores[i].ids);
        hy_free(e->stores[i].lps);
        hy_free(e->stores[i].prompt);
    }
    hy_sample_ws_destroy(e->sample_ws);
    hy_free(e->jobs);
    hy_free(e->head_rows);
    hy_free(e->best);
    hy_free(e->best_value);
    hy_free(e->lse);
    hy_free(e->stage_cos);
    hy_free(e->stage_sin);
    hy_free(e->host_logits);
    hy_free(e);
}

/* ---- one step ---- */

static hy_status check_batch(const hy_exec *e, const hy_batch *b)
{
    const hy_rows *r = &b->rows;
    if (r->n < 1 || r->n > e->o.max_rows || r->n_seqs < 1 || r->n_seqs > e->o.max_seqs)
        return hy_fail(HY_E_INVAL, "a step of %d rows in %d sequences; at most %d and %d fit", r->n,
                       r->n_seqs, e->o.max_rows, e->o.max_seqs);
    if (b->n_groups != e->m->n_groups)
        return hy_fail(HY_E_INVAL, "a step with %d block tables for %d KV groups", b->n_groups,
                       e->m->n_groups);
    for (int32_t i = 0; i < r->n; i++) {
        if (r->ids[i] < 0 || r->ids[i] >= e->m->cfg.vocab)
            return hy_fail(HY_E_INVAL, "token id %d is outside the vocabulary of %d", r->ids[i],
                           e->m->cfg.vocab);
        if (r->pos[i] < 0 || r->pos[i] >= e->o.context)
            return hy_fail(HY_E_INVAL, "position %d is outside the context of %d", r->pos[i],
                           e->o.context);
    }
    return HY_OK;
}

static hy_status fill_ropes(hy_exec *e, const hy_batch *b)
{
    for (int32_t k = 0; k < e->m->n_ropes; k++) {
        const hy_rope_desc *d = &e->m->ropes[k];
        size_t half = (size_t)d->rot / 2, n = (size_t)b->rows.n * half * sizeof(float);
        float *c = e->host_visible ? e->rope[k].cos : e->stage_cos;
        float *s = e->host_visible ? e->rope[k].sin : e->stage_sin;
        for (int32_t i = 0; i < b->rows.n_seqs; i++) {
            bool lf = b->seqs[i].rope_long;
            for (int32_t r = b->rows.seq_row[i]; r < b->rows.seq_row[i + 1]; r++)
                hy_rope_angles(d, b->rows.pos[r], lf, c + (size_t)r * half, s + (size_t)r * half);
        }
        if (e->host_visible)
            continue;
        HY_TRY(e->dev->ops->copy(e->queue, e->rope[k].cos, c, n));
        HY_TRY(e->dev->ops->copy(e->queue, e->rope[k].sin, s, n));
        HY_TRY(e->dev->ops->queue_wait(e->queue)); /* the staging is used again */
    }
    return HY_OK;
}

static hy_status run_attn_in(hy_exec *e, const hy_step *s, const hy_batch *b)
{
    hy_attn_in a = s->u.attn_in;
    a.x = e->x;
    a.ldx = a.dim;
    if (s->rope >= 0) {
        const hy_rope_desc *d = &e->m->ropes[s->rope];
        a.rope = (hy_rope_table){d->kind, d->rot, e->rope[s->rope].cos, e->rope[s->rope].sin};
    }
    a.pool = &e->pools[s->group];
    a.rows = &b->rows;
    a.bt = b->bt[s->group];
    a.q = e->q;
    a.ws = e->ws;
    return e->dev->math->attn_in(e->queue, &a);
}

static hy_status run_attn_out(hy_exec *e, const hy_step *s, const hy_batch *b)
{
    hy_attn_out a = s->u.attn_out;
    a.attn.pool = &e->pools[s->group];
    a.attn.rows = &b->rows;
    a.attn.bt = b->bt[s->group];
    a.attn.q = e->q;
    a.x = e->x;
    a.ldx = a.dim;
    a.ws = e->ws;
    return e->dev->math->attn_out(e->queue, &a);
}

static hy_status run_step(hy_exec *e, const hy_step *s, const hy_batch *b)
{
    if (s->kind == HY_STEP_EMBED) {
        hy_embed a = s->u.embed;
        a.ids = b->rows.ids;
        a.m = b->rows.n;
        a.y = e->x;
        a.ldy = e->m->cfg.dim;
        return e->dev->math->embed(e->queue, &a);
    }
    if (s->kind == HY_STEP_ATTN_IN)
        return run_attn_in(e, s, b);
    if (s->kind == HY_STEP_ATTN_OUT)
        return run_attn_out(e, s, b);
    if (s->kind == HY_STEP_FFN) {
        hy_ffn a = s->u.ffn;
        a.x = e->x;
        a.ldx = a.dim;
        a.ldn = a.dim;
        a.m = b->rows.n;
        a.ws = e->ws;
        return e->dev->math->ffn(e->queue, &a);
    }
    return hy_fail(HY_E_UNSUPPORTED, "step kind %d is not supported", (int)s->kind);
}

/* Rows that need logits, in order. */
static hy_status list_jobs(hy_exec *e, const hy_batch *b)
{
    e->n_jobs = 0;
    for (int32_t i = 0; i < b->rows.n_seqs; i++) {
        const hy_batch_seq *s = &b->seqs[i];
        int32_t lo = b->rows.seq_row[i], hi = b->rows.seq_row[i + 1];
        bool lp = s->prompt_lp_first >= 0 && s->prompt_lp_n > 0;
        if (lp && (s->prompt_lp_first < lo || s->prompt_lp_n > hi - s->prompt_lp_first))
            return hy_fail(HY_E_INVAL, "prompt rows %d..+%d lie outside their sequence",
                           s->prompt_lp_first, s->prompt_lp_n);
        for (int32_t k = 0; lp && k < s->prompt_lp_n; k++)
            e->jobs[e->n_jobs++] = (hy_exec_job){s->prompt_lp_first + k, i, k};
        if (s->sample && hi > lo)
            e->jobs[e->n_jobs++] = (hy_exec_job){hi - 1, i, -1};
    }
    return HY_OK;
}

static hy_status not_finite(const hy_batch_seq *s)
{
    hy_status st = hy_fail(HY_E_INVAL, "the model's logits hold no finite value");
    hy_warn("exec", "request %" PRIu64 ": %s", s->req_id, hy_fail_text());
    return st;
}

/* Whether a job is served by the device's top-1 alone. It depends on nothing else in the batch. */
static bool is_argmax(const hy_exec_job *job, const hy_batch_seq *s)
{
    return job->target < 0 && hy_sampler_is_argmax(s->sampler, s->out_pos);
}

/* One row's top-1 or logits to its sequence's result. k: row within the turn. */
static void finish_job(hy_exec *e, hy_batch *b, int32_t j, int32_t k, const float *logits)
{
    const hy_exec_job *job = &e->jobs[j];
    hy_batch_seq *s = &b->seqs[job->seq];
    hy_exec_store *store = &e->stores[e->store];
    int32_t *ids = store->ids + (size_t)j * HY_MAX_TOP;
    float *lps = store->lps + (size_t)j * HY_MAX_TOP;
    if (s->status < 0)
        return;
    if (is_argmax(job, s)) {
        if (!isfinite(e->best_value[k])) {
            s->status = not_finite(s);
            return;
        }
        memset(&s->out, 0, sizeof(s->out));
        s->token = s->out.id = e->best[k];
        return;
    }
    if (job->target >= 0) {
        int32_t top = s->prompt_lp_top < HY_MAX_TOP ? s->prompt_lp_top : HY_MAX_TOP;
        s->prompt_out = &store->prompt[s->prompt_lp_first];
        if (!isfinite(e->lse[k]))
            s->status = not_finite(s);
        else
            hy_sample_score(logits, e->lse[k], e->m->cfg.vocab, s->targets[job->target], top,
                            &store->prompt[job->row], ids, lps);
        return;
    }
    hy_status st =
        hy_sampler_draw(s->sampler, e->sample_ws, logits, e->lse[k], s->out_pos, &s->out, ids, lps);
    if (st < 0) {
        s->status = st;
        hy_warn("exec", "request %" PRIu64 ": %s", s->req_id, hy_fail_text());
        return;
    }
    s->token = s->out.id;
}

/* What the turn's jobs need of the device: top-1, log-sum-exp, and whether the host reads logits.
 */
static hy_status turn_stats(hy_exec *e, const hy_batch *b, int32_t from, int32_t n, bool *read_out)
{
    int64_t vocab = e->m->cfg.vocab;
    bool best = false, lse = false;
    *read_out = false;
    for (int32_t i = from; i < from + n; i++) {
        const hy_batch_seq *s = &b->seqs[e->jobs[i].seq];
        bool one = is_argmax(&e->jobs[i], s);
        best = best || one;
        *read_out = *read_out || !one;
        lse = lse || (!one && (e->jobs[i].target >= 0 || hy_sampler_wants_lse(s->sampler)));
    }
    hy_topk t = {.logits = e->logits,
                 .ld = vocab,
                 .m = n,
                 .n = vocab,
                 .k = 1,
                 .ids = e->best,
                 .values = e->best_value,
                 .lse = lse ? e->lse : NULL};
    return best || lse ? e->dev->math->topk(e->queue, &t) : HY_OK;
}

static hy_status run_head(hy_exec *e, const hy_step *step, hy_batch *b)
{
    int64_t vocab = e->m->cfg.vocab;
    for (int32_t from = 0; from < e->n_jobs; from += e->o.max_logits) {
        int32_t n = e->n_jobs - from < e->o.max_logits ? e->n_jobs - from : e->o.max_logits;
        for (int32_t i = 0; i < n; i++)
            e->head_rows[i] = e->jobs[from + i].row;
        hy_head a = step->u.head;
        a.x = e->x;
        a.ldx = a.dim;
        a.rows = e->head_rows;
        a.m = n;
        a.logits = e->logits;
        a.ldl = vocab;
        a.ws = e->ws;
        HY_TRY(e->dev->math->head(e->queue, &a));
        e->held_from = from;
        e->held_n = n;
        bool read = false;
        HY_TRY(turn_stats(e, b, from, n, &read));
        const float *host = e->logits;
        if (!e->host_visible && read) {
            host = e->host_logits;
            HY_TRY(e->dev->ops->copy(e->queue, e->host_logits, e->logits,
                                     sizeof(float) * (size_t)n * (size_t)vocab));
        }
        HY_TRY(e->dev->ops->queue_wait(e->queue));
        for (int32_t i = 0; i < n; i++)
            finish_job(e, b, from + i, i, host + (size_t)i * (size_t)vocab);
    }
    return HY_OK;
}

/* The connector's layer hooks stand around attention, which is what reads loaded blocks. */
static hy_status layer_hook(hy_exec *e, const hy_step *s, bool before)
{
    const hy_connector *c = e->o.connector;
    if (c == NULL || !c->layers || s->kind != HY_STEP_ATTN_OUT)
        return HY_OK;
    if (before)
        return c->worker.wait_layer_load(c->worker_self, e->queue, s->group, s->group_layer);
    return c->worker.save_layer(c->worker_self, e->queue, s->group, s->group_layer);
}

static hy_status run_all(hy_exec *e, hy_batch *b)
{
    for (int32_t i = 0; i < e->m->n_steps; i++) {
        const hy_step *s = &e->m->steps[i];
        HY_TRY(layer_hook(e, s, true));
        HY_TRY(s->kind == HY_STEP_HEAD ? run_head(e, s, b) : run_step(e, s, b));
        HY_TRY(layer_hook(e, s, false));
        if (e->probe != NULL && e->host_visible) {
            HY_TRY(e->dev->ops->queue_wait(e->queue));
            e->probe(e->probe_arg, s, e->x, b->rows.n);
        }
    }
    return HY_OK;
}

static hy_status run(hy_exec *e, hy_batch *b)
{
    hy_connector *c = e->o.connector;
    hy_status st = HY_OK;
    e->n_jobs = 0;
    if (b->rows.n > 0) {
        HY_TRY(check_batch(e, b));
        HY_TRY(list_jobs(e, b));
        HY_TRY(fill_ropes(e, b));
    }
    for (int32_t i = 0; b->rows.n > 0 && i < b->rows.n_seqs; i++) {
        b->seqs[i].status = HY_OK;
        b->seqs[i].prompt_out = NULL;
    }
    HY_TRY(hy_conn_step_begin(c, e->queue, b->connector_meta));
    if (b->rows.n > 0)
        st = run_all(e, b);
    hy_status end = hy_conn_step_end(c, e->queue, b->connector_out); /* also after a failure */
    HY_TRY(st);
    HY_TRY(end);
    return e->dev->ops->queue_wait(e->queue);
}

hy_status hy_exec_step(hy_exec *e, hy_batch *b)
{
    e->store = (e->store + 1) % HY_EXEC_STORES;
    e->held_n = 0;
    hy_noalloc_begin();
    b->status = run(e, b);
    hy_noalloc_end();
    return b->status;
}

/* ---- queries ---- */

const hy_kv_pool *hy_exec_pool(const hy_exec *e, int32_t group)
{
    return group >= 0 && group < e->m->n_groups ? &e->pools[group] : NULL;
}

const float *hy_exec_logits(const hy_exec *e, int32_t i)
{
    size_t vocab = (size_t)e->m->cfg.vocab;
    for (int32_t k = 0; k < e->held_n; k++) {
        if (e->jobs[e->held_from + k].row != i)
            continue;
        if (e->host_visible)
            return e->logits + (size_t)k * vocab;
        float *host = e->host_logits + (size_t)k * vocab;
        if (e->dev->ops->copy(e->queue, host, e->logits + (size_t)k * vocab,
                              sizeof(float) * vocab) < 0 ||
            e->dev->ops->queue_wait(e->queue) < 0)
            return NULL;
        return host;
    }
    return NULL;
}

void hy_exec_set_probe(hy_exec *e, hy_exec_probe fn, void *arg)
{
    e->probe = fn;
    e->probe_arg = arg;
}

void hy_exec_fingerprint(const hy_exec *e, uint8_t out[32])
{
    uint8_t in[32 + 8] = "";
    memcpy(in, e->m->fingerprint, 32);
    in[32] = (uint8_t)e->o.kv_value;
    in[33] = (uint8_t)e->o.act;
    hy_sha256(in, sizeof(in), out);
}
