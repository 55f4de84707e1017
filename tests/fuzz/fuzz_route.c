/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: an HTTP/1.1 message as the router reads it, and its body. The first byte says
 * request or response. Checked: bytes that come one by one give what they give at once; and where
 * a JSON parser accepts the body, the router does too and what it makes of it is JSON again,
 * without the client's kv_transfer_params.
 *
 * Thread: one.  Owner: itself.
 */
#include "core/http/wire.h"
#include "core/route/body.h"

#include <jansson.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Nothing of the client's is left; the prefill node may be told the whole length. */
static bool same_params(const json_t *o, bool prefill)
{
    json_t *p = json_object_get(o, "kv_transfer_params");
    json_t *most = json_object_get(p, "remote_max_tokens");
    bool told = prefill && json_is_integer(most) && json_integer_value(most) >= -1 &&
                json_integer_value(most) != 0;
    return json_is_object(p) && json_object_size(p) == 1 + (size_t)told &&
           json_is_true(json_object_get(p, "ours"));
}

static void check_body(const char *s, size_t n)
{
    static hy_body b;
    hy_body_facts f;
    hy_buf p, d;
    json_t *in = json_loadb(s, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    hy_status st = hy_body_parse(s, n, &b);
    if (json_is_object(in))
        HY_ASSERT(st == HY_OK || st == HY_E_LIMIT);
    if (st == HY_OK) {
        hy_buf_init(&p);
        hy_buf_init(&d);
        hy_body_facts_get(&b, &f);
        hy_body_prefill(&p, &b, &f, "{\"ours\":true}");
        hy_body_decode(&d, &b, "{\"ours\":true}");
        if (json_is_object(in)) {
            json_t *jp = json_loadb(p.data, p.len, JSON_ALLOW_NUL, NULL);
            json_t *jd = json_loadb(d.data, d.len, JSON_ALLOW_NUL, NULL);
            HY_ASSERT(same_params(jp, true) && same_params(jd, false));
            HY_ASSERT(json_is_false(json_object_get(jp, "stream")));
            HY_ASSERT(json_equal(json_object_get(jd, "prompt"), json_object_get(in, "prompt")) ||
                      json_object_get(in, "prompt") == NULL);
            json_decref(jp);
            json_decref(jd);
        }
        hy_buf_fini(&p);
        hy_buf_fini(&d);
    }
    json_decref(in);
}

/* The message in pieces of `step` bytes. */
static hy_status take(const uint8_t *data, size_t n, size_t step, bool response, int *status,
                      struct evbuffer *body)
{
    struct evbuffer *in = evbuffer_new();
    hy_wire_head h = {0};
    hy_wire_body b;
    size_t scanned = 0;
    bool head = false;
    hy_status st = HY_AGAIN;
    for (size_t at = 0; at < n && st == HY_AGAIN; at += step) {
        evbuffer_add(in, data + at, n - at < step ? n - at : step);
        if (!head) {
            st = response ? hy_wire_take_response(in, 8192, &scanned, false, &h)
                          : hy_wire_take_request(in, 8192, &scanned, &h);
            if (st != HY_OK)
                continue;
            head = true;
            *status = response ? h.status : (int)h.n_headers;
            hy_wire_body_init(&b, &h);
        }
        st = hy_wire_body_take(&b, in, body);
    }
    hy_wire_head_fini(&h);
    evbuffer_free(in);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 65536)
        return 0;
    bool response = data[0] % 2 == 0;
    struct evbuffer *one = evbuffer_new(), *many = evbuffer_new();
    int s1 = -1, s2 = -1;
    hy_status a = take(data + 1, size - 1, size, response, &s1, one);
    hy_status b = take(data + 1, size - 1, 1, response, &s2, many);
    /* a too long line is seen at different moments; else they must agree */
    if (a != HY_E_LIMIT && b != HY_E_LIMIT && size < 4096) {
        HY_ASSERT(a == b && s1 == s2);
        size_t n = evbuffer_get_length(one);
        if (a >= 0)
            HY_ASSERT(
                n == evbuffer_get_length(many) &&
                (n == 0 || memcmp(evbuffer_pullup(one, -1), evbuffer_pullup(many, -1), n) == 0));
    }
    size_t n = evbuffer_get_length(one);
    if (n != 0)
        check_body((const char *)evbuffer_pullup(one, -1), n);
    evbuffer_free(one);
    evbuffer_free(many);
    return 0;
}
