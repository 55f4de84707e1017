/* SPDX-License-Identifier: Apache-2.0
 *
 * The sim's device: memory, kernels, failures, faults. See sim.h.
 *
 * Thread: any; one lock.  Owner: the process.
 */
#include "tests/double/sim.h"
#include "backends/simt/host/exec.h"
#include "backends/simt/host/table.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API    __attribute__((visibility("default")))
#define ARENA  ((size_t)4 << 30)
#define PAGE   ((size_t)4096)
#define POISON 0xff /* NaN in every float type, -1 as an index */

typedef struct range { /* of device memory in use, by address; or pinned memory */
    struct range *next;
    char *p;
    size_t bytes;
    int fd;      /* exported: it is this memfd, from 0 on; else -1, and the arena's */
    bool theirs; /* another process's, imported */
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *arena;
static int arena_fd = -1;
static range *used, *pinned, *ghosts; /* ghosts: freed by a planted fault, and once more later */
static simt_exec *exec;
static const simt_entry *table = simt_table_base;
static int sticky, modules, calls, faults, launches_to_fail;
static uint64_t rng;
static bool unseen; /* the failure of this call */
static sim_plan plan = {.wave = 32};
static const char *now = ""; /* entry point or kernel, for messages */
static const char *fault_at = "";
static volatile bool working; /* the device is at it */

typedef struct tally {
    const char *call;
    int n;
} tally;
static tally tallies[128];

/* ---- control ---- */

static void new_exec(void)
{
    simt_exec_opts o = {.wave = plan.wave, .threads = 1, .seed = 3};
    simt_exec_destroy(exec);
    if (simt_exec_create(&o, &exec) != 0)
        abort();
}

API void sim_set(const sim_plan *p)
{
    pthread_mutex_lock(&lock);
    int wave = plan.wave;
    plan = *p;
    plan.wave = p->wave != 0 ? p->wave : wave;
    if (plan.wave != wave && exec != NULL)
        new_exec();
    rng = plan.seed * 0x9e3779b97f4a7c15u;
    calls = faults = launches_to_fail = 0;
    pthread_mutex_unlock(&lock);
}

API int sim_calls(void)
{
    return calls;
}

API int sim_sticky(void)
{
    return sticky;
}

API int sim_faults(void)
{
    return faults >= plan.nth;
}

API const char *sim_fault_at(void)
{
    return fault_at;
}

API void sim_lose(void *unused)
{
    (void)unused;
    sticky = SIM_LOST;
}

API void sim_revive(void)
{
    sticky = 0;
}

API int sim_runs(const char *call)
{
    for (size_t i = 0; i < sizeof(tallies) / sizeof(tallies[0]); i++) {
        if (tallies[i].call != NULL && strcmp(tallies[i].call, call) == 0)
            return tallies[i].n;
    }
    return 0;
}

static void read_env(void)
{
    const char *s = getenv(SIM_ENV) != NULL ? getenv(SIM_ENV) : getenv("HY_DOUBLE");
    char key[16], value[64];
    int n = 0;
    while (s != NULL && sscanf(s, "%15[a-z]=%63[^,]%n", key, value, &n) == 2) {
        int v = atoi(value);
        plan.wave = strcmp(key, "wave") == 0 ? v : plan.wave;
        plan.seed = strcmp(key, "seed") == 0 ? (uint64_t)v : plan.seed;
        plan.fail = strcmp(key, "fail") == 0 ? v : plan.fail;
        plan.at = strcmp(key, "at") == 0 ? v : plan.at;
        plan.fault = strcmp(key, "fault") == 0 ? v : plan.fault;
        plan.nth = strcmp(key, "nth") == 0 ? v : plan.nth;
        plan.bare = strcmp(key, "bare") == 0 ? v : plan.bare;
        if (strcmp(key, "image") == 0)
            snprintf(plan.image, sizeof(plan.image), "%.15s", value);
        s = s[n] == ',' ? s + n + 1 : NULL;
    }
    rng = plan.seed * 0x9e3779b97f4a7c15u;
}

uint32_t sim_random(uint32_t n)
{
    if (plan.seed == 0)
        return 0;
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

bool sim_seeded(void)
{
    return plan.seed != 0;
}

bool sim_fault_now(sim_fault f)
{
    if (plan.fault != (int)f || ++faults != plan.nth)
        return false;
    fault_at = now;
    return true;
}

bool sim_bare(void)
{
    return plan.bare != 0;
}

bool sim_launch_fails(void)
{
    return launches_to_fail > 0 && launches_to_fail-- > 0;
}

/* The device is of no more use. No text: as planned. */
void sim_break(int code, const char *fmt, ...)
{
    va_list ap;
    if (fmt != NULL) {
        fprintf(stderr, "double: %s: ", now);
        va_start(ap, fmt);
        vfprintf(stderr, fmt, ap);
        va_end(ap);
        fprintf(stderr, "\n");
    }
    if (sticky == 0)
        sticky = code;
}

static void count_call(const char *call)
{
    size_t i = 0;
    while (tallies[i].call != NULL && strcmp(tallies[i].call, call) != 0)
        i++;
    tallies[i].call = call;
    tallies[i].n++;
}

static bool only_asks(const char *call)
{
    static const char *const words[] = {"Init",  "Device", "CtxSet",  "GetInfo",
                                        "Query", "Range",  "Function"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strstr(call, words[i]) != NULL)
            return true;
    }
    return false;
}

int sim_begin(const char *call, bool freeing)
{
    pthread_mutex_lock(&lock);
    now = call;
    count_call(call);
    bool mine = ++calls == plan.at;
    if (mine && plan.fail == SIM_FAIL_LOST && sticky == 0)
        sticky = SIM_LOST;
    if (mine && plan.fail == SIM_FAIL_LAUNCH)
        launches_to_fail = 1;
    if (freeing)
        return SIM_OK;
    if (sticky != 0)
        return sticky;
    if (!only_asks(call) && sim_fault_now(SIM_FAULT_STATUS)) {
        unseen = true;
        return SIM_NO_MEMORY;
    }
    return mine && plan.fail == SIM_FAIL_MEMORY ? SIM_NO_MEMORY : SIM_OK;
}

int sim_end(int code)
{
    int rc = sticky != 0 ? sticky : code;
    if (unseen)
        rc = SIM_OK;
    unseen = false;
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ---- memory ---- */

bool sim_in_arena(const void *p)
{
    return (const char *)p >= arena && (const char *)p < arena + ARENA;
}

static range *find_range(range *list, const void *p)
{
    for (range *r = list; r != NULL; r = r->next) {
        if ((const char *)p >= r->p && (const char *)p < r->p + r->bytes)
            return r;
    }
    return NULL;
}

bool sim_on_device(const void *p, size_t bytes)
{
    const range *r = find_range(used, p);
    if (r == NULL && plan.bare)
        r = find_range(ghosts, p);
    return r != NULL && bytes <= (size_t)(r->p + r->bytes - (const char *)p);
}

bool sim_is_pinned(const void *p)
{
    return find_range(pinned, p) != NULL;
}

static size_t whole(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Device memory is there only while the device works, and only what is in use. */
void sim_open_arena(bool on)
{
    working = on;
    for (const range *r = used; r != NULL;) {
        char *from = r->p, *to = from;
        for (; r != NULL && r->p == to; r = r->next)
            to += whole(r->bytes);
        mprotect(from, (size_t)(to - from), on ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
    for (const range *r = ghosts; plan.bare && r != NULL; r = r->next)
        mprotect(r->p, whole(r->bytes), on ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static void on_fault(int sig, siginfo_t *info, void *ctx)
{
    (void)ctx;
    if (sim_in_arena(info->si_addr)) {
        char text[160];
        int n = snprintf(text, sizeof(text), "double: %s %s device memory that %s\n",
                         working ? now : "the host", working ? "touched" : "reached for",
                         working ? "is not in use" : "is the device's");
        if (n > 0 && write(STDERR_FILENO, text, (size_t)n) < 0)
            abort();
        abort();
    }
    signal(sig, SIG_DFL);
}

int sim_init(unsigned flags)
{
    if (arena != NULL)
        return flags == 0 ? SIM_OK : SIM_INVALID;
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    read_env();
#if defined(SIM_HAVE_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        table = simt_table_fast;
#endif
    arena_fd = memfd_create("device", MFD_CLOEXEC);
    if (flags != 0 || arena_fd < 0 || ftruncate(arena_fd, (off_t)ARENA) != 0)
        return SIM_INVALID;
    arena = mmap(NULL, ARENA, PROT_NONE, MAP_SHARED | MAP_NORESERVE, arena_fd, 0);
    if (arena == MAP_FAILED)
        return SIM_INVALID;
    new_exec();
    sigaction(SIGSEGV, &a, NULL);
    return SIM_OK;
}

int sim_count(int *n)
{
    *n = plan.wave != 0 ? 1 : 0;
    return *n > 0 ? SIM_OK : SIM_NO_DEVICE;
}

int sim_wave(void)
{
    return plan.wave;
}

int sim_mem_info(size_t *left, size_t *total)
{
    *left = *total = ARENA;
    for (const range *r = used; r != NULL; r = r->next)
        *left -= whole(r->bytes);
    return SIM_OK;
}

static int add_range(range **at, char *p, size_t bytes)
{
    range *n = calloc(1, sizeof(*n));
    if (n == NULL)
        abort();
    *n = (range){*at, p, bytes, -1, false};
    *at = n;
    return SIM_OK;
}

/* What lay there goes; from now on it is the arena's own. */
static void give_back(const range *r)
{
    if (mmap(r->p, whole(r->bytes), PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, arena_fd,
             r->p - arena) == MAP_FAILED)
        abort();
    if (r->fd >= 0)
        close(r->fd);
}

static int drop_range(range **list, const void *p, size_t *bytes)
{
    for (range **r = list; *r != NULL; r = &(*r)->next) {
        if ((*r)->p == p) {
            range *old = *r;
            *bytes = old->bytes;
            if (old->fd >= 0 || old->theirs)
                give_back(old);
            *r = old->next;
            free(old);
            return SIM_OK;
        }
    }
    return SIM_INVALID;
}

int sim_alloc(void **p, size_t bytes)
{
    char *at = arena;
    range **r = &used;
    *p = NULL;
    if (sim_capturing())
        return SIM_CAPTURE;
    if (bytes == 0)
        return SIM_INVALID;
    while (*r != NULL && (size_t)((*r)->p - at) < whole(bytes)) {
        at = (*r)->p + whole((*r)->bytes);
        r = &(*r)->next;
    }
    if (bytes > ARENA || (size_t)(arena + ARENA - at) < whole(bytes))
        return SIM_NO_MEMORY;
    add_range(r, at, bytes);
    if (!plan.bare) {
        mprotect(at, whole(bytes), PROT_READ | PROT_WRITE);
        memset(at, POISON, whole(bytes));
        mprotect(at, whole(bytes), PROT_NONE);
    }
    *p = at;
    return SIM_OK;
}

int sim_free(void *p)
{
    size_t bytes = 0;
    if (p == NULL)
        return SIM_OK;
    if (sim_capturing())
        return SIM_CAPTURE;
    sim_finish_all(); /* as the real ones */
    if (sim_fault_now(SIM_FAULT_LEAK) || drop_range(&ghosts, p, &bytes) == SIM_OK)
        return SIM_OK;
    const range *r = find_range(used, p);
    if (r == NULL || r->theirs || drop_range(&used, p, &bytes) != SIM_OK) {
        fprintf(stderr, "double: %s: %p is not the start of a block in use\n", now, p);
        return SIM_INVALID;
    }
    if (!plan.bare)
        fallocate(arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (char *)p - arena,
                  (off_t)whole(bytes));
    return SIM_OK;
}

void sim_free_first(const void *args, size_t bytes)
{
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        char *p;
        size_t n;
        memcpy(&p, (const char *)args + i, sizeof(p));
        const range *r = sim_in_arena(p) ? find_range(used, p) : NULL;
        if (r == NULL)
            continue;
        p = r->p;
        sim_finish_all(); /* a free waits for what was asked before */
        drop_range(&used, p, &n);
        add_range(&ghosts, p, n);
        return;
    }
}

int sim_host_alloc(void **p, size_t bytes)
{
    *p = NULL;
    if (sim_capturing())
        return SIM_CAPTURE;
    *p = malloc(bytes);
    return *p != NULL ? add_range(&pinned, *p, bytes) : SIM_NO_MEMORY;
}

int sim_host_free(void *p)
{
    size_t bytes = 0;
    sim_finish_all();
    int rc = drop_range(&pinned, p, &bytes);
    if (rc == SIM_OK)
        free(p);
    return rc;
}

int sim_host_register(void *p, size_t bytes)
{
    return p != NULL && bytes != 0 ? add_range(&pinned, p, bytes) : SIM_INVALID;
}

int sim_host_unregister(void *p)
{
    size_t bytes = 0;
    sim_finish_all();
    if (drop_range(&pinned, p, &bytes) == SIM_OK)
        return SIM_OK;
    fprintf(stderr, "double: %s: %p is not registered\n", now, p);
    abort(); /* the code that comes here has no status to tell it by */
}

int sim_range(void **base, size_t *bytes, void *p)
{
    const range *r = find_range(used, p);
    if (r == NULL)
        return SIM_INVALID;
    *base = r->p;
    *bytes = r->bytes;
    return SIM_OK;
}

/* ---- memory for others ---- */

/* Moves the block into a memfd of its own, in its place: that is what others get. */
static int own_fd(range *r)
{
    const size_t n = whole(r->bytes);
    if (r->fd >= 0)
        return r->fd;
    const int fd = memfd_create("exported", MFD_CLOEXEC);
    char *new = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)n) == 0)
        new = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (new == MAP_FAILED)
        abort();
    mprotect(r->p, n, PROT_READ);
    memcpy(new, r->p, n);
    munmap(new, n);
    fallocate(arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, r->p - arena, (off_t)n);
    if (mmap(r->p, n, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        abort();
    return r->fd = fd;
}

/* A block's first page on, which is where the descriptor begins. */
int sim_export(void *fd, void *p, size_t bytes, int kind)
{
    range *r = find_range(used, p);
    if (kind != 1 || bytes == 0 || bytes % PAGE != 0 || r == NULL || r->p != p || r->theirs ||
        whole(r->bytes) < bytes)
        return SIM_INVALID;
    sim_finish_all(); /* before it is moved */
    const int new = fcntl(own_fd(r), F_DUPFD_CLOEXEC, 0);
    if (new < 0)
        return SIM_INVALID;
    memcpy(fd, &new, sizeof(new));
    return SIM_OK;
}

typedef struct ipc {
    char maker[24]; /* whose it is */
    pid_t pid;
    int fd;
    uint64_t bytes, sum;
} ipc;

static uint64_t sum_of(const ipc *h)
{
    return ((uint64_t)h->pid * 0x9e3779b97f4a7c15u + (uint64_t)h->fd) ^ h->bytes * 0x100000001b3u;
}

int sim_ipc_get(sim_ipc *out, void *p)
{
    range *r = find_range(used, p);
    ipc h = {.maker = SIM_ENV, .pid = getpid()};
    if (r == NULL || r->theirs)
        return SIM_INVALID;
    sim_finish_all();
    h.fd = own_fd(r);
    h.bytes = r->bytes;
    h.sum = sum_of(&h);
    memset(out, 0, sizeof(*out));
    memcpy(out->bytes, &h, sizeof(h));
    return SIM_OK;
}

/* Into a free place of the arena, so that kernels can reach it as any device memory. */
int sim_ipc_open(void **p, sim_ipc in)
{
    ipc h;
    char path[64];
    memcpy(&h, in.bytes, sizeof(h));
    if (memcmp(h.maker, SIM_ENV, sizeof(SIM_ENV)) != 0 || h.sum != sum_of(&h) ||
        h.pid == getpid()) /* as CUDA: not in the process that exported it */
        return SIM_INVALID;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)h.pid, h.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC), rc = SIM_INVALID;
    if (fd >= 0)
        rc = sim_alloc(p, h.bytes);
    if (rc == SIM_OK) {
        find_range(used, *p)->theirs = true;
        if (mmap(*p, whole(h.bytes), PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            abort();
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int sim_ipc_close(void *p)
{
    const range *r = find_range(used, p);
    size_t bytes = 0;
    sim_finish_all();
    if (r == NULL || r->p != p || !r->theirs)
        return SIM_INVALID;
    return drop_range(&used, p, &bytes);
}

/* ---- kernels ---- */

/* An image is a text; the device takes those that hold its name (HY_DOUBLE=image=...). */
int sim_load(void **m, const void *text)
{
    *m = NULL;
    if (text == NULL)
        return SIM_INVALID;
    if (plan.image[0] != '\0' && strstr(text, plan.image) == NULL)
        return SIM_NO_IMAGE;
    *m = &exec;
    modules++;
    return SIM_OK;
}

/* The last of the calls with which a device is closed. */
int sim_unload(void *m)
{
    int blocks = 0, streams = sim_streams_left();
    if (m != &exec || modules < 1)
        return SIM_INVALID;
    if (--modules > 0)
        return SIM_OK;
    for (const range *r = used; r != NULL; r = r->next)
        blocks++;
    if (blocks != 0 || pinned != NULL || streams != 0) {
        fprintf(stderr, "double: %d device blocks, %d streams or graphs%s left at the end\n",
                blocks, streams, pinned != NULL ? ", pinned memory" : "");
        abort();
    }
    return SIM_OK;
}

int sim_function(void **fn, void *m, const char *name)
{
    *fn = NULL;
    if (m != &exec)
        return SIM_INVALID;
    for (int k = 0; k < SIMT_KERNELS; k++) {
        if (strcmp(table[k].name, name) == 0) {
            *fn = (void *)(uintptr_t)(k + 1);
            return SIM_OK;
        }
    }
    return SIM_NOT_FOUND;
}

size_t sim_kernel_bytes(int k)
{
    return k >= 0 && k < SIMT_KERNELS ? table[k].bytes : 0;
}

/* Whether a word of a kernel's argument is the address of memory that only the host has: heap,
 * stacks and libraries lie above 0x5000'0000'0000; what is below are pairs of numbers. */
static bool is_host_address(uint64_t v)
{
    unsigned char in;
    return v >= (uint64_t)0x50 << 40 && v < (uint64_t)1 << 47 &&
           !sim_in_arena((void *)(uintptr_t)v) &&
           mincore((void *)(uintptr_t)(v / PAGE * PAGE), PAGE, &in) == 0;
}

bool sim_run_kernel(int k, const uint32_t grid[3], int lanes, const void *args)
{
    const char *before = now;
    now = table[k].name;
    for (size_t i = 0; i + 8 <= table[k].bytes; i += 8) {
        uint64_t v;
        memcpy(&v, (const char *)args + i, sizeof(v));
        if (is_host_address(v)) {
            sim_break(SIM_ILLEGAL_ADDRESS, "its argument holds a host address at byte %zu", i);
            now = before;
            return false;
        }
    }
    simt_launch l = {.name = table[k].name,
                     .fn = table[k].fn,
                     .lanes = lanes,
                     .x = grid[0],
                     .y = grid[1],
                     .z = grid[2],
                     .args = args};
    bool ok = simt_exec_run(exec, &l) == HY_OK;
    if (!ok)
        sim_break(SIM_LAUNCH_FAILED, "%s", hy_fail_text());
    now = before;
    return ok;
}

const char *sim_error_name(int code)
{
    switch (code) {
    case SIM_NO_MEMORY:
        return "OUT_OF_MEMORY";
    case SIM_LOST:
        return "ECC_UNCORRECTABLE";
    case SIM_LAUNCH_FAILED:
        return "LAUNCH_FAILED";
    case SIM_ILLEGAL_ADDRESS:
        return "ILLEGAL_ADDRESS";
    case SIM_NO_IMAGE:
        return "NO_BINARY_FOR_GPU";
    default:
        return NULL;
    }
}
