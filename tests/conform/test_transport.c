/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport's conformance suite: one set of promises, run against one implementation per
 * process (test_transport NAME): those of `impls` below. An absent provider exits 77.
 *
 * Thread: the test's, beside the endpoints' own.  Owner: each test closes what it opens.
 */
#include "core/base/log.h"
#include "fabric/fab_int.h"
#include "tests/conform/transport_faults.h"
#include "tests/conform/transport_paths.h"
#include "tests/unit/cm.h"
#include "tests/unit/refuse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const tr_impl *im;

static const tr_impl impls[] = {
    {"loop-virtual", "loop", true, true, false, HY_FAB_PULL_AUTO, false, false, false},
    {"loop", "loop", true, false, false, HY_FAB_PULL_AUTO, false, false, false},
    {"loop-read", "loop", true, true, false, HY_FAB_PULL_READ, false, false, false},
    {"own", "own", false, false, false, HY_FAB_PULL_AUTO, false, false, false},
    {"own-copy", "own", false, false, false, HY_FAB_PULL_AUTO, false, false, true},
    {"own-read", "own", false, false, false, HY_FAB_PULL_READ, false, false, false},
    {"net", "net,tcp", false, false, false, HY_FAB_PULL_AUTO, false, false, false},
    {"net-own", "net,tcp,own", false, false, false, HY_FAB_PULL_AUTO, false, true, false},
    {"net-read", "net,tcp", false, false, false, HY_FAB_PULL_READ, false, false, false},
    {"net-strict", "net,tcp", false, false, true, HY_FAB_PULL_READ, false, false, false},
    {"verbs", "verbs", false, false, false, HY_FAB_PULL_AUTO, false, false,
     false}, /* in tools/verbs-vm */
    {"verbs-write", "verbs", false, false, false, HY_FAB_PULL_WRITE, false, false, false},
    {"verbs-strict", "verbs", false, false, true, HY_FAB_PULL_READ, false, false, false},
    {"shm", "shm", false, false, false, HY_FAB_PULL_AUTO, false, false, false},
    {"same-node", "own", false, false, false, HY_FAB_PULL_AUTO, true, false, false},
    {"same-net", "net,tcp", false, false, false, HY_FAB_PULL_AUTO, true, false, false},
};

static void test_messages_in_order(void **state)
{
    (void)state;
    tr t;
    tr_pair(&t, im, 1);
    enum { N = 600 };
    static uint8_t body[HY_FAB_MSG_MAX];
    uint64_t sent = 0, got = 0, done = 0;
    tr_fill(body, sizeof(body), 3);
    while (got < N || done < N) {
        hy_fab_event ev;
        if (sent < N) {
            size_t len = sent % 7 == 0 ? HY_FAB_MSG_MAX : sent * 13 % 5000;
            hy_fab_op_opts o = {.user = sent};
            hy_status st = hy_fab_send(t.n[0].f, t.n[0].peer, (uint32_t)sent, body, len, &o, NULL);
            assert_true(st == HY_OK || st == HY_AGAIN);
            sent += st == HY_OK;
        }
        while (hy_fab_poll(t.n[1].f, &ev, 1) == 1) {
            assert_int_equal(ev.kind, HY_FAB_EV_MSG);
            assert_int_equal(ev.type, got);
            assert_int_equal(ev.len, got % 7 == 0 ? HY_FAB_MSG_MAX : got * 13 % 5000);
            if (ev.len > 0)
                assert_memory_equal(ev.data, body, ev.len);
            hy_fab_event_fini(&ev);
            got++;
        }
        while (hy_fab_poll(t.n[0].f, &ev, 1) == 1) {
            assert_int_equal(ev.kind, HY_FAB_EV_DONE);
            assert_int_equal(ev.status, HY_OK);
            assert_int_equal(ev.user, done); /* acknowledged in order */
            done++;
        }
        tr_pass(&t);
    }
    assert_int_equal(hy_fab_send(t.n[0].f, t.n[0].peer, 0, body, HY_FAB_MSG_MAX + 1, NULL, NULL),
                     HY_E_LIMIT);
    tr_close(&t);
}

/* Nobody polls there: the sender is stopped by the window, not by memory. */
static void test_window(void **state)
{
    (void)state;
    tr t;
    hy_fab_event ev;
    tr_pair(&t, im, 1);
    int sent = 0;
    uint64_t end = tr_now(&t) + 2 * HY_SEC;
    while (tr_now(&t) < end && sent < 100000) {
        hy_status st = hy_fab_send(t.n[0].f, t.n[0].peer, 1, "x", 1, NULL, NULL);
        sent += st == HY_OK;
        while (hy_fab_poll(t.n[0].f, &ev, 1) == 1)
            ;
        if (st == HY_AGAIN)
            tr_pass(&t);
    }
    assert_int_equal(sent, 256);
    for (int i = 0; i < 256; i++) {
        assert_true(tr_event(&t, 1, HY_FAB_EV_MSG, HY_SEC, &ev));
        hy_fab_event_fini(&ev);
    }
    end = tr_now(&t) + 2 * HY_SEC;
    hy_status st;
    while ((st = hy_fab_send(t.n[0].f, t.n[0].peer, 1, "y", 1, NULL, NULL)) == HY_AGAIN &&
           tr_now(&t) < end)
        tr_pass(&t);
    assert_int_equal(st, HY_OK);
    tr_close(&t);
}

enum { BIG = 24 << 20 };

static void test_write_read_sizes(void **state)
{
    (void)state;
    static const size_t sizes[] = {
        1, 7, 64, 4095, 4096, 65537, 1 << 20, (1 << 20) + 1, 3333333, 9 << 20, BIG - 64};
    tr t;
    tr_pair(&t, im, 1);
    uint8_t *a = malloc(BIG), *b = malloc(BIG), *c = malloc(BIG);
    hy_fab_key kb;
    hy_fab_mr *ma = tr_mem(&t, 0, a, BIG, 0, NULL), *mb = tr_mem(&t, 1, b, BIG, 0, &kb);
    hy_fab_mr *mc = tr_mem(&t, 0, c, BIG, 0, NULL);
    for (size_t i = 0; i < HY_COUNTOF(sizes); i++) {
        size_t n = sizes[i], off = i * 3 % 61, roff = i * 7 % 59;
        uint64_t op;
        tr_fill(a, BIG, i);
        memset(b, 0x5a, BIG);
        memset(c, 0xa5, BIG);
        hy_fab_range r = {ma, off, &kb, roff, n};
        hy_fab_op_opts o = {.has_imm = true, .imm = UINT64_C(0xfeedfacecafe0000) + i};
        assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, &o, &op), HY_OK);
        hy_fab_event ev;
        assert_true(tr_event(&t, 1, HY_FAB_EV_IMM, 20 * HY_SEC, &ev));
        assert_int_equal(ev.imm, o.imm);
        assert_memory_equal(b + roff, a + off, n); /* all of it, when the immediate is there */
        tr_done_ok(&t, 0, op);
        for (size_t k = 0; k < roff; k++)
            assert_int_equal(b[k], 0x5a);
        assert_int_equal(b[roff + n], 0x5a);
        hy_fab_range rr = {mc, off, &kb, roff, n};
        assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, &rr, 1, NULL, &op), HY_OK);
        tr_done_ok(&t, 0, op);
        assert_memory_equal(c + off, a + off, n);
        assert_int_equal(c[off + n], 0xa5);
    }
    tr_dereg(&t, 0, ma);
    tr_dereg(&t, 0, mc);
    tr_dereg(&t, 1, mb);
    tr_close(&t);
    free(a);
    free(b);
    free(c);
}

/* Pages strewn on both sides, written and read as one operation each. */
static void test_scatter(void **state)
{
    (void)state;
    enum { PAGE = 5000, N = 1500 };
    tr t;
    tr_pair(&t, im, 1);
    size_t len = (size_t)PAGE * N;
    uint8_t *a = malloc(len), *b = malloc(len), *c = calloc(1, len);
    hy_fab_key kb;
    hy_fab_mr *ma = tr_mem(&t, 0, a, len, 0, NULL), *mc = tr_mem(&t, 0, c, len, 0, NULL);
    tr_mem(&t, 1, b, len, 0, &kb);
    tr_fill(a, len, 5);
    hy_fab_range *r = calloc(N, sizeof(*r));
    for (uint64_t i = 0; i < N; i++)
        r[i] = (hy_fab_range){ma, i * 7 % N * PAGE, &kb, i * 11 % N * PAGE, PAGE};
    uint64_t op;
    hy_fab_event ev;
    assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, r, N, NULL, &op), HY_OK);
    assert_true(tr_event(&t, 0, HY_FAB_EV_DONE, 20 * HY_SEC, &ev));
    assert_int_equal(ev.status, HY_OK);
    assert_int_equal(ev.len, len);
    for (uint64_t i = 0; i < N; i++)
        assert_memory_equal(b + r[i].roff, a + r[i].off, PAGE);
    for (uint64_t i = 0; i < N; i++)
        r[i].mr = mc;
    assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, r, N, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    assert_memory_equal(c, a, len);
    tr_close(&t);
    free(r);
    free(a);
    free(b);
    free(c);
}

/* Both directions, writes, reads and messages at once: each exactly one event. */
static void test_many(void **state)
{
    (void)state;
    enum { N = 400, SLOT = 20000 };
    tr t;
    tr_pair(&t, im, 1);
    size_t len = (size_t)N * SLOT;
    uint8_t *src[2], *dst[2], *back[2];
    hy_fab_mr *ms[2], *mback[2];
    hy_fab_key kd[2], ks[2];
    for (int i = 0; i < 2; i++) {
        src[i] = malloc(len);
        dst[i] = calloc(1, len);
        back[i] = calloc(1, len);
        tr_fill(src[i], len, (uint64_t)i);
        ms[i] = tr_mem(&t, i, src[i], len, 1 - i, &ks[i]);
        tr_mem(&t, i, dst[i], len, 1 - i, &kd[i]);
        mback[i] = tr_mem(&t, i, back[i], len, 1 - i, NULL);
    }
    int started[2] = {0}, ended[2] = {0}, msgs[2] = {0}, seen[2][3 * N];
    memset(seen, 0, sizeof(seen));
    while (ended[0] < 3 * N || ended[1] < 3 * N || msgs[0] < N || msgs[1] < N) {
        for (int i = 0; i < 2; i++) {
            hy_fab_event ev;
            for (int k = 0; k < 8 && started[i] < 3 * N; k++) {
                int s = started[i], slot = s / 3;
                hy_fab_op_opts o = {.user = (uint64_t)s};
                uint64_t off = (uint64_t)slot * SLOT;
                hy_fab_range w = {ms[i], off, &kd[1 - i], off, SLOT};
                hy_fab_range r = {mback[i], off, &ks[1 - i], off, SLOT};
                hy_status st;
                if (s % 3 == 0)
                    st = hy_fab_write(t.n[i].f, t.n[i].peer, &w, 1, &o, NULL);
                else if (s % 3 == 1)
                    st = hy_fab_read(t.n[i].f, t.n[i].peer, &r, 1, &o, NULL);
                else
                    st = hy_fab_send(t.n[i].f, t.n[i].peer, 9, &s, sizeof(s), &o, NULL);
                assert_true(st == HY_OK || st == HY_AGAIN);
                started[i] += st == HY_OK;
                if (st == HY_AGAIN)
                    break;
            }
            while (hy_fab_poll(t.n[i].f, &ev, 1) == 1) {
                if (ev.kind == HY_FAB_EV_MSG) {
                    msgs[i]++;
                } else {
                    assert_int_equal(ev.kind, HY_FAB_EV_DONE);
                    assert_int_equal(ev.status, HY_OK);
                    assert_int_equal(seen[i][ev.user]++, 0);
                    ended[i]++;
                }
                hy_fab_event_fini(&ev);
            }
        }
        tr_pass(&t);
    }
    for (int i = 0; i < 2; i++) {
        hy_fab_stats s;
        hy_fab_stats_get(t.n[i].f, &s);
        assert_int_equal(s.ops_open, 0);
        assert_memory_equal(dst[1 - i], src[i], len);
        assert_memory_equal(back[1 - i], src[i], len);
    }
    tr_close(&t);
    for (int i = 0; i < 2; i++) {
        free(src[i]);
        free(dst[i]);
        free(back[i]);
    }
}

static void test_refused_ranges(void **state)
{
    (void)state;
    tr t;
    tr_pair(&t, im, 1);
    uint8_t a[4096], b[4096];
    hy_fab_key kb, wrong;
    hy_fab_mr *ma = tr_mem(&t, 0, a, sizeof(a), 0, NULL);
    tr_mem(&t, 1, b, sizeof(b), 0, &kb);
    const uint64_t big = UINT64_MAX;
    const hy_fab_range bad[] = {{ma, 0, &kb, 1, 4096}, {ma, 1, &kb, 0, 4096}, {ma, 0, &kb, big, 2},
                                {ma, big, &kb, 0, 2},  {ma, 0, &kb, 0, big},  {NULL, 0, &kb, 0, 1},
                                {ma, 0, NULL, 0, 1}};
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &bad[i], 1, NULL, NULL), HY_E_INVAL);
        assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, &bad[i], 1, NULL, NULL), HY_E_INVAL);
    }
    wrong = kb;
    wrong.epoch ^= 2;
    hy_fab_range r = {ma, 0, &wrong, 0, 8};
    assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, NULL, NULL), HY_E_PEER);
    wrong = kb;
    wrong.access = HY_FAB_REMOTE_READ;
    assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, NULL, NULL), HY_E_DENIED);
    assert_int_equal(hy_fab_write(t.n[0].f, 12345, &r, 1, NULL, NULL), HY_E_PEER);
    /* nothing to move: done at once */
    uint64_t op;
    r = (hy_fab_range){ma, 5, &kb, 5, 0};
    assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, NULL, 0, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    assert_int_equal(hy_fab_cancel(t.n[0].f, op), HY_E_NOTFOUND);
    tr_close(&t);
}

/* A key dies with its memory. */
static void test_dead_key(void **state)
{
    (void)state;
    tr t;
    tr_pair(&t, im, 1);
    static uint8_t a[8192], b[8192];
    hy_fab_key kb;
    uint64_t op;
    hy_fab_event ev;
    hy_fab_mr *ma = tr_mem(&t, 0, a, sizeof(a), 0, NULL);
    hy_fab_mr *mb = tr_mem(&t, 1, b, sizeof(b), 0, &kb);
    hy_fab_range r = {ma, 0, &kb, 0, sizeof(a)};
    tr_fill(b, sizeof(b), 12);
    assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    assert_memory_equal(a, b, sizeof(b));
    memset(a, 0x33, sizeof(a));
    tr_dereg(&t, 1, mb);
    assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
    assert_true(tr_event(&t, 0, HY_FAB_EV_DONE, 20 * HY_SEC, &ev));
    assert_int_equal(ev.op, op);
    assert_true(ev.status < 0);
    for (size_t i = 0; i < sizeof(a); i++)
        assert_int_equal(a[i], 0x33);
    tr_close(&t);
}

static void test_wrong_secret(void **state)
{
    (void)state;
    tr t;
    hy_fab_event ev;
    hy_fab_stats s;
    tr_init(&t, im, 1);
    tr_open(&t, 0, NULL, NULL);
    tr_open(&t, 1, "another secret, as long", NULL);
    tr_open(&t, 2, NULL, NULL);
    hy_fab_connect(t.n[0].f, t.n[1].addrs, "node1", 0, NULL);
    assert_true(tr_event(&t, 0, HY_FAB_EV_CONNECT, 10 * HY_SEC, &ev));
    assert_int_equal(ev.status, HY_E_DENIED);
    assert_false(tr_event(&t, 1, HY_FAB_EV_UP, 200 * HY_MS, &ev));
    hy_fab_stats_get(t.n[0].f, &s);
    assert_int_equal(s.refused_auth, 1);
    /* the address is a hint: who answers must be the one who is meant */
    hy_fab_connect(t.n[0].f, t.n[2].addrs, "node1", 0, NULL);
    assert_true(tr_event(&t, 0, HY_FAB_EV_CONNECT, 10 * HY_SEC, &ev));
    assert_int_equal(ev.status, HY_E_DENIED);
    assert_non_null(strstr(ev.text, "node2 answers"));
    tr_join(&t, 0, 2);
    tr_close(&t);
}

static void test_nobody_there(void **state)
{
    (void)state;
    tr t;
    hy_fab_event ev;
    tr_init(&t, im, 1);
    tr_open(&t, 0, NULL, NULL);
    hy_fab_connect(t.n[0].f, im->loop ? "nowhere:1" : "127.0.0.1:1", NULL, 5, NULL);
    assert_true(tr_event(&t, 0, HY_FAB_EV_CONNECT, 10 * HY_SEC, &ev));
    assert_int_equal(ev.status, HY_E_PEER);
    assert_int_equal(ev.user, 5);
    if (!im->loop) /* a request's log line has nothing else to tell where it looked */
        assert_non_null(strstr(ev.text, "127.0.0.1:1"));
    assert_int_equal(hy_fab_connect(t.n[0].f, "", NULL, 5, NULL), HY_E_INVAL);
    tr_close(&t);
}

static void test_not_opened(void **state)
{
    (void)state;
    faults_not_opened(im);
}

static void long_grace(hy_fab_opts *o)
{
    o->grace_ns = 20 * HY_SEC;
}

/* Cancelled in the middle: one event, and then its memory is quiet. */
static void test_cancel(void **state)
{
    (void)state;
    tr t;
    tr_init(&t, im, 1);
    tr_open(&t, 0, NULL, long_grace); /* a busy machine drains slowly */
    tr_open(&t, 1, NULL, long_grace);
    tr_join(&t, 0, 1);
    uint8_t *a = calloc(1, BIG), *b = malloc(BIG);
    hy_fab_key kb;
    hy_fab_mr *ma = tr_mem(&t, 0, a, BIG, 0, NULL);
    tr_mem(&t, 1, b, BIG, 0, &kb);
    tr_fill(b, BIG, 1);
    for (int round = 0; round < 8; round++) {
        uint64_t op;
        hy_fab_event ev;
        hy_fab_range r = {ma, 0, &kb, 0, BIG};
        memset(a, 0, BIG);
        assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
        for (int i = 0; i < round * 10; i++)
            tr_pass(&t);
        hy_status st = hy_fab_cancel(t.n[0].f, op);
        assert_true(st == HY_OK || st == HY_E_NOTFOUND);
        assert_true(tr_event(&t, 0, HY_FAB_EV_DONE, 10 * HY_SEC, &ev));
        assert_int_equal(ev.op, op);
        assert_true(ev.status == HY_OK || ev.status == HY_E_ABORTED);
        if (ev.status == HY_OK)
            assert_memory_equal(a, b, BIG);
        memset(a, 0x77, BIG); /* nobody writes into it any more */
        for (int i = 0; i < 200; i++)
            tr_pass(&t);
        for (size_t i = 0; i < BIG; i++)
            if (a[i] != 0x77)
                fail_msg("%s: byte %zu landed after the fence", im->name, i);
    }
    assert_true(hy_fab_peer_is_up(t.n[0].f, t.n[0].peer)); /* it drained: no link was lost */
    tr_dereg(&t, 0, ma);
    tr_close(&t);
    free(a);
    free(b);
}

static void test_disconnect(void **state)
{
    (void)state;
    tr t;
    hy_fab_event ev;
    tr_pair(&t, im, 1);
    uint8_t *a = calloc(1, BIG), *b = calloc(1, BIG);
    hy_fab_key kb;
    hy_fab_mr *ma = tr_mem(&t, 0, a, BIG, 0, NULL);
    tr_mem(&t, 1, b, BIG, 0, &kb);
    hy_fab_range r = {ma, 0, &kb, 0, BIG};
    uint64_t op;
    hy_fab_peer old = t.n[0].peer;
    assert_int_equal(hy_fab_write(t.n[0].f, old, &r, 1, NULL, &op), HY_OK);
    hy_fab_disconnect(t.n[0].f, old);
    assert_true(tr_event(&t, 0, -1, 5 * HY_SEC, &ev)); /* the operation first */
    assert_int_equal(ev.kind, HY_FAB_EV_DONE);
    assert_true(ev.status < 0);
    assert_true((ev.flags & HY_FAB_UNKNOWN) != 0);
    assert_true(tr_event(&t, 0, -1, 5 * HY_SEC, &ev));
    assert_int_equal(ev.kind, HY_FAB_EV_DOWN);
    assert_true(tr_event(&t, 1, HY_FAB_EV_DOWN, 5 * HY_SEC, &ev));
    assert_int_equal(hy_fab_write(t.n[0].f, old, &r, 1, NULL, &op), HY_E_PEER);
    assert_int_equal(hy_fab_send(t.n[0].f, old, 1, "x", 1, NULL, NULL), HY_E_PEER);
    /* again, from the other side: a new handle, the same epoch, so keys hold */
    tr_join(&t, 1, 0);
    assert_true(t.n[0].peer != old);
    r.len = 1000;
    tr_fill(a, 1000, 4);
    assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    assert_memory_equal(a, b, 1000);
    tr_close(&t);
    free(a);
    free(b);
}

/* A node that comes back at the same address is another epoch: old handles and keys are dead. */
static void test_restart(void **state)
{
    (void)state;
    tr t;
    hy_fab_event ev;
    tr_pair(&t, im, 1);
    uint8_t a[1000], b[1000];
    hy_fab_key kb;
    hy_fab_mr *ma = tr_mem(&t, 0, a, sizeof(a), 0, NULL);
    tr_mem(&t, 1, b, sizeof(b), 0, &kb);
    hy_fab_peer old = t.n[0].peer;
    tr_close_node(&t, 1);
    tr_open(&t, 1, NULL, NULL);
    assert_true(tr_event(&t, 0, HY_FAB_EV_DOWN, 5 * HY_SEC, &ev));
    assert_int_equal(ev.peer, old);
    tr_join(&t, 0, 1);
    assert_true(t.n[0].peer != old);
    hy_fab_range r = {ma, 0, &kb, 0, 10};
    assert_int_equal(hy_fab_write(t.n[0].f, old, &r, 1, NULL, NULL), HY_E_PEER);
    assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, NULL, NULL), HY_E_PEER);
    tr_close(&t);
}

/* Both dial at once: one peer each, and it works. */
static void test_both_dial(void **state)
{
    (void)state;
    tr t;
    hy_fab_event ev;
    for (int round = 0; round < 3; round++) {
        tr_init(&t, im, 1);
        tr_open(&t, 0, NULL, NULL);
        tr_open(&t, 1, NULL, NULL);
        for (int i = 0; i < 2; i++)
            hy_fab_connect(t.n[i].f, t.n[1 - i].addrs, t.n[1 - i].name, 0, NULL);
        for (int i = 0; i < 2; i++) {
            assert_true(tr_event(&t, i, HY_FAB_EV_CONNECT, 5 * HY_SEC, &ev));
            assert_int_equal(ev.status, HY_OK);
            t.n[i].peer = ev.peer;
            assert_true(tr_event(&t, i, HY_FAB_EV_UP, 5 * HY_SEC, &ev));
        }
        for (int i = 0; i < 2; i++)
            hy_fab_send(t.n[i].f, t.n[i].peer, 3, "hi", 2, NULL, NULL);
        for (int i = 0; i < 2; i++) {
            assert_true(tr_event(&t, i, HY_FAB_EV_MSG, 5 * HY_SEC, &ev));
            hy_fab_event_fini(&ev);
            assert_false(tr_event(&t, i, HY_FAB_EV_DOWN, 300 * HY_MS, &ev));
        }
        tr_close(&t);
    }
}

/* Completions and immediates come when every byte is there, in whatever order pieces land. */
static void small_pieces(hy_fab_opts *o)
{
    o->piece_bytes = 4096;
    o->window_bytes = 65536;
}

static void test_landed(void **state)
{
    (void)state;
    enum { N = 48, LEN = 70001 };
    tr t;
    tr_init(&t, im, 1);
    tr_open(&t, 0, NULL, small_pieces);
    tr_open(&t, 1, NULL, small_pieces);
    tr_join(&t, 0, 1);
    uint8_t *a = malloc((size_t)N * LEN), *b = calloc(N, LEN);
    hy_fab_key kb;
    hy_fab_mr *ma = tr_mem(&t, 0, a, (size_t)N * LEN, 0, NULL);
    tr_mem(&t, 1, b, (size_t)N * LEN, 0, &kb);
    tr_fill(a, (size_t)N * LEN, 21);
    for (uint64_t i = 0; i < N; i++) {
        hy_fab_range r = {ma, i * LEN, &kb, (N - 1 - i) * LEN, LEN};
        hy_fab_op_opts o = {.user = i, .has_imm = i % 2 == 0, .imm = i};
        assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, &o, NULL), HY_OK);
    }
    for (int done = 0, imms = 0; done < N || imms < N / 2;) {
        hy_fab_event ev;
        int side = hy_fab_poll(t.n[0].f, &ev, 1) == 1 ? 0 : 1;
        if (side == 1 && hy_fab_poll(t.n[1].f, &ev, 1) == 0) {
            tr_pass(&t);
            continue;
        }
        assert_int_equal(ev.kind, side == 0 ? HY_FAB_EV_DONE : HY_FAB_EV_IMM);
        assert_int_equal(ev.status, HY_OK);
        uint64_t i = side == 0 ? ev.user : ev.imm;
        assert_memory_equal(a + i * LEN, b + (N - 1 - i) * LEN, LEN);
        done += side == 0;
        imms += side;
    }
    tr_close(&t);
    free(a);
    free(b);
}

/* Memory goes while both sides use it: afterwards nothing touches it. */
static void test_dereg_in_flight(void **state)
{
    (void)state;
    uint8_t *a = malloc(BIG), *b = malloc(BIG);
    tr_fill(b, BIG, 9);
    for (int round = 0; round < 4; round++) {
        tr t;
        hy_fab_event ev;
        hy_fab_key ka, kb;
        tr_pair(&t, im, 1);
        hy_fab_mr *ma = tr_mem(&t, 0, a, BIG, 1, &ka), *mb = tr_mem(&t, 1, b, BIG, 0, &kb);
        hy_fab_range r = {ma, 0, &kb, 0, BIG}, w = {mb, 0, &ka, 0, BIG};
        if (round != 2)
            assert_int_equal(hy_fab_read(t.n[0].f, t.n[0].peer, &r, 1, NULL, NULL), HY_OK);
        if (round != 1)
            assert_int_equal(hy_fab_write(t.n[1].f, t.n[1].peer, &w, 1, NULL, NULL), HY_OK);
        if (round == 1)
            assert_int_equal(hy_fab_dereg(t.n[0].f, ma), HY_E_BUSY);
        for (int i = 0; i < 20 * round; i++)
            tr_pass(&t);
        if (hy_fab_dereg_now(t.n[0].f, ma) != HY_OK)
            fail_msg("%s: round %d: %s", im->name, round, hy_fail_text());
        memset(a, 0x77, BIG);
        for (int i = 0; i < 2; i++)
            if (i == 0 ? round != 2 : round != 1)
                assert_true(tr_event(&t, i, HY_FAB_EV_DONE, 20 * HY_SEC, &ev));
        for (int i = 0; i < 200; i++)
            tr_pass(&t);
        for (size_t i = 0; i < BIG; i++)
            if (a[i] != 0x77)
                fail_msg("%s: round %d: byte %zu landed", im->name, round, i);
        tr_close(&t);
    }
    free(a);
    free(b);
}

static void any_address(hy_fab_opts *o)
{
    o->addrs[0] = "0.0.0.0:0";
}

/* A node that listens on all interfaces tells each peer the address that it was met at. */
static void test_any_address(void **state)
{
    (void)state;
    tr t;
    if (im->loop || strncmp(im->name, "verbs", 5) == 0)
        skip();
    tr_init(&t, im, 1);
    for (int i = 0; i < 2; i++) {
        tr_open(&t, i, NULL, any_address);
        assert_memory_equal(t.n[i].info.rail[0].addr, "0.0.0.0:", 8);
        const int port = atoi(t.n[i].info.rail[0].addr + 8);
        snprintf(t.n[i].addrs, sizeof(t.n[i].addrs), "%s:%d", tr_host(0), port);
    }
    tr_join(&t, 0, 1);
    enum { LEN = 3 << 20 };
    uint8_t *a = malloc(LEN), *b = calloc(1, LEN);
    hy_fab_key ka, kb;
    uint64_t op;
    hy_fab_mr *ma = tr_mem(&t, 0, a, LEN, 1, &ka), *mb = tr_mem(&t, 1, b, LEN, 0, &kb);
    hy_fab_range r = {ma, 0, &kb, 0, LEN}, w = {mb, 0, &ka, 0, LEN};
    tr_fill(a, LEN, 1);
    assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    assert_memory_equal(a, b, LEN);
    tr_fill(b, LEN, 2);
    assert_int_equal(hy_fab_write(t.n[1].f, t.n[1].peer, &w, 1, NULL, &op), HY_OK);
    tr_done_ok(&t, 1, op);
    assert_memory_equal(a, b, LEN);
    tr_close(&t);
    free(a);
    free(b);
}

/* Deadlines hold when the other side stands still, and memory is quiet after them. */
static void test_deadline(void **state)
{
    (void)state;
    tr t;
    hy_fab_event ev;
    if (!im->loop)
        skip(); /* real nodes are stopped in test_silence */
    tr_pair(&t, im, 1);
    static uint8_t a[100000], b[100000];
    hy_fab_key kb;
    hy_fab_mr *ma = tr_mem(&t, 0, a, sizeof(a), 0, NULL);
    tr_mem(&t, 1, b, sizeof(b), 0, &kb);
    hy_fab_range r = {ma, 0, &kb, 0, sizeof(a)};
    for (int kind = 0; kind < 3; kind++) {
        hy_fab_op_opts o = {.timeout_ns = 200 * HY_MS, .user = (uint64_t)kind};
        hy_loop_stall(t.net, "node1", 800 * HY_MS); /* less than the peer timeout */
        uint64_t start = tr_now(&t), op;
        hy_status st = kind == 0   ? hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, &o, &op)
                       : kind == 1 ? hy_fab_read(t.n[0].f, t.n[0].peer, &r, 1, &o, &op)
                                   : hy_fab_send(t.n[0].f, t.n[0].peer, 1, "x", 1, &o, &op);
        assert_int_equal(st, HY_OK);
        assert_true(tr_event(&t, 0, HY_FAB_EV_DONE, 5 * HY_SEC, &ev));
        assert_int_equal(ev.op, op);
        assert_int_equal(ev.status, HY_E_TIMEOUT);
        assert_true(tr_now(&t) - start >= 200 * HY_MS);
        assert_true(tr_now(&t) - start < 1500 * HY_MS); /* deadline and grace */
        if (kind < 2) { /* the fence was the link: it is the only one */
            if (tr_event(&t, 0, HY_FAB_EV_DOWN, HY_SEC, &ev)) {
                assert_true(tr_event(&t, 1, HY_FAB_EV_DOWN, 2 * HY_SEC, &ev));
                tr_join(&t, 0, 1);
            }
        }
    }
    tr_close(&t);
}

static void test_chaos(void **state)
{
    (void)state;
    uint64_t ok = 0, failed = 0;
    if (!im->virt)
        skip();
    for (uint64_t seed = 1; seed <= 24; seed++)
        transport_chaos(im, seed, &ok, &failed);
    printf("chaos: %llu operations done, %llu failed as they should\n", (unsigned long long)ok,
           (unsigned long long)failed);
    assert_true(ok > 1000 && failed > 100); /* else the faults or the work are missing */
}

static void test_beside(void **state)
{
    (void)state;
    paths_beside(im);
}

static void test_beside_mute(void **state)
{
    (void)state;
    faults_beside(im);
}

static void test_beside_alone(void **state)
{
    (void)state;
    paths_beside_alone(im);
}

static void test_unlent(void **state)
{
    (void)state;
    paths_unlent(im);
}

static void test_congestion(void **state)
{
    (void)state;
    paths_congestion(im);
}

static void test_path(void **state)
{
    (void)state;
    paths_path(im);
}

static void test_same_node(void **state)
{
    (void)state;
    paths_same_node(im);
}

static void test_unlike_providers(void **state)
{
    (void)state;
    paths_unlike_providers(im);
}

static void test_rails(void **state)
{
    (void)state;
    if (strcmp(im->name, "shm") == 0)
        skip(); /* one path only: there is no second rail to go to */
    faults_rails(im);
}

static void test_two_rails(void **state)
{
    (void)state;
    faults_two_rails(im);
}

static int page_node;

static void second_is_near(hy_fab_opts *o)
{
    o->rail_node[0] = page_node + 1;
    o->rail_node[1] = page_node;
}

/* The rail whose card is near the memory comes first; the far one takes what it has no room for. */
static void test_near_rail(void **state)
{
    (void)state;
    tr t;
    hy_fab_stats s;
    hy_fab_key kb;
    uint64_t op;
    uint8_t *a = calloc(1, BIG), *b = malloc(BIG);
    page_node = hy_fab__numa_of_page(a);
    if (page_node < 0 || strcmp(im->name, "shm") == 0) {
        free(a);
        free(b);
        skip();
    }
    tr_init(&t, im, 2);
    tr_open(&t, 0, NULL, second_is_near);
    tr_open(&t, 1, NULL, second_is_near);
    tr_join(&t, 0, 1);
    tr_links(&t, im->beside ? 4 : 2);
    hy_fab_mr *ma = tr_mem(&t, 0, a, BIG, 0, NULL);
    tr_mem(&t, 1, b, BIG, 0, &kb);
    hy_fab_range r = {ma, 0, &kb, 0, 1 << 20};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
        tr_done_ok(&t, 0, op);
    }
    hy_fab_stats_get(t.n[0].f, &s);
    assert_int_equal(s.rail_bytes[0], 0);
    assert_int_equal(s.rail_bytes[1], 4 << 20);
    r.len = BIG; /* three windows */
    assert_int_equal(hy_fab_write(t.n[0].f, t.n[0].peer, &r, 1, NULL, &op), HY_OK);
    tr_done_ok(&t, 0, op);
    assert_memory_equal(a, b, BIG);
    hy_fab_stats_get(t.n[0].f, &s);
    const bool at_once = strncmp(im->name, "verbs", 5) == 0; /* soft RoCE: no window ever fills */
    assert_true(at_once || s.rail_bytes[0] > 0);
    assert_int_equal(s.rail_bytes[0] + s.rail_bytes[1], (4 << 20) + BIG);
    tr_close(&t);
    free(a);
    free(b);
}

static void test_garbage(void **state)
{
    (void)state;
    if (im->loop)
        skip();
    faults_garbage(im);
}

static void test_idle(void **state)
{
    (void)state;
    if (im->loop)
        skip();
    faults_idle(im);
}

static void test_silence(void **state)
{
    (void)state;
    if (im->loop)
        skip();
    faults_silence(im);
}

static void test_kill(void **state)
{
    (void)state;
    if (im->loop)
        skip();
    faults_kill(im);
}

static bool available(void)
{
    hy_fab_opts o;
    hy_fab *f;
    char addr[80];
    if (im->loop)
        return true;
    if (im->same) {
        char x = 1, y = 0;
        struct iovec mine = {&y, 1}, theirs = {&x, 1};
        if (process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0) != 1) {
            hy_fail(HY_E_UNSUPPORTED, "process_vm_readv is refused here: %s", strerror(errno));
            return false;
        }
    }
    hy_fab_opts_init(&o);
    snprintf(addr, sizeof(addr), "%s:0", tr_host(0));
    o.node = "probe";
    o.addrs[0] = addr;
    o.n_addrs = 1;
    o.providers = im->providers;
    o.secret = "a secret of the tests";
    o.secret_len = 21;
    if (hy_fab_open(&o, &f) != HY_OK)
        return false;
    hy_fab_close(f);
    return true;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_in_order),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_write_read_sizes),
        cmocka_unit_test(test_scatter),
        cmocka_unit_test(test_beside),
        cmocka_unit_test(test_beside_alone),
        cmocka_unit_test(test_beside_mute),
        cmocka_unit_test(test_unlent),
        cmocka_unit_test(test_congestion),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_refused_ranges),
        cmocka_unit_test(test_dead_key),
        cmocka_unit_test(test_wrong_secret),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_not_opened),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_both_dial),
        cmocka_unit_test(test_landed),
        cmocka_unit_test(test_dereg_in_flight),
        cmocka_unit_test(test_any_address),
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_same_node),
        cmocka_unit_test(test_unlike_providers),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_chaos),
        cmocka_unit_test(test_rails),
        cmocka_unit_test(test_two_rails),
        cmocka_unit_test(test_near_rail),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_kill),
    };
    for (size_t i = 0; i < HY_COUNTOF(impls) && argc > 1; i++)
        if (strcmp(impls[i].name, argv[1]) == 0)
            im = &impls[i];
    if (im == NULL)
        return fprintf(stderr, "usage: test_transport NAME [FILTER]\n"), 2;
    hy_log_set_level(getenv("HY_TEST_LOG") != NULL ? HY_LOG_DEBUG : HY_LOG_ERROR);
    if (im->copies && !hy_test_refuse(SYS_vmsplice))
        return fprintf(stderr, "seccomp is refused: %s\n", strerror(errno)), 1;
    if (argc > 4 && strcmp(argv[2], "--far") == 0)
        return faults_far(im, argv[3], atoi(argv[4]));
    if (!available()) {
        printf("skipped: %s: %s\n", im->name, hy_fail_text());
        return 77;
    }
    if (argc > 3 && strcmp(argv[2], "chaos") == 0) {
        uint64_t ok = 0, failed = 0;
        transport_chaos(im, strtoull(argv[3], NULL, 10), &ok, &failed);
        printf("%llu done, %llu failed\n", (unsigned long long)ok, (unsigned long long)failed);
        return 0;
    }
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    int rc = cmocka_run_group_tests_name(im->name, tests, NULL, NULL);
    return rc;
}
