/* SPDX-License-Identifier: Apache-2.0
 *
 * What hand-overs between unlike KV types cost: a prompt's KV is computed in one type, moved by a
 * copy plan into a cache of another type (or over a narrower wire), and the text is continued
 * there, teacher-forced. Its distributions are compared with those of the run that moved nothing:
 * KL(unmoved || moved) and how often the likeliest token is the same. Beside them the same figures
 * of a node that computes all of it in the destination's type, which is no hand-over's fault.
 *
 * Lossless pairs must give the same bits. The kernels give the same bits on every CPU, so bounds of
 * the lossy ones stand close above what was measured. The table is docs/PD.md's: HY_FULL=1 also
 * runs the longer text, f32 activations and the other models under $HY_MODELS.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/base/file.h"
#include "hal/kv_plan.h"
#include "tests/golden/lm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct pair {
    hy_dtype src, dst;
    bool has_wire;
    hy_dtype wire;
    bool lossless;
} pair;

/* Grouped by source. */
static const pair pairs[] = {
    {.src = HY_F32, .dst = HY_F32, .lossless = true},
    {.src = HY_F32, .dst = HY_F16},
    {.src = HY_F32, .dst = HY_BF16},
    {.src = HY_F32, .dst = HY_F32, .has_wire = true, .wire = HY_I8},
    {.src = HY_F32, .dst = HY_F32, .has_wire = true, .wire = HY_F8_E4M3},
    {.src = HY_F32, .dst = HY_F32, .has_wire = true, .wire = HY_F8_E4M3FNUZ},
    {.src = HY_F16, .dst = HY_F16, .lossless = true},
    {.src = HY_F16, .dst = HY_F16, .has_wire = true, .wire = HY_F32, .lossless = true},
    {.src = HY_F16, .dst = HY_BF16},
    {.src = HY_F16, .dst = HY_F32},
    {.src = HY_F16, .dst = HY_F16, .has_wire = true, .wire = HY_I8},
    {.src = HY_F16, .dst = HY_F16, .has_wire = true, .wire = HY_F8_E4M3},
    {.src = HY_F16, .dst = HY_F16, .has_wire = true, .wire = HY_F8_E4M3FNUZ},
    {.src = HY_BF16, .dst = HY_F16},
};

typedef struct text {
    const int32_t *ids;
    int32_t n, moved; /* the first `moved` tokens' KV is handed over */
} text;

/* log p of every row behind the hand-over. */
typedef struct rows {
    float *lp; /* [n][vocab] */
    int32_t first, n, vocab;
} rows;

typedef struct score {
    double kl, worst, top1; /* mean and largest KL; share of rows */
    bool same_bits;
} score;

/* A second executor over a model that is open already. */
static void side_open(const lm *base, hy_dtype kv, int32_t block_tokens, lm *l)
{
    *l = *base;
    l->o.kv = kv;
    l->o.block_tokens = block_tokens;
    l->stride = (l->o.context + block_tokens - 1) / block_tokens;
    l->tables = calloc((size_t)l->stride * (size_t)l->model->n_groups, sizeof(int32_t));
    assert_non_null(l->tables);
    for (int32_t g = 0; g < l->model->n_groups; g++) {
        l->n_blocks[g] = l->stride;
        for (int32_t i = 0; i < l->stride; i++)
            l->tables[g * l->stride + i] = l->stride - 1 - i;
    }
    const hy_exec_opts eo = {.kv_value = kv,
                             .kv_storage = kv,
                             .block_tokens = block_tokens,
                             .n_blocks = l->n_blocks,
                             .max_rows = l->o.max_rows,
                             .max_seqs = 1,
                             .max_logits = l->o.max_rows,
                             .context = l->o.context,
                             .act = l->o.act};
    const hy_status st = hy_exec_create(l->model, &eo, &l->exec);
    if (st < 0)
        print_error("%s\n", hy_fail_text());
    assert_int_equal(st, HY_OK);
}

static void side_close(lm *l)
{
    hy_exec_destroy(l->exec);
    free(l->tables);
}

static void run(lm *l, const int32_t *ids, int32_t from, int32_t to, int32_t logits_from,
                lm_row_fn fn, void *arg)
{
    for (int32_t at = from; at < to; at += l->o.max_rows) {
        const int32_t n = to - at < l->o.max_rows ? to - at : l->o.max_rows;
        const lm_part p = {.ids = ids, .from = at, .n = n, .logits_from = logits_from};
        assert_int_equal(lm_step(l, &p, 1), HY_OK);
        for (int32_t i = 0; i < n; i++)
            if (at + i >= logits_from)
                fn(arg, at + i, hy_exec_logits(l->exec, i));
    }
}

static void describe(const lm *l, hy_kv_desc *d)
{
    memset(d, 0, sizeof(*d));
    for (int32_t g = 0; g < l->model->n_groups; g++) {
        const hy_kv_pool *p = hy_exec_pool(l->exec, g);
        assert_int_equal(
            hy_kv_desc_add(d, l->dev, p, l->model->groups[g].window, 0, p->layout.n_heads), HY_OK);
    }
}

static void move_piece(const hy_kv_plan *plan, const hy_kv_piece *c, const lm *src, const lm *dst,
                       hy_queue *q)
{
    const hy_kv_pool *sp = hy_exec_pool(src->exec, c->group);
    const hy_kv_pool *dp = hy_exec_pool(dst->exec, c->group);
    const hy_kv_blocks sb = {src->tables + c->group * src->stride, src->stride};
    const hy_kv_blocks db = {dst->tables + c->group * dst->stride, dst->stride};
    if (c->direct) {
        const size_t cap = hy_kv_plan_max_ranges(plan, c);
        hy_kv_bytes *r = calloc(cap + 1, sizeof(*r));
        size_t n = 0;
        assert_int_equal(hy_kv_plan_ranges(plan, c, sb, db, r, cap, &n), HY_OK);
        for (size_t i = 0; i < n; i++)
            memcpy((char *)dp->base + r[i].dst, (char *)sp->base + r[i].src, (size_t)r[i].len);
        free(r);
        return;
    }
    void *buf = NULL;
    hy_kv_copy k;
    assert_int_equal(src->dev->ops->alloc(src->dev, c->bytes, &buf), HY_OK);
    assert_int_equal(hy_kv_piece_pack(plan, c, sp, sb, buf, &k), HY_OK);
    assert_int_equal(src->dev->math->kv_pack(q, &k), HY_OK);
    assert_int_equal(hy_kv_piece_unpack(plan, c, dp, db, buf, &k), HY_OK);
    assert_int_equal(dst->dev->math->kv_unpack(q, &k), HY_OK);
    src->dev->ops->free(src->dev, buf, c->bytes);
}

static void hand_over(const lm *src, const lm *dst, const pair *p, int32_t n)
{
    hy_kv_desc a, b;
    hy_kv_plan *plan = NULL;
    hy_queue *q = NULL;
    describe(src, &a);
    describe(dst, &b);
    const hy_kv_plan_opts o = {.lossy = !p->lossless, .has_wire = p->has_wire, .wire = p->wire};
    const hy_status st = hy_kv_plan_create(&a, &b, &o, &plan);
    if (st < 0)
        print_error("%s\n", hy_fail_text());
    assert_int_equal(st, HY_OK);
    assert_int_equal(src->dev->ops->queue_create(src->dev, &q), HY_OK);
    hy_kv_piece c;
    const hy_kv_want w = {.n = n, .next = n, .tail_free = true};
    hy_kv_iter it = hy_kv_plan_begin(plan, &w);
    while (hy_kv_plan_next(&it, &c))
        move_piece(plan, &c, src, dst, q);
    src->dev->ops->queue_destroy(q);
    hy_kv_plan_destroy(plan);
}

/* ---- comparing ---- */

static float lse_of(const float *v, int32_t n)
{
    float top = v[0];
    double s = 0.0;
    for (int32_t i = 1; i < n; i++)
        top = v[i] > top ? v[i] : top;
    for (int32_t i = 0; i < n; i++)
        if (v[i] - top > -40.0f)
            s += exp((double)(v[i] - top));
    return (float)(top + log(s));
}

static void keep_row(void *arg, int32_t pos, const float *logits)
{
    rows *r = arg;
    assert_non_null(logits);
    const float lse = lse_of(logits, r->vocab);
    float *to = r->lp + (size_t)(pos - r->first) * (size_t)r->vocab;
    for (int32_t i = 0; i < r->vocab; i++)
        to[i] = logits[i] - lse;
    r->n++;
}

typedef struct compared {
    const rows *ref;
    score s;
} compared;

static void compare_row(void *arg, int32_t pos, const float *logits)
{
    compared *c = arg;
    const int32_t vocab = c->ref->vocab;
    const float *p = c->ref->lp + (size_t)(pos - c->ref->first) * (size_t)vocab;
    const float lse = lse_of(logits, vocab);
    double kl = 0.0;
    bool same = true;
    for (int32_t i = 0; i < vocab; i++) {
        const float lq = logits[i] - lse;
        same = same && lq == p[i];
        if (p[i] > -25.0f)
            kl += exp((double)p[i]) * (double)(p[i] - lq);
    }
    kl = kl > 0.0 ? kl : 0.0;
    c->s.kl += kl;
    c->s.worst = kl > c->s.worst ? kl : c->s.worst;
    c->s.top1 += lm_argmax(p, vocab) == lm_argmax(logits, vocab);
    c->s.same_bits = c->s.same_bits && same;
}

static score finish(const compared *c)
{
    score s = c->s;
    s.kl /= c->ref->n;
    s.top1 /= c->ref->n;
    return s;
}

static rows reference(lm *l, const text *t)
{
    rows r = {.first = t->moved, .vocab = l->model->cfg.vocab};
    r.lp = malloc((size_t)(t->n - t->moved) * (size_t)r.vocab * sizeof(float));
    assert_non_null(r.lp);
    run(l, t->ids, 0, t->n, t->moved, keep_row, &r);
    return r;
}

static score moved(const lm *base, lm *src, const pair *p, const text *t, const rows *ref)
{
    lm dst;
    compared c = {.ref = ref, .s = {.same_bits = true}};
    side_open(base, p->dst, 32, &dst);
    hand_over(src, &dst, p, t->moved);
    run(&dst, t->ids, t->moved, t->n, t->moved, compare_row, &c);
    side_close(&dst);
    return finish(&c);
}

static score alone(const lm *base, hy_dtype kv, const text *t, const rows *ref)
{
    lm l;
    compared c = {.ref = ref, .s = {.same_bits = true}};
    side_open(base, kv, 16, &l);
    run(&l, t->ids, 0, t->n, t->moved, compare_row, &c);
    side_close(&l);
    return finish(&c);
}

/* ---- a model ---- */

typedef struct bound {
    double kl, top1; /* no more than; no less than */
} bound;

static void one_source(const lm *base, size_t from, const text *t, const char *name,
                       const bound *bounds)
{
    lm src;
    side_open(base, pairs[from].src, 16, &src);
    rows ref = reference(&src, t);
    for (size_t i = from; i < HY_COUNTOF(pairs) && pairs[i].src == pairs[from].src; i++) {
        const pair *p = &pairs[i];
        const score s = moved(base, &src, p, t, &ref);
        score a = {.top1 = 1.0};
        if (p->dst != p->src)
            a = alone(base, p->dst, t, &ref);
        print_message("%-9s %-4s -> %-4s wire %-8s %4d tokens: KL %.2e (worst %.2e), top-1 %.4f; "
                      "%s alone: KL %.2e, top-1 %.4f\n",
                      name, hy_dtype_name((int)p->src), hy_dtype_name((int)p->dst),
                      p->has_wire ? hy_dtype_name((int)p->wire) : "auto", ref.n, s.kl, s.worst,
                      s.top1, hy_dtype_name((int)p->dst), a.kl, a.top1);
        if (p->lossless)
            assert_true(s.same_bits);
        if (bounds == NULL || p->lossless)
            continue;
        assert_false(s.same_bits); /* else nothing was compared */
        assert_true(s.kl <= bounds[i].kl);
        assert_true(s.top1 >= bounds[i].top1);
    }
    free(ref.lp);
    side_close(&src);
}

/* The text of a golden line: its prompt and what the oracle went on with. */
static int32_t *line_ids(const char *folder, const char *id, int32_t *n_out)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/tests/golden/%s/generate.jsonl", lm_source_dir(), folder);
    json_t *lines = lm_read_jsonl(path);
    assert_non_null(lines);
    int32_t *all = NULL;
    for (size_t i = 0; i < json_array_size(lines) && all == NULL; i++) {
        json_t *line = json_array_get(lines, i);
        const char *name = json_string_value(json_object_get(line, "id"));
        if (name == NULL || strcmp(name, id) != 0)
            continue;
        size_t a = 0, b = 0;
        int32_t *x = lm_ids(json_object_get(line, "ids"), &a);
        int32_t *y = lm_ids(json_object_get(line, "golden"), &b);
        all = calloc(a + b + 1, sizeof(*all));
        memcpy(all, x, a * sizeof(*all));
        memcpy(all + a, y, b * sizeof(*all));
        *n_out = (int32_t)(a + b);
        free(x);
        free(y);
    }
    assert_non_null(all);
    json_decref(lines);
    return all;
}

static void one_model(const char *path, const char *folder, const char *line, hy_act_mode act,
                      int32_t moved_n, const bound *bounds)
{
    lm base;
    text t = {.moved = moved_n};
    int32_t *ids = line_ids(folder, line, &t.n);
    t.ids = ids;
    const lm_opts o = {.act = act, .kv = HY_F16, .threads = 2, .context = t.n, .max_rows = 32};
    const hy_status st = lm_open(path, &o, &base);
    if (st < 0)
        print_error("%s\n", hy_fail_text());
    assert_int_equal(st, HY_OK);
    for (size_t i = 0; i < HY_COUNTOF(pairs); i++)
        if (i == 0 || pairs[i].src != pairs[i - 1].src)
            one_source(&base, i, &t, act == HY_ACT_F32 ? "f32 act." : "int8 act.", bounds);
    lm_close(&base);
    free(ids);
}

static void tiny(void **state)
{
    (void)state;
    static const bound bounds[HY_COUNTOF(pairs)] = {
        {0, 1},          {6e-7, 1},       {4.5e-5, 0.975}, {9.8e-5, 0.987}, {2.9e-3, 0.975},
        {2.8e-3, 0.951}, {0, 1},          {0, 1},          {4.3e-5, 0.987}, {3.2e-7, 1},
        {9.5e-5, 0.987}, {2.9e-3, 0.975}, {2.8e-3, 0.951}, {1.8e-5, 0.975}};
    char path[1024];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/llama", lm_source_dir());
    one_model(path, "tiny/llama", "random-150", HY_ACT_F32, 100, bounds);
}

static bool full(void)
{
    const char *f = getenv("HY_FULL");
    return f != NULL && f[0] == '1';
}

static const char *real_path(const char *file)
{
    static char path[1024];
    const char *dir = getenv("HY_MODELS");
    snprintf(path, sizeof(path), "%s/%s", dir != NULL ? dir : "", file);
    if (dir == NULL || !hy_file_exists(path)) {
        print_message("%s is not under $HY_MODELS\n", file);
        skip();
    }
    return path;
}

static void smollm2(void **state)
{
    (void)state;
    static const bound bounds[HY_COUNTOF(pairs)] = {
        {0, 1},          {3.5e-3, 0.953}, {3.6e-3, 0.960}, {3.8e-3, 0.953}, {4.5e-3, 0.929},
        {4.3e-3, 0.960}, {0, 1},          {0, 1},          {4.4e-3, 0.953}, {3.4e-3, 0.945},
        {4.0e-3, 0.976}, {4.9e-3, 0.921}, {4.3e-3, 0.937}, {3.4e-3, 0.945}};
    const char *path = real_path("SmolLM2-135M-Instruct.Q4_1.gguf");
    one_model(path, "smollm2", "text-250", HY_ACT_INT8, 193, bounds);
    if (!full())
        return;
    one_model(path, "smollm2", "text-700", HY_ACT_INT8, 512, NULL);
    one_model(path, "smollm2", "text-700", HY_ACT_F32, 512, NULL);
}

static void qwen(void **state)
{
    (void)state;
    if (!full())
        skip();
    one_model(real_path("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"), "qwen05", "text-700",
              HY_ACT_INT8, 512, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny),
        cmocka_unit_test(smollm2),
        cmocka_unit_test(qwen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
