/* SPDX-License-Identifier: Apache-2.0
 *
 * evhttp answers by itself what it cannot parse or will not read (bad request line, body far above
 * the limit, unknown method) and writes HTML. It has no hook for these pages, but they pass through
 * the connection's output buffer whole, before a byte is sent: there each becomes an OpenAI body
 * with the same status.
 *
 * Thread: http stage.  Owner: the bufferevent owns the callback.
 */
#include "core/http/server_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PAGE = 2048 };

static void describe(const hy_server *s, int status, hy_api_error *e)
{
    switch (status) {
    case 413:
        hy_api_error_set(e, 413, "RequestTooLargeError", NULL,
                         "The body is far larger than the %zu bytes of [http] max_body.",
                         s->h->o.max_body_bytes);
        return;
    case 417:
        hy_api_error_set(e, 417, "BadRequestError", NULL,
                         "Expectation Failed: only 'Expect: 100-continue' is understood.");
        return;
    case 501:
        hy_api_error_set(e, 501, "NotImplementedError", NULL,
                         "Not Implemented: this HTTP method is unknown here.");
        return;
    default:
        hy_api_error_set(e, status, status < 500 ? "BadRequestError" : "InternalServerError", NULL,
                         status < 500
                             ? "Bad Request: this is not well-formed HTTP, or its request line and "
                               "headers are larger than [http] max_header."
                             : "The request could not be answered.");
    }
}

/* Status of the page that ends the buffer's text, 0: it is none. A "100 Continue" may stand before
 * it, unsent: the final answer replaces it, too. */
static int page_status(const char *text, size_t len)
{
    static const char tail[] = "</BODY></HTML>\n", go_on[] = "HTTP/1.1 100 ";
    const size_t n = sizeof(tail) - 1;
    if (len < n || memcmp(text + len - n, tail, n) != 0)
        return 0;
    if (strncmp(text, go_on, sizeof(go_on) - 1) == 0) {
        text = strstr(text, "\r\n\r\n");
        if (text == NULL)
            return 0;
        text += 4;
    }
    if (strncmp(text, "HTTP/1.", 7) != 0 || strstr(text, "\r\nContent-Type: text/html") == NULL)
        return 0;
    const int status = atoi(text + strcspn(text, " "));
    return status >= 400 && status < 600 ? status : 0;
}

static void on_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *arg)
{
    hy_server *s = arg;
    char text[MAX_PAGE + 1];
    const size_t len = evbuffer_get_length(out);
    if (info->n_added == 0 || len > MAX_PAGE)
        return;
    if (evbuffer_copyout(out, text, len) != (ev_ssize_t)len)
        return;
    text[len] = '\0';
    const int status = page_status(text, len);
    if (status == 0)
        return;
    hy_api_error e;
    hy_buf b;
    hy_buf_init(&b);
    describe(s, status, &e);
    hy_reply__error_body(&b, &e);
    evbuffer_unfreeze(out, 1); /* a bufferevent lets nobody else take from its front */
    evbuffer_drain(out, len);
    evbuffer_freeze(out, 1);
    evbuffer_add_printf(out,
                        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n"
                        "Content-Length: %zu\r\nX-Request-Id: %016llx\r\nConnection: close\r\n\r\n",
                        status, hy_server__reason(status), b.len,
                        (unsigned long long)hy_rng_u64(hy_stage_rng(s->h->http)));
    evbuffer_add(out, b.data, b.len);
    hy_buf_fini(&b);
}

void hy_errpage__watch(hy_server *s, struct bufferevent *bev)
{
    evbuffer_add_cb(bufferevent_get_output(bev), on_output, s);
}
