/* SPDX-License-Identifier: Apache-2.0
 *
 * A prefill node, a decode node and a router of the simplest kind in one process: real engines over
 * fake devices whose KV memory is real, real connectors over the loop transport, virtual time. The
 * oracle says what tokens each request must get, whatever happens on the way.
 *
 * Thread: the test's.  Owner: pdw_end frees all.
 */
#ifndef HY_TESTS_PDWORLD_H
#define HY_TESTS_PDWORLD_H

#include "tests/flow/fake_exec.h"
#include "tests/unit/cm.h"

#include "core/base/runtime.h"
#include "core/connector/pd.h"
#include "fabric/loop/loop.h"

enum { PDW_NODES = 2, PDW_REQS = 64, PDW_TOKENS = 600 };

typedef struct pdw_node {
    struct pdw *w;
    int index;
    char name[16];
    hy_engine_opts o;
    int32_t windows[3], blocks[3];
    hy_metrics *metrics;
    hy_pd *pd;
    hy_engine *e;
    fake_exec *exec;
    bool alive;
    uint64_t starts; /* epochs so far */
} pdw_node;

typedef enum pdw_stage { PDW_IDLE, PDW_P, PDW_D, PDW_OVER } pdw_stage;

typedef struct pdw_req {
    struct pdw *w;
    int32_t *prompt, n_prompt, max_tokens, logprobs;
    bool ignore_eos, has_seed, local; /* local: D alone, no hand-over */
    uint64_t seed, at_ns, abort_ns;
    bool push, p_first;   /* both at once; which is asked before the other */
    bool no_d;            /* the router never asks D */
    bool keep;            /* D keeps its KV for the next turn */
    const char *p_params; /* P is to load this first (the next turn) */
    uint64_t named;       /* the router chose this number for P's lease; 0: it did not */
    /* what came of it */
    pdw_stage stage;
    uint64_t gen; /* of the leg: events of older ones are not ours */
    uint64_t p_id, d_id, p_start, d_start;
    char *handover, *d_handover;
    int32_t tok[PDW_TOKENS], n_tok;
    int32_t p_tok;
    bool d_tried, aborted, failed, done, lost;
    hy_finish finish;
    hy_status error;
    int32_t n_cached;
    char transfer[24];
} pdw_req;

typedef struct pdw_opts {
    uint64_t seed;
    int32_t n_groups;
    int32_t windows[3];
    int32_t block_tokens[PDW_NODES];
    int32_t blocks[PDW_NODES][3];
    int32_t context, max_batch, max_seqs;
    bool verify, fail, timed, spread; /* spread: see fake_exec.h */
    bool near; /* the nodes are on one host: packed pieces are read in the owner's staging */
    uint8_t model[PDW_NODES]; /* unlike ones must not link */
    uint64_t lease_ns, timeout_ns;
    size_t staging, min_run;
    hy_dev *dev[PDW_NODES]; /* the caller's; NULL: cpu */
    hy_loop_model net;
} pdw_opts;

typedef struct pdw {
    pdw_opts o;
    hy_rng rng;
    uint64_t t0; /* of the clock: other times count from here */
    hy_runtime *rt;
    hy_loop_net *net;
    hy_dev *dev;
    hy_stage *router;
    pdw_node node[PDW_NODES];
    pdw_req req[PDW_REQS];
    int32_t n_req, n_over;
    void *grave[256]; /* killed engines' parts, until the runtime is gone */
    int32_t n_grave;
    bool check;
} pdw;

#define PDW_CHECK(w, cond)                                                                         \
    do {                                                                                           \
        if (!(cond))                                                                               \
            fail_msg("seed %llu: %s (%s:%d)", (unsigned long long)(w)->o.seed, #cond, __FILE__,    \
                     __LINE__);                                                                    \
    } while (0)

void pdw_opts_init(pdw_opts *o, uint64_t seed);
pdw *pdw_make(const pdw_opts *o);
/* A request at time at_ns of virtual time; prompt is copied. */
pdw_req *pdw_add(pdw *w, const int32_t *prompt, int32_t n, int32_t max_tokens, uint64_t at_ns);
void pdw_abort_at(pdw_req *r, uint64_t at_ns);
void pdw_start_node(pdw *w, int i);
/* As kill -9: nothing of it runs any more. */
void pdw_kill(pdw *w, int i, bool silent);
/* Runs until every request is over and every block of living nodes is free, or limit_ns went by
 * (a failure). */
void pdw_run(pdw *w, uint64_t limit_ns);
bool pdw_settled(pdw *w);
/* Every request got the oracle's tokens, or ended for a reason that it may have. */
void pdw_verify(pdw *w, bool faults);
void pdw_end(pdw *w);
/* For a test's main: errors alone are shown; with HY_LOG in the environment, everything. */
void pdw_log(void);
int32_t pdw_pick(pdw *w, int32_t lo, int32_t hi);
/* n tokens of text number `which`. */
void pdw_text(int32_t *out, int32_t n, int32_t which);

#endif
