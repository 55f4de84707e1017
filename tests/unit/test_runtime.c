/* SPDX-License-Identifier: Apache-2.0
 *
 * Several stages under both runtimes: a ring with back-pressure and reserved credit; order of
 * events by seed; time that stands still; a killed stage.
 *
 * Thread: test and stages; results are read when all is quiet.  Owner: the test.
 */
#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/runtime.h"
#include "tests/unit/cm.h"

#include <string.h>

/* A front sends work to a back and gets each piece back. The back's answers go into the front's
 * reserved slots; the front's outstanding pieces are limited to them, so neither can block. */
enum { WORK, DONE, TICK };
enum { CREDIT = 4, PIECES = 2000 };

typedef struct node {
    hy_stage *s;
    struct node *peer;
    uint64_t sent, done, sum, refused, inflight, max_inflight;
    uint64_t delay_ns; /* of the back, per piece; random when set */
} node;

static hy_status front_msg(void *self, hy_msg *m)
{
    node *f = self;
    if (m->kind == DONE) {
        f->done++;
        f->inflight--;
        f->sum += m->arg;
    }
    return HY_OK;
}

static uint64_t front_idle(void *self, uint64_t now_ns)
{
    node *f = self;
    while (f->sent < PIECES && f->inflight < CREDIT) {
        hy_msg w = {.kind = WORK, .arg = f->sent};
        hy_status st = hy_stage_post(f->peer->s, &w);
        if (st == HY_AGAIN) {
            f->refused++;
            return now_ns + 10 * HY_US; /* back-pressure: later */
        }
        f->sent++;
        f->inflight++;
        if (f->inflight > f->max_inflight)
            f->max_inflight = f->inflight;
    }
    return HY_NEVER;
}

static bool front_busy(void *self)
{
    node *f = self;
    return f->done < PIECES;
}

static hy_status back_msg(void *self, hy_msg *m)
{
    node *b = self;
    if (m->kind == WORK && b->delay_ns != 0) {
        hy_msg t = {.kind = TICK, .arg = m->arg};
        uint64_t d = hy_rng_below(hy_stage_rng(b->s), b->delay_ns);
        return hy_stage_timer(b->s, hy_stage_now(b->s) + d, &t, NULL);
    }
    hy_msg d = {.kind = DONE, .arg = m->arg};
    hy_status st = hy_stage_post_reserved(b->peer->s, &d);
    return st == HY_OK ? st : hy_fail(HY_E_SYS, "a completion found no slot");
}

static const hy_stage_ops front_ops = {
    .on_msg = front_msg, .on_idle = front_idle, .busy = front_busy};
static const hy_stage_ops back_ops = {.on_msg = back_msg};

static void ring(hy_runtime_mode mode, uint64_t delay_ns)
{
    node f = {0}, b = {.delay_ns = delay_ns};
    f.peer = &b;
    b.peer = &f;
    f.s = hy_stage_create("front", &front_ops, &f, 1, CREDIT);
    b.s = hy_stage_create("back", &back_ops, &b, 2, 0); /* smaller than the credit: refuses */
    hy_runtime *rt = hy_runtime_create(mode, 5);
    hy_runtime_add(rt, f.s);
    hy_runtime_add(rt, b.s);
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    /* somebody else fills the front's one ordinary slot: completions still get in */
    hy_msg noise = {.kind = TICK};
    for (int i = 0; i < 1000; i++)
        hy_stage_post(f.s, &noise);
    assert_int_equal(hy_runtime_drain(rt, 60 * HY_SEC), HY_OK);
    assert_int_equal(hy_runtime_failed(rt, NULL), HY_OK);
    hy_runtime_stop(rt);
    assert_int_equal(f.done, PIECES);
    assert_int_equal(f.sum, (uint64_t)PIECES * (PIECES - 1) / 2);
    assert_true(f.max_inflight <= CREDIT);
    if (mode == HY_RUNTIME_VIRTUAL)
        assert_true(f.refused > 0);
    hy_runtime_destroy(rt);
    hy_stage_destroy(f.s);
    hy_stage_destroy(b.s);
}

static void ring_threads(void **state)
{
    (void)state;
    ring(HY_RUNTIME_THREADS, 0);
    ring(HY_RUNTIME_THREADS, 20 * HY_US);
}

static void ring_virtual(void **state)
{
    (void)state;
    ring(HY_RUNTIME_VIRTUAL, 0);
    ring(HY_RUNTIME_VIRTUAL, 20 * HY_MS); /* 40 s at most of virtual time */
}

/* Gossip: each node posts to random others after random delays; the hash of the order of all
 * events (time, stage, kind) is the fingerprint of a run. */
enum { NODES = 6 };

typedef struct gossip {
    hy_stage *s;
    struct gossip *all;
    unsigned left;
} gossip;

static hy_status gossip_msg(void *self, hy_msg *m)
{
    gossip *g = self;
    hy_rng *r = hy_stage_rng(g->s);
    if (m->kind == TICK) {
        hy_msg w = {.kind = WORK};
        hy_stage_post(g->all[hy_rng_below(r, NODES)].s, &w);
    }
    if (g->left == 0)
        return HY_OK;
    g->left--;
    hy_msg t = {.kind = TICK};
    return hy_stage_timer(g->s, hy_stage_now(g->s) + hy_rng_below(r, 4) * HY_MS, &t, NULL);
}

typedef struct trace {
    uint64_t hash, events, picks;
} trace;

static void observe(void *arg, uint64_t now_ns, hy_stage *s, int kind)
{
    trace *t = arg;
    char line[80];
    int n = snprintf(line, sizeof(line), "%llu %s %d", (unsigned long long)now_ns, hy_stage_name(s),
                     kind);
    t->hash = hy_xxh64(line, (size_t)n, t->hash);
    t->events++;
}

static trace run_gossip(uint64_t seed)
{
    static const hy_stage_ops ops = {.on_msg = gossip_msg};
    gossip g[NODES];
    trace t = {0, 0, 0};
    hy_runtime *rt = hy_runtime_create(HY_RUNTIME_VIRTUAL, seed);
    hy_runtime_observe(rt, observe, &t);
    for (int i = 0; i < NODES; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n%d", i);
        g[i] = (gossip){hy_stage_create(name, &ops, &g[i], 64, 0), g, 200};
        assert_int_equal(hy_runtime_add(rt, g[i].s), HY_OK);
    }
    for (int i = 0; i < NODES; i++)
        hy_stage_post(g[i].s, &(hy_msg){.kind = TICK});
    assert_int_equal(hy_runtime_start(rt), HY_OK);
    assert_int_equal(hy_runtime_run_until_idle(rt, 100 * HY_SEC), HY_OK);
    hy_runtime_destroy(rt);
    for (int i = 0; i < NODES; i++)
        hy_stage_destroy(g[i].s);
    return t;
}

static void one_seed_one_order(void **state)
{
    (void)state;
    trace first[8];
    for (uint64_t seed = 0; seed < 8; seed++) {
        first[seed] = run_gossip(seed);
        assert_true(first[seed].events > NODES * 200);
        trace again = run_gossip(seed);
        assert_true(again.hash == first[seed].hash && again.events == first[seed].events);
        for (uint64_t k = 0; k < seed; k++)
            assert_true(first[k].hash != first[seed].hash);
    }
}

/* The order of stages that are ready together comes from the seed, all orders do come. */
static char order[8];
static hy_status note_order(void *self, hy_msg *m)
{
    (void)m;
    strcat(order, *(const char **)self);
    return HY_OK;
}

static void ready_stages_in_every_order(void **state)
{
    (void)state;
    static const hy_stage_ops ops = {.on_msg = note_order};
    static const char *names[] = {"a", "b", "c"};
    static const char *perms[] = {"abc", "acb", "bac", "bca", "cab", "cba"};
    int seen[6] = {0};
    for (uint64_t seed = 0; seed < 200; seed++) {
        hy_runtime *rt = hy_runtime_create(HY_RUNTIME_VIRTUAL, seed);
        hy_stage *s[3];
        order[0] = '\0';
        for (int i = 0; i < 3; i++) {
            s[i] = hy_stage_create(names[i], &ops, &names[i], 4, 0);
            hy_runtime_add(rt, s[i]);
            hy_stage_post(s[i], &(hy_msg){.kind = WORK});
        }
        hy_runtime_start(rt);
        hy_runtime_run_until_idle(rt, HY_SEC);
        hy_runtime_destroy(rt);
        for (int i = 0; i < 3; i++)
            hy_stage_destroy(s[i]);
        for (int i = 0; i < 6; i++)
            seen[i] += strcmp(order, perms[i]) == 0;
    }
    int all = 0;
    for (int i = 0; i < 6; i++) {
        assert_true(seen[i] > 10); /* 33 expected */
        all += seen[i];
    }
    assert_int_equal(all, 200);
}

static uint64_t spin_idle(void *self, uint64_t now_ns)
{
    (void)self;
    return now_ns;
}

static void a_spinning_stage_is_named(void **state)
{
    (void)state;
    const hy_stage_ops ops = {.on_msg = note_order, .on_idle = spin_idle};
    hy_stage *s = hy_stage_create("spinner", &ops, NULL, 4, 0);
    hy_runtime *rt = hy_runtime_create(HY_RUNTIME_VIRTUAL, 1);
    hy_runtime_add(rt, s);
    hy_runtime_start(rt);
    assert_int_equal(hy_runtime_run_for(rt, HY_SEC), HY_E_BUSY);
    assert_non_null(strstr(hy_fail_text(), "stage spinner"));
    hy_runtime_destroy(rt);
    hy_stage_destroy(s);
}

static void timers_left_are_told(void **state)
{
    (void)state;
    const hy_stage_ops ops = {.on_msg = note_order};
    const char *name = "x";
    order[0] = '\0';
    hy_stage *s = hy_stage_create("s", &ops, &name, 4, 0);
    hy_runtime *rt = hy_runtime_create(HY_RUNTIME_VIRTUAL, 1);
    hy_runtime_add(rt, s);
    hy_runtime_start(rt);
    uint64_t t0 = hy_clock_now_ns(hy_runtime_clock(rt));
    assert_int_equal(hy_runtime_run_until_idle(rt, HY_SEC), HY_OK);
    /* a timer from outside a turn, while the scheduler holds the stage for asleep */
    assert_int_equal(hy_stage_timer(s, t0 + 5 * HY_SEC, &(hy_msg){.kind = TICK}, NULL), HY_OK);
    assert_int_equal(hy_runtime_run_until_idle(rt, HY_SEC), HY_E_TIMEOUT);
    assert_true(hy_clock_now_ns(hy_runtime_clock(rt)) == t0 + HY_SEC);
    assert_int_equal(hy_runtime_run_until_idle(rt, 10 * HY_SEC), HY_OK);
    assert_string_equal(order, "x");
    assert_true(hy_clock_now_ns(hy_runtime_clock(rt)) == t0 + 5 * HY_SEC);
    hy_runtime_destroy(rt);
    hy_stage_destroy(s);
}

static int n_dropped;
static void count_drop(void *p)
{
    free(p);
    n_dropped++;
}

static void kill_drops_everything(void **state)
{
    (void)state;
    const hy_stage_ops ops = {.on_msg = note_order};
    const char *name = "x", *name2 = "y";
    order[0] = '\0';
    n_dropped = 0;
    hy_stage *s = hy_stage_create("victim", &ops, &name, 4, 0);
    hy_runtime *rt = hy_runtime_create(HY_RUNTIME_VIRTUAL, 1);
    hy_runtime_add(rt, s);
    hy_runtime_start(rt);
    hy_runtime_run_for(rt, HY_MS);
    hy_msg m = {.kind = WORK, .data = malloc(1), .drop = count_drop};
    hy_msg t = {.kind = TICK, .data = malloc(1), .drop = count_drop};
    assert_int_equal(hy_stage_post(s, &m), HY_OK);
    assert_int_equal(hy_stage_timer(s, hy_stage_now(s) + HY_MS, &t, NULL), HY_OK);
    hy_runtime_kill(rt, s);
    assert_int_equal(n_dropped, 2);
    assert_int_equal(hy_stage_post(s, &(hy_msg){.kind = WORK}), HY_E_ABORTED);
    assert_int_equal(hy_stage_timer(s, 1, &(hy_msg){.kind = TICK}, NULL), HY_E_ABORTED);
    /* its successor joins a running runtime */
    hy_stage *again = hy_stage_create("victim", &ops, &name2, 4, 0);
    assert_int_equal(hy_runtime_add(rt, again), HY_OK);
    assert_int_equal(hy_stage_post(again, &(hy_msg){.kind = WORK}), HY_OK);
    assert_int_equal(hy_runtime_run_until_idle(rt, HY_SEC), HY_OK);
    assert_string_equal(order, "y");
    hy_runtime_destroy(rt);
    hy_stage_destroy(s);
    hy_stage_destroy(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_threads),
        cmocka_unit_test(ring_virtual),
        cmocka_unit_test(one_seed_one_order),
        cmocka_unit_test(ready_stages_in_every_order),
        cmocka_unit_test(a_spinning_stage_is_named),
        cmocka_unit_test(timers_left_are_told),
        cmocka_unit_test(kill_drops_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
