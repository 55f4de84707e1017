/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading and writing kv_transfer_params.
 *
 * Thread: pure.  Owner: see handover.h.
 */
#include "core/connector/handover.h"

#include "core/base/hash.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- digest ---- */

void hy_handover_digest(const int32_t *tokens, int32_t n, bool rope_long, uint8_t out[32])
{
    static const char name[] = "halyard-pd-prompt-1";
    const uint8_t head[2] = {rope_long, 0};
    hy_sha256_ctx c;
    memset(out, 0, 32);
    if (hy_sha256_init(&c) < 0)
        return; /* all zero never equals a digest: the hand-over is not used */
    hy_sha256_update(&c, name, sizeof(name));
    hy_sha256_update(&c, head, sizeof(head));
    for (int32_t i = 0; i < n;) {
        uint8_t b[4 * 256];
        int32_t k = 0;
        for (; k < 256 && i < n; k++, i++)
            for (int j = 0; j < 4; j++)
                b[4 * k + j] = (uint8_t)((uint32_t)tokens[i] >> (8 * j));
        hy_sha256_update(&c, b, (size_t)k * 4);
    }
    hy_sha256_final(&c, out);
    hy_sha256_fini(&c);
}

/* ---- reading ---- */

static bool hex_digits(const char *s, size_t n, uint8_t *out)
{
    if (s == NULL || strlen(s) != 2 * n)
        return false;
    for (size_t i = 0; i < 2 * n; i++) {
        const char *digits = "0123456789abcdef", *at = strchr(digits, s[i]);
        if (at == NULL)
            return false;
        const uint8_t v = (uint8_t)(at - digits);
        out[i / 2] = (uint8_t)(i % 2 == 0 ? v << 4 : out[i / 2] | v);
    }
    return true;
}

static bool hex_u64(const char *s, uint64_t *out)
{
    uint8_t b[8];
    if (!hex_digits(s, 8, b))
        return false;
    *out = 0;
    for (int i = 0; i < 8; i++)
        *out = *out << 8 | b[i];
    return true;
}

uint64_t hy_handover_lease(const char *text)
{
    uint64_t v;
    if (hex_u64(text, &v) && v != 0)
        return v;
    return hy_xxh64(text, strlen(text), 0) | 1;
}

static hy_status wrong(const char *field)
{
    return hy_fail(HY_E_INVAL, "kv_transfer_params: %s is missing or wrong", field);
}

static bool get_i32(const json_t *o, const char *key, int32_t lo, int32_t hi, int32_t *out)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
        return false;
    *out = (int32_t)json_integer_value(v);
    return true;
}

static bool get_text(const json_t *o, const char *key, char *out, size_t cap)
{
    const char *s = json_string_value(json_object_get(o, key));
    if (s == NULL || s[0] == '\0' || strlen(s) >= cap)
        return false;
    for (const char *c = s; *c != '\0'; c++)
        if (*c < 0x21 || *c > 0x7e)
            return false;
    snprintf(out, cap, "%s", s);
    return true;
}

/* null stands for minus infinity, which JSON has no number for. */
static bool get_lp(const json_t *v, float *out)
{
    *out = json_is_number(v) ? (float)json_number_value(v) : -INFINITY;
    return json_is_number(v) || json_is_null(v);
}

static hy_status parse_first(const json_t *o, hy_conn_first *f)
{
    if (!get_i32(o, "id", 0, INT32_MAX, &f->id) ||
        !get_i32(o, "position", 0, INT32_MAX / 2, &f->position) ||
        !get_i32(o, "rank", 0, INT32_MAX, &f->rank) ||
        !get_lp(json_object_get(o, "logprob"), &f->logprob))
        return wrong("halyard.first");
    if (!hex_u64(json_string_value(json_object_get(o, "seed")), &f->seed))
        return wrong("halyard.first.seed");
    f->stop = json_is_true(json_object_get(o, "stop"));
    f->barred = json_is_true(json_object_get(o, "barred"));
    const json_t *top = json_object_get(o, "top");
    if (!json_is_array(top) || json_array_size(top) > HY_CONN_TOP_MAX)
        return wrong("halyard.first.top");
    f->n_top = (int32_t)json_array_size(top);
    for (int32_t i = 0; i < f->n_top; i++) {
        const json_t *p = json_array_get(top, (size_t)i), *id = json_array_get(p, 0);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX || !get_lp(json_array_get(p, 1), &f->top_lps[i]))
            return wrong("halyard.first.top");
        f->top_ids[i] = (int32_t)json_integer_value(id);
    }
    return HY_OK;
}

static hy_status parse_owner(const json_t *o, hy_handover *h)
{
    if (!get_text(o, "node", h->node, sizeof(h->node)))
        return wrong("halyard.node");
    if (!get_text(o, "addrs", h->addrs, sizeof(h->addrs)))
        return wrong("halyard.addrs");
    if (h->push)
        return HY_OK;
    if (!hex_u64(json_string_value(json_object_get(o, "epoch")), &h->epoch) || h->epoch == 0)
        return wrong("halyard.epoch");
    if (!hex_u64(json_string_value(json_object_get(o, "lease")), &h->lease) || h->lease == 0)
        return wrong("halyard.lease");
    if (!get_i32(o, "tokens", 1, INT32_MAX / 2, &h->tokens))
        return wrong("halyard.tokens");
    if (!hex_digits(json_string_value(json_object_get(o, "prompt")), 32, h->prompt))
        return wrong("halyard.prompt");
    int32_t ms = 0;
    if (!get_i32(o, "lease_ms", 1, INT32_MAX, &ms))
        return wrong("halyard.lease_ms");
    h->lease_ns = (uint64_t)ms * 1000000u;
    const json_t *first = json_object_get(o, "first");
    h->has_first = json_is_object(first);
    return h->has_first ? parse_first(first, &h->first) : HY_OK;
}

static hy_status parse(const json_t *o, hy_handover *h)
{
    h->prefill = json_is_true(json_object_get(o, "do_remote_prefill"));
    h->decode = json_is_true(json_object_get(o, "do_remote_decode")) ||
                json_is_true(json_object_get(o, "keep"));
    const char *id = json_string_value(json_object_get(o, "transfer_id"));
    const json_t *own = json_object_get(o, "halyard");
    if (id != NULL && id[0] != '\0') {
        h->lease = hy_handover_lease(id);
        /* a transfer id that stands beside a finished owner's answer names the same lease */
        h->push = !json_is_string(json_object_get(own, "lease"));
    }
    if (!h->prefill) {
        const char *asked = json_string_value(json_object_get(own, "lease"));
        return asked == NULL || hex_u64(asked, &h->asked) ? HY_OK : wrong("halyard.lease");
    }
    if (!json_is_object(own)) {
        h->foreign = true;
        return HY_OK;
    }
    int32_t v = 0;
    if (!get_i32(own, "v", 1, INT32_MAX, &v))
        return wrong("halyard.v");
    if (v != HY_HANDOVER_VERSION)
        return hy_fail(HY_E_UNSUPPORTED, "kv_transfer_params: halyard.v is %d, this is version %d",
                       v, HY_HANDOVER_VERSION);
    return parse_owner(own, h);
}

hy_status hy_handover_parse(const char *text, hy_handover *out)
{
    memset(out, 0, sizeof(*out));
    if (text == NULL)
        return HY_OK;
    json_error_t err;
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &err);
    hy_status st = HY_E_INVAL;
    if (!json_is_object(o))
        hy_fail(HY_E_INVAL, "kv_transfer_params is no JSON object: %s", o == NULL ? err.text : "");
    else
        st = parse(o, out);
    json_decref(o);
    return st;
}

static bool names_lease(const json_t *o, hy_handover *h)
{
    const json_t *own = json_object_get(o, "halyard");
    own = json_is_object(own) ? own : o;
    const char *transfer = json_string_value(json_object_get(o, "transfer_id"));
    const json_t *epoch = json_object_get(own, "epoch");
    if (hex_u64(json_string_value(json_object_get(own, "lease")), &h->lease) && h->lease != 0)
        return epoch == NULL || hex_u64(json_string_value(epoch), &h->epoch);
    h->push = transfer != NULL && transfer[0] != '\0';
    if (h->push)
        h->lease = hy_handover_lease(transfer);
    return h->push;
}

hy_status hy_handover_parse_release(const char *text, hy_handover *out)
{
    memset(out, 0, sizeof(*out));
    json_error_t err;
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &err);
    const json_t *inner = json_object_get(o, "kv_transfer_params");
    const bool ok = names_lease(json_is_object(inner) ? inner : o, out);
    json_decref(o);
    return ok ? HY_OK
              : hy_fail(HY_E_INVAL, "the body names neither lease and epoch nor a transfer_id");
}

/* ---- writing ---- */

static void put_lp(hy_buf *b, float lp)
{
    if (isfinite(lp))
        hy_buf_printf(b, "%.9g", (double)lp); /* 9 digits give a float back exactly */
    else
        hy_buf_puts(b, "null");
}

static void put_first(hy_buf *b, const hy_conn_first *f)
{
    hy_buf_printf(b, ",\"first\":{\"id\":%d,\"rank\":%d,\"logprob\":", f->id, f->rank);
    put_lp(b, f->logprob);
    hy_buf_printf(b,
                  ",\"position\":%d,\"seed\":\"%016" PRIx64 "\",\"stop\":%s,\"barred\":%s,"
                  "\"top\":[",
                  f->position, f->seed, f->stop ? "true" : "false", f->barred ? "true" : "false");
    for (int32_t i = 0; i < f->n_top; i++) {
        hy_buf_printf(b, "%s[%d,", i > 0 ? "," : "", f->top_ids[i]);
        put_lp(b, f->top_lps[i]);
        hy_buf_putc(b, ']');
    }
    hy_buf_puts(b, "]}");
}

void hy_handover_write(const hy_handover *h, const char *request_id, const int32_t *ids,
                       int32_t n_ids, hy_buf *out)
{
    char hex[65], host[HY_HANDOVER_ADDRS_MAX];
    snprintf(host, sizeof(host), "%s", h->addrs);
    host[strcspn(host, ",")] = '\0';
    char *colon = strrchr(host, ':');
    const char *port = colon != NULL ? colon + 1 : "0";
    if (colon != NULL)
        *colon = '\0';
    const bool number = port[0] != '\0' && strspn(port, "0123456789") == strlen(port);
    hy_buf_puts(out, "{\"do_remote_prefill\":true,\"do_remote_decode\":false");
    hy_buf_printf(out, ",\"remote_engine_id\":\"%s\",\"remote_request_id\":\"%s\"", h->node,
                  request_id);
    hy_buf_printf(out, ",\"remote_host\":\"%s\",\"remote_port\":%s,\"remote_block_ids\":[[", host,
                  number ? port : "0");
    for (int32_t i = 0; i < n_ids; i++)
        hy_buf_printf(out, "%s%d", i > 0 ? "," : "", ids[i]);
    hy_buf_printf(out, "]],\"tp_size\":1,\"remote_num_tokens\":%d", h->tokens);
    hy_buf_printf(out, ",\"halyard\":{\"v\":%d,\"node\":\"%s\",\"epoch\":\"%016" PRIx64 "\"",
                  HY_HANDOVER_VERSION, h->node, h->epoch);
    hy_buf_printf(out, ",\"lease\":\"%016" PRIx64 "\",\"lease_ms\":%d,\"addrs\":\"%s\"", h->lease,
                  (int)(h->lease_ns / 1000000u), h->addrs);
    hy_hex(h->prompt, sizeof(h->prompt), hex);
    hy_buf_printf(out, ",\"tokens\":%d,\"prompt\":\"%s\"", h->tokens, hex);
    if (h->has_first)
        put_first(out, &h->first);
    hy_buf_puts(out, "}}");
}
