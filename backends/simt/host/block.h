/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the executor: one block on one thread, and the pool of threads.
 *
 * Thread: a worker's own.  Owner: the executor.
 */
#ifndef HY_SIMT_HOST_BLOCK_H
#define HY_SIMT_HOST_BLOCK_H

#include "backends/simt/dialect.h"
#include "backends/simt/host/exec.h"
#include "backends/simt/host/fiber.h"

#include <stdbool.h>

#define SIMT_MAX_WAVES  (SIMT_MAX_LANES / 32)
#define SIMT_MAX_ARRAYS 16

typedef enum simt_state {
    SIMT_READY,
    SIMT_AT_BARRIER,
    SIMT_AT_TEAM,
    SIMT_FRESH,
    SIMT_DONE,
} simt_state;

typedef struct simt_site {
    const char *file;
    int line;
} simt_site;

/* Exchange among a wave: two sets of slots, so that nobody overwrites what a slower lane reads. */
typedef struct simt_wave {
    int n, arrived, side;
    simt_op op;
    simt_site site;
    uint64_t slot[2][64];
    float a[2][2][16 * 16], b[2][2][8 * 16]; /* [side][team]: rows and columns of simt_mma */
} simt_wave;

typedef struct simt_array { /* of shared memory */
    const char *key, *name;
    uint32_t n, size, at;
    simt_shadow *shadow;
} simt_array;

typedef struct simt_access { /* to device memory */
    uintptr_t addr;
    uint32_t site, nth; /* line of the kernel, odd for a store; order */
    uint16_t lane, wave, bytes;
} simt_access;

typedef struct simt_block {
    const simt_launch *l;
    int n, wave, n_done, n_barrier, n_arrays;
    int n_fresh;          /* lanes that have not begun */
    int stack;            /* that runs; -1: the thread's own */
    const void *home_low; /* what the sanitizers want to know */
    size_t home_size;
    void *tsan_home, *tsan[SIMT_MAX_LANES];
    int n_stacks;     /* in use */
    uint32_t epoch;   /* barrier intervals, from 1 */
    uint32_t used;    /* shared bytes */
    uint32_t shadows; /* shadow elements used */
    bool failed;
    char text[384];
    simt_site barrier;
    uint8_t state[SIMT_MAX_LANES];
    simt_site at[SIMT_MAX_LANES];
    simt_lane lane[SIMT_MAX_LANES];
    simt_wave waves[SIMT_MAX_WAVES];
    simt_array arrays[SIMT_MAX_ARRAYS];
    simt_access *access; /* NULL: not counted */
    uint32_t n_access, lost;
    /* kept between blocks */
    simt_stacks stacks;
    char *shared;
    simt_shadow *shadow;
    void *home;                     /* the thread's own stack */
    uint16_t order[SIMT_MAX_LANES]; /* in which lanes begin */
} simt_block;

bool simt_block_init(simt_block *b, size_t stack);
void simt_block_fini(simt_block *b);
/* traffic.c; init: count from now on, fold: what the block did, added up. */
bool simt_traffic_init(simt_block *b);
void simt_traffic_note(simt_block *b, const void *p, size_t bytes, int write, const char *file,
                       int line);
void simt_traffic_fold(simt_block *b, simt_traffic *out);
/* Lanes begin in the order of b->order. */
void simt_block_run(simt_block *b, const simt_launch *l, int wave, uint32_t x, uint32_t y,
                    uint32_t z);

#endif
