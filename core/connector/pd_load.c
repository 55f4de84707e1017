/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader's side: a load from arrival of its request to its one RECEIVED. The lease is renewed
 * from the start; the order (GET) goes out when the blocks are there; nothing of the landing is
 * used or given back before DONE, GONE, or the end of the link.
 *
 * Thread: connector stage only.  Owner: hy_pd.
 */
#include "core/base/alloc.h"
#include "core/base/log.h"
#include "core/connector/pd_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static void go_on(hy_pd *p, pd_load *l);

static pd_load *find(hy_pd *p, uint64_t uid)
{
    pd_load *l = p->load[uid % PD_BUCKETS];
    while (l != NULL && l->uid != uid)
        l = l->chain;
    return l;
}

/* A job's number says whose it is: 256 orders a load are far more than any has. */
static pd_load *find_job(hy_pd *p, const pd_peer *x, uint64_t job)
{
    pd_load *l = find(p, job >> 8);
    return l != NULL && l->job == job && l->peer == x ? l : NULL;
}

static bool in_flight(const pd_load *l)
{
    return l->state == PD_JOB || l->state == PD_CANCELLED;
}

/* ---- end ---- */

static void give_staging(hy_pd *p, pd_load *l)
{
    if (l->stage_bytes > 0) {
        hy_pd__stage_give(p, (char *)p->staging + l->stage_off, l->stage_bytes);
        p->staging_freed = true; /* others may wait for it: after this message */
    }
    l->stage_bytes = 0;
}

static void load_free(hy_pd *p, pd_load *l)
{
    pd_load **at = &p->load[l->uid % PD_BUCKETS];
    while (*at != l)
        at = &(*at)->chain;
    *at = l->chain;
    hy_pd__untimer(p, &l->timer);
    hy_pd__untimer(p, &l->hold_timer);
    hy_pd__tab_fini(&l->tab);
    hy_free(l->chunk);
    atomic_fetch_sub(&p->st.loads_open, 1);
    hy_free(l);
}

static bool link_fits(const pd_load *l)
{
    return l->peer != NULL && l->peer->up && l->peer->hello &&
           (l->h.epoch == 0 || l->peer->epoch == l->h.epoch);
}

static void send_lease(hy_pd *p, const pd_load *l, hy_pdp_kind kind)
{
    const hy_pdp_msg m = {.kind = kind, .lease = l->h.lease, .flags = l->h.push ? HY_PDP_PUSH : 0};
    hy_pd__send(p, l->peer, &m);
}

static void count_end(hy_pd *p, const pd_load *l)
{
    const double s = (double)(l->t_done - l->t_alloc) / 1e9;
    hy_metric_add(p->m.bytes_in, (double)l->bytes);
    atomic_fetch_add(&p->st.bytes_in, l->bytes);
    atomic_fetch_add(&p->st.tokens_in, (uint64_t)l->at);
    if (l->status == HY_OK) {
        PD_COUNT(p, received);
        hy_metric_observe(p->m.seconds, s);
    } else if (l->status == HY_E_ABORTED) {
        PD_COUNT(p, aborted);
    } else if (l->corrupt) {
        PD_COUNT(p, corrupt);
        hy_metric_inc(p->m.corrupt);
    } else if (l->missed) {
        PD_COUNT(p, missed);
        hy_metric_inc(p->m.missed);
    } else {
        PD_COUNT(p, failed);
        if (l->expired)
            PD_COUNT(p, expired);
        hy_metric_inc(p->m.failed);
    }
    hy_log(l->status == HY_OK || l->status == HY_E_ABORTED ? HY_LOG_DEBUG : HY_LOG_WARN,
           "connector",
           "pd seq %llu from %s: local %d, moved %d of %d tokens, arrived to blocks %.1f ms, "
           "waited %.1f ms, transfer %.1f ms, %.2f MB: %s",
           (unsigned long long)l->uid, l->h.node, l->local, l->at, l->n_ext,
           (double)(l->t_alloc - l->t_arrived) / 1e6,
           l->t_get > 0 ? (double)(l->t_get - l->t_alloc) / 1e6 : s * 1e3,
           l->t_get > 0 ? (double)(l->t_done - l->t_get) / 1e6 : 0.0, (double)l->bytes / 1e6,
           l->status == HY_OK ? "ok" : l->text);
    if (l->status == HY_OK) /* for tools/bench/handover */
        hy_debug("connector",
                 "pd times lease=%016" PRIx64 " arrived=%" PRIu64 " blocks=%" PRIu64 " get=%" PRIu64
                 " done=%" PRIu64,
                 l->h.lease, l->t_arrived, l->t_alloc, l->t_get, l->t_done);
}

/* Nothing of it is in flight: tell sched, release the lease, forget it. */
static void finish(hy_pd *p, pd_load *l)
{
    give_staging(p, l);
    l->t_done = hy_pd__now(p);
    for (int32_t g = 0; g < p->o.n_groups && l->status < 0; g++)
        if (p->windows[g] > 0)
            l->at = 0; /* windows were moved for rows behind the whole load only */
    if (l->loading) {
        count_end(p, l);
        hy_conn_event ev = {.kind = HY_CONN_RECEIVED,
                            .uid = l->uid,
                            .valid = l->at,
                            .start_ns = l->t_get,
                            .end_ns = l->t_done,
                            .bytes = l->bytes,
                            .status = l->status,
                            .fatal = l->status < 0 && p->o.fail};
        snprintf(ev.text, sizeof(ev.text), "%s", l->text);
        hy_pd__report(p, &ev, l->status == HY_OK && l->has_first ? &l->first : NULL);
    }
    if (link_fits(l))
        send_lease(p, l, HY_PDP_RELEASE);
    load_free(p, l);
}

static void set_why(pd_load *l, hy_status st, const char *text)
{
    if (l->status < 0)
        return; /* the first reason is the reason */
    l->status = st;
    snprintf(l->text, sizeof(l->text), "%.119s", text);
}

static void fence(hy_pd *p, pd_load *l)
{
    l->state = PD_FENCING;
    hy_pd__untimer(p, &l->timer);
    hy_warn("connector", "link with %s is cut, to fence the load of sequence %llu: %s", l->h.node,
            (unsigned long long)l->uid, l->text);
    hy_fab_disconnect(p->fab, l->peer->fab); /* EV_DOWN ends it */
}

/* It is not wanted, or cannot be had. */
static void give_up(hy_pd *p, pd_load *l, hy_status st, const char *text)
{
    set_why(l, st, text);
    switch (l->state) {
    case PD_JOB: {
        const hy_pdp_msg m = {.kind = HY_PDP_CANCEL, .job = l->job};
        hy_pd__send(p, l->peer, &m);
        l->state = PD_CANCELLED;
        hy_pd__timer(p, hy_clock_after(hy_pd__now(p), p->o.grace_ns), PD_T_LOAD, l->uid, &l->timer);
        break;
    }
    case PD_CANCELLED:
    case PD_FENCING:
        break;
    case PD_HELD:
    case PD_WAIT:
    case PD_OVER:
        finish(p, l);
        break;
    }
}

/* ---- begin ---- */

void hy_pd__load_arrived(hy_pd *p, pd_cmd *c)
{
    pd_load *l = hy_calloc(1, sizeof(*l));
    if (l == NULL)
        return; /* its load will not be found and fail */
    l->uid = c->uid;
    l->h = c->h;
    l->t_arrived = c->at_ns;
    l->chain = p->load[l->uid % PD_BUCKETS];
    p->load[l->uid % PD_BUCKETS] = l;
    atomic_fetch_add(&p->st.loads_open, 1);
    l->peer = hy_pd__peer(p, l->h.node, l->h.addrs);
    if (l->peer == NULL)
        return;
    if (link_fits(l)) /* mostly the order is the next message, and renews it, too */
        hy_pd__timer(p, hy_pd__now(p) + HY_MS, PD_T_HOLD, l->uid, &l->hold_timer);
    else
        hy_pd__load_hold(p, l->uid);
}

static void hold_later(hy_pd *p, pd_load *l)
{
    const uint64_t term = l->h.lease_ns > 0 ? l->h.lease_ns : p->o.lease_ns;
    hy_pd__timer(p, hy_clock_after(hy_pd__now(p), term / 3), PD_T_HOLD, l->uid, &l->hold_timer);
}

/* Renew the lease and come again. */
void hy_pd__load_hold(hy_pd *p, uint64_t uid)
{
    pd_load *l = find(p, uid);
    if (l == NULL || l->state == PD_FENCING)
        return;
    if (link_fits(l)) {
        send_lease(p, l, HY_PDP_HOLD);
    } else if (!l->peer->up) {
        (void)hy_pd__connect(p, l->peer);
    }
    hold_later(p, l);
}

void hy_pd__load_start(hy_pd *p, pd_cmd *c)
{
    pd_load *l = find(p, c->uid);
    if (l == NULL || l->state != PD_HELD) {
        const hy_conn_event ev = {.kind = HY_CONN_RECEIVED,
                                  .uid = c->uid,
                                  .status = HY_E_NOMEM,
                                  .fatal = p->o.fail,
                                  .text = "no memory for the load"};
        hy_pd__report(p, &ev, NULL);
        return;
    }
    PD_COUNT(p, loads);
    l->tab = c->tab;
    memset(&c->tab, 0, sizeof(c->tab));
    l->local = c->local;
    l->n_ext = c->n_ext;
    l->next = c->next;
    memcpy(l->h.prompt, c->prompt, sizeof(l->h.prompt));
    l->loading = true;
    l->state = PD_WAIT;
    l->t_alloc = c->at_ns;
    hy_pd__timer(p, hy_clock_after(l->t_alloc, p->o.timeout_ns), PD_T_LOAD, l->uid, &l->timer);
    go_on(p, l);
}

static int32_t gcd(int32_t a, int32_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

/* Tokens of the next order: all that is left, but for what its message could not list. */
static int32_t order_size(const hy_pd *p, const pd_load *l)
{
    const int32_t left = l->n_ext - l->at, t0 = l->local + l->at, bt = l->tab.block_tokens;
    const int64_t most = (int64_t)(HY_PDP_IDS_MAX / p->o.n_groups - 2) * bt;
    if (left <= most)
        return left;
    const int32_t theirs = l->peer->desc.g[0].layout.block_tokens;
    const int64_t unit = (int64_t)bt / gcd(bt, theirs) * theirs;
    const int64_t end = (t0 + most) / unit * unit;
    return end > t0 ? (int32_t)(end - t0) : (int32_t)most;
}

/* False: no staging now. */
static bool take_landing(hy_pd *p, pd_load *l, const hy_kv_want *w)
{
    l->slot_bytes = l->n_slots = 0;
    l->near = false;
    const size_t piece = hy_kv_plan_piece_max(l->peer->take);
    if (piece == 0 || hy_kv_plan_total(l->peer->take, w).staged == 0)
        return true;
    l->slot_bytes = (uint32_t)((piece + 63) / 64 * 64);
    l->near = l->peer->near != NULL;
    if (l->near) {
        l->n_slots = PD_NEAR_SLOTS;
        return true;
    }
    const size_t room = hy_pd__stage_free(p, true);
    for (uint32_t n = PD_SLOTS; n > 0; n /= 2) {
        if (n > 2 && 2 * (size_t)n * l->slot_bytes > room)
            continue; /* others are to find some, too */
        void *at = hy_pd__stage_take(p, (size_t)n * l->slot_bytes, true);
        if (at == NULL)
            continue;
        l->stage_off = (size_t)((char *)at - (char *)p->staging);
        l->stage_bytes = (size_t)n * l->slot_bytes;
        l->n_slots = n;
        return true;
    }
    return false;
}

static bool add_chunk(pd_load *l, const pd_chunk *add)
{
    pd_chunk *c = hy_realloc(l->chunk, (size_t)(l->n_chunks + 1) * sizeof(*c));
    if (c == NULL)
        return false;
    l->chunk = c;
    c[l->n_chunks++] = *add;
    return true;
}

static hy_kv_want want_of(const pd_load *l, int32_t i)
{
    const pd_chunk *c = &l->chunk[i];
    return (hy_kv_want){.t0 = c->t0,
                        .n = c->n,
                        .group = c->group,
                        .n_groups = c->groups,
                        .layer0 = c->layer0,
                        .n_layers = c->layers,
                        .next = l->next,
                        .tail_free = true};
}

/* The next piece in the owner's order: chunk after chunk, as it told them. */
static bool next_piece(pd_load *l, hy_kv_piece *out)
{
    while (l->n_begun == 0 || !hy_kv_plan_next(&l->iter, out)) {
        if (l->n_begun == l->n_chunks)
            return false;
        const hy_kv_want w = want_of(l, l->n_begun++);
        l->iter = hy_kv_plan_begin(l->peer->take, &w);
    }
    l->index++;
    return true;
}

static void send_get(hy_pd *p, pd_load *l)
{
    const int32_t bt = l->tab.block_tokens, t0 = l->local + l->at;
    const int32_t b0 = t0 / bt, b1 = (t0 + l->now_n + bt - 1) / bt;
    const uint64_t left = hy_clock_after(l->t_alloc, p->o.timeout_ns) - hy_pd__now(p);
    hy_pdp_msg m = {.kind = HY_PDP_GET,
                    .flags = (p->o.verify ? HY_PDP_VERIFY : 0) | (l->h.push ? HY_PDP_PUSH : 0) |
                             (l->near ? HY_PDP_NEAR : 0),
                    .lease = l->h.lease,
                    .job = l->job,
                    .t0 = t0,
                    .n = l->now_n,
                    .next = l->next,
                    .stage_off = l->near ? 0 : l->stage_off,
                    .slot_bytes = l->slot_bytes,
                    .n_slots = l->n_slots,
                    .plan = hy_kv_plan_digest(l->peer->take),
                    .wait_ns = left < p->o.timeout_ns ? left : p->o.timeout_ns,
                    .n_groups = l->tab.n_groups,
                    .first_block = b0,
                    .n_ids = b1 - b0};
    memcpy(m.prompt, l->h.prompt, sizeof(m.prompt));
    bool ok = true;
    for (int32_t g = 0; g < m.n_groups; g++) {
        m.ids[g] = hy_malloc((size_t)m.n_ids * sizeof(int32_t) + 4);
        ok = ok && m.ids[g] != NULL;
        for (int32_t i = 0; ok && i < m.n_ids; i++) /* windows: what is past has no block */
            m.ids[g][i] = b0 + i < l->tab.n[g] ? l->tab.ids[g][b0 + i] : -1;
    }
    if (ok)
        hy_pd__send(p, l->peer, &m);
    hy_pdp_fini(&m); /* not sent: the deadline ends it */
}

static void order(hy_pd *p, pd_load *l)
{
    l->now_n = order_size(p, l);
    const hy_kv_want w = {
        .t0 = l->local + l->at, .n = l->now_n, .next = l->next, .tail_free = true};
    if (hy_kv_want_check(l->peer->take, &w) < 0) {
        give_up(p, l, HY_E_INVAL, hy_fail_text());
        return;
    }
    l->n_chunks = l->n_begun = 0;
    memset(l->cover, 0, sizeof(l->cover));
    if (!take_landing(p, l, &w))
        return; /* WAIT, until staging is given back */
    if (!l->h.push && !add_chunk(l, &(pd_chunk){.t0 = w.t0, .n = w.n})) {
        give_up(p, l, HY_E_NOMEM, "no memory for the load");
        return;
    }
    l->job = (l->job == 0 ? l->uid << 8 : l->job) + 1;
    l->digest = l->index = 0;
    l->n_pieces = l->landed = 0;
    l->state = PD_JOB;
    if (l->t_get == 0)
        l->t_get = hy_pd__now(p);
    l->h.epoch = l->peer->epoch; /* push: a later start will not hear of this request */
    send_get(p, l);
    hold_later(p, l);
}

/* A waiting load: is the link there? */
static void go_on(hy_pd *p, pd_load *l)
{
    pd_peer *x = l->peer;
    if (l->lost || x == NULL) {
        l->missed = true;
        give_up(p, l, HY_E_NOTFOUND, "the owner does not have it any more");
    } else if (x->up && x->refused[0] != '\0') {
        give_up(p, l, HY_E_UNSUPPORTED, x->refused);
    } else if (x->up && l->h.epoch != 0 && x->epoch != l->h.epoch) {
        l->missed = true;
        give_up(p, l, HY_E_NOTFOUND, "the owner was started anew since");
    } else if (x->up && x->hello && x->take == NULL) {
        give_up(p, l, HY_E_UNSUPPORTED, "no copy plan for this direction");
    } else if (x->up && x->hello) {
        order(p, l);
    } else if (!x->up && !hy_pd__connect(p, x)) {
        give_up(p, l, HY_E_PEER, "the owner cannot be reached");
    }
}

/* ---- what moves it on ---- */

#define EACH_LOAD(p, l, next)                                                                      \
    for (int b_ = 0; b_ < PD_BUCKETS; b_++)                                                        \
        for (pd_load *l = (p)->load[b_], *next = NULL; l != NULL && (next = l->chain, true);       \
             l = next)

void hy_pd__load_link(hy_pd *p, pd_peer *x)
{
    EACH_LOAD(p, l, next)
    {
        if (l->peer != x)
            continue;
        if (l->state == PD_HELD && link_fits(l))
            send_lease(p, l, HY_PDP_HOLD);
        else if (l->state == PD_WAIT)
            go_on(p, l);
        else if (l->state == PD_JOB && x->refused[0] != '\0')
            give_up(p, l, HY_E_UNSUPPORTED, x->refused);
        else if (l->state == PD_OVER)
            finish(p, l);
    }
}

void hy_pd__loads_staging(hy_pd *p)
{
    if (!p->staging_freed)
        return;
    p->staging_freed = false;
    EACH_LOAD(p, l, next)
    {
        if (l->state == PD_WAIT && link_fits(l))
            go_on(p, l);
    }
}

/* The fabric has fenced what was in flight: what is still wanted may be ordered again. */
static bool order_again(hy_pd *p, pd_load *l)
{
    if ((l->state != PD_WAIT && l->state != PD_JOB) || l->status < 0 || l->retries >= PD_RETRIES)
        return false;
    l->retries++;
    give_staging(p, l);
    l->state = PD_WAIT;
    go_on(p, l);
    return true;
}

void hy_pd__load_down(hy_pd *p, pd_peer *x, const char *why, bool again)
{
    char text[120];
    snprintf(text, sizeof(text), "%s", why);
    EACH_LOAD(p, l, next)
    {
        if (l->peer != x || l->state == PD_HELD || (again && order_again(p, l)))
            continue;
        set_why(l, HY_E_PEER, text);
        finish(p, l);
    }
}

void hy_pd__load_end(hy_pd *p, uint64_t uid)
{
    pd_load *l = find(p, uid);
    if (l == NULL)
        return; /* it ended by itself */
    if (l->state == PD_HELD) {
        l->state = PD_OVER;
        l->t_alloc = l->t_done = hy_pd__now(p);
        if (link_fits(l) || l->peer == NULL || (!l->peer->up && !l->peer->connecting))
            finish(p, l);
        else
            hy_pd__timer(p, hy_clock_after(l->t_done, p->o.timeout_ns), PD_T_LOAD, uid, &l->timer);
        return;
    }
    give_up(p, l, HY_E_ABORTED, "the request has ended");
}

void hy_pd__load_timer(hy_pd *p, uint64_t uid)
{
    pd_load *l = find(p, uid);
    if (l == NULL)
        return;
    if (l->state == PD_CANCELLED)
        fence(p, l);
    else if (l->state != PD_HELD && l->state != PD_FENCING)
        give_up(p, l, HY_E_TIMEOUT, "the load took too long");
}

/* ---- answers ---- */

void hy_pd__on_held(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    if (m->status == HY_OK)
        return;
    EACH_LOAD(p, l, next)
    {
        if (l->peer != x || l->h.lease != m->lease || l->h.push)
            continue;
        l->lost = true;
        if (l->state == PD_WAIT)
            go_on(p, l);
    }
}

void hy_pd__on_chunk(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    pd_load *l = find_job(p, x, m->job);
    if (l == NULL || l->state != PD_JOB || !l->h.push) {
        PD_COUNT(p, late);
        return;
    }
    const pd_chunk c = {m->t0, m->n, m->group, m->groups, m->layer0, m->layers};
    const int32_t from = l->local + l->at, end = from + l->now_n;
    const hy_kv_want w = {.t0 = c.t0,
                          .n = c.n,
                          .group = c.group,
                          .n_groups = c.groups,
                          .layer0 = c.layer0,
                          .n_layers = c.layers};
    if (c.t0 < from || c.n > end - c.t0 || hy_kv_want_check(x->take, &w) < 0 ||
        (c.groups == 0 && (c.group != 0 || c.layer0 != 0 || c.layers != 0)) ||
        (c.groups == 1 && c.layers == 0) || !add_chunk(l, &c)) {
        give_up(p, l, HY_E_PROTOCOL, "a chunk that was not asked for");
        return;
    }
    for (int32_t g = 0; g < p->o.n_groups; g++) {
        if (c.groups == 0)
            l->cover[g] += (int64_t)c.n * p->desc.g[g].layout.n_layers;
        else if (g == c.group)
            l->cover[g] += (int64_t)c.n * c.layers;
    }
}

static hy_kv_blocks own_blocks(const pd_load *l, int32_t g)
{
    return (hy_kv_blocks){l->tab.ids[g], l->tab.n[g]};
}

static bool next_packed(pd_load *l, hy_kv_piece *out)
{
    bool some;
    do
        some = next_piece(l, out);
    while (some && out->direct);
    return some;
}

static hy_status unpack(hy_pd *p, pd_load *l, char *at, uint64_t room)
{
    hy_kv_piece c;
    if (!next_packed(l, &c) || c.bytes > room)
        return hy_fail(HY_E_PROTOCOL, "a piece that is not in the plan");
    if (p->o.verify)
        l->digest += XXH64(at, c.bytes, l->index - 1);
    hy_kv_copy k;
    hy_dev *d = p->o.dev;
    HY_TRY(d->ops->acquire_remote(p->queue));
    void *from = p->bounce != NULL ? p->bounce : at;
    if (from != at)
        HY_TRY(d->ops->copy(p->queue, from, at, c.bytes));
    HY_TRY(
        hy_kv_piece_unpack(l->peer->take, &c, &p->pool[c.group], own_blocks(l, c.group), from, &k));
    HY_TRY(d->math->kv_unpack(p->queue, &k));
    return d->ops->queue_wait(p->queue);
}

static void ack(hy_pd *p, const pd_load *l)
{
    const hy_pdp_msg a = {.kind = HY_PDP_ACK, .job = l->job, .index = l->n_pieces};
    hy_pd__send(p, l->peer, &a);
}

/* False: it was given up. */
static bool take_piece(hy_pd *p, pd_load *l, char *at, uint64_t room)
{
    if (unpack(p, l, at, room) == HY_OK) {
        l->n_pieces++;
        return true;
    }
    char why[120];
    snprintf(why, sizeof(why), "%.119s", hy_fail_text());
    give_up(p, l, HY_E_PROTOCOL, why);
    return false;
}

/* A packed piece is in its slot. Pieces are unpacked in order, whatever order their writes ended
 * in; the owner hears of it when half of the slots are free again. */
void hy_pd__on_imm(hy_pd *p, pd_peer *x, uint64_t imm)
{
    pd_load *l = find_job(p, x, imm >> 16);
    const uint32_t ahead = l != NULL ? (uint32_t)(imm - l->n_pieces) & 0xffff : 0;
    if (l == NULL || l->state != PD_JOB || ahead >= l->n_slots) {
        PD_COUNT(p, late);
        return;
    }
    const uint32_t half = l->n_slots > 1 ? l->n_slots / 2 : 1;
    l->landed |= UINT32_C(1) << ((l->n_pieces + ahead) % l->n_slots);
    for (;;) {
        const uint32_t bit = UINT32_C(1) << (l->n_pieces % l->n_slots);
        if ((l->landed & bit) == 0)
            return;
        l->landed &= ~bit;
        const size_t slot = l->n_pieces % l->n_slots * (size_t)l->slot_bytes;
        if (!take_piece(p, l, (char *)p->staging + l->stage_off + slot, l->slot_bytes))
            return;
        if (l->n_pieces % half == 0)
            ack(p, l);
    }
}

/* A packed piece stands in the owner's staging, which may use it anew after the ACK. Of the last
 * one the owner hears at once, since its DONE waits for it. */
void hy_pd__on_piece(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    pd_load *l = find_job(p, x, m->job);
    if (l == NULL || l->state != PD_JOB || !l->near) {
        PD_COUNT(p, late);
        return;
    }
    if (m->index != l->n_pieces || m->stage_off > x->near_len || m->stage_off % 64 != 0) {
        give_up(p, l, HY_E_PROTOCOL, "a piece that was not asked for");
        return;
    }
    if (!take_piece(p, l, (char *)x->near + m->stage_off, x->near_len - m->stage_off))
        return;
    pd_load ahead = *l;
    hy_kv_piece c;
    if (l->n_pieces % (PD_SLOTS / 2) == 0 || !next_packed(&ahead, &c))
        ack(p, l);
}

/* Adds the digests of the pieces that landed in the cache itself. */
static hy_status digest_direct(hy_pd *p, pd_load *l, uint64_t *sum)
{
    const hy_kv_plan *plan = l->peer->take;
    uint64_t index = 0;
    for (int32_t i = 0; i < l->n_chunks; i++) {
        const hy_kv_want w = want_of(l, i);
        hy_kv_iter it = hy_kv_plan_begin(plan, &w);
        hy_kv_piece c;
        while (hy_kv_plan_next(&it, &c)) {
            const uint64_t seed = index++;
            if (!c.direct)
                continue;
            uint64_t hash = 0;
            HY_TRY(hy_pd__hash_direct(p, plan, &c, own_blocks(l, c.group), false, seed, &hash));
            *sum += hash;
        }
    }
    return HY_OK;
}

static hy_status accept(hy_pd *p, pd_load *l, const hy_pdp_msg *m)
{
    if (m->index != l->n_pieces || m->valid != l->now_n)
        return hy_fail(HY_E_PROTOCOL, "%u pieces of %u, %d tokens of %d came", l->n_pieces,
                       m->index, m->valid, l->now_n);
    if (l->h.push && l->at + l->now_n >= l->n_ext && (m->flags & HY_PDP_FIRST) == 0)
        return hy_fail(HY_E_PROTOCOL, "the owner ended without a first token");
    for (int32_t g = 0; g < p->o.n_groups && l->h.push; g++)
        if (l->cover[g] != (int64_t)l->now_n * p->desc.g[g].layout.n_layers)
            return hy_fail(HY_E_PROTOCOL, "group %d: not all layers of all tokens were sent", g);
    HY_TRY(p->o.dev->ops->acquire_remote(p->queue));
    if (!p->o.verify)
        return HY_OK;
    uint64_t sum = l->digest;
    HY_TRY(digest_direct(p, l, &sum));
    if (sum == m->digest)
        return HY_OK;
    l->corrupt = true;
    return hy_fail(HY_E_IO, "the bytes that came are not those that were sent");
}

void hy_pd__on_done(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    pd_load *l = find_job(p, x, m->job);
    if (l == NULL || !in_flight(l)) {
        PD_COUNT(p, late);
        return;
    }
    if ((m->flags & HY_PDP_UNKNOWN) != 0) {
        set_why(l, m->status < 0 ? m->status : HY_E_PEER, m->text);
        fence(p, l);
        return;
    }
    if (l->state == PD_CANCELLED) { /* it crossed the CANCEL: nothing is in flight any more */
        finish(p, l);
        return;
    }
    l->state = PD_WAIT;
    if (m->status < 0) {
        l->missed = m->status == HY_E_NOTFOUND;
        l->expired = m->status == HY_E_TIMEOUT;
        give_up(p, l, m->status == HY_E_ABORTED ? HY_E_PEER : m->status, m->text);
        return;
    }
    if (accept(p, l, m) < 0) {
        char why[120];
        snprintf(why, sizeof(why), "%.119s", hy_fail_text());
        give_up(p, l, l->corrupt ? HY_E_IO : HY_E_PROTOCOL, why);
        return;
    }
    l->bytes += m->bytes;
    l->at += l->now_n;
    if ((m->flags & HY_PDP_FIRST) != 0) {
        l->has_first = true;
        l->first = m->first;
    }
    give_staging(p, l);
    if (l->at >= l->n_ext) {
        finish(p, l);
        return;
    }
    order(p, l);
}

void hy_pd__on_gone(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    pd_load *l = find_job(p, x, m->job);
    if (l == NULL || l->state != PD_CANCELLED) {
        PD_COUNT(p, late);
        return;
    }
    if ((m->flags & HY_PDP_UNKNOWN) != 0)
        fence(p, l);
    else
        finish(p, l);
}

void hy_pd__loads_free(hy_pd *p)
{
    for (int i = 0; i < PD_BUCKETS; i++)
        while (p->load[i] != NULL) {
            pd_load *l = p->load[i];
            p->load[i] = l->chain;
            hy_pd__tab_fini(&l->tab);
            hy_free(l->chunk);
            hy_free(l);
        }
}
