/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard inspect: what a model file or folder holds, without loading its weights.
 *
 * Thread: main.  Owner: none.
 */
#include "core/model/model.h"
#include "tools/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>

int hy_cmd_inspect(int argc, char **argv)
{
    bool tensors = false;
    const hy_cli_opt opts[] = {
        {.name = "--tensors", .letter = 't', .help = "list every tensor", .flag = &tensors},
    };
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {.usage = "inspect MODEL",
                  .about =
                      "Print family, sizes, metadata and tensor types of a GGUF file or a\n"
                      "Hugging Face folder. Every offset and shape is checked on the way, and\n"
                      "that all tensors that the family needs are there.",
                  .opts = opts,
                  .n_opts = HY_COUNTOF(opts),
                  .conf = conf};
    int rc = hy_cli_parse_n(&cli, argc, argv, 1);
    char *path = NULL;
    hy_buf b;
    hy_buf_init(&b);
    if (rc < 0) {
        if (hy_cli_model_path(conf, cli.args[0], &path) < 0 ||
            hy_model_inspect(path, tensors, &b) < 0) {
            rc = hy_cli_fail("inspect");
        } else {
            fputs(hy_buf_str(&b), stdout);
            fflush(stdout);
            rc = hy_model_check(path) < 0 ? hy_cli_fail("inspect") : HY_EXIT_OK;
        }
    }
    hy_buf_fini(&b);
    free(path);
    hy_conf_destroy(conf);
    return rc;
}
