/* SPDX-License-Identifier: Apache-2.0
 *
 * Static membership from [peer.NAME] sections.
 *
 * Thread: see cluster.h.  Owner: see cluster.h.
 */
#include "core/cluster/cluster.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_NAME = 40 };
#define ADDRS_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:,[]-_%"

hy_status hy_cluster_parse_url(const char *url, char **host_out, int *port_out)
{
    const char *p = url, *host;
    size_t len;
    long port = 80;
    if (strncasecmp(p, "http://", 7) != 0)
        return hy_fail(HY_E_INVAL, "'%s' is no URL of the form http://HOST:PORT", url);
    p += 7;
    bool v6 = *p == '[';
    host = v6 ? p + 1 : p;
    len = strcspn(host, v6 ? "]" : ":/");
    p = host + len + (v6 && host[len] == ']');
    if (*p == ':') {
        char *end;
        port = p[1] >= '0' && p[1] <= '9' ? strtol(p + 1, &end, 10) : 0;
        if (port != 0)
            p = end;
    }
    if (len == 0 || strcspn(host, " \t@?#") < len || port < 1 || port > 65535 ||
        (*p != '\0' && strcmp(p, "/") != 0))
        return hy_fail(HY_E_INVAL, "'%s' is no URL of the form http://HOST:PORT", url);
    *host_out = strndup(host, len);
    if (*host_out == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    *port_out = (int)port;
    return HY_OK;
}

/* Names stand in headers, metrics and messages between nodes. */
static bool is_name(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n > 0 && n <= MAX_NAME && s[n] == '\0';
}

static unsigned can_of(const char *role)
{
    static const struct {
        const char *role;
        unsigned can;
    } table[] = {
        {"all", HY_PEER_DECODE},
        {"prefill", HY_PEER_PREFILL},
        {"decode", HY_PEER_DECODE},
        {"both", HY_PEER_PREFILL | HY_PEER_DECODE},
    };
    for (size_t i = 0; i < HY_COUNTOF(table); i++)
        if (strcmp(table[i].role, role) == 0)
            return table[i].can;
    return 0;
}

static hy_status load_peer(const hy_conf *c, const char *section, hy_cluster *to)
{
    hy_peer *p = &to->peers[to->n++];
    const char *name = section + strlen("peer.");
    *p = (hy_peer){.name = strdup(name),
                   .role = strdup(hy_conf_str(c, section, "role")),
                   .url = strdup(hy_conf_str(c, section, "url")),
                   .addrs = strdup(hy_conf_str(c, section, "addrs"))};
    if (p->name == NULL || p->role == NULL || p->url == NULL || p->addrs == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    if (!is_name(name))
        return hy_fail(HY_E_INVAL,
                       "[%s]: a peer's name has letters, digits, '.', '_' and '-', at most %d",
                       section, MAX_NAME);
    if (strspn(p->addrs, ADDRS_CHARS) != strlen(p->addrs))
        return hy_fail(HY_E_INVAL, "[%s] addrs: '%s' is no list host:port[,host:port]", section,
                       p->addrs);
    p->can = can_of(p->role);
    if (*p->url == '\0')
        return HY_OK;
    hy_status st = hy_cluster_parse_url(p->url, &p->host, &p->port);
    if (st < 0)
        return hy_fail_in(st, "%s: [%s] url: ", hy_conf_origin(c, section, "url"), section);
    for (size_t i = 0; i + 1 < to->n; i++)
        if (to->peers[i].host != NULL && to->peers[i].port == p->port &&
            strcmp(to->peers[i].host, p->host) == 0)
            return hy_fail(HY_E_INVAL, "[%s] url: %s is the URL of [peer.%s] too", section, p->url,
                           to->peers[i].name);
    return HY_OK;
}

hy_status hy_cluster_load(const hy_conf *c, hy_cluster *out)
{
    hy_cluster x = {0};
    const char *section;
    size_t n = 0;
    while (hy_conf_section_at(c, "peer.*", n) != NULL)
        n++;
    x.peers = calloc(n + 1, sizeof(*x.peers));
    if (x.peers == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    for (size_t i = 0; (section = hy_conf_section_at(c, "peer.*", i)) != NULL; i++) {
        hy_status st = load_peer(c, section, &x);
        if (st < 0) {
            hy_cluster_fini(&x);
            return st;
        }
    }
    *out = x;
    return HY_OK;
}

void hy_cluster_fini(hy_cluster *c)
{
    for (size_t i = 0; i < c->n; i++) {
        free(c->peers[i].name);
        free(c->peers[i].role);
        free(c->peers[i].url);
        free(c->peers[i].addrs);
        free(c->peers[i].host);
    }
    free(c->peers);
    *c = (hy_cluster){0};
}

const hy_peer *hy_cluster_find(const hy_cluster *c, const char *name)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->peers[i].name, name) == 0)
            return &c->peers[i];
    return NULL;
}
