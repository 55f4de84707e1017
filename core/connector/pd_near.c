/* SPDX-License-Identifier: Apache-2.0
 *
 * Staging that a reader on the same node can look into: a memfd, sealed against shrinking, whose
 * number and random name go with HELLO. Who may read the owner's memory anyway (the fabric's
 * same-node path has proven it) opens it under /proc, checks name, seals and size, and maps it
 * read-only; it then unpacks packed pieces from where the owner packed them, and nothing is copied
 * between the processes. The mapping outlives the owner: a dead one is a link that ends, no fault.
 *
 * Thread: connector stage, and create.  Owner: the creator of the memory; readers own mappings.
 */
#include "core/base/log.h"
#include "core/base/map.h"
#include "core/connector/pd_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since 6.1 */
#endif

hy_status hy_pd__near_create(hy_pd *p, size_t bytes)
{
    snprintf(p->near_name, sizeof(p->near_name), "halyard-kv-%016" PRIx64, hy_rng_entropy());
    const int fd = memfd_create(p->near_name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *at = NULL;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        at = hy_map(bytes, PROT_READ | PROT_WRITE, fd);
    if (at == NULL) {
        const int why = errno;
        if (fd >= 0)
            close(fd);
        return hy_fail(HY_E_SYS, "no memory to share with readers on this node: %s", strerror(why));
    }
    p->staging = at;
    p->near_fd = fd;
    return HY_OK;
}

void hy_pd__near_destroy(hy_pd *p, size_t bytes)
{
    if (p->near_fd < 0)
        return;
    hy_unmap(p->staging, bytes);
    close(p->near_fd);
    p->staging = NULL;
    p->near_fd = -1;
}

int hy_pd__near_open(uint32_t pid, const hy_pdp_msg *m)
{
    char path[64], name[64], is[96], want[96];
    snprintf(path, sizeof(path), "/proc/%" PRIu32 "/fd/%" PRIu32, pid, m->near_fd);
    snprintf(name, sizeof(name), "%.*s", (int)m->near_name.n, (const char *)m->near_name.p);
    snprintf(want, sizeof(want), "/memfd:%s (deleted)", name);
    const ssize_t n = readlink(path, is, sizeof(is) - 1);
    is[n > 0 ? n : 0] = '\0';
    if (strncmp(name, "halyard-kv-", 11) != 0 || strcmp(is, want) != 0)
        return -1;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    const int seals = fd >= 0 ? fcntl(fd, F_GET_SEALS) : -1;
    if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &st) == 0 &&
        (uint64_t)st.st_size >= m->near_len)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* For the first reader: huge pages for what goes out, also where this host's shmem_enabled gives
 * none to those who only ask before they write. A wish; small ones make reading slower. */
static void make_huge(hy_pd *p)
{
    char *const at = (char *)p->staging + p->n_landing * PD_UNIT;
    const size_t bytes = (p->n_units - p->n_landing) * PD_UNIT;
    if (p->near_fd < 0 || p->near_huge)
        return;
    p->near_huge = true;
    (void)(hy_map_populate(at, bytes, true) && madvise(at, bytes, MADV_COLLAPSE) == 0);
}

void hy_pd__near_map(hy_pd *p, pd_peer *x, const hy_pdp_msg *m)
{
    uint32_t pid = 0;
    if (!hy_fab_peer_near(p->fab, x->fab, &pid))
        return;
    make_huge(p);
    if (m->near_name.n == 0 || m->near_len == 0 || p->bounce != NULL)
        return;
    const int fd = hy_pd__near_open(pid, m);
    void *at = fd >= 0 ? hy_map((size_t)m->near_len, PROT_READ, fd) : NULL;
    if (fd >= 0)
        close(fd);
    if (at == NULL) {
        hy_info("connector", "%s: its staging cannot be mapped: packed pieces are copied first",
                x->node);
        return;
    }
    x->near = at;
    x->near_len = m->near_len;
}

void hy_pd__near_unmap(pd_peer *x)
{
    hy_unmap(x->near, (size_t)x->near_len);
    x->near = NULL;
    x->near_len = 0;
}
