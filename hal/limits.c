/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits from /proc/meminfo and the cgroup files. A group's free memory is its limit less what it
 * uses, where pages of files count as free: they go when memory is needed.
 *
 * Thread: any.  Owner: nothing kept.
 */
#include "hal/limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_LEN = 1024 };

/* The first line of root/dir/name. */
static bool first_line(const char *root, const char *dir, const char *name, char *out, size_t n)
{
    char path[PATH_LEN];
    const int len = snprintf(path, sizeof(path), "%s%s/%s", root, dir, name);
    FILE *f = len > 0 && (size_t)len < sizeof(path) ? fopen(path, "re") : NULL;
    if (f == NULL)
        return false;
    const bool ok = fgets(out, (int)n, f) != NULL;
    fclose(f);
    return ok;
}

/* A number of bytes; "max" is none. */
static bool bytes_of(const char *root, const char *dir, const char *name, uint64_t *out)
{
    char line[64];
    return first_line(root, dir, name, line, sizeof(line)) && sscanf(line, "%" SCNu64, out) == 1;
}

/* Sum of the numbers behind these words of a file of "word number" lines; times 1024 with `kib`. */
static uint64_t sum_of(const char *root, const char *dir, const char *name,
                       const char *const *words, bool kib)
{
    char path[PATH_LEN], line[256], word[128];
    uint64_t sum = 0, v;
    const int len = snprintf(path, sizeof(path), "%s%s/%s", root, dir, name);
    FILE *f = len > 0 && (size_t)len < sizeof(path) ? fopen(path, "re") : NULL;
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "%127[^: ]%*[: ]%" SCNu64, word, &v) != 2)
            continue;
        for (size_t i = 0; words[i] != NULL; i++)
            sum += strcmp(word, words[i]) == 0 ? v : 0;
    }
    if (f != NULL)
        fclose(f);
    return kib ? sum * 1024 : sum;
}

static void lower_cpus(hy_limits *l, double v)
{
    if (v > 0.0 && (l->cpus == 0.0 || v < l->cpus))
        l->cpus = v;
}

/* A group with this limit and use. */
static void lower_mem(hy_limits *l, uint64_t limit, uint64_t used, uint64_t of_files)
{
    if (limit == 0 || limit >= UINT64_MAX / 16) /* version 1 writes "none" as a huge number */
        return;
    used = used > of_files ? used - of_files : 0;
    const uint64_t left = limit > used ? limit - used : 0;
    if (l->mem_limit == 0 || limit < l->mem_limit)
        l->mem_limit = limit;
    if (left < l->mem_free)
        l->mem_free = left;
}

static void read_group(const char *root, const char *group, hy_limits *l)
{
    static const char *const files[] = {"active_file", "inactive_file", NULL};
    char dir[PATH_LEN], line[64];
    double quota, period;
    uint64_t limit, used = 0;
    snprintf(dir, sizeof(dir), "/sys/fs/cgroup%s", group);
    if (first_line(root, dir, "cpu.max", line, sizeof(line)) &&
        sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0.0)
        lower_cpus(l, quota / period);
    if (!bytes_of(root, dir, "memory.max", &limit))
        return;
    bytes_of(root, dir, "memory.current", &used);
    lower_mem(l, limit, used, sum_of(root, dir, "memory.stat", files, false));
}

/* Version 1 keeps controllers apart; inside a container its own group is the root. */
static void read_v1(const char *root, hy_limits *l)
{
    static const char cpu[] = "/sys/fs/cgroup/cpu", mem[] = "/sys/fs/cgroup/memory";
    static const char *const files[] = {"total_active_file", "total_inactive_file", NULL};
    char line[64];
    double quota = 0.0, period = 0.0;
    uint64_t limit, used = 0;
    if (first_line(root, cpu, "cpu.cfs_quota_us", line, sizeof(line)))
        quota = atof(line);
    if (first_line(root, cpu, "cpu.cfs_period_us", line, sizeof(line)))
        period = atof(line);
    if (quota > 0.0 && period > 0.0)
        lower_cpus(l, quota / period);
    if (!bytes_of(root, mem, "memory.limit_in_bytes", &limit))
        return;
    bytes_of(root, mem, "memory.usage_in_bytes", &used);
    lower_mem(l, limit, used, sum_of(root, mem, "memory.stat", files, false));
}

/* The path of this process in the version 2 tree, "" when there is none. */
static void own_group(const char *root, char *out, size_t n)
{
    char path[PATH_LEN], line[512];
    out[0] = '\0';
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::", 3) == 0)
            snprintf(out, n, "%s", line + 3);
    }
    if (f != NULL)
        fclose(f);
}

void hy_limits_read(const char *root, hy_limits *out)
{
    static const char *const total[] = {"MemTotal", NULL}, *const available[] = {"MemAvailable",
                                                                                 NULL};
    char group[512];
    *out = (hy_limits){0};
    out->mem_total = sum_of(root, "/proc", "meminfo", total, true);
    out->mem_free = sum_of(root, "/proc", "meminfo", available, true);
    own_group(root, group, sizeof(group));
    for (;;) { /* and all groups above */
        read_group(root, strcmp(group, "/") == 0 ? "" : group, out);
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            break;
        *slash = '\0';
    }
    read_v1(root, out);
    if (out->mem_limit >= out->mem_total)
        out->mem_limit = 0;
    else if (out->mem_limit != 0)
        out->mem_total = out->mem_limit;
}
