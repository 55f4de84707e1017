/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the conformance suite: two sides (the device under test and the cpu scalar reference),
 * cases that own what they allocate, and the judge.
 *
 * A group is one reported item. Within it: cf_case names the case and frees the one before, the
 * same inputs run on both sides, and cf_judge compares.
 *
 * Thread: the caller of hy_conform_run.  Owner: a case's memory lives until the next cf_case.
 */
#ifndef HY_HAL_CONFORM_INT_H
#define HY_HAL_CONFORM_INT_H

#include "core/base/rng.h"
#include "hal/conform.h"

typedef struct cf_mem { /* freed with the case */
    struct cf_mem *next;
    hy_dev *dev; /* NULL: host */
    void *p;
    size_t bytes;
    hy_weight *w; /* not NULL: a weight of dev */
} cf_mem;

typedef struct cf_side {
    hy_dev *dev;
    hy_queue *q;
} cf_side;

typedef struct cf {
    cf_side dut, ref;
    bool bits; /* results must equal ref's: dut keeps the cpu order, or ref was given */
    bool exact;
    bool loose; /* numerics = fast: matmuls may round both sides to bf16 */
    bool quick;
    int half, groups; /* of the groups, so many so far, each second from this one (1, 2); 0: all */
    const hy_conform_opts *opts;
    hy_conform_cb cb;
    void *arg;
    hy_conform_sum sum;
    hy_rng rng;
    cf_mem *mem;
    bool no_mem; /* an allocation of the suite failed: nothing counts */
    /* the group */
    hy_op op;
    char what[64];
    bool skip;
    int cases;
    double worst;
    char shape[128];
    char text[384];
    bool failed;
} cf;

#define CF_TINY 1e-30   /* added to every bound */
#define CF_U    0x1p-24 /* half an ulp of 1 in f32 */

/* Begins a group; false when it is filtered out or refused (then it has been reported). */
bool cf_group(cf *c, const hy_op_query *q, const char *what, ...)
    __attribute__((format(printf, 3, 4)));
void cf_group_end(cf *c);
/* Names the next case. */
void cf_case(cf *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Counts the case as failed. */
void cf_bad(cf *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* True when st is HY_OK; else the case fails with the recorded text. */
bool cf_ok(cf *c, const char *what, hy_status st);

/* Host and device memory of the case. On failure c->no_mem is set and NULL returned. */
void *cf_host(cf *c, size_t bytes);
void *cf_dev(cf *c, cf_side *s, const void *host, size_t bytes);
bool cf_get(cf *c, cf_side *s, void *host, const void *dev, size_t bytes);
hy_weight *cf_weight(cf *c, cf_side *s, const hy_weight_src *src);

/* Inputs. */
float cf_normal(cf *c); /* about N(0, 1) */
int cf_below(cf *c, int n);
float *cf_rand(cf *c, int64_t n, float scale);
/* Random blocks of a type, 32-byte aligned, with scales that keep values near 1. */
uint8_t *cf_blocks(cf *c, hy_dtype t, int64_t n, int64_t k);
/* An output array filled with a pattern that judge looks for behind each row. */
float *cf_out(cf *c, int64_t n);

typedef struct cf_cmp {
    const float *got, *ref;     /* ref NULL: bits are not compared */
    const double *want, *bound; /* [rows][cols]; NULL: only bits */
    int64_t rows, cols, ld;     /* ld of got and ref */
} cf_cmp;
void cf_judge(cf *c, const cf_cmp *j);

/* Suites. */
void cf_matmul(cf *c);  /* conform_matmul.c: matmul, embed */
void cf_simple(cf *c);  /* conform_simple.c: norms, rope, act_mul, add, topk */
void cf_cache(cf *c);   /* conform_attn.c: kv_write, attention, kv_pack, kv_unpack */
void cf_moe(cf *c);     /* conform_moe.c: moe_route, moe_ffn */
void cf_compose(cf *c); /* conform_compose.c: composites */
void cf_device(cf *c);  /* conform_device.c: order, memory */
void cf_device_lost(cf *c);
void cf_share(cf *c); /* conform_share.c: export, import */
/* *is_out: this process is the other one of cf_share, and what it was there for is done. */
hy_status cf_guest(cf *c, bool *is_out);

extern const hy_dtype cf_weight_types[];
extern const int cf_n_weight_types;

#endif
