/* SPDX-License-Identifier: Apache-2.0
 *
 * Signal handlers that are not ours. Where libfabric is linked with the psm libraries (Debian),
 * these and the libinfinipath below them install handlers for crashes and for INT and TERM as they
 * are loaded, in every process, with or without such a card. They print a backtrace, which
 * allocates and takes locks: a crash may hang in them, and who waits for the process learns nothing
 * of the signal. And the signal of a file that may not grow (ulimit -f): the write then fails, as
 * on a full disk.
 *
 * Thread: main, before any other.  Owner: none.
 */
#include "tools/cli/cli.h"

#include <dlfcn.h>
#include <signal.h>
#include <string.h>

static bool is_of_psm(const struct sigaction *a)
{
    Dl_info at;
    void *fn;
    _Static_assert(sizeof(fn) == sizeof(a->sa_handler), "code has data's addresses");
    memcpy(&fn, &a->sa_handler, sizeof(fn)); /* both kinds of handler lie in one union */
    if (a->sa_handler == SIG_DFL || a->sa_handler == SIG_IGN || dladdr(fn, &at) == 0 ||
        at.dli_fname == NULL)
        return false;
    const char *slash = strrchr(at.dli_fname, '/');
    const char *name = slash != NULL ? slash + 1 : at.dli_fname;
    return strncmp(name, "libpsm", 6) == 0 || strncmp(name, "libinfinipath", 13) == 0;
}

void hy_cli_signals(void)
{
    for (int sig = 1; sig < NSIG; sig++) {
        struct sigaction a, plain = {.sa_handler = SIG_DFL};
        if (sigaction(sig, NULL, &a) == 0 && is_of_psm(&a))
            (void)sigaction(sig, &plain, NULL);
    }
    signal(SIGXFSZ, SIG_IGN);
}
