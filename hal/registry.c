/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds a backend by name, checks that it speaks this ABI, opens its device, and fills the slots
 * it left empty. The table of built-in backends is the only place that names them.
 *
 * Thread: any; the list of modules is under a lock.
 * Owner: an open device carries the filled tables, freed by hy_dev_close.
 */
#include "hal/registry.h"
#include "core/base/alloc.h"
#include "core/base/log.h"
#include "hal/stub.h"
#include "hal/topology.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_MAX_LEN 15
#define MODULES_MAX  16
#define PREFIX       "halyard-"

extern const hy_backend cpu_backend;
extern const hy_backend simt_backend;

static const hy_backend *const builtin[] = {&cpu_backend, &simt_backend};

/* A module seen on disk. */
typedef struct module {
    char name[NAME_MAX_LEN + 1];
    char path[512];
    const hy_backend *backend; /* NULL: not loaded yet */
} module;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static module modules[MODULES_MAX];
static size_t n_modules;
static bool scanned;

static bool name_ok(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return n >= 1 && n <= NAME_MAX_LEN && s[n] == '\0';
}

static void note_module(const char *dir, const char *file)
{
    size_t pre = strlen(PREFIX), len = strlen(file);
    if (strncmp(file, PREFIX, pre) != 0 || len < pre + 4 || strcmp(file + len - 3, ".so") != 0)
        return;
    char name[NAME_MAX_LEN + 1];
    int n = snprintf(name, sizeof(name), "%.*s", (int)(len - pre - 3), file + pre);
    if (n < 0 || (size_t)n >= sizeof(name) || !name_ok(name))
        return;
    for (size_t i = 0; i < n_modules; i++) {
        if (strcmp(modules[i].name, name) == 0)
            return; /* the first folder wins */
    }
    if (n_modules == MODULES_MAX) {
        hy_warn("hal", "more than %d backend modules: %s/%s is left out", MODULES_MAX, dir, file);
        return;
    }
    module *m = &modules[n_modules];
    n = snprintf(m->path, sizeof(m->path), "%s/%s", dir, file);
    if (n < 0 || (size_t)n >= sizeof(m->path))
        return;
    memcpy(m->name, name, sizeof(name));
    n_modules++;
}

static void scan_dir(const char *dir)
{
    DIR *d = opendir(dir);
    if (d == NULL)
        return;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        note_module(dir, e->d_name);
    closedir(d);
}

/* HY_BACKEND_PATH first, so that a user can put a module before the installed one. */
static void scan(void)
{
    char dir[512];
    const char *p = getenv("HY_BACKEND_PATH");
    while (p != NULL && *p != '\0') {
        size_t n = strcspn(p, ":");
        if (n > 0 && n < sizeof(dir)) {
            memcpy(dir, p, n);
            dir[n] = '\0';
            scan_dir(dir);
        }
        p += n + (p[n] == ':');
    }
    ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);
    if (n > 0) {
        dir[n] = '\0';
        char *slash = strrchr(dir, '/');
        if (slash != NULL && slash != dir) {
            *slash = '\0';
            scan_dir(dir);
        }
    }
    scanned = true;
}

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* Levenshtein distance of short names. */
static size_t distance(const char *a, const char *b)
{
    size_t row[64], la = strlen(a), lb = strlen(b);
    if (lb >= HY_COUNTOF(row))
        return la + lb;
    for (size_t j = 0; j <= lb; j++)
        row[j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t diag = row[0];
        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t up = row[j];
            row[j] = min3(up + 1, row[j - 1] + 1, diag + (a[i - 1] != b[j - 1]));
            diag = up;
        }
    }
    return row[lb];
}

static const char *known_at(size_t i)
{
    if (i < HY_COUNTOF(builtin))
        return builtin[i]->name;
    i -= HY_COUNTOF(builtin);
    return i < n_modules ? modules[i].name : NULL;
}

/* Modules of this project that a build without their compilers lacks. */
static const char *const gpu_modules[] = {"cuda", "hip"};

static bool known(const char *name)
{
    for (size_t i = 0; known_at(i) != NULL; i++)
        if (strcmp(known_at(i), name) == 0)
            return true;
    return false;
}

static hy_status unknown(const char *name)
{
    const char *best = NULL;
    char list[256] = "", near[64] = ".";
    size_t at = 0;
    for (size_t i = 0; known_at(i) != NULL; i++) {
        const size_t far = distance(name, known_at(i));
        if (far <= strlen(name) / 2 && (best == NULL || far < distance(name, best)))
            best = known_at(i);
        int n = snprintf(list + at, sizeof(list) - at, " %s", known_at(i));
        at += n > 0 && (size_t)n < sizeof(list) - at ? (size_t)n : 0;
    }
    if (best != NULL)
        snprintf(near, sizeof(near), "; did you mean \"%.40s\"?", best);
    return hy_fail(HY_E_NOTFOUND,
                   "no backend \"%.40s\"%s Known here:%s. There is no file " PREFIX
                   "%.40s.so beside the program or in HY_BACKEND_PATH (cuda and hip are built with "
                   "-DHY_GPU=ON: docs/BACKENDS.md)",
                   name, near, list, name);
}

static hy_status load(module *m)
{
    if (m->backend != NULL)
        return HY_OK;
    void *dl = dlopen(m->path, RTLD_NOW | RTLD_LOCAL);
    if (dl == NULL) {
        const char *why = dlerror();
        return hy_fail(HY_E_UNSUPPORTED, "backend %s cannot be loaded: %s", m->name,
                       why != NULL ? why : "unknown reason");
    }
    const hy_backend *b = dlsym(dl, "hy_backend_v1");
    hy_status st = HY_OK;
    if (b == NULL)
        st = hy_fail(HY_E_UNSUPPORTED, "%s has no symbol hy_backend_v1: not a backend", m->path);
    else if (b->abi != HY_HAL_ABI || b->size < offsetof(hy_backend, keys))
        st = hy_fail(HY_E_UNSUPPORTED, "%s speaks HAL ABI %u, this program %d: build it anew",
                     m->path, b->abi, HY_HAL_ABI);
    else if (b->name == NULL || strcmp(b->name, m->name) != 0)
        st = hy_fail(HY_E_UNSUPPORTED, "%s calls itself \"%.40s\": rename the file", m->path,
                     b->name != NULL ? b->name : "");
    else if (b->open == NULL || b->count == NULL)
        st = hy_fail(HY_E_UNSUPPORTED, "%s has no open or no count: not a whole backend", m->path);
    if (st != HY_OK) {
        dlclose(dl);
        return st;
    }
    m->backend = b;
    return HY_OK;
}

static hy_status find_locked(const char *name, const hy_backend **out)
{
    for (size_t i = 0; i < HY_COUNTOF(builtin); i++) {
        if (strcmp(builtin[i]->name, name) == 0) {
            *out = builtin[i];
            return HY_OK;
        }
    }
    if (!scanned)
        scan();
    for (size_t i = 0; i < n_modules; i++) {
        if (strcmp(modules[i].name, name) != 0)
            continue;
        HY_TRY(load(&modules[i]));
        *out = modules[i].backend;
        return HY_OK;
    }
    return unknown(name);
}

hy_status hy_backend_find(const char *name, const hy_backend **out)
{
    pthread_mutex_lock(&lock);
    hy_status st = find_locked(name, out);
    pthread_mutex_unlock(&lock);
    return st;
}

const char *hy_backend_name_at(size_t i)
{
    pthread_mutex_lock(&lock);
    if (!scanned)
        scan();
    const char *s = known_at(i);
    pthread_mutex_unlock(&lock);
    return s;
}

/* What hy_dev_open adds to a device; found again from d->math. */
typedef struct filled {
    hy_math_ops math;
    hy_dev_ops ops;
    const hy_math_ops *own_math;
    const hy_dev_ops *own_ops;
} filled;

static hy_status check_device(const hy_backend *b, const hy_dev *d)
{
    if (d->ops == NULL || d->math == NULL || d->ops->size < sizeof(size_t) ||
        d->math->size < sizeof(size_t))
        return hy_fail(HY_E_UNSUPPORTED, "backend %s opened a device without op tables", b->name);
    return HY_OK;
}

static hy_status fill_device(const hy_backend *b, hy_dev *d)
{
    HY_TRY(check_device(b, d));
    filled *f = hy_calloc(1, sizeof(*f));
    if (f == NULL)
        return hy_fail(HY_E_NOMEM, "no memory for the tables of a %s device", b->name);
    f->own_math = d->math;
    f->own_ops = d->ops;
    d->caps = hy_stub_fill(d->ops, d->math, &f->ops, &f->math);
    d->math = &f->math;
    d->ops = &f->ops;
    return HY_OK;
}

hy_status hy_dev_open(const hy_dev_opts *o, hy_dev **out)
{
    const hy_backend *b = NULL;
    hy_dev_opts opts = *o;
    if (opts.backend == NULL)
        opts.backend = builtin[0]->name;
    HY_TRY(hy_backend_find(opts.backend, &b));
    if (b->size > offsetof(hy_backend, configure) && b->configure != NULL)
        HY_TRY(b->configure(&opts));
    int n = b->count();
    if (n <= 0)
        return hy_fail(HY_E_NOTFOUND, "backend %s finds no device here: %s", b->name,
                       b->why_none != NULL ? b->why_none() : "no reason given");
    if (opts.index < 0 || opts.index >= n)
        return hy_fail(HY_E_NOTFOUND, "backend %s has devices 0 to %d, not %d", b->name, n - 1,
                       opts.index);
    if (opts.n_threads < 0 || opts.n_threads > 4096)
        return hy_fail(HY_E_INVAL, "threads = %d is outside 0..4096", opts.n_threads);
    if (opts.n_threads == 0)
        opts.n_threads = hy_topo_threads();
    hy_dev *d = NULL;
    HY_TRY(b->open(&opts, &d));
    hy_status st = fill_device(b, d);
    if (st != HY_OK) {
        if (d->ops != NULL && d->ops->close != NULL)
            d->ops->close(d);
        return st;
    }
    *out = d;
    return HY_OK;
}

void hy_dev_close(hy_dev *d)
{
    if (d == NULL)
        return;
    const char *math = (const char *)d->math;
    filled *f = (filled *)(uintptr_t)(math - offsetof(filled, math));
    void (*close)(hy_dev *) = f->ops.close;
    d->math = f->own_math;
    d->ops = f->own_ops;
    close(d);
    hy_free(f);
}

static void print_device(const hy_backend *b, int index, hy_buf *out)
{
    hy_dev_opts o = {.backend = b->name, .index = index};
    hy_dev *d = NULL;
    hy_dev_props p;
    hy_status st = hy_dev_open(&o, &d);
    if (st == HY_OK)
        st = d->ops->props(d, &p);
    if (st == HY_OK)
        hy_buf_printf(out, "%s: %d threads, memory %.1f GiB (%.1f GiB free)%s\n", p.name,
                      p.n_threads, (double)p.mem_total / 0x1p30, (double)p.mem_free / 0x1p30,
                      p.exact ? ", exact" : "");
    else
        hy_buf_printf(out, "%s%d: %s\n", b->name, index, hy_fail_text());
    hy_dev_close(d);
}

void hy_backend_print(hy_buf *out)
{
    for (size_t i = 0; hy_backend_name_at(i) != NULL; i++) {
        const char *name = hy_backend_name_at(i);
        const hy_backend *b = NULL;
        if (hy_backend_find(name, &b) != HY_OK) {
            hy_buf_printf(out, "%s: %s\n", name, hy_fail_text());
            continue;
        }
        int n = b->count();
        for (int k = 0; k < n; k++)
            print_device(b, k, out);
        if (n <= 0)
            hy_buf_printf(out, "%s: none (%s)\n", name, b->why_none != NULL ? b->why_none() : "");
    }
    for (size_t i = 0; i < HY_COUNTOF(gpu_modules); i++)
        if (!known(gpu_modules[i]))
            hy_buf_printf(out,
                          "%s: none (no " PREFIX "%s.so beside the program or in HY_BACKEND_PATH; "
                          "tools/setup --gpu and cmake -DHY_GPU=ON make it)\n",
                          gpu_modules[i], gpu_modules[i]);
}
