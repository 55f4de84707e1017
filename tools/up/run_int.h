/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the supervisor: a child process and what is known of it.
 *
 * Thread: main, in libevent's loop.  Owner: the supervisor.
 */
#ifndef HY_TOOLS_UP_RUN_INT_H
#define HY_TOOLS_UP_RUN_INT_H

#include "core/base/clock.h"
#include "core/http/client.h"
#include "tools/up/run.h"

#include <event2/event.h>
#include <sys/types.h>

typedef enum up_state {
    UP_STARTING,
    UP_RUNNING, /* healthy */
    UP_SILENT,  /* was healthy, does not answer */
    UP_PAUSE,   /* died; will be started again */
    UP_ENDED,   /* ended by itself and stays so */
    UP_FAILED,  /* given up */
} up_state;

typedef struct up_child {
    struct up *u;
    const hy_up_node *n;
    up_state state;
    pid_t pid; /* 0: no process */
    char *log;
    off_t log_from; /* of this start */
    char host[128];
    int port;     /* 0: not known yet */
    bool guessed; /* the address is the configured one: the log does not tell */
    struct event *timer;
    hy_client_call *probe;
    int probe_status, misses, restarts;
    uint64_t probe_ns;
    bool was_up;
    uint64_t started_ns, up_ns;
    uint64_t mute_ns;      /* /health unanswered since (the start, at first); 0: it is answered */
    uint64_t longest_ns;   /* that a start took until it was up */
    hy_buf answer;         /* GET /links */
    struct up_link *links; /* [n->n_links] */
    uint64_t asked_ns;     /* for its links */
} up_child;

/* A link that a node has, or should have. */
typedef struct up_link {
    char peer[64], state[16], text[320]; /* text: its path, or why it is down */
} up_link;

typedef struct up {
    const hy_up_plan *p;
    const char *exe;
    char *secret;
    int lock;
    struct event_base *base;
    hy_client *client;
    struct event *sigs[3], *deadline;
    up_child *kids;
    int stopping; /* 0; 1: routers; 2: nodes; 3: killed */
    bool table_shown, told_all, failed;
    hy_buf saved;              /* the state file's text */
    bool state_lost;           /* it cannot be written */
    uint64_t t0_ns, all_up_ns; /* all_up: 0 while somebody is missing */
} up;

/* table.c: nodes and links as people and `--status` see them. */
void hy_up__table(const up *u, hy_buf *out);
/* RUN_DIR/state: the table, for other processes. */
void hy_up__save_state(up *u);
/* All links that are to be there from the start are. */
bool hy_up__linked(const up *u);
hy_status hy_up__links_init(up_child *c);
bool hy_up__child_linked(const up_child *c);
/* A node has died: its links and its peers' to it are gone, whatever was said of them last. */
void hy_up__links_lost(up *u, const char *name);
/* From the answer of GET /links; false: no such answer. */
bool hy_up__take_links(up_child *c);

/* spawn.c: the folder of logs with its lock and secret. */
hy_status hy_up__dir(up *u);
/* Starts the process; c->pid and c->log_from are set. */
hy_status hy_up__spawn(up_child *c);
/* The address that the node printed since its start; false: not yet. */
bool hy_up__find_address(up_child *c);
/* Last lines of its log since the start. */
void hy_up__log_tail(const up_child *c, hy_buf *out);

#endif
