/* SPDX-License-Identifier: Apache-2.0
 *
 * Subscription to one engine request: copies its events for the out stage.
 *
 * Thread: on_event on the engine's thread, take on the out stage.
 * Owner: the out stage destroys a sub after its last event.
 */
#include "core/http/http_int.h"

#include "core/base/log.h"

#include <stdlib.h>
#include <string.h>

hy_gone *hy_gone__create(void)
{
    hy_gone *g = calloc(1, sizeof(*g));
    if (g != NULL)
        atomic_store(&g->refs, 1);
    return g;
}

void hy_gone__unref(hy_gone *g)
{
    if (g != NULL && atomic_fetch_sub(&g->refs, 1) == 1)
        free(g);
}

hy_sub *hy_sub__create(hy_http *h, hy_call *c, uint32_t prompt)
{
    hy_sub *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return NULL;
    s->h = h;
    s->call = c;
    s->prompt = prompt;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

static void free_evs(hy_evs *e)
{
    free(e->ev);
    free(e->top_id);
    free(e->top_lp);
}

void hy_sub__destroy(hy_sub *s)
{
    if (s == NULL)
        return;
    free_evs(&s->in);
    free_evs(&s->taken);
    free(s->handover);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Room for n more events and n_top more alternatives. */
static bool room(hy_evs *e, size_t n, size_t n_top)
{
    if (e->n + n > e->cap) {
        size_t cap = (e->n + n) * 2 + 8;
        hy_ev *p = realloc(e->ev, cap * sizeof(*p));
        if (p == NULL)
            return false;
        e->ev = p;
        e->cap = cap;
    }
    if (e->n_top + n_top > e->cap_top) {
        size_t cap = (e->n_top + n_top) * 2 + 16;
        int32_t *a = realloc(e->top_id, cap * sizeof(*a));
        if (a == NULL)
            return false;
        e->top_id = a;
        float *b = realloc(e->top_lp, cap * sizeof(*b));
        if (b == NULL)
            return false;
        e->top_lp = b;
        e->cap_top = cap;
    }
    return true;
}

static void add_token(hy_evs *e, const hy_req_event *ev, int32_t i)
{
    const hy_token_out *t = &ev->tok[i];
    size_t n_top = t->n_top > 0 ? (size_t)t->n_top : 0;
    if (!room(e, 1, n_top)) {
        e->failed = true;
        return;
    }
    /* the token that ended a choice comes with its end */
    hy_req_event_kind kind = ev->kind == HY_REQ_FINISHED ? HY_REQ_TOKEN : ev->kind;
    e->ev[e->n++] = (hy_ev){.kind = kind,
                            .choice = ev->choice,
                            .pos = ev->first + i,
                            .id = t->id,
                            .rank = t->rank,
                            .lp = t->logprob,
                            .top_at = (uint32_t)e->n_top,
                            .n_top = (uint32_t)n_top,
                            .stop_id = -1};
    if (n_top != 0) {
        memcpy(e->top_id + e->n_top, t->top_ids, n_top * sizeof(*t->top_ids));
        memcpy(e->top_lp + e->n_top, t->top_lps, n_top * sizeof(*t->top_lps));
        e->n_top += n_top;
    }
}

/* Under the lock. The wake-up has a reserved slot: a sub posts one at most. */
static void wake(hy_sub *s, bool *post)
{
    *post = !s->posted;
    s->posted = true;
}

static void post_wake(hy_sub *s)
{
    hy_msg m = {.kind = HY_OUT_EVENTS, .data = s};
    hy_status st = hy_stage_post_reserved(s->h->out, &m);
    if (st != HY_OK)
        hy_error("http", "events of request %llu are lost: %s", (unsigned long long)s->req_id,
                 hy_status_name(st));
}

/* What went wrong in the engine, as a client may see it. */
static void error_of(hy_api_error *e, const hy_req_event *ev)
{
    const char *text = ev->error_text != NULL ? ev->error_text : "the engine failed";
    switch (ev->error) {
    case HY_E_INVAL:
    case HY_E_LIMIT:
    case HY_E_UNSUPPORTED:
        hy_api_bad(e, NULL, "%s", text);
        return;
    case HY_E_BUSY:
        hy_api_error_set(e, 503, "ServiceUnavailableError", NULL, "%s", text);
        e->retry_after_s = 1;
        return;
    case HY_E_TIMEOUT:
        hy_api_error_set(e, 504, "TimeoutError", NULL, "%s", text);
        return;
    default:
        hy_api_error_set(e, 500, "InternalServerError", NULL, "%s", text);
    }
}

void hy_sub__on_event(void *arg, const hy_req_event *ev)
{
    hy_sub *s = arg;
    bool post;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < ev->n_tok; i++)
        add_token(&s->in, ev, i);
    if (ev->kind == HY_REQ_FINISHED) {
        if (ev->finish == HY_FINISH_ERROR)
            error_of(&s->error, ev);
        if (ev->handover != NULL && s->handover == NULL)
            s->handover = strdup(ev->handover);
        /* room for the end is kept from the beginning, see hy_sub__take */
        if (room(&s->in, 1, 0))
            s->in.ev[s->in.n++] = (hy_ev){.kind = ev->kind,
                                          .choice = ev->choice,
                                          .finish = ev->finish,
                                          .stop_id = ev->stop_id,
                                          .n_cached = ev->n_cached,
                                          .n_output = ev->n_output,
                                          .last = ev->last};
        else
            s->in.failed = true;
    }
    wake(s, &post);
    pthread_mutex_unlock(&s->lock);
    if (post)
        post_wake(s);
}

void hy_sub__fail(hy_sub *s, const hy_api_error *e)
{
    hy_req_event ev = {.kind = HY_REQ_FINISHED,
                       .finish = HY_FINISH_ERROR,
                       .error = HY_E_INVAL,
                       .stop_id = -1,
                       .last = true};
    bool post;
    pthread_mutex_lock(&s->lock);
    s->error = *e;
    if (room(&s->in, 1, 0))
        s->in.ev[s->in.n++] =
            (hy_ev){.kind = ev.kind, .finish = ev.finish, .stop_id = -1, .last = true};
    wake(s, &post);
    pthread_mutex_unlock(&s->lock);
    if (post)
        post_wake(s);
}

void hy_sub__take(hy_sub *s)
{
    s->taken.n = 0;
    s->taken.n_top = 0;
    pthread_mutex_lock(&s->lock);
    hy_evs t = s->in;
    s->in = s->taken;
    s->in.failed = t.failed;
    s->taken = t;
    s->posted = false;
    pthread_mutex_unlock(&s->lock);
}
