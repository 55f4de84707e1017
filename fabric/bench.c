/* SPDX-License-Identifier: Apache-2.0
 *
 * The link benchmark: forks, pins, takes every row in turn for each size and round, reports. Ratios
 * are taken inside a round and size, so that a machine whose speed drifts does not move them.
 *
 * Thread: main.  Owner: see bench.h.
 */
#include "fabric/bench_int.h"
#include "core/base/alloc.h"
#include "core/base/log.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_ROUNDS = 32 };

const uint64_t hy_fab_bench_sizes[HY_FAB_BENCH_SIZES] = {16 << 10,  64 << 10, 256 << 10,
                                                         512 << 10, 1 << 20,  4 << 20};
const char *const hy_fab_bench_names[HY_BENCH_ROWS] = {
    "write",      "pull",      "raw write",    "raw read",     "alone write", "alone pull",
    "same write", "same pull", "tcp blocking", "tcp spinning", "tcp tuned",   "vm_readv"};

typedef struct samples {
    double rate[HY_BENCH_ROWS][HY_FAB_BENCH_SIZES][MOST_ROUNDS];
    double msg[2][2][MOST_ROUNDS]; /* ours, plain TCP; p50, p99 */
    int n;
} samples;

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool bench_put(bench *b, const void *p, size_t n)
{
    return send(b->sock, p, n, MSG_NOSIGNAL) == (ssize_t)n;
}

bool bench_get(bench *b, void *p, size_t n)
{
    return recv(b->sock, p, n, MSG_WAITALL) == (ssize_t)n;
}

bool bench_sync(bench *b)
{
    char c = 1;
    return bench_put(b, &c, 1) && bench_get(b, &c, 1);
}

static int cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static hy_fab_bench_figure figure(const double *v, int n)
{
    double s[MOST_ROUNDS];
    if (n == 0 || v[0] <= 0)
        return (hy_fab_bench_figure){0, 0, 0};
    memcpy(s, v, (size_t)n * sizeof(*v));
    qsort(s, (size_t)n, sizeof(*s), cmp);
    return (hy_fab_bench_figure){(s[(n - 1) / 2] + s[n / 2]) / 2, s[0], s[n - 1]};
}

void bench_percentiles(double *v, int n, double *p50, double *p99)
{
    qsort(v, (size_t)n, sizeof(*v), cmp);
    *p50 = v[n / 2];
    *p99 = v[(int)(0.99 * n)];
}

uint64_t bench_total(const bench *b, uint64_t size)
{
    uint64_t t = b->o.total != 0 ? b->o.total : UINT64_C(256) << 20;
    return size < 65536 ? t / 4 : t;
}

uint64_t bench_page(const bench *b, uint64_t i, uint64_t size)
{
    uint64_t n = b->pool_len / size;
    return i * 7 % n * size; /* pools are powers of two: 7 reaches every page */
}

static void say(const bench *b, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (b->o.line != NULL)
        b->o.line(b->o.arg, text);
}

/* What one core can copy between two processes: side 0 reads the other's memory. */
static hy_status cma(bench *b, uint64_t size, double *gbs)
{
    uint64_t total = bench_total(b, size), done = 0, page = 0;
    double t = bench_now();
    while (b->side == 0 && done < total) {
        struct iovec l[16], r[16];
        for (int i = 0; i < 16; i++, page++) {
            uint64_t off = bench_page(b, page, size);
            l[i] = (struct iovec){b->pool + off, size};
            r[i] = (struct iovec){(void *)(uintptr_t)(b->peer_pool + off), size};
        }
        ssize_t k = process_vm_readv(b->peer_pid, l, 16, r, 16, 0);
        if (k <= 0)
            break; /* not allowed here: no figure */
        done += (uint64_t)k;
    }
    *gbs = done < total ? 0 : (double)done / (bench_now() - t) / 1e9;
    return HY_OK;
}

static hy_status one(bench *b, hy_fab_bench_row row, uint64_t size, double *gbs)
{
    static const int which[] = {BENCH_MAIN,  BENCH_MAIN,  0,          0,
                                BENCH_ALONE, BENCH_ALONE, BENCH_SAME, BENCH_SAME};
    bool read = row == HY_BENCH_PULL || row == HY_BENCH_ALONE_PULL || row == HY_BENCH_SAME_PULL ||
                row == HY_BENCH_RAW_READ;
    if (row == HY_BENCH_CMA)
        return cma(b, size, gbs);
    if (row >= HY_BENCH_TCP_BLOCK)
        return bench_tcp_bulk(b, row, size, gbs);
    if (row == HY_BENCH_RAW_WRITE || row == HY_BENCH_RAW_READ)
        return bench_raw_move(b, size, read, gbs);
    return bench_pair_move(b, which[row], size, read, gbs);
}

/* Both sides decide alike: by the options and by what has opened on both. */
static bool wanted(const bench *b, hy_fab_bench_row row)
{
    const char *name = hy_fab_bench_names[row], *at = b->o.only;
    size_t n = strlen(name);
    bool there = row >= HY_BENCH_TCP_BLOCK ? (row == HY_BENCH_CMA ? b->o.raw : b->tcp >= 0)
                 : row == HY_BENCH_RAW_WRITE || row == HY_BENCH_RAW_READ ? b->raw != NULL
                 : row >= HY_BENCH_SAME_WRITE  ? b->pair[BENCH_SAME] != NULL
                 : row >= HY_BENCH_ALONE_WRITE ? b->pair[BENCH_ALONE] != NULL
                                               : true;
    while (there && at != NULL && (strncmp(at, name, n) != 0 || (at[n] != 0 && at[n] != ','))) {
        at = strchr(at, ',');
        at += at != NULL;
        there = at != NULL;
    }
    return there;
}

static hy_status rounds(bench *b, samples *s)
{
    int n = b->o.repeats <= 0 ? 5 : b->o.repeats < MOST_ROUNDS ? b->o.repeats : MOST_ROUNDS;
    for (int i = 0; i < n; i++) {
        for (int z = 0; z < HY_FAB_BENCH_SIZES; z++)
            for (int k = 0; k < HY_BENCH_ROWS; k++) {
                int row = i % 2 == 0 ? k : HY_BENCH_ROWS - 1 - k; /* nobody is always first */
                if (!wanted(b, (hy_fab_bench_row)row))
                    continue;
                HY_TRY(one(b, (hy_fab_bench_row)row, hy_fab_bench_sizes[z], &s->rate[row][z][i]));
                if (!bench_sync(b))
                    return hy_fail(HY_E_PEER, "bench: the other side is gone");
            }
        if (b->o.msgs && b->tcp >= 0)
            HY_TRY(bench_tcp_pings(b, &s->msg[1][0][i], &s->msg[1][1][i]));
        if (b->o.msgs)
            HY_TRY(bench_pair_pings(b, &s->msg[0][0][i], &s->msg[0][1][i]));
        s->n = i + 1;
    }
    return HY_OK;
}

static hy_status opens(bench *b)
{
    uint64_t base = (uint64_t)(uintptr_t)b->pool;
    if (!bench_put(b, &base, sizeof(base)) || !bench_get(b, &b->peer_pool, sizeof(base)))
        return hy_fail(HY_E_PEER, "bench: the other side is gone");
    if (b->o.tcp)
        HY_TRY(bench_tcp_open(b));
    HY_TRY(bench_pair_open(b, BENCH_MAIN));
    if (strcmp(b->r.provider, "own") != 0)
        HY_TRY(bench_pair_open(b, BENCH_ALONE));
    HY_TRY(bench_pair_open(b, BENCH_SAME));
    if (b->o.raw && strcmp(b->r.provider, "own") != 0)
        HY_TRY(bench_raw_open(b));
    return HY_OK;
}

static void closes(bench *b)
{
    bench_raw_close(b);
    for (int i = 0; i < BENCH_PAIRS; i++)
        bench_pair_close(b, i);
    bench_tcp_close(b);
}

static hy_status parts(bench *b, samples *s)
{
    hy_status st = opens(b);
    if (st >= 0)
        st = rounds(b, s);
    if (st >= 0 && b->o.idle)
        st = bench_idle(b);
    closes(b);
    return st;
}

typedef struct ratio_def {
    const char *name;
    hy_fab_bench_row num, den, last; /* den to last: the best of them */
    double wanted;                   /* 0: for comparison */
} ratio_def;

static const ratio_def defs[HY_FAB_BENCH_RATIOS] = {
    {"write / raw write", HY_BENCH_WRITE, HY_BENCH_RAW_WRITE, HY_BENCH_RAW_WRITE, 0.9},
    {"write / plain TCP", HY_BENCH_WRITE, HY_BENCH_TCP_BLOCK, HY_BENCH_TCP_SPIN, 0.85},
    {"pull / raw read", HY_BENCH_PULL, HY_BENCH_RAW_READ, HY_BENCH_RAW_READ, 0.9},
    {"pull / plain TCP", HY_BENCH_PULL, HY_BENCH_TCP_BLOCK, HY_BENCH_TCP_SPIN, 0.85},
    {"alone / raw write", HY_BENCH_ALONE_WRITE, HY_BENCH_RAW_WRITE, HY_BENCH_RAW_WRITE, 0.9},
    {"alone / raw read", HY_BENCH_ALONE_PULL, HY_BENCH_RAW_READ, HY_BENCH_RAW_READ, 0.9},
    {"write / tuned TCP", HY_BENCH_WRITE, HY_BENCH_TCP_TUNED, HY_BENCH_TCP_TUNED, 0},
    {"pull / tuned TCP", HY_BENCH_PULL, HY_BENCH_TCP_TUNED, HY_BENCH_TCP_TUNED, 0},
    {"same write / vm_readv", HY_BENCH_SAME_WRITE, HY_BENCH_CMA, HY_BENCH_CMA, 0.8},
    {"same pull / vm_readv", HY_BENCH_SAME_PULL, HY_BENCH_CMA, HY_BENCH_CMA, 0.8},
};

static void digest(hy_fab_bench_result *r, const samples *s)
{
    double v[MOST_ROUNDS];
    for (int row = 0; row < HY_BENCH_ROWS; row++)
        for (int z = 0; z < HY_FAB_BENCH_SIZES; z++)
            r->rate[row][z] = figure(s->rate[row][z], s->n);
    for (int k = 0; k < HY_FAB_BENCH_RATIOS; k++) {
        const ratio_def *d = &defs[k];
        r->ratio[k].name = d->name;
        r->ratio[k].wanted = d->wanted;
        for (int z = 0; z < HY_FAB_BENCH_SIZES; z++) {
            for (int i = 0; i < s->n; i++) {
                double a = 0;
                for (int row = (int)d->den; row <= (int)d->last; row++)
                    a = s->rate[row][z][i] > a ? s->rate[row][z][i] : a;
                v[i] = a > 0 ? s->rate[d->num][z][i] / a : 0;
            }
            r->ratio[k].by_size[z] = figure(v, s->n);
        }
    }
    r->msg_p50 = figure(s->msg[0][0], s->n);
    r->msg_p99 = figure(s->msg[0][1], s->n);
    r->tcp_p50 = figure(s->msg[1][0], s->n);
    r->tcp_p99 = figure(s->msg[1][1], s->n);
    for (int i = 0; i < s->n; i++)
        v[i] = s->msg[1][0][i] > 0 ? s->msg[0][0][i] / s->msg[1][0][i] : 0;
    r->msg_ratio = figure(v, s->n);
}

static void table_row(const bench *b, const char *name, const hy_fab_bench_figure *f, double goal)
{
    char text[200] = "";
    size_t n = 0;
    bool any = false;
    for (int z = 0; z < HY_FAB_BENCH_SIZES; z++) {
        any |= f[z].median > 0;
        n += (size_t)snprintf(text + n, sizeof(text) - n, " %5.2f (%.2f-%.2f)", f[z].median,
                              f[z].min, f[z].max);
    }
    if (any && goal > 0)
        say(b, "%-22s%s  >= %.2f", name, text, goal);
    else if (any)
        say(b, "%-22s%s", name, text);
}

static void report(const bench *b, int n)
{
    const hy_fab_bench_result *r = &b->r;
    char text[160] = "";
    size_t k = 0;
    say(b,
        "# provider %s; two processes, a core each; pieces strewn over %llu MiB, %llu MiB a figure",
        r->provider, (unsigned long long)(b->pool_len >> 20),
        (unsigned long long)(bench_total(b, 65536) >> 20));
    say(b, "# GB/s, then ratios inside a round: median (min-max) of %d rounds", n);
    if (r->beside)
        say(b,
            "# write and pull: over own TCP, which stands beside the provider; alone: without it");
    for (int z = 0; z < HY_FAB_BENCH_SIZES; z++)
        k += (size_t)snprintf(text + k, sizeof(text) - k, " %14llu K",
                              (unsigned long long)(hy_fab_bench_sizes[z] >> 10));
    say(b, "%-22s%s", "piece", text);
    for (int row = 0; row < HY_BENCH_ROWS; row++)
        table_row(b, hy_fab_bench_names[row], r->rate[row], 0);
    for (int i = 0; i < HY_FAB_BENCH_RATIOS; i++)
        table_row(b, r->ratio[i].name, r->ratio[i].by_size, r->ratio[i].wanted);
    if (r->msg_p50.median > 0)
        say(b,
            "8 B message, one way: p50 %.2f us p99 %.2f us; plain TCP spinning %.2f / %.2f us; "
            "p50 ratio %.2f (%.2f-%.2f), wanted <= 1.30",
            r->msg_p50.median, r->msg_p99.median, r->tcp_p50.median, r->tcp_p99.median,
            r->msg_ratio.median, r->msg_ratio.min, r->msg_ratio.max);
    if (b->o.idle)
        say(b, "idle: %.2f %% of a core, wanted < 1", 100 * r->idle_core);
}

static void pin(int cpu)
{
    cpu_set_t s;
    CPU_ZERO(&s);
    CPU_SET(cpu, &s);
    if (sysconf(_SC_NPROCESSORS_ONLN) > cpu)
        sched_setaffinity(0, sizeof(s), &s);
}

static hy_status memory(bench *b)
{
    b->pool = mmap(NULL, b->pool_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->pool == MAP_FAILED)
        return hy_fail(HY_E_NOMEM, "bench: no memory for a pool of %llu bytes",
                       (unsigned long long)b->pool_len);
    madvise(b->pool, b->pool_len, MADV_HUGEPAGE);
    memset(b->pool, b->side + 1, b->pool_len);
    return HY_OK;
}

static int child(bench *b, samples *s)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    b->side = 1;
    pin(1);
    hy_status st = memory(b);
    if (st == HY_OK && bench_sync(b))
        st = parts(b, s);
    if (st < 0)
        fprintf(stderr, "bench: the other side: %s\n", hy_fail_text());
    return st < 0;
}

static hy_status run(bench *b, samples *s)
{
    int sv[2], status;
    cpu_set_t before;
    sched_getaffinity(0, sizeof(before), &before);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) != 0)
        return hy_fail(HY_E_SYS, "bench: socketpair: %s", strerror(errno));
    pid_t pid = fork();
    if (pid < 0)
        return hy_fail(HY_E_SYS, "bench: fork: %s", strerror(errno));
    b->sock = sv[pid == 0];
    close(sv[pid != 0]);
    if (pid == 0)
        _exit(child(b, s));
    b->peer_pid = pid;
    pin(0);
    hy_status st = memory(b);
    if (st == HY_OK)
        st = bench_sync(b) ? parts(b, s) : hy_fail(HY_E_PEER, "bench: the other side is gone");
    close(b->sock);
    if (st < 0)
        kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    if (b->pool != NULL && b->pool != MAP_FAILED)
        munmap(b->pool, b->pool_len);
    sched_setaffinity(0, sizeof(before), &before);
    return st;
}

hy_status hy_fab_bench(const hy_fab_bench_opts *o, hy_fab_bench_result *out)
{
    bench b = {.o = *o, .tcp = -1, .tuned = -1};
    b.pool_len = o->pool != 0 ? o->pool : UINT64_C(256) << 20;
    samples *s = hy_calloc(1, sizeof(*s));
    if (s == NULL)
        return hy_fail(HY_E_NOMEM, "bench: no memory");
    hy_status st = run(&b, s);
    if (st >= 0) {
        digest(&b.r, s);
        report(&b, s->n);
        *out = b.r;
    }
    hy_free(s);
    return st;
}
