/* SPDX-License-Identifier: Apache-2.0
 *
 * A cluster file, read and checked as a whole before anything is started: which nodes, from which
 * files, with which overrides, and that each of them would be a node.
 *
 *   [cluster]            name, run_dir, secret_file, start_timeout, stop_timeout
 *   [node.NAME]          file, set, restart, restart_backoff, max_restarts, hang_timeout
 *
 * Thread: main.  Owner: hy_up_plan_fini frees.
 */
#ifndef HY_TOOLS_UP_PLAN_H
#define HY_TOOLS_UP_PLAN_H

#include "core/cluster/cluster.h"

typedef enum hy_up_restart { HY_UP_NEVER, HY_UP_ON_FAILURE, HY_UP_ALWAYS } hy_up_restart;

typedef struct hy_up_node {
    char *name;
    char *file;  /* found: beside the cluster file, or from the working folder */
    char **sets; /* "section.key=value" */
    size_t n_sets;
    hy_up_restart restart;
    uint64_t backoff_ns;
    int max_restarts; /* in a row; 0: no limit */
    uint64_t hang_ns; /* /health unanswered for so long: killed; 0: never */
    char *links; /* "connector.link=..." to the nodes it gets KV from; NULL: none, or its own */
    size_t n_links;
    char *role; /* what follows is from the node's own configuration */
    char *host;
    int port;    /* 0: any */
    char *addrs; /* where its fabric is, "host:port[+host:port]"; NULL: none, or not known */
    bool own_links, takes,
        gives;   /* [connector] link is set; it gets KV from others; they from it */
    char *model; /* the file or folder, as check_node found it; NULL: not looked for */
    /* what must be equal for that: HELLO compares it (docs/PD.md), and the weights */
    char *kv_type, *activations, *numerics;
    bool lossy;       /* takes other value types */
    hy_cluster peers; /* a router's workers */
} hy_up_node;

typedef struct hy_up_plan {
    char *name;
    char *run_dir;
    char *secret_file; /* "" when one is to be made in run_dir */
    uint64_t start_timeout_ns, stop_timeout_ns;
    hy_up_node *nodes;
    size_t n;
} hy_up_plan;

/* What the plan needs of the command: a configuration with every backend's keys, and a check that
 * a node's model is there (may be NULL; *model: its path, malloc'd, untouched without one). */
typedef struct hy_up_env {
    hy_conf *(*make_conf)(void);
    hy_status (*check_node)(const hy_conf *node, char **model);
} hy_up_env;

/* The keys of a cluster file, for hy_conf_add_table. */
extern const hy_conf_key hy_up_keys[];
extern const size_t hy_up_n_keys;

/* `c` was loaded from the cluster file `path`. Failures name file, section and key. */
hy_status hy_up_plan_make(const hy_conf *c, const char *path, const hy_up_env *env,
                          hy_up_plan *out);
void hy_up_plan_fini(hy_up_plan *p); /* a zeroed one is fine */

/* The file is there, ours, and nobody else's to read. */
hy_status hy_up_plan_secret(const char *file);

/* Pairs of nodes whose link would be refused, as far as their files tell: a line each, with both
 * nodes and the key; and pairs whose models are not one file. HY_E_INVAL: a node is left without
 * anyone to take KV from, or to give it to.
 */
hy_status hy_up_plan_pairs(const hy_up_plan *p, hy_buf *out);
/* A line for each worker of a router that is no node of the file or one of another role, and for
 * each node that no router sends requests to, where there is a router. */
void hy_up_plan_peers(const hy_up_plan *p, hy_buf *out);

#endif
