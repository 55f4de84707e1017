/* SPDX-License-Identifier: Apache-2.0
 *
 * Own framed TCP: how a data connection finds its link.
 *
 * Thread: under the fabric's lock.  Owner: the link of the data path gets the socket.
 */
#ifndef HY_FABRIC_OWN_H
#define HY_FABRIC_OWN_H

#include "fabric/fab_int.h"

/* A stranger's first frame names a data path and knows its cookie: it gets the stranger's socket.
 */
bool hy_fab__own_attach(fab_link *stranger, const uint8_t *p, size_t n);

#endif
