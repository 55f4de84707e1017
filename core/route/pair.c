/* SPDX-License-Identifier: Apache-2.0
 *
 * Pairs: which decode node can take KV from which prefill node. Nodes know, since their links are
 * refused when something that changes values differs, and say so at GET /links, which is read
 * after each good check of a decode node. A pair that is refused gets no requests until the node
 * says otherwise; one of which nothing is known (no link yet, no such page) is as good as any.
 *
 * The same page of any Halyard node says what its name is and where its fabric is: what decode is
 * told in push mode, and how two nodes of one name are noticed; and how long a request may be
 * there.
 *
 * Thread: route stage.  Owner: the router.
 */
#include "core/base/log.h"
#include "core/http/json_out.h"
#include "core/route/route_int.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LINKS = 1 << 20 }; /* bytes of the page */

const char *hy_route__bar(const hy_route *r, const hy_worker *p, const hy_worker *d)
{
    if (r->o.push && p->no_fabric && p != d && (d->can & HY_ROUTE_DECODE))
        return "the router does not know where its fabric is ([peer.NAME] addrs)";
    return d->bars[p - r->workers];
}

static void count_bars(const hy_worker *d)
{
    int n = 0;
    for (size_t k = 0; k < d->r->n_workers; k++)
        n += hy_route__bar(d->r, &d->r->workers[k], d) != NULL;
    hy_metric_set(d->mx_bars, n);
}

static bool may_take(const hy_route *r, const hy_worker *p, const hy_worker *d)
{
    return d != p && (d->can & HY_ROUTE_DECODE) && d->state != HY_WORKER_DOWN &&
           hy_route__bar(r, p, d) == NULL;
}

int32_t hy_route__context(const hy_route *r, const hy_worker *p)
{
    int32_t most = 0;
    for (size_t i = 0; i < r->n_workers; i++) {
        const hy_worker *d = &r->workers[i];
        if (!may_take(r, p, d))
            continue;
        if (d->context == 0)
            return 0;
        most = d->context > most ? d->context : most;
    }
    return most;
}

bool hy_route__has_taker(const hy_route *r, const hy_worker *p)
{
    for (size_t i = 0; i < r->n_workers; i++)
        if (may_take(r, p, &r->workers[i]))
            return true;
    return false;
}

bool hy_route__has_pair(const hy_route *r)
{
    for (size_t i = 0; i < r->n_workers; i++) {
        const hy_worker *w = &r->workers[i];
        if ((w->can & HY_ROUTE_PREFILL) && w->state != HY_WORKER_DOWN && hy_route__has_taker(r, w))
            return true;
    }
    return false;
}

static void set_bar(hy_worker *d, size_t i, const char *why)
{
    const hy_worker *p = &d->r->workers[i];
    char *old = d->bars[i];
    if (old != NULL && why != NULL && strcmp(old, why) == 0)
        return;
    d->bars[i] = why != NULL ? strdup(why) : NULL;
    if (old == NULL && why != NULL)
        hy_warn("route", "%s cannot take KV from %s: %s; no request goes through this pair",
                d->name, p->name, why);
    else if (old != NULL && why == NULL)
        hy_info("route", "%s may take KV from %s again", d->name, p->name);
    free(old);
    count_bars(d);
}

/* ---- what a node says ---- */

static const char *text_of(const json_t *link, const char *key)
{
    const char *s = json_string_value(json_object_get(link, key));
    return s != NULL ? s : "";
}

/* Of this worker? Peers have their nodes' names; where not, the address may tell. */
static bool is_of(const json_t *link, const hy_worker *p)
{
    return strcmp(text_of(link, "peer"), p->node[0] != '\0' ? p->node : p->name) == 0 ||
           (p->addrs[0] != '\0' && strcmp(text_of(link, "addrs"), p->addrs) == 0);
}

static const char *bar_of(const json_t *link)
{
    const char *state = text_of(link, "state"), *why = text_of(link, "why");
    if (strcmp(state, "refused") == 0)
        return why[0] != '\0' ? why : "the link is refused";
    if (strcmp(state, "up") == 0 && text_of(link, "copy")[0] == '\0')
        return "the link goes the other way only"; /* lossy, and only there it is accepted */
    return NULL;
}

static void take_links(hy_worker *d, const json_t *list)
{
    for (size_t i = 0; i < d->r->n_workers; i++) {
        const hy_worker *p = &d->r->workers[i];
        const char *why = NULL;
        if (p == d || (p->can & HY_ROUTE_PREFILL) == 0)
            continue;
        for (size_t k = 0; k < json_array_size(list); k++)
            if (is_of(json_array_get(list, k), p))
                why = bar_of(json_array_get(list, k));
        set_bar(d, i, why);
    }
}

/* ---- who it is ---- */

static bool keep(char **at, const char *s)
{
    enum { MOST = 1024 }; /* it goes into every request */
    char *copy = strcmp(*at, s) != 0 && strlen(s) <= MOST ? strdup(s) : NULL;
    if (copy == NULL)
        return false;
    free(*at);
    *at = copy;
    return true;
}

static const hy_worker *twin_of(const hy_worker *w)
{
    for (size_t i = 0; i < w->r->n_workers && w->node[0] != '\0'; i++) {
        const hy_worker *x = &w->r->workers[i];
        if (x != w && x->state != HY_WORKER_DOWN && strcmp(x->node, w->node) == 0)
            return x;
    }
    return NULL;
}

static void take_self(hy_worker *w, const json_t *page)
{
    const char *addrs = text_of(page, "addrs");
    const bool is_node = json_is_array(json_object_get(page, "links")), had = w->no_fabric;
    const json_int_t context = json_integer_value(json_object_get(page, "context"));
    w->context = context > 0 && context < INT32_MAX ? (int32_t)context : 0;
    (void)keep(&w->node, text_of(page, "node"));
    const hy_worker *x = twin_of(w);
    if (x != NULL && !w->twin && !x->twin)
        hy_warn("route",
                "%s and %s are both called %s: links and KV of one are taken for the other's; give "
                "each its own [node] name",
                x->name, w->name, w->node);
    w->twin = x != NULL;
    if (w->addrs[0] == '\0' || w->told_addrs)
        w->told_addrs = keep(&w->addrs, addrs) || w->told_addrs;
    w->no_fabric = is_node && w->addrs[0] == '\0' && (w->can & HY_ROUTE_PREFILL);
    if (!w->r->o.push || w->no_fabric == had)
        return;
    if (w->no_fabric)
        hy_warn(
            "route",
            "%s does not say where its fabric is ([connector] kind = none?), nor does [peer.%s] "
            "addrs: it gets no requests in push mode",
            w->name, w->name);
    else
        hy_info("route", "%s has a fabric: it gets requests", w->name);
    for (size_t i = 0; i < w->r->n_workers; i++)
        count_bars(&w->r->workers[i]);
}

static void on_head(void *arg, const hy_wire_head *head)
{
    hy_worker *d = arg;
    d->links_status = head->status;
}

static void on_body(void *arg, struct evbuffer *piece)
{
    hy_worker *d = arg;
    if (d->links_text.len + evbuffer_get_length(piece) > MOST_LINKS) {
        d->links_status = 0; /* no such page of ours */
        return;
    }
    const size_t n = evbuffer_get_length(piece);
    const char *s = (const char *)evbuffer_pullup(piece, -1);
    if (s != NULL)
        hy_buf_add(&d->links_text, s, n);
}

static void on_end(void *arg, hy_client_fate fate, const char *why)
{
    hy_worker *d = arg;
    (void)why;
    d->links_call = NULL;
    if (fate == HY_CLIENT_DONE) { /* else the next check tells what is wrong */
        json_t *o = d->links_status == 200
                        ? json_loadb(hy_buf_str(&d->links_text), d->links_text.len, 0, NULL)
                        : NULL;
        if (o != NULL)
            take_self(d, o);
        if (d->can & HY_ROUTE_DECODE)
            take_links(d, json_object_get(o, "links"));
        json_decref(o);
    }
    hy_buf_clear(&d->links_text);
}

void hy_route__links_ask(hy_worker *d)
{
    bool any = false;
    for (size_t i = 0; i < d->r->n_workers; i++)
        any |= (d->r->workers[i].can & HY_ROUTE_PREFILL) != 0;
    if (!any || d->links_call != NULL)
        return;
    hy_client_req q = {
        .host = d->host,
        .port = d->port,
        .method = "GET",
        .target = "/links",
        .head_timeout_ns = d->r->o.health_timeout_ns,
        .stall_timeout_ns = d->r->o.health_timeout_ns,
        .fresh = true,
        .ops = {on_head, on_body, on_end},
        .arg = d,
    };
    d->links_status = 0;
    if (hy_client_send(d->r->client, &q, &d->links_call) < 0)
        d->links_call = NULL;
}

/* ---- for people ---- */

void hy_route__bars_json(const hy_worker *d, hy_buf *b)
{
    const hy_route *r = d->r;
    bool any = false;
    for (size_t i = 0; i < r->n_workers; i++) {
        const char *why = hy_route__bar(r, &r->workers[i], d);
        if (why == NULL)
            continue;
        hy_buf_puts(b, any ? ",{\"peer\":" : "[{\"peer\":");
        hy_json_cstr(b, r->workers[i].name);
        hy_buf_puts(b, ",\"why\":");
        hy_json_cstr(b, why);
        hy_buf_putc(b, '}');
        any = true;
    }
    hy_buf_puts(b, any ? "]" : "[]");
}

bool hy_route__twins_json(const hy_route *r, hy_buf *b)
{
    bool any = false;
    for (size_t i = 0; i < r->n_workers; i++) {
        const hy_worker *w = &r->workers[i], *x = twin_of(w);
        if (x == NULL || x < w || w->state == HY_WORKER_DOWN) /* told with the first of them */
            continue;
        hy_buf_puts(b, any ? ",[" : "\"same_name\":[[");
        hy_json_cstr(b, w->name);
        for (; x < r->workers + r->n_workers; x++) {
            if (x->state == HY_WORKER_DOWN || strcmp(x->node, w->node) != 0)
                continue;
            hy_buf_putc(b, ',');
            hy_json_cstr(b, x->name);
        }
        hy_buf_putc(b, ']');
        any = true;
    }
    if (any)
        hy_buf_putc(b, ']');
    return any;
}

void hy_route__why_alone(const hy_route *r, hy_buf *b)
{
    for (size_t i = 0; i < r->n_workers; i++) {
        const hy_worker *p = &r->workers[i];
        if ((p->can & HY_ROUTE_PREFILL) == 0)
            continue;
        if (p->state == HY_WORKER_DOWN) {
            hy_buf_printf(b, "%s%s is down: %s", b->len > 0 ? "; " : "", p->name, p->why);
            continue;
        }
        for (size_t k = 0; k < r->n_workers; k++) {
            const hy_worker *d = &r->workers[k];
            const char *why = hy_route__bar(r, p, d);
            if (why != NULL)
                hy_buf_printf(b, "%s%s cannot take KV from %s: %s", b->len > 0 ? "; " : "", d->name,
                              p->name, why);
        }
    }
    if (b->len == 0)
        hy_buf_puts(b, "none is there");
}
