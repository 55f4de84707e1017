/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of model and exec share: open a model on a device (cpu), run sequences with plain
 * block tables, read logits, compare log-softmax with golden lines.
 *
 * Thread: one.  Owner: lm_close.
 */
#ifndef HY_TESTS_GOLDEN_LM_H
#define HY_TESTS_GOLDEN_LM_H

#include "core/exec/exec.h"
#include "core/model/model.h"

#include <jansson.h>

typedef struct lm_opts {
    hy_act_mode act;
    hy_dtype kv;
    const char *isa;           /* NULL: auto */
    const char *backend;       /* NULL: cpu */
    const char *const *dev_kv; /* the backend's own keys; NULL: none */
    int threads;               /* 0: 1 */
    int32_t block_tokens, context, max_rows, max_seqs;
    int32_t max_logits; /* 0: max_rows */
} lm_opts;

typedef struct lm {
    hy_dev *dev;
    hy_model *model;
    hy_exec *exec;
    lm_opts o;
    int32_t n_blocks[8]; /* of each group */
    int32_t *tables;     /* [group][max_seqs][blocks of the context] */
    int32_t stride;
} lm;

/* The status of the failing call; its text is hy_fail_text(). Zero fields of o get defaults. */
hy_status lm_open(const char *path, const lm_opts *o, lm *out);
void lm_close(lm *l);

/* One sequence's part of a step: rows [from, from + n) of ids. */
typedef struct lm_part {
    int32_t slot; /* which block table */
    const int32_t *ids;
    int32_t from, n;
    int32_t logits_from; /* position of the first row that needs logits */
    bool rope_long;
} lm_part;

/* Runs the parts as one step (row order: parts in turn). */
hy_status lm_step(lm *l, const lm_part *parts, int32_t n_parts);

/* Runs ids in chunks of at most max_rows; fn gets the logits of each row from position `first`. */
typedef void (*lm_row_fn)(void *arg, int32_t pos, const float *logits);
hy_status lm_run(lm *l, int32_t slot, const int32_t *ids, int32_t n, int32_t chunk, int32_t first,
                 lm_row_fn fn, void *arg);

/* log(sum(exp(v))) in double by libm. */
double lm_lse(const float *v, int32_t n);
int32_t lm_argmax(const float *v, int32_t n);

/* A golden file's lines as JSON objects; NULL when the file is absent. */
json_t *lm_read_jsonl(const char *path);
/* ids of a JSON array; the caller frees. */
int32_t *lm_ids(json_t *a, size_t *n_out);
/* $HY_SOURCE_DIR, or ".". */
const char *lm_source_dir(void);

/* Teacher-forced figures over golden lines (rule of golden/README.md). */
typedef struct lm_score {
    double sum, max;         /* of |log p - lp| */
    int64_t n, argmax_wrong; /* wrong where the margin demands it */
    double worst_margin;
    int64_t top1_miss;
} lm_score;
/* Scores one generate.jsonl line; adds to s. */
hy_status lm_generate(lm *l, json_t *line, double margin, lm_score *s, lm_row_fn extra, void *arg);

#endif
