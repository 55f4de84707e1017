/* SPDX-License-Identifier: Apache-2.0
 *
 * Ten thousand requests through a prefill node, a decode node and a router in virtual time, from a
 * seed: clients leave at any moment, the network drops, doubles, reorders and partitions, nodes
 * die. After every round all is over, every token is the oracle's, every block is free; and the
 * heap is what it was, to the byte. HY_SEED=s runs from another seed.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "tests/chaos/heap.h"
#include "tests/flow/pdworld.h"

#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 10000, ROUND = 50, WARM_UP = 2000 };
/* Buffers that are kept may have grown to their longest text since: they double, the largest to
 * 9 kB (25 seeds; one of them then ran 60,000 requests without a byte more). And lists of free
 * fabric pieces keep one for each that was ever in flight at a time: 896 bytes each. */
enum { CAPACITY = 16384, WAITING = 2 };

typedef struct totals {
    int32_t requests, done, failed, aborted, never_sent, kills, partitions;
} totals;

static uint64_t first_seed(void)
{
    const char *s = getenv("HY_SEED");
    return s != NULL ? strtoull(s, NULL, 10) : 1;
}

static bool one_in(pdw *w, int32_t n)
{
    return pdw_pick(w, 1, n) == 1;
}

static void soak_opts(pdw_opts *o, uint64_t seed)
{
    pdw_opts_init(o, seed);
    o->block_tokens[1] = 32; /* unlike: repacked on the way */
    o->blocks[1][0] = 40;
    o->context = 300;
    o->verify = true;
    o->net.duplicate = 0.02;
    o->net.reorder = 0.05;
    o->net.drop = 0.005;
    o->net.rto_ns = 5 * HY_MS;
}

/* Half of the prompts share beginnings with earlier ones, half are new: blocks come and go. */
static void add_round(pdw *w, totals *t)
{
    const uint64_t now = hy_clock_now_ns(hy_runtime_clock(w->rt)) - w->t0;
    int32_t text[300];
    for (int32_t k = 0; k < ROUND; k++) {
        const int32_t shared = pdw_pick(w, 0, 150), n = shared + pdw_pick(w, 1, 60);
        pdw_text(text, n, pdw_pick(w, 0, 2));
        for (int32_t i = shared; i < n; i++)
            text[i] = pdw_pick(w, 8, 47);
        pdw_req *r =
            pdw_add(w, text, n, pdw_pick(w, 1, 30), now + (uint64_t)pdw_pick(w, 0, 400000) * HY_US);
        r->ignore_eos = one_in(w, 2);
        r->logprobs = one_in(w, 3) ? 1 : -1;
        r->push = one_in(w, 3);
        r->p_first = one_in(w, 2);
        r->no_d = !r->push && one_in(w, 25); /* the router is gone: the lease runs out */
        t->never_sent += r->no_d;
        if (one_in(w, 5))
            pdw_abort_at(r, r->at_ns + (uint64_t)pdw_pick(w, 0, 200000) * HY_US);
    }
}

static void hurt(pdw *w, bool kills, totals *t)
{
    if (one_in(w, 3)) {
        PDW_CHECK(w, hy_runtime_run_for(w->rt, (uint64_t)pdw_pick(w, 0, 300) * HY_MS) == HY_OK);
        hy_loop_partition(w->net, "p0", "d0");
        PDW_CHECK(w, hy_runtime_run_for(w->rt, (uint64_t)pdw_pick(w, 1, 1500) * HY_MS) == HY_OK);
        hy_loop_heal(w->net);
        t->partitions++;
    }
    if (kills && one_in(w, 2)) {
        const int i = pdw_pick(w, 0, 1);
        PDW_CHECK(w, hy_runtime_run_for(w->rt, (uint64_t)pdw_pick(w, 0, 300) * HY_MS) == HY_OK);
        pdw_kill(w, i, one_in(w, 3));
        PDW_CHECK(w, hy_runtime_run_for(w->rt, (uint64_t)pdw_pick(w, 0, 500) * HY_MS) == HY_OK);
        pdw_start_node(w, i);
        t->kills++;
    }
}

/* Forgets the round's requests, which are over. */
static void clear_round(pdw *w, totals *t)
{
    for (int32_t k = 0; k < w->n_req; k++) {
        pdw_req *r = &w->req[k];
        t->requests++;
        t->done += r->done;
        t->failed += r->failed;
        t->aborted += r->aborted;
        free(r->prompt);
        free(r->handover);
        free(r->d_handover);
        const uint64_t gen = r->gen + 1000; /* events of its legs may come yet, from dead nodes */
        memset(r, 0, sizeof(*r));
        r->gen = gen;
    }
    w->n_req = w->n_over = 0;
    w->o.seed += ROUND; /* seeds and transfer ids of the next round are its own */
}

static void round_of(pdw *w, bool kills, totals *t)
{
    add_round(w, t);
    hurt(w, kills, t);
    pdw_run(w, 120 * HY_SEC);
    pdw_verify(w, true);
    clear_round(w, t);
    if (!kills && fake_samplers_alive != 0) /* dead nodes' are buried with their world */
        fail_msg("seed %llu: %d samplers are left", (unsigned long long)w->o.seed,
                 fake_samplers_alive);
}

static void print_totals(const char *what, const totals *t)
{
    print_message(
        "%s: %d requests, %d done, %d failed, %d left by their clients, %d never fetched; "
        "%d partitions, %d kills\n",
        what, t->requests, t->done, t->failed, t->aborted, t->never_sent, t->partitions, t->kills);
}

/* What is allocated when nothing waits any more and the nodes are linked: a partition may have left
 * them without, or the way back may be half done, so requests go through until it is as it was. */
static heap settled_heap(pdw *w, totals *t, const heap *want)
{
    heap now = {0};
    for (int i = 0; i < 10; i++) {
        int32_t text[40];
        for (int32_t k = 0; k < 40; k++)
            text[k] = pdw_pick(w, 8, 47);
        pdw_add(w, text, 40, 2, hy_clock_now_ns(hy_runtime_clock(w->rt)) - w->t0);
        pdw_run(w, 120 * HY_SEC);
        pdw_verify(w, true);
        clear_round(w, t);
        PDW_CHECK(w, hy_runtime_run_for(w->rt, 20 * HY_SEC) == HY_OK);
        now = heap_now();
        if (want->bytes != 0 && now.blocks <= want->blocks && now.bytes <= want->bytes + CAPACITY)
            break;
    }
    return now;
}

static void one_world_for_all(void **state)
{
    (void)state;
    pdw_opts o;
    soak_opts(&o, first_seed());
    pdw *w = pdw_make(&o);
    totals t = {0};
    heap warm = {0}, now = {0};
    const int32_t requests = getenv("HY_THIN") != NULL ? REQUESTS / 2 : REQUESTS; /* sanitizers */
    for (int32_t round = 1; t.requests < requests; round++) {
        round_of(w, false, &t);
        if (round % 10 != 0)
            continue;
        now = settled_heap(w, &t, &warm);
        if (getenv("HY_SOAK") != NULL)
            print_message("%6d %zu bytes in %zu blocks\n", t.requests, now.bytes, now.blocks);
        if (warm.bytes == 0 && t.requests >= WARM_UP)
            warm = now;
        if (warm.bytes != 0 &&
            (now.blocks > warm.blocks + WAITING || now.bytes > warm.bytes + CAPACITY))
            fail_msg("seed %llu: after %d requests %zu bytes in %zu blocks are allocated, after %d "
                     "%zu in %zu",
                     (unsigned long long)first_seed(), t.requests, now.bytes, now.blocks, WARM_UP,
                     warm.bytes, warm.blocks);
    }
    print_totals("one world", &t);
    print_message("heap: %zu bytes in %zu blocks after %d requests, %zu in %zu after %d\n",
                  warm.bytes, warm.blocks, WARM_UP, now.bytes, now.blocks, t.requests);
    assert_true(t.aborted > requests / 50 && t.partitions > requests / 500);
    pdw_end(w);
}

/* Nodes die and come back under new epochs; of a whole world nothing is left when it ends. */
static void worlds_with_deaths(void **state)
{
    (void)state;
    totals t = {0};
    heap first = {0};
    for (int k = 0; k < 25; k++) {
        pdw_opts o;
        soak_opts(&o, first_seed() + 100000 + (uint64_t)k * 1000);
        pdw *w = pdw_make(&o);
        for (int i = 0; i < 4; i++)
            round_of(w, true, &t);
        pdw_end(w);
        assert_int_equal(fake_samplers_alive, 0);
        const heap now = heap_now();
        if (k == 0)
            first = now;
        else if (now.bytes != first.bytes || now.blocks != first.blocks)
            fail_msg("seed %llu: a world left %zu bytes in %zu blocks, the first one %zu in %zu",
                     (unsigned long long)o.seed, now.bytes, now.blocks, first.bytes, first.blocks);
    }
    print_totals("25 worlds", &t);
    assert_true(t.kills > 30);
}

int main(void)
{
    pdw_log();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_world_for_all),
        cmocka_unit_test(worlds_with_deaths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
