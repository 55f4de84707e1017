/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of kernels as graphs. A list that comes a second time with the same arguments is captured;
 * from then on it is one call to the vendor. A decode step at one batch size is such a list: what
 * differs from step to step is staged to the same places.
 *
 * Thread: a queue's owner.  Owner: a queue's graphs live until gpu_graph_free_all.
 */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded" /* arguments are compared byte by byte */
#include "backends/simt/args.h"
#pragma GCC diagnostic pop

#include "backends/gpu/dev.h"

#include <string.h>

enum { THREAD_LOCAL = 1 }; /* capture mode of both vendors: other threads go on */

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    const char *s = p;
    for (; n >= 8; n -= 8, s += 8) {
        uint64_t v;
        memcpy(&v, s, sizeof(v));
        h = (h ^ v) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (; n > 0; n--, s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h;
}

static uint64_t hash_of(const gpu_list *l)
{
    uint64_t h = mix((uint64_t)l->n, l->items, (size_t)l->n * sizeof(*l->items));
    for (int i = 0; i < l->n; i++)
        h = mix(h, l->args + l->items[i].at, l->items[i].bytes);
    return h | 1;
}

static bool same(const gpu_list *a, const gpu_list *b)
{
    if (a->n != b->n || memcmp(a->items, b->items, (size_t)a->n * sizeof(*a->items)) != 0)
        return false;
    for (int i = 0; i < a->n; i++) {
        if (memcmp(a->args + a->items[i].at, b->args + b->items[i].at, a->items[i].bytes) != 0)
            return false;
    }
    return true;
}

static void free_graph(gpu_queue *q, gpu_graph *s)
{
    const gpu_dev *g = gpu_dev_of(q->base.dev);
    if (s->exec != NULL)
        g->v->calls->graph_exec_free(s->exec);
    gpu_list_fini(&s->list, (size_t)s->list.n, s->list.used);
    *s = (gpu_graph){0};
}

void gpu_graph_free_all(gpu_queue *q)
{
    for (int i = 0; i < GPU_GRAPHS; i++)
        free_graph(q, &q->graphs[i]);
}

/* The list's graph, or the place for it: the one used longest ago. */
static gpu_graph *find(gpu_queue *q, uint64_t hash)
{
    gpu_graph *old = &q->graphs[0];
    for (int i = 0; i < GPU_GRAPHS; i++) {
        if (q->graphs[i].hash == hash)
            return &q->graphs[i];
        if (q->graphs[i].last < old->last)
            old = &q->graphs[i];
    }
    return old;
}

/* Nothing runs while the list is captured. */
static hy_status capture(gpu_queue *q, void **exec)
{
    const gpu_dev *g = gpu_dev_of(q->base.dev);
    const gpu_calls *c = g->v->calls;
    void *graph = NULL;
    HY_TRY(gpu_did(g, c->capture_begin(q->stream, THREAD_LOCAL), "beginning a graph"));
    hy_status st = gpu_list_launch(q, &q->list);
    hy_status end = gpu_did(g, c->capture_end(q->stream, &graph), "ending a graph");
    if (st == HY_OK)
        st = end;
    if (st == HY_OK)
        st = gpu_did(g, c->graph_build(exec, graph, 0), "building a graph");
    if (graph != NULL)
        c->graph_free(graph);
    return st;
}

static hy_status keep(gpu_graph *s, const gpu_list *l)
{
    HY_TRY(gpu_list_init(&s->list, (size_t)l->n, l->used));
    memcpy(s->list.items, l->items, (size_t)l->n * sizeof(*l->items));
    memcpy(s->list.args, l->args, l->used);
    s->list.n = l->n;
    s->list.used = l->used;
    return HY_OK;
}

static hy_status make(gpu_queue *q, gpu_graph *s)
{
    hy_status st = keep(s, &q->list);
    if (st == HY_OK)
        st = capture(q, &s->exec);
    if (st != HY_OK) {
        s->exec = NULL;
        free_graph(q, s);
    }
    return st;
}

hy_status gpu_graph_run(gpu_queue *q)
{
    const gpu_dev *g = gpu_dev_of(q->base.dev);
    const gpu_calls *c = g->v->calls;
    if (q->no_graphs || q->list.n < GPU_GRAPH_OF)
        return HY_AGAIN;
    uint64_t hash = hash_of(&q->list);
    gpu_graph *s = find(q, hash);
    q->turn++;
    if (s->hash != hash || (s->exec != NULL && !same(&s->list, &q->list))) {
        if (s->exec != NULL) /* it may be running */
            HY_TRY(gpu_did(g, c->stream_sync(q->stream), "waiting for a stream"));
        free_graph(q, s);
        s->hash = hash;
        s->last = q->turn;
        return HY_AGAIN;
    }
    if (s->exec == NULL) {
        hy_status st = make(q, s);
        if (st == HY_E_DEVICE)
            return st;
        if (st != HY_OK) { /* nothing has run: go on without */
            q->no_graphs = true;
            return HY_AGAIN;
        }
    }
    s->last = q->turn;
    return gpu_did(g, c->graph_launch(s->exec, q->stream), "a graph of kernels");
}
