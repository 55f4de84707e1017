/* SPDX-License-Identifier: Apache-2.0
 *
 * Who belongs to the cluster. Static membership: the [peer.NAME] sections of the node's own file.
 *
 * Thread: any after creation.  Owner: the caller destroys; strings live as long.
 */
#ifndef HY_CLUSTER_CLUSTER_H
#define HY_CLUSTER_CLUSTER_H

#include "core/conf/conf.h"

/* What a peer may be asked for. */
enum {
    HY_PEER_PREFILL = 1,
    HY_PEER_DECODE = 2, /* also whole requests */
};

typedef struct hy_peer {
    char *name;
    char *role;  /* as written */
    char *url;   /* "" when none was given */
    char *addrs; /* of its fabric, "host:port[,host:port]"; "" when none was given */
    char *host;  /* of the URL; NULL without */
    int port;
    unsigned can;
} hy_peer;

typedef struct hy_cluster {
    hy_peer *peers;
    size_t n;
} hy_cluster;

/* HY_E_INVAL names section, key and what to change: a bad name or URL, two peers at one URL. */
hy_status hy_cluster_load(const hy_conf *c, hy_cluster *out);
void hy_cluster_fini(hy_cluster *c); /* a zeroed one is fine */
const hy_peer *hy_cluster_find(const hy_cluster *c, const char *name);

/* "http://host:port" (a path of "/" is fine; port 80 when none is given) into host, malloc'd, and
 * port. HY_E_INVAL. */
hy_status hy_cluster_parse_url(const char *url, char **host_out, int *port_out);

#endif
