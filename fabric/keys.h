/* SPDX-License-Identifier: Apache-2.0
 *
 * Fabric's INI keys, for hy_conf_add_table.
 *
 * Thread: constant data.  Owner: lives forever.
 */
#ifndef HY_FABRIC_KEYS_H
#define HY_FABRIC_KEYS_H

#include "core/base/conf_key.h"

#include <stddef.h>

extern const hy_conf_key hy_fab_keys[];
extern const size_t hy_fab_n_keys;

#endif
