/* SPDX-License-Identifier: Apache-2.0
 *
 * Large memory straight from the system, where huge pages can begin, and its pages before they are
 * used.
 *
 * Thread: any.  Owner: the caller unmaps.
 */
#ifndef HY_BASE_MAP_H
#define HY_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>

#define HY_MAP_ALIGN ((size_t)2 << 20)

/* fd: the start of a file, shared; -1: zeros of this process, counted as used only where touched.
 * prot: as mmap's. Huge pages are a wish. NULL: errno says why. */
void *hy_map(size_t bytes, int prot, int fd);
void hy_unmap(void *at, size_t bytes);

/* Has the system fill in the pages of [at, at + bytes), and those that it begins and ends in, for
 * writes or reads. False with errno: EINVAL before Linux 5.14, or no memory; they come when they
 * are touched. */
bool hy_map_populate(void *at, size_t bytes, bool write);

#endif
