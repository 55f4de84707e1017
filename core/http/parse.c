/* SPDX-License-Identifier: Apache-2.0
 *
 * Request bodies: the table of plain fields and the order of checks. Fields that need more than a
 * type and a range are in parse_more.c.
 *
 * Field names, defaults and bounds are those of OpenAI's API and of vLLM 0.32.
 *
 * Thread: any.  Owner: see parse.h.
 */
#include "core/http/parse_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_error(hy_api_error *e, int status, const char *type, const char *param,
                      const char *fmt, va_list ap)
{
    memset(e, 0, sizeof(*e));
    e->status = status;
    e->type = type;
    snprintf(e->param, sizeof(e->param), "%s", param != NULL ? param : "");
    vsnprintf(e->text, sizeof(e->text), fmt, ap);
}

hy_status hy_api_bad(hy_api_error *e, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_error(e, 400, "BadRequestError", param, fmt, ap);
    va_end(ap);
    return HY_E_INVAL;
}

hy_status hy_api_error_set(hy_api_error *e, int status, const char *type, const char *param,
                           const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_error(e, status, type, param, fmt, ap);
    va_end(ap);
    return HY_E_INVAL;
}

void hy_api_limits_init(hy_api_limits *l, int32_t vocab, int32_t context)
{
    *l = (hy_api_limits){
        .vocab = vocab,
        .context = context,
        .max_logprobs = 20,
        .max_n = HY_API_MAX_N,
        .max_prompts = HY_API_MAX_PROMPTS,
        .max_stop = HY_API_MAX_STOP,
        .max_stop_bytes = 64 * 1024,
        .max_bias = 4096,
        .defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1},
    };
}

enum { C = HY_API_COMPLETIONS, M = HY_API_CHAT, T = HY_API_TOKENIZE, D = HY_API_DETOKENIZE };
#define AT(f)      offsetof(hy_api_req, f)
#define CHECK_ONLY SIZE_MAX /* the type is checked, the value has no effect here */

typedef enum fkind { F_BOOL, F_I32, F_F32, F_STR, F_OBJ, F_OBJ_LIST } fkind;

typedef struct field {
    const char *name;
    fkind kind;
    int apis;
    size_t off;
    double lo, hi;
    bool lo_open;
} field;

#define I32_MAX 2147483647.0
static const field fields[] = {
    {"model", F_STR, C | M | T | D, AT(model), 0, 0, false},
    {"user", F_STR, C | M, CHECK_ONLY, 0, 0, false},
    {"stream", F_BOOL, C | M, AT(stream), 0, 0, false},
    {"n", F_I32, C | M, AT(n), -I32_MAX, I32_MAX, false},
    {"min_tokens", F_I32, C | M, AT(min_tokens), 0, I32_MAX, false},
    {"temperature", F_F32, C | M, AT(s.temperature), 0, 2, false},
    {"top_p", F_F32, C | M, AT(s.top_p), 0, 1, true},
    {"min_p", F_F32, C | M, AT(s.min_p), 0, 1, false},
    {"top_k", F_I32, C | M, AT(s.top_k), -1, I32_MAX, false},
    {"repetition_penalty", F_F32, C | M, AT(s.repetition_penalty), 0, 100, true},
    {"presence_penalty", F_F32, C | M, AT(s.presence_penalty), -2, 2, false},
    {"frequency_penalty", F_F32, C | M, AT(s.frequency_penalty), -2, 2, false},
    {"echo", F_BOOL, C | M, AT(echo), 0, 0, false},
    {"ignore_eos", F_BOOL, C | M, AT(ignore_eos), 0, 0, false},
    {"include_stop_str_in_output", F_BOOL, C | M, AT(include_stop), 0, 0, false},
    {"skip_special_tokens", F_BOOL, C | M | D, AT(skip_special), 0, 0, false},
    {"spaces_between_special_tokens", F_BOOL, C | M, CHECK_ONLY, 0, 0, false},
    {"add_special_tokens", F_BOOL, C | M | T, AT(add_special), 0, 0, false},
    {"parse_special", F_BOOL, T, AT(parse_special), 0, 0, false},
    {"return_token_strs", F_BOOL, T, AT(return_token_strs), 0, 0, false},
    {"return_token_ids", F_BOOL, C | M, AT(return_token_ids), 0, 0, false},
    {"return_tokens_as_token_ids", F_BOOL, C | M, AT(tokens_as_ids), 0, 0, false},
    {"priority", F_I32, C | M, AT(priority), -I32_MAX, I32_MAX, false},
    {"cache_salt", F_STR, C | M, AT(cache_salt), 0, 0, false},
    {"request_id", F_STR, C | M, AT(request_id), 0, 0, false},
    {"session_id", F_STR, C | M, CHECK_ONLY, 0, 0, false},
    {"length_penalty", F_F32, C | M, CHECK_ONLY, -1e30, 1e30, false},
    {"include_reasoning", F_BOOL, M, CHECK_ONLY, 0, 0, false},
    {"store", F_BOOL, M, CHECK_ONLY, 0, 0, false},
    {"metadata", F_OBJ, M, CHECK_ONLY, 0, 0, false},
    {"vllm_xargs", F_OBJ, C | M, CHECK_ONLY, 0, 0, false},
    {"ec_transfer_params", F_OBJ, C | M, CHECK_ONLY, 0, 0, false},
    {"kv_transfer_params", F_OBJ, C | M, AT(kv_params), 0, 0, false},
    {"truncate_prompt_tokens", F_I32, C | M, AT(truncate), -1, I32_MAX, false},
    {"documents", F_OBJ_LIST, M, AT(documents), 0, 0, false},
    {"chat_template_kwargs", F_OBJ, M | T, AT(template_kwargs), 0, 0, false},
    {"add_generation_prompt", F_BOOL, M | T, AT(add_generation_prompt), 0, 0, false},
    {"continue_final_message", F_BOOL, M | T, AT(continue_final), 0, 0, false},
    {"parallel_tool_calls", F_BOOL, M, AT(parallel_tools), 0, 0, false},
};

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

hy_status hy_api__wrong_type(hy_api_error *e, const char *param, const char *want, const json_t *v)
{
    return hy_api_bad(e, param, "%s must be %s, not %s.", param, want, type_name(v));
}

hy_status hy_api__int(hy_api_error *e, const char *param, const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return HY_OK;
    }
    if (!json_is_real(v))
        return hy_api__wrong_type(e, param, "an integer", v);
    double d = json_real_value(v);
    if (fabs(d) > 9e15)
        return hy_api_bad(e, param, "%s is an integer that is too large.", param);
    if (d != floor(d))
        return hy_api_bad(e, param, "%s must be an integer, got %g.", param, d);
    *out = (int64_t)d;
    return HY_OK;
}

static hy_status out_of_range(hy_api_error *e, const field *f, double x)
{
    if (f->hi >= I32_MAX && x < f->lo)
        return hy_api_bad(e, f->name, "%s must be at least %.15g, got %.15g.", f->name, f->lo, x);
    return hy_api_bad(e, f->name, "%s must be in %c%.15g, %.15g], got %.15g.", f->name,
                      f->lo_open ? '(' : '[', f->lo, f->hi, x);
}

static bool in_range(const field *f, double x)
{
    return (f->lo_open ? x > f->lo : x >= f->lo) && x <= f->hi;
}

static hy_status take_field(const field *f, const json_t *v, hy_api_req *r, hy_api_error *e)
{
    char *at = (char *)r + f->off;
    bool keep = f->off != CHECK_ONLY;
    int64_t i;
    switch (f->kind) {
    case F_BOOL:
        if (!json_is_boolean(v))
            return hy_api__wrong_type(e, f->name, "a boolean", v);
        if (keep)
            *(bool *)at = json_is_true(v);
        return HY_OK;
    case F_I32:
        HY_TRY(hy_api__int(e, f->name, v, &i));
        if (!in_range(f, (double)i))
            return out_of_range(e, f, (double)i);
        if (keep)
            *(int32_t *)at = (int32_t)i;
        return HY_OK;
    case F_F32:
        if (!json_is_number(v))
            return hy_api__wrong_type(e, f->name, "a number", v);
        /* as it will be used: a tiny number may be 0 as a float */
        if (!in_range(f, json_number_value(v)) || !in_range(f, (double)(float)json_number_value(v)))
            return out_of_range(e, f, json_number_value(v));
        if (keep)
            *(float *)at = (float)json_number_value(v);
        return HY_OK;
    case F_STR:
        if (!json_is_string(v))
            return hy_api__wrong_type(e, f->name, "a string", v);
        if (strlen(json_string_value(v)) != json_string_length(v))
            return hy_api_bad(e, f->name, "%s must not contain a NUL character.", f->name);
        if (keep)
            *(const char **)at = json_string_value(v);
        return HY_OK;
    case F_OBJ:
        if (!json_is_object(v))
            return hy_api__wrong_type(e, f->name, "an object", v);
        break;
    case F_OBJ_LIST:
        if (!json_is_array(v))
            return hy_api__wrong_type(e, f->name, "an array", v);
        for (size_t k = 0; k < json_array_size(v); k++) {
            if (!json_is_object(json_array_get(v, k)))
                return hy_api_bad(e, f->name, "%s[%zu] must be an object, not %s.", f->name, k,
                                  type_name(json_array_get(v, k)));
        }
        break;
    }
    if (keep)
        *(const json_t **)at = v;
    return HY_OK;
}

static hy_status take_fields(hy_api_req *r, hy_api_error *e)
{
    for (size_t i = 0; i < HY_COUNTOF(fields); i++) {
        const json_t *v = json_object_get(r->root, fields[i].name);
        if ((fields[i].apis & (int)r->api) != 0 && v != NULL && !json_is_null(v))
            HY_TRY(take_field(&fields[i], v, r, e));
    }
    return HY_OK;
}

/* The name before the last colon of body[0..len), where a number stands that no double holds. */
static void key_before(const char *body, size_t len, char *out, size_t cap)
{
    size_t end = len, n = 0;
    while (end > 0 && body[end - 1] != ':')
        end--;
    while (end > 0 && body[end - 1] != '"')
        end--;
    size_t from = end > 0 ? end - 1 : 0;
    while (from > 0 && body[from - 1] != '"')
        from--;
    for (; from + 1 < end && n + 1 < cap; from++)
        out[n++] = body[from] > 0x20 && body[from] < 0x7f ? body[from] : '?';
    out[n] = '\0';
}

/* NaN and Infinity are no JSON, yet Python writes them; and 1e999 is no number. Errors about such
 * values name their field. */
static hy_status bad_json(const char *body, size_t len, const json_error_t *je, hy_api_error *e)
{
    size_t at = je->position > 0 && (size_t)je->position < len ? (size_t)je->position : len;
    size_t from = at > 9 ? at - 9 : 0, to = len - at > 9 ? at + 9 : len;
    char key[64];
    key_before(body, at, key, sizeof(key));
    if (json_error_code(je) == json_error_numeric_overflow && key[0] != '\0')
        return hy_api_bad(e, key, "%s is a number that is too large.", key);
    if ((memmem(body + from, to - from, "NaN", 3) != NULL ||
         memmem(body + from, to - from, "Infinity", 8) != NULL) &&
        key[0] != '\0')
        return hy_api_bad(e, key, "%s must be a number; NaN and Infinity are none.", key);
    return hy_api_bad(e, "body", "The body is not valid JSON: %.200s (line %d, column %d).",
                      je->text, je->line, je->column);
}

static hy_status load_json(hy_api_req *r, const char *body, size_t len, hy_api_error *e)
{
    const size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY;
    json_error_t je;
    if (len == 0)
        return hy_api_bad(e, "body", "The request has no body; a JSON object is required.");
    r->root = json_loadb(body, len, flags, &je);
    /* integers of more than 64 bits, as reals: a field that minds refuses them by its name */
    if (r->root == NULL && json_error_code(&je) == json_error_numeric_overflow)
        r->root = json_loadb(body, len, flags | JSON_DECODE_INT_AS_REAL, &je);
    if (r->root == NULL)
        return bad_json(body, len, &je, e);
    if (!json_is_object(r->root))
        return hy_api_bad(e, "body", "The body must be a JSON object, not %s.", type_name(r->root));
    return HY_OK;
}

static hy_status check_ranges(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e)
{
    if (r->n < 1)
        return hy_api_bad(e, "n", "n must be at least 1, got %d.", r->n);
    if (r->n > lim->max_n)
        return hy_api_bad(e, "n", "n must be at most %d, got %d.", lim->max_n, r->n);
    if (r->n > 1 && r->s.temperature == 0)
        return hy_api_bad(e, "n", "n must be 1 when using greedy sampling, got %d.", r->n);
    if (r->max_tokens > lim->context)
        return hy_api_bad(e, "max_tokens",
                          "max_tokens=%d cannot be greater than max_model_len=%d. Please request "
                          "fewer output tokens.",
                          r->max_tokens, lim->context);
    if (r->max_tokens >= 0 && r->min_tokens > r->max_tokens)
        return hy_api_bad(e, "min_tokens",
                          "min_tokens must be less than or equal to max_tokens=%d, got %d.",
                          r->max_tokens, r->min_tokens);
    if (r->stream && r->prompt_logprobs >= 0)
        return hy_api_bad(e, "prompt_logprobs",
                          "prompt_logprobs are not available when stream is true.");
    if (r->cache_salt != NULL && r->cache_salt[0] == '\0')
        return hy_api_bad(e, "cache_salt", "cache_salt must not be an empty string.");
    if (r->add_generation_prompt && r->continue_final &&
        json_is_true(json_object_get(r->root, "add_generation_prompt")))
        return hy_api_bad(e, "continue_final_message",
                          "add_generation_prompt and continue_final_message cannot both be true.");
    if (r->continue_final)
        r->add_generation_prompt = false;
    return HY_OK;
}

static hy_status parse_generate(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e)
{
    HY_TRY(hy_api__refuse_unsupported(r, e));
    HY_TRY(hy_api__max_tokens(r, e));
    HY_TRY(hy_api__stream_options(r, e));
    HY_TRY(hy_api__logprobs(lim, r, e));
    HY_TRY(hy_api__seed(r, e));
    HY_TRY(hy_api__stop(lim, r, e));
    HY_TRY(hy_api__stop_ids(lim, r, e));
    HY_TRY(hy_api__logit_bias(lim, r, e));
    HY_TRY(hy_api__truncation(r, e));
    return check_ranges(lim, r, e);
}

static hy_status parse_all(const hy_api_limits *lim, const char *body, size_t len, hy_api_req *r,
                           hy_api_error *e)
{
    HY_TRY(load_json(r, body, len, e));
    bool chat = r->api == HY_API_CHAT ||
                (r->api == HY_API_TOKENIZE && json_object_get(r->root, "messages") != NULL);
    r->add_special = !chat;
    HY_TRY(take_fields(r, e));
    if (r->api == HY_API_DETOKENIZE)
        return hy_api__tokens(lim, r, e);
    if (r->api == HY_API_COMPLETIONS || r->api == HY_API_CHAT)
        HY_TRY(parse_generate(lim, r, e));
    if (!chat)
        return hy_api__prompt(lim, r, e);
    HY_TRY(hy_api__messages(r, e));
    return hy_api__tools(r, e);
}

hy_status hy_api_parse(const hy_api_limits *lim, hy_api api, const char *body, size_t len,
                       hy_api_req *out, hy_api_error *e)
{
    *out = (hy_api_req){
        .api = api,
        .n = 1,
        .max_tokens = -1,
        .s = lim->defaults,
        .prompt_logprobs = -1,
        .skip_special = api != HY_API_DETOKENIZE,
        .parse_special = true,
        .add_generation_prompt = true,
        .parallel_tools = true,
    };
    out->s.bias = NULL;
    out->s.n_bias = 0;
    out->s.logprobs = -1;
    memset(e, 0, sizeof(*e));
    hy_status st = parse_all(lim, body, len, out, e);
    if (st < 0) {
        hy_api_req_fini(out);
        if (e->status == 0)
            hy_api_error_set(e, 500, "InternalServerError", NULL, "%s", hy_fail_text());
    }
    return st;
}

void hy_api_req_fini(hy_api_req *r)
{
    json_decref(r->root);
    free(r->s.bias);
    free((void *)r->stop);
    free(r->stop_len);
    free(r->stop_ids);
    memset(r, 0, sizeof(*r));
}
