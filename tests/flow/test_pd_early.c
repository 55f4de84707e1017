/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces that prefill packs before decode has ordered them (core/connector/pd_early.c): they are
 * used where the order asks for them, and where it does not, all goes as if they had never been:
 * the right tokens (the fake devices' KV is real), no staging lost, nobody kept waiting. Seeds with
 * faults are flow.pd's.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/connector/pd_int.h"
#include "tests/flow/pdworld.h"

#include <stdlib.h>
#include <string.h>

enum { GROUPS = 3, N = 100 }; /* each group is one piece: N tokens of 8 bytes */

static hy_pd_stats stats(pdw *w, int i)
{
    hy_pd_stats s;
    hy_pd_stats_get(w->node[i].pd, &s);
    return s;
}

/* Caches of unlike block sizes, so that all is packed, and one order that has come. */
static pdw *world(uint64_t seed, void (*change)(pdw_opts *o))
{
    pdw_opts o;
    int32_t text[N];
    pdw_opts_init(&o, seed);
    o.n_groups = GROUPS;
    o.block_tokens[1] = 32;
    o.min_run = 4096;
    o.near = true;
    if (change != NULL)
        change(&o);
    pdw *w = pdw_make(&o);
    pdw_text(text, N, 1);
    pdw_add(w, text, N, 4, 0);
    pdw_run(w, 10 * HY_SEC);
    assert_int_equal(stats(w, 0).early_used + stats(w, 0).early_dropped, 0); /* nobody to be like */
    return w;
}

static uint64_t now(pdw *w)
{
    return hy_clock_now_ns(hy_runtime_clock(w->rt)) - w->t0;
}

static pdw_req *add(pdw *w, int32_t n, int32_t which, uint64_t in_ns)
{
    int32_t text[300];
    pdw_text(text, n, which);
    return pdw_add(w, text, n, 10, now(w) + in_ns);
}

static int32_t standing(pdw *w)
{
    int32_t n = 0;
    for (const pd_early *e = w->node[0].pd->early.list; e != NULL; e = e->next)
        n++;
    return n;
}

/* A request of which P alone has heard so far, packed. */
static pdw_req *packed(pdw *w, int32_t n, int32_t which)
{
    pdw_req *r = add(w, n, which, 0);
    const int32_t before = standing(w);
    r->no_d = true;
    while (r->stage != PDW_OVER)
        PDW_CHECK(w, hy_runtime_run_for(w->rt, 10 * HY_US) == HY_OK);
    PDW_CHECK(w, hy_runtime_run_for(w->rt, 10 * HY_US) == HY_OK);
    assert_true(standing(w) > before);
    return r;
}

/* And now D hears of it. */
static pdw_req *go_on(pdw *w, const pdw_req *r)
{
    pdw_req *d = pdw_add(w, r->prompt, r->n_prompt, 10, now(w));
    d->local = true;
    d->seed = r->seed;
    d->handover = strdup(r->handover);
    return d;
}

static void finish(pdw *w, uint64_t used, uint64_t dropped)
{
    pdw_run(w, 10 * HY_SEC);
    pdw_verify(w, false); /* tokens, blocks, staging */
    assert_int_equal(standing(w), 0);
    assert_int_equal(stats(w, 0).early_used, used);
    assert_int_equal(stats(w, 0).early_dropped, dropped);
    pdw_end(w);
}

static void far_apart(pdw_opts *o)
{
    o->near = false;
}

static void checked(pdw_opts *o)
{
    o->verify = true;
}

static void used(void **state)
{
    (void)state;
    void (*const kinds[])(pdw_opts *) = {NULL, checked, far_apart};
    for (size_t k = 0; k < HY_COUNTOF(kinds); k++)
        for (int between = 0; between < 2; between++) {
            pdw *w = world(k + 1, kinds[k]);
            if (between)
                go_on(w, packed(w, N, 2));
            else
                add(w, N, 2, 0);
            finish(w, GROUPS, 0);
        }
}

static void equal_blocks(pdw_opts *o)
{
    o->block_tokens[1] = 16;
    o->min_run = 8;
}

/* What goes from cache to cache is not packed at all. */
static void equal_caches(void **state)
{
    (void)state;
    pdw *w = world(5, equal_blocks);
    add(w, N, 2, 0);
    finish(w, 0, 0);
}

/* D has the first blocks: it orders the rest, which are other pieces. The next one is not packed
 * early, since it will be like the last. */
static void partial_hit(void **state)
{
    (void)state;
    pdw *w = world(6, NULL);
    pdw_req *head = add(w, 64, 2, 0);
    head->local = true;
    pdw_run(w, 10 * HY_SEC);
    const uint64_t in = stats(w, 1).tokens_in;
    go_on(w, packed(w, N, 2));
    pdw_run(w, 10 * HY_SEC);
    assert_int_equal(stats(w, 1).tokens_in - in, N - 64);
    assert_int_equal(stats(w, 0).early_dropped, GROUPS);
    add(w, N, 3, 0);
    pdw_run(w, 10 * HY_SEC);
    assert_int_equal(stats(w, 0).early_used, 0);
    add(w, N, 4, 0); /* and that was of a whole prompt again */
    finish(w, GROUPS, GROUPS);
}

/* All of it. */
static void full_hit(void **state)
{
    (void)state;
    pdw *w = world(7, NULL);
    pdw_req *head = add(w, 96, 2, 0);
    head->local = true;
    pdw_run(w, 10 * HY_SEC);
    const uint64_t full = stats(w, 1).full_hits;
    go_on(w, packed(w, 96, 2));
    pdw_run(w, 10 * HY_SEC);
    assert_int_equal(stats(w, 1).full_hits - full, 1);
    finish(w, 0, GROUPS);
}

static void windows(pdw_opts *o)
{
    o->windows[1] = 24;
}

/* Without a first token D computes the last row itself and sees one position more of a window:
 * that group's piece is another, the other two are what was packed. */
static void one_piece_of_three(void **state)
{
    (void)state;
    pdw *w = world(8, windows);
    pdw_req *d = go_on(w, packed(w, N, 2));
    char *first = strstr(d->handover, ",\"first\"");
    assert_non_null(first);
    strcpy(first, "}}");
    finish(w, GROUPS - 1, 1);
}

/* The lease ends before anybody asks. */
static void released(void **state)
{
    (void)state;
    pdw *w = world(9, NULL);
    pdw_req *r = packed(w, N, 2);
    assert_int_equal(hy_pd_release(w->node[0].pd, r->handover), HY_OK);
    PDW_CHECK(w, hy_runtime_run_for(w->rt, HY_MS) == HY_OK);
    assert_int_equal(standing(w), 0);
    finish(w, 0, GROUPS);
}

static void expired(void **state)
{
    (void)state;
    pdw *w = world(10, NULL);
    pdw_req *r = packed(w, N, 2);
    PDW_CHECK(w, hy_runtime_run_for(w->rt, 3 * HY_SEC) == HY_OK);
    assert_int_equal(stats(w, 0).leases_expired, 1);
    assert_int_equal(standing(w), 0);
    go_on(w, r); /* too late: D computes it */
    finish(w, 0, GROUPS);
}

/* The client leaves, before and after D has heard of it. */
static void cancelled(void **state)
{
    (void)state;
    uint64_t used = 0, dropped = 0;
    for (uint64_t at = 0; at < 60; at++) {
        pdw *w = world(100 + at, NULL);
        pdw_req *r = add(w, N, 2, 0);
        pdw_abort_at(r, now(w) + 2 * HY_MS + at * 50 * HY_US);
        pdw_run(w, 10 * HY_SEC);
        pdw_verify(w, false);
        assert_int_equal(standing(w), 0);
        used += stats(w, 0).early_used;
        dropped += stats(w, 0).early_dropped;
        pdw_end(w);
    }
    assert_true(used > 0 && dropped > 0);
}

/* D dies and comes back, with other blocks even; what stood for it is packed anew. */
static void link_down(void **state)
{
    (void)state;
    for (int32_t blocks = 32; blocks <= 64; blocks += 32) {
        pdw *w = world(11, NULL);
        pdw_req *r = packed(w, N, 2);
        pdw_kill(w, 1, false);
        PDW_CHECK(w, hy_runtime_run_for(w->rt, 100 * HY_MS) == HY_OK);
        assert_int_equal(standing(w), 0);
        w->o.block_tokens[1] = blocks;
        pdw_start_node(w, 1);
        go_on(w, r);
        pdw_run(w, 10 * HY_SEC);
        assert_int_equal(stats(w, 1).received, 1);
        assert_int_equal(stats(w, 1).tokens_in, N);
        finish(w, 0, GROUPS);
    }
}

/* P dies with pieces that stand: the process ends whole. */
static void owner_dies(void **state)
{
    (void)state;
    pdw *w = world(12, NULL);
    pdw_req *r = packed(w, N, 2);
    pdw_kill(w, 0, false);
    pdw_start_node(w, 0);
    go_on(w, r);
    pdw_run(w, 10 * HY_SEC);
    pdw_verify(w, false);
    pdw_end(w);
    w = world(13, NULL);
    packed(w, N, 2);
    pdw_end(w);
}

static void narrow(pdw_opts *o)
{
    o->staging = 8 * PD_UNIT; /* four pieces go out at a time */
}

/* Staging for four pieces: what stands for one request gives way to the order of another, which
 * never waits for it, and is packed anew when its own order comes. */
static void gives_way(void **state)
{
    (void)state;
    pdw *w = world(14, narrow);
    pdw_req *a = packed(w, N, 2), *b = packed(w, N, 3);
    assert_int_equal(standing(w), 4);
    PDW_CHECK(w, hy_pd__stage_free(w->node[0].pd, false) == 0);
    const uint64_t at = now(w);
    pdw_req *d = go_on(w, b);
    while (d->stage != PDW_OVER && now(w) - at < 100 * HY_MS)
        PDW_CHECK(w, hy_runtime_run_for(w->rt, 100 * HY_US) == HY_OK);
    assert_true(d->stage == PDW_OVER);
    assert_int_equal(stats(w, 0).early_used, 1);
    assert_int_equal(stats(w, 0).early_dropped, 2);
    go_on(w, a);
    finish(w, 2, 2);
}

int main(void)
{
    pdw_log();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(used),
        cmocka_unit_test(equal_caches),
        cmocka_unit_test(partial_hit),
        cmocka_unit_test(full_hit),
        cmocka_unit_test(one_piece_of_three),
        cmocka_unit_test(released),
        cmocka_unit_test(expired),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(link_down),
        cmocka_unit_test(owner_dies),
        cmocka_unit_test(gives_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
