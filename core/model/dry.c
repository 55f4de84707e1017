/* SPDX-License-Identifier: Apache-2.0
 *
 * A device without memory or arithmetic: a model built on it has gone through every check of its
 * tensors, and nothing was read or computed.
 *
 * Thread: any; the device has no state.  Owner: static; weights belong to the model as always.
 */
#include "core/model/build.h"

#include <stdlib.h>

static hy_dev dry;

static hy_status props(hy_dev *d, hy_dev_props *out)
{
    (void)d;
    *out = (hy_dev_props){.backend = "none", .name = "none"};
    return HY_OK;
}

static hy_status mem_alloc(hy_dev *d, size_t bytes, void **out)
{
    static char nowhere;
    (void)d;
    (void)bytes;
    *out = &nowhere;
    return HY_OK;
}

static void mem_free(hy_dev *d, void *p, size_t bytes)
{
    (void)d;
    (void)p;
    (void)bytes;
}

static hy_status queue_create(hy_dev *d, hy_queue **out)
{
    static hy_queue q = {&dry};
    (void)d;
    *out = &q;
    return HY_OK;
}

static void queue_destroy(hy_queue *q)
{
    (void)q;
}

static hy_status queue_wait(hy_queue *q)
{
    (void)q;
    return HY_OK;
}

static hy_status copy(hy_queue *q, void *dst, const void *src, size_t bytes)
{
    (void)q;
    (void)dst;
    (void)src;
    (void)bytes;
    return HY_OK;
}

static bool supports(hy_dev *d, const hy_op_query *q)
{
    (void)d;
    (void)q;
    return true;
}

static hy_status prepare_weight(hy_dev *d, const hy_weight_src *src, hy_weight **out)
{
    (void)d;
    hy_weight *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for a weight");
    *w = (hy_weight){.type = src->type, .n = src->n, .k = src->k, .borrowed = true};
    *out = w;
    return HY_OK;
}

static void weight_free(hy_dev *d, hy_weight *w)
{
    (void)d;
    free(w);
}

/* Only what loading calls: nobody runs a step on it. */
static const hy_dev_ops dev_ops = {.size = sizeof(hy_dev_ops),
                                   .props = props,
                                   .alloc = mem_alloc,
                                   .free = mem_free,
                                   .queue_create = queue_create,
                                   .queue_destroy = queue_destroy,
                                   .queue_wait = queue_wait,
                                   .copy = copy};
static const hy_math_ops math_ops = {.size = sizeof(hy_math_ops),
                                     .supports = supports,
                                     .prepare_weight = prepare_weight,
                                     .weight_free = weight_free};
static hy_dev dry = {.ops = &dev_ops, .math = &math_ops};

hy_dev *hy_dry_dev(void)
{
    return &dry;
}
