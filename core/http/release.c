/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v1/kv/release: a router gives back a prompt's KV that nobody will ask for. Answered at
 * once: releasing is a message to the connector, and releasing what has ended is no failure.
 *
 * Thread: http stage.  Owner: evhttp owns requests after the send.
 */
#include "core/http/server_int.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 20 };

int hy_release__post(hy_server *s, struct evhttp_request *req)
{
    const hy_http_opts *o = &s->h->o;
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    const size_t len = evbuffer_get_length(in);
    hy_api_error e;
    if (o->kv_release == NULL) {
        hy_api_error_set(&e, 404, "NotFoundError", NULL, "This node keeps no KV for others.");
    } else if (len > MOST) {
        hy_api_error_set(&e, 413, "BadRequestError", NULL, "The body is too large.");
    } else {
        char *text = malloc(len + 1);
        hy_status st = HY_E_NOMEM;
        if (text != NULL) {
            evbuffer_copyout(in, text, len);
            text[len] = '\0';
            st = o->kv_release(o->kv_release_arg, text);
        }
        free(text);
        if (st == HY_OK || st == HY_E_NOTFOUND) { /* gone already is as good */
            hy_buf b;
            hy_buf_init(&b);
            hy_buf_printf(&b, "{\"released\":%s}", st == HY_OK ? "true" : "false");
            hy_server__send(s, req, 200, "application/json", &b);
            return 200;
        }
        hy_api_error_set(&e, st == HY_E_INVAL ? 400 : 503,
                         st == HY_E_INVAL ? "BadRequestError" : "ServiceUnavailableError", NULL,
                         "%.200s", hy_fail_text());
    }
    hy_server__send_error(s, req, &e);
    return e.status;
}
