/* SPDX-License-Identifier: Apache-2.0
 *
 * The router's own pages, and who answers the rest.
 *
 * Thread: route stage.  Owner: none.
 */
#include "core/http/http.h"
#include "core/http/json_out.h"
#include "core/route/route_int.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define JSON_TYPE "Content-Type: application/json\r\n"

/* Time depends on the lengths only. */
static bool same(const char *given, size_t m, const char *key, size_t n)
{
    unsigned char diff = n != m;
    for (size_t i = 0; i < m && n != 0; i++)
        diff |= (unsigned char)(given[i] ^ key[i % n]);
    return n != 0 && diff == 0;
}

/* Keys stand one a line. */
static bool key_fits(const hy_front *c)
{
    const char *key = c->r->api_key;
    if (key == NULL || key[0] == '\0')
        return true;
    const char *given = hy_wire_find(&c->head, "Authorization");
    if (given == NULL || strncasecmp(given, "Bearer ", 7) != 0)
        return false;
    given += 7;
    bool fits = false;
    for (size_t n; *key != '\0'; key += n + (key[n] != '\0')) {
        n = strcspn(key, "\r\n");
        fits |= same(given, strlen(given), key, n);
    }
    return fits;
}

/* {"pairs_refused": [{"decode": NAME, "peers": [...]}], "same_name": [...]}: it works, but not as
 * it was meant. */
static void health_body(hy_front *c)
{
    const hy_route *r = c->r;
    hy_buf b;
    bool any = false;
    hy_buf_init(&b);
    for (size_t i = 0; i < r->n_workers; i++) {
        const hy_worker *w = &r->workers[i];
        bool has = false;
        for (size_t k = 0; k < r->n_workers; k++)
            has |= hy_route__bar(r, &r->workers[k], w) != NULL;
        if (!has)
            continue;
        hy_buf_puts(&b, any ? ",{\"decode\":" : "{\"pairs_refused\":[{\"decode\":");
        hy_json_cstr(&b, w->name);
        hy_buf_puts(&b, ",\"peers\":");
        hy_route__bars_json(w, &b);
        hy_buf_putc(&b, '}');
        any = true;
    }
    if (any)
        hy_buf_putc(&b, ']');
    const size_t len = b.len;
    hy_buf_puts(&b, any ? "," : "{");
    if (hy_route__twins_json(r, &b))
        any = true;
    else if (!b.failed)
        b.len = len;
    hy_buf_putc(&b, '}');
    if (any)
        hy_front_reply_buf(c, 200, JSON_TYPE, &b); /* takes b */
    else
        hy_front_reply(c, 200, NULL, NULL);
    hy_buf_fini(&b);
}

static void fail_unpaired(hy_front *c)
{
    hy_buf b;
    char text[512];
    hy_buf_init(&b);
    hy_route__why_alone(c->r, &b);
    snprintf(text, sizeof(text), "No prefill node can be used (%.400s).", hy_buf_str(&b));
    hy_buf_fini(&b);
    hy_front_reply_error(c, 503, "ServiceUnavailableError", text, NULL);
}

static void health(hy_front *c)
{
    hy_route *r = c->r;
    if (atomic_load(&r->draining))
        hy_front_reply_error(c, 503, "ServiceUnavailableError", "The router is shutting down.",
                             NULL);
    else if (hy_route__n_up(r, HY_ROUTE_DECODE) == 0)
        hy_front_reply_error(c, 503, "ServiceUnavailableError",
                             "No worker that can decode is up; GET /workers says why.", NULL);
    else if (r->o.need_prefill && !hy_route__has_pair(r))
        fail_unpaired(c);
    else
        health_body(c);
}

static bool own_page(hy_front *c, const char *path)
{
    hy_buf b;
    hy_buf_init(&b);
    if (strcmp(path, "/health") == 0 || strcmp(path, "/ping") == 0) {
        health(c);
    } else if (strcmp(path, "/version") == 0) {
        hy_buf_puts(&b, "{\"version\":\"" HY_VERSION "\"}");
        hy_front_reply_buf(c, 200, JSON_TYPE, &b);
    } else if (strcmp(path, "/workers") == 0) {
        hy_route__workers_json(c->r, &b);
        hy_front_reply_buf(c, 200, JSON_TYPE, &b);
    } else if (strcmp(path, "/metrics") == 0) {
        if (c->r->o.metrics != NULL)
            hy_metrics_text(c->r->o.metrics, &b);
        hy_front_reply_buf(c, 200, "Content-Type: " HY_METRICS_CONTENT_TYPE "\r\n", &b);
    } else if (strcmp(path, "/trace") == 0) {
        const char *query = strchr(c->head.target, '?');
        hy_http_trace_page(c->r->o.trace, hy_stage_clock(c->r->stage),
                           query != NULL ? query + 1 : NULL, &b);
        hy_front_reply_buf(c, 200, JSON_TYPE, &b);
    } else {
        return false;
    }
    return true;
}

static const struct {
    const char *path;
    bool post, generate;
} routes[] = {
    {"/v1/completions", true, true}, {"/v1/chat/completions", true, true},
    {"/tokenize", true, false},      {"/detokenize", true, false},
    {"/v1/models", false, false},
};

static void not_found(hy_front *c, int status, const char *headers)
{
    hy_buf b, h;
    hy_buf_init(&b);
    hy_buf_init(&h);
    hy_route__error_json(&b, status, status == 404 ? "NotFoundError" : "MethodNotAllowedError",
                         status == 404 ? "Not Found: there is no such path here."
                                       : "Method Not Allowed.");
    if (!b.failed)
        b.len--; /* FastAPI's form beside OpenAI's: routers look for it */
    hy_buf_puts(&b, status == 404 ? ",\"detail\":\"Not Found\"}"
                                  : ",\"detail\":\"Method Not Allowed\"}");
    hy_buf_puts(&h, JSON_TYPE);
    hy_buf_puts(&h, headers);
    hy_front_reply_buf(c, status, hy_buf_str(&h), &b);
    hy_buf_fini(&h);
}

static const char *media_type(const hy_front *c)
{
    const char *t = hy_wire_find(&c->head, "Content-Type");
    return t != NULL ? t : "application/json";
}

static bool is_json(const hy_front *c)
{
    const char *t = media_type(c);
    size_t n = strcspn(t, "; \t");
    return n == strlen("application/json") && strncasecmp(t, "application/json", n) == 0;
}

static void route_on(hy_front *c, bool generate)
{
    hy_route *r = c->r;
    if (atomic_load(&r->draining))
        hy_front_reply_error(c, 503, "ServiceUnavailableError", "The router is shutting down.",
                             "Retry-After: 5\r\n");
    else if (r->n_flows >= r->o.max_requests || r->n_flows >= r->o.max_connections)
        hy_front_reply_error(c, 503, "ServiceUnavailableError",
                             "The router is busy. Try again later.", "Retry-After: 1\r\n");
    else if (generate && !is_json(c))
        hy_front_reply_error(c, 400, "BadRequestError",
                             "Unsupported Media Type: Only 'application/json' is allowed.", NULL);
    else
        hy_flow_begin(c, generate);
}

void hy_route__request(hy_front *c)
{
    char path[256];
    const char *m = c->head.method, *target = c->head.target;
    bool get = strcmp(m, "GET") == 0 || strcmp(m, "HEAD") == 0, post = strcmp(m, "POST") == 0;
    size_t n = strcspn(target, "?#");
    if (strncasecmp(target, "http://", 7) == 0) { /* absolute form, as to a proxy */
        size_t host = 7 + strcspn(target + 7, "/?#");
        n = host < n ? n - host : 0;
        target += host;
    }
    if (n >= sizeof(path)) {
        not_found(c, 404, "");
        return;
    }
    memcpy(path, target, n);
    path[n] = '\0';
    if (strcmp(m, "OPTIONS") == 0) {
        hy_front_reply(c, 204, "Allow: GET, HEAD, POST, OPTIONS\r\n", NULL);
        return;
    }
    bool open = get && strncmp(path, "/v1/", 4) != 0;
    if (!open && !key_fits(c)) {
        hy_front_reply_error(c, 401, "AuthenticationError",
                             "A valid API key is required: Authorization: Bearer KEY.",
                             "WWW-Authenticate: Bearer\r\n");
        return;
    }
    if (get && own_page(c, path))
        return;
    for (size_t i = 0; i < HY_COUNTOF(routes); i++) {
        bool models = !routes[i].post && strncmp(path, "/v1/models/", 11) == 0;
        if (strcmp(path, routes[i].path) != 0 && !models)
            continue;
        if (routes[i].post ? post : get)
            route_on(c, routes[i].generate);
        else
            not_found(c, 405, routes[i].post ? "Allow: POST\r\n" : "Allow: GET\r\n");
        return;
    }
    not_found(c, 404, "");
}
