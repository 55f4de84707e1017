/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics: counters, gauges and histograms with labels, and their Prometheus text (exposition
 * format 0.0.4).
 *
 * Thread: any, always; updates are atomic and take no lock.
 * Owner: the registry owns every metric; a pointer stays valid until hy_metrics_destroy.
 */
#ifndef HY_BASE_METRIC_H
#define HY_BASE_METRIC_H

#include "core/base/buf.h"

typedef struct hy_metrics hy_metrics; /* a registry */
typedef struct hy_metric hy_metric;   /* one time series (a histogram: one set of them) */

typedef struct hy_label {
    const char *name;
    const char *value; /* any UTF-8: escaped when written */
} hy_label;

/* NULL when out of memory. */
hy_metrics *hy_metrics_create(void);
void hy_metrics_destroy(hy_metrics *m); /* NULL is fine */

/* The series of that name and those labels, made on first use; everything is copied. NULL when
 * out of memory, and every update below accepts NULL. A bad name, or one name used with two
 * types, is our bug (HY_ASSERT). Look up once and keep the pointer. */
hy_metric *hy_metric_counter(hy_metrics *m, const char *name, const char *help,
                             const hy_label *labels, size_t n_labels);
hy_metric *hy_metric_gauge(hy_metrics *m, const char *name, const char *help,
                           const hy_label *labels, size_t n_labels);
/* bounds: n ascending upper bounds, +Inf is added. The first call of a name fixes them. */
hy_metric *hy_metric_histogram(hy_metrics *m, const char *name, const char *help,
                               const double *bounds, size_t n_bounds, const hy_label *labels,
                               size_t n_labels);

/* Counters (v >= 0) and gauges. */
void hy_metric_add(hy_metric *x, double v);
static inline void hy_metric_inc(hy_metric *x)
{
    hy_metric_add(x, 1.0);
}
void hy_metric_set(hy_metric *x, double v);     /* gauges */
void hy_metric_observe(hy_metric *x, double v); /* histograms */

/* Value of a counter or gauge; count of a histogram. */
double hy_metric_value(const hy_metric *x);
/* Sum of a histogram. */
double hy_metric_sum(const hy_metric *x);

/* Appends the whole page: families in order of creation, each with HELP and TYPE. */
void hy_metrics_text(hy_metrics *m, hy_buf *out);
#define HY_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

#endif
