/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU as the doubles of the vendors' libraries see it (cuda.c, hip.c give it the vendors' names).
 * As unkind as the real ones may be: work on a stream runs only when something waits for it, or at
 * any time before, in an order drawn from a seed; the host cannot touch device memory, nor a kernel
 * the host's; new memory is poisoned, freed memory faults; pinned memory is read and written when
 * the copy runs, and its destinations are poisoned until then. Kernels run by name on the host
 * executor.
 *
 * It fails on demand (out of memory, a failing launch, a lost device, at any call), and it can be
 * made to behave as if the host code had a fault: that proves that it would notice.
 *
 * HY_DOUBLE=key=value,... sets what sim_plan holds: wave, seed, fail, at, fault, nth, bare, image;
 * HY_DOUBLE_CUDA and HY_DOUBLE_HIP for one of them.
 *
 * Thread: any; one lock.  Owner: the process.
 */
#ifndef HY_TESTS_DOUBLE_SIM_H
#define HY_TESTS_DOUBLE_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Both vendors use these numbers. */
enum {
    SIM_OK = 0,
    SIM_INVALID = 1,
    SIM_NO_MEMORY = 2,
    SIM_NO_DEVICE = 100,
    SIM_NO_IMAGE = 209,
    SIM_LOST = 214,
    SIM_NOT_FOUND = 500,
    SIM_NOT_READY = 600,
    SIM_ILLEGAL_ADDRESS = 700,
    SIM_LAUNCH_FAILED = 719,
    SIM_UNSUPPORTED = 801,
    SIM_CAPTURE = 900,
    SIM_CAPTURE_BROKEN = 901,
};

typedef enum sim_fail { SIM_FAIL_NONE, SIM_FAIL_MEMORY, SIM_FAIL_LAUNCH, SIM_FAIL_LOST } sim_fail;

typedef enum sim_fault {
    SIM_FAULT_NONE,
    SIM_FAULT_WAIT,   /* the nth wait for an event is left out */
    SIM_FAULT_SYNC,   /* the nth wait for a stream returns at once */
    SIM_FAULT_COPY,   /* the nth copy comes too early: before what is queued */
    SIM_FAULT_LEAK,   /* the nth free of device memory is left out */
    SIM_FAULT_STATUS, /* the nth call that makes or starts something fails, and nobody looks */
    SIM_FAULT_LAUNCH, /* the nth launch is left out */
    SIM_FAULT_CLEAR,  /* the nth clearing of memory is left out: what is new is not zero */
    SIM_FAULT_FREED,  /* what the nth launch names first is freed before it */
} sim_fault;

typedef struct sim_plan {
    int wave;      /* 32 or 64; 0: as it is */
    uint64_t seed; /* 0: as late as can be */
    int fail;      /* sim_fail */
    int at;        /* call of it, counted from here, 1 the first */
    int fault;     /* sim_fault */
    int nth;
    int bare;       /* a kind device: nothing is poisoned, freed memory stays as it was */
    char image[16]; /* the device's name in images; "": takes any */
} sim_plan;

/* For tests, found by dlsym. sim_set begins to count anew. */
void sim_set(const sim_plan *p);
int sim_calls(void);            /* since sim_set */
int sim_sticky(void);           /* the device's error, or 0 */
int sim_runs(const char *call); /* how often an entry point was called, ever */
int sim_faults(void);           /* whether the planted fault came to pass */
const char *sim_fault_at(void); /* and in which entry point */
void sim_revive(void);          /* a lost device is as new */

/* For blas.c: d[j][i] = sum over k of a[i][k] b[j][k], i < n, j < m, on a stream. */
typedef struct sim_gemm {
    const void *a, *b;
    float *d;
    int64_t m, n, k, lda, ldb, ldd;
    bool bf16; /* else f16 */
    void *space;
    size_t space_bytes;
} sim_gemm;
int sim_ask_gemm(const sim_gemm *g, void *stream);
int sim_gemms(void); /* so far */

/* ---- for the entry points: under the lock, between sim_begin and sim_end ---- */

typedef struct sim_ipc {
    unsigned char bytes[64];
} sim_ipc;

/* A code to return instead, or SIM_OK. freeing: what the call gives back is given back anyway. */
int sim_begin(const char *call, bool freeing);
int sim_end(int code);

int sim_init(unsigned flags);
int sim_count(int *n);
int sim_wave(void);
int sim_mem_info(size_t *left, size_t *total);
int sim_alloc(void **p, size_t bytes);
int sim_free(void *p);
int sim_zero(void *p, unsigned char v, size_t n, void *s);
int sim_host_alloc(void **p, size_t bytes);
int sim_host_free(void *p);
int sim_host_register(void *p, size_t bytes);
int sim_host_unregister(void *p);
int sim_range(void **base, size_t *bytes, void *p);
int sim_export(void *fd, void *p, size_t bytes, int kind);
int sim_ipc_get(sim_ipc *out, void *p);
int sim_ipc_open(void **p, sim_ipc h);
int sim_ipc_close(void *p);
int sim_load(void **m, const void *image);
int sim_unload(void *m);
int sim_function(void **fn, void *m, const char *name);

int sim_stream_create(void **s, unsigned flags);
int sim_stream_destroy(void *s);
int sim_stream_sync(void *s);
int sim_stream_wait(void *s, void *e, unsigned flags);
int sim_copy(void *dst, const void *src, size_t bytes, void *s);
int sim_event_create(void **e);
int sim_event_destroy(void *e);
int sim_event_record(void *e, void *s);
int sim_event_query(void *e);
int sim_event_sync(void *e);
int sim_launch(void *fn, const uint32_t grid[3], const uint32_t block[3], unsigned shared, void *s,
               void **params, void **extra);
int sim_capture_begin(void *s, int mode);
int sim_capture_end(void *s, void **graph);
int sim_graph_build(void **exec, void *graph);
int sim_graph_free(void *graph);
int sim_graph_launch(void *exec, void *s);
int sim_graph_exec_free(void *exec);
const char *sim_error_name(int code);

/* ---- between sim.c and sim_stream.c ---- */

bool sim_on_device(const void *p, size_t bytes); /* wholly in one block in use */
bool sim_in_arena(const void *p);
bool sim_is_pinned(const void *p);
void sim_open_arena(bool on);
void sim_break(int code, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); /* fmt may be NULL */
bool sim_fault_now(sim_fault f);           /* counts; true at the nth */
bool sim_launch_fails(void);
bool sim_bare(void);
void sim_free_first(const void *args, size_t bytes); /* the first block that an argument names */
bool sim_run_kernel(int k, const uint32_t grid[3], int lanes, const void *args);
size_t sim_kernel_bytes(int k);
uint32_t sim_random(uint32_t n); /* 0 when the seed is 0 */
bool sim_seeded(void);
void sim_finish_all(void);
int sim_streams_left(void);
bool sim_capturing(void); /* on this thread: what would wait breaks the graph */

#endif
