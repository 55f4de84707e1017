/* SPDX-License-Identifier: Apache-2.0
 *
 * What a template expects of message contents, read off its syntax tree: does a for walk over the
 * content of a message, and does it ask whether a content is a string?
 *
 * Names are followed through set and for (messages -> message -> content), without regard to scope.
 *
 * Thread: any.  Owner: nothing kept.
 */
#include "core/text/chatreq.h"
#include "core/text/jinja_int.h"

enum { IS_MESSAGES = 1, IS_MESSAGE = 2, IS_CONTENT = 4 };

typedef struct detect {
    const hy_jinja *j;
    uint8_t *name; /* IS_* by name id */
    bool walks, asks, changed;
} detect;

static bool key_is(const jnode *n, const char *key)
{
    const jstr *s = n->kind == E_ATTR ? n->str
                    : n->kind == E_ITEM && n->b->kind == E_CONST && n->b->val.t == J_STR
                        ? n->b->val.s
                        : NULL;
    return s != NULL && s->len == strlen(key) && memcmp(s->p, key, s->len) == 0;
}

/* What an expression is, seen through filters, slices, indexes and conditions. */
static uint8_t kind_of(const detect *d, const jnode *n)
{
    if (n == NULL)
        return 0;
    switch (n->kind) {
    case E_NAME:
        return d->name[n->id];
    case E_FILTER:
        return kind_of(d, n->a);
    case E_COND:
        return kind_of(d, n->b) | kind_of(d, n->c);
    case E_ATTR:
        return key_is(n, "content") && (kind_of(d, n->a) & IS_MESSAGE) ? IS_CONTENT : 0;
    case E_ITEM:
        if (n->b->kind == E_SLICE)
            return kind_of(d, n->a);
        if (key_is(n, "content"))
            return kind_of(d, n->a) & IS_MESSAGE ? IS_CONTENT : 0;
        return kind_of(d, n->a) & IS_MESSAGES ? IS_MESSAGE : 0;
    default:
        return 0;
    }
}

static void mark(detect *d, const jnode *target, uint8_t kind)
{
    if (target->kind == E_NAME && (d->name[target->id] | kind) != d->name[target->id]) {
        d->name[target->id] |= kind;
        d->changed = true;
    }
}

static void walk(detect *d, const jnode *n)
{
    if (n == NULL)
        return;
    uint8_t k;
    switch (n->kind) {
    case S_FOR:
        k = kind_of(d, n->b);
        if (k & IS_MESSAGES)
            mark(d, n->a, IS_MESSAGE);
        d->walks |= (k & IS_CONTENT) != 0;
        break;
    case S_SET:
        mark(d, n->a, kind_of(d, n->b));
        break;
    case E_TEST:
        if (JSTR_IS(n->str, "string") || JSTR_IS(n->str, "iterable") ||
            JSTR_IS(n->str, "sequence") || JSTR_IS(n->str, "mapping"))
            d->asks = true;
        break;
    default:
        break;
    }
    walk(d, n->a);
    walk(d, n->b);
    walk(d, n->c);
    walk(d, n->d);
    walk(d, n->e);
    for (uint32_t i = 0; i < n->n_kids; i++)
        walk(d, n->kids[i]);
    for (uint32_t i = 0; i < n->args.n_pos; i++)
        walk(d, n->args.pos[i]);
    for (uint32_t i = 0; i < n->args.n_kw; i++)
        walk(d, n->args.kw[i]);
}

hy_chat_content hy_chatreq_content(const hy_jinja *j)
{
    uint8_t name[4096] = {0}; /* the parser's limit of names */
    detect d = {.j = j, .name = name};
    for (uint32_t i = 0; i < j->n_names; i++)
        if (JSTR_IS(j->names[i], "messages"))
            name[i] = IS_MESSAGES;
    do {
        d.changed = false;
        walk(&d, j->root);
    } while (d.changed);
    return !d.walks ? HY_CHAT_STRING : d.asks ? HY_CHAT_EITHER : HY_CHAT_PARTS;
}

bool hy_chatreq_reads(const hy_jinja *j, const char *name)
{
    for (uint32_t i = 0; i < j->n_names; i++)
        if (j->names[i]->len == strlen(name) && memcmp(j->names[i]->p, name, strlen(name)) == 0)
            return true;
    return false;
}
