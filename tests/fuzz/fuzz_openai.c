/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: bodies of API requests. The same bytes are given to every endpoint's parser; what is
 * refused must name a status and a reason, what is accepted must be inside its limits.
 *
 * Thread: one.  Owner: itself.
 */
#include "core/http/parse.h"
#include "core/http/stop.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const hy_api_limits *lim, const hy_api_req *r)
{
    bool ok = r->n >= 1 && r->n <= lim->max_n && r->max_tokens >= -1 &&
              r->max_tokens <= lim->context && r->s.logprobs <= lim->max_logprobs &&
              r->prompt_logprobs <= lim->max_logprobs && r->n_stop <= (size_t)lim->max_stop &&
              r->s.temperature >= 0 && r->s.temperature <= 2 && r->s.top_p > 0 && r->s.top_p <= 1;
    for (size_t i = 0; i < r->n_stop_ids; i++)
        ok = ok && r->stop_ids[i] >= 0 && r->stop_ids[i] < lim->vocab;
    for (size_t i = 0; i < r->s.n_bias; i++)
        ok = ok && r->s.bias[i].id >= 0 && r->s.bias[i].id < lim->vocab;
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const hy_api apis[] = {HY_API_COMPLETIONS, HY_API_CHAT, HY_API_TOKENIZE,
                                  HY_API_DETOKENIZE};
    hy_api_limits lim;
    hy_api_limits_init(&lim, 1000, 2048);
    for (size_t i = 0; i < HY_COUNTOF(apis); i++) {
        hy_api_req r;
        hy_api_error e;
        if (hy_api_parse(&lim, apis[i], (const char *)data, size, &r, &e) < 0) {
            if (e.status < 400 || e.text[0] == '\0')
                abort();
            continue;
        }
        check(&lim, &r);
        hy_stop_set set;
        if (hy_stop_set_init(&set, r.stop, r.stop_len, r.n_stop) == HY_OK)
            hy_stop_set_fini(&set);
        hy_api_req_fini(&r);
    }
    return 0;
}
