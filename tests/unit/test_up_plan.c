/* SPDX-License-Identifier: Apache-2.0
 *
 * Cluster files: the example of the repository, and what is refused before anything starts.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/base/file.h"
#include "fabric/keys.h"
#include "tests/unit/cm.h"
#include "tools/up/plan.h"

#include <string.h>
#include <unistd.h>

static char dir[64];

static hy_status no_model(const hy_conf *node, char **model)
{
    const char *path = hy_conf_str(node, "model", "path");
    if (strcmp(path, "missing") == 0)
        return hy_fail(HY_E_NOTFOUND, "no such model");
    *model = *path != '\0' ? strdup(path) : NULL;
    return HY_OK;
}

static hy_conf *make_conf(void)
{
    hy_conf *c = hy_conf_create();
    assert_int_equal(hy_conf_add_table(c, hy_fab_keys, hy_fab_n_keys), HY_OK);
    return c;
}

static const hy_up_env env = {make_conf, no_model};

static hy_status plan_of(const char *path, const char *text, hy_up_plan *out)
{
    hy_conf *c = hy_conf_create();
    assert_int_equal(hy_conf_add_table(c, hy_up_keys, hy_up_n_keys), HY_OK);
    hy_status st =
        text != NULL ? hy_conf_load_text(c, path, text, strlen(text)) : hy_conf_load_file(c, path);
    if (st == HY_OK)
        st = hy_up_plan_make(c, path, &env, out);
    hy_conf_destroy(c);
    return st;
}

static void test_example(void **state)
{
    char path[4096];
    hy_up_plan p;
    (void)state;
    snprintf(path, sizeof(path), "%s/conf/pd-local.ini", getenv("HY_SOURCE_DIR"));
    assert_int_equal(plan_of(path, NULL, &p), HY_OK);
    assert_string_equal(p.name, "pd-local");
    assert_int_equal(p.n, 3);
    static const struct {
        const char *name;
        int port;
    } want[] = {{"router", 8000}, {"p0", 8100}, {"d0", 8200}}; /* docs/CLUSTER.md */
    for (size_t i = 0; i < p.n; i++) {
        assert_string_equal(p.nodes[i].name, want[i].name);
        assert_int_equal(p.nodes[i].port, want[i].port);
        assert_int_equal(p.nodes[i].restart, HY_UP_ON_FAILURE);
        assert_string_equal(p.nodes[i].host, "127.0.0.1");
    }
    assert_string_equal(p.nodes[0].role, "router");
    hy_up_plan_fini(&p);
}

static void test_sets(void **state)
{
    char path[128];
    hy_up_plan p;
    (void)state;
    snprintf(path, sizeof(path), "%s/c.ini", dir);
    assert_int_equal(plan_of(path,
                             "[cluster]\nname = x.y\nrun_dir = /r\nstop_timeout = 3s\n"
                             "[node.a]\nfile = n.ini\nset = http.port=5, kv.block_tokens=32\n"
                             "restart = never\nrestart_backoff = 1s\nmax_restarts = 2\n"
                             "[node.b]\nfile = n.ini\nset = http.port=0\n"
                             "[node.c]\nfile = n.ini\nset = http.port=0\n",
                             &p),
                     HY_OK);
    assert_string_equal(p.run_dir, "/r");
    assert_int_equal(p.stop_timeout_ns, 3000000000);
    assert_int_equal(p.nodes[0].n_sets, 2);
    assert_string_equal(p.nodes[0].sets[1], "kv.block_tokens=32");
    assert_int_equal(p.nodes[0].port, 5);
    assert_int_equal(p.nodes[0].restart, HY_UP_NEVER);
    assert_int_equal(p.nodes[0].max_restarts, 2);
    hy_up_plan_fini(&p);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"[cluster]\nname = x\n", "[node.NAME]"},
        {"[node.a]\nset = http.port=1\n", "[node.a] file"},
        {"[node.a]\nfile = none.ini\n", "none.ini"},
        {"[node.a]\nfile = n.ini\nset = http.prt=1\n",
         "[node.a]: set: [http] prt: unknown key; did you mean 'port'?"},
        {"[node.a]\nfile = n.ini\nset = http.port=no\n", "port"},
        {"[node.a]\nfile = n.ini\nset = model.path=missing\n", "no such model"},
        {"[node.a]\nfile = n.ini\nset = node.role=planner\n", "planner"},
        {"[node.a]\nfile = n.ini\n[node.b]\nfile = n.ini\n", "port 7777"},
        {"[node.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]\nfile = n.ini\n", "name"},
        {"[node.a]\nfile = n.ini\nrestart = maybe\n", "restart"},
        {"[node.a]\nfile = n.ini\n[engine]\nthreads = 2\n", "engine.threads"},
        {"[node.a]\nfile = n.ini\n[peer.x]\nrole = all\n", "peer.x"},
        {"[node.a]\nfile = n.ini\nset = node.role=router, peer.x.url=ftp://h:1\n", "[peer.x] url"},
        {"[cluster]\nname = a/b\n[node.a]\nfile = n.ini\n", "name"},
        {"[cluster]\nsecret_file = no-secret\n[node.a]\nfile = n.ini\n",
         "/no-secret"}, /* beside the cluster file */
        {"[cluster]\nsecret_file = /tmp\n[node.a]\nfile = n.ini\n", "chmod 600"},
    };
    char path[128];
    (void)state;
    snprintf(path, sizeof(path), "%s/c.ini", dir);
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        hy_up_plan p;
        assert_true(plan_of(path, bad[i].text, &p) < 0);
        if (strstr(hy_fail_text(), bad[i].word) == NULL)
            fail_msg("%zu: '%s' is not in: %s", i, bad[i].word, hy_fail_text());
    }
}

/* What the cluster file names is beside it, wherever the command was started; what the command line
 * names is not. */
static void test_folders(void **state)
{
    static const struct {
        const char *run_dir, *secret, *want_dir, *want_secret;
        bool by_line;
    } cases[] = {
        {"run", "s", "/run", "/s", false},
        {"/r", "/s", NULL, NULL, false},
        {"../run", "a/s", "/../run", "/a/s", false},
        {"run", "s", NULL, NULL, true},
    };
    char path[128], text[256], want[160];
    const hy_up_env plain = {make_conf, NULL}; /* the secret is not looked at */
    (void)state;
    snprintf(path, sizeof(path), "%s/c.ini", dir);
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        hy_up_plan p;
        hy_conf *c = hy_conf_create();
        assert_int_equal(hy_conf_add_table(c, hy_up_keys, hy_up_n_keys), HY_OK);
        snprintf(text, sizeof(text),
                 "[cluster]\nrun_dir = %s\nsecret_file = %s\n[node.a]\nfile = n.ini\n",
                 cases[i].by_line ? "/no" : cases[i].run_dir,
                 cases[i].by_line ? "/no" : cases[i].secret);
        assert_int_equal(hy_conf_load_text(c, path, text, strlen(text)), HY_OK);
        if (cases[i].by_line) {
            assert_int_equal(hy_conf_put(c, "cluster", "run_dir", cases[i].run_dir, "-o"), HY_OK);
            assert_int_equal(hy_conf_put(c, "cluster", "secret_file", cases[i].secret, "-o"),
                             HY_OK);
        }
        assert_int_equal(hy_up_plan_make(c, path, &plain, &p), HY_OK);
        snprintf(want, sizeof(want), "%s%s", dir,
                 cases[i].want_dir != NULL ? cases[i].want_dir : "");
        assert_string_equal(p.run_dir, cases[i].want_dir != NULL ? want : cases[i].run_dir);
        snprintf(want, sizeof(want), "%s%s", dir,
                 cases[i].want_secret != NULL ? cases[i].want_secret : "");
        assert_string_equal(p.secret_file, cases[i].want_secret != NULL ? want : cases[i].secret);
        hy_up_plan_fini(&p);
        hy_conf_destroy(c);
    }
}

/* Nodes whose link would be refused are told by both names and the key before anything starts. */
static void test_pairs(void **state)
{
    static const char head[] = "[node.p0]\nfile = n.ini\nset = http.port=1, node.role=prefill, "
                               "connector.kind=pull, %s\n"
                               "[node.d0]\nfile = n.ini\nset = http.port=2, node.role=decode, "
                               "connector.kind=pull, %s\n%s";
    static const char more[] = "[node.p1]\nfile = n.ini\nset = http.port=3, node.role=both, "
                               "connector.kind=pull, kv.type=f32\n";
    static const struct {
        const char *p, *d, *more, *text, *left;
    } cases[] = {
        {"kv.type=f16", "kv.storage=f32", "", "", NULL},
        {"kv.type=f32", "", "",
         "[node.d0] cannot take KV from [node.p0]: [kv] type is f32 there, f16 here\n",
         "[node.d0]"},
        {"kv.type=f32", "connector.accept_lossy=yes", "", "", NULL},
        {"connector.accept_lossy=yes", "kv.type=bf16", "",
         "[node.d0] cannot take KV from [node.p0]: [kv] type is f16 there, bf16 here\n",
         "[node.d0]"},
        {"engine.activations=f32", "connector.accept_lossy=yes", "",
         "[node.d0] cannot take KV from [node.p0]: [engine] activations is f32 there, int8 here\n",
         "[node.d0]"},
        {"", "engine.numerics=fast", "",
         "[node.d0] cannot take KV from [node.p0]: [engine] numerics is exact there, fast here\n",
         "[node.d0]"},
        {"model.path=a.gguf", "model.path=a.gguf", "", "", NULL},
        {"model.path=a.gguf", "model.path=b.gguf", "",
         "[node.d0] takes KV from [node.p0] only if their weights are the same: [model] path is "
         "a.gguf "
         "there, b.gguf here\n",
         NULL},
        /* everybody has somebody */
        {"kv.type=f32", "kv.type=f32", more, "", NULL},
        {"", "", more,
         "[node.d0] cannot take KV from [node.p1]: [kv] type is f32 there, f16 here\n"
         "[node.p1] cannot take KV from [node.p0]: [kv] type is f16 there, f32 here\n",
         "[node.p1]"},
    };
    char path[128], text[1024];
    (void)state;
    snprintf(path, sizeof(path), "%s/c.ini", dir);
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        hy_up_plan p;
        hy_buf b;
        hy_buf_init(&b);
        snprintf(text, sizeof(text), head, cases[i].p, cases[i].d, cases[i].more);
        assert_int_equal(plan_of(path, text, &p), HY_OK);
        const hy_status st = hy_up_plan_pairs(&p, &b);
        assert_string_equal(hy_buf_str(&b), cases[i].text);
        assert_int_equal(st, cases[i].left != NULL ? HY_E_INVAL : HY_OK);
        if (st < 0)
            assert_non_null(strstr(hy_fail_text(), cases[i].left));
        hy_buf_fini(&b);
        hy_up_plan_fini(&p);
    }
}

/* Whom a router sends requests to, where each node's file is right by itself. Ports: a 1, d 2. */
static void test_peers(void **state)
{
    static const struct {
        const char *peers, *more, *text;
    } cases[] = {
        {"peer.x.url=http://127.0.0.1:1, peer.x.role=prefill, peer.y.url=http://127.0.0.1:2", "",
         ""},
        {"peer.x.url=http://localhost:1, peer.y.url=http://127.0.0.1:2/, peer.y.role=decode", "",
         ""},
        {"peer.x.url=http://10.0.0.9:1, peer.y.url=http://10.0.0.9:2",
         ", http.host=0.0.0.0, http.api_key=k", ""},
        {"peer.x.url=http://127.0.0.1:1, peer.y.url=http://127.0.0.1:3", "",
         "[node.r] has [peer.y] url = http://127.0.0.1:3, where no node of this file is\n"
         "[node.d] gets no requests: no router of this file has a [peer] at its address\n"},
        {"peer.x.url=http://10.0.0.1:1, peer.y.url=http://127.0.0.1:2", "",
         "[node.r] has [peer.x] url = http://10.0.0.1:1, where no node of this file is\n"
         "[node.a] gets no requests: no router of this file has a [peer] at its address\n"},
        {"peer.x.url=http://127.0.0.1:1, peer.y.url=http://127.0.0.1:9", ", http.port=0",
         "[node.r] has [peer.x] url = http://127.0.0.1:1, where no node of this file is\n"
         "[node.r] has [peer.y] url = http://127.0.0.1:9, where no node of this file is\n"
         "[node.a] gets no requests: no router of this file has a [peer] at its address\n"
         "[node.d] gets no requests: no router of this file has a [peer] at its address\n"},
        {"peer.x.url=http://127.0.0.1:2, peer.x.role=prefill, peer.y.url=http://127.0.0.1:1, "
         "peer.y.role=decode",
         "",
         "[node.r] has [peer.x] role = prefill, but its url is [node.d]'s, a decode node\n"
         "[node.r] has [peer.y] role = decode, but its url is [node.a]'s, a prefill node\n"},
        {"peer.r.url=http://127.0.0.1:8000, peer.x.url=http://127.0.0.1:1, "
         "peer.y.url=http://127.0.0.1:2",
         "", "[node.r] has [peer.r] url = http://127.0.0.1:8000, where no node of this file is\n"},
    };
    char path[128], text[1024];
    (void)state;
    snprintf(path, sizeof(path), "%s/c.ini", dir);
    for (size_t i = 0; i < HY_COUNTOF(cases) + 1; i++) {
        const bool router = i < HY_COUNTOF(cases);
        hy_up_plan p;
        hy_buf b;
        hy_buf_init(&b);
        int n = snprintf(text, sizeof(text),
                         "[node.a]\nfile = n.ini\nset = node.role=prefill, http.port=1%s\n"
                         "[node.d]\nfile = n.ini\nset = node.role=decode, http.port=2%s\n",
                         router ? cases[i].more : "", router ? cases[i].more : "");
        if (router)
            snprintf(text + n, sizeof(text) - (size_t)n,
                     "[node.r]\nfile = n.ini\nset = node.role=router, http.port=8000, %s\n",
                     cases[i].peers);
        assert_int_equal(plan_of(path, text, &p), HY_OK);
        hy_up_plan_peers(&p, &b);
        assert_string_equal(hy_buf_str(&b), router ? cases[i].text : "");
        hy_buf_fini(&b);
        hy_up_plan_fini(&p);
    }
}

static int setup(void **state)
{
    static const char node[] = "[node]\nrole = all\n[http]\nport = 7777\n";
    char path[128];
    (void)state;
    strcpy(dir, "/tmp/hy-up-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    snprintf(path, sizeof(path), "%s/n.ini", dir);
    return hy_file_write(path, node, strlen(node), 0600);
}

static int teardown(void **state)
{
    char path[128];
    (void)state;
    snprintf(path, sizeof(path), "%s/n.ini", dir);
    unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example), cmocka_unit_test(test_sets),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_folders),
        cmocka_unit_test(test_pairs),   cmocka_unit_test(test_peers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
