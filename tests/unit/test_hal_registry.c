/* SPDX-License-Identifier: Apache-2.0
 *
 * Backends by name: unknown ones, modules (the skeleton, a file that is none), filled slots.
 *
 * Thread: main.  Owner: a folder for broken modules, removed at the end.
 */
#include "tests/unit/cm.h"

#include "hal/conform.h"
#include "hal/registry.h"

#include <string.h>
#include <unistd.h>

static char junk_dir[] = "/tmp/hy_registry_XXXXXX";
static char junk_file[64];

/* The path is read once, before the first look-up. */
static int setup(void **state)
{
    (void)state;
    char path[1024];
    if (mkdtemp(junk_dir) == NULL)
        return 1;
    snprintf(junk_file, sizeof(junk_file), "%s/halyard-junk.so", junk_dir);
    FILE *f = fopen(junk_file, "w");
    if (f == NULL)
        return 1;
    fputs("not a module\n", f);
    fclose(f);
    snprintf(path, sizeof(path), "/nonexistent:%s::%s", junk_dir, SKELETON_DIR);
    return setenv("HY_BACKEND_PATH", path, 1);
}

static int teardown(void **state)
{
    (void)state;
    unlink(junk_file);
    rmdir(junk_dir);
    return 0;
}

static hy_status open_named(const char *name, int index, hy_dev **out)
{
    hy_dev_opts o = {.backend = name, .index = index};
    return hy_dev_open(&o, out);
}

static void test_unknown(void **state)
{
    (void)state;
    hy_dev *d = NULL;
    assert_int_equal(open_named("cpuu", 0, &d), HY_E_NOTFOUND);
    assert_non_null(strstr(hy_fail_text(), "did you mean \"cpu\""));
    assert_int_equal(open_named("../../etc/skeletn", 0, &d), HY_E_NOTFOUND);
    assert_int_equal(open_named("skeletn", 0, &d), HY_E_NOTFOUND);
    assert_non_null(strstr(hy_fail_text(), "did you mean \"skeleton\""));
    /* a name near to nothing gets no guess, but where modules are looked for */
    assert_int_equal(open_named("quda_x", 0, &d), HY_E_NOTFOUND);
    assert_null(strstr(hy_fail_text(), "did you mean"));
    assert_non_null(strstr(hy_fail_text(), "halyard-quda_x.so"));
    assert_int_equal(open_named("", 0, &d), HY_E_NOTFOUND);
    assert_int_equal(open_named("cpu", 1, &d), HY_E_NOTFOUND);
    assert_int_equal(open_named("cpu", -1, &d), HY_E_NOTFOUND);
    assert_null(d);
}

static void test_junk_module(void **state)
{
    (void)state;
    hy_dev *d = NULL;
    assert_int_equal(open_named("junk", 0, &d), HY_E_UNSUPPORTED);
    assert_non_null(strstr(hy_fail_text(), "junk"));
    assert_null(d);
}

/* The module's own slots have bits; stubs answer; composites exist but are not the device's. */
static void test_skeleton(void **state)
{
    (void)state;
    hy_dev *d = NULL;
    assert_int_equal(open_named("skeleton", 0, &d), HY_OK);
    assert_true(hy_dev_has(d, HY_OP_ADD));
    assert_false(hy_dev_has(d, HY_OP_MATMUL));
    assert_false(hy_dev_has(d, HY_OP_FFN));
    hy_queue *q = NULL;
    assert_int_equal(d->ops->queue_create(d, &q), HY_OK);
    hy_matmul m = {.m = 1};
    assert_int_equal(d->math->matmul(q, &m), HY_E_UNSUPPORTED);
    assert_non_null(strstr(hy_fail_text(), "matmul"));
    assert_int_equal(d->ops->fence(q), HY_E_UNSUPPORTED);
    const size_t slots = sizeof(hy_math_ops) / sizeof(void *);
    for (size_t i = 1; i < slots; i++)
        assert_non_null(((void *const *)(const void *)d->math)[i]);
    d->ops->queue_destroy(q);
    hy_dev_close(d);
}

static void no_fail(void *arg, const hy_conform_item *it)
{
    (void)arg;
    if (it->result == HY_CONFORM_FAIL)
        print_message("%s %s: %s\n", hy_op_name(it->op), it->what, it->text);
}

static void test_skeleton_conforms(void **state)
{
    (void)state;
    hy_dev *d = NULL;
    hy_conform_sum sum;
    hy_conform_opts o = {.quick = true};
    assert_int_equal(open_named("skeleton", 0, &d), HY_OK);
    assert_int_equal(hy_conform_run(d, &o, no_fail, NULL, &sum), HY_OK);
    assert_int_equal(sum.failed, 0);
    assert_int_equal(sum.passed,
                     4); /* copies, the device's order and memory, no memory for others */
    assert_true(sum.refused > 50);
    hy_dev_close(d);
}

static void test_list(void **state)
{
    (void)state;
    bool cpu = false, skeleton = false;
    for (size_t i = 0; hy_backend_name_at(i) != NULL; i++) {
        cpu = cpu || strcmp(hy_backend_name_at(i), "cpu") == 0;
        skeleton = skeleton || strcmp(hy_backend_name_at(i), "skeleton") == 0;
    }
    assert_true(cpu && skeleton);
    hy_buf b;
    hy_buf_init(&b);
    hy_backend_print(&b);
    assert_non_null(strstr(hy_buf_str(&b), "cpu0: "));
    assert_non_null(strstr(hy_buf_str(&b), "skeleton0: "));
    assert_non_null(strstr(hy_buf_str(&b), "junk: "));
    assert_non_null(strstr(hy_buf_str(&b), "cuda")); /* there or not, there is a word on them */
    assert_non_null(strstr(hy_buf_str(&b), "hip"));
    hy_buf_fini(&b);
}

/* A device that computes wrongly is found out: the suite must be able to fail. */
static hy_status wrong_add(hy_queue *q, const hy_add *a)
{
    (void)q;
    for (int64_t r = 0; r < a->m; r++) {
        for (int64_t i = 0; i < a->dim; i++)
            a->y[r * a->ldy + i] = a->a[r * a->lda + i] + 1.00001f * a->b[r * a->ldb + i];
    }
    return HY_OK;
}

static void test_suite_can_fail(void **state)
{
    (void)state;
    hy_dev *d = NULL;
    hy_conform_sum sum;
    hy_conform_opts o = {.only = "add"};
    assert_int_equal(open_named("skeleton", 0, &d), HY_OK);
    const hy_math_ops *good = d->math;
    hy_math_ops bad = *good;
    bad.add = wrong_add;
    d->math = &bad;
    assert_int_equal(hy_conform_run(d, &o, NULL, NULL, &sum), HY_OK);
    d->math = good;
    assert_int_equal(sum.failed, 3); /* the sums themselves, and the device cases that add */
    hy_dev_close(d);
}

/* Exports that are wrong in one way each. */
static hy_status says_host(hy_dev *d, void *p, size_t bytes, hy_span *out)
{
    (void)d;
    *out = hy_span_host(p, bytes); /* whatever was wanted, and of whatever memory */
    return HY_OK;
}

static hy_status leaves_a_mark(hy_dev *d, void *p, size_t bytes, hy_span *out)
{
    (void)d, (void)p;
    out->len = bytes;
    return HY_E_UNSUPPORTED;
}

static hy_status leaves_an_fd(hy_dev *d, void *p, size_t bytes, hy_span *out)
{
    (void)d, (void)p, (void)bytes, (void)out;
    return dup(0) >= 0 ? HY_E_UNSUPPORTED : HY_E_SYS;
}

static hy_status other_memory(hy_dev *d, void *p, size_t bytes, hy_span *out)
{
    if (out->exp.kind != HY_EXPORT_NONE || p == NULL || bytes == 0 || (uintptr_t)p + bytes < bytes)
        return out->exp.kind != HY_EXPORT_NONE ? HY_E_UNSUPPORTED : HY_E_INVAL;
    return says_host(d, (char *)p + 64, bytes, out);
}

static hy_status takes_all(hy_dev *d, const hy_span *s, void **out)
{
    (void)d;
    *out = s->addr;
    return HY_OK;
}

static hy_status takes_none(hy_dev *d, const hy_span *s, void **out)
{
    (void)d, (void)s;
    *out = NULL; /* set on success only */
    return HY_E_UNSUPPORTED;
}

static void test_exports_can_fail(void **state)
{
    (void)state;
    static const struct {
        hy_status (*export_mem)(hy_dev *, void *, size_t, hy_span *);
        hy_status (*import_mem)(hy_dev *, const hy_span *, void **);
    } bad[] = {{says_host, NULL},    {leaves_a_mark, NULL}, {leaves_an_fd, NULL},
               {other_memory, NULL}, {NULL, takes_all},     {NULL, takes_none}};
    hy_dev *d = NULL;
    assert_int_equal(open_named("skeleton", 0, &d), HY_OK);
    const hy_dev_ops *good = d->ops;
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        hy_conform_sum sum;
        hy_dev_ops ops = *good;
        ops.export_mem = bad[i].export_mem != NULL ? bad[i].export_mem : ops.export_mem;
        ops.import_mem = bad[i].import_mem != NULL ? bad[i].import_mem : ops.import_mem;
        d->ops = &ops;
        const hy_conform_opts o = {.only = "add", .what = "memory for others"};
        assert_int_equal(hy_conform_run(d, &o, NULL, NULL, &sum), HY_OK);
        d->ops = good;
        if (sum.failed != 1 || sum.passed != 0)
            fail_msg("case %zu: %d failed, %d passed", i, sum.failed, sum.passed);
    }
    hy_dev_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_junk_module),
        cmocka_unit_test(test_skeleton),
        cmocka_unit_test(test_skeleton_conforms),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_suite_can_fail),
        cmocka_unit_test(test_exports_can_fail),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
