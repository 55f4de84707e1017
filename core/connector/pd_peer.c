/* SPDX-License-Identifier: Apache-2.0
 *
 * Links to other connectors: who is there in which epoch, HELLO, copy plans, and the dispatch of
 * what the fabric reports.
 *
 * Thread: connector stage only.  Owner: hy_pd; peers are kept until it ends.
 */
#include "core/base/alloc.h"
#include "core/base/log.h"
#include "core/connector/pd_int.h"

#include <stdio.h>
#include <string.h>

enum { MOST_PEERS = 4096 };

pd_peer *hy_pd__peer(hy_pd *p, const char *node, const char *addrs)
{
    int n = 0;
    for (pd_peer *x = p->peers; x != NULL; x = x->next, n++)
        if (strcmp(x->node, node) == 0) {
            if (addrs != NULL && !x->wanted) /* a request's word does not replace our own file's */
                snprintf(x->addrs, sizeof(x->addrs), "%s", addrs);
            return x;
        }
    pd_peer *x = n < MOST_PEERS ? hy_calloc(1, sizeof(*x)) : NULL;
    if (x == NULL)
        return NULL;
    snprintf(x->node, sizeof(x->node), "%.63s", node);
    snprintf(x->addrs, sizeof(x->addrs), "%s", addrs != NULL ? addrs : "");
    x->number = ++p->next_number;
    x->next = p->peers;
    p->peers = x;
    return x;
}

pd_peer *hy_pd__peer_of(hy_pd *p, hy_fab_peer fab)
{
    pd_peer *x = p->peers;
    while (x != NULL && (!x->up || x->fab != fab))
        x = x->next;
    return x;
}

bool hy_pd__connect(hy_pd *p, pd_peer *x)
{
    if (x->up || x->connecting)
        return true;
    if (x->addrs[0] == '\0')
        return false;
    uint64_t op;
    x->connecting = hy_fab_connect(p->fab, x->addrs, x->node, x->number, &op) == HY_OK;
    return x->connecting;
}

/* ---- HELLO ---- */

/* Two slots of a landing at least. */
static uint32_t own_piece(const hy_pd *p)
{
    const size_t fit = p->n_landing * PD_UNIT / 4;
    return (uint32_t)(fit < (1u << 20) ? fit : 1u << 20);
}

static void send_hello(hy_pd *p, pd_peer *x)
{
    hy_buf desc, key[HY_KV_MAX_GROUPS], stage;
    hy_buf_init(&desc);
    hy_buf_init(&stage);
    hy_pdp_msg m = {.kind = HY_PDP_HELLO,
                    .flags = p->o.accept_lossy ? HY_PDP_LOSSY : 0,
                    .act = p->o.act,
                    .numerics = p->o.numerics,
                    .wire = p->o.has_wire ? (uint8_t)(p->o.wire + 1) : 0,
                    .piece_bytes = own_piece(p),
                    .min_run = (uint32_t)p->o.min_run,
                    .n_groups = p->o.n_groups};
    memcpy(m.model, p->o.model, sizeof(m.model));
    hy_kv_desc_encode(&p->desc, &desc);
    m.desc = (hy_pdp_bytes){(const uint8_t *)desc.data, desc.len};
    for (int32_t g = 0; g < p->o.n_groups; g++) {
        hy_buf_init(&key[g]);
        if (p->mr[g] != NULL)
            hy_fab_key_pack(p->mr[g], &key[g]);
        m.key[g] = (hy_pdp_bytes){(const uint8_t *)key[g].data, key[g].len};
    }
    hy_fab_key_pack(p->staging_mr, &stage);
    m.staging = (hy_pdp_bytes){(const uint8_t *)stage.data, stage.len};
    if (p->near_fd >= 0) {
        m.near_name = (hy_pdp_bytes){(const uint8_t *)p->near_name, strlen(p->near_name)};
        m.near_fd = (uint32_t)p->near_fd;
        m.near_len = p->n_units * PD_UNIT;
    }
    hy_pd__send(p, x, &m);
    for (int32_t g = 0; g < p->o.n_groups; g++)
        hy_buf_fini(&key[g]);
    hy_buf_fini(&desc);
    hy_buf_fini(&stage);
}

static void refuse(hy_pd *p, pd_peer *x, const char *why)
{
    hy_pdp_msg m = {.kind = HY_PDP_REFUSE};
    snprintf(m.text, sizeof(m.text), "%.119s", why);
    snprintf(x->refused, sizeof(x->refused), "%s", why);
    PD_COUNT(p, refused_links);
    hy_metric_inc(p->m.refused);
    hy_warn("connector", "link with %s is refused: %s", x->node, why);
    hy_pd__send(p, x, &m);
    hy_pd__load_link(p, x);
    hy_pd__links_note(p);
}

static hy_status take_keys(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    for (int32_t g = 0; g < m->n_groups; g++) {
        x->has_key[g] = m->key[g].n > 0;
        if (x->has_key[g])
            HY_TRY(hy_fab_key_unpack(p->fab, x->fab, m->key[g].p, m->key[g].n, &x->key[g], NULL));
    }
    x->has_staging = m->staging.n > 0;
    if (x->has_staging)
        HY_TRY(hy_fab_key_unpack(p->fab, x->fab, m->staging.p, m->staging.n, &x->staging, NULL));
    return HY_OK;
}

static hy_status make_plan(const hy_kv_desc *src, const hy_kv_desc *dst, hy_kv_plan_opts o,
                           hy_kv_plan **out)
{
    /* who wants a narrow wire takes what it rounds, but no other value type */
    if (o.has_wire && hy_kv_compat(src, dst, NULL) == HY_KV_MATCH_LOSSLESS)
        o.lossy = true;
    return hy_kv_plan_create(src, dst, &o, out);
}

/* What must be equal, by name; what may differ becomes two copy plans. */
static hy_status compare(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    char why[HY_KV_REASON_MAX];
    const bool lossy_in = p->o.accept_lossy, lossy_out = (m->flags & HY_PDP_LOSSY) != 0;
    if (memcmp(m->model, p->o.model, sizeof(m->model)) != 0)
        return hy_fail(HY_E_INVAL,
                       "model: the weights are not the same (fingerprint "
                       "%02x%02x%02x%02x here, %02x%02x%02x%02x there)",
                       p->o.model[0], p->o.model[1], p->o.model[2], p->o.model[3], m->model[0],
                       m->model[1], m->model[2], m->model[3]);
    if (m->act != p->o.act)
        return hy_fail(HY_E_INVAL, "[engine] activations: %d here, %d there", p->o.act, m->act);
    if (m->numerics != p->o.numerics)
        return hy_fail(HY_E_INVAL, "[engine] numerics: %d here, %d there", p->o.numerics,
                       m->numerics);
    HY_TRY(hy_kv_desc_decode(m->desc.p, m->desc.n, &x->desc, NULL));
    if (m->n_groups != x->desc.n_groups || m->n_groups != p->o.n_groups)
        return hy_fail(HY_E_INVAL, "cache groups: %d here, %d there", p->o.n_groups, m->n_groups);
    HY_TRY(take_keys(p, x, m));
    if (hy_kv_compat(&p->desc, &x->desc, why) == HY_KV_MATCH_NONE)
        return hy_fail(HY_E_INVAL, "%s", why);
    const uint32_t own = own_piece(p);
    const size_t piece = m->piece_bytes < own ? m->piece_bytes : own;
    const size_t run = m->min_run > p->o.min_run ? m->min_run : p->o.min_run;
    if (m->wire != 0 && hy_kv_wire_bit((hy_dtype)(m->wire - 1)) == 0)
        return hy_fail(HY_E_INVAL, "wire type: %d there is none of KV", m->wire - 1);
    hy_kv_plan_opts out = {.piece_bytes = piece, .min_run = run};
    out.never_direct = !x->has_key[0] || p->mr[0] == NULL; /* one side's cache is out of reach */
    hy_kv_plan_opts in = out;
    out.lossy = lossy_out;
    out.has_wire = m->wire != 0;
    out.wire = (hy_dtype)(m->wire - (m->wire != 0));
    in.lossy = lossy_in;
    in.has_wire = p->o.has_wire;
    in.wire = p->o.wire;
    const hy_status out_st = make_plan(&p->desc, &x->desc, out, &x->serve);
    const hy_status in_st = make_plan(&x->desc, &p->desc, in, &x->take);
    if (out_st < 0 && in_st < 0)
        return in_st; /* one way is a link, too */
    const size_t room = p->n_landing * PD_UNIT;
    if (in_st == HY_OK && hy_kv_plan_piece_max(x->take) > room)
        return hy_fail(HY_E_INVAL, "[connector] staging: pieces of %zu bytes do not fit",
                       hy_kv_plan_piece_max(x->take));
    return HY_OK;
}

static void forget(pd_peer *x)
{
    hy_pd__near_unmap(x);
    hy_kv_plan_destroy(x->serve);
    hy_kv_plan_destroy(x->take);
    x->serve = x->take = NULL;
}

static void describe(hy_pd *p, pd_peer *x)
{
    hy_buf b;
    hy_buf_init(&b);
    (void)hy_fab_peer_path(p->fab, x->fab, &b);
    hy_buf_puts(&b, x->take != NULL ? "; from there: " : "");
    hy_pd__link_copy(x, &b);
    hy_info("connector", "linked with %s: %s", x->node, hy_buf_str(&b));
    hy_buf_fini(&b);
    x->why[0] = '\0';
    hy_pd__links_note(p);
}

static void on_hello(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    if (x->hello || x->refused[0] != '\0') {
        PD_COUNT(p, late);
        return;
    }
    if (compare(p, x, m) < 0) {
        char why[160];
        snprintf(why, sizeof(why), "%.150s", hy_fail_text());
        forget(x);
        refuse(p, x, why);
        return;
    }
    hy_pd__near_map(p, x, m);
    x->hello = true;
    describe(p, x);
    hy_pd__load_link(p, x);
}

static void on_refuse(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    if (x->refused[0] == '\0') {
        hy_warn("connector", "%s refuses the link: %s", x->node, m->text);
        snprintf(x->refused, sizeof(x->refused), "%s (says %s)", m->text, x->node);
    }
    hy_pd__load_link(p, x);
    hy_pd__links_note(p);
}

/* ---- from the fabric ---- */

static void down(hy_pd *p, pd_peer *x, const char *why, bool again)
{
    if (!x->up)
        return;
    x->up = x->hello = false;
    hy_info("connector", "%s is down: %s", x->node, why);
    hy_pd__serve_down(p, x);
    forget(x);
    x->refused[0] = '\0';
    hy_pd__load_down(p, x, why, again);
    snprintf(x->why, sizeof(x->why), "%s", why);
    hy_pd__links_note(p);
}

static void on_up(hy_pd *p, const hy_fab_event *ev)
{
    pd_peer *x = hy_pd__peer(p, ev->text, NULL);
    if (x == NULL) {
        hy_fab_disconnect(p->fab, ev->peer);
        return;
    }
    if (x->up && x->fab == ev->peer)
        return;
    down(p, x, "a new epoch has begun", false);
    x->fab = ev->peer;
    x->epoch = ev->epoch;
    x->up = true;
    x->connecting = false;
    x->refused[0] = '\0';
    send_hello(p, x);
}

static void on_connect(hy_pd *p, const hy_fab_event *ev)
{
    pd_peer *x = p->peers;
    while (x != NULL && x->number != ev->user)
        x = x->next;
    if (x == NULL)
        return;
    x->connecting = false;
    if (ev->status >= 0 || x->up)
        return;
    hy_pd__load_down(p, x, ev->text, false);
    /* it is there, and one of the two does not want the other (the fabric's log says so, too) */
    const bool denied =
        ev->status == HY_E_DENIED || ev->status == HY_E_PROTOCOL || ev->status == HY_E_INVAL;
    if (denied && x->refused[0] == '\0') {
        PD_COUNT(p, refused_links);
        hy_metric_inc(p->m.refused);
    }
    snprintf(x->refused, sizeof(x->refused), "%s", denied ? ev->text : "");
    snprintf(x->why, sizeof(x->why), "%s", ev->text);
    hy_pd__links_note(p);
}

static void on_msg(hy_pd *p, const hy_fab_event *ev)
{
    pd_peer *x = hy_pd__peer_of(p, ev->peer);
    if (x == NULL) {
        PD_COUNT(p, late);
        return;
    }
    hy_pdp_msg m;
    if (hy_pdp_decode(ev->type, ev->data, (size_t)ev->len, &m) < 0) {
        if (PD_COUNT(p, malformed) % 1000 == 0)
            hy_warn("connector", "from %s: %s", x->node, hy_fail_text());
        return;
    }
    switch (m.kind) {
    case HY_PDP_HELLO:
        on_hello(p, x, &m);
        break;
    case HY_PDP_REFUSE:
        on_refuse(p, x, &m);
        break;
    case HY_PDP_HOLD:
        hy_pd__on_hold(p, x, &m);
        break;
    case HY_PDP_HELD:
        hy_pd__on_held(p, x, &m);
        break;
    case HY_PDP_GET:
        hy_pd__on_get(p, x, &m);
        break;
    case HY_PDP_CHUNK:
        hy_pd__on_chunk(p, x, &m);
        break;
    case HY_PDP_ACK:
        hy_pd__on_ack(p, x, &m);
        break;
    case HY_PDP_PIECE:
        hy_pd__on_piece(p, x, &m);
        break;
    case HY_PDP_DONE:
        hy_pd__on_done(p, x, &m);
        break;
    case HY_PDP_CANCEL:
        hy_pd__on_cancel(p, x, &m);
        break;
    case HY_PDP_GONE:
        hy_pd__on_gone(p, x, &m);
        break;
    case HY_PDP_RELEASE:
        hy_pd__lease_release(p, m.lease, (m.flags & HY_PDP_PUSH) != 0);
        break;
    case HY_PDP_KINDS:
        break;
    }
    hy_pdp_fini(&m);
}

void hy_pd__on_fab(hy_pd *p, hy_fab_event *ev)
{
    switch (ev->kind) {
    case HY_FAB_EV_CONNECT:
        on_connect(p, ev);
        break;
    case HY_FAB_EV_UP:
        on_up(p, ev);
        break;
    case HY_FAB_EV_DOWN: {
        pd_peer *x = hy_pd__peer_of(p, ev->peer);
        if (x != NULL)
            down(p, x, ev->text[0] != '\0' ? ev->text : hy_status_name(ev->status),
                 ev->status != HY_E_TIMEOUT);
        break;
    }
    case HY_FAB_EV_DONE:
        if (ev->user != 0) /* writes; of sends nobody waits */
            hy_pd__op_done(p, (pd_op *)(uintptr_t)ev->user, ev);
        break;
    case HY_FAB_EV_MSG:
        on_msg(p, ev);
        break;
    case HY_FAB_EV_IMM: {
        pd_peer *x = hy_pd__peer_of(p, ev->peer);
        if (x != NULL)
            hy_pd__on_imm(p, x, ev->imm);
        break;
    }
    }
}

void hy_pd__peers_free(hy_pd *p)
{
    while (p->peers != NULL) {
        pd_peer *x = p->peers;
        p->peers = x->next;
        forget(x);
        hy_free(x);
    }
}
