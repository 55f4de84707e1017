/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a sequence.
 *
 * Thread: sched stage only.  Owner: see seq.h.
 */
#include "core/sched/seq.h"

#include "core/base/alloc.h"

#include <string.h>

hy_status hy_seq_start(hy_seq *s, hy_kv *kv)
{
    const hy_req *r = s->job->r;
    s->cap_tok = hy_seq_total(s);
    s->tok = hy_malloc((size_t)s->cap_tok * sizeof(*s->tok));
    if (s->tok == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a sequence of %d tokens", s->cap_tok);
    memcpy(s->tok, r->prompt, (size_t)r->n_prompt * sizeof(*s->tok));
    s->n_tok = r->n_prompt;
    HY_TRY(hy_kv_seq_init(kv, &s->kv, s->cap_tok, &s->job->root, s->job->silent));
    s->kv.owner = s->uid;
    const hy_seq *first = &s->job->seqs[0];
    if (s != first && first->kv.n_links > 0) { /* the same prompt: no need to hash it again */
        const int32_t n = r->n_prompt / HY_KV_LINK_TOKENS;
        s->kv.n_links = n < first->kv.n_links ? n : first->kv.n_links;
        memcpy(s->kv.links, first->kv.links, (size_t)s->kv.n_links * sizeof(*s->kv.links));
    }
    hy_kv_chain(&s->kv, s->tok, s->n_tok);
    return HY_OK;
}

void hy_seq_fini(hy_seq *s)
{
    hy_kv_seq_fini(&s->kv);
    hy_free(s->tok);
    hy_free(s->first);
    s->tok = NULL;
    s->first = NULL;
}
