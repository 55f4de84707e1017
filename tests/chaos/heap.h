/* SPDX-License-Identifier: Apache-2.0
 *
 * What is allocated now, exactly: every malloc of the process counted, in bytes that were asked for
 * and in blocks. Linking heap.c replaces malloc and its kin (glibc); under the address
 * sanitizer its own count of bytes is used.
 *
 * Thread: any.  Owner: nothing kept.
 */
#ifndef HY_TESTS_CHAOS_HEAP_H
#define HY_TESTS_CHAOS_HEAP_H

#include <stddef.h>

typedef struct heap {
    size_t bytes, blocks; /* blocks: 0 where it is not known */
} heap;

heap heap_now(void);

#endif
