/* SPDX-License-Identifier: Apache-2.0
 *
 * The composite ops built from a device's primitives, in the order that defines their bits. The
 * registry puts them into empty composite slots; a backend that fills a slot may still call them
 * for cases it does not fuse.
 *
 * Thread: a queue's owner.  Owner: scratch is the caller's (hy_ws_bytes).
 */
#ifndef HY_HAL_COMPOSE_H
#define HY_HAL_COMPOSE_H

#include "hal/backend.h"

hy_status hy_compose_attn_in(hy_queue *q, const hy_attn_in *a);
hy_status hy_compose_attn_out(hy_queue *q, const hy_attn_out *a);
hy_status hy_compose_ffn(hy_queue *q, const hy_ffn *a);
hy_status hy_compose_head(hy_queue *q, const hy_head *a);
hy_status hy_compose_moe_ffn(hy_queue *q, const hy_moe_ffn *a);

/* moe_ffn takes its rows in parts of at most this many (row, expert) pairs. */
#define HY_MOE_PAIRS 2048
/* Rows of a part: whole rows, at least one. */
static inline int64_t hy_moe_part(int64_t k)
{
    return HY_MOE_PAIRS / k;
}
/* That the arguments are sound, and experts of one type and shape. */
hy_status hy_moe_ffn_check(const hy_moe_ffn *a);
hy_status hy_moe_route_check(const hy_moe_route *a);

/* Scratch of one call, carved from its hy_ws: every array starts on 64 bytes. */
typedef struct hy_carve {
    char *p;
    size_t left;
    bool short_of; /* a take did not fit */
} hy_carve;

hy_carve hy_carve_of(hy_ws ws);
/* n floats; NULL (and short_of) when the scratch is too small. */
float *hy_carve_take(hy_carve *c, int64_t n);
/* HY_E_INVAL naming the op when a take did not fit. */
hy_status hy_carve_check(const hy_carve *c, hy_op op);

#endif
