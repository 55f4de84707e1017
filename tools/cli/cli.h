/* SPDX-License-Identifier: Apache-2.0
 *
 * The `halyard` command: one program, one file per subcommand (cmd_*.c), and what they share:
 * reading options, overrides of the configuration, and finding a model by name.
 *
 * Thread: main.  Owner: see each function.
 */
#ifndef HY_TOOLS_CLI_H
#define HY_TOOLS_CLI_H

#include "core/base/buf.h"
#include "core/conf/conf.h"

enum { HY_EXIT_OK = 0, HY_EXIT_FAIL = 1, HY_EXIT_USAGE = 2 };

/* A subcommand: argv[0] is its own name. Returns the exit status. */
typedef int (*hy_cmd_fn)(int argc, char **argv);
int hy_cmd_run(int argc, char **argv);
int hy_cmd_serve(int argc, char **argv);
int hy_cmd_fetch(int argc, char **argv);
int hy_cmd_inspect(int argc, char **argv);
int hy_cmd_tokenize(int argc, char **argv);
int hy_cmd_devices(int argc, char **argv);
int hy_cmd_conform(int argc, char **argv);
int hy_cmd_config(int argc, char **argv);
int hy_cmd_bench(int argc, char **argv);
int hy_cmd_bench_link(int argc, char **argv);   /* argv[0] is "link" */
int hy_cmd_bench_device(int argc, char **argv); /* argv[0] is "device" */
int hy_cmd_drift(int argc, char **argv);
int hy_cmd_up(int argc, char **argv);
int hy_cmd_trace(int argc, char **argv);

/* Signals do again what they do by default, where a library that came along had taken them. */
void hy_cli_signals(void);

/* One option of a subcommand. `value` receives the argument (NULL: a flag, then *flag is set).
 * `conf` names the key "section.key" that the option sets, for options that are only a shorter
 * way to say -o. */
typedef struct hy_cli_opt {
    const char *name; /* "--prompt" */
    char letter;      /* 'p' or 0 */
    const char *arg;  /* "TEXT"; NULL: a flag */
    const char *help;
    const char **value;
    bool *flag;
    const char *conf;
} hy_cli_opt;

typedef struct hy_cli {
    const char *usage; /* "run MODEL [-p TEXT]"; one word: the command takes no arguments */
    const char *about; /* a paragraph */
    const hy_cli_opt *opts;
    size_t n_opts;
    hy_conf *conf;        /* overrides go here; NULL: the command takes none */
    const char *args[64]; /* positional arguments */
    int n_args;
} hy_cli;

/* Parse. Returns -1 to go on, or an exit status (help printed: 0; usage error: 2). */
int hy_cli_parse(hy_cli *c, int argc, char **argv);
/* The same, with so many positional arguments. */
int hy_cli_parse_n(hy_cli *c, int argc, char **argv, int n_args);

typedef struct hy_cli_number {
    const char *name, *text; /* "--rows", what came with it or the default */
    long long least, most;
    int64_t *out;
} hy_cli_number;

/* Texts to numbers; HY_E_INVAL names the option and its range. */
hy_status hy_cli_numbers(const hy_cli_number *list, size_t n);
/* An item of opts[]. */
#define HY_CLI_THREADS                                                                             \
    {                                                                                              \
        .name = "--threads", .letter = 't', .arg = "N", .conf = "engine.threads",                  \
        .help = "threads (0: all cores)"                                                           \
    }
/* Print the recorded failure as "halyard NAME: text" and return HY_EXIT_FAIL. */
int hy_cli_fail(const char *name);

/* Log what a node has loaded (model, device, KV, address), a line each. */
struct hy_node;
void hy_cli_log_node(const struct hy_node *node);

/* A configuration with every backend's keys. Exits the process when out of memory. */
hy_conf *hy_cli_conf(void);
/* MODEL as given (a file, a folder, or a fetched name) to a path. malloc'd. HY_E_NOTFOUND says
 * what to do. */
hy_status hy_cli_model_path(const hy_conf *conf, const char *model, char **out);
/* Folder where fetched models lie: [fetch] cache_dir, else $HY_MODELS, else ~/.cache/halyard.
 * malloc'd. */
char *hy_cli_cache_dir(const hy_conf *conf);
/* The argument MODEL | FILE.ini: load the file, or put the model into [model] path. */
hy_status hy_cli_set_model(hy_conf *conf, const char *arg);
/* True for a positional argument that names a configuration file. */
bool hy_cli_is_ini(const char *arg);

#endif
