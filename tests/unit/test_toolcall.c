/* SPDX-License-Identifier: Apache-2.0
 *
 * Tool calls out of text: both forms, malformed ones, and byte by byte against at once.
 *
 * Thread: one.  Owner: the test.
 */
#include "core/text/toolcall.h"
#include "tests/unit/cm.h"

#include <string.h>

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"n\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},"
    "\"o\":{\"type\":\"object\"},\"s\":{\"type\":\"string\"}}}}}]";

/* Everything an answer gives, as one line: content as it is, calls as {name|arguments}. */
static void record(void *arg, const hy_toolcall_event *ev)
{
    hy_buf *b = arg;
    switch (ev->kind) {
    case HY_TOOLCALL_CONTENT:
        hy_buf_add(b, ev->text, ev->len);
        break;
    case HY_TOOLCALL_BEGIN:
        assert_int_equal(strlen(ev->id), 29);
        assert_memory_equal(ev->id, "call_", 5);
        hy_buf_printf(b, "{%d %s|", ev->index, ev->name);
        break;
    case HY_TOOLCALL_ARGS:
        hy_buf_add(b, ev->text, ev->len);
        break;
    case HY_TOOLCALL_END:
        hy_buf_putc(b, '}');
        break;
    }
}

static void feed_in(const char *text, size_t step, hy_buf *out)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    hy_toolcall *t = NULL;
    size_t n = strlen(text);
    assert_int_equal(hy_toolcall_create(tools, 1, record, out, &t), HY_OK);
    for (size_t i = 0; i < n; i += step)
        assert_int_equal(hy_toolcall_feed(t, text + i, n - i < step ? n - i : step), HY_OK);
    assert_int_equal(hy_toolcall_finish(t), HY_OK);
    hy_toolcall_destroy(t);
    json_decref(tools);
}

static const struct {
    const char *text, *want;
} cases[] = {
    {"plain text, a < b, <tool", "plain text, a < b, <tool"},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>", "{0 f|{\"n\": 1}}"},
    {"Let me look.\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>\n",
     "Let me look.\n{0 f|{}}"},
    {"\n\n<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":[1,2.50,\"x\"]}}</tool_call>\n"
     "<tool_call>\n{\"arguments\": {\"q\": 12345678901234567890}, \"name\": \"g\"}\n</tool_call>",
     "{0 f|{\"a\":[1,2.50,\"x\"]}}{1 g|{\"q\": 12345678901234567890}}"},
    {"a <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> b  c \n", "a {0 f|{}} b  c"},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"</tool_call> \\\" "
     "<tool_call>\"}}</tool_call>",
     "{0 f|{\"s\":\"</tool_call> \\\" <tool_call>\"}}"},
    {"<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"n\\\":1}\"}</tool_call>", "{0 f|{\"n\":1}}"},
    {"<tool_call>{\"name\":\"f\"}</tool_call>", "{0 f|{}}"},
    {"<tool_call>{\"name\":\"f\",\"parameters\":{\"n\":2}}</tool_call>", "{0 f|{\"n\":2}}"},
    /* the end mark is missing */
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}", "{0 f|{\"n\": 1}}"},
    /* malformed: stays content */
    {"<tool_call>{\"name\": \"f\", oops}</tool_call> x",
     "<tool_call>{\"name\": \"f\", oops}</tool_call> x"},
    {"<tool_call>{\"nom\": \"f\"}</tool_call>", "<tool_call>{\"nom\": \"f\"}</tool_call>"},
    {"<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
     "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>"},
    {"The tag <tool_call> begins a call.", "The tag <tool_call> begins a call."},
    {"<tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "<tool_call>{0 f|{}}"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1", "<tool_call>{\"name\": \"f\", "
                                                              "\"arguments\": {\"n\": 1"},
    {"<tool_call>{\"a\": \"open <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
     "<tool_call>{\"a\": \"open {0 f|{}}"},
    {"<<<tool_call>x", "<<<tool_call>x"},
    {"<tool_call>", "<tool_call>"},
    {"", ""},
    /* Qwen3-Coder */
    {"<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n<parameter=s>\nline 1\n 2 "
     "<b>\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=o>\n{\"k\": [1]}\n"
     "</parameter>\n</function>\n</tool_call>",
     "{0 f|{\"n\": 5, \"s\": \"line 1\\n 2 <b>\", \"b\": true, \"o\": {\"k\": [1]}}}"},
    {"<tool_call>\n<function=g>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
     "{0 g|{\"n\": \"5\"}}"},
    {"<tool_call><function=f></function></tool_call>", "{0 f|{}}"},
    {"<tool_call><function=f><parameter=n>1</tool_call> z",
     "<tool_call><function=f><parameter=n>1</tool_call> z"},
    {"<tool_call><func>x", "<tool_call><func>x"},
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        for (size_t step = 1; step < 300; step = step < 4 ? step + 1 : step * 7) {
            hy_buf out;
            hy_buf_init(&out);
            feed_in(cases[i].text, step, &out);
            if (strcmp(hy_buf_str(&out), cases[i].want) != 0)
                fail_msg("case %zu in steps of %zu: wanted [%s], got [%s]", i, step, cases[i].want,
                         hy_buf_str(&out));
            hy_buf_fini(&out);
        }
    }
}

/* Nothing that cannot belong to a mark waits. */
static void test_prompt_content(void **state)
{
    (void)state;
    hy_buf out;
    hy_toolcall *t = NULL;
    hy_buf_init(&out);
    hy_toolcall_create(NULL, 1, record, &out, &t);
    hy_toolcall_feed(t, "abc <tool", 9);
    assert_string_equal(hy_buf_str(&out), "abc ");
    hy_toolcall_feed(t, "box", 3);
    assert_string_equal(hy_buf_str(&out), "abc <toolbox");
    hy_toolcall_feed(t, "<tool_call>ok", 13);
    assert_string_equal(hy_buf_str(&out), "abc <toolbox<tool_call>ok");
    hy_toolcall_destroy(t);
    hy_buf_fini(&out);
}

static void test_whole(void **state)
{
    (void)state;
    static const char text[] = "Hi <tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1}}</tool_call>"
                               "<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>";
    json_t *m = NULL;
    assert_int_equal(hy_toolcall_parse(text, sizeof text - 1, NULL, 7, &m), HY_OK);
    json_t *calls = json_object_get(m, "tool_calls"), *c = json_array_get(calls, 0);
    assert_string_equal(json_string_value(json_object_get(m, "content")), "Hi ");
    assert_int_equal(json_array_size(calls), 2);
    assert_string_equal(json_string_value(json_object_get(c, "type")), "function");
    json_t *fn = json_object_get(c, "function");
    assert_string_equal(json_string_value(json_object_get(fn, "name")), "f");
    assert_string_equal(json_string_value(json_object_get(fn, "arguments")), "{\"n\":1}");
    assert_string_not_equal(json_string_value(json_object_get(c, "id")),
                            json_string_value(json_object_get(json_array_get(calls, 1), "id")));
    json_decref(m);
    assert_int_equal(hy_toolcall_parse("<tool_call>{\"name\":\"f\"}</tool_call>", 35, NULL, 7, &m),
                     HY_OK);
    assert_true(json_is_null(json_object_get(m, "content")));
    json_decref(m);
    assert_int_equal(hy_toolcall_parse("x\xff", 2, NULL, 7, &m), HY_E_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_prompt_content),
        cmocka_unit_test(test_whole),
    };
    return cmocka_run_group_tests_name("toolcall", tests, NULL, NULL);
}
