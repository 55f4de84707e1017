/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/map.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22 /* <linux/mman.h>, since 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

static size_t in_pages(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

void *hy_map(size_t bytes, int prot, int fd)
{
    if (bytes > SIZE_MAX / 2) {
        errno = ENOMEM;
        return NULL;
    }
    const size_t len = in_pages(bytes), room = len + HY_MAP_ALIGN;
    const int anon = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *const p = mmap(NULL, room, fd < 0 ? prot : PROT_NONE, anon, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    char *const at = p + (HY_MAP_ALIGN - (uintptr_t)p % HY_MAP_ALIGN) % HY_MAP_ALIGN;
    if (fd >= 0 && mmap(at, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        const int why = errno;
        munmap(p, room);
        errno = why;
        return NULL;
    }
    if (at > p)
        munmap(p, (size_t)(at - p));
    if (p + room > at + len)
        munmap(at + len, (size_t)(p + room - (at + len)));
    (void)madvise(at, len, MADV_HUGEPAGE);
    return at;
}

void hy_unmap(void *at, size_t bytes)
{
    if (at != NULL)
        munmap(at, in_pages(bytes));
}

bool hy_map_populate(void *at, size_t bytes, bool write)
{
    const size_t skip = (uintptr_t)at % (size_t)sysconf(_SC_PAGESIZE);
    const int how = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    int rc;
    do
        rc = madvise((char *)at - skip, bytes + skip, how);
    while (rc != 0 && (errno == EINTR || errno == EAGAIN));
    return rc == 0;
}
