/* SPDX-License-Identifier: Apache-2.0
 *
 * A recording KV connector for tests: it "has" random prefixes of every prompt, loads them inside
 * the step or asynchronously, late, partly or not at all, keeps blocks of some finished requests
 * until a random time or until they expire, and asserts the order of every call it gets.
 *
 * Thread: one (virtual time).  Owner: the test.
 */
#ifndef HY_TESTS_FAKE_CONN_H
#define HY_TESTS_FAKE_CONN_H

#include "tests/flow/fake_exec.h"

enum { CONN_MOST = 4096 };

typedef enum conn_life { CONN_NONE, CONN_ARRIVED, CONN_FINISHED } conn_life;

typedef struct conn_seq {
    conn_life life;
    int32_t asked_later;
    bool load_open; /* a load was ordered and not reported */
    bool send_open; /* blocks are kept and not reported */
} conn_seq;

typedef struct conn_job { /* a load or a send under way */
    bool send, async, expired;
    uint64_t uid;
    int32_t local, n, valid, polls;
    int32_t *tok;
    hy_kv_table tab[HY_KV_MAX_GROUPS];
    struct conn_job *next;
} conn_job;

typedef struct fake_conn {
    hy_connector c;
    fake_exec *exec;
    uint64_t seed;
    uint64_t (*now)(void *arg);
    void *now_arg;
    conn_seq seq[CONN_MOST]; /* by uid */
    conn_job *ordered;       /* by the scheduler half, not yet in a meta */
    conn_job *meta;          /* in the step under way */
    conn_job *jobs;          /* worker half's */
    uint64_t step;
    int32_t phase; /* of the worker half's calls */
    uint64_t n_later, n_sync, n_async, n_partial, n_kept, n_expired, n_steps, n_preempted;
} fake_conn;

fake_conn *fake_conn_create(uint64_t seed);
void fake_conn_destroy(fake_conn *k);
/* All that began has ended. NULL, or what has not. */
const char *fake_conn_check(const fake_conn *k);

#endif
