/* SPDX-License-Identifier: Apache-2.0
 *
 * KV events: numbers without gaps, the ring, and that a snapshot with the events after it gives the
 * same picture as the pool itself.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/kv/kv.h"
#include "tests/unit/cm.h"

#include "core/base/rng.h"

#include <string.h>

static void ring_keeps_the_newest(void **state)
{
    (void)state;
    hy_kv_events *e = hy_kv_events_create(77, 4, 16);
    assert_non_null(e);
    hy_kv_event got;
    assert_int_equal(hy_kv_events_get(e, 1, &got), HY_AGAIN);
    for (int i = 1; i <= 10; i++) {
        int32_t ids[16];
        for (int k = 0; k < 16; k++)
            ids[k] = i * 100 + k;
        const hy_kv_event ev = {.kind = HY_KV_STORED, .pos = i, .ids = ids, .n_ids = 16};
        hy_kv_events_add(e, &ev);
    }
    assert_int_equal(hy_kv_events_last(e), 10);
    assert_int_equal(hy_kv_events_get(e, 6, &got), HY_E_NOTFOUND);
    assert_int_equal(hy_kv_events_get(e, 0, &got), HY_E_NOTFOUND);
    assert_int_equal(hy_kv_events_get(e, 11, &got), HY_AGAIN);
    for (uint64_t s = 7; s <= 10; s++) {
        assert_int_equal(hy_kv_events_get(e, s, &got), HY_OK);
        assert_int_equal(got.seq, s);
        assert_int_equal(got.epoch, 77);
        assert_int_equal(got.pos, s);
        assert_int_equal(got.ids[15], s * 100 + 15);
    }
    hy_kv_events_destroy(e);
}

enum { MOST = 64 };
typedef struct picture {
    hy_kv_hash h[MOST];
    int n;
} picture;

static void see(void *arg, const hy_kv_event *ev)
{
    picture *p = arg;
    if (ev->kind == HY_KV_CLEARED) {
        p->n = 0;
    } else if (ev->kind == HY_KV_STORED) {
        assert_true(p->n < MOST);
        p->h[p->n++] = ev->hash;
    } else {
        int i = 0;
        while (i < p->n && memcmp(&p->h[i], &ev->hash, sizeof(ev->hash)) != 0)
            i++;
        assert_true(i < p->n); /* removed without having been stored */
        p->h[i] = p->h[--p->n];
    }
}

static void same_picture(const picture *a, const picture *b)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        int k = 0;
        while (k < b->n && memcmp(&a->h[i], &b->h[k], sizeof(a->h[0])) != 0)
            k++;
        assert_true(k < b->n);
    }
}

static void one_request(hy_kv *kv, hy_rng *rng)
{
    int32_t ids[200];
    const int32_t family = (int32_t)hy_rng_below(rng, 4), n = 20 + (int32_t)hy_rng_below(rng, 120);
    for (int32_t i = 0; i < n; i++)
        ids[i] = family * 1000 + i;
    hy_kv_seq s;
    const hy_kv_hash root = {{1}};
    assert_int_equal(hy_kv_seq_init(kv, &s, 200, &root, false), HY_OK);
    hy_kv_chain(&s, ids, n);
    hy_kv_hit hit;
    hy_kv_match_prefix(&s, n - 1, &hit);
    hy_kv_attach(&s, &hit);
    assert_true(hy_kv_grow(&s, n, n));
    hy_kv_publish(&s, ids, n);
    hy_kv_seq_fini(&s);
    if (hy_rng_below(rng, 20) == 0)
        hy_kv_clear(kv);
}

static void snapshot_and_events_agree(void **state)
{
    (void)state;
    const int32_t windows[1] = {0}, blocks[1] = {12};
    const hy_kv_opts o = {1, windows, blocks, 16, 1000000, 5};
    hy_kv *kv;
    assert_int_equal(hy_kv_create(&o, &kv), HY_OK);
    hy_rng rng;
    hy_rng_init(&rng, 8);
    picture followed = {.n = 0};
    uint64_t next = 1;
    for (int i = 0; i < 400; i++) {
        one_request(kv, &rng);
        if (i == 100) { /* a reader that comes late: snapshot, then the events after it */
            followed.n = 0;
            next = hy_kv_snapshot(kv, see, &followed) + 1;
        }
        hy_kv_event ev;
        while (hy_kv_events_get(hy_kv_events_of(kv), next, &ev) == HY_OK) {
            assert_int_equal(ev.seq, next++);
            see(&followed, &ev);
        }
        picture now = {.n = 0};
        assert_int_equal(hy_kv_snapshot(kv, see, &now), next - 1);
        same_picture(&followed, &now);
    }
    assert_true(next > 400);
    hy_kv_destroy(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_keeps_the_newest),
        cmocka_unit_test(snapshot_and_events_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
