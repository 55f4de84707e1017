/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers against published answers: Philox4x32-10 from Random123's known-answer file
 * (kat_vectors), SplitMix64 from the reference program's output for seed 1234567. Sampling
 * depends on these bits for ever.
 *
 * Thread: test.  Owner: the test.
 */
#include "core/base/rng.h"
#include "tests/unit/cm.h"

#include <math.h>

static void philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t ctr[4], key[2], out[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        hy_rng_philox(kat[i].ctr, kat[i].key, out);
        for (int k = 0; k < 4; k++)
            assert_int_equal(out[k], kat[i].out[k]);
    }
    /* how (seed, choice, position, draw) map onto it */
    assert_true(hy_rng_u64_at(0, 0, 0, 0) == UINT64_C(0xe169c58d6627e8d5));
    assert_true(hy_rng_u64_at(UINT64_C(0x299f31d0a4093822), 0x243f6a88,
                              UINT64_C(0x13198a2e85a308d3),
                              0x03707344) == UINT64_C(0x94fdccebd16cfe09));
    assert_true(hy_rng_f64_at(0, 0, 0, 0) ==
                (double)(UINT64_C(0xe169c58d6627e8d5) >> 11) * 0x1p-53);
}

static void splitmix_known_answers(void **state)
{
    (void)state;
    static const uint64_t want[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                    UINT64_C(9817491932198370423), UINT64_C(4593380528125082431),
                                    UINT64_C(16408922859458223821)};
    hy_rng r;
    hy_rng_init(&r, 1234567);
    for (int i = 0; i < 5; i++)
        assert_true(hy_rng_u64(&r) == want[i]);
}

/* Chi-squared over 64 bins, 64,000 draws: 63 degrees of freedom, mean 63, deviation 11.2; a
 * uniform source stays within 63 +- 56 (5 deviations). */
static void check_uniform(double (*draw)(void *, uint64_t), void *arg)
{
    unsigned bins[64] = {0};
    for (uint64_t i = 0; i < 64000; i++) {
        double x = draw(arg, i);
        assert_true(x >= 0.0 && x < 1.0);
        bins[(int)(x * 64)]++;
    }
    double chi = 0;
    for (int i = 0; i < 64; i++)
        chi += (bins[i] - 1000.0) * (bins[i] - 1000.0) / 1000.0;
    assert_true(fabs(chi - 63.0) < 56.0);
}

static double draw_seq(void *r, uint64_t i)
{
    (void)i;
    return hy_rng_f64(r);
}
static double draw_position(void *a, uint64_t i)
{
    (void)a;
    return hy_rng_f64_at(7, 0, i, 0);
}
static double draw_seed(void *a, uint64_t i)
{
    (void)a;
    return hy_rng_f64_at(i, 0, 5, 0);
}
static double draw_choice(void *a, uint64_t i)
{
    (void)a;
    return hy_rng_f64_at(7, (uint32_t)i, 5, 0);
}
static double draw_draw(void *a, uint64_t i)
{
    (void)a;
    return hy_rng_f64_at(7, 0, 5, (uint32_t)i);
}

static void uniform_along_every_axis(void **state)
{
    (void)state;
    hy_rng r;
    hy_rng_init(&r, 1);
    check_uniform(draw_seq, &r);
    check_uniform(draw_position, NULL);
    check_uniform(draw_seed, NULL);
    check_uniform(draw_choice, NULL);
    check_uniform(draw_draw, NULL);
}

static void below_stays_below(void **state)
{
    (void)state;
    hy_rng r;
    hy_rng_init(&r, 3);
    unsigned seen[3] = {0};
    for (int i = 0; i < 3000; i++)
        seen[hy_rng_below(&r, 3)]++;
    for (int i = 0; i < 3; i++)
        assert_in_range(seen[i], 850, 1150);
    assert_int_equal(hy_rng_below(&r, 1), 0);
    for (int i = 0; i < 100; i++)
        assert_true(hy_rng_below(&r, UINT64_MAX) < UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(splitmix_known_answers),
        cmocka_unit_test(uniform_along_every_axis),
        cmocka_unit_test(below_stays_below),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
