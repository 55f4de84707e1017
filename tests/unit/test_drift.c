/* SPDX-License-Identifier: Apache-2.0
 *
 * What `halyard drift` computes: KL and percentiles of distributions worked out by hand, and whole
 * runs of a tiny model: both waves of simt and all instruction sets give the same bits, cpu and
 * simt stand a little apart and agree on the tokens. And what is not a backend is refused by name.
 *
 * Thread: main.  Owner: each test.
 */
#include "core/node/device.h"
#include "tests/golden/lm.h"
#include "tests/unit/cm.h"
#include "tools/cli/drift.h"

#include <math.h>
#include <string.h>

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.17g, not %.17g", got, want);
}

/* p = (1/2, 1/2), q = (9/10, 1/10), both with a constant on top that cancels. */
static void two_words(void **state)
{
    (void)state;
    const float p[2] = {3.0f, 3.0f}, q[2] = {-5.0f + logf(9.0f), -5.0f};
    hy_drift_row r;
    hy_drift_compare(p, q, 2, 1, &r);
    near(r.kl, 0.5 * log(0.5 / 0.9) + 0.5 * log(0.5 / 0.1), 1e-6);
    near(r.lp_a, log(0.5), 1e-12);
    near(r.lp_b, log(0.1), 1e-6);
    assert_true(r.same_top); /* ties go to the lower id */
    assert_false(r.same_bits);
    hy_drift_compare(q, p, 2, -1, &r);
    near(r.kl, 0.9 * log(0.9 / 0.5) + 0.1 * log(0.1 / 0.5), 1e-6);
    assert_true(r.lp_a == 0.0 && r.lp_b == 0.0);
    const float other[2] = {0.0f, 1.0f};
    hy_drift_compare(q, other, 2, 0, &r);
    assert_false(r.same_top);
}

static void equal_and_shifted(void **state)
{
    (void)state;
    float a[300], b[300];
    hy_drift_row r;
    for (int i = 0; i < 300; i++) {
        a[i] = sinf((float)i) * 20.0f;
        b[i] = a[i] + 64.0f;
    }
    hy_drift_compare(a, a, 300, 3, &r);
    assert_true(r.kl == 0.0 && r.same_bits && r.same_top && r.lp_a == r.lp_b);
    hy_drift_compare(a, b, 300, 3, &r); /* the same distribution in other bits */
    assert_false(r.same_bits);
    near(r.kl, 0.0, 1e-5);
    near(r.lp_a, r.lp_b, 1e-5);
    b[7] = NAN;
    hy_drift_compare(a, b, 300, 3, &r);
    assert_true(isnan(r.kl));
}

static void percentiles(void **state)
{
    (void)state;
    double v[5] = {5, 1, 4, 2, 3};
    near(hy_drift_percentile(v, 5, 0), 1, 0);
    near(hy_drift_percentile(v, 5, 50), 3, 0);
    near(hy_drift_percentile(v, 5, 90), 4.6, 1e-12);
    near(hy_drift_percentile(v, 5, 100), 5, 0);
    near(hy_drift_percentile(v, 0, 50), 0, 0);
    const hy_drift_layer l = {.diff2 = 9, .ref2 = 144}, none = {.ref2 = 0};
    near(hy_drift_relative(&l), 0.25, 0);
    near(hy_drift_relative(&none), 0, 0);
}

/* ---- whole runs ---- */

enum { TOKENS = 48 };

static hy_status measure(const char *a, const char *b, hy_drift *out)
{
    int32_t ids[TOKENS];
    char path[512];
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (i * 37 + 11) % 512;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/qwen3", lm_source_dir());
    hy_conf *c = hy_conf_create();
    assert_int_equal(hy_node_backend_keys(c), HY_OK);
    assert_int_equal(hy_conf_set(c, "engine.threads=1"), HY_OK);
    assert_int_equal(hy_conf_set(c, "kv.type=f32"), HY_OK);
    const hy_drift_opts o = {.conf = c,
                             .a = a,
                             .b = b,
                             .path = path,
                             .ids = ids,
                             .n = TOKENS,
                             .chunk = 20,
                             .control = true};
    const hy_status st = hy_drift_run(&o, out);
    hy_conf_destroy(c);
    return st;
}

static void controls_hold(const hy_drift *d)
{
    const hy_drift_side *sides[2] = {&d->a, &d->b};
    for (int i = 0; i < 2; i++) {
        assert_true(sides[i]->exact);
        assert_int_equal(sides[i]->control.n, TOKENS);
        assert_int_equal(sides[i]->control.same_bits, TOKENS);
        assert_int_equal(sides[i]->control_layers, 0);
        assert_true(sides[i]->control.kl_max == 0.0);
    }
}

static void same_bits(void **state)
{
    const char *const *pair = *state;
    hy_drift d;
    if (measure(pair[0], pair[1], &d) != HY_OK)
        fail_msg("%s", hy_fail_text());
    controls_hold(&d);
    assert_int_equal(d.rows.same_bits, TOKENS);
    assert_true(d.rows.kl_max == 0.0 && d.rows.lp_max == 0.0);
    for (int32_t i = 0; i < d.n_layers; i++)
        assert_true(d.layers[i].diff2 == 0.0 && d.layers[i].ref2 > 0.0);
    hy_drift_fini(&d);
}

static void a_little_apart(void **state)
{
    (void)state;
    hy_drift d;
    if (measure("cpu", "simt:64", &d) != HY_OK)
        fail_msg("%s", hy_fail_text());
    assert_string_equal(d.b.isa, "wave64");
    controls_hold(&d);
    assert_int_equal(d.rows.n, TOKENS);
    assert_int_equal(d.rows.n_scored, TOKENS - 1);
    assert_in_range(d.rows.same_bits, 0, TOKENS - 1);
    assert_int_equal(d.rows.same_top, TOKENS);
    assert_true(d.rows.kl_max > 0.0 && d.rows.kl_max < 1e-8); /* log p within 2e-4, squared */
    assert_true(d.rows.lp_max > 0.0 && d.rows.lp_max < 2e-4);
    assert_int_equal(d.n_layers, 4);
    assert_true(d.layers[0].diff2 == 0.0); /* an embedding is a copy */
    for (int32_t i = 1; i < d.n_layers; i++) {
        assert_int_equal(d.layers[i].layer, i - 1);
        assert_true(hy_drift_relative(&d.layers[i]) > 0.0);
        assert_true(hy_drift_relative(&d.layers[i]) < 1e-5);
    }
    hy_drift_fini(&d);
}

static void what_is_wrong(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"cpu:sse9", "sse9"},        {"nope", "nope"},
                                           {"simt:48", "48"},           {"simt:wafe=64", "wafe"},
                                           {"cpu:7", "devices 0 to 0"}, {"simt:quick", "quick"},
                                           {"simt:check=true,", "''"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        hy_drift d;
        assert_true(measure(cases[i][0], "cpu", &d) < 0);
        if (strstr(hy_fail_text(), cases[i][1]) == NULL && strcmp(cases[i][1], "''") != 0)
            fail_msg("%s: %s", cases[i][0], hy_fail_text());
        hy_drift_fini(&d);
    }
}

int main(void)
{
    static const char *const waves[] = {"simt:wave32,check=true", "simt:64"};
    static const char *const isas[] = {"cpu", "cpu:scalar"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_words),
        cmocka_unit_test(equal_and_shifted),
        cmocka_unit_test(percentiles),
        {"same_bits of waves", same_bits, NULL, NULL, (void *)(uintptr_t)waves},
        {"same_bits of isas", same_bits, NULL, NULL, (void *)(uintptr_t)isas},
        cmocka_unit_test(a_little_apart),
        cmocka_unit_test(what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
