/* SPDX-License-Identifier: Apache-2.0
 *
 * A device's KV cache among peers: over a fabric that takes a dmabuf its bytes go from cache to
 * cache and no kernel packs them; where the device or the fabric refuses they go through the
 * staging. The tokens are the oracle's either way. The loop takes a dmabuf by mapping it, as it can
 * the double's.
 *
 * HY_TEST_BACKEND, HY_TEST_DRIVER: which.  Thread: main.  Owner: each test.
 */
#include "hal/registry.h"
#include "tests/double/sim.h"
#include "tests/flow/pdworld.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static const char *backend, *driver;
static int (*runs)(const char *);
static void (*set)(const sim_plan *);

static hy_dev *open_device(void)
{
    char kv[600];
    const char *list[] = {kv, NULL};
    hy_dev *d = NULL;
    snprintf(kv, sizeof(kv), "driver=%s", driver);
    if (hy_dev_open(&(hy_dev_opts){.backend = backend, .kv = list}, &d) < 0)
        fail_msg("%s", hy_fail_text());
    return d;
}

static int launches(void)
{
    return runs(strcmp(backend, "cuda") == 0 ? "cuLaunchKernel" : "hipModuleLaunchKernel");
}

static int n_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

typedef struct many {
    bool device[PDW_NODES];
    bool push, verify, unlike; /* unlike: other block sizes */
    int taken; /* cache groups that the fabric has room for; all or they go packed */
    int32_t n_groups;
    uint64_t seed;
} many;

static void check_page(pdw *w, int i, bool device, bool refused)
{
    const char *path = !device ? "host" : refused ? "host staging" : "dmabuf";
    hy_buf b;
    hy_buf_init(&b);
    hy_pd_links(w->node[i].pd, &b);
    char want[128];
    snprintf(want, sizeof(want), "\"memory\":\"%s%s", path,
             !device || !refused ? "\"" : ": loop: takes no device memory here\"");
    if (strstr(hy_buf_str(&b), want) == NULL)
        fail_msg("%s is not in %s", want, hy_buf_str(&b));
    hy_buf_fini(&b);
    static const char *const paths[] = {"host", "dmabuf", "host staging"};
    for (size_t k = 0; k < HY_COUNTOF(paths); k++) {
        const hy_label label = {"path", paths[k]};
        const hy_metric *m =
            hy_metric_gauge(w->node[i].metrics, "halyard:kv_memory", "", &label, 1);
        assert_true(hy_metric_value(m) == (strcmp(path, paths[k]) == 0 ? 1.0 : 0.0));
    }
}

/* Four prompts handed over; whether any kernel ran for it (there is none but to pack and unpack).
 */
static bool run(const many *m)
{
    pdw_opts o;
    const int before = launches(), fds = n_fds();
    set(&(sim_plan){.seed = m->seed});
    pdw_opts_init(&o, m->seed + 1);
    o.n_groups = m->n_groups;
    o.windows[1] = 40;
    o.min_run = m->unlike ? 64 : 1; /* 1: no piece is too short to go as it is */
    o.verify = m->verify;
    o.net.device_bytes = (uint64_t)m->taken * (64 * 16 * 8);
    o.block_tokens[1] = m->unlike ? 32 : 16;
    for (int i = 0; i < PDW_NODES; i++)
        o.dev[i] = m->device[i] ? open_device() : NULL;
    pdw *w = pdw_make(&o);
    for (int k = 0; k < 4; k++) {
        static const int32_t lens[] = {1, 16, 65, 130};
        int32_t text[130];
        pdw_text(text, lens[k], k);
        pdw_req *r = pdw_add(w, text, lens[k], 12, (uint64_t)k * HY_MS);
        r->push = m->push;
        r->p_first = k % 2 == 0;
    }
    pdw_run(w, 60 * HY_SEC);
    pdw_verify(w, false);
    for (int k = 0; k < 4; k++)
        assert_int_equal(w->req[k].n_cached, w->req[k].n_prompt);
    for (int i = 0; i < PDW_NODES; i++)
        check_page(w, i, m->device[i], m->taken < m->n_groups);
    hy_pd_stats s;
    hy_pd_stats_get(w->node[1].pd, &s);
    assert_int_equal(s.tokens_in, 1 + 16 + 65 + 130);
    assert_int_equal(s.failed + s.corrupt, 0);
    pdw_end(w);
    for (int i = 0; i < PDW_NODES; i++)
        hy_dev_close(o.dev[i]); /* the double aborts when something is left */
    assert_int_equal(n_fds(), fds);
    return launches() != before;
}

static const bool sides[][PDW_NODES] = {{true, false}, {false, true}, {true, true}};

static void test_dmabuf(void **state)
{
    (void)state;
    for (size_t s = 0; s < HY_COUNTOF(sides); s++)
        for (int k = 0; k < 8; k++) {
            const many m = {.device = {sides[s][0], sides[s][1]},
                            .push = k & 1,
                            .verify = k & 2,
                            .n_groups = k & 4 ? 2 : 1,
                            .taken = 2,
                            .seed = (uint64_t)k};
            assert_false(run(&m));
        }
}

/* Other strides: packed, though the cache could be reached. */
static void test_unlike(void **state)
{
    (void)state;
    for (size_t s = 0; s < HY_COUNTOF(sides); s++) {
        const many m = {.device = {sides[s][0], sides[s][1]},
                        .verify = true,
                        .unlike = true,
                        .n_groups = 1,
                        .taken = 2,
                        .seed = 3};
        assert_true(run(&m));
    }
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t s = 0; s < HY_COUNTOF(sides); s++)
        for (int k = 0; k < 6; k++) {
            const many m = {.device = {sides[s][0], sides[s][1]},
                            .taken = k >> 2, /* of 2: one is not enough */
                            .push = k & 1,
                            .verify = true,
                            .n_groups = k & 6 ? 2 : 1,
                            .seed = (uint64_t)k};
            assert_true(run(&m));
        }
}

int main(void)
{
    backend = getenv("HY_TEST_BACKEND");
    driver = getenv("HY_TEST_DRIVER");
    void *lib = driver != NULL ? dlopen(driver, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (backend == NULL || lib == NULL) {
        fprintf(stderr, "set HY_TEST_BACKEND and HY_TEST_DRIVER\n");
        return 77;
    }
    void *f[] = {dlsym(lib, "sim_runs"), dlsym(lib, "sim_set")};
    memcpy(&runs, &f[0], sizeof(f[0]));
    memcpy(&set, &f[1], sizeof(f[1]));
    pdw_log();
    hy_dev_close(open_device()); /* what the double opens once is there from now on */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dmabuf), cmocka_unit_test(test_unlike),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
