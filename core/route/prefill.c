/* SPDX-License-Identifier: Apache-2.0
 *
 * The first leg: one token of a prefill node, and what it says about the KV it holds.
 *
 * Thread: route stage.  Owner: the router; a flow frees itself with the end of its request.
 */
#include "core/http/json_out.h"
#include "core/route/flow_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void on_p_head(void *arg, const hy_wire_head *head)
{
    hy_flow *f = arg;
    f->p.status = head->status;
}

void hy_flow__disown(hy_flow *f)
{
    char params[64];
    if (f->lease == 0)
        return;
    snprintf(params, sizeof(params), "{\"halyard\":{\"lease\":\"%016" PRIx64 "\"}}", f->lease);
    f->lease = 0;
    hy_route__release(f->r, f->p.w, hy_buf_str(&f->headers), params);
}

void hy_flow__prefill_failed(hy_flow *f, bool elsewhere)
{
    const int status = f->p.status;
    f->p.status = 0;
    if (f->r->o.push) {
        /* what decode waits for will not come: let it begin again, alone */
        if (f->d.status != 0 || f->streaming)
            return;
        bool again = f->d.call != NULL;
        hy_worker *w = f->d.w;
        hy_leg__drop(&f->d);
        /* it was lost before it had answered: it may hold what nobody will ask for */
        if (f->params != NULL && status < 300 && f->owner->state != HY_WORKER_DOWN)
            hy_route__release(f->r, f->owner, hy_buf_str(&f->headers), f->params);
        free(f->params);
        f->params = NULL;
        f->owner = NULL;
        if (again)
            f->tried_d[w - f->r->workers] = false;
        hy_flow__decode(f);
        return;
    }
    if (elsewhere && f->left_p-- > 0)
        hy_flow__prefill(f);
    else
        hy_flow__decode(f);
}

static void on_p_body(void *arg, struct evbuffer *piece)
{
    hy_flow *f = arg;
    evbuffer_add_buffer(f->p.answer, piece);
    if (evbuffer_get_length(f->p.answer) <= f->r->o.max_answer_bytes)
        return;
    snprintf(f->last, sizeof(f->last), "%s: its answer is too long", f->p.w->name);
    hy_leg__drop(&f->p);
    hy_flow__disown(f);
    hy_flow__prefill_failed(f, false);
}

/* The object that prefill answered in kv_transfer_params, malloc'd; NULL: none. */
static char *params_of(struct evbuffer *answer)
{
    hy_body b;
    size_t len = evbuffer_get_length(answer);
    const char *s = (const char *)evbuffer_pullup(answer, -1);
    if (s == NULL || hy_body_parse(s, len, &b) < 0)
        return NULL;
    const hy_member *m = hy_body_find(&b, "kv_transfer_params");
    if (m == NULL || s[m->from] != '{')
        return NULL;
    return strndup(s + m->from, m->to - m->from);
}

static void on_p_end(void *arg, hy_client_fate fate, const char *why)
{
    hy_flow *f = arg;
    hy_worker *w = f->p.w;
    int status = f->p.status;
    hy_leg__over(&f->p);
    if (fate == HY_CLIENT_DONE || hy_flow__was_refused(fate))
        f->lease = 0; /* known from its answer, or never begun */
    if (fate != HY_CLIENT_DONE) {
        hy_flow__disown(f);
        hy_flow__blame(f, w, fate, why);
        hy_flow__prefill_failed(f, fate != HY_CLIENT_TIMED_OUT);
        return;
    }
    if (status < 200 || status > 299) {
        snprintf(f->last, sizeof(f->last), "%s: prefill answered %d", w->name, status);
        f->paired &= status == 429 || status >= 500; /* else decode says what is wrong with it */
        hy_flow__prefill_failed(f, status == 429 || status >= 500);
        return;
    }
    f->prefill_ns = hy_route__now(f->r) - f->t0_ns;
    hy_trace_again(f->r->o.trace, f->trace, HY_TRACE_P_DONE, hy_route__now(f->r));
    hy_metric_observe(f->r->mx_prefill, (double)f->prefill_ns / 1e9);
    if (f->r->o.push)
        return;
    f->params = params_of(f->p.answer);
    evbuffer_drain(f->p.answer, evbuffer_get_length(f->p.answer));
    f->owner = w;
    hy_flow__decode(f);
}

/* Push: the KV is named before it exists. */
static bool mint(hy_flow *f, hy_worker *p, hy_buf *for_p)
{
    hy_buf d;
    unsigned long long id = hy_rng_u64(hy_stage_rng(f->r->stage));
    hy_buf_init(&d);
    hy_buf_printf(for_p,
                  "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
                  "\"transfer_id\":\"%016llx\"}",
                  id);
    hy_buf_printf(&d,
                  "{\"do_remote_decode\":false,\"do_remote_prefill\":true,"
                  "\"transfer_id\":\"%016llx\",\"remote_engine_id\":",
                  id);
    const char *node = p->node[0] != '\0' ? p->node : p->name;
    hy_json_cstr(&d, node);
    hy_buf_puts(&d, ",\"remote_bootstrap_addr\":\"");
    hy_buf_put_url(&d, p->host, p->port);
    hy_buf_putc(&d, '"');
    if (p->addrs[0] != '\0') { /* how a Halyard node finds the owner (docs/PD.md) */
        hy_buf_puts(&d, ",\"halyard\":{\"v\":1,\"node\":");
        hy_json_cstr(&d, node);
        hy_buf_puts(&d, ",\"addrs\":");
        hy_json_cstr(&d, p->addrs);
        hy_buf_putc(&d, '}');
    }
    hy_buf_putc(&d, '}');
    free(f->params);
    f->params = hy_buf_take(&d);
    f->owner = p;
    return f->params != NULL && !for_p->failed;
}

/* Pull: a name for the lease, so that it can be given back without the answer that tells of it; and
 * how long a request may be where it goes then, so that none is begun that is refused there. (In
 * push mode that answer is there at once, and ends this leg.) */
static void name_lease(hy_flow *f, const hy_worker *p, hy_buf *for_p)
{
    const int32_t context = hy_route__context(f->r, p);
    f->lease = hy_rng_u64(hy_stage_rng(f->r->stage)) | 1;
    hy_buf_printf(for_p,
                  "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
                  "\"halyard\":{\"lease\":\"%016" PRIx64 "\"}",
                  f->lease);
    if (context > 0)
        hy_buf_printf(for_p, ",\"remote_context\":%d", context);
    hy_buf_putc(for_p, '}');
}

void hy_flow__prefill(hy_flow *f)
{
    static const hy_client_ops ops = {on_p_head, on_p_body, on_p_end};
    hy_route *r = f->r;
    hy_buf b, params;
    for (size_t i = 0; i < r->n_workers; i++) /* KV that nobody could take is not asked for */
        f->tried_p[i] |= !hy_route__has_taker(r, &r->workers[i]);
    hy_worker *w = hy_route__pick(r, HY_ROUTE_PREFILL, f->tried_p);
    if (w == NULL) {
        hy_flow__decode(f);
        return;
    }
    f->tried_p[w - r->workers] = true;
    hy_buf_init(&b);
    hy_buf_init(&params);
    bool ok = true;
    if (r->o.push)
        ok = mint(f, w, &params);
    else
        name_lease(f, w, &params);
    hy_body_prefill(&b, &f->body, &f->facts, hy_buf_str(&params));
    ok = ok && !b.failed &&
         hy_leg__send(f, &f->p, w, b.data, b.len, &ops, r->o.prefill_timeout_ns,
                      r->o.prefill_timeout_ns) == HY_OK;
    hy_buf_fini(&b);
    hy_buf_fini(&params);
    if (!ok)
        f->lease = 0;
    if (ok) {
        hy_metric_inc(r->mx_legs[LEG_PREFILL]);
        hy_trace_again(r->o.trace, f->trace, HY_TRACE_P_SENT, hy_route__now(r));
        hy_trace_name(r->o.trace, f->trace, HY_TRACE_P_NAME, w->name);
    }
    if (!ok || r->o.push)
        hy_flow__decode(f);
}
