/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers and stream pieces as JSON, in the shapes of OpenAI's API with vLLM's additions.
 *
 * Thread: out stage.  Owner: see out_int.h.
 */
#include "core/http/out_int.h"

#include "core/http/json_out.h"
#include "core/http/tools.h"

#include <string.h>

#define FINGERPRINT "\"halyard-" HY_VERSION "\""

static void head(const hy_http *h, const hy_call *c, const char *object, hy_buf *b)
{
    hy_buf_puts(b, "{\"id\":");
    hy_json_cstr(b, c->rid);
    hy_buf_printf(b, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object,
                  (long long)c->created);
    hy_json_cstr(b, h->o.models[0]);
}

static const char *finish_name(const hy_choice *x)
{
    switch (x->finish) {
    case HY_FINISH_STOP:
        return x->tools != NULL && hy_tools__called(x->tools) ? "tool_calls" : "stop";
    case HY_FINISH_LENGTH:
        return "length";
    default:
        return "abort";
    }
}

static void finish_reason(const hy_choice *x, bool last, hy_buf *b)
{
    hy_buf_puts(b, ",\"finish_reason\":");
    hy_json_cstr(b, last ? finish_name(x) : NULL);
}

/* The stop string, or the id of a stop token that the client named; null for the model's own. */
static void stop_reason(const hy_call *c, const hy_choice *x, bool last, hy_buf *b)
{
    hy_buf_puts(b, ",\"stop_reason\":");
    if (last && x->stop.matched >= 0) {
        hy_json_str(b, c->stops.str[x->stop.matched], c->stops.len[x->stop.matched]);
        return;
    }
    for (size_t i = 0; last && x->stop_token >= 0 && i < c->q.n_stop_ids; i++) {
        if (c->q.stop_ids[i] == x->stop_token && x->finish == HY_FINISH_STOP) {
            hy_buf_printf(b, "%d", (int)x->stop_token);
            return;
        }
    }
    hy_buf_puts(b, "null");
}

static void token_ids(const hy_call *c, const hy_choice *x, hy_buf *b)
{
    hy_buf_puts(b, ",\"token_ids\":");
    if (c->q.return_token_ids)
        hy_json_ids(b, x->ids, x->n_ids);
    else
        hy_buf_puts(b, "null");
}

static void prompt_ids(const hy_call *c, const hy_prompt *p, bool show, hy_buf *b)
{
    hy_buf_puts(b, ",\"prompt_token_ids\":");
    if (show && c->q.return_token_ids)
        hy_json_ids(b, p->ids, (size_t)p->n);
    else
        hy_buf_puts(b, "null");
}

static void usage(long long prompt, long long cached, long long output, bool whole, hy_buf *b)
{
    hy_buf_printf(b,
                  "\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld,\"completion_tokens\":"
                  "%lld,\"prompt_tokens_details\":{\"cached_tokens\":%lld}%s}",
                  prompt, prompt + output, output, cached,
                  whole ? ",\"completion_tokens_details\":null" : "");
}

static void total_usage(const hy_call *c, hy_buf *b)
{
    long long prompt = 0, cached = 0, output = 0;
    for (size_t i = 0; i < c->n_prompts; i++) {
        prompt += c->prompts[i].n;
        cached += c->prompts[i].n_cached;
    }
    for (size_t i = 0; i < c->n_choices && !c->max_zero; i++)
        output += c->choices[i].n_tok;
    usage(prompt, cached, output, !c->q.stream, b);
}

/* ---- completions ---- */

static void text_logprobs(const hy_http *h, const hy_call *c, size_t i, bool with_prompt, hy_buf *b)
{
    hy_choice *x = &c->choices[i];
    size_t p = i / (size_t)c->q.n;
    hy_buf_puts(b, ",\"logprobs\":");
    if (!c->q.logprobs)
        hy_buf_puts(b, "null");
    else
        hy_out__text_lps(h, c, x, with_prompt ? &c->prompts[p] : NULL,
                         &c->choices[p * (size_t)c->q.n].prompt_lps, b);
}

static void text_field(const hy_call *c, size_t i, bool with_prompt, hy_buf *b)
{
    const hy_choice *x = &c->choices[i];
    const hy_prompt *p = &c->prompts[i / (size_t)c->q.n];
    hy_buf_printf(b, "{\"index\":%zu,\"text\":\"", i);
    if (with_prompt && p->text != NULL)
        hy_json_chars(b, p->text, p->text_len);
    if (x->text.len != 0)
        hy_json_chars(b, x->text.data, x->text.len);
    hy_buf_putc(b, '"');
}

static void text_choice(const hy_http *h, const hy_call *c, size_t i, hy_buf *b)
{
    const hy_choice *x = &c->choices[i];
    size_t p = i / (size_t)c->q.n;
    text_field(c, i, c->q.echo, b);
    text_logprobs(h, c, i, c->q.echo, b);
    finish_reason(x, true, b);
    stop_reason(c, x, true, b);
    token_ids(c, x, b);
    hy_buf_puts(b, ",\"prompt_logprobs\":");
    if (c->q.prompt_logprobs >= 0)
        hy_out__prompt_lps(h, &c->choices[p * (size_t)c->q.n].prompt_lps, b);
    else
        hy_buf_puts(b, "null");
    prompt_ids(c, &c->prompts[p], true, b);
    hy_buf_putc(b, '}');
}

static void text_chunk(const hy_http *h, const hy_call *c, size_t i, bool last, hy_buf *b)
{
    const hy_choice *x = &c->choices[i];
    bool first = !x->begun;
    text_field(c, i, c->q.echo && first, b);
    text_logprobs(h, c, i, c->q.echo && first, b);
    finish_reason(x, last, b);
    stop_reason(c, x, last, b);
    prompt_ids(c, &c->prompts[i / (size_t)c->q.n], first, b);
    token_ids(c, x, b);
    hy_buf_putc(b, '}');
}

/* ---- chat ---- */

static void chat_logprobs(const hy_http *h, const hy_call *c, const hy_choice *x, hy_buf *b)
{
    hy_buf_puts(b, ",\"logprobs\":");
    if (c->q.logprobs && x->lps.n != 0)
        hy_out__chat_lps(h, c, &x->lps, b);
    else
        hy_buf_puts(b, "null");
}

static void chat_choice(const hy_http *h, const hy_call *c, size_t i, hy_buf *b)
{
    const hy_choice *x = &c->choices[i];
    bool called = x->tools != NULL && hy_tools__called(x->tools);
    hy_buf_printf(b, "{\"index\":%zu,\"message\":{\"role\":\"assistant\",\"content\":", i);
    if (called && x->text.len == 0)
        hy_buf_puts(b, "null");
    else
        hy_json_str(b, hy_buf_str(&x->text), x->text.len);
    hy_buf_puts(b, ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null");
    if (called) {
        hy_buf_puts(b, ",\"tool_calls\":");
        hy_tools__calls_json(x->tools, b);
    }
    hy_buf_puts(b, ",\"reasoning\":null}");
    chat_logprobs(h, c, x, b);
    finish_reason(x, true, b);
    stop_reason(c, x, true, b);
    token_ids(c, x, b);
    hy_buf_putc(b, '}');
}

static void chat_chunk(const hy_http *h, const hy_call *c, size_t i, bool last, hy_buf *b)
{
    hy_choice *x = &c->choices[i];
    bool calls = x->tools != NULL && hy_tools__pending(x->tools);
    hy_buf_printf(b, "{\"index\":%zu,\"delta\":{", i);
    if (x->text.len != 0 || !calls) {
        hy_buf_puts(b, "\"content\":");
        if (x->text.len == 0 && x->tools != NULL && hy_tools__called(x->tools))
            hy_buf_puts(b, "null");
        else
            hy_json_str(b, hy_buf_str(&x->text), x->text.len);
    }
    if (calls) {
        hy_buf_puts(b, x->text.len != 0 ? ",\"tool_calls\":" : "\"tool_calls\":");
        hy_tools__delta_json(x->tools, b);
    }
    hy_buf_putc(b, '}');
    chat_logprobs(h, c, x, b);
    finish_reason(x, last, b);
    if (last)
        stop_reason(c, x, last, b);
    token_ids(c, x, b);
    hy_buf_putc(b, '}');
}

/* ---- whole answers and events ---- */

void hy_out__answer_json(const hy_http *h, hy_call *c, hy_buf *b)
{
    bool chat = c->api == HY_API_CHAT;
    head(h, c, chat ? "chat.completion" : "text_completion", b);
    hy_buf_puts(b, ",\"choices\":[");
    for (size_t i = 0; i < c->n_choices; i++) {
        if (i != 0)
            hy_buf_putc(b, ',');
        if (chat)
            chat_choice(h, c, i, b);
        else
            text_choice(h, c, i, b);
    }
    hy_buf_puts(b, "],\"service_tier\":null,\"system_fingerprint\":" FINGERPRINT ",");
    total_usage(c, b);
    if (chat) {
        hy_buf_puts(b, ",\"prompt_logprobs\":");
        if (c->q.prompt_logprobs >= 0)
            hy_out__prompt_lps(h, &c->choices[0].prompt_lps, b);
        else
            hy_buf_puts(b, "null");
        prompt_ids(c, &c->prompts[0], true, b);
        hy_buf_puts(b, ",\"prompt_text\":null");
    }
    hy_buf_puts(b, ",\"kv_transfer_params\":");
    hy_buf_puts(b, c->prompts[0].handover != NULL ? c->prompts[0].handover : "null");
    hy_buf_putc(b, '}');
}

static void chunk_head(const hy_http *h, const hy_call *c, hy_buf *b)
{
    hy_buf_puts(b, "data: ");
    head(h, c, c->api == HY_API_CHAT ? "chat.completion.chunk" : "text_completion", b);
    hy_buf_puts(b, ",\"choices\":[");
}

static void chunk_tail(const hy_call *c, size_t i, hy_buf *b)
{
    if (c->q.continuous_usage) {
        const hy_prompt *p = &c->prompts[i / (size_t)c->q.n];
        hy_buf_putc(b, ',');
        usage(p->n, p->n_cached, c->choices[i].n_tok, false, b);
    }
    hy_buf_puts(b, "}\n\n");
}

void hy_out__chunk(const hy_http *h, hy_call *c, size_t i, bool last, hy_buf *b)
{
    chunk_head(h, c, b);
    if (c->api == HY_API_CHAT)
        chat_chunk(h, c, i, last, b);
    else
        text_chunk(h, c, i, last, b);
    hy_buf_putc(b, ']');
    if (last && !c->q.include_usage) /* else the usage event has it */
        hy_buf_puts(b, ",\"system_fingerprint\":" FINGERPRINT);
    chunk_tail(c, i, b);
}

void hy_out__role_chunk(const hy_http *h, hy_call *c, size_t i, hy_buf *b)
{
    chunk_head(h, c, b);
    hy_buf_printf(b,
                  "{\"index\":%zu,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                  "\"logprobs\":null,\"finish_reason\":null}]",
                  i);
    prompt_ids(c, &c->prompts[0], true, b);
    hy_buf_puts(b, ",\"prompt_text\":null");
    chunk_tail(c, i, b);
    if (c->echo == NULL)
        return;
    chunk_head(h, c, b);
    hy_buf_printf(b, "{\"index\":%zu,\"delta\":{\"content\":", i);
    hy_json_cstr(b, c->echo);
    hy_buf_puts(b, "},\"logprobs\":null,\"finish_reason\":null}]");
    chunk_tail(c, i, b);
}

void hy_out__usage_chunk(const hy_http *h, hy_call *c, hy_buf *b)
{
    chunk_head(h, c, b);
    hy_buf_puts(b, "],");
    total_usage(c, b);
    hy_buf_puts(b, ",\"system_fingerprint\":" FINGERPRINT "}\n\n");
}

void hy_out__error_chunk(const hy_api_error *e, hy_buf *b)
{
    hy_buf_puts(b, "data: ");
    hy_reply__error_body(b, e);
    hy_buf_puts(b, "\n\ndata: [DONE]\n\n");
}
