/* SPDX-License-Identifier: Apache-2.0
 *
 * What control connections and own TCP's data connections share.
 *
 * Thread: under the fabric's lock, but for resolve.  Owner: the caller gets the descriptor.
 */
#ifndef HY_FABRIC_SOCK_H
#define HY_FABRIC_SOCK_H

#include "fabric/fab_int.h"

#include <sys/socket.h>

hy_status hy_fab__addr_parse(const char *addr, struct sockaddr_storage *out, socklen_t *len,
                             bool numeric);
/* Whatever their ports. Of an address of another family only sa_family is read. */
bool hy_fab__same_ip(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
void hy_fab__addr_text(const struct sockaddr_storage *a, char *out, size_t cap);
void hy_fab__sock_tune(int fd); /* non-blocking, no delay, not inherited */
/* TCP's congestion control; how: as in hy_fab_opts.
 * HY_E_INVAL: the kernel has no such congestion control, or not for this user. */
hy_status hy_fab__congestion_check(const char *how);
/* A name at any time; auto once there is a connection, or one is begun (to: with whom; else NULL).
 */
void hy_fab__congestion_set(const char *how, int fd, const struct sockaddr_storage *to);
/* Of a library's connections, by the address of its endpoint here or there (struct sockaddr, with
 * port). False: there is none yet. */
bool hy_fab__congestion_find(const char *how, const void *mine, size_t n_mine, const void *theirs,
                             size_t n_theirs);
hy_status hy_fab__sock_dial(hy_fab *f, int rail, const char *addr, int *fd_out);

#endif
