/* SPDX-License-Identifier: Apache-2.0
 *
 * The API over a real socket with a scripted engine: shapes of answers and streams as vLLM 0.32
 * gives them (shared/data/interop/vllm/api), usage, stops, logprobs, tools, pages, keys.
 *
 * Thread: the test's.  Owner: each test has a kit of its own.
 */
#include "tests/unit/http_kit.h"

#include <jansson.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static kit K;

static int up(void **state)
{
    (void)state;
    kit_init(&K);
    return 0;
}

static int down(void **state)
{
    (void)state;
    kit_stop(&K);
    return 0;
}

static json_t *json_of(const answer *a, int status)
{
    if (a->status != status)
        printf("status %d, body %s\n", a->status, a->body);
    assert_int_equal(a->status, status);
    json_t *v = json_loadb(a->body, a->len, 0, NULL);
    assert_non_null(v);
    return v;
}

static json_t *post(const char *path, const char *body, int status)
{
    answer a = kit_post(&K, path, body);
    json_t *v = json_of(&a, status);
    answer_free(&a);
    return v;
}

/* "choices.0.text" */
static json_t *at(json_t *v, const char *path)
{
    char t[128];
    snprintf(t, sizeof(t), "%s", path);
    for (char *p = strtok(t, "."); p != NULL && v != NULL; p = strtok(NULL, "."))
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(p)) : json_object_get(v, p);
    return v;
}

static const char *str_at(json_t *v, const char *path)
{
    const char *s = json_string_value(at(v, path));
    return s != NULL ? s : "(none)";
}

static int int_at(json_t *v, const char *path)
{
    assert_true(json_is_integer(at(v, path)));
    return (int)json_integer_value(at(v, path));
}

/* The events of an SSE body as an array; the last line must be [DONE]. */
static json_t *events_of(const answer *a)
{
    json_t *list = json_array();
    assert_int_equal(a->status, 200);
    assert_non_null(strstr(a->head, "Content-Type: text/event-stream"));
    const char *p = a->body;
    while (strncmp(p, "data: [DONE]\n\n", 14) != 0) {
        assert_int_equal(strncmp(p, "data: ", 6), 0);
        const char *end = strstr(p, "\n\n");
        assert_non_null(end);
        json_t *v = json_loadb(p + 6, (size_t)(end - p) - 6, 0, NULL);
        assert_non_null(v);
        json_array_append_new(list, v);
        p = end + 2;
    }
    assert_string_equal(p, "data: [DONE]\n\n");
    return list;
}

static void test_completion(void **state)
{
    (void)state;
    kit_start(&K);
    fake_script(K.engine, K.tok, " Paris is big.", true);
    json_t *v = post("/v1/completions",
                     "{\"model\":\"tiny\",\"prompt\":\"The capital\",\"max_tokens\":100}", 200);
    assert_string_equal(str_at(v, "object"), "text_completion");
    assert_string_equal(str_at(v, "model"), "tiny");
    assert_memory_equal(str_at(v, "id"), "cmpl-", 5);
    assert_string_equal(str_at(v, "choices.0.text"), " Paris is big.");
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "stop");
    assert_true(json_is_null(at(v, "choices.0.stop_reason")));
    assert_true(json_is_null(at(v, "choices.0.logprobs")));
    /* the end token counts, as in vLLM */
    assert_int_equal(int_at(v, "usage.completion_tokens"), K.engine->n_script + 1);
    assert_int_equal(int_at(v, "usage.prompt_tokens"), K.engine->last_n_prompt);
    assert_int_equal(int_at(v, "usage.total_tokens"),
                     K.engine->last_n_prompt + K.engine->n_script + 1);
    assert_int_equal(int_at(v, "usage.prompt_tokens_details.cached_tokens"),
                     K.engine->last_n_prompt / 2);
    json_decref(v);
    v = post("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":2}", 200);
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "length");
    assert_int_equal(int_at(v, "usage.completion_tokens"), 2);
    json_decref(v);
    /* the end token has an id and a logprob, and no text */
    v = post("/v1/completions",
             "{\"prompt\":\"a\",\"max_tokens\":100,\"logprobs\":1,\"return_token_ids\":true}", 200);
    size_t n = (size_t)K.engine->n_script + 1;
    assert_int_equal(json_array_size(at(v, "choices.0.token_ids")), n);
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.tokens")), n);
    assert_string_equal(str_at(v, "choices.0.text"), " Paris is big.");
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "stop");
    json_decref(v);
    answer a =
        kit_post(&K, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":100,\"stream\":true}");
    assert_non_null(strstr(a.body, "\"finish_reason\":\"stop\""));
    assert_null(strstr(a.body, "abort"));
    answer_free(&a);
}

static void test_prompts_and_choices(void **state)
{
    (void)state;
    kit_start(&K);
    fake_script(K.engine, K.tok, "xyz", true);
    json_t *v = post("/v1/completions",
                     "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"max_tokens\":3,\"echo\":true}", 200);
    assert_int_equal(json_array_size(at(v, "choices")), 4);
    static const char *const want[] = {"axyz", "axyz", "bxyz", "bxyz"};
    for (int i = 0; i < 4; i++) {
        char p[64];
        snprintf(p, sizeof(p), "choices.%d.index", i);
        assert_int_equal(int_at(v, p), i);
        snprintf(p, sizeof(p), "choices.%d.text", i);
        if (strlen(str_at(v, p)) < 4) /* three tokens may be less than the text */
            assert_memory_equal(str_at(v, p), want[i], strlen(str_at(v, p)));
        else
            assert_string_equal(str_at(v, p), want[i]);
    }
    assert_int_equal(int_at(v, "usage.prompt_tokens"), 2); /* once a prompt, not once a choice */
    json_decref(v);
    v = post("/v1/completions",
             "{\"prompt\":[30,31,32],\"max_tokens\":1,\"return_token_ids\":true}", 200);
    assert_int_equal(K.engine->last_n_prompt, 3);
    assert_int_equal(K.engine->last_prompt[2], 32);
    assert_int_equal(int_at(v, "choices.0.prompt_token_ids.1"), 31);
    assert_int_equal(int_at(v, "choices.0.token_ids.0"), K.engine->script[0]);
    json_decref(v);
    v = post("/v1/completions", "{\"prompt\":\"a\",\"echo\":true,\"max_tokens\":0}", 200);
    assert_string_equal(str_at(v, "choices.0.text"), "a");
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "length");
    json_decref(v);
    v = post("/v1/completions",
             "{\"prompt\":[30,31,32,33],\"max_tokens\":1,\"truncate_prompt_tokens\":2}", 200);
    assert_int_equal(K.engine->last_n_prompt, 2);
    assert_int_equal(K.engine->last_prompt[0], 32);
    json_decref(v);
}

static void test_logprobs(void **state)
{
    (void)state;
    kit_start(&K);
    fake_script(K.engine, K.tok, "ab", false);
    json_t *v = post("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":2,\"logprobs\":2}", 200);
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.tokens")), 2);
    assert_int_equal(int_at(v, "choices.0.logprobs.text_offset.0"), 0);
    const char *first = str_at(v, "choices.0.logprobs.tokens.0");
    assert_int_equal(int_at(v, "choices.0.logprobs.text_offset.1"), (int)strlen(first));
    json_t *top = at(v, "choices.0.logprobs.top_logprobs.0");
    assert_int_equal(json_object_size(top), 2); /* the token is among the best two */
    assert_non_null(json_object_get(top, first));
    json_decref(v);
    answer a = kit_post(&K, "/v1/chat/completions",
                        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1,"
                        "\"logprobs\":true,\"top_logprobs\":3}");
    /* nine digits of the float -0.1234567891, and a logprob of -inf as vLLM writes it */
    assert_non_null(strstr(a.body, "\"logprob\":-0.123456791"));
    assert_non_null(strstr(a.body, "\"logprob\":-9999.0"));
    v = json_of(&a, 200);
    answer_free(&a);
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.content.0.top_logprobs")), 3);
    const char *tok = str_at(v, "choices.0.logprobs.content.0.token");
    assert_int_equal(int_at(v, "choices.0.logprobs.content.0.bytes.0"), (unsigned char)tok[0]);
    json_decref(v);
    v = post("/v1/completions",
             "{\"prompt\":[30,31,32],\"max_tokens\":1,\"logprobs\":0,"
             "\"return_tokens_as_token_ids\":true}",
             200);
    assert_memory_equal(str_at(v, "choices.0.logprobs.tokens.0"), "token_id:", 9);
    json_decref(v);
}

static void test_prompt_logprobs(void **state)
{
    (void)state;
    kit_start(&K);
    fake_script(K.engine, K.tok, "ab", false);
    json_t *v = post("/v1/completions",
                     "{\"prompt\":[30,31,32],\"max_tokens\":1,\"prompt_logprobs\":2,\"echo\":true,"
                     "\"logprobs\":1}",
                     200);
    assert_int_equal(K.engine->last_prompt_logprobs, 2);
    json_t *p = at(v, "choices.0.prompt_logprobs");
    assert_int_equal(json_array_size(p), 3);
    assert_true(json_is_null(json_array_get(p, 0)));
    assert_int_equal(int_at(p, "1.31.rank"), 1);
    assert_true(json_real_value(at(p, "1.31.logprob")) == -0.25);
    assert_int_equal(int_at(p, "1.7.rank"), 2);
    assert_true(json_is_string(at(p, "1.7.decoded_token")));
    assert_int_equal(json_array_size(at(v, "choices.0.logprobs.tokens")), 4);
    assert_true(json_is_null(at(v, "choices.0.logprobs.token_logprobs.0")));
    assert_true(json_is_real(at(v, "choices.0.logprobs.token_logprobs.1")));
    json_decref(v);
    /* echo with logprobs asks the engine for the prompt's */
    v = post("/v1/completions",
             "{\"prompt\":[30,31],\"max_tokens\":1,\"echo\":true,\"logprobs\":1}", 200);
    assert_int_equal(K.engine->last_prompt_logprobs, 1);
    assert_true(json_is_null(at(v, "choices.0.prompt_logprobs")));
    json_decref(v);
    v = post("/v1/chat/completions",
             "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1,"
             "\"prompt_logprobs\":0}",
             200);
    assert_true(json_is_array(at(v, "prompt_logprobs")));
    json_decref(v);
}

static void test_stops(void **state)
{
    (void)state;
    kit_start(&K);
    fake_script(K.engine, K.tok, "one two END three END four", false);
    json_t *v = post("/v1/completions",
                     "{\"prompt\":\"x\",\"max_tokens\":1000,\"stop\":[\"zzz\",\"END\"]}", 200);
    assert_string_equal(str_at(v, "choices.0.text"), "one two ");
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "stop");
    assert_string_equal(str_at(v, "choices.0.stop_reason"), "END");
    assert_true(int_at(v, "usage.completion_tokens") < 20);
    json_decref(v);
    v = post("/v1/completions",
             "{\"prompt\":\"x\",\"max_tokens\":1000,\"stop\":\"END\",\"n\":2,"
             "\"include_stop_str_in_output\":true}",
             200);
    assert_string_equal(str_at(v, "choices.0.text"), "one two END");
    assert_string_equal(str_at(v, "choices.1.text"), "one two END");
    json_decref(v);
    char body[128];
    snprintf(body, sizeof(body), "{\"prompt\":\"x\",\"max_tokens\":9,\"stop_token_ids\":[%d]}",
             K.engine->script[2]);
    v = post("/v1/completions", body, 200);
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "stop");
    assert_int_equal(int_at(v, "choices.0.stop_reason"), K.engine->script[2]);
    assert_int_equal(int_at(v, "usage.completion_tokens"), 3);
    json_decref(v);
    kit_until(fake_running(K.engine) == 0);
}

static void test_stream(void **state)
{
    (void)state;
    kit_start(&K);
    fake_script(K.engine, K.tok, "h\xc3\xa9llo w\xf0\x9f\x98\x80rld END x", false);
    answer a = kit_post(&K, "/v1/completions",
                        "{\"prompt\":\"x\",\"max_tokens\":1000,\"stop\":\"END\",\"stream\":true,"
                        "\"stream_options\":{\"include_usage\":true}}");
    json_t *ev = events_of(&a), *x;
    size_t i;
    hy_buf text;
    hy_buf_init(&text);
    json_array_foreach(ev, i, x)
    {
        if (i + 1 < json_array_size(ev))
            hy_buf_puts(&text, str_at(x, "choices.0.text"));
        assert_true(json_is_null(at(x, "choices.0.finish_reason")) ==
                        (i + 2 < json_array_size(ev)) ||
                    i + 1 == json_array_size(ev));
    }
    assert_string_equal(hy_buf_str(&text), "h\xc3\xa9llo w\xf0\x9f\x98\x80rld ");
    assert_string_equal(str_at(ev, "0.object"), "text_completion");
    x = json_array_get(ev, json_array_size(ev) - 1);
    assert_int_equal(json_array_size(at(x, "choices")), 0);
    assert_true(int_at(x, "usage.completion_tokens") > 3);
    x = json_array_get(ev, json_array_size(ev) - 2);
    assert_string_equal(str_at(x, "choices.0.stop_reason"), "END");
    json_decref(ev);
    answer_free(&a);
    hy_buf_fini(&text);
}

static void test_chat_stream(void **state)
{
    (void)state;
    kit_start(&K);
    fake_script(K.engine, K.tok, "Hello you", true);
    answer a = kit_post(&K, "/v1/chat/completions",
                        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":2,\"stream\":"
                        "true,\"logprobs\":true,\"stream_options\":{\"include_usage\":true,"
                        "\"continuous_usage_stats\":true}}");
    json_t *ev = events_of(&a), *x;
    size_t i, ends = 0;
    hy_buf text[2];
    hy_buf_init(&text[0]);
    hy_buf_init(&text[1]);
    assert_string_equal(str_at(ev, "0.object"), "chat.completion.chunk");
    assert_string_equal(str_at(ev, "0.choices.0.delta.role"), "assistant");
    json_array_foreach(ev, i, x)
    {
        assert_true(json_is_object(at(x, "usage")));
        if (json_array_size(at(x, "choices")) == 0)
            continue;
        int c = int_at(x, "choices.0.index");
        if (json_is_string(at(x, "choices.0.delta.content")))
            hy_buf_puts(&text[c], str_at(x, "choices.0.delta.content"));
        ends += json_is_string(at(x, "choices.0.finish_reason"));
    }
    assert_int_equal(ends, 2);
    assert_string_equal(hy_buf_str(&text[0]), "Hello you");
    assert_string_equal(hy_buf_str(&text[1]), "Hello you");
    /* the rest of the context is the default limit */
    assert_int_equal(K.engine->last_max_tokens, 2048 - K.engine->last_n_prompt);
    json_decref(ev);
    answer_free(&a);
    hy_buf_fini(&text[0]);
    hy_buf_fini(&text[1]);
}

static const char tools_body[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\","
    "\"function\":{\"name\":\"get_weather\",\"parameters\":{}}}]%s}";
static const char call_text[] =
    "Well.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n"
    "</tool_call>";

static void test_tools(void **state)
{
    (void)state;
    char body[512];
    kit_start(&K);
    fake_script(K.engine, K.tok, call_text, true);
    snprintf(body, sizeof(body), tools_body, "");
    json_t *v = post("/v1/chat/completions", body, 200);
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "tool_calls");
    assert_string_equal(str_at(v, "choices.0.message.tool_calls.0.type"), "function");
    assert_string_equal(str_at(v, "choices.0.message.tool_calls.0.function.name"), "get_weather");
    json_t *args =
        json_loads(str_at(v, "choices.0.message.tool_calls.0.function.arguments"), 0, NULL);
    assert_string_equal(str_at(args, "city"), "Rome");
    json_decref(args);
    assert_memory_equal(str_at(v, "choices.0.message.content"), "Well.", 5);
    json_decref(v);
    /* tool_choice none: plain text */
    snprintf(body, sizeof(body), tools_body, ",\"tool_choice\":\"none\"");
    v = post("/v1/chat/completions", body, 200);
    assert_string_equal(str_at(v, "choices.0.finish_reason"), "stop");
    assert_null(at(v, "choices.0.message.tool_calls"));
    json_decref(v);
    snprintf(body, sizeof(body), tools_body, ",\"stream\":true");
    answer a = kit_post(&K, "/v1/chat/completions", body);
    json_t *ev = events_of(&a), *x;
    size_t i;
    hy_buf text, arg;
    hy_buf_init(&text);
    hy_buf_init(&arg);
    const char *name = NULL, *finish = NULL;
    json_array_foreach(ev, i, x)
    {
        const char *s = json_string_value(at(x, "choices.0.delta.content"));
        hy_buf_puts(&text, s != NULL ? s : "");
        s = json_string_value(at(x, "choices.0.delta.tool_calls.0.function.arguments"));
        hy_buf_puts(&arg, s != NULL ? s : "");
        s = json_string_value(at(x, "choices.0.delta.tool_calls.0.function.name"));
        name = s != NULL ? s : name;
        s = json_string_value(at(x, "choices.0.finish_reason"));
        finish = s != NULL ? s : finish;
    }
    assert_string_equal(name, "get_weather");
    assert_string_equal(finish, "tool_calls");
    assert_memory_equal(hy_buf_str(&text), "Well.", 5);
    args = json_loads(hy_buf_str(&arg), 0, NULL);
    assert_string_equal(str_at(args, "city"), "Rome");
    json_decref(args);
    json_decref(ev);
    answer_free(&a);
    hy_buf_fini(&text);
    hy_buf_fini(&arg);
}

static void test_tokenize(void **state)
{
    (void)state;
    kit_start(&K);
    json_t *v = post("/tokenize", "{\"prompt\":\"a<|im_end|>\"}", 200);
    int32_t end = hy_tok_lookup(K.tok, "<|im_end|>");
    int n = int_at(v, "count");
    assert_int_equal(json_array_size(at(v, "tokens")), n);
    assert_int_equal(int_at(v, "max_model_len"), 2048);
    assert_true(json_is_null(at(v, "token_strs")));
    assert_int_equal(json_integer_value(json_array_get(at(v, "tokens"), (size_t)n - 1)), end);
    char body[256];
    char *ids = json_dumps(at(v, "tokens"), JSON_COMPACT);
    snprintf(body, sizeof(body), "{\"tokens\":%s}", ids);
    free(ids);
    json_decref(v);
    v = post("/detokenize", body, 200);
    assert_string_equal(str_at(v, "prompt"), "a<|im_end|>");
    json_decref(v);
    v = post("/tokenize",
             "{\"prompt\":\"<|im_end|>\",\"parse_special\":false,\"return_token_strs\":true}", 200);
    assert_true(int_at(v, "count") > 1);
    assert_int_equal(json_array_size(at(v, "token_strs")), int_at(v, "count"));
    json_decref(v);
    v = post("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 200);
    assert_int_equal(int_at(v, "tokens.0"), hy_tok_lookup(K.tok, "<|im_start|>"));
    json_decref(v);
    v = post("/tokenize", "{\"prompt\":\"\"}", 200);
    json_decref(v);
}

static json_t *get(const char *path, int status)
{
    answer a = kit_call(&K, "GET", path, NULL);
    json_t *v = json_of(&a, status);
    answer_free(&a);
    return v;
}

static void test_pages(void **state)
{
    (void)state;
    kit_start(&K);
    answer a = kit_call(&K, "GET", "/health", NULL);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.len, 0);
    answer_free(&a);
    a = kit_call(&K, "POST", "/ping", "");
    assert_int_equal(a.status, 200);
    answer_free(&a);
    json_t *v = get("/v1/models", 200);
    assert_string_equal(str_at(v, "data.0.id"), "tiny");
    assert_string_equal(str_at(v, "data.1.id"), "tiny-alias");
    assert_int_equal(int_at(v, "data.0.max_model_len"), 2048);
    json_decref(v);
    v = get("/v1/models/tiny%2Dalias", 200);
    assert_string_equal(str_at(v, "id"), "tiny-alias");
    json_decref(v);
    v = get("/v1/models/nope", 404);
    assert_string_equal(str_at(v, "error.type"), "NotFoundError");
    json_decref(v);
    json_decref(get("/version", 200));
    v = get("/nope", 404);
    assert_string_equal(str_at(v, "detail"), "Not Found");
    json_decref(v);
    v = get("/v1/completions", 405);
    assert_string_equal(str_at(v, "detail"), "Method Not Allowed");
    json_decref(v);
    a = kit_call(&K, "HEAD", "/v1/models", NULL);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    a = kit_call(&K, "OPTIONS", "/v1/completions", NULL);
    assert_int_equal(a.status, 204);
    answer_free(&a);
    a = kit_call(&K, "GET", "/metrics", NULL);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "http_requests_total{"));
    answer_free(&a);
}

static void test_key(void **state)
{
    (void)state;
    K.o.api_key = "other\nsecret\n";
    kit_start(&K);
    static const struct {
        const char *header;
        int status;
    } cases[] = {{"", 401},
                 {"Authorization: Bearer wrong!\r\n", 401},
                 {"Authorization: Bearer secretsecret\r\n", 401},
                 {"Authorization: Bearer \r\n", 401},
                 {"Authorization: secret\r\n", 401},
                 {"Authorization: Bearer other\r\n", 200},
                 {"Authorization: Bearer secret\r\n", 200}};
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        char t[256];
        answer a;
        int fd = kit_connect(&K);
        snprintf(t, sizeof(t), "GET /v1/models HTTP/1.1\r\nHost: x\r\n%s\r\n", cases[i].header);
        kit_send(fd, t, strlen(t));
        assert_true(kit_read(fd, &a));
        assert_int_equal(a.status, cases[i].status);
        answer_free(&a);
        close(fd);
    }
    answer a = kit_call(&K, "GET", "/health", NULL);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    a = kit_post(&K, "/tokenize", "{\"prompt\":\"a\"}");
    assert_int_equal(a.status, 401);
    answer_free(&a);
}

static void test_bind(void **state)
{
    (void)state;
    hy_http *h = NULL;
    K.o.host = "0.0.0.0";
    assert_int_equal(hy_http_create(&K.o, &h), HY_E_DENIED);
    assert_non_null(strstr(hy_fail_text(), "api_key"));
    K.o.host = "127.0.0.1";
    kit_start(&K);
    K.o.port = K.port;
    assert_int_equal(hy_http_create(&K.o, &h), HY_E_IO);
    assert_non_null(strstr(hy_fail_text(), "in use"));
    K.o.port = 0;
    K.o.host = "no.such.host.invalid";
    assert_int_equal(hy_http_create(&K.o, &h), HY_E_INVAL);
}

static void test_engine_failures(void **state)
{
    (void)state;
    kit_start(&K);
    fake_script(K.engine, K.tok, "abcdef", false);
    K.engine->refuse = HY_E_BUSY;
    answer a = kit_post(&K, "/v1/completions", "{\"prompt\":\"x\"}");
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.head, "Retry-After:"));
    answer_free(&a);
    K.engine->refuse = HY_E_INVAL;
    json_decref(post("/v1/completions", "{\"prompt\":\"x\",\"stream\":true}", 400));
    K.engine->refuse = HY_OK;
    K.engine->fail_after = 0;
    json_t *v = post("/v1/completions", "{\"prompt\":\"x\",\"stream\":true}", 500);
    assert_string_equal(str_at(v, "error.type"), "InternalServerError");
    json_decref(v);
    /* an answer that has begun: it is a stream by then, and ends with the error */
    char c;
    K.engine->fail_after = -1;
    K.engine->delay_us = 20000;
    int fd = kit_ask(&K, "POST", "/v1/completions",
                     "{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":2000}");
    kit_until(recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 1);
    K.engine->fail_after = 0;
    assert_true(kit_read(fd, &a));
    close(fd);
    K.engine->delay_us = 200;
    json_t *ev = events_of(&a);
    assert_true(json_array_size(ev) > 1);
    v = json_array_get(ev, json_array_size(ev) - 1);
    assert_int_equal(int_at(v, "error.code"), 500);
    json_decref(ev);
    answer_free(&a);
    v = post("/v1/completions", "{\"prompt\":[\"x\",\"y\"]}", 500);
    json_decref(v);
    K.engine->fail_after = -1;
    json_decref(post("/v1/completions", "{\"prompt\":\"x\"}", 200));
    kit_until(hy_http_active(K.http) == 0);
}

static void test_request_ids(void **state)
{
    (void)state;
    kit_start(&K);
    static const struct {
        const char *header, *id;
    } cases[] = {
        {"X-Request-Id: req-abc\r\n", "req-abc"}, {"", NULL}, {"X-Request-Id: a\"b\r\n", NULL}};
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        char t[512], want[64];
        const char body[] = "{\"prompt\":\"x\",\"max_tokens\":1}";
        answer a;
        int fd = kit_connect(&K);
        snprintf(t, sizeof(t),
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n%s",
                 cases[i].header, strlen(body), body);
        kit_send(fd, t, strlen(t));
        assert_true(kit_read(fd, &a));
        assert_non_null(strcasestr(a.head, "\nX-Request-Id: "));
        json_t *v = json_of(&a, 200);
        if (cases[i].id != NULL) {
            snprintf(want, sizeof(want), "cmpl-%s", cases[i].id);
            assert_string_equal(str_at(v, "id"), want);
        } else {
            assert_int_equal(strlen(str_at(v, "id")), 5 + 16);
        }
        json_decref(v);
        answer_free(&a);
        close(fd);
    }
    json_t *v = post("/v1/completions",
                     "{\"prompt\":\"x\",\"max_tokens\":1,\"request_id\":\"mine\","
                     "\"kv_transfer_params\":{\"do_remote_decode\":true}}",
                     200);
    assert_string_equal(str_at(v, "id"), "cmpl-mine");
    assert_string_equal(K.engine->last_handover, "{\"do_remote_decode\":true}");
    assert_int_equal(int_at(v, "kv_transfer_params.remote_port"), 5600);
    json_decref(v);
}

/* Prefill for a node that would refuse the whole request: nothing is computed. "x" is one token, as
 * the same question without a limit shows. */
static void test_remote_context(void **state)
{
    static const struct {
        const char *params;
        bool ok;
    } cases[] = {
        {"\"do_remote_decode\":true,\"remote_max_tokens\":9,\"remote_context\":10", true},
        {"\"do_remote_decode\":true,\"remote_max_tokens\":10,\"remote_context\":10", false},
        {"\"do_remote_decode\":true,\"remote_max_tokens\":9223372036854775807,"
         "\"remote_context\":9223372036854775807",
         false},
        {"\"do_remote_decode\":true,\"remote_max_tokens\":-1,\"remote_context\":2", true},
        {"\"do_remote_decode\":true,\"remote_max_tokens\":-1,\"remote_context\":1", false},
        {"\"do_remote_decode\":true,\"remote_max_tokens\":-9223372036854775808,"
         "\"remote_context\":2",
         true},
        /* not told: no limit but ours */
        {"\"do_remote_decode\":true,\"remote_max_tokens\":99999", true},
        {"\"do_remote_decode\":true,\"remote_context\":1", true},
        {"\"do_remote_decode\":true,\"remote_max_tokens\":9,\"remote_context\":0", true},
        {"\"do_remote_decode\":true,\"remote_max_tokens\":9,\"remote_context\":-5", true},
        {"\"do_remote_decode\":true,\"remote_max_tokens\":9,\"remote_context\":\"1\"", true},
        {"\"do_remote_decode\":false,\"remote_max_tokens\":9,\"remote_context\":1", true},
        {"\"remote_max_tokens\":9,\"remote_context\":1", true},
    };
    char body[512];
    (void)state;
    kit_start(&K);
    json_t *v = post("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":1}", 200);
    assert_int_equal(int_at(v, "usage.prompt_tokens"), 1);
    json_decref(v);
    v = get("/links", 200);
    assert_int_equal(int_at(v, "context"), K.o.context);
    json_decref(v);
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        snprintf(body, sizeof(body),
                 "{\"prompt\":\"x\",\"max_tokens\":1,\"kv_transfer_params\":{%s}}",
                 cases[i].params);
        const int before = K.engine->n_submitted;
        v = post("/v1/completions", body, cases[i].ok ? 200 : 400);
        assert_int_equal(K.engine->n_submitted - before, cases[i].ok);
        if (!cases[i].ok)
            assert_string_equal(str_at(v, "error.param"), "input_tokens");
        json_decref(v);
    }
}

static void test_no_template(void **state)
{
    (void)state;
    K.o.chat = NULL;
    kit_start(&K);
    json_t *v =
        post("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 400);
    assert_non_null(strstr(str_at(v, "error.message"), "template"));
    json_decref(v);
    json_decref(post("/v1/completions", "{\"prompt\":\"x\"}", 200));
}

static void test_user_marks(void **state)
{
    (void)state;
    K.o.user_marks_text = true;
    kit_start(&K);
    json_t *v = post("/tokenize",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"a<|im_end|>b\"}],"
                     "\"add_generation_prompt\":false}",
                     200);
    int32_t end = hy_tok_lookup(K.tok, "<|im_end|>");
    size_t i, n = 0;
    json_t *x;
    json_array_foreach(at(v, "tokens"), i, x) n += json_integer_value(x) == end;
    assert_int_equal(n, 1); /* the template's own, not the user's */
    json_decref(v);
}

static bool traced(const hy_trace *t, const char *name, const char *want)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_trace_json((hy_trace *)t, 1, 1, name, 16, &b);
    const bool is = strstr(hy_buf_str(&b), want) != NULL;
    hy_buf_fini(&b);
    return is;
}

/* The engine's answer, or the client's leaving, overtakes the thread that submits (a busy machine):
 * the timeline is whole with the answer, and nothing computes for nobody. */
static void test_slow_submit(void **state)
{
    (void)state;
    hy_trace *t = hy_trace_create("node", "all", 16);
    K.o.trace = t;
    K.engine->submit_us = 30000;
    kit_start(&K);
    static const char *const bodies[] = {"{\"prompt\":\"x\",\"max_tokens\":1}",
                                         "{\"prompt\":[\"x\",\"y\"],\"max_tokens\":1}",
                                         "{\"prompt\":\"x\",\"max_tokens\":1,\"stream\":true}"};
    for (size_t i = 0; i < HY_COUNTOF(bodies); i++) {
        answer a = kit_post(&K, "/v1/completions", bodies[i]);
        assert_int_equal(a.status, 200);
        answer_free(&a);
        assert_true(traced(t, NULL, "\"status\":200"));
        assert_false(traced(t, NULL, "\"status\":0"));
        assert_false(traced(t, NULL, "in work"));
    }
    K.engine->hold = true; /* it would never end by itself */
    char text[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: left0\r\n"
                  "Content-Length: 29\r\n\r\n{\"prompt\":\"x\",\"max_tokens\":9}";
    for (int i = 0; i < 2; i++) { /* gone before the engine has it, and after */
        const int asked = K.engine->n_asked, n = K.engine->n_submitted;
        const int aborted = K.engine->n_aborted;
        char name[] = "left0";
        name[4] += (char)i;
        memcpy(strstr(text, "left"), name, 5);
        K.engine->hold = true;
        const int fd = kit_connect(&K);
        kit_send(fd, text, strlen(text));
        kit_until(K.engine->n_asked == asked + 1);
        if (i == 1)
            kit_until(K.engine->n_submitted == n + 1);
        close(fd);
        kit_until(K.engine->n_aborted == aborted + 1);
        kit_until(fake_running(K.engine) == 0 && traced(t, name, "\"status\":499"));
    }
    kit_until(hy_http_active(K.http) == 0);
    K.o.trace = NULL;
    kit_stop(&K);
    hy_trace_destroy(t);
    kit_init(&K); /* for the teardown */
}

/* Whatever timer becomes due while the server ends finds nothing half gone: its other threads take
 * longer to end than the sweep of connections waits. */
static void test_slow_stop(void **state)
{
    (void)state;
    kit_start(&K);
    static const char text[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                               "Content-Length: 29\r\n\r\n{\"prompt\":\"x\",\"max_tokens\":9}";
    const int idle = kit_connect(&K), fd = kit_connect(&K);
    answer a = kit_call(&K, "GET", "/health", NULL); /* all three are accepted */
    answer_free(&a);
    K.engine->submit_us = 600000;
    kit_send(fd, text, strlen(text));
    kit_until(K.engine->n_asked == 1);
    kit_stop(&K);
    close(fd);
    close(idle);
    kit_init(&K); /* for the teardown */
}

#define T(f) cmocka_unit_test_setup_teardown(f, up, down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_completion),
        T(test_prompts_and_choices),
        T(test_logprobs),
        T(test_prompt_logprobs),
        T(test_stops),
        T(test_stream),
        T(test_chat_stream),
        T(test_tools),
        T(test_tokenize),
        T(test_pages),
        T(test_key),
        T(test_bind),
        T(test_engine_failures),
        T(test_request_ids),
        T(test_remote_context),
        T(test_no_template),
        T(test_user_marks),
        T(test_slow_submit),
        T(test_slow_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
