/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 heads and bodies (core/http/wire.h): RFC 9112's rules, and every message given in one
 * piece or byte by byte comes out the same.
 *
 * Thread: one.  Owner: each test.
 */
#include "core/http/wire.h"
#include "tests/unit/cm.h"

#include <string.h>

/* Feed `text` in steps of `step` bytes until a head is taken or refused. */
static hy_status feed(const char *text, size_t len, size_t step, bool response, hy_wire_head *h,
                      struct evbuffer *in)
{
    size_t scanned = 0;
    hy_status st = HY_AGAIN;
    for (size_t at = 0; at < len && st == HY_AGAIN; at += step) {
        evbuffer_add(in, text + at, at + step < len ? step : len - at);
        st = response ? hy_wire_take_response(in, 1024, &scanned, false, h)
                      : hy_wire_take_request(in, 1024, &scanned, h);
        if (st == HY_OK && at + step < len)
            evbuffer_add(in, text + at + step, len - at - step);
    }
    return st;
}

static void test_request(void **state)
{
    static const char text[] = "\r\nPOST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\nX-A:  b c \t\r\n"
                               "content-LENGTH: 3\r\nConnection: Keep-Alive, close\r\n\r\nabc";
    (void)state;
    for (size_t step = 1; step <= sizeof(text); step++) {
        struct evbuffer *in = evbuffer_new(), *out = evbuffer_new();
        hy_wire_head h;
        hy_wire_body b;
        assert_int_equal(feed(text, strlen(text), step, false, &h, in), HY_OK);
        assert_string_equal(h.method, "POST");
        assert_string_equal(h.target, "/v1/x?y=1");
        assert_string_equal(hy_wire_find(&h, "x-a"), "b c");
        assert_null(hy_wire_find(&h, "x-b"));
        assert_int_equal(h.framing, HY_WIRE_LENGTH);
        assert_false(h.keep_alive);
        hy_wire_body_init(&b, &h);
        assert_int_equal(hy_wire_body_take(&b, in, out), HY_OK);
        assert_int_equal(evbuffer_get_length(out), 3);
        hy_wire_head_fini(&h);
        evbuffer_free(in);
        evbuffer_free(out);
    }
}

static void test_refused(void **state)
{
    static const char *const bad[] = {
        "GET /\r\n\r\n",
        "GET  / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1 \r\n\r\n",
        "GET / HTTP/2.0\r\n\r\n",
        "G@T / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nA\r\n\r\n",
        "GET / HTTP/1.1\r\nA : b\r\n\r\n",
        "GET / HTTP/1.1\r\n: b\r\n\r\n",
        "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
        "GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n",
        "GET / HTTP/1.1\r\nA: b\x01\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length:\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    };
    (void)state;
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        struct evbuffer *in = evbuffer_new();
        hy_wire_head h;
        assert_int_equal(feed(bad[i], strlen(bad[i]), 1000, false, &h, in), HY_E_FORMAT);
        evbuffer_free(in);
    }
}

static void test_limits(void **state)
{
    char text[2048];
    struct evbuffer *in = evbuffer_new();
    hy_wire_head h;
    size_t scanned = 0;
    (void)state;
    memset(text, 'x', sizeof(text));
    memcpy(text, "GET / HTTP/1.1\r\nA: ", 19);
    evbuffer_add(in, text, 1024);
    assert_int_equal(hy_wire_take_request(in, 1024, &scanned, &h), HY_AGAIN);
    evbuffer_add(in, text + 1024, 1);
    assert_int_equal(hy_wire_take_request(in, 1024, &scanned, &h), HY_E_LIMIT);
    evbuffer_free(in);
    /* 1024 bytes with the empty line are allowed, 1025 are not */
    for (size_t n = 1024; n <= 1025; n++) {
        in = evbuffer_new();
        memcpy(text + n - 4, "\r\n\r\n", 4);
        evbuffer_add(in, text, n);
        scanned = 0;
        assert_int_equal(hy_wire_take_request(in, 1024, &scanned, &h),
                         n == 1024 ? HY_OK : HY_E_LIMIT);
        if (n == 1024)
            hy_wire_head_fini(&h);
        text[n - 4] = text[n - 3] = text[n - 2] = text[n - 1] = 'x';
        evbuffer_free(in);
    }
}

static void test_response_framing(void **state)
{
    static const struct {
        const char *text;
        hy_wire_framing framing;
        bool keep;
    } t[] = {
        {"HTTP/1.1 200 OK\r\n\r\n", HY_WIRE_CLOSE, false},
        {"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\n", HY_WIRE_LENGTH, true},
        {"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", HY_WIRE_EMPTY, true},
        {"HTTP/1.1 204 x\r\n\r\n", HY_WIRE_EMPTY, true},
        {"HTTP/1.1 304 x\r\nContent-Length: 9\r\n\r\n", HY_WIRE_EMPTY, true},
        {"HTTP/1.1 200 x\r\ntransfer-encoding: Chunked\r\n\r\n", HY_WIRE_CHUNKED, true},
        {"HTTP/1.0 200 x\r\nContent-Length: 5\r\n\r\n", HY_WIRE_LENGTH, false},
        {"HTTP/1.0 200 x\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n", HY_WIRE_LENGTH,
         true},
    };
    (void)state;
    for (size_t i = 0; i < HY_COUNTOF(t); i++) {
        struct evbuffer *in = evbuffer_new();
        hy_wire_head h;
        assert_int_equal(feed(t[i].text, strlen(t[i].text), 7, true, &h, in), HY_OK);
        assert_int_equal(h.framing, t[i].framing);
        assert_int_equal(h.keep_alive, t[i].keep);
        hy_wire_head_fini(&h);
        evbuffer_free(in);
    }
    static const char *const bad[] = {"HTTP/1.1\r\n\r\n", "HTTP/1.1 20 x\r\n\r\n",
                                      "HTTP/1.1 2000 x\r\n\r\n", "HTTP/3 200 x\r\n\r\n",
                                      "ICY 200 OK\r\n\r\n"};
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        struct evbuffer *in = evbuffer_new();
        hy_wire_head h;
        assert_int_equal(feed(bad[i], strlen(bad[i]), 1000, true, &h, in), HY_E_FORMAT);
        evbuffer_free(in);
    }
}

static hy_status chunked(const char *text, size_t step, struct evbuffer *out, size_t *left)
{
    struct evbuffer *in = evbuffer_new();
    hy_wire_head h = {.framing = HY_WIRE_CHUNKED};
    hy_wire_body b;
    hy_status st = HY_AGAIN;
    size_t len = strlen(text), at = 0;
    hy_wire_body_init(&b, &h);
    for (; at < len && st == HY_AGAIN; at += step) {
        evbuffer_add(in, text + at, at + step < len ? step : len - at);
        st = hy_wire_body_take(&b, in, out);
    }
    *left = evbuffer_get_length(in) + (at < len ? len - at : 0);
    if (st == HY_AGAIN)
        assert_int_equal(hy_wire_body_end(&b), HY_E_PEER);
    evbuffer_free(in);
    return st;
}

static void test_chunked(void **state)
{
    (void)state;
    for (size_t step = 1; step < 60; step++) {
        struct evbuffer *out = evbuffer_new();
        size_t left;
        char got[16] = {0};
        assert_int_equal(chunked("4\r\nWiki\r\n00a;x=y\r\npedia in \n\r\n0\r\nT: x\r\n\r\nNEXT",
                                 step, out, &left),
                         HY_OK);
        assert_int_equal(left, 4); /* the next message is not touched */
        assert_int_equal(evbuffer_remove(out, got, sizeof(got)), 14);
        assert_memory_equal(got, "Wikipedia in \n", 14);
        evbuffer_free(out);
    }
    static const char *const bad[] = {
        "x\r\n", "\r\n", "1\r\nab\r\n", "-1\r\n", "1000000000000000\r\n", "1x\r\n"};
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        struct evbuffer *out = evbuffer_new();
        size_t left;
        assert_int_equal(chunked(bad[i], 100, out, &left), HY_E_FORMAT);
        evbuffer_free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_limits),  cmocka_unit_test(test_response_framing),
        cmocka_unit_test(test_chunked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
