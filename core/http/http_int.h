/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the HTTP server: a call on its way http -> text -> out -> http, the subscription that
 * collects a request's engine events, and the messages between the stages.
 *
 * Thread: a call belongs to the stage that holds it; hy_gone and hy_sub say their own.
 * Owner: whoever holds a call frees it; http's slots know calls by number only.
 */
#ifndef HY_HTTP_HTTP_INT_H
#define HY_HTTP_HTTP_INT_H

#include "core/base/runtime.h"
#include "core/http/http.h"
#include "core/http/parse.h"
#include "core/http/stop.h"

#include <pthread.h>
#include <stdatomic.h>

/* "The client hung up": set by http, read by the others before they work for nobody. */
typedef struct hy_gone {
    atomic_int refs;
    atomic_bool gone;
} hy_gone;

hy_gone *hy_gone__create(void);
void hy_gone__unref(hy_gone *g);

typedef struct hy_prompt {
    int32_t *ids; /* moves into the engine's request unless it is kept for the answer */
    int32_t n;
    char *text; /* echo; NULL: not wanted */
    size_t text_len;
    int32_t n_cached;
    char *handover; /* JSON text for kv_transfer_params; NULL: null */
} hy_prompt;

struct hy_choice; /* out_int.h */

typedef struct hy_call {
    uint64_t id;
    hy_api api;
    char *body;
    size_t body_len;
    char rid[160];  /* "chatcmpl-..." */
    bool rid_given; /* by the X-Request-Id header; else request_id in the body may name it */
    hy_gone *gone;
    uint64_t arrival_ns;
    int64_t created; /* seconds since 1970 */
    hy_api_req q;
    hy_stop_set stops;
    hy_prompt *prompts;
    size_t n_prompts;
    char *echo; /* chat: text before the answer; NULL: none */
    bool parse_tools;
    bool max_zero; /* max_tokens 0: one token runs, none is shown */
    /* out stage */
    struct hy_choice *choices; /* n_prompts * q.n */
    size_t n_choices;
    struct hy_sub **subs; /* [n_prompts], NULL once its last event came */
    size_t n_left;
    bool started;  /* part of the answer is on its way */
    bool answered; /* nothing more goes to the client */
    bool failed;
    hy_api_error error;
    hy_buf pend; /* answer bytes not yet taken by http's mailbox */
    bool pend_end;
    struct hy_call *next_stuck;
    bool stuck;
} hy_call;

void hy_call__destroy(hy_call *c); /* NULL is fine */

/* ---- engine events ---- */

typedef struct hy_ev {
    hy_req_event_kind kind;
    int32_t choice;
    int32_t pos; /* PROMPT: index of the prompt token */
    int32_t id, rank;
    float lp;
    uint32_t top_at, n_top; /* in the sub's tops */
    hy_finish finish;
    int32_t stop_id, n_cached, n_output;
    bool last;
} hy_ev;

typedef struct hy_evs {
    hy_ev *ev;
    size_t n, cap;
    int32_t *top_id;
    float *top_lp;
    size_t n_top, cap_top;
    bool failed; /* out of memory: events are missing */
} hy_evs;

/* Events of one engine request. The engine's thread appends, the out stage takes all at once; one
 * wake-up message is under way at most, so the mailbox has room for every sub. */
typedef struct hy_sub {
    struct hy_http *h;
    hy_call *call;
    uint32_t prompt; /* index in the call */
    uint64_t req_id;
    pthread_mutex_t lock;
    hy_evs in;
    bool posted;
    hy_api_error error; /* of a last event that failed */
    char *handover;     /* connector fields for the client; read after the last event */
    hy_evs taken;       /* out stage's own */
} hy_sub;

hy_sub *hy_sub__create(struct hy_http *h, hy_call *c, uint32_t prompt);
void hy_sub__destroy(hy_sub *s);
/* hy_req.on_event */
void hy_sub__on_event(void *arg, const hy_req_event *ev);
/* The request could not be submitted: its last event. */
void hy_sub__fail(hy_sub *s, const hy_api_error *e);
/* Move what has come into s->taken. */
void hy_sub__take(hy_sub *s);

/* ---- messages ---- */

enum {
    HY_TEXT_CALL = 1, /* to text: data is a hy_call */
    HY_OUT_BEGIN,     /* to out: data is a hy_call whose requests follow */
    HY_OUT_EVENTS,    /* to out: data is a hy_sub (not owned) */
    HY_HTTP_REPLY,    /* to http: data is a hy_reply */
    HY_HTTP_IDS,      /* to http: data is a hy_reply with engine ids */
    HY_HTTP_STOP,     /* to http: no connections any more, an error to everybody in work */
};

typedef struct hy_reply {
    uint64_t call;
    int status;
    bool stream; /* a piece of an SSE answer */
    bool end;    /* the answer is complete */
    int retry_after_s;
    hy_buf body;
    uint64_t *ids; /* HY_HTTP_IDS */
    size_t n_ids;
} hy_reply;

hy_reply *hy_reply__create(uint64_t call, int status);
void hy_reply__destroy(void *reply);
/* {"error": {...}} */
void hy_reply__error_body(hy_buf *b, const hy_api_error *e);

/* ---- the server ---- */

typedef struct hy_server hy_server; /* http stage's state: server.c */
typedef struct hy_out hy_out;       /* out stage's state: out.c */

struct hy_http {
    hy_http_opts o;
    hy_api_limits lim;
    hy_runtime *rt;
    hy_stage *http, *text, *out;
    hy_server *server;
    hy_out *out_state;
    bool started;
    atomic_int n_calls; /* answers owed */
    atomic_int n_subs;  /* engine requests whose last event has not been handled */
    atomic_bool draining;
    struct hy_http_metrics *mx;
    const char **marks; /* chat_in.c; none with user_marks = parse */
    size_t n_marks;
};

/* server.c */
hy_status hy_server__create(hy_http *h);
void hy_server__destroy(hy_server *s);
int hy_server__port(const hy_server *s);
extern const hy_stage_ops hy_server__ops;

/* text.c: the intake */
extern const hy_stage_ops hy_text__ops;
/* 404, with the names that there are. */
hy_status hy_http__no_model(const hy_http *h, const char *name, hy_api_error *e);
/* Whole answer or failure of a call that never reached the engine; consumes the call. */
void hy_text__answer(hy_http *h, hy_call *c, hy_buf *body);
void hy_text__refuse(hy_http *h, hy_call *c, const hy_api_error *e);

/* chat_in.c */
hy_status hy_chat__marks(hy_http *h);
/* Messages to token ids of the call's only prompt. */
hy_status hy_chat__encode(hy_http *h, hy_call *c, size_t max_ids, hy_tok_ids *ids, hy_api_error *e);

/* out.c */
hy_status hy_out__create(hy_http *h);
void hy_out__destroy(hy_out *o);
extern const hy_stage_ops hy_out__ops;

/* trace.c: timelines of engine requests */
void hy_http_trace__begin(const hy_http *h, uint64_t id, const hy_call *c);
void hy_http_trace__answered(const hy_http *h, const uint64_t *ids, size_t n, int status);

/* metrics.c */
struct hy_http_metrics *hy_http_metrics__create(hy_http *h);
void hy_http_metrics__destroy(struct hy_http_metrics *m);
void hy_http_metrics__request(struct hy_http_metrics *m, const char *handler, const char *method,
                              int status, double seconds);
void hy_http_metrics__conns(struct hy_http_metrics *m, int n);

#endif
