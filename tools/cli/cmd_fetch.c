/* SPDX-License-Identifier: Apache-2.0
 *
 * halyard fetch: brings a model into the cache folder and prints its path.
 *
 * Thread: main.  Owner: none.
 */
#include "core/base/file.h"
#include "core/base/hash.h"
#include "tools/cli/cli.h"
#include "tools/fetch/fetch.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int list_names(void)
{
    const hy_named_model *m;
    printf("Models by name (halyard fetch NAME):\n");
    for (size_t i = 0; (m = hy_named_model_at(i)) != NULL; i++)
        printf("  %-10s %7.0f MB  %s; licence: %s\n", m->name, (double)m->bytes / 1e6, m->about,
               m->license);
    return HY_EXIT_OK;
}

/* [fetch] token_file or HF_TOKEN; malloc'd, NULL when there is none. */
static hy_status read_token(const hy_conf *conf, char **out)
{
    const char *env = getenv("HF_TOKEN");
    const char *file = hy_conf_str(conf, "fetch", "token_file");
    *out = NULL;
    if (env != NULL && *env != '\0') {
        *out = strdup(env);
    } else if (*file != '\0') {
        hy_buf b;
        hy_buf_init(&b);
        hy_status st = hy_file_read(file, 4096, &b);
        while (st == HY_OK && b.len > 0 && isspace((unsigned char)b.data[b.len - 1]))
            b.data[--b.len] = '\0';
        if (st == HY_OK)
            *out = hy_buf_take(&b);
        hy_buf_fini(&b);
        return st;
    }
    return HY_OK;
}

static hy_status fetch_url(const char *url, const char *dir, const char *sha, char **out)
{
    const char *end = url + strcspn(url, "?#");
    const char *name = end;
    while (name > url && name[-1] != '/')
        name--;
    hy_buf b;
    hy_buf_init(&b);
    size_t n = (size_t)(end - name);
    const char *host = strstr(url, "://") + 3;
    hy_buf_printf(&b, "%s/%.*s", dir, (int)n, name);
    hy_status st = HY_OK;
    if (n == 0 || name <= host || (n == 1 && *name == '.') ||
        (n == 2 && memcmp(name, "..", 2) == 0))
        st = hy_fail(HY_E_INVAL, "%s: the address ends in no file name", url);
    if (st == HY_OK)
        st = hy_file_mkdirs(dir, 0755);
    char *label = strndup(name, n);
    hy_get g = {.url = url, .path = hy_buf_str(&b), .label = label, .sha256 = sha, .retries = 5};
    if (st == HY_OK && !hy_file_exists(g.path))
        st = hy_get_file(&g);
    else if (st == HY_OK)
        fprintf(stderr, "%s: already here\n", label);
    free(label);
    if (st == HY_OK)
        *out = hy_buf_take(&b);
    hy_buf_fini(&b);
    return st;
}

static hy_status check_sum(const char *path, const char *sha)
{
    uint8_t digest[HY_SHA256_LEN];
    char hex[HY_SHA256_HEX_LEN + 1];
    if (sha == NULL)
        return HY_OK;
    if (hy_file_is_dir(path))
        return hy_fail(HY_E_INVAL, "--sha256 is for one file, %s is a folder", path);
    HY_TRY(hy_sha256_file(path, digest));
    hy_hex(digest, sizeof(digest), hex);
    return strcasecmp(hex, sha) == 0
               ? HY_OK
               : hy_fail(HY_E_FORMAT, "%s: SHA-256 is %s, expected %s", path, hex, sha);
}

static hy_status fetch(const hy_conf *conf, const char *what, const char *dir, const char *sha,
                       char **out)
{
    const hy_named_model *m = hy_named_model_find(what);
    if (m != NULL) {
        printf("%s: %s\nlicence: %s\n", m->name, m->about, m->license);
        fflush(stdout);
        return hy_fetch_named(m, dir, out);
    }
    if (strncmp(what, "hf:", 3) == 0) {
        char *token;
        HY_TRY(read_token(conf, &token));
        const char *env = getenv("HF_ENDPOINT");
        bool own = env == NULL || *env == '\0' || hy_conf_is_set(conf, "fetch", "hf_endpoint");
        const char *ep = own ? hy_conf_str(conf, "fetch", "hf_endpoint") : env;
        hy_status st = hy_fetch_hf(ep, token, what + 3, dir, out);
        free(token);
        return st;
    }
    if (strncmp(what, "http://", 7) == 0 || strncmp(what, "https://", 8) == 0)
        return fetch_url(what, dir, sha, out);
    struct stat st;
    if (stat(what, &st) == 0) {
        *out = strdup(what);
        return *out != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory");
    }
    return hy_fail(HY_E_NOTFOUND,
                   "'%s' is no known name, address, hf:owner/repo or local path; `halyard fetch` "
                   "lists the names",
                   what);
}

int hy_cmd_fetch(int argc, char **argv)
{
    const char *sha = NULL, *dir_arg = NULL;
    const hy_cli_opt opts[] = {
        {.name = "--dir",
         .letter = 'd',
         .arg = "DIR",
         .value = &dir_arg,
         .help = "folder for it ([fetch] cache_dir, $HY_MODELS or ~/.cache/halyard)"},
        {.name = "--sha256", .arg = "HEX", .value = &sha, .help = "what the file's digest must be"},
    };
    hy_conf *conf = hy_cli_conf();
    hy_cli cli = {
        .usage = "fetch [NAME | URL | PATH | hf:owner/repo[@rev][/file]]",
        .about = "Bring a model into the cache folder and print its path (the last line). Goes\n"
                 "on where an earlier call stopped; the file appears only when whole and\n"
                 "checked. HF_TOKEN and HF_ENDPOINT are taken from the environment.\n"
                 "Without an argument: list the names.",
        .opts = opts,
        .n_opts = HY_COUNTOF(opts),
        .conf = conf};
    int rc = hy_cli_parse(&cli, argc, argv);
    if (rc < 0 && sha != NULL &&
        (strlen(sha) != 64 || strspn(sha, "0123456789abcdefABCDEF") != 64)) {
        fprintf(stderr, "halyard: --sha256 takes 64 hexadecimal digits\n");
        rc = HY_EXIT_USAGE;
    }
    if (rc < 0 && cli.n_args == 0)
        rc = list_names();
    char *dir = dir_arg != NULL ? strdup(dir_arg) : hy_cli_cache_dir(conf);
    for (int i = 0; rc < 0 && i < cli.n_args; i++) {
        char *path = NULL;
        if (hy_file_mkdirs(dir, 0755) < 0 || fetch(conf, cli.args[i], dir, sha, &path) < 0 ||
            check_sum(path, sha) < 0)
            rc = hy_cli_fail("fetch");
        else
            printf("%s\n", path);
        free(path);
    }
    free(dir);
    hy_conf_destroy(conf);
    return rc < 0 ? HY_EXIT_OK : rc;
}
