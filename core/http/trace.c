/* SPDX-License-Identifier: Apache-2.0
 *
 * Timelines of the server's requests (core/base/trace.h): their beginning and end, the page, and
 * one line in the log for each.
 *
 * Thread: begin on the text stage, answered on the http stage, the page on any.  Owner: the trace
 * is the node's.
 */
#include "core/http/server_int.h"

#include "core/base/log.h"

#include <stdlib.h>
#include <string.h>

void hy_http_trace__begin(const hy_http *h, uint64_t id, const hy_call *c)
{
    /* the name as routers and clients know it, without the prefix of the answer's id */
    const char *dash = strchr(c->rid, '-');
    hy_trace_begin(h->o.trace, id, dash != NULL ? dash + 1 : c->rid, c->arrival_ns);
}

void hy_http_trace__answered(const hy_http *h, const uint64_t *ids, size_t n, int status)
{
    for (size_t i = 0; i < n && h->o.trace != NULL; i++) {
        /* who sees the mark sees the status, too */
        hy_trace_set(h->o.trace, ids[i], HY_TRACE_STATUS, status);
        hy_trace_mark(h->o.trace, ids[i], HY_TRACE_ANSWERED, hy_stage_now(h->http));
        if (hy_log_level_get() < HY_LOG_DEBUG)
            continue;
        hy_buf b;
        hy_buf_init(&b);
        if (hy_trace_line(h->o.trace, ids[i], &b))
            hy_debug("http", "%s", hy_buf_str(&b));
        hy_buf_fini(&b);
    }
}

void hy_http_trace_page(hy_trace *t, const hy_clock *c, const char *query, hy_buf *out)
{
    struct evkeyvalq args = {0};
    const bool ok = query != NULL && evhttp_parse_query_str(query, &args) == 0;
    const char *n = ok ? evhttp_find_header(&args, "n") : NULL;
    const char *rid = ok ? evhttp_find_header(&args, "request") : NULL;
    const unsigned long most = n != NULL ? strtoul(n, NULL, 10) : HY_TRACE_MOST;
    hy_trace_json(t, hy_clock_now_ns(c), hy_clock_unix_ns(c), rid, most, out);
    if (ok)
        evhttp_clear_headers(&args);
}
