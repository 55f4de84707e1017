/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard serve: a node from an INI file, or from a model and options alone.
 *
 * Thread: main; signals are read from a descriptor.  Owner: none.
 */
#include "core/base/log.h"
#include "core/node/node.h"
#include "core/node/role.h"
#include "tools/cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Wait for a signal: 1 when one came, 0 when the node failed, within ms (-1: for ever). */
static int wait_signal(int fd, hy_node *n, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (int waited = 0; ms < 0 || waited < ms; waited += 200) {
        int rc = poll(&p, 1, 200);
        struct signalfd_siginfo info;
        if (rc > 0 && read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
            return 1;
        const char *text;
        if (hy_node_health(n, &text) < 0) {
            hy_error("node", "stopping: %s", text);
            return 0;
        }
    }
    return 0;
}

static int serve(const hy_conf *conf, const char *path)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0) {
        hy_fail(HY_E_SYS, "signalfd: %s", strerror(errno));
        return hy_cli_fail("serve");
    }
    hy_node *node = NULL;
    const char *given = hy_conf_str(conf, "model", "path");
    hy_node_opts o = {.conf = conf, .model_path = path, .http = true};
    if (path != NULL &&
        strcmp(given, path) != 0) /* "smollm2": found in the cache folder under its file's name */
        o.alias = given;
    if (hy_node_create(&o, &node) < 0) {
        close(fd);
        return hy_cli_fail("serve");
    }
    hy_cli_log_node(node);
    int rc = wait_signal(fd, node, -1) == 1 ? HY_EXIT_OK : HY_EXIT_FAIL;
    if (rc == HY_EXIT_OK) {
        hy_info("node", "draining: running requests end, new ones are refused (again: stop now)");
        for (;;) {
            hy_status st = hy_node_drain(node, 200 * 1000000ull);
            struct signalfd_siginfo info;
            const char *text;
            if (st == HY_OK)
                break;
            if (hy_node_health(node, &text) < 0) {
                hy_error("node", "stopping: %s", text);
                rc = HY_EXIT_FAIL;
                break;
            }
            if (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
                hy_warn("node", "stopped while requests were running");
                break;
            }
        }
    }
    hy_node_destroy(node);
    close(fd);
    return rc;
}

int hy_cmd_serve(int argc, char **argv)
{
    const hy_cli_opt opts[] = {
        {.name = "--port",
         .letter = 'p',
         .arg = "N",
         .conf = "http.port",
         .help = "port (8000; 0: any)"},
        {.name = "--host", .arg = "ADDR", .conf = "http.host", .help = "address (127.0.0.1)"},
        HY_CLI_THREADS,
        {.name = "--context",
         .letter = 'c',
         .arg = "N",
         .conf = "engine.context",
         .help = "longest prompt and answer, tokens"},
        {.name = "--name",
         .arg = "NAME",
         .conf = "model.name",
         .help = "name that clients use for the model"},
        {.name = "--api-key",
         .arg = "KEY",
         .conf = "http.api_key",
         .help = "clients must send it as a bearer token"},
    };
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {
        .usage = "serve MODEL | FILE.ini",
        .about = "Serve a model over the OpenAI HTTP API. MODEL is a GGUF file, a Hugging Face\n"
                 "folder or a fetched name. Ctrl-C drains; a second one stops at once.",
        .opts = opts,
        .n_opts = HY_COUNTOF(opts),
        .conf = conf};
    int rc = hy_cli_parse_n(&cli, argc, argv, 1);
    char *path = NULL;
    hy_log_level level = HY_LOG_INFO;
    if (rc < 0) {
        hy_status st = hy_cli_set_model(conf, cli.args[0]); /* -o stands above the file */
        if (st == HY_OK)
            st = hy_log_level_parse(hy_conf_str(conf, "node", "log_level"), &level);
        unsigned stages = 0;
        if (st == HY_OK)
            st = hy_role_stages(hy_conf_str(conf, "node", "role"), &stages);
        if (st == HY_OK && (stages & HY_ROLE_EXEC))
            st = hy_cli_model_path(conf, hy_conf_str(conf, "model", "path"), &path);
        hy_log_set_level(level);
        /* a log may have the runs of many processes, one behind another */
        hy_info("node", "halyard %s starts: pid %d, %s", HY_VERSION, (int)getpid(), cli.args[0]);
        rc = st < 0 ? hy_cli_fail("serve") : serve(conf, path);
    }
    free(path);
    hy_conf_destroy(conf);
    return rc;
}
