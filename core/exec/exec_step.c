/* SPDX-License-Identifier: Apache-2.0
 *
 * One planned step: rotary tables, the model's steps through the backend's composites with the
 * connector's hooks around attention, then the logits of the rows that need them, in turns, to each
 * sequence's sampler or score. Nothing here allocates.
 *
 * Thread: exec stage only.  Owner: hy_exec owns all memory used.
 */
#include "core/base/alloc.h"
#include "core/base/log.h"
#include "core/connector/connector.h"
#include "core/exec/exec_int.h"
#include "core/model/rope.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

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

/* The blocks that this step writes last. */
static void note_blocks(hy_exec *e, const hy_batch *b)
{
    const hy_rows *r = &b->rows;
    for (int32_t i = 0; i < r->n_seqs; i++) {
        const int32_t at = r->pos[r->seq_row[i + 1] - 1] / e->o.block_tokens;
        for (int32_t g = 0; g < b->n_groups; g++)
            hy_ahead_note(e->ahead, g, b->bt[g].table[i * b->bt[g].stride + at]);
    }
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

static hy_status run_probe(hy_exec *e, const hy_step *s, int32_t rows)
{
    const size_t bytes = (size_t)rows * (size_t)e->m->cfg.dim * sizeof(float);
    if (!e->host_visible)
        HY_TRY(e->dev->ops->copy(e->queue, e->host_x, e->x, bytes));
    HY_TRY(e->dev->ops->queue_wait(e->queue));
    e->probe(e->probe_arg, s, e->host_visible ? e->x : e->host_x, rows);
    return HY_OK;
}

static hy_status run_all(hy_exec *e, hy_batch *b)
{
    for (int32_t i = 0; i < e->m->n_steps; i++) {
        const hy_step *s = &e->m->steps[i];
        HY_TRY(layer_hook(e, s, true));
        HY_TRY(s->kind == HY_STEP_HEAD ? run_head(e, s, b) : run_step(e, s, b));
        HY_TRY(layer_hook(e, s, false));
        if (e->probe != NULL)
            HY_TRY(run_probe(e, s, b->rows.n));
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
        note_blocks(e, b);
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
