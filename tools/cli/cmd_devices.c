/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard devices: which devices the backends found, and the machine around them.
 *
 * Thread: main.  Owner: none.
 */
#include "core/node/device.h"
#include "hal/registry.h"
#include "hal/topology.h"
#include "tools/cli/cli.h"

#include <stdio.h>

int hy_cmd_devices(int argc, char **argv)
{
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {
        .conf = conf,
        .usage = "devices",
        .about = "Print devices of every backend (or why there is none), cores, caches, memory\n"
                 "nodes and the network cards near them."};
    int rc = hy_cli_parse(&cli, argc, argv);
    if (rc < 0) {
        hy_buf b;
        hy_buf_init(&b);
        rc = hy_node_configure_backends(conf) < 0 ? hy_cli_fail("devices") : HY_EXIT_OK;
        hy_backend_print(&b);
        hy_topo_print(&b);
        fputs(hy_buf_str(&b), stdout);
        hy_buf_fini(&b);
    }
    hy_conf_destroy(conf);
    return rc;
}
