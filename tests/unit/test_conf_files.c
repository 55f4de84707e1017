/* SPDX-License-Identifier: Apache-2.0
 *
 * The INI files that we ship: each loads; and conf/all.ini shows every key of the built-in table
 * and of the cpu backend, with the default that the table has.
 *
 * Thread: test.  Owner: the test.
 */
#include "core/base/file.h"
#include "core/conf/conf.h"
#include "core/node/device.h"
#include "fabric/keys.h"
#include "hal/registry.h"
#include "tests/unit/cm.h"

#include <glob.h>
#include <string.h>

static const char *root(void)
{
    const char *dir = getenv("HY_SOURCE_DIR");
    return dir != NULL ? dir : ".";
}

/* A cluster file is read by `halyard up` (tests/unit/test_up_plan.c). */
static bool is_cluster_file(const char *path)
{
    hy_buf b;
    hy_buf_init(&b);
    assert_int_equal(hy_file_read(path, 1 << 20, &b), HY_OK);
    bool yes = strstr(hy_buf_str(&b), "\n[node.") != NULL;
    hy_buf_fini(&b);
    return yes;
}

/* Sections that a node of role `all` reads: conf/all.ini shows each of their keys. */
static bool of_role_all(const char *section)
{
    static const char *const names[] = {"node", "model", "engine",  "kv",
                                        "http", "fetch", "backend", "backend.cpu"};
    for (size_t i = 0; i < HY_COUNTOF(names); i++)
        if (strcmp(section, names[i]) == 0)
            return true;
    return false;
}

static void every_file_loads(void **state)
{
    (void)state;
    char pattern[512];
    glob_t g;
    snprintf(pattern, sizeof(pattern), "%s/conf/*.ini", root());
    assert_int_equal(glob(pattern, 0, NULL, &g), 0);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        if (is_cluster_file(g.gl_pathv[i]))
            continue;
        hy_conf *c = hy_conf_create();
        assert_int_equal(hy_conf_add_table(c, hy_fab_keys, hy_fab_n_keys), HY_OK);
        assert_int_equal(hy_node_backend_keys(c), HY_OK);
        if (hy_conf_load_file(c, g.gl_pathv[i]) != HY_OK)
            fail_msg("%s", hy_fail_text());
        hy_conf_destroy(c);
    }
    globfree(&g);
}

static void all_ini_is_complete(void **state)
{
    (void)state;
    char path[512];
    hy_buf b;
    hy_buf_init(&b);
    snprintf(path, sizeof(path), "%s/conf/all.ini", root());
    assert_int_equal(hy_file_read(path, 1 << 20, &b), HY_OK);
    for (char *p = b.data; (p = strstr(p, "\n;")) != NULL; p++)
        p[1] = ' '; /* what is commented out becomes a value */
    hy_conf *c = hy_conf_create();
    assert_int_equal(hy_node_backend_keys(c), HY_OK);
    if (hy_conf_load_text(c, "all.ini", b.data, b.len) != HY_OK)
        fail_msg("%s", hy_fail_text());
    const hy_conf_key *k;
    for (size_t i = 0; (k = hy_conf_key_at(c, i)) != NULL; i++) {
        if (!of_role_all(k->section))
            continue;
        if (!hy_conf_is_set(c, k->section, k->key))
            fail_msg("conf/all.ini lacks [%s] %s", k->section, k->key);
        if (strcmp(k->section, "model") == 0 && strcmp(k->key, "path") == 0)
            continue; /* the one value that has no sensible default */
        hy_buf want, got;
        hy_buf_init(&want);
        hy_buf_init(&got);
        hy_buf_printf(&want, "\n%s =%s%s ; all.ini", k->key, k->def[0] != '\0' ? " " : "", k->def);
        hy_conf_dump(c, &got);
        if (strstr(got.data, want.data) == NULL)
            fail_msg("conf/all.ini: [%s] %s is not the default '%s'", k->section, k->key, k->def);
        hy_buf_fini(&want);
        hy_buf_fini(&got);
    }
    hy_conf_destroy(c);
    hy_buf_fini(&b);
}

/* A key has one owner: what a backend reads stands in that backend's table alone. */
static void backends_own_their_keys(void **state)
{
    (void)state;
    hy_conf *c = hy_conf_create();
    for (size_t i = 0; hy_backend_name_at(i) != NULL; i++) {
        const hy_backend *b;
        if (hy_backend_find(hy_backend_name_at(i), &b) != HY_OK)
            continue;
        const hy_conf_key *k;
        for (size_t j = 0; (k = hy_conf_key_at(c, j)) != NULL; j++)
            for (size_t n = 0; n < b->n_keys; n++)
                if (strcmp(k->section, b->keys[n].section) == 0 &&
                    strcmp(k->key, b->keys[n].key) == 0)
                    fail_msg("[%s] %s is in two tables", k->section, k->key);
    }
    hy_conf_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_loads),
        cmocka_unit_test(all_ini_is_complete),
        cmocka_unit_test(backends_own_their_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
