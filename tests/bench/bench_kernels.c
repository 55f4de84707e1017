/* SPDX-License-Identifier: Apache-2.0
 *
 * Micro-benchmark of the cpu backend: products of one type and shape, as GOP/s against the peak
 * probed in the same run, and as GB/s of packed weights against a plain read of memory.
 *
 *     bench_kernels [-c 1] [-t THREADS] [-i ISA] [TYPE N K M]...
 *
 * Figures, never a verdict: the machine's other guests move them.
 */
#include "backends/cpu/cpu.h"
#include "backends/cpu/cpu_int.h"
#include "backends/cpu/pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static bool cpu_time; /* -c: for one thread on a machine with other load */

static double now(void)
{
    struct timespec t;
    clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(hy_status st)
{
    if (st == HY_OK)
        return;
    fprintf(stderr, "bench_kernels: %s\n", hy_fail_text());
    exit(1);
}

/* ---- probes ---- */

#define PROBE_BYTES ((size_t)256 << 20)
#define PIECE       ((size_t)1 << 20)

typedef struct probe {
    const uint64_t *mem;
    uint64_t sink[CPU_MAX_THREADS * 8];
} probe;

static void read_item(void *ctx, int item, int thread)
{
    probe *p = ctx;
    const uint64_t *a = p->mem + (size_t)item * PIECE / 8;
    size_t n = PIECE / 8 / 4;
    uint64_t s = 0;
    for (size_t i = 0; i < n; i += 8) /* four streams, a line of each */
        s += a[i] + a[n + i] + a[2 * n + i] + a[3 * n + i];
    p->sink[thread * 8] += s;
}

static double probe_read(cpu_dev *d)
{
    probe p = {.mem = cpu_alloc(PROBE_BYTES)};
    if (p.mem == NULL)
        exit(1);
    memset((void *)(uintptr_t)p.mem, 1, PROBE_BYTES);
    double best = 0;
    for (int i = 0; i < 4; i++) {
        double t = now();
        cpu_pool_for(d->pool, (int)(PROBE_BYTES / PIECE), read_item, &p);
        t = now() - t;
        best = fmax(best, (double)PROBE_BYTES / t / 1e9);
    }
    cpu_free((void *)(uintptr_t)p.mem, PROBE_BYTES);
    return best;
}

/* ---- products ---- */

static uint64_t rng = 1;

static uint32_t rnd(void)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng >> 33);
}

static uint8_t *source(hy_dtype t, int64_t n, int64_t k)
{
    size_t bytes = hy_dtype_row_bytes(t, k) * (size_t)n;
    uint8_t *p = malloc(bytes);
    if (p == NULL || bytes == 0)
        exit(1);
    for (size_t i = 0; i + 4 <= bytes; i += 4) { /* no f16 or f32 within is huge, or denormal */
        uint32_t v = (rnd() & 0x2fff2fffu) | 0x20002000u;
        memcpy(p + i, &v, 4);
    }
    return p;
}

static void bench(hy_dev *dev, hy_queue *q, hy_dtype t, int64_t n, int64_t k, int64_t m, double bw)
{
    int copies = (int)((200 << 20) / (hy_dtype_row_bytes(t, k) * (size_t)n)) + 1;
    copies = m > 8 || copies > 64 ? (m > 8 ? 1 : 64) : copies; /* few columns: from memory */
    uint8_t *raw = source(t, n, k);
    hy_weight *w[64];
    hy_weight_src src = {.type = t, .n = n, .k = k, .data = raw};
    double pack = now();
    for (int i = 0; i < copies; i++)
        check(dev->math->prepare_weight(dev, &src, &w[i]));
    pack = (now() - pack) / copies;
    float *x = malloc((size_t)(m * k) * 4), *y = malloc((size_t)(m * n) * 4);
    for (int64_t i = 0; i < m * k; i++)
        x[i] = (float)((int)(rnd() % 2001) - 1000) / 500.0f;
    hy_matmul a = {.x = x, .ldx = k, .y = y, .ldy = n, .m = m, .act = HY_ACT_INT8};
    double best = 1e9, start = now();
    for (int round = 0; round < 40 && now() - start < 1.0; round++) {
        double s = now();
        for (int i = 0; i < copies; i++) {
            a.w = w[i];
            check(dev->math->matmul(q, &a));
        }
        best = fmin(best, (now() - s) / copies);
    }
    double gop = 2.0 * (double)n * (double)k * (double)m / best / 1e9;
    double gbs = (double)w[0]->bytes / best / 1e9;
    printf("%-6s n %6d k %5d m %4d: %9.1f us  %7.1f GOP/s  %6.2f GB/s (%3.0f%% of read)  "
           "pack %.2f ms (%.1f GB/s)\n",
           hy_dtype_name((int)t), (int)n, (int)k, (int)m, best * 1e6, gop, gbs, 100 * gbs / bw,
           pack * 1e3, (double)w[0]->bytes / pack / 1e9);
    fflush(stdout);
    for (int i = 0; i < copies; i++)
        dev->math->weight_free(dev, w[i]);
    free(raw), free(x), free(y);
}

int main(int argc, char **argv)
{
    hy_dev_opts o = {.backend = "cpu"};
    int i = 1;
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        if (argv[i][1] == 't')
            o.n_threads = atoi(argv[i + 1]);
        else if (argv[i][1] == 'c')
            cpu_time = true;
        else if (argv[i][1] == 'i')
            o.isa = argv[i + 1];
    }
    hy_dev *dev;
    hy_queue *q;
    check(cpu_backend.open(&o, &dev));
    check(dev->ops->queue_create(dev, &q));
    hy_dev_props p;
    check(dev->ops->props(dev, &p));
    double bw = cpu_dev_of(dev)->pool != NULL ? probe_read(cpu_dev_of(dev)) : 1;
    printf("%s, %d threads, read %.1f GB/s\n", p.name, p.n_threads, bw);
    if (i + 3 >= argc) {
        static const hy_dtype t[] = {HY_Q4_1, HY_Q4_K, HY_Q6_K, HY_Q8_0, HY_Q5_0, HY_F16, HY_F32};
        static const int64_t m[] = {1, 4, 16, 128, 512};
        for (size_t j = 0; j < HY_COUNTOF(t); j++) {
            for (size_t c = 0; c < HY_COUNTOF(m); c++)
                bench(dev, q, t[j], 8960, 1536, m[c], bw);
        }
    }
    for (; i + 3 < argc; i += 4) {
        hy_dtype t;
        check(hy_dtype_parse(argv[i], &t));
        bench(dev, q, t, atoll(argv[i + 1]), atoll(argv[i + 2]), atoll(argv[i + 3]), bw);
    }
    dev->ops->queue_destroy(q);
    dev->ops->close(dev);
    return 0;
}
