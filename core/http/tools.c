/* SPDX-License-Identifier: Apache-2.0
 *
 * Tool calls of one choice: collects the parser's events, writes them as JSON.
 *
 * Thread: out stage.  Owner: the choice.
 */
#include "core/http/tools.h"

#include "core/base/hash.h"
#include "core/http/json_out.h"
#include "core/text/toolcall.h"

#include <stdlib.h>
#include <string.h>

typedef struct call {
    char *id, *name;
    hy_buf args;
    size_t sent; /* bytes of args in deltas so far */
    bool told;   /* id and name were in a delta */
} call;

struct hy_tool_stream {
    hy_toolcall *parser;
    bool parallel;
    call *calls;
    size_t n;
    hy_buf *out; /* of the push under way */
};

/* NULL: more calls than were asked for, or no memory. */
static call *call_at(struct hy_tool_stream *t, int index)
{
    if (index < 0 || (!t->parallel && index > 0))
        return NULL;
    return (size_t)index < t->n ? &t->calls[index] : NULL;
}

static void begin_call(struct hy_tool_stream *t, const hy_toolcall_event *ev)
{
    if (!t->parallel && t->n == 1)
        return;
    call *p = realloc(t->calls, (t->n + 1) * sizeof(*p));
    if (p == NULL)
        return;
    t->calls = p;
    call *c = &p[t->n++];
    *c = (call){.id = strdup(ev->id), .name = strdup(ev->name)};
}

static void on_event(void *arg, const hy_toolcall_event *ev)
{
    struct hy_tool_stream *t = arg;
    call *c;
    switch (ev->kind) {
    case HY_TOOLCALL_CONTENT:
        hy_buf_add(t->out, ev->text, ev->len);
        break;
    case HY_TOOLCALL_BEGIN:
        begin_call(t, ev);
        break;
    case HY_TOOLCALL_ARGS:
        c = call_at(t, ev->index);
        if (c != NULL)
            hy_buf_add(&c->args, ev->text, ev->len);
        break;
    case HY_TOOLCALL_END:
        break;
    }
}

struct hy_tool_stream *hy_tools__create(const json_t *tools, const char *rid, size_t choice,
                                        bool parallel)
{
    struct hy_tool_stream *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return NULL;
    t->parallel = parallel;
    uint64_t seed = hy_xxh64(rid, strlen(rid), choice);
    if (hy_toolcall_create(tools, seed, on_event, t, &t->parser) == HY_OK)
        return t;
    free(t);
    return NULL;
}

void hy_tools__destroy(struct hy_tool_stream *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->n; i++) {
        free(t->calls[i].id);
        free(t->calls[i].name);
        hy_buf_fini(&t->calls[i].args);
    }
    free(t->calls);
    hy_toolcall_destroy(t->parser);
    free(t);
}

void hy_tools__push(struct hy_tool_stream *t, const char *s, size_t len, hy_buf *out)
{
    t->out = out;
    if (hy_toolcall_feed(t->parser, s, len) < 0)
        out->failed = true;
}

void hy_tools__finish(struct hy_tool_stream *t, hy_buf *out)
{
    t->out = out;
    if (hy_toolcall_finish(t->parser) < 0)
        out->failed = true;
}

static bool has_news(const call *c)
{
    return !c->told || c->sent < c->args.len;
}

bool hy_tools__pending(const struct hy_tool_stream *t)
{
    for (size_t i = 0; i < t->n; i++) {
        if (has_news(&t->calls[i]))
            return true;
    }
    return false;
}

bool hy_tools__called(const struct hy_tool_stream *t)
{
    return t->n != 0;
}

/* "id": ... up to the open string of the arguments. */
static void call_head(const call *c, hy_buf *b)
{
    hy_buf_puts(b, "\"id\":");
    hy_json_cstr(b, c->id);
    hy_buf_puts(b, ",\"type\":\"function\",\"function\":{\"name\":");
    hy_json_cstr(b, c->name);
    hy_buf_puts(b, ",\"arguments\":");
}

void hy_tools__delta_json(struct hy_tool_stream *t, hy_buf *b)
{
    const char *sep = "";
    hy_buf_putc(b, '[');
    for (size_t i = 0; i < t->n; i++) {
        call *c = &t->calls[i];
        if (!has_news(c))
            continue;
        hy_buf_printf(b, "%s{\"index\":%zu,", sep, i);
        if (c->told)
            hy_buf_puts(b, "\"function\":{\"arguments\":");
        else
            call_head(c, b);
        hy_json_str(b, hy_buf_str(&c->args) + c->sent, c->args.len - c->sent);
        hy_buf_puts(b, "}}");
        c->told = true;
        c->sent = c->args.len;
        sep = ",";
    }
    hy_buf_putc(b, ']');
}

void hy_tools__calls_json(const struct hy_tool_stream *t, hy_buf *b)
{
    hy_buf_putc(b, '[');
    for (size_t i = 0; i < t->n; i++) {
        const call *c = &t->calls[i];
        hy_buf_puts(b, i == 0 ? "{" : ",{");
        call_head(c, b);
        hy_json_str(b, hy_buf_str(&c->args), c->args.len);
        hy_buf_puts(b, "}}");
    }
    hy_buf_putc(b, ']');
}
