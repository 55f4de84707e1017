/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers that are complete at once: headers, error bodies, request ids.
 *
 * Thread: http stage.  Owner: evhttp owns requests after the send.
 */
#include "core/http/server_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *hy_server__reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } names[] = {
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Payload Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };
    for (size_t i = 0; i < HY_COUNTOF(names); i++) {
        if (names[i].status == status)
            return names[i].text;
    }
    return "Error";
}

void hy_server__header(struct evhttp_request *req, const char *name, const char *value)
{
    evhttp_add_header(evhttp_request_get_output_headers(req), name, value);
}

/* Safe in a header, in JSON and in a log line. */
static bool is_harmless(const char *s)
{
    size_t n = strlen(s);
    if (n == 0 || n >= HY_XID_LEN)
        return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c <= 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>')
            return false;
    }
    return true;
}

bool hy_server__request_id(hy_server *s, struct evhttp_request *req, char out[HY_XID_LEN])
{
    const char *given = evhttp_find_header(evhttp_request_get_input_headers(req), "X-Request-Id");
    if (given != NULL && is_harmless(given)) {
        snprintf(out, HY_XID_LEN, "%s", given);
        return true;
    }
    snprintf(out, HY_XID_LEN, "%016llx", (unsigned long long)hy_rng_u64(hy_stage_rng(s->h->http)));
    return false;
}

void hy_server__common_headers(hy_server *s, struct evhttp_request *req)
{
    const char *cors = s->h->o.cors_origin;
    struct evkeyvalq *out = evhttp_request_get_output_headers(req);
    if (cors != NULL && cors[0] != '\0') {
        hy_server__header(req, "Access-Control-Allow-Origin", cors);
        hy_server__header(req, "Vary", "Origin");
    }
    if (evhttp_find_header(out, "X-Request-Id") == NULL) {
        char id[HY_XID_LEN];
        hy_server__request_id(s, req, id);
        hy_server__header(req, "X-Request-Id", id);
    }
    if (atomic_load(&s->h->draining))
        hy_server__header(req, "Connection", "close");
}

static void free_ref(const void *data, size_t len, void *arg)
{
    (void)data;
    (void)len;
    free(arg);
}

void hy_server__send(hy_server *s, struct evhttp_request *req, int status, const char *ctype,
                     hy_buf *body)
{
    struct evbuffer *b = evbuffer_new();
    hy_server__common_headers(s, req);
    if (ctype != NULL)
        hy_server__header(req, "Content-Type", ctype);
    if (b != NULL && body != NULL && body->len != 0) {
        size_t len = body->len;
        char *p = hy_buf_take(body);
        if (p == NULL || evbuffer_add_reference(b, p, len, free_ref, p) != 0)
            free(p);
    }
    evhttp_send_reply(req, status, hy_server__reason(status), b);
    if (b != NULL)
        evbuffer_free(b);
    if (body != NULL)
        hy_buf_fini(body);
}

void hy_server__send_error(hy_server *s, struct evhttp_request *req, const hy_api_error *e)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_reply__error_body(&b, e);
    if (e->retry_after_s != 0) {
        char t[16];
        snprintf(t, sizeof(t), "%d", e->retry_after_s);
        hy_server__header(req, "Retry-After", t);
    }
    hy_server__send(s, req, e->status, "application/json", &b);
}
