/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded into the nodes of a test: each has clocks of its own, as on machines of its own. The
 * folder $HY_SKEW holds a file for each node, named as the node: two 64-bit numbers, nanoseconds
 * that its wall clock and its monotonic clock are ahead. The wall clock may be set at any time
 * (the file is mapped); the monotonic one has its own beginning and never jumps.
 *
 * Thread: any.  Owner: the mapping is kept until the process ends.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { WALL, MONO, FROM_WALL = 1000000000 /* s: no machine is up for so long */ };

static const int64_t none[2];
static const volatile int64_t *ahead = none;

/* `halyard up` names each node on its command line. */
__attribute__((constructor)) static void find_file(void)
{
    static const char mark[] = "node.name=";
    const char *dir = getenv("HY_SKEW");
    char line[4096], path[4096];
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, line, sizeof(line) - 1) : 0;
    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; dir != NULL && i < n; i += (ssize_t)strlen(line + i) + 1) {
        line[n] = '\0';
        if (strncmp(line + i, mark, sizeof(mark) - 1) != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, line + i + sizeof(mark) - 1);
        const int file = open(path, O_RDONLY | O_CLOEXEC);
        void *p = file >= 0 ? mmap(NULL, sizeof(none), PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
        if (p != MAP_FAILED)
            ahead = p;
        if (file >= 0)
            close(file);
    }
}

static void add(struct timespec *t, int64_t ns)
{
    const int64_t all = (int64_t)t->tv_sec * 1000000000 + t->tv_nsec + ns;
    t->tv_sec = (time_t)(all / 1000000000);
    t->tv_nsec = (long)(all % 1000000000);
}

/* Others are to find these (-fvisibility=hidden would keep them here). */
#pragma GCC visibility push(default)

int clock_gettime(clockid_t id, struct timespec *out)
{
    const long rc = syscall(SYS_clock_gettime, id, out);
    if (rc != 0)
        return (int)rc;
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
        add(out, ahead[WALL]);
    else if (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_RAW || id == CLOCK_MONOTONIC_COARSE ||
             id == CLOCK_BOOTTIME)
        add(out, ahead[MONO]);
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    *out = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out != NULL)
        *out = t.tv_sec;
    return t.tv_sec;
}

/* The kernel's clocks are not ahead. */
int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m,
                           const struct timespec *restrict at)
{
    typedef int wait_fn(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    static wait_fn *real;
    struct timespec t = *at;
    if (real == NULL) {
        void *p = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* x86-64's newest */
        p = p != NULL ? p : dlsym(RTLD_NEXT, "pthread_cond_timedwait");
        memcpy(&real, &p, sizeof(real));
    }
    add(&t, t.tv_sec > FROM_WALL ? -ahead[WALL] : -ahead[MONO]);
    if (t.tv_sec < 0)
        t = (struct timespec){0};
    return real(c, m, &t);
}

#pragma GCC visibility pop
