/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of timelines and its two ways out: a line, and Chrome trace events (Trace Event Format,
 * JSON object form; times in microseconds).
 *
 * A request's record is at its number modulo the ring's length. Marks compare the number and store;
 * names and the reuse of a record are under a lock, which only beginnings and readers take.
 *
 * Thread: any.  Owner: see trace.h.
 */
#include "core/base/trace.h"

#include "core/base/alloc.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct record {
    _Atomic uint64_t id; /* 0: none */
    _Atomic uint64_t at[HY_TRACE_POINTS];
    _Atomic int64_t num[HY_TRACE_NUMS];
    char rid[HY_TRACE_RID_MAX]; /* names: under the lock */
    char text[HY_TRACE_TEXTS][HY_TRACE_NAME_MAX];
} record;

struct hy_trace {
    pthread_mutex_t lock;
    char node[64], role[16], clock[HY_TRACE_CLOCK_MAX];
    bool router;
    size_t n;
    uint64_t newest;
    record r[];
};

/* What stands in JSON and log lines without escapes. */
static void copy_plain(char *out, size_t cap, const char *s)
{
    size_t n = 0;
    for (; s[n] != '\0' && n + 1 < cap; n++)
        out[n] = (char)(s[n] < 0x20 || s[n] > 0x7e || s[n] == '"' || s[n] == '\\' ? '_' : s[n]);
    out[n] = '\0';
}

void hy_trace_clock(char *out, size_t cap)
{
    char boot[40] = "unknown", ns[40] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f != NULL) {
        if (fgets(boot, sizeof(boot), f) != NULL)
            boot[strcspn(boot, "\n")] = '\0';
        fclose(f);
    }
    const ssize_t n = readlink("/proc/self/ns/time", ns, sizeof(ns) - 1);
    ns[n > 0 ? n : 0] = '\0';
    snprintf(out, cap, "%s %s", boot, ns);
}

hy_trace *hy_trace_create(const char *node, const char *role, size_t n)
{
    if (n == 0 || n > HY_TRACE_MOST)
        return NULL;
    hy_trace *t = hy_calloc(1, sizeof(*t) + n * sizeof(record));
    if (t == NULL)
        return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->n = n;
    copy_plain(t->node, sizeof(t->node), node);
    copy_plain(t->role, sizeof(t->role), role);
    t->router = strcmp(role, "router") == 0;
    hy_trace_clock(t->clock, sizeof(t->clock));
    return t;
}

void hy_trace_destroy(hy_trace *t)
{
    if (t == NULL)
        return;
    pthread_mutex_destroy(&t->lock);
    hy_free(t);
}

/* ---- writing ---- */

static record *find(hy_trace *t, uint64_t id)
{
    if (t == NULL || id == 0)
        return NULL;
    record *r = &t->r[id % t->n];
    return atomic_load_explicit(&r->id, memory_order_acquire) == id ? r : NULL;
}

void hy_trace_begin(hy_trace *t, uint64_t id, const char *rid, uint64_t now_ns)
{
    if (t == NULL || id == 0)
        return;
    record *r = &t->r[id % t->n];
    pthread_mutex_lock(&t->lock);
    atomic_store(&r->id, 0);
    for (int i = 0; i < HY_TRACE_POINTS; i++)
        atomic_store_explicit(&r->at[i], 0, memory_order_relaxed);
    for (int i = 0; i < HY_TRACE_NUMS; i++)
        atomic_store_explicit(&r->num[i], 0, memory_order_relaxed);
    memset(r->text, 0, sizeof(r->text));
    copy_plain(r->rid, sizeof(r->rid), rid);
    atomic_store_explicit(&r->at[HY_TRACE_ARRIVED], now_ns, memory_order_relaxed);
    t->newest = id > t->newest ? id : t->newest;
    atomic_store_explicit(&r->id, id, memory_order_release);
    pthread_mutex_unlock(&t->lock);
}

void hy_trace_mark(hy_trace *t, uint64_t id, hy_trace_point p, uint64_t now_ns)
{
    record *r = find(t, id);
    uint64_t none = 0;
    if (r != NULL)
        atomic_compare_exchange_strong_explicit(&r->at[p], &none, now_ns, memory_order_release,
                                                memory_order_relaxed);
}

void hy_trace_again(hy_trace *t, uint64_t id, hy_trace_point p, uint64_t now_ns)
{
    record *r = find(t, id);
    if (r != NULL)
        atomic_store_explicit(&r->at[p], now_ns, memory_order_release);
}

void hy_trace_set(hy_trace *t, uint64_t id, hy_trace_num k, int64_t v)
{
    record *r = find(t, id);
    if (r != NULL)
        atomic_store_explicit(&r->num[k], v, memory_order_relaxed);
}

void hy_trace_add(hy_trace *t, uint64_t id, hy_trace_num k, int64_t v)
{
    record *r = find(t, id);
    if (r != NULL)
        atomic_fetch_add_explicit(&r->num[k], v, memory_order_relaxed);
}

void hy_trace_name(hy_trace *t, uint64_t id, hy_trace_text k, const char *s)
{
    record *r = find(t, id);
    if (r == NULL)
        return;
    pthread_mutex_lock(&t->lock);
    copy_plain(r->text[k], sizeof(r->text[k]), s);
    pthread_mutex_unlock(&t->lock);
}

/* ---- reading ---- */

typedef struct view { /* a record's copy, or what could be made of it */
    uint64_t id, at[HY_TRACE_POINTS];
    int64_t num[HY_TRACE_NUMS];
    char rid[HY_TRACE_RID_MAX], text[HY_TRACE_TEXTS][HY_TRACE_NAME_MAX];
} view;

/* Under the lock. */
static bool look(hy_trace *t, uint64_t id, view *v)
{
    const record *r = find(t, id);
    if (r == NULL)
        return false;
    v->id = id;
    for (int i = 0; i < HY_TRACE_POINTS; i++)
        v->at[i] = atomic_load_explicit(&r->at[i], memory_order_acquire);
    for (int i = 0; i < HY_TRACE_NUMS; i++) /* what was set before a mark is seen with it */
        v->num[i] = atomic_load_explicit(&r->num[i], memory_order_relaxed);
    for (int i = 0; i < HY_TRACE_POINTS; i++)
        if (v->at[i] < v->at[HY_TRACE_ARRIVED])
            v->at[i] = 0; /* a late mark of the record's last owner */
    memcpy(v->rid, r->rid, sizeof(v->rid));
    memcpy(v->text, r->text, sizeof(v->text));
    return true;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static int64_t n_computed(const view *v)
{
    return v->num[HY_TRACE_PROMPT] - v->num[HY_TRACE_HIT] - v->num[HY_TRACE_MOVED];
}

static void line_part(hy_buf *b, const view *v, const char *what, hy_trace_point from,
                      hy_trace_point to)
{
    if (v->at[from] != 0 && v->at[to] >= v->at[from])
        hy_buf_printf(b, ", %s %.1f ms", what, (double)(v->at[to] - v->at[from]) / 1e6);
}

bool hy_trace_line(hy_trace *t, uint64_t id, hy_buf *out)
{
    view v;
    if (t == NULL)
        return false;
    pthread_mutex_lock(&t->lock);
    const bool there = look(t, id, &v);
    pthread_mutex_unlock(&t->lock);
    if (!there)
        return false;
    hy_buf_printf(out, "request %s: ", v.rid);
    if (t->router) {
        hy_buf_printf(out, "prefill %s", v.text[0][0] != '\0' ? v.text[0] : "-");
        line_part(out, &v, "for", HY_TRACE_P_SENT, HY_TRACE_P_DONE);
        hy_buf_printf(out, "; decode %s", v.text[1][0] != '\0' ? v.text[1] : "-");
        line_part(out, &v, "first byte", HY_TRACE_ARRIVED, HY_TRACE_D_FIRST);
    } else {
        hy_buf_printf(out,
                      "prompt %" PRId64 " tokens (%" PRId64 " cached, %" PRId64 " moved, %" PRId64
                      " computed)",
                      v.num[HY_TRACE_PROMPT], v.num[HY_TRACE_HIT], v.num[HY_TRACE_MOVED],
                      n_computed(&v));
        line_part(out, &v, "tokenised", HY_TRACE_ARRIVED, HY_TRACE_QUEUED);
        line_part(out, &v, "queued", HY_TRACE_QUEUED, HY_TRACE_ADMITTED);
        line_part(out, &v, "link", HY_TRACE_ADMITTED, HY_TRACE_LOAD);
        if (v.at[HY_TRACE_LOADED] != 0)
            hy_buf_printf(out, ", transfer %.3f MB", (double)v.num[HY_TRACE_BYTES_IN] / 1e6);
        line_part(out, &v, "in", HY_TRACE_LOAD, HY_TRACE_LOADED);
        if (n_computed(&v) > 0)
            line_part(out, &v, "prefill",
                      v.at[HY_TRACE_LOADED] != 0 ? HY_TRACE_LOADED : HY_TRACE_ADMITTED,
                      HY_TRACE_FIRST);
        line_part(out, &v, "first token after", HY_TRACE_ARRIVED, HY_TRACE_FIRST);
        line_part(out, &v, "first decode after", HY_TRACE_ARRIVED, HY_TRACE_DECODE);
        hy_buf_printf(out, ", %" PRId64 " tokens out", v.num[HY_TRACE_OUTPUT]);
        line_part(out, &v, "decode", HY_TRACE_FIRST, HY_TRACE_FINISHED);
    }
    line_part(out, &v, "total", HY_TRACE_ARRIVED, HY_TRACE_ANSWERED);
    hy_buf_printf(out, ", status %" PRId64, v.num[HY_TRACE_STATUS]);
    return true;
}

/* ---- trace events ---- */

typedef struct writer {
    hy_buf *b;
    const view *v;
    const char *comma;
} writer;

static void put_us(hy_buf *b, uint64_t ns)
{
    hy_buf_printf(b, "%" PRIu64 ".%03" PRIu64, ns / 1000, ns % 1000);
}

/* Two rows a request: its own way, and what happens beside it. Numbers of rows are even and odd. */
static uint64_t row(const view *v, bool beside)
{
    return 2 * v->id + beside;
}

static void head(writer *w, const char *ph, const char *name, bool beside)
{
    hy_buf_printf(w->b, "%s\n{\"ph\":\"%s\",\"pid\":1,\"tid\":%" PRIu64 ",\"name\":\"%s\"",
                  w->comma, ph, row(w->v, beside), name);
    w->comma = ",";
}

static void span(writer *w, const char *name, bool beside, uint64_t from, uint64_t to,
                 const char *args)
{
    if (from == 0 || to < from)
        return;
    head(w, "X", name, beside);
    hy_buf_puts(w->b, ",\"cat\":\"request\",\"ts\":");
    put_us(w->b, from);
    hy_buf_puts(w->b, ",\"dur\":");
    put_us(w->b, to - from);
    hy_buf_printf(w->b, ",\"args\":{\"request\":\"%s\"%s}}", w->v->rid, args);
}

static void instant(writer *w, const char *name, uint64_t at)
{
    if (at == 0)
        return;
    head(w, "i", name, false);
    hy_buf_puts(w->b, ",\"cat\":\"request\",\"s\":\"t\",\"ts\":");
    put_us(w->b, at);
    hy_buf_printf(w->b, ",\"args\":{\"request\":\"%s\"}}", w->v->rid);
}

/* Half an arrow from the owner's writing to the reader's transfer. */
static void arrow(writer *w, const char *ph, bool beside, uint64_t at)
{
    if (at == 0)
        return;
    head(w, ph, "KV", beside);
    hy_buf_printf(w->b, ",\"cat\":\"kv\",\"id\":\"%s\"%s,\"ts\":", w->v->rid,
                  *ph == 'f' ? ",\"bp\":\"e\"" : "");
    put_us(w->b, at);
    hy_buf_putc(w->b, '}');
}

static void row_name(writer *w, bool beside, const char *what)
{
    head(w, "M", "thread_name", beside);
    hy_buf_printf(w->b, ",\"args\":{\"name\":\"%s%s\"}}", w->v->rid, what);
}

static uint64_t last_mark(const view *v)
{
    uint64_t t = v->at[HY_TRACE_ARRIVED];
    for (int i = 0; i < HY_TRACE_POINTS; i++)
        if (i != HY_TRACE_SEND && i != HY_TRACE_SENT && i != HY_TRACE_FREED)
            t = later(t, v->at[i]);
    return t;
}

static void put_router(writer *w)
{
    const view *v = w->v;
    char args[128];
    snprintf(args, sizeof(args), ",\"worker\":\"%s\"", v->text[HY_TRACE_D_NAME]);
    span(w, "decode leg", false, v->at[HY_TRACE_D_SENT], last_mark(v), args);
    instant(w, "first byte", v->at[HY_TRACE_D_FIRST]);
    if (v->at[HY_TRACE_P_SENT] == 0)
        return;
    row_name(w, true, " (prefill)");
    snprintf(args, sizeof(args), ",\"worker\":\"%s\"", v->text[HY_TRACE_P_NAME]);
    span(w, "prefill leg", true, v->at[HY_TRACE_P_SENT], v->at[HY_TRACE_P_DONE], args);
}

static void put_owner(writer *w)
{
    const view *v = w->v;
    const uint64_t sent = v->at[HY_TRACE_SEND];
    char args[96];
    if (sent == 0 && v->at[HY_TRACE_FREED] == 0)
        return;
    row_name(w, true, " (KV kept)");
    const uint64_t from =
        sent != 0 && sent < v->at[HY_TRACE_FINISHED] ? sent : v->at[HY_TRACE_FINISHED];
    span(w, "kept for the peer", true, from, v->at[HY_TRACE_FREED], "");
    snprintf(args, sizeof(args), ",\"bytes\":%" PRId64, v->num[HY_TRACE_BYTES_OUT]);
    span(w, "send", true, sent, v->at[HY_TRACE_SENT], args);
    arrow(w, "s", true, v->at[HY_TRACE_SENT] != 0 ? sent : 0);
}

static void put_worker(writer *w)
{
    const view *v = w->v;
    const uint64_t *at = v->at;
    char args[160];
    span(w, "tokenise", false, at[HY_TRACE_ARRIVED], at[HY_TRACE_QUEUED], "");
    span(w, "queue", false, at[HY_TRACE_QUEUED], at[HY_TRACE_ADMITTED], "");
    instant(w, "blocks allocated", at[HY_TRACE_ADMITTED]);
    span(w, "link", false, at[HY_TRACE_ADMITTED], at[HY_TRACE_LOAD], "");
    snprintf(args, sizeof(args), ",\"bytes\":%" PRId64 ",\"tokens\":%" PRId64,
             v->num[HY_TRACE_BYTES_IN], v->num[HY_TRACE_MOVED]);
    span(w, "transfer", false, at[HY_TRACE_LOAD], at[HY_TRACE_LOADED], args);
    arrow(w, "f", false, at[HY_TRACE_LOADED]);
    snprintf(args, sizeof(args), ",\"tokens\":%" PRId64, n_computed(v));
    if (n_computed(v) > 0)
        span(w, "prefill", false, later(at[HY_TRACE_ADMITTED], at[HY_TRACE_LOADED]),
             at[HY_TRACE_FIRST], args);
    instant(w, "first token", at[HY_TRACE_FIRST]);
    instant(w, "first decode", at[HY_TRACE_DECODE]);
    snprintf(args, sizeof(args), ",\"tokens\":%" PRId64, v->num[HY_TRACE_OUTPUT]);
    span(w, "decode", false, at[HY_TRACE_FIRST], at[HY_TRACE_FINISHED], args);
    instant(w, "finished", at[HY_TRACE_FINISHED]);
    put_owner(w);
}

static void put_request(writer *w, bool router)
{
    const view *v = w->v;
    char args[320];
    if (router)
        snprintf(args, sizeof(args),
                 ",\"status\":%" PRId64 ",\"legs\":%" PRId64
                 ",\"prefill\":\"%s\",\"decode\":\"%s\"",
                 v->num[HY_TRACE_STATUS], v->num[HY_TRACE_LEGS], v->text[HY_TRACE_P_NAME],
                 v->text[HY_TRACE_D_NAME]);
    else
        snprintf(args, sizeof(args),
                 ",\"status\":%" PRId64 ",\"prompt_tokens\":%" PRId64 ",\"cached_tokens\":%" PRId64
                 ",\"moved_tokens\":%" PRId64 ",\"output_tokens\":%" PRId64,
                 v->num[HY_TRACE_STATUS], v->num[HY_TRACE_PROMPT], v->num[HY_TRACE_HIT],
                 v->num[HY_TRACE_MOVED], v->num[HY_TRACE_OUTPUT]);
    row_name(w, false, "");
    span(w, v->at[HY_TRACE_ANSWERED] != 0 ? "request" : "request (in work)", false,
         v->at[HY_TRACE_ARRIVED], last_mark(v), args);
    if (router)
        put_router(w);
    else
        put_worker(w);
}

static void put_page_head(hy_trace *t, uint64_t now_ns, uint64_t unix_ns, hy_buf *b)
{
    hy_buf_puts(b, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"node\":\"");
    hy_buf_printf(b, "%s\",\"role\":\"%s\",\"clock\":\"%s\",\"keeps\":%zu,\"now_us\":", t->node,
                  t->role, t->clock, t->n);
    put_us(b, now_ns);
    hy_buf_puts(b, ",\"unix_us\":");
    put_us(b, unix_ns);
    hy_buf_printf(b,
                  "},\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\","
                  "\"args\":{\"name\":\"%s (%s)\"}}",
                  t->node, t->role);
}

void hy_trace_json(hy_trace *t, uint64_t now_ns, uint64_t unix_ns, const char *rid, size_t most,
                   hy_buf *out)
{
    if (t == NULL) {
        hy_buf_puts(out, "{\"traceEvents\":[]}");
        return;
    }
    view v;
    writer w = {.b = out, .v = &v, .comma = ","};
    put_page_head(t, now_ns, unix_ns, out);
    pthread_mutex_lock(&t->lock);
    const uint64_t newest = t->newest;
    pthread_mutex_unlock(&t->lock);
    /* from the newest back, to find where the last `most` of that name begin */
    uint64_t first = newest + 1;
    for (uint64_t id = newest, n = 0; id > 0 && newest - id < t->n && n < most; id--) {
        pthread_mutex_lock(&t->lock);
        const bool there = look(t, id, &v);
        pthread_mutex_unlock(&t->lock);
        if (!there || (rid != NULL && strcmp(rid, v.rid) != 0))
            continue;
        first = id;
        n++;
    }
    for (uint64_t id = first; id <= newest; id++) {
        pthread_mutex_lock(&t->lock);
        const bool there = look(t, id, &v);
        pthread_mutex_unlock(&t->lock);
        if (there && (rid == NULL || strcmp(rid, v.rid) == 0))
            put_request(&w, t->router);
    }
    hy_buf_puts(out, "\n]}\n");
}
