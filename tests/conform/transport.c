/* SPDX-License-Identifier: Apache-2.0
 *
 * Endpoints for the transport suite, under virtual or real time.
 *
 * Thread: the test's.  Owner: see transport.h.
 */
#include "tests/conform/transport.h"
#include "tests/unit/cm.h"

#include <sched.h>
#include <string.h>
#include <time.h>

const char *tr_host(int rail)
{
    static char host[4][64]; /* the test's thread only */
    const char *list = getenv("HY_TEST_HOSTS");
    for (int i = 0; list != NULL && i < rail; i++)
        list = strchr(list, ',') != NULL ? strchr(list, ',') + 1 : NULL;
    if (list != NULL)
        snprintf(host[rail], sizeof(host[rail]), "%.*s", (int)strcspn(list, ","), list);
    else
        snprintf(host[rail], sizeof(host[rail]), "127.0.0.%d", rail + 1);
    return host[rail];
}

uint64_t tr_slow(void)
{
    const char *s = getenv("HY_TEST_SLOW");
    int n = s != NULL ? atoi(s) : 1;
    return n > 1 ? (uint64_t)n : 1;
}

void tr_init(tr *t, const tr_impl *im, int rails)
{
    memset(t, 0, sizeof(*t));
    t->im = im;
    t->rails = rails;
    t->epoch = 100;
    if (im->virt)
        t->rt = hy_runtime_create(HY_RUNTIME_VIRTUAL, 7);
    if (im->loop)
        t->net = hy_loop_net_create(im->virt ? hy_runtime_clock(t->rt) : hy_clock_real(), 11);
    if (im->virt)
        assert_int_equal(hy_runtime_start(t->rt), HY_OK);
}

void tr_open(tr *t, int i, const char *secret, void (*tune)(hy_fab_opts *o))
{
    tr_node *n = &t->n[i];
    char addr[4][80];
    hy_fab_opts o;
    hy_fab_opts_init(&o);
    memset(n, 0, sizeof(*n));
    snprintf(n->name, sizeof(n->name), "node%d", i);
    o.node = n->name;
    o.epoch = t->im->virt ? t->epoch++ : 0;
    o.secret = secret != NULL ? secret : "a secret of the tests";
    o.secret_len = strlen(o.secret);
    o.n_addrs = t->rails;
    for (int r = 0; r < t->rails; r++) {
        if (t->im->loop)
            snprintf(addr[r], sizeof(addr[r]), "%s:%d", n->name, r);
        else
            snprintf(addr[r], sizeof(addr[r]), "%s:0", tr_host(r));
        o.addrs[r] = addr[r];
    }
    o.providers = t->im->providers;
    o.strict = t->im->strict;
    o.same_node = t->im->same;
    o.pull = t->im->pull;
    o.loop = t->net;
    o.runtime = t->rt;
    o.heartbeat_ns = 100 * HY_MS;
    o.peer_timeout_ns = tr_slow() * 1500 * HY_MS;
    o.connect_timeout_ns = tr_slow() * 3 * HY_SEC;
    if (tune != NULL)
        tune(&o);
    hy_status st = hy_fab_open(&o, &n->f);
    if (st != HY_OK)
        fail_msg("open: %s", hy_fail_text());
    hy_fab_info_get(n->f, &n->info);
    for (int r = 0; r < t->rails; r++) {
        strcat(n->addrs, r > 0 ? "," : "");
        strcat(n->addrs, n->info.rail[r].addr);
    }
}

uint64_t tr_now(tr *t)
{
    return hy_clock_now_ns(t->im->virt ? hy_runtime_clock(t->rt) : hy_clock_real());
}

void tr_pass(tr *t)
{
    if (t->im->virt) {
        hy_status st = hy_runtime_step(t->rt, HY_NEVER);
        if (st < 0)
            fail_msg("runtime: %s", hy_fail_text());
        if (st == HY_END)
            hy_runtime_run_for(t->rt, HY_MS);
    } else {
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
}

void tr_links(tr *t, uint64_t n)
{
    hy_fab_stats st = {0};
    for (int i = 0; i < 8000 && st.links_up != n; i++) {
        hy_fab_stats_get(t->n[0].f, &st);
        tr_pass(t);
        nanosleep(&(struct timespec){0, t->im->virt ? 0 : 1000000}, NULL);
    }
    assert_int_equal(st.links_up, n);
}

bool tr_event(tr *t, int i, int kind, uint64_t ns, hy_fab_event *out)
{
    tr_node *n = &t->n[i];
    uint64_t end = tr_now(t) + tr_slow() * ns;
    for (;;) {
        for (size_t k = 0; k < n->n_ev; k++) {
            if (kind >= 0 && (int)n->ev[k].kind != kind)
                continue;
            *out = n->ev[k];
            memmove(&n->ev[k], &n->ev[k + 1], (--n->n_ev - k) * sizeof(n->ev[0]));
            return true;
        }
        assert_true(n->n_ev < 64);
        if (hy_fab_poll(n->f, &n->ev[n->n_ev], 1) == 1) {
            n->n_ev++;
            continue;
        }
        if (tr_now(t) >= end)
            return false;
        tr_pass(t);
    }
}

void tr_join(tr *t, int a, int b)
{
    hy_fab_event ev;
    uint64_t op;
    assert_int_equal(hy_fab_connect(t->n[a].f, t->n[b].addrs, t->n[b].name, 77, &op), HY_OK);
    if (!tr_event(t, a, HY_FAB_EV_CONNECT, 10 * HY_SEC, &ev))
        fail_msg("%s: no answer to connect", t->im->name);
    if (ev.status != HY_OK)
        fail_msg("%s: connect: %s", t->im->name, ev.text);
    assert_int_equal(ev.user, 77);
    assert_int_equal(ev.op, op);
    t->n[a].peer = ev.peer;
    assert_true(tr_event(t, a, HY_FAB_EV_UP, HY_SEC, &ev));
    assert_int_equal(ev.peer, t->n[a].peer);
    assert_string_equal(ev.text, t->n[b].name);
    assert_true(tr_event(t, b, HY_FAB_EV_UP, HY_SEC, &ev));
    assert_string_equal(ev.text, t->n[a].name);
    assert_int_equal(ev.epoch, t->n[a].info.epoch);
    t->n[b].peer = ev.peer;
}

void tr_close_node(tr *t, int i)
{
    for (size_t k = 0; k < t->n[i].n_ev; k++)
        hy_fab_event_fini(&t->n[i].ev[k]);
    t->n[i].n_ev = 0;
    hy_fab_close(t->n[i].f);
    t->n[i].f = NULL;
}

void tr_close(tr *t)
{
    for (int i = 0; i < 4; i++)
        tr_close_node(t, i);
    hy_runtime_destroy(t->rt);
    hy_loop_net_destroy(t->net);
}

hy_fab_mr *tr_mem(tr *t, int i, void *p, size_t n, int j, hy_fab_key *key)
{
    hy_span s = hy_span_host(p, n);
    hy_fab_mr *mr;
    hy_status st = hy_fab_reg(t->n[i].f, &s, HY_FAB_REMOTE_READ | HY_FAB_REMOTE_WRITE, &mr);
    if (st != HY_OK)
        fail_msg("register: %s", hy_fail_text());
    if (key != NULL) {
        hy_buf b;
        size_t used;
        hy_buf_init(&b);
        hy_fab_key_pack(mr, &b);
        st = hy_fab_key_unpack(t->n[j].f, t->n[j].peer, b.data, b.len, key, &used);
        if (st != HY_OK)
            fail_msg("key: %s", hy_fail_text());
        assert_int_equal(used, b.len);
        hy_buf_fini(&b);
    }
    return mr;
}

void tr_dereg(tr *t, int i, hy_fab_mr *mr)
{
    uint64_t end = tr_now(t) + 10 * HY_SEC;
    hy_status st;
    while ((st = hy_fab_dereg(t->n[i].f, mr)) == HY_E_BUSY && tr_now(t) < end)
        tr_pass(t);
    if (st != HY_OK)
        fail_msg("%s: deregister: %s", t->im->name, hy_fail_text());
}

void tr_fill(void *p, size_t n, uint64_t seed)
{
    hy_rng r;
    hy_rng_init(&r, seed);
    uint8_t *b = p;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = hy_rng_u64(&r);
        memcpy(b + i, &v, n - i < 8 ? n - i : 8);
    }
}

void tr_pair(tr *t, const tr_impl *im, int rails)
{
    tr_init(t, im, rails);
    tr_open(t, 0, NULL, NULL);
    tr_open(t, 1, NULL, NULL);
    tr_join(t, 0, 1);
}

void tr_done_ok(tr *t, int i, uint64_t op)
{
    hy_fab_event ev;
    if (!tr_event(t, i, HY_FAB_EV_DONE, 20 * HY_SEC, &ev))
        fail_msg("%s: no event", t->im->name);
    if (ev.status != HY_OK)
        fail_msg("%s: %s: %s", t->im->name, hy_status_name(ev.status), ev.text);
    assert_int_equal(ev.op, op);
}
