/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport suite's tests of the ways that bytes take; each skips what an implementation has
 * not.
 *
 * Thread: the test's.  Owner: none.
 */
#ifndef HY_TESTS_TRANSPORT_PATHS_H
#define HY_TESTS_TRANSPORT_PATHS_H

#include "tests/conform/transport.h"

void paths_path(const tr_impl *im);
void paths_same_node(const tr_impl *im);
void paths_unlike_providers(const tr_impl *im);
void paths_beside(const tr_impl *im);
void paths_beside_alone(const tr_impl *im);
void paths_unlent(const tr_impl *im);
void paths_congestion(const tr_impl *im);

#endif
