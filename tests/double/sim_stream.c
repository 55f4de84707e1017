/* SPDX-License-Identifier: Apache-2.0
 *
 * The sim's streams, events and graphs. See sim.h.
 *
 * Thread: under the sim's lock.  Owner: the process.
 */
#include "tests/double/sim.h"
#include "hal/dtype.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { COPY, ZERO, LAUNCH, RECORD, WAIT, GEMM };
enum { LIVE, DEAD };

typedef struct stream stream;

typedef struct item {
    struct item *next;
    int kind;
    char *dst;
    const char *src;
    size_t bytes;
    char *own; /* snapshot of pageable memory, or a kernel's argument */
    int kernel, lanes;
    uint32_t grid[3];
    stream *on; /* WAIT: until that stream has done `upto` */
    uint64_t upto;
} item;

typedef struct graph {
    item *first, **last;
    bool broken;
} graph;

struct stream {
    struct stream *next;
    item *first, **last;
    uint64_t asked, done; /* items */
    uint32_t haste;       /* how likely it gets on */
    int state;            /* DEAD ones stay: events may name them */
    graph *capture;
    pthread_t capturer;
};

typedef struct event {
    stream *on;
    uint64_t seq;
} event;

static stream null_stream, *streams = &null_stream;
static int graphs, events, gemms;

/* ---- work ---- */

static float half(const void *p, int64_t i, bool bf16)
{
    uint16_t h;
    memcpy(&h, (const char *)p + 2 * i, sizeof(h));
    return bf16 ? hy_bf16_to_f32(h) : hy_f16_to_f32(h);
}

static void run_gemm(const sim_gemm *g)
{
    if (!sim_on_device(g->a, (size_t)(2 * ((g->n - 1) * g->lda + g->k))) ||
        !sim_on_device(g->b, (size_t)(2 * ((g->m - 1) * g->ldb + g->k))) ||
        !sim_on_device(g->d, (size_t)(4 * ((g->m - 1) * g->ldd + g->n)))) {
        sim_break(SIM_ILLEGAL_ADDRESS, "a product outside memory in use");
        return;
    }
    if (g->space != NULL && g->space_bytes >= 4096)
        memset(g->space, 0xee, 4096); /* it is the library's to write to */
    for (int64_t j = 0; j < g->m; j++) {
        for (int64_t i = 0; i < g->n; i++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < g->k; k++)
                sum += half(g->a, i * g->lda + k, g->bf16) * half(g->b, j * g->ldb + k, g->bf16);
            g->d[j * g->ldd + i] = sum;
        }
    }
}

static void run_item(const item *i)
{
    if (sim_sticky() != SIM_OK || i->kind == RECORD || i->kind == WAIT)
        return;
    if (sim_launch_fails()) {
        sim_break(SIM_LAUNCH_FAILED, NULL);
        return;
    }
    if (i->kind == GEMM) {
        run_gemm((const sim_gemm *)(const void *)i->own);
        return;
    }
    if (i->kind == LAUNCH) {
        sim_run_kernel(i->kernel, i->grid, i->lanes, i->own);
        return;
    }
    if ((sim_in_arena(i->dst) && !sim_on_device(i->dst, i->bytes)) ||
        (sim_in_arena(i->src) && !sim_on_device(i->src, i->bytes))) {
        sim_break(SIM_ILLEGAL_ADDRESS, "a copy of %zu bytes outside memory in use", i->bytes);
        return;
    }
    if (i->kind == COPY)
        memmove(i->dst, i->own != NULL ? i->own : i->src, i->bytes);
    else
        memset(i->dst, 0, i->bytes);
}

static bool blocked(const stream *s)
{
    return s->first != NULL && s->first->kind == WAIT && s->first->on->done < s->first->upto;
}

static void free_item(item *i)
{
    free(i->own);
    free(i);
}

static void run_first(stream *s)
{
    item *i = s->first;
    run_item(i);
    s->first = i->next;
    if (s->first == NULL)
        s->last = &s->first;
    s->done++;
    free_item(i);
}

/* Something that may run, of any stream; false when there is nothing. Some streams are slow. */
static bool run_any(void)
{
    uint32_t all = 0, pick;
    for (const stream *s = streams; s != NULL; s = s->next)
        all += s->first != NULL && !blocked(s) ? 1 + s->haste : 0;
    if (all == 0)
        return false;
    pick = sim_random(all);
    for (stream *s = streams; s != NULL; s = s->next) {
        if (s->first == NULL || blocked(s))
            continue;
        if (pick < 1 + s->haste) {
            run_first(s);
            return true;
        }
        pick -= 1 + s->haste;
    }
    return false;
}

/* One thing that s needs. */
static void run_for(stream *s)
{
    while (blocked(s))
        s = s->first->on;
    run_first(s);
}

static int finish(stream *s, uint64_t seq)
{
    if (s->done >= seq)
        return sim_sticky();
    sim_open_arena(true);
    while (s->done < seq) {
        if (!sim_seeded() || sim_random(2) == 0 || !run_any())
            run_for(s);
    }
    sim_open_arena(false);
    return sim_sticky();
}

void sim_finish_all(void)
{
    bool open = false;
    for (stream *s = streams; s != NULL; s = s->next)
        open = open || s->first != NULL;
    if (!open)
        return;
    sim_open_arena(true);
    while (run_any())
        ;
    sim_open_arena(false);
}

static stream *stream_of(void *s)
{
    return s != NULL ? s : &null_stream;
}

/* Of the null stream the modules want clearing alone: what else comes there has lost its own. */
static bool is_lost(const void *s)
{
    if (s == NULL)
        sim_break(SIM_INVALID, "work for the null stream");
    return s == NULL;
}

static item *add(item ***last, int kind)
{
    item *i = calloc(1, sizeof(*i));
    if (i == NULL)
        abort();
    i->kind = kind;
    **last = i;
    *last = &i->next;
    return i;
}

static item *ask(void *on, int kind)
{
    stream *s = stream_of(on);
    if (s->last == NULL)
        s->last = &s->first;
    s->asked++;
    return add(&s->last, kind);
}

/* A device is quick at times. */
static int asked(void)
{
    if (sim_seeded() && sim_random(8) == 0) {
        sim_open_arena(true);
        for (uint32_t n = sim_random(4); n > 0 && run_any(); n--)
            ;
        sim_open_arena(false);
    }
    return sim_sticky();
}

static int break_capture(stream *s)
{
    if (s->capture == NULL)
        return SIM_OK;
    s->capture->broken = true;
    return SIM_CAPTURE;
}

bool sim_capturing(void)
{
    for (stream *s = streams; s != NULL; s = s->next) {
        if (s->capture != NULL && pthread_equal(s->capturer, pthread_self()))
            return break_capture(s) != SIM_OK;
    }
    return false;
}

int sim_streams_left(void)
{
    int n = graphs + events;
    for (const stream *s = streams; s != NULL; s = s->next)
        n += s != &null_stream && s->state == LIVE;
    return n;
}

/* ---- streams ---- */

int sim_stream_create(void **out, unsigned flags)
{
    *out = NULL;
    if (flags != 1)
        return SIM_INVALID;
    stream *s = calloc(1, sizeof(*s));
    if (s == NULL)
        abort();
    s->haste = 1u << sim_random(6);
    null_stream.haste = 1u << sim_random(6);
    s->next = streams;
    streams = s;
    *out = s;
    return SIM_OK;
}

int sim_stream_destroy(void *p)
{
    stream *s = p;
    if (s == NULL || s->state == DEAD)
        return SIM_INVALID;
    finish(s, s->asked);
    s->state = DEAD;
    return SIM_OK;
}

int sim_stream_sync(void *p)
{
    stream *s = stream_of(p);
    if (s->capture != NULL)
        return break_capture(s);
    return sim_fault_now(SIM_FAULT_SYNC) ? SIM_OK : finish(s, s->asked);
}

int sim_stream_wait(void *s, void *e, unsigned flags)
{
    const event *v = e;
    if (flags != 0 || v == NULL)
        return SIM_INVALID;
    if (break_capture(stream_of(s)) != SIM_OK)
        return SIM_CAPTURE;
    if (v->on != NULL && !sim_fault_now(SIM_FAULT_WAIT)) {
        item *i = ask(s, WAIT);
        i->on = v->on;
        i->upto = v->seq;
    }
    return asked();
}

int sim_zero(void *p, unsigned char v, size_t n, void *s)
{
    if (v != 0 || !sim_on_device(p, n))
        return SIM_INVALID;
    if (break_capture(stream_of(s)) != SIM_OK)
        return SIM_CAPTURE;
    if (sim_fault_now(SIM_FAULT_CLEAR))
        return asked();
    item *i = ask(s, ZERO);
    i->dst = p;
    i->bytes = n;
    return asked();
}

/* Whether something that waits to run reads or writes host memory there. */
static bool pending_at(const char *p, size_t bytes)
{
    for (const stream *s = streams; s != NULL; s = s->next) {
        for (const item *i = s->first; i != NULL; i = i->next) {
            bool src = i->src != NULL && i->src < p + bytes && p < i->src + i->bytes;
            bool dst = i->dst != NULL && i->dst < p + bytes && p < i->dst + i->bytes;
            if (i->kind == COPY && (src || dst))
                return true;
        }
    }
    return false;
}

static int copy_early(item *i)
{
    sim_open_arena(true);
    run_item(i);
    sim_open_arena(false);
    i->bytes = 0; /* its turn does nothing */
    i->src = i->dst;
    return sim_sticky();
}

int sim_copy(void *dst, const void *src, size_t bytes, void *p)
{
    stream *s = stream_of(p);
    bool to_host = !sim_in_arena(dst);
    if (is_lost(p))
        return SIM_INVALID;
    if (break_capture(s) != SIM_OK)
        return SIM_CAPTURE;
    if (dst == NULL || src == NULL || (!to_host && !sim_on_device(dst, bytes)) ||
        (sim_in_arena(src) && !sim_on_device(src, bytes)))
        return SIM_INVALID;
    bool poison = to_host && !sim_bare() && sim_is_pinned(dst) && !pending_at(dst, bytes);
    item *i = ask(s, COPY);
    i->dst = dst;
    i->src = src;
    i->bytes = bytes;
    if (!sim_in_arena(src) && !sim_is_pinned(src)) { /* pageable: taken before the call returns */
        i->own = malloc(bytes + 1);
        if (i->own == NULL)
            abort();
        memcpy(i->own, src, bytes);
    }
    if (sim_fault_now(SIM_FAULT_COPY))
        return copy_early(i);
    if (to_host && !sim_is_pinned(dst))
        return finish(s, s->asked);
    if (poison)
        memset(dst, 0xdb, bytes);
    return asked();
}

/* ---- events ---- */

int sim_event_create(void **e)
{
    *e = calloc(1, sizeof(event));
    if (*e == NULL)
        abort();
    events++;
    return SIM_OK;
}

int sim_event_destroy(void *e)
{
    if (e == NULL)
        return SIM_INVALID;
    free(e);
    events--;
    return SIM_OK;
}

int sim_event_record(void *e, void *s)
{
    if (e == NULL)
        return SIM_INVALID;
    if (break_capture(stream_of(s)) != SIM_OK)
        return SIM_CAPTURE;
    ask(s, RECORD);
    *(event *)e = (event){stream_of(s), stream_of(s)->asked};
    return asked();
}

/* Each look lets the device do one thing more: who polls gets there. */
int sim_event_query(void *e)
{
    const event *v = e;
    if (v == NULL)
        return SIM_INVALID;
    if (v->on == NULL || v->on->done >= v->seq)
        return sim_sticky();
    sim_open_arena(true);
    run_for(v->on);
    sim_open_arena(false);
    return sim_sticky() != SIM_OK ? sim_sticky() : SIM_NOT_READY;
}

int sim_event_sync(void *e)
{
    const event *v = e;
    if (v == NULL)
        return SIM_INVALID;
    return v->on != NULL ? finish(v->on, v->seq) : sim_sticky();
}

/* ---- kernels and graphs ---- */

int sim_launch(void *fn, const uint32_t grid[3], const uint32_t block[3], unsigned shared, void *p,
               void **params, void **extra)
{
    stream *s = stream_of(p);
    int k = (int)(uintptr_t)fn - 1;
    size_t bytes = sim_kernel_bytes(k);
    if (bytes == 0 || grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || grid[0] > 0x7fffffffu ||
        grid[1] > 65535 || grid[2] > 65535 || block[0] < 1 || block[0] > 1024 || block[1] != 1 ||
        block[2] != 1 || shared != 0 || extra != NULL || params == NULL || is_lost(p))
        return SIM_INVALID;
    if (sim_fault_now(SIM_FAULT_LAUNCH))
        return SIM_OK;
    if (sim_fault_now(SIM_FAULT_FREED))
        sim_free_first(params[0], bytes);
    item *i = s->capture != NULL ? add(&s->capture->last, LAUNCH) : ask(s, LAUNCH);
    i->kernel = k;
    i->lanes = (int)block[0];
    memcpy(i->grid, grid, sizeof(i->grid));
    i->own = malloc(bytes);
    if (i->own == NULL)
        abort();
    memcpy(i->own, params[0], bytes);
    i->bytes = bytes;
    return s->capture != NULL ? SIM_OK : asked();
}

API int sim_ask_gemm(const sim_gemm *g, void *s)
{
    int rc = sim_begin("gemm", false);
    if (rc == SIM_OK && break_capture(stream_of(s)) != SIM_OK)
        rc = SIM_CAPTURE;
    if (rc == SIM_OK) {
        item *i = ask(s, GEMM);
        i->own = malloc(sizeof(*g));
        if (i->own == NULL)
            abort();
        memcpy(i->own, g, sizeof(*g));
        gemms++;
        rc = asked();
    }
    return sim_end(rc);
}

API int sim_gemms(void)
{
    return gemms;
}

static graph *new_graph(void)
{
    graph *g = calloc(1, sizeof(*g));
    if (g == NULL)
        abort();
    g->last = &g->first;
    graphs++;
    return g;
}

int sim_capture_begin(void *p, int mode)
{
    stream *s = p;
    if (s == NULL || mode != 1 || s->capture != NULL)
        return SIM_INVALID;
    s->capture = new_graph();
    s->capturer = pthread_self();
    return SIM_OK;
}

int sim_graph_free(void *p)
{
    graph *g = p;
    if (g == NULL)
        return SIM_INVALID;
    while (g->first != NULL) {
        item *i = g->first;
        g->first = i->next;
        free_item(i);
    }
    free(g);
    graphs--;
    return SIM_OK;
}

int sim_capture_end(void *p, void **out)
{
    stream *s = p;
    *out = NULL;
    if (s == NULL || s->capture == NULL)
        return SIM_INVALID;
    graph *g = s->capture;
    s->capture = NULL;
    if (g->broken) {
        sim_graph_free(g);
        return SIM_CAPTURE_BROKEN;
    }
    *out = g;
    return SIM_OK;
}

static void copy_items(const graph *from, item ***last, stream *s)
{
    for (const item *i = from->first; i != NULL; i = i->next) {
        item *n = s != NULL ? ask(s, i->kind) : add(last, i->kind);
        n->kernel = i->kernel;
        n->lanes = i->lanes;
        memcpy(n->grid, i->grid, sizeof(n->grid));
        n->bytes = i->bytes;
        n->own = malloc(i->bytes);
        if (n->own == NULL)
            abort();
        memcpy(n->own, i->own, i->bytes);
    }
}

int sim_graph_build(void **exec, void *p)
{
    *exec = NULL;
    if (p == NULL)
        return SIM_INVALID;
    graph *g = new_graph();
    copy_items(p, &g->last, NULL);
    *exec = g;
    return SIM_OK;
}

int sim_graph_launch(void *exec, void *s)
{
    if (exec == NULL)
        return SIM_INVALID;
    copy_items(exec, NULL, stream_of(s));
    return asked();
}

int sim_graph_exec_free(void *exec)
{
    return sim_graph_free(exec);
}
