/* SPDX-License-Identifier: Apache-2.0
 *
 * The server's socket: bound first, listening when requests can be answered. A host other than
 * loopback is only served with an API key.
 *
 * Thread: any.  Owner: the caller closes the descriptor.
 */
#include "core/http/server_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)a;
        return (ntohl(in->sin_addr.s_addr) >> 24) == 127;
    }
    if (a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)a;
        return IN6_IS_ADDR_LOOPBACK(&in->sin6_addr);
    }
    return false;
}

static hy_status bind_to(const struct addrinfo *ai, int *fd_out)
{
    int fd = socket(ai->ai_family, ai->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, ai->ai_protocol);
    if (fd < 0)
        return HY_E_SYS;
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    /* inherited by what is accepted: small stream pieces must not wait for an ACK */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) != 0) {
        int err = errno;
        close(fd);
        errno = err;
        return HY_E_IO;
    }
    *fd_out = fd;
    return HY_OK;
}

static int port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    if (getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        return 0;
    if (a.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
    return ntohs(((struct sockaddr_in *)&a)->sin_port);
}

static hy_status cannot_listen(const hy_http_opts *o, const char *host, int err)
{
    return hy_fail(HY_E_IO, "cannot listen on %s:%d: %s%s", host, o->port, strerror(err),
                   err == EADDRINUSE ? "; another program uses it: choose another [http] port"
                                     : "");
}

hy_status hy_http_reserve(const hy_http_opts *o, int *fd_out)
{
    char port[16];
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    const char *host = o->host != NULL && o->host[0] != '\0' ? o->host : "127.0.0.1";
    bool key = o->api_key != NULL && o->api_key[0] != '\0';
    snprintf(port, sizeof(port), "%d", o->port);
    int rc = getaddrinfo(host, port, &want, &list);
    if (rc != 0)
        return hy_fail(HY_E_INVAL, "[http] host '%s' is no address of this machine: %s", host,
                       gai_strerror(rc));
    hy_status st = HY_E_IO;
    for (const struct addrinfo *ai = list; ai != NULL && st != HY_OK; ai = ai->ai_next) {
        if (!key && !is_loopback(ai->ai_addr)) {
            st = hy_fail(HY_E_DENIED,
                         "[http] host '%s' is reachable from other machines: set [http] api_key, "
                         "or use 127.0.0.1",
                         host);
            break;
        }
        st = bind_to(ai, fd_out);
    }
    int err = errno;
    freeaddrinfo(list);
    return st == HY_OK || st == HY_E_DENIED ? st : cannot_listen(o, host, err);
}

hy_status hy_server__listen(const hy_http_opts *o, int fd, int *port_out)
{
    if (listen(fd, 1024) != 0) {
        const int err = errno;
        close(fd);
        return cannot_listen(o, o->host != NULL ? o->host : "127.0.0.1", err);
    }
    *port_out = port_of(fd);
    return HY_OK;
}

hy_status hy_http_bind(const hy_http_opts *o, int *fd_out, int *port_out)
{
    int fd = -1;
    HY_TRY(hy_http_reserve(o, &fd));
    HY_TRY(hy_server__listen(o, fd, port_out));
    *fd_out = fd;
    return HY_OK;
}
