/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the nodes of a plan as child processes until it is told to stop: starts them, waits until
 * each is healthy, restarts what died, and stops routers before the nodes behind them.
 *
 * Thread: main.  Owner: the plan is the caller's.
 */
#ifndef HY_TOOLS_UP_RUN_H
#define HY_TOOLS_UP_RUN_H

#include "tools/up/plan.h"

/* `exe` is run as `exe serve FILE -o ...`. Returns the exit status: 0 after an orderly stop, 1 when
 * a node failed for good or the cluster could not be run (hy_fail_text then says why). */
int hy_up_run(const hy_up_plan *p, const char *exe);
/* Prints the table of the cluster that runs from the plan's folder. Exit status: 0 when every node
 * and link is up, 1 when one is not or no supervisor runs. */
int hy_up_status(const hy_up_plan *p);
/* Its nodes' addresses, "http://host:port\n" each; HY_E_NOTFOUND: it does not run. */
hy_status hy_up_urls(const hy_up_plan *p, hy_buf *out);

#endif
