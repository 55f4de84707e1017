/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler half of the point-to-point connector: reads a request's hand-over fields, says how
 * much of its prompt is to be had elsewhere, orders the load, and keeps finished prompts for peers.
 *
 * Thread: sched stage only.  Owner: hy_pd.
 */
#include "core/base/alloc.h"
#include "core/base/log.h"
#include "core/connector/pd_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static pd_seq *find(hy_pd *p, uint64_t uid)
{
    pd_seq *s = p->seq[uid % PD_BUCKETS];
    while (s != NULL && s->uid != uid)
        s = s->chain;
    return s;
}

static void forget(hy_pd *p, pd_seq *s)
{
    pd_seq **at = &p->seq[s->uid % PD_BUCKETS];
    while (*at != s)
        at = &(*at)->chain;
    *at = s->chain;
    hy_free(s);
}

/* Commands have reserved room. False: the stage is gone or out of memory. */
static bool post(hy_pd *p, int kind, uint64_t arg, pd_cmd *c)
{
    const hy_msg m = {.kind = kind, .arg = arg, .data = c, .drop = hy_pd__cmd_free};
    if (hy_stage_post_reserved(p->stage, &m) == HY_OK)
        return true;
    hy_pd__cmd_free(c);
    return false;
}

static pd_cmd *cmd(hy_pd *p, const pd_seq *s)
{
    pd_cmd *c = hy_calloc(1, sizeof(*c));
    if (c != NULL) {
        c->uid = s->uid;
        c->h = s->h;
        c->at_ns = hy_stage_now(p->sched);
    }
    return c;
}

/* ---- a request has come ---- */

static void cannot(hy_pd *p, pd_seq *s, hy_status why, const char *text)
{
    s->bad = true;
    s->state = PS_FAILED;
    s->why = why;
    snprintf(s->text, sizeof(s->text), "%s", text);
    PD_COUNT(p, missed);
    hy_metric_inc(p->m.missed);
    hy_warn("connector", "sequence %" PRIu64 ": %s%s", s->uid, text,
            p->o.fail ? "" : "; its prompt is computed here");
}

/* Is what the reference names what this request needs? */
static void check_ref(hy_pd *p, pd_seq *s, const hy_conn_req *r)
{
    hy_handover *h = &s->h;
    uint8_t d[32];
    if (h->foreign) {
        cannot(p, s, HY_E_UNSUPPORTED,
               "kv_transfer_params do not say where the KV is (no halyard object): they are of "
               "another engine, or of a router that does not know the node's [peer.NAME] addrs");
        return;
    }
    if (strcmp(h->node, p->node) == 0) { /* prefix cache, here */
        if (h->epoch == p->epoch)
            (void)post(p, PD_RELEASE, h->lease, NULL);
        h->prefill = false;
        return;
    }
    if (h->push) {
        h->tokens = r->n_prompt;
    } else {
        hy_handover_digest(r->tokens, h->tokens <= r->n_tokens ? h->tokens : 0, r->rope_long, d);
        if (h->tokens > r->n_tokens || memcmp(d, h->prompt, 32) != 0) {
            cannot(p, s, HY_E_INVAL, "kv_transfer_params are of another prompt");
            return;
        }
    }
    if (h->has_first && (h->first.position != r->n_prompt || h->tokens < r->n_prompt))
        h->has_first = false;
    pd_cmd *c = cmd(p, s);
    if (c == NULL || !post(p, PD_ARRIVED, 0, c)) {
        cannot(p, s, HY_E_NOMEM, "the connector takes no loads");
        return;
    }
    s->told = true;
    s->state = PS_READY;
}

static void arrived(void *self, const hy_conn_req *r)
{
    hy_pd *p = self;
    if (r->handover == NULL || r->choice != 0)
        return; /* further choices share the first one's prompt */
    pd_seq *s = hy_calloc(1, sizeof(*s));
    if (s == NULL)
        return;
    s->uid = r->uid;
    s->chain = p->seq[r->uid % PD_BUCKETS];
    p->seq[r->uid % PD_BUCKETS] = s;
    const hy_status st = hy_handover_parse(r->handover, &s->h);
    if (st < 0) {
        const bool decode = s->h.decode;
        cannot(p, s, st, hy_fail_text());
        memset(&s->h, 0, sizeof(s->h));
        s->h.decode = decode;
    } else if (s->h.prefill) {
        check_ref(p, s, r);
    }
    if (s->h.decode)
        hy_handover_digest(r->tokens, r->n_prompt, r->rope_long, s->prompt);
}

static hy_status matched(void *self, const hy_conn_req *r, int32_t local, int32_t *n_out,
                         bool *async_out)
{
    hy_pd *p = self;
    const pd_seq *s = find(p, r->uid);
    *n_out = 0;
    *async_out = false;
    if (s == NULL)
        return HY_OK;
    if (s->bad && p->o.fail)
        return hy_fail(s->why, "%s", s->text);
    if (s->state != PS_READY)
        return HY_OK;
    const int32_t has = s->h.tokens < r->n_tokens ? s->h.tokens : r->n_tokens;
    *n_out = has > local ? has - local : 0;
    *async_out = *n_out > 0;
    return HY_OK;
}

static void drop_load(hy_pd *p, pd_seq *s)
{
    if (s->told)
        (void)post(p, PD_END, s->uid, NULL);
    s->told = false;
}

static void load_failed(hy_pd *p, pd_seq *s)
{
    const hy_conn_event ev = {.kind = HY_CONN_RECEIVED,
                              .uid = s->uid,
                              .status = HY_E_NOMEM,
                              .fatal = p->o.fail,
                              .text = "the connector takes no loads"};
    hy_conn_event *copy = hy_malloc(sizeof(*copy));
    HY_ASSERT(copy != NULL);
    *copy = ev;
    const hy_msg m = {.kind = HY_MSG_CONN_EVENT, .data = copy, .drop = hy_free};
    if (hy_stage_post_reserved(p->sched, &m) != HY_OK)
        hy_free(copy); /* the ledger's deadline asks again */
}

static void allocated(void *self, const hy_conn_req *r, const hy_conn_blocks *b, int32_t local,
                      int32_t n_ext, uint64_t *deadline_out)
{
    hy_pd *p = self;
    pd_seq *s = find(p, r->uid);
    if (s == NULL || s->state != PS_READY)
        return;
    if (n_ext <= 0) { /* all is here: not a byte, one release */
        s->state = PS_LOCAL;
        if (local >= s->h.tokens) {
            PD_COUNT(p, full_hits);
            hy_metric_inc(p->m.full_hits);
        }
        drop_load(p, s);
        return;
    }
    s->state = PS_LOADING;
    *deadline_out = hy_clock_after(hy_stage_now(p->sched), p->o.timeout_ns + 4 * p->o.grace_ns);
    pd_cmd *c = cmd(p, s);
    if (c == NULL || hy_pd__tab_copy(&c->tab, b) < 0) {
        hy_pd__cmd_free(c);
        load_failed(p, s);
        return;
    }
    c->local = local;
    c->n_ext = n_ext;
    /* the first row computed here is behind the prompt when its token comes along */
    const bool whole = local + n_ext >= r->n_prompt && (s->h.has_first || s->h.push);
    c->next = whole || local + n_ext < r->n_tokens ? local + n_ext : r->n_tokens - 1;
    if (s->h.push)
        hy_handover_digest(r->tokens, r->n_prompt, r->rope_long, c->prompt);
    else
        memcpy(c->prompt, s->h.prompt, sizeof(c->prompt));
    if (!post(p, PD_LOAD, 0, c))
        load_failed(p, s);
}

static void progressed(void *self, const hy_conn_event *ev, int32_t n)
{
    hy_pd *p = self;
    for (int32_t i = 0; i < n; i++) {
        pd_seq *s = ev[i].kind == HY_CONN_RECEIVED ? find(p, ev[i].uid) : NULL;
        if (s == NULL || s->state != PS_LOADING)
            continue;
        s->state = ev[i].status < 0 ? PS_FAILED : PS_LOADED;
        hy_debug("connector", "pd times lease=%016" PRIx64 " usable=%" PRIu64, s->h.lease,
                 hy_stage_now(p->sched));
        s->told = false;
        if (ev[i].first != NULL && !s->h.has_first) {
            s->h.has_first = true;
            s->h.first = *ev[i].first;
        }
    }
}

static void info(void *self, uint64_t uid, hy_conn_info *out)
{
    hy_pd *p = self;
    const pd_seq *s = find(p, uid);
    *out = (hy_conn_info){0};
    if (s == NULL || !s->h.prefill)
        return;
    out->remote = true;
    if (s->h.has_first && s->state != PS_FAILED)
        out->first = &s->h.first;
}

/* ---- keeping for a peer ---- */

static uint64_t new_lease(hy_pd *p)
{
    uint64_t id;
    while ((id = hy_rng_u64(&p->rng)) == 0)
        ;
    return id;
}

static bool put_lease(hy_pd *p, pd_seq *s, const hy_conn_req *r, const hy_conn_blocks *b, int kind,
                      int32_t n_step)
{
    pd_cmd *c = cmd(p, s);
    if (c == NULL || hy_pd__tab_copy(&c->tab, b) < 0) {
        hy_pd__cmd_free(c);
        return false;
    }
    c->req_id = r->req_id;
    c->tokens = r->computed;
    c->n_prompt = r->n_prompt;
    memcpy(c->prompt, s->prompt, sizeof(c->prompt));
    c->n_step = n_step;
    return post(p, kind, 0, c);
}

static void keep(hy_pd *p, pd_seq *s, const hy_conn_req *r, const hy_conn_blocks *b,
                 hy_conn_verdict *out)
{
    hy_handover h = {.tokens = r->computed, .epoch = p->epoch, .lease_ns = p->o.lease_ns};
    h.lease = s->h.push ? s->h.lease : s->h.asked != 0 ? s->h.asked : new_lease(p);
    snprintf(h.node, sizeof(h.node), "%s", p->node);
    snprintf(h.addrs, sizeof(h.addrs), "%s", p->addrs);
    if (r->computed != r->n_prompt) /* output, too: the next turn's prompt begins with it */
        hy_handover_digest(r->tokens, r->computed, r->rope_long, s->prompt);
    memcpy(h.prompt, s->prompt, sizeof(h.prompt));
    h.has_first = r->first != NULL && r->computed == r->n_prompt;
    if (h.has_first)
        h.first = *r->first;
    const bool push = s->h.push;
    s->h = h;
    s->h.push = push;
    if (!put_lease(p, s, r, b, PD_LEASE, 0)) { /* the peer computes the prompt itself */
        if (push)
            (void)post(p, PD_NOLEASE, s->h.lease, NULL);
        return;
    }
    char id[32];
    snprintf(id, sizeof(id), "%" PRIu64, r->req_id);
    const hy_kv_table *t = &b->table[0];
    const int32_t n = t->n < 4096 ? t->n : 4096;
    hy_buf_clear(&p->handover);
    hy_handover_write(&h, id, t->ids, n, &p->handover);
    out->keep = true;
    out->deadline_ns =
        hy_clock_after(hy_stage_now(p->sched), p->o.lease_ns + p->o.timeout_ns + p->o.grace_ns);
    out->handover = p->handover.failed ? NULL : hy_buf_str(&p->handover);
}

static void finished(void *self, const hy_conn_req *r, const hy_conn_blocks *b, bool completed,
                     hy_conn_verdict *out)
{
    hy_pd *p = self;
    pd_seq *s = find(p, r->uid);
    if (s == NULL)
        return;
    drop_load(p, s);
    if (s->h.decode && completed && r->computed > 0)
        keep(p, s, r, b, out);
    else if (s->h.decode && s->h.push)
        (void)post(p, PD_NOLEASE, s->h.lease, NULL);
    forget(p, s);
}

/* Push: more of a prompt is computed; the peer may have asked for it already. */
static void computed(void *self, const hy_conn_req *r, const hy_conn_blocks *b)
{
    hy_pd *p = self;
    pd_seq *s = find(p, r->uid);
    if (s == NULL || !s->h.decode || !s->h.push || s->bad || r->computed > r->n_prompt)
        return;
    atomic_store(&p->pushing, 0);
    (void)put_lease(p, s, r, b, PD_GROW, 0);
}

/* Push: its layers may go as the step writes them. */
static void computing(void *self, const hy_conn_req *r, const hy_conn_blocks *b, int32_t n)
{
    hy_pd *p = self;
    pd_seq *s = find(p, r->uid);
    if (s == NULL || !s->h.decode || !s->h.push || s->bad || !p->by_layer ||
        r->computed + n > r->n_prompt)
        return;
    if (put_lease(p, s, r, b, PD_STEP, n))
        atomic_fetch_add(&p->pushing, 1);
}

/* Blocks of an unfinished prompt went: what was pushed of them is void. */
static void *build_meta(void *self, const hy_conn_step *st)
{
    hy_pd *p = self;
    for (int32_t i = 0; i < st->n_preempted; i++) {
        pd_seq *s = find(p, st->preempted[i]);
        if (s == NULL || !s->h.decode || !s->h.push || s->bad)
            continue;
        (void)post(p, PD_VOID, s->h.lease, NULL);
        s->bad = true;
    }
    return NULL;
}

static void expired(void *self, uint64_t uid, hy_hold_kind kind)
{
    hy_pd *p = self;
    static char receive; /* any address: only a mark */
    const hy_msg m = {
        .kind = PD_EXPIRED, .arg = uid, .data = kind == HY_HOLD_RECEIVE ? (void *)&receive : NULL};
    (void)hy_stage_post_reserved(p->stage, &m);
}

const hy_conn_sched_ops hy_pd__sched_ops = {
    .size = sizeof(hy_conn_sched_ops),
    .arrived = arrived,
    .matched = matched,
    .allocated = allocated,
    .build_meta = build_meta,
    .progressed = progressed,
    .finished = finished,
    .expired = expired,
    .info = info,
    .computing = computing,
    .computed = computed,
};

void hy_pd__sched_free(hy_pd *p)
{
    for (int i = 0; i < PD_BUCKETS; i++)
        while (p->seq[i] != NULL)
            forget(p, p->seq[i]);
}
