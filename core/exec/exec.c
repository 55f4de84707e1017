/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor's memory: KV pools, activations, scratch, rotary tables, result stores; and what may
 * be asked of it. Steps are run by exec_step.c.
 *
 * Thread: exec stage only, after create.  Owner: hy_exec owns device memory and result stores.
 */
#include "core/exec/exec.h"

#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "core/connector/connector.h"
#include "core/exec/exec_int.h"
#include "core/exec/sample.h"

#include <stdio.h>
#include <string.h>

/* ---- create ---- */

/* Bytes of each pool whose pages are there before anybody needs them (ahead.h): ten prompts of 512
 * tokens of a model of 135 M parameters, of f32. */
#define AHEAD ((size_t)256 << 20)

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

static void order_plane(hy_kv_plane *p, const hy_kv_layout *l, hy_kv_order order)
{
    const int64_t elem = hy_dtype_get((int)l->type)->bytes, row = p->width * elem;
    p->dim = elem;
    p->token = order == HY_KV_ORDER_NHD ? row * l->n_heads : row;
    p->head = order == HY_KV_ORDER_NHD ? row : row * l->block_tokens;
}

/* Another order inside the planes, within the bytes that the backend gave them. */
static void set_order(hy_kv_layout *l, hy_kv_order order)
{
    if (order == HY_KV_ORDER_DEFAULT)
        return;
    order_plane(&l->k, l, order);
    order_plane(&l->v, l, order);
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
        set_order(&p->layout, e->o.kv_order);
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
    HY_TRY(alloc_host(e));
    if (e->host_visible)
        e->ahead = hy_ahead_create(e->pools, e->m->n_groups, AHEAD);
    return HY_OK;
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
    hy_ahead_destroy(e->ahead);
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
    hy_free(e->host_x);
    hy_free(e);
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

hy_status hy_exec_set_probe(hy_exec *e, hy_exec_probe fn, void *arg)
{
    if (!e->host_visible && fn != NULL && e->host_x == NULL) {
        e->host_x = hy_calloc((size_t)e->o.max_rows * (size_t)e->m->cfg.dim, sizeof(float));
        if (e->host_x == NULL)
            return hy_fail(HY_E_NOMEM, "no memory for a copy of the residual stream");
    }
    e->probe = fn;
    e->probe_arg = arg;
    return HY_OK;
}

void hy_exec_fingerprint(const hy_exec *e, uint8_t out[32])
{
    uint8_t in[32 + 8] = "";
    memcpy(in, e->m->fingerprint, 32);
    in[32] = (uint8_t)e->o.kv_value;
    in[33] = (uint8_t)e->o.act;
    hy_sha256(in, sizeof(in), out);
}
