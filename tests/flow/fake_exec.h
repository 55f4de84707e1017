/* SPDX-License-Identifier: Apache-2.0
 *
 * A device stage whose "model" is a hash, but whose KV memory is real: each row writes one word
 * into the slot that the block table names and reads all slots it can see back through the table.
 * So a wrong table, a block reused too early or a bad prefix hit changes the tokens. The oracle
 * computes the same function from the tokens alone.
 *
 *     c(p)    = mix(c(p-1), token(p), p)    c(p-1) is read from group 0's memory; c(-1) = rope_long
 *     slot    = c(p) ^ group
 *     out(p)  = fold of mix over all groups and all visible slots j <= p (j > p - window)
 *     token   = mix(out, seed, choice, output position) % vocab, end tokens barred before
 * min_tokens
 *
 * Thread: the stage's; oracle: any.  Owner: the test.
 */
#ifndef HY_TESTS_FAKE_EXEC_H
#define HY_TESTS_FAKE_EXEC_H

#include "core/connector/connector.h"
#include "core/sched/engine.h"

enum { FAKE_POISON = 7 }; /* a prompt whose first token is this fails at its first sample */

/* What a sampler's draw depends on beside the logits. */
typedef struct fake_draw {
    uint64_t seed;
    int32_t choice, min_tokens;
    int32_t end[16], n_end; /* barred before min_tokens */
} fake_draw;

typedef struct fake_exec {
    hy_stage *stage;
    hy_mbox *sched;
    int32_t n_groups, block_tokens, vocab;
    int32_t window[HY_KV_MAX_GROUPS], n_blocks[HY_KV_MAX_GROUPS];
    uint64_t *mem[HY_KV_MAX_GROUPS]; /* with a device: as its memory was when it was last read */
    hy_dev *dev;                     /* NULL: mem is the KV memory; else base is, on it */
    hy_queue *queue;
    void *base[HY_KV_MAX_GROUPS];
    bool timed;           /* steps take virtual time */
    bool spread;          /* timed: groups are written one after another, as layers are */
    uint32_t fail_one_in; /* whole steps fail; 0: never */
    hy_batch *pending;
    hy_token_out *lp; /* the one result store, overwritten by each step */
    int32_t *top_ids;
    float *top_lps;
    int32_t max_rows;
    uint64_t *prev; /* [n_prev] sampled in the step before */
    int32_t n_prev;
    uint64_t n_steps, n_empty, n_rows, n_failed;
    int32_t most_prefill_with_decode; /* rows of prompts in a step that also decodes */
    int32_t most_rows;
    hy_connector *conn;
} fake_exec;

fake_exec *fake_exec_create(const hy_engine_opts *o, bool timed, uint32_t fail_one_in);
/* From now on the KV memory is the device's, which outlives f. Before the first step. */
void fake_exec_use(fake_exec *f, hy_dev *dev);
void fake_exec_destroy(fake_exec *f);
/* The sampler functions for hy_engine_opts. */
hy_sampler_ops fake_sampler_ops(void);
extern int32_t fake_samplers_alive;

uint64_t fake_mix(uint64_t a, uint64_t b);
/* Output of the row at the end of tokens [n]. */
uint64_t fake_oracle_out(const fake_exec *f, const int32_t *tok, int32_t n, bool rope_long);
int32_t fake_oracle_token(const fake_exec *f, uint64_t out, const fake_draw *d, int32_t out_pos);
/* For connectors that load and keep: the word of a position, and the chain that it holds. */
uint64_t fake_chain(uint64_t prev, int32_t tok, int32_t p);
uint64_t *fake_slot(const fake_exec *f, int32_t g, int32_t id, int32_t p);

#endif
