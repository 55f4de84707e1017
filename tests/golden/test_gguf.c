/* SPDX-License-Identifier: Apache-2.0
 *
 * A tiny model gives the same logits from a GGUF file as from its Hugging Face folder: bit for bit
 * where the values are the same, within rounding for llama (rotation pairs other dimensions, and
 * llama3's factors are stored rounded).
 *
 * Thread: one.  Owner: each test.
 */
#include "core/base/buf.h"
#include "tests/golden/lm.h"
#include "tests/golden/togguf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 40, VOCAB = 512 };

typedef struct rows {
    float v[N][VOCAB];
} rows;

static void keep(void *arg, int32_t pos, const float *logits)
{
    memcpy(((rows *)arg)->v[pos], logits, sizeof(float) * VOCAB);
}

static void run(const char *path, rows *out, char *fingerprint_hex)
{
    int32_t ids[N];
    for (int i = 0; i < N; i++)
        ids[i] = (i * 131 + 7) % VOCAB;
    lm l;
    lm_opts o = {.act = HY_ACT_F32, .kv = HY_F32};
    hy_status st = lm_open(path, &o, &l);
    if (st < 0)
        print_error("%s\n", hy_fail_text());
    assert_int_equal(st, HY_OK);
    assert_int_equal(l.model->cfg.vocab, VOCAB);
    for (int i = 0; i < 32; i++)
        snprintf(fingerprint_hex + 2 * i, 3, "%02x", l.model->fingerprint[i]);
    assert_int_equal(lm_run(&l, 0, ids, N, 16, 0, keep, out), HY_OK);
    lm_close(&l);
}

static void test_same(void **state)
{
    const char *family = *state;
    static rows hf, gguf;
    char dir[1024], out[64] = "/tmp/hy-gguf-XXXXXX", f1[65], f2[65];
    int fd = mkstemp(out);
    assert_true(fd >= 0);
    close(fd);
    snprintf(dir, sizeof(dir), "%s/tests/golden/tiny/%s", lm_source_dir(), family);
    hy_status st = togguf(dir, family, strstr(family, "f16") != NULL ? "f32" : "bf16", out);
    if (st < 0)
        print_error("%s\n", hy_fail_text());
    assert_int_equal(st, HY_OK);
    run(dir, &hf, f1);
    run(out, &gguf, f2);
    assert_string_not_equal(f1, f2); /* other files */
    run(out, &gguf, f1);
    assert_string_equal(f1, f2); /* the same file */
    double worst = 0.0;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < VOCAB; k++)
            worst = fmax(worst, fabs((double)hf.v[i][k] - (double)gguf.v[i][k]));
    print_message("%s: largest difference %.3g\n", family, worst);
    assert_true(worst <= (strncmp(family, "llama", 5) == 0 ? 1e-4 : 0.0));
    unlink(out);
}

/* Quantised matrices: logits move, but little; and int8 activations move them little more. */
static void test_q8(void **state)
{
    (void)state;
    static rows hf, q8;
    char dir[1024], out[64] = "/tmp/hy-gguf-XXXXXX", f[65];
    int fd = mkstemp(out);
    assert_true(fd >= 0);
    close(fd);
    snprintf(dir, sizeof(dir), "%s/tests/golden/tiny/qwen2", lm_source_dir());
    assert_int_equal(togguf(dir, "qwen2", "q8_0", out), HY_OK);
    run(dir, &hf, f);
    run(out, &q8, f);
    double sum = 0.0;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < VOCAB; k++)
            sum += fabs((double)hf.v[i][k] - (double)q8.v[i][k]);
    print_message("q8_0: mean difference %.3g\n", sum / (N * VOCAB));
    assert_true(sum > 0.0 && sum / (N * VOCAB) < 0.1);
    unlink(out);
}

#define SAME(f)                                                                                    \
    {                                                                                              \
        "same " f, test_same, NULL, NULL, (void *)(uintptr_t)f                                     \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAME("llama"),
        SAME("llama-tied-f16"),
        SAME("qwen2"),
        SAME("qwen3"),
        SAME("gemma3"),
        SAME("phi3"),
        {"q8", test_q8, NULL, NULL, NULL},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
