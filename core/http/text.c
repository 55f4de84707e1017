/* SPDX-License-Identifier: Apache-2.0
 *
 * The text stage: a request's body becomes token ids and engine requests. Also /tokenize and
 * /detokenize, which end here.
 *
 * Thread: text stage.  Owner: calls move in from http and on to out.
 */
#include "core/http/http_int.h"

#include "core/base/log.h"
#include "core/http/json_out.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hy_text__answer(hy_http *h, hy_call *c, hy_buf *body)
{
    hy_reply *r = hy_reply__create(c->id, 200);
    if (r != NULL) {
        r->body = *body;
        r->end = true;
        hy_buf_init(body);
        hy_msg m = {.kind = HY_HTTP_REPLY, .data = r, .drop = hy_reply__destroy};
        if (hy_stage_post_reserved(h->http, &m) != HY_OK)
            hy_reply__destroy(r);
    }
    hy_buf_fini(body);
    hy_call__destroy(c);
}

void hy_text__refuse(hy_http *h, hy_call *c, const hy_api_error *e)
{
    hy_reply *r = hy_reply__create(c->id, e->status);
    if (r != NULL) {
        r->end = true;
        r->retry_after_s = e->retry_after_s;
        hy_reply__error_body(&r->body, e);
        hy_msg m = {.kind = HY_HTTP_REPLY, .data = r, .drop = hy_reply__destroy};
        if (hy_stage_post_reserved(h->http, &m) != HY_OK)
            hy_reply__destroy(r);
    }
    hy_call__destroy(c);
}

static hy_status no_memory(hy_api_error *e)
{
    return hy_api_error_set(e, 500, "InternalServerError", NULL,
                            "out of memory for this request; send less at once.");
}

hy_status hy_http__no_model(const hy_http *h, const char *name, hy_api_error *e)
{
    hy_buf b;
    hy_buf_init(&b);
    for (size_t i = 0; i < h->o.n_models; i++)
        hy_buf_printf(&b, "%s`%.120s`",
                      i == 0                  ? ""
                      : i + 1 < h->o.n_models ? ", "
                                              : " and ",
                      h->o.models[i]);
    const hy_status st = hy_api_error_set(e, 404, "NotFoundError", "model",
                                          "The model `%.120s` does not exist. This server has %s.",
                                          name, hy_buf_str(&b));
    hy_buf_fini(&b);
    return st;
}

static hy_status check_model(const hy_http *h, const hy_api_req *q, hy_api_error *e)
{
    if (q->model == NULL || q->model[0] == '\0')
        return HY_OK;
    for (size_t i = 0; i < h->o.n_models; i++) {
        if (strcmp(q->model, h->o.models[i]) == 0)
            return HY_OK;
    }
    return hy_http__no_model(h, q->model, e);
}

/* ---- prompts to ids ---- */

static hy_status encode_text(hy_http *h, const hy_api_req *q, const char *s, size_t len,
                             size_t max_ids, hy_tok_ids *ids, hy_api_error *e)
{
    int flags =
        (q->add_special ? HY_TOK_ADD_SPECIAL : 0) | (q->parse_special ? HY_TOK_PARSE_SPECIAL : 0);
    hy_status st = hy_tok_encode(h->o.tok, s, len, flags, max_ids, ids);
    if (st == HY_E_LIMIT)
        return hy_api_bad(e, "input_tokens",
                          "This model's maximum context length is %d tokens. However, your prompt "
                          "contains more. Please reduce the length of the input prompt.",
                          h->o.context);
    return st < 0 ? hy_api_bad(e, "prompt", "%s", hy_fail_text()) : HY_OK;
}

static hy_status encode_ids(const json_t *v, hy_tok_ids *ids, hy_api_error *e)
{
    size_t n = json_array_size(v);
    ids->ids = malloc((n + 1) * sizeof(*ids->ids));
    if (ids->ids == NULL)
        return no_memory(e);
    ids->cap = n + 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        ids->ids[ids->n++] = (int32_t)json_number_value(x);
    }
    return HY_OK;
}

static void truncate_ids(const hy_http *h, const hy_api_req *q, hy_tok_ids *ids)
{
    size_t keep = q->truncate < 0 ? (size_t)h->o.context : (size_t)q->truncate;
    if (q->truncate == 0 || ids->n <= keep)
        return;
    if (!q->truncate_right)
        memmove(ids->ids, ids->ids + (ids->n - keep), keep * sizeof(*ids->ids));
    ids->n = keep;
}

static hy_status keep_text(hy_http *h, hy_prompt *p, const json_t *v, hy_api_error *e)
{
    hy_buf b;
    hy_buf_init(&b);
    if (json_is_string(v))
        hy_buf_add(&b, json_string_value(v), json_string_length(v));
    else
        hy_tok_decode(h->o.tok, p->ids, (size_t)p->n, false, &b);
    p->text_len = b.len;
    p->text = b.failed ? NULL : hy_buf_take(&b);
    hy_buf_fini(&b);
    return p->text != NULL ? HY_OK : no_memory(e);
}

static hy_status encode_prompt(hy_http *h, hy_call *c, const json_t *v, hy_prompt *p,
                               hy_api_error *e)
{
    const hy_api_req *q = &c->q;
    hy_tok_ids ids = {0};
    size_t max = q->truncate != 0 ? 0 : (size_t)h->o.context;
    hy_status st;
    if (c->api == HY_API_CHAT)
        st = hy_chat__encode(h, c, max, &ids, e);
    else if (json_is_string(v))
        st = encode_text(h, q, json_string_value(v), json_string_length(v), max, &ids, e);
    else
        st = encode_ids(v, &ids, e);
    if (st < 0) {
        hy_tok_ids_fini(&ids);
        return st;
    }
    truncate_ids(h, q, &ids);
    p->ids = ids.ids;
    p->n = (int32_t)(ids.n < INT32_MAX ? ids.n : INT32_MAX);
    if (p->n == 0)
        return hy_api_bad(e, "prompt", "the prompt has no tokens.");
    if (c->api == HY_API_COMPLETIONS && q->echo)
        return keep_text(h, p, v, e);
    return HY_OK;
}

static hy_status encode_prompts(hy_http *h, hy_call *c, hy_api_error *e)
{
    const json_t *v = c->q.prompt;
    bool many =
        c->api == HY_API_COMPLETIONS && json_is_array(v) && !json_is_number(json_array_get(v, 0));
    c->n_prompts = many ? json_array_size(v) : 1;
    c->prompts = calloc(c->n_prompts, sizeof(*c->prompts));
    if (c->prompts == NULL) {
        c->n_prompts = 0;
        return no_memory(e);
    }
    for (size_t i = 0; i < c->n_prompts; i++) {
        HY_TRY(encode_prompt(h, c, many ? json_array_get(v, i) : v, &c->prompts[i], e));
        if (atomic_load(&c->gone->gone))
            return HY_E_ABORTED;
    }
    return HY_OK;
}

/* ---- engine requests ---- */

/* Prefill for another node, which would refuse the request for its length: nothing is computed that
 * nobody will fetch. The numbers are the router's (docs/PD.md). */
static hy_status check_remote(const hy_call *c, const hy_prompt *p, hy_api_error *e)
{
    const json_t *kv = c->q.kv_params, *most = json_object_get(kv, "remote_max_tokens");
    const json_int_t want = json_integer_value(most), least = want < 1 ? 1 : want;
    const json_int_t ctx = json_integer_value(json_object_get(kv, "remote_context"));
    if (!json_is_true(json_object_get(kv, "do_remote_decode")) || !json_is_integer(most) ||
        ctx < 1 || p->n <= ctx - least)
        return HY_OK;
    return hy_api_bad(
        e, "input_tokens",
        "The maximum context length of the nodes that decode is %lld tokens. However, "
        "you requested %lld output tokens and your prompt contains %d input tokens. "
        "Please reduce one of them.",
        (long long)ctx, (long long)least, p->n);
}

static hy_status check_length(const hy_http *h, const hy_call *c, const hy_prompt *p,
                              int32_t *max_tokens, hy_api_error *e)
{
    int32_t ctx = h->o.context, want = c->q.max_tokens;
    if (p->n > ctx)
        return hy_api_bad(e, "input_tokens",
                          "This model's maximum context length is %d tokens. However, your prompt "
                          "contains %d input tokens, which exceeds this limit even without any "
                          "output tokens. Please reduce the length of the input prompt.",
                          ctx, p->n);
    int32_t least = want < 1 ? 1 : want;
    if (p->n > ctx - least)
        return hy_api_bad(e, "input_tokens",
                          "This model's maximum context length is %d tokens. However, you "
                          "requested %d output tokens and your prompt contains %d input tokens. "
                          "Please reduce one of them.",
                          ctx, least, p->n);
    HY_TRY(check_remote(c, p, e));
    *max_tokens = want < 0 ? ctx - p->n : least;
    if (c->q.min_tokens > *max_tokens)
        return hy_api_bad(e, "min_tokens",
                          "min_tokens must be less than or equal to max_tokens=%d, got %d.",
                          *max_tokens, c->q.min_tokens);
    return HY_OK;
}

/* NULL when out of memory. */
static hy_req *make_req(const hy_http *h, const hy_call *c, const hy_prompt *p, int32_t max_tokens)
{
    const hy_api_req *q = &c->q;
    hy_req *r = hy_req_create();
    if (r == NULL)
        return NULL;
    r->n_prompt = p->n;
    r->n = q->n;
    r->max_tokens = max_tokens;
    r->min_tokens = q->min_tokens;
    r->ignore_eos = q->ignore_eos;
    r->prompt_logprobs = q->prompt_logprobs;
    if (q->echo && c->api == HY_API_COMPLETIONS && q->logprobs && q->prompt_logprobs < 0)
        r->prompt_logprobs = q->s.logprobs; /* the echoed tokens have logprobs too */
    r->no_prefix_cache = r->prompt_logprobs >= 0;
    r->priority = q->priority;
    r->arrival_ns = (int64_t)c->arrival_ns;
    hy_http_trace__begin(h, r->id, c);
    if (h->o.request_timeout_ns != 0)
        r->deadline_ns = (int64_t)(c->arrival_ns + h->o.request_timeout_ns);
    r->sampling = q->s;
    r->sampling.bias = NULL;
    r->sampling.n_bias = 0;
    r->prompt = malloc((size_t)p->n * sizeof(*r->prompt));
    bool ok = r->prompt != NULL;
    if (ok)
        memcpy(r->prompt, p->ids, (size_t)p->n * sizeof(*r->prompt));
    if (q->n_stop_ids != 0 && ok) {
        r->stop_ids = malloc(q->n_stop_ids * sizeof(*r->stop_ids));
        ok = r->stop_ids != NULL;
        if (ok)
            memcpy(r->stop_ids, q->stop_ids, q->n_stop_ids * sizeof(*r->stop_ids));
        r->n_stop = ok ? q->n_stop_ids : 0;
    }
    if (q->s.n_bias != 0 && ok) {
        r->sampling.bias = malloc(q->s.n_bias * sizeof(*q->s.bias));
        ok = r->sampling.bias != NULL;
        if (ok)
            memcpy(r->sampling.bias, q->s.bias, q->s.n_bias * sizeof(*q->s.bias));
        r->sampling.n_bias = ok ? q->s.n_bias : 0;
    }
    if (q->cache_salt != NULL && ok)
        ok = (r->cache_salt = strdup(q->cache_salt)) != NULL;
    if (q->kv_params != NULL && ok)
        ok = (r->handover = json_dumps(q->kv_params, JSON_COMPACT)) != NULL;
    if (json_is_true(json_object_get(q->kv_params, "do_remote_decode"))) {
        const json_t *plan = json_object_get(q->kv_params, "remote_max_tokens");
        const json_int_t n = json_integer_value(plan);
        r->plan_tokens = !json_is_integer(plan) ? r->max_tokens
                         : n < 0                ? -1
                         : n < INT32_MAX        ? (int32_t)n
                                                : INT32_MAX;
        r->max_tokens = r->max_tokens < 1 ? r->max_tokens : 1; /* the rest is the peer's */
        r->min_tokens = r->min_tokens < 1 ? r->min_tokens : 1;
    }
    if (ok)
        return r;
    hy_req_destroy(r);
    return NULL;
}

static hy_status make_reqs(hy_http *h, hy_call *c, hy_req **reqs, hy_api_error *e)
{
    for (size_t i = 0; i < c->n_prompts; i++) {
        int32_t max_tokens = 0;
        HY_TRY(check_length(h, c, &c->prompts[i], &max_tokens, e));
        reqs[i] = make_req(h, c, &c->prompts[i], max_tokens);
        c->subs[i] = hy_sub__create(h, c, (uint32_t)i);
        if (reqs[i] == NULL || c->subs[i] == NULL)
            return no_memory(e);
        c->subs[i]->req_id = reqs[i]->id;
        reqs[i]->on_event = hy_sub__on_event;
        reqs[i]->arg = c->subs[i];
    }
    return HY_OK;
}

static void submit_error(hy_status st, hy_api_error *e)
{
    if (st == HY_E_BUSY) {
        hy_api_error_set(e, 503, "ServiceUnavailableError", NULL,
                         "The server is busy: %s. Try again later.", hy_fail_text());
        e->retry_after_s = 1;
    } else if (hy_status_scope(st) == HY_SCOPE_REQUEST) {
        hy_api_bad(e, NULL, "%s", hy_fail_text());
    } else {
        hy_api_error_set(e, 500, "InternalServerError", NULL, "%s", hy_fail_text());
    }
}

/* The call belongs to out from here on: only what was copied before may be used. A request that
 * fails gets its last event from us; those behind it are not tried. The http stage is told their
 * numbers first: an answer may be complete, or the client gone, before this thread goes on. */
static void submit_all(hy_http *h, hy_gone *gone, uint64_t call, hy_req **reqs, hy_sub **subs,
                       size_t n)
{
    hy_api_error e = {0};
    hy_reply *ids = hy_reply__create(call, 0);
    uint64_t *id = calloc(n, sizeof(*id));
    if (ids != NULL)
        ids->ids = calloc(n, sizeof(*ids->ids));
    if (ids == NULL || ids->ids == NULL || id == NULL) {
        hy_reply__destroy(ids);
        no_memory(&e);
    } else {
        for (size_t i = 0; i < n; i++)
            id[i] = ids->ids[ids->n_ids++] = reqs[i]->id;
        hy_msg m = {.kind = HY_HTTP_IDS, .data = ids, .drop = hy_reply__destroy};
        if (hy_stage_post_reserved(h->http, &m) != HY_OK)
            hy_reply__destroy(ids);
    }
    for (size_t i = 0; i < n; i++) {
        hy_status st = HY_OK;
        if (e.status == 0) {
            st = atomic_load(&gone->gone) ? hy_fail(HY_E_ABORTED, "the client has gone")
                                          : hy_engine_submit(h->o.engine, reqs[i]);
            if (st < 0)
                submit_error(st, &e);
        }
        if (e.status != 0) {
            hy_req_destroy(reqs[i]);
            hy_sub__fail(subs[i], &e);
        }
    }
    /* left meanwhile: the http stage's aborts may have come before their requests did */
    for (size_t i = 0; i < n && id != NULL && atomic_load(&gone->gone); i++)
        hy_engine_abort(h->o.engine, id[i]);
    free(id);
}

static void run_generate(hy_http *h, hy_call *c)
{
    hy_api_error e = {0};
    size_t n = c->n_prompts;
    hy_req **reqs = calloc(n, sizeof(hy_req *));
    hy_sub **subs = calloc(n, sizeof(hy_sub *));
    c->subs = calloc(n, sizeof(hy_sub *));
    hy_status st = reqs != NULL && subs != NULL && c->subs != NULL ? HY_OK : no_memory(&e);
    if (st == HY_OK)
        st = make_reqs(h, c, reqs, &e);
    if (st == HY_OK && atomic_load(&h->n_subs) + (int)n > h->o.max_requests) {
        st = hy_api_error_set(&e, 503, "ServiceUnavailableError", NULL,
                              "The server works on %d prompts, as many as it may. Try again later.",
                              h->o.max_requests);
        e.retry_after_s = 1;
    }
    if (st < 0) {
        for (size_t i = 0; i < n && reqs != NULL; i++)
            hy_req_destroy(reqs[i]);
        hy_text__refuse(h, c, &e);
    } else {
        memcpy(subs, c->subs, n * sizeof(hy_sub *));
        c->n_left = n;
        uint64_t id = c->id;
        hy_gone *gone = c->gone;
        atomic_fetch_add(&gone->refs, 1);
        atomic_fetch_add(&h->n_subs, (int)n);
        hy_msg m = {.kind = HY_OUT_BEGIN, .data = c};
        if (hy_stage_post_reserved(h->out, &m) == HY_OK) {
            submit_all(h, gone, id, reqs, subs, n);
        } else {
            atomic_fetch_sub(&h->n_subs, (int)n);
            for (size_t i = 0; i < n; i++)
                hy_req_destroy(reqs[i]);
            hy_api_error_set(&e, 503, "ServiceUnavailableError", NULL, "The server stops.");
            hy_text__refuse(h, c, &e);
        }
        hy_gone__unref(gone);
    }
    free(reqs);
    free(subs);
}

/* ---- /tokenize and /detokenize ---- */

static void add_token_strs(const hy_http *h, const hy_tok_ids *ids, hy_buf *b)
{
    hy_buf_putc(b, '[');
    for (size_t i = 0; i < ids->n; i++) {
        const char *t = hy_tok_token_text(h->o.tok, ids->ids[i]);
        if (i != 0)
            hy_buf_putc(b, ',');
        hy_json_cstr(b, t != NULL ? t : "");
    }
    hy_buf_putc(b, ']');
}

static void run_tokenize(hy_http *h, hy_call *c)
{
    hy_api_error e = {0};
    hy_tok_ids ids = {0};
    hy_status st;
    if (c->q.messages != NULL)
        st = hy_chat__encode(h, c, 0, &ids, &e);
    else
        st = encode_text(h, &c->q, json_string_value(c->q.prompt), json_string_length(c->q.prompt),
                         0, &ids, &e);
    if (st < 0) {
        hy_tok_ids_fini(&ids);
        hy_text__refuse(h, c, &e);
        return;
    }
    hy_buf b;
    hy_buf_init(&b);
    hy_buf_printf(&b, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":", ids.n, h->o.context);
    hy_json_ids(&b, ids.ids, ids.n);
    hy_buf_puts(&b, ",\"token_strs\":");
    if (c->q.return_token_strs)
        add_token_strs(h, &ids, &b);
    else
        hy_buf_puts(&b, "null");
    hy_buf_putc(&b, '}');
    hy_tok_ids_fini(&ids);
    hy_text__answer(h, c, &b);
}

static void run_detokenize(hy_http *h, hy_call *c)
{
    hy_buf text, b;
    hy_buf_init(&text);
    hy_buf_init(&b);
    hy_status st =
        hy_tok_decode(h->o.tok, c->q.stop_ids, c->q.n_stop_ids, c->q.skip_special, &text);
    if (st < 0) {
        hy_api_error e;
        hy_api_bad(&e, "tokens", "%s", hy_fail_text());
        hy_text__refuse(h, c, &e);
    } else {
        hy_buf_puts(&b, "{\"prompt\":");
        hy_json_str(&b, hy_buf_str(&text), text.len);
        hy_buf_putc(&b, '}');
        hy_text__answer(h, c, &b);
    }
    hy_buf_fini(&text);
}

/* ---- the stage ---- */

static void run_call(hy_http *h, hy_call *c)
{
    hy_api_error e = {0};
    hy_api_limits lim = h->lim;
    hy_status st = hy_api_parse(&lim, c->api, c->body, c->body_len, &c->q, &e);
    free(c->body);
    c->body = NULL;
    if (st == HY_OK)
        st = check_model(h, &c->q, &e);
    if (st < 0) {
        hy_text__refuse(h, c, &e);
        return;
    }
    if (c->api == HY_API_TOKENIZE) {
        run_tokenize(h, c);
        return;
    }
    if (c->api == HY_API_DETOKENIZE) {
        run_detokenize(h, c);
        return;
    }
    c->max_zero = c->q.max_tokens == 0;
    if (!c->rid_given && c->q.request_id != NULL && c->q.request_id[0] != '\0')
        snprintf(c->rid, sizeof(c->rid), "%s%.128s", c->api == HY_API_CHAT ? "chatcmpl-" : "cmpl-",
                 c->q.request_id);
    st = hy_stop_set_init(&c->stops, c->q.stop, c->q.stop_len, c->q.n_stop);
    if (st < 0)
        no_memory(&e);
    else
        st = encode_prompts(h, c, &e);
    if (atomic_load(&c->gone->gone))
        hy_call__destroy(c); /* nobody waits for an answer, and http has forgotten the call */
    else if (st < 0)
        hy_text__refuse(h, c, &e);
    else
        run_generate(h, c);
}

static hy_status on_msg(void *self, hy_msg *msg)
{
    hy_http *h = self;
    hy_call *c = msg->data;
    if (atomic_load(&c->gone->gone))
        hy_call__destroy(c);
    else
        run_call(h, c);
    return HY_OK;
}

const hy_stage_ops hy_text__ops = {.on_msg = on_msg};
