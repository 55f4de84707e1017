/* SPDX-License-Identifier: Apache-2.0
 *
 * How many prompt tokens a step may take while streams decode, so that it lasts no longer than a
 * given time: from the measured time of earlier steps. Changes the order of work, never a token.
 *
 * Thread: sched stage.  Owner: plain value; zero is a fresh one.
 */
#ifndef HY_SCHED_PACE_H
#define HY_SCHED_PACE_H

#include <stdint.h>

typedef struct hy_pace {
    double ns_per_row; /* 0: nothing measured yet */
} hy_pace;

enum {
    HY_PACE_MIN_ROWS = 16,    /* smaller steps say little about prompts: weights dominate */
    HY_PACE_FIRST_ROWS = 128, /* before anything is measured */
};

/* A step of n rows took ns. */
static inline void hy_pace_note(hy_pace *p, int32_t rows, int64_t ns)
{
    if (rows < HY_PACE_MIN_ROWS || ns <= 0)
        return;
    double x = (double)ns / (double)rows;
    p->ns_per_row = p->ns_per_row > 0.0 ? 0.7 * p->ns_per_row + 0.3 * x : x;
}

/* Prompt tokens beside `decodes` rows within target_ns: a multiple of 16, at least 16. */
static inline int32_t hy_pace_limit(const hy_pace *p, int32_t decodes, uint64_t target_ns,
                                    int32_t budget)
{
    double n = HY_PACE_FIRST_ROWS;
    if (p->ns_per_row > 0.0)
        n = (double)target_ns / p->ns_per_row - (double)decodes;
    if (n > (double)budget)
        return budget;
    return n < 32.0 ? 16 : (int32_t)n / 16 * 16;
}

#endif
