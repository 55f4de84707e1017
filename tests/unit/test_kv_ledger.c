/* SPDX-License-Identifier: Apache-2.0
 *
 * Ledger of holds: deadlines report and never free, late releases are counted no-ops.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/kv/ledger.h"
#include "tests/unit/cm.h"

#include "core/base/clock.h"
#include "core/base/rng.h"

typedef struct fix {
    hy_bpool p[2];
    hy_ledger l;
    hy_kv_ref r[4]; /* two blocks of each group, held for computing */
} fix;

static int setup(void **state)
{
    fix *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    for (int g = 0; g < 2; g++) {
        assert_int_equal(hy_bpool_init(&f->p[g], g, 4, 16, NULL), HY_OK);
        for (int i = 0; i < 2; i++) {
            const int32_t id = hy_bpool_take(&f->p[g], HY_HOLD_COMPUTE);
            f->r[g * 2 + i] = (hy_kv_ref){g, id, f->p[g].blk[id].gen};
        }
    }
    hy_ledger_init(&f->l, f->p, 2);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fix *f = *state;
    hy_ledger_fini(&f->l);
    for (int g = 0; g < 2; g++)
        hy_bpool_fini(&f->p[g]);
    free(f);
    return 0;
}

static void stop_computing(fix *f)
{
    for (int i = 0; i < 4; i++)
        hy_bpool_release(&f->p[f->r[i].group], f->r[i].id, HY_HOLD_COMPUTE);
}

static void blocks_stay_until_the_last_hold_goes(void **state)
{
    fix *f = *state;
    uint64_t a, b;
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_SEND, 7, 100, f->r, 4, &a), HY_OK);
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_STORE, 7, HY_NEVER, f->r, 2, &b), HY_OK);
    stop_computing(f);
    assert_int_equal(f->p[0].n_free, 2);
    assert_true(hy_ledger_release(&f->l, a));
    assert_int_equal(f->p[0].n_free, 2); /* the store still reads group 0's */
    assert_int_equal(f->p[1].n_free, 4);
    assert_true(hy_ledger_release(&f->l, b));
    assert_int_equal(f->p[0].n_free, 4);
    assert_int_equal(f->l.n_holds, 0);
}

static void late_and_unknown_releases_are_counted(void **state)
{
    fix *f = *state;
    uint64_t a;
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_SEND, 7, 100, f->r, 4, &a), HY_OK);
    assert_true(hy_ledger_release(&f->l, a));
    assert_false(hy_ledger_release(&f->l, a));
    assert_false(hy_ledger_release(&f->l, 12345));
    assert_false(hy_ledger_extend(&f->l, a, 5));
    assert_false(hy_ledger_release_owner(&f->l, HY_HOLD_SEND, 7));
    assert_int_equal(f->l.n_unknown, 4);
    assert_int_equal(f->p[0].n_free, 2);
}

static void an_owners_holds_go_together(void **state)
{
    fix *f = *state;
    uint64_t a, b, c;
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_SEND, 7, 100, f->r, 1, &a), HY_OK);
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_SEND, 7, 50, f->r + 1, 1, &b), HY_OK);
    /* another owner of the same bucket, and another kind */
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_SEND, 7 + HY_LEDGER__BUCKETS, 70, f->r, 1, &c),
                     HY_OK);
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_STORE, 7, 70, f->r, 1, &c), HY_OK);
    assert_true(hy_ledger_release_owner(&f->l, HY_HOLD_SEND, 7));
    assert_int_equal(f->l.n_holds, 2);
    assert_null(hy_ledger_find(&f->l, a));
    assert_null(hy_ledger_find(&f->l, b));
    assert_non_null(hy_ledger_find(&f->l, c));
}

static void a_deadline_reports_once_and_frees_nothing(void **state)
{
    fix *f = *state;
    uint64_t a, b;
    assert_int_equal(hy_ledger_next_deadline(&f->l), HY_NEVER);
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_RECEIVE, 1, 200, f->r, 2, &a), HY_OK);
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_SEND, 2, 100, f->r + 2, 2, &b), HY_OK);
    stop_computing(f);
    assert_int_equal(hy_ledger_next_deadline(&f->l), 100);
    assert_null(hy_ledger_expired(&f->l, 99));
    const hy_hold *h = hy_ledger_expired(&f->l, 100);
    assert_non_null(h);
    assert_int_equal(h->id, b);
    assert_true(h->expired);
    assert_null(hy_ledger_expired(&f->l, 100));
    assert_int_equal(f->p[1].n_free, 2); /* until the fence is proven and the owner releases */
    assert_int_equal(hy_ledger_next_deadline(&f->l), 200);
    assert_true(hy_ledger_release(&f->l, b));
    assert_int_equal(f->p[1].n_free, 4);
    assert_true(hy_ledger_release(&f->l, a));
}

static void renewal_extends_and_never_shortens(void **state)
{
    fix *f = *state;
    uint64_t a;
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_SEND, 1, 100, f->r, 2, &a), HY_OK);
    assert_true(hy_ledger_extend(&f->l, a, 50));
    assert_int_equal(hy_ledger_next_deadline(&f->l), 100);
    assert_true(hy_ledger_extend(&f->l, a, 300));
    assert_int_equal(hy_ledger_next_deadline(&f->l), 300);
    assert_true(hy_ledger_extend(&f->l, a, HY_NEVER));
    assert_int_equal(hy_ledger_next_deadline(&f->l), HY_NEVER);
}

static void stale_references_are_refused(void **state)
{
    fix *f = *state;
    uint64_t a;
    hy_kv_ref r = f->r[0];
    r.gen--;
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_SEND, 1, 100, &r, 1, &a), HY_E_INVAL);
    r = f->r[0];
    r.group = 2;
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_SEND, 1, 100, &r, 1, &a), HY_E_INVAL);
    r = f->r[0];
    r.id = 99;
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_SEND, 1, 100, &r, 1, &a), HY_E_INVAL);
    stop_computing(f); /* free: its bytes are nobody's */
    assert_int_equal(hy_ledger_take(&f->l, HY_HOLD_SEND, 1, 100, f->r, 1, &a), HY_E_INVAL);
    assert_int_equal(f->l.n_holds, 0);
}

/* Random deadlines, renewals and releases come out in order of deadline. */
static void deadlines_come_in_order(void **state)
{
    fix *f = *state;
    enum { N = 300 };
    uint64_t id[N], due[N];
    bool gone[N] = {false};
    hy_rng rng;
    hy_rng_init(&rng, 3);
    for (int i = 0; i < N; i++) {
        due[i] = 1 + hy_rng_below(&rng, 1000);
        assert_int_equal(
            hy_ledger_take(&f->l, HY_HOLD_SEND, hy_rng_u64(&rng), due[i], f->r, 1, &id[i]), HY_OK);
    }
    for (int i = 0; i < N; i++) {
        const uint64_t k = hy_rng_below(&rng, N);
        const uint64_t later = hy_rng_below(&rng, 2000);
        if (gone[k])
            continue;
        if (hy_rng_below(&rng, 3) == 0) {
            assert_true(hy_ledger_release(&f->l, id[k]));
            gone[k] = true;
        } else {
            assert_true(hy_ledger_extend(&f->l, id[k], later));
            due[k] = later > due[k] ? later : due[k];
        }
    }
    for (uint64_t now = 0; now <= 2000; now++) {
        size_t want = 0, got = 0;
        for (int i = 0; i < N; i++)
            want += !gone[i] && due[i] == now;
        const hy_hold *h;
        while ((h = hy_ledger_expired(&f->l, now)) != NULL) {
            assert_int_equal(h->deadline_ns, now);
            got++;
        }
        assert_int_equal(got, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(blocks_stay_until_the_last_hold_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(late_and_unknown_releases_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(an_owners_holds_go_together, setup, teardown),
        cmocka_unit_test_setup_teardown(a_deadline_reports_once_and_frees_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(renewal_extends_and_never_shortens, setup, teardown),
        cmocka_unit_test_setup_teardown(stale_references_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(deadlines_come_in_order, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
