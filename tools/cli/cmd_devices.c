/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard devices: which devices the backends found, and the machine around them.
 *
 * Thread: main.  Owner: none.
 */
#include "hal/registry.h"
#include "hal/topology.h"
#include "tools/cli/cli.h"

#include <stdio.h>

int hy_cmd_devices(int argc, char **argv)
{
    hy_cli cli = {
        .usage = "devices",
        .about = "Print devices of every backend (or why there is none), cores, caches, memory\n"
                 "nodes and the network cards near them."};
    int rc = hy_cli_parse(&cli, argc, argv);
    if (rc >= 0)
        return rc;
    hy_buf b;
    hy_buf_init(&b);
    hy_backend_print(&b);
    hy_topo_print(&b);
    fputs(hy_buf_str(&b), stdout);
    hy_buf_fini(&b);
    return HY_EXIT_OK;
}
