/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard bench link: what the links of this machine carry: the fabric, plain TCP, the provider's
 * raw rate and process_vm_readv, two processes in one run.
 *
 * Thread: main, before any other thread (it forks).  Owner: none.
 */
#include "core/base/log.h"
#include "fabric/bench.h"
#include "tools/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_line(void *arg, const char *text)
{
    (void)arg;
    puts(text);
    fflush(stdout);
}

static void print_row(const char *name, const hy_fab_bench_figure *f)
{
    printf(",\"%s\":[", name);
    for (int i = 0; i < HY_FAB_BENCH_SIZES; i++)
        printf("%s%.3f", i > 0 ? "," : "", f[i].median);
    printf("]");
}

/* One line of medians; rates in GB/s by the sizes of "bytes", 0: not measured. */
static void print_json(const hy_fab_bench_result *r)
{
    static const char *const keys[HY_BENCH_ROWS] = {
        "write",      "pull",      "raw_write", "raw_read", "alone_write", "alone_pull",
        "same_write", "same_pull", "tcp_block", "tcp_spin", "tcp_tuned",   "process_vm_readv"};
    printf("{\"provider\":\"%s\",\"bytes\":[", r->provider);
    for (int i = 0; i < HY_FAB_BENCH_SIZES; i++)
        printf("%s%llu", i > 0 ? "," : "", (unsigned long long)hy_fab_bench_sizes[i]);
    printf("]");
    for (int i = 0; i < HY_BENCH_ROWS; i++)
        print_row(keys[i], r->rate[i]);
    for (int i = 0; i < HY_FAB_BENCH_RATIOS; i++)
        print_row(r->ratio[i].name, r->ratio[i].by_size);
    printf(",\"own_beside\":%s", r->beside ? "true" : "false");
    printf(",\"msg_us\":[%.2f,%.2f],\"tcp_msg_us\":[%.2f,%.2f],\"msg_ratio\":%.3f",
           r->msg_p50.median, r->msg_p99.median, r->tcp_p50.median, r->tcp_p99.median,
           r->msg_ratio.median);
    printf(",\"idle_core\":%.5f}\n", r->idle_core);
}

/* A whole number of [min, max]. */
static hy_status number(const char *name, const char *text, long min, long max, long *out)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (end == text || *end != '\0' || v < min || v > max)
        return hy_fail(HY_E_INVAL, "%s '%s': a whole number from %ld to %ld", name, text, min, max);
    *out = v;
    return HY_OK;
}

/* Numbers into options; pools are powers of two (bench.h strews pieces over them). */
static hy_status options(hy_fab_bench_opts *o, const char *mib, const char *pool, const char *reps)
{
    long total = 0, size = 0, n = 0;
    HY_TRY(number("--mib", mib, 4, 65536, &total));
    HY_TRY(number("--pool", pool, 16, 16384, &size));
    HY_TRY(number("--reps", reps, 1, 32, &n));
    if ((size & (size - 1)) != 0)
        return hy_fail(HY_E_INVAL, "--pool '%s': a power of two", pool);
    o->total = (uint64_t)total << 20;
    o->pool = (uint64_t)size << 20;
    o->repeats = (int)n;
    return HY_OK;
}

/* Every name of the list is a row's. */
static hy_status check_rows(const char *list)
{
    char all[256];
    int at = 0;
    for (int k = 0; k < HY_BENCH_ROWS; k++)
        at += snprintf(all + at, sizeof(all) - (size_t)at, "%s%s", k > 0 ? ", " : "",
                       hy_fab_bench_names[k]);
    for (const char *p = list; p != NULL;) {
        size_t n = strcspn(p, ",");
        int k = 0;
        while (k < HY_BENCH_ROWS &&
               (strlen(hy_fab_bench_names[k]) != n || strncmp(hy_fab_bench_names[k], p, n) != 0))
            k++;
        if (k == HY_BENCH_ROWS)
            return hy_fail(HY_E_INVAL, "--rows '%.*s': one of %s", (int)n, p, all);
        p = p[n] == ',' ? p + n + 1 : NULL;
    }
    return HY_OK;
}

static int run(const hy_conf *conf, const char *mib, const char *pool, const char *reps,
               const char *rows, bool ours, bool json)
{
    hy_buf list;
    hy_buf_init(&list);
    for (size_t i = 0; i < hy_conf_list_len(conf, "fabric", "providers"); i++)
        hy_buf_printf(&list, "%s%s", i > 0 ? "," : "",
                      hy_conf_list_at(conf, "fabric", "providers", i));
    hy_fab_bench_opts o = {.providers = hy_buf_str(&list),
                           .piece_bytes = hy_conf_size(conf, "fabric", "piece"),
                           .window_bytes = hy_conf_size(conf, "fabric", "window"),
                           .congestion = hy_conf_str(conf, "fabric", "congestion"),
                           .raw = !ours,
                           .tcp = !ours,
                           .msgs = rows == NULL,
                           .idle = rows == NULL,
                           .only = rows,
                           .line = json ? NULL : print_line};
    hy_fab_bench_result r;
    int rc = HY_EXIT_OK;
    if (options(&o, mib, pool, reps) < 0 || check_rows(rows) < 0) {
        hy_cli_fail("bench link");
        rc = HY_EXIT_USAGE;
    } else {
        hy_log_set_level(HY_LOG_WARN);
        if (list.failed || hy_fab_bench(&o, &r) < 0)
            rc = hy_cli_fail("bench link");
        else if (json)
            print_json(&r);
    }
    hy_buf_fini(&list);
    return rc;
}

int hy_cmd_bench_link(int argc, char **argv)
{
    const char *mib = "256", *pool = "256", *reps = "5", *rows = NULL;
    bool json = false, ours = false;
    const hy_cli_opt opts[] = {
        {.name = "--providers",
         .letter = 'p',
         .arg = "LIST",
         .conf = "fabric.providers",
         .help = "as fabric.providers; the first that opens (its default)"},
        {.name = "--mib",
         .letter = 'm',
         .arg = "N",
         .value = &mib,
         .help = "MiB moved for each figure (256)"},
        {.name = "--pool", .arg = "MIB", .value = &pool, .help = "memory of each process (256)"},
        {.name = "--reps",
         .letter = 'r',
         .arg = "N",
         .value = &reps,
         .help = "rounds; the table has medians (5)"},
        {.name = "--rows",
         .arg = "LIST",
         .value = &rows,
         .help = "only these rows of the table, such as \"write,raw write\""},
        {.name = "--ours", .flag = &ours, .help = "only the fabric's own figures"},
        {.name = "--json", .flag = &json, .help = "one JSON line instead of the table"},
    };
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {
        .usage = "bench link [OPTIONS]",
        .about = "Time the links between two processes on this machine: writes and pulls "
                 "of strewn pieces\nas configured, over the provider alone and by the same-node "
                 "path, with the provider's raw rate,\nplain TCP and process_vm_readv "
                 "beside them, and the ratios; messages; an idle pair. Of the keys\n"
                 "that -o sets, [fabric] providers, piece and window count.",
        .opts = opts,
        .n_opts = HY_COUNTOF(opts),
        .conf = conf};
    int rc = hy_cli_parse_n(&cli, argc, argv, 0);
    if (rc < 0)
        rc = run(conf, mib, pool, reps, rows, ours, json);
    hy_conf_destroy(conf);
    return rc;
}
