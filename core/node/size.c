/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes of a node's parts.
 *
 * Automatic KV pool: room for eight full contexts, within 40 % of the memory that is free after the
 * weights are loaded, and 8 GiB. A pool is reserved address space: pages are taken as blocks are
 * first written, and some ahead of that (core/exec/ahead.h).
 *
 * Thread: any.  Owner: plain values.
 */
#include "core/node/size.h"

#include "core/base/log.h"

#include <string.h>

static const size_t auto_limit = (size_t)8 << 30;

/* Blocks of group g that one sequence of `tokens` uses at most. */
static int64_t blocks_a_seq(const hy_model *m, int32_t g, int64_t tokens, int64_t block,
                            int64_t rows)
{
    int64_t w = m->groups[g].window;
    int64_t n = (tokens + block - 1) / block;
    if (w <= 0)
        return n;
    int64_t in_window =
        (w + rows + block - 1) / block + 2; /* what a chunk's first row still sees */
    return in_window < n ? in_window : n;
}

static size_t bytes_a_seq(const hy_size *s, const hy_model *m, int64_t tokens)
{
    size_t sum = 0;
    for (int32_t g = 0; g < m->n_groups; g++)
        sum += (size_t)blocks_a_seq(m, g, tokens, s->block_tokens, s->max_rows) * s->block_bytes[g];
    return sum;
}

static void fill_blocks(hy_size *s, const hy_model *m, double seqs)
{
    s->pool_bytes = 0;
    for (int32_t g = 0; g < m->n_groups; g++) {
        double n = seqs * (double)blocks_a_seq(m, g, s->context, s->block_tokens, s->max_rows);
        s->n_blocks[g] = n > 1e9 ? 1000000000 : (int32_t)n;
        s->pool_bytes += (size_t)s->n_blocks[g] * s->block_bytes[g];
    }
}

hy_status hy_size_kv(const hy_conf *c, hy_size *s)
{
    s->block_tokens = (int32_t)hy_conf_int(c, "kv", "block_tokens");
    if (s->block_tokens % 16 != 0)
        return hy_fail(HY_E_INVAL, "[kv] block_tokens = %d: must be a multiple of 16",
                       s->block_tokens);
    const char *storage = hy_conf_str(c, "kv", "storage");
    HY_TRY(hy_dtype_parse(hy_conf_str(c, "kv", "type"), &s->kv_value));
    s->kv_storage = s->kv_value;
    if (strcmp(storage, "auto") != 0)
        HY_TRY(hy_dtype_parse(storage, &s->kv_storage));
    if (s->kv_storage != s->kv_value && s->kv_storage != HY_F32)
        return hy_fail(HY_E_INVAL,
                       "[kv] storage = %s cannot hold type = %s exactly: use auto or f32", storage,
                       hy_dtype_name((int)s->kv_value));
    return HY_OK;
}

static hy_status block_sizes(const hy_model *m, hy_act_mode act, hy_size *s)
{
    if (m->n_groups > HY_SIZE_MAX_GROUPS)
        return hy_fail(HY_E_UNSUPPORTED, "the model has %d cache groups, at most %d are supported",
                       m->n_groups, HY_SIZE_MAX_GROUPS);
    hy_exec_opts eo = {.kv_value = s->kv_value,
                       .kv_storage = s->kv_storage,
                       .block_tokens = s->block_tokens,
                       .act = act};
    for (int32_t g = 0; g < m->n_groups; g++)
        HY_TRY(hy_exec_block_bytes(m, g, &eo, &s->block_bytes[g]));
    return HY_OK;
}

/* Pool of a given number of bytes: every group in proportion to what a full context needs. */
static hy_status pool_of(hy_size *s, const hy_model *m, size_t bytes, const char *key)
{
    size_t one = bytes_a_seq(s, m, s->context);
    fill_blocks(s, m, (double)bytes / (double)one);
    for (int32_t g = 0; g < m->n_groups; g++)
        if (s->n_blocks[g] < 2)
            return hy_fail(
                HY_E_INVAL,
                "%s gives less than two blocks of KV; a full context of %d tokens needs %.1f MB",
                key, s->context, (double)one / 1e6);
    return HY_OK;
}

static hy_status choose_pool(const hy_conf *c, const hy_model *m, hy_size *s)
{
    hy_dev_props p;
    memset(&p, 0, sizeof(p));
    HY_TRY(m->dev->ops->props(m->dev, &p));
    uint64_t memory = hy_conf_size(c, "kv", "memory");
    int64_t blocks = hy_conf_int(c, "kv", "blocks");
    if (blocks > 0) {
        size_t one = bytes_a_seq(s, m, s->context);
        int64_t full = blocks_a_seq(m, 0, s->context, s->block_tokens, s->max_rows);
        HY_TRY(pool_of(s, m, (size_t)((double)blocks / (double)full * (double)one), "[kv] blocks"));
    } else if (memory > 0) {
        HY_TRY(pool_of(s, m, memory, "[kv] memory"));
    } else {
        size_t limit = (size_t)((double)p.mem_free * 0.4);
        limit = limit < auto_limit ? limit : auto_limit;
        size_t one = bytes_a_seq(s, m, s->context);
        if (one > limit && hy_conf_int(c, "engine", "context") > 0)
            return hy_fail(HY_E_NOMEM,
                           "[engine] context = %d needs %.0f MB of KV, %.0f MB may be used: "
                           "lower it, or set [kv] memory",
                           s->context, (double)one / 1e6, (double)limit / 1e6);
        if (one > limit) {
            int64_t fit = (int64_t)((double)s->context * (double)limit / (double)one);
            s->context = (int32_t)(fit - fit % s->block_tokens);
            if (s->context < 256)
                return hy_fail(HY_E_NOMEM, "out of memory for the KV pool: %.0f MB are free",
                               (double)p.mem_free / 1e6);
            hy_warn("node", "context limited to %d tokens: a KV pool of %.0f MB is what fits",
                    s->context, (double)limit / 1e6);
            one = bytes_a_seq(s, m, s->context);
        }
        double seqs = (double)limit / (double)one;
        fill_blocks(s, m, seqs < 8.0 ? seqs : 8.0);
    }
    if (s->pool_bytes > p.mem_free && p.mem_free > 0)
        return hy_fail(
            HY_E_NOMEM,
            "out of memory for the KV pool: it needs %.0f MB, %.0f MB are free (set [kv] "
            "memory or [kv] blocks)",
            (double)s->pool_bytes / 1e6, (double)p.mem_free / 1e6);
    return HY_OK;
}

/* A pool below one full context: requests are limited to what it holds. */
static void limit_context(hy_size *s, const hy_model *m)
{
    int64_t held = (int64_t)s->n_blocks[0] * s->block_tokens;
    for (int32_t g = 0; g < m->n_groups; g++)
        if (m->groups[g].window == 0 && (int64_t)s->n_blocks[g] * s->block_tokens < held)
            held = (int64_t)s->n_blocks[g] * s->block_tokens;
    if (m->groups[0].window == 0 && held < s->context) {
        hy_warn("node", "context limited to %d tokens by the KV pool (the model's is %d)",
                (int)held, s->context);
        s->context = (int32_t)held;
    }
}

hy_status hy_size_choose(const hy_conf *c, const hy_model *m, hy_act_mode act, hy_size *out)
{
    hy_size s = {0};
    s.n_groups = m->n_groups;
    HY_TRY(hy_size_kv(c, &s));
    s.max_rows = (int32_t)hy_conf_int(c, "engine", "max_batch_tokens");
    s.max_seqs = (int32_t)hy_conf_int(c, "engine", "max_seqs");
    if (s.max_rows < s.max_seqs)
        s.max_seqs = s.max_rows;
    s.max_logits = s.max_seqs < 64 ? s.max_seqs : 64;
    s.context = (int32_t)hy_conf_int(c, "engine", "context");
    if (s.context > m->cfg.context && m->cfg.context > 0)
        return hy_fail(HY_E_INVAL, "[engine] context = %d: the model was trained for %d", s.context,
                       m->cfg.context);
    if (s.context == 0)
        s.context = m->cfg.context > 0 ? m->cfg.context : 2048;
    HY_TRY(block_sizes(m, act, &s));
    HY_TRY(choose_pool(c, m, &s));
    limit_context(&s, m);
    *out = s;
    return HY_OK;
}

void hy_size_describe(const hy_size *s, hy_buf *out)
{
    hy_buf_printf(out, "KV %s, %d tokens a block:", hy_dtype_name((int)s->kv_value),
                  s->block_tokens);
    for (int32_t g = 0; g < s->n_groups; g++)
        hy_buf_printf(out, "%s %d blocks", g > 0 ? " +" : "", s->n_blocks[g]);
    hy_buf_printf(out, ", %.0f MB; context %d, up to %d tokens a step, %d sequences\n",
                  (double)s->pool_bytes / 1e6, s->context, s->max_rows, s->max_seqs);
}
