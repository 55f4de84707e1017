/* SPDX-License-Identifier: Apache-2.0
 *
 * Tool calls out of generated text: see toolcall.h. Content passes through, except a tail that may
 * be the beginning of <tool_call> and white space that a call may follow. A call is held until its
 * end mark, which does not count inside a JSON string.
 *
 * Thread: one at a time.  Owner: the caller.
 */
#include "core/text/toolcall.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char open_mark[] = "<tool_call>", close_mark[] = "</tool_call>";
enum { OPEN_LEN = sizeof open_mark - 1, CLOSE_LEN = sizeof close_mark - 1, MAX_TRIES = 64 };

typedef enum body_kind { BODY_UNKNOWN, BODY_JSON, BODY_OTHER } body_kind;

struct hy_toolcall {
    hy_toolcall_fn fn;
    void *arg;
    json_t *tools;
    uint64_t seed;
    int n;
    bool in_call;  /* behind <tool_call> */
    bool has_text; /* content that is not white space has been sent */
    hy_buf space;  /* white space held back */
    hy_buf mark;   /* a tail that may begin <tool_call> */
    hy_buf body;   /* of the open call */
    size_t seen;   /* bytes of body already scanned */
    body_kind kind;
    bool in_str, escaped;
};

static void send(hy_toolcall *t, const char *p, size_t n)
{
    if (n > 0)
        t->fn(t->arg, &(hy_toolcall_event){.kind = HY_TOOLCALL_CONTENT, .text = p, .len = n});
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* White space is dropped when nothing but calls stands before it, or between calls and at the end
 * behind one. */
static void content(hy_toolcall *t, const char *p, size_t n)
{
    size_t i = 0, end = n;
    while (t->n > 0 && end > 0 && is_space(p[end - 1]))
        end--;
    while ((!t->has_text || t->n > 0) && i < end && is_space(p[i]))
        i++;
    if (i == end && (t->n > 0 || (!t->has_text && n > 0))) {
        hy_buf_add(&t->space, p, n);
        return;
    }
    send(t, hy_buf_str(&t->space), t->space.len);
    hy_buf_clear(&t->space);
    send(t, p, end);
    hy_buf_add(&t->space, p + end, n - end);
    t->has_text |= end > 0;
}

/* ---- one complete call ---- */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void emit_call(hy_toolcall *t, const char *name, const char *args, size_t len)
{
    char id[40];
    uint64_t a = mix(t->seed + 2 * (uint64_t)t->n), b = mix(t->seed + 2 * (uint64_t)t->n + 1);
    snprintf(id, sizeof id, "call_%016llx%08x", (unsigned long long)a, (unsigned)b);
    hy_toolcall_event ev = {.kind = HY_TOOLCALL_BEGIN, .index = t->n, .id = id, .name = name};
    hy_buf_clear(&t->space);
    t->n++;
    t->fn(t->arg, &ev);
    ev.kind = HY_TOOLCALL_ARGS;
    ev.text = args;
    ev.len = len;
    t->fn(t->arg, &ev);
    ev.kind = HY_TOOLCALL_END;
    t->fn(t->arg, &ev);
}

static const char *skip_string(const char *p)
{
    for (p++; *p != '"'; p++)
        p += *p == '\\';
    return p + 1;
}

/* Behind the JSON value at p. The text is known to be valid. */
static const char *skip_value(const char *p)
{
    int depth = 0;
    if (*p == '"')
        return skip_string(p);
    for (;;) {
        if (*p == '"') {
            p = skip_string(p);
            continue;
        }
        if (depth == 0 && (*p == ',' || *p == '}' || *p == ']' || isspace((unsigned char)*p)))
            return p;
        depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
        p++;
        if (depth == 0 && (p[-1] == '}' || p[-1] == ']'))
            return p;
    }
}

/* The source text of a member of a valid JSON object: numbers and spacing as the model wrote them.
 */
static const char *raw_member(const char *p, const char *key, size_t *len)
{
    size_t k = strlen(key);
    const char *last = NULL; /* of equal keys the last one counts */
    p = strchr(p, '{') + 1;
    for (;;) {
        while (isspace((unsigned char)*p) || *p == ',')
            p++;
        if (*p != '"')
            return last;
        const char *name = p + 1, *end = skip_string(p);
        bool hit = (size_t)(end - name) == k + 1 && memcmp(name, key, k) == 0;
        for (p = end; isspace((unsigned char)*p) || *p == ':';)
            p++;
        const char *value = p;
        p = skip_value(p);
        if (hit) {
            *len = (size_t)(p - value);
            last = value;
        }
    }
}

/* A body without NUL bytes that is one JSON object. */
static json_t *load_object(const char *p, size_t n)
{
    json_error_t e;
    if (memchr(p, '\0', n) != NULL)
        return NULL;
    json_t *o = json_loadb(p, n, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &e);
    if (json_is_object(o))
        return o;
    json_decref(o);
    return NULL;
}

static bool json_call(hy_toolcall *t, const char *p, size_t n)
{
    json_t *o = load_object(p, n);
    const char *name = json_string_value(json_object_get(o, "name")), *key = "arguments";
    json_t *args = json_object_get(o, key);
    if (args == NULL)
        args = json_object_get(o, key = "parameters");
    bool ok = false;
    if (name != NULL && name[0] != '\0') {
        size_t len = 2;
        const char *raw = args == NULL || json_is_null(args) ? "{}" : raw_member(p, key, &len);
        json_t *inner = json_is_string(args)
                            ? load_object(json_string_value(args), json_string_length(args))
                            : NULL;
        ok = raw != NULL && (args == NULL || json_is_null(args) || json_is_object(args) || inner);
        if (ok && inner != NULL) { /* an object written as a string */
            raw = json_string_value(args);
            len = json_string_length(args);
        }
        if (ok)
            emit_call(t, name, raw, len);
        json_decref(inner);
    }
    json_decref(o);
    return ok;
}

/* ---- Qwen3-Coder ---- */

static const char *param_type(const hy_toolcall *t, const char *fn, const char *param)
{
    size_t i;
    json_t *tool;
    json_array_foreach(t->tools, i, tool)
    {
        json_t *f = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        if (name == NULL || strcmp(name, fn) != 0)
            continue;
        json_t *p = json_object_get(json_object_get(f, "parameters"), "properties");
        json_t *type = json_object_get(json_object_get(p, param), "type");
        if (json_is_array(type))
            type = json_array_get(type, 0);
        return json_is_string(type) ? json_string_value(type) : "string";
    }
    return "string";
}

static json_t *param_value(const hy_toolcall *t, const char *fn, const char *key, const char *p,
                           size_t n)
{
    const char *type = param_type(t, fn, key);
    if (strcmp(type, "string") == 0)
        return json_stringn(p, n);
    json_error_t e;
    json_t *v = json_loadb(p, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (v == NULL && n == 4 && strncasecmp(p, "true", 4) == 0)
        v = json_true();
    if (v == NULL && n == 5 && strncasecmp(p, "false", 5) == 0)
        v = json_false();
    return v != NULL ? v : json_stringn(p, n);
}

static char *cut(const char *from, const char *to)
{
    return strndup(from, (size_t)(to - from));
}

/* One <parameter=KEY>VALUE</parameter> at p; NULL when malformed. */
static const char *one_param(const hy_toolcall *t, const char *fn, const char *p, json_t *args)
{
    static const char open[] = "<parameter=", close[] = "</parameter>";
    const char *gt = strchr(p, '>'), *end = gt ? strstr(gt, close) : NULL;
    if (strncmp(p, open, sizeof open - 1) != 0 || end == NULL)
        return NULL;
    const char *from = gt + 1, *to = end;
    from += *from == '\n';
    to -= to > from && to[-1] == '\n';
    char *key = cut(p + sizeof open - 1, gt);
    json_t *v = key == NULL ? NULL : param_value(t, fn, key, from, (size_t)(to - from));
    bool ok = v != NULL && json_object_set_new(args, key, v) == 0;
    free(key);
    return ok ? end + sizeof close - 1 : NULL;
}

static bool xml_call(hy_toolcall *t, const char *p)
{
    static const char open[] = "<function=", close[] = "</function>";
    const char *gt = strchr(p, '>');
    if (strncmp(p, open, sizeof open - 1) != 0 || gt == NULL || gt == p + sizeof open - 1)
        return false;
    char *fn = cut(p + sizeof open - 1, gt);
    json_t *args = json_object();
    bool ok = fn != NULL && args != NULL;
    p = gt + 1;
    while (ok) {
        while (is_space(*p))
            p++;
        if (strncmp(p, close, sizeof close - 1) == 0)
            break;
        p = one_param(t, fn, p, args);
        ok = p != NULL;
    }
    for (p = ok ? p + sizeof close - 1 : ""; is_space(*p);)
        p++;
    char *text = ok && *p == '\0' ? json_dumps(args, 0) : NULL;
    if (text != NULL)
        emit_call(t, fn, text, strlen(text));
    ok = text != NULL;
    free(text);
    free(fn);
    json_decref(args);
    return ok;
}

static bool parse_body(hy_toolcall *t, const char *p, size_t n)
{
    while (n > 0 && is_space(*p)) {
        p++;
        n--;
    }
    while (n > 0 && is_space(p[n - 1]))
        n--;
    char *one = strndup(p, n);
    bool ok = one != NULL && strlen(one) == n &&
              (one[0] == '<' ? xml_call(t, one) : json_call(t, one, n));
    free(one);
    return ok;
}

/* ---- the stream ---- */

static void close_call(hy_toolcall *t, size_t body_len, bool closed)
{
    t->in_call = false;
    if (!parse_body(t, hy_buf_str(&t->body), body_len)) {
        content(t, open_mark, OPEN_LEN);
        content(t, hy_buf_str(&t->body), body_len);
        if (closed)
            content(t, close_mark, CLOSE_LEN);
    }
    hy_buf_clear(&t->body);
}

/* The open mark was text after all; what follows it is read again. */
static hy_status reject(hy_toolcall *t)
{
    hy_buf rest = t->body;
    hy_buf_init(&t->body);
    t->in_call = false;
    content(t, open_mark, OPEN_LEN);
    hy_status st = hy_toolcall_feed(t, hy_buf_str(&rest), rest.len);
    hy_buf_fini(&rest);
    return st;
}

/* Can the body still become a call? Decides its kind with the first bytes. */
static bool hopeless(hy_toolcall *t)
{
    static const char fn[] = "<function=";
    const char *p = hy_buf_str(&t->body);
    while (is_space(*p))
        p++;
    size_t n = strlen(p);
    if (n == 0)
        return false;
    if (*p == '{')
        t->kind = BODY_JSON;
    else if (n >= sizeof fn - 1)
        t->kind = BODY_OTHER;
    return *p != '{' && strncmp(p, fn, n < sizeof fn - 1 ? n : sizeof fn - 1) != 0;
}

static void body_byte(hy_toolcall *t, char c)
{
    hy_buf_putc(&t->body, c);
    if (t->kind == BODY_UNKNOWN && (c == '\0' || hopeless(t))) {
        reject(t);
        return;
    }
    if (t->kind == BODY_JSON && (t->in_str || c == '"')) {
        if (t->escaped)
            t->escaped = false;
        else if (c == '\\')
            t->escaped = true;
        else if (c == '"')
            t->in_str = !t->in_str;
        return;
    }
    if (c == '>' && t->body.len >= CLOSE_LEN &&
        memcmp(t->body.data + t->body.len - CLOSE_LEN, close_mark, CLOSE_LEN) == 0)
        close_call(t, t->body.len - CLOSE_LEN, true);
}

static void text_byte(hy_toolcall *t, char c)
{
    while (t->mark.len > 0 && c != open_mark[t->mark.len]) { /* no border but '<' itself */
        content(t, hy_buf_str(&t->mark), t->mark.len);
        hy_buf_clear(&t->mark);
    }
    hy_buf_putc(&t->mark, c);
    if (t->mark.len == OPEN_LEN) {
        hy_buf_clear(&t->mark);
        t->in_call = true;
        t->kind = BODY_UNKNOWN;
        t->in_str = t->escaped = false;
    }
}

hy_status hy_toolcall_feed(hy_toolcall *t, const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (t->in_call) {
            body_byte(t, p[i++]);
        } else if (t->mark.len > 0 || p[i] == '<') {
            if (t->mark.len > 0 && p[i] != open_mark[t->mark.len] && p[i] != '<') {
                content(t, hy_buf_str(&t->mark), t->mark.len);
                hy_buf_clear(&t->mark);
                continue;
            }
            text_byte(t, p[i++]);
        } else {
            const char *lt = memchr(p + i, '<', n - i);
            size_t run = lt != NULL ? (size_t)(lt - p) - i : n - i;
            content(t, p + i, run);
            i += run;
        }
    }
    if (t->body.failed || t->mark.failed || t->space.failed)
        return hy_fail(HY_E_NOMEM, "no memory for a tool call");
    return HY_OK;
}

hy_status hy_toolcall_finish(hy_toolcall *t)
{
    for (int tries = 0; t->in_call; tries++) {
        if (parse_body(t, hy_buf_str(&t->body), t->body.len)) { /* only the end mark is missing */
            t->in_call = false;
        } else if (tries < MAX_TRIES) {
            HY_TRY(reject(t));
            continue;
        } else {
            t->in_call = false;
            content(t, open_mark, OPEN_LEN);
            content(t, hy_buf_str(&t->body), t->body.len);
        }
        hy_buf_clear(&t->body);
    }
    content(t, hy_buf_str(&t->mark), t->mark.len);
    hy_buf_clear(&t->mark);
    hy_buf_clear(&t->space);
    return HY_OK;
}

hy_status hy_toolcall_create(const json_t *tools, uint64_t seed, hy_toolcall_fn fn, void *arg,
                             hy_toolcall **out)
{
    hy_toolcall *t = calloc(1, sizeof *t);
    if (t == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a tool call parser");
    t->tools = json_is_array(tools) ? json_deep_copy(tools) : NULL;
    t->seed = mix(seed);
    t->fn = fn;
    t->arg = arg;
    hy_buf_init(&t->space);
    hy_buf_init(&t->mark);
    hy_buf_init(&t->body);
    *out = t;
    return HY_OK;
}

void hy_toolcall_destroy(hy_toolcall *t)
{
    if (t == NULL)
        return;
    json_decref(t->tools);
    hy_buf_fini(&t->space);
    hy_buf_fini(&t->mark);
    hy_buf_fini(&t->body);
    free(t);
}

int hy_toolcall_count(const hy_toolcall *t)
{
    return t->n;
}

/* ---- whole ---- */

typedef struct whole {
    hy_buf text;
    json_t *calls;
    bool failed;
} whole;

static void collect(void *arg, const hy_toolcall_event *ev)
{
    whole *w = arg;
    if (ev->kind == HY_TOOLCALL_CONTENT) {
        hy_buf_add(&w->text, ev->text, ev->len);
    } else if (ev->kind == HY_TOOLCALL_BEGIN) {
        json_t *c = json_pack("{s:s, s:s, s:{s:s}}", "id", ev->id, "type", "function", "function",
                              "name", ev->name);
        w->failed |= c == NULL || json_array_append_new(w->calls, c) < 0;
    } else if (ev->kind == HY_TOOLCALL_ARGS) {
        json_t *c = json_array_get(w->calls, (size_t)ev->index);
        json_t *s = json_stringn(ev->text, ev->len);
        w->failed |=
            s == NULL || json_object_set_new(json_object_get(c, "function"), "arguments", s) < 0;
    }
}

hy_status hy_toolcall_parse(const char *text, size_t len, const json_t *tools, uint64_t seed,
                            json_t **message_out)
{
    whole w = {.calls = json_array()};
    hy_toolcall *t = NULL;
    json_t *m = NULL;
    hy_buf_init(&w.text);
    hy_status st = hy_toolcall_create(tools, seed, collect, &w, &t);
    if (st == HY_OK)
        st = hy_toolcall_feed(t, text, len);
    if (st == HY_OK)
        st = hy_toolcall_finish(t);
    if (st == HY_OK) {
        json_t *c = w.text.len > 0 ? json_stringn(hy_buf_str(&w.text), w.text.len) : json_null();
        m = c == NULL || w.failed ? NULL
                                  : json_pack("{s:s, s:O}", "role", "assistant", "content", c);
        json_decref(c);
        if (m == NULL)
            st = hy_fail(HY_E_FORMAT, "the answer is not valid UTF-8");
        else if (json_array_size(w.calls) > 0)
            json_object_set(m, "tool_calls", w.calls);
    }
    if (st == HY_OK)
        *message_out = m;
    json_decref(w.calls);
    hy_buf_fini(&w.text);
    hy_toolcall_destroy(t);
    return st;
}
