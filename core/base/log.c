/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines to stderr: "2026-01-15T09:30:00.123Z info  sched  text".
 *
 * Thread: any.  Owner: nothing kept.
 */
#include "core/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static _Atomic int level_now = HY_LOG_INFO;
static hy_log_sink sink_now;
static void *sink_arg;
static const char *const names[] = {"error", "warn", "info", "debug", "trace"};

void hy_log_set_level(hy_log_level level)
{
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

hy_log_level hy_log_level_get(void)
{
    return (hy_log_level)atomic_load_explicit(&level_now, memory_order_relaxed);
}

hy_status hy_log_level_parse(const char *name, hy_log_level *out)
{
    for (size_t i = 0; i < HY_COUNTOF(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (hy_log_level)i;
            return HY_OK;
        }
    return hy_fail(HY_E_INVAL, "unknown log level '%s' (error, warn, info, debug, trace)", name);
}

void hy_log_set_sink(hy_log_sink sink, void *arg)
{
    sink_now = sink;
    sink_arg = arg;
}

void hy_log(hy_log_level level, const char *module, const char *fmt, ...)
{
    if (level > hy_log_level_get())
        return;
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    hy_printable(text); /* one line, whatever a file or a peer put into a name */
    if (sink_now != NULL) {
        sink_now(sink_arg, level, module, text);
        return;
    }
    struct timespec ts;
    struct tm tm;
    char when[32];
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
    fprintf(stderr, "%s.%03ldZ %-5s %-7s %s\n", when, ts.tv_nsec / 1000000, names[level], module,
            text); /* one call: stdio locks the stream for it */
}
