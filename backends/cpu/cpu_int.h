/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the cpu backend share. Two math tables exist: cpu_ref_math, plain scalar loops
 * in the order of docs/NUMERICS.md (the oracle), and the table of cpu_fast_math(), the same bits
 * by vector code and threads. isa = scalar selects the first.
 *
 * Thread: a device is made once; a queue has one owner thread, and ops finish before they return.
 * Owner: cpu.c owns devices, queues and memory.
 */
#ifndef HY_CPU_INT_H
#define HY_CPU_INT_H

#include "hal/backend.h"

/* Ascending: a higher one implies the lower ones. */
typedef enum cpu_isa {
    CPU_ISA_SCALAR = 0,
    CPU_ISA_AVX2 = 1,   /* AVX2, FMA, F16C, BMI2 */
    CPU_ISA_AVX512 = 2, /* F, BW, DQ, VL and VNNI */
    CPU_ISA_COUNT
} cpu_isa;

/* What this machine has beyond the ladder above; read once by cpu_isa_detect. */
typedef struct cpu_features {
    cpu_isa best;
    bool avx_vnni;
    bool avx512_bf16;
    bool avx512_vbmi;
} cpu_features;

struct cpu_pool; /* threads: pool.c */

typedef struct cpu_dev {
    hy_dev base;
    int index;
    int n_threads; /* resolved, >= 1 */
    cpu_isa isa;   /* resolved, <= feat.best */
    cpu_features feat;
    struct cpu_pool *pool; /* NULL with isa = scalar */
    void *fast;            /* the fast table's own state; made by cpu_fast_open */
} cpu_dev;

typedef struct cpu_queue {
    hy_queue base;
    void *scratch; /* grows to the largest op seen, then stays: no allocation in a step */
    size_t scratch_bytes;
} cpu_queue;

/* A prepared weight. The scalar reference reads `raw`; the fast table may drop it (NULL) after it
 * has repacked, and passes weights it has no kernel for to cpu_ref_math with raw kept. */
typedef struct cpu_weight {
    hy_weight base;
    const uint8_t *raw; /* rows in file format, row_bytes apart */
    size_t row_bytes;
    void *owned;  /* copy of raw when not borrowed; freed by weight_free */
    int pack;     /* fast table's format number; 0: none */
    void *packed; /* fast table's memory, freed by the fast table's weight_free */
    size_t packed_bytes;
    bool gather;
} cpu_weight;

static inline cpu_dev *cpu_dev_of(hy_dev *d)
{
    return (cpu_dev *)(void *)d;
}

static inline cpu_queue *cpu_queue_of(hy_queue *q)
{
    return (cpu_queue *)(void *)q;
}

static inline const cpu_weight *cpu_weight_of(const hy_weight *w)
{
    return (const cpu_weight *)(const void *)w;
}

/* ---- scalar reference (ref_*.c) ---- */
extern const hy_math_ops cpu_ref_math;
/* The default KV layout and weight life of both tables. */
hy_status cpu_kv_layout(hy_dev *d, hy_kv_layout *inout);
bool cpu_ref_supports(hy_dev *d, const hy_op_query *q);
/* Borrows src->data. */
hy_status cpu_ref_prepare_weight(hy_dev *d, const hy_weight_src *src, hy_weight **out);
void cpu_ref_weight_free(hy_dev *d, hy_weight *w);

/* ---- fast table (fast.c; present when CPU_HAVE_FAST is defined by CMake) ---- */
/* Starts the pool and whatever else the table needs; d->n_threads and d->isa are resolved. */
hy_status cpu_fast_open(cpu_dev *d);
void cpu_fast_close(cpu_dev *d);
const hy_math_ops *cpu_fast_math(cpu_dev *d);

/* ---- memory and queues (cpu.c) ---- */
/* 64-byte aligned and zeroed; huge pages asked for from 2 MiB on. NULL when out of memory. */
void *cpu_alloc(size_t bytes);
void cpu_free(void *p, size_t bytes);
/* Scratch of at least `bytes` that lives until the next call on q; NULL when out of memory. */
void *cpu_scratch(hy_queue *q, size_t bytes);

/* ---- instruction sets (isa.c) ---- */
void cpu_isa_detect(cpu_features *out);
const char *cpu_isa_name(cpu_isa isa);
/* NULL or "auto": the best; HY_E_INVAL unknown; HY_E_UNSUPPORTED when this CPU lacks it. */
hy_status cpu_isa_pick(const char *name, const cpu_features *f, cpu_isa *out);

#endif
