/* SPDX-License-Identifier: Apache-2.0
 *
 * Request fields with rules of their own: limits of output, logprobs, stops, biases, prompts.
 *
 * Thread: any.  Owner: see parse.h.
 */
#include "core/http/parse_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The field, NULL when absent or null. */
static json_t *get(const hy_api_req *r, const char *name)
{
    json_t *v = json_object_get(r->root, name);
    return v == NULL || json_is_null(v) ? NULL : v;
}

/* What asks for something: not null, false, "", [] or {}. */
static bool asks(const json_t *v)
{
    return v != NULL && !json_is_null(v) && !json_is_false(v) &&
           !(json_is_string(v) && json_string_length(v) == 0) &&
           !(json_is_array(v) && json_array_size(v) == 0) &&
           !(json_is_object(v) && json_object_size(v) == 0);
}

static hy_status refuse_response_format(hy_api_req *r, hy_api_error *e)
{
    const json_t *v = get(r, "response_format");
    if (v == NULL)
        return HY_OK;
    if (!json_is_object(v))
        return hy_api__wrong_type(e, "response_format", "an object", v);
    const char *type = json_string_value(json_object_get(v, "type"));
    if (type == NULL)
        return hy_api_bad(e, "response_format.type", "response_format.type must be a string.");
    if (strcmp(type, "text") == 0)
        return HY_OK;
    if (strcmp(type, "json_object") == 0 || strcmp(type, "json_schema") == 0)
        return hy_api_bad(e, "response_format",
                          "response_format of type %s is not supported yet; only text is.", type);
    return hy_api_bad(e, "response_format.type",
                      "response_format.type must be 'text', got '%.40s'.", type);
}

hy_status hy_api__refuse_unsupported(hy_api_req *r, hy_api_error *e)
{
    /* they would change the answer: ignoring them in silence would be wrong */
    static const char *const names[] = {
        "suffix",
        "prompt_embeds",
        "allowed_token_ids",
        "bad_words",
        "logprob_token_ids",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "use_beam_search",
        "chat_template",
        "functions",
        "function_call",
        "audio",
        "watermarking",
        "thinking_token_budget",
        "repetition_detection",
        "web_search_options",
    };
    for (size_t i = 0; i < HY_COUNTOF(names); i++) {
        if (asks(json_object_get(r->root, names[i])))
            return hy_api_bad(e, names[i], "%s is not supported.", names[i]);
    }
    const json_t *best = get(r, "best_of");
    int64_t b;
    if (best != NULL) {
        HY_TRY(hy_api__int(e, "best_of", best, &b));
        if (b > r->n)
            return hy_api_bad(e, "best_of",
                              "best_of greater than n is not supported; ask for n=%lld choices and "
                              "pick one.",
                              (long long)b);
    }
    return refuse_response_format(r, e);
}

static hy_status one_max_tokens(hy_api_req *r, const char *name, hy_api_error *e)
{
    const json_t *v = get(r, name);
    int64_t i;
    if (v == NULL)
        return HY_OK;
    HY_TRY(hy_api__int(e, name, v, &i));
    if (i < 0)
        return hy_api_bad(e, name, "%s must be at least 1, got %lld.", name, (long long)i);
    r->max_tokens = i > INT32_MAX ? INT32_MAX : (int32_t)i;
    return HY_OK;
}

hy_status hy_api__max_tokens(hy_api_req *r, hy_api_error *e)
{
    const json_t *v = json_object_get(r->root, "max_tokens");
    if (r->api == HY_API_COMPLETIONS && v == NULL)
        r->max_tokens = 16; /* OpenAI's default; an explicit null means up to the context */
    HY_TRY(one_max_tokens(r, "max_tokens", e));
    return r->api == HY_API_CHAT ? one_max_tokens(r, "max_completion_tokens", e) : HY_OK;
}

hy_status hy_api__stream_options(hy_api_req *r, hy_api_error *e)
{
    const json_t *v = get(r, "stream_options");
    if (v == NULL)
        return HY_OK;
    if (!json_is_object(v))
        return hy_api__wrong_type(e, "stream_options", "an object", v);
    if (!r->stream)
        return hy_api_bad(e, "stream_options",
                          "Stream options can only be defined when stream is true.");
    static const char *const names[] = {"include_usage", "continuous_usage_stats"};
    bool *const at[] = {&r->include_usage, &r->continuous_usage};
    for (size_t i = 0; i < 2; i++) {
        const json_t *x = json_object_get(v, names[i]);
        if (x == NULL || json_is_null(x))
            continue;
        if (!json_is_boolean(x)) {
            char param[64];
            snprintf(param, sizeof(param), "stream_options.%s", names[i]);
            return hy_api__wrong_type(e, param, "a boolean", x);
        }
        *at[i] = json_is_true(x);
    }
    return HY_OK;
}

static hy_status count_of_logprobs(const hy_api_limits *lim, const char *name, const json_t *v,
                                   int32_t *out, hy_api_error *e)
{
    int64_t i;
    HY_TRY(hy_api__int(e, name, v, &i));
    if (i < 0)
        return hy_api_bad(e, name, "%s must be at least 0, got %lld.", name, (long long)i);
    if (i > lim->max_logprobs)
        return hy_api_bad(e, name, "Requested %s of %lld, which is greater than max allowed: %d.",
                          name, (long long)i, lim->max_logprobs);
    *out = (int32_t)i;
    return HY_OK;
}

static hy_status chat_logprobs(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e)
{
    const json_t *on = get(r, "logprobs"), *top = get(r, "top_logprobs");
    if (on != NULL && !json_is_boolean(on))
        return hy_api__wrong_type(e, "logprobs", "a boolean", on);
    r->logprobs = on != NULL && json_is_true(on);
    r->s.logprobs = r->logprobs ? 0 : -1;
    if (top == NULL)
        return HY_OK;
    int32_t n = 0;
    HY_TRY(count_of_logprobs(lim, "top_logprobs", top, &n, e));
    if (n > 0 && !r->logprobs)
        return hy_api_bad(e, "top_logprobs",
                          "when using top_logprobs, logprobs must be set to true.");
    if (r->logprobs)
        r->s.logprobs = n;
    return HY_OK;
}

hy_status hy_api__logprobs(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e)
{
    const json_t *v = get(r, "prompt_logprobs");
    if (v != NULL)
        HY_TRY(count_of_logprobs(lim, "prompt_logprobs", v, &r->prompt_logprobs, e));
    if (r->api == HY_API_CHAT)
        return chat_logprobs(lim, r, e);
    v = get(r, "logprobs");
    if (v == NULL)
        return HY_OK;
    r->logprobs = true;
    return count_of_logprobs(lim, "logprobs", v, &r->s.logprobs, e);
}

hy_status hy_api__seed(hy_api_req *r, hy_api_error *e)
{
    const json_t *v = get(r, "seed");
    int64_t i;
    if (v == NULL)
        return HY_OK;
    HY_TRY(hy_api__int(e, "seed", v, &i));
    r->s.seed = (uint64_t)i;
    r->s.has_seed = true;
    return HY_OK;
}

hy_status hy_api__stop(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e)
{
    const json_t *v = get(r, "stop");
    if (v == NULL)
        return HY_OK;
    if (!json_is_string(v) && !json_is_array(v))
        return hy_api__wrong_type(e, "stop", "a string or an array of strings", v);
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    if (n > (size_t)lim->max_stop)
        return hy_api_bad(e, "stop", "stop may have at most %d strings, got %zu.", lim->max_stop,
                          n);
    r->stop = calloc(n + 1, sizeof(*r->stop));
    r->stop_len = calloc(n + 1, sizeof(*r->stop_len));
    if (r->stop == NULL || r->stop_len == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for stop strings");
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_is_string(v) ? v : json_array_get(v, i);
        if (!json_is_string(x))
            return hy_api__wrong_type(e, "stop", "a string or an array of strings only", x);
        if (json_string_length(x) == 0)
            return hy_api_bad(e, "stop", "stop cannot contain an empty string.");
        r->stop[i] = json_string_value(x);
        r->stop_len[i] = json_string_length(x);
        total += r->stop_len[i];
    }
    r->n_stop = n;
    if (total > lim->max_stop_bytes)
        return hy_api_bad(e, "stop",
                          "the stop strings have %zu bytes together, at most %zu may be.", total,
                          lim->max_stop_bytes);
    return HY_OK;
}

/* An array of token ids inside the vocabulary; *out is malloc'd. */
static hy_status take_ids(const hy_api_limits *lim, const char *name, const json_t *v,
                          int32_t **out, size_t *n_out, hy_api_error *e)
{
    size_t n = json_array_size(v);
    int32_t *ids = malloc((n + 1) * sizeof(*ids));
    if (ids == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for %zu token ids", n);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        hy_status st = hy_api__int(e, name, json_array_get(v, i), &id);
        if (st == HY_OK && (id < 0 || id >= lim->vocab))
            st = hy_api_bad(e, name, "Token id %lld is out of vocabulary (%s; %d tokens).",
                            (long long)id, name, lim->vocab);
        if (st < 0) {
            free(ids);
            return st;
        }
        ids[i] = (int32_t)id;
    }
    *out = ids;
    *n_out = n;
    return HY_OK;
}

hy_status hy_api__stop_ids(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e)
{
    const json_t *v = get(r, "stop_token_ids");
    if (v == NULL)
        return HY_OK;
    if (!json_is_array(v))
        return hy_api__wrong_type(e, "stop_token_ids", "an array of integers", v);
    if (json_array_size(v) > (size_t)lim->max_bias)
        return hy_api_bad(e, "stop_token_ids", "stop_token_ids may have at most %d items.",
                          lim->max_bias);
    return take_ids(lim, "stop_token_ids", v, &r->stop_ids, &r->n_stop_ids, e);
}

hy_status hy_api__logit_bias(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e)
{
    json_t *v = get(r, "logit_bias"), *x;
    const char *key;
    if (v == NULL)
        return HY_OK;
    if (!json_is_object(v))
        return hy_api__wrong_type(e, "logit_bias", "an object of token ids and numbers", v);
    size_t n = json_object_size(v);
    if (n > (size_t)lim->max_bias)
        return hy_api_bad(e, "logit_bias", "logit_bias may have at most %d tokens, got %zu.",
                          lim->max_bias, n);
    if (n == 0)
        return HY_OK;
    r->s.bias = calloc(n, sizeof(*r->s.bias));
    if (r->s.bias == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for logit_bias");
    json_object_foreach(v, key, x)
    {
        char *end;
        errno = 0;
        long long id = strtoll(key, &end, 10);
        if (*key == '\0' || *end != '\0' || errno != 0)
            return hy_api_bad(e, "logit_bias", "logit_bias has a key that is no token id: '%.40s'.",
                              key);
        if (id < 0 || id >= lim->vocab)
            return hy_api_bad(e, "logit_bias", "logit_bias has token id %lld out of vocabulary.",
                              id);
        if (!json_is_number(x))
            return hy_api__wrong_type(e, "logit_bias", "an object with numbers only", x);
        double b = json_number_value(x);
        if (!(b >= -100 && b <= 100))
            return hy_api_bad(e, "logit_bias", "logit_bias values must be in [-100, 100], got %g.",
                              b);
        r->s.bias[r->s.n_bias++] = (hy_logit_bias){(int32_t)id, (float)b};
    }
    return HY_OK;
}

hy_status hy_api__truncation(hy_api_req *r, hy_api_error *e)
{
    const json_t *v = get(r, "truncation_side");
    if (v != NULL) {
        const char *s = json_string_value(v);
        if (s == NULL || (strcmp(s, "left") != 0 && strcmp(s, "right") != 0))
            return hy_api_bad(e, "truncation_side", "truncation_side must be 'left' or 'right'.");
        r->truncate_right = strcmp(s, "right") == 0;
    }
    v = get(r, "truncate_prompt_tokens");
    if (v != NULL && r->truncate == 0)
        return hy_api_bad(e, "truncate_prompt_tokens",
                          "truncate_prompt_tokens must be -1 or at least 1, got 0.");
    return HY_OK;
}

static hy_status check_prompt_item(const hy_api_limits *lim, const json_t *v, size_t i,
                                   hy_api_error *e)
{
    if (json_is_string(v) && json_string_length(v) != 0)
        return HY_OK;
    if (!json_is_array(v))
        return hy_api_bad(e, "prompt",
                          "prompt[%zu] must be a non-empty string or array of token ids.", i);
    if (json_array_size(v) == 0)
        return hy_api_bad(e, "prompt", "prompt[%zu] is empty.", i);
    int32_t *ids;
    size_t n;
    HY_TRY(take_ids(lim, "prompt", v, &ids, &n, e));
    free(ids);
    return HY_OK;
}

hy_status hy_api__prompt(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e)
{
    json_t *v = get(r, "prompt");
    if (v == NULL && r->api == HY_API_TOKENIZE)
        v = get(r, "text");
    r->prompt = v;
    if (v == NULL)
        return hy_api_bad(e, "prompt", "prompt must be provided and non-empty.");
    if (r->api == HY_API_TOKENIZE)
        return json_is_string(v) ? HY_OK : hy_api__wrong_type(e, "prompt", "a string", v);
    if (json_is_string(v))
        return json_string_length(v) != 0
                   ? HY_OK
                   : hy_api_bad(e, "prompt", "prompt must be provided and non-empty.");
    if (!json_is_array(v))
        return hy_api__wrong_type(e, "prompt",
                                  "a string, an array of strings, or (arrays of) token ids", v);
    size_t n = json_array_size(v);
    if (n == 0)
        return hy_api_bad(e, "prompt", "You must pass at least one prompt.");
    if (json_is_number(json_array_get(v, 0)))
        return check_prompt_item(lim, v, 0, e);
    if (n > (size_t)lim->max_prompts || n * (size_t)r->n > (size_t)lim->max_prompts)
        return hy_api_bad(e, "prompt", "at most %d prompts times n may be sent at once, got %zu.",
                          lim->max_prompts, n * (size_t)r->n);
    for (size_t i = 0; i < n; i++) {
        HY_TRY(check_prompt_item(lim, json_array_get(v, i), i, e));
        if (json_typeof(json_array_get(v, i)) != json_typeof(json_array_get(v, 0)))
            return hy_api_bad(e, "prompt", "prompt mixes strings and token ids.");
    }
    return HY_OK;
}

hy_status hy_api__tokens(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e)
{
    r->tokens = get(r, "tokens");
    if (r->tokens == NULL)
        return hy_api_bad(e, "tokens", "tokens must be provided.");
    if (!json_is_array(r->tokens))
        return hy_api__wrong_type(e, "tokens", "an array of token ids", r->tokens);
    return take_ids(lim, "tokens", r->tokens, &r->stop_ids, &r->n_stop_ids, e);
}
