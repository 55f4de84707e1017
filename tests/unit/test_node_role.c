/* SPDX-License-Identifier: Apache-2.0
 *
 * Every role that the configuration knows is in the table of roles, and is run or refused by name.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/conf/conf.h"
#include "core/node/role.h"
#include "tests/unit/cm.h"

#include <string.h>

static void test_all_runs(void **state)
{
    (void)state;
    unsigned stages = 0;
    assert_int_equal(hy_role_stages("all", &stages), HY_OK);
    assert_int_equal(stages, HY_ROLE_HTTP | HY_ROLE_SCHED | HY_ROLE_EXEC);
}

static void test_unknown(void **state)
{
    (void)state;
    unsigned stages = 77;
    assert_int_equal(hy_role_stages("chef", &stages), HY_E_INVAL);
    assert_non_null(strstr(hy_fail_text(), "chef"));
    assert_int_equal(hy_role_stages("", &stages), HY_E_INVAL);
    assert_int_equal(stages, 77);
}

/* Roles of the key table: none is unknown here. */
static void test_same_names_as_the_key(void **state)
{
    (void)state;
    hy_conf *c = hy_conf_create();
    const char *choices = NULL;
    const hy_conf_key *k;
    for (size_t i = 0; (k = hy_conf_key_at(c, i)) != NULL; i++)
        if (strcmp(k->section, "node") == 0 && strcmp(k->key, "role") == 0)
            choices = k->choices;
    assert_non_null(choices);
    int n = 0;
    while (*choices != '\0') {
        char name[32];
        size_t len = strcspn(choices, "|");
        unsigned stages;
        snprintf(name, sizeof(name), "%.*s", (int)len, choices);
        hy_status st = hy_role_stages(name, &stages);
        assert_true(st == HY_OK || st == HY_E_UNSUPPORTED);
        if (st == HY_E_UNSUPPORTED)
            assert_non_null(strstr(hy_fail_text(), name));
        choices += len + (choices[len] == '|');
        n++;
    }
    assert_int_equal(n, 11); /* DESIGN section 8 */
    hy_conf_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_runs),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_same_names_as_the_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
