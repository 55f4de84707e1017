/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance suite: says when a backend is done. Every op runs over all types and odd shapes
 * against double precision, within bounds stated in the code; where the device promises the cpu
 * order, also against the cpu scalar reference, bit for bit; composites against the same ops
 * composed. What supports() claims and does wrong fails; what it refuses is listed.
 *
 * Thread: one run at a time on a device.  Owner: the caller holds the device.
 */
#ifndef HY_HAL_CONFORM_H
#define HY_HAL_CONFORM_H

#include "core/base/buf.h"
#include "hal/backend.h"

typedef enum hy_conform_result {
    HY_CONFORM_PASS,
    HY_CONFORM_FAIL,
    HY_CONFORM_REFUSED, /* supports() says no */
} hy_conform_result;

/* One op with one set of types over all its shapes. */
typedef struct hy_conform_item {
    hy_op op;
    const char *what; /* "q4_k int8", "f16 in f32" */
    hy_conform_result result;
    int cases;
    double worst;     /* largest error as a part of its bound: above 1 fails */
    const char *text; /* of the first failure; "" */
} hy_conform_item;

typedef void (*hy_conform_cb)(void *arg, const hy_conform_item *it);

typedef struct hy_conform_opts {
    const char *only; /* op name; NULL: all */
    const char *what; /* only items whose `what` begins so; NULL: all */
    bool quick;       /* a third of the shapes, none of the long ones */
    int half;      /* 1, 2: of the items about operations only each second, from that one; 0: all */
    uint64_t seed; /* of the inputs; 0: the default */
    hy_dev *same;  /* results must have this device's bits; NULL: the cpu's where promised */
    bool fast;     /* the device was opened with numerics = fast */
    void (*lose)(void *arg); /* makes the device fail for good, at the end; NULL: not tried */
    void *lose_arg;
    bool again; /* this program with its arguments comes here with the same device: so exported
                   memory can be tried in another process */
} hy_conform_opts;

typedef struct hy_conform_sum {
    int passed, failed, refused;
    int cases;
    bool bits; /* bit equality with the cpu scalar reference, or with `same`, was asked */
} hy_conform_sum;

/* o, cb and sum may be NULL. HY_OK when the suite ran, whatever it found; a failure status: it
 * could not run (no memory, no cpu reference). */
hy_status hy_conform_run(hy_dev *d, const hy_conform_opts *o, hy_conform_cb cb, void *arg,
                         hy_conform_sum *sum);

/* docs/SUPPORT.md: what each op of these devices says about each type. */
hy_status hy_conform_table(hy_dev *const *devs, size_t n, hy_buf *out);

#endif
