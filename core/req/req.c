/* SPDX-License-Identifier: Apache-2.0
 *
 * Birth and end of request objects.
 *
 * Thread: any.  Owner: see req.h.
 */
#include "core/req/req.h"

#include <stdatomic.h>
#include <stdlib.h>

uint64_t hy_req_next_id(void)
{
    static _Atomic uint64_t next = 1;
    return atomic_fetch_add(&next, 1);
}

hy_req *hy_req_create(void)
{
    hy_req *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return NULL;
    r->id = hy_req_next_id();
    r->n = 1;
    r->max_tokens = -1;
    r->prompt_logprobs = -1;
    r->sampling.temperature = 1.0f;
    r->sampling.top_p = 1.0f;
    r->sampling.repetition_penalty = 1.0f;
    r->sampling.logprobs = -1;
    return r;
}

void hy_req_destroy(hy_req *r)
{
    if (r == NULL)
        return;
    free(r->prompt);
    free(r->stop_ids);
    free(r->cache_salt);
    free(r->handover);
    free(r->sampling.bias);
    free(r);
}
