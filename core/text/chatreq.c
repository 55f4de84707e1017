/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat request to template variables and prompt: see chatreq.h.
 *
 * Thread: any.  Owner: JSON built here is released here, except what is handed out.
 */
#include "core/text/chatreq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- contents ---- */

static bool is_media(const char *type)
{
    static const char *const media[] = {"image",        "image_url", "input_image", "image_embeds",
                                        "image_pil",    "audio",     "audio_url",   "input_audio",
                                        "audio_embeds", "video",     "video_url",   "file"};
    for (size_t i = 0; i < HY_COUNTOF(media); i++)
        if (strcmp(type, media[i]) == 0)
            return true;
    return false;
}

/* The text of one part, borrowed. */
static hy_status part_text(const json_t *part, const char *where, size_t i, const json_t **text)
{
    if (json_is_string(part)) {
        *text = part;
        return HY_OK;
    }
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!json_is_object(part))
        return hy_fail(HY_E_INVAL, "%s.content[%zu] must be an object or a string", where, i);
    if (type == NULL)
        return hy_fail(HY_E_INVAL, "%s.content[%zu].type must be a string", where, i);
    if (is_media(type))
        return hy_fail(HY_E_UNSUPPORTED,
                       "%s.content[%zu]: parts of type \"%.40s\" are not supported by this model; "
                       "send text only",
                       where, i, type);
    const char *field = strcmp(type, "refusal") == 0    ? "refusal"
                        : strcmp(type, "thinking") == 0 ? "thinking"
                                                        : "text";
    if (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 &&
        strcmp(type, "output_text") != 0 && strcmp(type, field) != 0)
        return hy_fail(HY_E_INVAL, "%s.content[%zu].type \"%.40s\" is unknown; use \"text\"", where,
                       i, type);
    *text = json_object_get(part, field);
    if (!json_is_string(*text))
        return hy_fail(HY_E_INVAL, "%s.content[%zu].%s must be a string", where, i, field);
    return HY_OK;
}

static hy_status new_part(const json_t *text, json_t *list)
{
    json_t *p = json_pack("{s:s, s:O}", "type", "text", "text", text);
    if (p == NULL || json_array_append_new(list, p) < 0)
        return hy_fail(HY_E_NOMEM, "no memory for a chat request");
    return HY_OK;
}

static hy_status fill_parts(const json_t *content, const char *where, bool keep, json_t *list,
                            hy_buf *joined)
{
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *text = NULL;
        HY_TRY(part_text(json_array_get(content, i), where, i, &text));
        if (keep) {
            HY_TRY(new_part(text, list));
            continue;
        }
        if (i > 0)
            hy_buf_putc(joined, '\n');
        hy_buf_add(joined, json_string_value(text), json_string_length(text));
    }
    return HY_OK;
}

static hy_status set_content(json_t *msg, const char *where, hy_chat_content want)
{
    const json_t *content = json_object_get(msg, "content");
    hy_buf joined;
    hy_status st = HY_OK;
    json_t *list = NULL, *value = NULL;
    if (content != NULL && !json_is_null(content) && !json_is_string(content) &&
        !json_is_array(content))
        return hy_fail(HY_E_INVAL, "%s.content must be a string, a list of parts or null", where);
    if (json_is_string(content) && want != HY_CHAT_PARTS)
        return HY_OK;
    hy_buf_init(&joined);
    bool keep = want == HY_CHAT_PARTS || (want == HY_CHAT_EITHER && json_is_array(content));
    list = json_array();
    if (json_is_string(content))
        st = new_part(content, list);
    else if (json_is_array(content))
        st = fill_parts(content, where, keep, list, &joined);
    value = keep ? json_incref(list) : json_stringn(hy_buf_str(&joined), joined.len);
    if (st == HY_OK &&
        (joined.failed || value == NULL || json_object_set(msg, "content", value) < 0))
        st = hy_fail(HY_E_NOMEM, "no memory for a chat request");
    json_decref(value);
    json_decref(list);
    hy_buf_fini(&joined);
    return st;
}

/* ---- tool calls and other fields ---- */

static hy_status set_arguments(json_t *fn, const char *where, size_t i)
{
    const json_t *args = json_object_get(fn, "arguments");
    json_t *v = NULL;
    json_error_t e;
    if (json_is_object(args) || json_is_array(args))
        return HY_OK;
    if (args == NULL || json_is_null(args) || json_string_length(args) == 0) {
        if (args != NULL && !json_is_null(args) && !json_is_string(args))
            return hy_fail(HY_E_INVAL,
                           "%s.tool_calls[%zu].function.arguments must be a JSON string or an "
                           "object",
                           where, i);
        v = json_object();
    } else {
        v = json_loadb(json_string_value(args), json_string_length(args),
                       JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
        if (v == NULL)
            return hy_fail(HY_E_INVAL,
                           "%s.tool_calls[%zu].function.arguments is not valid JSON: %s", where, i,
                           e.text);
    }
    if (v == NULL || json_object_set_new(fn, "arguments", v) < 0)
        return hy_fail(HY_E_NOMEM, "no memory for a chat request");
    return HY_OK;
}

static hy_status set_tool_calls(json_t *msg, const char *where)
{
    json_t *calls = json_object_get(msg, "tool_calls");
    if (calls == NULL)
        return HY_OK;
    if (!json_is_null(calls) && !json_is_array(calls))
        return hy_fail(HY_E_INVAL, "%s.tool_calls must be a list", where);
    if (json_array_size(calls) == 0) {
        json_object_del(msg, "tool_calls");
        return HY_OK;
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *fn = json_object_get(json_array_get(calls, i), "function");
        if (!json_is_object(fn))
            return hy_fail(HY_E_INVAL, "%s.tool_calls[%zu].function must be an object", where, i);
        if (!json_is_string(json_object_get(fn, "name")))
            return hy_fail(HY_E_INVAL, "%s.tool_calls[%zu].function.name must be a string", where,
                           i);
        HY_TRY(set_arguments(fn, where, i));
    }
    return HY_OK;
}

/* The reasoning of a message goes by three names. */
static hy_status set_reasoning(json_t *msg)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *r = NULL;
    for (size_t i = 0; i < HY_COUNTOF(names) && (r == NULL || json_is_null(r)); i++)
        r = json_object_get(msg, names[i]);
    if (r == NULL || json_is_null(r))
        return HY_OK;
    if (json_object_set(msg, "reasoning_content", r) < 0 ||
        (json_object_get(msg, "thinking") == NULL && json_object_set(msg, "thinking", r) < 0))
        return hy_fail(HY_E_NOMEM, "no memory for a chat request");
    return HY_OK;
}

static hy_status check_message(json_t *msg, size_t i, hy_chat_content want)
{
    char where[40];
    snprintf(where, sizeof where, "messages[%zu]", i);
    if (!json_is_object(msg))
        return hy_fail(HY_E_INVAL, "%s must be an object", where);
    const json_t *role = json_object_get(msg, "role");
    if (role == NULL)
        return hy_fail(HY_E_INVAL, "%s.role is missing", where);
    if (!json_is_string(role) || json_string_length(role) == 0)
        return hy_fail(HY_E_INVAL, "%s.role must be a non-empty string", where);
    const json_t *name = json_object_get(msg, "name"), *id = json_object_get(msg, "tool_call_id");
    if (name != NULL && !json_is_string(name) && !json_is_null(name))
        return hy_fail(HY_E_INVAL, "%s.name must be a string", where);
    if (id != NULL && !json_is_string(id) && !json_is_null(id))
        return hy_fail(HY_E_INVAL, "%s.tool_call_id must be a string", where);
    HY_TRY(set_tool_calls(msg, where));
    HY_TRY(set_reasoning(msg));
    return set_content(msg, where, want);
}

/* ---- tools, documents, kwargs ---- */

static hy_status check_tools(const json_t *tools)
{
    if (tools == NULL || json_is_null(tools))
        return HY_OK;
    if (!json_is_array(tools))
        return hy_fail(HY_E_INVAL, "tools must be a list");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *t = json_array_get(tools, i), *fn = json_object_get(t, "function");
        if (!json_is_object(t))
            return hy_fail(HY_E_INVAL, "tools[%zu] must be an object", i);
        if (!json_is_object(fn))
            return hy_fail(HY_E_INVAL, "tools[%zu].function must be an object", i);
        if (!json_is_string(json_object_get(fn, "name")))
            return hy_fail(HY_E_INVAL, "tools[%zu].function.name must be a string", i);
    }
    return HY_OK;
}

static hy_status check_documents(const json_t *docs)
{
    if (docs == NULL || json_is_null(docs))
        return HY_OK;
    if (!json_is_array(docs))
        return hy_fail(HY_E_INVAL, "documents must be a list");
    for (size_t i = 0; i < json_array_size(docs); i++)
        if (!json_is_object(json_array_get(docs, i)))
            return hy_fail(HY_E_INVAL, "documents[%zu] must be an object", i);
    return HY_OK;
}

static hy_status check_kwargs(const json_t *kw)
{
    static const char *const own[] = {"messages", "tools", "chat_template", "tokenize"};
    if (kw != NULL && !json_is_null(kw) && !json_is_object(kw))
        return hy_fail(HY_E_INVAL, "chat_template_kwargs must be an object");
    for (size_t i = 0; i < HY_COUNTOF(own); i++)
        if (json_object_get(kw, own[i]) != NULL)
            return hy_fail(HY_E_INVAL, "chat_template_kwargs.%s cannot be set", own[i]);
    return HY_OK;
}

static hy_status check(const hy_chatreq *q)
{
    if (!json_is_array(q->messages))
        return hy_fail(HY_E_INVAL, "messages must be a list");
    if (json_array_size(q->messages) == 0)
        return hy_fail(HY_E_INVAL, "messages must not be empty");
    if (q->add_generation_prompt && q->continue_final_message)
        return hy_fail(HY_E_INVAL, "continue_final_message and add_generation_prompt cannot both "
                                   "be true");
    HY_TRY(check_tools(q->tools));
    HY_TRY(check_documents(q->documents));
    return check_kwargs(q->kwargs);
}

static json_t *copy_or_null(const json_t *v, bool empty_is_null)
{
    if (v == NULL || (empty_is_null && json_array_size(v) == 0))
        return json_null();
    return json_deep_copy(v);
}

static hy_status fill_vars(const hy_jinja *j, const hy_chatreq *q, json_t *vars)
{
    json_t *messages = json_deep_copy(q->messages);
    hy_chat_content want = hy_chatreq_content(j);
    int bad = json_object_set_new(vars, "messages", messages);
    bad |= json_object_set_new(vars, "tools", copy_or_null(q->tools, true));
    bad |= json_object_set_new(vars, "documents", copy_or_null(q->documents, false));
    bad |=
        json_object_set_new(vars, "add_generation_prompt", json_boolean(q->add_generation_prompt));
    if (json_is_object(q->token_vars))
        bad |= json_object_update(vars, (json_t *)(uintptr_t)q->token_vars);
    if (json_is_object(q->kwargs))
        bad |= json_object_update(vars, (json_t *)(uintptr_t)q->kwargs);
    if (bad != 0)
        return hy_fail(HY_E_NOMEM, "no memory for a chat request");
    for (size_t i = 0; i < json_array_size(messages); i++)
        HY_TRY(check_message(json_array_get(messages, i), i, want));
    return HY_OK;
}

hy_status hy_chatreq_vars(const hy_jinja *j, const hy_chatreq *q, json_t **vars_out)
{
    HY_TRY(check(q));
    json_t *vars = json_object();
    if (vars == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a chat request");
    hy_status st = fill_vars(j, q, vars);
    if (st < 0) {
        json_decref(vars);
        return st;
    }
    *vars_out = vars;
    return HY_OK;
}

/* ---- sentinels: private characters that appear nowhere in the input ---- */

typedef struct sentinels {
    char open[5], close[5], tail[5];
} sentinels;

static bool has_text(const json_t *v, const char *needle)
{
    const char *key;
    json_t *x;
    size_t i;
    if (json_is_string(v))
        return memmem(json_string_value(v), json_string_length(v), needle, 4) != NULL;
    json_object_foreach((json_t *)(uintptr_t)v, key,
                        x) if (has_text(x, needle) || strstr(key, needle) != NULL) return true;
    json_array_foreach(v, i, x) if (has_text(x, needle)) return true;
    return false;
}

/* U+10F000 and on: private use, so neither space nor letter to a template. */
static hy_status pick(const json_t *vars, sentinels *s)
{
    char *to[3] = {s->open, s->close, s->tail};
    uint32_t c = 0x10f000;
    for (int i = 0; i < 3; i++) {
        do {
            if (c > 0x10fff0)
                return hy_fail(HY_E_LIMIT, "messages use all private characters");
            snprintf(to[i], 5, "%c%c%c%c", (int)(0xf0 | c >> 18), (int)(0x80 | (c >> 12 & 63)),
                     (int)(0x80 | (c >> 6 & 63)), (int)(0x80 | (c & 63)));
            c++;
        } while (has_text(vars, to[i]));
    }
    return HY_OK;
}

static size_t mark_at(const hy_chatreq *q, const char *p, size_t left)
{
    size_t best = 0;
    for (size_t i = 0; i < q->n_marks; i++) {
        size_t n = strlen(q->marks[i]);
        if (n > best && n <= left && memcmp(p, q->marks[i], n) == 0)
            best = n;
    }
    return best;
}

static json_t *wrap_string(const hy_chatreq *q, const sentinels *s, const bool *first,
                           const json_t *v)
{
    const char *p = json_string_value(v), *end = p + json_string_length(v);
    hy_buf b;
    hy_buf_init(&b);
    while (p < end) {
        size_t n = first[(unsigned char)*p] ? mark_at(q, p, (size_t)(end - p)) : 0;
        if (n > 0) {
            hy_buf_puts(&b, s->open);
            hy_buf_add(&b, p, n);
            hy_buf_puts(&b, s->close);
            p += n;
        } else {
            hy_buf_putc(&b, *p++);
        }
    }
    json_t *out = b.failed ? NULL : json_stringn_nocheck(hy_buf_str(&b), b.len);
    hy_buf_fini(&b);
    return out;
}

/* Every string value below v, in place; keys and roles stay. False: no memory. */
static bool wrap(const hy_chatreq *q, const sentinels *s, const bool *first, json_t *v)
{
    const char *key;
    json_t *x;
    size_t i;
    void *tmp;
    bool ok = true;
    json_object_foreach_safe(v, tmp, key, x)
    {
        if (!json_is_string(x))
            ok &= wrap(q, s, first, x);
        else if (strcmp(key, "role") != 0)
            ok &= json_object_set_new(v, key, wrap_string(q, s, first, x)) == 0;
    }
    json_array_foreach(v, i, x)
    {
        if (json_is_string(x))
            ok &= json_array_set_new(v, i, wrap_string(q, s, first, x)) == 0;
        else
            ok &= wrap(q, s, first, x);
    }
    return ok;
}

static hy_status wrap_all(const hy_chatreq *q, const sentinels *s, json_t *vars)
{
    bool first[256] = {false};
    for (size_t i = 0; i < q->n_marks; i++)
        first[(unsigned char)q->marks[i][0]] = q->marks[i][0] != '\0';
    if (!wrap(q, s, first, json_object_get(vars, "messages")) ||
        !wrap(q, s, first, json_object_get(vars, "tools")) ||
        !wrap(q, s, first, json_object_get(vars, "documents")))
        return hy_fail(HY_E_NOMEM, "no memory for a chat request");
    return HY_OK;
}

static hy_status add_plain(hy_chat_text *t, size_t from, size_t to)
{
    if ((t->n_plain & (t->n_plain - 1)) == 0) { /* room doubles at powers of two */
        size_t cap = t->n_plain == 0 ? 1 : t->n_plain * 2;
        hy_chat_range *p = realloc(t->plain, cap * sizeof *p);
        if (p == NULL)
            return hy_fail(HY_E_NOMEM, "no memory for a chat prompt");
        t->plain = p;
    }
    t->plain[t->n_plain++] = (hy_chat_range){from, to};
    return HY_OK;
}

/* Takes the sentinels out of raw. A pair gives a range; a lone one gives an empty range, which
 * keeps the text on its two sides from joining into a mark. */
static hy_status unwrap(const hy_buf *raw, const sentinels *s, hy_chat_text *t)
{
    const char *p = hy_buf_str(raw), *end = p + raw->len;
    bool open = false;
    size_t from = 0;
    while (p < end) {
        const char *hit = memchr(p, s->open[0], (size_t)(end - p));
        bool o = false, c = false;
        if (hit == NULL)
            hit = end;
        hy_buf_add(&t->text, p, (size_t)(hit - p));
        p = hit;
        if (end - p >= 4) {
            o = memcmp(p, s->open, 4) == 0;
            c = memcmp(p, s->close, 4) == 0;
        }
        if (o || c) {
            if (c && open)
                HY_TRY(add_plain(t, from, t->text.len));
            else if (c || open)
                HY_TRY(add_plain(t, c ? t->text.len : from, c ? t->text.len : from));
            open = o;
            from = t->text.len;
            p += 4;
        } else if (p < end) {
            hy_buf_putc(&t->text, *p++);
        }
    }
    if (open)
        HY_TRY(add_plain(t, from, from));
    return t->text.failed ? hy_fail(HY_E_NOMEM, "no memory for a chat prompt") : HY_OK;
}

/* ---- continue_final_message ---- */

static hy_status add_tail(json_t *vars, const sentinels *s)
{
    json_t *messages = json_object_get(vars, "messages");
    json_t *msg = json_array_get(messages, json_array_size(messages) - 1);
    json_t *holder = msg, *content = json_object_get(msg, "content");
    const char *key = "content";
    if (json_is_array(content)) {
        holder = json_array_get(content, json_array_size(content) - 1);
        content = json_object_get(holder, "text");
        key = "text";
    }
    if (json_string_length(content) == 0)
        return hy_fail(HY_E_INVAL, "continue_final_message needs a text in the last message");
    hy_buf b;
    hy_buf_init(&b);
    hy_buf_add(&b, json_string_value(content), json_string_length(content));
    hy_buf_puts(&b, s->tail);
    hy_buf_putc(&b, ' '); /* gone in the result: the template trims */
    int bad = json_object_set_new(holder, key, json_stringn_nocheck(hy_buf_str(&b), b.len));
    hy_buf_fini(&b);
    return bad ? hy_fail(HY_E_NOMEM, "no memory for a chat request") : HY_OK;
}

static hy_status cut_tail(hy_buf *raw, const sentinels *s)
{
    const char *p = hy_buf_str(raw), *last = NULL, *hit = p;
    while ((hit = memmem(hit, raw->len - (size_t)(hit - p), s->tail, 4)) != NULL)
        last = hit++;
    if (last == NULL)
        return hy_fail(HY_E_INVAL, "continue_final_message: the chat template drops the end of the "
                                   "last message");
    bool trimmed = last[4] != ' ';
    raw->len = (size_t)(last - p);
    while (trimmed && raw->len > 0 && strchr(" \t\n\r\v\f", p[raw->len - 1]) != NULL)
        raw->len--;
    raw->data[raw->len] = '\0';
    return HY_OK;
}

void hy_chat_text_fini(hy_chat_text *t)
{
    hy_buf_fini(&t->text);
    free(t->plain);
    t->plain = NULL;
    t->n_plain = 0;
}

static hy_status render(const hy_jinja *j, const hy_chatreq *q, json_t *vars, hy_buf *raw,
                        hy_chat_text *out)
{
    sentinels s;
    HY_TRY(pick(vars, &s));
    if (q->n_marks > 0)
        HY_TRY(wrap_all(q, &s, vars));
    if (q->continue_final_message)
        HY_TRY(add_tail(vars, &s));
    HY_TRY(hy_jinja_render(j, vars, q->now, raw));
    if (q->continue_final_message)
        HY_TRY(cut_tail(raw, &s));
    return unwrap(raw, &s, out);
}

hy_status hy_chatreq_render(const hy_jinja *j, const hy_chatreq *q, hy_chat_text *out)
{
    json_t *vars = NULL;
    hy_buf raw;
    HY_TRY(hy_chatreq_vars(j, q, &vars));
    memset(out, 0, sizeof *out);
    hy_buf_init(&out->text);
    hy_buf_init(&raw);
    hy_status st = q->n_marks > 0 || q->continue_final_message
                       ? render(j, q, vars, &raw, out)
                       : hy_jinja_render(j, vars, q->now, &out->text);
    hy_buf_fini(&raw);
    json_decref(vars);
    if (st < 0)
        hy_chat_text_fini(out);
    return st;
}
