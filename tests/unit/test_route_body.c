/* SPDX-License-Identifier: Apache-2.0
 *
 * Splicing of request bodies: what is taken out, what keeps its bytes, what is refused.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/route/body.h"
#include "tests/unit/cm.h"

#include <string.h>

static void check_splice(const char *in, const char *prefill, const char *decode)
{
    hy_body b;
    hy_body_facts f;
    hy_buf out;
    hy_buf_init(&out);
    assert_int_equal(hy_body_parse(in, strlen(in), &b), HY_OK);
    hy_body_facts_get(&b, &f);
    hy_body_prefill(&out, &b, &f, "{\"p\":1}");
    assert_string_equal(hy_buf_str(&out), prefill);
    hy_buf_clear(&out);
    hy_body_decode(&out, &b, "{\"d\":2}");
    assert_string_equal(hy_buf_str(&out), decode);
    hy_buf_fini(&out);
}

static void test_splice(void **state)
{
    (void)state;
    check_splice("{}",
                 "{\"max_tokens\":1,\"stream\":false,"
                 "\"kv_transfer_params\":{\"p\":1,\"remote_max_tokens\":16}}",
                 "{\"kv_transfer_params\":{\"d\":2}}");
    check_splice(
        " { \"prompt\" : \"a\\\"}]\" , \"seed\":1e400,\"max_tokens\":  9,\"stream\":true }\n",
        "{\"prompt\":\"a\\\"}]\",\"seed\":1e400,\"max_tokens\":1,\"stream\":false,"
        "\"kv_transfer_params\":{\"p\":1,\"remote_max_tokens\":9}}",
        "{\"prompt\":\"a\\\"}]\",\"seed\":1e400,\"max_tokens\":9,\"stream\":true,"
        "\"kv_transfer_params\":{\"d\":2}}");
    /* nested members of the same names stay */
    check_splice("{\"x\":{\"n\":2,\"stream\":[{\"min_tokens\":\"{\"}]},\"max_completion_tokens\":5,"
                 "\"n\":1,\"kv_transfer_params\":{\"evil\":[1,{}]},\"stream_options\":null}",
                 "{\"x\":{\"n\":2,\"stream\":[{\"min_tokens\":\"{\"}]},\"max_completion_tokens\":1,"
                 "\"stream\":false,\"kv_transfer_params\":{\"p\":1,\"remote_max_tokens\":16}}",
                 "{\"x\":{\"n\":2,\"stream\":[{\"min_tokens\":\"{\"}]},\"max_completion_tokens\":5,"
                 "\"n\":1,\"stream_options\":null,\"kv_transfer_params\":{\"d\":2}}");
    /* a key in disguise is that key */
    check_splice(
        "{\"k\\u0076_transfer_params\":1,\"a\":\"\xc3\xa9\\u00e9\",\"\\u006D\\u0061x_tokens\":7}",
        "{\"a\":\"\xc3\xa9\\u00e9\",\"max_tokens\":1,\"stream\":false,"
        "\"kv_transfer_params\":{\"p\":1,\"remote_max_tokens\":7}}",
        "{\"a\":\"\xc3\xa9\\u00e9\",\"\\u006D\\u0061x_tokens\":7,"
        "\"kv_transfer_params\":{\"d\":2}}");
}

/* What prefill is told of the whole request's length. */
static void test_max_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        int32_t want;
    } cases[] = {
        {"{\"prompt\":\"x\"}", 16},
        {"{\"prompt\":\"x\",\"max_tokens\":null}", -1},
        {"{\"prompt\":\"x\",\"max_tokens\":300,\"max_completion_tokens\":5}", 300},
        {"{\"messages\":[]}", -1},
        {"{\"messages\":[],\"max_tokens\":40}", 40},
        {"{\"messages\":[],\"max_tokens\":40,\"max_completion_tokens\":50}", 50},
        {"{\"messages\":[],\"max_tokens\":40,\"max_completion_tokens\":null}", 40},
        {"{\"messages\":[],\"max_tokens\":\"7\"}", 0},
        {"{\"messages\":[],\"max_tokens\":1e2}", 0},
        {"{\"messages\":[],\"max_tokens\":999999999}", 999999999},
        {"{\"messages\":[],\"max_tokens\":99999999999}", INT32_MAX},
        {"{\"messages\":[],\"max_tokens\":99999999999.5}", 0},
    };
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        hy_body b;
        hy_body_facts f;
        hy_buf out;
        hy_buf_init(&out);
        assert_int_equal(hy_body_parse(cases[i].in, strlen(cases[i].in), &b), HY_OK);
        hy_body_facts_get(&b, &f);
        assert_int_equal(f.max_tokens, cases[i].want);
        hy_body_prefill(&out, &b, &f, "{}");
        assert_int_equal(strstr(hy_buf_str(&out), "remote_max_tokens") != NULL, f.max_tokens != 0);
        assert_non_null(strstr(hy_buf_str(&out), f.max_tokens != 0 ? "s\":{\"remote" : "s\":{}"));
        hy_buf_fini(&out);
    }
}

/* Any that bars end tokens from the first one on becomes the one that prefill may give. */
static void test_min_tokens(void **state)
{
    static const char *const values[] = {"0", "null", "1", "30"};
    (void)state;
    for (size_t i = 0; i < HY_COUNTOF(values); i++) {
        char in[64];
        hy_body b;
        hy_body_facts f;
        hy_buf out;
        hy_buf_init(&out);
        snprintf(in, sizeof(in), "{\"prompt\":\"x\",\"min_tokens\":%s}", values[i]);
        assert_int_equal(hy_body_parse(in, strlen(in), &b), HY_OK);
        hy_body_facts_get(&b, &f);
        assert_int_equal(f.min_tokens, i >= 2);
        hy_body_prefill(&out, &b, &f, "{}");
        assert_int_equal(strstr(hy_buf_str(&out), ",\"min_tokens\":1,") != NULL, i >= 2);
        assert_null(strstr(hy_buf_str(&out), "30"));
        hy_buf_fini(&out);
    }
}

static void test_refused(void **state)
{
    static const char *const bad[] = {
        "",
        " ",
        "[]",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":}",
        "{\"a\":1",
        "{\"a\":1,}",
        "{\"a\":1}x",
        "{a:1}",
        "{\"a\":[}",
        "{\"a\":]}",
        "{\"a\":\"x",
        "{\"a\":\"\n\"}",
        "{\"a\" 1}",
        "{\"a\":1 \"b\":2}",
        "{,}",
        "{\"a\\\":1}",
        "\xef\xbb\xbf{}",
    };
    (void)state;
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        hy_body b;
        assert_true(hy_body_parse(bad[i], strlen(bad[i]), &b) < 0);
    }
}

/* Any beginning of a body is refused, and read within its bounds (the sanitizer watches). */
static void test_cut(void **state)
{
    static const char text[] =
        "{\"prompt\":[\"a\\u00e9\",{\"b\":[1,2.5e3,null]}],\"stream\":true,\"n\":1}";
    (void)state;
    for (size_t n = 0; n < strlen(text); n++) {
        char *copy = malloc(n + 1); /* at least one, so that it is no NULL */
        hy_body b;
        memcpy(copy, text, n);
        copy = realloc(copy, n != 0 ? n : 1);
        assert_true(hy_body_parse(copy, n, &b) < 0);
        free(copy);
    }
}

static void test_limits(void **state)
{
    hy_buf s;
    hy_body b;
    (void)state;
    for (int extra = 0; extra <= 1; extra++) {
        hy_buf_init(&s);
        hy_buf_puts(&s, "{\"a\":");
        for (int i = 0; i < HY_BODY_MAX_DEPTH + extra; i++)
            hy_buf_putc(&s, '[');
        for (int i = 0; i < HY_BODY_MAX_DEPTH + extra; i++)
            hy_buf_putc(&s, ']');
        hy_buf_putc(&s, '}');
        assert_int_equal(hy_body_parse(s.data, s.len, &b), extra != 0 ? HY_E_LIMIT : HY_OK);
        hy_buf_fini(&s);
        hy_buf_init(&s);
        for (int i = 0; i < HY_BODY_MAX_MEMBERS + extra; i++)
            hy_buf_printf(&s, "%c\"k%d\":%d", i == 0 ? '{' : ',', i, i);
        hy_buf_putc(&s, '}');
        assert_int_equal(hy_body_parse(s.data, s.len, &b), extra != 0 ? HY_E_LIMIT : HY_OK);
        hy_buf_fini(&s);
    }
}

static void test_facts(void **state)
{
    static const struct {
        const char *text;
        bool alone, stream;
        size_t len;
    } t[] = {
        {"{\"prompt\":\"abc\"}", false, false, 5},
        {"{\"prompt\":\"abc\",\"stream\":true}", false, true, 5},
        {"{\"prompt\":[ 1,2]}", false, false, 6},
        {"{\"prompt\":[\"a\"]}", true, false, 5},
        {"{\"prompt\":[]}", true, false, 2},
        {"{\"prompt\":[[1]]}", true, false, 5},
        {"{\"messages\":[{\"role\":\"user\"}]}", false, false, 17},
        {"{\"x\":1}", true, false, 0},
        {"{\"prompt\":\"a\",\"n\":2}", true, false, 3},
        {"{\"prompt\":\"a\",\"n\":1,\"best_of\":1,\"echo\":false,\"prompt_logprobs\":null}", false,
         false, 3},
        {"{\"prompt\":\"a\",\"echo\":true}", true, false, 3},
        {"{\"prompt\":\"a\",\"prompt_logprobs\":0}", true, false, 3},
        {"{\"prompt\":\"a\",\"max_tokens\":0}", true, false, 3},
        {"{\"prompt\":\"a\",\"x\":1,\"x\":2}", true, false, 3},
    };
    (void)state;
    for (size_t i = 0; i < HY_COUNTOF(t); i++) {
        hy_body b;
        hy_body_facts f;
        assert_int_equal(hy_body_parse(t[i].text, strlen(t[i].text), &b), HY_OK);
        hy_body_facts_get(&b, &f);
        assert_int_equal(f.alone, t[i].alone);
        assert_int_equal(f.stream, t[i].stream);
        assert_int_equal(f.prompt_len, t[i].len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_min_tokens), cmocka_unit_test(test_splice),
        cmocka_unit_test(test_max_tokens), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cut),        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_facts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
