/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefill and decode nodes with a real (tiny) model whose KV caches differ in block size, storage
 * and memory order, linked by own TCP: tokens and log-probabilities must be those of one node, bit
 * for bit, and decode computes no prompt token.
 *
 * Thread: the test's; events come on the nodes' sched stages.  Owner: the test.
 */
#include "core/conf/conf.h"
#include "core/node/node.h"
#include "fabric/keys.h"
#include "tests/unit/cm.h"

#include "core/base/buf.h"
#include "core/base/file.h"
#include "core/base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 64, TOP = 3 };

typedef struct answer {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool over;
    int32_t n, id[MOST], n_cached;
    float lp[MOST], top[MOST][TOP];
    hy_finish finish;
    char *handover;
} answer;

static void on_event(void *arg, const hy_req_event *ev)
{
    answer *a = arg;
    pthread_mutex_lock(&a->lock);
    if (ev->kind == HY_REQ_TOKEN && a->n < MOST) {
        a->id[a->n] = ev->tok->id;
        a->lp[a->n] = ev->tok->logprob;
        for (int i = 0; i < TOP && i < ev->tok->n_top; i++)
            a->top[a->n][i] = ev->tok->top_lps[i];
        a->n++;
    }
    if (ev->kind == HY_REQ_FINISHED) {
        a->finish = ev->finish;
        a->n_cached = ev->n_cached;
        if (ev->handover != NULL)
            a->handover = strdup(ev->handover);
        a->over = ev->last;
        pthread_cond_broadcast(&a->cond);
    }
    pthread_mutex_unlock(&a->lock);
}

static int32_t plan; /* tokens that all nodes together may give, for the next request; 0: as max */

static void begin(hy_node *node, const int32_t *prompt, int32_t n, int32_t max, uint64_t seed,
                  float temperature, const char *handover, answer *a)
{
    memset(a, 0, sizeof(*a));
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->cond, NULL);
    hy_req *r = hy_req_create();
    assert_non_null(r);
    r->prompt = malloc((size_t)n * sizeof(int32_t));
    memcpy(r->prompt, prompt, (size_t)n * sizeof(int32_t));
    r->n_prompt = n;
    r->max_tokens = max;
    r->plan_tokens = plan;
    plan = 0;
    r->ignore_eos = true;
    r->sampling.temperature = temperature;
    r->sampling.seed = seed;
    r->sampling.has_seed = true;
    r->sampling.logprobs = TOP;
    r->handover = handover != NULL ? strdup(handover) : NULL;
    r->on_event = on_event;
    r->arg = a;
    assert_int_equal(hy_engine_submit(hy_node_engine(node), r), HY_OK);
}

static void await(answer *a)
{
    pthread_mutex_lock(&a->lock);
    while (!a->over)
        pthread_cond_wait(&a->cond, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

static void ask(hy_node *node, const int32_t *prompt, int32_t n, int32_t max, uint64_t seed,
                float temperature, const char *handover, answer *a)
{
    begin(node, prompt, n, max, seed, temperature, handover, a);
    await(a);
}

typedef struct side {
    hy_conf *conf;
    hy_node *node;
} side;

static char secret_file[] = "/tmp/hy-pd-secret-XXXXXX";

/* A config whose long factors begin at 64 tokens, so that short prompts reach them. */
static void short_context(const char *from, const char *to)
{
    static const char key[] = "\"original_max_position_embeddings\": ";
    hy_buf b;
    hy_buf_init(&b);
    assert_int_equal(hy_file_read(from, 1 << 20, &b), HY_OK);
    const char *at = strstr(hy_buf_str(&b), key);
    assert_non_null(at);
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    const int head = (int)(at - b.data + (ptrdiff_t)strlen(key));
    fprintf(f, "%.*s64%s", head, b.data, b.data + head + strspn(b.data + head, "0123456789"));
    assert_int_equal(fclose(f), 0);
    hy_buf_fini(&b);
}

/* The tiny models have no vocabulary: any will do, since requests are token ids. */
static const char *model_path(const char *family)
{
    static char dir[256];
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json"};
    const char *root = getenv("HY_SOURCE_DIR");
    snprintf(dir, sizeof(dir), "%s.%s", secret_file, family);
    if (mkdir(dir, 0700) != 0)
        return dir; /* made before */
    for (size_t i = 0; i < HY_COUNTOF(files); i++) {
        char to[512], from[512];
        if (root == NULL)
            root = ".";
        if (i < 2)
            snprintf(from, sizeof(from), "%s/tests/golden/tiny/%s/%s", root, family, files[i]);
        else
            snprintf(from, sizeof(from), "%s/tests/fuzz/corpus/tokenizer_json/llama.json", root);
        snprintf(to, sizeof(to), "%s/%s", dir, files[i]);
        if (i == 0 && strcmp(family, "phi3") == 0)
            short_context(from, to);
        else
            assert_int_equal(symlink(from, to), 0);
    }
    return dir;
}

static void forget_model(const char *family)
{
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json"};
    char path[512];
    for (size_t i = 0; i < HY_COUNTOF(files); i++) {
        snprintf(path, sizeof(path), "%s.%s/%s", secret_file, family, files[i]);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s.%s", secret_file, family);
    rmdir(path);
}

static void put(hy_conf *c, const char *section, const char *key, const char *value)
{
    if (hy_conf_put(c, section, key, value, "test") < 0)
        fail_msg("%s", hy_fail_text());
}

static const char *wire = "same", *value = "f16"; /* of the nodes that are started next */
static bool lossy;

static side start(const char *family, const char *role, const char *name, const char *block,
                  const char *storage, const char *order, const char *provider)
{
    side s = {.conf = hy_conf_create()};
    assert_int_equal(hy_conf_add_table(s.conf, hy_fab_keys, hy_fab_n_keys), HY_OK);
    put(s.conf, "node", "role", role);
    put(s.conf, "node", "name", name);
    put(s.conf, "kv", "block_tokens", block);
    put(s.conf, "kv", "storage", storage);
    put(s.conf, "kv", "order", order);
    put(s.conf, "kv", "memory", "8M");
    put(s.conf, "engine", "threads", "1");
    put(s.conf, "engine", "max_batch_tokens", "32");
    put(s.conf, "engine", "max_seqs", "4");
    put(s.conf, "fabric", "listen", "127.0.0.1:0");
    put(s.conf, "fabric", "providers", provider);
    put(s.conf, "connector", "verify", "true");
    put(s.conf, "connector", "wire", wire);
    put(s.conf, "connector", "accept_lossy", lossy ? "true" : "false");
    put(s.conf, "kv", "type", value);
    put(s.conf, "cluster", "secret_file", secret_file);
    const hy_node_opts o = {.conf = s.conf, .model_path = model_path(family)};
    if (hy_node_create(&o, &s.node) < 0)
        fail_msg("%s", hy_fail_text());
    return s;
}

static void stop(side *s)
{
    hy_node_destroy(s->node);
    hy_conf_destroy(s->conf);
}

static void same(const answer *a, const answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->id, b->id, (size_t)a->n * sizeof(a->id[0]));
    assert_memory_equal(a->lp, b->lp, (size_t)a->n * sizeof(a->lp[0]));
    assert_memory_equal(a->top, b->top, (size_t)a->n * sizeof(a->top[0]));
    assert_int_equal(a->finish, b->finish);
}

static void family(const char *name, const char *provider)
{
    side one = start(name, "all", "one", "16", "auto", "default", provider);
    side p = start(name, "prefill", "p", "16", "f16", "default", provider);
    side d = start(name, "decode", "d", "64", "f32", "nhd", provider);
    const int32_t vocab = hy_node_model(one.node)->cfg.vocab;
    static const int32_t lens[] = {1, 15, 16, 17, 64, 65, 90};
    for (size_t k = 0; k < HY_COUNTOF(lens); k++) {
        int32_t prompt[128];
        for (int32_t i = 0; i < lens[k]; i++)
            prompt[i] = (int32_t)((uint32_t)(i * 7919 + (int32_t)k * 104729 + 5) % (uint32_t)vocab);
        answer a, b, c;
        const float t = k % 2 == 0 ? 0.0f : 0.9f;
        ask(one.node, prompt, lens[k], 12, 77, t, NULL, &a);
        ask(p.node, prompt, lens[k], 1, 77, t, "{\"do_remote_decode\":true}", &b);
        assert_non_null(b.handover);
        assert_int_equal(b.id[0], a.id[0]);
        ask(d.node, prompt, lens[k], 12, 77, t, b.handover, &c);
        same(&a, &c);
        assert_int_equal(c.n_cached, lens[k]); /* not one was computed */
        free(b.handover);
    }
    /* push: both at once, in either order; layers go as they are computed */
    char addrs[128];
    hy_buf about;
    hy_buf_init(&about);
    hy_node_describe(p.node, &about);
    const char *at = strstr(hy_buf_str(&about), "nodes at ");
    assert_non_null(at);
    snprintf(addrs, sizeof(addrs), "%.*s", (int)strcspn(at + 9, "\n"), at + 9);
    hy_buf_fini(&about);
    for (int k = 0; k < 6; k++) {
        int32_t prompt[128];
        char for_p[128], for_d[512];
        answer a, b, c;
        for (int32_t i = 0; i < 100; i++)
            prompt[i] = (int32_t)((uint32_t)(i * 31 + k * 977 + 3) % (uint32_t)vocab);
        snprintf(for_p, sizeof(for_p), "{\"do_remote_decode\":true,\"transfer_id\":\"t%s%d\"}",
                 name, k);
        snprintf(for_d, sizeof(for_d),
                 "{\"do_remote_prefill\":true,\"transfer_id\":\"t%s%d\",\"halyard\":{\"v\":1,"
                 "\"node\":\"p\",\"addrs\":\"%s\"}}",
                 name, k, addrs);
        ask(one.node, prompt, 100, 12, 5, 0.8f, NULL, &a);
        if (k % 2 == 0)
            begin(p.node, prompt, 100, 1, 5, 0.8f, for_p, &b);
        begin(d.node, prompt, 100, 12, 5, 0.8f, for_d, &c);
        if (k % 2 == 1)
            begin(p.node, prompt, 100, 1, 5, 0.8f, for_p, &b);
        await(&b);
        await(&c);
        same(&a, &c);
        assert_int_equal(c.n_cached, 100);
        free(b.handover);
    }
    stop(&d);
    stop(&p);
    stop(&one);
    forget_model(name);
}

static float worst_lp(const answer *a, const answer *b, int32_t *same_out)
{
    float worst = 0.0f;
    int32_t n = 0;
    while (n < a->n && n < b->n && a->id[n] == b->id[n]) { /* the same text until here */
        const float d = a->lp[n] - b->lp[n];
        worst = d > worst ? d : -d > worst ? -d : worst;
        n++;
    }
    *same_out = n;
    return worst;
}

/* What rounds on the way comes whole, only where the decode node takes it, and costs what the wire
 * or the value type costs; the first token is prefill's own and stays exact. (How much of KL and
 * top-1 agreement: golden.lossy.) */
static void lossy_pairs(void **state)
{
    (void)state;
    static const struct {
        const char *wire, *p_value, *d_value;
        bool lossy, fits;
        float most; /* of a log-probability's error */
    } cases[] = {
        {"int8", "f16", "f16", false, true, 0.05f},
        {"fp8_e4m3fn", "f16", "f16", false, true, 0.3f},
        {"fp8_e4m3fnuz", "f16", "f16", false, true, 0.3f},
        {"bf16", "f16", "f16", false, true, 0.02f},
        {"f16", "f16", "f16", false, true, 0.0f}, /* no narrower: the same bits */
        {"same", "f32", "f16", true, true, 0.02f},
        {"same", "f32", "f16", false, false, 0.0f},
        {"int8", "f32", "f16", false, false, 0.0f}, /* consents to a wire, not to another type */
        {"int8", "f32", "f16", true, true, 0.05f},
    };
    for (size_t k = 0; k < HY_COUNTOF(cases); k++) {
        side one, p, d;
        int32_t prompt[90], n;
        answer a, b, c;
        value = cases[k].d_value;
        one = start("llama", "all", "one", "16", "auto", "default", "own");
        wire = cases[k].wire;
        lossy = cases[k].lossy;
        d = start("llama", "decode", "d", "32", "auto", "nhd", "own");
        wire = "same";
        lossy = false;
        value = cases[k].p_value;
        p = start("llama", "prefill", "p", "16", "auto", "default", "own");
        value = "f16";
        for (int32_t i = 0; i < 90; i++)
            prompt[i] = (i * 7919 + 13) % hy_node_model(one.node)->cfg.vocab;
        ask(one.node, prompt, 90, 12, 77, 0.0f, NULL, &a);
        ask(p.node, prompt, 90, 1, 77, 0.0f, "{\"do_remote_decode\":true}", &b);
        ask(d.node, prompt, 90, 12, 77, 0.0f, b.handover, &c);
        const float worst = worst_lp(&a, &c, &n);
        print_message("wire %s, %s to %s%s: %d tokens of 90 came, %d of 12 the same, log-"
                      "probabilities within %.1e\n",
                      cases[k].wire, cases[k].p_value, cases[k].d_value,
                      cases[k].lossy ? ", lossy" : "", c.n_cached, n, (double)worst);
        assert_int_equal(c.n, 12);
        assert_int_equal(c.n_cached, cases[k].fits ? 90 : 0);
        assert_true(worst <= cases[k].most && n >= 1);
        if (cases[k].most == 0.0f)
            same(&a, &c);
        else
            assert_true(worst > 0.0f || n < 12); /* else nothing was rounded */
        if (cases[k].fits)
            assert_memory_equal(&c.lp[0], &b.lp[0], sizeof(c.lp[0]));
        free(b.handover);
        stop(&d);
        stop(&p);
        stop(&one);
    }
    forget_model("llama");
}

/* Longrope's factors are chosen by the whole request's length, which prefill must be told: its own
 * part is one token. */
static void longrope(void **state)
{
    (void)state;
    side one = start("phi3", "all", "one", "16", "auto", "default", "own");
    side p = start("phi3", "prefill", "p", "16", "f16", "default", "own");
    side d = start("phi3", "decode", "d", "32", "f32", "hnd", "own");
    int32_t prompt[60];
    for (int32_t i = 0; i < 60; i++)
        prompt[i] = (i * 7919 + 11) % 512;
    static const struct {
        int32_t max, plan, cached; /* 60 tokens and max: beyond 64 the long factors are right */
    } cases[] = {{4, 4, 60}, {12, 12, 60}, {12, -1, 60}, {12, 0, 0}, {4, 12, 0}};
    for (size_t k = 0; k < HY_COUNTOF(cases); k++) {
        answer a, b, c;
        prompt[59] = (int32_t)k + 20;
        prompt[0] = (int32_t)k; /* nothing is cached */
        ask(one.node, prompt, 60, cases[k].max, 9, 0.0f, NULL, &a);
        plan = cases[k].plan;
        ask(p.node, prompt, 60, 1, 9, 0.0f, "{\"do_remote_decode\":true}", &b);
        ask(d.node, prompt, 60, cases[k].max, 9, 0.0f, b.handover, &c);
        same(&a, &c); /* also where the two chose otherwise: then decode computes it anew */
        assert_int_equal(c.n_cached, cases[k].cached);
        free(b.handover);
    }
    stop(&d);
    stop(&p);
    stop(&one);
    forget_model("phi3");
}

static void llama(void **state)
{
    (void)state;
    family("llama", "own");
}

static void gemma3_with_windows(void **state)
{
    (void)state;
    family("gemma3", "own");
}

static void qwen3_over_libfabric(void **state)
{
    (void)state;
    family("qwen3", "tcp,own");
}

static void quiet(void *arg, hy_log_level level, const char *module, const char *text)
{
    (void)arg;
    if (level <= HY_LOG_WARN || getenv("HY_LOG") != NULL)
        print_message("%s: %s\n", module, text);
}

int main(void)
{
    const int fd = mkstemp(secret_file);
    if (fd < 0 || write(fd, "0123456789abcdef0123456789abcdef", 32) != 32)
        return 1;
    close(fd);
    chmod(secret_file, 0600);
    hy_log_set_sink(quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(longrope),
        cmocka_unit_test(llama),
        cmocka_unit_test(lossy_pairs),
        cmocka_unit_test(gemma3_with_windows),
        cmocka_unit_test(qwen3_over_libfabric),
    };
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(secret_file);
    return rc;
}
