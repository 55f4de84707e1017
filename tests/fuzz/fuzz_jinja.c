/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: a chat template, compiled and rendered over a fixed chat; and the same bytes as
 * generated text for the tool call parser, where byte by byte must equal at once.
 *
 * Thread: one.  Owner: the variables are made once and kept.
 */
#include "core/text/chatreq.h"
#include "core/text/toolcall.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char request[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S <x>\"},"
    "{\"role\":\"user\",\"content\":\"Gr\xc3\xbc\xc3\x9f \\u0001 \xf0\x9f\x98\x80\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\","
    "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1, 2.5, null]}\"}}]},"
    "{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"c1\"}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"a\":{\"type\":\"array\"}}}}}]}";

static void record(void *arg, const hy_toolcall_event *ev)
{
    hy_buf *b = arg;
    hy_buf_putc(b, (char)('0' + ev->kind));
    if (ev->kind == HY_TOOLCALL_CONTENT)
        b->len--; /* pieces of content may be cut anywhere */
    hy_buf_add(b, ev->text != NULL ? ev->text : "", ev->text != NULL ? ev->len : 0);
}

static void feed(const char *p, size_t n, size_t step, hy_buf *out)
{
    hy_toolcall *t = NULL;
    hy_toolcall_create(NULL, 1, record, out, &t);
    for (size_t i = 0; i < n; i += step)
        hy_toolcall_feed(t, p + i, n - i < step ? n - i : step);
    hy_toolcall_finish(t);
    hy_toolcall_destroy(t);
}

static void tool_calls(const char *p, size_t n)
{
    hy_buf a, b;
    hy_buf_init(&a);
    hy_buf_init(&b);
    feed(p, n, n != 0 ? n : 1, &a);
    feed(p, n, 1, &b);
    HY_ASSERT(a.len == b.len && memcmp(hy_buf_str(&a), hy_buf_str(&b), a.len) == 0);
    hy_buf_fini(&a);
    hy_buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *body;
    static const char *const marks[] = {"<x>"};
    static const struct tm now = {.tm_year = 126, .tm_mday = 15};
    if (body == NULL)
        body = json_loads(request, 0, NULL);
    HY_ASSERT(body != NULL);
    hy_jinja *j = NULL;
    tool_calls((const char *)data, size);
    if (hy_jinja_compile((const char *)data, size, &j) < 0)
        return 0;
    hy_chatreq q = {.messages = json_object_get(body, "messages"),
                    .tools = json_object_get(body, "tools"),
                    .add_generation_prompt = true,
                    .now = &now,
                    .marks = marks,
                    .n_marks = size % 2};
    hy_chat_text t;
    if (hy_chatreq_render(j, &q, &t) == HY_OK)
        hy_chat_text_fini(&t);
    hy_jinja_destroy(j);
    return 0;
}
