/* SPDX-License-Identifier: Apache-2.0
 *
 * Real models against an independent float32 oracle, by the rules of golden/README.md: for each
 * model under $HY_MODELS, in both classes of numerics:
 *   f32 (activations f32, KV f32): |d log p| <= 0.001, argmax where the margin is >= 0.002, mean
 *       negative log-likelihood within 0.0005;
 *   q8 (the defaults: int8 activations, KV f16): the table's tolerance and margin; mean |d| and
 *       KL over the whole file no worse than llama.cpp's figures plus 5 %.
 * By default a few prompts of SmolLM2; HY_FULL=1 runs everything. An absent model is skipped by
 * name.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/base/file.h"
#include "tests/golden/lm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct real_model {
    const char *name, *file;
    double q8_tol, q8_margin; /* the README's table */
} real_model;

static const real_model smollm2 = {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", 1.0, 0.6};
static const real_model gemma3 = {"gemma3", "gemma-3-270m-q4_k_m.gguf", 0.7, 0.5};
static const real_model qwen05 = {"qwen05", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 0.3, 0.2};
static const real_model qwen15 = {"qwen15", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 2.0, 0.3};

static bool asked; /* a pattern on the command line: run it, whatever the model */

static bool full(void)
{
    const char *f = getenv("HY_FULL");
    return f != NULL && f[0] == '1';
}

static const char *env_or(const char *name, const char *def)
{
    const char *v = getenv(name);
    return v != NULL && v[0] != '\0' ? v : def;
}

/* Skips when the model is absent, or is not the one of the quick run. */
static void open_real(const real_model *m, hy_act_mode act, hy_dtype kv, lm *l)
{
    char path[1024];
    const char *dir = getenv("HY_MODELS");
    snprintf(path, sizeof(path), "%s/%s", dir != NULL ? dir : "", m->file);
    if (dir == NULL || !hy_file_exists(path)) {
        print_message("%s is not under $HY_MODELS\n", m->file);
        skip();
    }
    if (m != &smollm2 && !full() && !asked) {
        print_message("%s runs with HY_FULL=1\n", m->name);
        skip();
    }
    lm_opts o = {.act = act,
                 .kv = kv,
                 .isa = getenv("HY_ISA"),
                 .threads = atoi(env_or("HY_THREADS", "2")),
                 .context = 2304,
                 .max_rows = 64};
    hy_status st = lm_open(path, &o, l);
    if (st < 0)
        print_error("%s\n", hy_fail_text());
    assert_int_equal(st, HY_OK);
}

static void golden_path(const real_model *m, const char *file, char *out, size_t cap)
{
    snprintf(out, cap, "%s/tests/golden/%s/%s", lm_source_dir(), m->name, file);
    if (!hy_file_exists(out)) /* too large for the repository */
        snprintf(out, cap, "%s/%s/%s", env_or("HY_GOLDEN", "/nonexistent"), m->name, file);
}

/* Divergence from the oracle, from what a line holds of its distribution. */
typedef struct divergence {
    const real_model *m;
    json_t *line;
    int32_t vocab;
    double lumped; /* sum over positions: the five best, the rest as one */
    int64_t n;
    double exact; /* where the whole distribution is there */
    int64_t n_exact;
    float *whole;
} divergence;

static double lumped_kl(json_t *top, const float *logits, double lse)
{
    double p_rest = 1.0, q_rest = 1.0, kl = 0.0;
    for (size_t i = 0; i < json_array_size(top); i++) {
        json_t *t = json_array_get(top, i);
        double lp = json_number_value(json_array_get(t, 1));
        double lq = logits[json_integer_value(json_array_get(t, 0))] - lse;
        kl += exp(lp) * (lp - lq);
        p_rest -= exp(lp);
        q_rest -= exp(lq);
    }
    if (p_rest > 1e-6 && q_rest > 1e-9)
        kl += p_rest * log(p_rest / q_rest);
    return kl > 0.0 ? kl : 0.0;
}

static void exact_kl(divergence *d, int32_t step, const float *logits, double lse)
{
    json_t *f = json_object_get(d->line, "full"), *steps = json_object_get(f, "steps");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        if (json_integer_value(json_array_get(steps, i)) != step)
            continue;
        char path[1024];
        golden_path(d->m, json_string_value(json_object_get(f, "file")), path, sizeof(path));
        FILE *in = fopen(path, "rb");
        if (in == NULL)
            return;
        d->whole = realloc(d->whole, sizeof(float) * (size_t)d->vocab);
        assert_non_null(d->whole);
        assert_int_equal(fseek(in, (long)(sizeof(float) * (size_t)d->vocab * i), SEEK_SET), 0);
        assert_int_equal(fread(d->whole, sizeof(float), (size_t)d->vocab, in), d->vocab);
        fclose(in);
        double kl = 0.0;
        for (int32_t v = 0; v < d->vocab; v++)
            kl += exp((double)d->whole[v]) * (d->whole[v] - (logits[v] - lse));
        d->exact += kl;
        d->n_exact++;
    }
}

static void on_row(void *arg, int32_t step, const float *logits)
{
    divergence *d = arg;
    double lse = lm_lse(logits, d->vocab);
    json_t *top = json_array_get(json_object_get(d->line, "top"), (size_t)step);
    d->lumped += lumped_kl(top, logits, lse);
    d->n++;
    exact_kl(d, step, logits, lse);
}

static bool in_quick(const char *id)
{
    static const char *const ids[] = {"one-token", "capital", "chinese", "chat"};
    for (size_t i = 0; i < HY_COUNTOF(ids); i++)
        if (strcmp(ids[i], id) == 0)
            return true;
    return false;
}

static void run_generate(const real_model *m, bool f32)
{
    char path[1024];
    lm l;
    open_real(m, f32 ? HY_ACT_F32 : HY_ACT_INT8, f32 ? HY_F32 : HY_F16, &l);
    golden_path(m, "generate.jsonl", path, sizeof(path));
    json_t *lines = lm_read_jsonl(path);
    assert_non_null(lines);
    double tol = f32 ? 0.001 : m->q8_tol, margin = f32 ? 0.002 : m->q8_margin;
    lm_score s = {0};
    divergence d = {.m = m, .vocab = l.model->cfg.vocab};
    for (size_t i = 0; i < json_array_size(lines); i++) {
        d.line = json_array_get(lines, i);
        const char *id = json_string_value(json_object_get(d.line, "id"));
        const char *only = getenv("HY_ONLY"); /* one prompt, to look at it */
        if (only != NULL ? strcmp(only, id) != 0 : !full() && !in_quick(id))
            continue;
        lm_score one = {0};
        assert_int_equal(lm_generate(&l, d.line, margin, &one, on_row, &d), HY_OK);
        print_message("  %-14s mean %.2g max %.2g", id, one.sum / (double)one.n, one.max);
        print_message(one.top1_miss > 0 ? " missed %d, margin up to %.2f\n" : "\n",
                      (int)one.top1_miss, one.worst_margin);
        s.sum += one.sum;
        s.n += one.n;
        s.max = one.max > s.max || isnan(one.max) ? one.max : s.max;
        s.argmax_wrong += one.argmax_wrong;
        s.top1_miss += one.top1_miss;
    }
    double mean = s.sum / (double)s.n, kl = d.lumped / (double)d.n;
    print_message("%s %s: %d positions, |d| mean %.3g max %.3g, KL >= %.3g, whole KL %.3g (%d), "
                  "top-1 missed %d\n",
                  m->name, f32 ? "f32" : "q8", (int)s.n, mean, s.max, kl,
                  d.n_exact > 0 ? d.exact / (double)d.n_exact : 0.0, (int)d.n_exact,
                  (int)s.top1_miss);
    assert_true(s.max <= tol);
    assert_int_equal(s.argmax_wrong, 0);
    if (!f32 && full()) {
        golden_path(m, "llama_cpp_scores.json", path, sizeof(path));
        json_t *ref = json_load_file(path, 0, NULL);
        assert_non_null(ref);
        double d_ref =
            json_number_value(json_object_get(json_object_get(ref, "abs_dlogprob"), "mean"));
        double kl_ref = json_number_value(json_object_get(json_object_get(ref, "kl"), "mean"));
        print_message("%s: llama.cpp has |d| mean %.3g, KL %.3g\n", m->name, d_ref, kl_ref);
        assert_true(mean <= d_ref * 1.05);
        assert_true(kl <= kl_ref * 1.05);
        json_decref(ref);
    }
    free(d.whole);
    json_decref(lines);
    lm_close(&l);
}

typedef struct likelihood {
    const int32_t *ids;
    int32_t n, vocab;
    json_t *nll;
    double sum, want, diff;
} likelihood;

static void add_nll(void *arg, int32_t pos, const float *logits)
{
    likelihood *k = arg;
    if (pos + 1 >= k->n)
        return;
    double v = lm_lse(logits, k->vocab) - logits[k->ids[pos + 1]];
    double w = json_number_value(json_array_get(k->nll, (size_t)pos));
    k->sum += v;
    k->want += w;
    k->diff += fabs(v - w);
}

static void run_perplexity(const real_model *m, bool f32)
{
    char path[1024];
    lm l;
    open_real(m, f32 ? HY_ACT_F32 : HY_ACT_INT8, f32 ? HY_F32 : HY_F16, &l);
    golden_path(m, "perplexity.json", path, sizeof(path));
    json_t *root = json_load_file(path, 0, NULL);
    json_t *text = json_object_get(root, "harbour.txt");
    assert_non_null(text);
    size_t n = 0;
    int32_t *ids = lm_ids(json_object_get(text, "ids"), &n);
    size_t use = full() || n < 128 ? n : 128;
    likelihood k = {.ids = ids,
                    .n = (int32_t)use,
                    .vocab = l.model->cfg.vocab,
                    .nll = json_object_get(text, "nll")};
    assert_int_equal(lm_run(&l, 0, ids, (int32_t)use - 1, 64, 0, add_nll, &k), HY_OK);
    double c = (double)(use - 1), got = k.sum / c, want = k.want / c;
    print_message("%s %s: %d tokens, NLL %.5f, oracle %.5f, mean |d| %.3g\n", m->name,
                  f32 ? "f32" : "q8", (int)use, got, want, k.diff / c);
    if (f32) {
        assert_true(fabs(got - want) <= 0.0005);
    } else if (full()) {
        double ref = json_number_value(json_object_get(text, "llama_cpp_mean_nll"));
        double oracle = json_number_value(json_object_get(text, "mean_nll"));
        double d_ref =
            json_number_value(json_object_get(json_object_get(text, "llama_cpp_abs_diff"), "mean"));
        assert_true(fabs(got - oracle) <= fabs(ref - oracle) + 0.002);
        print_message("%s: llama.cpp has mean |d| %.3g\n", m->name, d_ref);
        assert_true(k.diff / c <= d_ref * 1.05);
    }
    free(ids);
    json_decref(root);
    lm_close(&l);
}

static void generate_f32(void **state)
{
    run_generate(*state, true);
}

static void generate_q8(void **state)
{
    run_generate(*state, false);
}

static void perplexity_f32(void **state)
{
    run_perplexity(*state, true);
}

static void perplexity_q8(void **state)
{
    run_perplexity(*state, false);
}

#define MODEL(m)                                                                                   \
    {#m " generate f32", generate_f32, NULL, NULL, (void *)(uintptr_t)&m},                         \
        {#m " generate q8", generate_q8, NULL, NULL, (void *)(uintptr_t)&m},                       \
        {#m " perplexity f32", perplexity_f32, NULL, NULL, (void *)(uintptr_t)&m},                 \
    {                                                                                              \
#m " perplexity q8", perplexity_q8, NULL, NULL, (void *)(uintptr_t)&m                      \
    }

int main(int argc, char **argv)
{
    asked = argc > 1;
    if (asked) /* "gemma3*" */
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {MODEL(smollm2), MODEL(gemma3), MODEL(qwen05), MODEL(qwen15)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
