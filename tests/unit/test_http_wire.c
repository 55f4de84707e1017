/* SPDX-License-Identifier: Apache-2.0
 *
 * The server against clients that are slow, broken, gone or hostile. After every one of them it
 * must still answer others, and the engine must not work for nobody.
 *
 * Thread: the test's.  Owner: each test has a kit of its own.
 */
#include "tests/unit/http_kit.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static kit K;

static int up(void **state)
{
    (void)state;
    kit_init(&K);
    return 0;
}

static int down(void **state)
{
    (void)state;
    kit_stop(&K);
    return 0;
}

static void still_serving(void)
{
    answer a = kit_post(&K, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":1}");
    assert_int_equal(a.status, 200);
    answer_free(&a);
}

static void send_text(int fd, const char *s)
{
    kit_send(fd, s, strlen(s));
}

/* A POST with that body as text to send. Free with free(). */
static char *post_text(const char *path, const char *body)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_buf_printf(&b,
                  "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  "Content-Length: %zu\r\n\r\n%s",
                  path, strlen(body), body);
    return hy_buf_take(&b);
}

/* True when the peer has closed within ms; reads what comes before. */
static bool closes(int fd, int ms)
{
    char t[65536];
    struct pollfd p = {fd, POLLIN, 0};
    while (poll(&p, 1, ms) == 1) {
        if (recv(fd, t, sizeof(t), 0) <= 0)
            return true;
    }
    return false;
}

static void test_split(void **state)
{
    (void)state;
    kit_start(&K);
    char *t = post_text("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":1}");
    int fd = kit_connect(&K);
    for (size_t i = 0; t[i] != '\0'; i++) {
        kit_send(fd, t + i, 1);
        if (i % 16 == 0)
            usleep(500);
    }
    answer a;
    assert_true(kit_read(fd, &a));
    assert_int_equal(a.status, 200);
    answer_free(&a);
    free(t);
    close(fd);
}

static void test_keep_alive_and_pipelining(void **state)
{
    (void)state;
    kit_start(&K);
    char *t = post_text("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":3}");
    char *s = post_text("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":3,\"stream\":true}");
    int fd = kit_connect(&K);
    for (int i = 0; i < 5; i++) {
        send_text(fd, t);
        send_text(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        send_text(fd, s);
    }
    for (int i = 0; i < 15; i++) {
        answer a;
        assert_true(kit_read(fd, &a));
        assert_int_equal(a.status, 200);
        if (i % 3 == 2)
            assert_non_null(strstr(a.body, "data: [DONE]"));
        answer_free(&a);
    }
    free(t);
    free(s);
    close(fd);
}

/* One connection a request, head and body apart: descriptors are reused at once, and no byte may go
 * to a connection that was closed before. */
static void test_connection_a_request(void **state)
{
    (void)state;
    kit_start(&K);
    static const char head[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                               "Content-Length: 29\r\n\r\n";
    static const char body[] = "{\"prompt\":\"x\",\"max_tokens\":1}";
    for (int i = 0; i < 1500; i++) {
        answer a;
        int fd = kit_connect(&K);
        kit_send(fd, head, sizeof(head) - 1);
        kit_send(fd, body, sizeof(body) - 1);
        assert_true(kit_read(fd, &a));
        assert_int_equal(a.status, 200);
        answer_free(&a);
        assert_true(closes(fd, 2000));
        close(fd);
    }
}

/* More is sent ahead than the server takes while it works: nothing is lost, nothing spins. */
static void test_sent_ahead(void **state)
{
    (void)state;
    enum { N = 12000 };
    kit_start(&K);
    K.engine->delay_us = 5000;
    char *s = post_text("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":40,\"stream\":true}");
    hy_buf b;
    hy_buf_init(&b);
    for (int i = 0; i < N; i++)
        hy_buf_puts(&b, "GET /ping HTTP/1.1\r\nHost: x\r\n\r\n");
    int fd = kit_connect(&K);
    send_text(fd, s);
    kit_send(fd, b.data, b.len);
    answer a;
    assert_true(kit_read(fd, &a));
    assert_non_null(strstr(a.body, "data: [DONE]"));
    answer_free(&a);
    for (int i = 0; i < N; i++) {
        assert_true(kit_read(fd, &a));
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
    close(fd);
    free(s);
    hy_buf_fini(&b);
}

static void test_http_1_0(void **state)
{
    (void)state;
    kit_start(&K);
    char *s = post_text("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":3,\"stream\":true}");
    s[strcspn(s, "\r") - 1] = '0';
    int fd = kit_connect(&K);
    char t[8192];
    size_t n = 0;
    ssize_t k;
    send_text(fd, s);
    while ((k = recv(fd, t + n, sizeof(t) - 1 - n, 0)) > 0)
        n += (size_t)k;
    t[n] = '\0';
    assert_memory_equal(t, "HTTP/1.0 200", 12);
    assert_null(strcasestr(t, "chunked"));
    assert_non_null(strstr(t, "data: [DONE]\n\n"));
    free(s);
    close(fd);
}

static void test_chunked_body_and_expect(void **state)
{
    (void)state;
    kit_start(&K);
    answer a;
    int fd = kit_connect(&K);
    send_text(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "8\r\n{\"prompt\r\n");
    usleep(2000);
    send_text(fd, "15\r\n\":\"x\",\"max_tokens\":1}\r\n0\r\n\r\n");
    assert_true(kit_read(fd, &a));
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(fd);
    fd = kit_connect(&K);
    send_text(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                  "Content-Length: 14\r\n\r\n");
    assert_true(kit_read(fd, &a));
    assert_int_equal(a.status, 100);
    answer_free(&a);
    send_text(fd, "{\"prompt\":\"x\"}");
    assert_true(kit_read(fd, &a));
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(fd);
}

static void test_hang_up(void **state)
{
    (void)state;
    kit_start(&K);
    K.engine->delay_us = 1000;
    static const char *const bodies[] = {
        "{\"prompt\":\"x\",\"max_tokens\":2000}",
        "{\"prompt\":\"x\",\"max_tokens\":2000,\"stream\":true}",
        "{\"prompt\":[\"x\",\"y\",\"z\"],\"max_tokens\":2000,\"n\":2,\"stream\":true}",
    };
    int aborted = 0;
    for (size_t i = 0; i < HY_COUNTOF(bodies); i++) {
        for (int reset = 0; reset < 2; reset++) {
            char *t = post_text("/v1/completions", bodies[i]);
            int want = i == 2 ? 3 : 1;
            int fd = kit_connect(&K);
            send_text(fd, t);
            kit_until(fake_running(K.engine) == want);
            usleep(5000);
            struct linger l = {1, 0};
            if (reset)
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
            int steps = K.engine->n_steps;
            close(fd);
            kit_until(fake_running(K.engine) == 0);
            aborted += want;
            assert_int_equal(K.engine->n_aborted, aborted);
            /* a step is 1 ms here; the machine may be busy, but 2000 tokens would be 2000 steps */
            assert_true(K.engine->n_steps - steps < 500);
            free(t);
        }
    }
    kit_until(hy_http_active(K.http) == 0);
    still_serving();
}

/* Gone before the prompt is tokenised: nothing is left running. */
static void test_hang_up_at_once(void **state)
{
    (void)state;
    kit_start(&K);
    char *t = post_text("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":2000}");
    for (int i = 0; i < 50; i++) {
        int fd = kit_connect(&K);
        kit_send(fd, t, strlen(t) - (i % 2 != 0 ? 5 : 0));
        close(fd);
    }
    still_serving();
    kit_until(fake_running(K.engine) == 0 && hy_http_active(K.http) == 0);
    free(t);
}

static void test_slow_reader(void **state)
{
    (void)state;
    K.o.max_slow_reader_bytes = 100000;
    K.o.context = 1000000;
    kit_start(&K);
    K.engine->delay_us = 1;
    char *t =
        post_text("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":900000,\"stream\":true}");
    int fd = kit_connect(&K);
    int small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    send_text(fd, t);
    kit_until(K.engine->n_aborted == 1);
    kit_until(fake_running(K.engine) == 0);
    close(fd);
    free(t);
    still_serving();
}

static void test_bodies(void **state)
{
    (void)state;
    K.o.max_body_bytes = 100000;
    kit_start(&K);
    /* above the limit: 413 with a proper body */
    hy_buf b;
    hy_buf_init(&b);
    hy_buf_puts(&b, "{\"prompt\":\"");
    while (b.len < 150000)
        hy_buf_puts(&b, "hello ");
    hy_buf_puts(&b, "\"}");
    answer a = kit_post(&K, "/v1/completions", hy_buf_str(&b));
    assert_int_equal(a.status, 413);
    assert_non_null(strstr(a.body, "\"error\""));
    assert_non_null(strstr(a.body, "([http] max_body)")); /* the key's name */
    answer_free(&a);
    /* far above */
    while (b.len < 5000000)
        hy_buf_puts(&b, "hello hello hello hello hello ");
    a = kit_post(&K, "/v1/completions", hy_buf_str(&b));
    assert_int_equal(a.status, 413);
    assert_non_null(strstr(a.body, "\"type\":\"RequestTooLargeError\""));
    answer_free(&a);
    /* the same without a length in advance */
    int fd = kit_connect(&K);
    send_text(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "4C4B40\r\n");
    kit_send(fd, b.data, b.len < 5000000 ? b.len : 5000000);
    send_text(fd, "\r\n0\r\n\r\n");
    if (kit_read(fd, &a)) {
        assert_int_equal(a.status, 413);
        assert_non_null(strstr(a.body, "RequestTooLargeError"));
        answer_free(&a);
    }
    close(fd);
    hy_buf_fini(&b);
    still_serving();
}

/* Reads an answer, if one comes: it must be an OpenAI error of that status (0: any). */
static void openai_error(int fd, int status)
{
    answer a;
    if (!kit_read(fd, &a))
        return;
    if (status != 0)
        assert_int_equal(a.status, status);
    assert_true(a.status >= 400);
    assert_non_null(strstr(a.head, "Content-Type: application/json"));
    assert_memory_equal(a.body, "{\"error\":{\"message\":\"", 21);
    answer_free(&a);
}

static void test_broken_http(void **state)
{
    (void)state;
    kit_start(&K);
    static const char *const bad[] = {
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "BREW /coffee HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /health HTTP/1.1\r\nno colon here\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
        "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        "POST /v1/completions HTTP/1.1\r\nExpect: tea\r\nContent-Length: 3\r\n\r\nabc",
        "GET /\xff\xfe%zz%00?\x01 HTTP/1.1\r\n\r\n",
        "GET http://[::1 HTTP/1.1\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    };
    for (size_t i = 0; i < HY_COUNTOF(bad); i++) {
        int fd = kit_connect(&K);
        send_text(fd, bad[i]);
        shutdown(fd, SHUT_WR);
        openai_error(fd, 0);
        if (!closes(fd, 3000))
            printf("case %zu stays open\n", i);
        close(fd);
        still_serving();
    }
    /* a header without end */
    int fd = kit_connect(&K);
    send_text(fd, "GET /health HTTP/1.1\r\n");
    for (int i = 0; i < 3000; i++)
        send_text(fd,
                  "X-Filler: 0123456789012345678901234567890123456789012345678901234567890\r\n");
    assert_true(closes(fd, 3000));
    close(fd);
    still_serving();
    /* what evhttp refuses by itself must come with a body of ours */
    static const struct {
        const char *text;
        int status;
    } own[] = {
        {"BREW /coffee HTTP/1.1\r\nHost: x\r\n\r\n", 501},
        {"POST /v1/completions HTTP/1.1\r\nExpect: tea\r\nContent-Length: 3\r\n\r\n", 417},
        {"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400},
    };
    for (size_t i = 0; i < HY_COUNTOF(own); i++) {
        answer a;
        fd = kit_connect(&K);
        send_text(fd, own[i].text);
        assert_true(kit_read(fd, &a));
        if (a.status != own[i].status || strstr(a.body, "{\"error\":{") == NULL)
            print_message("%s: %d %s\n", own[i].text, a.status, a.body);
        assert_int_equal(a.status, own[i].status);
        assert_non_null(strstr(a.head, "X-Request-Id: "));
        assert_memory_equal(a.body, "{\"error\":{\"message\":\"", 21);
        assert_true(closes(fd, 3000));
        answer_free(&a);
        close(fd);
    }
}

/* The sending side closed behind the request. Pages are answered; generation counts it as hanging
 * up, and says so. */
static void test_half_close(void **state)
{
    (void)state;
    kit_start(&K);
    K.engine->hold = true;
    static const char *const pages[] = {"/health", "/v1/models", "/metrics", "/nowhere"};
    for (int i = 0; i < 200; i++) {
        hy_buf b;
        answer a;
        hy_buf_init(&b);
        hy_buf_printf(&b, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", pages[i % 4]);
        int fd = kit_connect(&K);
        kit_send(fd, b.data, b.len);
        shutdown(fd, SHUT_WR);
        assert_true(kit_read(fd, &a));
        assert_int_equal(a.status, i % 4 == 3 ? 404 : 200);
        answer_free(&a);
        close(fd);
        hy_buf_fini(&b);
    }
    static const char *const bodies[] = {
        "{\"prompt\":\"x\",\"max_tokens\":2000}",
        "{\"prompt\":\"x\",\"max_tokens\":2000,\"stream\":true}",
    };
    for (size_t i = 0; i < 2 * HY_COUNTOF(bodies); i++) {
        answer a;
        char *t = post_text("/v1/completions", bodies[i / 2]);
        const int before = K.engine->n_submitted;
        K.engine->hold = true;
        int fd = kit_connect(&K);
        send_text(fd, t);
        if (i % 2 == 0)
            kit_until(K.engine->n_submitted > before);
        shutdown(fd, SHUT_WR);
        assert_true(kit_read(fd, &a));
        assert_int_equal(a.status, 400);
        assert_non_null(strstr(a.body, "hanging up"));
        assert_true(closes(fd, 3000));
        answer_free(&a);
        close(fd);
        K.engine->hold = false;
        kit_until(fake_running(K.engine) == 0 && hy_http_active(K.http) == 0);
        free(t);
    }
    still_serving();
}

static void test_time_limits(void **state)
{
    (void)state;
    K.o.idle_timeout_ns = HY_SEC / 10;
    K.o.read_timeout_ns = HY_SEC / 10;
    kit_start(&K);
    int idle = kit_connect(&K), half = kit_connect(&K), slow = kit_connect(&K);
    send_text(half, "POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
    send_text(slow, "GET /health HT");
    int bytes = 0;
    do /* a byte now and then does not buy time */
        send(slow, "T", 1, MSG_NOSIGNAL);
    while (!closes(slow, 20) && ++bytes < 1500);
    assert_true(bytes < 1500);
    assert_true(closes(idle, 30000));
    assert_true(closes(half, 30000));
    close(idle);
    close(half);
    close(slow);
    still_serving();
}

/* A stream may be longer than every time limit of a quiet connection. */
static void test_long_stream_outlives_limits(void **state)
{
    (void)state;
    K.o.idle_timeout_ns = HY_SEC / 20;
    K.o.read_timeout_ns = HY_SEC / 20;
    kit_start(&K);
    K.engine->delay_us = 50000;
    answer a = /* over two of the sweeps that look for late connections, one a second */
        kit_post(&K, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":44,\"stream\":true}");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "data: [DONE]"));
    answer_free(&a);
}

static void test_connection_limit(void **state)
{
    (void)state;
    K.o.max_connections = 8;
    K.o.idle_timeout_ns = HY_SEC / 10;
    kit_start(&K);
    int fd[20];
    for (int i = 0; i < 20; i++)
        fd[i] = kit_connect(&K);
    usleep(100000);
    for (int i = 0; i < 20; i++)
        close(fd[i]);
    still_serving(); /* waits in the queue until the dead ones are forgotten */
}

/* Who leaves the server waiting, before a request or in the middle of one, has no place that others
 * need: no limit of time has to end it first. */
static void test_waiting_make_room(void **state)
{
    (void)state;
    enum { N = 30 };
    K.o.max_connections = 4;
    K.o.idle_timeout_ns = K.o.read_timeout_ns = 3600 * HY_SEC;
    kit_start(&K);
    int fd[N];
    for (int i = 0; i < N; i++) {
        fd[i] = kit_connect(&K);
        if (i % 2 != 0)
            send_text(fd[i], "POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{");
    }
    for (int i = 0; i < 4; i++)
        still_serving();
    for (int i = 0; i < N; i++)
        close(fd[i]);
}

/* Requests in work keep their places; pages are answered beside them, what would be work is
 * refused. */
static void test_all_in_work(void **state)
{
    (void)state;
    enum { N = 4, IDLE = 30 };
    K.o.max_connections = N;
    K.o.idle_timeout_ns = 3600 * HY_SEC;
    kit_start(&K);
    K.engine->hold = true;
    char *t = post_text("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":3}");
    int fd[N], idle[IDLE];
    for (int i = 0; i < N; i++) {
        fd[i] = kit_connect(&K);
        send_text(fd[i], t);
    }
    kit_until(fake_running(K.engine) == N);
    answer a;
    for (int i = 0; i < IDLE; i++) {
        a = kit_call(&K, "GET", "/health", NULL);
        assert_int_equal(a.status, 200);
        answer_free(&a);
        a = kit_post(&K, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":1}");
        assert_int_equal(a.status, 503);
        assert_non_null(strstr(a.head, "Retry-After"));
        answer_free(&a);
        idle[i] = kit_connect(&K);
    }
    K.engine->hold = false;
    for (int i = 0; i < N; i++) {
        assert_true(kit_read(fd[i], &a));
        assert_int_equal(a.status, 200);
        answer_free(&a);
        close(fd[i]);
    }
    for (int i = 0; i < IDLE; i++)
        close(idle[i]);
    free(t);
    still_serving();
}

static void test_many_clients(void **state)
{
    (void)state;
    enum { N = 40 };
    int fd[N];
    kit_start(&K);
    char *t = post_text("/v1/chat/completions",
                        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":50,"
                        "\"stream\":true}");
    for (int i = 0; i < N; i++) {
        fd[i] = kit_connect(&K);
        send_text(fd[i], t);
    }
    for (int i = 0; i < N; i++) {
        answer a;
        if (i % 4 == 3) {
            close(fd[i]);
            continue;
        }
        assert_true(kit_read(fd[i], &a));
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body, "data: [DONE]"));
        answer_free(&a);
        close(fd[i]);
    }
    free(t);
    kit_until(hy_http_active(K.http) == 0);
}

static void test_busy(void **state)
{
    (void)state;
    K.o.max_requests = 4;
    kit_start(&K);
    K.engine->hold = true;
    char *t = post_text("/v1/completions", "{\"prompt\":[\"a\",\"b\",\"c\"],\"max_tokens\":1}");
    int one = kit_connect(&K);
    send_text(one, t);
    kit_until(fake_running(K.engine) == 3);
    answer a = kit_post(&K, "/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"max_tokens\":1}");
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.head, "Retry-After"));
    answer_free(&a);
    K.engine->hold = false;
    assert_true(kit_read(one, &a));
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(one);
    free(t);
}

static void test_drain(void **state)
{
    (void)state;
    kit_start(&K);
    K.engine->delay_us = 2000;
    char *t = post_text("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":100,\"stream\":true}");
    int run = kit_connect(&K), idle = kit_connect(&K);
    send_text(run, t);
    send_text(idle, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    answer a;
    assert_true(kit_read(idle, &a));
    assert_int_equal(a.status, 200);
    answer_free(&a);
    kit_until(fake_running(K.engine) == 1);
    hy_http_stop_accepting(K.http);
    send_text(idle, t); /* kept alive, but no new work */
    assert_true(kit_read(idle, &a));
    assert_int_equal(a.status, 503);
    answer_free(&a);
    a = kit_call(&K, "GET", "/health", NULL); /* on a new connection: a load balancer's check */
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.body, "shutting down"));
    answer_free(&a);
    a = kit_post(&K, "/v1/completions", "{\"prompt\":\"x\"}");
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.head, "Retry-After"));
    answer_free(&a);
    assert_true(kit_read(run, &a));
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "data: [DONE]"));
    answer_free(&a);
    kit_until(hy_http_active(K.http) == 0);
    close(run);
    close(idle);
    free(t);
}

/* Stopped under load: everything is aborted, every client learns it, and nothing leaks (the
 * sanitiser build looks). The last one's answer has not begun. */
static void test_stop_under_load(void **state)
{
    (void)state;
    kit_start(&K);
    K.engine->delay_us = 1000;
    char *t =
        post_text("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":2000,\"stream\":true}");
    char *whole = post_text("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":2000}");
    int fd[8];
    answer a;
    for (int i = 0; i < 8; i++) {
        char first[8];
        fd[i] = kit_connect(&K);
        send_text(fd[i], i < 7 ? t : whole);
        if (i < 7)
            assert_true(recv(fd[i], first, sizeof(first), MSG_PEEK) > 0); /* its stream has begun */
    }
    kit_until(fake_running(K.engine) == 8);
    hy_http_destroy(K.http);
    K.http = NULL;
    assert_int_equal(K.engine->n_aborted, 8);
    for (int i = 0; i < 8; i++) {
        static const char end[] = "\n\ndata: [DONE]\n\n";
        assert_true(kit_read(fd[i], &a));
        assert_int_equal(a.status, i < 7 ? 200 : 503);
        assert_non_null(strstr(a.body, "stopped before the answer was complete"));
        if (i < 7)
            assert_string_equal(a.body + a.len - strlen(end), end);
        answer_free(&a);
        close(fd[i]);
    }
    free(t);
    free(whole);
}

/* A megabyte of prompt is refused or tokenised while others go on; invalid bytes are refused. */
static void test_large_prompt_blocks_nobody(void **state)
{
    (void)state;
    kit_start(&K);
    hy_buf b;
    hy_buf_init(&b);
    hy_buf_puts(&b, "{\"prompt\":\"");
    while (b.len < 3000000)
        hy_buf_puts(&b, "The harbour lay quiet under the moon. ");
    hy_buf_puts(&b, "\"}");
    char *t = post_text("/v1/completions", hy_buf_str(&b));
    int fd = kit_connect(&K);
    send_text(fd, t);
    answer a = kit_call(&K, "GET", "/health", NULL);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    assert_true(kit_read(fd, &a));
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(a.body, "maximum context length"));
    answer_free(&a);
    close(fd);
    free(t);
    hy_buf_fini(&b);
}

#define T(f) cmocka_unit_test_setup_teardown(f, up, down)

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        T(test_split),
        T(test_keep_alive_and_pipelining),
        T(test_connection_a_request),
        T(test_sent_ahead),
        T(test_http_1_0),
        T(test_chunked_body_and_expect),
        T(test_hang_up),
        T(test_hang_up_at_once),
        T(test_slow_reader),
        T(test_bodies),
        T(test_broken_http),
        T(test_half_close),
        T(test_time_limits),
        T(test_long_stream_outlives_limits),
        T(test_connection_limit),
        T(test_waiting_make_room),
        T(test_all_in_work),
        T(test_many_clients),
        T(test_busy),
        T(test_drain),
        T(test_stop_under_load),
        T(test_large_prompt_blocks_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
