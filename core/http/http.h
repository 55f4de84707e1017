/* SPDX-License-Identifier: Apache-2.0
 *
 * The OpenAI-compatible HTTP server in front of an engine, with vLLM's extra fields and shapes.
 *
 * Three stages of its own runtime: `http` lives in libevent's loop and touches the network, `text`
 * parses requests, renders templates and tokenises, `out` turns tokens into text, JSON and SSE.
 * A large prompt so delays neither the network nor the streams of others.
 *
 * Thread: create, start and destroy from one controlling thread; the rest from any.
 * Owner: the creator destroys, before the engine, tokeniser and template it was given.
 */
#ifndef HY_HTTP_HTTP_H
#define HY_HTTP_HTTP_H

#include "core/base/metric.h"
#include "core/base/trace.h"
#include "core/req/req.h"
#include "core/sched/engine.h"
#include "core/text/chat.h"
#include "core/text/tokenizer.h"

typedef struct hy_http hy_http;

/* Connections that a server takes beyond max_connections, for pages and refusals; and how long one
 * must have left the server waiting before it is hung up to make room. */
enum { HY_HTTP_SPARE = 16 };
#define HY_HTTP_PATIENCE_NS HY_SEC

/* hy_http_opts_init fills in the defaults named here. Strings and objects are borrowed until
 * hy_http_destroy. */
typedef struct hy_http_opts {
    hy_engine *engine;
    const hy_tok *tok;
    const hy_jinja *chat;   /* NULL: /v1/chat/completions answers 400 */
    const char *chat_error; /* why there is none, for that answer; NULL: "has no chat template" */
    const char *const *models; /* names clients may use; the first one stands in answers */
    size_t n_models;
    const char *model_root; /* "root" in /v1/models; NULL: the name */
    int32_t context;        /* tokens of prompt and output together */
    bool user_marks_text;   /* [engine] user_marks = text: marks in users' text are plain text */
    hy_sampling defaults;   /* the model's own (generation_config.json), else temperature 1 ... */
    hy_metrics *metrics;    /* NULL: /metrics is empty */
    hy_trace *trace;        /* GET /trace; NULL: it is empty */
    void (*refresh_metrics)(void *arg); /* called before the page is written; may be NULL */
    void *refresh_arg;

    /* POST /v1/kv/release: gives back what the JSON text names; NULL: 404. Any thread. */
    hy_status (*kv_release)(void *arg, const char *text);
    void *kv_release_arg;
    /* GET /links: puts a JSON object, to which the page adds the context; NULL: a page without
     * links. Any thread. */
    void (*kv_links)(void *arg, hy_buf *out);

    const char *host;        /* 127.0.0.1 */
    int port;                /* 0 picks a free one */
    int fd;                  /* from hy_http_reserve, taken over in any case; -1: none */
    const char *api_key;     /* keys, one a line; NULL or "": none, only loopback is served */
    const char *cors_origin; /* NULL or "": no CORS headers */

    size_t max_body_bytes;        /* 32 MiB; above: 413 */
    size_t max_header_bytes;      /* 64 KiB */
    size_t max_slow_reader_bytes; /* 4 MiB unsent: the request is aborted */
    int max_connections;          /* 1024 with requests in work; above: 503 */
    int max_requests;             /* 4096 prompts in work; above: 503 */
    uint64_t idle_timeout_ns;     /* 75 s: a kept-alive connection without a request */
    uint64_t read_timeout_ns;     /* 60 s: from a request's first byte to its last */
    uint64_t write_timeout_ns;    /* 60 s without any byte taken by a reader */
    uint64_t request_timeout_ns;  /* 0: none; else the deadline of a request in the engine */
    int32_t max_logprobs;         /* 20 */
} hy_http_opts;

void hy_http_opts_init(hy_http_opts *o);

/* The page GET /trace?n=N&request=NAME; query NULL: none. For servers of another kind, too. */
void hy_http_trace_page(hy_trace *t, const hy_clock *c, const char *query, hy_buf *out);

/* A socket bound to o->host and o->port that does not listen yet, for `fd` of the options: so what
 * is wrong with the address shows before a model is loaded. Fails as hy_http_create does. */
hy_status hy_http_reserve(const hy_http_opts *o, int *fd_out);
/* A listening socket for o->host and o->port, for servers of another kind. Fails as hy_http_create
 * does; the caller closes *fd_out. */
hy_status hy_http_bind(const hy_http_opts *o, int *fd_out, int *port_out);

/* Binds the port, if none is reserved, and listens. HY_E_INVAL: the options, with what to change;
 * HY_E_DENIED: a non-loopback host without a key; HY_E_IO: the port is in use or the address is not
 * ours. */
hy_status hy_http_create(const hy_http_opts *o, hy_http **out);
/* Threads run, connections are taken. */
hy_status hy_http_start(hy_http *h);
int hy_http_port(const hy_http *h);
/* Drain: new requests answer 503 and so does /health, on new connections too; running ones end as
 * they would. */
void hy_http_stop_accepting(hy_http *h);
/* Requests not yet answered: a drain is over at 0. */
int hy_http_active(const hy_http *h);
/* Ends what is in work with an error (503, or an error event in a stream), aborts it in the engine
 * (which must still run, so that the last events come) and stops. NULL is fine. */
void hy_http_destroy(hy_http *h);

#endif
