/* SPDX-License-Identifier: Apache-2.0
 *
 * Seeds of faults over the loop in virtual time: two nodes read, write and send to each other while
 * frames come late, twice or broken, pieces are lost or overtaken, a node stands still, the way is
 * shut, and a node dies and comes back as another epoch. A seed that fails can be run alone:
 * test_transport loop-virtual chaos SEED.
 *
 * Checked: every operation has exactly one event, in bounded time; what is reported as done is
 * there; memory is quiet after its operation's event; messages come in order, each once.
 *
 * Thread: the test's.  Owner: the chaos object.
 */
#include "tests/conform/transport.h"
#include "tests/unit/cm.h"

#include <string.h>

enum { SLOTS = 24, SLOT = 48 << 10, MOST_OPS = 400 };
#define BOUND_NS (8 * HY_SEC) /* op timeout 2 s, grace 0.3 s, stall 1 s, peer timeout 1.5 s */

typedef struct slot { /* local memory of one operation at a time */
    uint64_t op, started, seed;
    bool busy, read, remote_bad; /* remote_bad: a write of unknown outcome: quarantined */
} slot;

typedef struct side {
    uint8_t *local, *remote; /* remote: what the other one may touch, SLOTS for each purpose */
    hy_fab_mr *ml, *mr;
    hy_fab_key key; /* of the other's remote */
    bool have_key;
    slot s[SLOTS];
    uint64_t tx_num, rx_num, ok, failed;
    uint64_t connecting;
    bool up;
} side;

typedef struct chaos {
    tr t;
    hy_rng rng;
    uint64_t seed;
    side n[2];
    uint64_t heal_at;
} chaos;

static void chaos_opts(hy_fab_opts *o)
{
    o->op_timeout_ns = 2 * HY_SEC;
    o->grace_ns = 300 * HY_MS;
    o->stall_ns = HY_SEC;
    o->piece_bytes = 8192;
    o->window_bytes = 65536;
}

/* What the remote memory holds for reading: a pattern by owner, in the second half. */
static void pattern(uint8_t *p, size_t n, uint64_t seed)
{
    tr_fill(p, n, seed);
}

static void open_side(chaos *c, int i)
{
    side *s = &c->n[i];
    tr_open(&c->t, i, NULL, chaos_opts);
    memset(s->s, 0, sizeof(s->s));
    s->have_key = s->up = false;
    s->connecting = 0;
    s->tx_num = s->rx_num = 0;
    s->ml = tr_mem(&c->t, i, s->local, (size_t)SLOTS * SLOT, i, NULL);
    s->mr = tr_mem(&c->t, i, s->remote, (size_t)2 * SLOTS * SLOT, i, NULL);
    for (uint64_t k = 0; k < SLOTS; k++)
        pattern(s->remote + (SLOTS + k) * SLOT, SLOT, 1000 * (uint64_t)(i + 1) + k);
    memset(s->local, 0x77, (size_t)SLOTS * SLOT);
}

static void quiet(chaos *c, int i, int k)
{
    const uint8_t *p = c->n[i].local + (size_t)k * SLOT;
    for (size_t b = 0; b < SLOT; b++)
        if (p[b] != 0x77)
            fail_msg("seed %llu: node %d slot %d byte %zu changed after its event",
                     (unsigned long long)c->seed, i, k, b);
}

static void finish(chaos *c, int i, const hy_fab_event *ev)
{
    side *s = &c->n[i], *o = &c->n[1 - i];
    slot *x = &s->s[ev->user];
    uint8_t *p = s->local + ev->user * SLOT;
    if (!x->busy || x->op != ev->op)
        fail_msg("seed %llu: a second event for an operation", (unsigned long long)c->seed);
    x->busy = false;
    if (ev->status == HY_OK && x->read) {
        uint8_t want[64];
        pattern(want, sizeof(want), 1000 * (uint64_t)(2 - i) + ev->user);
        assert_memory_equal(p, want, sizeof(want));
        assert_memory_equal(p, o->remote + (SLOTS + ev->user) * SLOT, SLOT);
    } else if (ev->status == HY_OK && o->have_key) {
        assert_memory_equal(p, o->remote + ev->user * SLOT, SLOT);
    }
    s->ok += ev->status == HY_OK;
    s->failed += ev->status != HY_OK;
    if ((ev->flags & HY_FAB_UNKNOWN) != 0)
        x->remote_bad = true;
    memset(p, 0x77, SLOT);
}

static void got_msg(chaos *c, int i, const hy_fab_event *ev)
{
    side *s = &c->n[i];
    if (ev->type == 1) { /* the key of the other's memory */
        hy_status st = hy_fab_key_unpack(c->t.n[i].f, ev->peer, ev->data, ev->len, &s->key, NULL);
        s->have_key = st == HY_OK && ev->peer == c->t.n[i].peer;
        for (int k = 0; k < SLOTS; k++)
            s->s[k].remote_bad = false; /* another epoch of it, or a new start: nothing lands */
    } else {
        uint64_t num;
        assert_int_equal(ev->len, 8);
        memcpy(&num, ev->data, 8);
        assert_int_equal(num, s->rx_num + 1);
        s->rx_num = num;
    }
}

static void look(chaos *c, int i)
{
    side *s = &c->n[i];
    hy_fab_event ev;
    while (c->t.n[i].f != NULL && hy_fab_poll(c->t.n[i].f, &ev, 1) == 1) {
        if (ev.kind == HY_FAB_EV_UP) {
            hy_buf b;
            hy_buf_init(&b);
            s->up = true;
            c->t.n[i].peer = ev.peer;
            s->tx_num = s->rx_num = 0;
            hy_fab_key_pack(s->mr, &b);
            hy_fab_send(c->t.n[i].f, ev.peer, 1, b.data, b.len, NULL, NULL);
            hy_buf_fini(&b);
        } else if (ev.kind == HY_FAB_EV_DOWN && ev.peer == c->t.n[i].peer) {
            s->up = s->have_key = false;
            for (int k = 0; k < SLOTS; k++)
                assert_false(s->s[k].busy); /* every operation had its event before */
        } else if (ev.kind == HY_FAB_EV_CONNECT) {
            s->connecting = 0;
        } else if (ev.kind == HY_FAB_EV_DONE && ev.user < SLOTS) {
            if (c->n[i].s[ev.user].op == ev.op)
                finish(c, i, &ev);
        } else if (ev.kind == HY_FAB_EV_MSG && ev.peer == c->t.n[i].peer) {
            got_msg(c, i, &ev);
        }
        hy_fab_event_fini(&ev);
    }
}

static void start_one(chaos *c, int i)
{
    side *s = &c->n[i];
    int k = (int)hy_rng_below(&c->rng, SLOTS);
    slot *x = &s->s[k];
    if (x->busy || x->remote_bad || !s->have_key)
        return;
    quiet(c, i, k);
    hy_fab_op_opts o = {.user = (uint64_t)k};
    x->read = hy_rng_below(&c->rng, 2) == 0;
    uint64_t off = (uint64_t)k * SLOT;
    hy_fab_range r = {s->ml, off, &s->key, x->read ? off + (uint64_t)SLOTS * SLOT : off, SLOT};
    hy_status st;
    if (!x->read) {
        x->seed = hy_rng_u64(&c->rng);
        tr_fill(s->local + off, SLOT, x->seed);
    }
    st = x->read ? hy_fab_read(c->t.n[i].f, c->t.n[i].peer, &r, 1, &o, &x->op)
                 : hy_fab_write(c->t.n[i].f, c->t.n[i].peer, &r, 1, &o, &x->op);
    x->busy = st == HY_OK;
    x->started = tr_now(&c->t);
    if (st != HY_OK)
        memset(s->local + off, 0x77, SLOT);
}

static void work(chaos *c, int i)
{
    side *s = &c->n[i];
    hy_fab *f = c->t.n[i].f;
    if (!s->up) {
        if (i == 0 && s->connecting == 0 && c->t.n[1].f != NULL &&
            hy_fab_connect(f, c->t.n[1].addrs, "node1", SLOTS, &s->connecting) < 0)
            s->connecting = 0;
        return;
    }
    uint64_t what = hy_rng_below(&c->rng, 10);
    if (what < 6) {
        start_one(c, i);
    } else if (what < 9) {
        uint64_t num = s->tx_num + 1;
        hy_fab_op_opts o = {.user = SLOTS};
        if (hy_fab_send(f, c->t.n[i].peer, 2, &num, 8, &o, NULL) == HY_OK)
            s->tx_num = num;
    } else {
        int k = (int)hy_rng_below(&c->rng, SLOTS);
        if (s->s[k].busy)
            hy_fab_cancel(f, s->s[k].op);
    }
}

static void fault(chaos *c)
{
    hy_loop_net *n = c->t.net;
    hy_loop_model m = {.latency_ns = 20 * HY_US,
                       .jitter_ns = 50 * HY_US,
                       .bytes_per_s = 1000000000,
                       .rto_ns = 50 * HY_MS};
    switch (hy_rng_below(&c->rng, 8)) {
    case 0:
        m.drop = 0.002;
        break;
    case 1:
        m.duplicate = 0.2;
        m.reorder = 0.3;
        break;
    case 2:
        m.corrupt = 0.001;
        break;
    case 3:
        hy_loop_stall(n, hy_rng_below(&c->rng, 2) ? "node0" : "node1",
                      hy_rng_below(&c->rng, 3 * HY_SEC));
        break;
    case 4:
        hy_loop_partition(n, "node0", "node1");
        c->heal_at = tr_now(&c->t) + hy_rng_below(&c->rng, 4 * HY_SEC);
        break;
    case 5:
        hy_loop_kill(n, c->t.n[1].f, hy_rng_below(&c->rng, 2) == 0);
        tr_close_node(&c->t, 1);
        open_side(c, 1);
        break;
    default:
        break;
    }
    hy_loop_set(n, &m);
}

static void check_bounds(chaos *c)
{
    uint64_t now = tr_now(&c->t);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < SLOTS; k++)
            if (c->n[i].s[k].busy && now > c->n[i].s[k].started + BOUND_NS)
                fail_msg("seed %llu: node %d: an operation without event after %.1f s",
                         (unsigned long long)c->seed, i, (double)BOUND_NS / 1e9);
}

static void settle(chaos *c)
{
    hy_loop_model clean = {.latency_ns = 10 * HY_US};
    hy_loop_heal(c->t.net);
    hy_loop_set(c->t.net, &clean);
    for (int k = 0; k < 10000; k++) {
        hy_runtime_run_for(c->t.rt, HY_MS);
        for (int i = 0; i < 2; i++)
            look(c, i);
        check_bounds(c);
    }
    for (int i = 0; i < 2; i++) {
        hy_fab_stats st;
        hy_fab_stats_get(c->t.n[i].f, &st);
        assert_int_equal(st.ops_open, c->n[i].connecting != 0);
        for (int k = 0; k < SLOTS; k++) {
            assert_false(c->n[i].s[k].busy);
            quiet(c, i, k);
        }
        assert_int_equal(hy_fab_dereg(c->t.n[i].f, c->n[i].ml), HY_OK);
    }
}

void transport_chaos(const tr_impl *im, uint64_t seed, uint64_t *ok, uint64_t *failed)
{
    chaos *c = calloc(1, sizeof(*c));
    c->seed = seed;
    hy_rng_init(&c->rng, seed);
    tr_init(&c->t, im, 1);
    for (int i = 0; i < 2; i++) {
        c->n[i].local = malloc((size_t)SLOTS * SLOT);
        c->n[i].remote = malloc((size_t)2 * SLOTS * SLOT);
        open_side(c, i);
    }
    c->heal_at = HY_NEVER;
    for (int step = 0; step < 4000; step++) {
        if (hy_rng_below(&c->rng, 300) == 0)
            fault(c);
        if (tr_now(&c->t) >= c->heal_at) {
            hy_loop_heal(c->t.net);
            c->heal_at = HY_NEVER;
        }
        for (int i = 0; i < 2; i++) {
            work(c, i);
            look(c, i);
        }
        hy_runtime_run_for(c->t.rt, hy_rng_below(&c->rng, 4 * HY_MS));
        check_bounds(c);
    }
    settle(c);
    *ok += c->n[0].ok + c->n[1].ok;
    *failed += c->n[0].failed + c->n[1].failed;
    tr_close(&c->t);
    for (int i = 0; i < 2; i++) {
        free(c->n[i].local);
        free(c->n[i].remote);
    }
    free(c);
}
