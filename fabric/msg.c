/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequenced messages of a peer: numbered, kept until acknowledged, sent again over another link
 * when theirs dies, delivered once and in order. Immediates, pulls and their answers travel the
 * same way. Application messages have a window that the receiver's poll opens.
 *
 * Thread: under the fabric's lock.  Owner: the peer.
 */
#include "fabric/fab_int.h"

#include <string.h>

enum { MOST_BACKLOG = 1 << 20 /* bytes waiting in one control connection */ };

#define ACK_DELAY_NS (200 * HY_US)

static void transmit(hy_fab *f, fab_peer *p)
{
    while (p->tx_next != NULL && p->primary != NULL && p->primary->conn != NULL &&
           f->ct->backlog(f->ctx, p->primary->conn) < MOST_BACKLOG) {
        fab_msg *m = p->tx_next;
        p->tx_next = m->next;
        hy_fab__frame(p->primary, FAB_MSG, m->data, m->len, NULL, 0);
    }
}

hy_status hy_fab__msg(hy_fab *f, fab_peer *p, fab_sub sub, uint32_t type, uint64_t num,
                      const void *a, size_t na, const void *b, size_t nb, uint64_t op)
{
    fab_msg *m = hy_malloc(sizeof(*m) + FAB_MSG_FIXED + na + nb);
    if (m == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a message of %zu bytes", na + nb);
    m->next = NULL;
    m->seq = ++p->tx_seq;
    m->op = op;
    m->sub = sub;
    m->len = (uint32_t)(FAB_MSG_FIXED + na + nb);
    m->data = (uint8_t *)(m + 1);
    fab_put64(m->data, m->seq);
    fab_put32(m->data + 8, sub);
    fab_put32(m->data + 12, type);
    fab_put64(m->data + 16, num);
    if (na > 0)
        memcpy(m->data + FAB_MSG_FIXED, a, na);
    if (nb > 0)
        memcpy(m->data + FAB_MSG_FIXED + na, b, nb);
    if (p->tail != NULL)
        p->tail->next = m;
    else
        p->head = m;
    p->tail = m;
    if (p->tx_next == NULL)
        p->tx_next = m;
    p->tx_app += sub == FAB_SUB_APP || sub == FAB_SUB_IMM;
    transmit(f, p);
    return HY_OK;
}

void hy_fab__msg_repoint(hy_fab *f, fab_peer *p)
{
    p->tx_next = p->head;
    transmit(f, p);
}

void hy_fab__msg_drop(hy_fab *f, fab_peer *p)
{
    (void)f;
    while (p->head != NULL) {
        fab_msg *m = p->head;
        p->head = m->next;
        hy_free(m);
    }
    p->tail = p->tx_next = NULL;
}

void hy_fab__msg_acked(hy_fab *f, fab_peer *p, uint64_t delivered, uint64_t consumed)
{
    if (delivered > p->tx_seq) /* of a peer that lies: nothing to free */
        return;
    while (p->head != NULL && p->head->seq <= delivered) {
        fab_msg *m = p->head;
        p->head = m->next;
        if (p->head == NULL)
            p->tail = NULL;
        if (p->tx_next == m)
            p->tx_next = m->next;
        fab_op *op = m->op != 0 ? hy_fab__op_find(f, m->op) : NULL;
        if (op != NULL)
            hy_fab__op_end(f, op);
        hy_free(m);
    }
    if (consumed > p->tx_consumed && consumed <= p->tx_app)
        p->tx_consumed = consumed;
}

void hy_fab__msg_flush(hy_fab *f, fab_peer *p, uint64_t now, bool force)
{
    transmit(f, p);
    if (p->primary == NULL)
        return;
    uint64_t taken = atomic_load(&p->consumed) - p->consumed_base;
    if (taken - p->consumed_told >= HY_FAB_WINDOW / 4) {
        p->ack_dirty = true;
        p->ack_since = 0;
    }
    if (p->ack_dirty && (force || now >= p->ack_since + ACK_DELAY_NS))
        hy_fab__frame(p->primary, FAB_PING, NULL, 0, NULL, 0);
}

static void deliver(hy_fab *f, fab_peer *p, fab_sub sub, uint32_t type, uint64_t num,
                    const uint8_t *d, size_t n)
{
    hy_fab_event ev = {.peer = p->handle, .epoch = p->epoch, .type = type, .imm = num, .len = n};
    ev.kind = sub == FAB_SUB_IMM ? HY_FAB_EV_IMM : HY_FAB_EV_MSG;
    if (n > 0) {
        ev.data = hy_malloc(n);
        if (ev.data == NULL) {
            hy_error("fabric", "no memory for a message of %zu bytes from %s", n, p->node);
            ev.status = HY_E_NOMEM;
            ev.len = 0;
        } else {
            memcpy(ev.data, d, n);
        }
    }
    f->stats.msgs_received++;
    hy_fab__event(f, &ev);
}

void hy_fab__msg_in(fab_link *l, const uint8_t *d, size_t n)
{
    hy_fab *f = l->f;
    fab_peer *p = l->peer;
    if (n < FAB_MSG_FIXED || n - FAB_MSG_FIXED > HY_FAB_MSG_MAX) {
        hy_fab__bad(l, hy_fail(HY_E_FORMAT, "message of %zu bytes", n));
        return;
    }
    uint64_t seq = fab_get64(d), num = fab_get64(d + 16);
    uint32_t sub = fab_get32(d + 8), type = fab_get32(d + 12);
    const uint8_t *body = d + FAB_MSG_FIXED;
    size_t len = n - FAB_MSG_FIXED;
    if (seq <= p->rx_seq) { /* sent again after a link was lost, or twice */
        f->stats.dup_msgs++;
        p->ack_dirty = true;
        return;
    }
    if (seq != p->rx_seq + 1 || sub < FAB_SUB_APP || sub > FAB_SUB_STOP) {
        hy_fab__bad(l, hy_fail(HY_E_FORMAT, "message %llu of kind %u after %llu",
                               (unsigned long long)seq, sub, (unsigned long long)p->rx_seq));
        return;
    }
    p->rx_seq = seq;
    if (!p->ack_dirty)
        p->ack_since = hy_fab__now(f);
    p->ack_dirty = true;
    if (sub == FAB_SUB_APP || sub == FAB_SUB_IMM)
        deliver(f, p, sub, type, num, body, len);
    else if (sub == FAB_SUB_ASK)
        hy_fab__pull_serve(f, p, body, len);
    else if (sub == FAB_SUB_ANSWER)
        hy_fab__pull_answer(f, p, body, len);
    else
        hy_fab__pull_stop(f, p, num);
}

hy_status hy_fab_send(hy_fab *f, hy_fab_peer peer, uint32_t type, const void *data, size_t len,
                      const hy_fab_op_opts *opts, uint64_t *op_out)
{
    if (len > HY_FAB_MSG_MAX)
        return hy_fail(HY_E_LIMIT, "message of %zu bytes, at most %d", len, HY_FAB_MSG_MAX);
    hy_fab__lock(f);
    hy_status st = HY_OK;
    fab_peer *p = hy_fab__peer(f, peer);
    fab_op *op = NULL;
    if (p == NULL || !p->up)
        st = hy_fail(HY_E_PEER, "send to a peer that is gone");
    else if (fab_window_full(p) || (op = hy_fab__op_new(f, FAB_SEND, p)) == NULL)
        st = HY_AGAIN;
    if (st == HY_OK) {
        op->user = opts != NULL ? opts->user : 0;
        if (opts != NULL && opts->timeout_ns != 0)
            op->deadline = hy_clock_after(hy_fab__now(f), opts->timeout_ns);
        op->len = op->done = len;
        st = hy_fab__msg(f, p, FAB_SUB_APP, type, 0, data, len, NULL, 0, op->id);
        if (st < 0)
            hy_fab__op_free(f, op);
        else if (op_out != NULL)
            *op_out = op->id;
        f->stats.msgs_sent += st == HY_OK;
    }
    hy_fab__unlock(f);
    return st;
}
