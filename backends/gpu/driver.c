/* SPDX-License-Identifier: Apache-2.0
 *
 * See driver.h.
 *
 * Thread: any; loading is under a lock.  Owner: the library stays open.
 */
#include "backends/gpu/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

hy_status gpu_check(const gpu_vendor *v, int code, const char *what)
{
    const char *text = NULL;
    if (code == 0)
        return HY_OK;
    hy_status st = v->status(code, &text);
    if (st == HY_AGAIN)
        return st;
    const char *name = v->calls->error_name(code);
    return hy_fail(st, "%s: %s: %s (%d)", v->name, what, name != NULL ? name : text, code);
}

const char *gpu_option(const hy_dev_opts *o, const char *key)
{
    size_t n = strlen(key);
    for (const char *const *kv = o->kv; kv != NULL && *kv != NULL; kv++) {
        if (strncmp(*kv, key, n) == 0 && (*kv)[n] == '=')
            return *kv + n + 1;
    }
    return NULL;
}

static void *open_file(gpu_library *l)
{
    if (l->path[0] != '\0') {
        void *h = dlopen(l->path, RTLD_NOW | RTLD_LOCAL);
        const char *text = h == NULL ? dlerror() : NULL;
        if (h == NULL)
            snprintf(l->why, sizeof(l->why), "[backend.%s] driver: %.400s", l->v->name,
                     text != NULL ? text : "cannot be opened");
        return h;
    }
    for (size_t i = 0; l->v->files[i] != NULL; i++) {
        void *h = dlopen(l->v->files[i], RTLD_NOW | RTLD_LOCAL);
        const char *text = h == NULL ? dlerror() : NULL;
        if (h != NULL) {
            snprintf(l->path, sizeof(l->path), "%s", l->v->files[i]);
            return h;
        }
        if (i == 0)
            snprintf(l->why, sizeof(l->why),
                     "%s is not installed: %.200s; [backend.%s] driver = PATH names one elsewhere",
                     l->v->library, text != NULL ? text : "?", l->v->name);
    }
    return NULL;
}

static bool find_symbols(gpu_library *l, void *handle)
{
    const char *missing = NULL;
    for (size_t i = 0; i < l->v->n_symbols; i++) {
        const gpu_symbol *s = &l->v->symbols[i];
        void *f = dlsym(handle, s->name);
        if (f == NULL && !s->optional && missing == NULL)
            missing = s->name;
        memcpy(s->slot, &f, sizeof(f));
    }
    if (missing != NULL)
        snprintf(l->why, sizeof(l->why), "%s (%.200s) has no %s: too old", l->v->library, l->path,
                 missing);
    return missing == NULL;
}

static void load_locked(gpu_library *l)
{
    void *handle = open_file(l);
    if (handle == NULL)
        return;
    if (!find_symbols(l, handle)) {
        dlclose(handle);
        return;
    }
    l->handle = handle;
    int n = 0;
    hy_status st = gpu_check(l->v, l->v->calls->init(0), "starting");
    if (st == HY_OK)
        st = gpu_check(l->v, l->v->calls->count(&n), "counting devices");
    l->n_devices = st == HY_OK ? n : 0;
    if (st != HY_OK)
        snprintf(l->why, sizeof(l->why), "%s sees no device: %.400s", l->v->library,
                 hy_fail_text());
    else if (n == 0)
        snprintf(l->why, sizeof(l->why), "%s sees no device", l->v->library);
    else
        l->why[0] = '\0';
}

bool gpu_library_load(gpu_library *l)
{
    pthread_mutex_lock(&lock);
    if (l->handle == NULL)
        load_locked(l);
    bool ok = l->n_devices > 0;
    pthread_mutex_unlock(&lock);
    return ok;
}

hy_status gpu_library_path(gpu_library *l, const hy_dev_opts *o)
{
    const char *path = gpu_option(o, "driver");
    hy_status st = HY_OK;
    if (path == NULL || path[0] == '\0')
        return HY_OK;
    pthread_mutex_lock(&lock);
    if (strlen(path) >= sizeof(l->path))
        st = hy_fail(HY_E_INVAL, "[backend.%s] driver: a path of %zu characters", l->v->name,
                     strlen(path));
    else if (l->handle != NULL && strcmp(path, l->path) != 0)
        st = hy_fail(HY_E_BUSY, "[backend.%s] driver = %.200s, but %.200s is open already",
                     l->v->name, path, l->path);
    else if (l->handle == NULL)
        snprintf(l->path, sizeof(l->path), "%s", path);
    pthread_mutex_unlock(&lock);
    return st;
}
