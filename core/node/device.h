/* SPDX-License-Identifier: Apache-2.0
 *
 * The device of the configuration: [backend] name, and that backend's own keys, whatever they are.
 *
 * Thread: any.  Owner: the caller closes the device.
 */
#ifndef HY_NODE_DEVICE_H
#define HY_NODE_DEVICE_H

#include "core/conf/conf.h"
#include "hal/backend.h"

/* Adds the keys of every backend that can be loaded; before files are read. */
hy_status hy_node_backend_keys(hy_conf *c);
hy_status hy_node_open_device(const hy_conf *c, hy_dev **out);

#endif
