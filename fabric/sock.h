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
void hy_fab__addr_text(const struct sockaddr_storage *a, char *out, size_t cap);
void hy_fab__sock_tune(int fd); /* non-blocking, no delay, not inherited */
hy_status hy_fab__sock_dial(hy_fab *f, int rail, const char *addr, int *fd_out);

#endif
