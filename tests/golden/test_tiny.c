/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiny random models of every dense family against an independent oracle (tests/golden/tiny, made
 * as golden/README.md says): teacher-forced log-probabilities within 2e-4, argmax where the margin
 * is at least 5e-4, hidden states within 1e-4 + 1e-4 |x|.
 *
 * Thread: one.  Owner: each test.
 */
#include "tests/golden/lm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void open_tiny(const char *family, lm *l)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", lm_source_dir(), family);
    lm_opts o = {.act = HY_ACT_F32, .kv = HY_F32};
    hy_status st = lm_open(path, &o, l);
    if (st < 0)
        print_error("%s: %s\n", family, hy_fail_text());
    assert_int_equal(st, HY_OK);
}

static json_t *golden(const char *family)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s/generate.jsonl", lm_source_dir(), family);
    return lm_read_jsonl(path);
}

static void test_generate(void **state)
{
    const char *family = *state;
    lm l;
    open_tiny(family, &l);
    json_t *lines = golden(family);
    assert_int_equal(json_array_size(lines), 8);
    lm_score s = {0};
    for (size_t i = 0; i < json_array_size(lines); i++)
        assert_int_equal(lm_generate(&l, json_array_get(lines, i), 5e-4, &s, NULL, NULL), HY_OK);
    print_message("%s: %d positions, mean %.2g, max %.2g\n", family, (int)s.n, s.sum / (double)s.n,
                  s.max);
    assert_int_equal(s.n, 8 * 32);
    assert_true(s.max <= 2e-4);
    assert_int_equal(s.argmax_wrong, 0);
    json_decref(lines);
    lm_close(&l);
}

typedef struct hidden {
    const float *want; /* [n_layers + 1][7][dim] */
    int32_t dim, seen;
    double worst; /* of |difference| / (1e-4 + 1e-4 |x|) */
} hidden;

static void compare(hidden *h, int32_t layer, const float *x, int32_t rows)
{
    const float *w = h->want + (size_t)layer * (size_t)rows * (size_t)h->dim;
    for (int32_t i = 0; i < rows * h->dim; i++) {
        double d = fabs((double)x[i] - (double)w[i]) / (1e-4 + 1e-4 * fabs((double)w[i]));
        h->worst = d > h->worst || isnan(d) ? d : h->worst;
    }
    h->seen++;
}

typedef struct probe {
    hidden h;
    lm *l;
} probe;

/* The stream after the embedding is the input of layer 0, after an FFN that of the next one; the
 * last entry is the final norm's output. */
static void on_step(void *arg, const hy_step *s, const float *x, int32_t rows)
{
    probe *p = arg;
    int32_t last = p->l->model->cfg.n_layers;
    if (s->kind == HY_STEP_EMBED)
        compare(&p->h, 0, x, rows);
    else if (s->kind == HY_STEP_FFN && s->layer + 1 < last)
        compare(&p->h, s->layer + 1, x, rows);
    if (s->kind != HY_STEP_HEAD)
        return;
    const hy_norm_w *w = &s->u.head.norm;
    float *y = calloc((size_t)rows * (size_t)p->h.dim, sizeof(float));
    for (int32_t r = 0; r < rows; r++) {
        const float *v = x + (size_t)r * (size_t)p->h.dim;
        double ss = 0.0;
        for (int32_t i = 0; i < p->h.dim; i++)
            ss += (double)v[i] * (double)v[i];
        double scale = 1.0 / sqrt(ss / p->h.dim + (double)w->eps);
        for (int32_t i = 0; i < p->h.dim; i++)
            y[r * p->h.dim + i] = (float)(v[i] * scale * (double)w->w[i]);
    }
    compare(&p->h, last, y, rows);
    free(y);
}

static void test_hidden(void **state)
{
    const char *family = *state;
    char path[1024];
    lm l;
    open_tiny(family, &l);
    size_t n = (size_t)(l.model->cfg.n_layers + 1) * 7 * (size_t)l.model->cfg.dim, n_ids = 0;
    float *want = calloc(n, sizeof(float));
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s/hidden.f32", lm_source_dir(), family);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(want, sizeof(float), n, f), n);
    fclose(f);
    json_t *lines = golden(family), *line = json_array_get(lines, 2);
    assert_string_equal(json_string_value(json_object_get(line, "id")), "random-7");
    int32_t *ids = lm_ids(json_object_get(line, "ids"), &n_ids);
    assert_int_equal(n_ids, 7);
    probe p = {.h = {.want = want, .dim = l.model->cfg.dim}, .l = &l};
    hy_exec_set_probe(l.exec, on_step, &p);
    assert_int_equal(lm_run(&l, 0, ids, 7, 64, 0, NULL, NULL), HY_OK);
    print_message("%s: worst hidden difference is %.3f of the tolerance\n", family, p.h.worst);
    assert_int_equal(p.h.seen, l.model->cfg.n_layers + 1);
    assert_true(p.h.worst <= 1.0);
    free(ids);
    free(want);
    json_decref(lines);
    lm_close(&l);
}

#define FAMILY(f)                                                                                  \
    {"generate " f, test_generate, NULL, NULL, (void *)(uintptr_t)f},                              \
    {                                                                                              \
        "hidden " f, test_hidden, NULL, NULL, (void *)(uintptr_t)f                                 \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAMILY("llama"), FAMILY("llama-tied-f16"), FAMILY("qwen2"),
        FAMILY("qwen3"), FAMILY("gemma3"),         FAMILY("phi3"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
