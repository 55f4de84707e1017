/* SPDX-License-Identifier: Apache-2.0
 *
 * The queues' order: priority, then arrival.
 *
 * Thread: the test's.  Owner: the test.
 */
#include "core/sched/seq.h"
#include "tests/unit/cm.h"

#include "core/base/rng.h"

enum { N = 60 };

static void list_and_array_stay_in_order(void **state)
{
    (void)state;
    hy_req req[N] = {{0}};
    hy_job *job[N];
    static hy_seq seq[N];
    hy_seq *at[N];
    hy_rng rng;
    hy_rng_init(&rng, 4);
    hy_seq_list l = {0};
    hy_seq_array a = {.at = at, .cap = N};
    bool in[N] = {false};
    for (int i = 0; i < N; i++) {
        req[i].priority = (int32_t)hy_rng_below(&rng, 3) - 1;
        job[i] = calloc(1, sizeof(hy_job));
        assert_non_null(job[i]);
        job[i]->r = &req[i];
        seq[i].job = job[i];
        seq[i].uid = (uint64_t)i + 1;
    }
    for (int step = 0; step < 4000; step++) {
        const uint64_t k = hy_rng_below(&rng, N);
        if (in[k]) {
            hy_seq_list_remove(&l, &seq[k]);
            hy_seq_array_remove(&a, &seq[k]);
        } else {
            hy_seq_list_insert(&l, &seq[k]);
            hy_seq_array_insert(&a, &seq[k]);
        }
        in[k] = !in[k];
        assert_int_equal(l.n, a.n);
        int32_t i = 0;
        const hy_seq *prev = NULL;
        for (const hy_seq *s = l.head; s != NULL; s = s->next, i++) {
            assert_ptr_equal(s, a.at[i]);
            assert_ptr_equal(s->prev, prev);
            if (prev != NULL) {
                const int32_t pp = prev->job->r->priority, ps = s->job->r->priority;
                assert_true(pp < ps || (pp == ps && prev->uid < s->uid));
            }
            prev = s;
        }
        assert_int_equal(i, l.n);
        assert_ptr_equal(l.tail, prev);
    }
    for (int i = 0; i < N; i++)
        free(job[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(list_and_array_stay_in_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
