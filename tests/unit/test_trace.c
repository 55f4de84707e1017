/* SPDX-License-Identifier: Apache-2.0
 *
 * Timelines: the ring stays as it is made, marks cost no memory, and the page is a trace that
 * viewers read.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/base/trace.h"

#include "core/base/alloc.h"
#include "tests/unit/cm.h"

#include <jansson.h>
#include <string.h>

#define MS UINT64_C(1000000)

static json_t *page(hy_trace *t, const char *rid, size_t most)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_trace_json(t, 7 * MS, 9 * MS, rid, most, &b);
    json_error_t err;
    json_t *o = json_loads(hy_buf_str(&b), JSON_REJECT_DUPLICATES, &err);
    if (o == NULL)
        fail_msg("line %d: %s\n%s", err.line, err.text, hy_buf_str(&b));
    hy_buf_fini(&b);
    return o;
}

/* The n-th event of that name; NULL: none. */
static json_t *event(const json_t *o, const char *name, size_t n)
{
    const json_t *list = json_object_get(o, "traceEvents");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *e = json_array_get(list, i);
        if (strcmp(json_string_value(json_object_get(e, "name")), name) == 0 && n-- == 0)
            return e;
    }
    return NULL;
}

static size_t count(const json_t *o, const char *name)
{
    size_t n = 0;
    while (event(o, name, n) != NULL)
        n++;
    return n;
}

static void check_span(const json_t *o, const char *name, double ts, double dur)
{
    const json_t *e = event(o, name, 0);
    if (e == NULL)
        fail_msg("no %s", name);
    assert_string_equal(json_string_value(json_object_get(e, "ph")), "X");
    assert_true(json_number_value(json_object_get(e, "ts")) == ts);
    assert_true(json_number_value(json_object_get(e, "dur")) == dur);
}

static json_int_t arg(const json_t *o, const char *name, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(event(o, name, 0), "args"), key));
}

static void decode_node(void **state)
{
    (void)state;
    hy_trace *t = hy_trace_create("d0", "decode", 8);
    static const hy_trace_point way[] = {HY_TRACE_QUEUED, HY_TRACE_ADMITTED, HY_TRACE_LOAD,
                                         HY_TRACE_LOADED, HY_TRACE_FIRST,    HY_TRACE_DECODE};
    hy_trace_begin(t, 5, "req-1", 10 * MS);
    for (size_t i = 0; i < HY_COUNTOF(way); i++)
        hy_trace_mark(t, 5, way[i], (11 + i) * MS + 500);
    hy_trace_mark(t, 5, HY_TRACE_FIRST, 99 * MS); /* the first one counts */
    hy_trace_again(t, 5, HY_TRACE_FINISHED, 20 * MS);
    hy_trace_again(t, 5, HY_TRACE_FINISHED, 30 * MS); /* the last one counts */
    hy_trace_mark(t, 5, HY_TRACE_ANSWERED, 31 * MS);
    hy_trace_set(t, 5, HY_TRACE_PROMPT, 100);
    hy_trace_set(t, 5, HY_TRACE_HIT, 32);
    hy_trace_set(t, 5, HY_TRACE_MOVED, 68);
    hy_trace_add(t, 5, HY_TRACE_OUTPUT, 7);
    hy_trace_add(t, 5, HY_TRACE_BYTES_IN, 4096);
    hy_trace_set(t, 5, HY_TRACE_STATUS, 200);
    json_t *o = page(t, NULL, HY_TRACE_MOST);
    check_span(o, "request", 10000, 21000);
    check_span(o, "tokenise", 10000, 1000.5);
    check_span(o, "queue", 11000.5, 1000);
    check_span(o, "link", 12000.5, 1000);
    check_span(o, "transfer", 13000.5, 1000);
    check_span(o, "decode", 15000.5, 14999.5);
    assert_null(event(o, "prefill", 0)); /* nothing was computed */
    assert_int_equal(count(o, "first decode"), 1);
    assert_int_equal(arg(o, "transfer", "bytes"), 4096);
    assert_int_equal(arg(o, "transfer", "tokens"), 68);
    assert_int_equal(arg(o, "request", "cached_tokens"), 32);
    assert_int_equal(arg(o, "request", "status"), 200);
    const json_t *other = json_object_get(o, "otherData");
    assert_string_equal(json_string_value(json_object_get(other, "node")), "d0");
    assert_true(json_number_value(json_object_get(other, "now_us")) == 7000.0);
    char name[HY_TRACE_CLOCK_MAX];
    hy_trace_clock(name, sizeof(name));
    assert_string_equal(json_string_value(json_object_get(other, "clock")), name);
    json_decref(o);

    hy_buf b;
    hy_buf_init(&b);
    assert_true(hy_trace_line(t, 5, &b));
    assert_string_equal(
        hy_buf_str(&b),
        "request req-1: prompt 100 tokens (32 cached, 68 moved, 0 computed), tokenised 1.0 ms, "
        "queued 1.0 ms, link 1.0 ms, transfer 0.004 MB, in 1.0 ms, first token after 5.0 ms, "
        "first decode after 6.0 ms, 7 tokens out, decode 15.0 ms, total 21.0 ms, status 200");
    hy_buf_fini(&b);
    hy_trace_destroy(t);
}

static void prefill_node_and_router(void **state)
{
    (void)state;
    hy_trace *t = hy_trace_create("p0", "prefill", 4);
    hy_trace_begin(t, 1, "a", 10 * MS);
    hy_trace_mark(t, 1, HY_TRACE_QUEUED, 11 * MS);
    hy_trace_mark(t, 1, HY_TRACE_ADMITTED, 12 * MS);
    hy_trace_set(t, 1, HY_TRACE_PROMPT, 50);
    hy_trace_mark(t, 1, HY_TRACE_FIRST, 15 * MS);
    hy_trace_again(t, 1, HY_TRACE_FINISHED, 15 * MS);
    hy_trace_mark(t, 1, HY_TRACE_ANSWERED, 16 * MS);
    hy_trace_mark(t, 1, HY_TRACE_SEND, 18 * MS);
    hy_trace_again(t, 1, HY_TRACE_SENT, 19 * MS);
    hy_trace_mark(t, 1, HY_TRACE_FREED, 20 * MS);
    hy_trace_add(t, 1, HY_TRACE_BYTES_OUT, 77);
    json_t *o = page(t, "a", 1);
    check_span(o, "request", 10000, 6000);
    check_span(o, "prefill", 12000, 3000);
    check_span(o, "kept for the peer", 15000, 5000);
    check_span(o, "send", 18000, 1000);
    assert_int_equal(arg(o, "send", "bytes"), 77);
    /* what outlives the request stands in a row of its own */
    assert_true(json_integer_value(json_object_get(event(o, "send", 0), "tid")) !=
                json_integer_value(json_object_get(event(o, "request", 0), "tid")));
    json_decref(o);
    hy_trace_destroy(t);

    t = hy_trace_create("r", "router", 4);
    hy_trace_begin(t, 1, "say \"hi\"\n", 1 * MS); /* names cannot break the page */
    hy_trace_again(t, 1, HY_TRACE_P_SENT, 2 * MS);
    hy_trace_name(t, 1, HY_TRACE_P_NAME, "p0");
    hy_trace_again(t, 1, HY_TRACE_P_DONE, 5 * MS);
    hy_trace_again(t, 1, HY_TRACE_D_SENT, 6 * MS);
    hy_trace_name(t, 1, HY_TRACE_D_NAME, "d0");
    o = page(t, NULL, 10);
    check_span(o, "prefill leg", 2000, 3000);
    assert_non_null(event(o, "request (in work)", 0)); /* until now */
    check_span(o, "decode leg", 6000, 0);
    json_decref(o);
    hy_trace_destroy(t);
}

static void ring_is_bounded(void **state)
{
    (void)state;
    hy_trace *t = hy_trace_create("n", "all", 16);
    char rid[32];
    const uint64_t allocs = hy_alloc_count();
    for (uint64_t id = 1; id <= 5000; id++) {
        snprintf(rid, sizeof(rid), "r%d", (int)(id % 4));
        hy_trace_begin(t, id, rid, id * MS);
        hy_trace_mark(t, id, HY_TRACE_FIRST, id * MS + 1);
        hy_trace_mark(t, id > 20 ? id - 20 : 0, HY_TRACE_ANSWERED, id * MS); /* dropped already */
        hy_trace_add(t, id + 1, HY_TRACE_OUTPUT, 1);                         /* not there yet */
    }
    assert_int_equal(hy_alloc_count(), allocs);
    json_t *o = page(t, NULL, HY_TRACE_MOST);
    assert_int_equal(count(o, "request (in work)"), 16);
    assert_int_equal(count(o, "request"), 0);
    assert_true(json_number_value(json_object_get(event(o, "request (in work)", 0), "ts")) ==
                4985e3); /* oldest first */
    json_decref(o);
    o = page(t, "r2", 3);
    assert_int_equal(count(o, "request (in work)"), 3);
    assert_true(json_number_value(json_object_get(event(o, "request (in work)", 2), "ts")) ==
                4998e3);
    json_decref(o);
    o = page(t, NULL, 0);
    assert_int_equal(json_array_size(json_object_get(o, "traceEvents")), 1); /* the node's name */
    json_decref(o);
    hy_trace_destroy(t);
}

static void nothing_kept(void **state)
{
    (void)state;
    assert_null(hy_trace_create("n", "all", 0));
    assert_null(hy_trace_create("n", "all", HY_TRACE_MOST + 1));
    hy_trace_begin(NULL, 1, "x", 1);
    hy_trace_mark(NULL, 1, HY_TRACE_FIRST, 1);
    hy_trace_set(NULL, 1, HY_TRACE_HIT, 1);
    hy_trace_name(NULL, 1, HY_TRACE_P_NAME, "x");
    hy_buf b;
    hy_buf_init(&b);
    assert_false(hy_trace_line(NULL, 1, &b));
    hy_buf_fini(&b);
    json_t *o = page(NULL, NULL, 1);
    assert_int_equal(json_array_size(json_object_get(o, "traceEvents")), 0);
    json_decref(o);
    hy_trace_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_node),
        cmocka_unit_test(prefill_node_and_router),
        cmocka_unit_test(ring_is_bounded),
        cmocka_unit_test(nothing_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
