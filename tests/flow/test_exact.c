/* SPDX-License-Identifier: Apache-2.0
 *
 * Exactness: a token's logits have the same bits whether its request runs alone or among others,
 * however the prompt is cut, whatever the block size of the cache, the number of threads and the
 * instruction set. The yardstick is the scalar reference, one thread, one pass.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/base/file.h"
#include "tests/golden/lm.h"
#include "tests/golden/togguf.h"
#include "tests/thin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_N = 300, SEQS = 4 };

typedef struct kase {
    const char *family; /* of tests/golden/tiny, or a file under $HY_MODELS */
    const char *gguf;   /* matrix type: convert first; NULL: as it is */
    hy_act_mode act;
    hy_dtype kv;
    int32_t n; /* tokens */
} kase;

typedef struct logits {
    float *v; /* [n][vocab] */
    int32_t n, vocab;
} logits;

typedef struct way { /* of running */
    const char *name;
    const char *isa;
    int threads;
    int32_t block_tokens, chunk;
    bool others;
} way;

static int32_t token(int32_t seq, int32_t i, int32_t vocab)
{
    return (int32_t)(((int64_t)i * 7919 + seq * 104729 + 13) % (vocab < 40000 ? vocab : 40000));
}

static void keep(void *arg, int32_t pos, const float *v)
{
    logits *l = arg;
    memcpy(l->v + (size_t)pos * (size_t)l->vocab, v, sizeof(float) * (size_t)l->vocab);
}

/* Sequence 0 in chunks, among three others whose chunks are of other sizes and ends. */
static hy_status run_among(lm *l, int32_t ids[SEQS][MAX_N], const way *w, logits *out)
{
    int32_t at[SEQS] = {0}, size[SEQS] = {w->chunk, 3, 11, 1};
    while (at[0] < out->n) {
        lm_part p[SEQS];
        int32_t n = 0, row = 0, mine = 0;
        for (int32_t s = SEQS - 1; s >= 0; s--) { /* ours is the last of the batch */
            int32_t left = out->n - at[s], take = left < size[s] ? left : size[s];
            if (take <= 0)
                continue;
            mine = row;
            p[n++] = (lm_part){.slot = s, .ids = ids[s], .from = at[s], .n = take};
            row += take;
        }
        HY_TRY(lm_step(l, p, n));
        for (int32_t i = 0; i < p[n - 1].n; i++)
            keep(out, at[0] + i, hy_exec_logits(l->exec, mine + i));
        for (int32_t s = 0; s < SEQS; s++)
            at[s] += size[s];
    }
    return HY_OK;
}

/* HY_E_UNSUPPORTED when the machine lacks the instruction set. */
static hy_status run_way(const char *path, const kase *k, const way *w, logits *out)
{
    static int32_t ids[SEQS][MAX_N];
    lm l;
    lm_opts o = {.act = k->act,
                 .kv = k->kv,
                 .isa = w->isa,
                 .threads = w->threads,
                 .block_tokens = w->block_tokens,
                 .max_rows = w->chunk + 16,
                 .max_seqs = SEQS};
    HY_TRY(lm_open(path, &o, &l));
    out->n = k->n;
    out->vocab = l.model->cfg.vocab;
    if (out->v == NULL)
        out->v = calloc((size_t)out->n * (size_t)out->vocab, sizeof(float));
    assert_non_null(out->v);
    for (int32_t s = 0; s < SEQS; s++)
        for (int32_t i = 0; i < k->n; i++)
            ids[s][i] = token(s, i, out->vocab);
    hy_status st = w->others ? run_among(&l, ids, w, out)
                             : lm_run(&l, 0, ids[0], k->n, w->chunk, 0, keep, out);
    lm_close(&l);
    return st;
}

static void check_ways(const char *path, const kase *k, const way *ways, size_t n)
{
    static const way base = {"scalar", "scalar", 1, 16, MAX_N, false};
    logits want = {0}, got = {0};
    hy_status st = run_way(path, k, &base, &want);
    if (st < 0)
        print_error("%s\n", hy_fail_text());
    assert_int_equal(st, HY_OK);
    static size_t turn; /* thin: each case runs every third way, the next one the others */
    turn++;
    for (size_t i = 0; i < n; i++) {
        if (test_thin() && (i + turn) % 3 != 0)
            continue;
        st = run_way(path, k, &ways[i], &got);
        if (st == HY_E_UNSUPPORTED && ways[i].isa != NULL) {
            print_message("  %s: %s\n", ways[i].name, hy_fail_text());
            continue;
        }
        if (st < 0)
            print_error("%s\n", hy_fail_text());
        assert_int_equal(st, HY_OK);
        for (int32_t r = 0; r < want.n; r++) {
            size_t row = (size_t)r * (size_t)want.vocab;
            if (memcmp(want.v + row, got.v + row, sizeof(float) * (size_t)want.vocab) != 0)
                fail_msg("%s, %s: logits of position %d have other bits", k->family, ways[i].name,
                         r);
        }
        memset(got.v, 0, sizeof(float) * (size_t)got.n * (size_t)got.vocab);
    }
    free(want.v);
    free(got.v);
}

static const way tiny_ways[] = {
    {"one token a step", NULL, 1, 16, 1, false},
    {"chunks of 7", NULL, 1, 16, 7, false},
    {"chunks of 100", NULL, 2, 16, 100, false},
    {"blocks of 32", NULL, 1, 32, 64, false},
    {"blocks of 64", NULL, 1, 64, 48, false},
    {"among others", NULL, 1, 16, 33, true},
    {"among others, decoding", NULL, 2, 16, 1, true},
    {"scalar, among others", "scalar", 1, 16, 29, true},
    {"2 threads", NULL, 2, 16, 64, false},
    {"3 threads", NULL, 3, 16, 64, true},
    {"avx2", "avx2", 1, 16, MAX_N, false},
    {"avx512", "avx512", 1, 16, MAX_N, false},
};

static void test_tiny(void **state)
{
    const kase *k = *state;
    char dir[1024], out[64] = "/tmp/hy-exact-XXXXXX";
    snprintf(dir, sizeof(dir), "%s/tests/golden/tiny/%s", lm_source_dir(), k->family);
    if (k->gguf == NULL) {
        check_ways(dir, k, tiny_ways, HY_COUNTOF(tiny_ways));
        return;
    }
    int fd = mkstemp(out);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(togguf(dir, k->family, k->gguf, out), HY_OK);
    check_ways(out, k, tiny_ways, HY_COUNTOF(tiny_ways));
    unlink(out);
}

static const way real_ways[] = {
    {"auto, 2 threads, chunks of 5", NULL, 2, 16, 5, false},
    {"among others", NULL, 2, 16, 13, true},
    {"avx2", "avx2", 1, 16, 64, false},
    {"avx512", "avx512", 1, 16, 64, false},
};

static void test_real(void **state)
{
    const kase *k = *state;
    char path[1024];
    const char *dir = getenv("HY_MODELS"), *full = getenv("HY_FULL");
    snprintf(path, sizeof(path), "%s/%s", dir != NULL ? dir : "", k->family);
    if (test_thin()) {
        print_message("real models run without HY_THIN\n");
        skip();
    }
    if (dir == NULL || !hy_file_exists(path)) {
        print_message("%s is not under $HY_MODELS\n", k->family);
        skip();
    }
    if (strncmp(k->family, "SmolLM2", 7) != 0 && (full == NULL || full[0] != '1')) {
        print_message("%s runs with HY_FULL=1\n", k->family);
        skip();
    }
    check_ways(path, k, real_ways, HY_COUNTOF(real_ways));
}

static const kase llama = {"llama", NULL, HY_ACT_F32, HY_F32, 300};
static const kase llama_f16 = {"llama-tied-f16", NULL, HY_ACT_INT8, HY_F16, 300};
static const kase qwen2 = {"qwen2", NULL, HY_ACT_INT8, HY_BF16, 300};
static const kase qwen3 = {"qwen3", NULL, HY_ACT_F32, HY_F16, 300};
static const kase gemma3 = {"gemma3", NULL, HY_ACT_F32, HY_F32, 300};
static const kase phi3 = {"phi3", NULL, HY_ACT_F32, HY_F16, 300};
static const kase qwen2_q8 = {"qwen2", "q8_0", HY_ACT_INT8, HY_F16, 300};
static const kase gemma3_q8 = {"gemma3", "q8_0", HY_ACT_INT8, HY_F16, 300};
static const kase llama_q8 = {"llama", "q8_0", HY_ACT_F32, HY_F32, 300};
static const kase smollm2_q8 = {"SmolLM2-135M-Instruct.Q4_1.gguf", NULL, HY_ACT_INT8, HY_F16, 24};
static const kase smollm2_f32 = {"SmolLM2-135M-Instruct.Q4_1.gguf", NULL, HY_ACT_F32, HY_F32, 16};
static const kase gemma = {"gemma-3-270m-q4_k_m.gguf", NULL, HY_ACT_INT8, HY_F16, 24};
static const kase qwen05 = {"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", NULL, HY_ACT_INT8, HY_F16,
                            24};
static const kase qwen15 = {"qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", NULL, HY_ACT_INT8, HY_F16,
                            24};

#define TINY(k)                                                                                    \
    {                                                                                              \
        "tiny " #k, test_tiny, NULL, NULL, (void *)(uintptr_t)&k                                   \
    }
#define REAL(k)                                                                                    \
    {                                                                                              \
        "real " #k, test_real, NULL, NULL, (void *)(uintptr_t)&k                                   \
    }

int main(int argc, char **argv)
{
    if (argc > 1) /* a pattern: "tiny*" */
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        TINY(llama),       TINY(llama_f16), TINY(qwen2),     TINY(qwen3),    TINY(gemma3),
        TINY(phi3),        TINY(qwen2_q8),  TINY(gemma3_q8), TINY(llama_q8), REAL(smollm2_q8),
        REAL(smollm2_f32), REAL(gemma),     REAL(qwen05),    REAL(qwen15),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
