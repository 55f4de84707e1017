/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard bench device: what a device can do at best, through the HAL's own calls: copies, the
 * stream rate of a kernel that only adds, a GEMM of one shape over row counts, the price of an
 * operation. What `halyard bench MODEL` reaches is a part of these. One JSON line each.
 *
 * Thread: main.  Owner: none.
 */
#include "core/base/alloc.h"
#include "core/node/device.h"
#include "tools/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_WEIGHTS = 64 };

typedef struct bench {
    hy_dev *dev;
    hy_queue *q;
    size_t bytes;   /* of a buffer */
    double seconds; /* a figure takes about so long */
    int64_t dim, rows;
    hy_dtype type;
    void *host, *a, *b;
    float *x, *y; /* device: [rows][dim] */
    hy_weight *w[MOST_WEIGHTS];
    int32_t n_w;
} bench;

typedef hy_status (*work_fn)(bench *b, int32_t i, int64_t arg);

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static hy_status batch(bench *b, work_fn fn, int64_t arg, int32_t n, double *out)
{
    const double t = now();
    for (int32_t i = 0; i < n; i++)
        HY_TRY(fn(b, i, arg));
    HY_TRY(b->dev->ops->queue_wait(b->q));
    *out = now() - t;
    return HY_OK;
}

/* Seconds of one call among many that are enqueued together; the first is not counted. */
static hy_status time_work(bench *b, work_fn fn, int64_t arg, double *out)
{
    double t = 0.0;
    int32_t n = 1;
    HY_TRY(batch(b, fn, arg, 1, &t));
    for (;;) {
        HY_TRY(batch(b, fn, arg, n, &t));
        if (t >= b->seconds / 2 || n > 1 << 20)
            break;
        n = t > b->seconds / 20 ? (int32_t)(n * (b->seconds / t)) + 1 : n * 4;
    }
    *out = t / n;
    return HY_OK;
}

/* ---- memory ---- */

static hy_status copy_d2d(bench *b, int32_t i, int64_t arg)
{
    (void)i, (void)arg;
    return b->dev->ops->copy(b->q, b->b, b->a, b->bytes);
}

static hy_status copy_h2d(bench *b, int32_t i, int64_t arg)
{
    (void)i, (void)arg;
    return b->dev->ops->copy(b->q, b->a, b->host, b->bytes);
}

static hy_status copy_d2h(bench *b, int32_t i, int64_t arg)
{
    (void)i, (void)arg;
    return b->dev->ops->copy(b->q, b->host, b->a, b->bytes);
}

static hy_status add(bench *b, int32_t i, int64_t n)
{
    (void)i;
    const int64_t dim = n < 4096 ? n : 4096;
    const hy_add op = {.a = b->a,
                       .b = b->b,
                       .y = b->a,
                       .lda = dim,
                       .ldb = dim,
                       .ldy = dim,
                       .m = n / dim,
                       .dim = dim,
                       .b_scale = 1.0f};
    return b->dev->math->add(b->q, &op);
}

static hy_status add_and_wait(bench *b, int32_t i, int64_t n)
{
    HY_TRY(add(b, i, n));
    return b->dev->ops->queue_wait(b->q);
}

static hy_status copy_line(bench *b, const char *dir, bool pinned, work_fn fn, double factor)
{
    double t = 0.0;
    HY_TRY(time_work(b, fn, 0, &t));
    printf("{\"test\":\"copy\",\"dir\":\"%s\",\"pinned\":%s,\"bytes\":%zu,\"gb_s\":%.3f}\n", dir,
           pinned ? "true" : "false", b->bytes, factor * (double)b->bytes / t / 1e9);
    fflush(stdout);
    return HY_OK;
}

static hy_status copies(bench *b)
{
    double t = 0.0;
    HY_TRY(copy_line(b, "d2d", false, copy_d2d, 2.0)); /* read and written */
    HY_TRY(copy_line(b, "h2d", false, copy_h2d, 1.0));
    HY_TRY(copy_line(b, "d2h", false, copy_d2h, 1.0));
    if (b->dev->ops->host_register(b->dev, b->host, b->bytes) == HY_OK) {
        hy_status st = copy_line(b, "h2d", true, copy_h2d, 1.0);
        if (st == HY_OK)
            st = copy_line(b, "d2h", true, copy_d2h, 1.0);
        b->dev->ops->host_unregister(b->dev, b->host);
        HY_TRY(st);
    }
    const int64_t n = (int64_t)(b->bytes / sizeof(float)) / 4096 * 4096;
    HY_TRY(time_work(b, add, n, &t));
    printf("{\"test\":\"stream\",\"op\":\"add\",\"bytes\":%zu,\"gb_s\":%.3f}\n",
           3 * (size_t)n * sizeof(float), 3.0 * (double)n * sizeof(float) / t / 1e9);
    HY_TRY(time_work(b, add, 64, &t));
    double alone = 0.0;
    HY_TRY(time_work(b, add_and_wait, 64, &alone));
    printf("{\"test\":\"op\",\"op\":\"add\",\"us\":%.3f,\"us_with_wait\":%.3f}\n", 1e6 * t,
           1e6 * alone);
    fflush(stdout);
    return HY_OK;
}

/* ---- matmul ---- */

static hy_status mul(bench *b, int32_t i, int64_t m)
{
    const hy_matmul op = {.w = b->w[i % b->n_w],
                          .x = b->x,
                          .ldx = b->dim,
                          .y = b->y,
                          .ldy = b->dim,
                          .m = m,
                          .act = HY_ACT_F32};
    return b->dev->math->matmul(b->q, &op);
}

/* Values of some size, as a model's: zeros draw less power and run faster. */
static void fill(bench *b, void *data, size_t n)
{
    uint32_t s = 12345;
    for (size_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        const float f = (float)(int32_t)s / 2147483648.0f;
        const uint16_t h = b->type == HY_F16 ? hy_f32_to_f16(f) : hy_f32_to_bf16(f);
        if (b->type == HY_F32)
            memcpy((float *)data + i, &f, sizeof(f));
        else
            memcpy((uint16_t *)data + i, &h, sizeof(h));
    }
}

/* So many that no cache holds them all. */
static hy_status make_weights(bench *b)
{
    const size_t n = (size_t)(b->dim * b->dim), bytes = hy_dtype_row_bytes(b->type, (int64_t)n);
    void *data = hy_aligned_alloc(64, bytes);
    if (data == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    fill(b, data, n);
    const hy_weight_src src = {.type = b->type, .n = b->dim, .k = b->dim, .data = data};
    hy_status st = HY_OK;
    const size_t want = (b->bytes + bytes - 1) / bytes;
    while (st == HY_OK && b->n_w < MOST_WEIGHTS && (b->n_w == 0 || (size_t)b->n_w < want)) {
        st = b->dev->math->prepare_weight(b->dev, &src, &b->w[b->n_w]);
        b->n_w += st == HY_OK;
    }
    if (st == HY_OK && b->w[0]->borrowed)
        return HY_OK; /* the process ends soon */
    hy_free(data);
    return st;
}

static hy_status products(bench *b)
{
    const hy_op_query q = {
        .op = HY_OP_MATMUL, .w_type = b->type, .act = HY_ACT_F32, .n = b->dim, .k = b->dim};
    const size_t xb = (size_t)(b->rows * b->dim) * sizeof(float);
    void *x = NULL, *y = NULL;
    if (!b->dev->math->supports(b->dev, &q))
        return hy_fail(HY_E_UNSUPPORTED, "no matmul with weights of %s here",
                       hy_dtype_name(b->type));
    HY_TRY(make_weights(b));
    HY_TRY(b->dev->ops->alloc(b->dev, xb, &x));
    b->x = x;
    HY_TRY(b->dev->ops->alloc(b->dev, xb, &y));
    b->y = y;
    const size_t wb = hy_dtype_row_bytes(b->type, b->dim * b->dim);
    for (int64_t m = 1; m <= b->rows; m *= m < 16 ? 2 : 4) {
        double t = 0.0;
        HY_TRY(time_work(b, mul, m, &t));
        printf("{\"test\":\"matmul\",\"type\":\"%s\",\"n\":%lld,\"k\":%lld,\"m\":%lld,\"us\":%.2f,"
               "\"weight_gb_s\":%.3f,\"tflop_s\":%.5f}\n",
               hy_dtype_name(b->type), (long long)b->dim, (long long)b->dim, (long long)m, 1e6 * t,
               (double)wb / t / 1e9, 2.0 * (double)(b->dim * b->dim) * (double)m / t / 1e12);
        fflush(stdout);
    }
    return HY_OK;
}

/* ---- the command ---- */

static hy_status run(bench *b, const hy_conf *conf)
{
    hy_dev_props p;
    memset(&p, 0, sizeof(p));
    HY_TRY(hy_node_open_device(conf, &b->dev));
    HY_TRY(b->dev->ops->props(b->dev, &p));
    HY_TRY(b->dev->ops->queue_create(b->dev, &b->q));
    b->host = hy_aligned_alloc(4096, b->bytes);
    if (b->host == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    memset(b->host, 1, b->bytes);
    HY_TRY(b->dev->ops->alloc(b->dev, b->bytes, &b->a));
    HY_TRY(b->dev->ops->alloc(b->dev, b->bytes, &b->b));
    printf("{\"test\":\"device\",\"name\":\"%s\",\"units\":%d,\"memory\":%zu,\"free\":%zu}\n",
           p.name, p.n_threads, p.mem_total, p.mem_free);
    HY_TRY(copies(b));
    return products(b);
}

static void finish(bench *b)
{
    const size_t xb = (size_t)(b->rows * b->dim) * sizeof(float);
    for (int32_t i = 0; i < b->n_w; i++)
        b->dev->math->weight_free(b->dev, b->w[i]);
    if (b->q != NULL)
        b->dev->ops->queue_destroy(b->q);
    if (b->a != NULL)
        b->dev->ops->free(b->dev, b->a, b->bytes);
    if (b->b != NULL)
        b->dev->ops->free(b->dev, b->b, b->bytes);
    if (b->x != NULL)
        b->dev->ops->free(b->dev, b->x, xb);
    if (b->y != NULL)
        b->dev->ops->free(b->dev, b->y, xb);
    hy_free(b->host);
    hy_dev_close(b->dev);
}

int hy_cmd_bench_device(int argc, char **argv)
{
    const char *mib = "256", *dim = "4096", *rows = "1024", *ms = "300", *type = "bf16";
    const hy_cli_opt opts[] = {
        {.name = "--mib", .arg = "N", .value = &mib, .help = "size of a buffer (256)"},
        {.name = "--dim", .arg = "N", .value = &dim, .help = "rows and columns of a weight (4096)"},
        {.name = "--rows", .arg = "N", .value = &rows, .help = "most rows of a product (1024)"},
        {.name = "--type", .arg = "TYPE", .value = &type, .help = "of weights: bf16, f16, f32"},
        {.name = "--ms", .arg = "N", .value = &ms, .help = "time for each figure (300)"},
        HY_CLI_THREADS,
    };
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {.usage = "bench device [-o backend.name=NAME]",
                  .about =
                      "Time a device's copies, its memory through a kernel that adds, a matrix "
                      "product over\nrow counts, and the price of an operation; one JSON line "
                      "each. gb_s of d2d and of\nthe kernel count bytes read and written.",
                  .opts = opts,
                  .n_opts = HY_COUNTOF(opts),
                  .conf = conf};
    int rc = hy_cli_parse_n(&cli, argc, argv, 0);
    if (rc < 0) {
        bench b = {0};
        int64_t n_mib = 0, n_ms = 0;
        const hy_cli_number numbers[] = {{"--mib", mib, 1, 65536, &n_mib},
                                         {"--dim", dim, 32, 65536, &b.dim},
                                         {"--rows", rows, 1, 65536, &b.rows},
                                         {"--ms", ms, 1, 60000, &n_ms}};
        hy_status st = hy_cli_numbers(numbers, HY_COUNTOF(numbers));
        if (st == HY_OK)
            st = hy_dtype_parse(type, &b.type);
        if (st == HY_OK && b.type != HY_BF16 && b.type != HY_F16 && b.type != HY_F32)
            st = hy_fail(HY_E_INVAL, "--type takes bf16, f16 or f32, not '%s'", type);
        b.bytes = (size_t)n_mib << 20;
        b.seconds = (double)n_ms / 1e3;
        if (st == HY_OK)
            st = run(&b, conf);
        rc = st == HY_OK ? HY_EXIT_OK : hy_cli_fail("bench device");
        finish(&b);
    }
    hy_conf_destroy(conf);
    return rc;
}
