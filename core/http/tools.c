/* SPDX-License-Identifier: Apache-2.0
 *
 * Tool calls in the form that Qwen 2.5 and Hermes models are trained on:
 * <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>, any number of them. A call is given
 * out when it is complete; what does not parse is content, as the model wrote it.
 *
 * Thread: out stage.  Owner: the choice.
 */
#include "core/http/tools.h"

#include "core/base/hash.h"
#include "core/http/json_out.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char open_mark[] = "<tool_call>";
static const char close_mark[] = "</tool_call>";
enum { OPEN_LEN = sizeof(open_mark) - 1, CLOSE_LEN = sizeof(close_mark) - 1, MAX_CALLS = 128 };

typedef struct call {
    char id[32];
    char *name, *args;
} call;

struct hy_tool_stream {
    hy_buf in; /* text that is not decided: the begin of a mark, or the inside of a call */
    bool inside;
    bool parallel;
    call calls[MAX_CALLS];
    size_t n, sent;
    uint64_t seed;
};

struct hy_tool_stream *hy_tools__create(const char *rid, size_t choice, bool parallel)
{
    struct hy_tool_stream *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return NULL;
    t->parallel = parallel;
    t->seed = hy_xxh64(rid, strlen(rid), choice);
    return t;
}

void hy_tools__destroy(struct hy_tool_stream *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->n; i++) {
        free(t->calls[i].name);
        free(t->calls[i].args);
    }
    hy_buf_fini(&t->in);
    free(t);
}

/* End of the JSON value that begins at s (valid JSON, no leading blanks). */
static const char *skip_value(const char *s, const char *end)
{
    int depth = 0;
    bool str = false;
    for (; s < end; s++) {
        if (str) {
            if (*s == '\\')
                s++;
            else if (*s == '"')
                str = false;
            if (!str && *s == '"' && depth == 0)
                return s + 1;
            continue;
        }
        if (*s == '"')
            str = true;
        else if (*s == '{' || *s == '[')
            depth++;
        else if (*s == '}' || *s == ']') {
            if (depth == 0)
                return s;
            if (--depth == 0)
                return s + 1;
        } else if (depth == 0 && (*s == ',' || strchr(" \t\r\n", *s) != NULL))
            return s;
    }
    return s;
}

static const char *skip_blank(const char *s, const char *end)
{
    while (s < end && strchr(" \t\r\n", *s) != NULL)
        s++;
    return s;
}

/* The bytes of "arguments" as the model wrote them, so that numbers stay what they are. NULL: the
 * key is not there. s..end is a valid JSON object. */
static char *raw_arguments(const char *s, const char *end)
{
    char *found = NULL;
    s = skip_blank(s, end) + 1;
    for (;;) {
        s = skip_blank(s, end);
        if (s >= end || *s == '}')
            return found;
        const char *key = s;
        s = skip_value(s, end);
        bool match = s - key == 11 && memcmp(key, "\"arguments\"", 11) == 0;
        bool match2 = s - key == 12 && memcmp(key, "\"parameters\"", 12) == 0;
        s = skip_blank(skip_blank(s, end) + 1, end); /* the colon */
        const char *value = s;
        s = skip_value(s, end);
        if (match || (match2 && found == NULL)) {
            free(found);
            found = strndup(value, (size_t)(s - value));
        }
        s = skip_blank(s, end);
        if (s < end && *s == ',')
            s++;
    }
}

/* False: not a call. */
static bool add_call(struct hy_tool_stream *t, const char *s, size_t len)
{
    json_t *v = json_loadb(s, len, 0, NULL);
    const char *name = json_string_value(json_object_get(v, "name"));
    const json_t *args = json_object_get(v, "arguments");
    if (args == NULL)
        args = json_object_get(v, "parameters");
    bool ok = name != NULL && name[0] != '\0' &&
              (args == NULL || json_is_object(args) || json_is_string(args) || json_is_null(args));
    if (ok && (t->n == MAX_CALLS || (!t->parallel && t->n == 1))) {
        json_decref(v);
        return true; /* a call, but more than were asked for */
    }
    if (ok) {
        call *c = &t->calls[t->n];
        c->name = strdup(name);
        c->args = json_is_string(args)   ? strdup(json_string_value(args))
                  : json_is_object(args) ? raw_arguments(s, s + len)
                                         : strdup("{}");
        snprintf(c->id, sizeof(c->id), "call_%016llx",
                 (unsigned long long)hy_xxh64(&t->n, sizeof(t->n), t->seed));
        ok = c->name != NULL && c->args != NULL;
        if (ok) {
            t->n++;
        } else {
            free(c->name);
            free(c->args);
            *c = (call){0};
        }
    }
    json_decref(v);
    return ok;
}

static void give(struct hy_tool_stream *t, size_t n, hy_buf *out)
{
    /* blanks between calls say nothing */
    bool blank = t->n != 0;
    for (size_t i = 0; i < n && blank; i++)
        blank = strchr(" \t\r\n", t->in.data[i]) != NULL;
    if (!blank && n != 0)
        hy_buf_add(out, t->in.data, n);
    hy_buf_drop(&t->in, n);
}

/* Bytes at the end of in that may begin a mark. */
static size_t begun(const hy_buf *in)
{
    size_t most = in->len < OPEN_LEN - 1 ? in->len : OPEN_LEN - 1;
    for (size_t k = most; k > 0; k--) {
        if (memcmp(in->data + in->len - k, open_mark, k) == 0)
            return k;
    }
    return 0;
}

/* True while there is something decided. */
static bool advance(struct hy_tool_stream *t, hy_buf *out)
{
    if (t->in.len == 0)
        return false;
    if (!t->inside) {
        char *p = memmem(t->in.data, t->in.len, open_mark, OPEN_LEN);
        if (p == NULL) {
            give(t, t->in.len - begun(&t->in), out);
            return false;
        }
        give(t, (size_t)(p - t->in.data), out);
        t->inside = true;
    }
    char *q = memmem(t->in.data, t->in.len, close_mark, CLOSE_LEN);
    if (q == NULL)
        return false;
    size_t len = (size_t)(q - t->in.data);
    t->inside = false;
    if (add_call(t, t->in.data + OPEN_LEN, len - OPEN_LEN))
        hy_buf_drop(&t->in, len + CLOSE_LEN);
    else
        give(t, len + CLOSE_LEN, out);
    return true;
}

void hy_tools__push(struct hy_tool_stream *t, const char *s, size_t len, hy_buf *out)
{
    hy_buf_add(&t->in, s, len);
    while (advance(t, out))
        ;
}

void hy_tools__finish(struct hy_tool_stream *t, hy_buf *out)
{
    if (t->inside && t->in.len > OPEN_LEN &&
        add_call(t, t->in.data + OPEN_LEN, t->in.len - OPEN_LEN))
        hy_buf_clear(&t->in); /* only the closing mark was missing */
    t->inside = false;
    if (t->in.len != 0)
        give(t, t->in.len, out);
}

bool hy_tools__pending(const struct hy_tool_stream *t)
{
    return t->sent < t->n;
}

bool hy_tools__called(const struct hy_tool_stream *t)
{
    return t->n != 0;
}

static void one_call(const call *c, hy_buf *b)
{
    hy_buf_puts(b, "\"id\":");
    hy_json_cstr(b, c->id);
    hy_buf_puts(b, ",\"type\":\"function\",\"function\":{\"name\":");
    hy_json_cstr(b, c->name);
    hy_buf_puts(b, ",\"arguments\":");
    hy_json_cstr(b, c->args);
    hy_buf_puts(b, "}}");
}

void hy_tools__delta_json(struct hy_tool_stream *t, hy_buf *b)
{
    hy_buf_putc(b, '[');
    for (bool first = true; t->sent < t->n; t->sent++, first = false) {
        hy_buf_printf(b, "%s{\"index\":%zu,", first ? "" : ",", t->sent);
        one_call(&t->calls[t->sent], b);
    }
    hy_buf_putc(b, ']');
}

void hy_tools__calls_json(const struct hy_tool_stream *t, hy_buf *b)
{
    hy_buf_putc(b, '[');
    for (size_t i = 0; i < t->n; i++) {
        hy_buf_puts(b, i == 0 ? "{" : ",{");
        one_call(&t->calls[i], b);
    }
    hy_buf_putc(b, ']');
}
