/* SPDX-License-Identifier: Apache-2.0
 *
 * Request fields of the chat form: messages, tools and the choice among them.
 *
 * Thread: any.  Owner: see parse.h.
 */
#include "core/http/parse_int.h"

#include <stdio.h>
#include <string.h>

static json_t *get(const json_t *o, const char *name)
{
    json_t *v = json_object_get(o, name);
    return v == NULL || json_is_null(v) ? NULL : v;
}

static hy_status check_part(const json_t *p, const char *where, hy_api_error *e)
{
    if (json_is_string(p))
        return HY_OK;
    if (!json_is_object(p))
        return hy_api__wrong_type(e, where, "an object or a string", p);
    const json_t *t = json_object_get(p, "type");
    if (!json_is_string(t))
        return hy_api_bad(e, where, "%s.type must be a string.", where);
    const char *type = json_string_value(t);
    const char *field = strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 ? "text"
                        : strcmp(type, "refusal") == 0                               ? "refusal"
                                                                                     : NULL;
    if (field == NULL)
        return hy_api_bad(e, where,
                          "%s is of type '%.40s', but this model takes text only (it is not a "
                          "multimodal model).",
                          where, type);
    if (!json_is_string(json_object_get(p, field)))
        return hy_api_bad(e, where, "%s.%s must be a string.", where, field);
    return HY_OK;
}

static hy_status check_content(const json_t *m, const char *role, size_t i, hy_api_error *e)
{
    char where[64];
    snprintf(where, sizeof(where), "messages[%zu].content", i);
    const json_t *c = get(m, "content");
    if (c == NULL) {
        if (strcmp(role, "assistant") == 0)
            return HY_OK;
        return hy_api_bad(e, where, "%s must be a string or an array of parts.", where);
    }
    if (json_is_string(c))
        return HY_OK;
    if (!json_is_array(c))
        return hy_api__wrong_type(e, where, "a string or an array of parts", c);
    for (size_t k = 0; k < json_array_size(c); k++) {
        snprintf(where, sizeof(where), "messages[%zu].content[%zu]", i, k);
        HY_TRY(check_part(json_array_get(c, k), where, e));
    }
    return HY_OK;
}

static hy_status check_calls(const json_t *m, size_t i, hy_api_error *e)
{
    char where[64];
    const json_t *calls = get(m, "tool_calls");
    snprintf(where, sizeof(where), "messages[%zu].tool_calls", i);
    if (calls == NULL)
        return HY_OK;
    if (!json_is_array(calls))
        return hy_api__wrong_type(e, where, "an array", calls);
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *f = json_object_get(json_array_get(calls, k), "function");
        if (!json_is_string(json_object_get(f, "name")))
            return hy_api_bad(e, where, "%s[%zu].function.name must be a string.", where, k);
        const json_t *a = get(f, "arguments");
        if (a != NULL && !json_is_string(a) && !json_is_object(a))
            return hy_api_bad(e, where, "%s[%zu].function.arguments must be a string.", where, k);
    }
    return HY_OK;
}

hy_status hy_api__messages(hy_api_req *r, hy_api_error *e)
{
    json_t *v = get(r->root, "messages");
    if (v == NULL)
        return hy_api_bad(e, "messages", "messages must be provided.");
    if (!json_is_array(v))
        return hy_api__wrong_type(e, "messages", "an array", v);
    if (json_array_size(v) == 0)
        return hy_api_bad(e, "messages", "messages is empty: provide at least one message.");
    for (size_t i = 0; i < json_array_size(v); i++) {
        char where[64];
        const json_t *m = json_array_get(v, i);
        snprintf(where, sizeof(where), "messages[%zu]", i);
        if (!json_is_object(m))
            return hy_api__wrong_type(e, where, "an object", m);
        const json_t *role = json_object_get(m, "role");
        if (!json_is_string(role))
            return hy_api_bad(e, where, "%s.role must be a string.", where);
        HY_TRY(check_content(m, json_string_value(role), i, e));
        HY_TRY(check_calls(m, i, e));
    }
    r->messages = v;
    return HY_OK;
}

static hy_status check_tool(const json_t *t, size_t i, hy_api_error *e)
{
    char where[48];
    snprintf(where, sizeof(where), "tools[%zu]", i);
    if (!json_is_object(t))
        return hy_api__wrong_type(e, where, "an object", t);
    const char *type = json_string_value(json_object_get(t, "type"));
    if (json_object_get(t, "type") != NULL && (type == NULL || strcmp(type, "function") != 0))
        return hy_api_bad(e, where, "%s.type must be 'function'.", where);
    const json_t *f = json_object_get(t, "function");
    if (!json_is_object(f))
        return hy_api_bad(e, where, "%s.function must be an object.", where);
    const json_t *name = json_object_get(f, "name");
    if (!json_is_string(name) || json_string_length(name) == 0)
        return hy_api_bad(e, where, "%s.function.name must be a non-empty string.", where);
    const json_t *p = get(f, "parameters");
    if (p != NULL && !json_is_object(p))
        return hy_api_bad(e, where, "%s.function.parameters must be an object.", where);
    return HY_OK;
}

static hy_status take_choice(hy_api_req *r, hy_api_error *e)
{
    const json_t *v = get(r->root, "tool_choice");
    bool tools = r->tools != NULL;
    r->tool_choice = tools ? HY_TOOLS_AUTO : HY_TOOLS_NONE;
    if (v == NULL)
        return HY_OK;
    const char *s = json_string_value(v);
    if (s == NULL && !json_is_object(v))
        return hy_api__wrong_type(e, "tool_choice", "a string or an object", v);
    if (s != NULL && strcmp(s, "none") == 0) {
        r->tool_choice = HY_TOOLS_NONE;
        return HY_OK;
    }
    if (s != NULL && strcmp(s, "auto") != 0 && strcmp(s, "required") != 0)
        return hy_api_bad(e, "tool_choice", "tool_choice must be 'none' or 'auto', got '%.40s'.",
                          s);
    if (!tools)
        return hy_api_bad(e, "tool_choice", "When using tool_choice, tools must be set.");
    if (s == NULL || strcmp(s, "required") == 0)
        return hy_api_bad(e, "tool_choice",
                          "tool_choice %s is not supported yet: the output cannot be forced into a "
                          "call; use 'auto' or 'none'.",
                          s == NULL ? "with a named function" : "'required'");
    return HY_OK;
}

hy_status hy_api__tools(hy_api_req *r, hy_api_error *e)
{
    json_t *v = get(r->root, "tools");
    if (v != NULL && !json_is_array(v))
        return hy_api__wrong_type(e, "tools", "an array", v);
    for (size_t i = 0; i < json_array_size(v); i++)
        HY_TRY(check_tool(json_array_get(v, i), i, e));
    if (json_array_size(v) != 0)
        r->tools = v;
    return r->api == HY_API_CHAT ? take_choice(r, e) : HY_OK;
}
