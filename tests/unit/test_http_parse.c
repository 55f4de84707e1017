/* SPDX-License-Identifier: Apache-2.0
 *
 * Request bodies: defaults, every field with wrong types and out of range, hostile JSON.
 * Names, defaults and bounds: vLLM 0.32's OpenAPI document and OpenAI's API reference.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/http/parse.h"

#include "core/base/buf.h"

#include <string.h>

#include "tests/unit/cm.h"

static hy_api_limits lim;

static hy_status parse(hy_api api, const char *body, hy_api_req *r, hy_api_error *e)
{
    hy_api_limits_init(&lim, 1000, 2048);
    return hy_api_parse(&lim, api, body, strlen(body), r, e);
}

static void refused(hy_api api, const char *body, const char *param)
{
    hy_api_req r;
    hy_api_error e;
    hy_status st = parse(api, body, &r, &e);
    if (st != HY_E_INVAL || strcmp(e.param, param) != 0)
        printf("%.200s -> %d %d '%s' %s\n", body, st, e.status, e.param, e.text);
    assert_int_equal(st, HY_E_INVAL);
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, param);
    assert_true(e.text[0] != '\0');
}

static void range_text(const char *field, const char *v, const char *text)
{
    char body[128];
    hy_api_req r;
    hy_api_error e;
    snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"%s\":%s}", field, v);
    assert_int_equal(parse(HY_API_COMPLETIONS, body, &r, &e), HY_E_INVAL);
    assert_string_equal(e.text, text);
}

static hy_api_req accepted(hy_api api, const char *body)
{
    hy_api_req r;
    hy_api_error e;
    hy_status st = parse(api, body, &r, &e);
    if (st != HY_OK)
        printf("%.200s -> %s\n", body, e.text);
    assert_int_equal(st, HY_OK);
    return r;
}

static void test_defaults(void **state)
{
    (void)state;
    hy_api_req r = accepted(HY_API_COMPLETIONS, "{\"prompt\":\"a\"}");
    assert_int_equal(r.max_tokens, 16);
    assert_int_equal(r.n, 1);
    assert_true(r.s.temperature == 1 && r.s.top_p == 1 && r.s.repetition_penalty == 1);
    assert_int_equal(r.s.logprobs, -1);
    assert_int_equal(r.prompt_logprobs, -1);
    assert_true(r.skip_special && r.add_special && !r.stream && !r.echo && !r.s.has_seed);
    hy_api_req_fini(&r);
    r = accepted(HY_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
    assert_int_equal(r.max_tokens, -1);
    assert_true(r.add_generation_prompt && !r.add_special && r.parallel_tools);
    assert_int_equal(r.tool_choice, HY_TOOLS_NONE);
    hy_api_req_fini(&r);
    r = accepted(HY_API_TOKENIZE, "{\"prompt\":\"\"}");
    assert_true(r.add_special && r.parse_special);
    hy_api_req_fini(&r);
}

static void test_values(void **state)
{
    (void)state;
    hy_api_req r = accepted(
        HY_API_COMPLETIONS,
        "{\"prompt\":[1,2],\"temperature\":0.5,\"top_p\":0.25,\"min_p\":0.125,\"top_k\":7,"
        "\"presence_penalty\":-2,\"frequency_penalty\":2,\"repetition_penalty\":1.5,\"n\":3,"
        "\"max_tokens\":5.0,\"min_tokens\":2,\"seed\":-1,\"logprobs\":4,\"stop\":[\"a\",\"bc\"],"
        "\"stop_token_ids\":[3,4],\"logit_bias\":{\"17\":-100,\"5\":1.5},\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},"
        "\"priority\":-3,\"cache_salt\":\"s\",\"ignore_eos\":true,\"echo\":true,"
        "\"truncate_prompt_tokens\":-1,\"kv_transfer_params\":{\"a\":[1]},\"user\":null,"
        "\"unknown\":{\"x\":1}}");
    assert_true(r.s.temperature == 0.5F && r.s.top_p == 0.25F && r.s.min_p == 0.125F);
    assert_int_equal(r.s.top_k, 7);
    assert_true(r.s.presence_penalty == -2 && r.s.frequency_penalty == 2);
    assert_true(r.s.repetition_penalty == 1.5F);
    assert_int_equal(r.n, 3);
    assert_int_equal(r.max_tokens, 5);
    assert_int_equal(r.min_tokens, 2);
    assert_true(r.s.has_seed && r.s.seed == UINT64_MAX);
    assert_int_equal(r.s.logprobs, 4);
    assert_int_equal(r.n_stop, 2);
    assert_string_equal(r.stop[1], "bc");
    assert_int_equal(r.n_stop_ids, 2);
    assert_int_equal(r.s.n_bias, 2);
    assert_true(r.stream && r.include_usage && r.continuous_usage && r.ignore_eos && r.echo);
    assert_int_equal(r.priority, -3);
    assert_int_equal(r.truncate, -1);
    assert_non_null(r.kv_params);
    hy_api_req_fini(&r);
    r = accepted(HY_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":"
                              "true,\"top_logprobs\":3,\"max_tokens\":9,"
                              "\"max_completion_tokens\":7,\"tools\":[{\"type\":\"function\","
                              "\"function\":{\"name\":\"f\"}}],\"response_format\":{\"type\":"
                              "\"text\"},\"parallel_tool_calls\":false}");
    assert_int_equal(r.s.logprobs, 3);
    assert_int_equal(r.max_tokens, 7);
    assert_int_equal(r.tool_choice, HY_TOOLS_AUTO);
    assert_false(r.parallel_tools);
    hy_api_req_fini(&r);
}

/* Every field: each JSON type that it does not take is refused by its name. */
static void test_wrong_types(void **state)
{
    (void)state;
    enum { NUM = 1, STR = 2, BOOL = 4, ARR = 8, OBJ = 16, FRAC = 32 };
    static const struct {
        const char *name;
        int takes;
        bool chat_only;
    } f[] = {
        {"model", STR, false},
        {"user", STR, false},
        {"stream", BOOL, false},
        {"n", NUM, false},
        {"max_tokens", NUM, false},
        {"min_tokens", NUM, false},
        {"temperature", NUM | FRAC, false},
        {"top_p", NUM | FRAC, false},
        {"min_p", NUM | FRAC, false},
        {"top_k", NUM, false},
        {"repetition_penalty", NUM | FRAC, false},
        {"presence_penalty", NUM | FRAC, false},
        {"frequency_penalty", NUM | FRAC, false},
        {"seed", NUM, false},
        {"echo", BOOL, false},
        {"ignore_eos", BOOL, false},
        {"include_stop_str_in_output", BOOL, false},
        {"skip_special_tokens", BOOL, false},
        {"spaces_between_special_tokens", BOOL, false},
        {"add_special_tokens", BOOL, false},
        {"return_token_ids", BOOL, false},
        {"return_tokens_as_token_ids", BOOL, false},
        {"priority", NUM, false},
        {"cache_salt", STR, false},
        {"request_id", STR, false},
        {"kv_transfer_params", OBJ, false},
        {"truncate_prompt_tokens", NUM, false},
        {"truncation_side", 0, false},
        {"stop", STR | ARR, false},
        {"stop_token_ids", ARR, false},
        {"logit_bias", OBJ, false},
        {"prompt_logprobs", NUM, false},
        {"documents", ARR, true},
        {"chat_template_kwargs", OBJ, true},
        {"add_generation_prompt", BOOL, true},
        {"continue_final_message", BOOL, true},
        {"parallel_tool_calls", BOOL, true},
        {"tools", ARR, true},
        {"top_logprobs", NUM, true},
        {"max_completion_tokens", NUM, true},
        {"metadata", OBJ, true},
        {"logprobs", BOOL, true},
    };
    static const struct {
        int type;
        const char *json;
    } v[] = {{NUM, "1"}, {FRAC, "0.5"}, {STR, "\"x\""}, {BOOL, "true"}, {ARR, "[]"}, {OBJ, "{}"}};
    char body[256];
    for (size_t i = 0; i < HY_COUNTOF(f); i++) {
        for (size_t k = 0; k < HY_COUNTOF(v); k++) {
            if ((f[i].takes & v[k].type) != 0)
                continue;
            snprintf(body, sizeof(body),
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"%s\":%s}", f[i].name,
                     v[k].json);
            refused(HY_API_CHAT, body, f[i].name);
            if (f[i].chat_only)
                continue;
            snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"%s\":%s}", f[i].name, v[k].json);
            refused(HY_API_COMPLETIONS, body, f[i].name);
        }
        /* null is "not given" */
        snprintf(body, sizeof(body),
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"%s\":null}", f[i].name);
        hy_api_req r = accepted(HY_API_CHAT, body);
        hy_api_req_fini(&r);
    }
}

static void test_ranges(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"temperature", "-0.1"},
        {"temperature", "2.1"},
        {"temperature", "1e300"},
        {"top_p", "0"},
        {"top_p", "1.01"},
        {"top_p", "-1"},
        {"min_p", "-0.1"},
        {"min_p", "1.1"},
        {"top_k", "-2"},
        {"top_k", "2147483648"},
        {"top_k", "9223372036854775807"},
        {"repetition_penalty", "0"},
        {"repetition_penalty", "-1"},
        {"repetition_penalty", "1e-320"}, /* 0 as a float */
        {"top_p", "1e-320"},
        {"presence_penalty", "2.5"},
        {"frequency_penalty", "-2.5"},
        {"n", "0"},
        {"n", "-1"},
        {"n", "129"},
        {"n", "1e18"},
        {"max_tokens", "-1"},
        {"max_tokens", "2049"},
        {"max_tokens", "99999999999"},
        {"min_tokens", "-1"},
        {"min_tokens", "17"},
        {"logprobs", "21"},
        {"logprobs", "-1"},
        {"prompt_logprobs", "21"},
        {"prompt_logprobs", "-1"},
        {"seed", "1.5"},
        {"seed", "1e30"},
        {"truncate_prompt_tokens", "0"},
        {"truncate_prompt_tokens", "-2"},
        {"truncation_side", "\"up\""},
        {"stop", "[\"\"]"},
        {"stop", "\"\""},
        {"stop", "[1]"},
        {"stop_token_ids", "[-1]"},
        {"stop_token_ids", "[1000]"},
        {"stop_token_ids", "[\"1\"]"},
        {"logit_bias", "{\"x\":1}"},
        {"logit_bias", "{\"\":1}"},
        {"logit_bias", "{\"1000\":1}"},
        {"logit_bias", "{\"-1\":1}"},
        {"logit_bias", "{\"1\":101}"},
        {"logit_bias", "{\"1\":\"2\"}"},
        {"logit_bias", "{\"99999999999999999999\":1}"},
        {"cache_salt", "\"\""},
        {"stream_options", "{}"},
        {"suffix", "\"b\""},
        {"best_of", "2"},
        {"use_beam_search", "true"},
        {"bad_words", "[\"a\"]"},
        {"allowed_token_ids", "[1]"},
        {"prompt_embeds", "\"AA\""},
        {"structured_outputs", "{\"regex\":\"(\"}"},
        {"guided_json", "{\"a\":1}"},
        {"response_format", "{\"type\":\"json_object\"}"},
        {"cache_salt", "\"a\\u0000b\""},
    };
    char body[256];
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"%s\":%s}", bad[i][0], bad[i][1]);
        refused(HY_API_COMPLETIONS, body, bad[i][0]);
    }
    refused(HY_API_COMPLETIONS, "{\"prompt\":\"a\",\"n\":2,\"temperature\":0}", "n");
    range_text("top_k", "-2", "top_k must be at least -1, got -2.");
    range_text("top_k", "1099511627776", "top_k must be in [-1, 2147483647], got 1099511627776.");
    range_text("priority", "2147483648",
               "priority must be in [-2147483647, 2147483647], got 2147483648.");
    range_text("temperature", "2.1", "temperature must be in [0, 2], got 2.1.");
    refused(HY_API_COMPLETIONS, "{\"prompt\":\"a\",\"stream\":true,\"prompt_logprobs\":1}",
            "prompt_logprobs");
    refused(HY_API_COMPLETIONS,
            "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
            "stream_options.include_usage");
}

static void test_prompts(void **state)
{
    (void)state;
    static const char *const good[] = {"\"a\"", "[\"a\",\"b\"]", "[1,2,999]", "[[1],[2,3]]", "[0]"};
    static const char *const bad[] = {
        "null",      "\"\"",      "[]",     "3",           "true",
        "{}",        "[\"\"]",    "[[]]",   "[[1],\"a\"]", "[\"a\",[1]]",
        "[\"a\",1]", "[1,\"a\"]", "[1.5]",  "[-1]",        "[1000]",
        "[[1000]]",  "[[[1]]]",   "[null]", "[true]",      "[9223372036854775807]"};
    char body[256];
    for (size_t i = 0; i < HY_COUNTOF(good); i++) {
        snprintf(body, sizeof(body), "{\"prompt\":%s}", good[i]);
        hy_api_req r = accepted(HY_API_COMPLETIONS, body);
        hy_api_req_fini(&r);
    }
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        snprintf(body, sizeof(body), "{\"prompt\":%s}", bad[i]);
        refused(HY_API_COMPLETIONS, body, "prompt");
    }
    refused(HY_API_COMPLETIONS, "{}", "prompt");
    refused(HY_API_TOKENIZE, "{}", "prompt");
    refused(HY_API_TOKENIZE, "{\"prompt\":[1]}", "prompt");
    refused(HY_API_DETOKENIZE, "{}", "tokens");
    refused(HY_API_DETOKENIZE, "{\"tokens\":\"1\"}", "tokens");
    refused(HY_API_DETOKENIZE, "{\"tokens\":[1,\"2\"]}", "tokens");
    refused(HY_API_DETOKENIZE, "{\"tokens\":[-1]}", "tokens");
}

static void test_chat(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"{}", "messages"},
        {"{\"messages\":null}", "messages"},
        {"{\"messages\":\"a\"}", "messages"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":[1]}", "messages[0]"},
        {"{\"messages\":[{}]}", "messages[0]"},
        {"{\"messages\":[{\"role\":1,\"content\":\"\"}]}", "messages[0]"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":{}}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[1]}]}", "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]}",
         "messages[0].content[0]"},
    };
    for (size_t i = 0; i < HY_COUNTOF(bad); i++)
        refused(HY_API_CHAT, bad[i][0], bad[i][1]);
    static const char *const tools[][2] = {
        {"\"tools\":[1]", "tools[0]"},
        {"\"tools\":[{\"type\":\"x\",\"function\":{\"name\":\"f\"}}]", "tools[0]"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools[0]"},
        {"\"tools\":[{\"function\":{\"name\":\"\"}}]", "tools[0]"},
        {"\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":1}}]", "tools[0]"},
        {"\"tool_choice\":\"auto\"", "tool_choice"},
        {"\"tool_choice\":\"zzz\"", "tool_choice"},
        {"\"tool_choice\":3", "tool_choice"},
        {"\"tool_choice\":\"required\",\"tools\":[{\"function\":{\"name\":\"f\"}}]", "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\"},\"tools\":[{\"function\":{\"name\":\"f\"}}]",
         "tool_choice"},
        {"\"functions\":[{\"name\":\"f\"}]", "functions"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}", "response_format"},
        {"\"response_format\":{\"type\":\"zzz\"}", "response_format.type"},
        {"\"response_format\":{}", "response_format.type"},
        {"\"response_format\":\"text\"", "response_format"},
        {"\"chat_template\":\"x\"", "chat_template"},
        {"\"top_logprobs\":2", "top_logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
        {"\"documents\":[1]", "documents"},
        {"\"add_generation_prompt\":true,\"continue_final_message\":true",
         "continue_final_message"},
    };
    char body[512];
    for (size_t i = 0; i < HY_COUNTOF(tools); i++) {
        snprintf(body, sizeof(body), "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],%s}",
                 tools[i][0]);
        refused(HY_API_CHAT, body, tools[i][1]);
    }
    static const char ok[] =
        "{\"messages\":[{\"role\":\"alien\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":"
        "null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"{}\"}}]},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
        "\"a\"}"
        "]}],\"tool_choice\":\"none\",\"tools\":[{\"function\":{\"name\":\"f\"}}]}";
    hy_api_req r = accepted(HY_API_CHAT, ok);
    assert_int_equal(r.tool_choice, HY_TOOLS_NONE);
    hy_api_req_fini(&r);
}

static void test_hostile_json(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "null",
        "3",
        "\"a\"",
        "{\"prompt\":",
        "{\"prompt\":\"a\"} x",
        "{'a':1}",
        "{\"prompt\":\"a\",}",
        "{\"prompt\":nan}",
        "{\"prompt\":\"\xff\"}",
        "{\"prompt\":\"\xc0\x80\"}",
        "{\"prompt\":\"\\ud800\"}",
        "{\"prompt\":\"\\uZZZZ\"}",
        "{\"pro\\u0000mpt\":\"a\"}",
        "\xef\xbb\xbf{\"prompt\":\"a\"}",
    };
    for (size_t i = 0; i < HY_COUNTOF(bad); i++)
        refused(HY_API_COMPLETIONS, bad[i], "body");
    /* numbers that are none, or that no type holds, are refused by the name of their field */
    static const char *const numbers[] = {
        "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "99999999999999999999", "[1, NaN]"};
    static const char *const names[] = {"temperature", "seed",     "max_tokens",
                                        "n",           "logprobs", "priority"};
    for (size_t i = 0; i < HY_COUNTOF(numbers) * HY_COUNTOF(names); i++) {
        const char *v = numbers[i % HY_COUNTOF(numbers)], *name = names[i / HY_COUNTOF(numbers)];
        char body[128];
        snprintf(body, sizeof(body), "{\"prompt\":\"a: b\", \"%s\" : %s, \"x\":1}", name, v);
        refused(HY_API_COMPLETIONS, body, name);
        snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"%s\":%s}", name, v);
        refused(HY_API_COMPLETIONS, body, name);
    }
    /* where nobody minds, integers of any size are ignored */
    hy_api_req big =
        accepted(HY_API_COMPLETIONS, "{\"prompt\":\"a\",\"mine\":99999999999999999999,\"seed\":7}");
    assert_int_equal(big.s.seed, 7);
    hy_api_req_fini(&big);
    /* a character that JSON can write is fine in a prompt */
    hy_api_req r = accepted(HY_API_COMPLETIONS, "{\"prompt\":\"a\\u0000b\"}");
    assert_int_equal(json_string_length(r.prompt), 3);
    hy_api_req_fini(&r);
}

static void test_large_json(void **state)
{
    (void)state;
    hy_buf b;
    hy_buf_init(&b);
    for (int i = 0; i < 1000000; i++)
        hy_buf_putc(&b, '[');
    refused(HY_API_COMPLETIONS, hy_buf_str(&b), "body");
    hy_buf_clear(&b);
    hy_buf_puts(&b, "{\"prompt\":\"a\",\"stop\":[");
    for (int i = 0; i < 10000; i++)
        hy_buf_printf(&b, "%s\"s%d\"", i == 0 ? "" : ",", i);
    hy_buf_puts(&b, "]}");
    refused(HY_API_COMPLETIONS, hy_buf_str(&b), "stop");
    hy_buf_clear(&b);
    hy_buf_puts(&b, "{\"prompt\":\"a\",\"stop\":\"");
    for (int i = 0; i < 70000; i++)
        hy_buf_putc(&b, 'x');
    hy_buf_puts(&b, "\"}");
    refused(HY_API_COMPLETIONS, hy_buf_str(&b), "stop");
    hy_buf_clear(&b);
    hy_buf_puts(&b, "{\"prompt\":[");
    for (int i = 0; i < 2000; i++)
        hy_buf_printf(&b, "%s\"p\"", i == 0 ? "" : ",");
    hy_buf_puts(&b, "]}");
    refused(HY_API_COMPLETIONS, hy_buf_str(&b), "prompt");
    hy_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),     cmocka_unit_test(test_values),
        cmocka_unit_test(test_wrong_types),  cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_prompts),      cmocka_unit_test(test_chat),
        cmocka_unit_test(test_hostile_json), cmocka_unit_test(test_large_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
