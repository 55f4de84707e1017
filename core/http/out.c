/* SPDX-License-Identifier: Apache-2.0
 *
 * The out stage: tokens of the engine become text, stop strings are matched, answers and stream
 * pieces are written and handed to http. A piece that http's mailbox has no room for waits in the
 * call and grows there.
 *
 * Thread: out stage.  Owner: a call from HY_OUT_BEGIN until its last event.
 */
#include "core/http/out_int.h"

#include "core/base/log.h"
#include "core/http/json_out.h"
#include "core/http/tools.h"

#include <stdlib.h>
#include <string.h>

struct hy_out {
    hy_http *h;
    hy_call *stuck; /* calls with bytes that http's mailbox had no room for */
};

enum { RETRY_NS = 1000000 };

hy_status hy_out__create(hy_http *h)
{
    h->out_state = calloc(1, sizeof(*h->out_state));
    if (h->out_state == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory for the server");
    h->out_state->h = h;
    return HY_OK;
}

void hy_out__destroy(hy_out *o)
{
    free(o);
}

/* ---- to the client ---- */

/* One piece of the answer, or all of it: moves c->pend. */
static hy_status post_pend(hy_http *h, hy_call *c)
{
    hy_reply *r = hy_reply__create(c->id, c->failed && !c->started ? c->error.status : 200);
    if (r == NULL)
        return HY_AGAIN;
    r->stream = c->q.stream && !(c->failed && !c->started);
    r->end = c->pend_end;
    r->retry_after_s = c->error.retry_after_s;
    r->body = c->pend;
    hy_msg m = {.kind = HY_HTTP_REPLY, .data = r, .drop = hy_reply__destroy};
    hy_status st = c->pend_end ? hy_stage_post_reserved(h->http, &m) : hy_stage_post(h->http, &m);
    if (st == HY_AGAIN) {
        hy_buf_init(&r->body); /* the bytes stay with the call */
        hy_reply__destroy(r);
        return HY_AGAIN;
    }
    if (st != HY_OK)
        hy_reply__destroy(r);
    hy_buf_init(&c->pend);
    c->started = true;
    c->answered |= c->pend_end;
    return HY_OK;
}

/* HY_AGAIN: the call is in the list of those that wait. */
static void send_pend(hy_out *o, hy_call *c)
{
    if (c->answered || (c->pend.len == 0 && !c->pend_end) || c->stuck)
        return;
    if (post_pend(o->h, c) == HY_OK)
        return;
    c->stuck = true;
    c->next_stuck = o->stuck;
    o->stuck = c;
}

static void fail_call(hy_out *o, hy_call *c, const hy_api_error *e)
{
    if (c->failed || c->answered)
        return;
    c->failed = true;
    c->error = *e;
    for (size_t i = 0; i < c->n_prompts; i++) {
        if (c->subs[i] != NULL)
            hy_engine_abort(o->h->o.engine, c->subs[i]->req_id);
    }
    if (c->started) {
        hy_out__error_chunk(e, &c->pend);
    } else {
        hy_buf_clear(&c->pend);
        hy_reply__error_body(&c->pend, e);
    }
    c->pend_end = true;
}

/* ---- one choice ---- */

static bool add_id(hy_choice *x, int32_t id)
{
    if (x->n_ids == x->cap_ids) {
        size_t cap = x->cap_ids * 2 + 16;
        int32_t *p = realloc(x->ids, cap * sizeof(*p));
        if (p == NULL)
            return false;
        x->ids = p;
        x->cap_ids = cap;
    }
    x->ids[x->n_ids++] = id;
    return true;
}

static bool is_stop_token(const hy_http *h, const hy_api_req *q, int32_t id)
{
    for (size_t i = 0; i < q->n_stop_ids; i++) {
        if (q->stop_ids[i] == id)
            return true;
    }
    return !q->ignore_eos && hy_tok_is_eog(h->o.tok, id);
}

static void add_text(hy_choice *x, const hy_buf *s)
{
    if (s->len == 0)
        return;
    if (x->tools != NULL)
        hy_tools__push(x->tools, s->data, s->len, &x->text);
    else
        hy_buf_add(&x->text, s->data, s->len);
}

/* Whole characters into the stop matcher, and what it lets pass into the answer. */
static bool take_text(hy_call *c, hy_choice *x, const hy_buf *piece)
{
    hy_buf ready;
    hy_buf_init(&ready);
    bool arm = x->n_tok > c->q.min_tokens;
    bool hit =
        hy_stop_push(&x->stop, hy_buf_str(piece), piece->len, arm, c->q.include_stop, &ready);
    add_text(x, &ready);
    hy_buf_fini(&ready);
    return hit;
}

static void on_token(hy_out *o, hy_call *c, hy_sub *s, hy_choice *x, const hy_ev *ev)
{
    if (x->done)
        return; /* came after the stop string matched */
    x->n_tok++;
    bool stop = is_stop_token(o->h, &c->q, ev->id) && x->n_tok >= c->q.min_tokens;
    if (c->max_zero)
        return;
    bool ok = !c->q.return_token_ids || add_id(x, ev->id);
    if (c->q.logprobs)
        ok = ok && hy_lps__add(&x->lps, ev, &s->taken);
    if (!ok) {
        hy_api_error e;
        hy_api_error_set(&e, 500, "InternalServerError", NULL, "out of memory for the answer");
        fail_call(o, c, &e);
        return;
    }
    if (stop) {
        x->stop_token = ev->id;
        if (!c->q.include_stop || hy_tok_is_eog(o->h->o.tok, ev->id))
            return;
    }
    hy_buf piece;
    hy_buf_init(&piece);
    hy_detok_push(&x->detok, ev->id, &piece);
    if (take_text(c, x, &piece)) {
        x->done = true;
        x->finish = HY_FINISH_STOP;
        hy_engine_finish_choice(o->h->o.engine, s->req_id, ev->choice);
    }
    hy_buf_fini(&piece);
}

static void on_choice_end(hy_call *c, hy_choice *x, const hy_ev *ev)
{
    c->prompts[(size_t)(x - c->choices) / (size_t)c->q.n].n_cached = ev->n_cached;
    if (x->done)
        return;
    hy_buf piece;
    hy_buf_init(&piece);
    hy_detok_flush(&x->detok, &piece);
    bool hit = piece.len != 0 && take_text(c, x, &piece);
    x->finish = hit ? HY_FINISH_STOP : ev->finish;
    if (!hit) {
        hy_buf_clear(&piece);
        hy_stop_flush(&x->stop, &piece);
        add_text(x, &piece);
        if (ev->stop_id >= 0 && x->stop_token < 0 && !c->max_zero) {
            x->stop_token = ev->stop_id; /* was not reported as a token of its own */
            if (c->q.return_token_ids)
                add_id(x, ev->stop_id);
        }
        if (ev->n_output > x->n_tok)
            x->n_tok = ev->n_output;
    }
    hy_buf_fini(&piece);
    x->done = true;
}

static void on_event(hy_out *o, hy_call *c, hy_sub *s, const hy_ev *ev)
{
    size_t first = (size_t)s->prompt * (size_t)c->q.n;
    if (ev->kind == HY_REQ_PROMPT) {
        hy_lps__add(&c->choices[first].prompt_lps, ev, &s->taken);
        return;
    }
    if (ev->kind == HY_REQ_FINISHED && ev->finish == HY_FINISH_ERROR) {
        hy_api_error e = s->error;
        if (e.status == 0)
            hy_api_error_set(&e, 500, "InternalServerError", NULL, "the engine failed");
        fail_call(o, c, &e);
        return;
    }
    if (ev->choice < 0 || ev->choice >= c->q.n)
        return;
    hy_choice *x = &c->choices[first + (size_t)ev->choice];
    if (ev->kind == HY_REQ_TOKEN)
        on_token(o, c, s, x, ev);
    else
        on_choice_end(c, x, ev);
}

/* ---- stream pieces ---- */

static bool has_news(const hy_call *c, const hy_choice *x)
{
    if (x->text.len != 0 || (x->tools != NULL && hy_tools__pending(x->tools)))
        return true;
    return (c->q.logprobs && x->lps.n != 0) || (c->q.return_token_ids && x->n_ids != 0) ||
           (c->q.echo && !x->begun);
}

static void stream_choice(hy_out *o, hy_call *c, size_t i)
{
    hy_choice *x = &c->choices[i];
    if (x->closed)
        return;
    if (!x->begun && c->api == HY_API_CHAT) {
        hy_out__role_chunk(o->h, c, i, &c->pend);
        x->begun = true;
    }
    if (x->done && x->tools != NULL)
        hy_tools__finish(x->tools, &x->text);
    if (!x->done && !has_news(c, x))
        return;
    hy_out__chunk(o->h, c, i, x->done, &c->pend);
    x->begun = true;
    x->closed = x->done;
    hy_buf_clear(&x->text);
    x->n_ids = 0;
    hy_lps__clear(&x->lps);
}

static void end_stream(hy_out *o, hy_call *c)
{
    if (c->q.include_usage)
        hy_out__usage_chunk(o->h, c, &c->pend);
    hy_buf_puts(&c->pend, "data: [DONE]\n\n");
    c->pend_end = true;
}

static void end_whole(hy_out *o, hy_call *c)
{
    for (size_t i = 0; i < c->n_choices; i++) {
        if (c->choices[i].tools != NULL)
            hy_tools__finish(c->choices[i].tools, &c->choices[i].text);
    }
    hy_out__answer_json(o->h, c, &c->pend);
    c->pend_end = true;
}

/* ---- the stage ---- */

static void begin(hy_out *o, hy_call *c)
{
    hy_status st = HY_OK;
    c->n_choices = c->n_prompts * (size_t)c->q.n;
    c->choices = calloc(c->n_choices, sizeof(*c->choices));
    if (c->choices == NULL)
        c->n_choices = 0;
    bool skip = c->q.skip_special && !c->parse_tools;
    for (size_t i = 0; i < c->n_choices && st == HY_OK; i++) {
        hy_choice *x = &c->choices[i];
        hy_detok_init(&x->detok, o->h->o.tok, skip);
        x->stop_token = -1;
        st = hy_stop_init(&x->stop, &c->stops);
        if (st == HY_OK && c->parse_tools) {
            x->tools = hy_tools__create(c->q.tools, c->rid, i, c->q.parallel_tools);
            if (x->tools == NULL)
                st = HY_E_NOMEM;
        }
        if (!c->q.stream && c->echo != NULL)
            hy_buf_puts(&x->text, c->echo);
    }
    if (st == HY_OK && c->n_choices != 0)
        return;
    hy_api_error e;
    hy_api_error_set(&e, 500, "InternalServerError", NULL, "out of memory for the answer");
    fail_call(o, c, &e);
}

static void unstick(hy_out *o, hy_call *c)
{
    for (hy_call **p = &o->stuck; *p != NULL; p = &(*p)->next_stuck) {
        if (*p == c) {
            *p = c->next_stuck;
            return;
        }
    }
}

static void end_sub(hy_out *o, hy_call *c, hy_sub *s)
{
    c->subs[s->prompt] = NULL;
    c->prompts[s->prompt].handover = s->handover;
    s->handover = NULL;
    c->n_left--;
    atomic_fetch_sub(&o->h->n_subs, 1);
    hy_sub__destroy(s);
}

static void after_events(hy_out *o, hy_call *c, size_t first, size_t n)
{
    bool gone = atomic_load(&c->gone->gone);
    if (!gone && !c->failed && c->q.stream) {
        for (size_t i = first; i < first + n; i++)
            stream_choice(o, c, i);
    }
    if (!gone && !c->failed && c->n_left == 0) {
        if (c->q.stream)
            end_stream(o, c);
        else
            end_whole(o, c);
    }
    if (c->pend.failed && !gone && !c->answered) {
        hy_buf_fini(&c->pend);
        hy_buf_init(&c->pend);
        hy_error("http", "out of memory for the answer of %s", c->rid);
        c->pend_end = true; /* the answer ends short: the client sees it is not whole */
    }
    if (!gone)
        send_pend(o, c);
    if (c->n_left != 0 || (c->stuck && !gone))
        return;
    if (c->stuck)
        unstick(o, c);
    hy_call__destroy(c);
}

static void on_events(hy_out *o, hy_sub *s)
{
    hy_call *c = s->call;
    size_t first = (size_t)s->prompt * (size_t)c->q.n;
    bool last = false;
    hy_sub__take(s);
    if (s->taken.failed) {
        hy_api_error e;
        hy_api_error_set(&e, 500, "InternalServerError", NULL, "out of memory for events");
        fail_call(o, c, &e);
    }
    for (size_t i = 0; i < s->taken.n; i++) {
        const hy_ev *ev = &s->taken.ev[i];
        if (!c->failed && !atomic_load_explicit(&c->gone->gone, memory_order_relaxed))
            on_event(o, c, s, ev);
        last |= ev->last;
    }
    if (last)
        end_sub(o, c, s);
    after_events(o, c, first, c->n_choices != 0 ? (size_t)c->q.n : 0);
}

static hy_status on_msg(void *self, hy_msg *msg)
{
    hy_http *h = self;
    if (msg->kind == HY_OUT_BEGIN)
        begin(h->out_state, msg->data);
    else
        on_events(h->out_state, msg->data);
    return HY_OK;
}

static uint64_t on_idle(void *self, uint64_t now_ns)
{
    hy_out *o = ((hy_http *)self)->out_state;
    hy_call *c = o->stuck;
    o->stuck = NULL;
    while (c != NULL) {
        hy_call *next = c->next_stuck;
        bool gone = atomic_load(&c->gone->gone);
        c->stuck = false;
        if (!gone)
            send_pend(o, c);
        if (!c->stuck && c->n_left == 0)
            hy_call__destroy(c);
        c = next;
    }
    return o->stuck != NULL ? now_ns + RETRY_NS : HY_NEVER;
}

const hy_stage_ops hy_out__ops = {.on_msg = on_msg, .on_idle = on_idle};
