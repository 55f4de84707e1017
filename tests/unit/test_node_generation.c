/* SPDX-License-Identifier: Apache-2.0
 *
 * generation_config.json to sampling defaults: present, absent, partial, wrong.
 *
 * Thread: one.  Owner: each test; the folder is removed by teardown.
 */
#include "core/base/file.h"
#include "core/node/generation.h"
#include "tests/unit/cm.h"

#include <string.h>
#include <unistd.h>

static char dir[64], file[128];
static const hy_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/hy-gen-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    snprintf(file, sizeof(file), "%s/generation_config.json", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(dir);
}

static hy_status read_text(const char *text, hy_sampling *s)
{
    *s = plain;
    assert_int_equal(hy_file_write(file, text, strlen(text), 0644), HY_OK);
    return hy_generation_read(dir, s);
}

static void test_none(void **state)
{
    (void)state;
    hy_sampling s = plain;
    assert_int_equal(hy_generation_read(dir, &s), HY_OK);
    assert_int_equal(hy_generation_read("/nowhere/x.gguf", &s), HY_OK);
    assert_memory_equal(&s, &plain, sizeof(s));
}

/* The published file of Qwen2.5-Instruct has these values. */
static void test_values(void **state)
{
    (void)state;
    hy_sampling s;
    assert_int_equal(read_text("{\"bos_token_id\":151643,\"do_sample\":true,\"temperature\":0.7,"
                               "\"top_p\":0.8,\"top_k\":20,\"repetition_penalty\":1.05}",
                               &s),
                     HY_OK);
    assert_true(s.temperature == 0.7f && s.top_p == 0.8f && s.repetition_penalty == 1.05f);
    assert_int_equal(s.top_k, 20);
    assert_int_equal(read_text("{\"min_p\":0.05,\"top_p\":null,\"other\":[1]}", &s), HY_OK);
    assert_true(s.min_p == 0.05f && s.top_p == 1.0f && s.temperature == 1.0f);
}

static void test_wrong(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"{\"temperature\":\"hot\"}", "temperature"},
        {"{\"top_p\":7}", "top_p"},
        {"{\"top_k\":1e30}", "top_k"},
        {"{\"top_k\":1.5}", "top_k"},
        {"{\"repetition_penalty\":0}", "repetition"},
        {"{", "generation_config.json"},
        {"[]", "generation_config.json"},
    };
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        hy_sampling s;
        assert_int_equal(read_text(bad[i][0], &s), HY_E_FORMAT);
        assert_non_null(strstr(hy_fail_text(), bad[i][1]));
        assert_memory_equal(&s, &plain, sizeof(s));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_none, setup, teardown),
        cmocka_unit_test_setup_teardown(test_values, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wrong, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
