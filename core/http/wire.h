/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 messages on evbuffers (RFC 9112): heads of requests and responses, and the framing of
 * bodies. Strict where leniency lets two parties see different messages: line ends are CRLF, no
 * folded headers, no blanks before a colon, one Content-Length, never beside Transfer-Encoding.
 *
 * For whoever needs flow control in both directions, which evhttp does not give: the HTTP client
 * and the router. Thread: one at a time.  Owner: a head owns its strings.
 */
#ifndef HY_HTTP_WIRE_H
#define HY_HTTP_WIRE_H

#include "core/base/status.h"

#include <event2/buffer.h>
#include <stddef.h>
#include <stdint.h>

enum { HY_WIRE_MAX_HEADERS = 128 };

typedef enum hy_wire_framing {
    HY_WIRE_EMPTY,
    HY_WIRE_LENGTH,
    HY_WIRE_CHUNKED,
    HY_WIRE_CLOSE, /* responses: the body ends with the connection */
} hy_wire_framing;

typedef struct hy_wire_head {
    int status;         /* responses */
    const char *method; /* requests */
    const char *target;
    int minor; /* HTTP/1.minor */
    bool keep_alive;
    bool expect_continue; /* requests: the client waits for "100 Continue" */
    hy_wire_framing framing;
    uint64_t length; /* HY_WIRE_LENGTH */
    struct {
        const char *name, *value;
    } headers[HY_WIRE_MAX_HEADERS];
    size_t n_headers;
    char *text; /* all strings point in here */
} hy_wire_head;

/* Takes a head off `in`. HY_AGAIN: not all there, nothing taken; HY_E_LIMIT: longer than `limit`
 * bytes or too many headers; HY_E_FORMAT: not HTTP/1.x. `head_only`: a response to HEAD.
 * *scanned is 0 before the first call for a head and belongs to the function until it is taken. */
hy_status hy_wire_take_request(struct evbuffer *in, size_t limit, size_t *scanned,
                               hy_wire_head *out);
hy_status hy_wire_take_response(struct evbuffer *in, size_t limit, size_t *scanned, bool head_only,
                                hy_wire_head *out);
void hy_wire_head_fini(hy_wire_head *h); /* a zeroed one is fine */
/* Value of the first header of that name, in any case; NULL: none. */
const char *hy_wire_find(const hy_wire_head *h, const char *name);

typedef struct hy_wire_body {
    hy_wire_framing framing;
    uint64_t left; /* of the length, or of the chunk */
    int state;
    size_t trailer; /* bytes of trailers seen */
} hy_wire_body;

void hy_wire_body_init(hy_wire_body *b, const hy_wire_head *h);
/* Moves the body bytes that are in `in` to `out`. HY_OK: the body is complete; HY_AGAIN: more must
 * come; HY_E_FORMAT: broken framing. */
hy_status hy_wire_body_take(hy_wire_body *b, struct evbuffer *in, struct evbuffer *out);
/* The connection ended: HY_OK when that ends the body, else HY_E_PEER. */
hy_status hy_wire_body_end(const hy_wire_body *b);

#endif
