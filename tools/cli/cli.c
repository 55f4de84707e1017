/* SPDX-License-Identifier: Apache-2.0
 *
 * Options and help of the subcommands.
 *
 * Thread: main.  Owner: see cli.h.
 */
#include "tools/cli/cli.h"

#include "core/base/log.h"
#include "core/node/device.h"
#include "core/node/node.h"
#include "fabric/keys.h"
#include "tools/cli/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int hy_cli_fail(const char *name)
{
    fflush(stdout);
    fprintf(stderr, "halyard %s: %s\n", name, hy_fail_text());
    return HY_EXIT_FAIL;
}

static void print_opt(const hy_cli_opt *o)
{
    char left[64], letter[8] = "    "; /* names stand below each other */
    if (o->letter)
        snprintf(letter, sizeof(letter), "-%c, ", o->letter);
    snprintf(left, sizeof(left), "%s%s%s%s", letter, o->name, o->arg != NULL ? " " : "",
             o->arg != NULL ? o->arg : "");
    printf("  %-30s %s\n", left, o->help);
}

static void print_help(const hy_cli *c)
{
    printf("Usage: halyard %s\n\n%s\n", c->usage, c->about);
    printf("\nOptions:\n");
    for (size_t i = 0; i < c->n_opts; i++)
        print_opt(&c->opts[i]);
    if (c->conf != NULL)
        printf("  %-30s %s\n", "-o SECTION.KEY=VALUE",
               "set a configuration key (`halyard config` lists all)");
    printf("  %-30s %s\n", "-h, --help", "this text");
}

static const hy_cli_opt *find_opt(const hy_cli *c, const char *arg, const char **value)
{
    *value = NULL;
    for (size_t i = 0; i < c->n_opts; i++) {
        const hy_cli_opt *o = &c->opts[i];
        size_t len = strlen(o->name);
        if (strcmp(arg, o->name) == 0)
            return o;
        if (strncmp(arg, o->name, len) == 0 && arg[len] == '=' && o->arg != NULL) {
            *value = arg + len + 1;
            return o;
        }
        if (o->letter != 0 && arg[0] == '-' && arg[1] == o->letter) {
            if (arg[2] == '\0')
                return o;
            if (o->arg != NULL) {
                *value = arg + 2;
                return o;
            }
        }
    }
    return NULL;
}

static int usage_error(const hy_cli *c, const char *text, const char *what)
{
    fprintf(stderr, "halyard: %s '%s'\nUsage: halyard %s   (--help says more)\n", text, what,
            c->usage);
    return HY_EXIT_USAGE;
}

static int apply_opt(hy_cli *c, const hy_cli_opt *o, const char *value)
{
    if (o->arg == NULL) {
        *o->flag = true;
        return -1;
    }
    if (o->value != NULL)
        *o->value = value;
    if (o->conf == NULL)
        return -1;
    char section[64];
    const char *dot = strrchr(o->conf, '.');
    snprintf(section, sizeof(section), "%.*s", (int)(dot - o->conf), o->conf);
    if (hy_conf_put(c->conf, section, dot + 1, value, o->name) < 0) {
        fprintf(stderr, "halyard: %s\n", hy_fail_text());
        return HY_EXIT_USAGE;
    }
    return -1;
}

static int parse_override(hy_cli *c, int argc, char **argv, int *i)
{
    const char *v = argv[*i] + 2;
    if (*v == '\0') {
        if (++*i >= argc)
            return usage_error(c, "an argument is missing after", "-o");
        v = argv[*i];
    }
    if (hy_conf_set(c->conf, v) < 0) {
        fprintf(stderr, "halyard: %s\n", hy_fail_text());
        return HY_EXIT_USAGE;
    }
    return -1;
}

int hy_cli_parse(hy_cli *c, int argc, char **argv)
{
    bool plain = false; /* after "--" */
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        const char *value;
        int rc = -1;
        if (!plain && strcmp(a, "--") == 0) {
            plain = true;
        } else if (plain || a[0] != '-' || a[1] == '\0') {
            if (c->n_args == (int)HY_COUNTOF(c->args))
                return usage_error(c, "too many arguments at", a);
            c->args[c->n_args++] = a;
        } else if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            print_help(c);
            return HY_EXIT_OK;
        } else if (c->conf != NULL && strncmp(a, "-o", 2) == 0) {
            rc = parse_override(c, argc, argv, &i);
        } else {
            const hy_cli_opt *o = find_opt(c, a, &value);
            if (o == NULL)
                return usage_error(c, "unknown option", a);
            if (o->arg != NULL && value == NULL) {
                if (++i >= argc)
                    return usage_error(c, "an argument is missing after", a);
                value = argv[i];
            }
            rc = apply_opt(c, o, value);
        }
        if (rc >= 0)
            return rc;
    }
    return c->n_args > 0 && strchr(c->usage, ' ') == NULL
               ? usage_error(c, "this command takes no argument:", c->args[0])
               : -1;
}

hy_conf *hy_cli_conf(void)
{
    hy_conf *c = hy_conf_create();
    if (c == NULL || hy_conf_add_table(c, hy_fab_keys, hy_fab_n_keys) < 0 ||
        hy_node_backend_keys(c) < 0) {
        fprintf(stderr, "halyard: out of memory\n");
        exit(HY_EXIT_FAIL);
    }
    return c;
}

hy_status hy_cli_set_model(hy_conf *conf, const char *arg)
{
    return hy_cli_is_ini(arg) ? hy_conf_load_file(conf, arg)
                              : hy_conf_put(conf, "model", "path", arg, "MODEL");
}

bool hy_cli_is_ini(const char *arg)
{
    size_t n = strlen(arg);
    return n > 4 && strcmp(arg + n - 4, ".ini") == 0;
}

char *hy_cli_cache_dir(const hy_conf *conf)
{
    const char *dir = hy_conf_str(conf, "fetch", "cache_dir");
    const char *env = getenv("HY_MODELS");
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (*dir != '\0')
        return strdup(dir);
    if (env != NULL && *env != '\0')
        return strdup(env);
    hy_buf b;
    hy_buf_init(&b);
    if (xdg != NULL && *xdg != '\0')
        hy_buf_printf(&b, "%s/halyard", xdg);
    else
        hy_buf_printf(&b, "%s/.cache/halyard", home != NULL && *home != '\0' ? home : "/tmp");
    return hy_buf_take(&b);
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

hy_status hy_cli_model_path(const hy_conf *conf, const char *model, char **out)
{
    if (*model == '\0')
        return hy_fail(HY_E_INVAL, "no model given: name a file, a folder or a fetched model");
    if (exists(model)) {
        *out = strdup(model);
        return *out != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory");
    }
    char *dir = hy_cli_cache_dir(conf);
    hy_buf b;
    hy_buf_init(&b);
    const hy_named_model *m = hy_named_model_find(model);
    hy_buf_printf(&b, "%s/%s", dir != NULL ? dir : ".", m != NULL ? m->file : model);
    free(dir);
    bool found = exists(hy_buf_str(&b));
    if (found)
        *out = hy_buf_take(&b);
    hy_buf_fini(&b);
    if (found && *out != NULL)
        return HY_OK;
    if (m != NULL)
        return hy_fail(HY_E_NOTFOUND, "model '%s' is not here yet: run `halyard fetch %s`", model,
                       model);
    return hy_fail(HY_E_NOTFOUND,
                   "no file, folder or fetched model '%s' (`halyard fetch` lists the names)",
                   model);
}

void hy_cli_log_node(const struct hy_node *node)
{
    hy_buf b;
    hy_buf_init(&b);
    hy_node_describe(node, &b);
    char *save = NULL;
    for (char *line = b.data != NULL ? strtok_r(b.data, "\n", &save) : NULL; line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        /* the address is said at every level: `halyard up` waits for it */
        const bool address = strncmp(line, "serving ", 8) == 0;
        hy_log(address && hy_log_level_get() < HY_LOG_INFO ? HY_LOG_ERROR : HY_LOG_INFO, "node",
               "%s", line);
    }
    hy_buf_fini(&b);
}
