/* SPDX-License-Identifier: Apache-2.0
 *
 * The made-up device of docs/PORTING.md: a queue is a thread that runs jobs some time later.
 *
 * Thread: a queue's owner.  Owner: a job holds copies of all that its op was given.
 */
#ifndef HY_TESTS_PORT_TOY_H
#define HY_TESTS_PORT_TOY_H

#include "hal/backend.h"

typedef void (*toy_fn)(void *args);

/* A job for the queue's thread: args[bytes], then room for host arrays. Then submit it. */
void *toy_job(hy_queue *q, toy_fn fn, const void *args, size_t bytes, size_t more);
hy_status toy_submit(hy_queue *q, void *job);
/* Copies a host array into the job's room. */
const void *toy_keep(void *job, const void *src, size_t bytes);

/* An op that the device is said not to have (key `without`), -1: none. */
int toy_without(const hy_dev *d);

extern const hy_math_ops toy_math_ops;

#endif
