/* SPDX-License-Identifier: Apache-2.0
 *
 * docs/SUPPORT.md is what the built-in backends answer today. HY_UPDATE=1 writes it anew.
 *
 * Thread: main.  Owner: none.
 */
#include "tests/unit/cm.h"

#include "core/base/file.h"
#include "hal/conform.h"
#include "hal/registry.h"

#include <string.h>

static void test_support(void **state)
{
    (void)state;
    hy_dev *devs[3] = {NULL, NULL, NULL};
    hy_dev_opts o = {.backend = "cpu", .isa = "scalar", .n_threads = 1};
    hy_dev_props p;
    char path[512];
    const char *root = getenv("HY_SOURCE_DIR");
    if (root == NULL)
        skip();
    assert_int_equal(hy_dev_open(&o, &devs[0]), HY_OK);
    o.isa = "auto";
    assert_int_equal(hy_dev_open(&o, &devs[1]), HY_OK);
    assert_int_equal(devs[1]->ops->props(devs[1], &p), HY_OK);
    assert_int_equal(hy_dev_open(&(hy_dev_opts){.backend = "simt", .n_threads = 1}, &devs[2]),
                     HY_OK);
    hy_buf now, file;
    hy_buf_init(&now);
    hy_buf_init(&file);
    assert_int_equal(hy_conform_table(devs, 3, &now), HY_OK);
    hy_dev_close(devs[0]);
    hy_dev_close(devs[1]);
    hy_dev_close(devs[2]);
    snprintf(path, sizeof(path), "%s/docs/SUPPORT.md", root);
    bool fast = strcmp(p.isa, "scalar") != 0;
    if (getenv("HY_UPDATE") != NULL && fast)
        assert_int_equal(hy_file_write(path, now.data, now.len, 0644), HY_OK);
    assert_int_equal(hy_file_read(path, 1 << 20, &file), HY_OK);
    bool same = strcmp(hy_buf_str(&now), hy_buf_str(&file)) == 0;
    hy_buf_fini(&now);
    hy_buf_fini(&file);
    if (!fast)
        skip(); /* the second column cannot be made on this CPU */
    if (!same)
        fail_msg("docs/SUPPORT.md is out of date: run this test with HY_UPDATE=1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_support)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
