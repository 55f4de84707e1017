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
/* spec: NAME, or NAME:WORDS with commas between words: key=value of [backend.NAME], a number (which
 * device, or the wave of simt), exact or fast (else [engine] numerics), or an instruction set.
 * "cuda:1,fast", "simt:64", "cpu:avx2". */
hy_status hy_node_open_spec(const hy_conf *c, const char *spec, hy_dev **out);
/* Gives every backend the keys that decide what it finds (a driver's path), before it is asked what
 * devices there are. */
hy_status hy_node_configure_backends(const hy_conf *c);
/* hy_node_open_spec of [backend] name. */
hy_status hy_node_open_device(const hy_conf *c, hy_dev **out);

#endif
