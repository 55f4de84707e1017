/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the HTTP server: a scripted engine in place of the real one, a server on a free
 * port, and a small client over raw sockets.
 *
 * The fake engine gives the tokens of `script` one after the other (then end-of-text), a few
 * microseconds to milliseconds apart, on a thread of its own as the sched stage would.
 *
 * Thread: the test's; the engine has its own.  Owner: setup and teardown.
 */
#ifndef HY_TESTS_HTTP_KIT_H
#define HY_TESTS_HTTP_KIT_H

#include "core/http/http.h"
#include "tests/unit/cm.h"

#include <pthread.h>

enum { FAKE_MAX = 256 };

typedef struct fake_req {
    hy_req *r;
    int32_t at[16]; /* tokens given, per choice */
    bool done[16];
    bool stop[16]; /* finish_choice */
    bool aborted;
    bool prompt_done;
} fake_req;

struct hy_engine {
    pthread_t thread;
    pthread_mutex_t lock;
    fake_req reqs[FAKE_MAX];
    int n_running;
    int32_t script[4096];
    int32_t n_script;
    bool script_end; /* end-of-text follows the script; else it starts again */
    int32_t end_id;
    _Atomic int delay_us;     /* between steps */
    _Atomic hy_status refuse; /* submit answers this */
    _Atomic int fail_after;   /* that many tokens, then HY_FINISH_ERROR; -1: never */
    _Atomic bool hold;        /* no steps while set */
    _Atomic int submit_us;    /* submit takes that long before it has the request, and after */
    /* what the tests look at */
    _Atomic int n_asked, n_submitted, n_aborted, n_finished, n_steps;
    hy_sampling last_sampling;
    int32_t last_max_tokens, last_n_prompt, last_prompt[64], last_prompt_logprobs;
    char last_handover[256];
    bool quit;
};

struct hy_engine *fake_create(void);
void fake_destroy(struct hy_engine *e);
/* The text as tokens of t. */
void fake_script(struct hy_engine *e, const hy_tok *t, const char *text, bool end);
int fake_running(struct hy_engine *e);

typedef struct kit {
    struct hy_engine *engine;
    hy_tok *tok;
    hy_jinja *chat;
    hy_metrics *metrics;
    hy_http *http;
    hy_http_opts o;
    int port;
} kit;

/* Options may be changed between init and start. Skips the test when the tokeniser is not there. */
void kit_init(kit *k);
void kit_start(kit *k);
void kit_stop(kit *k);

/* ---- client ---- */

typedef struct answer {
    int status;
    char *head; /* whole header text */
    char *body; /* decoded if chunked */
    size_t len;
} answer;

int kit_connect(const kit *k);
void kit_send(int fd, const void *p, size_t n);
/* One answer from the socket; false when it ended without one. */
bool kit_read(int fd, answer *out);
void answer_free(answer *a);
/* Sends a request and leaves the answer to the caller, who closes the socket. */
int kit_ask(const kit *k, const char *method, const char *path, const char *body);
answer kit_call(const kit *k, const char *method, const char *path, const char *body);
answer kit_post(const kit *k, const char *path, const char *body);
/* Waits up to a minute and more: a busy machine with sanitizers has taken over 5 s. */
#define kit_until(cond)                                                                            \
    do {                                                                                           \
        int tries_ = 0;                                                                            \
        while (!(cond) && tries_++ < 30000)                                                        \
            usleep(2000);                                                                          \
        assert_true(cond);                                                                         \
    } while (0)

#endif
