/* SPDX-License-Identifier: Apache-2.0
 *
 * The link benchmark: forks, pins, runs the parts, prints.
 *
 * Thread: main.  Owner: see bench.h.
 */
#include "fabric/bench_int.h"
#include "core/base/alloc.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

const uint64_t hy_fab_bench_sizes[HY_FAB_BENCH_SIZES] = {16 << 10,  64 << 10, 256 << 10,
                                                         512 << 10, 1 << 20,  4 << 20};

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
    return x < y ? -1 : x > y;
}

double bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), cmp);
    return v[n / 2];
}

void bench_percentiles(double *v, int n, double *p50, double *p99)
{
    qsort(v, (size_t)n, sizeof(*v), cmp);
    *p50 = v[n / 2];
    *p99 = v[(int)(0.99 * n)];
}

uint64_t bench_total(const bench *b, uint64_t size)
{
    uint64_t t = b->o.total != 0 ? b->o.total : UINT64_C(1) << 30;
    return size < 65536 ? t / 4 : t;
}

uint64_t bench_page(const bench *b, uint64_t i, uint64_t size)
{
    uint64_t n = b->pool_len / size;
    return i * 7 % n * size; /* pools are powers of two: 7 reaches every page */
}

static void say(bench *b, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (b->side == 0 && b->o.line != NULL)
        b->o.line(b->o.arg, text);
}

/* process_vm_readv, 16 pieces a call: what one core can copy between two processes. */
static hy_status cma(bench *b)
{
    uint64_t base = (uint64_t)(uintptr_t)b->pool;
    if (b->side == 1)
        return bench_put(b, &base, sizeof(base)) && bench_sync(b) ? HY_OK : HY_E_PEER;
    if (!bench_get(b, &base, sizeof(base)))
        return HY_E_PEER;
    for (int s = 0; s < HY_FAB_BENCH_SIZES; s++) {
        uint64_t size = hy_fab_bench_sizes[s], total = bench_total(b, size), done = 0, page = 0;
        double t = bench_now();
        while (done < total) {
            struct iovec l[16], r[16];
            for (int i = 0; i < 16; i++, page++) {
                uint64_t off = bench_page(b, page, size);
                l[i] = (struct iovec){b->pool + off, size};
                r[i] = (struct iovec){(void *)(uintptr_t)(base + off), size};
            }
            ssize_t k = process_vm_readv(b->peer_pid, l, 16, r, 16, 0);
            if (k <= 0)
                break; /* not allowed here: no figure */
            done += (uint64_t)k;
        }
        b->r.cma[s] = done < total ? 0 : (double)done / (bench_now() - t) / 1e9;
    }
    return bench_sync(b) ? HY_OK : HY_E_PEER;
}

static hy_status parts(bench *b)
{
    if (b->o.tcp)
        HY_TRY(bench_tcp(b));
    HY_TRY(bench_fabric(b));
    if (b->o.raw) {
        HY_TRY(bench_raw(b));
        HY_TRY(cma(b));
    }
    return HY_OK;
}

static void report(bench *b)
{
    const hy_fab_bench_result *r = &b->r;
    say(b, "# provider %s, two processes on loopback, GB/s, pieces strewn over %llu MiB",
        r->provider, (unsigned long long)(b->pool_len >> 20));
    say(b, "%10s %8s %8s %8s %8s %8s %8s %8s", "piece", "write", "pull", "raw wr", "raw rd",
        "tcp blk", "tcp spin", "vm_readv");
    for (int s = 0; s < HY_FAB_BENCH_SIZES; s++)
        say(b, "%7llu K  %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f",
            (unsigned long long)(hy_fab_bench_sizes[s] >> 10), r->write[s], r->pull[s],
            r->raw_write[s], r->raw_read[s], r->tcp_block[s], r->tcp_spin[s], r->cma[s]);
    if (b->o.small)
        say(b, "8 B message, one way: p50 %.2f us p99 %.2f us; plain TCP spinning %.2f / %.2f us",
            r->msg_p50_us, r->msg_p99_us, r->tcp_p50_us, r->tcp_p99_us);
    if (b->o.idle)
        say(b, "idle pair: %.2f %% of a core", 100 * r->idle_core);
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

static int child(bench *b)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    b->side = 1;
    pin(1);
    hy_status st = memory(b);
    if (st == HY_OK && bench_sync(b))
        st = parts(b);
    if (st < 0)
        fprintf(stderr, "bench: the other side: %s\n", hy_fail_text());
    return st < 0;
}

hy_status hy_fab_bench(const hy_fab_bench_opts *o, hy_fab_bench_result *out)
{
    bench b = {.o = *o};
    int sv[2], status;
    cpu_set_t before;
    b.pool_len = o->pool != 0 ? o->pool : UINT64_C(256) << 20;
    if (b.o.repeats <= 0)
        b.o.repeats = 3;
    sched_getaffinity(0, sizeof(before), &before);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) != 0)
        return hy_fail(HY_E_SYS, "bench: socketpair: %s", strerror(errno));
    pid_t pid = fork();
    if (pid < 0)
        return hy_fail(HY_E_SYS, "bench: fork: %s", strerror(errno));
    b.sock = sv[pid == 0];
    close(sv[pid != 0]);
    if (pid == 0)
        _exit(child(&b));
    b.peer_pid = pid;
    pin(0);
    hy_status st = memory(&b);
    if (st == HY_OK)
        st = bench_sync(&b) ? parts(&b) : hy_fail(HY_E_PEER, "bench: the other side is gone");
    close(b.sock);
    if (st < 0)
        kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    if (b.pool != NULL && b.pool != MAP_FAILED)
        munmap(b.pool, b.pool_len);
    sched_setaffinity(0, sizeof(before), &before);
    if (st < 0)
        return st;
    report(&b);
    *out = b.r;
    return HY_OK;
}
