/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics of the server itself. Those of requests and KV are the engine's.
 *
 * Thread: http stage after create.  Owner: the server; series belong to the registry.
 */
#include "core/http/http_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SERIES = 64 };

typedef struct series {
    const char *handler, *method; /* static strings */
    int status;
    hy_metric *count;
} series;

struct hy_http_metrics {
    hy_metrics *reg;
    hy_metric *conns, *seconds;
    series s[MAX_SERIES]; /* few routes, methods and statuses exist: kept, not looked up */
    size_t n;
};

static const double bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                1,     2.5,    5,     10,   30,    60,   120, 300};

struct hy_http_metrics *hy_http_metrics__create(hy_http *h)
{
    struct hy_http_metrics *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return NULL;
    m->reg = h->o.metrics;
    if (m->reg == NULL)
        return m;
    m->conns =
        hy_metric_gauge(m->reg, "halyard:http_connections", "Open client connections.", NULL, 0);
    m->seconds = hy_metric_histogram(m->reg, "http_request_duration_highr_seconds",
                                     "Time from a request's arrival to its last byte.", bounds,
                                     HY_COUNTOF(bounds), NULL, 0);
    return m;
}

void hy_http_metrics__destroy(struct hy_http_metrics *m)
{
    free(m);
}

static hy_metric *counter(struct hy_http_metrics *m, const char *handler, const char *method,
                          int status)
{
    for (size_t i = 0; i < m->n; i++) {
        const series *s = &m->s[i];
        if (s->status == status && s->handler == handler && s->method == method)
            return s->count;
    }
    char code[16];
    snprintf(code, sizeof(code), "%d", status);
    hy_label l[] = {{"handler", handler}, {"method", method}, {"status", code}};
    hy_metric *x = hy_metric_counter(m->reg, "http_requests_total",
                                     "Requests by route, method and status.", l, HY_COUNTOF(l));
    if (m->n < MAX_SERIES)
        m->s[m->n++] = (series){handler, method, status, x};
    return x;
}

void hy_http_metrics__request(struct hy_http_metrics *m, const char *handler, const char *method,
                              int status, double seconds)
{
    if (m->reg == NULL)
        return;
    hy_metric_inc(counter(m, handler, method, status));
    hy_metric_observe(m->seconds, seconds);
}

void hy_http_metrics__conns(struct hy_http_metrics *m, int n)
{
    hy_metric_set(m->conns, n);
}
