/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the HTTP server that need no server: JSON writer, stop strings, tool calls.
 * Expected strings follow RFC 8259 and RFC 3629; stop strings are checked against a plain search.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/http/json_out.h"
#include "core/http/stop.h"
#include "core/http/tools.h"

#include <math.h>
#include <string.h>

#include "tests/unit/cm.h"

static void test_json_strings(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t len;
        const char *out;
    } cases[] = {
        {"abc", 3, "\"abc\""},
        {"", 0, "\"\""},
        {"a\"\\\n\r\t\x01", 7, "\"a\\\"\\\\\\n\\r\\t\\u0001\""},
        {"a\0b", 3, "\"a\\u0000b\""},
        {"\x7f", 1, "\"\\u007f\""},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"\xff", 1, "\"\xef\xbf\xbd\""},
        {"\xc0\x80", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* overlong */
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* surrogate */
        {"\xf4\x90\x80\x80", 4, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"a\xe2\x82", 3, "\"a\xef\xbf\xbd\xef\xbf\xbd\""}, /* cut off */
    };
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        hy_buf b;
        hy_buf_init(&b);
        hy_json_str(&b, cases[i].in, cases[i].len);
        assert_string_equal(hy_buf_str(&b), cases[i].out);
        hy_buf_fini(&b);
    }
}

static void test_json_numbers(void **state)
{
    (void)state;
    static const struct {
        float x;
        const char *out;
    } cases[] = {
        {-0.2605976462364197F, "-0.260597646"},
        {-1.0F, "-1.0"},
        {0.0F, "0.0"},
        {-11.549774169921875F, "-11.5497742"},
        {-1e-10F, "-1.00000001e-10"},
        {-INFINITY, "-9999.0"},
        {NAN, "-9999.0"},
    };
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        hy_buf b;
        hy_buf_init(&b);
        hy_json_lp(&b, cases[i].x);
        assert_string_equal(hy_buf_str(&b), cases[i].out);
        if (isfinite(cases[i].x)) /* 9 digits bring the same bits back */
            assert_true(strtof(hy_buf_str(&b), NULL) == cases[i].x);
        hy_buf_fini(&b);
    }
}

/* Feeds text in pieces of `step` bytes. */
static int run_stops(const char *const *stops, size_t n, const char *text, size_t step,
                     bool include, hy_buf *out)
{
    size_t lens[8];
    hy_stop_set set;
    hy_stop_state st;
    for (size_t i = 0; i < n; i++)
        lens[i] = strlen(stops[i]);
    assert_int_equal(hy_stop_set_init(&set, stops, lens, n), HY_OK);
    assert_int_equal(hy_stop_init(&st, &set), HY_OK);
    size_t len = strlen(text);
    for (size_t i = 0; i < len; i += step) {
        size_t k = len - i < step ? len - i : step;
        if (hy_stop_push(&st, text + i, k, true, include, out))
            break;
    }
    int hit = st.matched;
    if (hit < 0)
        hy_stop_flush(&st, out);
    hy_stop_fini(&st);
    hy_stop_set_fini(&set);
    return hit;
}

static void test_stop_strings(void **state)
{
    (void)state;
    static const struct {
        const char *stops[4];
        const char *text, *cut, *kept;
        int hit;
    } cases[] = {
        {{"END"}, "say END now", "say ", "say END", 0},
        {{"END"}, "EEN EN", "EEN EN", "EEN EN", -1},
        {{"aab"}, "aaaab", "aa", "aaaab", 0},       /* overlap with itself */
        {{"abab", "ba"}, "xabab", "xa", "xaba", 1}, /* ends first */
        {{"b", "ab"}, "xxab", "xx", "xxab", 1},     /* ends together: the longest */
        {{"\n\n", "###"}, "a\nb\n\nc", "a\nb", "a\nb\n\n", 0},
        {{NULL}, "no stops", "no stops", "no stops", -1},
    };
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        size_t n = 0;
        while (n < 4 && cases[i].stops[n] != NULL)
            n++;
        for (size_t step = 1; step < 6; step++) {
            for (int include = 0; include < 2; include++) {
                hy_buf out;
                hy_buf_init(&out);
                assert_int_equal(run_stops(cases[i].stops, n, cases[i].text, step, include, &out),
                                 cases[i].hit);
                assert_string_equal(hy_buf_str(&out), include ? cases[i].kept : cases[i].cut);
                hy_buf_fini(&out);
            }
        }
    }
}

/* What cannot become a stop string is given out at once. */
static void test_stop_holds_little(void **state)
{
    (void)state;
    const char *stops[] = {"<end>"};
    const size_t lens[] = {5};
    hy_stop_set set;
    hy_stop_state st;
    hy_buf out;
    hy_buf_init(&out);
    assert_int_equal(hy_stop_set_init(&set, stops, lens, 1), HY_OK);
    assert_int_equal(hy_stop_init(&st, &set), HY_OK);
    hy_stop_push(&st, "abc<e", 5, true, false, &out);
    assert_string_equal(hy_buf_str(&out), "abc");
    hy_stop_push(&st, "x<", 2, true, false, &out);
    assert_string_equal(hy_buf_str(&out), "abc<ex");
    /* not armed: passes whatever it is, and nothing of it counts later */
    hy_stop_push(&st, "<end", 4, false, false, &out);
    assert_string_equal(hy_buf_str(&out), "abc<ex<<end");
    assert_false(hy_stop_push(&st, ">", 1, true, false, &out));
    hy_stop_fini(&st);
    hy_stop_set_fini(&set);
    hy_buf_fini(&out);
}

static void test_tool_calls(void **state)
{
    (void)state;
    const char text[] = "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1.10}}\n"
                        "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n"
                        "</tool_call>";
    for (int parallel = 0; parallel < 2; parallel++) {
        struct hy_tool_stream *t = hy_tools__create(NULL, "id", 0, parallel);
        hy_buf content, json;
        hy_buf_init(&content);
        hy_buf_init(&json);
        assert_non_null(t);
        for (size_t i = 0; i < sizeof(text) - 1; i++)
            hy_tools__push(t, text + i, 1, &content);
        hy_tools__finish(t, &content);
        assert_true(hy_tools__called(t));
        assert_memory_equal(hy_buf_str(&content), "I look.", 7);
        hy_tools__calls_json(t, &json);
        json_t *v = json_loads(hy_buf_str(&json), 0, NULL);
        assert_int_equal(json_array_size(v), parallel ? 2 : 1);
        const json_t *f = json_object_get(json_array_get(v, 0), "function");
        assert_string_equal(json_string_value(json_object_get(f, "name")), "f");
        json_t *args = json_loads(json_string_value(json_object_get(f, "arguments")), 0, NULL);
        assert_true(json_real_value(json_object_get(args, "a")) == 1.1);
        json_decref(args);
        json_decref(v);
        /* the deltas tell everything once */
        hy_buf_clear(&json);
        assert_true(hy_tools__pending(t));
        hy_tools__delta_json(t, &json);
        assert_false(hy_tools__pending(t));
        v = json_loads(hy_buf_str(&json), 0, NULL);
        assert_int_equal(json_array_size(v), parallel ? 2 : 1);
        json_decref(v);
        hy_buf_fini(&content);
        hy_buf_fini(&json);
        hy_tools__destroy(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_strings), cmocka_unit_test(test_json_numbers),
        cmocka_unit_test(test_stop_strings), cmocka_unit_test(test_stop_holds_little),
        cmocka_unit_test(test_tool_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
