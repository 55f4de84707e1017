/* SPDX-License-Identifier: Apache-2.0
 *
 * Micro-benchmark of KV packing: GB/s of cache moved by kv_pack and kv_unpack, for pairs of memory
 * order, storage and wire, beside memcpy of as many bytes in the same run, on one thread.
 *
 *     bench_kv [-c 1] [-i ISA] [LAYERS HEADS WIDTH TOKENS]
 *
 * -c: processor time, for a machine with other load. Figures, never a verdict: the machine's other
 * guests move them.
 */
#include "hal/kv_plan.h"
#include "hal/registry.h"
#include "tests/unit/kv_kit.h"

#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

enum { HUGE = 2 << 20 };

static bool cpu_time;

static double now(void)
{
    struct timespec t;
    clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(hy_status st)
{
    if (st == HY_OK)
        return;
    fprintf(stderr, "bench_kv: %s\n", hy_fail_text());
    exit(1);
}

static kit fresh(const kit_shape *s)
{
    kit k = kit_make(*s);
    free(k.pool.base); /* memory as a device gives it */
    k.pool.base = aligned_alloc(HUGE, (k.bytes + HUGE - 1) / HUGE * HUGE);
    if (k.pool.base == NULL)
        exit(1);
    (void)madvise(k.pool.base, k.bytes, MADV_HUGEPAGE);
    uint16_t *p = k.pool.base; /* finite values, every page touched */
    for (size_t i = 0; i < k.bytes / 2; i++)
        p[i] = (uint16_t)(0x3800 + (i * 40503u >> 4 & 0x7ff));
    return k;
}

typedef struct sum {
    double pack, unpack, bytes; /* seconds; of the wire's elements */
} sum;

/* Once through all pieces of a plan. */
static sum once(hy_dev *dev, hy_queue *q, const hy_kv_plan *p, const kit *src, const kit *dst,
                int32_t n, uint8_t *buf)
{
    sum s = {0};
    hy_kv_piece x;
    hy_kv_iter it = hy_kv_plan_begin(p, &(hy_kv_want){.n = n});
    while (hy_kv_plan_next(&it, &x)) {
        hy_kv_copy c;
        check(hy_kv_piece_pack(p, &x, &src->pool, (hy_kv_blocks){src->blocks, src->s.n_blocks}, buf,
                               &c));
        double t0 = now();
        check(dev->math->kv_pack(q, &c));
        double t1 = now();
        check(hy_kv_piece_unpack(p, &x, &dst->pool, (hy_kv_blocks){dst->blocks, dst->s.n_blocks},
                                 buf, &c));
        double t2 = now();
        check(dev->math->kv_unpack(q, &c));
        s.unpack += now() - t2;
        s.pack += t1 - t0;
        s.bytes += (double)x.bytes;
    }
    return s;
}

/* Copies between the same pools through the same buffer: what any packing has to do at least. */
static void copy_rate(const kit *src, const kit *dst, uint8_t *buf, size_t piece)
{
    double best[2] = {0, 0};
    size_t n = src->bytes < dst->bytes ? src->bytes : dst->bytes;
    for (int i = 0; i < 5; i++) {
        double in = 0, out = 0;
        for (size_t at = 0; at + piece <= n; at += piece) {
            double t0 = now();
            memcpy(buf, (uint8_t *)src->pool.base + at, piece);
            double t1 = now();
            memcpy((uint8_t *)dst->pool.base + at, buf, piece);
            out += now() - t1;
            in += t1 - t0;
        }
        double done = (double)(n / piece * piece) / 1e9;
        best[0] = done / in > best[0] ? done / in : best[0];
        best[1] = done / out > best[1] ? done / out : best[1];
    }
    printf("%-34s %8.2f %8.2f   GB/s\n", "memcpy", best[0], best[1]);
}

static const char *const orders[] = {"cpu", "nhd", "hnd", "layers", "planes"};

static void row(hy_dev *dev, hy_queue *q, kit_shape a, kit_shape b, hy_dtype wire, int32_t n)
{
    char name[64];
    kit src = fresh(&a), dst = fresh(&b);
    hy_kv_desc s = kit_desc(&src), d = kit_desc(&dst);
    hy_kv_plan *p = NULL;
    hy_kv_plan_opts o = {.never_direct = true, .lossy = true, .has_wire = true, .wire = wire};
    check(hy_kv_plan_create(&s, &d, &o, &p));
    uint8_t *buf = aligned_alloc(64, hy_kv_plan_piece_max(p));
    if (buf == NULL)
        exit(1);
    memset(buf, 0, hy_kv_plan_piece_max(p));
    static bool first = true;
    if (first)
        copy_rate(&src, &dst, buf, hy_kv_plan_piece_max(p));
    first = false;
    sum best = {1e9, 1e9, 0};
    for (int i = 0; i < 5; i++) {
        sum t = once(dev, q, p, &src, &dst, n, buf);
        best.pack = t.pack < best.pack ? t.pack : best.pack;
        best.unpack = t.unpack < best.unpack ? t.unpack : best.unpack;
        best.bytes = t.bytes;
    }
    snprintf(name, sizeof(name), "%s/%d %s > %s > %s/%d %s", orders[a.order], a.bt,
             hy_dtype_name((int)a.type), hy_dtype_name((int)wire), orders[b.order], b.bt,
             hy_dtype_name((int)b.type));
    printf("%-34s %8.2f %8.2f   GB/s of wire\n", name, best.bytes / best.pack / 1e9,
           best.bytes / best.unpack / 1e9);
    free(buf);
    hy_kv_plan_destroy(p);
    kit_free(&src);
    kit_free(&dst);
}

static kit_shape shape(const int32_t m[4], int order, int32_t bt, hy_dtype value, hy_dtype type)
{
    return (kit_shape){.order = order,
                       .value = value,
                       .type = type,
                       .bt = bt,
                       .n_layers = m[0],
                       .k_width = m[2],
                       .v_width = m[2],
                       .n_heads = m[1],
                       .heads_total = m[1],
                       .n_blocks = (m[3] + bt - 1) / bt};
}

int main(int argc, char **argv)
{
    int32_t m[4] = {28, 2, 128, 4096}; /* qwen2.5-1.5b: 28 KiB a token */
    hy_dev_opts o = {.backend = "cpu", .n_threads = 1};
    int at = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-c") == 0 && i + 1 < argc)
            cpu_time = atoi(argv[++i]) != 0;
        else if (strcmp(argv[i], "-i") == 0 && i + 1 < argc)
            o.isa = argv[++i];
        else if (at < 4 && atoi(argv[i]) > 0)
            m[at++] = atoi(argv[i]);
        else
            return fprintf(stderr, "usage: bench_kv [-c 1] [-i ISA] [LAYERS HEADS WIDTH TOKENS]\n"),
                   2;
    }
    hy_dev *dev = NULL;
    hy_queue *q = NULL;
    check(hy_dev_open(&o, &dev));
    check(dev->ops->queue_create(dev, &q));
    static const struct {
        int a, b;
        int32_t abt, bbt;
        hy_dtype value, at, bt, wire;
    } rows[] = {
        {KIT_HND, KIT_HND, 16, 64, HY_F16, HY_F16, HY_F16, HY_F16},
        {KIT_CPU, KIT_CPU, 16, 64, HY_F16, HY_F16, HY_F16, HY_F16},
        {KIT_CPU, KIT_NHD, 16, 16, HY_F16, HY_F16, HY_F16, HY_F16},
        {KIT_NHD, KIT_CPU, 32, 16, HY_F16, HY_F16, HY_F16, HY_F16},
        {KIT_CPU, KIT_CPU, 17, 100, HY_F16, HY_F16, HY_F16, HY_F16},
        {KIT_CPU, KIT_NHD, 16, 32, HY_F16, HY_F16, HY_F32, HY_F16},
        {KIT_CPU, KIT_CPU, 16, 16, HY_F16, HY_F16, HY_F32, HY_F16},
        {KIT_CPU, KIT_CPU, 16, 16, HY_F16, HY_F32, HY_F16, HY_F16},
        {KIT_CPU, KIT_HND, 16, 32, HY_BF16, HY_F32, HY_BF16, HY_BF16},
        {KIT_CPU, KIT_CPU, 16, 32, HY_F32, HY_F32, HY_F32, HY_F32},
        {KIT_CPU, KIT_CPU, 16, 16, HY_F16, HY_F16, HY_F16, HY_I8},
        {KIT_CPU, KIT_CPU, 16, 16, HY_F16, HY_F16, HY_F16, HY_F8_E4M3},
        {KIT_CPU, KIT_CPU, 16, 16, HY_F16, HY_F16, HY_F16, HY_F8_E4M3FNUZ},
    };
    printf("%d layers, %d heads of %d, %d tokens, one thread\n%-34s %8s %8s\n", m[0], m[1], m[2],
           m[3], "from/block > wire > to/block", "pack", "unpack");
    for (size_t i = 0; i < HY_COUNTOF(rows); i++)
        row(dev, q, shape(m, rows[i].a, rows[i].abt, rows[i].value, rows[i].at),
            shape(m, rows[i].b, rows[i].bbt, rows[i].value, rows[i].bt), rows[i].wire, m[3]);
    dev->ops->queue_destroy(q);
    hy_dev_close(dev);
    return 0;
}
