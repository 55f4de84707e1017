/* SPDX-License-Identifier: Apache-2.0
 *
 * How far two backends stand apart on one model: the same tokens through both (teacher-forced), the
 * distributions of every position and the residual stream after every layer compared. Each backend
 * is also compared with itself over another cut of the prompt, which must give the same bits where
 * it promises exactness.
 *
 * Thread: main.  Owner: hy_drift_fini frees what a result holds.
 */
#ifndef HY_TOOLS_DRIFT_H
#define HY_TOOLS_DRIFT_H

#include "core/conf/conf.h"
#include "core/exec/exec.h"

typedef struct hy_drift_opts {
    const hy_conf *conf; /* [engine] threads, activations; [kv] type; backends' keys */
    const char *a, *b;   /* backends, as [backend] name takes them */
    const char *path;    /* model */
    const int32_t *ids;
    int32_t n;
    int32_t chunk; /* rows of a step */
    bool control;
    void (*progress)(void *arg, int32_t done, int32_t n); /* tokens; may be NULL */
    void *arg;
} hy_drift_opts;

/* Two logits rows. */
typedef struct hy_drift_row {
    double kl;         /* of a's distribution to b's, nats */
    double lp_a, lp_b; /* log p of the target */
    bool same_top, same_bits;
} hy_drift_row;

/* Sums over rows. */
typedef struct hy_drift_rows {
    int32_t n, n_scored, same_top, same_bits;
    double *kl; /* [n] each, for percentiles */
    double kl_sum, kl_max;
    double lp_sum, lp_max; /* of |log p_a - log p_b| of the next token of the text */
    double nll_a, nll_b;   /* sums */
} hy_drift_rows;

/* The residual stream after a layer (or the embedding, layer -1). */
typedef struct hy_drift_layer {
    int32_t layer;
    double diff2, ref2;       /* sums of squares: of a - b, of a */
    double diff_max, ref_max; /* largest magnitudes */
} hy_drift_layer;

typedef struct hy_drift_side {
    char device[96], isa[32];
    bool exact;
    double seconds;         /* in steps */
    hy_drift_rows control;  /* against itself; n = 0: none was asked for */
    int32_t control_layers; /* rows of any layer whose bits were others */
} hy_drift_side;

typedef struct hy_drift {
    hy_drift_side a, b;
    hy_drift_rows rows;
    hy_drift_layer *layers;
    int32_t n_layers; /* entries of layers */
    int32_t vocab;
    char model[128];
} hy_drift;

hy_status hy_drift_run(const hy_drift_opts *o, hy_drift *out);
void hy_drift_fini(hy_drift *d);

/* target -1: none. lp_a and lp_b are then 0. */
void hy_drift_compare(const float *a, const float *b, int32_t vocab, int32_t target,
                      hy_drift_row *out);
/* The p-th percentile (0..100) of v[n], which is sorted on the way; 0 when n is 0. */
double hy_drift_percentile(double *v, int32_t n, double p);
/* sqrt(diff2 / ref2); 0 when both are. */
double hy_drift_relative(const hy_drift_layer *l);

#endif
