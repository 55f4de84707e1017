/* SPDX-License-Identifier: Apache-2.0
 *
 * A random world for the scheduler: options, requests, a client stage that submits and aborts them,
 * and the oracle's verdict on what came of them.
 *
 * Thread: the test's; requests are recorded on the sched stage's.  Owner: world_end frees all.
 */
#ifndef HY_TESTS_WORLD_H
#define HY_TESTS_WORLD_H

#include "tests/flow/fake_exec.h"
#include "tests/unit/cm.h"

#include "core/base/metric.h"
#include "core/base/runtime.h"

#include <stdatomic.h>

enum { MAX_REQS = 40, MAX_CHOICES = 4, MAX_TOKENS = 400, N_END = 2 };
typedef struct record { /* of one choice */
    int32_t n_tok;
    int32_t tok[MAX_TOKENS];
    int32_t n_finished;
    hy_req_event last; /* its HY_REQ_FINISHED; arrays are not kept */
    bool finish_asked;
    char handover[32]; /* of its end */
} record;

typedef struct plan_req { /* a request to be made, and what came of it */
    struct world *w;
    uint64_t id;
    int32_t prompt[MAX_TOKENS], n_prompt;
    int32_t n, max_tokens, min_tokens, stop_id, prompt_lp, priority, logprobs;
    bool ignore_eos, no_cache, aborted;
    uint64_t seed, submit_ns, abort_ns, deadline_ns;
    const char *salt;
    int32_t finish_after; /* finish_choice when a choice has that many tokens; 0: never */
    hy_status submitted;
    int32_t busy;
    record rec[MAX_CHOICES];
    int32_t n_last, n_scored;
} plan_req;

typedef struct world {
    hy_engine_opts o;
    int32_t windows[3], blocks[3];
    hy_rng rng;
    hy_metrics *metrics;
    hy_engine *e;
    fake_exec *exec;
    hy_connector *conn; /* NULL: none */
    hy_stage *client;
    hy_runtime *rt;
    plan_req *req;
    int32_t n_req;
    _Atomic int32_t n_ended;
    uint64_t seed;
} world;

#define CHECK(w, cond)                                                                             \
    do {                                                                                           \
        if (!(cond))                                                                               \
            fail_msg("seed %llu: %s (line %d)", (unsigned long long)(w)->seed, #cond, __LINE__);   \
    } while (0)

world *world_make(uint64_t seed);
void world_start(world *w, hy_runtime_mode mode, bool failing);
void world_check(world *w, bool failing);
void world_end(world *w);
hy_req *world_req(plan_req *p);
int32_t world_pick(world *w, int32_t lo, int32_t hi);

#endif
