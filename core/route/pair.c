/* SPDX-License-Identifier: Apache-2.0
 *
 * Pairs: which decode node can take KV from which prefill node. Nodes know, since their links are
 * refused when something that changes values differs, and say so at GET /links, which is read
 * after each good check of a decode node. A pair that is refused gets no requests until the node
 * says otherwise; one of which nothing is known (no link yet, no such page) is as good as any.
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
    return d->bars[p - r->workers];
}

bool hy_route__has_taker(const hy_route *r, const hy_worker *p)
{
    for (size_t i = 0; i < r->n_workers; i++) {
        const hy_worker *w = &r->workers[i];
        if (w != p && (w->can & HY_ROUTE_DECODE) && w->state != HY_WORKER_DOWN &&
            hy_route__bar(r, p, w) == NULL)
            return true;
    }
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
    int n = 0;
    for (size_t k = 0; k < d->r->n_workers; k++)
        n += d->bars[k] != NULL;
    hy_metric_set(d->mx_bars, n);
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
    return strcmp(text_of(link, "peer"), p->name) == 0 ||
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
        take_links(d, json_object_get(o, "links"));
        json_decref(o);
    }
    hy_buf_clear(&d->links_text);
}

void hy_route__pairs_ask(hy_worker *d)
{
    bool any = false;
    for (size_t i = 0; i < d->r->n_workers; i++)
        any |= (d->r->workers[i].can & HY_ROUTE_PREFILL) && &d->r->workers[i] != d;
    if (!any || (d->can & HY_ROUTE_DECODE) == 0 || d->links_call != NULL)
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
        if (d->bars[i] == NULL)
            continue;
        hy_buf_puts(b, any ? ",{\"peer\":" : "[{\"peer\":");
        hy_json_cstr(b, r->workers[i].name);
        hy_buf_puts(b, ",\"why\":");
        hy_json_cstr(b, d->bars[i]);
        hy_buf_putc(b, '}');
        any = true;
    }
    hy_buf_puts(b, any ? "]" : "[]");
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
        for (size_t k = 0; k < r->n_workers; k++)
            if (r->workers[k].bars[i] != NULL)
                hy_buf_printf(b, "%s%s cannot take KV from %s: %s", b->len > 0 ? "; " : "",
                              r->workers[k].name, p->name, r->workers[k].bars[i]);
    }
    if (b->len == 0)
        hy_buf_puts(b, "none is there");
}
