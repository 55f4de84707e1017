/* SPDX-License-Identifier: Apache-2.0
 *
 * The bad inputs that were sent to vLLM 0.32 (tests/golden/interop/vllm-errors.json), sent to this
 * server: same status, an error body of the same form. What differs on purpose is listed here.
 *
 * Thread: the test's.  Owner: one kit.
 */
#include "tests/unit/http_kit.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

static kit K;

static const struct {
    const char *name;
    int status;
    const char *why;
} differs[] = {
    {"tools_without_parser", 200, "tool calls are always parsed here, there is nothing to enable"},
};

static int expected(const char *name, int status)
{
    for (size_t i = 0; i < HY_COUNTOF(differs); i++) {
        if (strcmp(differs[i].name, name) == 0)
            return differs[i].status;
    }
    return status;
}

/* The request's body as it was sent; free(). */
static char *body_of(const json_t *c)
{
    json_t *r = json_object_get(c, "request");
    if (json_is_string(r))
        return strdup(json_string_value(r));
    const char *p = json_string_value(json_object_get(r, "prompt"));
    if (p != NULL && strcmp(p, "[5]*5000") == 0) { /* the fixture's shorthand */
        json_t *ids = json_array(), *copy = json_copy(r);
        for (int i = 0; i < 5000; i++)
            json_array_append_new(ids, json_integer(5));
        json_object_set_new(copy, "prompt", ids);
        char *s = json_dumps(copy, JSON_COMPACT);
        json_decref(copy);
        return s;
    }
    return json_dumps(r, JSON_COMPACT);
}

static answer send_case(const json_t *c, const char *name)
{
    answer a = {0};
    char method[16], path[128];
    const json_t *r = json_object_get(c, "request");
    if (sscanf(name, "%15[A-Z] %127s", method, path) == 2)
        return kit_call(&K, method, path, strcmp(method, "PUT") == 0 ? "{}" : NULL);
    if (strcmp(name, "content_type_text_plain") == 0) {
        static const char t[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
                                "text/plain\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}";
        int fd = kit_connect(&K);
        kit_send(fd, t, sizeof(t) - 1);
        kit_read(fd, &a);
        close(fd);
        return a;
    }
    assert_non_null(r);
    char *body = body_of(c);
    a = kit_post(&K, json_string_value(json_object_get(c, "path")), body);
    free(body);
    return a;
}

static void check_body(const char *name, const answer *a, const json_t *theirs)
{
    json_t *v = json_loadb(a->body, a->len, 0, NULL);
    assert_non_null(v);
    const json_t *e = json_object_get(v, "error");
    if (a->status >= 400) {
        const char *text = json_string_value(json_object_get(e, "message"));
        printf("  %-30s %d  %s\n", name, a->status, text != NULL ? text : "(no message)");
        assert_non_null(text);
        assert_true(text[0] != '\0');
        assert_true(json_is_string(json_object_get(e, "type")));
        assert_non_null(json_object_get(e, "param"));
        assert_int_equal(json_integer_value(json_object_get(e, "code")), a->status);
    }
    /* where vLLM names a field of the request, so do we: its last part, without "body." */
    const char *param =
        json_string_value(json_object_get(json_object_get(theirs, "error"), "param"));
    const char *ours = json_string_value(json_object_get(e, "param"));
    if (param != NULL && a->status == 400 && strncmp(param, "body.", 5) != 0 &&
        strcmp(param, "body") != 0) {
        assert_non_null(ours);
        assert_string_equal(ours, param);
    }
    json_decref(v);
}

static void test_replay(void **state)
{
    (void)state;
    static const char *const names[] = {"smollm2"};
    char path[512];
    const char *src = getenv("HY_SOURCE_DIR");
    kit_init(&K);
    K.o.models = names;
    K.o.n_models = 1;
    kit_start(&K);
    snprintf(path, sizeof(path), "%s/tests/golden/interop/vllm-errors.json",
             src != NULL ? src : ".");
    json_t *list = json_load_file(path, 0, NULL), *c;
    size_t i, bad = 0;
    assert_non_null(list);
    assert_int_equal(json_array_size(list), 47);
    json_array_foreach(list, i, c)
    {
        const char *name = json_string_value(json_object_get(c, "case"));
        int want = expected(name, (int)json_integer_value(json_object_get(c, "status")));
        answer a = send_case(c, name);
        if (a.status != want) {
            printf("%s: status %d, vLLM's is %d: %s\n", name, a.status, want, a.body);
            bad++;
        } else if (a.len != 0) {
            check_body(name, &a, json_object_get(c, "body"));
        }
        answer_free(&a);
    }
    assert_int_equal(bad, 0);
    json_decref(list);
    kit_stop(&K);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_replay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
