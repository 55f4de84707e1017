/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard config: the table of keys is the manual; with a file, what would be in force.
 *
 * Thread: main.  Owner: none.
 */
#include "core/node/size.h"
#include "tools/cli/cli.h"
#include "tools/up/plan.h"

#include <stdio.h>

int hy_cmd_config(int argc, char **argv)
{
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {
        .usage = "config [FILE.ini]",
        .about = "Without a file: print every configuration key with type, default, range and\n"
                 "meaning. With a file (and -o overrides): check it and print what is in force.",
        .conf = conf};
    int rc = hy_cli_parse(&cli, argc, argv);
    hy_buf b;
    hy_buf_init(&b);
    for (int i = 0; rc < 0 && i < cli.n_args; i++)
        if (hy_conf_load_file(conf, cli.args[i]) < 0)
            rc = hy_cli_fail("config");
    hy_size size;
    if (rc < 0 && cli.n_args > 0 && hy_size_kv(conf, &size) < 0)
        rc = hy_cli_fail("config");
    if (rc < 0) {
        if (cli.n_args > 0)
            hy_conf_dump(conf, &b);
        else if (hy_conf_add_table(conf, hy_up_keys, hy_up_n_keys) == HY_OK) /* of cluster files */
            hy_conf_manual(conf, &b);
        fputs(hy_buf_str(&b), stdout);
        rc = HY_EXIT_OK;
    }
    hy_buf_fini(&b);
    hy_conf_destroy(conf);
    return rc;
}
