/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines: error (work lost), warn (went on), info (per start, peer), debug (per object),
 * trace (per step). One line per call, to stderr or to a sink that a test installs.
 *
 * Thread: any; lines never interleave.  Owner: nothing kept.
 */
#ifndef HY_BASE_LOG_H
#define HY_BASE_LOG_H

#include "core/base/status.h"

typedef enum hy_log_level {
    HY_LOG_ERROR,
    HY_LOG_WARN,
    HY_LOG_INFO,
    HY_LOG_DEBUG,
    HY_LOG_TRACE,
} hy_log_level;

typedef void (*hy_log_sink)(void *arg, hy_log_level level, const char *module, const char *text);

/* Backend modules take these from the program: exported in spite of -fvisibility=hidden. */
#pragma GCC visibility push(default)
void hy_log(hy_log_level level, const char *module, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void hy_log_set_level(hy_log_level level);
hy_log_level hy_log_level_get(void);
/* "error" ... "trace"; HY_E_INVAL otherwise. */
hy_status hy_log_level_parse(const char *name, hy_log_level *out);
/* NULL restores stderr. Call before threads start. */
void hy_log_set_sink(hy_log_sink sink, void *arg);

#define hy_error(module, ...) hy_log(HY_LOG_ERROR, module, __VA_ARGS__)
#define hy_warn(module, ...)  hy_log(HY_LOG_WARN, module, __VA_ARGS__)
#define hy_info(module, ...)  hy_log(HY_LOG_INFO, module, __VA_ARGS__)
#define hy_debug(module, ...)                                                                      \
    do {                                                                                           \
        if (hy_log_level_get() >= HY_LOG_DEBUG)                                                    \
            hy_log(HY_LOG_DEBUG, module, __VA_ARGS__);                                             \
    } while (0)
#pragma GCC visibility pop

#endif
