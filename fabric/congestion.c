/* SPDX-License-Identifier: Apache-2.0
 *
 * TCP's congestion control on the connections of links. Between two ends of one machine nothing
 * can be congested, and one that paces what it sends (bbr, on many servers the system's) costs
 * loopback a third of its rate; so there `auto` takes cubic, or reno where the kernel refuses that.
 * libfabric has no way to name one: the sockets of its TCP are found by their addresses.
 *
 * Thread: under the fabric's lock.  Owner: nobody keeps anything.
 */
#include "fabric/sock.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AVAILABLE "/proc/sys/net/ipv4/tcp_available_congestion_control"

static bool set(int fd, const char *name)
{
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

hy_status hy_fab__congestion_check(const char *how)
{
    char has[256] = "";
    if (strcmp(how, "auto") == 0 || strcmp(how, "system") == 0)
        return HY_OK;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    errno = ENOENT;
    const bool ok = strlen(how) < FAB_CONGESTION_MAX && set(fd, how);
    const int e = errno;
    if (fd >= 0)
        close(fd);
    if (ok)
        return HY_OK;
    FILE *a = fopen(AVAILABLE, "re");
    if (a != NULL) {
        if (fgets(has, sizeof(has), a) != NULL)
            has[strcspn(has, "\n")] = 0;
        fclose(a);
    }
    if (e == EPERM)
        return hy_fail(HY_E_INVAL,
                       "[fabric] congestion = %s: not allowed to this user (see "
                       "net.ipv4.tcp_allowed_congestion_control)",
                       how);
    return hy_fail(HY_E_INVAL, "[fabric] congestion = %s: this kernel has auto, system, %s", how,
                   has);
}

static bool is_loopback(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET &&
           ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static uint16_t port(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)a)->sin6_port
                                    : ((const struct sockaddr_in *)a)->sin_port;
}

static bool ends(int fd, struct sockaddr_storage *mine, struct sockaddr_storage *theirs)
{
    socklen_t n = sizeof(*mine), m = sizeof(*theirs);
    memset(mine, 0, sizeof(*mine));
    memset(theirs, 0, sizeof(*theirs));
    return getsockname(fd, (struct sockaddr *)mine, &n) == 0 &&
           (mine->ss_family == AF_INET || mine->ss_family == AF_INET6) &&
           getpeername(fd, (struct sockaddr *)theirs, &m) == 0;
}

static void set_auto(int fd, const struct sockaddr_storage *mine,
                     const struct sockaddr_storage *theirs)
{
    if ((hy_fab__same_ip(mine, theirs) || (is_loopback(mine) && is_loopback(theirs))) &&
        !set(fd, "cubic"))
        (void)!set(fd, "reno");
}

void hy_fab__congestion_set(const char *how, int fd, const struct sockaddr_storage *to)
{
    struct sockaddr_storage mine, theirs;
    if (strcmp(how, "system") == 0)
        return;
    if (strcmp(how, "auto") != 0)
        (void)!set(fd, how);
    else if (ends(fd, &mine, &theirs) || to != NULL)
        set_auto(fd, &mine, to != NULL ? to : &theirs);
}

static bool is_at(const struct sockaddr_storage *a, const void *addr, size_t n)
{
    struct sockaddr_storage b = {0};
    if (n > sizeof(b))
        return false;
    memcpy(&b, addr, n);
    return hy_fab__same_ip(a, &b) && port(a) == port(&b);
}

bool hy_fab__congestion_find(const char *how, const void *mine, size_t n_mine, const void *theirs,
                             size_t n_theirs)
{
    bool found = false;
    DIR *d = strcmp(how, "system") != 0 ? opendir("/proc/self/fd") : NULL;
    if (d == NULL)
        return true; /* there is nothing to do */
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        struct sockaddr_storage here, there;
        const int fd = atoi(e->d_name);
        if (e->d_name[0] == '.' || !ends(fd, &here, &there) ||
            (!is_at(&here, mine, n_mine) && !is_at(&there, theirs, n_theirs)))
            continue;
        hy_fab__congestion_set(how, fd, NULL);
        found = true;
    }
    closedir(d);
    return found;
}
