/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics registry and its text page (Prometheus exposition format 0.0.4). Values are doubles
 * kept as bits in one atomic word; an update is a compare-and-swap, or one add for buckets.
 *
 * Thread: any.  Owner: the registry.
 */
#include "core/base/metric.h"
#include "core/base/alloc.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum type { COUNTER, GAUGE, HISTOGRAM } type;
static const char *const type_names[] = {"counter", "gauge", "histogram"};

typedef struct family {
    struct family *next;
    char *name, *help;
    type type;
    double *bounds;
    size_t n_bounds;
    hy_metric *series;
} family;

struct hy_metric {
    hy_metric *next;
    const family *family;
    char *labels;              /* as printed between the braces; "" for none */
    _Atomic uint64_t bits;     /* value, or sum of a histogram */
    _Atomic uint64_t *buckets; /* n_bounds + 1, not cumulative */
};

struct hy_metrics {
    pthread_mutex_t lock; /* the lists; series never go away */
    family *families;
};

hy_metrics *hy_metrics_create(void)
{
    hy_metrics *m = hy_calloc(1, sizeof(*m));
    if (m != NULL)
        pthread_mutex_init(&m->lock, NULL);
    return m;
}

static void free_series(hy_metric *x)
{
    hy_free(x->labels);
    hy_free(x->buckets);
    hy_free(x);
}

static void free_family(family *f)
{
    for (hy_metric *x = f->series, *next; x != NULL; x = next) {
        next = x->next;
        free_series(x);
    }
    hy_free(f->name);
    hy_free(f->help);
    hy_free(f->bounds);
    hy_free(f);
}

void hy_metrics_destroy(hy_metrics *m)
{
    if (m == NULL)
        return;
    for (family *f = m->families, *next; f != NULL; f = next) {
        next = f->next;
        free_family(f);
    }
    pthread_mutex_destroy(&m->lock);
    hy_free(m);
}

static bool name_ok(const char *s, bool colon)
{
    for (size_t i = 0; s[i] != '\0'; i++) {
        char c = s[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && !(colon && c == ':') && !(i > 0 && c >= '0' && c <= '9'))
            return false;
    }
    return s[0] != '\0';
}

/* Backslash and newline everywhere, the quote in label values. */
static void put_escaped(hy_buf *b, const char *s, bool quote)
{
    for (; *s != '\0'; s++) {
        if (*s == '\\')
            hy_buf_puts(b, "\\\\");
        else if (*s == '\n')
            hy_buf_puts(b, "\\n");
        else if (*s == '"' && quote)
            hy_buf_puts(b, "\\\"");
        else
            hy_buf_putc(b, *s);
    }
}

static char *render_labels(const hy_label *labels, size_t n)
{
    hy_buf b;
    hy_buf_init(&b);
    for (size_t i = 0; i < n; i++) {
        HY_ASSERT(name_ok(labels[i].name, false));
        hy_buf_printf(&b, "%s%s=\"", i != 0 ? "," : "", labels[i].name);
        put_escaped(&b, labels[i].value, true);
        hy_buf_putc(&b, '"');
    }
    return hy_buf_take(&b);
}

static family *new_family(const char *name, const char *help, type t, const double *bounds,
                          size_t n_bounds)
{
    HY_ASSERT(name_ok(name, true));
    for (size_t i = 1; i < n_bounds; i++)
        HY_ASSERT(bounds[i - 1] < bounds[i]);
    family *f = hy_calloc(1, sizeof(*f));
    if (f == NULL)
        return NULL;
    f->name = hy_strdup(name);
    f->help = hy_strdup(help);
    f->bounds = hy_calloc(n_bounds, sizeof(double));
    f->type = t;
    f->n_bounds = n_bounds;
    if (f->name == NULL || f->help == NULL || f->bounds == NULL) {
        free_family(f);
        return NULL;
    }
    if (n_bounds != 0)
        memcpy(f->bounds, bounds, n_bounds * sizeof(double));
    return f;
}

static hy_metric *new_series(const family *f, char *labels)
{
    hy_metric *x = hy_calloc(1, sizeof(*x));
    if (x == NULL)
        return NULL;
    x->family = f;
    if (f->type == HISTOGRAM) {
        x->buckets = hy_calloc(f->n_bounds + 1, sizeof(*x->buckets));
        if (x->buckets == NULL) {
            hy_free(x);
            return NULL;
        }
    }
    x->labels = labels;
    return x;
}

static hy_metric *get(hy_metrics *m, const char *name, const char *help, type t,
                      const double *bounds, size_t n_bounds, const hy_label *labels,
                      size_t n_labels)
{
    char *text = render_labels(labels, n_labels);
    if (text == NULL)
        return NULL;
    pthread_mutex_lock(&m->lock);
    hy_metric *x = NULL;
    family **f = &m->families;
    while (*f != NULL && strcmp((*f)->name, name) != 0)
        f = &(*f)->next;
    if (*f == NULL)
        *f = new_family(name, help, t, bounds, n_bounds);
    if (*f != NULL) {
        HY_ASSERT((*f)->type == t && "one metric name with two types");
        hy_metric **at = &(*f)->series;
        while (*at != NULL && strcmp((*at)->labels, text) != 0)
            at = &(*at)->next;
        if (*at == NULL && (*at = new_series(*f, text)) != NULL)
            text = NULL; /* moved */
        x = *at;
    }
    pthread_mutex_unlock(&m->lock);
    hy_free(text);
    return x;
}

hy_metric *hy_metric_counter(hy_metrics *m, const char *name, const char *help,
                             const hy_label *labels, size_t n_labels)
{
    return get(m, name, help, COUNTER, NULL, 0, labels, n_labels);
}

hy_metric *hy_metric_gauge(hy_metrics *m, const char *name, const char *help,
                           const hy_label *labels, size_t n_labels)
{
    return get(m, name, help, GAUGE, NULL, 0, labels, n_labels);
}

hy_metric *hy_metric_histogram(hy_metrics *m, const char *name, const char *help,
                               const double *bounds, size_t n_bounds, const hy_label *labels,
                               size_t n_labels)
{
    return get(m, name, help, HISTOGRAM, bounds, n_bounds, labels, n_labels);
}

static double from_bits(uint64_t u)
{
    double v;
    memcpy(&v, &u, sizeof(v));
    return v;
}

static uint64_t to_bits(double v)
{
    uint64_t u;
    memcpy(&u, &v, sizeof(u));
    return u;
}

static double load(const _Atomic uint64_t *a)
{
    return from_bits(atomic_load_explicit(a, memory_order_relaxed));
}

static void add(_Atomic uint64_t *a, double v)
{
    uint64_t old = atomic_load_explicit(a, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(a, &old, to_bits(from_bits(old) + v),
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

void hy_metric_add(hy_metric *x, double v)
{
    if (x == NULL)
        return;
    HY_ASSERT(x->family->type == GAUGE || (x->family->type == COUNTER && v >= 0));
    add(&x->bits, v);
}

void hy_metric_set(hy_metric *x, double v)
{
    if (x == NULL)
        return;
    HY_ASSERT(x->family->type == GAUGE);
    atomic_store_explicit(&x->bits, to_bits(v), memory_order_relaxed);
}

void hy_metric_observe(hy_metric *x, double v)
{
    if (x == NULL)
        return;
    const family *f = x->family;
    HY_ASSERT(f->type == HISTOGRAM);
    size_t i = 0;
    while (i < f->n_bounds && !(v <= f->bounds[i]))
        i++;
    atomic_fetch_add_explicit(&x->buckets[i], 1, memory_order_relaxed);
    add(&x->bits, v);
}

static uint64_t total(const hy_metric *x)
{
    uint64_t n = 0;
    for (size_t i = 0; i <= x->family->n_bounds; i++)
        n += atomic_load_explicit(&x->buckets[i], memory_order_relaxed);
    return n;
}

double hy_metric_value(const hy_metric *x)
{
    if (x == NULL)
        return 0;
    return x->family->type == HISTOGRAM ? (double)total(x) : load(&x->bits);
}

double hy_metric_sum(const hy_metric *x)
{
    return x != NULL && x->family->type == HISTOGRAM ? load(&x->bits) : 0;
}

/* Shortest decimal that reads back as the same double. */
static void put_number(hy_buf *b, double v)
{
    if (isnan(v) || isinf(v)) {
        hy_buf_puts(b, isnan(v) ? "NaN" : v > 0 ? "+Inf" : "-Inf");
        return;
    }
    char s[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(s, sizeof(s), "%.*g", digits, v);
        if (strtod(s, NULL) == v)
            break;
    }
    hy_buf_puts(b, s);
}

static void put_histogram(hy_buf *b, const hy_metric *x)
{
    const family *f = x->family;
    const char *comma = x->labels[0] != '\0' ? "," : "";
    uint64_t n = 0;
    for (size_t i = 0; i <= f->n_bounds; i++) {
        n += atomic_load_explicit(&x->buckets[i], memory_order_relaxed);
        hy_buf_printf(b, "%s_bucket{%s%sle=\"", f->name, x->labels, comma);
        put_number(b, i < f->n_bounds ? f->bounds[i] : INFINITY);
        hy_buf_printf(b, "\"} %llu\n", (unsigned long long)n);
    }
    const char *open = comma[0] != '\0' ? "{" : "", *close = comma[0] != '\0' ? "}" : "";
    hy_buf_printf(b, "%s_sum%s%s%s ", f->name, open, x->labels, close);
    put_number(b, load(&x->bits));
    hy_buf_printf(b, "\n%s_count%s%s%s %llu\n", f->name, open, x->labels, close,
                  (unsigned long long)n);
}

void hy_metrics_text(hy_metrics *m, hy_buf *out)
{
    pthread_mutex_lock(&m->lock);
    for (const family *f = m->families; f != NULL; f = f->next) {
        hy_buf_printf(out, "# HELP %s ", f->name);
        put_escaped(out, f->help, false);
        hy_buf_printf(out, "\n# TYPE %s %s\n", f->name, type_names[f->type]);
        for (const hy_metric *x = f->series; x != NULL; x = x->next) {
            if (f->type == HISTOGRAM) {
                put_histogram(out, x);
                continue;
            }
            hy_buf_puts(out, f->name);
            if (x->labels[0] != '\0')
                hy_buf_printf(out, "{%s}", x->labels);
            hy_buf_putc(out, ' ');
            put_number(out, load(&x->bits));
            hy_buf_putc(out, '\n');
        }
    }
    pthread_mutex_unlock(&m->lock);
}
