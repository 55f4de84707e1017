/* SPDX-License-Identifier: Apache-2.0
 *
 * The planning function: data in, data out. Each policy by a small case, then random mixes driven
 * to their end, in which some request must always make progress.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/sched/plan.h"
#include "tests/unit/cm.h"

#include "core/base/rng.h"

#include <string.h>

static hy_plan_seq run[16], wait[16];
static hy_plan p;

static int setup(void **state)
{
    (void)state;
    memset(run, 0, sizeof(run));
    memset(wait, 0, sizeof(wait));
    p = (hy_plan){.run = run,
                  .wait = wait,
                  .n_groups = 1,
                  .block_tokens = 16,
                  .free = {100},
                  .budget = 64,
                  .max_prefill = 32,
                  .max_seqs = 8};
    return 0;
}

static hy_plan_seq *add_run(int32_t priority, int32_t computed, int32_t todo)
{
    hy_plan_seq *s = &run[p.n_run++];
    *s = (hy_plan_seq){.priority = priority,
                       .arrival = (uint64_t)p.n_run,
                       .computed = computed,
                       .todo = todo,
                       .have = {(computed + 15) / 16},
                       .live = {(computed + 15) / 16}};
    return s;
}

static hy_plan_seq *add_wait(int32_t priority, int32_t hit, int32_t todo)
{
    hy_plan_seq *s = &wait[p.n_wait++];
    *s = (hy_plan_seq){.priority = priority,
                       .arrival = 100 + (uint64_t)p.n_wait,
                       .computed = hit,
                       .todo = todo,
                       .have = {hit / 16},
                       .live = {hit / 16},
                       .touch = {hit / 16}};
    return s;
}

static void decodes_first_then_prompts(void **state)
{
    (void)state;
    hy_plan_seq *long_prompt = add_run(0, 16, 1000);
    hy_plan_seq *d1 = add_run(0, 50, 1), *d2 = add_run(0, 64, 1);
    hy_plan_make(&p);
    assert_int_equal(p.victim, -1);
    assert_int_equal(d1->grant, 1);
    assert_int_equal(d2->grant, 1);
    assert_int_equal(long_prompt->grant, 32); /* max_prefill while others decode */
    assert_int_equal(p.n_tokens, 34);
}

static void alone_a_prompt_gets_the_budget(void **state)
{
    (void)state;
    hy_plan_seq *a = add_run(0, 0, 1000);
    hy_plan_make(&p);
    assert_int_equal(a->grant, 64);
}

static void without_a_prefill_limit_the_rest_is_used(void **state)
{
    (void)state;
    p.max_prefill = 0;
    hy_plan_seq *a = add_run(0, 0, 1000);
    add_run(0, 50, 1);
    hy_plan_make(&p);
    assert_int_equal(a->grant, 63);
}

static void every_stream_gets_its_token_each_step(void **state)
{
    (void)state;
    p.budget = 8;
    for (int i = 0; i < 7; i++)
        add_run(i % 3, 40 + i, 1);
    add_wait(-5, 0, 500);
    hy_plan_make(&p);
    for (int i = 0; i < 7; i++)
        assert_int_equal(run[i].grant, 1);
    assert_int_equal(wait[0].grant, 1); /* chunked to what is left */
    assert_int_equal(p.n_tokens, 8);
}

static void admission_in_order_of_the_queue(void **state)
{
    (void)state;
    add_wait(0, 0, 20);
    add_wait(0, 16, 30);
    add_wait(0, 0, 500);
    add_wait(0, 0, 5);
    hy_plan_make(&p);
    assert_int_equal(wait[0].grant, 20);
    assert_int_equal(wait[1].grant, 30);
    assert_int_equal(wait[2].grant, 14); /* the budget's rest */
    assert_false(wait[3].admit);
    assert_int_equal(p.n_admit, 3);
}

static void a_sooner_prompt_goes_before_a_running_one(void **state)
{
    (void)state;
    hy_plan_seq *a = add_run(0, 16, 1000);
    hy_plan_seq *w = add_wait(-1, 0, 40);
    hy_plan_make(&p);
    assert_int_equal(w->grant, 40);
    assert_int_equal(a->grant, 24);
}

static void places_are_limited(void **state)
{
    (void)state;
    p.max_seqs = 3;
    p.n_parked = 1;
    add_run(0, 20, 1);
    add_wait(0, 0, 5);
    add_wait(0, 0, 5);
    hy_plan_make(&p);
    assert_true(wait[0].admit);
    assert_false(wait[1].admit);
}

static void the_whole_prompt_must_fit(void **state)
{
    (void)state;
    p.free[0] = 10;
    add_wait(0, 0, 161); /* 11 blocks */
    add_wait(0, 0, 5);   /* would fit, but comes after */
    hy_plan_make(&p);
    assert_int_equal(p.n_admit, 0);
    assert_true(p.short_of_blocks);
    wait[0].todo = 160;
    hy_plan_make(&p);
    assert_int_equal(p.n_admit, 1);
}

static void a_hit_in_the_free_list_is_not_free(void **state)
{
    (void)state;
    p.free[0] = 10;
    hy_plan_seq *w = add_wait(0, 80, 81); /* 5 hit, 6 more */
    hy_plan_make(&p);
    assert_false(w->admit);
    w->touch[0] = 4; /* one of them is in use already */
    hy_plan_make(&p);
    assert_true(w->admit);
}

static void running_ones_keep_a_spare_block(void **state)
{
    (void)state;
    p.free[0] = 3;
    add_run(0, 20, 1);
    add_run(0, 20, 1);
    hy_plan_seq *w = add_wait(0, 0, 20); /* 2 blocks */
    hy_plan_make(&p);
    assert_false(w->admit);
    p.free[0] = 4;
    hy_plan_make(&p);
    assert_true(w->admit);
}

static void the_worst_gives_way(void **state)
{
    (void)state;
    p.free[0] = 0;
    add_run(-1, 32, 1); /* needs a block */
    add_run(0, 33, 1);
    add_run(0, 40, 1);
    add_wait(-9, 0, 1);
    hy_plan_make(&p);
    assert_int_equal(p.victim, 2);
    p.n_run = 2; /* it had three blocks */
    p.free[0] = 3;
    p.preempted = true;
    hy_plan_make(&p);
    assert_int_equal(p.victim, -1);
    assert_int_equal(run[0].grant + run[1].grant, 2);
    assert_false(wait[0].admit); /* not in a step that preempted */
}

static void the_worst_gives_way_to_no_worse(void **state)
{
    (void)state;
    p.free[0] = 0;
    add_run(0, 33, 1);
    add_run(1, 48, 1); /* the worst itself needs one: it goes */
    hy_plan_make(&p);
    assert_int_equal(p.victim, 1);
}

static void a_chunk_is_cut_to_the_blocks(void **state)
{
    (void)state;
    p.free[0] = 1;
    hy_plan_seq *a = add_run(0, 20, 500);
    hy_plan_make(&p);
    assert_int_equal(a->grant, 28); /* up to 48 */
}

static void a_stuck_prompt_waits_while_others_go_on(void **state)
{
    (void)state;
    p.free[0] = 0;
    hy_plan_seq *d = add_run(0, 33, 1), *a = add_run(0, 32, 500);
    hy_plan_make(&p);
    assert_int_equal(p.victim, -1);
    assert_int_equal(d->grant, 1);
    assert_int_equal(a->grant, 0);
    d->computed = 32; /* now the stream needs a block too: the prompt gives way */
    d->have[0] = 2;
    hy_plan_make(&p);
    assert_int_equal(p.victim, 1);
}

static void a_parked_one_takes_blocks_and_no_tokens(void **state)
{
    (void)state;
    p.free[0] = 9;
    hy_plan_seq *a = add_wait(0, 16, 100), *b = add_wait(0, 0, 10);
    a->park = true; /* 8 blocks, one of them hit */
    hy_plan_make(&p);
    assert_true(a->admit);
    assert_int_equal(a->grant, 0);
    assert_false(b->admit);
    assert_true(p.short_of_blocks);
}

static void a_window_group_needs_its_tail_only(void **state)
{
    (void)state;
    p.n_groups = 2;
    p.free[0] = 100;
    p.free[1] = 3;
    p.least[1] = 3;
    hy_plan_seq *a = add_wait(0, 0, 1000);
    hy_plan_make(&p);
    assert_true(a->admit);
    assert_int_equal(a->grant, 48); /* what three blocks hold */
    p.free[1] = 2;
    hy_plan_make(&p);
    assert_false(a->admit);
}

/* ---- random mixes ---- */

typedef struct sim_seq {
    int32_t priority, computed, n_tok, total, n_prompt;
    bool running, done;
    int32_t blocks;
} sim_seq;

typedef struct sim {
    sim_seq s[12];
    int32_t n, pool;
    int32_t run[12], n_run, wait[12], n_wait;
} sim;

static void sim_snapshot(sim *m, bool preempted)
{
    p.n_run = p.n_wait = m->n_run = m->n_wait = 0;
    p.free[0] = m->pool;
    p.preempted = preempted;
    for (int32_t i = 0; i < m->n; i++)
        p.free[0] -= m->s[i].blocks;
    for (int32_t pri = 0; pri < 3; pri++)
        for (int32_t i = 0; i < m->n; i++) {
            sim_seq *s = &m->s[i];
            if (s->done || s->priority != pri)
                continue;
            if (s->running)
                m->run[m->n_run++] = i;
            else if (!preempted)
                m->wait[m->n_wait++] = i;
        }
    for (int32_t k = 0; k < m->n_run + m->n_wait; k++) {
        const int32_t i = k < m->n_run ? m->run[k] : m->wait[k - m->n_run];
        const sim_seq *s = &m->s[i];
        hy_plan_seq *x = k < m->n_run ? &run[p.n_run++] : &wait[p.n_wait++];
        *x = (hy_plan_seq){.priority = s->priority,
                           .arrival = (uint64_t)i,
                           .computed = s->computed,
                           .todo = s->n_tok - s->computed,
                           .have = {s->blocks},
                           .live = {s->blocks}};
    }
}

static void sim_advance(sim *m, sim_seq *s, int32_t grant)
{
    s->running = true;
    s->computed += grant;
    s->blocks = (s->computed + 15) / 16;
    if (s->computed == s->n_tok && ++s->n_tok > s->total) {
        s->done = true;
        s->running = false;
        s->blocks = 0;
    }
    int32_t used = 0;
    for (int32_t i = 0; i < m->n; i++)
        used += m->s[i].blocks;
    assert_true(used <= m->pool);
}

/* One step. Returns tokens granted; counts preemptions. */
static int32_t sim_step(sim *m, int32_t *preemptions)
{
    bool preempted = false;
    for (;;) {
        sim_snapshot(m, preempted);
        hy_plan_make(&p);
        if (p.victim < 0 && (p.n_grants > 0 || !preempted))
            break;
        preempted = p.victim >= 0;
        if (!preempted)
            continue;
        sim_seq *v = &m->s[m->run[p.victim]];
        v->running = false;
        v->computed = v->blocks = 0;
        ++*preemptions;
    }
    int32_t sum = 0;
    for (int32_t k = 0; k < p.n_run; k++) {
        if (run[k].todo == 1)
            assert_int_equal(run[k].grant, 1); /* every stream, every step */
        sum += run[k].grant;
    }
    for (int32_t k = 0; k < p.n_wait; k++) {
        assert_true(wait[k].admit == (wait[k].grant > 0));
        assert_false(wait[k].admit && preempted);
        sum += wait[k].grant;
    }
    assert_int_equal(sum, p.n_tokens);
    assert_true(sum <= p.budget);
    /* blocks of all at once: advance after the checks, runners first */
    for (int32_t k = 0; k < p.n_run; k++)
        sim_advance(m, &m->s[m->run[k]], run[k].grant);
    for (int32_t k = 0; k < p.n_wait; k++)
        if (wait[k].admit)
            sim_advance(m, &m->s[m->wait[k]], wait[k].grant);
    return sum;
}

static void some_request_always_makes_progress(void **state)
{
    hy_rng rng;
    int32_t preemptions = 0;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        setup(state);
        hy_rng_init(&rng, seed);
        sim m = {.n = 1 + (int32_t)hy_rng_below(&rng, 12),
                 .pool = 2 + (int32_t)hy_rng_below(&rng, 20)};
        p.max_seqs = 1 + (int32_t)hy_rng_below(&rng, 8);
        p.budget = p.max_seqs + (int32_t)hy_rng_below(&rng, 60);
        p.max_prefill = (int32_t)hy_rng_below(&rng, 30);
        int32_t work = 0;
        for (int32_t i = 0; i < m.n; i++) {
            const int32_t most = m.pool * 16;
            sim_seq *s = &m.s[i];
            s->priority = (int32_t)hy_rng_below(&rng, 3);
            s->n_prompt = s->n_tok = 1 + (int32_t)hy_rng_below(&rng, (uint64_t)most);
            s->total = s->n_tok + (int32_t)hy_rng_below(&rng, (uint64_t)(most - s->n_tok + 1));
            work += s->total;
        }
        for (int32_t step = 0;; step++) {
            int32_t left = 0;
            for (int32_t i = 0; i < m.n; i++)
                left += !m.s[i].done;
            if (left == 0)
                break;
            if (sim_step(&m, &preemptions) == 0)
                fail_msg("seed %d: %d requests and no progress", (int)seed, left);
            if (step > 60 * work + 100)
                fail_msg("seed %d: goes on for ever", (int)seed);
        }
    }
    assert_true(preemptions > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(decodes_first_then_prompts, setup),
        cmocka_unit_test_setup(alone_a_prompt_gets_the_budget, setup),
        cmocka_unit_test_setup(without_a_prefill_limit_the_rest_is_used, setup),
        cmocka_unit_test_setup(every_stream_gets_its_token_each_step, setup),
        cmocka_unit_test_setup(admission_in_order_of_the_queue, setup),
        cmocka_unit_test_setup(a_sooner_prompt_goes_before_a_running_one, setup),
        cmocka_unit_test_setup(places_are_limited, setup),
        cmocka_unit_test_setup(the_whole_prompt_must_fit, setup),
        cmocka_unit_test_setup(a_hit_in_the_free_list_is_not_free, setup),
        cmocka_unit_test_setup(running_ones_keep_a_spare_block, setup),
        cmocka_unit_test_setup(the_worst_gives_way, setup),
        cmocka_unit_test_setup(the_worst_gives_way_to_no_worse, setup),
        cmocka_unit_test_setup(a_chunk_is_cut_to_the_blocks, setup),
        cmocka_unit_test_setup(a_stuck_prompt_waits_while_others_go_on, setup),
        cmocka_unit_test_setup(a_parked_one_takes_blocks_and_no_tokens, setup),
        cmocka_unit_test_setup(a_window_group_needs_its_tail_only, setup),
        cmocka_unit_test_setup(some_request_always_makes_progress, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
