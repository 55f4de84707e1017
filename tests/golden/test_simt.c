/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiny models on the GPU kernels, run by the host executor: the golden f32 rule as for the cpu
 * backend (test_tiny.c), and the same bits at wave 32 and 64, in one chunk or many, split over
 * segments or not, beside other sequences or alone.
 *
 * Thread: one.  Owner: each test.
 */
#include "tests/golden/lm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const wave32[] = {"wave=32", "check=true", NULL};
static const char *const wave64[] = {"wave=64", NULL};
static const char *const wave64_split[] = {"wave=64", "split=on", NULL};

static void open_tiny(const char *family, const char *const *kv, int threads, lm *l)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", lm_source_dir(), family);
    lm_opts o = {.act = HY_ACT_F32,
                 .kv = HY_F32,
                 .backend = "simt",
                 .dev_kv = kv,
                 .threads = threads,
                 .max_seqs = 3};
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
    json_t *lines = golden(family);
    lm_score s = {0};
    lm l;
    open_tiny(family, wave32, 1, &l);
    for (size_t i = 0; i < json_array_size(lines); i += 2)
        assert_int_equal(lm_generate(&l, json_array_get(lines, i), 5e-4, &s, NULL, NULL), HY_OK);
    print_message("%s: %d positions, mean %.2g, max %.2g\n", family, (int)s.n, s.sum / (double)s.n,
                  s.max);
    assert_int_equal(s.n, 4 * 32);
    assert_true(s.max <= 2e-4);
    assert_int_equal(s.argmax_wrong, 0);
    json_decref(lines);
    lm_close(&l);
}

/* Logits of every position. */
typedef struct log {
    float *v;
    int32_t vocab;
} log_rows;

static void keep(void *arg, int32_t pos, const float *logits)
{
    log_rows *k = arg;
    memcpy(k->v + (size_t)pos * (size_t)k->vocab, logits, sizeof(float) * (size_t)k->vocab);
}

static void run_all(const char *family, const char *const *kv, int threads, const int32_t *ids,
                    int32_t n, int32_t chunk, log_rows *out)
{
    lm l;
    open_tiny(family, kv, threads, &l);
    out->vocab = l.model->cfg.vocab;
    out->v = calloc((size_t)n * (size_t)out->vocab, sizeof(float));
    assert_int_equal(lm_run(&l, 1, ids, n, chunk, 0, keep, out), HY_OK);
    lm_close(&l);
}

/* The longest prompt and what follows it. */
static int32_t *long_ids(const char *family, int32_t *n_out)
{
    json_t *lines = golden(family), *best = NULL;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        json_t *line = json_array_get(lines, i);
        if (best == NULL || json_array_size(json_object_get(line, "ids")) >
                                json_array_size(json_object_get(best, "ids")))
            best = line;
    }
    size_t n = 0;
    int32_t *ids = lm_ids(json_object_get(best, "ids"), &n);
    json_decref(lines);
    *n_out = (int32_t)(n < 300 ? n : 300);
    return ids;
}

static void test_bits(void **state)
{
    const char *family = *state;
    static const struct {
        const char *const *kv;
        int threads;
        int32_t chunk;
    } ways[] = {{wave64, 2, 64}, {wave64_split, 1, 64}, {wave32, 2, 7}, {wave64, 1, 9}};
    int32_t n = 0, *ids = long_ids(family, &n);
    log_rows first, other;
    run_all(family, wave32, 1, ids, n, 64, &first);
    for (size_t i = 0; i < HY_COUNTOF(ways); i++) {
        run_all(family, ways[i].kv, ways[i].threads, ids, n, ways[i].chunk, &other);
        for (int32_t p = 0; p < n; p++) {
            size_t at = (size_t)p * (size_t)first.vocab;
            if (memcmp(first.v + at, other.v + at, sizeof(float) * (size_t)first.vocab) != 0)
                fail_msg("way %d: position %d of %d has other bits", (int)i, p, n);
        }
        free(other.v);
    }
    free(first.v);
    free(ids);
}

/* A sequence beside two others, in one step, as alone. */
static void test_batch(void **state)
{
    const char *family = *state;
    enum { N = 12 };
    int32_t n = 0, *ids = long_ids(family, &n);
    log_rows alone;
    assert_true(n >= N);
    run_all(family, wave32, 1, ids, N, 64, &alone);
    lm l;
    open_tiny(family, wave64, 2, &l);
    lm_part parts[3] = {{.slot = 0, .ids = ids + 1, .n = 5},
                        {.slot = 1, .ids = ids, .n = N},
                        {.slot = 2, .ids = ids + 2, .n = 9}};
    parts[0].logits_from = 5;
    parts[2].logits_from = 9;
    assert_int_equal(lm_step(&l, parts, 3), HY_OK);
    for (int32_t i = 0; i < N; i++)
        assert_memory_equal(hy_exec_logits(l.exec, 5 + i),
                            alone.v + (size_t)i * (size_t)alone.vocab,
                            sizeof(float) * (size_t)alone.vocab);
    lm_close(&l);
    free(alone.v);
    free(ids);
}

#define TEST(name, fn, f)                                                                          \
    {                                                                                              \
        name " " f, fn, NULL, NULL, (void *)(uintptr_t)f                                           \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST("generate", test_generate, "llama"),
        TEST("bits", test_bits, "llama"),
        TEST("bits", test_bits, "gemma3"),
        TEST("batch", test_batch, "qwen3"),
        TEST("generate", test_generate, "llama-tied-f16"),
        TEST("generate", test_generate, "qwen2"),
        TEST("generate", test_generate, "qwen3"),
        TEST("generate", test_generate, "gemma3"),
        TEST("generate", test_generate, "phi3"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
