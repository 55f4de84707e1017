/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake device stage.
 *
 * Thread: see fake_exec.h.  Owner: the test.
 */
#include "tests/flow/fake_exec.h"

#include <stdlib.h>
#include <string.h>

enum { MSG_RAN = HY_MSG_STEP + 100, MSG_SAVED };

struct hy_sampler {
    fake_draw d;
    int32_t n_accepted;
    bool poison;
};

int32_t fake_samplers_alive;

uint64_t fake_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ (b + UINT64_C(0x9e3779b97f4a7c15))) * UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 29;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 32);
}

/* ---- sampler ---- */

static hy_status s_create(void *ctx, const hy_sampling *p, int32_t choice, const int32_t *prompt,
                          int32_t n_prompt, const int32_t *end_ids, size_t n_end,
                          int32_t min_tokens, struct hy_sampler **out)
{
    (void)ctx;
    struct hy_sampler *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return HY_E_NOMEM;
    s->d.seed = p->seed;
    s->d.choice = choice;
    s->d.min_tokens = min_tokens;
    s->poison = n_prompt > 0 && prompt[0] == FAKE_POISON;
    HY_ASSERT(n_end <= HY_COUNTOF(s->d.end));
    s->d.n_end = (int32_t)n_end;
    for (int32_t i = 0; i < s->d.n_end; i++)
        s->d.end[i] = end_ids[i];
    fake_samplers_alive++;
    *out = s;
    return HY_OK;
}

static void s_destroy(void *ctx, struct hy_sampler *s)
{
    (void)ctx;
    if (s != NULL)
        fake_samplers_alive--;
    free(s);
}

static void s_accept(void *ctx, struct hy_sampler *s, int32_t id)
{
    (void)ctx, (void)id;
    s->n_accepted++;
}

hy_sampler_ops fake_sampler_ops(void)
{
    return (hy_sampler_ops){.create = s_create, .destroy = s_destroy, .accept = s_accept};
}

int32_t fake_oracle_token(const fake_exec *f, uint64_t out, const fake_draw *d, int32_t out_pos)
{
    uint64_t x = fake_mix(fake_mix(out, d->seed), fake_mix((uint64_t)d->choice, (uint64_t)out_pos));
    for (;; x = fake_mix(x, 1)) {
        const int32_t id = (int32_t)(x % (uint64_t)f->vocab);
        bool barred = false;
        for (int32_t i = 0; i < d->n_end && out_pos < d->min_tokens; i++)
            barred = barred || d->end[i] == id;
        if (!barred)
            return id;
    }
}

/* ---- memory ---- */

uint64_t *fake_slot(const fake_exec *f, int32_t g, int32_t id, int32_t p)
{
    return &f->mem[g][(int64_t)id * f->block_tokens + p % f->block_tokens];
}

static uint64_t *slot_at(const fake_exec *f, int32_t g, const int32_t *ids, int32_t p)
{
    const int32_t id = ids[p / f->block_tokens];
    HY_ASSERT(id >= 0 && id < f->n_blocks[g]);
    return fake_slot(f, g, id, p);
}

uint64_t fake_chain(uint64_t prev, int32_t tok, int32_t p)
{
    return fake_mix(fake_mix(prev, (uint64_t)tok), (uint64_t)p);
}

static int32_t first_seen(int32_t window, int32_t p)
{
    return window > 0 && p - window + 1 > 0 ? p - window + 1 : 0;
}

uint64_t fake_oracle_out(const fake_exec *f, const int32_t *tok, int32_t n, bool rope_long)
{
    uint64_t *c = malloc((size_t)n * sizeof(*c));
    HY_ASSERT(c != NULL);
    for (int32_t p = 0; p < n; p++)
        c[p] = fake_chain(p > 0 ? c[p - 1] : rope_long, tok[p], p);
    uint64_t out = 0;
    for (int32_t g = 0; g < f->n_groups; g++)
        for (int32_t j = first_seen(f->window[g], n - 1); j < n; j++)
            out = fake_mix(out, c[j] ^ (uint64_t)g);
    free(c);
    return out;
}

static const int32_t *seq_table(const hy_batch *b, int32_t g, int32_t i)
{
    return b->bt[g].table + (int64_t)i * b->bt[g].stride;
}

static size_t mem_bytes(const fake_exec *f, int32_t g)
{
    return (size_t)f->n_blocks[g] * (size_t)f->block_tokens * sizeof(uint64_t);
}

static void pull(fake_exec *f)
{
    for (int32_t g = 0; g < f->n_groups && f->dev != NULL; g++) {
        HY_ASSERT(f->dev->ops->copy(f->queue, f->mem[g], f->base[g], mem_bytes(f, g)) == HY_OK);
        HY_ASSERT(f->dev->ops->queue_wait(f->queue) == HY_OK);
    }
}

static void push(fake_exec *f, int32_t g, const uint64_t *slot)
{
    void *to = (char *)f->base[g] + ((const char *)slot - (const char *)f->mem[g]);
    if (f->dev != NULL)
        HY_ASSERT(f->dev->ops->copy(f->queue, to, slot, sizeof(*slot)) == HY_OK);
}

static void flush(fake_exec *f)
{
    if (f->dev != NULL)
        HY_ASSERT(f->dev->ops->fence(f->queue) == HY_OK);
}

void fake_exec_use(fake_exec *f, hy_dev *dev)
{
    f->dev = dev;
    HY_ASSERT(dev->ops->queue_create(dev, &f->queue) == HY_OK);
    for (int32_t g = 0; g < f->n_groups; g++)
        HY_ASSERT(dev->ops->alloc(dev, mem_bytes(f, g), &f->base[g]) == HY_OK);
}

static void write_row(fake_exec *f, const hy_batch *b, int32_t i, int32_t row)
{
    const int32_t p = b->rows.pos[row];
    const uint64_t prev = p > 0 ? *slot_at(f, 0, seq_table(b, 0, i), p - 1) : b->seqs[i].rope_long;
    const uint64_t c = fake_chain(prev, b->rows.ids[row], p);
    for (int32_t g = 0; g < f->n_groups; g++) {
        uint64_t *slot = slot_at(f, g, seq_table(b, g, i), p);
        *slot = c ^ (uint64_t)g;
        push(f, g, slot);
    }
}

static uint64_t read_row(const fake_exec *f, const hy_batch *b, int32_t i, int32_t row)
{
    const int32_t p = b->rows.pos[row];
    uint64_t out = 0;
    for (int32_t g = 0; g < f->n_groups; g++)
        for (int32_t j = first_seen(f->window[g], p); j <= p; j++)
            out = fake_mix(out, *slot_at(f, g, seq_table(b, g, i), j));
    return out;
}

/* ---- step ---- */

static void score_prompt(fake_exec *f, hy_batch *b, int32_t i)
{
    hy_batch_seq *s = &b->seqs[i];
    for (int32_t k = 0; k < s->prompt_lp_n; k++) {
        const int32_t row = s->prompt_lp_first + k;
        HY_ASSERT(row >= b->rows.seq_row[i] && row < b->rows.seq_row[i + 1]);
        f->lp[row] = (hy_token_out){.id = s->targets[k],
                                    .rank = 1 + (int32_t)(read_row(f, b, i, row) % 100000)};
    }
    s->prompt_out = &f->lp[s->prompt_lp_n > 0 ? s->prompt_lp_first : 0];
}

static void sample(fake_exec *f, hy_batch *b, int32_t i)
{
    hy_batch_seq *s = &b->seqs[i];
    const int32_t row = b->rows.seq_row[i + 1] - 1;
    HY_ASSERT(s->sampler != NULL && s->sampler->n_accepted == s->out_pos);
    const uint64_t out = read_row(f, b, i, row);
    s->token = fake_oracle_token(f, out, &s->sampler->d, s->out_pos);
    f->top_ids[i] = s->token ^ 1;
    f->top_lps[i] = (float)(out % 1000);
    s->out = (hy_token_out){.id = s->token,
                            .rank = 1 + (int32_t)(out % 100000),
                            .n_top = 1,
                            .top_ids = &f->top_ids[i],
                            .top_lps = &f->top_lps[i]};
    if (s->sampler->poison)
        s->status = HY_E_INVAL;
}

/* A stream: it has one row now and had its last token in the step before. */
static bool is_stream(const fake_exec *f, const hy_batch *b, int32_t i)
{
    const hy_batch_seq *s = &b->seqs[i];
    if (!s->sample || s->out_pos == 0 || b->rows.seq_row[i + 1] - b->rows.seq_row[i] != 1)
        return false;
    for (int32_t k = 0; k < f->n_prev; k++)
        if (f->prev[k] == s->req_id * 64 + (uint64_t)s->choice)
            return true;
    return false;
}

static void count(fake_exec *f, const hy_batch *b)
{
    int32_t streams = 0, prefill = 0, n = 0;
    for (int32_t i = 0; i < b->rows.n_seqs; i++) {
        const int32_t rows = b->rows.seq_row[i + 1] - b->rows.seq_row[i];
        streams += is_stream(f, b, i);
        prefill += rows > 1 ? rows : 0;
    }
    for (int32_t i = 0; i < b->rows.n_seqs; i++)
        if (b->seqs[i].sample)
            f->prev[n++] = b->seqs[i].req_id * 64 + (uint64_t)b->seqs[i].choice;
    f->n_prev = n;
    if (streams > 0 && prefill > f->most_prefill_with_decode)
        f->most_prefill_with_decode = prefill;
    if (b->rows.n > f->most_rows)
        f->most_rows = b->rows.n;
    f->n_steps++;
    f->n_rows += (uint64_t)b->rows.n;
    f->n_empty += b->rows.n == 0;
}

static void saved(fake_exec *f, const hy_batch *b, int32_t g)
{
    if (f->conn->layers && b->rows.n > 0)
        (void)f->conn->worker.save_layer(f->conn->worker_self, NULL, g, 0);
}

static void start(fake_exec *f, hy_batch *b)
{
    count(f, b);
    (void)hy_conn_step_begin(f->conn, NULL, b->connector_meta);
    memset(f->lp, 0xee, (size_t)f->max_rows * sizeof(*f->lp)); /* the last step's arrays are gone */
    memset(f->top_ids, 0xee, (size_t)f->max_rows * sizeof(*f->top_ids));
    pull(f);
    for (int32_t i = 0; i < b->rows.n_seqs; i++) {
        HY_ASSERT(b->rows.seq_row[i + 1] > b->rows.seq_row[i]);
        for (int32_t r = b->rows.seq_row[i]; r < b->rows.seq_row[i + 1]; r++)
            write_row(f, b, i, r);
    }
    flush(f);
    for (int32_t g = 0; g < f->n_groups && !f->spread; g++)
        saved(f, b, g);
}

static void finish(fake_exec *f, hy_batch *b)
{
    pull(f);
    for (int32_t i = 0; i < b->rows.n_seqs; i++) {
        score_prompt(f, b, i);
        if (b->seqs[i].sample)
            sample(f, b, i);
    }
    if (f->fail_one_in > 0 && hy_rng_below(hy_stage_rng(f->stage), f->fail_one_in) == 0) {
        b->status = HY_E_DEVICE;
        f->n_failed++;
    }
    (void)hy_conn_step_end(f->conn, NULL, b->connector_out);
    const hy_msg m = {.kind = HY_MSG_STEP_DONE, .data = b};
    const hy_status st = hy_mbox_post_reserved(f->sched, &m);
    HY_ASSERT(st == HY_OK || st == HY_E_ABORTED);
}

static hy_status on_msg(void *self, hy_msg *m)
{
    fake_exec *f = self;
    if (m->kind == HY_MSG_STEP) {
        HY_ASSERT(f->pending == NULL);
        f->pending = m->data;
        start(f, f->pending);
        if (f->timed) {
            const hy_msg t = {.kind = MSG_RAN};
            const uint64_t now = hy_stage_now(f->stage);
            const uint64_t cost = 200 * HY_US + (uint64_t)f->pending->rows.n * 20 * HY_US;
            for (int32_t g = 0; g < f->n_groups && f->spread; g++) {
                const hy_msg s = {.kind = MSG_SAVED, .arg = (uint64_t)g};
                const uint64_t at = cost * (uint64_t)(g + 1) / (uint64_t)f->n_groups;
                HY_TRY(hy_stage_timer(f->stage, now + at, &s, NULL));
            }
            return hy_stage_timer(f->stage, now + cost, &t, NULL);
        }
    }
    if (m->kind == MSG_SAVED) {
        saved(f, f->pending, (int32_t)m->arg);
        return HY_OK;
    }
    hy_batch *b = f->pending;
    f->pending = NULL;
    finish(f, b);
    return HY_OK;
}

fake_exec *fake_exec_create(const hy_engine_opts *o, bool timed, uint32_t fail_one_in)
{
    fake_exec *f = calloc(1, sizeof(*f));
    HY_ASSERT(f != NULL);
    f->n_groups = o->n_groups;
    f->block_tokens = o->block_tokens;
    f->vocab = o->vocab;
    f->timed = timed;
    f->fail_one_in = fail_one_in;
    f->max_rows = o->max_batch_tokens;
    for (int32_t g = 0; g < o->n_groups; g++) {
        f->window[g] = o->windows[g];
        f->n_blocks[g] = o->n_blocks[g];
        f->mem[g] = calloc((size_t)o->n_blocks[g] * (size_t)o->block_tokens, sizeof(uint64_t));
        HY_ASSERT(f->mem[g] != NULL);
    }
    f->lp = calloc((size_t)f->max_rows, sizeof(*f->lp));
    f->prev = calloc((size_t)f->max_rows, sizeof(*f->prev));
    f->top_ids = calloc((size_t)f->max_rows, sizeof(*f->top_ids));
    f->top_lps = calloc((size_t)f->max_rows, sizeof(*f->top_lps));
    static const hy_stage_ops ops = {.on_msg = on_msg};
    f->stage = hy_stage_create("exec", &ops, f, 4, 0);
    HY_ASSERT(f->stage != NULL && f->lp != NULL && f->prev != NULL && f->top_ids != NULL &&
              f->top_lps != NULL);
    return f;
}

void fake_exec_destroy(fake_exec *f)
{
    if (f == NULL)
        return;
    hy_stage_destroy(f->stage);
    for (int32_t g = 0; g < f->n_groups; g++) {
        if (f->dev != NULL)
            f->dev->ops->free(f->dev, f->base[g], mem_bytes(f, g));
        free(f->mem[g]);
    }
    if (f->dev != NULL)
        f->dev->ops->queue_destroy(f->queue);
    free(f->lp);
    free(f->prev);
    free(f->top_ids);
    free(f->top_lps);
    free(f);
}
