/* SPDX-License-Identifier: Apache-2.0
 *
 * The server as a whole: options, the three stages, and what they hand to each other.
 *
 * Thread: see http.h.  Owner: see http.h.
 */
#include "core/http/out_int.h"

#include "core/base/log.h"
#include "core/http/json_out.h"
#include "core/http/tools.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void hy_http_opts_init(hy_http_opts *o)
{
    *o = (hy_http_opts){
        .host = "127.0.0.1",
        .port = 8000,
        .fd = -1,
        .max_body_bytes = (size_t)32 << 20,
        .max_header_bytes = 64 << 10,
        .max_slow_reader_bytes = 4 << 20,
        .max_connections = 1024,
        .max_requests = 4096,
        .idle_timeout_ns = 75 * HY_SEC,
        .read_timeout_ns = 60 * HY_SEC,
        .write_timeout_ns = 60 * HY_SEC,
        .max_logprobs = 20,
        .defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1},
    };
}

/* ---- calls and replies ---- */

void hy_call__destroy(hy_call *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n_choices && c->choices != NULL; i++) {
        hy_choice *x = &c->choices[i];
        hy_detok_fini(&x->detok);
        hy_stop_fini(&x->stop);
        hy_buf_fini(&x->text);
        hy_tools__destroy(x->tools);
        free(x->ids);
        hy_lps__fini(&x->lps);
        hy_lps__fini(&x->prompt_lps);
    }
    free(c->choices);
    for (size_t i = 0; i < c->n_prompts; i++) {
        free(c->prompts[i].ids);
        free(c->prompts[i].text);
        free(c->prompts[i].handover);
        if (c->subs != NULL)
            hy_sub__destroy(c->subs[i]);
    }
    free(c->subs);
    free(c->prompts);
    free(c->echo);
    free(c->body);
    hy_buf_fini(&c->pend);
    hy_stop_set_fini(&c->stops);
    hy_api_req_fini(&c->q);
    hy_gone__unref(c->gone);
    free(c);
}

hy_reply *hy_reply__create(uint64_t call, int status)
{
    hy_reply *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return NULL;
    r->call = call;
    r->status = status;
    hy_buf_init(&r->body);
    return r;
}

void hy_reply__destroy(void *reply)
{
    hy_reply *r = reply;
    if (r == NULL)
        return;
    hy_buf_fini(&r->body);
    free(r->ids);
    free(r);
}

void hy_reply__error_body(hy_buf *b, const hy_api_error *e)
{
    hy_buf_puts(b, "{\"error\":{\"message\":");
    hy_json_cstr(b, e->text);
    hy_buf_puts(b, ",\"type\":");
    hy_json_cstr(b, e->type);
    hy_buf_puts(b, ",\"param\":");
    hy_json_cstr(b, e->param[0] != '\0' ? e->param : NULL);
    hy_buf_printf(b, ",\"code\":%d}}", e->status);
}

/* ---- the server ---- */

static hy_status check_opts(const hy_http_opts *o)
{
    if (o->engine == NULL || o->tok == NULL || o->n_models < 1 || o->context < 1)
        return hy_fail(HY_E_INVAL, "http: engine, tokeniser, model name and context are needed");
    if (o->port < 0 || o->port > 65535)
        return hy_fail(HY_E_INVAL, "[http] port must be in 0..65535, got %d", o->port);
    if (o->max_connections < 1 || o->max_requests < 1)
        return hy_fail(HY_E_INVAL, "[http] max_connections and max_requests must be at least 1");
    return HY_OK;
}

/* Every answer, and two messages a call beside them, have room: only stream pieces may have to
 * wait. */
static hy_status make_stages(hy_http *h)
{
    size_t conns = (size_t)h->o.max_connections;
    size_t subs = (size_t)h->o.max_requests;
    h->http = hy_stage_create("http", &hy_server__ops, h, 1024, 2 * conns + subs + 16);
    h->text = hy_stage_create("text", &hy_text__ops, h, conns + 16, 0);
    h->out = hy_stage_create("out", &hy_out__ops, h, 16, conns + subs + HY_API_MAX_PROMPTS + 16);
    if (h->http == NULL || h->text == NULL || h->out == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for the server's stages");
    HY_TRY(hy_runtime_add(h->rt, h->http));
    HY_TRY(hy_runtime_add(h->rt, h->text));
    return hy_runtime_add(h->rt, h->out);
}

static void free_all(hy_http *h)
{
    if (h == NULL)
        return;
    hy_runtime_destroy(h->rt);
    hy_server__destroy(h->server);
    hy_out__destroy(h->out_state);
    hy_stage_destroy(h->http);
    hy_stage_destroy(h->text);
    hy_stage_destroy(h->out);
    hy_http_metrics__destroy(h->mx);
    if (h->o.fd >= 0)
        close(h->o.fd);
    free((void *)h->marks);
    free(h);
}

hy_status hy_http_create(const hy_http_opts *o, hy_http **out)
{
    hy_http *h = calloc(1, sizeof(*h));
    if (h == NULL) {
        if (o->fd >= 0)
            close(o->fd);
        return hy_fail(HY_E_NOMEM, "out of memory for the server");
    }
    h->o = *o;
    hy_status st = check_opts(o);
    if (st < 0) {
        free_all(h);
        return st;
    }
    hy_api_limits_init(&h->lim, hy_tok_n_vocab(o->tok), o->context);
    h->lim.max_logprobs = o->max_logprobs < HY_MAX_TOP ? o->max_logprobs : HY_MAX_TOP;
    h->lim.defaults = o->defaults;
    h->rt = hy_runtime_create(HY_RUNTIME_THREADS, hy_rng_entropy());
    h->mx = hy_http_metrics__create(h);
    st = h->rt != NULL && h->mx != NULL ? HY_OK
                                        : hy_fail(HY_E_NOMEM, "out of memory for the server");
    if (st == HY_OK && o->user_marks_text)
        st = hy_chat__marks(h);
    if (st == HY_OK)
        st = make_stages(h);
    if (st == HY_OK)
        st = hy_out__create(h);
    if (st == HY_OK)
        st = hy_server__create(h);
    if (st < 0) {
        free_all(h);
        return st;
    }
    *out = h;
    return HY_OK;
}

hy_status hy_http_start(hy_http *h)
{
    HY_TRY(hy_runtime_start(h->rt));
    h->started = true;
    return HY_OK;
}

int hy_http_port(const hy_http *h)
{
    return hy_server__port(h->server);
}

void hy_http_stop_accepting(hy_http *h)
{
    atomic_store(&h->draining, true); /* read at each request */
}

int hy_http_active(const hy_http *h)
{
    return atomic_load(&h->n_calls) + atomic_load(&h->n_subs);
}

/* Until the engine has reported every last event; false after 10 s. */
static bool wait_quiet(hy_http *h)
{
    for (int i = 0; i < 5000; i++) {
        if (hy_http_active(h) == 0)
            return true;
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    return false;
}

void hy_http_destroy(hy_http *h)
{
    if (h == NULL)
        return;
    if (h->started) {
        hy_msg m = {.kind = HY_HTTP_STOP};
        atomic_store(&h->draining, true);
        hy_stage_post_reserved(h->http, &m);
        if (!wait_quiet(h)) {
            /* the engine may still call into subs: freeing them would be worse than this leak */
            hy_error("http", "%d requests did not end; their memory is left",
                     atomic_load(&h->n_subs));
            return;
        }
        hy_runtime_stop(h->rt);
    }
    free_all(h);
}
