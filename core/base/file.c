/* SPDX-License-Identifier: Apache-2.0
 *
 * Files.
 *
 * Thread: any.  Owner: see the header.
 */
#include "core/base/file.h"
#include "core/base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static hy_status fail_errno(const char *verb, const char *path)
{
    int e = errno;
    hy_status st = e == ENOENT || e == ENOTDIR ? HY_E_NOTFOUND
                   : e == EACCES               ? HY_E_DENIED
                   : e == EISDIR               ? HY_E_INVAL
                                               : HY_E_IO;
    return hy_fail(st, "cannot %s %s: %s", verb, path, strerror(e));
}

static int open_retry(const char *path, int flags, mode_t mode)
{
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static hy_status read_all(int fd, const char *path, size_t limit, hy_buf *out)
{
    size_t got = 0;
    for (;;) {
        /* a file that grows, or a pipe, has no size to trust: read until the end */
        if (!hy_buf_reserve(out, 1 << 16))
            return hy_fail(HY_E_NOMEM, "out of memory reading %s", path);
        size_t room = out->cap - out->len - 1;
        ssize_t n = read(fd, out->data + out->len, room);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno("read", path);
        if (n == 0)
            break;
        got += (size_t)n;
        if (got > limit)
            return hy_fail(HY_E_LIMIT, "%s is larger than %zu bytes", path, limit);
        out->len += (size_t)n;
    }
    out->data[out->len] = '\0';
    return HY_OK;
}

hy_status hy_file_read(const char *path, size_t limit, hy_buf *out)
{
    int fd = open_retry(path, O_RDONLY, 0);
    if (fd < 0)
        return fail_errno("open", path);
    size_t before = out->len;
    hy_status st = read_all(fd, path, limit, out);
    close(fd);
    if (st < 0 && out->data != NULL) {
        out->len = before;
        out->data[before] = '\0';
    }
    return st;
}

hy_status hy_file_map(const char *path, hy_map *out)
{
    struct stat sb;
    int fd = open_retry(path, O_RDONLY | O_NONBLOCK, 0); /* a fifo must not hang us */
    if (fd < 0)
        return fail_errno("open", path);
    if (fstat(fd, &sb) != 0) {
        hy_status st = fail_errno("stat", path);
        close(fd);
        return st;
    }
    if (!S_ISREG(sb.st_mode)) {
        close(fd);
        return hy_fail(HY_E_INVAL, "%s is not a regular file", path);
    }
    hy_map m = {NULL, (size_t)sb.st_size};
    if (m.len != 0) {
        void *p = mmap(NULL, m.len, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            hy_status st = fail_errno("map", path);
            close(fd);
            return st;
        }
        m.data = p;
    }
    close(fd);
    *out = m;
    return HY_OK;
}

void hy_file_unmap(hy_map *m)
{
    if (m->data != NULL)
        munmap((void *)(uintptr_t)m->data, m->len);
    *m = (hy_map){NULL, 0};
}

bool hy_file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool hy_file_is_dir(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

hy_status hy_file_mkdirs(const char *path, unsigned mode)
{
    char *p = hy_strdup(path);
    if (p == NULL)
        return hy_fail(HY_E_NOMEM, "out of memory");
    for (char *s = p + 1; p[0] != '\0'; s++) {
        if (*s != '/' && *s != '\0')
            continue;
        char keep = *s;
        *s = '\0';
        if (mkdir(p, (mode_t)mode) != 0 && !(errno == EEXIST && hy_file_is_dir(p))) {
            hy_status st = fail_errno("make folder", p);
            hy_free(p);
            return st;
        }
        *s = keep;
        if (keep == '\0')
            break;
    }
    hy_free(p);
    return HY_OK;
}

static hy_status write_all(int fd, const char *path, const char *p, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno("write", path);
        p += n;
        len -= (size_t)n;
    }
    if (fsync(fd) != 0 && errno != EINVAL) /* EINVAL: not something that can be synced */
        return fail_errno("sync", path);
    return HY_OK;
}

hy_status hy_file_write(const char *path, const void *data, size_t len, unsigned mode)
{
    hy_buf tmp;
    hy_buf_init(&tmp);
    hy_buf_printf(&tmp, "%s.XXXXXX", path);
    if (tmp.failed)
        return hy_fail(HY_E_NOMEM, "out of memory");
    int fd = mkostemp(tmp.data, O_CLOEXEC);
    if (fd < 0) {
        hy_status st = fail_errno("create", tmp.data);
        hy_buf_fini(&tmp);
        return st;
    }
    hy_status st = write_all(fd, path, data, len);
    if (st == HY_OK && fchmod(fd, (mode_t)mode) != 0)
        st = fail_errno("set the mode of", path);
    if (close(fd) != 0 && st == HY_OK)
        st = fail_errno("close", path);
    if (st == HY_OK && rename(tmp.data, path) != 0)
        st = fail_errno("replace", path);
    if (st < 0)
        unlink(tmp.data);
    hy_buf_fini(&tmp);
    return st;
}
