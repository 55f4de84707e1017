/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard run: one answer, or a chat, on this machine. The same node as `serve`, without http.
 *
 * Thread: main; events come on the sched stage's thread into a small queue.
 * Owner: main.
 */
#include "core/base/log.h"
#include "core/node/node.h"
#include "core/text/chatreq.h"
#include "tools/cli/cli.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

static void on_sigint(int sig)
{
    (void)sig;
    interrupted = 1;
}

static void catch_sigint(int flags)
{
    struct sigaction sa = {.sa_handler = on_sigint, .sa_flags = flags};
    sigaction(SIGINT, &sa, NULL);
}

/* What the sched stage reports, for the main thread. */
typedef struct inbox {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int32_t *ids;
    size_t n, cap;
    bool done, oom;
    hy_finish finish;
    char error[512];
    int32_t n_prompt, n_cached, n_output;
} inbox;

static void on_event(void *arg, const hy_req_event *ev)
{
    inbox *in = arg;
    pthread_mutex_lock(&in->lock);
    if (ev->kind == HY_REQ_TOKEN)
        for (int32_t i = 0; i < ev->n_tok; i++) {
            if (in->n == in->cap) {
                size_t cap = in->cap ? in->cap * 2 : 256;
                int32_t *p = realloc(in->ids, cap * sizeof(*p));
                if (p == NULL) {
                    in->oom = true;
                    break;
                }
                in->ids = p;
                in->cap = cap;
            }
            in->ids[in->n++] = ev->tok[i].id;
        }
    if (ev->kind == HY_REQ_FINISHED) {
        in->finish = ev->finish;
        in->n_prompt = ev->n_prompt;
        in->n_cached = ev->n_cached;
        in->n_output = ev->n_output;
        if (ev->error_text != NULL)
            snprintf(in->error, sizeof(in->error), "%s", ev->error_text);
    }
    in->done |= ev->last;
    pthread_cond_signal(&in->cond);
    pthread_mutex_unlock(&in->lock);
}

typedef struct session {
    hy_node *node;
    const hy_tok *tok;
    hy_sampling sampling;
    int32_t max_tokens;
    bool raw, stats;
    json_t *messages;
} session;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Wait for news behind *seen; true while more may come. */
static bool wait_news(inbox *in, size_t seen)
{
    struct timespec t;
    pthread_mutex_lock(&in->lock);
    if (in->n == seen && !in->done) {
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += 100000000;
        if (t.tv_nsec >= 1000000000) {
            t.tv_sec++;
            t.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&in->cond, &in->lock, &t);
    }
    bool more = !in->done || in->n > seen;
    pthread_mutex_unlock(&in->lock);
    return more;
}

static hy_req *make_request(const session *s, const hy_tok_ids *prompt, inbox *in)
{
    hy_req *r = hy_req_create();
    if (r == NULL)
        return NULL;
    r->prompt = malloc(sizeof(int32_t) * (prompt->n > 0 ? prompt->n : 1));
    if (r->prompt == NULL) {
        hy_req_destroy(r);
        return NULL;
    }
    if (prompt->n > 0) /* an empty prompt is the engine's to refuse */
        memcpy(r->prompt, prompt->ids, sizeof(int32_t) * prompt->n);
    r->n_prompt = (int32_t)prompt->n;
    r->max_tokens = s->max_tokens;
    r->sampling = s->sampling;
    r->on_event = on_event;
    r->arg = in;
    return r;
}

/* Stream one answer to stdout; its text is appended to `answer`. */
static hy_status answer_ids(session *s, const hy_tok_ids *prompt, hy_buf *answer)
{
    inbox in = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    hy_req *r = make_request(s, prompt, &in);
    if (r == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    uint64_t id = r->id;
    double t0 = seconds(), t_first = 0;
    hy_status st = hy_engine_submit(hy_node_engine(s->node), r);
    if (st < 0) {
        hy_req_destroy(r);
        return st;
    }
    hy_detok d;
    hy_detok_init(&d, s->tok, true);
    size_t seen = 0, printed = 0;
    bool aborted = false;
    int unwritten = 0;
    while (wait_news(&in, seen)) {
        if ((interrupted || unwritten != 0) && !aborted) {
            hy_engine_abort(hy_node_engine(s->node), id);
            aborted = true;
        }
        pthread_mutex_lock(&in.lock);
        if (in.n > seen && t_first == 0)
            t_first = seconds();
        while (seen < in.n)
            hy_detok_push(&d, in.ids[seen++], answer);
        pthread_mutex_unlock(&in.lock);
        if (answer->len > printed)
            fwrite(answer->data + printed, 1, answer->len - printed, stdout);
        printed = answer->len;
        if (fflush(stdout) != 0 && unwritten == 0) /* a reader that left, a full disk */
            unwritten = errno;
    }
    hy_detok_flush(&d, answer);
    if (answer->len > printed)
        fwrite(answer->data + printed, 1, answer->len - printed, stdout);
    putchar('\n');
    hy_detok_fini(&d);
    free(in.ids);
    if (unwritten != 0)
        return hy_fail(HY_E_IO, "the answer cannot be written: %s", strerror(unwritten));
    if (in.finish == HY_FINISH_ERROR || in.oom)
        return hy_fail(HY_E_INVAL, "%s", in.oom ? "out of memory" : in.error);
    double t1 = seconds();
    if (s->stats && in.n_output > 0) { /* behind the answer, into whatever both go */
        fflush(stdout);
        fprintf(stderr,
                "[%d prompt tokens (%d cached), first token %.2f s, %d tokens, %.1f tokens/s]\n",
                in.n_prompt, in.n_cached, t_first - t0, in.n_output,
                in.n_output > 1 ? (in.n_output - 1) / (t1 - t_first) : 0.0);
    }
    return HY_OK;
}

static void set_token(json_t *vars, const char *name, const hy_tok *t, int32_t id)
{
    const char *s = id >= 0 ? hy_tok_token_text(t, id) : NULL;
    json_object_set_new(vars, name, json_string(s != NULL ? s : ""));
}

/* The conversation as the model's template has it. */
static hy_status render(session *s, hy_buf *out)
{
    json_t *vars = json_object();
    time_t now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    set_token(vars, "bos_token", s->tok, hy_tok_bos(s->tok));
    set_token(vars, "eos_token", s->tok, hy_tok_eos(s->tok));
    hy_chatreq q = {
        .messages = s->messages, .token_vars = vars, .add_generation_prompt = true, .now = &tm};
    hy_chat_text text = {0};
    hy_status st = hy_chatreq_render(hy_node_template(s->node), &q, &text);
    if (st == HY_OK)
        hy_buf_add(out, hy_buf_str(&text.text), text.text.len);
    hy_chat_text_fini(&text);
    json_decref(vars);
    return st;
}

static hy_status add_message(session *s, const char *role, const char *text, size_t len)
{
    json_t *content = json_stringn(text, len);
    if (content == NULL)
        return hy_fail(HY_E_INVAL, "the %s message is not valid UTF-8", role);
    json_array_append_new(s->messages, json_pack("{s:s,s:o}", "role", role, "content", content));
    return HY_OK;
}

/* One turn: question in, answer out. */
static hy_status turn(session *s, const char *text, size_t len)
{
    hy_buf prompt, answer;
    hy_buf_init(&prompt);
    hy_buf_init(&answer);
    hy_tok_ids ids = {0};
    size_t n_before = json_array_size(s->messages);
    int flags = HY_TOK_PARSE_SPECIAL;
    hy_status st = HY_OK;
    if (s->raw || hy_node_template(s->node) == NULL) {
        hy_buf_add(&prompt, text, len);
        flags = HY_TOK_ADD_SPECIAL;
    } else {
        st = add_message(s, "user", text, len);
        if (st == HY_OK)
            st = render(s, &prompt);
    }
    if (st == HY_OK)
        st = hy_tok_encode(s->tok, hy_buf_str(&prompt), prompt.len, flags, 0, &ids);
    if (st == HY_OK)
        st = answer_ids(s, &ids, &answer);
    if (!s->raw && st == HY_OK)
        st = add_message(s, "assistant", hy_buf_str(&answer), answer.len);
    else if (json_array_size(s->messages) > n_before) /* the chat can go on without it */
        json_array_remove(s->messages, n_before);
    hy_tok_ids_fini(&ids);
    hy_buf_fini(&prompt);
    hy_buf_fini(&answer);
    return st;
}

static int chat(session *s)
{
    char *line = NULL;
    size_t cap = 0;
    bool tty = isatty(STDIN_FILENO) == 1;
    if (tty)
        fprintf(
            stderr,
            "Chat with %s. Ctrl-C stops an answer; an empty line, Ctrl-C or Ctrl-D here ends.\n",
            hy_node_model(s->node)->cfg.name);
    for (;;) {
        if (tty)
            fputs("> ", stderr);
        catch_sigint(0); /* Ctrl-C at the prompt ends the chat */
        ssize_t n = getline(&line, &cap, stdin);
        catch_sigint(SA_RESTART);
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        if (n <= 0)
            break;
        interrupted = 0;
        if (turn(s, line, (size_t)n) < 0) {
            hy_cli_fail("run");
            if (!tty) {
                free(line);
                return HY_EXIT_FAIL;
            }
        }
    }
    free(line);
    return HY_EXIT_OK;
}

static hy_status parse_float(const char *name, const char *text, float lo, float hi, float *out)
{
    char *end;
    float v = strtof(text, &end);
    if (end == text || *end != '\0' || !(v >= lo && v <= hi))
        return hy_fail(HY_E_INVAL, "%s: '%s' is not a number from %g to %g", name, text, (double)lo,
                       (double)hi);
    *out = v;
    return HY_OK;
}

static hy_status parse_int(const char *name, const char *text, int64_t lo, int64_t hi, int64_t *out)
{
    char *end;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || v < lo || v > hi)
        return hy_fail(HY_E_INVAL, "%s: '%s' is not a whole number from %lld to %lld", name, text,
                       (long long)lo, (long long)hi);
    *out = v;
    return HY_OK;
}

typedef struct run_args {
    const char *prompt, *system, *temp, *top_p, *top_k, *seed, *max;
    bool raw, stats, verbose;
} run_args;

static hy_status read_args(const run_args *a, session *s)
{
    int64_t v = 0;
    s->sampling = (hy_sampling){.top_p = 1, .repetition_penalty = 1, .logprobs = -1};
    s->raw = a->raw;
    s->stats = a->stats;
    s->max_tokens = -1;
    HY_TRY(parse_float("--temperature", a->temp, 0, 100, &s->sampling.temperature));
    HY_TRY(parse_float("--top-p", a->top_p, 1e-6f, 1, &s->sampling.top_p));
    HY_TRY(parse_int("--top-k", a->top_k, 0, INT32_MAX, &v));
    s->sampling.top_k = (int32_t)v;
    if (a->seed != NULL) {
        HY_TRY(parse_int("--seed", a->seed, INT64_MIN, INT64_MAX, &v));
        s->sampling.seed = (uint64_t)v;
        s->sampling.has_seed = true;
    }
    if (a->max != NULL) {
        HY_TRY(parse_int("--max-tokens", a->max, 1, INT32_MAX, &v));
        s->max_tokens = (int32_t)v;
    }
    return HY_OK;
}

static int run(hy_conf *conf, const char *model, const run_args *a)
{
    session s = {0};
    char *path = NULL;
    hy_node_opts o = {.conf = conf};
    hy_log_set_level(a->verbose ? HY_LOG_INFO : HY_LOG_WARN);
    if (read_args(a, &s) < 0) {
        hy_cli_fail("run");
        return HY_EXIT_USAGE;
    }
    if (hy_cli_set_model(conf, model) < 0 ||
        hy_cli_model_path(conf, hy_conf_str(conf, "model", "path"), &path) < 0)
        return hy_cli_fail("run");
    o.model_path = path;
    signal(SIGPIPE, SIG_IGN);
    if (hy_node_create(&o, &s.node) < 0) {
        free(path);
        return hy_cli_fail("run");
    }
    hy_cli_log_node(s.node);
    catch_sigint(SA_RESTART);
    s.tok = hy_node_tok(s.node);
    s.messages = json_array();
    int rc = HY_EXIT_OK;
    if (a->system != NULL && add_message(&s, "system", a->system, strlen(a->system)) < 0)
        rc = hy_cli_fail("run");
    else if (a->prompt == NULL)
        rc = chat(&s);
    else if (turn(&s, a->prompt, strlen(a->prompt)) < 0)
        rc = hy_cli_fail("run");
    json_decref(s.messages);
    hy_node_destroy(s.node);
    free(path);
    return interrupted && rc == HY_EXIT_OK && a->prompt != NULL ? 130 : rc;
}

int hy_cmd_run(int argc, char **argv)
{
    run_args a = {.temp = "0", .top_p = "1", .top_k = "0"};
    const hy_cli_opt opts[] = {
        {.name = "--prompt",
         .letter = 'p',
         .arg = "TEXT",
         .value = &a.prompt,
         .help = "answer TEXT and end; without: chat on standard input"},
        {.name = "--system",
         .letter = 's',
         .arg = "TEXT",
         .value = &a.system,
         .help = "system message"},
        {.name = "--raw",
         .letter = 'r',
         .flag = &a.raw,
         .help = "continue the text: no chat template"},
        {.name = "--max-tokens",
         .letter = 'n',
         .arg = "N",
         .value = &a.max,
         .help = "longest answer (up to the context)"},
        {.name = "--temperature",
         .arg = "T",
         .value = &a.temp,
         .help = "0 takes the likeliest token (default)"},
        {.name = "--top-p",
         .arg = "P",
         .value = &a.top_p,
         .help = "keep the likeliest tokens of that share (1)"},
        {.name = "--top-k",
         .arg = "K",
         .value = &a.top_k,
         .help = "keep the K likeliest tokens (0: all)"},
        {.name = "--seed",
         .arg = "N",
         .value = &a.seed,
         .help = "the same seed draws the same tokens"},
        HY_CLI_THREADS,
        {.name = "--context",
         .letter = 'c',
         .arg = "N",
         .conf = "engine.context",
         .help = "longest prompt and answer, tokens"},
        {.name = "--stats", .flag = &a.stats, .help = "print counts and rates after each answer"},
        {.name = "--verbose", .letter = 'v', .flag = &a.verbose, .help = "log what is loaded"},
    };
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {.usage = "run MODEL [-p TEXT]",
                  .about =
                      "Answer a prompt, or chat. MODEL is a GGUF file, a Hugging Face folder, a\n"
                      "fetched name or FILE.ini. The text goes through the model's chat template "
                      "if it has one.",
                  .opts = opts,
                  .n_opts = HY_COUNTOF(opts),
                  .conf = conf};
    int rc = hy_cli_parse_n(&cli, argc, argv, 1);
    if (rc < 0)
        rc = run(conf, cli.args[0], &a);
    hy_conf_destroy(conf);
    return rc;
}
