/* SPDX-License-Identifier: Apache-2.0
 *
 * Routes that are answered at once: health, models, version, metrics.
 *
 * Thread: http stage.  Owner: evhttp owns requests after the send.
 */
#include "core/http/server_int.h"

#include "core/http/json_out.h"

#include <stdlib.h>
#include <string.h>

static void health(hy_server *s, struct evhttp_request *req)
{
    if (!atomic_load(&s->h->draining)) {
        hy_server__send(s, req, 200, NULL, NULL);
        return;
    }
    hy_api_error e;
    hy_api_error_set(&e, 503, "ServiceUnavailableError", NULL, "The server is shutting down.");
    hy_server__send_error(s, req, &e);
}

static void model_object(const hy_server *s, const char *id, hy_buf *b)
{
    const hy_http_opts *o = &s->h->o;
    hy_buf_puts(b, "{\"id\":");
    hy_json_cstr(b, id);
    hy_buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"halyard\",\"root\":",
                  (long long)s->start);
    hy_json_cstr(b, o->model_root != NULL ? o->model_root : id);
    hy_buf_printf(b, ",\"parent\":null,\"max_model_len\":%d,\"permission\":[]}", o->context);
}

static void models(hy_server *s, struct evhttp_request *req)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_buf_puts(&b, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < s->h->o.n_models; i++) {
        if (i != 0)
            hy_buf_putc(&b, ',');
        model_object(s, s->h->o.models[i], &b);
    }
    hy_buf_puts(&b, "]}");
    hy_server__send(s, req, 200, "application/json", &b);
}

static void one_model(hy_server *s, struct evhttp_request *req, const char *coded)
{
    size_t len;
    char *id = evhttp_uridecode(coded, 0, &len);
    for (size_t i = 0; id != NULL && i < s->h->o.n_models; i++) {
        if (strcmp(id, s->h->o.models[i]) == 0) {
            hy_buf b;
            hy_buf_init(&b);
            model_object(s, s->h->o.models[i], &b);
            free(id);
            hy_server__send(s, req, 200, "application/json", &b);
            return;
        }
    }
    hy_api_error e;
    (void)hy_http__no_model(s->h, id != NULL ? id : coded, &e);
    free(id);
    hy_server__send_error(s, req, &e);
}

static void metrics(hy_server *s, struct evhttp_request *req)
{
    hy_buf b;
    hy_buf_init(&b);
    if (s->h->o.refresh_metrics != NULL)
        s->h->o.refresh_metrics(s->h->o.refresh_arg);
    if (s->h->o.metrics != NULL)
        hy_metrics_text(s->h->o.metrics, &b);
    hy_server__send(s, req, 200, HY_METRICS_CONTENT_TYPE, &b);
}

bool hy_pages__get(hy_server *s, struct evhttp_request *req, const char *path, const char **handler)
{
    static const char models_prefix[] = "/v1/models/";
    hy_buf b;
    hy_buf_init(&b);
    if (strcmp(path, "/health") == 0 || strcmp(path, "/ping") == 0) {
        *handler = path[1] == 'h' ? "/health" : "/ping";
        health(s, req);
    } else if (strcmp(path, "/v1/models") == 0) {
        *handler = "/v1/models";
        models(s, req);
    } else if (strncmp(path, models_prefix, sizeof(models_prefix) - 1) == 0) {
        *handler = "/v1/models/{model}";
        one_model(s, req, path + sizeof(models_prefix) - 1);
    } else if (strcmp(path, "/version") == 0) {
        *handler = "/version";
        hy_buf_puts(&b, "{\"version\":\"" HY_VERSION "\"}");
        hy_server__send(s, req, 200, "application/json", &b);
    } else if (strcmp(path, "/metrics") == 0) {
        *handler = "/metrics";
        metrics(s, req);
    } else if (strcmp(path, "/links") == 0) {
        *handler = "/links";
        if (s->h->o.kv_links != NULL)
            s->h->o.kv_links(s->h->o.kv_release_arg, &b);
        else
            hy_buf_puts(&b, "{\"links\":[]}");
        if (b.len > 0 && !b.failed)
            b.len--; /* the closing brace */
        hy_buf_printf(&b, ",\"context\":%d}", s->h->o.context);
        hy_server__send(s, req, 200, "application/json", &b);
    } else if (strcmp(path, "/trace") == 0) {
        *handler = "/trace";
        hy_http_trace_page(s->h->o.trace, hy_stage_clock(s->h->http),
                           evhttp_uri_get_query(evhttp_request_get_evhttp_uri(req)), &b);
        hy_server__send(s, req, 200, "application/json", &b);
    } else {
        return false;
    }
    return true;
}
