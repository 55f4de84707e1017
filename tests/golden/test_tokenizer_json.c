/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer.json against Hugging Face's own library: small vocabularies laid out as published
 * llama, gemma, qwen and phi folders are (tokenizer_json/make.py says how they were made).
 *
 * Thread: one.  Owner: each test frees what it makes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/text/tokenizer.h"
#include "core/text/utf8.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ids_are(const hy_tok_ids *got, const json_t *want)
{
    bool same = json_array_size(want) == got->n;
    for (size_t i = 0; same && i < got->n; i++)
        same = json_integer_value(json_array_get(want, i)) == got->ids[i];
    return same;
}

static bool encodes(const hy_tok *t, const json_t *text, int flags, const json_t *want)
{
    hy_tok_ids ids = {0};
    assert_int_equal(
        hy_tok_encode(t, json_string_value(text), json_string_length(text), flags, 0, &ids), HY_OK);
    bool same = ids_are(&ids, want);
    if (!same) {
        printf("  \"%s\" flags %d:", json_string_value(text), flags);
        for (size_t i = 0; i < ids.n; i++)
            printf(" %d", ids.ids[i]);
        printf("\n");
    }
    hy_tok_ids again = {0}; /* its words are known now */
    assert_int_equal(
        hy_tok_encode(t, json_string_value(text), json_string_length(text), flags, 0, &again),
        HY_OK);
    assert_int_equal(again.n, ids.n);
    assert_memory_equal(again.ids, ids.ids, ids.n * sizeof(*ids.ids));
    hy_tok_ids_fini(&again);
    hy_tok_ids_fini(&ids);
    return same;
}

static bool decodes(const hy_tok *t, const json_t *list, bool skip, const json_t *want)
{
    if (want == NULL)
        return true;
    hy_buf raw, shown;
    int32_t *ids = calloc(json_array_size(list) + 1, sizeof(*ids));
    hy_buf_init(&raw);
    hy_buf_init(&shown);
    for (size_t i = 0; i < json_array_size(list); i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    assert_int_equal(hy_tok_decode(t, ids, json_array_size(list), skip, &raw), HY_OK);
    hy_utf8_replace_runs(hy_buf_str(&raw), raw.len, &shown);
    bool same = shown.len == json_string_length(want) &&
                memcmp(hy_buf_str(&shown), json_string_value(want), shown.len) == 0;
    if (!same)
        printf("  decoded \"%s\", not \"%s\"\n", hy_buf_str(&shown), json_string_value(want));
    hy_buf_fini(&raw);
    hy_buf_fini(&shown);
    free(ids);
    return same;
}

static void check_folder(void **state)
{
    const char *name = *state;
    const char *src = getenv("HY_SOURCE_DIR");
    char path[4096], cases[4200];
    hy_tok *t = NULL;
    int n = 0, bad = 0;
    snprintf(path, sizeof(path), "%s/tests/golden/tokenizer_json/%s", src != NULL ? src : ".",
             name);
    if (hy_tok_from_folder(path, &t) < 0)
        fail_msg("%s", hy_fail_text());
    snprintf(cases, sizeof(cases), "%s/cases.jsonl", path);
    FILE *f = fopen(cases, "r");
    assert_non_null(f);
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t len; (len = getline(&line, &cap, f)) > 0; n++) {
        json_t *j = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, NULL);
        assert_non_null(j);
        const json_t *text = json_object_get(j, "text"), *marked = json_object_get(j, "marked");
        bad += !encodes(t, text, 0, json_object_get(j, "plain"));
        bad += !encodes(t, text, HY_TOK_ADD_SPECIAL | HY_TOK_PARSE_SPECIAL, marked);
        bad += !decodes(t, marked, false, json_object_get(j, "back"));
        bad += !decodes(t, marked, true, json_object_get(j, "back_skip"));
        json_decref(j);
    }
    free(line);
    fclose(f);
    hy_tok_destroy(t);
    printf("%s: %d strings, %d wrong\n", name, n, bad);
    assert_true(n > 200);
    assert_int_equal(bad, 0);
}

#define FOLDER(name)                                                                               \
    {                                                                                              \
        name, check_folder, NULL, NULL, (void *)(uintptr_t)name                                    \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER("llama"), FOLDER("llama-metaspace"), FOLDER("phi3"), FOLDER("gemma"),
        FOLDER("qwen"),  FOLDER("llama3"),          FOLDER("phi4"), FOLDER("odd"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
