/* SPDX-License-Identifier: Apache-2.0
 *
 * The body of an API request, checked: every known field has its type and range from one table, a
 * wrong one is refused by name, an unknown one is ignored (as vLLM does).
 *
 * Thread: any.  Owner: hy_api_req owns its JSON tree; strings inside are borrowed from it.
 */
#ifndef HY_HTTP_PARSE_H
#define HY_HTTP_PARSE_H

#include "core/req/req.h"

#include <jansson.h>

typedef enum hy_api {
    HY_API_COMPLETIONS = 1,
    HY_API_CHAT = 2,
    HY_API_TOKENIZE = 4,
    HY_API_DETOKENIZE = 8,
} hy_api;

/* What a client gets instead of an answer. */
typedef struct hy_api_error {
    int status;       /* HTTP */
    const char *type; /* "BadRequestError" ... */
    char param[96];   /* "": null */
    char text[768];
    int retry_after_s; /* 0: no such header */
} hy_api_error;

/* Sets e and returns HY_E_INVAL. */
hy_status hy_api_bad(hy_api_error *e, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
hy_status hy_api_error_set(hy_api_error *e, int status, const char *type, const char *param,
                           const char *fmt, ...) __attribute__((format(printf, 5, 6)));

typedef struct hy_api_limits {
    int32_t vocab, context;
    int32_t max_logprobs, max_n, max_prompts, max_stop, max_bias;
    size_t max_stop_bytes; /* all stop strings together */
    hy_sampling defaults;
} hy_api_limits;

enum { HY_API_MAX_N = 128, HY_API_MAX_PROMPTS = 1024, HY_API_MAX_STOP = 256 };
/* The server's usual limits for a vocabulary and a context. */
void hy_api_limits_init(hy_api_limits *l, int32_t vocab, int32_t context);

typedef enum hy_tool_choice {
    HY_TOOLS_NONE, /* no tools, or tool_choice none: they are left out of the prompt */
    HY_TOOLS_AUTO,
} hy_tool_choice;

typedef struct hy_api_req {
    hy_api api;
    json_t *root;
    const char *model; /* NULL: whichever */

    bool stream, include_usage, continuous_usage;
    int32_t n;
    int32_t max_tokens; /* -1: not given */
    int32_t min_tokens;
    hy_sampling s;           /* bias is owned; logprobs as the engine wants it */
    int32_t prompt_logprobs; /* -1: none asked */
    bool logprobs;           /* chat: logprobs true; completions: logprobs given */
    bool echo, ignore_eos, include_stop, skip_special, add_special, parse_special;
    bool return_token_ids, tokens_as_ids, return_token_strs;
    int32_t priority;
    const char *cache_salt; /* NULL: none */
    const char *request_id;
    json_t *kv_params;   /* borrowed; NULL: none */
    int32_t truncate;    /* keep that many prompt tokens; -1: the context; 0: not asked */
    bool truncate_right; /* keep the first ones */

    const char **stop; /* arrays owned, strings borrowed */
    size_t *stop_len;
    size_t n_stop;
    int32_t *stop_ids; /* owned */
    size_t n_stop_ids;

    json_t *prompt; /* completions, tokenize: checked for its form only */
    json_t *tokens; /* detokenize */
    json_t *messages, *tools, *documents, *template_kwargs;
    bool add_generation_prompt, continue_final;
    hy_tool_choice tool_choice;
    bool parallel_tools;
} hy_api_req;

/* On failure *e says what to answer and nothing needs to be freed. */
hy_status hy_api_parse(const hy_api_limits *lim, hy_api api, const char *body, size_t len,
                       hy_api_req *out, hy_api_error *e);
void hy_api_req_fini(hy_api_req *r);

#endif
