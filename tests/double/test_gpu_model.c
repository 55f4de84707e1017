/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole tiny model through a GPU module and the double of its vendor's library: the bits of the
 * host executor at both waves and many seeds, decode steps as graphs, and at calls all over the run
 * failures of every kind: a clean status, nothing left, no wrong logits.
 *
 * HY_TEST_BACKEND, HY_TEST_DRIVER: which. Thread: main.  Owner: each test.
 */
#include "tests/double/sim.h"
#include "tests/golden/lm.h"
#include "tests/thin.h"
#include "tests/unit/cm.h"

#include <dlfcn.h>
#include <string.h>

enum { PROMPT = 21, STEPS = 5, ALL = PROMPT + STEPS, CHUNK = 12, SEQS = 2 };

static const char *backend;
static char driver_kv[600];
static const char *const own_kv[] = {driver_kv, NULL};
static const char *const simt_kv[] = {"wave=32", NULL};

static void (*set)(const sim_plan *);
static int (*calls)(void);
static int (*runs)(const char *);
static void (*revive)(void);

static void find_double(const char *path)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(lib);
    void *f[] = {dlsym(lib, "sim_set"), dlsym(lib, "sim_calls"), dlsym(lib, "sim_runs"),
                 dlsym(lib, "sim_revive")};
    memcpy(&set, &f[0], sizeof(f[0]));
    memcpy(&calls, &f[1], sizeof(f[1]));
    memcpy(&runs, &f[2], sizeof(f[2]));
    memcpy(&revive, &f[3], sizeof(f[3]));
}

/* Logits of the last prompt row and of each step, of two sequences. */
typedef struct result {
    int32_t vocab;
    float *v; /* [SEQS][1 + STEPS][vocab] */
} result;

static hy_status keep(lm *l, result *r, int32_t seq, int32_t k, int32_t row)
{
    const float *logits = hy_exec_logits(l->exec, row);
    if (logits == NULL)
        return hy_fail(HY_E_DEVICE, "no logits: %.200s", hy_fail_text());
    memcpy(r->v + (size_t)(seq * (1 + STEPS) + k) * (size_t)r->vocab, logits,
           sizeof(float) * (size_t)r->vocab);
    return HY_OK;
}

/* Prompts in chunks, then decode steps of both sequences at once. */
static hy_status run(lm *l, result *r)
{
    int32_t ids[SEQS][ALL];
    r->vocab = l->model->cfg.vocab;
    r->v = calloc((size_t)SEQS * (1 + STEPS) * (size_t)r->vocab, sizeof(float));
    assert_non_null(r->v);
    for (int32_t s = 0; s < SEQS; s++) {
        for (int32_t i = 0; i < ALL; i++)
            ids[s][i] = (i * 7919 + s * 104729 + 5) % r->vocab;
        HY_TRY(lm_run(l, s, ids[s], PROMPT, CHUNK, PROMPT - 1, NULL, NULL));
        HY_TRY(keep(l, r, s, 0, (PROMPT - 1) % CHUNK));
    }
    for (int32_t k = 0; k < STEPS; k++) {
        lm_part parts[SEQS];
        for (int32_t s = 0; s < SEQS; s++)
            parts[s] = (lm_part){
                .slot = s, .ids = ids[s], .from = PROMPT + k, .n = 1, .logits_from = PROMPT + k};
        HY_TRY(lm_step(l, parts, SEQS));
        for (int32_t s = 0; s < SEQS; s++)
            HY_TRY(keep(l, r, s, 1 + k, s));
    }
    return HY_OK;
}

static hy_status whole(const char *family, const char *name, result *r)
{
    char path[1024];
    lm l;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", lm_source_dir(), family);
    lm_opts o = {.act = HY_ACT_F32,
                 .kv = HY_F32,
                 .backend = name,
                 .dev_kv = strcmp(name, "simt") == 0 ? simt_kv : own_kv,
                 .threads = 1,
                 .context = 64,
                 .max_rows = CHUNK,
                 .max_seqs = SEQS};
    *r = (result){0};
    HY_TRY(lm_open(path, &o, &l));
    hy_status st = run(&l, r);
    char text[512];
    snprintf(text, sizeof(text), "%.500s", hy_fail_text());
    lm_close(&l); /* the double aborts when something is left */
    return st == HY_OK ? st : hy_fail(st, "%s", text);
}

static bool same(const result *a, const result *b)
{
    return a->vocab == b->vocab &&
           memcmp(a->v, b->v, sizeof(float) * (size_t)SEQS * (1 + STEPS) * (size_t)a->vocab) == 0;
}

static void test_bits(void **state)
{
    static const char *const families[] = {"llama", "gemma3"};
    (void)state;
    for (size_t f = 0; f < HY_COUNTOF(families); f++) {
        result want, got;
        assert_int_equal(whole(families[f], "simt", &want), HY_OK);
        for (int k = 0; k < 4; k++) {
            set(&(sim_plan){.wave = k % 2 == 0 ? 32 : 64, .seed = (uint64_t)(k / 2) * 7});
            if (whole(families[f], backend, &got) != HY_OK)
                fail_msg("%s: %s", families[f], hy_fail_text());
            if (!same(&want, &got))
                fail_msg("%s, way %d: other bits than simt's", families[f], k);
            free(got.v);
        }
        free(want.v);
    }
}

static void test_graphs(void **state)
{
    const char *name = strcmp(backend, "cuda") == 0 ? "cuGraphLaunch" : "hipGraphLaunch";
    (void)state;
    result r;
    set(&(sim_plan){.wave = 32});
    int before = runs(name);
    assert_int_equal(whole("llama", backend, &r), HY_OK);
    free(r.v);
    /* the first step makes room, the second is only seen */
    print_message("%d graphs were launched\n", runs(name) - before);
    assert_true(runs(name) - before >= STEPS - 2);
}

/* Calls all over the run, more of them where a step is. */
static void test_failures(void **state)
{
    (void)state;
    result want, got;
    set(&(sim_plan){.wave = 32});
    assert_int_equal(whole("llama", backend, &want), HY_OK);
    int total = calls(), failed = 0, tried = 0;
    for (int kind = SIM_FAIL_MEMORY; kind <= SIM_FAIL_LOST; kind++) {
        for (int n = 1 + kind; n < total; n += test_thin()         ? total / 6
                                               : n < total * 2 / 3 ? total / 12
                                                                   : total / 40,
                 tried++) {
            set(&(sim_plan){.seed = (uint64_t)(n % 5), .fail = kind, .at = n});
            hy_status st = whole("llama", backend, &got);
            revive();
            if (st == HY_OK && !same(&want, &got))
                fail_msg("kind %d at call %d of %d: wrong logits", kind, n, total);
            if (st != HY_OK && st != HY_E_DEVICE && st != HY_E_NOMEM_DEVICE)
                fail_msg("kind %d at call %d: %s: %s", kind, n, hy_status_name(st), hy_fail_text());
            failed += st != HY_OK;
            free(got.v);
        }
    }
    print_message("%s: %d of %d failures, at calls up to %d, ended a run\n", backend, failed, tried,
                  total);
    assert_true(failed > tried / 2);
    set(&(sim_plan){0});
    assert_int_equal(whole("llama", backend, &got), HY_OK);
    assert_true(same(&want, &got));
    free(got.v);
    free(want.v);
}

int main(void)
{
    const char *path = getenv("HY_TEST_DRIVER");
    backend = getenv("HY_TEST_BACKEND");
    if (backend == NULL || path == NULL) {
        fprintf(stderr, "set HY_TEST_BACKEND and HY_TEST_DRIVER\n");
        return 77;
    }
    snprintf(driver_kv, sizeof(driver_kv), "driver=%s", path);
    find_double(path);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_graphs),
                                       cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
