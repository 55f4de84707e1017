/* SPDX-License-Identifier: Apache-2.0
 *
 * Scripted engine, server and raw client: see http_kit.h.
 *
 * Thread: see http_kit.h.  Owner: see http_kit.h.
 */
#include "tests/unit/http_kit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- engine ---- */

/* As the real engine: the token that ended a choice comes with its end (stop >= 0). */
static void finish_with(struct hy_engine *e, fake_req *f, int32_t c, hy_finish why, hy_status error,
                        int32_t stop)
{
    float lp = -0.5F;
    hy_token_out t = {stop, 1, lp, f->r->sampling.logprobs > 0, &stop, &lp};
    f->at[c] += stop >= 0;
    f->done[c] = true;
    bool last = true;
    for (int32_t i = 0; i < f->r->n; i++)
        last &= f->done[i];
    hy_req_event ev = {.kind = HY_REQ_FINISHED,
                       .id = f->r->id,
                       .choice = c,
                       .finish = why,
                       .tok = stop >= 0 ? &t : NULL,
                       .n_tok = stop >= 0,
                       .stop_id = stop,
                       .handover = f->r->handover != NULL ? "{\"remote_port\":5600}" : NULL,
                       .error = error,
                       .error_text = error != HY_OK ? "the fake engine was told to fail" : NULL,
                       .n_prompt = f->r->n_prompt,
                       .n_cached = f->r->n_prompt / 2,
                       .n_output = f->at[c],
                       .last = last};
    f->r->on_event(f->r->arg, &ev);
    if (last) {
        hy_req_destroy(f->r);
        f->r = NULL;
        e->n_running--;
        e->n_finished++;
    }
}

static void finish(struct hy_engine *e, fake_req *f, int32_t c, hy_finish why, hy_status error)
{
    finish_with(e, f, c, why, error, -1);
}

static void prompt_lps(fake_req *f)
{
    enum { N = 64 };
    hy_token_out t[N];
    int32_t ids[N][2];
    float lps[N][2];
    int32_t n = f->r->n_prompt - 1 < N ? f->r->n_prompt - 1 : N;
    int32_t k = f->r->prompt_logprobs > 2 ? 2 : f->r->prompt_logprobs;
    f->prompt_done = true;
    for (int32_t i = 0; i < n; i++) {
        ids[i][0] = f->r->prompt[i + 1];
        ids[i][1] = 7;
        lps[i][0] = -0.25F;
        lps[i][1] = -2.5F;
        t[i] = (hy_token_out){f->r->prompt[i + 1], 1, -0.25F, k, ids[i], lps[i]};
    }
    hy_req_event ev = {
        .kind = HY_REQ_PROMPT, .id = f->r->id, .first = 1, .tok = t, .n_tok = n, .stop_id = -1};
    if (n > 0)
        f->r->on_event(f->r->arg, &ev);
}

static void give_token(fake_req *f, int32_t c, int32_t id)
{
    int32_t ids[3] = {id, 5, 6};
    float lps[3] = {-0.1234567891F, -3.5F, -INFINITY};
    int32_t k = f->r->sampling.logprobs;
    hy_token_out t = {id, 1, lps[0], k < 0 ? 0 : k > 3 ? 3 : k, ids, lps};
    hy_req_event ev = {
        .kind = HY_REQ_TOKEN, .id = f->r->id, .choice = c, .tok = &t, .n_tok = 1, .stop_id = -1};
    f->at[c]++;
    f->r->on_event(f->r->arg, &ev);
}

static void step_choice(struct hy_engine *e, fake_req *f, int32_t c)
{
    int32_t at = f->at[c];
    if (f->aborted) {
        finish(e, f, c, HY_FINISH_ABORT, HY_OK);
    } else if (f->stop[c]) {
        finish(e, f, c, HY_FINISH_STOP, HY_OK);
    } else if (e->fail_after >= 0 && at >= e->fail_after) {
        finish(e, f, c, HY_FINISH_ERROR, HY_E_DEVICE);
    } else if (at >= f->r->max_tokens) {
        finish(e, f, c, HY_FINISH_LENGTH, HY_OK);
    } else if (at >= e->n_script && e->script_end && !f->r->ignore_eos) {
        finish_with(e, f, c, HY_FINISH_STOP, HY_OK, e->end_id);
    } else {
        int32_t id = e->script[at % e->n_script];
        for (size_t i = 0; i < f->r->n_stop; i++) {
            if (f->r->stop_ids[i] == id) {
                finish_with(e, f, c, HY_FINISH_STOP, HY_OK, id);
                return;
            }
        }
        give_token(f, c, id);
    }
}

static void step(struct hy_engine *e)
{
    e->n_steps++;
    for (int i = 0; i < FAKE_MAX; i++) {
        fake_req *f = &e->reqs[i];
        if (f->r != NULL && f->r->prompt_logprobs >= 0 && !f->prompt_done)
            prompt_lps(f);
        for (int32_t c = 0; f->r != NULL && c < f->r->n; c++) {
            if (!f->done[c])
                step_choice(e, f, c);
        }
    }
}

static void *engine_main(void *arg)
{
    struct hy_engine *e = arg;
    for (;;) {
        pthread_mutex_lock(&e->lock);
        bool quit = e->quit && e->n_running == 0;
        if (!e->hold || e->quit)
            step(e);
        int us = e->delay_us;
        pthread_mutex_unlock(&e->lock);
        if (quit)
            return NULL;
        usleep((useconds_t)us);
    }
}

struct hy_engine *fake_create(void)
{
    struct hy_engine *e = calloc(1, sizeof(*e));
    assert_non_null(e);
    pthread_mutex_init(&e->lock, NULL);
    e->fail_after = -1;
    e->delay_us = 200;
    e->end_id = 1;
    e->n_script = 1;
    e->script[0] = 40;
    pthread_create(&e->thread, NULL, engine_main, e);
    return e;
}

void fake_destroy(struct hy_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->quit = true;
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

void fake_script(struct hy_engine *e, const hy_tok *t, const char *text, bool end)
{
    hy_tok_ids ids = {0};
    assert_int_equal(hy_tok_encode(t, text, strlen(text), HY_TOK_PARSE_SPECIAL, 0, &ids), HY_OK);
    assert_true(ids.n > 0 && ids.n < HY_COUNTOF(e->script));
    pthread_mutex_lock(&e->lock);
    memcpy(e->script, ids.ids, ids.n * sizeof(*ids.ids));
    e->n_script = (int32_t)ids.n;
    e->script_end = end;
    pthread_mutex_unlock(&e->lock);
    hy_tok_ids_fini(&ids);
}

int fake_running(struct hy_engine *e)
{
    pthread_mutex_lock(&e->lock);
    int n = e->n_running;
    pthread_mutex_unlock(&e->lock);
    return n;
}

hy_status hy_engine_submit(hy_engine *e, hy_req *r)
{
    e->n_asked++;
    usleep((useconds_t)e->submit_us);
    pthread_mutex_lock(&e->lock);
    hy_status st = e->refuse;
    fake_req *f = NULL;
    for (int i = 0; i < FAKE_MAX && f == NULL; i++)
        f = e->reqs[i].r == NULL ? &e->reqs[i] : NULL;
    if (st == HY_OK && (f == NULL || r->n > 16))
        st = HY_E_BUSY;
    if (st == HY_OK) {
        *f = (fake_req){.r = r};
        e->n_running++;
        e->n_submitted++;
        e->last_sampling = r->sampling;
        e->last_max_tokens = r->max_tokens;
        e->last_n_prompt = r->n_prompt;
        e->last_prompt_logprobs = r->prompt_logprobs;
        for (int32_t i = 0; i < r->n_prompt && i < 64; i++)
            e->last_prompt[i] = r->prompt[i];
        snprintf(e->last_handover, sizeof(e->last_handover), "%s",
                 r->handover != NULL ? r->handover : "");
    }
    pthread_mutex_unlock(&e->lock);
    usleep((useconds_t)e->submit_us);
    return st == HY_OK ? st : hy_fail(st, "the fake engine refuses");
}

static fake_req *find(hy_engine *e, uint64_t id)
{
    for (int i = 0; i < FAKE_MAX; i++) {
        if (e->reqs[i].r != NULL && e->reqs[i].r->id == id)
            return &e->reqs[i];
    }
    return NULL;
}

void hy_engine_abort(hy_engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    fake_req *f = find(e, id);
    if (f != NULL && !f->aborted) {
        f->aborted = true;
        e->n_aborted++;
        e->hold = false;
    }
    pthread_mutex_unlock(&e->lock);
}

void hy_engine_finish_choice(hy_engine *e, uint64_t id, int32_t choice)
{
    pthread_mutex_lock(&e->lock);
    fake_req *f = find(e, id);
    if (f != NULL)
        f->stop[choice] = true;
    pthread_mutex_unlock(&e->lock);
}

/* ---- server ---- */

static const char *const names[] = {"tiny", "tiny-alias"};

void kit_init(kit *k)
{
    char path[512];
    memset(k, 0, sizeof(*k));
    const char *src = getenv("HY_SOURCE_DIR");
    snprintf(path, sizeof(path), "%s/tests/golden/tokenizer_json/qwen", src != NULL ? src : ".");
    if (hy_tok_from_folder(path, &k->tok) != HY_OK) {
        printf("no tokeniser: %s\n", hy_fail_text());
        skip();
    }
    static const char tmpl[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{% if tools %}[{% for t in tools %}{{ t.function.name }} {% endfor %}]{% endif %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    assert_int_equal(hy_jinja_compile(tmpl, sizeof(tmpl) - 1, &k->chat), HY_OK);
    k->engine = fake_create();
    k->engine->end_id = hy_tok_lookup(k->tok, "<|im_end|>");
    assert_true(hy_tok_is_eog(k->tok, k->engine->end_id));
    k->metrics = hy_metrics_create();
    hy_http_opts_init(&k->o);
    k->o.engine = k->engine;
    k->o.tok = k->tok;
    k->o.chat = k->chat;
    k->o.models = names;
    k->o.n_models = 2;
    k->o.context = 2048;
    k->o.metrics = k->metrics;
    k->o.port = 0;
}

void kit_start(kit *k)
{
    hy_status st = hy_http_create(&k->o, &k->http);
    if (st != HY_OK)
        printf("create: %s\n", hy_fail_text());
    assert_int_equal(st, HY_OK);
    assert_int_equal(hy_http_start(k->http), HY_OK);
    k->port = hy_http_port(k->http);
}

void kit_stop(kit *k)
{
    hy_http_destroy(k->http);
    if (k->engine != NULL)
        fake_destroy(k->engine);
    hy_metrics_destroy(k->metrics);
    hy_jinja_destroy(k->chat);
    hy_tok_destroy(k->tok);
}

/* ---- client ---- */

int kit_connect(const kit *k)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)k->port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

void kit_send(int fd, const void *p, size_t n)
{
    const char *s = p;
    while (n > 0) {
        ssize_t k = send(fd, s, n, MSG_NOSIGNAL);
        if (k <= 0)
            return; /* the server has hung up: the answer tells */
        s += k;
        n -= (size_t)k;
    }
}

/* More bytes into b; false at the end or after 10 s. */
static bool more(int fd, hy_buf *b)
{
    char t[65536];
    struct pollfd p = {fd, POLLIN, 0};
    if (poll(&p, 1, 10000) != 1)
        return false;
    /* one byte at a time in the head would be slow, so answers are read from a private buffer: a
     * pipelined second answer is left in place by peeking */
    ssize_t n = recv(fd, t, sizeof(t), MSG_PEEK);
    if (n <= 0)
        return false;
    hy_buf_add(b, t, (size_t)n);
    return true;
}

static void eat(int fd, size_t n)
{
    char t[65536];
    while (n > 0) {
        ssize_t k = recv(fd, t, n < sizeof(t) ? n : sizeof(t), 0);
        if (k <= 0)
            return;
        n -= (size_t)k;
    }
}

/* Reads exactly n bytes, or up to and with the line end when n is 0. */
static bool take(int fd, size_t n, hy_buf *out)
{
    size_t start = out->len;
    for (;;) {
        hy_buf b;
        hy_buf_init(&b);
        if (!more(fd, &b)) {
            hy_buf_fini(&b);
            return false;
        }
        size_t use = b.len;
        bool done = false;
        if (n == 0) {
            char *nl = memchr(b.data, '\n', b.len);
            if (nl != NULL) {
                use = (size_t)(nl - b.data) + 1;
                done = true;
            }
        } else if (out->len - start + use >= n) {
            use = n - (out->len - start);
            done = true;
        }
        hy_buf_add(out, b.data, use);
        hy_buf_fini(&b);
        eat(fd, use);
        if (done)
            return true;
    }
}

static bool read_chunks(int fd, hy_buf *body)
{
    for (;;) {
        hy_buf line;
        hy_buf_init(&line);
        bool ok = take(fd, 0, &line);
        size_t n = ok ? strtoul(hy_buf_str(&line), NULL, 16) : 0;
        hy_buf_fini(&line);
        if (!ok)
            return false;
        hy_buf nl;
        hy_buf_init(&nl);
        ok = (n == 0 || take(fd, n, body)) && take(fd, 0, &nl);
        hy_buf_fini(&nl);
        if (!ok || n == 0)
            return ok;
    }
}

bool kit_read(int fd, answer *a)
{
    hy_buf head, body;
    hy_buf_init(&head);
    hy_buf_init(&body);
    memset(a, 0, sizeof(*a));
    do {
        size_t before = head.len;
        if (!take(fd, 0, &head)) {
            hy_buf_fini(&head);
            return false;
        }
        if (head.len - before <= 2)
            break;
    } while (head.len < 1 << 20);
    a->head = hy_buf_take(&head);
    a->status = atoi(a->head + 9);
    const char *cl = strcasestr(a->head, "\nContent-Length:");
    bool ok = true;
    if (strcasestr(a->head, "\nTransfer-Encoding: chunked") != NULL)
        ok = read_chunks(fd, &body);
    else if (cl != NULL && strtoul(cl + 16, NULL, 10) != 0)
        ok = take(fd, strtoul(cl + 16, NULL, 10), &body);
    a->len = body.len;
    a->body = hy_buf_take(&body);
    return ok;
}

void answer_free(answer *a)
{
    free(a->head);
    free(a->body);
    memset(a, 0, sizeof(*a));
}

int kit_ask(const kit *k, const char *method, const char *path, const char *body)
{
    hy_buf b;
    int fd = kit_connect(k);
    hy_buf_init(&b);
    hy_buf_printf(&b, "%s %s HTTP/1.1\r\nHost: x\r\n", method, path);
    if (body != NULL)
        hy_buf_printf(&b, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                      strlen(body));
    hy_buf_puts(&b, "\r\n");
    if (body != NULL)
        hy_buf_puts(&b, body);
    kit_send(fd, b.data, b.len);
    hy_buf_fini(&b);
    return fd;
}

answer kit_call(const kit *k, const char *method, const char *path, const char *body)
{
    answer a = {0};
    int fd = kit_ask(k, method, path, body);
    kit_read(fd, &a);
    close(fd);
    return a;
}

answer kit_post(const kit *k, const char *path, const char *body)
{
    return kit_call(k, "POST", path, body);
}
