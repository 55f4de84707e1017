/* SPDX-License-Identifier: Apache-2.0
 *
 * The connector's stage: creation, messages and timers, what goes out to peers and to sched.
 *
 * Thread: see pd.h.  Owner: see pd.h.
 */
#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/connector/pd_int.h"

#include <stdio.h>
#include <string.h>

uint64_t hy_pd__now(hy_pd *p)
{
    return hy_stage_now(p->stage);
}

void hy_pd__timer(hy_pd *p, uint64_t at, int kind, uint64_t arg, uint64_t *id)
{
    hy_pd__untimer(p, id);
    const hy_msg m = {.kind = kind, .arg = arg};
    if (hy_stage_timer(p->stage, at, &m, id) < 0) {
        *id = 0;
        hy_error("connector", "a timer was lost: %s", hy_fail_text());
    }
}

void hy_pd__untimer(hy_pd *p, uint64_t *id)
{
    if (*id != 0)
        (void)hy_stage_timer_cancel(p->stage, *id);
    *id = 0;
}

void hy_pd__cmd_free(void *cmd)
{
    pd_cmd *c = cmd;
    if (c == NULL)
        return;
    hy_pd__tab_fini(&c->tab);
    hy_free(c);
}

/* ---- out ---- */

static void retry_later(hy_pd *p)
{
    if (p->retry_set)
        return;
    const hy_msg m = {.kind = PD_T_RETRY};
    p->retry_set = hy_stage_timer(p->stage, hy_pd__now(p) + HY_MS, &m, NULL) == HY_OK;
}

void hy_pd__send(hy_pd *p, pd_peer *to, const hy_pdp_msg *m)
{
    if (!to->up)
        return;
    pd_out *o = hy_calloc(1, sizeof(*o));
    if (o == NULL)
        return; /* as if it were lost: deadlines end what waits for it */
    o->peer = to->fab;
    o->type = HY_PDP_TYPE + (uint32_t)m->kind;
    hy_buf_init(&o->b);
    hy_pdp_encode(m, &o->b);
    if (p->out == NULL && !o->b.failed) {
        const hy_status st = hy_fab_send(p->fab, o->peer, o->type, o->b.data, o->b.len, NULL, NULL);
        if (st != HY_AGAIN) { /* a failure: EV_DOWN comes */
            hy_buf_fini(&o->b);
            hy_free(o);
            return;
        }
    }
    *p->out_tail = o;
    p->out_tail = &o->next;
    retry_later(p);
}

static void flush_out(hy_pd *p)
{
    while (p->out != NULL) {
        pd_out *o = p->out;
        if (!o->b.failed &&
            hy_fab_send(p->fab, o->peer, o->type, o->b.data, o->b.len, NULL, NULL) == HY_AGAIN) {
            retry_later(p);
            return;
        }
        p->out = o->next;
        if (p->out == NULL)
            p->out_tail = &p->out;
        hy_buf_fini(&o->b);
        hy_free(o);
    }
}

static void event_free(void *data)
{
    hy_conn_event *ev = data;
    if (ev == NULL)
        return;
    hy_free(ev->first);
    hy_free(ev);
}

static bool post_event(hy_pd *p, hy_conn_event *ev)
{
    const hy_msg m = {.kind = HY_MSG_CONN_EVENT, .data = ev, .drop = event_free};
    const hy_status st = p->sched != NULL ? hy_stage_post_reserved(p->sched, &m) : HY_E_ABORTED;
    if (st == HY_AGAIN)
        return false;
    if (st < 0)
        event_free(ev);
    return true;
}

void hy_pd__report(hy_pd *p, const hy_conn_event *ev, const hy_conn_first *first)
{
    hy_conn_event *copy = hy_malloc(sizeof(*copy));
    HY_ASSERT(copy != NULL); /* an event that is not told would be a hang */
    *copy = *ev;
    copy->first = NULL;
    if (first != NULL && (copy->first = hy_malloc(sizeof(*first))) != NULL)
        *copy->first = *first;
    if (p->evout == NULL && post_event(p, copy))
        return;
    pd_evout *o = hy_calloc(1, sizeof(*o));
    HY_ASSERT(o != NULL);
    o->ev = copy;
    *p->evout_tail = o;
    p->evout_tail = &o->next;
    retry_later(p);
}

static void flush_events(hy_pd *p)
{
    while (p->evout != NULL && post_event(p, p->evout->ev)) {
        pd_evout *o = p->evout;
        p->evout = o->next;
        if (p->evout == NULL)
            p->evout_tail = &p->evout;
        hy_free(o);
    }
    if (p->evout != NULL)
        retry_later(p);
}

/* ---- the stage ---- */

static hy_status on_msg(void *self, hy_msg *m)
{
    hy_pd *p = self;
    pd_cmd *c = m->data;
    switch (m->kind) {
    case PD_ARRIVED:
        hy_pd__load_arrived(p, c);
        break;
    case PD_LOAD:
        hy_pd__load_start(p, c);
        break;
    case PD_END:
        hy_pd__load_end(p, m->arg);
        break;
    case PD_LEASE:
    case PD_GROW:
        hy_pd__lease_put(p, c, m->kind == PD_LEASE);
        break;
    case PD_STEP:
        hy_pd__lease_step(p, c);
        break;
    case PD_LAYER:
        hy_pd__lease_layer(p, (int32_t)(m->arg >> 32), (int32_t)(m->arg & UINT32_MAX));
        break;
    case PD_NOLEASE:
    case PD_VOID:
        hy_pd__lease_none(p, m->arg, m->kind == PD_NOLEASE);
        break;
    case PD_EXPIRED:
        if (m->data == NULL)
            hy_pd__lease_expired(p, m->arg);
        else
            hy_pd__load_timer(p, m->arg);
        c = NULL; /* a mark, no command */
        break;
    case PD_RELEASE:
        hy_pd__lease_release(p, m->arg, m->data != NULL);
        c = NULL; /* a mark, no command */
        break;
    case PD_T_LEASE:
        hy_pd__lease_timer(p, m->arg);
        break;
    case PD_T_LOAD:
        hy_pd__load_timer(p, m->arg);
        break;
    case PD_T_HOLD:
        hy_pd__load_hold(p, m->arg);
        break;
    case PD_T_WAIT:
        hy_pd__job_wait_timer(p, m->arg);
        break;
    case PD_T_LINK:
        hy_pd__links_timer(p);
        break;
    case PD_T_RETRY:
        p->retry_set = false;
        flush_out(p);
        flush_events(p);
        hy_pd__pump_starved(p);
        break;
    default:
        hy_msg_drop(m);
        return hy_fail(HY_E_INVAL, "connector: message of unknown kind %d", m->kind);
    }
    hy_pd__cmd_free(c);
    hy_pd__loads_staging(p);
    hy_pd__metrics_leases(p);
    return HY_OK;
}

static uint64_t on_idle(void *self, uint64_t now)
{
    hy_pd *p = self;
    hy_fab_event ev[32];
    const size_t n = hy_fab_poll(p->fab, ev, HY_COUNTOF(ev));
    for (size_t i = 0; i < n; i++) {
        hy_pd__on_fab(p, &ev[i]);
        hy_fab_event_fini(&ev[i]);
    }
    hy_pd__loads_staging(p);
    if (n > 0)
        hy_pd__metrics_leases(p);
    return n > 0 || hy_pd__early_step(p) ? now : HY_NEVER;
}

/* Worker half, exec's thread: this layer's keys and values of the step are in the pool. Where the
 * message finds no room, they go with the step's end. */
static hy_status save_layer(void *self, hy_queue *q, int32_t group, int32_t layer)
{
    hy_pd *p = self;
    (void)q;
    if (atomic_load_explicit(&p->pushing, memory_order_relaxed) == 0)
        return HY_OK;
    const hy_msg m = {.kind = PD_LAYER, .arg = (uint64_t)(uint32_t)group << 32 | (uint32_t)layer};
    (void)hy_stage_post(p->stage, &m);
    return HY_OK;
}

static bool busy(void *self)
{
    const hy_pd *p = self;
    return p->jobs != NULL || atomic_load(&p->st.loads_open) > 0 ||
           atomic_load(&p->st.leases_open) > 0;
}

/* Events are there: the stage's next turn polls. */
static void notify(void *arg)
{
    hy_pd *p = arg;
    hy_mbox_wake(hy_stage_mbox(p->stage));
}

/* ---- create ---- */

void hy_pd_opts_init(hy_pd_opts *o)
{
    memset(o, 0, sizeof(*o));
    hy_fab_opts_init(&o->fab);
    o->lease_ns = 10 * HY_SEC;
    o->timeout_ns = 30 * HY_SEC;
    o->grace_ns = 2 * HY_SEC;
    o->staging_bytes = 16u << 20;
    o->max_waiting = 1024;
}

static hy_status on_start(void *self)
{
    hy_pd *p = self;
    hy_pd__links_timer(p);
    hy_pd__links_note(p);
    return HY_OK;
}

static hy_status open_parts(hy_pd *p)
{
    static const hy_stage_ops ops = {
        .on_start = on_start, .on_msg = on_msg, .on_idle = on_idle, .busy = busy};
    p->stage = hy_stage_create("connector", &ops, p, 512, 8 * (size_t)p->o.max_waiting + 256);
    if (p->stage == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the connector's mailbox");
    hy_fab_opts fo = p->o.fab;
    fo.node = p->node;
    fo.notify = notify;
    fo.notify_arg = p;
    HY_TRY(hy_fab_open(&fo, &p->fab));
    hy_fab_info info;
    hy_fab_info_get(p->fab, &info);
    p->epoch = info.epoch;
    if (p->o.advertise != NULL && p->o.advertise[0] != '\0')
        snprintf(p->addrs, sizeof(p->addrs), "%s", p->o.advertise);
    for (int i = 0; (p->o.advertise == NULL || p->o.advertise[0] == '\0') && i < info.n_rails; i++)
        snprintf(p->addrs + strlen(p->addrs), sizeof(p->addrs) - strlen(p->addrs), "%s%s",
                 i > 0 ? "," : "", info.rail[i].addr);
    hy_dev_props props = {0};
    HY_TRY(p->o.dev->ops->props(p->o.dev, &props));
    p->by_layer = props.host_visible; /* its queues are done when their calls return */
    HY_TRY(p->o.dev->ops->queue_create(p->o.dev, &p->queue));
    p->n_units = (p->o.staging_bytes + PD_UNIT - 1) / PD_UNIT;
    p->n_landing = p->n_units / 2;
    p->used = hy_calloc(p->n_units + 1, 1);
    if (p->used == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the staging's table");
    return hy_pd__staging_open(p, props.host_visible);
}

hy_status hy_pd_create(const hy_pd_opts *o, hy_pd **out)
{
    if (o->n_groups < 1 || o->n_groups > HY_KV_MAX_GROUPS || o->dev == NULL)
        return hy_fail(HY_E_INVAL, "connector: %d KV groups, 1 to %d are possible", o->n_groups,
                       HY_KV_MAX_GROUPS);
    if (strpbrk(o->fab.node, "\"\\") != NULL ||
        (o->advertise != NULL && strpbrk(o->advertise, "\"\\ \t") != NULL))
        return hy_fail(HY_E_INVAL, "[node] name and [connector] advertise: no quotes or blanks");
    if (o->lease_ns < 10 * HY_MS || o->timeout_ns < 10 * HY_MS || o->staging_bytes < 4u * PD_UNIT)
        return hy_fail(HY_E_INVAL, "[connector] lease and timeout must be at least 10 ms, staging "
                                   "256 KiB");
    hy_pd *p = hy_calloc(1, sizeof(*p));
    if (p == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the connector");
    p->o = *o;
    snprintf(p->node, sizeof(p->node), "%s", o->fab.node);
    for (int32_t g = 0; g < o->n_groups; g++)
        p->windows[g] = o->windows != NULL ? o->windows[g] : 0;
    p->near_fd = -1;
    p->out_tail = &p->out;
    p->evout_tail = &p->evout;
    hy_buf_init(&p->handover);
    static const hy_conn_worker_ops worker = {
        .size = sizeof(worker), .register_kv = hy_pd__register_kv, .save_layer = save_layer};
    hy_connector_init(&p->conn, "pd", &hy_pd__sched_ops, p, &worker, p);
    p->conn.posts = true;
    hy_status st = hy_pd__links_init(p, o->links);
    if (st == HY_OK)
        st = open_parts(p);
    if (st < 0) {
        char why[512];
        snprintf(why, sizeof(why), "%s", hy_fail_text());
        hy_pd_destroy(p);
        return hy_fail(st, "%s", why);
    }
    hy_rng_init(&p->rng, o->fab.runtime != NULL ? p->epoch * 31 + 7 : hy_rng_entropy());
    hy_pd__metrics_init(p, o->metrics);
    p->o.windows = p->windows;
    p->o.advertise = p->o.links = NULL; /* the caller's strings are not kept */
    memset(&p->o.fab, 0, sizeof(p->o.fab));
    *out = p;
    return HY_OK;
}

void hy_pd_close(hy_pd *p)
{
    if (p == NULL)
        return;
    hy_fab_close(p->fab);
    p->fab = NULL;
}

void hy_pd_destroy(hy_pd *p)
{
    if (p == NULL)
        return;
    hy_pd_close(p);
    hy_pd__serve_free(p);
    hy_pd__loads_free(p);
    hy_pd__peers_free(p);
    hy_pd__sched_free(p);
    while (p->out != NULL) {
        pd_out *o = p->out;
        p->out = o->next;
        hy_buf_fini(&o->b);
        hy_free(o);
    }
    while (p->evout != NULL) {
        pd_evout *o = p->evout;
        p->evout = o->next;
        event_free(o->ev);
        hy_free(o);
    }
    if (p->queue != NULL)
        p->o.dev->ops->queue_destroy(p->queue);
    hy_pd__staging_close(p);
    hy_free(p->used);
    hy_stage_destroy(p->stage);
    hy_pd__links_fini(p);
    hy_buf_fini(&p->handover);
    hy_free(p);
}

hy_connector *hy_pd_connector(hy_pd *p)
{
    return &p->conn;
}

hy_stage *hy_pd_stage(hy_pd *p)
{
    return p->stage;
}

hy_fab *hy_pd_fabric(hy_pd *p)
{
    return p->fab;
}

void hy_pd_set_sched(hy_pd *p, hy_stage *sched)
{
    p->sched = sched;
}

const char *hy_pd_addrs(const hy_pd *p)
{
    return p->addrs;
}

uint64_t hy_pd_epoch(const hy_pd *p)
{
    return p->epoch;
}

void hy_pd_stats_get(hy_pd *p, hy_pd_stats *out)
{
#define GET(x) out->x = atomic_load(&p->st.x)
    GET(loads), GET(received), GET(missed), GET(failed), GET(expired), GET(corrupt), GET(aborted);
    GET(bytes_in), GET(bytes_out), GET(bytes_near), GET(tokens_in), GET(jobs_out), GET(full_hits);
    GET(leases), GET(leases_released), GET(leases_expired), GET(late), GET(malformed);
    GET(early_used), GET(early_dropped), GET(refused_links), GET(loads_open), GET(leases_open),
        GET(jobs_open);
#undef GET
}

hy_status hy_pd_release(hy_pd *p, const char *text)
{
    hy_handover h;
    HY_TRY(hy_handover_parse_release(text, &h));
    const bool named = h.push || h.epoch == 0; /* by the router: it may not be there yet */
    if (!named && h.epoch != p->epoch)
        return hy_fail(HY_E_NOTFOUND, "the lease is of another node or of an earlier start");
    static char may_come; /* any address: only a mark */
    const hy_msg m = {.kind = PD_RELEASE, .arg = h.lease, .data = named ? &may_come : NULL};
    const hy_status st = hy_stage_post(p->stage, &m);
    return st == HY_AGAIN ? hy_fail(HY_E_BUSY, "too many releases at once: the lease will expire")
                          : st;
}
