/* SPDX-License-Identifier: Apache-2.0
 *
 * Failure texts and log lines: what a file or a peer put into a name moves no terminal and makes no
 * second line.
 *
 * Thread: one.  Owner: the test.
 */
#include "core/base/log.h"
#include "core/base/status.h"
#include "tests/unit/cm.h"

#include <string.h>

static const struct {
    const char *raw, *clean;
} cases[] = {
    {"plain: caf\xc3\xa9 \xe6\x97\xa5", "plain: caf\xc3\xa9 \xe6\x97\xa5"},
    {"a\x1b[2Jb", "a?[2Jb"},
    {"line\nline\r\ttab", "line?line??tab"},
    {"\x7f\x01", "??"},
    {"csi \xc2\x9b"
     "31m, nbsp \xc2\xa0",
     "csi ??31m, nbsp \xc2\xa0"},
    {"cut \xc2", "cut \xc2"},
    {"", ""},
};

static void texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        char t[64], want[80];
        snprintf(t, sizeof(t), "%s", cases[i].raw);
        hy_printable(t);
        assert_string_equal(t, cases[i].clean);
        hy_fail(HY_E_FORMAT, "tensor %s", cases[i].raw);
        snprintf(want, sizeof(want), "tensor %s", cases[i].clean);
        assert_string_equal(hy_fail_text(), want);
        hy_fail_in(HY_E_FORMAT, "%s: ", cases[i].raw);
        snprintf(want, sizeof(want), "%s: tensor %s", cases[i].clean, cases[i].clean);
        assert_string_equal(hy_fail_text(), want);
    }
}

static char last[256];

static void sink(void *arg, hy_log_level level, const char *module, const char *text)
{
    (void)arg;
    (void)level;
    (void)module;
    snprintf(last, sizeof(last), "%s", text);
}

static void log_lines(void **state)
{
    (void)state;
    hy_log_set_sink(sink, NULL);
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        hy_info("test", "%s", cases[i].raw);
        assert_string_equal(last, cases[i].clean);
    }
    hy_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(log_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
