/* SPDX-License-Identifier: Apache-2.0
 *
 * Progress of a long copy on stderr.
 *
 * Thread: main.  Owner: none.
 */
#include "tools/fetch/fetch.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void hy_progress_start(hy_progress *p, const char *name, uint64_t start, uint64_t total)
{
    *p = (hy_progress){.name = name, .total = total, .start = start, .t0 = now(), .last_tenth = -1};
    p->tty = isatty(STDERR_FILENO) == 1;
}

static void bar(hy_progress *p, uint64_t done, double t)
{
    enum { WIDTH = 30 };
    double dt = t - p->t0;
    double rate = dt > 0.1 ? (double)(done - p->start) / dt : 0.0;
    char line[WIDTH + 1];
    int filled = p->total > 0 ? (int)(WIDTH * (double)done / (double)p->total) : 0;
    filled = filled > WIDTH ? WIDTH : filled;
    memset(line, '.', WIDTH);
    memset(line, '#', (size_t)filled);
    line[WIDTH] = '\0';
    if (p->total > 0)
        fprintf(stderr, "\r%s [%s] %3d%% %.1f/%.1f MB %.1f MB/s", p->name, line,
                (int)(100.0 * (double)done / (double)p->total), (double)done / 1e6,
                (double)p->total / 1e6, rate / 1e6);
    else
        fprintf(stderr, "\r%s %.1f MB %.1f MB/s", p->name, (double)done / 1e6, rate / 1e6);
    if (rate > 0.0 && p->total > done)
        fprintf(stderr, " %ds left ", (int)((double)(p->total - done) / rate) + 1);
    fputs("\033[K", stderr);
}

void hy_progress_at(hy_progress *p, uint64_t done)
{
    double t = now();
    if (p->quiet)
        return;
    if (p->tty) {
        if (t - p->last >= 0.1) {
            p->last = t;
            bar(p, done, t);
        }
        return;
    }
    int tenth = p->total > 0 ? (int)(10.0 * (double)done / (double)p->total) : -1;
    if (tenth > p->last_tenth) {
        p->last_tenth = tenth;
        fprintf(stderr, "%s: %d%% of %.1f MB\n", p->name, tenth * 10, (double)p->total / 1e6);
    }
}

void hy_progress_end(hy_progress *p, bool ok)
{
    if (p->tty && !p->quiet) {
        if (ok && p->total > 0)
            bar(p, p->total, now());
        fputc('\n', stderr);
    }
}
