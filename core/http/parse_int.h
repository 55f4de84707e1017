/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the request parser that need more than a type and a range.
 *
 * Thread: any.  Owner: see parse.h.
 */
#ifndef HY_HTTP_PARSE_INT_H
#define HY_HTTP_PARSE_INT_H

#include "core/http/parse.h"

#include <stddef.h>

/* "<param> must be <want>, not a string." */
hy_status hy_api__wrong_type(hy_api_error *e, const char *param, const char *want, const json_t *v);
/* An integer, or a real without fraction. */
hy_status hy_api__int(hy_api_error *e, const char *param, const json_t *v, int64_t *out);

hy_status hy_api__refuse_unsupported(hy_api_req *r, hy_api_error *e);
hy_status hy_api__max_tokens(hy_api_req *r, hy_api_error *e);
hy_status hy_api__stream_options(hy_api_req *r, hy_api_error *e);
hy_status hy_api__logprobs(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e);
hy_status hy_api__seed(hy_api_req *r, hy_api_error *e);
hy_status hy_api__stop(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e);
hy_status hy_api__stop_ids(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e);
hy_status hy_api__logit_bias(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e);
hy_status hy_api__truncation(hy_api_req *r, hy_api_error *e);
hy_status hy_api__prompt(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e);
hy_status hy_api__tokens(const hy_api_limits *lim, hy_api_req *r, hy_api_error *e);
hy_status hy_api__messages(hy_api_req *r, hy_api_error *e);
hy_status hy_api__tools(hy_api_req *r, hy_api_error *e);

#endif
