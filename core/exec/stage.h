/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor as a stage: takes HY_MSG_STEP with a hy_batch, runs it, and posts HY_MSG_STEP_DONE
 * with the same batch to the scheduler, on reserved credit.
 *
 * Thread: create, connect and destroy before and after the runtime runs.
 * Owner: the caller destroys; the executor and the scheduler's stage outlive it.
 */
#ifndef HY_EXEC_STAGE_H
#define HY_EXEC_STAGE_H

#include "core/base/stage.h"
#include "core/exec/exec.h"

typedef struct hy_exec_stage hy_exec_stage;

/* depth: most batches in flight. NULL when out of memory. */
hy_exec_stage *hy_exec_stage_create(hy_exec *e, size_t depth);
void hy_exec_stage_destroy(hy_exec_stage *s); /* NULL is fine */
/* Who gets the batches back; needs at least `depth` reserved slots. */
void hy_exec_stage_connect(hy_exec_stage *s, hy_stage *sched);
hy_stage *hy_exec_stage_of(hy_exec_stage *s);

#endif
