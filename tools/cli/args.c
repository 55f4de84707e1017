/* SPDX-License-Identifier: Apache-2.0
 *
 * What commands with a fixed count of arguments and numbers among their options share.
 *
 * Thread: main.  Owner: none.
 */
#include "tools/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int hy_cli_parse_n(hy_cli *c, int argc, char **argv, int n_args)
{
    const int rc = hy_cli_parse(c, argc, argv);
    if (rc >= 0 || c->n_args == n_args)
        return rc;
    if (c->n_args > n_args)
        fprintf(stderr, "halyard: '%s' is one argument too many\n", c->args[n_args]);
    fprintf(stderr, "Usage: halyard %s   (--help says more)\n", c->usage);
    return HY_EXIT_USAGE;
}

hy_status hy_cli_numbers(const hy_cli_number *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const hy_cli_number *a = &list[i];
        char *end = NULL;
        errno = 0;
        const long long v = strtoll(a->text, &end, 10);
        if (errno != 0 || end == a->text || *end != '\0' || v < a->least || v > a->most)
            return hy_fail(HY_E_INVAL, "%s takes a number from %lld to %lld, not '%s'", a->name,
                           a->least, a->most, a->text);
        *a->out = v;
    }
    return HY_OK;
}
