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
    int port; /* 0: not known yet */
    struct event *timer;
    hy_client_call *probe;
    int probe_status, misses, restarts;
    bool was_up;
    uint64_t started_ns, up_ns;
} up_child;

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
    bool table_shown, failed;
    uint64_t t0_ns;
} up;

/* spawn.c: the folder of logs with its lock and secret. */
hy_status hy_up__dir(up *u);
/* Starts the process; c->pid and c->log_from are set. */
hy_status hy_up__spawn(up_child *c);
/* The address that the node printed since its start; false: not yet. */
bool hy_up__find_address(up_child *c);
/* Last lines of its log since the start. */
void hy_up__log_tail(const up_child *c, hy_buf *out);

#endif
