/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard: the program. Finds the subcommand and calls it.
 *
 * Thread: main.  Owner: none.
 */
#include "tools/cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    hy_cmd_fn fn;
    const char *help;
} commands[] = {
    {"run", hy_cmd_run, "answer a prompt, or chat, on this machine"},
    {"serve", hy_cmd_serve, "serve a model over the OpenAI HTTP API"},
    {"up", hy_cmd_up, "run the nodes of a cluster file on this machine"},
    {"trace", hy_cmd_trace, "timelines of a cluster's last requests, for trace viewers"},
    {"fetch", hy_cmd_fetch, "get a model: by name, from a URL, a path, or hf:owner/repo"},
    {"inspect", hy_cmd_inspect, "show what a model file holds"},
    {"tokenize", hy_cmd_tokenize, "text to token ids and back"},
    {"devices", hy_cmd_devices, "show devices, cores, caches, memory and network cards"},
    {"conform", hy_cmd_conform, "check a backend's operations against double precision"},
    {"drift", hy_cmd_drift, "measure how far two backends stand apart on a model"},
    {"config", hy_cmd_config, "print every configuration key: the manual"},
    {"bench", hy_cmd_bench, "time prefill and decode; `bench link`, `bench device`"},
};

static void print_commands(FILE *f)
{
    fprintf(f, "halyard " HY_VERSION ": LLM inference for clusters whose machines are not alike\n\n"
               "Usage: halyard COMMAND [ARGUMENTS]   (halyard COMMAND --help says more)\n\n");
    for (size_t i = 0; i < HY_COUNTOF(commands); i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
}

static hy_cmd_fn find_command(const char *name)
{
    for (size_t i = 0; i < HY_COUNTOF(commands); i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].fn;
    return NULL;
}

int main(int argc, char **argv)
{
    hy_cli_signals();
    if (argc < 2) {
        print_commands(stderr);
        return HY_EXIT_USAGE;
    }
    if (argc == 3 && strcmp(argv[1], "help") == 0 && find_command(argv[2]) != NULL) {
        char *help[] = {argv[2], (char[]){"--help"}, NULL};
        return find_command(argv[2])(2, help);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_commands(stdout);
        return HY_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("halyard " HY_VERSION "\n");
        return HY_EXIT_OK;
    }
    hy_cmd_fn fn = find_command(argv[1]);
    if (fn != NULL)
        return fn(argc - 1, argv + 1);
    fprintf(stderr, "halyard: unknown command '%s'\n\n", argv[1]);
    print_commands(stderr);
    return HY_EXIT_USAGE;
}
