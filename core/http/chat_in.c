/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat requests: messages through the model's template to token ids.
 *
 * Thread: text stage; the marks are made before it runs.  Owner: the caller frees ids.
 */
#include "core/http/http_int.h"

#include "core/text/chatreq.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* [engine] user_marks = text: every special token's spelling, to be found in users' texts. */
hy_status hy_chat__marks(hy_http *h)
{
    int32_t n = hy_tok_n_vocab(h->o.tok);
    size_t k = 0;
    for (int32_t i = 0; i < n; i++)
        k += hy_tok_is_special(h->o.tok, i);
    h->marks = calloc(k + 1, sizeof(*h->marks));
    if (h->marks == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for the special tokens' spellings");
    for (int32_t i = 0; i < n; i++) {
        const char *t = hy_tok_is_special(h->o.tok, i) ? hy_tok_token_text(h->o.tok, i) : NULL;
        if (t != NULL && t[0] != '\0')
            h->marks[h->n_marks++] = t;
    }
    return HY_OK;
}

static void add_var(json_t *vars, const hy_http *h, const char *name, int32_t id)
{
    const char *t = id >= 0 ? hy_tok_token_text(h->o.tok, id) : NULL;
    if (t != NULL)
        json_object_set_new(vars, name, json_string(t));
}

static hy_status render(hy_http *h, const hy_call *c, hy_chat_text *text)
{
    const hy_api_req *q = &c->q;
    time_t now = (time_t)c->created;
    struct tm tm;
    json_t *vars = json_object();
    if (vars == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for the template's variables");
    add_var(vars, h, "bos_token", hy_tok_bos(h->o.tok));
    add_var(vars, h, "eos_token", hy_tok_eos(h->o.tok));
    localtime_r(&now, &tm);
    bool show_tools = c->api == HY_API_TOKENIZE || q->tool_choice != HY_TOOLS_NONE;
    hy_chatreq r = {.messages = q->messages,
                    .tools = show_tools ? q->tools : NULL,
                    .documents = q->documents,
                    .kwargs = q->template_kwargs,
                    .token_vars = vars,
                    .add_generation_prompt = q->add_generation_prompt,
                    .continue_final_message = q->continue_final,
                    .now = &tm,
                    .marks = h->marks,
                    .n_marks = h->n_marks};
    hy_status st = hy_chatreq_render(h->o.chat, &r, text);
    json_decref(vars);
    return st;
}

static hy_status encode_piece(const hy_http *h, const hy_chat_text *t, size_t from, size_t to,
                              int flags, size_t max_ids, hy_tok_ids *ids)
{
    if (from == to)
        return HY_OK;
    return hy_tok_encode(h->o.tok, t->text.data + from, to - from, flags, max_ids, ids);
}

/* The stretches that came from users, and those between them, each by itself. */
static hy_status encode_text(const hy_http *h, const hy_chat_text *t, bool add_special,
                             size_t max_ids, hy_tok_ids *ids)
{
    size_t at = 0;
    int add = add_special ? HY_TOK_ADD_SPECIAL : 0;
    for (size_t i = 0; i < t->n_plain; i++) {
        HY_TRY(encode_piece(h, t, at, t->plain[i].from, HY_TOK_PARSE_SPECIAL | add, max_ids, ids));
        if (t->plain[i].from != at)
            add = 0;
        HY_TRY(encode_piece(h, t, t->plain[i].from, t->plain[i].to, 0, max_ids, ids));
        at = t->plain[i].to;
    }
    return encode_piece(h, t, at, t->text.len, HY_TOK_PARSE_SPECIAL | add, max_ids, ids);
}

/* Assistant text that the answer goes on from, for echo. */
static void keep_echo(hy_call *c)
{
    size_t n = json_array_size(c->q.messages);
    const json_t *m = json_array_get(c->q.messages, n - 1);
    const char *role = json_string_value(json_object_get(m, "role"));
    const char *text = json_string_value(json_object_get(m, "content"));
    if (c->q.echo && role != NULL && text != NULL && strcmp(role, "assistant") == 0)
        c->echo = strdup(text);
}

hy_status hy_chat__encode(hy_http *h, hy_call *c, size_t max_ids, hy_tok_ids *ids, hy_api_error *e)
{
    if (h->o.chat == NULL)
        return hy_api_bad(e, "messages", "%s",
                          h->o.chat_error != NULL
                              ? h->o.chat_error
                              : "This model has no chat template: use /v1/completions, or give one "
                                "in the configuration.");
    hy_chat_text text;
    memset(&text, 0, sizeof(text));
    hy_status st = render(h, c, &text);
    if (st == HY_OK) {
        st = encode_text(h, &text, c->q.add_special, max_ids, ids);
        if (st == HY_E_LIMIT)
            hy_fail(st,
                    "This model's maximum context length is %d tokens. However, your messages "
                    "contain more. Please reduce their length.",
                    h->o.context);
    }
    hy_chat_text_fini(&text);
    if (st < 0)
        return hy_status_scope(st) == HY_SCOPE_NODE
                   ? hy_api_error_set(e, 500, "InternalServerError", NULL, "%s", hy_fail_text())
                   : hy_api_bad(e, st == HY_E_LIMIT ? "input_tokens" : "messages", "%s",
                                hy_fail_text());
    keep_echo(c);
    c->parse_tools = c->api == HY_API_CHAT && c->q.tool_choice == HY_TOOLS_AUTO;
    return HY_OK;
}
