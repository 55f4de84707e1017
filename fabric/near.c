/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rail is near which memory: NUMA nodes of network interfaces and pages, distances as the
 * firmware tells them, all from Linux itself. What is not known is equally near.
 *
 * Thread: any.  Owner: nothing kept.
 */
#include "fabric/fab_int.h"
#include "fabric/sock.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOCAL = 10, REMOTE = 20 /* ACPI's numbers, where the kernel has none */ };

int hy_fab__numa_of_addr(const char *addr)
{
    struct sockaddr_storage ss;
    socklen_t len;
    struct ifaddrs *all;
    int node = -1;
    if (hy_fab__addr_parse(addr, &ss, &len, true) < 0 || getifaddrs(&all) != 0)
        return -1;
    for (const struct ifaddrs *i = all; i != NULL && node < 0; i = i->ifa_next) {
        char path[128];
        if (i->ifa_addr == NULL || !hy_fab__same_ip((const void *)i->ifa_addr, &ss))
            continue;
        snprintf(path, sizeof(path), "/sys/class/net/%.32s/device/numa_node", i->ifa_name);
        FILE *f = fopen(path, "re");
        if (f != NULL) {
            if (fscanf(f, "%d", &node) != 1)
                node = -1;
            fclose(f);
        }
    }
    freeifaddrs(all);
    return node;
}

int hy_fab__numa_of_page(const void *p)
{
    enum { BY_NODE = 1, BY_ADDR = 2 }; /* MPOL_F_NODE, MPOL_F_ADDR of <linux/mempolicy.h> */
    int node = -1;
    if (syscall(SYS_get_mempolicy, &node, NULL, 0UL, p, BY_NODE | BY_ADDR) != 0)
        return -1;
    return node;
}

int hy_fab__numa_distance(int a, int b)
{
    char path[80], line[2048];
    if (a < 0 || b < 0 || a == b)
        return LOCAL;
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/distance", a);
    FILE *f = fopen(path, "re");
    char *at = f != NULL ? fgets(line, sizeof(line), f) : NULL;
    long d = at != NULL ? strtol(at, &at, 10) : 0;
    for (int i = 0; i < b && d > 0; i++)
        d = strtol(at, &at, 10);
    if (f != NULL)
        fclose(f);
    return d > 0 && d < 1000 ? (int)d : REMOTE;
}
