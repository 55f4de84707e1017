/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat requests: messages through the model's template to token ids.
 *
 * Thread: text stage.  Owner: the caller frees ids.
 */
#include "core/http/http_int.h"

#include "core/text/chat.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

hy_status hy_chat__encode(hy_http *h, hy_call *c, size_t max_ids, hy_tok_ids *ids, hy_api_error *e)
{
    (void)max_ids;
    (void)ids;
    (void)c;
    return hy_api_bad(e, "messages", "%s",
                      h->o.chat_error != NULL ? h->o.chat_error
                                              : "this model has no chat template");
}
