/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffer, status and spans.
 *
 * Thread: test.  Owner: the test.
 */
#include "core/base/buf.h"
#include "core/base/log.h"
#include "core/base/span.h"
#include "tests/unit/cm.h"

#include <string.h>

static void buf_is_a_string(void **state)
{
    (void)state;
    hy_buf b;
    hy_buf_init(&b);
    assert_string_equal(hy_buf_str(&b), "");
    hy_buf_puts(&b, "ab");
    hy_buf_putc(&b, 'c');
    hy_buf_printf(&b, "%d-%s", 7, "x");
    assert_string_equal(hy_buf_str(&b), "abc7-x");
    hy_buf_drop(&b, 2);
    assert_string_equal(hy_buf_str(&b), "c7-x");
    hy_buf_drop(&b, 4);
    assert_int_equal(b.len, 0);
    hy_buf_put_url(&b, "fe80::1%eth0", 80);
    hy_buf_put_url(&b, "10.0.0.1", 8000);
    assert_string_equal(hy_buf_str(&b), "http://[fe80::1%eth0]:80http://10.0.0.1:8000");
    hy_buf_clear(&b);
    for (int i = 0; i < 1000; i++)
        hy_buf_add(&b, "0123456789", 10);
    assert_int_equal(b.len, 10000);
    assert_int_equal(b.data[10000], 0);
    char *s = hy_buf_take(&b);
    assert_int_equal(strlen(s), 10000);
    free(s);
    s = hy_buf_take(&b);
    assert_string_equal(s, "");
    free(s);
}

static void buf_refuses_the_impossible(void **state)
{
    (void)state;
    hy_buf b;
    hy_buf_init(&b);
    assert_false(hy_buf_reserve(&b, SIZE_MAX / 2));
    assert_true(b.failed);
    hy_buf_puts(&b, "lost");
    assert_int_equal(b.len, 0);
    assert_null(hy_buf_take(&b));
}

static void status_scope_and_text(void **state)
{
    (void)state;
    assert_int_equal(hy_status_scope(HY_AGAIN), HY_SCOPE_NONE);
    assert_int_equal(hy_status_scope(HY_E_LIMIT), HY_SCOPE_REQUEST);
    assert_int_equal(hy_status_scope(HY_E_PEER), HY_SCOPE_PEER);
    assert_int_equal(hy_status_scope(HY_E_NOMEM_DEVICE), HY_SCOPE_DEVICE);
    assert_int_equal(hy_status_scope(HY_E_NOMEM), HY_SCOPE_NODE);
    assert_string_equal(hy_status_name(HY_E_FORMAT), "HY_E_FORMAT");
    assert_int_equal(hy_fail(HY_E_INVAL, "bad %s", "thing"), HY_E_INVAL);
    assert_int_equal(hy_fail_in(HY_E_INVAL, "file %d: ", 3), HY_E_INVAL);
    assert_string_equal(hy_fail_text(), "file 3: bad thing");
    hy_fail(HY_E_IO, "again: %s", hy_fail_text()); /* an argument inside the text itself */
    assert_string_equal(hy_fail_text(), "again: file 3: bad thing");
}

static void span_bounds(void **state)
{
    (void)state;
    char mem[64];
    hy_span s = hy_span_host(mem, sizeof(mem));
    assert_true(hy_span_has(&s, 0, 64));
    assert_true(hy_span_has(&s, 64, 0));
    assert_false(hy_span_has(&s, 1, 64));
    assert_false(hy_span_has(&s, 8, UINT64_MAX - 4)); /* the sum would wrap to 4 */
    assert_false(hy_span_has(&s, UINT64_MAX, 1));
    hy_span t = hy_span_sub(&s, 16, 8);
    assert_ptr_equal(t.addr, mem + 16);
    assert_int_equal(t.len, 8);
    assert_int_equal(t.exp.offset, 16);
    assert_int_equal(t.device, -1);
}

static char last[256];
static void sink(void *arg, hy_log_level level, const char *module, const char *text)
{
    (void)arg;
    snprintf(last, sizeof(last), "%d %s %s", (int)level, module, text);
}

static void log_levels(void **state)
{
    (void)state;
    hy_log_level l = HY_LOG_ERROR;
    assert_int_equal(hy_log_level_parse("debug", &l), HY_OK);
    assert_int_equal(l, HY_LOG_DEBUG);
    assert_int_equal(hy_log_level_parse("loud", &l), HY_E_INVAL);
    assert_string_equal(hy_fail_text(),
                        "unknown log level 'loud' (error, warn, info, debug, trace)");
    hy_log_set_sink(sink, NULL);
    hy_warn("kv", "block %d", 4);
    assert_string_equal(last, "1 kv block 4");
    hy_debug("kv", "unseen");
    assert_string_equal(last, "1 kv block 4");
    hy_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buf_is_a_string),
        cmocka_unit_test(buf_refuses_the_impossible),
        cmocka_unit_test(status_scope_and_text),
        cmocka_unit_test(span_bounds),
        cmocka_unit_test(log_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
