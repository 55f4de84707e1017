/* SPDX-License-Identifier: Apache-2.0
 *
 * Block pool: LRU order, holds, hashes, generations, events.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/kv/pool.h"
#include "tests/unit/cm.h"

#include "core/base/rng.h"

#include <string.h>

typedef struct fix {
    hy_kv_events *ev;
    hy_bpool p;
} fix;

static int setup(void **state)
{
    fix *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->ev = hy_kv_events_create(9, 100, 16);
    assert_non_null(f->ev);
    assert_int_equal(hy_bpool_init(&f->p, 0, 8, 16, f->ev), HY_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fix *f = *state;
    hy_bpool_fini(&f->p);
    hy_kv_events_destroy(f->ev);
    free(f);
    return 0;
}

static hy_kv_hash hash_of(int n)
{
    hy_kv_hash h = {{0}};
    h.b[0] = (uint8_t)n;
    h.b[1] = 0x5a;
    return h;
}

static void publish(fix *f, int32_t id, int n)
{
    const hy_kv_hash h = hash_of(n), parent = hash_of(0);
    assert_true(hy_bpool_publish(&f->p, id, &h, &parent, 16 * n, NULL, false));
}

static int32_t find(fix *f, int n)
{
    const hy_kv_hash h = hash_of(n);
    return hy_bpool_find(&f->p, &h);
}

static void takes_all_then_none(void **state)
{
    fix *f = *state;
    bool seen[8] = {false};
    for (int i = 0; i < 8; i++) {
        const int32_t id = hy_bpool_take(&f->p, HY_HOLD_COMPUTE);
        assert_in_range(id, 0, 7);
        assert_false(seen[id]);
        seen[id] = true;
    }
    assert_int_equal(f->p.n_free, 0);
    assert_int_equal(hy_bpool_take(&f->p, HY_HOLD_COMPUTE), -1);
}

/* Hashed blocks leave in the order of their release; unhashed ones go first. */
static void least_recently_freed_goes_first(void **state)
{
    fix *f = *state;
    int32_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = hy_bpool_take(&f->p, HY_HOLD_COMPUTE);
    for (int i = 0; i < 7; i++)
        publish(f, b[i], i + 1);
    static const int order[8] = {3, 1, 7, 0, 2, 6, 5, 4}; /* b[7] has no hash */
    for (int i = 0; i < 8; i++)
        hy_bpool_release(&f->p, b[order[i]], HY_HOLD_COMPUTE);
    assert_int_equal(hy_bpool_take(&f->p, HY_HOLD_COMPUTE), b[7]);
    /* a hit takes b[1] out of the middle */
    assert_int_equal(find(f, 2), b[1]);
    hy_bpool_hold(&f->p, b[1], HY_HOLD_COMPUTE);
    static const int then[6] = {3, 0, 2, 6, 5, 4};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(find(f, then[i] + 1), b[then[i]]); /* kept until reuse */
        assert_int_equal(hy_bpool_take(&f->p, HY_HOLD_COMPUTE), b[then[i]]);
        assert_int_equal(find(f, then[i] + 1), -1);
    }
    assert_int_equal(hy_bpool_take(&f->p, HY_HOLD_COMPUTE), -1);
    assert_int_equal(find(f, 2), b[1]);
}

static void free_only_without_any_hold(void **state)
{
    fix *f = *state;
    const int32_t id = hy_bpool_take(&f->p, HY_HOLD_RECEIVE);
    hy_bpool_hold(&f->p, id, HY_HOLD_COMPUTE);
    hy_bpool_hold(&f->p, id, HY_HOLD_COMPUTE);
    hy_bpool_hold(&f->p, id, HY_HOLD_SEND);
    hy_bpool_hold(&f->p, id, HY_HOLD_STORE);
    static const hy_hold_kind order[] = {HY_HOLD_COMPUTE, HY_HOLD_SEND, HY_HOLD_STORE,
                                         HY_HOLD_RECEIVE, HY_HOLD_COMPUTE};
    for (size_t i = 0; i < HY_COUNTOF(order); i++) {
        assert_false(hy_bpool_is_free(&f->p, id));
        hy_bpool_release(&f->p, id, order[i]);
    }
    assert_true(hy_bpool_is_free(&f->p, id));
}

static void a_second_copy_stays_unhashed(void **state)
{
    fix *f = *state;
    const int32_t a = hy_bpool_take(&f->p, HY_HOLD_COMPUTE),
                  b = hy_bpool_take(&f->p, HY_HOLD_COMPUTE);
    publish(f, a, 1);
    const hy_kv_hash h = hash_of(1), parent = hash_of(0);
    assert_false(hy_bpool_publish(&f->p, b, &h, &parent, 0, NULL, false));
    assert_int_equal(find(f, 1), a);
    assert_int_equal(f->p.n_hashed, 1);
    assert_true(hy_bpool_publish(&f->p, a, &h, &parent, 0, NULL, false)); /* again: no-op */
    assert_int_equal(hy_kv_events_last(f->ev), 1);
}

static void each_life_has_its_generation(void **state)
{
    fix *f = *state;
    for (uint32_t i = 1; i <= 3; i++) {
        const int32_t id = hy_bpool_take(&f->p, HY_HOLD_COMPUTE);
        assert_int_equal(f->p.blk[id].gen, i);
        hy_bpool_release(&f->p, id, HY_HOLD_COMPUTE); /* unhashed: first in line again */
    }
    /* a hit is the same life */
    const int32_t id = hy_bpool_take(&f->p, HY_HOLD_COMPUTE);
    publish(f, id, 1);
    hy_bpool_release(&f->p, id, HY_HOLD_COMPUTE);
    hy_bpool_hold(&f->p, id, HY_HOLD_COMPUTE);
    assert_int_equal(f->p.blk[id].gen, 4);
}

static void events_tell_what_is_held(void **state)
{
    fix *f = *state;
    const int32_t a = hy_bpool_take(&f->p, HY_HOLD_COMPUTE);
    publish(f, a, 3);
    hy_kv_event ev;
    assert_int_equal(hy_kv_events_get(f->ev, 1, &ev), HY_OK);
    assert_int_equal(ev.kind, HY_KV_STORED);
    assert_int_equal(ev.epoch, 9);
    assert_int_equal(ev.seq, 1);
    assert_int_equal(ev.pos, 48);
    const hy_kv_hash h = hash_of(3);
    assert_memory_equal(&ev.hash, &h, sizeof(h));
    hy_bpool_unhash(&f->p, a);
    assert_false(hy_bpool_is_free(&f->p, a));
    assert_int_equal(hy_kv_events_get(f->ev, 2, &ev), HY_OK);
    assert_int_equal(ev.kind, HY_KV_REMOVED);
    assert_memory_equal(&ev.hash, &h, sizeof(h));
    /* private chains are nobody else's business */
    const hy_kv_hash parent = hash_of(0);
    assert_true(hy_bpool_publish(&f->p, a, &h, &parent, 0, NULL, true));
    hy_bpool_unhash(&f->p, a);
    assert_int_equal(hy_kv_events_last(f->ev), 2);
}

/* Random operations against a plain model of the holds. */
static void random_operations(void **state)
{
    fix *f = *state;
    hy_rng rng;
    hy_rng_init(&rng, 1);
    int32_t held[8 * HY_HOLD_KINDS] = {0};
    for (int step = 0; step < 20000; step++) {
        const int32_t id = (int32_t)hy_rng_below(&rng, 8);
        const int kind = (int)hy_rng_below(&rng, HY_HOLD_KINDS);
        int32_t *n = &held[id * HY_HOLD_KINDS + kind];
        switch (hy_rng_below(&rng, 5)) {
        case 0: {
            const int32_t t = hy_bpool_take(&f->p, (hy_hold_kind)kind);
            if (t >= 0)
                held[t * HY_HOLD_KINDS + kind]++;
            break;
        }
        case 1:
            if (!hy_bpool_is_free(&f->p, id) || f->p.blk[id].hashed) {
                hy_bpool_hold(&f->p, id, (hy_hold_kind)kind);
                (*n)++;
            }
            break;
        case 2:
        case 3:
            if (*n > 0) {
                hy_bpool_release(&f->p, id, (hy_hold_kind)kind);
                (*n)--;
            }
            break;
        default:
            if (!hy_bpool_is_free(&f->p, id) && !f->p.blk[id].hashed) {
                const hy_kv_hash h = hash_of((int)hy_rng_below(&rng, 20)), parent = hash_of(0);
                hy_bpool_publish(&f->p, id, &h, &parent, 0, NULL, false);
            } else {
                hy_bpool_unhash(&f->p, id);
            }
        }
        const char *bad = hy_bpool_check(&f->p, held);
        if (bad != NULL)
            fail_msg("step %d: %s", step, bad);
    }
}

static void the_check_sees_what_is_wrong(void **state)
{
    fix *f = *state;
    int32_t held[8 * HY_HOLD_KINDS] = {0};
    const int32_t id = hy_bpool_take(&f->p, HY_HOLD_COMPUTE);
    assert_non_null(hy_bpool_check(&f->p, held));
    held[id * HY_HOLD_KINDS + HY_HOLD_COMPUTE] = 1;
    assert_null(hy_bpool_check(&f->p, held));
    f->p.n_free++;
    assert_non_null(hy_bpool_check(&f->p, held));
    f->p.n_free--;
    publish(f, id, 1);
    f->p.blk[id].hash.b[0] ^= 0x7f;
    assert_non_null(hy_bpool_check(&f->p, held));
    f->p.blk[id].hash.b[0] ^= 0x7f;
    assert_null(hy_bpool_check(&f->p, held));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(takes_all_then_none, setup, teardown),
        cmocka_unit_test_setup_teardown(least_recently_freed_goes_first, setup, teardown),
        cmocka_unit_test_setup_teardown(free_only_without_any_hold, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_copy_stays_unhashed, setup, teardown),
        cmocka_unit_test_setup_teardown(each_life_has_its_generation, setup, teardown),
        cmocka_unit_test_setup_teardown(events_tell_what_is_held, setup, teardown),
        cmocka_unit_test_setup_teardown(random_operations, setup, teardown),
        cmocka_unit_test_setup_teardown(the_check_sees_what_is_wrong, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
