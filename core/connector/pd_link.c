/* SPDX-License-Identifier: Apache-2.0
 *
 * Links that are wanted from the start ([connector] link), and the list of all links for people:
 * who is at the other end, which provider carries it, how the bytes are copied, or why it is down.
 *
 * Thread: connector stage; hy_pd_links any.  Owner: hy_pd.
 */
#include "core/base/alloc.h"
#include "core/connector/pd_int.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define AGAIN_FIRST (100 * HY_MS)
#define AGAIN_MOST  (5 * HY_SEC)

/* "NAME@host:port[+host:port]", one of the list. */
static hy_status add_link(hy_pd *p, const char *text, size_t len)
{
    char one[HY_HANDOVER_NODE_MAX + HY_HANDOVER_ADDRS_MAX];
    snprintf(one, sizeof(one), "%.*s", (int)len, text);
    char *at = strchr(one, '@');
    if (len >= sizeof(one) || at == NULL || at == one || at[1] == '\0' ||
        at - one >= HY_HANDOVER_NODE_MAX || strlen(at + 1) >= HY_HANDOVER_ADDRS_MAX)
        return hy_fail(HY_E_INVAL,
                       "[connector] link: '%s' must be NAME@host:port, more addresses of one node "
                       "behind a '+'",
                       one);
    *at++ = '\0';
    for (char *c = at; *c != '\0'; c++)
        if (*c == '+')
            *c = ',';
    pd_peer *x = hy_pd__peer(p, one, at);
    if (x == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a peer");
    x->wanted = true;
    return HY_OK;
}

hy_status hy_pd__links_init(hy_pd *p, const char *links)
{
    pthread_mutex_init(&p->links_lock, NULL);
    hy_buf_init(&p->links);
    while (links != NULL && *links != '\0') {
        const size_t n = strcspn(links, ",");
        if (n > 0)
            HY_TRY(add_link(p, links, n));
        links += n + (links[n] == ',');
    }
    return HY_OK;
}

void hy_pd__links_fini(hy_pd *p)
{
    pthread_mutex_destroy(&p->links_lock);
    hy_buf_fini(&p->links);
}

/* Connects what is wanted and down; comes again while something is. */
void hy_pd__links_timer(hy_pd *p)
{
    bool missing = false;
    p->links_timer = 0;
    for (pd_peer *x = p->peers; x != NULL; x = x->next) {
        if ((!x->wanted && x->refused[0] == '\0') || x->up)
            continue;
        missing = true;
        (void)hy_pd__connect(p, x);
    }
    p->links_wait = !missing                         ? 0
                    : p->links_wait == 0             ? AGAIN_FIRST
                    : p->links_wait * 2 < AGAIN_MOST ? p->links_wait * 2
                                                     : AGAIN_MOST;
    if (missing)
        hy_pd__timer(p, hy_pd__now(p) + p->links_wait, PD_T_LINK, 0, &p->links_timer);
}

void hy_pd__link_copy(const pd_peer *x, hy_buf *out)
{
    if (x->take == NULL)
        return;
    hy_kv_plan_describe(x->take, out);
    if (x->near != NULL && !hy_kv_plan_direct(x->take))
        hy_buf_puts(out, "; packed pieces are read in place");
}

static json_t *link_json(hy_pd *p, const pd_peer *x)
{
    hy_buf path, copy;
    hy_buf_init(&path);
    hy_buf_init(&copy);
    if (x->up)
        (void)hy_fab_peer_path(p->fab, x->fab, &path);
    hy_pd__link_copy(x, &copy);
    json_t *o = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s}", "peer", x->node, "addrs", x->addrs, "state",
                          x->refused[0] != '\0'    ? "refused"
                          : x->up && x->hello      ? "up"
                          : x->up || x->connecting ? "connecting"
                                                   : "down",
                          "path", hy_buf_str(&path), "copy", hy_buf_str(&copy), "why",
                          x->refused[0] != '\0' ? x->refused : x->why);
    hy_buf_fini(&path);
    hy_buf_fini(&copy);
    return o;
}

void hy_pd__links_note(hy_pd *p)
{
    json_t *list = json_array();
    int n_up = 0;
    for (const pd_peer *x = p->peers; x != NULL; x = x->next) {
        (void)json_array_append_new(list, link_json(p, x));
        n_up += x->up && x->hello;
        /* lost: soon again; refused: who avoids us for that would never see that it is over */
        if ((x->wanted || x->refused[0] != '\0') && !x->up && p->links_timer == 0)
            hy_pd__timer(p, hy_pd__now(p) + AGAIN_FIRST, PD_T_LINK, 0, &p->links_timer);
    }
    char *text = json_dumps(list, JSON_COMPACT);
    pthread_mutex_lock(&p->links_lock);
    hy_buf_clear(&p->links);
    if (text != NULL)
        hy_buf_puts(&p->links, text);
    pthread_mutex_unlock(&p->links_lock);
    free(text);
    json_decref(list);
    hy_metric_set(p->m.links, n_up);
}

void hy_pd_links(hy_pd *p, hy_buf *out)
{
    /* neither has quotes: hy_pd_create */
    hy_buf_printf(out, "{\"node\":\"%s\",\"addrs\":\"%s\",\"memory\":\"%s\",\"links\":", p->node,
                  p->addrs, p->memory);
    pthread_mutex_lock(&p->links_lock);
    hy_buf_puts(out, p->links.len > 0 ? hy_buf_str(&p->links) : "[]");
    pthread_mutex_unlock(&p->links_lock);
    hy_buf_putc(out, '}');
}
