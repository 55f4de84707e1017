/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics and their text page; the page's form is Prometheus' exposition format 0.0.4.
 *
 * Thread: test and its workers.  Owner: the test.
 */
#include "core/base/metric.h"
#include "tests/unit/cm.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

static void page(void **state)
{
    (void)state;
    hy_metrics *m = hy_metrics_create();
    const hy_label model[] = {{"model_name", "a\"b\\c\nd"}};
    const hy_label two[] = {{"model_name", "x"}, {"finished_reason", "stop"}};
    const double bounds[] = {0.001, 0.5, 10};
    hy_metric *run =
        hy_metric_gauge(m, "vllm:num_requests_running", "Running \\ now.\nYes \"so\".", model, 1);
    hy_metric *ok = hy_metric_counter(m, "vllm:request_success_total", "Done.", two, 2);
    hy_metric *lat = hy_metric_histogram(m, "ttft_seconds", "First token.", bounds, 3, NULL, 0);
    hy_metric *lab = hy_metric_histogram(m, "e2e_seconds", "All.", bounds, 1, two, 1);
    hy_metric_set(run, 3);
    hy_metric_add(run, -0.9);
    hy_metric_inc(ok);
    hy_metric_add(ok, 41);
    hy_metric_observe(lat, 0.001); /* a bound belongs to its bucket */
    hy_metric_observe(lat, 0.25);
    hy_metric_observe(lat, 99);
    hy_metric_observe(lab, 0.5);
    assert_ptr_equal(hy_metric_counter(m, "vllm:request_success_total", "Done.", two, 2), ok);
    assert_ptr_not_equal(hy_metric_counter(m, "vllm:request_success_total", "Done.", two, 1), ok);
    hy_buf b;
    hy_buf_init(&b);
    hy_metrics_text(m, &b);
    assert_string_equal(hy_buf_str(&b),
                        "# HELP vllm:num_requests_running Running \\\\ now.\\nYes \"so\".\n"
                        "# TYPE vllm:num_requests_running gauge\n"
                        "vllm:num_requests_running{model_name=\"a\\\"b\\\\c\\nd\"} 2.1\n"
                        "# HELP vllm:request_success_total Done.\n"
                        "# TYPE vllm:request_success_total counter\n"
                        "vllm:request_success_total{model_name=\"x\",finished_reason=\"stop\"} 42\n"
                        "vllm:request_success_total{model_name=\"x\"} 0\n"
                        "# HELP ttft_seconds First token.\n"
                        "# TYPE ttft_seconds histogram\n"
                        "ttft_seconds_bucket{le=\"0.001\"} 1\n"
                        "ttft_seconds_bucket{le=\"0.5\"} 2\n"
                        "ttft_seconds_bucket{le=\"10\"} 2\n"
                        "ttft_seconds_bucket{le=\"+Inf\"} 3\n"
                        "ttft_seconds_sum 99.251\n"
                        "ttft_seconds_count 3\n"
                        "# HELP e2e_seconds All.\n"
                        "# TYPE e2e_seconds histogram\n"
                        "e2e_seconds_bucket{model_name=\"x\",le=\"0.001\"} 0\n"
                        "e2e_seconds_bucket{model_name=\"x\",le=\"+Inf\"} 1\n"
                        "e2e_seconds_sum{model_name=\"x\"} 0.5\n"
                        "e2e_seconds_count{model_name=\"x\"} 1\n");
    hy_buf_fini(&b);
    hy_metrics_destroy(m);
    hy_metrics_destroy(NULL);
}

static void odd_values(void **state)
{
    (void)state;
    hy_metrics *m = hy_metrics_create();
    static const struct {
        double v;
        const char *text;
    } cases[] = {{NAN, "g NaN\n"},
                 {INFINITY, "g +Inf\n"},
                 {-INFINITY, "g -Inf\n"},
                 {0.1, "g 0.1\n"},
                 {1e300, "g 1e+300\n"},
                 {1.0 / 3, "g 0.3333333333333333\n"},
                 {123456789012.0, "g 123456789012\n"}};
    hy_metric *g = hy_metric_gauge(m, "g", "", NULL, 0);
    for (size_t i = 0; i < HY_COUNTOF(cases); i++) {
        hy_buf b;
        hy_buf_init(&b);
        hy_metric_set(g, cases[i].v);
        hy_metrics_text(m, &b);
        assert_string_equal(strrchr(hy_buf_str(&b), 'g'), cases[i].text);
        hy_buf_fini(&b);
    }
    hy_metric_inc(NULL); /* out of memory at creation: updates do nothing */
    hy_metric_observe(NULL, 1);
    hy_metrics_destroy(m);
}

static void *worker(void *arg)
{
    hy_metrics *m = arg;
    const double bounds[] = {1, 2, 3};
    for (int i = 0; i < 2000; i++) {
        hy_metric_inc(hy_metric_counter(m, "c_total", "c", NULL, 0));
        hy_metric_observe(hy_metric_histogram(m, "h", "h", bounds, 3, NULL, 0), i % 5);
    }
    return NULL;
}

static void from_many_threads(void **state)
{
    (void)state;
    hy_metrics *m = hy_metrics_create();
    pthread_t t[4];
    hy_buf b;
    hy_buf_init(&b);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, worker, m);
    for (int i = 0; i < 50; i++) {
        hy_buf_clear(&b);
        hy_metrics_text(m, &b);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    hy_metric *h = hy_metric_histogram(m, "h", "h", NULL, 0, NULL, 0);
    assert_true(hy_metric_value(hy_metric_counter(m, "c_total", "c", NULL, 0)) == 8000);
    assert_true(hy_metric_value(h) == 8000);
    assert_true(hy_metric_sum(h) == 16000);
    hy_buf_fini(&b);
    hy_metrics_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page),
        cmocka_unit_test(odd_values),
        cmocka_unit_test(from_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
