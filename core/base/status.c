/* SPDX-License-Identifier: Apache-2.0
 *
 * Status names, scopes and the per-thread failure text.
 *
 * Thread: any.  Owner: text is thread-local.
 */
#include "core/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_LEN = 1024 };
static _Thread_local char text[TEXT_LEN];

hy_scope hy_status_scope(hy_status st)
{
    if (st >= 0)
        return HY_SCOPE_NONE;
    if (st > -100)
        return HY_SCOPE_REQUEST;
    if (st > -200)
        return HY_SCOPE_PEER;
    if (st > -300)
        return HY_SCOPE_DEVICE;
    return HY_SCOPE_NODE;
}

const char *hy_status_name(hy_status st)
{
    switch (st) {
#define NAME(x)                                                                                    \
    case x:                                                                                        \
        return #x
        NAME(HY_OK);
        NAME(HY_AGAIN);
        NAME(HY_PENDING);
        NAME(HY_END);
        NAME(HY_E_INVAL);
        NAME(HY_E_UNSUPPORTED);
        NAME(HY_E_NOTFOUND);
        NAME(HY_E_FORMAT);
        NAME(HY_E_LIMIT);
        NAME(HY_E_ABORTED);
        NAME(HY_E_TIMEOUT);
        NAME(HY_E_BUSY);
        NAME(HY_E_DENIED);
        NAME(HY_E_PEER);
        NAME(HY_E_PROTOCOL);
        NAME(HY_E_DEVICE);
        NAME(HY_E_NOMEM_DEVICE);
        NAME(HY_E_NOMEM);
        NAME(HY_E_IO);
        NAME(HY_E_SYS);
#undef NAME
    }
    return "HY_E_UNKNOWN";
}

void hy_printable(char *s)
{
    for (unsigned char *p = (unsigned char *)s; *p != '\0'; p++) {
        if (*p < 0x20 || *p == 0x7f) {
            *p = '?';
        } else if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) { /* U+0080 to U+009F in UTF-8 */
            p[0] = p[1] = '?';
        }
    }
}

hy_status hy_fail(hy_status st, const char *fmt, ...)
{
    va_list ap;
    char tmp[TEXT_LEN]; /* an argument may point into text itself */
    va_start(ap, fmt);
    vsnprintf(tmp, sizeof(tmp), fmt, ap);
    va_end(ap);
    hy_printable(tmp);
    memcpy(text, tmp, sizeof(text));
    return st;
}

hy_status hy_fail_in(hy_status st, const char *fmt, ...)
{
    va_list ap;
    char tmp[TEXT_LEN];
    va_start(ap, fmt);
    int n = vsnprintf(tmp, sizeof(tmp), fmt, ap);
    va_end(ap);
    if (n >= 0 && n < TEXT_LEN)
        snprintf(tmp + n, sizeof(tmp) - (size_t)n, "%s", text);
    hy_printable(tmp);
    memcpy(text, tmp, sizeof(text));
    return st;
}

const char *hy_fail_text(void)
{
    return text;
}

_Noreturn void hy_assert_fail(const char *cond, const char *file, int line)
{
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, cond);
    abort();
}
