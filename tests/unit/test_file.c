/* SPDX-License-Identifier: Apache-2.0
 *
 * Files: reading, mapping, folders, atomic replacement, and what failures say.
 *
 * Thread: test.  Owner: the test; all under one temporary folder.
 */
#include "core/base/file.h"
#include "tests/unit/cm.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64], path[128];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/hy_file_XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    snprintf(path, sizeof(path), "%s/f", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char sub[160];
    unlink(path);
    snprintf(sub, sizeof(sub), "%s/a/b/c", dir);
    rmdir(sub);
    sub[strlen(sub) - 2] = '\0';
    rmdir(sub);
    sub[strlen(sub) - 2] = '\0';
    rmdir(sub);
    return rmdir(dir); /* fails when a temporary file was left behind */
}

static void write_then_read(void **state)
{
    (void)state;
    hy_buf b;
    hy_buf_init(&b);
    assert_int_equal(hy_file_write(path, "one", 3, 0600), HY_OK);
    assert_int_equal(hy_file_write(path, "second", 6, 0640), HY_OK);
    assert_int_equal(hy_file_read(path, 6, &b), HY_OK);
    assert_string_equal(hy_buf_str(&b), "second");
    struct stat sb;
    stat(path, &sb);
    assert_int_equal(sb.st_mode & 0777, 0640);
    assert_int_equal(hy_file_read(path, 5, &b), HY_E_LIMIT);
    assert_non_null(strstr(hy_fail_text(), "larger than 5 bytes"));
    assert_string_equal(hy_buf_str(&b), "second"); /* a failed read appends nothing */
    hy_buf_fini(&b);
}

static void big_file(void **state)
{
    (void)state;
    size_t n = 300001;
    char *data = malloc(n);
    for (size_t i = 0; i < n; i++)
        data[i] = (char)(i * 7 % 251);
    hy_buf b;
    hy_buf_init(&b);
    assert_int_equal(hy_file_write(path, data, n, 0600), HY_OK);
    assert_int_equal(hy_file_read(path, n, &b), HY_OK);
    assert_int_equal(b.len, n);
    assert_memory_equal(b.data, data, n);
    hy_map m;
    assert_int_equal(hy_file_map(path, &m), HY_OK);
    assert_int_equal(m.len, n);
    assert_memory_equal(m.data, data, n);
    hy_file_unmap(&m);
    assert_null(m.data);
    hy_file_unmap(&m);
    hy_buf_fini(&b);
    free(data);
}

static void empty_file(void **state)
{
    (void)state;
    hy_buf b;
    hy_map m;
    hy_buf_init(&b);
    assert_int_equal(hy_file_write(path, "", 0, 0600), HY_OK);
    assert_int_equal(hy_file_read(path, 0, &b), HY_OK);
    assert_string_equal(hy_buf_str(&b), "");
    assert_int_equal(hy_file_map(path, &m), HY_OK);
    assert_null(m.data);
    assert_int_equal(m.len, 0);
    hy_file_unmap(&m);
    hy_buf_fini(&b);
}

static void folders(void **state)
{
    (void)state;
    char sub[160];
    snprintf(sub, sizeof(sub), "%s/a/b//c/", dir);
    assert_int_equal(hy_file_mkdirs(sub, 0755), HY_OK);
    assert_int_equal(hy_file_mkdirs(sub, 0755), HY_OK);
    assert_true(hy_file_is_dir(sub));
    hy_file_write(path, "x", 1, 0600);
    snprintf(sub, sizeof(sub), "%s/f/g", dir); /* a file in the way */
    assert_true(hy_file_mkdirs(sub, 0755) < 0);
    assert_non_null(strstr(hy_fail_text(), path));
}

static void failures_name_the_path(void **state)
{
    (void)state;
    hy_buf b;
    hy_map m;
    hy_buf_init(&b);
    assert_false(hy_file_exists("/nowhere/at/all"));
    assert_int_equal(hy_file_read("/nowhere/at/all", 10, &b), HY_E_NOTFOUND);
    assert_string_equal(hy_fail_text(), "cannot open /nowhere/at/all: No such file or directory");
    assert_int_equal(hy_file_map("/nowhere/at/all", &m), HY_E_NOTFOUND);
    assert_int_equal(hy_file_read(dir, 10, &b), HY_E_INVAL);
    assert_int_equal(hy_file_map(dir, &m), HY_E_INVAL);
    assert_int_equal(hy_file_map("/dev/null", &m), HY_E_INVAL);
    assert_true(hy_file_write("/nowhere/at/all", "x", 1, 0600) < 0);
    assert_true(hy_file_write(dir, "x", 1, 0600) < 0); /* and leaves nothing beside it */
    hy_buf_fini(&b);
    char tmp[80];
    snprintf(tmp, sizeof(tmp), "%s.", strrchr(dir, '/') + 1);
    DIR *d = opendir("/tmp");
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        assert_true(strncmp(e->d_name, tmp, strlen(tmp)) != 0);
    closedir(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(write_then_read, setup, teardown),
        cmocka_unit_test_setup_teardown(big_file, setup, teardown),
        cmocka_unit_test_setup_teardown(empty_file, setup, teardown),
        cmocka_unit_test_setup_teardown(folders, setup, teardown),
        cmocka_unit_test_setup_teardown(failures_name_the_path, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
