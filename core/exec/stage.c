/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor as a stage.
 *
 * Thread: handlers run on the stage's thread.  Owner: see stage.h.
 */
#include "core/exec/stage.h"

#include "core/base/alloc.h"

struct hy_exec_stage {
    hy_exec *exec;
    hy_stage *stage;
    hy_stage *sched;
};

static hy_status on_msg(void *self, hy_msg *msg)
{
    hy_exec_stage *s = self;
    if (msg->kind != HY_MSG_STEP) {
        hy_msg_drop(msg);
        return hy_fail(HY_E_INVAL, "exec does not know message %d", msg->kind);
    }
    hy_batch *b = msg->data;
    uint64_t t0 = hy_stage_now(s->stage);
    hy_stage_note(s->stage, "step");
    hy_status st = hy_exec_step(s->exec, b); /* also in b->status: sched decides what is lost */
    b->exec_ns = (int64_t)(hy_stage_now(s->stage) - t0);
    hy_msg back = {.kind = HY_MSG_STEP_DONE, .arg = b->step, .data = b};
    hy_status posted = hy_stage_post_reserved(s->sched, &back);
    HY_ASSERT(posted != HY_AGAIN); /* connect's promise of credit */
    return st < 0 ? st : HY_OK;
}

static const hy_stage_ops ops = {.on_msg = on_msg};

hy_exec_stage *hy_exec_stage_create(hy_exec *e, size_t depth)
{
    hy_exec_stage *s = hy_calloc(1, sizeof(*s));
    if (s == NULL)
        return NULL;
    s->exec = e;
    s->stage = hy_stage_create("exec", &ops, s, depth != 0 ? depth : 1, 1);
    if (s->stage == NULL) {
        hy_free(s);
        return NULL;
    }
    return s;
}

void hy_exec_stage_destroy(hy_exec_stage *s)
{
    if (s == NULL)
        return;
    hy_stage_destroy(s->stage);
    hy_free(s);
}

void hy_exec_stage_connect(hy_exec_stage *s, hy_stage *sched)
{
    s->sched = sched;
}

hy_stage *hy_exec_stage_of(hy_exec_stage *s)
{
    return s->stage;
}
