/* SPDX-License-Identifier: Apache-2.0
 *
 * Status codes: one enum for every layer. 0 is done; positive is "not a failure"; negative is a
 * failure whose range says what is lost (a request, a peer, a device, the node), so that a caller
 * may react without knowing the code.
 *
 * Whoever detects a failure calls hy_fail(code, "text"), which keeps the text per thread;
 * callers pass it on with HY_TRY. The one who drops the failure logs or answers hy_fail_text().
 *
 * Thread: any; the text is thread-local.  Owner: the text belongs to the thread, valid until its
 * next hy_fail.
 */
#ifndef HY_BASE_STATUS_H
#define HY_BASE_STATUS_H

#include <stdbool.h>

typedef enum hy_status {
    HY_OK = 0,
    HY_AGAIN = 1,   /* would block, or no room now: try later */
    HY_PENDING = 2, /* started; completion comes as an event */
    HY_END = 3,     /* no more items */

    /* -1..-99: this request or input is lost */
    HY_E_INVAL = -1,       /* a wrong value from a user, a file or a peer */
    HY_E_UNSUPPORTED = -2, /* understood, but not to be had here */
    HY_E_NOTFOUND = -3,
    HY_E_FORMAT = -4, /* a file or message that does not parse */
    HY_E_LIMIT = -5,  /* too long, too many, too deep */
    HY_E_ABORTED = -6,
    HY_E_TIMEOUT = -7,
    HY_E_BUSY = -8,
    HY_E_DENIED = -9,

    /* -100..-199: a peer is lost */
    HY_E_PEER = -100,
    HY_E_PROTOCOL = -101,

    /* -200..-299: a device is lost */
    HY_E_DEVICE = -200,
    HY_E_NOMEM_DEVICE = -201,

    /* -300..: the node cannot go on as it is */
    HY_E_NOMEM = -300,
    HY_E_IO = -301,
    HY_E_SYS = -302,
} hy_status;

typedef enum hy_scope {
    HY_SCOPE_NONE, /* not a failure */
    HY_SCOPE_REQUEST,
    HY_SCOPE_PEER,
    HY_SCOPE_DEVICE,
    HY_SCOPE_NODE,
} hy_scope;

/* Backend modules take these from the program: exported in spite of -fvisibility=hidden. */
#pragma GCC visibility push(default)
/* What a status says is lost. */
hy_scope hy_status_scope(hy_status st);
/* Short constant name, e.g. "HY_E_INVAL". */
const char *hy_status_name(hy_status st);

/* Replace control characters by '?', in place: names from files and peers come to terminals and
 * logs. Recorded texts and log lines have gone through it. */
void hy_printable(char *s);
/* Record a failure's text for this thread and return st. The text is cut at 1023 bytes. */
hy_status hy_fail(hy_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Put context before the recorded text ("model x.gguf: " + text); returns st. */
hy_status hy_fail_in(hy_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The last recorded text of this thread, never NULL. */
const char *hy_fail_text(void);

#define HY_TRY(call)                                                                               \
    do {                                                                                           \
        hy_status hy_try_st_ = (call);                                                             \
        if (hy_try_st_ < 0)                                                                        \
            return hy_try_st_;                                                                     \
    } while (0)

/* For our own bugs only: prints and aborts in every build. */
#define HY_ASSERT(cond)                                                                            \
    do {                                                                                           \
        if (!(cond))                                                                               \
            hy_assert_fail(#cond, __FILE__, __LINE__);                                             \
    } while (0)
_Noreturn void hy_assert_fail(const char *cond, const char *file, int line);

#define HY_COUNTOF(a) (sizeof(a) / sizeof((a)[0]))
#pragma GCC visibility pop

#endif
