/* SPDX-License-Identifier: Apache-2.0
 *
 * Block tables: prefix hits over groups, windows, growth, holds, the check.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/base/clock.h"
#include "core/kv/kv.h"
#include "tests/unit/cm.h"

#include <string.h>

static hy_kv *make(int32_t n_groups, const int32_t *windows, int32_t blocks, int32_t block_tokens)
{
    const int32_t n[3] = {blocks, blocks, blocks};
    const hy_kv_opts o = {n_groups, windows, n, block_tokens, 100, 5};
    hy_kv *kv;
    assert_int_equal(hy_kv_create(&o, &kv), HY_OK);
    return kv;
}

static const hy_kv_hash root = {{1}};
static int32_t text[512];

static int setup(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 512; i++)
        text[i] = 1000 + i;
    return 0;
}

static void start(hy_kv *kv, hy_kv_seq *s, const int32_t *ids, int32_t n)
{
    assert_int_equal(hy_kv_seq_init(kv, s, 512, &root, false), HY_OK);
    hy_kv_chain(s, ids, n);
}

/* Compute [s's tokens] up to n and drop them: they stay findable. */
static void compute(hy_kv *kv, const int32_t *ids, int32_t n)
{
    hy_kv_seq s;
    start(kv, &s, ids, n);
    for (int32_t c = 0; c < n; c += 8) { /* in chunks, so that windows pass */
        const int32_t upto = c + 8 < n ? c + 8 : n;
        assert_true(hy_kv_grow(&s, upto, upto));
        hy_kv_publish(&s, ids, upto);
        hy_kv_trim(&s, upto);
        assert_int_equal(hy_kv_check(kv), HY_OK);
    }
    hy_kv_seq_fini(&s);
}

static int32_t hit_of(hy_kv *kv, const int32_t *ids, int32_t n)
{
    hy_kv_seq s;
    hy_kv_hit hit;
    start(kv, &s, ids, n);
    hy_kv_match_prefix(&s, n - 1, &hit);
    hy_kv_seq_fini(&s);
    return hit.tokens;
}

static void hits_are_whole_blocks_and_leave_the_last_token(void **state)
{
    (void)state;
    const int32_t w[] = {0};
    hy_kv *kv = make(1, w, 20, 16);
    compute(kv, text, 70);
    assert_int_equal(hit_of(kv, text, 70), 64);
    assert_int_equal(hit_of(kv, text, 65), 64);
    assert_int_equal(hit_of(kv, text, 64), 48); /* one token must be computed */
    assert_int_equal(hit_of(kv, text, 200), 64);
    int32_t other[100];
    memcpy(other, text, sizeof(other));
    other[40] = 1; /* in the third block */
    assert_int_equal(hit_of(kv, other, 100), 32);
    other[0] = 1;
    assert_int_equal(hit_of(kv, other, 100), 0);
    hy_kv_destroy(kv);
}

/* A block of 32 has two links: its key is the second, the chain is the same. */
static void blocks_of_32(void **state)
{
    (void)state;
    const int32_t w[] = {0};
    hy_kv *kv = make(1, w, 20, 32);
    compute(kv, text, 95);
    assert_int_equal(hit_of(kv, text, 95), 64);
    assert_int_equal(hit_of(kv, text, 300), 64);
    hy_kv_seq s;
    start(kv, &s, text, 64);
    assert_int_equal(s.n_links, 4);
    hy_kv_hash h = root;
    for (int i = 0; i < 4; i++) {
        hy_kv_hash_link(&h, text + 16 * i, &h);
        assert_memory_equal(&s.links[i], &h, sizeof(h));
    }
    hy_kv_seq_fini(&s);
    hy_kv_destroy(kv);
}

static void salts_do_not_meet(void **state)
{
    (void)state;
    const int32_t w[] = {0};
    hy_kv *kv = make(1, w, 20, 16);
    compute(kv, text, 70);
    hy_kv_seq s;
    hy_kv_hit hit;
    const hy_kv_hash other = {{2}};
    assert_int_equal(hy_kv_seq_init(kv, &s, 100, &other, false), HY_OK);
    hy_kv_chain(&s, text, 70);
    hy_kv_match_prefix(&s, 69, &hit);
    assert_int_equal(hit.tokens, 0);
    hy_kv_seq_fini(&s);
    hy_kv_destroy(kv);
}

static void uncomputed_blocks_are_not_found(void **state)
{
    (void)state;
    const int32_t w[] = {0};
    hy_kv *kv = make(1, w, 20, 16);
    hy_kv_seq s;
    start(kv, &s, text, 100);
    assert_true(hy_kv_grow(&s, 100, 100));
    assert_int_equal(hit_of(kv, text, 100), 0);
    hy_kv_publish(&s, text, 47); /* two whole blocks */
    assert_int_equal(hit_of(kv, text, 100), 32);
    hy_kv_seq_fini(&s);
    assert_int_equal(hy_kv_n_free(kv, 0), 20);
    hy_kv_destroy(kv);
}

static void windows_free_what_has_passed(void **state)
{
    (void)state;
    const int32_t w[] = {0, 20};
    hy_kv *kv = make(2, w, 20, 16);
    hy_kv_seq s;
    start(kv, &s, text, 100);
    assert_true(hy_kv_grow(&s, 64, 64));
    hy_kv_publish(&s, text, 64);
    hy_kv_trim(&s, 64);
    /* the row at 64 sees 45..64: blocks 2 and 3 */
    assert_int_equal(s.tab[1].live, 2);
    assert_int_equal(s.tab[1].ids[0], -1);
    assert_int_equal(s.tab[1].ids[1], -1);
    assert_true(s.tab[1].ids[2] >= 0);
    assert_int_equal(hy_kv_n_free(kv, 0), 16);
    assert_int_equal(hy_kv_n_free(kv, 1), 18);
    hy_kv_trim(&s, 67); /* the row at 67 sees 48..67: block 2 has passed */
    assert_int_equal(s.tab[1].live, 3);
    assert_int_equal(hy_kv_check(kv), HY_OK);
    hy_kv_seq_fini(&s);
    hy_kv_destroy(kv);
}

/* A hit in a window group needs the tail only. */
static void window_hits_need_the_tail(void **state)
{
    (void)state;
    const int32_t w[] = {0, 20};
    hy_kv *kv = make(2, w, 40, 16);
    compute(kv, text, 130);
    hy_kv_seq s;
    hy_kv_hit hit;
    start(kv, &s, text, 130);
    hy_kv_match_prefix(&s, 129, &hit);
    assert_int_equal(hit.tokens, 128);
    assert_int_equal(hit.n[0], 8);
    assert_int_equal(hit.n[1], 2); /* 109..127 */
    assert_int_equal(hit.n_free[0], 8);
    hy_kv_attach(&s, &hit);
    assert_int_equal(s.tab[1].live, 6);
    assert_int_equal(s.published, 8);
    assert_int_equal(hy_kv_check(kv), HY_OK);
    hy_kv_drop(&s);
    /* an older end of the same text: the window group still has its tail in the free list */
    hy_kv_match_prefix(&s, 70, &hit);
    assert_int_equal(hit.tokens, 64);
    assert_int_equal(hit.n[1], 2);
    hy_kv_seq_fini(&s);
    hy_kv_destroy(kv);
}

static void a_hole_in_the_tail(void **state)
{
    (void)state;
    const int32_t w[] = {0, 20};
    const int32_t n[] = {40, 5}; /* the window group forgets soon */
    const hy_kv_opts o = {2, w, n, 16, 0, 5};
    hy_kv *kv;
    assert_int_equal(hy_kv_create(&o, &kv), HY_OK);
    hy_kv_seq s;
    hy_kv_hit h;
    start(kv, &s, text, 64);
    assert_true(hy_kv_grow(&s, 64, 64));
    hy_kv_publish(&s, text, 64);
    hy_kv_drop(&s); /* tail first: group 1 forgets block 3, then 2, ... */
    hy_kv_seq_fini(&s);
    assert_int_equal(hit_of(kv, text, 100), 64);
    int32_t other[40];
    for (int i = 0; i < 40; i++)
        other[i] = i;
    compute(kv, other, 32); /* group 1 has one block unused and loses block 3 for the other */
    assert_int_equal(hit_of(kv, text, 100), 48); /* the end before the hole: tail 29..47 is there */
    start(kv, &s, text, 100);
    hy_kv_match_prefix(&s, 99, &h);
    hy_kv_attach(&s, &h); /* asserts that all is there */
    assert_int_equal(hy_kv_check(kv), HY_OK);
    hy_kv_seq_fini(&s);
    hy_kv_destroy(kv);
}

static void growth_is_all_or_nothing(void **state)
{
    (void)state;
    const int32_t w[] = {0, 100};
    const int32_t n[] = {10, 3};
    const hy_kv_opts o = {2, w, n, 16, 0, 5};
    hy_kv *kv;
    assert_int_equal(hy_kv_create(&o, &kv), HY_OK);
    hy_kv_seq s;
    start(kv, &s, text, 100);
    assert_false(hy_kv_grow(&s, 49, 49)); /* 4 blocks: the second group has 3 */
    assert_int_equal(hy_kv_n_free(kv, 0), 10);
    assert_true(hy_kv_grow(&s, 48, 48));
    assert_true(hy_kv_grow(&s, 48, 48));
    assert_int_equal(hy_kv_n_free(kv, 0), 7);
    hy_kv_seq_fini(&s);
    hy_kv_destroy(kv);
}

static void shared_blocks_are_counted(void **state)
{
    (void)state;
    const int32_t w[] = {0};
    hy_kv *kv = make(1, w, 20, 16);
    compute(kv, text, 64);
    hy_kv_seq a, b;
    start(kv, &a, text, 70);
    start(kv, &b, text, 70);
    hy_kv_hit hit;
    hy_kv_match_prefix(&a, 69, &hit);
    hy_kv_attach(&a, &hit);
    hy_kv_match_prefix(&b, 69, &hit);
    hy_kv_attach(&b, &hit);
    assert_int_equal(hy_kv_n_free(kv, 0), 16);
    assert_memory_equal(a.tab[0].ids, b.tab[0].ids, 4 * sizeof(int32_t));
    assert_true(hy_kv_grow(&a, 70, 70));
    assert_true(hy_kv_grow(&b, 70, 70));
    assert_int_not_equal(a.tab[0].ids[4], b.tab[0].ids[4]);
    assert_int_equal(hy_kv_check(kv), HY_OK);
    hy_kv_seq_fini(&a);
    assert_int_equal(hy_kv_n_free(kv, 0), 15);
    hy_kv_seq_fini(&b);
    assert_int_equal(hy_kv_n_free(kv, 0), 20);
    hy_kv_destroy(kv);
}

static void holds_outlive_the_sequence(void **state)
{
    (void)state;
    const int32_t w[] = {0, 20};
    hy_kv *kv = make(2, w, 20, 16);
    hy_kv_seq s;
    start(kv, &s, text, 70);
    s.owner = 42;
    assert_true(hy_kv_grow(&s, 70, 70));
    hy_kv_publish(&s, text, 70);
    hy_kv_trim(&s, 70);
    const hy_kv_ref ref = {0, s.tab[0].ids[0], 1};
    assert_true(hy_kv_ref_valid(kv, &ref));
    uint64_t hold;
    assert_int_equal(hy_kv_hold_seq(&s, HY_HOLD_SEND, 0, 70, 1000, &hold), HY_OK);
    hy_kv_seq_fini(&s);
    assert_int_equal(hy_kv_n_free(kv, 0), 15);
    assert_int_equal(hy_kv_n_free(kv, 1), 18); /* the tail: blocks 3 and 4 */
    assert_true(hy_kv_ref_valid(kv, &ref));
    assert_int_equal(hy_kv_check(kv), HY_OK);
    assert_true(hy_ledger_release_owner(hy_kv_ledger(kv), HY_HOLD_SEND, 42));
    assert_int_equal(hy_kv_n_free(kv, 0), 20);
    assert_false(hy_kv_ref_valid(kv, &ref));
    hy_kv_destroy(kv);
}

static void clear_forgets_all(void **state)
{
    (void)state;
    const int32_t w[] = {0};
    hy_kv *kv = make(1, w, 20, 16);
    compute(kv, text, 70);
    hy_kv_clear(kv);
    assert_int_equal(hit_of(kv, text, 70), 0);
    assert_int_equal(hy_kv_n_hashed(kv, 0), 0);
    hy_kv_event ev;
    assert_int_equal(
        hy_kv_events_get(hy_kv_events_of(kv), hy_kv_events_last(hy_kv_events_of(kv)), &ev), HY_OK);
    assert_int_equal(ev.kind, HY_KV_CLEARED);
    assert_int_equal(hy_kv_check(kv), HY_OK);
    hy_kv_destroy(kv);
}

static void least_is_what_a_window_needs(void **state)
{
    (void)state;
    const int32_t w[] = {0, 20, 17};
    hy_kv *kv = make(3, w, 20, 16);
    assert_int_equal(hy_kv_least(kv, 0, 100), 7);
    assert_int_equal(hy_kv_least(kv, 1, 100), 3); /* 20 tokens touch at most 3 blocks */
    assert_int_equal(hy_kv_least(kv, 2, 100), 2); /* 17 touch at most 2 */
    assert_int_equal(hy_kv_least(kv, 1, 16), 1);
    hy_kv_destroy(kv);
}

static void wrong_options_are_named(void **state)
{
    (void)state;
    const int32_t w[] = {0}, n[] = {4}, none[] = {0};
    hy_kv *kv = NULL;
    hy_kv_opts o = {1, w, n, 8, 0, 0};
    assert_int_equal(hy_kv_create(&o, &kv), HY_E_INVAL);
    assert_non_null(strstr(hy_fail_text(), "block_tokens"));
    o = (hy_kv_opts){9, w, n, 16, 0, 0};
    assert_int_equal(hy_kv_create(&o, &kv), HY_E_INVAL);
    o = (hy_kv_opts){1, w, none, 16, 0, 0};
    assert_int_equal(hy_kv_create(&o, &kv), HY_E_INVAL);
    assert_null(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hits_are_whole_blocks_and_leave_the_last_token),
        cmocka_unit_test(blocks_of_32),
        cmocka_unit_test(salts_do_not_meet),
        cmocka_unit_test(uncomputed_blocks_are_not_found),
        cmocka_unit_test(windows_free_what_has_passed),
        cmocka_unit_test(window_hits_need_the_tail),
        cmocka_unit_test(a_hole_in_the_tail),
        cmocka_unit_test(growth_is_all_or_nothing),
        cmocka_unit_test(shared_blocks_are_counted),
        cmocka_unit_test(holds_outlive_the_sequence),
        cmocka_unit_test(clear_forgets_all),
        cmocka_unit_test(least_is_what_a_window_needs),
        cmocka_unit_test(wrong_options_are_named),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
