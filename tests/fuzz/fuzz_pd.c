/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target of what connectors get from others: messages of peers (the first byte picks the kind)
 * and kv_transfer_params. What decodes is encoded again and must give the same bytes.
 *
 * Thread: one.  Owner: none.
 */
#include "core/connector/handover.h"
#include "core/connector/proto.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void message(const uint8_t *data, size_t len)
{
    hy_pdp_msg m;
    const uint32_t type = HY_PDP_TYPE + data[0];
    if (hy_pdp_decode(type, data + 1, len - 1, &m) < 0)
        return;
    HY_ASSERT(m.kind > 0 && m.kind < HY_PDP_KINDS);
    hy_buf b;
    hy_buf_init(&b);
    hy_pdp_encode(&m, &b);
    hy_pdp_msg again;
    HY_ASSERT(hy_pdp_decode(type, b.data, b.len, &again) == HY_OK);
    HY_ASSERT(m.lease == again.lease && m.job == again.job && m.n == again.n &&
              m.n_ids == again.n_ids && m.status == again.status &&
              strcmp(m.text, again.text) == 0);
    hy_pdp_fini(&again);
    hy_pdp_fini(&m);
    hy_buf_fini(&b);
}

static void params(const uint8_t *data, size_t len)
{
    char *text = malloc(len + 1);
    HY_ASSERT(text != NULL);
    memcpy(text, data, len);
    text[len] = '\0';
    hy_handover h, again;
    (void)hy_handover_parse_release(text, &again);
    if (hy_handover_parse(text, &h) == HY_OK && h.prefill && !h.foreign && !h.push) {
        hy_buf b;
        hy_buf_init(&b);
        hy_handover_write(&h, "1", NULL, 0, &b);
        /* node names and addresses are plain text, but may hold quotes */
        if (strpbrk(h.node, "\"\\") == NULL && strpbrk(h.addrs, "\"\\") == NULL) {
            HY_ASSERT(hy_handover_parse(hy_buf_str(&b), &again) == HY_OK);
            HY_ASSERT(h.lease == again.lease && h.epoch == again.epoch &&
                      h.tokens == again.tokens && h.has_first == again.has_first &&
                      memcmp(&h.first.logprob, &again.first.logprob, sizeof(float)) == 0);
        }
        hy_buf_fini(&b);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len < 2)
        return 0;
    if (data[0] == '{')
        params(data, len);
    else
        message(data, len);
    return 0;
}
