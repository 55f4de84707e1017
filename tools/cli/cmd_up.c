/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard up: the nodes of a cluster file, as processes on this machine.
 *
 * Thread: main.  Owner: none.
 */
#include "core/base/log.h"
#include "core/node/role.h"
#include "core/node/size.h"
#include "tools/cli/cli.h"
#include "tools/up/run.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A model that is not there is better known before anything runs. */
static hy_status check_node(const hy_conf *node, char **model)
{
    unsigned stages;
    char *path = NULL, full[PATH_MAX];
    HY_TRY(hy_role_stages(hy_conf_str(node, "node", "role"), &stages));
    if ((stages & HY_ROLE_EXEC) == 0)
        return HY_OK;
    hy_size size;
    HY_TRY(hy_size_kv(node, &size));
    HY_TRY(hy_cli_model_path(node, hy_conf_str(node, "model", "path"), &path));
    if (realpath(path, full) != NULL) { /* one file has many names */
        free(path);
        path = strdup(full);
    }
    *model = path;
    return HY_OK;
}

/* Whose links would be refused is told; a node that is left with none is a mistake in a file, but
 * one that the cluster can run with: it computes prompts itself, and the file may change yet. */
static hy_status check_pairs(const hy_up_plan *plan, bool strict)
{
    hy_buf b;
    hy_buf_init(&b);
    const hy_status st = hy_up_plan_pairs(plan, &b);
    if (strict) /* else told with the table, where it is seen */
        hy_up_plan_peers(plan, &b);
    char *save = NULL;
    for (char *line = b.data != NULL ? strtok_r(b.data, "\n", &save) : NULL; line != NULL;
         line = strtok_r(NULL, "\n", &save))
        fprintf(stderr, "halyard up: %s\n", line);
    hy_buf_fini(&b);
    return strict ? st : HY_OK;
}

int hy_cmd_up(int argc, char **argv)
{
    hy_conf *conf = hy_cli_conf();
    bool check = false, status = false;
    const hy_cli_opt opts[] = {
        {.name = "--check", .help = "read and check all files, start nothing", .flag = &check},
        {.name = "--status",
         .help = "show nodes and links of the cluster that runs from this file (exit status 0: all "
                 "are up)",
         .flag = &status},
    };
    hy_cli cli = {
        .usage = "up CLUSTER.ini",
        .about = "Start the nodes of a cluster file on this machine, restart what dies, and stop\n"
                 "all on Ctrl-C (routers first; a second Ctrl-C kills). Keys of the file:\n"
                 "docs/CLUSTER.md.",
        .opts = opts,
        .n_opts = HY_COUNTOF(opts),
        .conf = conf};
    hy_up_plan plan = {0};
    char exe[4096];
    hy_status st = hy_conf_add_table(conf, hy_up_keys, hy_up_n_keys);
    int rc = st < 0 ? hy_cli_fail("up") : hy_cli_parse_n(&cli, argc, argv, 1);
    if (rc < 0) {
        const hy_up_env env = {hy_cli_conf, status ? NULL : check_node};
        hy_log_set_level(HY_LOG_WARN);
        ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
        st = n > 0 ? hy_conf_load_file(conf, cli.args[0])
                   : hy_fail(HY_E_SYS, "/proc/self/exe cannot be read");
        if (st == HY_OK)
            exe[n] = '\0';
        if (st == HY_OK)
            st = hy_up_plan_make(conf, cli.args[0], &env, &plan);
        if (st == HY_OK && !status)
            st = check_pairs(&plan, check);
        if (st < 0)
            rc = hy_cli_fail("up");
        else if (check) {
            printf("%s: %zu nodes, all files are good\n", cli.args[0], plan.n);
            rc = HY_EXIT_OK;
        } else if (status)
            rc = hy_up_status(&plan);
        else
            rc = hy_up_run(&plan, exe);
    }
    hy_up_plan_fini(&plan);
    hy_conf_destroy(conf);
    return rc;
}
